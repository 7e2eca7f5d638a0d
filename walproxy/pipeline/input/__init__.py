"""Where the pipeline's WAL comes from: an archive, running safekeepers, or a folder of segments.

    wal_input           what an input is: whose WAL it has, its timelines, what is there, the bytes
    opening             which input a path names
    segment_index       which files hold which bytes of a timeline and its ancestors
    archive_input       the archive that safekeepers write, local or remote
    archive_listing     what is in it, kept up to date; archived_bytes: one of its objects, or a part of it
    folder_input        a folder of segments, such as pg_wal or pg_receivewal's
    folder_listing      what is in it; valid_end: where the log ends in a segment that is being written
    safekeeper_input    the safekeepers' replication listeners
    pieces              what a job reads, cut where tasks can share it, with the bytes that the last record needs beyond
    times               from a time to an LSN

An input is blocking, for several threads at once, and pickled as (path, options): each Spark task opens its own. No
pyspark, no asyncio.
"""
