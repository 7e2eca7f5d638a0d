"""The shell of the acceptor: one event loop that feeds it messages and executes its effects.

node                the loop itself
proposer_listener   accepts connections of proxies
readable_log        the readable part of the log, and who waits for it to grow
state_log           log lines about promises, leaders and memberships
"""
