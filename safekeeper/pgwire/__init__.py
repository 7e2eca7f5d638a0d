"""PostgreSQL's wire protocol, the server's side for replication clients: bytes to values and back, no I/O."""
