"""Archives of other tools as sources of WAL: WAL-G, pgBackRest, Barman, and folders of compressed segments. Read only.

names     which file of such an archive is which segment
roots     where its segments are
codecs    the content of a file: compressed, plain, encrypted
segments  a segment, decompressed and verified
archive   all of it as a source
"""
