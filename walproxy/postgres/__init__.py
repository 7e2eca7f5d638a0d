"""PostgreSQL as a client sees it.

walreceiver            the replication connection of the proxy: identify, checksum, stream
command_connection     replication commands on the event loop, one at a time
replication_protocol   commands, the stream and its end, without waiting
logical_replication    the same for the changes that a logical slot sends
waiting                the two ways to wait for them: on the event loop, and blocking
replication            replication messages as bytes
hosts                  several hosts of one conninfo
problems               what is wrong with a server, and whether waiting helps
sessions               opens every SQL session, with our settings; the pool of a daemon
bounded_sql            statements with a deadline, for a server that may hang
sql                    the few statements that are sent over SQL
conninfo               connection strings
page_checksums         CRC-32C of each page of a range of WAL
binaries               installed servers on this machine
local_server           a server that this process starts and stops
process_table          which processes run
"""
