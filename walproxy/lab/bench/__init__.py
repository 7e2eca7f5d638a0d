"""The benchmark: what a commit costs with each way to make it durable elsewhere, side by side on one machine.

Experiments (experiments.py), each on servers of its own, idle while it is not their turn:

    arms     no standby; three `pg_receivewal --synchronous`, two of which must answer; walproxy (arms.py, measure.py)
    levels   the levels of synchronous_commit, with a stock standby and through walproxy (standby_arms.py, levels.py)
    members  commits while a safekeeper is slow or dead (members.py)
    crashes  how long commits wait when a process starts or dies (crashes.py); memory with a member dead (memory.py)
    readers  commits while readers of a safekeeper's WAL are slow, many, or stopped (readers.py and what it names)
    archive  how fast WAL is archived (uploads.py); commits while the archive is dead (archive_commits.py), and one long
             outage of it (archive_outage.py)
    apply    row changes received and applied to tables, beside pg_recvlogical (row_changes.py)

Machines are noisy and drift, so single figures mean little: all take turns in every round, in a shuffled order, and
what is reported is the median of the rounds' ratios (rounds.py).
"""
