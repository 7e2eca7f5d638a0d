"""Runs the acceptor: one event loop that passes it messages and executes its effects.

node                the loop itself
wal_writer          writes and flushes the WAL
segment_files       prepares and removes segment files
agent_registry      keeps reports and settings for agents
peer_reads          sends WAL to members that pull it
proposer_listener   accepts connections of proxies
event_keeper        keeps events, of its own and of others
readable_log        the readable part of the log, for readers and the archiver
state_log           log lines about promises, leaders and memberships
wal_pull            pulls WAL from other safekeepers
"""
