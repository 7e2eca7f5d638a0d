"""What the proxy shows of itself, in every state that a safekeeper can be in."""

import asyncio
import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import msgspec
import pytest
from rich.console import Console

from safekeeper.base.histogram import RecentHistogram
from safekeeper.base.settings import load
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AppendResponse,
    ArchiveReport,
    Elected,
    Refusal,
    RefusalCode,
    Standby,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.net.safekeeper_connection import SafekeeperConnection
from tests.unit.proxy.statuses import gate, listed_safekeeper, lost
from walproxy.postgres.hosts import HostState
from walproxy.proposer.apply_rule import parse_apply_rule
from walproxy.proposer.archiving import INCUMBENT_GRACE_S
from walproxy.proposer.leadership import Leadership
from walproxy.proposer.liveness import Timing
from walproxy.proposer.member_change import Target, halves_of
from walproxy.proposer.phase import Phase
from walproxy.proposer.roster import Peer
from walproxy.proxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.proxy.member_problem import member_problem
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status import not_ready_reason, proxy_status, safekeeper_state
from walproxy.proxy.status_fields import ArchiveProgress, ListedHost, MembersChange, ProxyStatus
from walproxy.proxy.status_table import format_seconds, render, summarise

MEMBERS = Membership(1, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3)))


def proxy_for(primary: str) -> Iterator[Proxy]:
    config = {"primary": primary, "safekeepers": "1=sk1:1,2=sk2:2,3=sk3:3"}
    with asyncio.Runner() as runner:

        async def make() -> Proxy:
            return Proxy(load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=config, environment={}, file=None))

        yield runner.run(make())


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    yield from proxy_for("host=db1")


@pytest.fixture
def proxy_of_two_hosts() -> Iterator[Proxy]:
    yield from proxy_for("host=old,new port=1,2")


def greeting(
    safekeeper_id: int, *, incarnation: str = "", membership: Membership | None = MEMBERS, term: int = 3
) -> AcceptorGreeting:
    return AcceptorGreeting(
        protocol_version=PROTOCOL_VERSION,
        safekeeper_id=safekeeper_id,
        incarnation=incarnation or f"{safekeeper_id}" * 32,
        cluster_id="c" * 32 if membership is not None else "",
        system_id=7 if membership is not None else 0,
        segment_size=1 << 20 if membership is not None else 0,
        server_version=180000,
        membership=membership,
        promised=LeaderId(term, "a" * 32 if term else ""),
        last_term=term,
        wal_begin_lsn=1 << 20 if term else 0,
        flush_lsn=5 << 20 if term else 0,
        commit_lsn=0,
        truncate_lsn=0,
        replaced=None,
    )


def empty(safekeeper_id: int) -> AcceptorGreeting:
    return greeting(safekeeper_id, incarnation="e" * 31 + str(safekeeper_id), membership=None, term=0)


def test_a_proxy_that_has_found_nothing_yet_has_no_positions(proxy: Proxy) -> None:
    status = proxy_status(proxy, 1.0)
    assert (status.state, status.quorum, status.commit_lsn) == ("connecting", 2, "0/0")
    assert status.system_id is None and status.tli is None
    member = status.safekeepers[0]
    assert (member.id, member.state, member.lag_bytes, member.last_response_s) == (1, "disconnected", None, None)


def test_a_proxy_that_does_not_stream_is_not_ready_and_says_why(proxy: Proxy) -> None:
    reason = not_ready_reason(proxy, 1.0)
    assert reason.startswith("connecting: ") and "safekeeper 2: not connected yet" in reason
    proxy.proposer.candidacy.is_spare = True
    assert "is a spare" in not_ready_reason(proxy, 1.0)


def shown(status: ProxyStatus) -> list[str]:
    """Return the lines of `walproxy status`."""
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(status))
    return [line.strip() for line in console.export_text().splitlines() if line.strip()]


def test_each_of_several_hosts_is_shown_with_what_is_wrong_with_it(proxy_of_two_hosts: Proxy) -> None:
    proxy = proxy_of_two_hosts
    rota = proxy.feed.rota
    assert proxy.proposer.config.several_primaries
    rota.next(0.0)
    rota.refused("it is an old primary", 0.0)
    rota.next(0.0)
    rota.failed(HostState.STANDBY, "it is a standby")
    status = proxy_status(proxy, 1.0)
    assert status.primary.hosts == [
        ListedHost(host="old:1", state="refused", problem="it is an old primary"),
        ListedHost(host="new:2", state="standby", problem="it is a standby"),
    ]
    assert status.primary.problem == "old:1: it is an old primary; new:2: it is a standby"
    assert [line for line in shown(status) if line.startswith("primary")] == [
        "primary old:1 refused: it is an old primary",
        "primary new:2 standby",
    ]
    rota.connected()
    assert "primary new:2 connected" in shown(proxy_status(proxy, 1.0))


def test_the_first_line_is_that_commits_do_not_wait(proxy: Proxy) -> None:
    status = proxy_status(proxy, 1.0)
    assert status.gate is None, "no primary is known"
    assert "gate" not in shown(status)[0]
    status.gate = gate("gated")
    assert shown(status)[0].startswith("connecting  gated  term 0")
    assert summarise(status).startswith("connecting gate=gated term=0")
    status.gate, status.quorum_lost = gate("not gated", "the setting is ''"), lost(for_s=5.0, waiting_sessions=0)
    first, second, third, fourth = shown(status)[:4]
    assert first == "NOT GATED: commits do not wait for the quorum: the setting is ''"
    assert second.startswith("NO QUORUM for 5 s; waiting sessions: 0;")
    assert third.startswith("connecting  NOT GATED  term 0") and "commits wait" not in fourth
    for state, hangs, text in (
        ("gated with others", True, "COMMITS HANG: commits wait for another standby: why"),
        ("gated with others", False, "commits may return without the quorum: why"),
        ("unknown", False, "whether commits wait for the quorum is unknown: why"),
    ):
        status.gate = gate(state, "why", hangs=hangs, exempt="role a does not wait")
        assert shown(status)[:2] == [text, "role a does not wait"]


def test_a_single_host_is_shown_only_if_something_is_wrong_with_it(proxy: Proxy) -> None:
    assert not proxy.proposer.config.several_primaries
    assert "primary: not connected yet" in shown(proxy_status(proxy, 1.0))
    proxy.feed.rota.connected()
    assert not [line for line in shown(proxy_status(proxy, 1.0)) if line.startswith("primary")]


def test_a_refused_safekeeper_shows_the_reason_also_while_it_is_disconnected(proxy: Proxy) -> None:
    proxy.proposer.connected(2, 1.0)
    proxy.proposer.message(2, Refusal(RefusalCode.WRONG_ID, "this is safekeeper 1, not 2", LeaderId(0, "")), 1.0)
    assert safekeeper_state(proxy, proxy.view(1.0), 2) == "refused"
    proxy.proposer.disconnected(2, 1.0)
    status = proxy_status(proxy, 1.0).safekeepers[1]
    assert (status.state, status.problem) == ("refused", "this is safekeeper 1, not 2")


def test_positions_of_a_greeting_are_shown_before_a_term_is_led(proxy: Proxy) -> None:
    proxy.proposer.connected(1, 1.0)
    proxy.proposer.message(1, greeting(1), 1.0)
    status = proxy_status(proxy, 1.0).safekeepers[0]
    assert (status.write_lsn, status.flush_lsn) == ("0/500000", "0/500000")


# Why a safekeeper does not count.


def peers(*greetings: AcceptorGreeting | None) -> dict[int, Peer]:
    return {i: Peer(connected=True, greeting=each) for i, each in enumerate(greetings, 1)}


@pytest.mark.parametrize(
    "known",
    [
        peers(greeting(1), greeting(2), None),
        peers(empty(1), empty(2), empty(3)),
        peers(greeting(1, term=0), greeting(2, term=0), greeting(3, membership=None, term=0)),
    ],
    ids=["members, and one before its greeting", "all are empty", "one that missed the end of the bootstrap"],
)
def test_no_problem_is_known(known: dict[int, Peer]) -> None:
    assert [member_problem(i, known, "") for i in (1, 2, 3)] == ["", "", ""]


def test_a_connection_problem_and_a_refusal_are_shown_as_they_are() -> None:
    known = peers(greeting(1), greeting(2), None)
    assert member_problem(3, known, "could not connect") == "could not connect"
    known[3].refused = "wrong id"
    assert member_problem(3, known, "could not connect") == "wrong id"


def test_one_lost_disk_is_fed_and_two_take_a_rebootstrap() -> None:
    problem = member_problem(3, peers(greeting(1), greeting(2), empty(3)), "")
    assert "is empty" in problem and "does not vote" in problem and "rebootstrap" not in problem
    known = peers(greeting(1), empty(2), empty(3))
    assert member_problem(1, known, "") == ""
    for safekeeper_id in (2, 3):
        assert "walproxy rebootstrap" in member_problem(safekeeper_id, known, "")


@pytest.mark.parametrize("sizes", [QuorumSizes("1", "N"), QuorumSizes("N", "N/2+1")], ids=["elect", "commit"])
def test_one_lost_disk_takes_a_rebootstrap_where_all_are_needed(sizes: QuorumSizes) -> None:
    membership = msgspec.structs.replace(MEMBERS, quorum_sizes=sizes)
    known = peers(greeting(1, membership=membership), greeting(2, membership=membership), empty(3))
    assert "walproxy rebootstrap" in member_problem(3, known, "")


def test_a_folder_that_was_replaced_by_one_with_promises_is_distinguished_from_an_empty_one() -> None:
    known = peers(greeting(1), greeting(2), greeting(3, incarnation="f" * 32))
    assert "has been replaced" in member_problem(3, known, "")


def test_a_safekeeper_that_no_membership_lists_is_said_to_be_none() -> None:
    known = {**peers(greeting(1), greeting(2), greeting(3)), 4: Peer(connected=True, greeting=empty(4))}
    assert member_problem(4, known, "") == (
        "it is not a member (generation 1: 1, 2, 3), so it receives WAL as a learner and does not vote"
    )


def test_the_quorum_is_that_of_the_members_and_not_of_the_list(proxy: Proxy) -> None:
    assert shown(proxy_status(proxy, 1.0))[0].endswith("quorum 2 of 3, no membership is known yet")
    leadership = a_term_with_standbys(proxy)
    leadership.membership = Membership(2, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3, 4, 5)))
    leadership.wanted = halves_of(leadership.membership)[0]
    for safekeeper_id in (1, 2):
        proxy.proposer.peers[safekeeper_id].greeting = greeting(safekeeper_id)
        proxy.links[safekeeper_id]._connection = cast("SafekeeperConnection", object())
    status = proxy_status(proxy, 1.5)
    assert (status.quorum, status.members, status.members_streaming) == (3, [1, 2, 3, 4, 5], 2)
    assert [each.member for each in status.safekeepers] == [True, True, True]
    assert shown(status)[0].endswith("quorum 3 of 5 members, 2 streaming")
    assert (status.learners, status.members_change) == (0, None)
    quick = QuorumSizes("N/3+1", "N-N/3")
    leadership.membership = msgspec.structs.replace(leadership.membership, quorum_sizes=quick)
    leadership.wanted = halves_of(leadership.membership)[0]
    status = proxy_status(proxy, 1.5)
    assert (status.quorum, status.elect_quorum) == (2, 4)
    assert shown(status)[0].endswith("quorum 2 of 5 members (4 to elect a leader), 2 streaming")
    assert proxy.attendance(1.5).needed == 2
    proxy.proposer.leadership = None
    proxy.proposer.peers[1].greeting = greeting(1, membership=leadership.membership)
    assert proxy.attendance(1.5).needed == 4, "before a commit, they have to elect a leader"


def test_a_change_of_the_members_is_shown(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy)
    leadership.wanted = Target(MEMBERS.members[:2], QuorumSizes())
    for safekeeper_id, progress in leadership.members.items():
        progress.voter = safekeeper_id != 3
        proxy.proposer.peers[safekeeper_id].greeting = greeting(safekeeper_id)
        proxy.links[safekeeper_id]._connection = cast("SafekeeperConnection", object())
    status = proxy_status(proxy, 1.5)
    change = MembersChange(present=[1, 2, 3], wanted=[1, 2], joint=False)
    assert (status.learners, status.members_change) == (1, change)
    assert shown(status)[0].endswith("quorum 2 of 3 members, 2 streaming, 1 learning; members change to 1, 2")
    leadership.membership = Membership(2, MEMBERS.members, MEMBERS.members[:2])
    change.joint = True
    assert proxy_status(proxy, 1.5).members_change == change


# Standbys: what would be lost if one of them were promoted.


def a_term_with_standbys(proxy: Proxy, rule: str = "", commit_lsn: int = 900, received_lsn: int = 1000) -> Leadership:
    """Let the proxy lead a term whose quorum holds `commit_lsn`; safekeeper 1 speaks of three standbys, 2 of one."""
    proxy.proposer.set_apply_rule(parse_apply_rule(rule))
    history = (HistoryEntry(4, 100, 1),)
    elected = Elected(LeaderId(4, "a" * 32), "c" * 32, 7, 1 << 20, 180000, MEMBERS, history, (), 100, 0)
    leadership = Leadership(elected, 1, proxy.proposer.standbys, Timing(), 1.0, proxy.proposer._out)
    leadership.received_lsn, leadership.streaming = received_lsn, True
    proxy.proposer.leadership, proxy.proposer.candidacy.term = leadership, 4
    proxy.proposer._stage.phase = Phase.LEADING
    for safekeeper_id in (1, 2, 3):
        leadership.on_greeting((safekeeper_id, str(safekeeper_id) * 32), 1.0)
        answer = AppendResponse(elected.leader_id, commit_lsn, commit_lsn, 0, has_readers=True)
        leadership.on_append_response(safekeeper_id, answer, 1.0)
    archiver = Standby("pg_receivewal", 900, 900, 0)
    leadership.on_standby_feedback(1, (Standby("a", 900, 900, 850), Standby("b", 900, 700, 600), archiver))
    leadership.on_standby_feedback(2, (Standby("new"),))
    proxy.proposer._out.clear()
    return leadership


def test_a_standby_that_does_not_replay_is_not_shown_as_fit(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy)
    proxy.replay_watch.observe(proxy.view(1.0).standbys, 1.0)
    archiver = Standby("pg_receivewal", 950, 950, 0)
    leadership.on_standby_feedback(1, (Standby("a", 950, 950, 850), Standby("b", 950, 750, 600), archiver))
    proxy.replay_watch.observe(proxy.view(20.0).standbys, 20.0)
    status = proxy_status(proxy, 20.0)
    assert {each.name: each.stalled_s for each in status.standbys} == {
        "a": 19.0,
        "b": 19.0,
        "pg_receivewal": None,
        "new": None,
    }
    status.standbys[0].has_everything = True
    status.standbys[1].has_everything, status.standbys[1].lag_bytes = False, 150
    lines = shown(status)
    assert any("has every acknowledged commit; has replayed nothing for 19 s" in line for line in lines)
    assert any("lacks 150 bytes; has replayed nothing for 19 s" in line for line in lines)


def standby_rows(proxy: Proxy, now: float) -> dict[str, tuple[object, ...]]:
    return {
        row.name: (row.has_everything, row.lag_bytes, row.apply_lag_bytes) for row in proxy_status(proxy, now).standbys
    }


def test_a_standby_has_everything_if_all_that_was_acknowledged_is_on_its_disk(proxy: Proxy) -> None:
    a_term_with_standbys(proxy)
    assert standby_rows(proxy, 1.5) == {
        "a": (True, 0, 50),
        "b": (False, 200, 300),
        "new": (None, None, None),
        "pg_receivewal": (True, 0, None),
    }
    first = proxy_status(proxy, 1.5).standbys[0]
    assert (first.safekeeper, first.apply_lsn, first.designated, first.connected) == (1, "0/352", False, True)


def test_what_a_standby_has_is_known_also_when_the_primary_is_dead(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy, received_lsn=900)
    proxy.proposer.primary_lost(1.2)
    status = proxy_status(proxy, 1.5)
    assert (status.state, status.commit_lsn, status.flush_lsn) == ("waiting_for_primary", "0/384", "0/0")
    assert standby_rows(proxy, 1.5)["a"][0] is True and standby_rows(proxy, 1.5)["b"][0] is False
    # A quorum that goes on answering vouches for it.
    for safekeeper_id in (1, 2):
        answer = AppendResponse(leadership.leader_id, 900, 900, 1, has_readers=True)
        leadership.on_append_response(safekeeper_id, answer, 60.0)
    assert standby_rows(proxy, 60.5)["a"][0] is True


def test_without_a_primary_a_standby_needs_what_may_still_become_committed_too(proxy: Proxy) -> None:
    a_term_with_standbys(proxy)
    assert standby_rows(proxy, 1.5)["a"] == (True, 0, 50)
    # Nobody was told that [900, 1000) is committed; once a quorum has it, a timeline that lacks it is refused.
    proxy.proposer.primary_lost(1.2)
    assert standby_rows(proxy, 1.5)["a"] == (False, 100, 150)


def test_what_a_standby_has_is_unknown_unless_this_proxy_knows_what_was_acknowledged(proxy: Proxy) -> None:
    a_term_with_standbys(proxy)
    # No quorum has answered for a while: another proxy may have taken over, and have acknowledged more.
    assert {row[0] for row in standby_rows(proxy, 9.0).values()} == {None}
    proxy.proposer.leadership, proxy.proposer._stage.phase = None, Phase.GATHERING
    assert {row[0] for row in standby_rows(proxy, 1.5).values()} == {None}
    # A term whose start is not on a quorum yet knows nothing of what went before.
    a_term_with_standbys(proxy, commit_lsn=50)
    assert {row[0] for row in standby_rows(proxy, 1.5).values()} == {None}


def test_whom_remote_apply_waits_for_and_in_vain_is_shown(proxy: Proxy) -> None:
    status = proxy_status(proxy, 1.0)
    assert (status.apply_rule, status.apply_problem, status.standbys) == ("", None, [])
    a_term_with_standbys(proxy, "A, gone")
    status = proxy_status(proxy, 1.5)
    assert (status.apply_rule, status.apply_problem) == ("A, gone", "gone is not streaming")
    assert {row.name: row.designated for row in status.standbys}["a"] is True


def test_a_changed_rule_is_taken_while_the_proxy_runs(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    leadership = a_term_with_standbys(proxy)
    leadership.streaming = True
    assert leadership.status().apply_lsn == 900
    changed = replace(proxy.config, remote_apply_standbys=parse_apply_rule("b"))
    proxy.reconfigure(changed)
    assert (proxy.status.flush_lsn, proxy.status.apply_lsn) == (900, 600)
    assert "remote_apply waits for the standbys b" in caplog.text
    caplog.clear()
    proxy.reconfigure(changed)
    assert caplog.text == ""


def test_the_table_of_standbys_says_in_words_what_each_one_has_and_fits_80_columns(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy, "ANY 2 (a, gone)")
    archiver = Standby("pg_receivewal", 900, 900, 0)
    leadership.on_standby_feedback(1, (Standby("[red]a", 900, 900, 850), archiver))
    leadership.on_standby_feedback(3, (Standby("b", 900, 700, 600),))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(proxy_status(proxy, 1.5)))
    text = console.export_text()
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "has every acknowledged commit" in lines["[red]a"] and "50 B" in lines["[red]a"]
    assert "lacks 200 bytes" in lines["b"]
    assert "unknown" in lines["new"]
    assert "does not replay: not a server" in lines["pg_receivewal"]
    assert "1, gone" in lines["a"] and "has every acknowledged commit" in lines["a"]
    assert "remote_apply waits for ANY 2 (a, gone)" in text
    assert "remote_apply is blocked: a, gone are not streaming" in text


def test_watched_what_blocks_commits_is_first_and_times_are_shown_in_80_columns(proxy: Proxy) -> None:
    a_term_with_standbys(proxy, "a")
    times = proxy.measured.commits
    for safekeeper_id, took_s in ((1, 0.001), (2, 0.5), (3, 0.001)):
        times.members[safekeeper_id] = RecentHistogram()
        times.members[safekeeper_id].observe(took_s)
    times.commit.observe(0.003)
    status = proxy_status(proxy, 1.5)
    positions = {"write_lsn": "12/3456789A", "flush_lsn": "12/3456789A"}
    status.safekeepers = [listed_safekeeper(i, **positions) for i in (1, 2)]
    status.safekeepers.append(listed_safekeeper(3, "catching_up", "it is far back", **positions))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(status, by_urgency=True))
    lines = [line.strip() for line in console.export_text().splitlines() if line.strip()]
    assert lines[:2] == ["primary: not connected yet", "safekeeper 3: it is far back"]
    assert "commit latency until a quorum has the WAL on disk: p50/p99 2.9/3.9 ms" in lines
    assert [line.split()[0] for line in lines if "12/3456789A" in line] == ["3", "2", "1"]
    assert any(line.endswith("375/498 ms") for line in lines)
    console.print(render(status))
    unsorted = [line.strip() for line in console.export_text().splitlines() if line.strip()]
    assert [line.split()[0] for line in unsorted if "12/3456789A" in line] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.000061, "0.06 ms"), (0.0012, "1.2 ms"), (0.034, "34 ms"), (1.25, "1.2 s"), (64.0, "64 s")],
)
def test_times_have_a_unit_and_two_digits(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


# The archive.


def reports(
    leadership: Leadership, safekeeper_id: int, archived_lsn: int = 0, problem: str = "", *, is_archiver: bool = False
) -> None:
    report = ArchiveReport(50, True, is_archiver, archived_lsn, problem)
    leadership.on_archive_report(safekeeper_id, report, 1.0)


def test_where_nobody_has_an_archive_nothing_is_shown_of_one(proxy: Proxy) -> None:
    assert proxy_status(proxy, 1.0).archive is None
    leadership = a_term_with_standbys(proxy)
    leadership.on_archive_report(1, ArchiveReport(50, has_archive=False), 1.0)
    status = proxy_status(proxy, 1.5)
    assert status.archive is None
    assert not [line for line in shown(status) if line.startswith("archive")]
    assert "archive" not in summarise(status)


def test_who_archives_and_how_far_the_archive_is_are_shown(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy)
    reports(leadership, 2)
    status = proxy_status(proxy, 1.5)
    assert status.archive == ArchiveProgress(archiver=None, archived_lsn="0/0", lag_bytes=None, problem="")
    assert "archive: no archiver" in shown(status) and summarise(status).endswith(" archive=none:-")
    leadership.tick(1.5 + INCUMBENT_GRACE_S)
    status = proxy_status(proxy, 4.0)
    assert status.archive == ArchiveProgress(archiver=2, archived_lsn="0/0", lag_bytes=None, problem="")
    assert "archive: safekeeper 2 has not reported its progress yet" in shown(status)
    reports(leadership, 2, 700, is_archiver=True)
    status = proxy_status(proxy, 4.0)
    assert status.archive == ArchiveProgress(archiver=2, archived_lsn="0/2BC", lag_bytes=200, problem="")
    assert "archive: safekeeper 2, up to 0/2BC, lag 200 B" in shown(status)
    assert summarise(status).endswith(" archive=2:200B")


def test_what_keeps_the_archiver_from_archiving_is_shown(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy)
    reports(leadership, 2, 700, "no route to the store", is_archiver=True)
    leadership.tick(1.5)
    status = proxy_status(proxy, 1.5)
    assert status.archive == ArchiveProgress(
        archiver=2, archived_lsn="0/2BC", lag_bytes=200, problem="no route to the store"
    )
    assert "archive: safekeeper 2 cannot archive: no route to the store" in shown(status)
    assert summarise(status).endswith(" archive=2:problem")


def test_an_archive_that_is_ahead_of_this_term_is_not_behind(proxy: Proxy) -> None:
    leadership = a_term_with_standbys(proxy)
    reports(leadership, 2, 1000, is_archiver=True)
    leadership.tick(1.5)
    progress = ArchiveProgress(archiver=2, archived_lsn="0/3E8", lag_bytes=0, problem="")
    assert proxy_status(proxy, 1.5).archive == progress
    leadership.commit_lsn, progress.lag_bytes = 0, None
    assert proxy_status(proxy, 1.5).archive == progress
