"""What a command of walproxy/failover has in the simulation instead of sockets, SQL, chance and time.

The command itself is the real one: failover.py, survey.py, candidates.py, log_end.py, sealer.py, and what they use to
connect to safekeepers. Five things are put in the place of others (`REPLACED`) while the simulation runs: a connection
to a safekeeper is one of the virtual network, a server is a virtual one, records are those of synthetic_wal.py, chance
is the seed's, and time is the clock's, by the event loop of virtual_loop.py.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from safekeeper.base.errors import InvariantViolation, RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.base.settings import Address
from tests.simulation.checks.violation import Violation
from tests.simulation.model.direct_standby import DirectStandby
from tests.simulation.model.network import TO_SAFEKEEPER, Connection
from tests.simulation.model.primary import SYSTEM_ID, VirtualPrimary
from tests.simulation.model.synthetic_wal import end_of_the_first_part, first_record_start, records
from tests.simulation.model.virtual_loop import VirtualLoop
from walproxy.failover import attempt as attempt_module
from walproxy.failover import failover as failover_module
from walproxy.failover import log_end as log_end_module
from walproxy.failover import sealer as sealer_module
from walproxy.failover import server as server_module
from walproxy.failover import world as world_module
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd
from walproxy.failover.server import NotRequested
from walproxy.postgres.hosts import PrimaryHost
from walproxy.proposer.actions import Action, SendAppend
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.proposer import Proposer
from walproxy.proxy import members as members_module
from walproxy.proxy import safekeeper_link as link_module
from walproxy.proxy import safekeeper_requests as requests_module

if TYPE_CHECKING:
    from tests.simulation.model.standby import SimStandby
    from tests.simulation.world.failover import Command
    from tests.simulation.world.mover import Mover


PROMOTION_S = 0.3


def running_command() -> "Mover":
    """Return the process that runs at this moment: a command, or an agent."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return cast("Mover", loop.owner)


class VirtualConnection:
    """A connection to a safekeeper, as `SafekeeperConnection` is one: over the virtual network, without bytes."""

    def __init__(
        self,
        safekeeper_id: int,
        credentials: Any,
        *,
        opened: Callable[[], None],
        received: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        self._command = running_command()
        self.name, self.life = self._command.name, self._command.life
        self.reason = "the safekeeper closed the connection"
        self.closed: asyncio.Future[None] = self._command.loop.create_future()
        self.is_open = False
        self._safekeeper = self._command.world.safekeepers[safekeeper_id]
        self._opened, self._received, self._lost = opened, received, lost
        self._connection: Connection | None = None

    async def connect(self, address: Address, tls: Any) -> None:
        """Connect.

        Raises:
            OSError: it cannot be reached.
        """
        world = self._command.world
        await asyncio.sleep(world.rng.random() * world.network.delay_s)
        self._connection = world.network.connect(self, self._safekeeper)  # type: ignore[arg-type]
        if self._connection is None:
            raise OSError(f"{self._safekeeper.name} cannot be reached")
        self._command.connections.append(self._connection)
        self.is_open = True
        self._opened()

    def writelines(self, messages: Sequence[Any]) -> None:
        """Send messages: nothing is encoded (see `REPLACED`), unless the network does that itself."""
        assert self._connection is not None  # it is open
        for message in messages:
            self._command.sends(message, self._connection)
            self._command.world.network.send(self._connection, TO_SAFEKEEPER, message)

    def received(self, connection: Connection, message: Any) -> None:
        """The network has a message."""
        self._command.loop.call_soon(self._receive, message)

    def _receive(self, message: Any) -> None:
        assert self._connection is not None
        if self.is_open:
            self._command.world.note(self.name, "gets", message, self._connection.number)
            try:
                self._received(message)
            except RemoteProtocolError as error:
                self.abort(str(error))

    def disconnected(self, connection: Connection) -> None:
        """The safekeeper has closed it, or it broke."""
        self._command.loop.call_soon(self._end, self.reason)

    def abort(self, reason: str) -> None:
        """Close it."""
        if self._connection is not None and self.is_open:
            self._command.world.network.close(self._connection, TO_SAFEKEEPER)
        self._end(reason)

    def _end(self, reason: str) -> None:
        self.reason = reason
        if self._connection in self._command.connections:
            self._command.connections.remove(self._connection)
        if self.is_open:
            self.is_open = False
            self._lost()
        if not self.closed.done():
            self.closed.set_result(None)


class SealerProposer(Proposer):
    """The proposer of a sealer, whose steps the checkers observe."""

    def __init__(self, config: ProposerConfig) -> None:
        self._command = running_command()
        super().__init__(config)
        self._command.begins(self)

    def _taken(self) -> list[Action]:
        actions = super()._taken()
        for action in actions:
            if not isinstance(action, SendAppend):
                self._command.world.note(self._command.name, "does", action)
        # The process would only log what is raised here.
        try:
            self._command.stepped(self)
        except Violation as violation:
            self._command.loop.failure = violation
            raise
        return actions

    def check(self) -> None:
        try:
            super().check()
        except InvariantViolation as violation:
            self._command.loop.failure = violation
            raise


class VirtualServer:
    """A server over SQL, as walproxy/failover/server.py sees it: a primary, a standby, or nothing that answers."""

    def __init__(self, host: PrimaryHost, command: "Command") -> None:
        self.name = host.name
        self._command = command

    @property
    def _is_out_of_reach(self) -> bool:
        return self.name in self._command.unreachable

    def look(self, timeout_s: float = 3.0) -> HostLook:
        """Return its state."""
        server = self._command.servers.at(self.name)
        if self._is_out_of_reach:
            return HostLook(self.name, problem="cannot be reached")
        if isinstance(server, VirtualPrimary):
            if not server.answers:
                return HostLook(self.name, problem="does not reply")
            return HostLook(
                self.name,
                in_recovery=False,
                system_id=SYSTEM_ID,
                tli=server.tli,
                replayed_lsn=replayed_lsn(server),
                written_lsn=server.flush_lsn,
            )
        if not server.applied_lsn:
            return HostLook(self.name, problem="is being set up")
        return HostLook(
            self.name,
            in_recovery=True,
            system_id=SYSTEM_ID,
            tli=server.tli,
            received_lsn=server.streamed_lsn,
            replayed_lsn=server.replayed_lsn,
            complete_lsn=server.complete_lsn,
        )

    def highest_history(self) -> int:
        """Return the highest number with a history file in its pg_wal. Raises WalproxyError: it does not answer."""
        server = self._server()
        return 0 if isinstance(server, VirtualPrimary) else max(server.passed_over, default=0)

    def place_histories(self, tlis: range) -> None:
        """Place history files.

        Raises:
            WalproxyError: it does not answer.
        """
        server = self._server()
        if not isinstance(server, VirtualPrimary):
            server.passed_over.update(tlis)

    def request_promotion(self, end: LogEnd, timeout_s: float = 10.0) -> None:
        """Signal that it is to be promoted, which it is soon, if it is not restarted before. A primary is fine.

        It may have been set up again since it was looked at.

        Raises:
            NotRequested: it lacks WAL, does not answer, or is lost before the signal.
            WalproxyError: it is lost after it.
        """
        server, world = self._server(), self._command.world
        is_calm = world.is_healing or not world.failover.has_accidents
        fate = world.rng.random() if not is_calm else 1.0
        if fate < 0.04:
            raise NotRequested(f"{self.name} was lost before it was signalled")
        if fate > 0.94 and not is_calm and isinstance(server, DirectStandby):
            server.be_set_up_again()
        reason = server_module.lost_since(self.look(), end) if not isinstance(server, VirtualPrimary) else ""
        if reason:
            raise NotRequested(f"{self.name} is not promoted: it {reason}")
        if fate > 0.08 and not isinstance(server, VirtualPrimary):
            self._command.requests_promotion()
            self._require_part_of_the_log(server, end)
            promote, delay_s = self._command.servers.promote, PROMOTION_S * world.rng.random()
            world.clock.after(delay_s, promote, self.name, server.life, server.tli, self._command.elected)
        if 0.08 < fate < 0.12:
            raise WalproxyError(f"{self.name} was lost after it was signalled")

    def _require_part_of_the_log(self, server: "SimStandby | DirectStandby", end: LogEnd) -> None:
        """See that no record of it is complete above the position where the log has left its timeline (13.8)."""
        left_lsn = None if server.tli == end.tli else end.left_lsn(server.tli)
        if left_lsn is not None and server.applied_lsn > left_lsn:
            violation = Violation(
                "PromotedIsPartOfTheLog",
                f"{self.name} has records of timeline {server.tli} up to {format_lsn(server.applied_lsn)}, and the log "
                f"left it at {format_lsn(left_lsn)}",
            )
            self._command.loop.failure = violation
            raise violation

    def _server(self) -> Any:
        server = self._command.servers.at(self.name)
        is_there = server.answers if isinstance(server, VirtualPrimary) else server.applied_lsn > 0
        if self._is_out_of_reach or not is_there:
            raise NotRequested(f"{self.name} does not reply")
        return server


def replayed_lsn(primary: VirtualPrimary) -> Lsn:
    """Return what a promoted server reports as replayed, until it is started again."""
    return primary.own_lsn if primary.ancestors and not primary.life else 0


class SyntheticRecord(NamedTuple):
    """A record, as far as log_end.py looks at it."""

    end_lsn: Lsn


class SyntheticDecoder:
    """Finds the records of synthetic_wal.py, as `RecordDecoder` finds those of PostgreSQL.

    Attributes:
        skipped_until: the end of the record that was incomplete at the beginning, None if there was none, or if it is
            not complete.
    """

    def __init__(self, begin_lsn: Lsn, segment_size: int) -> None:
        self.skipped_until: Lsn | None = None
        self._begin_lsn = begin_lsn
        self._wal = bytearray()
        self._found_lsn = begin_lsn

    def walk(self, data: bytes) -> Iterator[SyntheticRecord]:
        """Yield the records that are complete with these bytes."""
        self._wal += data
        start_lsn = first_record_start(self._wal, self._begin_lsn)
        if start_lsn > self._begin_lsn and self.skipped_until is None:
            self.skipped_until = end_of_the_first_part(self._wal, self._begin_lsn)
        for _, end_lsn in records(self._wal, self._begin_lsn, self._begin_lsn):
            if end_lsn > self._found_lsn:
                self._found_lsn = end_lsn
                yield SyntheticRecord(end_lsn)


class Chance:
    """`random`, `secrets` and `time` of the running command."""

    def random(self) -> float:
        return running_command().world.rng.random()

    def token_hex(self, count: int) -> str:
        return running_command().world.new_run()

    def monotonic(self) -> float:
        return running_command().world.clock.now


def _server(host: PrimaryHost, *, may_be_read_only: bool = False) -> VirtualServer:
    return running_command().new_server(host)


def _config(**settings: Any) -> ProposerConfig:
    return ProposerConfig(**settings, timing=running_command().world.timing)


def _unencoded(message: Any) -> tuple[Any]:
    return (message,)


_SILENT = logging.Logger("silent", logging.CRITICAL + 1)
_CHANCE = Chance()
REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (link_module, "SafekeeperConnection", VirtualConnection),
    (link_module, "random", _CHANCE),
    (link_module, "logger", _SILENT),
    (requests_module, "SafekeeperConnection", VirtualConnection),
    (requests_module, "encode", _unencoded),
    (members_module, "secrets", _CHANCE),
    (sealer_module, "Proposer", SealerProposer),
    (sealer_module, "ProposerConfig", _config),
    (sealer_module, "encode", _unencoded),
    (sealer_module, "random", _CHANCE),
    (sealer_module, "secrets", _CHANCE),
    (sealer_module, "logger", _SILENT),
    (sealer_module, "TICK_S", 0.1),
    (log_end_module, "secrets", _CHANCE),
    (log_end_module, "RecordDecoder", SyntheticDecoder),
    (attempt_module, "random", _CHANCE),
    (attempt_module, "time", _CHANCE),
    (attempt_module, "POLL_S", 0.15),
    (failover_module, "time", _CHANCE),
    (failover_module, "POLL_S", 0.15),
    (world_module, "Server", _server),
)
