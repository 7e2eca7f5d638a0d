"""The torture test of a cluster: clients log their commits, a nemesis injects faults, checkers compare afterwards.

The three are kept apart. The clients (`workloads/`) have no information about faults, the nemesis (`nemesis.py`) has
none about clients, and the checkers see only the history (`record.py`) and the cluster's content at the end.
"""
