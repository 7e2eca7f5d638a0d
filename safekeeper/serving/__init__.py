"""Sends WAL to standbys and other readers, over PostgreSQL's replication protocol.

replication_listener     accepts connections
replication_connection   one connection: authentication, commands, COPY
replication_commands     the results of the commands
readers                  all readers, and the positions that they reported
reader                   one reader: the next range to send
slots                    physical replication slots
users                    the file of users and their SCRAM verifiers
pg_transport             PostgreSQL's protocol over an asyncio transport
standby_feedback         when the proxy receives the standbys' positions
"""
