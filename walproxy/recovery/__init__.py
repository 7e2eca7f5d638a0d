"""Recovery: WAL from wherever it is left, delivered to a PostgreSQL that recovers (docs/guide/archive.md).

config              which sources there are (walproxy/wal_sources), out of options or a file
pages               is this file the WAL that it claims to be
fetcher             the best answer of several sources: a restore_command's decisions
server_mode         what the server does that runs a restore_command, and what an exit code would make it do
caller              the same server: which system it is, whether it recovers, when the sources were silent
prefetched          what the next call needs, fetched before it is asked for: the half that must be quick
prefetcher          the same, the process that fetches
record_times        when commits happened, out of the WAL itself
survey              what an archive holds: which points in time, what is missing, what is wrong
base_backup         a pg_basebackup, as a folder or as tars
backup_manifest     its files, sizes and checksums, with which it is compared while it is copied
plan                how far a recovery would reach, and whether it may begin
restore             makes the data folder
settings_block      what it adds to the server's settings, and removes when recovery has ended
"""
