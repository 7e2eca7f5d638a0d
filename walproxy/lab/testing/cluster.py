"""A walproxy cluster for tests, other people's too: PostgreSQL, safekeepers, proxies, standbys, and faults for them.

    with WalproxyCluster() as cluster, psycopg.connect(cluster.conninfo) as connection:
        cluster.kill(1)
        ...

In containers, or in plain processes where there is no container engine or no image: the same members, the same faults.
This class keeps the books (what is paused, cut off, slow) and an `Engine` does the work. Everything blocks; asyncio
code calls it through `asyncio.to_thread`. See docs/guide/testing.md.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args

import psycopg

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.logs import one_line
from safekeeper.base.networks import is_loopback
from safekeeper.base.settings import address
from walproxy.installation import pip_install
from walproxy.lab.testing.engine import Blueprint, ClusterFailed, Engine
from walproxy.lab.testing.faulty_disk import DiskFaults
from walproxy.lab.testing.hindrances import HOSTILE_HTTP, UNDONE_WITHIN_S, Hindrance, HostileHttp, hinder
from walproxy.lab.testing.leftovers import temporary_folder
from walproxy.lab.testing.processes import ProcessesEngine
from walproxy.lab.testing.shortages import Flood, TakenDescriptors

EngineName = Literal["auto", "containers", "processes"]

_ENGINE_VARIABLE = "WALPROXY_TESTING_ENGINE"
# PostgreSQL's WAL stays there to be compared with the safekeepers'.
_SETTINGS = {"wal_keep_size": "4GB"}
_POLL_S = 0.05
_LOG_LINES = 5


class WalproxyCluster:
    """A cluster that starts with the `with` block, commits through its quorum from then on, and is removed after it.

    A member is named as in `members`; a number is a safekeeper's.

    Attributes:
        engine: "containers" or "processes": what it runs on.
        members: the names of all: "postgres", "safekeeper1", ..., "walproxy", "walproxy2", ..., "standby1", ...

    Args:
        postgres: a major version ("17"), in containers also an image; by default POSTGRES_IMAGE or postgres:18, among
            processes the newest server of this machine.
        safekeepers: how many.
        archive: they archive WAL, in a folder of the cluster's own.
        proxies: how many; one leads, the others wait as spares.
        standbys: how many, each fed by the safekeepers.
        engine: "auto" is the value of WALPROXY_TESTING_ENGINE, else containers if there is an engine that has the
            images.
        directory: a new folder for data and logs, which stays; by default a temporary one.
        settings: of PostgreSQL.
        volatile_disks: what a safekeeper has written and not synced is lost with its process: `kill` is a power cut.
        safekeeper_program: the words after the interpreter in place of -m walproxy.lab.testing.faulty_disk, before
            CONTROL_FILE run OPTIONS; processes only.
        proxy_program: those in place of -m walproxy run; processes only.
    """

    def __init__(
        self,
        postgres: str | None = None,
        safekeepers: int = 3,
        *,
        archive: bool = True,
        proxies: int = 1,
        standbys: int = 0,
        engine: EngineName = "auto",
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        volatile_disks: bool = False,
        safekeeper_program: Sequence[str] | None = None,
        proxy_program: Sequence[str] | None = None,
    ) -> None:
        self._blueprint = Blueprint(
            postgres,
            safekeepers,
            archive,
            proxies,
            standbys,
            {**_SETTINGS, **(settings or {})},
            volatile_disks,
            safekeeper_program,
            proxy_program,
        )
        self.engine = choose_engine(engine, self._blueprint)
        self.members = self._blueprint.members
        self._directory = directory
        self._started: Engine | None = None
        self._paused: set[str] = set()
        self._disks: dict[str, DiskFaults] = {}
        self._floods: dict[str, Flood] = {}
        self._descriptors: dict[str, TakenDescriptors] = {}
        self._hindrances: dict[str, tuple[str, Hindrance]] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = self._directory
            if directory is None:
                directory = stack.enter_context(temporary_folder())
            else:
                directory.mkdir(parents=True, exist_ok=True)
            self._started = _make_engine(self.engine, self._blueprint, directory)
            stack.callback(self._started.close)
            self._started.start_all()
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.closing(self._closing):
            for name in self.members:
                # What cannot be undone at a server ends with it; the test's own error must not be replaced.
                with contextlib.suppress(ClusterFailed):
                    if name in self._paused and name in self._hindrances:
                        self.resume(name)
                    self._end_shortages(name, within_s=0)
            self._started = None
            self._paused.clear()
            self._disks.clear()
            self._hindrances.clear()

    # Its state.

    @property
    def conninfo(self) -> str:
        """The primary's connection string, for libpq: its superuser."""
        return self._engine.conninfo()

    def conninfo_of(self, who: str) -> str:
        """Return the connection string of a PostgreSQL, a standby's for instance: its superuser."""
        name = self._name(who)
        if name != "postgres" and name not in self._blueprint.standby_names:
            raise ConfigurationError(f"{name} is not a PostgreSQL server: it has no connection string")
        return self._engine.conninfo(name)

    @property
    def archive_url(self) -> str | None:
        """The archive's URL for the safekeepers; None without one."""
        return self._engine.archive_url

    def status(self) -> dict[str, Any] | None:
        """Return the /status of the proxy that leads, else of any that answers; None if none does."""
        statuses = list(filter(None, map(self._engine.status_of, self._blueprint.proxy_names)))
        ranked = sorted(statuses, key=lambda status: (status["state"] != "streaming", status["spare"]))
        return ranked[0] if ranked else None

    def status_of(self, who: str | int) -> dict[str, Any] | None:
        """Return the /status of a safekeeper or proxy, None if it does not answer (PostgreSQL never does)."""
        return self._engine.status_of(self._name(who))

    def wait_until_streaming(self, timeout_s: float = 60) -> None:
        """Wait until PostgreSQL takes connections and a proxy streams its WAL to a quorum.

        Raises:
            ClusterFailed: none does within `timeout_s`; with the last lines of the proxies' logs.
        """
        deadline = time.monotonic() + timeout_s
        while not self._streams():
            if time.monotonic() > deadline:
                logs = "; ".join(
                    f"{name}: {' | '.join(self.logs(name, _LOG_LINES).splitlines()) or '(no log)'}"
                    for name in self._blueprint.proxy_names
                )
                raise ClusterFailed(f"nothing streams after {timeout_s:g} s; the logs end with {logs}")
            time.sleep(_POLL_S)

    def logs(self, who: str | int, lines: int = 20) -> str:
        """Return the last lines of what a member has logged."""
        return self._engine.log(self._name(who), lines)

    def process_ids(self) -> dict[str, int]:
        """Return the process ids of the members that live, as this machine sees them."""
        return self._engine.process_ids()

    def data_folder(self, who: str | int) -> Path:
        """Return the folder of a safekeeper's or a PostgreSQL's data; of containers, a copy as it is now."""
        name = self._name(who)
        if name in self._blueprint.proxy_names:
            raise ConfigurationError(f"{name} is a proxy: it has no data folder")
        return self._engine.data_folder(name)

    # Faults.

    def pause(self, who: str | int) -> None:
        """Let a member stand still: it lives, holds its connections, and does nothing.

        Raises:
            ClusterFailed: it does not run.
        """
        name = self._name(who)
        if not self._engine.runs(name):
            raise ClusterFailed(f"{name} does not run: start it before it is paused")
        self._engine.pause(name)
        self._paused.add(name)

    def resume(self, who: str | int) -> None:
        """Let it go on after `pause`."""
        name = self._name(who)
        self._engine.resume(name)
        self._paused.discard(name)

    def kill(self, who: str | int) -> None:
        """End a member with SIGKILL. Harmless if it has ended."""
        name = self._name(who)
        self._engine.kill(name)
        self._paused.discard(name)

    def stop(self, who: str | int) -> None:
        """End a member in order, as an operator would; PostgreSQL with a fast shutdown.

        Raises:
            WalproxyError: it has not ended in time. PostgreSQL waits for its WAL to reach the quorum.
        """
        self.resume(who)
        self._engine.stop(self._name(who))

    def start(self, who: str | int) -> None:
        """Start a member that has ended, on what it has left. Harmless if it runs. Its faults are still there."""
        self._engine.start(self._name(who))

    def partition(self, safekeeper: str | int, direction: Literal["both", "to", "from"] = "both") -> None:
        """Cut a safekeeper off from the proxies: "to": it receives nothing; "from": nothing of it arrives; or both."""
        self._engine.hold(self._safekeeper(safekeeper), direction)

    def slow(self, safekeeper: str | int, fsync_ms: float) -> None:
        """Let each fdatasync of a safekeeper take `fsync_ms` longer; 0: as quick as it is."""
        name = self._safekeeper(safekeeper)
        self._set_disk(name, DiskFaults(fsync_ms=fsync_ms, full=self._disk(name).full))

    def fill(self, safekeeper: str | int) -> None:
        """Let a safekeeper's disk be full: there is no room for another file."""
        name = self._safekeeper(safekeeper)
        self._set_disk(name, DiskFaults(fsync_ms=self._disk(name).fsync_ms, full=True))

    def flood(self, safekeeper: str | int) -> None:
        """Keep half-sent connections open to every listener of a safekeeper, and open more; among processes only.

        In containers, whose addresses this machine does not see, and if it does not answer, nothing happens.
        """
        name = self._safekeeper(safekeeper)
        status = self._engine.status_of(name) if self.engine == "processes" else None
        if status is not None and name not in self._floods:
            addresses = [address(written) for written in status["addresses"].values()]
            self._floods[name] = Flood([each for each in addresses if is_loopback(each.host)])

    def take_descriptors(self, safekeeper: str | int) -> None:
        """Let a safekeeper open no file and accept no connection; among processes only, in containers nothing happens.

        One that is started again has descriptors. To one that has not started yet, and so does not answer, nothing
        happens: no program starts without them.
        """
        name = self._safekeeper(safekeeper)
        if self.engine != "processes" or self._engine.status_of(name) is None or name in self._descriptors:
            return
        with contextlib.suppress(KeyError, ProcessLookupError):  # It has ended in this moment.
            self._descriptors[name] = TakenDescriptors(self._engine.process_ids()[name])

    def hinder(self, who: str | int, kind: str) -> None:
        """Do to a member what a site's clients and settings can do; of a member, one kind at a time.

        Args:
            kind: of PostgreSQL "no connections", "logins blocked", "settings changed" or "gate removed"; of a standby
                "replay paused"; of a safekeeper or proxy "hostile HTTP", among processes only.

        Raises:
            ClusterFailed: the server does not accept it.
        """
        name = self._name(who)
        if name in self._hindrances:
            return
        if kind != HOSTILE_HTTP:
            conninfo = self.conninfo_of(name)
            with _session_errors(f"{name}: {kind!r}"):
                self._hindrances[name] = kind, hinder(kind, conninfo)
        elif (port := self._engine.http_port(name)) is not None:
            self._hindrances[name] = kind, HostileHttp(port)

    def heal(self, who: str | int | None = None) -> None:
        """End the partitions, the disk's faults, the shortages, hindrances and the pause of a member; or of all.

        Of all: a member that has ended, for whatever reason, is started again, too.

        Raises:
            ClusterFailed: a hindrance cannot be undone, e.g. because its server does not run.
        """
        for name in self.members if who is None else [self._name(who)]:
            if name in self._paused:
                self.resume(name)
            if name in self._blueprint.safekeeper_names:
                self._engine.hold(name, "none")
                if name in self._disks:
                    self._set_disk(name, DiskFaults())
            if who is None:
                self._engine.start(name)
            # Last: a hindrance is undone at a server that runs.
            self._end_shortages(name)

    def _end_shortages(self, name: str, within_s: float = UNDONE_WITHIN_S) -> None:
        flood, descriptors = self._floods.pop(name, None), self._descriptors.pop(name, None)
        if descriptors is not None:
            descriptors.give_back()
        if flood is not None:
            flood.stop()
        if name in self._hindrances:
            kind, hindrance = self._hindrances[name]
            with _session_errors(f"{name}: the end of {kind!r}"):
                hindrance.end(within_s)
            del self._hindrances[name]

    def _streams(self) -> bool:
        status = self.status()
        return status is not None and status["state"] == "streaming" and self._engine.primary_answers()

    @property
    def _engine(self) -> Engine:
        if self._started is None:
            raise ClusterFailed("the cluster does not run: it does so within `with WalproxyCluster(...) as cluster:`")
        return self._started

    def _name(self, who: str | int) -> str:
        name = f"safekeeper{who}" if isinstance(who, int) else who
        if name not in self.members:
            raise ConfigurationError(f"the cluster has no member {name}, but {', '.join(self.members)}")
        return name

    def _safekeeper(self, who: str | int) -> str:
        name = self._name(who)
        if name not in self._blueprint.safekeeper_names:
            raise ConfigurationError(f"{name} is not a safekeeper: choose one of {self._blueprint.safekeeper_names}")
        return name

    def _disk(self, name: str) -> DiskFaults:
        return self._disks.get(name, DiskFaults())

    def _set_disk(self, name: str, faults: DiskFaults) -> None:
        self._engine.set_disk(name, faults)
        self._disks[name] = faults


@contextlib.contextmanager
def _session_errors(what: str) -> Iterator[None]:
    """Turn an error of a hindrance's session into one line."""
    try:
        yield
    except psycopg.Error as error:
        raise ClusterFailed(f"{what} failed: {one_line(str(error))}") from error


def choose_engine(wanted: EngineName, blueprint: Blueprint) -> Literal["containers", "processes"]:
    """Return what a cluster is to run on.

    Raises:
        ConfigurationError: WALPROXY_TESTING_ENGINE has another value, or containers are requested and cannot be used.
    """
    if wanted == "auto":
        wanted = _by_environment()
    if wanted == "processes":
        return "processes"
    try:
        from walproxy.lab.testing.containers import require_engine
    except ImportError as error:
        if wanted == "auto":
            return "processes"
        raise ConfigurationError(f"containers need {pip_install('testing')}: {error}") from error
    try:
        require_engine(blueprint, may_pull=wanted == "containers")
    except ConfigurationError:
        if wanted == "auto":
            return "processes"
        raise
    return "containers"


def _by_environment() -> EngineName:
    chosen = os.environ.get(_ENGINE_VARIABLE, "auto")
    for name in get_args(EngineName):
        if chosen == name:
            return cast(EngineName, name)
    raise ConfigurationError(f"{_ENGINE_VARIABLE} is {chosen}: set it to one of {', '.join(get_args(EngineName))}")


def _make_engine(name: str, blueprint: Blueprint, directory: Path) -> Engine:
    if name == "processes":
        return ProcessesEngine(blueprint, directory)
    from walproxy.lab.testing.containers import ContainersEngine

    return ContainersEngine(blueprint, directory)
