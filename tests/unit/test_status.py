"""What the proxy shows of itself, in every state that a safekeeper can be in."""

import asyncio
from collections.abc import Iterator

import pytest

from safekeeper.consensus.control_state import NodeId
from safekeeper.consensus.membership import Member, Membership
from safekeeper.consensus.messages import PROTOCOL_VERSION, AcceptorGreeting, Refusal, RefusalCode
from safekeeper.consensus.roster import Peer
from safekeeper.settings import load
from walproxy.config import ENVIRONMENT_PREFIX, ProxyConfig
from walproxy.member_problem import member_problem
from walproxy.proxy import Proxy
from walproxy.status import not_ready_reason, proxy_status, safekeeper_state

MEMBERS = Membership(1, tuple(Member(i, f"{i}" * 32) for i in (1, 2, 3)))
PUBLIC = (
    *("state", "term", "system_id", "tli", "received_lsn", "write_lsn", "flush_lsn", "apply_lsn", "commit_lsn"),
    *("quorum", "safekeepers"),
)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    config = {"primary": "host=db1", "safekeepers": "1=sk1:1,2=sk2:2,3=sk3:3"}
    with asyncio.Runner() as runner:

        async def make() -> Proxy:
            return Proxy(load(ProxyConfig, ENVIRONMENT_PREFIX, command_line=config, environment={}, file=None))

        yield runner.run(make())


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
        promised=NodeId(term, "a" * 32 if term else ""),
        last_term=term,
        wal_begin_lsn=1 << 20 if term else 0,
        flush_lsn=5 << 20 if term else 0,
        commit_lsn=0,
        truncate_lsn=0,
    )


def empty(safekeeper_id: int) -> AcceptorGreeting:
    return greeting(safekeeper_id, incarnation="e" * 31 + str(safekeeper_id), membership=None, term=0)


def test_the_status_begins_with_the_fields_that_scripts_rely_on(proxy: Proxy) -> None:
    status = proxy_status(proxy, 1.0)
    assert tuple(status)[: len(PUBLIC)] == PUBLIC
    assert status["state"] == "connecting"
    assert status["quorum"] == 2
    assert status["commit_lsn"] == "0/0" and status["system_id"] is None and status["tli"] is None
    member = status["safekeepers"][0]
    assert tuple(member)[:6] == ("id", "state", "write_lsn", "flush_lsn", "lag_bytes", "last_response_s")
    assert (member["id"], member["state"], member["lag_bytes"], member["last_response_s"]) == (
        1,
        "disconnected",
        None,
        None,
    )


def test_a_proxy_that_does_not_stream_is_not_ready_and_says_why(proxy: Proxy) -> None:
    reason = not_ready_reason(proxy, 1.0)
    assert reason.startswith("connecting: ") and "safekeeper 2: not connected yet" in reason
    proxy.proposer.is_spare = True
    assert "waits as a spare" in not_ready_reason(proxy, 1.0)


def test_a_refused_safekeeper_shows_the_reason_also_while_it_is_disconnected(proxy: Proxy) -> None:
    proxy.proposer.connected(2, 1.0)
    proxy.proposer.message(2, Refusal(RefusalCode.WRONG_ID, "this is safekeeper 1, not 2", NodeId(0, "")), 1.0)
    assert safekeeper_state(proxy, 2) == "refused"
    proxy.proposer.disconnected(2, 1.0)
    status = proxy_status(proxy, 1.0)["safekeepers"][1]
    assert (status["state"], status["problem"]) == ("refused", "this is safekeeper 1, not 2")


def test_positions_of_a_greeting_are_shown_before_a_term_is_led(proxy: Proxy) -> None:
    proxy.proposer.connected(1, 1.0)
    proxy.proposer.message(1, greeting(1), 1.0)
    status = proxy_status(proxy, 1.0)["safekeepers"][0]
    assert (status["write_lsn"], status["flush_lsn"]) == ("0/500000", "0/500000")


# Why a safekeeper does not count.


def peers(*greetings: AcceptorGreeting | None) -> dict[int, Peer]:
    return {i: Peer(connected=True, greeting=each) for i, each in enumerate(greetings, 1)}


def test_a_member_has_no_problem_and_before_a_greeting_none_is_known() -> None:
    known = peers(greeting(1), greeting(2), None)
    assert [member_problem(i, known, "") for i in (1, 2, 3)] == ["", "", ""]


def test_a_connection_problem_and_a_refusal_are_shown_as_they_are() -> None:
    known = peers(greeting(1), greeting(2), None)
    assert member_problem(3, known, "could not connect") == "could not connect"
    known[3].refused = "wrong id"
    assert member_problem(3, known, "could not connect") == "wrong id"


def test_safekeepers_that_are_all_empty_have_no_problem() -> None:
    known = peers(empty(1), empty(2), empty(3))
    assert [member_problem(i, known, "") for i in (1, 2, 3)] == ["", "", ""]


def test_one_lost_disk_is_fed_and_two_take_a_rebootstrap() -> None:
    problem = member_problem(3, peers(greeting(1), greeting(2), empty(3)), "")
    assert "is empty" in problem and "fed and does not count" in problem and "rebootstrap" not in problem
    known = peers(greeting(1), empty(2), empty(3))
    assert member_problem(1, known, "") == ""
    for safekeeper_id in (2, 3):
        assert "walproxy rebootstrap" in member_problem(safekeeper_id, known, "")


def test_a_folder_that_was_replaced_by_one_with_promises_is_told_apart_from_an_empty_one() -> None:
    known = peers(greeting(1), greeting(2), greeting(3, incarnation="f" * 32))
    assert "has been replaced" in member_problem(3, known, "")


def test_a_member_that_missed_the_end_of_the_bootstrap_counts() -> None:
    known = peers(greeting(1, term=0), greeting(2, term=0), greeting(3, membership=None, term=0))
    assert member_problem(3, known, "") == ""
