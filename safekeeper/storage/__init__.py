"""The data folder of a safekeeper: its control file, and its WAL as segment files with footers.

data_folder    opens, locks and composes all of it; executes the acceptor's effects on the disk
control_file   the acceptor's durable state, replaced as a whole
wal_log        the log that the node appends to, flushes, cuts and reads
segment_file   one file
recovery       what a folder of segment files holds after a restart
wal_reading    reads a range over several segments
disk_work      flushes outside of the event loop
filesystem     the calls of the operating system, in one place
disk_space     free space and the limit that stops appends
inspection     what `safekeeper inspect` prints
"""
