"""The archive: committed WAL in an object store (docs/guide/archive.md).

objects    what lies in an archive and how it is named (pure)
store      a folder of an object store: put, get, list, delete, and the errors that can happen
catalog    which WAL an archive holds, along PostgreSQL's timelines (pure)
upload     from a safekeeper into the archive, so that two at once do no harm
fetch      out of the archive, verified
"""
