"""What /metrics says of a proxy is what /status says."""

from safekeeper.base.histogram import RecentHistogram
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import Refusal, RefusalCode
from tests.unit.proxy.statuses import gate, listed_safekeeper, standby, status
from tests.unit.proxy.test_status import proxy as proxy  # a fixture
from walproxy.proposer.actions import ReportStatus
from walproxy.proxy.measurements import Measurements
from walproxy.proxy.metrics import ProxyCollector
from walproxy.proxy.proxy import Proxy
from walproxy.proxy.status import proxy_status


def numbers(collector: ProxyCollector) -> dict[str, float]:
    """The numbers by name and labels."""
    found = {}
    for family in collector.collect():
        assert family.documentation, family.name
        for sample in family.samples:
            found[sample.name + "".join(f"[{value}]" for value in sample.labels.values())] = float(sample.value)
    return found


def test_a_proxy_that_does_not_serve_says_so_in_numbers(proxy: Proxy) -> None:
    found = numbers(ProxyCollector(lambda: proxy_status(proxy, 1.0), lambda: "no primary", proxy.measured))
    assert (found["walproxy_ready"], found["walproxy_spare"], found["walproxy_quorum"]) == (0, 0, 2)
    assert found["walproxy_safekeeper_streaming[3]"] == 0
    assert "walproxy_safekeeper_lag_bytes[3]" not in found, "a lag that is unknown is no lag of 0"


def test_whether_commits_wait_is_one_of_four_states_and_absent_for_a_spare() -> None:
    shown = status(gate=None)
    collector = ProxyCollector(lambda: shown, lambda: "", Measurements())
    assert not [name for name in numbers(collector) if name.startswith("walproxy_gate")]
    shown.gate = gate("not gated", hangs=True)
    found = {name: value for name, value in numbers(collector).items() if name.startswith("walproxy_gate")}
    assert found == {
        "walproxy_gate[gated]": 0,
        "walproxy_gate[gated with others]": 0,
        "walproxy_gate[not gated]": 1,
        "walproxy_gate[unknown]": 0,
        "walproxy_gate_hangs": 1,
    }


def test_positions_members_and_standbys_are_reported_in_bytes() -> None:
    shown = status(
        received_lsn="1/10",
        commit_lsn="1/8",
        spare=True,
        apply_problem="standby2 is gone",
        safekeepers=[listed_safekeeper(1, "disconnected"), listed_safekeeper(2, lag_bytes=8)],
        standbys=[
            standby("standby1", apply_lag_bytes=24, stalled_s=12.0),
            standby("standby2", connected=False, apply_lag_bytes=None),
        ],
    )
    found = numbers(ProxyCollector(lambda: shown, lambda: "", Measurements()))
    assert found["walproxy_received_lsn_bytes"] - found["walproxy_commit_lsn_bytes"] == 8
    assert found["walproxy_commit_lsn_bytes"] == (1 << 32) + 8
    assert (found["walproxy_ready"], found["walproxy_spare"], found["walproxy_apply_problem"]) == (1, 1, 1)
    assert (found["walproxy_safekeeper_streaming[2]"], found["walproxy_safekeeper_lag_bytes[2]"]) == (1, 8)
    assert (found["walproxy_standby_connected[standby1]"], found["walproxy_standby_connected[standby2]"]) == (1, 0)
    assert found["walproxy_standby_apply_lag_bytes[standby1]"] == 24
    assert found["walproxy_standby_stalled_seconds[standby1]"] == 12
    assert "walproxy_standby_apply_lag_bytes[standby2]" not in found


def test_times_elections_and_refusals_are_reported_and_each_reason_and_state_is_listed(proxy: Proxy) -> None:
    measured = proxy.measured
    measured.commits.commit.observe(0.003)
    measured.commits.members[2] = RecentHistogram()
    measured.commits.members[2].observe(0.75)
    measured.answers.count(Refusal(RefusalCode.STORAGE_FULL, "full", LeaderId(1, "a" * 32)))
    measured.elections.lost, measured.elections.term_began_at = 2, 0.25
    for _ in range(3):
        measured.connected(1)
    found = numbers(ProxyCollector(lambda: proxy_status(proxy, 1.0), lambda: "", measured))
    assert (found["walproxy_wal_seconds_count[flush]"], found["walproxy_wal_seconds_sum[flush]"]) == (1, 0.003)
    assert (found["walproxy_wal_seconds_bucket[flush][0.00390625]"], found["walproxy_wal_seconds_count[write]"]) == (
        1,
        0,
    )
    assert found["walproxy_append_seconds_bucket[2][0.5]"] == 0 and found["walproxy_append_seconds_bucket[2][1.0]"] == 1
    assert (found["walproxy_refusals_total[storage_full]"], found["walproxy_refusals_total[history]"]) == (1, 0)
    assert (found["walproxy_elections_total[lost]"], found["walproxy_term_age_seconds"]) == (2, 0.75)
    assert (found["walproxy_safekeepers[disconnected]"], found["walproxy_safekeepers[streaming]"]) == (3, 0)
    assert found["walproxy_safekeeper_reconnects_total[1]"] == 2


def test_the_totals_of_the_limbo_are_those_of_positions_and_of_the_policy(proxy: Proxy) -> None:
    proxy.window.reset(100)
    proxy.window.append(100, [memoryview(bytes(60))])
    collector = ProxyCollector(lambda: proxy_status(proxy, 1.0), lambda: "", proxy.measured)
    assert numbers(collector)["walproxy_limbo_bytes"] == 0, "nothing was reported yet"
    proxy.status = ReportStatus(110, 110, 110)
    proxy.limbo._clock = lambda: 9.0
    proxy.limbo.arrivals.note((110, 1.0))
    proxy.limbo.arrivals.note((160, 7.0))
    proxy.limbo.policy.counts["detach"] = 3
    proxy.limbo.policy.is_fenced = True
    found = numbers(collector)
    assert (found["walproxy_limbo_bytes"], found["walproxy_limbo_oldest_seconds"]) == (50, 2.0)
    assert (found["walproxy_commit_timeouts_total[detach]"], found["walproxy_commit_timeouts_total[warn]"]) == (3, 0)
    assert (found["walproxy_limbo_read_only"], found["walproxy_discarded_transactions_total"]) == (1, 0)
