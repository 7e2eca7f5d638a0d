"""What `walproxy levels` derives from /status."""

import io
from typing import Any

import pytest
from rich.console import Console

from tests.unit.proxy.statuses import gate, listed_safekeeper, lost, times
from tests.unit.proxy.statuses import standby as any_standby
from tests.unit.proxy.statuses import status as any_status
from walproxy.proxy.levels import LevelRow, levels_of, slowest_first
from walproxy.proxy.levels_table import level_line, render_levels
from walproxy.proxy.status_fields import CommitLatencies, ListedStandby, MissingMember, ProxyStatus

COMMIT = 0x5000


def lsn(value: int) -> str:
    return f"0/{value:X}"


@pytest.fixture
def status() -> ProxyStatus:
    """The /status of a proxy that streams to three members; the third one is slow."""
    positions: dict[str, Any] = {"lag_bytes": 300, "flush_lsn": lsn(COMMIT), "write_lsn": lsn(COMMIT + 200)}
    return any_status(
        received_lsn=lsn(COMMIT + 300),
        write_lsn=lsn(COMMIT + 200),
        commit_lsn=lsn(COMMIT),
        safekeepers=[listed_safekeeper(i, **positions) for i in (1, 2, 3)],
        gate=None,
        times=CommitLatencies(
            quorum=times(0.002, 0.02),
            write=times(0.001, 0.004),
            apply=times(0.008, 0.09),
            members={"1": times(0.001, 0.003), "2": times(0.002, 0.004), "3": times(0.05, 0.2)},
            oldest_s=None,
        ),
    )


def by_level(status: ProxyStatus) -> dict[str, LevelRow]:
    return {row.level: row for row in levels_of(status)}


def standby(name: str, apply_lsn: int, *, connected: bool = True) -> ListedStandby:
    reached = lsn(apply_lsn)
    return any_standby(
        name, apply_lsn=reached, flush_lsn=reached, apply_lag_bytes=COMMIT - apply_lsn, connected=connected
    )


def test_each_level_has_the_time_that_was_measured_for_its_position(status: ProxyStatus) -> None:
    status.apply_rule = "standby1"
    rows = by_level(status)
    assert list(rows) == ["off", "local", "remote_write", "on", "remote_apply"]
    assert [rows[level].p50_s for level in rows] == [None, None, 0.001, 0.002, 0.008]
    assert [rows[level].p99_s for level in rows] == [None, None, 0.004, 0.02, 0.09]
    assert {row.state for row in rows.values()} == {"ok"}
    assert rows["on"].waits_for == "the primary's disk, and the disks of 2 of 3 safekeepers"
    status.apply_rule = ""
    same = by_level(status)["remote_apply"]
    assert same.p50_s == 0.002 and same.waits_for.endswith("no standby is designated, so it is the same as on")


def test_the_slowest_member_is_named_and_whether_a_commit_needs_it(status: ProxyStatus) -> None:
    slowest = by_level(status)["on"].slowest
    assert slowest is not None
    assert (slowest.name, slowest.p50_s, slowest.p99_s, slowest.is_needed) == ("safekeeper 3", 0.05, 0.2, False)
    status.safekeepers[0].state, status.safekeepers[0].problem = "disconnected", "could not connect"
    slowest = by_level(status)["on"].slowest
    assert slowest is not None
    assert (slowest.name, slowest.problem, slowest.is_needed) == ("safekeeper 1", "could not connect", False)
    status.quorum = 3
    needed = by_level(status)["on"].slowest
    assert needed is not None and needed.is_needed
    # A safekeeper that is no member is waited for by no commit.
    status.members = [2, 3]
    assert (by_level(status)["on"].slowest or slowest).name == "safekeeper 3"


def test_remote_apply_names_the_standby_that_has_replayed_least_and_is_blocked_alone(status: ProxyStatus) -> None:
    status.apply_rule, status.standbys = "a, b", [standby("a", 0x4000), standby("b", 0x4800)]
    slowest = by_level(status)["remote_apply"].slowest
    assert slowest is not None
    assert (slowest.name, slowest.lag_bytes) == ("standby a", 0x1000)
    status.standbys = [standby("a", 0x4000), standby("b", COMMIT, connected=False)]
    status.apply_problem = "b is not streaming"
    rows = by_level(status)
    blocked = rows["remote_apply"]
    assert (blocked.state, blocked.problem) == ("blocked", "b is not streaming")
    assert blocked.slowest is not None and blocked.slowest.name == "standby b" and blocked.slowest.is_needed
    assert rows["on"].state == "ok"


def test_without_a_quorum_only_local_levels_return(status: ProxyStatus) -> None:
    status.state, status.quorum_lost = "waiting_for_quorum", lost(missing=[MissingMember(id=2, problem="timeout")])
    rows = by_level(status)
    assert [row.state for row in rows.values()] == ["ok", "ok", "blocked", "blocked", "blocked"]
    assert rows["on"].problem == "no quorum: members that take part: 1, needed: 2; safekeeper 2: timeout"
    status.quorum_lost, status.state, status.primary.problem = None, "waiting_for_primary", "it is down"
    assert by_level(status)["on"].problem == "the proxy is waiting_for_primary: it is down"
    status.spare = True
    assert by_level(status)["on"].state == "unknown"


def test_a_level_that_waits_for_no_safekeeper_costs_what_local_costs(status: ProxyStatus) -> None:
    status.gate = gate("not gated", "the setting is ''")
    rows = by_level(status)
    assert [row.state for row in rows.values()] == ["ok", "ok", "not gated", "not gated", "not gated"]
    assert (rows["on"].problem, rows["on"].waits_for) == ("the setting is ''", "no safekeeper")
    assert rows["on"].losses == rows["local"].losses
    # The default is another one: a session that sets the level waits.
    status.gate = gate("not gated", "the setting is ''", is_by_level=True)
    assert by_level(status)["on"].state == "ok"
    status.gate = gate("gated with others", "b is gone", hangs=True)
    assert (by_level(status)["on"].state, by_level(status)["on"].problem) == ("blocked", "b is gone")
    status.gate = gate("unknown", "no right")
    assert (by_level(status)["on"].state, by_level(status)["on"].problem) == ("unknown", "no right")


def test_what_is_lost_with_the_primary_is_the_wal_that_no_quorum_has(status: ProxyStatus) -> None:
    rows = by_level(status)
    assert rows["local"].losses.primary == "commits that no quorum has, now 300 bytes of WAL or more"
    assert rows["off"].losses.primary.endswith("3 x wal_writer_delay")
    assert [rows[level].losses.primary for level in ("remote_write", "on", "remote_apply")] == ["nothing"] * 3
    status.commit_lsn = "0/0"
    rows = by_level(status)
    assert "unknown" in rows["local"].losses.primary and "unknown" in rows["on"].losses.primary


def test_what_is_lost_with_a_minority_too_depends_on_how_many_members_have_the_newest_commits(
    status: ProxyStatus,
) -> None:
    assert by_level(status)["on"].losses.primary_and_minority == "nothing"
    status.safekeepers[2] = listed_safekeeper(
        3, "disconnected", "gone", flush_lsn=lsn(100), write_lsn=lsn(COMMIT + 200)
    )
    assert by_level(status)["on"].losses.primary_and_minority == (
        "nothing, but no quorum remains: 2 of 3 members stream"
    )
    # A commit quorum of one of three: the newest commits may be on that disk only.
    status.quorum, status.elect_quorum = 1, 3
    status.safekeepers[1].flush_lsn = lsn(COMMIT - 8)
    assert by_level(status)["on"].losses.primary_and_minority == "the newest commits: 1 of 3 members have them"
    assert by_level(status)["remote_write"].losses.primary_and_minority.startswith("nothing, but no quorum remains")
    status.safekeepers[2].write_lsn = lsn(100)
    status.safekeepers[1].write_lsn = lsn(COMMIT - 8)
    received = by_level(status)["remote_write"].losses.primary_and_minority
    assert received == "the newest commits: 1 of 3 members have them"


def test_what_is_lost_with_a_quorums_disks_is_what_the_best_of_the_others_lacks(status: ProxyStatus) -> None:
    status.safekeepers[2].flush_lsn = lsn(COMMIT - 64)
    rows = by_level(status)
    assert rows["on"].losses.quorum_disks == "nothing while the primary lives; with it 64 bytes of WAL"
    assert rows["remote_write"].losses.quorum_disks.endswith("of them and of the primary 200 bytes more")
    assert rows["local"].losses.quorum_disks == "nothing while the primary lives"
    status.standbys = [standby("a", COMMIT - 1)]
    assert by_level(status)["on"].losses.quorum_disks.endswith("with it 1 byte of WAL")
    status.standbys = [standby("a", COMMIT)]
    assert by_level(status)["on"].losses.quorum_disks == "nothing: another member or a standby has all WAL"
    status.standbys, status.quorum = [], 3
    assert by_level(status)["on"].losses.quorum_disks.endswith("with it all WAL that is not archived")


def test_what_blocks_commits_is_first_and_then_the_slowest(status: ProxyStatus) -> None:
    def order() -> list[int]:
        return [each.id for each in slowest_first(status.safekeepers, status.times)]

    assert order() == [3, 2, 1]
    status.safekeepers[1].state = "catching_up"
    assert order() == [2, 3, 1]
    status.times.members = {}
    assert order() == [2, 1, 3]


def test_the_levels_are_tables_in_a_terminal_and_lines_otherwise(status: ProxyStatus) -> None:
    status.apply_rule, status.apply_problem = "a", "a is not streaming"
    rows = levels_of(status)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(render_levels(rows))
    text = console.export_text()
    assert "remote_apply is blocked: a is not streaming" in text
    assert "2.0 ms" in text and "safekeeper 3: 50 ms, p99 200 ms" in text
    lines = [level_line(row) for row in rows]
    assert lines[0].startswith("off ok: p50 -, p99 -, waits for nothing; lost with the primary: commits that")
    assert lines[3].startswith("on ok: p50 2.0 ms, p99 20 ms, waits for the primary's disk")
    assert "slowest safekeeper 3: 50 ms, p99 200 ms (a commit does not need it)" in lines[3]
    assert lines[4].startswith("remote_apply blocked (a is not streaming): p50 8.0 ms")
    assert all("\n" not in line for line in lines)
