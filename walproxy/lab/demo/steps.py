"""The steps of the demo, in order.

The cluster under load, its standby (standby_steps.py), the books, the bytes, the loss of nearly everything
(loss_steps.py), the tables made from it (pipeline_steps.py), and servers with agents (agent_steps.py).
"""

import shutil
import time

from safekeeper.base.lsn import format_lsn
from walproxy.lab.demo.agent_steps import AGENT_STEPS
from walproxy.lab.demo.bank import CREATE
from walproxy.lab.demo.books import compare_books
from walproxy.lab.demo.loss_steps import LOSS_STEPS, TAKE_BASE_BACKUP
from walproxy.lab.demo.pipeline_steps import PIPELINE_STEPS
from walproxy.lab.demo.stage import (
    SHORT_WATCH_S,
    DemoStage,
    Step,
    serving_proxy,
)
from walproxy.lab.demo.standby_steps import PROXY_OPTIONS, STANDBY_STEPS
from walproxy.lab.wal_compare import compare_wal, count_records
from walproxy.proxy.status_table import format_bytes

_SHUTDOWN_S_MAX = 60.0
_WATCH_S = 2.0
_TAKEOVER_S_USUAL = 3.0
_PAUSE_S_USUAL = 1.0
_LOST = 3


def _start(stage: DemoStage) -> str:
    cluster = stage.cluster
    # The smallest segments, so that even a short load crosses many of their borders.
    cluster.postgres.init(wal_segment_mib=1)
    cluster.start()
    cluster.postgres.execute(CREATE)
    stage.wait_until(lambda: bool((cluster.safekeepers[1].status() or {}).get("segment_size")), "safekeeper 1 replies")
    stage.segment_size = (cluster.safekeepers[1].status() or {})["segment_size"]
    stage.start_load()
    stage.wait_until(lambda: bool(stage.history.acknowledged), "a transfer was acknowledged")
    begin, end = stage.observe(_WATCH_S)
    rate = stage.history.acknowledged_between(begin, end) / (end - begin)
    return (
        f"PostgreSQL {cluster.postgres.binaries.version}, {len(cluster.safekeepers)} safekeepers, a proxy; "
        f"{stage.clients} clients commit {rate:,.0f} transfers/s"
    )


def _kill_one_safekeeper(stage: DemoStage) -> str:
    stage.kill_safekeeper(1)
    begin, _ = stage.observe(_WATCH_S)
    stage.wait_until(lambda: stage.history.first_begun_since(begin) is not None, "a commit succeeds with two of three")
    end = time.monotonic()
    committed = stage.history.acknowledged_between(begin, end)
    pause_s = stage.history.longest_pause_s(begin, end)
    return (
        f"{committed:,} commits in {end - begin:.1f} s went on; the longest pause was {pause_s * 1000:.0f} ms "
        f"({stage.usual(pause_s, _PAUSE_S_USUAL)})"
    )


def _kill_second_safekeeper(stage: DemoStage) -> str:
    stage.kill_safekeeper(2)
    killed = time.monotonic()
    stage.wait_until_all_wait()
    begin, end = stage.observe(_WATCH_S)
    for_quorum, for_locks = stage.waiting_clients()
    # Commits that began before may have been on a quorum already, and their acknowledgements on the way.
    acknowledged = sum(1 for _ in stage.history.begun_since(killed))
    stage.require(
        acknowledged == 0, f"{acknowledged} commits began with one safekeeper of three, and were acknowledged"
    )
    stage.require(for_quorum > 0, "no commit waits with wait_event SyncRep")
    for_rows = f" ({for_locks} more for row locks)" if for_locks else ""
    return f"{for_quorum} commits wait{for_rows}, 0 acknowledged in {end - begin:.1f} s"


def _start_one_safekeeper(stage: DemoStage) -> str:
    waited_from = time.monotonic()
    stage.cluster.safekeepers[2].start()
    seconds = stage.seconds_to_new_commit(waited_from, waited_from)
    return f"commits resumed by themselves; the first new one {seconds:.2f} s after the start"


def _start_other_safekeeper(stage: DemoStage) -> str:
    target_lsn = stage.cluster.commit_lsn()
    missed_bytes = target_lsn - stage.dead_since_lsn[1]
    stage.cluster.safekeepers[1].start()
    seconds = stage.wait_until(
        lambda: stage.safekeeper_lsns("flush_lsn")[1] >= target_lsn, "safekeeper 1 has caught up"
    )
    return f"it was fed the {format_bytes(missed_bytes)} that it had missed within {seconds:.2f} s, under load"


def _replace_lost_disk(stage: DemoStage) -> str:
    cluster = stage.cluster
    begin = time.monotonic()
    stage.kill_safekeeper(_LOST)
    shutil.rmtree(cluster.safekeeper_directory(_LOST))
    cluster.safekeepers[_LOST].start()
    stage.wait_until(lambda: cluster.safekeepers[_LOST].status() is not None, "it answers")
    printed = stage.command("members", "replace", str(_LOST), finds_safekeepers=True)
    end = time.monotonic()
    pause_s = stage.history.longest_pause_s(begin, end)
    members = printed.splitlines()[-1]
    return (
        f"{members} after {end - begin:.1f} s; the longest pause of commits was {pause_s * 1000:.0f} ms "
        f"({stage.usual(pause_s, _PAUSE_S_USUAL)})"
    )


def _restart_proxy(stage: DemoStage) -> str:
    proxy = stage.cluster.proxy
    before = time.monotonic()
    proxy.kill9()
    killed = time.monotonic()
    stage.cluster.start_proxy(proxy)
    seconds = stage.seconds_to_new_commit(before, killed)
    stage.observe(SHORT_WATCH_S)
    return f"the first new commit {seconds:.2f} s after the kill ({stage.usual(seconds, _TAKEOVER_S_USUAL)})"


def _take_over(stage: DemoStage) -> str:
    cluster = stage.cluster
    spare = cluster.make_proxy("walproxy-spare", *PROXY_OPTIONS)
    cluster.proxies.append(spare)
    cluster.start_proxy(spare)
    stage.wait_until(spare.is_spare, "the second proxy is a spare")
    serving = serving_proxy(stage)[0]
    other = next(proxy for proxy in cluster.proxies if proxy is not serving)
    before = time.monotonic()
    serving.kill9()
    killed = time.monotonic()
    seconds = stage.seconds_to_new_commit(before, killed)
    status = other.proxy_status()
    term = status.term if status is not None else None
    cluster.start_proxy(serving)
    stage.wait_until(serving.is_spare, "the old proxy is the spare now")
    return (
        f"the first commit through the spare (term {term}) {seconds:.2f} s after the kill "
        f"({stage.usual(seconds, _TAKEOVER_S_USUAL)}); the old one is the spare now"
    )


def _crash_postgres(stage: DemoStage) -> str:
    before = time.monotonic()
    doubtful = len(stage.history.in_doubt)
    stage.cluster.postgres.kill9()
    killed = time.monotonic()
    stage.cluster.postgres.start()
    seconds = stage.seconds_to_new_commit(before, killed)
    stage.observe(SHORT_WATCH_S)
    lost = len(stage.history.in_doubt) - doubtful
    return f"the first new commit {seconds:.2f} s after the kill, recovery included; {lost} clients were left in doubt"


def _check_books(stage: DemoStage) -> str:
    stage.stop_load()
    return compare_books(stage)


def _shut_down(stage: DemoStage) -> str:
    begin = time.monotonic()
    stage.cluster.postgres.stop("fast", _SHUTDOWN_S_MAX)
    end = time.monotonic()
    # The quorum has the last record, the shutdown's checkpoint; the third safekeeper gets it a moment later.
    stage.end_lsn = max(stage.all_safekeeper_lsns("flush_lsn").values())
    stage.wait_until(
        lambda: min(stage.safekeeper_lsns("flush_lsn").values()) >= stage.end_lsn,
        f"all safekeepers have the WAL up to {format_lsn(stage.end_lsn)}",
    )
    return f"a fast shutdown took {end - begin:.2f} s; all safekeepers end at {format_lsn(stage.end_lsn)}"


def _compare_bytes(stage: DemoStage) -> str:
    cluster = stage.cluster
    primary_wals = [server.pg_wal for server in (cluster.postgres, *cluster.former_primaries)]
    found = {
        compare_wal(stage.wal_folder(i), primary_wals, stage.segment_size, stage.end_lsn) for i in cluster.safekeepers
    }
    stage.require(len(found) == 1, "the safekeepers' WAL does not begin at the same segment")
    [compared] = found
    return (
        f"{format_bytes(compared.end_lsn - compared.begin_lsn)} in {compared.segments} segments of each safekeeper "
        f"equal pg_wal of the two primaries, from {format_lsn(compared.begin_lsn)} to {format_lsn(compared.end_lsn)}"
    )


def _dump_records(stage: DemoStage) -> str:
    postgres = stage.cluster.postgres
    folders = [stage.wal_folder(i) for i in stage.cluster.safekeepers]
    found = {count_records(postgres.binaries, folder, stage.segment_size, stage.end_lsn) for folder in folders}
    stage.require(len(found) == 1, f"pg_waldump finds different numbers of records: {sorted(found)}")
    return f"pg_waldump reads {found.pop():,} records in each safekeeper's files"


STEPS = (
    Step("start everything", _start),
    TAKE_BASE_BACKUP,
    Step("kill -9 a safekeeper: commits go on", _kill_one_safekeeper),
    Step("kill -9 a second one: commits wait", _kill_second_safekeeper),
    Step("start one of them: commits resume", _start_one_safekeeper),
    Step("start the other one: it catches up", _start_other_safekeeper),
    Step("delete a safekeeper's disk: replaced", _replace_lost_disk),
    Step("kill -9 the proxy, start it again", _restart_proxy),
    Step("kill -9 the proxy: a spare takes over", _take_over),
    Step("kill -9 PostgreSQL, start it again", _crash_postgres),
    *STANDBY_STEPS,
    Step("what was acknowledged is there", _check_books),
    Step("shut PostgreSQL down", _shut_down),
    Step("compare the bytes with pg_wal", _compare_bytes),
    Step("read them with pg_waldump", _dump_records),
    *LOSS_STEPS,
    *PIPELINE_STEPS,
    *AGENT_STEPS,
)
"""The whole story."""

QUICK_STEPS = STEPS[: STEPS.index(LOSS_STEPS[0]) + 1]
"""Up to where everything is well and goes on: what needs neither Spark nor a minute."""
