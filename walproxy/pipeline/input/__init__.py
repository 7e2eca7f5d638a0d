"""The pipeline's WAL: a source of `walproxy/wal_sources`, read into arrays and cut for tasks.

wal_input   what an input is: a source that is read into arrays, and pickled as what opened it
opening     which input a path names
foreign     archives of other tools
pieces      what a job reads, cut where tasks or threads can share it, with the bytes that the last record needs beyond
times       from a time to an LSN

An input is blocking, for several threads at once; each Spark task opens its own. No pyspark, no asyncio.
"""
