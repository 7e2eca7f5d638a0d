"""What the proxy logs of its primary's settings: commits that do not wait, and subscribers that are ahead."""

import logging
from dataclasses import replace

import pytest

from safekeeper.base.logs import event_of
from tests.unit.event_loop import on_the_loop
from walproxy.postgres.problems import LogicalSubscribers, PrimaryProblem, ProblemKind, warning_of_subscribers
from walproxy.postgres.sessions import SqlSessions
from walproxy.proxy.gate import Exemption, GateFacts, GateState, Walsender
from walproxy.proxy.primary_query import PrimaryAnswer
from walproxy.proxy.primary_watch import (
    CHECK_AGAIN_MAX_S,
    CHECK_INTERVAL_S,
    OLD_S,
    WARN_AGAIN_AFTER_S,
    PrimaryWatch,
)

AHEAD = "logical subscribers can receive commits before the quorum has them: "
NONE = LogicalSubscribers({}, None)
GATED = GateFacts("walproxy", "on", (Walsender("walproxy", is_ours=True, is_chosen=True),), role="rep")
OLD = LogicalSubscribers({"lake": False}, None)


def test_before_17_nothing_holds_a_logical_walsender_back() -> None:
    assert warning_of_subscribers(NONE, "walproxy") is None
    assert warning_of_subscribers(OLD, "walproxy") == (
        'walsenders stream from slot "lake", and PostgreSQL before 17 cannot hold them back (see docs/safety)'
    )


@pytest.mark.parametrize(("setting", "wanted"), [("", "walproxy"), ('db2, "db3"', "db2, db3, walproxy")])
def test_from_17_on_the_setting_must_name_the_slot_of_the_proxy(setting: str, wanted: str) -> None:
    assert warning_of_subscribers(LogicalSubscribers({"a": True, "b": True}, setting), "walproxy") == (
        f'walsenders stream from slot "a", "b", and synchronized_standby_slots is \'{setting}\'; run '
        f"ALTER SYSTEM SET synchronized_standby_slots = '{wanted}' and SELECT pg_reload_conf()"
    )
    assert warning_of_subscribers(LogicalSubscribers({}, setting), "walproxy") is None


def test_the_setting_holds_slots_with_failover_only() -> None:
    held = LogicalSubscribers({"a": True}, 'db2,"walproxy"')
    assert warning_of_subscribers(held, "walproxy") is None
    assert warning_of_subscribers(LogicalSubscribers({"a": True, "b": False}, "walproxy"), "walproxy") == (
        'slot "b" does not have failover = true; disable the subscription, run '
        "ALTER SUBSCRIPTION ... SET (failover = true), and enable it again"
    )


def test_many_slots_are_not_all_listed() -> None:
    many = LogicalSubscribers({f"s{number}": False for number in range(8)}, None)
    assert '"s4" and 3 more, and' in (warning_of_subscribers(many, "walproxy") or "")


class Watched:
    """A proxy, the answers of its primary, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.now = 100.0
        self.conninfo: str | None = "host=db1"
        self.checks = 0
        self.answer: PrimaryAnswer | PrimaryProblem = PrimaryAnswer(GATED, NONE, 12)
        self.watch = PrimaryWatch(lambda: self.conninfo, "walproxy", "walproxy", lambda: self.now)
        self.caplog = caplog
        monkeypatch.setattr("walproxy.proxy.primary_watch.read_primary", self._read)

    async def _read(self, sessions: SqlSessions, slot: str, *, timeout_s: float) -> PrimaryAnswer:
        assert (sessions.conninfo, slot) == (self.conninfo, "walproxy")
        self.checks += 1
        if isinstance(self.answer, PrimaryProblem):
            raise self.answer
        return self.answer

    def has(self, gate: GateFacts = GATED, subscribers: LogicalSubscribers = NONE) -> None:
        """Let the primary have these."""
        self.answer = PrimaryAnswer(gate, subscribers, 12)

    async def after(self, seconds: float) -> list[str]:
        """Let time pass; return what was logged."""
        self.caplog.clear()
        self.now += seconds
        await self.watch.check_if_due()
        return [f"{record.levelname} {record.getMessage()}" for record in self.caplog.records]

    def events(self) -> list[str]:
        """Return the kinds of the events among the lines."""
        return [event.kind for record in self.caplog.records if (event := event_of(record)) is not None]

    @property
    def state(self) -> GateState | None:
        gate = self.watch.gate()
        return gate.state if gate is not None else None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(monkeypatch, caplog)


@on_the_loop
async def test_commits_that_no_longer_wait_are_an_error_and_an_event_once_and_so_is_the_end(watched: Watched) -> None:
    assert (await watched.after(0), watched.state) == ([], GateState.GATED)
    assert await watched.after(CHECK_INTERVAL_S / 2) == [] and watched.checks == 1
    watched.has(replace(GATED, standby_names=""))
    (line,) = await watched.after(CHECK_INTERVAL_S)
    assert line.startswith(
        "ERROR commits do not wait for the quorum: synchronous_standby_names is ''; run ALTER SYSTEM"
    )
    assert (watched.state, watched.events()) == (GateState.NOT_GATED, ["gate-lost"])
    assert await watched.after(CHECK_INTERVAL_S) == []
    assert len(await watched.after(WARN_AGAIN_AFTER_S)) == 1 and watched.events() == []
    watched.has()
    assert await watched.after(CHECK_INTERVAL_S) == ["INFO commits wait for the quorum again"]
    assert (watched.state, watched.events()) == (GateState.GATED, ["gate-back"])


@on_the_loop
async def test_commits_that_hang_may_pass_or_are_exempt_are_logged_each_in_its_words(watched: Watched) -> None:
    watched.has(replace(GATED, standby_names="FIRST 2 (walproxy, b)"))
    (line,) = await watched.after(0)
    assert line.startswith("ERROR commits wait for another standby: ") and watched.events() == ["gate-blocked"]
    watched.has(replace(GATED, standby_names="walproxy, b"))
    (line,) = await watched.after(CHECK_INTERVAL_S)
    assert line.startswith("WARNING commits may return without the quorum: ") and watched.events() == []
    watched.has(replace(GATED, exemptions=(Exemption("etl", "", "off"),)))
    first, second = await watched.after(CHECK_INTERVAL_S)
    assert first == "WARNING commits of role etl (off) do not wait: synchronous_commit is set for them"
    assert second.startswith("INFO commits wait for the quorum again")
    watched.has()
    (line,) = await watched.after(CHECK_INTERVAL_S)
    assert line.startswith("INFO all commits wait again")


@pytest.mark.parametrize("before", ["walproxy, b", "FIRST 2 (walproxy, b)"])
@on_the_loop
async def test_commits_that_waited_and_could_wait_for_others_too_are_an_error_when_they_no_longer_wait(
    watched: Watched, before: str
) -> None:
    watched.has(replace(GATED, standby_names=before))
    await watched.after(0)
    assert watched.state is GateState.WITH_OTHERS
    watched.has(replace(GATED, standby_names=""))
    (line,) = await watched.after(CHECK_INTERVAL_S)
    assert line.startswith("ERROR commits do not wait for the quorum: ") and watched.events() == ["gate-lost"]
    watched.has()
    assert await watched.after(CHECK_INTERVAL_S) == ["INFO commits wait for the quorum again"]
    assert watched.events() == ["gate-back"]


@on_the_loop
async def test_a_result_that_grows_old_is_unknown_and_a_role_that_may_not_connect_is_asked_rarely(
    watched: Watched,
) -> None:
    await watched.after(0)
    assert watched.watch.waiting_sessions() == (12, "")
    watched.answer = PrimaryProblem(ProblemKind.NO_LOGIN, "no pg_hba.conf entry")
    assert (await watched.after(CHECK_INTERVAL_S), watched.state) == ([], GateState.GATED)
    (line,) = await watched.after(OLD_S)
    assert line == (
        "WARNING whether commits wait for the quorum is unknown: it cannot be checked: no pg_hba.conf entry"
    )
    assert watched.state is GateState.UNKNOWN and watched.watch.waiting_sessions() == (None, "no pg_hba.conf entry")
    for _ in range(20):
        await watched.after(CHECK_AGAIN_MAX_S / 4)
    before = watched.checks
    for _ in range(8):
        assert await watched.after(CHECK_AGAIN_MAX_S / 4) == []
    assert watched.checks - before == 2
    watched.has()
    assert await watched.after(CHECK_AGAIN_MAX_S) == ["INFO whether commits wait for the quorum is known again"]


@on_the_loop
async def test_nothing_is_known_of_another_primary_without_one_and_of_a_spares(watched: Watched) -> None:
    watched.has(replace(GATED, standby_names=""))
    (line,) = await watched.after(0)
    assert line.startswith("WARNING commits do not wait") and not watched.events(), "the setting comes later"
    watched.conninfo = None
    assert (await watched.after(1), watched.state, watched.checks) == ([], None, 1)
    assert watched.watch.waiting_sessions() == (None, "no primary is connected")
    watched.conninfo, watched.answer = "host=db2", PrimaryProblem(ProblemKind.LOST, "starting up")
    assert (await watched.after(1), watched.state) == ([], None)
    watched.has()
    assert await watched.after(CHECK_INTERVAL_S) == ["INFO commits wait for the quorum again"]


@on_the_loop
async def test_the_count_of_sessions_takes_a_right(watched: Watched) -> None:
    watched.answer = PrimaryAnswer(GATED, NONE, None)
    await watched.after(0)
    count, problem = watched.watch.waiting_sessions()
    assert count is None and problem.endswith("GRANT pg_monitor TO rep")


@on_the_loop
async def test_subscribers_are_warned_of_again_after_an_hour_and_their_end_is_logged(watched: Watched) -> None:
    watched.has(subscribers=OLD)
    (line,) = await watched.after(0)
    assert line.startswith(f"WARNING {AHEAD}")
    assert await watched.after(CHECK_INTERVAL_S) == [] and watched.checks == 2
    assert len(await watched.after(WARN_AGAIN_AFTER_S)) == 1
    watched.has()
    (line,) = await watched.after(CHECK_INTERVAL_S)
    assert line.startswith("INFO logical subscribers no longer receive commits")
