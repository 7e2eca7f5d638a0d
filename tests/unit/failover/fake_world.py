"""Safekeepers and servers that do what a test says, in place of real ones."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from safekeeper.base.errors import WalproxyError
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import AcceptorGreeting, Elected
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.failover.looks import END_LSN, SYSTEM, greeting
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd
from walproxy.failover.sealer import NotSealed
from walproxy.failover.survey import Survey
from walproxy.proposer.purpose import Purpose

MEMBERS = Membership(1, tuple(Member(i, str(i) * 32) for i in (1, 2, 3)))


class FakeRun:
    """The terms of one attempt.

    Attributes:
        lost: why the last one is not led on, "" if it is.
    """

    def __init__(self, world: "FakeWorld", takeover: bool) -> None:
        self._world = world
        self._takeover = takeover
        self._elected: Elected | None = None
        self.given_before: int | None = None
        self.lost = ""

    @property
    def elected(self) -> Elected:
        assert self._elected is not None
        return self._elected

    async def pursue(self, purpose: Purpose) -> None:
        world, log = self._world, self._world.log
        world.purposes.append((purpose, self._takeover))
        if world.not_sealed:
            raise world.not_sealed.pop(0)
        last = HistoryEntry(log["last_term"], 0, log["log_tli"], floor=log["floor"], given=log["given"])
        obstacle = purpose.obstacle(last, log["log_tli"], is_own=log["last_term"] in world.own_terms)
        if obstacle is not None:
            raise NotSealed(obstacle.reason, log_tli=obstacle.log_tli)
        if self.given_before is None:
            self.given_before = last.given
        log["floor"], log["given"] = purpose.numbers(last)
        log["last_term"] += 1
        world.own_terms.add(log["last_term"])
        entry = HistoryEntry(log["last_term"], END_LSN, log["log_tli"], floor=log["floor"], given=log["given"])
        leader_id = LeaderId(entry.term, "sealer")
        self._elected = Elected(leader_id, "c" * 32, SYSTEM, 1 << 20, 180000, MEMBERS, (entry,), (), 0, 0, END_LSN)
        self._takeover, self.lost = False, ""

    def check(self) -> None:
        if self.lost:
            raise NotSealed(self.lost)


class Screen:
    """What was shown."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.waits: list[tuple[str, int]] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def waiting(self, text: str, missing_bytes: int = 0) -> None:
        self.waits.append((text, missing_bytes))


class FakeWorld:
    """A log on one timeline, and servers, as a failover sees them.

    Attributes:
        looks_of: the servers, by name.
        log: the fields of the members' greetings.
        purposes: those of the terms that were asked for, with whether a living leader was to be deposed.
        run: the last one that sealed.
        own_terms: those that were won.
        steps: what to do at each next look at the servers.
        not_sealed: the errors of the next terms.
        promotes: what becomes of a standby that is promoted.
        files: the numbers of which history files were placed.
        histories: the highest number of which a standby has one.
        serves: a proxy takes a server that was promoted.
        problem, problem_of_files: of the next promotion, and of the next history file.
    """

    def __init__(self, *looks: HostLook, **log: Any) -> None:
        self.looks_of = {look.name: look for look in looks}
        self.log: dict[str, Any] = {"log_tli": 1, "floor": 0, "given": 1, "last_term": 4, "commit_lsn": END_LSN, **log}
        self.is_led = False
        self.purposes: list[tuple[Purpose, bool]] = []
        self.run: FakeRun | None = None
        self.own_terms: set[int] = set()
        self.steps: list[Callable[[], None]] = []
        self.not_sealed: list[WalproxyError] = []
        self.promotes: Callable[[HostLook], HostLook] = self._primary
        self.files: list[int] = []
        self.histories = 0
        self.serves = True
        self.problem: WalproxyError | None = None
        self.problem_of_files: WalproxyError | None = None
        self.replying = True
        self.is_closed = False

    def change(self, name: str, **changes: Any) -> None:
        """Let a server change."""
        self.looks_of[name] = replace(self.looks_of[name], **changes)

    def _primary(self, look: HostLook) -> HostLook:
        """Promote to the first number without a history file, as PostgreSQL does."""
        tli = look.tli + 1
        while tli in self.files:
            tli += 1
        return replace(look, in_recovery=False, tli=tli, replayed_lsn=look.reached_lsn)

    # What a failover asks for.

    async def survey(self) -> Survey:
        return Survey(greeting(**self.log), 3, 3, True, self.is_led, tuple(self.looks_of.values()))

    async def looks(self) -> tuple[HostLook, ...]:
        if self.steps:
            self.steps.pop(0)()
        return tuple(self.looks_of.values())

    async def greetings(self) -> tuple[dict[int, AcceptorGreeting], str]:
        if not self.replying:
            return {}, "safekeeper 1 is down"
        for look in self.looks_of.values():
            if self.serves and look.in_recovery is False and look.tli > max(self.log["floor"], self.log["log_tli"]):
                given = max(self.log["given"], look.tli)
                self.log.update(log_tli=look.tli, commit_lsn=look.replayed_lsn + 8, given=given)
                self.log["last_term"] += 1
                self.serves = False
        return {1: greeting(1, **self.log)}, ""

    @asynccontextmanager
    async def sealing(self, *, takeover: bool, waiting: Callable[[str], None]) -> AsyncIterator[FakeRun]:
        self.run = FakeRun(self, takeover)
        yield self.run

    async def log_end(self, elected: Elected) -> LogEnd:
        entry = elected.history[-1]
        return LogEnd(SYSTEM, entry.tli, (), END_LSN, END_LSN, entry.given)

    async def highest_history(self, name: str) -> int:
        return self.histories

    async def place_histories(self, name: str, tlis: range) -> None:
        if self.problem_of_files is not None:
            raise self.problem_of_files
        self.files.extend(tlis)

    async def request_promotion(self, name: str, end: LogEnd) -> None:
        if self.problem is not None:
            raise self.problem
        self.looks_of[name] = self.promotes(self.looks_of[name])

    async def close(self) -> None:
        self.is_closed = True
