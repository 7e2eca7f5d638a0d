"""The load generator of torture, benchmarks, demo and tests: clients that commit, and what each commit came to.

transactions  what a client sends; each program has its own
clients       connections that try transactions, and reconnect
history       which were acknowledged, which are in doubt, how long they took
percentiles   of times
"""
