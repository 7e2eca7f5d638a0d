"""The consensus, pure: two state machines that decide, and the words that they speak.

Nothing here reads a clock, draws a random number, touches a file, a socket or the environment; time and ids are
arguments. `Acceptor` is the safekeeper's half, `Proposer` the proxy's. The shells around them (safekeeper/node.py,
walproxy/proxy.py, tests/simulation) feed events in and execute what comes out, in order.
The normative text is docs/protocol.md; the rules S1-S14 are in docs/invariants.md.
"""
