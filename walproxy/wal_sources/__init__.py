"""Where WAL is, for recovery and for the pipeline.

source             the interface: what a source of WAL can answer
archive            an archive
archive_access     the archive's store, opened once
safekeeper         running safekeepers, through their replication listeners
folder             the data folder of a safekeeper that is stopped
wal_fetch_client   a replication client that fetches whole segments
"""
