"""Failovers under load: three servers with agents, faults of their hosts and network, and checks of what is promised.

    python -m walproxy.lab.failover --rounds 100 --seed 7

isolation       the run in namespaces of its own (network, processes, mounts), where it is root on Linux
network         a network namespace for each host, and partitions between them; or the loopback interface
host            the processes of one host: manager, proxy, PostgreSQL; and signals to them
manager         what runs on each host to manage its PostgreSQL: walproxy agent, or another program to compare with
patroni         Patroni, to compare the gaps
site            the whole: servers, safekeepers, hosts; and whether all is well
rows            the rows that are written, and what became of each
clients         the load: clients with a list of all hosts, which write rows, or append to lists and read them; a probe
                of each server, and a writer that commits with synchronous_commit = local
plan            the rounds, by a seed
triggers        files that let the fence, or a promotion, fail
injector        carries out and ends the fault of a round
wal_keeper      copies the WAL of a primary that has ended, before its rejoin overwrites it
wal_truth       the transactions of that WAL that the new primary lacks, by pg_waldump
discarded       compares them with the agent's discarded report
checks          acknowledged rows that are lost, and two servers that acknowledge
rounds          round after round, and the checks after each
results         the table of the gaps
"""
