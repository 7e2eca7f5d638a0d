"""Runs the acceptor: one event loop that passes it messages and executes its effects.

node                the loop itself
proposer_listener   accepts connections of proxies
readable_log        the readable part of the log, for readers and the archiver
state_log           log lines about promises, leaders and memberships
"""
