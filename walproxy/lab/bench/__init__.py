"""The benchmark: what a commit costs with each way to make it durable elsewhere, side by side on one machine.

Experiments (experiments.py), each on servers of its own, idle while it is not their turn:

    arms     no standby; three `pg_receivewal --synchronous`, two of which must answer; walproxy (arms.py, measure.py)
    levels   the levels of synchronous_commit, with a stock standby and through walproxy (standby_arms.py, levels.py)
    members  commits while a safekeeper is slow or dead (members.py)
    crashes  how long commits wait when a process starts or dies (crashes.py); memory with a member dead (memory.py)

Machines are noisy and drift, so single figures mean little: all take turns in every round, in a shuffled order, and
what is reported is the median of the rounds' ratios (rounds.py).
"""
