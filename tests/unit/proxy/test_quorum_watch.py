"""The loss of the quorum is an ERROR after a second and every minute, with what an operator asks first."""

import logging

import pytest

from safekeeper.base.logs import event_of
from walproxy.proxy.gate import Gate, GateState
from walproxy.proxy.quorum_watch import LOST_S, REPEAT_S, START_S, Attendance, QuorumWatch

WELL = Attendance(True, False, 3, 3, 2, {})
LOST = Attendance(False, False, 1, 3, 2, {2: "no room", 3: "could not connect"})
UNDECIDED = Attendance(None, False, 1, 3, 2, {2: "no room"})
SPARE = Attendance(False, True, 0, 3, 2, {})


class Watched:
    """A proxy whose members come and go, and the time."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.now = 100.0
        self.who = WELL
        self.sessions: tuple[int | None, str] = 12, ""
        self.state = GateState.GATED
        self.watch = QuorumWatch(self, lambda: self.now)
        self._caplog = caplog

    def attendance(self, now: float) -> Attendance:
        return self.who

    def waiting_sessions(self) -> tuple[int | None, str]:
        return self.sessions

    def gate(self) -> Gate | None:
        return Gate(self.state)

    def looks(self, who: Attendance, after_s: float = 0.1) -> list[str]:
        """Let time pass and look once; return what was logged."""
        self._caplog.clear()
        self.now += after_s
        self.who = who
        self.watch.look()
        return [f"{record.levelname} {record.getMessage()}" for record in self._caplog.records]


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(caplog)


def test_a_lost_quorum_is_an_error_after_a_second_and_every_minute_until_it_is_back(watched: Watched) -> None:
    watched.looks(WELL)
    assert watched.looks(LOST) == []
    assert watched.looks(LOST, LOST_S) == [
        "ERROR commits wait: no quorum for 1 s, 1 of 3 members take part, 2 are needed; waiting sessions: 12; "
        "missing: safekeeper 2: no room; safekeeper 3: could not connect"
    ]
    watched.sessions = 40, ""
    assert watched.looks(LOST, REPEAT_S - 0.2) == []
    (line,) = watched.looks(UNDECIDED, 0.3)
    assert line.startswith("ERROR commits wait: no quorum for 61 s") and "waiting sessions: 40;" in line
    watched.state = GateState.NOT_GATED
    (line,) = watched.looks(LOST, REPEAT_S)
    assert line.startswith("ERROR commits do not wait: no quorum for 121 s")
    assert watched.looks(WELL, 1.0) == ["INFO a quorum takes part again after 122.1 s"]
    assert watched.watch.lost_at is None


def test_safekeepers_that_are_starting_are_given_time(watched: Watched) -> None:
    assert watched.looks(LOST) == []
    assert watched.looks(WELL) == []
    watched.watch = QuorumWatch(watched, lambda: watched.now)
    assert watched.looks(LOST) == []
    assert len(watched.looks(LOST, START_S)) == 1


def test_a_quorum_that_is_back_within_a_second_was_only_slow(watched: Watched) -> None:
    watched.looks(WELL)
    assert watched.looks(LOST) == []
    assert watched.looks(LOST, LOST_S - 0.1) == []
    assert watched.looks(WELL) == []


def test_a_spare_and_an_election_are_no_loss(watched: Watched) -> None:
    watched.looks(WELL)
    assert watched.looks(SPARE) == watched.looks(UNDECIDED, 100.0) == []
    assert watched.watch.lost_at is None


def test_sessions_that_cannot_be_counted_are_unknown_and_the_reason_is_reported(watched: Watched) -> None:
    watched.looks(WELL)
    watched.sessions = None, "GRANT pg_monitor TO walproxy"
    watched.looks(LOST)
    (line,) = watched.looks(LOST, LOST_S)
    assert "waiting sessions: unknown (GRANT pg_monitor TO walproxy)" in line


def test_the_loss_and_the_return_of_a_quorum_are_one_event_each(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.looks(WELL)
    kinds = []
    for attendance, after_s in ((LOST, 0.1), (LOST, REPEAT_S), (LOST, REPEAT_S), (WELL, 0.1), (WELL, 0.1)):
        watched.looks(attendance, after_s)
        events = [event for record in caplog.records if (event := event_of(record)) is not None]
        kinds += [(event.kind, dict(event.fields)) for event in events]
    assert kinds == [
        ("quorum-lost", {"present": 1, "members": 3, "needed": 2}),
        ("quorum-back", {"after_s": 120.1}),
    ]
