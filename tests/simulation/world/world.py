"""One simulated cluster: safekeepers, proxies, primaries, a network, a clock, and one seed that decides everything.

A run has two phases. In the first, faults happen and only safety is asked for. In the second everything is healed: one
primary, proxies that point at it, all safekeepers up. Then everything must converge within bounded virtual time.
"""

import random
import re
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from safekeeper.acceptor.acceptor import Acceptor
from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import format_lsn
from safekeeper.consensus import term_history as term_history_module
from safekeeper.consensus.control_state import ControlState
from safekeeper.consensus.folder_state import FolderState, is_older
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import PROTOCOL_VERSION
from safekeeper.consensus.term_history import cut_history, last_term
from safekeeper.peers import codec as wire_module
from safekeeper.peers import message_checks
from tests.simulation.checks import quorums
from tests.simulation.checks.checkers import Checker
from tests.simulation.checks.truths import Truths
from tests.simulation.checks.violation import Violation
from tests.simulation.model.archive import ARCHIVE_ID, ModelArchive, SimArchiver
from tests.simulation.model.bends import Bends
from tests.simulation.model.clock import Clock, MachineClock
from tests.simulation.model.direct_standby import direct_standbys_of
from tests.simulation.model.disk import ModelDisk, StorageDisk
from tests.simulation.model.network import Network
from tests.simulation.model.primary import FIRST_LSN, Stranger, VirtualPrimary
from tests.simulation.model.proxy import SimProxy
from tests.simulation.model.retention import SimRetention
from tests.simulation.model.safekeeper import SimSafekeeper
from tests.simulation.model.standby import standbys_of
from tests.simulation.model.synthetic_wal import HEADER_BYTES, SEGMENT_SIZE, last_timed_record
from tests.simulation.references.proposer import ballots as reference_ballots
from tests.simulation.seeds.counts import Counts
from tests.simulation.seeds.trace import figures, line
from tests.simulation.shells.proxy_seams import REPLACED_IN_PROXIES
from tests.simulation.shells.real_proxy import RealProxy
from tests.simulation.shells.real_safekeeper import REPLACED_IN_SHELLS, RealSafekeeper
from tests.simulation.shells.shell_disk import ShellDisk
from tests.simulation.world.agents import MACHINES, Agents
from tests.simulation.world.agents_shell import REPLACED_IN_AGENTS
from tests.simulation.world.failover import FailoverOperator, Servers
from tests.simulation.world.failover_shell import REPLACED
from tests.simulation.world.newest_log import NewestLog
from tests.simulation.world.profiles import Profile
from tests.simulation.world.rebootstrap import Operator, Rebootstrap, new_cluster, old_cluster
from walproxy.proposer import archiving as archiving_module
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.liveness import Timing
from walproxy.proposer.phase import Phase
from walproxy.proposer.proposer import Proposer

TRACE_LINES = 60
SHORT_HISTORY = 2
# The reason of a member that refuses a history, since what it shares with it is forgotten.
FORGOTTEN = "are forgotten"
LIVENESS_S = 40.0
# Where the times of the product are bent, a vote may seldom be in time.
LIVENESS_TIMES_BENT = 4
LIVENESS_TIMES_MOVING = 9
SETTLE_S = 3.0
WORKLOAD_S = 0.2
TIMING = Timing(
    heartbeat_interval_s=0.25,
    heartbeat_timeout_s=1.0,
    response_timeout_s=1.5,
    vote_timeout_s=0.8,
    vote_grace_s=0.05,
    verify_timeout_s=2.0,
    retry_interval_s=0.1,
    refused_wait_min_s=1.5,
    refused_wait_max_s=6.0,
    catchup_bytes_per_s=1 << 20,
)


class SimulationFailed(Exception):
    """A run has failed: `trace` is what happened last, a line each."""

    def __init__(self, cause: Exception, trace: list[str]) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause
        self.trace = trace

    @property
    def invariant(self) -> str:
        """The name of what was violated."""
        return self.cause.invariant if isinstance(self.cause, Violation) else type(self.cause).__name__


class World:
    """Everything that there is.

    Attributes:
        seed: what every source of chance comes from.
        tail_after_s: how long proxies see no primary before they win a tail term, None for no such terms.
        has_addresses: whether proxies have the safekeepers' addresses, so that members pull WAL from each other.
        rng: the source of chance for all that has none of its own.
        bend_chance: that of choices which are bent.
        current: the primary that the operator believes to be the right one.
        standbys: the standbys that stream from safekeepers, whether or not they do at the moment.
        directs: those that stream from the primary.
        servers: all servers, by the names of their hosts.
        truths: what must hold, in each cluster.
        operator: who rebootstraps.
        failover: who fails over.
        agents: who does that instead, None for operators.
        apply_rule: the rule of remote_apply, which every proxy gets that starts.
        retention: how safekeepers remove what need not be kept.
        archive: where they archive it before, None if there is none.
        counts: how often what happened.
        digest: of all that happens, None if two versions of the code are not compared.
        archiver_named: who archives.
        has_real_shells: whether the safekeepers are real ones.
        has_real_proxies: whether the proxies are real ones.
        acceptor_class, proposer_class, model_disk_class, wiped_keeps_incarnation: where bugs are planted.
        has_reference: whether acceptors and proposers are compared with their references: not where bugs are planted.
        watches_proposers: whether proposers are: not in each seed.
        quorum_choices: the sizes that an operator chooses from.
        changes_both: whether a change of the members may change the sizes as well.
    """

    acceptor_class: type[Acceptor] = Acceptor
    proposer_class: type[Proposer] = Proposer
    model_disk_class: type[ModelDisk] = ModelDisk
    wiped_keeps_incarnation = False
    has_reference = True
    watches_proposers = True
    quorum_choices = quorums.CHOICES

    def __init__(
        self,
        seed: int,
        profile: Profile,
        safekeeper_count: int = 3,
        real_storage: bool = False,
        standby_count: int = 0,
        apply_rule: str = "",
        real_shells: bool = False,
        real_proxies: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.profile = profile
        self.timing = profile.bends.timing(TIMING)
        self.bend_chance = random.Random(f"{seed} bends")
        self.has_addresses = random.Random(f"{seed} addresses").random() < profile.pulls
        tails = random.Random(f"{seed} tails")
        self.tail_after_s = 0.5 * tails.random() if tails.random() < profile.tails else None
        self.clock = Clock()
        self.counts = Counts()
        self.network = Network(self.clock, self.rng, profile.delay_s)
        self.network.answers_later_s = self.later_answer_s
        self.truths = Truths(self)
        self.is_healing = False
        # Primaries whose clients write while all is repaired.
        self._with_clients: list[VirtualPrimary] = []
        self._clock_chance = random.Random(f"{seed} clocks")
        self._clocks_are_skewed = self._clock_chance.random() < profile.clock_skew
        self.digest: Any = None
        self._trace: deque[tuple[float, str, str, tuple[Any, ...]]] = deque(maxlen=TRACE_LINES)
        self._runs = 0
        self._has_replaced = False
        self._disk_class = StorageDisk if real_storage else self.model_disk_class
        kind = SimSafekeeper
        if real_shells:
            self._disk_class, kind = ShellDisk, RealSafekeeper
        self.agents = Agents(self) if profile.agents else None
        self.has_real_shells = real_shells
        self.has_real_proxies = real_proxies
        self.safekeepers = {i: kind(self, i, self.new_disk()) for i in range(1, safekeeper_count + 1)}
        self.primaries = [VirtualPrimary(self, "A", 1, (), b"")]
        self.current = self.primaries[0]
        self.proxies: list[SimProxy] = []
        self._added: list[SimProxy] = []
        self.standbys = standbys_of(self, MACHINES if self.agents is not None else standby_count, seed)
        has_direct = random.Random(f"{seed} direct").random() < profile.direct or not standby_count
        self.directs = direct_standbys_of(self, int(profile.direct > 0 and has_direct))
        self.servers = Servers(self)
        spells_otherwise = random.Random(f"{seed} spellings").random() < profile.other_spellings
        self.apply_rule = parse_apply_rule(spelled_otherwise(apply_rule) if spells_otherwise else apply_rule)
        if spells_otherwise and self.quorum_choices is quorums.CHOICES:
            self.quorum_choices = (*quorums.CHOICES, *quorums.OTHER_SPELLINGS)
        self.changes_both = random.Random(f"{seed} both changes").random() < profile.both_changes
        self._stranger_chance = random.Random(f"{seed} strangers")
        has_stranger = self._stranger_chance.random() < profile.strangers
        self._stranger = Stranger(self, "stranger", 1, (), b"") if has_stranger else None
        self.archiver_named = 0
        self.retention = SimRetention(self, seed)
        self.operator = Operator(self)
        self.failover = FailoverOperator(self)
        # In every second seed histories may hardly grow, so that terms are forgotten although members are away.
        self.history_entries_max = history_entries_max(seed)
        self.archive: ModelArchive | None = None
        if self.retention.has_archive:
            self.begin_archive(seed)

    def add_proxy(
        self, primary: VirtualPrimary | None = None, takeover: bool = False, *, starts: bool = True
    ) -> SimProxy:
        """Add another proxy, and start it, unless an agent does that."""
        kind = RealProxy if self.has_real_proxies else SimProxy
        proxy = kind(self, f"P{len(self.proxies) + 1}", primary or self.current, takeover)
        self.proxies.append(proxy)
        self._added.append(proxy)
        if starts:
            proxy.start()
        return proxy

    def new_primary(self, primary: VirtualPrimary) -> VirtualPrimary:
        """Let a promoted or restored primary join."""
        self.primaries.append(primary)
        self.note(primary.name, "begins", f"timeline {primary.tli} at {format_lsn(primary.own_lsn)}", primary.ancestors)
        return primary

    def begin_archive(self, seed: int, is_lucky: bool = False) -> None:
        """Let every safekeeper be one that could archive, from now on."""
        has_id = random.Random(f"{seed} archive id").random() < self.profile.archive_ids
        self.archive = ModelArchive(ARCHIVE_ID if has_id else "")
        for safekeeper in self.safekeepers.values():
            archiver = SimArchiver(self, self.archive, safekeeper, seed)
            archiver.is_lucky = is_lucky
            archiver.start()

    def new_disk(self) -> ModelDisk:
        """Return an empty disk."""
        disk = self._disk_class(self.rng)
        if isinstance(disk, StorageDisk):
            disk.fs.torn_by_page = self.profile.torn_by_page
        return disk

    def new_clock(self) -> MachineClock:
        """Return the clock of a machine: in some runs each has a rate of its own, from half as fast to twice."""
        return MachineClock(self.clock, 2.0 ** self._clock_chance.uniform(-1, 1) if self._clocks_are_skewed else 1.0)

    def next_primary_name(self) -> str:
        """Return a name that no primary has."""
        return chr(ord("A") + len(self.primaries) % 26) + (str(len(self.primaries) // 26) or "")

    def new_run(self) -> str:
        """Return the id of a new run of a proxy."""
        self._runs += 1
        self.counts.count("proxies' runs")
        return f"{self._runs:08x}{self.rng.getrandbits(96):024x}"

    def rebootstrap(self, safekeepers: list[SimSafekeeper]) -> Rebootstrap:
        """Begin a new cluster, as an operator does."""
        cluster_id = self.new_run()
        begun = Rebootstrap(self, safekeepers, new_cluster(cluster_id, safekeepers))
        self.note("operator", "rebootstraps", f"cluster {cluster_id[:8]}")
        return begun

    def undo_rebootstrap(self, safekeepers: list[SimSafekeeper], remembered: ControlState) -> Rebootstrap:
        """Bring back what a rebootstrap has replaced."""
        self.note("operator", "undoes the rebootstrap", f"cluster {remembered.cluster_id[:8]}")
        return Rebootstrap(self, safekeepers, old_cluster(remembered, safekeepers))

    @property
    def checker(self) -> Checker:
        """The truth of the cluster that the operator goes on with."""
        return self.truths.current

    def note(self, who: str, verb: str, *what: Any) -> None:
        """Remember what happened; it is put into words only if the run fails."""
        self._trace.append((self.clock.now, who, verb, what))
        if self.digest is not None:
            self.digest.update(f"{self.clock.now!r} {who} {figures(what)}\n".encode())

    def incarnation_of(self, safekeeper: SimSafekeeper) -> str:
        """Return the random id of a safekeeper's next new data folder (S8)."""
        return f"{safekeeper.id:04x}{0 if self.wiped_keeps_incarnation else safekeeper.folders:028x}"

    def durable_effect_delay_s(self, safekeeper: SimSafekeeper) -> float:
        """Return how long an effect on a safekeeper's disk takes; mostly no time, so that little waits."""
        if self.rng.random() < self.profile.slow_effect:
            return self.rng.random() * safekeeper.flush_delay_s
        return 0.0

    def is_bent(self, probability: float) -> bool:
        """Return whether a choice is taken the other way this time."""
        return probability > 0 and self.bend_chance.random() < probability

    def later_answer_s(self) -> float:
        """Return how much later than usual an answer of a safekeeper leaves."""
        bends = self.profile.bends
        if bends.answer_late and self.is_bent(bends.answer_late):
            return bends.late_s * self.bend_chance.random()
        return 0.0

    def safekeeper_died(self, safekeeper: SimSafekeeper) -> None:
        """It is restarted by its supervisor, sooner or later."""
        delay_s = self.rng.choice((0.05, 0.3, 1.0)) * (0.5 + self.rng.random())
        self.clock.after(max(delay_s, safekeeper.away_until_s - self.clock.now), safekeeper.start)

    def proxy_finished(self, proxy: SimProxy) -> None:
        """A proxy has ended by itself; the operator looks at it, and starts it again, maybe on another primary."""
        if self.agents is not None:
            return  # One of them does that.
        self.clock.after(0.3 + self.rng.random(), self._start_again, proxy)

    def _start_again(self, proxy: SimProxy) -> None:
        if proxy.proposer is None and proxy in self.proxies:
            if self.is_healing:
                self._point_for_good(proxy)
            else:
                right = self.rng.random() < 0.7
                self.point(proxy, self.current if right else self.rng.choice(self.primaries))
            proxy.start()

    def point(self, proxy: SimProxy, primary: VirtualPrimary) -> None:
        """Configure a proxy for a primary, maybe as one of several hosts; a run reads the list when it starts."""
        hosts = [primary]
        if self.profile.several_hosts and self.rng.random() < self.profile.several_hosts:
            others = [other for other in self.primaries if other is not primary]
            hosts += self.rng.sample(others, min(len(others), 2))
            self.rng.shuffle(hosts)
        self._mistake(hosts)
        proxy.primary, *others = hosts
        proxy.others = tuple(others)

    def _mistake(self, hosts: list[VirtualPrimary]) -> None:
        """Let the operator name a server of another PostgreSQL cluster, alone or beside the others.

        By then there is a cluster: a bootstrap with that server would begin one of its own.
        """
        if self._stranger is None or self.is_healing or not self.checker.won or self._stranger_chance.random() < 0.8:
            return
        if len(hosts) == 1:
            hosts.clear()
        hosts.insert(self._stranger_chance.randint(0, len(hosts)), self._stranger)

    def _point_for_good(self, proxy: SimProxy) -> None:
        """Configure a proxy for the primary that was settled on. Whichever host it takes has clients."""
        if proxy.proposer is None:
            self.point(proxy, self.current)
        else:
            proxy.swap_first_name(self.current)
        for host in proxy.hosts:
            if host not in self._with_clients:
                self._with_clients.append(host)
                self.start_workload(host)

    def trace(self) -> list[str]:
        """Return what happened last, a line each."""
        return [line(*happened) for happened in list(self._trace)[-TRACE_LINES:]]

    def run(self, until_s: float, events: int | None = None) -> None:
        """Let time pass, or so many events.

        Raises:
            SimulationFailed: an invariant does not hold, or the code fails in any other way.
        """
        try:
            with self.replaced():
                self.clock.run(until_s, events)
        except Exception as error:
            self.abandon()
            raise SimulationFailed(error, self.trace()) from error

    def start(self) -> None:
        """Start the safekeepers, a proxy, the workload."""
        for safekeeper in self.safekeepers.values():
            if self.has_real_shells:
                self.clock.after(0.0, safekeeper.start)  # Within `run`, which puts other things in their places.
            else:
                safekeeper.start()
            self.clock.after(self.profile.bends.checkpoint_s * self.rng.random(), self._checkpoint, safekeeper)
        self.retention.start()
        for standby in (*self.standbys, *self.directs) if self.agents is None else ():
            standby.start()

    def _checkpoint(self, safekeeper: SimSafekeeper) -> None:
        safekeeper.checkpoint()
        self.clock.after(self.profile.bends.checkpoint_s, self._checkpoint, safekeeper)

    def start_workload(self, primary: VirtualPrimary) -> None:
        """Let a primary write records, of all sizes, and flush them as it likes."""
        self.clock.after(self._record_delay_s(), self._write, primary, self.is_healing)

    def _record_delay_s(self) -> float:
        return self.rng.expovariate(1.0) * self.profile.record_every_s

    def _write(self, primary: VirtualPrimary, is_healing: bool) -> None:
        if is_healing is not self.is_healing:
            return
        rng = self.rng
        has_clients = primary is self.current or primary.walsender is not None or self.agents is not None
        if primary.answers and not primary.quiet and has_clients:
            commits = rng.choice((0.0, 0.5, 0.9))
            for _ in range(rng.choice((1, 1, 2, 5))):
                size = HEADER_BYTES + int(rng.expovariate(1.0) * rng.choice((20, 200, 600)))
                primary.write_record(size, is_timed=rng.random() < commits and primary.fits_into_segment(size))
            is_long = self.retention.write_long_record(primary)
            if not is_long and rng.random() < 0.3:
                # PostgreSQL flushes by pages: the last record may be there in part.
                primary.flush(max(primary.flush_lsn, primary.insert_lsn - rng.randint(0, 300)))
            elif not is_long:
                primary.flush()
        self.clock.after(self._record_delay_s(), self._write, primary, self.is_healing)

    def heal(self, without: frozenset[int] = frozenset()) -> None:
        """Repair everything that can be repaired; when all is still, settle on the primary that the log came from.

        Args:
            without: safekeepers that will be out of reach, so that their logs do not matter.
        """
        if self.agents is not None:
            self._heal_by_agents(self.agents)
            return
        self.is_healing = True
        proxies_stay = self.profile.proxies_stay > 0 and self.rng.random() < self.profile.proxies_stay
        for index, proxy in enumerate(self.proxies):
            if proxies_stay and index < 2 and proxy.listed is None and proxy.version == PROTOCOL_VERSION:
                proxy.cut_off_primary()
            else:
                proxy.stop()
            proxy.correct()
        self.proxies, proxies = [], self.proxies[:2]
        self.clock.after(0.0, self.network.unblock_all)
        for safekeeper in self.safekeepers.values():
            self._put_members_back(safekeeper)
            safekeeper.effects_left, safekeeper.dies_after = None, ""
            safekeeper.disk.full = False
            safekeeper.flush_delay_s = self.profile.flush_delay_s
        primaries_are_lost = self.failover.loses_primaries()
        for primary in self.primaries:
            primary.quiet = False
            primary.thaw()
            primary.start()
            primary.is_lost = primaries_are_lost
            if primaries_are_lost:
                primary.crash()
        self.run(self.clock.now + SETTLE_S)
        try:
            self.operator.settle()
            self.failover.settle(without, proxies, primaries_are_lost=primaries_are_lost)
            for primary in self.primaries:
                primary.is_lost = False
                primary.start()
        except Violation as error:
            self.abandon()
            raise SimulationFailed(error, self.trace()) from error
        self.current = self.best_primary(without)
        self.note("operator", "settles on", self.current.name)
        self.current.flush()
        for primary in self.primaries:
            if proxies_stay and primary is not self.current and primary.up:
                primary.crash()
        self._with_clients = [self.current]
        self.start_workload(self.current)
        self.proxies = proxies
        if self.lacks_proof(without):
            for proxy in self.proxies:
                proxy.stop()
                proxy.allow_unverified_primary = True
        for proxy in self.proxies:
            proxy.primary_is_cut_off = False
            proxy.takeover = False
            self._point_for_good(proxy)
            proxy.start()

    def _heal_by_agents(self, agents: Agents) -> None:
        try:
            agents.heal()
        except Violation as error:
            self.abandon()
            raise SimulationFailed(error, self.trace()) from error

    def lacks_proof(self, without: frozenset[int] = frozenset()) -> bool:
        """Return whether WAL was given up, and with it the last record with a time that members had: S10 refuses all.

        Then the operator must vouch for the primary, with --allow-unverified-primary.
        """
        newest = self.newest_log(without) if self.counts["committed WAL given up"] else None
        if newest is None or newest.begin_lsn <= FIRST_LSN:
            return False
        return not last_timed_record(newest.wal, newest.begin_lsn, newest.end_lsn)[0]

    def _put_members_back(self, safekeeper: SimSafekeeper) -> None:
        """Exchange a safekeeper's folder if the one that is put away is a member's, and the other one is not.

        The membership is the latest that a member of it has: that which was decided last need not have reached any.
        """
        disks = [disk for each in self.safekeepers.values() for disk in (each.disk, each.put_away) if disk is not None]
        controls = [disk.control for disk in disks if disk.control is not None]
        known = [
            control.membership
            for control in controls
            if control.membership is not None
            and control.membership.is_voter(control.safekeeper_id, control.incarnation)
            and not self.checker.is_foreign(control)
        ]
        away = safekeeper.put_away.control if safekeeper.put_away is not None else None
        if away is None or not known:
            return
        membership, here = max(known, key=lambda each: (each.author, each.generation)), safekeeper.disk.control
        is_here = here is not None and membership.is_voter(safekeeper.id, here.incarnation)
        if membership.is_voter(safekeeper.id, away.incarnation) and not is_here:
            if safekeeper.acceptor is not None:
                safekeeper.crash()
            safekeeper.exchange_folder()

    def best_primary(self, without: frozenset[int] = frozenset()) -> VirtualPrimary:
        """Return a primary that the newest log among the voters came from: disks of primaries last.

        Raises:
            SimulationFailed: there is none, so what they have is a mixture.
        """
        newest = self.newest_log(without)
        if newest is None:
            return self.primaries[0]
        fitting = [p for p in self.primaries if newest.is_continued_by(p)]
        if not fitting:
            end = format_lsn(newest.end_lsn)
            error = Violation("LogMatching", f"the newest log, up to {end}, is no primary's (S10)")
            raise SimulationFailed(error, self.trace())
        return fitting[-1] if self.rng.random() < 0.7 or len(fitting) < 2 else self.rng.choice(fitting)

    def is_log_recycled(self) -> bool:
        """Return whether the primary that the newest log came from lacks what it must be compared with."""
        newest = self.newest_log()
        if newest is None or any(newest.is_continued_by(p) for p in self.primaries):
            return False
        return any(newest.is_continued_by(p, may_be_recycled=True) for p in self.primaries)

    def newest_log(self, without: frozenset[int] = frozenset()) -> NewestLog | None:
        """Return the newest log among the voters, None if there is none."""
        best = None
        for safekeeper in self.safekeepers.values():
            disk = safekeeper.disk
            control = disk.control
            if safekeeper.id in without or control is None or not self._is_voter(safekeeper) or not disk.begin_lsn:
                continue
            if safekeeper.acceptor is not None and not safekeeper.acceptor.flush_lsn:
                continue  # For lack of room it has not begun its log again, and claims nothing.
            # What a crash has kept from being cut is no part of the log.
            end_lsn = min(disk.durable_lsn, control.truncate_to or disk.durable_lsn)
            history = cut_history(control.history, end_lsn)
            rank = (last_term(history), end_lsn)
            if best is None or rank > best[0]:
                best = (rank, disk, history)
        if best is None:
            return None
        (_, end_lsn), disk, history = best
        return NewestLog(disk.begin_lsn, bytes(disk.wal[: end_lsn - disk.begin_lsn]), history)

    def is_lost(self, identity: Identity) -> bool:
        """Return whether a data folder is gone, put away, replaced by an older copy, or belongs to another cluster."""
        safekeeper = self.safekeepers[identity[0]]
        control = safekeeper.disk.control
        if control is None or control.incarnation != identity[1] or identity[1] in safekeeper.restored:
            return True
        return self.checker.is_foreign(control)

    def may_lose(self, safekeeper: SimSafekeeper) -> bool:
        """Return whether the disk of a safekeeper may be lost: the quorums of each half remain, and no member changes.

        A change ends when a quorum has the last membership on disk: before that the operator has no reply.
        """
        membership = self.checker.membership
        if membership is None or any(proxy.changes_members for proxy in self.proxies):
            return False
        informed = [
            (each.id, control.incarnation)
            for each in self.safekeepers.values()
            if (control := each.disk.control) is not None
            and control.membership is not None
            and control.membership.is_same(membership)
        ]
        # A membership that only one of them has may still be a leader's: it was voted for, or will be.
        on_disks = [
            control.membership
            for each in self.safekeepers.values()
            if (control := each.disk.control) is not None and not self.checker.is_foreign(control)
        ]
        known = [membership, *(each for each in on_disks if each is not None)]
        return quorums.can_commit(membership, informed) and all(self._is_spared(each, safekeeper, "") for each in known)

    def may_exchange(self, safekeeper: SimSafekeeper) -> bool:
        """Return whether a safekeeper may exchange its folder: the quorums of each half must be there then."""
        membership, other = self.checker.membership, safekeeper.put_away
        control = other.control if other is not None else None
        incarnation = control.incarnation if control is not None and not self.checker.is_foreign(control) else ""
        return membership is not None and self._is_spared(membership, safekeeper, incarnation)

    def _is_spared(self, membership: Membership, safekeeper: SimSafekeeper, incarnation: str) -> bool:
        """Return whether the quorums of each half are there if a safekeeper has a folder with this incarnation."""
        return all(
            sum(m.incarnation != incarnation if m.id == safekeeper.id else self.is_lost(m.identity) for m in half)
            <= quorums.spare(half, sizes)
            for half, sizes in quorums.halves(membership)
        )

    def _is_voter(self, safekeeper: SimSafekeeper) -> bool:
        """Return whether this disk is a member's, whether or not the process runs, or has received it."""
        control, latest = safekeeper.disk.control, self.checker.membership
        membership = latest if latest is not None or control is None else control.membership
        if membership is None or control is None or self.checker.is_foreign(control):
            return False
        if control.incarnation in safekeeper.restored:
            return False
        return membership.is_voter(safekeeper.id, control.incarnation)

    def may_restore(self, safekeeper: SimSafekeeper, snapshot: ControlState, state: FolderState) -> bool:
        """Return whether a snapshot may take the place of a folder, which will begin in `state` then.

        It counts as lost, also among the members of that time: alone it must not have been a quorum of them.
        """
        was_spared = snapshot.membership is None or self._is_spared(snapshot.membership, safekeeper, "")
        return was_spared and self.may_lose(safekeeper) and self._is_noticed(state)

    def _is_noticed(self, state: FolderState) -> bool:
        """Return whether every other member that is there remembers a later state of this folder, on its disk.

        Only then may an operator restore it: what no member remembers is not noticed (S8e).
        """
        membership = self.checker.membership
        others = membership.identities() - {state.identity} if membership is not None else set()
        controls = [self.safekeepers[other[0]].disk.control for other in sorted(others) if not self.is_lost(other)]
        known = [{each.identity: each for each in control.folders} for control in controls if control is not None]
        return bool(known) and all(is_older(state, folders.get(state.identity)) for folders in known)

    def patience_s(self, usual_s: float) -> float:
        """Return how long to wait for what takes at most `usual_s` if no time and no size of the product is bent."""
        return usual_s * LIVENESS_TIMES_BENT if self.profile.bends.bent() else usual_s

    def converge(self) -> None:
        """Let time pass until everything has converged.

        Raises:
            SimulationFailed: it has not within the time for that, or a check failed on the way.
        """
        began_at = moved_at = self.clock.now
        written_at = None
        acked_before = self.checker.acked_lsn
        within_s, missing = self.patience_s(LIVENESS_S), ""
        # A member that lacks much, and receives it in small messages, may take longer as long as it moves on.
        while self.clock.now < min(moved_at, began_at + LIVENESS_TIMES_MOVING * within_s) + within_s:
            self.run(self.clock.now + 0.1)
            if self.wipe_forgotten():
                self.counts.count("quorums forgotten")
                return
            if written_at is None and self.clock.now > began_at + WORKLOAD_S and self.checker.acked_lsn > acked_before:
                # Commits advance: let the workload end, so that all can catch up.
                written_at = self.clock.now
                self.profile = _quiet(self.profile)
            if written_at is not None:
                before, missing = missing, self._missing()
                if not missing:
                    return
                if before != missing:
                    moved_at = self.clock.now
        error = Violation(
            "Convergence",
            f"after {within_s:g} s without faults, and without a step: {self._missing() or 'no commit advanced'}",
        )
        raise SimulationFailed(error, self.trace())

    def forgotten(self) -> list[SimSafekeeper]:
        """Return the safekeepers that refuse the leader's history, since the terms that they share are forgotten."""
        leader = self.leader()
        proposer = leader.proposer if leader is not None else None
        peers = proposer.peers if proposer is not None else {}
        return [self.safekeepers[i] for i, peer in peers.items() if FORGOTTEN in peer.refused]

    def wipe_forgotten(self) -> bool:
        """Wipe their disks once a quorum accepts WAL without them, as operators do.

        Returns:
            Whether no quorum can, since they count as lost: what is left is a rebootstrap.
        """
        refusing, leader, membership = self.forgotten(), self.leader(), self.checker.membership
        if not refusing or leader is None or membership is None:
            return False
        leadership = leader.proposer.leadership if leader.proposer is not None else None
        if leadership is not None and leadership.commit_lsn:
            for safekeeper in refusing:
                control = safekeeper.disk.control
                if safekeeper.acceptor is not None and control is not None and control.history:
                    safekeeper.crash()
                    safekeeper.wipe()
                    self.counts.count("members forgotten")
            return False
        ids = {safekeeper.id for safekeeper in refusing}
        return any(
            sum(member.id in ids or self.is_lost(member.identity) for member in half) > quorums.spare(half, sizes)
            for half, sizes in quorums.halves(membership)
        )

    def _missing(self) -> str:
        """Return what keeps the cluster from having converged, empty if nothing does."""
        # Of several hosts that fit, a proxy takes the one that answers first.
        leader = self.leader()
        primary = (leader.streams_from if leader is not None else None) or self.current
        end_lsn = primary.flush_lsn
        membership = self.checker.membership
        if membership is not None and membership.new_members:
            return f"the members still change ({membership.label})"
        for safekeeper in self.safekeepers.values():
            disk = safekeeper.disk
            if safekeeper.acceptor is None:
                return f"{safekeeper.name} is down"
            if disk.durable_lsn != end_lsn:
                return f"{safekeeper.name} has WAL up to {format_lsn(disk.durable_lsn)}, not {format_lsn(end_lsn)}"
            if disk.wal != primary.read(disk.begin_lsn, end_lsn):
                return f"{safekeeper.name} has other bytes than the primary"
        _, commit_end_lsn = last_timed_record(primary.wal, FIRST_LSN, end_lsn)
        if primary.reported_lsn < commit_end_lsn:
            return f"{primary.name} has {format_lsn(primary.reported_lsn)}, not {format_lsn(commit_end_lsn)}"
        # A crash of the primary may have left a record at the end that will never be complete.
        last_lsn = primary.record_end_at_or_below(end_lsn)
        if self.agents is not None and (missing := self.agents.missing()):
            return missing
        for standby in self.standbys if self.agents is None else self.agents.following():
            if standby.applied_lsn != last_lsn:
                return (
                    f"{standby.name} has replayed up to {format_lsn(standby.applied_lsn)}, not {format_lsn(last_lsn)}"
                )
        if primary.reported_apply_lsn < commit_end_lsn:
            return (
                f"{primary.name} has apply {format_lsn(primary.reported_apply_lsn)}, not {format_lsn(commit_end_lsn)}"
            )
        return ""

    def replaced(self) -> AbstractContextManager[None]:
        """Put other things in the places of what the product uses while the block runs."""
        return nullcontext() if self._has_replaced else self._replacing()

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        with small_frames(self.history_entries_max, self.profile.bends):
            self._has_replaced = True
            try:
                yield
            finally:
                self._has_replaced = False

    def abandon(self) -> None:
        """End the processes that have coroutines."""
        self.failover.abandon()
        if self.agents is not None:
            self.agents.abandon()
        for proxy in self._added:
            proxy.abandon()

    def check_all(self) -> None:
        """Compare every byte on every disk with what it must be."""
        try:
            for truth in self.truths.all():
                truth.check_logs()
                truth.check_committed_is_held()
            self.checker.archive.check_objects()
            self.checker.archive.check_nothing_is_lost()
        except (Violation, WalproxyError) as error:
            raise SimulationFailed(error, self.trace()) from error

    def leader(self) -> SimProxy | None:
        """Return a proxy that leads a term, the one of the highest term."""
        leading = [p for p in self.proxies if p.proposer is not None and p.proposer.phase is Phase.LEADING]
        return max(leading, key=lambda proxy: proxy.proposer.term if proxy.proposer else 0, default=None)


def spelled_otherwise(rule: str) -> str:
    """Return a rule for remote_apply with its names in quotes, and its keyword in lower case."""
    return re.sub(r"\b([Rr]\d)\b", r'"\1"', rule).replace("ANY", "any")


def history_entries_max(seed: int) -> int:
    """Return the number of entries to which a seed limits histories."""
    return SHORT_HISTORY if seed % 2 else term_history_module.HISTORY_ENTRIES_MAX


def _quiet(profile: Profile) -> Profile:
    return replace(profile, record_every_s=1e9)


@contextmanager
def small_frames(history_entries_max: int, bends: Bends) -> Iterator[None]:
    """Make all things small: frames, so that a few KiB of WAL are many messages; segments; waits for an archiver."""
    small: tuple[tuple[Any, str, Any], ...] = (
        *REPLACED,
        *REPLACED_IN_SHELLS,
        *REPLACED_IN_PROXIES,
        *REPLACED_IN_AGENTS,
        *bends.settings(),
        (term_history_module, "HISTORY_ENTRIES_MAX", history_entries_max),
        (reference_ballots, "ENTRIES_MAX", history_entries_max),
        (message_checks, "SEGMENT_SIZE_MIN", SEGMENT_SIZE),
        (wire_module, "_BUFFER_BYTES", 32 << 10),
        (archiving_module, "INCUMBENT_GRACE_S", 0.2),
        (archiving_module, "GONE_GRACE_S", 0.5),
        (archiving_module, "PROBLEM_GRACE_S", 0.5),
        (archiving_module, "STALL_S", 2.0),
        (archiving_module, "REST_S", 1.0),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in small]
    for module, name, value in small:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
