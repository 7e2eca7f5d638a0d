"""The safekeeper's WAL: segment files with footers, and the log that is made of them.

`filesystem` is the narrow door to the operating system, `segment_file` is one file, `recovery` says what a folder
of them holds after a restart, `storage` is the log that the node appends to, flushes, cuts and reads.
"""
