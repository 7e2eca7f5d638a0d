"""What an operator is shown of a proxy's state: one event for each change, none for what stays."""

from typing import Any

from walproxy.proxy.state_events import START_S, Look, MemberState, StateEvents

NOW = 100.0
WELL = dict.fromkeys((1, 2, 3), (MemberState.PRESENT, ""))


class Watched:
    """A proxy's state that changes."""

    def __init__(self) -> None:
        self.events = StateEvents(NOW)
        self.now = NOW + START_S

    def sees(self, **changes: Any) -> list[tuple[str, str]]:
        """Return kinds and texts of the events."""
        look = Look(**{"members": WELL, "standbys": {}, "change": "", "members_text": "1, 2, 3", **changes})
        found = self.events.compare(look, self.now)
        assert self.events.compare(look, self.now) == []
        return [(change.kind, change.text) for change in found]


def test_a_proxy_that_starts_well_has_no_events_of_its_members() -> None:
    assert Watched().sees() == []


def test_a_member_is_lost_refused_full_a_learner_and_back() -> None:
    watched = Watched()
    watched.sees()
    for state, problem, kind, text in (
        (MemberState.LOST, "timeout", "member-lost", "safekeeper 3: timeout"),
        (MemberState.REFUSED, "another cluster", "member-refused", "safekeeper 3: another cluster"),
        (MemberState.DISK_FULL, "it refuses WAL", "member-disk-full", "safekeeper 3: it refuses WAL"),
        (MemberState.LEARNER, "", "member-learner", "safekeeper 3: it receives WAL as a learner"),
        (MemberState.PRESENT, "", "member-back", "safekeeper 3 takes part again"),
    ):
        assert watched.sees(members=WELL | {3: (state, problem)}) == [(kind, text)]


def test_a_member_that_is_not_connected_yet_is_lost_only_after_a_while() -> None:
    watched = Watched()
    lost = WELL | {3: (MemberState.LOST, "not connected yet")}
    watched.now = NOW
    assert watched.sees(members=lost) == []
    watched.now = NOW + START_S
    assert watched.sees(members=lost) == [("member-lost", "safekeeper 3: not connected yet")]
    assert watched.sees() == [("member-back", "safekeeper 3 takes part again")]


def test_a_term_begins_once_and_a_timeline_switches() -> None:
    watched = Watched()
    assert watched.sees(begun_term=4, tli=1) == [("term-begun", "commits succeed in term 4 on timeline 1")]
    assert watched.sees(begun_term=None, tli=0) == []
    assert watched.sees(begun_term=4, tli=1) == []
    assert watched.sees(begun_term=5, tli=2) == [
        ("term-begun", "commits succeed in term 5 on timeline 2"),
        ("timeline-switched", "timeline 2 follows timeline 1"),
    ]


def test_a_primary_streams_and_is_lost() -> None:
    watched = Watched()
    assert watched.sees(primary="db1:5432") == [("primary-streams", "WAL is received from db1:5432")]
    lost = watched.sees(primary=None, primary_problem="connection refused")
    assert lost == [("primary-lost", "no WAL is received from db1:5432: connection refused")]
    assert watched.sees(primary="db2:5432") == [("primary-streams", "WAL is received from db2:5432")]


def test_a_change_of_the_members_begins_and_ends_also_across_terms() -> None:
    watched = Watched()
    assert watched.sees() == []
    begun = watched.sees(change="1, 2, 3 to 1, 2, 3, 4")
    assert begun == [("members-change-begun", "the members change from 1, 2, 3 to 1, 2, 3, 4")]
    assert watched.sees(change=None, members_text="") == []
    assert watched.sees(change="1, 2, 3, 4 to 1, 2, 3, 4") == []
    assert watched.sees(members_text="1, 2, 3, 4") == [("members-change-done", "the members are 1, 2, 3, 4")]


def test_standbys_come_move_and_go() -> None:
    watched = Watched()
    assert watched.sees(standbys={"db2": 1}) == [("standby-connected", "standby db2 streams from safekeeper 1")]
    assert watched.sees(standbys={"db2": 3}) == [("standby-connected", "standby db2 streams from safekeeper 3")]
    # A spare has no information about them.
    assert watched.sees(standbys=None) == []
    assert watched.sees(standbys={}) == [("standby-lost", "standby db2 no longer streams from safekeeper 3")]


def test_the_archiver_is_assigned_fails_and_is_well() -> None:
    watched = Watched()
    assert watched.sees(archiver=1) == [("archiver-assigned", "safekeeper 1 is the archiver")]
    failing = watched.sees(archiver=1, archive_problem="no route")
    assert failing == [("archive-failing", "safekeeper 1 cannot archive: no route")]
    assert watched.sees(archiver=1, archive_problem="another reason") == []
    assert watched.sees(archiver=0) == []
    assert watched.sees(archiver=2) == [
        ("archiver-assigned", "safekeeper 2 is the archiver"),
        ("archive-well", "safekeeper 2 archives again"),
    ]
