"""The archive: committed WAL in an object store (docs/guide/archive.md).

objects    the objects of an archive and their names (pure)
store      a folder of an object store: put, get, list, delete, and their errors
catalog    which WAL an archive contains, along PostgreSQL's timelines (pure)
upload     uploads from a safekeeper, so that two concurrent archivers do no harm
fetch      reads the archive, verified
"""
