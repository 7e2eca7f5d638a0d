"""Tests with real partitions: in network namespaces of their own (walproxy/lab/failover/isolation.py)."""

import os
import sys

import pytest

from walproxy.lab.failover.isolation import enter, is_isolated, obstacle, run_isolated


def runs_isolated(request: pytest.FixtureRequest) -> bool:
    """Return whether this process has namespaces of its own; if not, run the test in one that has, to its end."""
    if is_isolated():
        enter()
        return True
    if reason := obstacle():
        pytest.skip(f"the machine gives the test no namespaces: {reason}")
    os.environ.pop("PYTEST_ADDOPTS", None)
    words = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-s", request.node.nodeid]
    assert run_isolated([sys.executable, "-m", "pytest", *words]) == 0, (
        "the test has failed in its namespaces, see there"
    )
    return False
