"""The pipeline's WAL: a source of `walproxy/wal_sources`, read into arrays and cut for tasks.

wal_input   what an input is: a source that is read into arrays, and pickled as what opened it
opening     which input a path names
foreign     archives of other tools
remote      an archive in an object store, of safekeepers or of another tool
valid_end   where the log ends in a segment that is being written
pieces      what a job reads, cut where tasks can share it, with the bytes that the last record needs beyond
parallel    pieces in threads, with results in the order of the log
times       from a time to an LSN

An input is blocking, for several threads at once; each Spark task opens its own. No pyspark, no asyncio.
"""
