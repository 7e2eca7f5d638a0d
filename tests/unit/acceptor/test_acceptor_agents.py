"""The acceptor and agents: those of its cluster are served, and it remembers when a leader was healthy."""

from safekeeper.acceptor.effects import ServeAgent
from safekeeper.consensus.messages import AgentExchange, RefusalCode
from tests.unit.acceptor.test_acceptor import BASE, CLUSTER, P1, P2, Bench, elected, following, member

EXCHANGE = AgentExchange(CLUSTER, "one", b"{}")


def test_an_agent_of_this_cluster_is_served_and_nothing_changes() -> None:
    bench = following(100)
    bench.greet(2)
    before = vars(bench.acceptor).copy()
    bench.deliver(EXCHANGE, 2)
    assert bench.effects == [ServeAgent(2, EXCHANGE)]
    assert vars(bench.acceptor) == before


def test_an_agent_of_another_cluster_is_refused() -> None:
    bench = member()
    refusal = bench.deliver(AgentExchange("other", ""))
    assert refusal.code is RefusalCode.OTHER_CLUSTER
    assert (
        refusal.reason
        == f"safekeeper 1 belongs to cluster {CLUSTER[:8]}, not to other: correct the list of safekeepers"
    )
    assert bench.kinds() == ["Send"]


def test_an_agent_of_a_safekeeper_without_a_cluster_is_refused() -> None:
    bench = Bench()
    bench.greet()
    refusal = bench.deliver(EXCHANGE)
    assert refusal.code is RefusalCode.NOT_A_MEMBER
    assert refusal.reason == "safekeeper 1 does not belong to a cluster yet: start walproxy run first"


def test_only_a_message_that_reports_health_counts_as_of_a_healthy_leader() -> None:
    bench = following()
    assert bench.acceptor.healthy_seen_at is None
    bench.append(BASE, healthy=False)
    assert bench.acceptor.healthy_seen_at is None
    bench.append(BASE)
    bench.now += 1
    bench.append(BASE, b"w", healthy=False)
    assert bench.acceptor.healthy_seen_at == bench.now - 1


def test_when_a_leader_was_healthy_is_known_after_it_is_gone() -> None:
    bench = following()
    bench.append(BASE, b"w")
    received_at = bench.now
    bench.acceptor.disconnected(1)
    bench.now += 5
    bench.greet(2)
    bench.deliver(elected(P2, (1, BASE, 1), (2, BASE + 1, 1)), 2)
    assert bench.acceptor.leader == P2 != P1
    assert bench.acceptor.healthy_seen_at == received_at


def test_the_end_of_the_log_is_that_of_its_bytes() -> None:
    bench = member()
    assert bench.acceptor.log_end == (0, 0, 0, 0)
    bench.deliver(elected(P1, (1, BASE, 3, False, 2, 4)))
    assert bench.acceptor.log_end == (1, 0, 2, 4)
    bench.append(BASE, b"w")
    bench.flush()
    assert bench.acceptor.log_end == (1, 3, 2, 4)
