"""The types that both halves of the consensus share, pure.

`safekeeper.acceptor` is the safekeeper's half, `walproxy.proposer` the proxy's. Nothing in the three packages reads a
clock, draws a random number, touches a file, a socket or the environment; time and ids are arguments. The shells around
them (safekeeper/node/node.py, walproxy/proxy/proxy.py, tests/simulation) pass events in and execute what is returned,
in order. The normative text is docs/design/protocol.md; the rules S1-S14 are in docs/design/invariants.md.

messages        what proposers and acceptors send to each other
control_state   what an acceptor persists
membership      the members, and what a quorum of them is
term_history    which term wrote which part of a log, and where two logs part
commitment      the position that a quorum has reached
"""
