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
from walproxy.failover.world import Sealed
from walproxy.proposer.seal import Seal

MEMBERS = Membership(1, tuple(Member(i, str(i) * 32) for i in (1, 2, 3)))


class FakeTerm:
    """A term that seals."""

    def __init__(self, elected: Elected) -> None:
        self.elected = elected
        self.lost = ""

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
        seals: those that were asked for, with whether a living leader was to be deposed.
        term: the last term that sealed.
        steps: what to do at each next look at the servers.
        not_sealed: the errors of the next seals.
        promotes: what becomes of a standby that is promoted.
        reserved: the numbers that were reserved.
        serves: a proxy takes a server that is on the first number above the floor.
        problem: of the next change of a server.
    """

    def __init__(self, *looks: HostLook, **log: Any) -> None:
        self.looks_of = {look.name: look for look in looks}
        self.log: dict[str, Any] = {"log_tli": 1, "floor": 0, "last_term": 4, "commit_lsn": END_LSN, **log}
        self.is_led = False
        self.seals: list[tuple[Seal, bool]] = []
        self.term: FakeTerm | None = None
        self.steps: list[Callable[[], None]] = []
        self.not_sealed: list[WalproxyError] = []
        self.promotes: Callable[[HostLook], HostLook] = self._primary
        self.reserved: list[int] = []
        self.serves = True
        self.problem: WalproxyError | None = None
        self.replying = True
        self.is_closed = False

    def change(self, name: str, **changes: Any) -> None:
        """Let a server change."""
        self.looks_of[name] = replace(self.looks_of[name], **changes)

    def _primary(self, look: HostLook) -> HostLook:
        """Promote to the first number that is not reserved, as PostgreSQL does."""
        tli = look.tli + 1
        while tli in self.reserved:
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
            if self.serves and look.in_recovery is False and look.tli == self.log["floor"] + 1 > 1:
                self.log.update(log_tli=look.tli, commit_lsn=look.replayed_lsn + 8)
                self.log["last_term"] += 1
                self.serves = False
        return {1: greeting(1, **self.log)}, ""

    @asynccontextmanager
    async def sealed(self, seal: Seal, *, takeover: bool, waiting: Callable[[str], None]) -> AsyncIterator[FakeTerm]:
        self.seals.append((seal, takeover))
        if self.not_sealed:
            raise self.not_sealed.pop(0)
        if seal.tli != self.log["log_tli"]:
            raise NotSealed("the log has gone on", log_tli=self.log["log_tli"])
        last = HistoryEntry(self.log["last_term"], 0, seal.tli, floor=self.log["floor"])
        self.log["floor"] = seal.floor((last,))
        self.log["last_term"] += 1
        entry = HistoryEntry(self.log["last_term"], END_LSN, seal.tli, floor=self.log["floor"])
        leader_id = LeaderId(entry.term, "sealer")
        self.term = FakeTerm(
            Elected(leader_id, "c" * 32, SYSTEM, 1 << 20, 180000, MEMBERS, (entry,), (), 0, 0, END_LSN)
        )
        yield self.term

    async def log_end(self, sealed: Sealed) -> LogEnd:
        entry = sealed.elected.history[-1]
        return LogEnd(SYSTEM, entry.tli, (), END_LSN, END_LSN, entry.floor)

    async def reserve(self, name: str, tlis: range) -> None:
        if self.problem is not None:
            raise self.problem
        self.reserved.extend(tlis)

    async def request_promotion(self, name: str, end: LogEnd) -> None:
        if self.problem is not None:
            raise self.problem
        self.looks_of[name] = self.promotes(self.looks_of[name])

    async def close(self) -> None:
        self.is_closed = True
