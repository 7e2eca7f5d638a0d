"""The sources of WAL for recovery and for the pipeline.

source             the interface: what a source of WAL can answer
ranges             which bytes of a log files and ranges hold together
archive            the archive that safekeepers write, local or remote
archive_listing    what is in it, kept up to date
archived_bytes     one of its objects, or a part of it
safekeeper         one running safekeeper, through its replication listener
safekeeper_group   those of a cluster, as long as one of them answers
folder             the data folder of a safekeeper that is stopped
segment_folder     a folder of segments, such as pg_wal or pg_receivewal's
segment_listing    what is in it, kept up to date
timeline_choice    the timeline to read, where files show which there are
asking             a store's failures, as what they mean to a reader
wal_fetch_client   a replication client that asks for WAL, blocking
"""
