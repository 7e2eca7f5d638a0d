"""The types that both halves of the consensus share, pure.

`safekeeper.acceptor` is the safekeeper's half, `walproxy.proposer` the proxy's. Nothing in the three packages reads a
clock, draws a random number, uses a file, a socket or the environment; time and ids are arguments. The shells around
them (safekeeper/node/node.py, walproxy/proxy/proxy.py, tests/simulation) pass events in and execute the resulting
effects in order. The normative text is docs/design/protocol.md; the rules S1-S14 are in docs/design/invariants.md.

messages        the messages between proposers and acceptors
control_state   the state that an acceptor persists
membership      the members and their quorums
quorum_expression  the size of a quorum, as an expression in the number of members
term_history    which term wrote which part of a log, and where two logs diverge
commitment      the position that a quorum has reached
answer_counts   counts of votes and refusals
"""
