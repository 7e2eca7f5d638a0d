"""The safekeeper: keeps the WAL of one PostgreSQL cluster, durable as a member of a quorum.

Imports run one way: `walproxy` imports `safekeeper`, never the other way round.
"""
