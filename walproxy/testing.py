"""The public name of `walproxy.lab.testing`: a cluster with faults, for the tests of other programs."""

from walproxy.lab.testing.cluster import EngineName, WalproxyCluster
from walproxy.lab.testing.engine import ClusterFailed

__all__ = ["ClusterFailed", "EngineName", "WalproxyCluster"]
