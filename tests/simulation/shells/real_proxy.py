"""A proxy that is the product's own: Proxy, its links, its window and PrimaryFeed on a virtual loop.

It is a `SimProxy` for all others, which stop it, suspend it, connect it to another primary, and look at its proposer.
Inside, no line of the shell is replaced but what proxy_seams.py names. The checkers observe each step of the
proposer, at each message that is written to a socket, at each status update that libpq takes, and after each event. A
proxy that ends because of a bug (`Proxy.run` raises) fails the run.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from safekeeper.base import settings
from safekeeper.base.errors import (
    ConfigurationError,
    InvariantViolation,
    LocalProtocolError,
    RemoteProtocolError,
    WalproxyError,
)
from safekeeper.consensus.membership import Member, QuorumSizes
from safekeeper.consensus.messages import AppendRequest, ArchiveAssignment, Elected, Reconfigure
from safekeeper.peers.codec import encode
from tests.simulation.checks.violation import Violation
from tests.simulation.model.network import TO_SAFEKEEPER, Connection
from tests.simulation.model.proxy import LATE_S_MAX, REFUSED_RETRY_S, CountedRefusals, SimProxy
from tests.simulation.shells.proxy_seams import LinkTransport, ObservedProxy, ProxyLoop
from tests.simulation.shells.shell_seams import Watched
from tests.simulation.shells.virtual_walsender import WalSender, host_index
from walproxy.postgres.hosts import HostState
from walproxy.proposer.actions import Action, ReportStatus, SendAppend, SendMessage
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.proposer import Proposer
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig

if TYPE_CHECKING:
    from tests.simulation.model.primary import VirtualPrimary
    from tests.simulation.world.world import World

# So often a connection to the primary that is lost is half-open, and a proxy that is restarted gets a SIGTERM.
MUTE, SIGTERM = 0.3, 0.5
PRIMARY_TIMEOUT_S, CONNECT_TIMEOUT_S, DRAIN_S = "2", "1", "0.5"
# No commit is slow.
NEVER_S = "3600"


class RealProxy(SimProxy):
    """A real proxy.

    Attributes:
        chance: the source of chance of its sockets.
        loop: the loop of its present life.
        process: the product's proxy of its present life.
        proposer_id: of its present life.
        transports: its connections to safekeepers, by number.
        reading: the connection to a safekeeper that is being read.
        slot_holder: its walsender that holds the slot of a primary.
    """

    def __init__(self, world: "World", name: str, primary: "VirtualPrimary", takeover: bool = False) -> None:
        super().__init__(world, name, primary, takeover)
        self.chance = random.Random(f"{world.seed} proxy {name}")
        self.loop = ProxyLoop(self)
        self.loop.end()
        self._watched = Watched(self)
        self.process: ObservedProxy | None = None
        self.proposer_id = ""
        self.transports: dict[int, LinkTransport] = {}
        self.reading: LinkTransport | None = None
        self.slot_holder: WalSender | None = None
        self.sent_commit_lsn = {}
        self._listed = ()
        self._sender: WalSender | None = None
        self._sockets = 0
        self._drains: list[Any] = []

    def start(self) -> None:
        """Start a run, unless one is alive or the proxy was taken out."""
        if self.proposer is None and self.may_start:
            self.life += 1
            # Within `World.run`, which puts other things in their places.
            self.world.clock.after(0.0, self._boot, self.life)

    def _boot(self, life: int) -> None:
        if life != self.life or not self.may_start:
            return
        self.refusal = None
        self.proposer_id = self.world.new_run()
        self.world.note(self.name, "starts", f"run {self.proposer_id[:8]} on {' '.join(p.name for p in self.hosts)}")
        self._listed = self.others
        if self.listed is not None:
            # By then there is a cluster, and its slot: a list of empty safekeepers does not begin another one.
            for host in self.hosts:
                host.has_slot = True
        self.sent_commit_lsn = {}
        self._drains = []
        self.loop = ProxyLoop(self)
        with self.loop.running():
            self.process = process = ObservedProxy(self._proxy_config())
            self.allow_data_loss = False
            self.proposer = process.proposer
            self.proposer.refusals = CountedRefusals(self.world)
            process.feed.rota.refused_retry_s = REFUSED_RETRY_S
            self.loop.run_task(self._serve(process), lambda task: self._ended(life, task))

    def _proxy_config(self) -> ProxyConfig:
        given = {
            "primary": f"host={','.join(f'p{i}' for i in range(len(self.hosts)))} user=walproxy",
            "safekeepers": ",".join(f"{i}=S{i}:1" for i in self.listed_ids),
            "takeover": _yes_or_no(self.takeover),
            "allow_data_loss": _yes_or_no(self.allow_data_loss),
            "allow_unverified_primary": _yes_or_no(self.allow_unverified_primary),
            "heartbeat_interval": str(self.world.timing.heartbeat_interval_s),
            "primary_timeout": PRIMARY_TIMEOUT_S,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "drain_timeout": DRAIN_S,
            "slow_commit": NEVER_S,
        }
        return replace(
            _loaded(tuple(given.items())),
            window_size=int(self.world.profile.bends.window_bytes),
            remote_apply_standbys=self.world.apply_rule,
        )

    def as_configured(self, config: ProposerConfig) -> ProposerConfig:
        """Return a proposer's configuration with the times of the simulation."""
        addresses = config.addresses if self.world.has_addresses else {}
        return replace(config, addresses=addresses, tail_after_s=self.world.tail_after_s, timing=self.world.timing)

    async def _serve(self, process: ObservedProxy) -> WalproxyError | None:
        """Run the proxy as `walproxy run` does."""
        error = await process.run()
        for drain in self._drains:
            await drain
        return error

    def _ended(self, life: int, task: Any) -> None:
        """The process has ended by itself."""
        if life != self.life or task.cancelled():
            return
        if task.exception() is not None:
            self.loop.failure = task.exception()
            return
        error = task.result()
        if isinstance(error, InvariantViolation | LocalProtocolError | RemoteProtocolError):
            self.loop.failure = error  # The feed ends with what its owner raises while WAL is handled.
            return
        self.loop.end()
        if error is not None:
            self._finish(error)
        else:
            self.world.counts.count("proxies that drained")
            self.stop()
            self.world.clock.after(self.chance.random(), self.start)

    def terminate(self) -> None:
        """End the process by SIGTERM, after which it is restarted; or kill it."""
        if self.process is None or self._drains or self.chance.random() >= SIGTERM:
            self.stop()
            return
        self.world.note(self.name, "gets SIGTERM")
        self._command(lambda process: self._drains.append(self.loop.create_task(process.stop())))

    def stop(self) -> None:
        """End the process at once, or note that it has finished."""
        self.life += 1
        if self.proposer is None:
            return
        self.world.note(self.name, "ends")
        self.proposer = self.process = None
        transports, self.transports = self.transports, {}
        network, late_messages = self.world.network, self.world.profile.late_messages
        for transport in transports.values():
            if late_messages and self.chance.random() < late_messages:
                network.let_go(transport.connection, LATE_S_MAX * self.chance.random())
            else:
                network.break_connection(transport.connection, silent=self.chance.random() < 0.2)
        if self._sender is not None:
            self._sender.closed()
            self._sender = None
        self._kill()

    def abandon(self) -> None:
        """End the process where the run of the simulation ends."""
        self.life += 1
        self.proposer = None
        self.transports.clear()
        self._kill()

    def _kill(self) -> None:
        # Its coroutines end with what they have begun with, also where the operator stops it between two phases.
        with self.world.replaced():
            self.loop.kill()

    def suspend(self, for_s: float) -> None:
        """Do nothing for so long; what happens meanwhile is noticed afterwards."""
        if self.proposer is not None:
            self.world.note(self.name, "is suspended")
            self.loop.suspend(for_s)

    def _command(self, command: Callable[[ObservedProxy], Any]) -> None:
        """Let the process do something, as soon as it runs."""
        process = self.process
        if process is not None:
            self.loop.call_soon(lambda: command(process))

    def reconfigure(self) -> None:
        """Take the rule that the operator has written down."""
        rule = self.world.apply_rule
        self._command(lambda process: process.reconfigure(replace(process.config, remote_apply_standbys=rule)))

    def change_members(self, wanted: tuple[Member, ...], sizes: QuorumSizes) -> None:
        """Ask the leader for other members, or for quorums of another size."""
        names = " ".join(f"S{member.id}" for member in wanted)
        self.world.note("operator", "requests the members", f"{names}, quorums {sizes}")
        self._command(lambda process: self._change_members(process, wanted, sizes))

    def _change_members(self, process: ObservedProxy, wanted: tuple[Member, ...], sizes: QuorumSizes) -> None:
        try:
            process._handle(process.proposer.change_members(wanted, self.loop.time(), sizes))
        except ConfigurationError:
            self.world.counts.count("changes of members refused")

    def delay_s(self) -> float:
        """Return how long something takes on its way."""
        return self.chance.random() * self.world.network.delay_s

    @property
    def is_suspended(self) -> bool:
        """Whether its process stands still."""
        return self.loop.is_suspended

    def is_connected(self, safekeeper_id: int) -> bool:
        """Return whether it has a connection to a safekeeper, which may be broken unnoticed.

        Between the end of a transport and `connection_lost` a link is up, and what it writes is dropped.
        """
        link = self.process.links.get(safekeeper_id) if self.process is not None else None
        opens = (each.connection.safekeeper.id for each in self.transports.values() if not each.is_closing())
        return link is not None and link.is_up and safekeeper_id in opens

    def let_go(self, safekeeper_id: int, late_s: float) -> None:
        """A connection is given up, and what was sent on it arrives late, when another one may have taken its place."""
        for transport in list(self.transports.values()):
            if transport.connection.safekeeper.id == safekeeper_id:
                self.world.network.let_go(transport.connection, late_s)
                self.disconnected(transport.connection)

    def received(self, connection: Connection, message: Any) -> None:
        """A safekeeper's message has arrived."""
        transport = self.transports.get(connection.number)
        if transport is not None:
            self.world.note(self.name, "gets", message, connection.number)
            transport.arrived(b"".join(bytes(buffer) for buffer in encode(message)))

    def disconnected(self, connection: Connection) -> None:
        """A safekeeper has closed, or the connection broke."""
        transport = self.transports.pop(connection.number, None)
        if transport is not None:
            transport.ended(self.chance.random() < 0.5)

    def closed(self, connection: Connection) -> None:
        """The process has closed a connection."""
        if self.transports.pop(connection.number, None) is not None:
            self.world.note(self.name, "closes", connection.number)
            self.world.network.close(connection, TO_SAFEKEEPER)

    def send(self, connection: Connection, message: Any) -> None:
        """A message has left the socket."""
        if connection.number in self.transports:
            self.world.note(self.name, "sends", message, connection.number)
            self.world.network.send(connection, TO_SAFEKEEPER, message)

    def primary_at(self, conninfo: str) -> "VirtualPrimary":
        """Return the primary that a name leads to."""
        return (self.primary, *self._listed)[host_index(conninfo)]

    def new_sender(self, primary: "VirtualPrimary") -> WalSender:
        """A connection to a primary is open."""
        self._sockets += 1
        self._sender = WalSender(self, primary, self._sockets)
        return self._sender

    @property
    def streams_from(self) -> "VirtualPrimary | None":
        """The primary that a COPY is open from."""
        sender, process = self._sender, self.process
        if sender is None or process is None or not process.feed.streams or not sender.copying:
            return None
        return sender.primary

    def has_put_aside(self, primary: "VirtualPrimary") -> bool:
        """Return whether a host of its list is refused."""
        if self.process is None:
            return False
        hosts = zip((self.primary, *self._listed), self.process.feed.rota.candidates, strict=True)
        return any(host is primary and candidate.state is HostState.REFUSED for host, candidate in hosts)

    def primary_has_more(self) -> None:
        """The primary has flushed: its walsender will send it."""
        if self.slot_holder is not None:
            self.slot_holder.has_more()

    def primary_hung_up(self) -> None:
        """The primary has ended the walsender that had the slot: it died, or another proxy takes the slot."""
        sender, self.slot_holder = self.slot_holder, None
        if sender is not None:
            sender.terminated()

    def lose_primary(self) -> None:
        """The connection to the primary breaks, or is mute from now on."""
        if self._sender is not None and self.proposer is not None:
            if self.chance.random() < MUTE:
                self.world.counts.count("primaries' connections half-open")
                self._sender.is_mute = True
            else:
                self._sender.breaks()

    def handles(self, safekeeper_id: int, message: Any) -> None:
        """The proposer handles a message."""
        if self.reading is not None and self.reading.is_closing():
            with self._watched:
                raise Violation(
                    "NothingAfterClose",
                    f"{self.name} handles {message} of a connection to safekeeper {safekeeper_id} that it has closed",
                )

    def stepped(self, proposer: Proposer, actions: list[Action]) -> None:
        """The proposer has handled an event."""
        if self.proposer is not proposer:
            return
        for action in actions:
            if type(action) is not SendAppend and type(action) is not SendMessage:
                self.world.note(self.name, "does", action)
        if proposer.leadership is not None:
            with self._watched:
                self._truth = self.world.truths.of(proposer.leadership.elected.cluster_id)
                self._truth.on_proposer_stepped(self, proposer)

    def acted(self) -> None:
        """All actions of an event are done."""
        if self.proposer is not None and self.world.standbys:
            with self._watched:
                self._truth.on_actions_done(self, self.proposer)

    def may_send(self, message: Any, connection: Connection) -> bool:
        """Check a message that is written to a socket."""
        if self.proposer is None:
            return False
        with self._watched:
            if isinstance(message, AppendRequest | Elected):
                self._truth.on_commit_sent(self, message.leader_id, message.commit_lsn)
                self.sent_commit_lsn[connection.safekeeper.id] = message.commit_lsn
            elif isinstance(message, Reconfigure):
                self._truth.on_membership_sent(message.leader_id, message.membership)
            elif isinstance(message, ArchiveAssignment):
                self._order_archiver(message)
        return True

    def reports(self, sender: WalSender, status: ReportStatus) -> None:
        """The primary is reported positions."""
        if self.proposer is not None and sender.holds_slot:
            self.world.note(self.name, "reports", status)
            with self._watched:
                self._truth.on_status(self, sender.primary, status)


@lru_cache
def _loaded(given: tuple[tuple[str, str], ...]) -> ProxyConfig:
    """Return the configuration of a proxy with these options."""
    return settings.load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=dict(given), environment={}, file=None)


def _yes_or_no(value: bool) -> str:
    return "true" if value else "false"
