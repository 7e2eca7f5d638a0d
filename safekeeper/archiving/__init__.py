"""The archiving agent: uploads committed WAL, and reads archived WAL back for readers.

archiver       the agent, one for each safekeeper that has an archive
plan           which segment is uploaded next, pure
read_through   WAL that was removed here, from the archive
statistics     counters for the status page and the metrics
"""
