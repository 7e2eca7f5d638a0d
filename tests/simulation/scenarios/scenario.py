"""Schedules as a person writes them, replayed on the real state machines.

A scenario is a text file: one command or condition a line, `#` begins a comment. The line `# fails with: BUG` names a
planted bug with which it must fail. Nothing happens by chance in it, and nothing goes wrong but what it contains.
Proxies are called P1, P2 ..., safekeepers S1, S2 ..., standbys R1, R2 ..., primaries by a capital letter; A is there
from the start. Records have names of their own, 100 bytes each unless the command has another size.

    P1 starts on A [B] [and takes over |
                        and may lose data]  S1 crashes | loses power | loses its disk | starts
    P1 stops                                S1 dies after Persist           (the name of an effect)
    S1 is copied                            S1 comes back as it was copied  (never do that: S8)
    P1 and S1 S2 are apart                  A writes a b [of 300 bytes] [without a time]
    P1 cannot send to | receive from S1     A writes a [of 300 bytes] and flushes 40 bytes of it
    P1 and S1 meet again                    B is A promoted after a | before a
    P1 loses its primary | now uses B       B is A restored after a
    A switches its segment                  A recycles what its slot does not hold
    P1 starts on A and vouches for it       S1 exchanges its folder         (for an empty one, or the one before)
    P1 changes the members to S1 S2 S3      (with the data folders that they have now)
    A stops | starts | recycles old WAL     operator rebootstraps over S1 S2 S3
    operator undoes | fails to undo the rebootstrap over S1 S2 S3 as S1 keeps it
    R1 streams from S1 | leaves             remote_apply waits for R1, R2   (a rule of remote_apply_standbys)
    D1 has received what A wrote up to b, has replayed a, and shows no more         (a standby of A itself)
    operator fails over | cannot fail over [to R1]        (the old primary is taken for dead)
    the safekeepers archive                 S1 S2 remove old WAL            (all that they may)
    S1 flushes slowly | quickly             b is given up                   (by the operator: it may be lost)
    run 0.5 s                               histories keep 2 terms
    there are 5 safekeepers                 members pull WAL from each other
    proxies win tail terms after 0.2 s

    until CONDITION     (at most 10 s)      expect CONDITION                everything converges on B

    P1 leads | does not lead | is refused | runs          a b are committed | acknowledged | not acknowledged
    P1 has greeted S1 S2 | has the vote of S1             S1 S2 hold a b | lack a b
    P1 bootstraps | asks for votes | refuses S1 S2        R1 has replayed a b
    P1 puts A aside | streams A                           a b are archived
    P1 has S1 S2 for its members | changes its members
    P1 is at term 3                                       S1 archives
    readers of S1 are on timeline 1                       a b are applied | not applied   (as reported to PostgreSQL)

A primary that recycles old WAL has lost its slot: of its segments it keeps the one that it writes, and no other. A
safekeeper that flushes slowly has what it was sent on its disk after seconds, unless it must wait for that.

A rebootstrap names the data folders that the safekeepers have now, and reaches those that are up. Once it has reached a
quorum of them, only the new cluster's commits are `committed`; once an undo has, those of the cluster before.

The checkers observe all the time; a scenario that ends without `everything converges on` has ended safely as well.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.lsn import Lsn, segment_start
from safekeeper.consensus.membership import Member
from tests.simulation.checks.violation import Violation
from tests.simulation.model.direct_standby import DirectStandby
from tests.simulation.model.disk import DiskCopy
from tests.simulation.model.network import TO_PROXY, TO_SAFEKEEPER
from tests.simulation.model.primary import VirtualPrimary
from tests.simulation.model.proxy import SimProxy
from tests.simulation.model.safekeeper import SimSafekeeper
from tests.simulation.model.standby import SimStandby, standbys_of
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE
from tests.simulation.world.failover import FailoverOperator
from tests.simulation.world.profiles import Profile
from tests.simulation.world.rebootstrap import Rebootstrap
from tests.simulation.world.world import SimulationFailed, World
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.phase import Phase

SCENARIOS = Path(__file__).parent
# By scenario: the planted bug with which it must fail.
FAILS_WITH = {
    path.stem: marked[1]
    for path in sorted(SCENARIOS.glob("*.txt"))
    if (marked := re.search(r"^# fails with: (\w+)$", path.read_text(), re.MULTILINE))
}
WAIT_S = 10.0
RECORD_BYTES = 100
SLOW_FLUSH_S = 20.0
FAILOVER_S = 30.0
_CALM = Profile(
    delay_s=0.002,
    flush_delay_s=0.002,
    slow_effect=0.0,
    evict_early=0.0,
    record_every_s=1e9,
    clock_skew=0.0,
    late_messages=0.0,
)


class ScenarioFailed(AssertionError):
    """A line failed, or its condition does not hold."""


class UndoRefused(ScenarioFailed):
    """A safekeeper refuses to bring back what a rebootstrap has replaced."""


class Record(NamedTuple):
    """A record that a scenario has named."""

    primary: VirtualPrimary
    start_lsn: Lsn
    end_lsn: Lsn

    @property
    def wal(self) -> bytes:
        """Its bytes."""
        return self.primary.read(self.start_lsn, self.end_lsn)


class CalmOperator(FailoverOperator):
    """Fails over once, on servers that are not lost meanwhile. A proxy runs beside what is promoted."""

    has_accidents = False

    def on_promoted(self, promoted: VirtualPrimary) -> None:
        """It has the next letter, writes its first record, and the last proxy is started there."""
        promoted.name = chr(ord("A") + len(self.world.primaries) - 1)
        promoted.write_record(RECORD_BYTES)
        promoted.flush()
        proxy = self.world.proxies[-1]
        proxy.stop()
        proxy.primary, proxy.others = promoted, ()
        proxy.start()


class Stage(World):
    """A world in which only the scenario's faults happen: nothing restarts by itself."""

    def __init__(self, safekeeper_count: int = 3) -> None:
        super().__init__(seed=0, profile=_CALM, safekeeper_count=safekeeper_count)
        self.records: dict[str, Record] = {}
        self.given_up: set[str] = set()
        self.copies: dict[str, DiskCopy] = {}
        self.failover = CalmOperator(self)
        self.start()

    def safekeeper_died(self, safekeeper: SimSafekeeper) -> None:
        """It stays down."""

    def proxy_finished(self, proxy: SimProxy) -> None:
        """It stays down, except at the end."""
        if self.is_healing:
            super().proxy_finished(proxy)

    def adds_safekeepers(self, count: str) -> None:
        """Start more safekeepers, until there are so many."""
        for safekeeper_id in range(len(self.safekeepers) + 1, int(count) + 1):
            safekeeper = SimSafekeeper(self, safekeeper_id, self.model_disk_class(self.rng))
            self.safekeepers[safekeeper_id] = safekeeper
            safekeeper.start()

    def lets_win_tails(self, after: str) -> None:
        """Proxies that start from now on win tail terms after so long without a primary."""
        self.tail_after_s = float(after)

    def lets_members_pull(self) -> None:
        """Give proxies that start the safekeepers' addresses, and drop what is committed at once."""
        self.has_addresses = True
        self.profile = replace(self.profile, evict_early=1.0)

    def proxy(self, name: str) -> SimProxy:
        """Return a proxy by its name."""
        return next(proxy for proxy in self.proxies if proxy.name == name)

    def primary(self, name: str) -> VirtualPrimary:
        """Return a primary by its name."""
        return next(primary for primary in self.primaries if primary.name == name)

    def standby(self, name: str) -> SimStandby:
        """Return a standby by its name."""
        return next(standby for standby in self.standbys if standby.name == name)

    def each_safekeeper(self, names: str) -> list[SimSafekeeper]:
        """Return the safekeepers of a list of names."""
        return [self.safekeepers[int(name[1:])] for name in names.split()]

    def each_record(self, names: str) -> list[Record]:
        """Return the records of a list of names."""
        return [self.records[name] for name in names.split()]

    def starts(self, name: str, primaries: str, how: str | None) -> None:
        first, *others = (self.primary(primary) for primary in primaries.split())
        known = next((proxy for proxy in self.proxies if proxy.name == name), None)
        if known is None:
            known = SimProxy(self, name, first)
            self.proxies.append(known)
        known.primary, known.others, known.takeover = first, tuple(others), how == " and takes over"
        known.allow_data_loss = how == " and may lose data"
        known.allow_unverified_primary = how == " and vouches for it"
        known.start()

    def stops(self, name: str) -> None:
        self.proxy(name).stop()

    def loses_primary(self, name: str) -> None:
        self.proxy(name).lose_primary()

    def now_uses(self, name: str, primary: str) -> None:
        self.proxy(name).primary = self.primary(primary)
        self.proxy(name).lose_primary()

    def apart(self, name: str, safekeepers: str) -> None:
        self.cannot(name, "send to", safekeepers)
        self.cannot(name, "receive from", safekeepers)

    def cannot(self, name: str, what: str, safekeepers: str) -> None:
        way = TO_SAFEKEEPER if what == "send to" else TO_PROXY
        for safekeeper in self.each_safekeeper(safekeepers):
            self.network.blocked.add((name, safekeeper.id, way))

    def meet(self, name: str, safekeepers: str) -> None:
        for safekeeper in self.each_safekeeper(safekeepers):
            for way in (TO_SAFEKEEPER, TO_PROXY):
                self.network.unblock(name, safekeeper.id, way)

    def writes(self, name: str, records: str, size: str | None, without_time: str | None) -> None:
        primary = self.primary(name)
        for record in records.split():
            self._write_one(primary, record, int(size or RECORD_BYTES), is_timed=without_time is None)
        primary.flush()

    def switches_segment(self, name: str) -> None:
        self.primary(name).switch_segment()
        self.primary(name).flush()

    def writes_in_part(self, name: str, record: str, size: str | None, flushed: str) -> None:
        primary = self.primary(name)
        self._write_one(primary, record, int(size or RECORD_BYTES))
        primary.flush(self.records[record].start_lsn + int(flushed))

    def _write_one(self, primary: VirtualPrimary, name: str, size: int, *, is_timed: bool = True) -> None:
        start_lsn = primary.insert_lsn
        self.records[name] = Record(primary, start_lsn, primary.write_record(size, is_timed=is_timed))

    def primary_stops(self, name: str) -> None:
        self.primary(name).crash()

    def primary_starts(self, name: str) -> None:
        self.primary(name).start()

    def makes_checkpoint(self, name: str) -> None:
        self.primary(name).recycle()

    def recycles(self, name: str) -> None:
        primary = self.primary(name)
        primary.oldest_lsn = segment_start(primary.insert_lsn, SEGMENT_SIZE)

    def promoted(self, name: str, source: str, side: str, record: str) -> None:
        fork_lsn = self._beside(side, record)
        tli = max(primary.tli for primary in self.primaries) + 1
        self.current = self.new_primary(self.primary(source).promoted(name, fork_lsn, tli))

    def restored(self, name: str, source: str, side: str, record: str) -> None:
        self.current = self.new_primary(self.primary(source).restored(name, self._beside(side, record)))

    def _beside(self, side: str, record: str) -> Lsn:
        known = self.records[record]
        return known.end_lsn if side == "after" else known.start_lsn

    def crashes(self, name: str, how: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        if safekeeper.acceptor is not None:
            safekeeper.crash(power_cut=how != "crashes")
        if how == "loses its disk":
            safekeeper.wipe()

    def flushes(self, name: str, how: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        safekeeper.flush_delay_s = SLOW_FLUSH_S if how == "slowly" else self.profile.flush_delay_s

    def dies_after(self, name: str, effect: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        safekeeper.dies_after = effect

    def is_copied(self, name: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        self.copies[name] = safekeeper.disk.copy()

    def comes_back(self, name: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        if name not in self.copies:
            raise ScenarioFailed(f"there is no copy of {name}")
        if safekeeper.acceptor is not None:
            safekeeper.crash()
        safekeeper.disk.put_back(self.copies[name])
        assert safekeeper.disk.control is not None  # it has run
        safekeeper.restored.add(safekeeper.disk.control.incarnation)
        self.clock.after(0.0, safekeeper.start)
        self.run(self.clock.now)

    def exchanges_folder(self, name: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        if safekeeper.acceptor is not None:
            safekeeper.crash()
        safekeeper.exchange_folder()

    def changes_members(self, name: str, safekeepers: str) -> None:
        proxy, wanted = self.proxy(name), {safekeeper.id for safekeeper in self.each_safekeeper(safekeepers)}
        leadership = proxy.proposer.leadership if proxy.proposer is not None else None
        known = dict(proxy.known_folders())
        if leadership is None or not wanted <= known.keys():
            raise ScenarioFailed(f"{name} does not lead, or has no greeting of {sorted(wanted - known.keys())}")
        members = tuple(Member(i, known[i]) for i in sorted(wanted))
        proxy.change_members(members, leadership.membership.quorum_sizes)

    def safekeeper_starts(self, name: str) -> None:
        (safekeeper,) = self.each_safekeeper(name)
        safekeeper.start()

    def rebootstraps(self, safekeepers: str) -> None:
        listed = self.each_safekeeper(safekeepers)
        empty = [safekeeper.name for safekeeper in listed if safekeeper.disk.control is None]
        if empty:
            raise ScenarioFailed(f"{empty} have no data folder to name: let them start first")
        begun = self.rebootstrap(listed)
        self.given_up.update(self.records)
        self._until_answered(begun, "the rebootstrap")

    def undoes(self, safekeepers: str, as_kept_by: str) -> None:
        (keeper,) = self.each_safekeeper(as_kept_by)
        control = keeper.disk.control
        if control is None or control.replaced is None:
            raise ScenarioFailed(f"{as_kept_by} keeps no cluster that a rebootstrap has replaced")
        begun = self.undo_rebootstrap(self.each_safekeeper(safekeepers), control.replaced)
        self._until_answered(begun, "the undo")

    def fails_to_undo(self, safekeepers: str, as_kept_by: str) -> None:
        try:
            self.undoes(safekeepers, as_kept_by)
        except UndoRefused:
            return
        self.check_all()
        raise ScenarioFailed("the undo is not refused\n" + "\n".join(self.trace()))

    def _until_answered(self, begun: Rebootstrap, what: str) -> None:
        deadline_s = self.clock.now + WAIT_S
        while begun.awaited and self.clock.now < deadline_s:
            self.run(deadline_s, events=1)
        if begun.bootstrap.undo and self.truths.has_quorum(begun.bootstrap):
            self.given_up.clear()
        if begun.awaited or begun.refusal:
            why = begun.refusal or f"no answer from safekeepers {sorted(begun.awaited)} within {WAIT_S} s"
            failure = UndoRefused if begun.bootstrap.undo and begun.refusal else ScenarioFailed
            raise failure(f"{what} failed: {why}\n" + "\n".join(self.trace()))

    def streams_from(self, name: str, safekeeper: str) -> None:
        standby = next((standby for standby in self.standbys if standby.name == name), None)
        if standby is None:
            (standby,) = standbys_of(self, 1, seed=0)
            standby.name, standby.is_restless = name, False
            self.standbys.append(standby)
        standby.leave()
        standby.stream_from(*self.each_safekeeper(safekeeper))

    def has_received(self, name: str, source: str, received: str, replayed: str) -> None:
        standby = DirectStandby(self, name, self.rng)
        standby.stand_still(self.primary(source), self.records[received].end_lsn, self.records[replayed].end_lsn)
        self.directs.append(standby)

    def fails_over(self, how: str, wanted: str | None) -> None:
        self.failover.begin(wanted=wanted or "", old_is_dead=True, unreachable=frozenset())
        (command,) = self.failover.commands
        deadline_s = self.clock.now + FAILOVER_S
        while not command.is_over:
            if self.clock.now >= deadline_s:
                raise ScenarioFailed(f"the failover waits: {command.waits_for}\n" + "\n".join(self.trace()))
            self.run(deadline_s, events=1)
        if (command.report is None) != (how == "cannot fail"):
            raise ScenarioFailed(f"the failover {command.error or 'is done'}\n" + "\n".join(self.trace()))

    def leaves(self, name: str) -> None:
        self.standby(name).leave()

    def waits_for(self, rule: str) -> None:
        self.apply_rule = parse_apply_rule(rule)
        for proxy in self.proxies:
            proxy.reconfigure()

    def archives(self) -> None:
        self.begin_archive(seed=0, is_lucky=True)

    def remove(self, safekeepers: str) -> None:
        for safekeeper in self.each_safekeeper(safekeepers):
            safekeeper.trim(TrimRequest(None, 0, 2 * SEGMENT_SIZE, has_archive=self.archive is not None))

    def keep_terms(self, count: str) -> None:
        self.history_entries_max = int(count)

    def gives_up(self, records: str) -> None:
        self.given_up.update(records.split())

    def runs(self, seconds: str) -> None:
        self.run(self.clock.now + float(seconds))

    def until(self, condition: str) -> None:
        deadline_s = self.clock.now + WAIT_S
        while not self.holds(condition):
            if self.clock.now >= deadline_s:
                raise ScenarioFailed(f"not within {WAIT_S} s: {condition}\n" + "\n".join(self.trace()))
            # One event at a time: what follows finds the world as it was when the condition began to hold.
            self.run(deadline_s, events=1)

    def expect(self, condition: str) -> None:
        if not self.holds(condition):
            raise ScenarioFailed(f"does not hold: {condition}\n" + "\n".join(self.trace()))

    def converges(self, name: str) -> None:
        self._chosen = self.primary(name)
        self.profile = replace(self.profile, record_every_s=0.1)
        for safekeeper in self.safekeepers.values():
            safekeeper.dies_after = ""
            safekeeper.start()
        if not self.proxies:
            self.add_proxy()
        for standby in self.standbys:
            standby.settle()
        self.heal()
        self.converge()
        self.check_all()
        for safekeeper in self.safekeepers.values():
            kept = {name: record for name, record in self.records.items() if name not in self.given_up}
            lost = [n for n, r in kept.items() if r.end_lsn <= self.checker.acked_lsn and self._is_lost(r)]
            if lost:
                raise ScenarioFailed(f"acknowledged and not on {safekeeper.name}: {lost}")

    def best_primary(self, without: frozenset[int] = frozenset()) -> VirtualPrimary:
        """The scenario names it."""
        return self._chosen

    def _is_lost(self, record: Record) -> bool:
        if record.start_lsn < self.checker.base_lsn:
            return False  # It is older than the cluster.
        return record.primary.reported_lsn >= record.end_lsn and record.wal not in self.checker.committed

    def holds(self, condition: str) -> bool:
        """Return whether a condition holds now."""
        for pattern, check in _CONDITIONS:
            match = re.fullmatch(pattern, condition)
            if match is not None:
                return check(self, *match.groups())
        raise ScenarioFailed(f"no such condition: {condition!r}")

    def leads(self, name: str) -> bool:
        proposer = self.proxy(name).proposer
        return proposer is not None and proposer.phase is Phase.LEADING

    def has_greeted(self, name: str, safekeepers: str) -> bool:
        proposer = self.proxy(name).proposer
        if proposer is None:
            return False
        return all(proposer.peers[safekeeper.id].greeting for safekeeper in self.each_safekeeper(safekeepers))

    def bootstraps(self, name: str) -> bool:
        """A proxy has sent the bootstrap of a cluster, and not every safekeeper has answered."""
        proposer = self.proxy(name).proposer
        return proposer is not None and proposer.phase is Phase.BOOTSTRAPPING

    def asks_for_votes(self, name: str) -> bool:
        proposer = self.proxy(name).proposer
        return proposer is not None and proposer.phase is Phase.VOTING

    def refuses(self, name: str, safekeepers: str) -> bool:
        proposer = self.proxy(name).proposer
        if proposer is None:
            return False
        peers = [proposer.peers[safekeeper.id] for safekeeper in self.each_safekeeper(safekeepers)]
        return all(peer.refused or peer.problem for peer in peers)

    def is_at_term(self, name: str, term: str) -> bool:
        proposer = self.proxy(name).proposer
        return proposer is not None and proposer.term == int(term)

    def has_members(self, name: str, safekeepers: str) -> bool:
        proxy, wanted = self.proxy(name), {safekeeper.id for safekeeper in self.each_safekeeper(safekeepers)}
        leadership = proxy.proposer.leadership if proxy.proposer is not None else None
        if leadership is None or proxy.changes_members:
            return False
        return leadership.membership.identities() == {each for each in proxy.known_folders() if each[0] in wanted}

    def puts_aside(self, name: str, primary: str) -> bool:
        proxy = self.proxy(name)
        return proxy.proposer is not None and proxy.has_put_aside(self.primary(primary))

    def streams(self, name: str, primary: str) -> bool:
        return self.leads(name) and self.proxy(name).streams_from is self.primary(primary)

    def has_vote(self, name: str, safekeeper: str) -> bool:
        proposer = self.proxy(name).proposer
        campaign = proposer.campaign if proposer is not None else None
        return campaign is not None and int(safekeeper[1:]) in {voter for voter, _ in campaign.votes}

    def committed(self, records: str) -> bool:
        checker = self.checker
        return all(
            record.end_lsn <= checker.committed_lsn
            and checker.committed[record.start_lsn - checker.base_lsn :].startswith(record.wal)
            for record in self.each_record(records)
        )

    def acknowledged(self, records: str) -> bool:
        return self.committed(records) and all(r.primary.reported_lsn >= r.end_lsn for r in self.each_record(records))

    def unacknowledged(self, records: str) -> bool:
        return all(r.primary.reported_lsn < r.end_lsn for r in self.each_record(records))

    def replayed(self, name: str, records: str) -> bool:
        return all(self.standby(name).applied_lsn >= record.end_lsn for record in self.each_record(records))

    def applied(self, records: str) -> bool:
        return all(record.primary.reported_apply_lsn >= record.end_lsn for record in self.each_record(records))

    def unapplied(self, records: str) -> bool:
        return all(record.primary.reported_apply_lsn < record.end_lsn for record in self.each_record(records))

    def are_archived(self, records: str) -> bool:
        history = self.checker.won[max(self.checker.won)].history
        archived_lsn = self.checker.archive.archived_end(history)
        return self.committed(records) and all(r.end_lsn <= archived_lsn for r in self.each_record(records))

    def is_archiver(self, safekeeper: str) -> bool:
        acceptor = self.safekeepers[int(safekeeper[1:])].acceptor
        return acceptor is not None and acceptor.is_archiver

    def on_timeline(self, safekeepers: str, tli: str) -> bool:
        acceptors = [safekeeper.acceptor for safekeeper in self.each_safekeeper(safekeepers)]
        return all(acceptor is not None and acceptor.readable_tli == int(tli) for acceptor in acceptors)

    def hold(self, safekeepers: str, records: str) -> bool:
        return all(_holds(s, r) for s in self.each_safekeeper(safekeepers) for r in self.each_record(records))

    def lack(self, safekeepers: str, records: str) -> bool:
        return not any(_holds(s, r) for s in self.each_safekeeper(safekeepers) for r in self.each_record(records))


def _holds(safekeeper: SimSafekeeper, record: Record) -> bool:
    disk = safekeeper.disk
    if not 0 < disk.begin_lsn <= record.start_lsn or disk.durable_lsn < record.end_lsn:
        return False
    begin = record.start_lsn - disk.begin_lsn
    return bytes(disk.wal[begin : begin + len(record.wal)]) == record.wal


_P, _S, _SS, _A, _R, _RR = r"(P\d)", r"(S\d)", r"((?:S\d ?)+?)", r"([A-Z])", r"(\w+)", r"(\w+(?: \w+)*?)"
_AA = r"([A-Z](?: [A-Z])*)"
_STANDBY = r"(R\d)"
_COMMANDS: list[tuple[str, Callable[..., None]]] = [
    (rf"{_P} starts on {_AA}( and takes over| and may lose data| and vouches for it)?", Stage.starts),
    (rf"{_P} stops", Stage.stops),
    (rf"{_P} loses its primary", Stage.loses_primary),
    (rf"{_P} now uses {_A}", Stage.now_uses),
    (rf"{_P} and {_SS} are apart", Stage.apart),
    (rf"{_P} cannot (send to|receive from) {_SS}", Stage.cannot),
    (rf"{_P} and {_SS} meet again", Stage.meet),
    (rf"{_A} writes {_R}(?: of (\d+) bytes)? and flushes (\d+) bytes of it", Stage.writes_in_part),
    (rf"{_A} writes {_RR}(?: of (\d+) bytes)?( without a time)?", Stage.writes),
    (rf"{_A} switches its segment", Stage.switches_segment),
    (rf"{_A} stops", Stage.primary_stops),
    (rf"{_A} starts", Stage.primary_starts),
    (rf"{_A} recycles old WAL", Stage.recycles),
    (rf"{_A} recycles what its slot does not hold", Stage.makes_checkpoint),
    (rf"{_A} is {_A} promoted (after|before) {_R}", Stage.promoted),
    (rf"{_A} is {_A} restored (after|before) {_R}", Stage.restored),
    (rf"{_S} (crashes|loses power|loses its disk)", Stage.crashes),
    (rf"{_S} flushes (slowly|quickly)", Stage.flushes),
    (rf"{_S} is copied", Stage.is_copied),
    (rf"{_S} comes back as it was copied", Stage.comes_back),
    (rf"{_S} exchanges its folder", Stage.exchanges_folder),
    (rf"{_P} changes the members to {_SS}", Stage.changes_members),
    (rf"{_S} dies after (\w+)", Stage.dies_after),
    (rf"{_S} starts", Stage.safekeeper_starts),
    (rf"operator rebootstraps over {_SS}", Stage.rebootstraps),
    (rf"operator undoes the rebootstrap over {_SS} as {_S} keeps it", Stage.undoes),
    (rf"operator fails to undo the rebootstrap over {_SS} as {_S} keeps it", Stage.fails_to_undo),
    (rf"{_STANDBY} streams from {_S}", Stage.streams_from),
    (rf"{_STANDBY} leaves", Stage.leaves),
    (rf"(D\d) has received what {_A} wrote up to {_R}, has replayed {_R}, and shows no more", Stage.has_received),
    (r"operator (fails|cannot fail) over(?: to ([RD]\d))?", Stage.fails_over),
    (r"remote_apply waits for (.+)", Stage.waits_for),
    (r"the safekeepers archive", Stage.archives),
    (rf"{_SS} removes? old WAL", Stage.remove),
    (rf"{_RR} (?:is|are) given up", Stage.gives_up),
    (r"histories keep (\d+) terms", Stage.keep_terms),
    (r"there are (\d+) safekeepers", Stage.adds_safekeepers),
    (r"members pull WAL from each other", Stage.lets_members_pull),
    (r"proxies win tail terms after ([\d.]+) s", Stage.lets_win_tails),
    (r"run ([\d.]+) s", Stage.runs),
    (r"until (.+)", Stage.until),
    (r"expect (.+)", Stage.expect),
    (rf"everything converges on {_A}", Stage.converges),
]
_CONDITIONS: list[tuple[str, Callable[..., bool]]] = [
    (rf"{_P} leads", Stage.leads),
    (rf"{_P} does not lead", lambda stage, name: not stage.leads(name)),
    (rf"{_P} is refused", lambda stage, name: stage.proxy(name).refusal is not None),
    (rf"{_P} runs", lambda stage, name: stage.proxy(name).proposer is not None),
    (rf"{_P} has greeted {_SS}", Stage.has_greeted),
    (rf"{_P} bootstraps", Stage.bootstraps),
    (rf"{_P} asks for votes", Stage.asks_for_votes),
    (rf"{_P} refuses {_SS}", Stage.refuses),
    (rf"{_P} is at term (\d+)", Stage.is_at_term),
    (rf"{_P} puts {_A} aside", Stage.puts_aside),
    (rf"{_P} streams {_A}", Stage.streams),
    (rf"{_P} has {_SS} for its members", Stage.has_members),
    (rf"{_P} changes its members", lambda stage, name: stage.proxy(name).changes_members),
    (rf"{_P} has the vote of {_S}", Stage.has_vote),
    (rf"{_RR} (?:is|are) committed", Stage.committed),
    (rf"{_RR} (?:is|are) acknowledged", Stage.acknowledged),
    (rf"{_RR} (?:is|are) not acknowledged", Stage.unacknowledged),
    (rf"{_RR} (?:is|are) applied", Stage.applied),
    (rf"{_RR} (?:is|are) archived", Stage.are_archived),
    (rf"{_S} archives", Stage.is_archiver),
    (rf"{_RR} (?:is|are) not applied", Stage.unapplied),
    (rf"{_STANDBY} has replayed {_RR}", Stage.replayed),
    (rf"readers of {_SS} are on timeline (\d+)", Stage.on_timeline),
    (rf"{_SS} holds? {_RR}", Stage.hold),
    (rf"{_SS} lacks? {_RR}", Stage.lack),
]


def play(path: Path) -> Stage:
    """Replay a scenario; return the stage as it is at the end.

    Raises:
        ScenarioFailed: a line failed, or its condition does not hold.
        SimulationFailed: an invariant does not hold.
    """
    stage = Stage()
    for number, text in enumerate(path.read_text().splitlines(), 1):
        command = text.split("#")[0].strip()
        if command:
            try:
                perform(stage, command)
            except ScenarioFailed as failed:
                raise ScenarioFailed(f"{path.name}:{number}: {failed}") from failed
            except Violation as violation:
                raise SimulationFailed(violation, stage.trace()) from violation
    stage.check_all()
    return stage


def perform(stage: Stage, command: str) -> None:
    """Carry out one line."""
    for pattern, do in _COMMANDS:
        match = re.fullmatch(pattern, command)
        if match is not None:
            do(stage, *match.groups())
            return
    raise ScenarioFailed(f"no such command: {command!r}")
