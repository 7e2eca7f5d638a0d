"""Failover: sealing the old primary's timeline, choosing, feeding and promoting a standby, and what was discarded.

failover            the steps, by a command or an agent
survey              what is found before them, and which step is next
world, polls        the safekeepers and servers of a failover, as it looks at them and changes them
sealer              a proposer without a primary, which seals
log_end             where the sealed log ends, and its last complete record
candidates          which standby may be promoted, and which is
server              one server, over SQL
switchover          a failover while everything works
discarded           the transactions in the tail of an old primary
discarded_report    the report of them
tail_wal            the files of that tail
relation_names      the names of relations in it
"""
