"""The data folder of a safekeeper: its control file, and its WAL as segment files with footers.

data_folder    opens, locks and composes the files; executes the acceptor's effects on the disk
control_file   the acceptor's durable state, replaced as a whole
wal_log        the log that the node appends to, flushes, cuts and reads
segment_file   one segment's file
recovery       finds the end of the WAL in the segment files after a restart
wal_reading    reads a range over several segments
disk_work      flushes outside the event loop
filesystem     the calls to the operating system, in one place
disk_space     free space and the limit that stops appends
inspection     what `safekeeper inspect` prints
"""
