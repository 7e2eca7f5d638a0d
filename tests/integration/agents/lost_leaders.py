"""Clusters of agents that lose their leader: what is waited for, what it cost, and what the safekeepers keep of it."""

import time
from collections.abc import Callable, Sequence

from tests.integration.agents.probes import Probes
from tests.integration.agents.test_agent import Agents, Book
from tests.waiting import wait_for
from walproxy.lab.failover.host import Host

DEAD_AFTER_S = 2.0
NewAgents = Callable[..., Agents]


def wait_for_line(hosts: Sequence[Host], text: str, timeout_s: float = 60.0) -> Host:
    """Wait until the agent of one of these has logged a text; return that host."""
    found: list[Host] = []

    def is_logged() -> bool:
        found[:] = [host for host in hosts if text in host.manager.log_path.read_text()]
        return bool(found)

    wait_for(is_logged, lambda: f"an agent logs {text!r}: {[host.manager.log_tail(5) for host in hosts]}", timeout_s)
    return found[0]


def wait_until(at: float, what: str) -> None:
    """Wait until a time of the monotonic clock: for what lasts a certain time."""
    wait_for(lambda: time.monotonic() > at, what, 120.0)


def commits_go_on(book: Book | Probes, since: float) -> None:
    """Wait for a commit, and print how long after the end of the cause it was."""
    longest_s = book.wait_for_commit()
    print(
        f"longest time without a commit: {longest_s:.2f} s, {time.monotonic() - since:.2f} s after the cause was gone"
    )


def floors(cluster: Agents) -> set[int]:
    """Return the floors of the safekeepers' histories."""
    statuses = [safekeeper.status() for safekeeper in cluster.safekeepers.values()]
    return {status["history"][-1]["floor"] for status in statuses if status is not None}
