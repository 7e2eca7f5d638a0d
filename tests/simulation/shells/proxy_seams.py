"""What a real proxy has in the simulation instead of sockets, SQL, chance and time.

Proxy, its links and PrimaryFeed are the product's. Replaced are: the event loop's sockets (those of safekeepers by a
`VirtualTransport`, the primary's by virtual_walsender.py), SQL, what decodes records, since those of the simulation are
synthetic, and sizes, which are small. Events are not sent, and the limbo reads no WAL: no commit is slow.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.net.safekeeper_connection import SafekeeperConnection
from safekeeper.peers.codec import PROPOSER_DIALECT
from safekeeper.waldecode.records import LogTail
from tests.simulation.checks.violation import Violation
from tests.simulation.model.disk import page_crcs
from tests.simulation.model.network import Connection
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE, last_timed_record, previous_link, slot_lsn
from tests.simulation.model.virtual_loop import VirtualLoop
from tests.simulation.shells.shell_seams import RESOLUTION_S, SILENT, VirtualTransport
from tests.simulation.shells.virtual_walsender import VirtualReceiver, VirtualSlotHolder, running_proxy
from tests.simulation.world.failover_shell import VirtualConnection
from walproxy.limbo import limbo as limbo_module
from walproxy.postgres import walreceiver as walreceiver_module
from walproxy.postgres.problems import PrimaryProblem, ProblemKind
from walproxy.postgres.sessions import SqlSessions
from walproxy.proposer.actions import Action, SendAppend, StartReplication
from walproxy.proposer.proposer import Proposer
from walproxy.proxy import feed_connection as feed_connection_module
from walproxy.proxy import feed_slot as feed_slot_module
from walproxy.proxy import primary_feed as feed_module
from walproxy.proxy import primary_watch as primary_watch_module
from walproxy.proxy import proxy as proxy_module
from walproxy.proxy import proxy_watch as proxy_watch_module
from walproxy.proxy import quorum_watch as quorum_watch_module
from walproxy.proxy import safekeeper_link as link_module
from walproxy.proxy import sql_watch as sql_watch_module
from walproxy.proxy.primary_query import PrimaryAnswer
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.window import Window

if TYPE_CHECKING:
    from tests.simulation.shells.real_proxy import RealProxy

# So often the host of a safekeeper that cannot be reached answers nothing, instead of refusing the connection.
SILENTLY = 0.3


class LinkTransport(VirtualTransport):
    """A connection to a safekeeper, as the real link sees it."""

    def __init__(self, shell: "RealProxy", connection: Connection) -> None:
        super().__init__(shell, connection, PROPOSER_DIALECT)
        self._proxy = shell

    def _read(self) -> None:
        self._proxy.reading = self
        try:
            super()._read()
        finally:
            self._proxy.reading = None


class ProxyLoop(VirtualLoop):
    """The loop of a proxy."""

    owner: "RealProxy"

    def __init__(self, owner: "RealProxy") -> None:
        super().__init__(owner.clock, owner.chance, 0.0, owner)
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], object]] = {}

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        # As in ShellLoop.
        return super().call_later(max(delay, RESOLUTION_S), callback, *args, context=context)

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let the proxy handle it as in production; what a checker raises fails the run."""
        error = context.get("exception")
        if self.is_closed() or self._dying is not None:
            return
        if self._handler is None or isinstance(error, Violation | AssertionError):
            self.failure = self.failure or error
        else:
            self._handler(self, context)

    # Connections to safekeepers.

    async def create_connection(self, new_protocol: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to the safekeeper that a virtual address names."""
        proxy = self.owner
        safekeeper = proxy.world.safekeepers[int(str(host)[1:])]
        await asyncio.sleep(proxy.delay_s())
        connection = proxy.world.network.connect(proxy, safekeeper)
        if connection is None:
            if proxy.chance.random() < SILENTLY:
                await self.create_future()
            raise OSError(f"{safekeeper.name} cannot be reached")
        transport = LinkTransport(proxy, connection)
        proxy.transports[connection.number] = transport
        transport.accepted(new_protocol)
        return transport, None

    # The connection to the primary, by the number of its socket.

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._readers[fd] = callback

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._writers[fd] = callback

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def is_readable(self, number: int) -> None:
        """Something can be read from a socket."""
        if number in self._readers and not self.is_closed():
            self.call_soon(self._wake, self._readers, number)

    def is_writable(self, number: int) -> None:
        """A socket takes more."""
        if number in self._writers and not self.is_closed():
            self.call_soon(self._wake, self._writers, number)

    def _wake(self, callbacks: dict[int, Callable[[], object]], number: int) -> None:
        callback = callbacks.get(number)
        if callback is not None:
            callback()


def new_connection(safekeeper_id: int, credentials: Any, **callbacks: Any) -> Any:
    """Return a new connection to a safekeeper: the product's for a proxy, a virtual one for a command."""
    kind = SafekeeperConnection if isinstance(asyncio.get_running_loop(), ProxyLoop) else VirtualConnection
    return kind(safekeeper_id, credentials, **callbacks)


def observed_proposer(config: Any) -> Proposer:
    """Return the proposer of the proxy that is starting, whose steps the checkers observe."""
    shell = running_proxy()
    kind = shell.world.proposer_class

    class Observed(kind):  # type: ignore[valid-type, misc]
        def message(self, safekeeper_id: int, message: Any, now: float) -> list[Action]:
            shell.handles(safekeeper_id, message)
            actions: list[Action] = super().message(safekeeper_id, message, now)
            return actions

        def _taken(self) -> list[Action]:
            actions = [_with_tail(action) for action in super()._taken()]
            shell.stepped(self, actions)
            return actions

    return shell.new_proposer(Observed, shell.as_configured(config))


def _with_tail(action: Action) -> Action:
    """Name the log's last record as the feed expects it."""
    if isinstance(action, StartReplication) and action.previous_record_lsn is not None:
        tail = LogTail(action.begin_lsn, action.previous_record_lsn, None, b"", 0, 0)
        fields = {name: getattr(action, name) for name in StartReplication.__slots__}
        return StartReplication(**{**fields, "log_tail": tail})
    return action


class ObservedProxy(Proxy):
    """The product's proxy: the checkers look at what has been done after each event."""

    def primary_checked(self, begin_lsn: Lsn, end_lsn: Lsn, digest: Any) -> None:
        running_proxy().world.counts.count("primaries' tails compared")
        super().primary_checked(begin_lsn, end_lsn, digest)

    def _execute(self, actions: list[Action]) -> None:
        shell = running_proxy()
        for action in actions:
            if type(action) is SendAppend and action.header.begin_lsn == action.end_lsn:
                shell.world.counts.count("heartbeats")
        super()._execute(actions)
        if self._execution.queued is None:
            shell.acted()


class SmallWindow(Window):
    """The product's window. One that is small for a moment stands for the WAL of hours."""

    def evict(self, truncate_lsn: Lsn, commit_lsn: Lsn) -> bool:
        shell = running_proxy()
        capacity_bytes = self.capacity_bytes
        if shell.chance.random() < shell.world.profile.evict_early:
            self.capacity_bytes = 0
        try:
            has_moved = super().evict(truncate_lsn, commit_lsn)
        finally:
            self.capacity_bytes = capacity_bytes
        shell.world.counts.count("window evictions", int(has_moved))
        return has_moved


class SyntheticChecksums:
    """The checksums of synthetic WAL, as `PageChecksums` has those of PostgreSQL's."""

    def __init__(self, segment_size: int, begin_lsn: Lsn, *, keeps_all: bool = False) -> None:
        self.end_lsn = self._begin_lsn = begin_lsn
        self._wal = bytearray()
        self._keeps_all = keeps_all

    @property
    def begin_lsn(self) -> Lsn:
        """Where the checksums begin."""
        return self._begin_lsn if self._keeps_all else self._proof_lsn(self.end_lsn)

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._wal += data
        self.end_lsn += len(data)

    def let_go(self) -> None:
        """Keep only what a primary that comes back is compared with."""
        self._keeps_all = False

    def page_crcs(self) -> tuple[int, ...]:
        """Return the checksums from `begin_lsn` on."""
        begin_lsn = self.begin_lsn
        return page_crcs(self._wal[begin_lsn - self._begin_lsn :], begin_lsn)

    def slot_lsn(self, commit_lsn: Lsn) -> Lsn:
        """Return the flush position that the primary may receive."""
        if not self._keeps_all:
            surplus = self._proof_lsn(commit_lsn) - self._begin_lsn
            if surplus > 0:
                del self._wal[:surplus]
                self._begin_lsn += surplus
        return slot_lsn(self._wal, self._begin_lsn, commit_lsn)

    def _proof_lsn(self, lsn: Lsn) -> Lsn:
        timed_lsn, _ = last_timed_record(self._wal, self._begin_lsn, lsn)
        return segment_start(timed_lsn, SEGMENT_SIZE) if timed_lsn else self._begin_lsn


class SyntheticLinkCheck:
    """Decides whether synthetic WAL links to a log, as `LinkCheck` does for PostgreSQL's."""

    def __init__(self, tail: LogTail, segment_size: int) -> None:
        self.linked: bool | None = None
        self.reason = "synthetic"
        self._previous_lsn = tail.previous_lsn
        self._wal = bytearray()

    def feed(self, data: bytes) -> bool | None:
        """Read the next bytes."""
        self._wal += data
        found_lsn = previous_link(self._wal, 0)
        if self.linked is None and found_lsn is not None:
            self.linked = found_lsn == self._previous_lsn
        return self.linked


class NoEvents:
    """Sends no events."""

    def __init__(self, *_: Any) -> None:
        pass

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.get_running_loop().create_future()


class _Chance:
    """`random` and `secrets` of the running proxy."""

    def random(self) -> float:
        return running_proxy().chance.random()

    def token_hex(self, _: int) -> str:
        return running_proxy().proposer_id


async def _no_answer(sessions: SqlSessions, slot: str, *, timeout_s: float) -> PrimaryAnswer:
    raise PrimaryProblem(ProblemKind.NO_LOGIN, "the simulated primary has no SQL")


async def _a_session(conninfo: str, *, timeout_s: float) -> None:
    return None


def _monotonic() -> float:
    return running_proxy().clock.now


_CHANCE = _Chance()
# To be put in place after those of failover_shell.py.
REPLACED_IN_PROXIES: tuple[tuple[Any, str, Any], ...] = (
    (link_module, "SafekeeperConnection", new_connection),
    (proxy_module, "Proposer", observed_proposer),
    (proxy_module, "Window", SmallWindow),
    (proxy_module, "PageChecksums", SyntheticChecksums),
    (proxy_module, "EventSender", NoEvents),
    (proxy_module, "random", _CHANCE),
    (proxy_module, "secrets", _CHANCE),
    (proxy_module, "monotonic", _monotonic),
    (proxy_module, "EVICT_BYTES", 4000),
    (proxy_module, "KEPT_BYTES", 500),
    (feed_module, "PageChecksums", SyntheticChecksums),
    (feed_module, "LinkCheck", SyntheticLinkCheck),
    (feed_module, "ReplicationConnection", VirtualReceiver),
    (feed_module, "SlotHolder", VirtualSlotHolder),
    (primary_watch_module, "read_primary", _no_answer),
    (sql_watch_module, "try_session", _a_session),
    *(
        (module, "logger", SILENT)
        for module in (
            proxy_module,
            proxy_watch_module,
            feed_module,
            feed_connection_module,
            feed_slot_module,
            quorum_watch_module,
            primary_watch_module,
            sql_watch_module,
            limbo_module,
            walreceiver_module,
        )
    ),
)
