"""A session that streams a slot: it lasts while its reader is busy, and ends in one line."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.apply_fixtures import compare, options_of, rows_here
from tests.pipeline.logical_server import Source, client, logical_server, wait_until
from tests.primary_answer import answer_to
from walproxy.pipeline.cdc import change_feed, slot_stream
from walproxy.pipeline.cdc.apply import job as job_module
from walproxy.pipeline.cdc.apply.job import ApplyOptions, opened_job, run_apply
from walproxy.pipeline.cdc.apply.job_file import only_job
from walproxy.pipeline.cdc.change_feed import ChangeFeed
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.safe_lsn import SafeLsn, flush_lsn
from walproxy.pipeline.cdc.server import SourceRefused, SourceUnavailable, patiently, server_major
from walproxy.pipeline.cdc.slot import is_held_back, read_slot, usable_slot
from walproxy.postgres.local_server import LocalPostgres, find_servers
from walproxy.postgres.logical_replication import WAITING_READER, Item

NEWEST, *OLDER = sorted(find_servers(), reverse=True)
MAJORS = [NEWEST, *(pytest.param(major, marks=pytest.mark.nightly) for major in OLDER)]


@pytest.fixture(scope="module", params=MAJORS, ids=lambda major: f"pg{major}")
def server(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    with logical_server(request.param) as made:
        yield made


@pytest.fixture
def source(server: LocalPostgres) -> Iterator[Source]:
    with closing(Source(server)) as made:
        made.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        made.publish("t")
        yield made


@contextmanager
def feed_of(source: Source, options: str = "", **more: Any) -> Iterator[ChangeFeed]:
    words = f"{source.conninfo} {options}"
    more = {"beside": source.asking, **more}
    with closing(ChangeFeed(words, source.slot, [source.publication], source.begin_lsn, **more)) as feed:
        yield feed


def walsender(source: Source) -> int | None:
    state = read_slot(source.connection, source.slot)
    assert state is not None
    return state.active_pid


def take_until(feed: ChangeFeed, lsn: int) -> list[Item]:
    """Take everything up to the server's position `lsn`."""
    taken: list[Item] = []
    deadline = time.monotonic() + 60
    while not any(each >= lsn and not data for each, data in taken):
        assert time.monotonic() < deadline
        feed.ask()
        taken += feed.take(0.2)
    return taken


def kinds(items: list[Item]) -> bytes:
    return b"".join(data[:1] for _, data in items)


def test_a_session_outlasts_a_reader_that_takes_nothing_and_holds_a_bounded_amount(source: Source) -> None:
    # More than two timeouts, each long enough for a thread that a busy machine keeps waiting.
    is_old = f"SELECT now() - backend_start > '11s' FROM pg_stat_activity WHERE application_name = '{WAITING_READER}'"
    with feed_of(source, "options='-c wal_sender_timeout=5s'", queue_bytes_max=10_000) as feed:
        pid = walsender(source)
        source.run("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) i")
        wait_until(lambda: source.rows(is_old) != [(False,)])
        assert source.rows(is_old) == [(True,)]
        assert walsender(source) == pid
        assert feed._held_bytes < 1 << 20
        assert kinds(take_until(feed, source.end_lsn())).count(b"I") == 10_000
        assert walsender(source) == pid


def test_a_session_that_does_not_report_in_time_is_ended_by_the_server(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "_report_interval", lambda connection: 1000.0)
    with feed_of(source, "options='-c wal_sender_timeout=1s'", queue_bytes_max=10_000) as feed:
        source.run("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
        wait_until(lambda: walsender(source) is None)
        with pytest.raises(SourceUnavailable, match="could not read the changes of slot") as raised:
            take_until(feed, source.end_lsn())
        assert "\n" not in str(raised.value)


def test_the_slot_moves_to_what_was_confirmed_and_is_free_when_the_session_is_closed(source: Source) -> None:
    source.run("INSERT INTO t VALUES (1)")
    end_lsn = source.end_lsn()
    with feed_of(source) as feed:
        assert kinds(take_until(feed, end_lsn)).count(b"I") == 1
        assert usable_slot(source.connection, source.slot)[1] == source.begin_lsn
        feed.confirm(end_lsn)
    state = read_slot(source.connection, source.slot)
    assert state is not None and (state.confirmed_flush_lsn, state.active_pid) == (end_lsn, None)


def test_a_slot_in_use_is_waited_for_and_not_for_ever(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = ChangeFeed(source.conninfo, source.slot, [source.publication], source.begin_lsn, beside=source.asking)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(patiently, "__kwdefaults__", {"timeout_s": 0.0})
            with pytest.raises(SourceUnavailable, match="is active for PID") as raised, feed_of(source):
                pass
        assert "\n" not in str(raised.value)
        timer = threading.Timer(0.3, holder.close)
        timer.start()
        with feed_of(source):
            timer.join()
    finally:
        holder.close()


def test_the_proxy_does_not_warn_of_a_reader_that_waits_for_the_quorum(source: Source) -> None:
    with feed_of(source):
        assert walsender(source) is not None
        assert source.slot not in asyncio.run(answer_to(source.conninfo)).subscribers.slots


def test_a_session_that_is_lost_ends_the_step_and_the_next_one_reads_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeFeed.__init__, "__kwdefaults__", {"queue_bytes_max": 10_000})
    options = options_of(source, tmp_path, memory_bytes=8 << 20)
    run_apply(options, once=True)
    # More than the sockets hold, so that the server has not sent everything when it loses the session.
    source.run("INSERT INTO t SELECT i, repeat('x', 4000) FROM generate_series(1, 5000) i")
    flush, ended = job_module.ApplyJob._flush, []

    def ending(self: job_module.ApplyJob, *words: Any) -> None:
        flush(self, *words)
        if not ended:
            ended.append(walsender(source))
            source.rows(f"SELECT pg_terminate_backend({ended[0]})")

    with monkeypatch.context() as patched:
        patched.setattr(job_module.ApplyJob, "_flush", ending)
        with pytest.raises(SourceUnavailable, match="could not read the changes of slot"):
            run_apply(options, once=True)
    source.run("DELETE FROM t WHERE id % 2 = 0")
    run_apply(options, once=True)
    compare(source, options.location, "delta", "t")


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "queue full"])
def test_a_server_stops_though_not_everything_was_confirmed(source: Source, is_taken: bool) -> None:
    source.run("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    with feed_of(source, queue_bytes_max=10_000) as feed:
        if is_taken:
            take_until(feed, source.end_lsn())
        try:
            source.server.stop("fast")
            with pytest.raises(SourceUnavailable, match="the server closed the other connection"):
                feed.take(60)
        finally:
            source.server.kill9()
            source.server.start()
            source.connection.close()
            source.asking.close()
            source.connection, source.asking = client(source.conninfo), client(source.conninfo)


def test_a_slot_that_is_invalidated_while_it_is_streamed_means_to_start_over(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    source.run("INSERT INTO t VALUES (1)")
    try:
        with only_job(options.location), opened_job(options, first=True, ends=True) as job:
            job.copy_missing()
            source.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
            # A reload only sends a signal.
            wait_until(lambda: source.server.execute("SHOW max_slot_wal_keep_size") == [("1MB",)])
            for _ in range(3):
                source.run("SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()", "CHECKPOINT")
            with pytest.raises(SourceUnavailable, match="could not read the changes of slot"):
                for _ in range(100):
                    job.step()
        with pytest.raises(SourceRefused, match=r"is lost \(.*\): changes are missing") as raised:
            run_apply(options, once=True)
        assert "\n" not in str(raised.value)
    finally:
        source.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def follow_while_more_arrives(source: Source, options: ApplyOptions) -> int:
    """Follow up to a row that is on the quorum, while the session has received another one; return the quorum's end."""
    run_apply(options, once=True)
    source.run("INSERT INTO t VALUES (1, 'on the quorum')")
    quorum_lsn = source.end_lsn()
    source.run("INSERT INTO t VALUES (2, 'not yet')")
    end_lsn = source.end_lsn()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SafeLsn, "read", lambda self, connection: quorum_lsn)
        with only_job(options.location), opened_job(options, first=True, ends=True) as job:
            wait_until(lambda: any(lsn >= end_lsn for lsn, _ in job._feed._items))
            job.copy_missing()
            job.follow_until_now(threading.Event())
    return quorum_lsn


def test_the_slot_is_not_moved_beyond_the_quorum_though_more_was_received(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    quorum_lsn = follow_while_more_arrives(source, options)
    assert usable_slot(source.connection, source.slot)[1] == quorum_lsn
    assert rows_here(options.location, "delta", TableName("public", "t"))["id"].to_pylist() == [1]
    run_apply(options, once=True)
    compare(source, options.location, "delta", "t")


def test_a_feed_that_confirms_what_it_received_is_noticed(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path)
    confirm = ChangeFeed.confirm
    with monkeypatch.context() as patched:
        patched.setattr(ChangeFeed, "confirm", lambda feed, lsn: confirm(feed, flush_lsn(source.connection)))
        follow_while_more_arrives(source, options)
    with pytest.raises(SourceRefused, match="another program advanced it"):
        run_apply(options, once=True)


def test_connections_to_different_servers_are_refused(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(source, tmp_path)
    monkeypatch.setattr(change_feed, "server_start", lambda connection: "another time")
    with pytest.raises(SourceUnavailable, match="led to different servers"):
        run_apply(options, once=True)


@pytest.fixture
def held_back(source: Source) -> Iterator[None]:
    """The server waits for a slot that nobody reads, before it sends changes that are newer than that slot."""
    if server_major(source.connection) < 17:
        pytest.skip("no synchronized_standby_slots before PostgreSQL 17")
    setting = "SHOW synchronized_standby_slots"
    source.run("SELECT pg_create_physical_replication_slot('away', true)")
    source.run("ALTER SYSTEM SET synchronized_standby_slots = 'away'", "SELECT pg_reload_conf()")
    wait_until(lambda: source.rows(setting) == [("away",)])
    yield
    source.run("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
    wait_until(lambda: source.rows(setting) == [("",)])
    source.run("SELECT pg_drop_replication_slot('away')")


@pytest.mark.usefixtures("held_back")
def test_a_server_that_other_slots_hold_back_ends_a_run_in_one_line(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_stream, "_QUIET_MAX_S", 1.0)
    source.run("INSERT INTO t VALUES (1)")
    with pytest.raises(SourceUnavailable, match="waits for the slots in synchronized_standby_slots"):
        run_apply(options_of(source, tmp_path, status="none"), once=True)


@pytest.mark.usefixtures("held_back")
def test_a_job_whose_server_is_held_back_stops_when_it_is_asked_to(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, is_waiting = threading.Event(), threading.Event()
    failures: list[Exception] = []
    ask = ChangeFeed.ask

    def asking(feed: ChangeFeed) -> None:
        is_waiting.set()  # a step needs more than it has
        ask(feed)

    monkeypatch.setattr(ChangeFeed, "ask", asking)

    def run() -> None:
        try:
            run_apply(options_of(source, tmp_path, status="none"), once=False, stop=stop)
        except Exception as error:
            failures.append(error)

    source.run("INSERT INTO t VALUES (1)")
    job = threading.Thread(target=run, daemon=True)
    job.start()
    assert is_waiting.wait(60)
    wait_until(lambda: is_held_back(source.connection, source.slot))
    stop.set()
    job.join(60)
    assert not job.is_alive() and failures == []


def test_a_transaction_that_stays_open_is_decoded_once_and_not_with_each_step(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)

    def spilled() -> int:
        if server_major(source.connection) < 14:  # which does not count it
            return 2 << 20
        query = "SELECT coalesce(sum(spill_bytes), 0)::bigint FROM pg_stat_replication_slots WHERE slot_name = "
        return int(source.rows(f"{query}'{source.slot}'")[0][0])

    with only_job(options.location), opened_job(options, first=True, ends=True) as job:
        job.copy_missing()
        source.asking.execute("BEGIN")
        source.asking.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 2000) i")
        pid = walsender(source)
        for number in range(5):
            source.run(f"INSERT INTO t VALUES ({-1 - number})")
            job.follow_until_now(threading.Event())
            if number == 0:
                wait_until(lambda: spilled() > 1 << 20)
                once = spilled()
        assert walsender(source) == pid
        compare(source, options.location, "delta", "t")
        source.asking.execute("COMMIT")
        job.follow_until_now(threading.Event())
    compare(source, options.location, "delta", "t")
    wait_until(lambda: spilled() >= once)
    assert spilled() < 1.5 * once
