"""The layout of WAL: page headers, records, and the few records whose content is used. Pure.

format           page headers and the constants of PostgreSQL's WAL
records          finds and verifies records
continuity       whether a primary's first record follows the last one of a log
record_search    the records around a position
timed_records    finds the records that contain a time
record_body      the relation of a record's first block, and its main data
transaction_end  the records that end a transaction
"""
