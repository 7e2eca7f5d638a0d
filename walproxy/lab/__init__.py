"""Shared by tests, benchmarks, torture test and demo: clusters on this machine, faults, load. Not used in production.

cluster    a cluster of local processes
load       clients that commit, and what each commit came to
testing    the same with faults, in processes or containers: `walproxy.testing`
torture    random faults against a loaded cluster
bench      what commits cost
demo       the whole story in a terminal
"""
