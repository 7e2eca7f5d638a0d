"""Rules for every test run.

With WALPROXY_FAIL_ON_SKIP=1 (CI sets it) a run in which any test was skipped has failed: there everything that the
tests need is installed, so a skipped test means that the machine was not prepared, and nobody reads green output.

With --in-memory the files of clusters are in memory (tests/scratch.py). Those of a run that failed stay until the next
run.
"""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster_templates import remove_templates
from tests.forking.daemons import stop_servers
from tests.scheduling import rank, scope
from tests.scratch import use_memory
from walproxy.postgres.local_server import take_ports

HEADER = pytest.StashKey[str]()
PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-memory", action="store_true", help="Keep clusters in memory, if there is enough.")


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        take_ports(int(worker.removeprefix("gw")))
    elif config.getoption("in_memory"):
        folders = use_memory()
        config.stash[HEADER] = f"clusters: in {folders[0]}" if folders else "clusters: on a disk, for lack of memory"
        config.add_cleanup(lambda: [shutil.rmtree(each) for each in folders if config.stash.get(PASSED, False)])
    # The secret that safekeepers and proxies on loopback share is the run's own, not that of who runs it.
    state = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="walproxy-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    # A shell ignores Ctrl-C in what it runs in the background, and children inherit that. Some tests send it to theirs.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_log() -> Iterator[None]:
    """The root logger has the handlers and the level of before after each test: a command called in it sets both."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def pytest_report_header(config: pytest.Config) -> str | None:
    return config.stash.get(HEADER, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByScope(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    return ByScope(config, log)


def pytest_collection_finish() -> None:
    # Thousands of tests and what they import stay to the end: no collection need look through them again.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Not a cleanup of the configuration: xdist kills a worker that has finished its session and lives on.
    remove_templates()
    stop_servers()
    session.config.stash[PASSED] = session.exitstatus == pytest.ExitCode.OK
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("WALPROXY_FAIL_ON_SKIP") != "1" or reporter is None:
        return
    skipped = len(reporter.stats.get("skipped", []))
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line("")
        reporter.write_line(f"FAILED: {skipped} skipped, and WALPROXY_FAIL_ON_SKIP=1 allows none", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
