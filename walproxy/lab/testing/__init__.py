"""A walproxy cluster for tests: `WalproxyCluster`, in containers or in plain processes. See docs/guide/testing.md."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walproxy.lab.testing.cluster import EngineName, WalproxyCluster
    from walproxy.lab.testing.engine import ClusterFailed

__all__ = ["ClusterFailed", "EngineName", "WalproxyCluster"]


def __getattr__(name: str) -> Any:
    """Import a name only when it is used: the cluster's own processes are modules of this package, and stay small."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from walproxy.lab.testing import cluster

    return getattr(cluster, name)
