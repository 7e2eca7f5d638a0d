"""The safekeeper's half of the consensus: a state machine without I/O.

acceptor       the handlers of a proposer's messages, as generators of effects
acceptor_log   what the acceptor stores, and how an adoption changes it
effects        what the shell is to do, in order
trimming       which WAL need not be retained
readable       what a reader may be sent
"""
