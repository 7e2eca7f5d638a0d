"""A virtual proxy: the real `Proposer`, the real `Window`, connections to safekeepers and to one primary.

Its process may be killed and started at any time; each start is another run. It carries out the proposer's actions in
order, sends the last status again and again for as long as a COPY is open, and keeps the checksums that the proposer
asks for when the primary comes back. What the window refuses ends the run of the simulation, as it would end the proxy.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from safekeeper.base.errors import ConfigurationError, PrimaryRefused, WalproxyError
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.membership import Identity, Member, QuorumSizes
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AppendRequest,
    ArchiveAssignment,
    Elected,
    ProposerGreeting,
    ProposerMessage,
    Reconfigure,
    Refusal,
    RefusalCode,
)
from tests.simulation.model.disk import page_crcs
from tests.simulation.model.network import TO_SAFEKEEPER, Connection
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE, last_timed_record, previous_link, slot_lsn
from tests.simulation.references.proposer.checker import watched_proposer
from walproxy.postgres.hosts import HostRota, HostState, PrimaryHost
from walproxy.proposer.actions import (
    Action,
    Dial,
    Disconnect,
    EmptyWindow,
    Finish,
    HangUp,
    IdentifyPrimary,
    Note,
    RefusePrimary,
    ReportStatus,
    SendAppend,
    SendMessage,
    StartReplication,
    StopReplication,
)
from walproxy.proposer.member_change import is_settled
from walproxy.proposer.phase import ProposerConfig
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.proposer import Proposer
from walproxy.proposer.refusals import Refusals
from walproxy.proxy.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.simulation.model.primary import VirtualPrimary
    from tests.simulation.world.world import World

CONNECT_RETRY_S = 0.2
REFUSED_RETRY_S = 1.5
FROZEN_AGAIN_S = 0.1
LATE_S_MAX = 3.0
READ_BYTES_MAX = 24 << 10


class PrimaryLink:
    """A connection to a primary. `commands` counts its commands; the last one counts."""

    def __init__(self, primary: "VirtualPrimary") -> None:
        self.primary = primary
        self.primary_life = primary.life
        self.copying = False
        self.checked = False
        self.tli = 0
        self.links_to_lsn: Lsn | None = None
        self.commands = 0


class CountedRefusals(Refusals):
    """The refusals of a run's elections; those that are repeated without one are counted."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.timing.refused_wait_min_s, world.timing.refused_wait_max_s)
        self._counts = world.counts

    def reason(self, primary: PrimaryIdentity, now: float) -> str:
        """Return why this primary was refused if it waits, empty if an election may decide about it."""
        reason = super().reason(primary, now)
        self._counts.count("refusals without a term", int(bool(reason)))
        return reason


class SimProxy:
    """One proxy's process.

    Attributes:
        life: grows at every start and end; what belongs to an older life is void.
        primary: the one that its configuration names, by a name that may lead elsewhere from one moment to the next.
        others: further hosts in its configuration, read at its start.
        allow_data_loss: of the next start only.
        allow_unverified_primary: of its starts from now on.
        proposer: the state machine of the present run, None while the process is down.
        sent_commit_lsn: by safekeeper, the commit_lsn of the last word that was sent to it.
        listed: the ids of the safekeepers in its configuration, None for all.
        version: its protocol version.
        refusal: why the last run ended by itself, None if it did not.
        clock: its machine's.
    """

    def __init__(self, world: "World", name: str, primary: "VirtualPrimary", takeover: bool = False) -> None:
        self.world = world
        self.name = name
        self.primary = primary
        self.others: tuple[VirtualPrimary, ...] = ()
        self.takeover = takeover
        self.allow_data_loss = False
        self.allow_unverified_primary = False
        self.listed: frozenset[int] | None = None
        self.version = PROTOCOL_VERSION
        self.life = 0
        self.proposer: Proposer | None = None
        self.refusal: WalproxyError | None = None
        self.primary_is_cut_off = False
        self.clock = world.new_clock()
        self._truth = world.checker
        self._backlog: list[tuple[int, Callable[..., None], tuple[Any, ...]]] | None = None

    def new_proposer(self, kind: type[Proposer], config: ProposerConfig) -> Proposer:
        """Return the proposer of a run, with the reference beside it if the seed has drawn that."""
        if self.world.has_reference and self.world.watches_proposers:
            return watched_proposer(kind, config, self.name, self.world.counts)
        return kind(config)

    def start(self) -> None:
        """Start a run, unless one is alive or the proxy was taken out."""
        if self.proposer is not None or not self.may_start:
            return
        self.life += 1
        self.refusal = None
        self._backlog = None
        run = self.world.new_run()
        self.world.note(self.name, "starts", f"run {run[:8]} on {' '.join(p.name for p in self.hosts)}")
        self.proposer = self.new_proposer(self.world.proposer_class, self.config(run))
        self.allow_data_loss = False
        self.proposer.refusals = CountedRefusals(self.world)
        self.sent_commit_lsn: dict[int, Lsn] = {}
        self._connections: dict[int, Connection] = {}
        self._rota = HostRota([PrimaryHost(p.name, "") for p in self.hosts], REFUSED_RETRY_S)
        self._listed = self.others
        self._link: PrimaryLink | None = None
        self._status: ReportStatus | None = None
        self._window_bytes = int(self.world.profile.bends.window_bytes)
        self._window = Window(self._window_bytes)
        self._tail_begin_lsn = 0
        self._tail = bytearray()
        self._unlinked = bytearray()
        self._pump_is_due = False
        for safekeeper_id in self.listed_ids:
            self._later(0.0, self._connect, safekeeper_id)
        self._later(0.0, self._connect_primary)
        self._later(self.world.rng.random() * self.world.profile.bends.tick_s, self._tick)

    @property
    def may_start(self) -> bool:
        """Whether it was not taken out."""
        return self in self.world.proxies

    def config(self, run: str) -> ProposerConfig:
        """Return what a run is started with."""
        return ProposerConfig(
            proposer_id=run,
            safekeeper_ids=self.listed_ids,
            addresses={i: f"S{i}:1" for i in self.listed_ids} if self.world.has_addresses else {},
            takeover=self.takeover,
            allow_data_loss=self.allow_data_loss,
            allow_unverified_primary=self.allow_unverified_primary,
            several_primaries=len(self.hosts) > 1,
            apply_rule=self.world.apply_rule,
            tail_after_s=self.world.tail_after_s,
            timing=self.world.timing,
        )

    @property
    def listed_ids(self) -> tuple[int, ...]:
        """The ids of the safekeepers in its configuration."""
        return tuple(sorted(self.world.safekeepers if self.listed is None else self.listed))

    def correct(self) -> None:
        """Be of the present version, and list all safekeepers, from the next start on."""
        self.listed, self.version = None, PROTOCOL_VERSION

    @property
    def hosts(self) -> "tuple[VirtualPrimary, ...]":
        """What its configuration names."""
        return self.primary, *self.others

    @property
    def streams_from(self) -> "VirtualPrimary | None":
        """The primary that a COPY is open from."""
        link = self._link if self.proposer is not None else None
        return link.primary if link is not None and link.copying else None

    @property
    def is_suspended(self) -> bool:
        """Whether its process stands still."""
        return self._backlog is not None

    def is_connected(self, safekeeper_id: int) -> bool:
        """Return whether it has a connection to a safekeeper, which may be broken unnoticed."""
        return safekeeper_id in self._connections

    def has_put_aside(self, primary: "VirtualPrimary") -> bool:
        """Return whether a host of its list is refused."""
        hosts = zip((self.primary, *self._listed), self._rota.candidates, strict=True)
        return any(host is primary and candidate.state is HostState.REFUSED for host, candidate in hosts)

    def cut_off_primary(self) -> None:
        """No primary can be reached from now on; the process goes on."""
        self.primary_is_cut_off = True
        self.lose_primary()

    def swap_first_name(self, primary: "VirtualPrimary") -> None:
        """The first name of the running process leads there from now on; what led there leads where it did."""
        before, self.primary = self.primary, primary
        self._listed = self.others = tuple(before if other is primary else other for other in self._listed)

    def stop(self) -> None:
        """End the process, by a crash or because it has finished."""
        if self.proposer is None:
            return
        self.world.note(self.name, "ends")
        self.life += 1
        self.proposer = None
        self._close_link()
        rng, network, late_messages = self.world.rng, self.world.network, self.world.profile.late_messages
        for connection in self._connections.values():
            if late_messages and rng.random() < late_messages:
                network.let_go(connection, LATE_S_MAX * rng.random())
            else:
                network.break_connection(connection, silent=rng.random() < 0.2)
        self._connections = {}

    def terminate(self) -> None:
        """End the process, as a supervisor does that starts it again."""
        self.stop()

    def abandon(self) -> None:
        """End the process where the run of the simulation ends; a simulated one has nothing to end."""

    def suspend(self, for_s: float) -> None:
        """Do nothing for so long; what happens meanwhile is noticed afterwards."""
        if self.proposer is not None and self._backlog is None:
            self.world.note(self.name, "is suspended")
            self._backlog = []
            self.world.clock.after(for_s, self._go_on, self.life)

    def _go_on(self, life: int) -> None:
        if life == self.life and self._backlog is not None:
            backlog, self._backlog = self._backlog, None
            for event in backlog:
                self._if_alive(*event)

    def let_go(self, safekeeper_id: int, late_s: float) -> None:
        """A connection is given up, and what was sent on it arrives late, when another one may have taken its place."""
        connection = self._connections.get(safekeeper_id)
        if connection is not None:
            self.world.network.let_go(connection, late_s)
            self.disconnected(connection)

    def _later(self, delay_s: float, event: "Callable[..., None]", *args: Any) -> None:
        self.world.clock.after(delay_s, self._if_alive, self.life, event, args)

    def _if_alive(self, life: int, event: "Callable[..., None]", args: tuple[Any, ...]) -> None:
        if self._backlog is not None:
            self._backlog.append((life, event, args))
        elif life == self.life:
            event(*args)

    def _step(self, actions: list[Action]) -> None:
        proposer, world = self.proposer, self.world
        assert proposer is not None  # events come to the living only
        if proposer.leadership is not None:
            self._truth = world.truths.of(proposer.leadership.elected.cluster_id)
            self._truth.on_proposer_stepped(self, proposer)
        for action in actions:
            self._execute(action, proposer)
            if self.proposer is not proposer:
                return
        if world.standbys:
            self._truth.on_actions_done(self, proposer)

    def _execute(self, action: Action, proposer: Proposer) -> None:
        if isinstance(action, SendAppend):
            if action.begin_lsn == action.end_lsn:
                self.world.counts.count("heartbeats")
            # Also of an empty range, as the proxy does: the window may lie elsewhere (S14).
            payload = b"".join(self._window.slices(action.begin_lsn, action.end_lsn))
            for safekeeper_id in action.safekeeper_ids:
                self._send(safekeeper_id, msgspec.structs.replace(action.header, payload=payload))
            return
        if isinstance(action, SendMessage):
            self._send(action.safekeeper_id, action.message)
            return
        self.world.note(self.name, "does", action)
        if isinstance(action, ReportStatus):
            self._status = action
            if not self.world.is_bent(self.world.profile.bends.status_withheld):
                self._send_status()
            self._evict(proposer)
            self._schedule_pump()
        elif isinstance(action, Disconnect):
            connection = self._connections.pop(action.safekeeper_id, None)
            if connection is not None:
                self.world.network.close(connection, TO_SAFEKEEPER)
                self._later(0.0, self._lost, action.safekeeper_id)
        elif isinstance(action, Dial):
            self.world.counts.count("members dialled that are not listed")
            self._later(0.0, self._connect, action.safekeeper_id)
        elif isinstance(action, HangUp):
            connection = self._connections.pop(action.safekeeper_id, None)
            if connection is not None:
                self.world.network.close(connection, TO_SAFEKEEPER)
        elif isinstance(action, IdentifyPrimary):
            if self._link is not None:
                self._link.commands += 1
                self._later(self._primary_delay_s(), self._identify, self._link)
        elif isinstance(action, StartReplication):
            if not action.resumes:
                self._window.reset(action.begin_lsn)
                self._tail_begin_lsn, self._tail = action.begin_lsn, bytearray()
            if self._link is not None:
                self._link.commands += 1
                self._later(self._primary_delay_s(), self._open_copy, self._link, action)
        elif isinstance(action, EmptyWindow):
            self._window.reset(action.begin_lsn)
            self._tail_begin_lsn, self._tail = action.begin_lsn, bytearray()
        elif isinstance(action, StopReplication):
            self._close_link()
            self._later(CONNECT_RETRY_S, self._connect_primary)
        elif isinstance(action, RefusePrimary):
            self.world.counts.count("primaries refused")
            self._put_aside(action.reason)
        elif isinstance(action, Finish):
            self._finish(action.error)
        else:
            assert isinstance(action, Note)

    def reconfigure(self) -> None:
        """Take the rule that the operator has written down."""
        if self.proposer is not None:
            self._step(self.proposer.set_apply_rule(self.world.apply_rule))

    @property
    def changes_members(self) -> bool:
        """Whether it leads a term in which the members are to change."""
        leadership = self.proposer.leadership if self.proposer is not None else None
        return leadership is not None and not is_settled(leadership.membership, leadership.wanted)

    def known_folders(self) -> list[Identity]:
        """Return the data folders that have greeted."""
        peers = self.proposer.peers if self.proposer is not None else {}
        return [(i, peer.greeting.incarnation) for i, peer in peers.items() if peer.greeting and not peer.refused]

    def change_members(self, wanted: tuple[Member, ...], sizes: QuorumSizes) -> None:
        """Ask the leader for other members, or for quorums of another size."""
        if self.proposer is None:
            return
        names = " ".join(f"S{member.id}" for member in wanted)
        self.world.note("operator", "requests the members", f"{names}, quorums {sizes}")
        try:
            self._step(self.proposer.change_members(wanted, self.clock.now, sizes))
        except ConfigurationError:
            self.world.counts.count("changes of members refused")

    def _finish(self, error: WalproxyError) -> None:
        self.refusal = error
        self.world.counts.count("primaries refused", int(isinstance(error, PrimaryRefused)))
        self.world.proxy_finished(self)
        self.stop()

    def _connect(self, safekeeper_id: int) -> None:
        if safekeeper_id in self._connections or safekeeper_id not in self._known_peers():
            return
        connection = self.world.network.connect(self, self.world.safekeepers[safekeeper_id])
        if connection is None:
            self._later(CONNECT_RETRY_S, self._connect, safekeeper_id)
            return
        self._connections[safekeeper_id] = connection
        assert self.proposer is not None
        self._step(self.proposer.connected(safekeeper_id, self.clock.now))

    def _known_peers(self) -> "Collection[int]":
        return self.proposer.peers if self.proposer is not None else ()

    def _send(self, safekeeper_id: int, message: ProposerMessage) -> None:
        connection = self._connections.get(safekeeper_id)
        if connection is None:
            return
        if isinstance(message, ProposerGreeting):
            message = msgspec.structs.replace(message, protocol_version=self.version)
        if isinstance(message, (AppendRequest, Elected)):
            self._truth.on_commit_sent(self, message.leader_id, message.commit_lsn)
            self.sent_commit_lsn[safekeeper_id] = message.commit_lsn
        elif isinstance(message, Reconfigure):
            self._truth.on_membership_sent(message.leader_id, message.membership)
        elif isinstance(message, ArchiveAssignment):
            self._order_archiver(message)
        self.world.note(self.name, "sends", message, connection.number)
        self.world.network.send(connection, TO_SAFEKEEPER, message)

    def _order_archiver(self, order: ArchiveAssignment) -> None:
        leadership = self.proposer.leadership if self.proposer is not None else None
        if leadership is not None:  # Else the term has ended within the event that made the leader send it.
            self._truth.archive.on_archive_sent(self.name, order.archived_lsn, leadership.elected.history)
        if order.archiver != self.world.archiver_named:
            self.world.archiver_named = order.archiver
            self.world.counts.count("archivers named")

    def received(self, connection: Connection, message: Any) -> None:
        """A safekeeper's message has arrived."""
        if self._backlog is not None:
            self._backlog.append((self.life, self.received, (connection, message)))
            return
        safekeeper_id = connection.safekeeper.id
        if self.proposer is not None and self._connections.get(safekeeper_id) is connection:
            self.world.note(self.name, "gets", message, connection.number)
            if isinstance(message, Refusal) and message.code is RefusalCode.VERSION:
                self.world.counts.count("proxies of other versions refused")
            self._step(self.proposer.message(safekeeper_id, message, self.clock.now))

    def disconnected(self, connection: Connection) -> None:
        """A safekeeper has closed, or the connection broke."""
        if self._backlog is not None:
            self._backlog.append((self.life, self.disconnected, (connection,)))
            return
        safekeeper_id = connection.safekeeper.id
        if self.proposer is not None and self._connections.get(safekeeper_id) is connection:
            del self._connections[safekeeper_id]
            self._lost(safekeeper_id)

    def _lost(self, safekeeper_id: int) -> None:
        assert self.proposer is not None
        self.world.note(self.name, "loses", safekeeper_id)
        self._later(CONNECT_RETRY_S * (0.5 + self.world.rng.random()), self._connect, safekeeper_id)
        self._step(self.proposer.disconnected(safekeeper_id, self.clock.now))

    def _primary_delay_s(self) -> float:
        return self.world.rng.random() * self.world.network.delay_s

    def _link_stands(self, link: PrimaryLink) -> bool:
        return self._link is link and link.primary.up and link.primary.life == link.primary_life

    def _is_dead(self, link: PrimaryLink) -> bool:
        """Return whether the present connection leads to a server that is gone: the next command finds out."""
        return self._link is link and not self._link_stands(link)

    def _connect_primary(self) -> None:
        if self._link is not None:
            return
        now = self.clock.now
        candidate = self._rota.next(now) or self._rota.next(now)
        assert candidate is not None  # a run ends when all of them are refused
        primary = (self.primary, *self._listed)[self._rota.candidates.index(candidate)]
        if not primary.answers or self.primary_is_cut_off:
            self._rota.failed(HostState.UNREACHABLE, "it is down")
            self._later(CONNECT_RETRY_S, self._connect_primary)
            return
        self._link = PrimaryLink(primary)
        self._later(self._primary_delay_s(), self._identify, self._link)

    def _retry(self, link: PrimaryLink, commands: int, command: "Callable[..., None]", *args: Any) -> None:
        """Let a primary that was frozen execute its command, unless it has got another one since."""
        if link.commands == commands:
            command(link, *args)

    def _identify(self, link: PrimaryLink) -> None:
        if self._is_dead(link):
            self._primary_is_lost()
        elif self._link is link and link.primary.frozen:
            self._later(FROZEN_AGAIN_S, self._retry, link, link.commands, self._identify)
        elif self._link is link:
            assert self.proposer is not None
            self._rota.connected()
            identity = msgspec.structs.replace(link.primary.identity(), host=self._rota.current.host.name)
            if self.listed is not None:
                # By then there is a cluster, and its slot: a list of empty safekeepers does not begin another one.
                identity = msgspec.structs.replace(identity, slot="walproxy")
            self.world.note(self.name, "sees", identity)
            actions = self.proposer.primary_identified(identity, self.clock.now, *self._own_page_crcs())
            self._step(actions)

    def _own_page_crcs(self) -> tuple[tuple[int, ...], Lsn]:
        """Return the checksums of what was received back to the last record with a time, and where they begin."""
        begin_lsn = self._proof_lsn(self._tail_begin_lsn + len(self._tail))
        return page_crcs(self._tail[begin_lsn - self._tail_begin_lsn :], begin_lsn), begin_lsn

    def _proof_lsn(self, lsn: Lsn) -> Lsn:
        """Return the start of the segment of the last record with a time below `lsn`, of what is known."""
        timed_lsn, _ = last_timed_record(self._tail, self._tail_begin_lsn, lsn)
        return segment_start(timed_lsn, SEGMENT_SIZE) if timed_lsn else self._tail_begin_lsn

    def _open_copy(self, link: PrimaryLink, action: StartReplication) -> None:
        if self._is_dead(link):
            self._primary_is_lost()
        if self._link is not link:
            return
        if link.primary.frozen:
            self._later(FROZEN_AGAIN_S, self._retry, link, link.commands, self._open_copy, action)
            return
        assert self.proposer is not None
        primary, now = link.primary, self.clock.now
        tli_end = primary.tli_end(action.tli)
        if tli_end is None or tli_end < action.begin_lsn:
            # "requested starting point is ahead of the WAL flush position", or an unknown timeline.
            self._primary_is_lost()
            return
        if action.check_begin_lsn < primary.oldest_lsn:
            self._step(self.proposer.primary_segment_removed(now))
            return
        if primary.walsender is not self:
            # There is one slot; the winner of a term ends the holder's walsender.
            primary.drop_walsender()
            primary.walsender = self
        self._rota.works()
        link.copying, link.tli, link.links_to_lsn = True, action.tli, action.previous_record_lsn
        self._unlinked.clear()
        checked = primary.read(action.check_begin_lsn, action.begin_lsn)
        if not action.resumes:
            self._tail_begin_lsn, self._tail = action.check_begin_lsn, bytearray(checked)
        self._later(self._primary_delay_s(), self._check, link, action, page_crcs(checked, action.check_begin_lsn))
        self._send_status()

    def _check(self, link: PrimaryLink, action: StartReplication, crcs: tuple[int, ...]) -> None:
        if not self._link_stands(link):
            return
        link.checked = True
        if crcs:
            assert self.proposer is not None
            now = self.clock.now
            self.world.counts.count("primaries' tails compared")
            self._step(self.proposer.primary_checked(action.check_begin_lsn, action.begin_lsn, crcs, now))
        self._schedule_pump()

    def primary_has_more(self) -> None:
        """The primary has flushed: its walsender will send it."""
        self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_is_due and self.proposer is not None:
            self._pump_is_due = True
            self._later(self._primary_delay_s(), self._pump)

    def _pump(self) -> None:
        """Take what the walsender has sent, as much as the window holds."""
        self._pump_is_due = False
        link, proposer = self._link, self.proposer
        if link is None or proposer is None or not self._link_stands(link) or not link.copying or not link.checked:
            return
        if link.primary.frozen:
            return  # It calls when it goes on.
        self._evict(proposer)
        primary, begin_lsn = link.primary, self._window.end_lsn + len(self._unlinked)
        tli_end = primary.tli_end(link.tli)
        assert tli_end is not None  # the COPY was opened on it
        size = min(tli_end - begin_lsn, READ_BYTES_MAX)
        if self._uncommitted_bytes(proposer) >= self._window_bytes:
            return
        if size > 0:
            size = self.world.rng.choice((size, self.world.rng.randint(1, size)))
            self._take(link, proposer, primary.read(begin_lsn, begin_lsn + size))
            self._schedule_pump()
        elif begin_lsn == tli_end and link.tli != primary.tli:
            link.copying = link.checked = False
            self._step(proposer.timeline_ended(primary.next_tli(link.tli), tli_end, self.clock.now))

    def _take(self, link: PrimaryLink, proposer: Proposer, data: bytes) -> None:
        now = self.clock.now
        if link.links_to_lsn is not None:
            self._unlinked += data
            previous_lsn = previous_link(self._unlinked, 0)
            if previous_lsn is None:
                return
            if previous_lsn != link.links_to_lsn:
                self._step(proposer.primary_refused("the next record does not link to the last one", now))
                return
            data, link.links_to_lsn = bytes(self._unlinked), None
            self._unlinked.clear()
        self._window.append(self._window.end_lsn, [memoryview(data)])
        self._tail += data
        surplus = self._proof_lsn(self._status.flush_lsn if self._status is not None else 0) - self._tail_begin_lsn
        if surplus > 0:
            del self._tail[:surplus]
            self._tail_begin_lsn += surplus
        self._step(proposer.wal_received(self._window.end_lsn, now))

    def _uncommitted_bytes(self, proposer: Proposer) -> int:
        leadership = proposer.leadership
        commit_lsn = leadership.commit_lsn if leadership is not None else 0
        return self._window.end_lsn - max(commit_lsn, self._window.begin_lsn)

    def _evict(self, proposer: Proposer) -> None:
        """Make room: what is committed may go."""
        leadership = proposer.leadership
        if leadership is None or leadership.commit_lsn <= self._window.begin_lsn:
            return
        # Little is written here. A window that is small for a moment stands for the WAL of hours.
        probability = self.world.profile.evict_early
        is_small = probability > 0 and self.world.rng.random() < probability
        self._window.capacity_bytes = 0 if is_small else self._window_bytes
        if self._window.evict(leadership.truncate_lsn, leadership.commit_lsn):
            self.world.counts.count("window evictions")
            proposer.wal_evicted(self._window.begin_lsn)

    def primary_hung_up(self) -> None:
        """The primary closed the connection: it died, or another proxy has taken the slot."""
        if self.proposer is not None and self._link is not None:
            self._later(self._primary_delay_s(), self._notice_hang_up, self._link)

    def _notice_hang_up(self, link: PrimaryLink) -> None:
        if self._link is link:
            self._primary_is_lost()

    def lose_primary(self) -> None:
        """The connection to the primary breaks."""
        if self._backlog is not None:
            self._backlog.append((self.life, self.lose_primary, ()))
        elif self.proposer is not None and self._link is not None:
            self._primary_is_lost()

    def _put_aside(self, reason: str) -> None:
        """The primary is refused: try the other hosts, as long as there are any."""
        self._rota.refused(reason, self.clock.now)
        self._close_link()
        verdict = self._rota.verdict()
        if verdict is not None:
            self._finish(verdict)
        else:
            self._later(CONNECT_RETRY_S * (0.5 + self.world.rng.random()), self._connect_primary)

    def _primary_is_lost(self) -> None:
        assert self.proposer is not None and self._link is not None  # by the callers
        self.world.note(self.name, "loses", self._link.primary.name)
        self._rota.failed(HostState.UNREACHABLE, "its connection broke")
        self._close_link()
        self._later(CONNECT_RETRY_S * (0.5 + self.world.rng.random()), self._connect_primary)
        self._step(self.proposer.primary_lost(self.clock.now))

    def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None and link.primary.walsender is self:
            link.primary.walsender = None

    def _send_status(self) -> None:
        link, status = self._link, self._status
        if link is None or status is None or not link.copying or not self._link_stands(link) or link.primary.frozen:
            return
        if link.primary.walsender is self:
            flush_lsn = self._slot_lsn(status.flush_lsn)
            status = ReportStatus(status.write_lsn, flush_lsn, min(status.apply_lsn, flush_lsn))
            self._truth.on_status(self, link.primary, status)
            link.primary.on_report(status.flush_lsn, status.apply_lsn)

    def _slot_lsn(self, commit_lsn: Lsn) -> Lsn:
        """Return what may be reported to the primary, whose slot then keeps what it will be compared with."""
        return slot_lsn(self._tail, self._tail_begin_lsn, commit_lsn) if commit_lsn else 0

    def _tick(self) -> None:
        assert self.proposer is not None
        self._step(self.proposer.tick(self.clock.now, self.world.rng.random()))
        if self.proposer is not None:
            self._send_status()
            self._schedule_pump()
            self._later(self.world.profile.bends.tick_s / self.clock.rate, self._tick)
