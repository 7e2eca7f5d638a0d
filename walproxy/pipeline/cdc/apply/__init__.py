"""Tables that follow the tables of a PostgreSQL database: what `walproxy pipeline apply` does.

job             the loop: take a range of the stream, merge it into the tables, note the position, confirm it
tables          which tables follow, which are copied again, which are quarantined
target          one table: which changes it takes, how it follows changes of its source's definition
source_columns  columns of a source as those of its table
fingerprint     what of a source table must not change unnoticed, and what follows from a change; pure
verify          whether the tables have the rows of their sources
row_hashes      two sets of rows, compared by hashes over ranges of their key
modes           what tables keep of changes, and the columns that they have for it
held_changes    changes that wait for their table, and how they get into it: mirror, soft-delete
history         the same of mode append
net_changes     many changes to at most one per row; pure
net_columns     the same for many rows at once, by columns
message_columns the values of many messages, by columns
row_arrays      texts of values to columns of a table
copying         tables as of a position in the WAL
copy_ranges     ranges of a table's blocks, and whether one is the same in a later snapshot
copy_state      which ranges are copied, kept for a copy that is interrupted
table_copy      the copy of one table, from its columns to its commit
parallel_copy   the copies of all tables, by several sessions
session_workers the threads of these sessions
copies          how that gets into a table that may have rows already
present_rows    what a table shows of its source: what a verification compares
opening         such a table by its location, format and name
duck            such tables in DuckDB
following       what a table that follows can do, and its position
delta           such a table in Delta Lake's format
iceberg         such a table in Iceberg's format
options         the options of a job
job_file        what the job keeps beside the tables
status_files    what the job reports, for people and for monitoring
status_pages    the same over HTTP

A table's *position* (commit_lsn, sequence) stands in the table itself, in the same commit as the rows: every change
below it is in, none at or beyond it. So a change that is read again after a crash is passed over. And a copy, which is
a table as of a position, may be made at any time, and again.

The slot is moved to an end of a range when every table has what is below, on disk. No file here imports pyspark.
"""
