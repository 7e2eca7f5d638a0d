"""Round after round: a fault of the primary's host, its end, and the checks once all is well again.

The clients and the probes run all the time. The gap of a round is the longest time without an acknowledgement to a
client, from just before the fault until all was well. That of the servers has the probes' acknowledgements, too: the
difference is the time that the clients need to find the new primary.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from safekeeper.base.timelines import Lineage, parse_timeline_history, timeline_history_name
from walproxy.lab.failover import checks, discarded, wal_truth
from walproxy.lab.failover.clients import LISTS, SLOW_LOCAL_RATE, list_clients, local_writer, probe, row_clients
from walproxy.lab.failover.host import Host
from walproxy.lab.failover.injector import Injector
from walproxy.lab.failover.plan import KILL_AGENT, POWER_LOSS, SWITCHOVER, PlannedRound
from walproxy.lab.failover.results import RoundResult
from walproxy.lab.failover.rows import CREATE_TABLE, Attempt, Book, RowIds, row_ids
from walproxy.lab.failover.site import Health, NotWell, Site, remove
from walproxy.lab.failover.wal_keeper import KeptWal, WalKeeper
from walproxy.lab.list_append.workload import CONFIRM
from walproxy.lab.list_append.workload import CREATE_TABLE as CREATE_LISTS
from walproxy.lab.load.clients import Clients
from walproxy.lab.torture.aftermath import check_tables

Show = Callable[[str], None]

_WELL_WITHIN_S = 120.0
_COMMITS_WITHIN_S = 60.0
_GAP_MARGIN_S = 0.2
_STAYS_WELL_S = 1.0
_STEP_S = 0.1


class Rounds:
    """The rounds of a run, on a site that was started.

    Attributes:
        results: of the rounds that have ended.
        clients: the load.
        list_clients: those that append to lists and read them.

    Args:
        show: takes a line for each round.
        folder: for copies of WAL that is being compared.
        dead_after_s: after which time without the primary another server is promoted.
        seed: of the transactions on lists.
    """

    def __init__(self, site: Site, show: Show, folder: Path, dead_after_s: float, seed: int) -> None:
        self._site = site
        self._dead_after_s = dead_after_s
        self._show = show
        self._rows = RowIds()
        self._direct = Book()  # of probes and local writers
        self._injector = Injector(site, dead_after_s)
        self._probes = [probe(host, self._rows, self._direct) for host in site.hosts.values()]
        self._keeper = WalKeeper(list(site.hosts.values()), folder, site.segment_size)
        self._seen = 0, 0  # how many attempts of clients and of direct writers earlier rounds have had
        self._reports = {path for host in site.hosts.values() for path in self._new_reports(host, set())}
        places = [host.place for host in site.hosts.values()]
        self.clients = row_clients(places, self._rows)
        self.list_clients = list_clients(places, seed, time.monotonic())
        self.results: list[RoundResult] = []

    def start(self) -> None:
        """Start the load, and wait for its first commits.

        Raises:
            WalproxyError: none is acknowledged.
        """
        leader = self._site.wait_for_leader()
        leader.execute(CREATE_TABLE)
        leader.execute(CREATE_LISTS)
        if self._site.manager.has_discarded_reports:
            self._keeper.start()
        for clients in self._all_clients():
            clients.start()
        self._wait_for_commit(time.monotonic())

    def stop(self) -> None:
        """End the load."""
        for clients in self._all_clients():
            clients.stop()
        if self._site.manager.has_discarded_reports:
            self._keeper.stop()

    def play(self, planned: PlannedRound) -> RoundResult:
        """Play one round, check it, and return what it came to.

        Raises:
            WalproxyError: not all is well again in time, or the harness itself has failed.
        """
        before = self._settle()
        at = datetime.now()
        self._show(f"round {planned.number} at {at:%H:%M:%S.%f}: {planned}, primary {before.leader.name}")
        if planned.kind == SWITCHOVER:
            struck_at, violations = self._switch_over(planned, before)
        else:
            struck_at, violations = self._strike(planned, before), []
        undone_at = time.monotonic()
        after = self._settle()
        begin, end = struck_at - _GAP_MARGIN_S, time.monotonic()
        probed = (each.ended_at for each in _promised(self._direct.operations[self._seen[1] :]))
        result = RoundResult(
            number=planned.number,
            kind=planned.kind,
            fault=str(planned),
            at=at.isoformat(timespec="milliseconds"),
            old=before.leader.name,
            new=after.leader.name,
            old_tli=before.tli,
            new_tli=after.tli,
            gap_s=round(self.clients.history.longest_pause_s(begin, end), 3),
            servers_gap_s=round(self.clients.history.longest_pause_s(begin, end, probed), 3),
            resumed_s=round(self.clients.history.first_after(undone_at) - undone_at, 3),
            well_s=round(end - undone_at, 3),
            violations=tuple(violations),
        )
        if result.has_changed:
            result = replace(result, recorded_s=self._site.recorded_s())
        if planned.takes_away(self._dead_after_s) and not result.has_changed:
            missed = f"{before.leader.name} was away for {planned.lasts_s:.1f} s, and no other server was promoted"
            result = replace(result, violations=(*result.violations, missed))
        result = self._check(result, after)
        self.results.append(result)
        self._show(_described(result))
        return result

    def check_all(self) -> list[str]:
        """Compare everything at the end: each acknowledged row of the run, on every server.

        Raises:
            WalproxyError: not all is well in time.
        """
        self._settle()
        attempts = [*self.clients.history.operations, *self._direct.operations]
        violations = checks.find_two_servers(_synchronous(attempts))
        violations += checks.find_two_writers_of_a_timeline(attempts)
        for host in self._site.hosts.values():
            there = row_ids(host)
            violations += [f"at the end, {host.name}: {line}" for line in checks.find_lost(_promised(attempts), there)]
        return violations

    def check_lists(self) -> list[str]:
        """Return the anomalies of the transactions on lists, after `stop`.

        Raises:
            WalproxyError: not all is well in time.
        """
        leader = self._site.wait_until_well(_WELL_WITHIN_S).leader
        found = asyncio.run(check_tables(leader.place.local_conninfo, self.list_clients.tries(), LISTS))
        leader.execute(CONFIRM)  # Acknowledged only if it was the primary.
        return [f"lists: {each.rule}: {each.message}" for each in found]

    def _all_clients(self) -> list[Clients[Any]]:
        return [self.clients, self.list_clients, *self._probes]

    # The fault.

    def _strike(self, planned: PlannedRound, before: Health) -> float:
        """Let the fault begin and end; return when it began."""
        host = before.leader
        writer = None
        if planned.kind not in (KILL_AGENT, POWER_LOSS):
            seen = len(self._direct.operations)
            writer = local_writer(host, self._rows, self._direct)
            writer.start()
            if not self._direct.wait_for(lambda: _has_local(self._direct.operations[seen:]), _COMMITS_WITHIN_S):
                raise NotWell(f"{host.name} takes no local writes: {self._direct.problem}")
        struck_at = self._injector.strike(planned, host)
        if writer is not None:
            writer.set_rate(SLOW_LOCAL_RATE)
        if planned.then_after_s:
            self._wait(planned.then_after_s)
            self._injector.strike_again(planned)
        self._wait(planned.lasts_s - planned.then_after_s)
        self._injector.undo(planned, host)
        if writer is not None:
            writer.stop(0.0, hang_up=False)
        return struck_at

    def _switch_over(self, planned: PlannedRound, before: Health) -> tuple[float, list[str]]:
        """Run the command of a switchover; return when it began, and its violations."""
        others = [host for host in self._site.hosts.values() if host is not before.leader]
        to = others[planned.other % len(others)]
        begun_at = time.monotonic()
        problem = self._site.switch_over(to)
        if not problem and not any(host.is_leader() for host in others):
            problem = f"no other host leads after the switchover to {to.name}"
        return begun_at, [problem] if problem else []

    def _settle(self) -> Health:
        """Wait until all is well, commits go on, and it stays so.

        Raises:
            WalproxyError: not in time.
        """
        deadline = time.monotonic() + _WELL_WITHIN_S
        while True:
            found = self._site.wait_until_well(max(0.0, deadline - time.monotonic()))
            self._wait_for_commit(time.monotonic())
            self._wait(_STAYS_WELL_S)
            again = self._site.wait_until_well(max(0.0, deadline - time.monotonic()))
            if (found.leader, found.tli) == (again.leader, again.tli):
                return again

    def _wait_for_commit(self, since: float) -> None:
        self.clients.wait_for_commit(since, _COMMITS_WITHIN_S)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            for clients in self._all_clients():
                clients.check()
            time.sleep(min(left_s, _STEP_S))

    # The checks.

    def _check(self, result: RoundResult, after: Health) -> RoundResult:
        """Return the result with the checks of this round."""
        clients, direct = self.clients.history.operations, self._direct.operations
        attempts = [*clients[self._seen[0] :], *direct[self._seen[1] :]]
        seen = len(clients), len(direct)
        there = row_ids(after.leader, min((attempt.transaction.id for attempt in attempts), default=0))
        violations = [*result.violations]
        violations += [f"{after.leader.name}: {line}" for line in checks.find_lost(_promised(attempts), there)]
        violations += checks.find_two_servers(_synchronous(attempts))
        violations += checks.find_two_writers_of_a_timeline(attempts)
        found = compared = not_compared = 0
        for name, kept in self._keeper.take().items() if self._site.manager.has_discarded_reports else ():
            host = self._site.hosts[name]
            reports = self._new_reports(host, self._reports)
            self._reports.update(reports)
            if host is not after.leader:
                lines, count = self._compare(host, kept, reports, attempts, after, there)
                compared += count is not None
                not_compared += count is None
                found += count or 0
                violations += [f"{name}: {line}" for line in lines]
            if not violations:
                remove(kept.folder)
        self._seen = seen
        return replace(
            result,
            acknowledged=sum(1 for _ in _promised(attempts)),
            discarded=found,
            compared=compared,
            not_compared=not_compared,
            violations=tuple(violations),
        )

    def _compare(
        self,
        host: Host,
        kept: KeptWal,
        reports: Sequence[Path],
        attempts: list[Attempt],
        after: Health,
        there: set[int],
    ) -> tuple[list[str], int | None]:
        """Compare the report of an old primary with its WAL.

        Returns:
            the violations, and how many transactions its WAL has and the new primary lacks: None if it is not known.
        """
        if not kept.is_valid:
            return [], None
        tli = wal_truth.newest_tli(kept.folder)
        stretches = wal_truth.stretches_after_fork(
            tli, wal_truth.lineage_in(kept.folder, tli), after.tli, _lineage(after.leader, after.tli)
        )
        pg_waldump = self._site.binaries.path("pg_waldump")
        true = [
            (each, wal_truth.read_commits(pg_waldump, kept.folder, each, self._site.segment_size)) for each in stretches
        ]
        commits = [commit for _, found in true for commit in found]
        violations = discarded.contradictions(true, attempts, host.name, there)
        # An attempt at a rejoin that failed may have left one, and the next one another.
        read = [discarded.read_report(path) for path in reports]
        reported = {commit for report in read for commit in report.commits}
        violations += discarded.differences(commits, sorted(reported))
        for report in read:
            violations += discarded.find_wrong_rows(report, stretches, attempts, host.name)
        return violations, len(commits)

    @staticmethod
    def _new_reports(host: Host, known: set[Path]) -> list[Path]:
        return discarded.new_reports(host.place.discarded_directory, known)


def _has_local(attempts: Iterable[Attempt]) -> bool:
    return any(attempt.transaction.writer == "local" for attempt in attempts)


def _synchronous(attempts: Iterable[Attempt]) -> Iterator[Attempt]:
    """Yield those that wait for the quorum."""
    return (attempt for attempt in attempts if attempt.transaction.writer != "local")


def _promised(attempts: Iterable[Attempt]) -> Iterator[Attempt]:
    """Yield those whose acknowledgement is a promise."""
    return (attempt for attempt in _synchronous(attempts) if attempt.outcome == "ok")


def _lineage(host: Host, tli: int) -> Lineage:
    """Return the ancestors of a primary's timeline."""
    if tli == 1:
        return ()
    [(content,)] = host.execute(f"SELECT pg_read_binary_file('pg_wal/{timeline_history_name(tli)}')")
    return parse_timeline_history(tli, content)


def _described(result: RoundResult) -> str:
    change = f"{result.old} -> {result.new}, timeline {result.new_tli}" if result.has_changed else "no change"
    gaps = f"gap {result.gap_s:.2f} s, servers {result.servers_gap_s:.2f} s"
    lines = [
        f"  {change}: {gaps}, commits {result.resumed_s:.2f} s and all well {result.well_s:.1f} s after the fault, "
        f"{result.acknowledged} acknowledged, {result.discarded} discarded",
        *(f"  VIOLATION {line}" for line in result.violations),
    ]
    return "\n".join(lines)
