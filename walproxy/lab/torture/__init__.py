"""A cluster that is stressed: clients log what they did, a nemesis breaks things, checkers look afterwards.

The three are kept apart. The clients (`workloads/`) know nothing of faults, the nemesis (`nemesis.py`) knows nothing
of clients, and the checkers see only what was written down (`record.py`) and what the cluster holds in the end.
"""
