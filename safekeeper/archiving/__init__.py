"""The archiver: uploads committed WAL, and fetches archived WAL for readers.

archiver       uploads; one for each safekeeper that has an archive
plan           which segment is uploaded next, pure
read_through   fetches WAL that is no longer retained from the archive
statistics     counters for /status and /metrics
"""
