"""Row changes from a logical slot, and tables that follow them (docs/design/adr/0067-row-changes-in-one-session.md).

messages        the messages of PostgreSQL's output plugin; pure
pgoutput        bytes of PostgreSQL's output plugin to messages; pure
transactions    messages to committed transactions, in the order of their commits; pure
spool           what waits for its commit, in memory and beyond a limit on disk
server          connections, and what must be known of the server
slot            the logical slot: look at it, peek, advance
quorum_gate     what is held back until its commit is on a quorum; pure
reading         a range of a slot by a peek, for `pgcdc`
change_feed     a session that streams a slot, on a thread, for `apply`
slot_stream     ranges out of such a session
publication     publications: created, dropped, required to exist
published_tables  which tables and columns they have, and how the catalogs describe these
safe_lsn        up to where commits are on a quorum
column_types    PostgreSQL's text of a value to Arrow
rows            changes as rows of Arrow
data_source     Spark's data source `pgcdc`
apply           the job that keeps tables as the source tables are
"""
