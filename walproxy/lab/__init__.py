"""What tests, benchmarks, torture and demo share: clusters on this machine, faults, load. Not used in production.

cluster    a cluster of local processes
testing    the same with faults, in processes or containers: `walproxy.testing`
torture    random faults against a loaded cluster
bench      what commits cost
demo       the whole story in a terminal
"""
