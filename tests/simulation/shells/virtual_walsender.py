"""The connection between a real proxy and a virtual primary: a walsender at one end, libpq at the other.

The proxy's end is the product's `ReplicationConnection`: what it does inside COPY (reading, pausing, status updates
that wait because the socket takes no more) is as it is in production. Under it `VirtualPgconn` stands for libpq, and
the commands are answered by the virtual primary. The primary's end is `WalSender`: it sends what is flushed in
messages of any size, as long as the proxy reads, and it holds the slot, one at a time.

What is sent arrives in order, late, or never: the connection breaks, or it is mute, and then each side goes on as if
the other one had nothing to send. The checkers look at each status update as libpq takes it.
"""

import asyncio
import re
import struct
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import psycopg

from safekeeper.base.errors import LocalProtocolError
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.base.timelines import parse_timeline_history
from safekeeper.pgwire.backend import POSTGRES_EPOCH_US
from tests.simulation.model.primary import SERVER_VERSION, VirtualPrimary
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from walproxy.postgres.problems import PrimaryProblem, ProblemKind, problem_of_error
from walproxy.postgres.replication import XLOG_DATA, PrimaryFacts
from walproxy.postgres.replication_protocol import TimelineEnd
from walproxy.postgres.slot_holder import SlotHolder
from walproxy.postgres.walreceiver import ReplicationConnection
from walproxy.proposer.actions import ReportStatus

if TYPE_CHECKING:
    from tests.simulation.shells.real_proxy import RealProxy

SENT_BYTES_MAX = 8 << 10
MESSAGE_BYTES_MAX = 3000
FROZEN_AGAIN_S = 0.1
# So often the socket takes no more of the proxy's output for a while.
STALLS, STALLS_S_MAX = 0.05, 0.5
# So often no connection is free to end the walsender that holds the slot.
BUSY_SERVERS = 0.25
# So often a walsender that has sent everything sends a keepalive.
KEEPALIVES = 0.2
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS_UPDATE = struct.Struct(">cQQQqB")
_HOST = re.compile(r"\bhost='?p(\d+)\b")


class VirtualPgconn:
    """libpq's connection, as `ReplicationConnection` and `WalStream` use it inside COPY."""

    ssl_in_use = False
    server_version = SERVER_VERSION

    def __init__(self, sender: "WalSender") -> None:
        self.socket = sender.number
        self.is_over = False
        self.problem = ""
        self._sender = sender
        self._arrived: deque[bytes] = deque()
        self._output: list[bytes] = []
        self._is_stalled = False

    def arrived(self, message: bytes) -> None:
        """A message of the COPY has reached the socket."""
        self._arrived.append(message)

    def consume_input(self) -> None:
        """See libpq."""
        if self.problem:
            raise psycopg.OperationalError(self.problem)

    def get_copy_data(self, _: int) -> tuple[int, memoryview]:
        """See libpq."""
        if self._arrived:
            message = self._arrived.popleft()
            self._sender.was_read(len(message))
            return len(message), memoryview(message)
        return (-1 if self.is_over else 0), memoryview(b"")

    def put_copy_data(self, message: bytes) -> None:
        """See libpq."""
        if self.problem:
            raise psycopg.OperationalError(self.problem)
        if message[:1] == b"r":
            self._sender.proxy_reports(message)
            self._output.append(message)

    def flush(self) -> int:
        """See libpq."""
        proxy = self._sender.proxy
        if not self._is_stalled and proxy.chance.random() < STALLS and not proxy.world.is_healing:
            self._is_stalled = True
            proxy.world.counts.count("primaries that did not read")
            proxy.world.clock.after(STALLS_S_MAX * proxy.chance.random(), self._flows_again)
        if self._is_stalled:
            return 1
        for message in self._output:
            self._sender.to_primary(message)
        self._output.clear()
        return 0

    def _flows_again(self) -> None:
        self._is_stalled = False
        self._sender.proxy.loop.is_writable(self.socket)

    def finish(self) -> None:
        """See libpq."""
        self._sender.closed()


class WalSender:
    """The primary's end of a connection.

    Attributes:
        proxy, life: the process at the other end.
        primary: where it runs.
        number: of the proxy's socket.
        pgconn: the proxy's end.
        is_mute: nothing more arrives, at either end.
        copying: whether it streams.
    """

    def __init__(self, proxy: "RealProxy", primary: VirtualPrimary, number: int) -> None:
        self.proxy, self.life = proxy, proxy.life
        self.primary = primary
        self.number = number
        self.is_mute = False
        self.copying = False
        self.end: TimelineEnd | PrimaryProblem | None = None
        self.pgconn = VirtualPgconn(self)
        self._primary_life = primary.life
        self._is_closed = False
        self._tli = 0
        self._sent_lsn: Lsn = 0
        self._unread_bytes = 0
        self._last_at = [0.0, 0.0]
        self._pump_is_due = False

    @property
    def stands(self) -> bool:
        """Whether both ends are there."""
        alive = self.proxy.life == self.life and not self._is_closed
        return alive and self.primary.up and self.primary.life == self._primary_life

    @property
    def holds_slot(self) -> bool:
        """Whether the slot is this walsender's."""
        return self.primary.walsender is self.proxy and self.proxy.slot_holder is self

    def closed(self) -> None:
        """The proxy has closed the connection: the walsender notices that."""
        if not self._is_closed:
            self._is_closed = True
            if self.copying and not self.is_mute:
                self.proxy.world.clock.after(self.proxy.delay_s(), self.release_slot)

    def release_slot(self) -> None:
        """The walsender ends."""
        self.copying = False
        if self.holds_slot:
            self.primary.walsender = None
            self.proxy.slot_holder = None

    def terminated(self) -> None:
        """The primary has ended it, or is gone."""
        self.copying = False
        if not self.is_mute:
            self._later(0, self._broke, "server closed the connection unexpectedly")

    def breaks(self) -> None:
        """The connection breaks; both ends notice that."""
        self._broke("Connection reset by peer")
        self.closed()

    def _broke(self, problem: str) -> None:
        if not self._is_closed:
            self.pgconn.problem = problem
            self.proxy.loop.is_readable(self.number)

    def _later(self, way: int, arrive: Any, *what: Any) -> None:
        """Let something arrive after all that was sent that way before."""
        clock = self.proxy.world.clock
        self._last_at[way] = max(self._last_at[way], clock.now + self.proxy.delay_s())
        clock.at(self._last_at[way], arrive, *what)

    def begins(self, begin_lsn: Lsn, tli: int) -> None:
        """Begin to stream."""
        self.copying = True
        self._tli, self._sent_lsn, self._unread_bytes = tli, begin_lsn, 0
        self.pgconn.is_over, self.end = False, None
        if begin_lsn < self.primary.oldest_lsn:
            self.copying = False
            what = f"requested WAL segment at {format_lsn(begin_lsn)} has already been removed"
            self.end = PrimaryProblem(ProblemKind.WAL_REMOVED, what)
            self._later(0, self._is_over)
        else:
            self.has_more()

    def has_more(self) -> None:
        """There may be something to send."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self.proxy.world.clock.after(self.proxy.delay_s() / 2, self._pump)

    def was_read(self, size: int) -> None:
        """The proxy has read that much."""
        self._unread_bytes -= size
        if self._unread_bytes < SENT_BYTES_MAX:
            self.has_more()

    def _pump(self) -> None:
        self._pump_is_due = False
        primary, chance = self.primary, self.proxy.chance
        if not self.stands or not self.copying or primary.frozen or self.is_mute:
            return  # A primary that was frozen calls when it goes on.
        tli_end = primary.tli_end(self._tli)
        assert tli_end is not None  # the COPY was opened on it
        room = SENT_BYTES_MAX - self._unread_bytes
        size = min(tli_end - self._sent_lsn, room, MESSAGE_BYTES_MAX)
        if size > 0:
            size = chance.choice((size, chance.randint(1, size)))
            header = XLOG_DATA.pack(ord("w"), self._sent_lsn, primary.flush_lsn, -POSTGRES_EPOCH_US)
            self._send(header + primary.read(self._sent_lsn, self._sent_lsn + size))
            self._sent_lsn += size
            self.has_more()
        elif self._sent_lsn == tli_end and self._tli != primary.tli:
            self.copying = False
            self.end = TimelineEnd(primary.next_tli(self._tli), tli_end)
            self._later(0, self._is_over)
        elif room > 0 and chance.random() < KEEPALIVES:
            self._send_keepalive(reply_requested=chance.random() < 0.5)

    def _send_keepalive(self, *, reply_requested: bool = False) -> None:
        self._send(_KEEPALIVE.pack(b"k", self._sent_lsn, -POSTGRES_EPOCH_US, reply_requested))

    def _send(self, message: bytes) -> None:
        self._unread_bytes += len(message)
        self._later(0, self._arrives, message)

    def _arrives(self, message: bytes) -> None:
        if not self.is_mute and not self._is_closed and not self.pgconn.problem:
            self.pgconn.arrived(message)
            self.proxy.loop.is_readable(self.number)

    def _is_over(self) -> None:
        if not self.is_mute and not self._is_closed:
            self.pgconn.is_over = True
            self.proxy.loop.is_readable(self.number)

    def proxy_reports(self, message: bytes) -> None:
        """The proxy has handed a status update to libpq."""
        _, write_lsn, flush_lsn, apply_lsn, _, _ = _STATUS_UPDATE.unpack(message)
        if self.stands:
            self.proxy.reports(self, ReportStatus(write_lsn, flush_lsn, apply_lsn))

    def to_primary(self, message: bytes) -> None:
        """A status update is on its way."""
        self._later(1, self._receives_status, message)

    def _receives_status(self, message: bytes) -> None:
        if not self.stands or self.is_mute or not self.holds_slot:
            return
        if self.primary.frozen:
            self.proxy.world.clock.after(FROZEN_AGAIN_S, self._receives_status, message)
            return
        _, _, flush_lsn, apply_lsn, _, reply_requested = _STATUS_UPDATE.unpack(message)
        self.primary.on_report(flush_lsn, apply_lsn)
        if reply_requested and self.copying:
            self._send_keepalive()


class VirtualReceiver(ReplicationConnection):
    """The proxy's end: the product's, but for the connection itself and the commands."""

    def __init__(self, sender: WalSender, conninfo: str, timeout_s: float) -> None:
        super().__init__(SimpleNamespace(pgconn=sender.pgconn), conninfo, timeout_s)  # type: ignore[arg-type]
        self.sender = sender

    @classmethod
    async def connect(
        cls, conninfo: str, *, application_name: str = "", timeout_s: float = 10.0, settings: Any = None
    ) -> Self:
        """See CommandConnection."""
        proxy = running_proxy()
        primary = proxy.primary_at(conninfo)
        await asyncio.sleep(proxy.delay_s())
        if not primary.up or proxy.primary_is_cut_off:
            raise PrimaryProblem(ProblemKind.UNREACHABLE, f"{primary.name} is down")
        try:
            async with asyncio.timeout(timeout_s):
                while primary.frozen:
                    await asyncio.sleep(FROZEN_AGAIN_S)
        except TimeoutError:
            raise PrimaryProblem(ProblemKind.UNREACHABLE, f"{primary.name} does not answer") from None
        if not primary.up or proxy.primary_is_cut_off:
            raise PrimaryProblem(ProblemKind.UNREACHABLE, f"{primary.name} is down")
        return cls(proxy.new_sender(primary), conninfo, timeout_s)

    async def _answered(self, doing: str) -> VirtualPrimary:
        """Wait for the answer to a command; return the primary."""
        if self._in_copy and self._ended is None:
            raise LocalProtocolError(f"cannot {doing} inside a stream")
        sender = self.sender
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.sleep(sender.proxy.delay_s())
                while sender.is_mute or (sender.primary.frozen and sender.stands):
                    await asyncio.sleep(FROZEN_AGAIN_S)
        except TimeoutError:
            self.close()
            raise problem_of_error(doing, None, "PostgreSQL gave no answer") from None
        problem = self._broken or sender.pgconn.problem or ("" if sender.stands else "the server is gone")
        if problem:
            self._broken = problem
            raise problem_of_error(doing, None, problem)
        return sender.primary

    async def identify(self) -> PrimaryFacts:
        """See ReplicationConnection."""
        primary = await self._answered("identify PostgreSQL")
        identity, history = primary.identity(), _history(primary, primary.tli)
        sender = self.sender
        sender.proxy.world.note(sender.proxy.name, "sees", identity)
        return PrimaryFacts(
            system_id=identity.system_id,
            tli=identity.tli,
            flush_lsn=identity.flush_lsn,
            segment_size=identity.segment_size,
            server_version=identity.server_version,
            in_recovery=False,
            timeline_history=history,
            lineage=parse_timeline_history(identity.tli, history),
            wal_level="replica",
            fsync=True,
        )

    async def timeline_history(self, tli: int) -> bytes:
        """See ReplicationConnection."""
        return _history(await self._answered(f"read the history of TLI {tli}"), tli)

    async def has_slot(self, name: str) -> bool:
        """See ReplicationConnection."""
        return (await self._answered("look for the slot")).has_slot

    async def still_has_slot(self, name: str) -> bool:
        """See ReplicationConnection."""
        return await self.has_slot(name)

    async def slot_restart_lsn(self, name: str) -> Lsn | None:
        """See ReplicationConnection."""
        primary = await self._answered("use the slot")
        retained_lsn = max(primary.oldest_lsn, segment_start(primary.reported_lsn, SEGMENT_SIZE))
        return retained_lsn if primary.has_slot else None

    async def ensure_slot(self, name: str) -> bool:
        """See ReplicationConnection."""
        primary = await self._answered("create the slot")
        had_slot, primary.has_slot = primary.has_slot, True
        return not had_slot

    async def start_replication(self, slot: str | None, begin_lsn: Lsn, tli: int) -> None:
        """See ReplicationConnection."""
        doing = f"stream TLI {tli} from {format_lsn(begin_lsn)}"
        self.received_lsn = self.server_end_lsn = begin_lsn
        primary = await self._answered(doing)
        proxy, tli_end = self.sender.proxy, primary.tli_end(tli)
        if not primary.has_slot:
            raise PrimaryProblem(ProblemKind.SLOT_MISSING, f"cannot {doing}: the slot does not exist")
        if primary.walsender is not None and not self.sender.holds_slot:
            raise PrimaryProblem(ProblemKind.SLOT_IN_USE, f"cannot {doing}: the slot is in use")
        if tli_end is None or tli_end < begin_lsn:
            raise PrimaryProblem(ProblemKind.WRONG_POSITION, f"cannot {doing}: it is ahead of the primary")
        if begin_lsn == tli_end and tli != primary.tli:
            self._skipped = TimelineEnd(primary.next_tli(tli), tli_end)
            return
        primary.walsender, proxy.slot_holder = proxy, self.sender
        self._skipped, self._in_copy = None, True
        self.sender.begins(begin_lsn, tli)

    async def _end_of_copy(self) -> TimelineEnd:
        if self._broken is not None:
            raise problem_of_error("stream WAL", None, self._broken)
        await self._answered("end the stream")
        end = self.sender.end
        if isinstance(end, PrimaryProblem):
            raise end
        assert end is not None  # `is_over` follows it
        return end


def _history(primary: VirtualPrimary, tli: int) -> bytes:
    return next((each.content for each in primary.identity().tli_histories if each.tli == tli), b"")


def running_proxy() -> "RealProxy":
    """Return the proxy whose loop runs at this moment."""
    proxy: RealProxy = asyncio.get_running_loop().owner  # type: ignore[attr-defined]
    return proxy


def host_index(conninfo: str) -> int:
    """Return which of its hosts a connection string of a real proxy names."""
    found = _HOST.search(conninfo)
    assert found is not None, conninfo
    return int(found[1])


class VirtualSlotHolder(SlotHolder):
    """The walsender that holds the slot of a virtual primary."""

    async def end(self) -> int | None:
        """See SlotHolder. Some attempts fail: no connection is free."""
        proxy = running_proxy()
        primary = proxy.primary_at(self.conninfo)
        delay_s = proxy.delay_s()
        await asyncio.sleep(delay_s)
        if not primary.answers or proxy.primary_is_cut_off:
            raise PrimaryProblem(ProblemKind.UNREACHABLE, f"{primary.name} does not answer")
        if delay_s > (1 - BUSY_SERVERS) * proxy.world.network.delay_s:
            raise PrimaryProblem(ProblemKind.NO_FREE_WALSENDER, "too many clients already")
        if primary.walsender is None:
            return None
        primary.drop_walsender()
        return 1
