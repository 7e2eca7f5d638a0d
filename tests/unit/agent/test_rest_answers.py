"""REST as Patroni's users have it: which page returns which status code for which server."""

from typing import Any

import msgspec
import pytest

from safekeeper.net.http_server import Text
from tests.unit.agent.states import CLUSTER, COMMIT_LSN, LEADER, NOW, STANDBY, THIRD, report, state
from walproxy.agent.report import AgentReport, AgentSettings, PrimaryChange
from walproxy.agent.rest_answers import PAGES, BadQuery, answer, parse_size
from walproxy.agent.state import AgentState, LogPositions

LEADER_PAGES = ("/", "/primary", "/master", "/read-write", "/leader")
REPLICA_PAGES = ("/replica", "/asynchronous", "/async")
PRIMARY_OR_SYNCHRONOUS_PAGES = ("/read-only-sync", "/read-only-synchronous", "/read-only-quorum")
NEVER_PAGES = ("/synchronous", "/sync", "/quorum", "/standby-leader", "/standby_leader")
ALWAYS_PAGES = ("/patroni", "/cluster", "/history", "/status")
PROBES = ("/liveness", "/readiness")
PAUSED = AgentSettings(is_paused=True)


def get(target: str, of: AgentState, now: float = NOW) -> tuple[int, Any]:
    """Return the answer to GET `target`, with JSON as a client decodes it."""
    path, _, query = target.partition("?")
    pairs = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    status, content = answer(PAGES[path], pairs, of, now)
    return status, content.body.decode() if isinstance(content, Text) else msgspec.json.decode(
        msgspec.json.encode(content)
    )


def status(target: str, of: AgentState, now: float = NOW) -> int:
    return get(target, of, now)[0]


def pages_with_200(of: AgentState, now: float = NOW) -> set[str]:
    return {path for path in PAGES if status(path, of, now) == 200} - set(ALWAYS_PAGES)


def test_a_leader_is_the_primary_and_reads() -> None:
    expected = {*LEADER_PAGES, *PRIMARY_OR_SYNCHRONOUS_PAGES, *PROBES, "/read-only", "/health"}
    assert pages_with_200(state(LEADER, STANDBY)) == expected


def test_a_standby_is_a_replica_and_never_synchronous() -> None:
    assert pages_with_200(state(STANDBY, LEADER)) == {*REPLICA_PAGES, *PROBES, "/read-only", "/health"}


def test_a_primary_through_which_commits_do_not_succeed_is_neither() -> None:
    assert pages_with_200(state(report(is_leader=False), STANDBY)) == {"/liveness", "/health"}


@pytest.mark.parametrize(
    "name", ["missing", "stopped", "starting", "stopping", "hangs", "refuses", "of a later version"]
)
def test_a_server_that_does_not_reply_is_only_live(name: str) -> None:
    assert pages_with_200(state(report(STANDBY, state=name, is_streaming=False), LEADER)) == {"/liveness"}


def test_pages_are_complete_and_each_has_its_meaning() -> None:
    of_checks = {*LEADER_PAGES, *REPLICA_PAGES, *PRIMARY_OR_SYNCHRONOUS_PAGES, *NEVER_PAGES, *PROBES}
    assert set(PAGES) == {*of_checks, *ALWAYS_PAGES, "/read-only", "/health"}
    for of in (state(LEADER), state(STANDBY), state(report(state="stopped", is_leader=False))):
        assert all(status(path, of) == 503 for path in NEVER_PAGES)
        assert all(status(path, of) == 200 for path in ALWAYS_PAGES)


def test_a_leader_whose_agent_is_blocked_is_no_leader_after_dead_after() -> None:
    of = state(report(dead_after_s=1.0), STANDBY)
    assert status("/primary", of, NOW + 0.9) == 200
    assert pages_with_200(of, NOW + 1.1) == {"/liveness", "/health"}
    assert get("/patroni", of, NOW + 1.1)[1]["walproxy"]["is_leader"] is False
    assert "cluster_unlocked" in get("/patroni", of, NOW + 1.1)[1]


def test_a_leader_is_none_once_a_later_primary_leads() -> None:
    later = report(name="two", tli=3)
    of = state(LEADER, later)
    assert status("/primary", of) == 503
    assert status("/primary", state(later, LEADER)) == 200
    (one, two) = get("/cluster", of)[1]["members"]
    assert (one["role"], two["role"]) == ("replica", "leader")
    # A blocked agent leads as little if the one that reports is an older primary.
    assert status("/primary", state(report(dead_after_s=1), report(name="two", tli=1)), NOW + 2) == 503
    # The other one reports no longer.
    assert status("/primary", state(LEADER, later, ages_s=6)) == 200


def test_an_agent_that_is_blocked_is_not_live_sooner_on_a_primary_and_never_while_paused() -> None:
    assert (status("/liveness", state(LEADER), NOW + 29), status("/liveness", state(LEADER), NOW + 31)) == (200, 503)
    assert (status("/liveness", state(STANDBY), NOW + 59), status("/liveness", state(STANDBY), NOW + 61)) == (200, 503)
    assert status("/liveness", state(LEADER, settings=PAUSED), NOW + 1000) == 200
    assert pages_with_200(state(STANDBY, LEADER), NOW + 61) == set()
    assert get("/patroni", state(STANDBY, LEADER), NOW + 61)[1]["state"] == "unknown"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("lag=1024", 200),
        ("lag=1023", 503),
        ("lag=0", 503),
        ("replication_state=streaming", 200),
        ("replication_state=in archive recovery", 503),
        ("lag=16MB&replication_state=streaming", 200),
        ("tag_failover_priority=100", 200),
        ("tag_failover_priority=99", 503),
        ("tag_nofailover=false", 200),
        ("tag_nofailover=true", 503),
        ("tag_zone=a", 503),
        ("unknown=1", 200),
        ("lag=16mb", 400),
    ],
)
def test_a_replica_may_be_asked_for_its_lag_state_and_tags(query: str, expected: int) -> None:
    for path in (*REPLICA_PAGES, "/read-only"):
        assert status(f"{path}?{query}", state(STANDBY, LEADER)) == expected, path


def test_a_bad_query_is_answered_with_one_line() -> None:
    code, content = get("/replica?lag=16mb", state(STANDBY))
    assert code == 400
    assert content == "400: '16mb' is not a size: write a number of bytes, or one with kB, MB, GB or TB"
    assert get("/readiness?mode=x", state(STANDBY)) == (400, "400: mode='x' is neither apply nor write")


def test_a_leader_ignores_tags_and_lag() -> None:
    assert all(status(f"{path}?tag_zone=a&lag=0", state(LEADER)) == 200 for path in LEADER_PAGES)
    assert status("/read-only?lag=0", state(LEADER)) == 200
    assert status("/read-only?tag_zone=a", state(LEADER)) == 503
    assert status("/health?tag_nofailover=true", state(report(may_lead=False))) == 200


def test_a_lag_that_is_unknown_excludes_no_replica() -> None:
    assert status("/replica?lag=0", state(STANDBY, LEADER, log=LogPositions())) == 200


def test_a_standby_is_ready_when_it_streams_and_has_nearly_everything() -> None:
    far = report(STANDBY, replayed_lsn=COMMIT_LSN - (1 << 20) - 1)
    assert get("/readiness", state(far)) == (
        503,
        {"ok": False, "reason": "the apply lag of 1048577 bytes exceeds 1048576"},
    )
    assert status("/readiness?lag=1048577", state(far)) == 200
    assert status("/readiness?mode=write", state(far)) == 200
    assert status("/readiness?lag=16kB&mode=apply", state(far)) == 503
    assert get("/readiness", state(THIRD))[1]["reason"] == "PostgreSQL is not streaming"
    assert get("/readiness", state(report(STANDBY, state="hangs")))[1]["reason"] == "PostgreSQL is not running"
    assert get("/readiness", state(STANDBY, log=LogPositions()))[1]["reason"] == "no safekeeper has replied"


@pytest.mark.parametrize(
    ("written", "size"),
    [
        *(("0", 0), (" 7 ", 7), ("7B", 7), ("1.5kB", 1536), ("1.MB", 1 << 20), ("16 MB", 16 << 20), ("2TB", 2 << 40)),
        *(("0x400", 1024), ("0x10 GB", 16 << 30)),
    ],
)
def test_a_size_is_written_as_in_postgresql(written: str, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written", ["", "kB", "1 k B", "1KB", "1gb", "08", "010", "1e3", "0x", "nan", "1\n2", "+1", "-1", "9" * 5000, "١"]
)
def test_what_is_no_size_is_refused(written: str) -> None:
    with pytest.raises(BadQuery, match="is not a size"):
        parse_size(written)


def test_patroni_has_the_fields_that_tools_read() -> None:
    content = get("/patroni", state(LEADER, STANDBY))[1]
    assert content.pop("patroni") | {"version": ""} == {"version": "", "scope": CLUSTER, "name": "one"}
    assert content == {
        "state": "running",
        "role": "primary",
        "server_version": 150012,
        "xlog": {"location": COMMIT_LSN + 0x100},
        "timeline": 2,
        "dcs_last_seen": 200,
        "tags": {"nofailover": False, "failover_priority": 100},
        "database_system_identifier": "7268616322854375442",
        "walproxy": {"is_leader": True, "doing": None, "problem": None},
    }
    of = state(report(STANDBY, may_lead=False, problem="no disk space"), THIRD, settings=PAUSED)
    content = get("/replica", of)[1]
    assert (content["role"], content["replication_state"]) == ("replica", "streaming")
    assert content["xlog"] == {"received_location": COMMIT_LSN, "replayed_location": COMMIT_LSN - 0x400}
    assert (content["pause"], content["cluster_unlocked"]) == (True, True)
    assert content["tags"]["nofailover"] is True
    assert content["walproxy"]["problem"] == "no disk space"


@pytest.mark.parametrize(
    ("changes", "state_name", "role"),
    [
        ({"state": "missing"}, "stopped", "uninitialized"),
        ({"state": "missing", "doing": "rebuilding from one"}, "creating replica", "uninitialized"),
        ({"state": "missing", "doing": "waiting"}, "stopped", "uninitialized"),
        ({"state": "hangs"}, "unknown", "replica"),
        ({"state": "starting"}, "starting", "replica"),
        ({"state": "stopped"}, "stopped", "replica"),
        ({"state": "primary"}, "running", "primary"),
    ],
)
def test_states_have_patronis_names(changes: dict[str, Any], state_name: str, role: str) -> None:
    content = get("/patroni", state(report(STANDBY, **changes)))[1]
    assert (content["state"], content["role"]) == (state_name, role)
    assert ("xlog" in content) == (state_name == "running")


def test_cluster_lists_all_agents_by_name() -> None:
    content = get("/cluster", state(STANDBY, THIRD, LEADER, settings=PAUSED))[1]
    assert (content["scope"], content["pause"]) == (CLUSTER, True)
    one, three, two = content["members"]
    tags = {"nofailover": False, "failover_priority": 100}
    assert one == {
        "name": "one",
        "role": "leader",
        "state": "running",
        "api_url": "http://10.0.0.1:8008/patroni",
        "host": "10.0.0.1",
        "port": 5432,
        "timeline": 2,
        "tags": tags,
    }
    assert two == {
        "name": "two",
        "role": "replica",
        "state": "streaming",
        "api_url": "http://10.0.0.2:8008/patroni",
        "host": "10.0.0.2",
        "port": 5432,
        "timeline": 2,
        "tags": tags,
        "receive_lag": 0,
        "receive_lsn": "0/5000000",
        "replay_lag": 1024,
        "replay_lsn": "0/4FFFC00",
        "lag": 0,
        "lsn": "0/5000000",
    }
    assert (three["host"], three["port"], three["state"]) == ("fd00::3", 5433, "running")


def test_an_agent_that_reports_no_longer_is_unknown_and_then_left_out() -> None:
    of = state(STANDBY, LEADER)
    assert [each["state"] for each in get("/cluster", of, NOW + 6)[1]["members"]] == ["unknown", "unknown"]
    later = state(STANDBY, LEADER, made_at=NOW + 90_000, ages_s=90_000)
    assert [each["name"] for each in get("/cluster", later, NOW + 90_000)[1]["members"]] == ["two"]


def test_an_agent_may_report_nonsense() -> None:
    odd = AgentReport("", address="nowhere:x", url="", state="?", tli=-1, written_lsn=-5, priority=1 << 70)
    empty, _ = get("/cluster", state(LEADER, odd))[1]["members"]
    assert "host" not in empty and empty["state"] == "unknown"
    assert get("/cluster", state(STANDBY, AgentReport("x")))[1]["members"][1]["lsn"] == "unknown"
    assert status("/status", state(LEADER, odd)) == 200


def test_history_has_the_timeline_that_ended() -> None:
    changes = (
        PrimaryChange(
            "failover", "two", tli=3, term=5, fork_lsn=COMMIT_LSN, seconds=4.5, at=1_700_000_000.7, old_tli=1
        ),
        PrimaryChange("switchover", "one", tli=7, term=9, fork_lsn=COMMIT_LSN + 8),
        PrimaryChange("failover", "two", tli=8, term=11, old_tli=6),
    )
    assert get("/history", state(LEADER, settings=AgentSettings(changes=changes)))[1] == [
        [1, COMMIT_LSN, "failover", "2023-11-14T22:13:20+00:00", "two"],
        [3, COMMIT_LSN + 8, "switchover", "1970-01-01T00:00:00+00:00", "one"],
        [6, 0, "failover", "1970-01-01T00:00:00+00:00", "two"],
    ]
    only = AgentSettings(changes=(PrimaryChange("failover", "two", tli=2, term=5),))
    assert get("/history", state(LEADER, settings=only))[1][0][0] == 1


def test_status_has_everything_that_agents_report() -> None:
    content = get("/status", state(STANDBY, LEADER), NOW + 1)[1]
    assert {name: content[name] for name in ("name", "leader", "term", "tli", "commit_lsn", "quorum", "paused")} == {
        "name": "two",
        "leader": "one",
        "term": 7,
        "tli": 2,
        "commit_lsn": "0/5000000",
        "quorum": True,
        "paused": False,
    }
    assert (content["started_at"], content["quorum_seen_at"], content["last_round_s"]) == (100.0, 200.5, 1.0)
    one, two = content["agents"]
    assert (one["role"], one["lag_bytes"], one["age_s"]) == ("leader", None, 1.1)
    assert (two["role"], two["lag_bytes"], two["age_s"], two["replayed_lsn"]) == ("replica", 1024, 1.0, "0/4FFFC00")
    reported = set(AgentReport.__struct_fields__) - {"is_leader"}
    assert reported <= set(one)
