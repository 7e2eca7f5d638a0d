"""Archives of other tools as sources of WAL: WAL-G, pgBackRest, Barman, and folders of compressed segments. Read only.

roots     where the segments of such an archive are, and which file is which one
codecs    the content of a file: compressed, plain, encrypted
archive   all of it as a source: segments, decompressed and verified
"""
