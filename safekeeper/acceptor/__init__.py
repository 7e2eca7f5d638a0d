"""The safekeeper's half of the consensus: a state machine without I/O.

acceptor       the handlers of a proposer's messages, as generators of effects
following      the leader that is followed
acceptor_log   the acceptor's log, and how an adoption changes it
effects        what the node must execute, in order
trimming       which WAL need not be retained
readable       which WAL may be sent to a reader
pull_sources   which safekeeper a pull of WAL reads from
"""
