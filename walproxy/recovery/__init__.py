"""Recovery: WAL from all remaining sources, for a PostgreSQL that recovers (docs/guide/archive.md).

config              the sources (walproxy/wal_sources), from options or a file
pages               the check of a file against its name
fetcher             the best reply of several sources: the decisions of a restore_command
server_mode         the mode of the server that runs a restore_command, and its exit codes
caller              the same server: its system, whether it recovers, when the sources did not reply
walproxy-wal-fetch  a shell script around a restore_command: moves a segment that was fetched ahead, without Python
prefetched          segments that are fetched ahead: the quick part, in every call
prefetcher          the same: the process that fetches
record_times        the times of commits in WAL
survey              the content of an archive: times, missing WAL, problems
notable_records     the records that a restore must know before they are replayed
replay_survey       what replay will do outside of the data folder, and which settings it needs
base_backup         a pg_basebackup, as a folder or as tars
backup_manifest     its files, sizes and checksums, with which it is compared while it is copied
plan                the end of a recovery, and whether it may begin
restore             creates the data folder
settings_block      the settings that it adds for the server, and removes after recovery
"""
