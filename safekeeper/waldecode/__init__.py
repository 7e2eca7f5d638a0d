"""How WAL is laid out: page headers, records, and the few records that the consensus looks for. Pure.

format          page headers and the constants of PostgreSQL's WAL
records         where records begin and end, and whether they are whole
continuity      whether a primary's first record follows the last one of a log
record_search   the records around a position
timed_records   the records that bear a time
"""
