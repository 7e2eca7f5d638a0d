"""Logical subscribers that can receive commits before the quorum has them are warned of, with what holds them back."""

import logging

import pytest

from tests.unit.event_loop import on_the_loop
from walproxy.postgres.problems import LogicalSubscribers, PrimaryProblem, ProblemKind, warning_of_subscribers
from walproxy.proxy.subscriber_watch import (
    CHECK_AGAIN_AFTER_FAILURE_S,
    CHECK_INTERVAL_S,
    WARN_AGAIN_AFTER_S,
    SubscriberWatch,
)

AHEAD = "logical subscribers can receive commits before the quorum has them: "
NONE = LogicalSubscribers({}, None)
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
    """A proxy whose primary has subscribers, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.now = 0.0
        self.conninfo: str | None = "host=db1"
        self.checks = 0
        self.subscribers: LogicalSubscribers | PrimaryProblem = OLD
        self.watch = SubscriberWatch(self, "walproxy", lambda: self.now)
        self._caplog = caplog
        monkeypatch.setattr("walproxy.proxy.subscriber_watch.read_logical_subscribers", self._read)

    def streamed_conninfo(self) -> str | None:
        return self.conninfo

    async def _read(self, conninfo: str, *, timeout_s: float) -> LogicalSubscribers:
        self.checks += 1
        if isinstance(self.subscribers, PrimaryProblem):
            raise self.subscribers
        return self.subscribers

    async def after(self, seconds: float) -> list[str]:
        """Let time pass; return what was logged."""
        self._caplog.clear()
        self.now += seconds
        await self.watch.check_if_due()
        return [f"{record.levelname} {record.getMessage()}"[: 8 + len(AHEAD)] for record in self._caplog.records]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(monkeypatch, caplog)


@on_the_loop
async def test_it_is_warned_of_when_wal_streams_and_again_and_its_end_is_logged(watched: Watched) -> None:
    watched.conninfo = None
    assert await watched.after(1) == [] and watched.checks == 0
    watched.conninfo = "host=db1"
    assert await watched.after(1) == [f"WARNING {AHEAD}"]
    assert await watched.after(CHECK_INTERVAL_S / 2) == [] and watched.checks == 1
    assert await watched.after(CHECK_INTERVAL_S) == [] and watched.checks == 2
    assert await watched.after(WARN_AGAIN_AFTER_S) == [f"WARNING {AHEAD}"]
    watched.subscribers = NONE
    (line,) = await watched.after(CHECK_INTERVAL_S)
    assert line.startswith("INFO logical subscribers no longer receive commits")
    watched.subscribers, watched.conninfo = OLD, "host=db2"
    assert await watched.after(0) == [f"WARNING {AHEAD}"]


@on_the_loop
async def test_a_role_that_may_not_connect_is_logged_once_and_asked_rarely(watched: Watched) -> None:
    watched.subscribers = PrimaryProblem(ProblemKind.NO_LOGIN, "no pg_hba.conf entry")
    (line,) = await watched.after(1)
    assert line.startswith("INFO could not check the slots of logical subscribers: no pg_hba.conf")
    assert await watched.after(CHECK_INTERVAL_S) == [] and watched.checks == 1
    assert await watched.after(CHECK_AGAIN_AFTER_FAILURE_S) == [] and watched.checks == 2
