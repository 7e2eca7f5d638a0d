"""PostgreSQL's wire protocol as a server speaks it to replication clients: bytes to values and back, no I/O."""
