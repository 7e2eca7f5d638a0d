"""Changes of real servers, the oldest and the newest: what a slot sends, and when it must not be read."""

import contextlib
import dataclasses
import http.server
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn, parse_lsn
from tests.pipeline.logical_server import Source, client, logical_server, places, wait_until
from tests.unit.proxy.statuses import status
from walproxy.cli.pipeline_commands.cdc import cdc
from walproxy.pipeline.cdc.column_types import arrow_type
from walproxy.pipeline.cdc.messages import UNCHANGED
from walproxy.pipeline.cdc.publication import TableName, create_publication, parse_table
from walproxy.pipeline.cdc.published_tables import published_tables
from walproxy.pipeline.cdc.rows import TypedTable, change_batches, typed_batches
from walproxy.pipeline.cdc.safe_lsn import SafeLsn
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable, connect, patiently
from walproxy.pipeline.cdc.slot import LogicalSlot, advance, create_slot, protocol_version, read_slot, usable_slot
from walproxy.postgres.local_server import LocalPostgres, find_servers

MAJORS = sorted({min(find_servers()), max(find_servers())})


@pytest.fixture(scope="module", params=MAJORS, ids=lambda major: f"pg{major}")
def server(request: pytest.FixtureRequest) -> Iterator[LocalPostgres]:
    with logical_server(request.param) as made:
        yield made


@pytest.fixture
def source(server: LocalPostgres) -> Iterator[Source]:
    with closing(Source(server)) as made:
        yield made


def rows(source: Source) -> list[dict[str, Any]]:
    batches = change_batches(source.changes())
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def test_every_kind_of_change_arrives_with_its_place(source: Source) -> None:
    source.run('CREATE SCHEMA "a.b"', 'CREATE TABLE "a.b"."T" (id int PRIMARY KEY, v text, big text)')
    source.run('ALTER TABLE "a.b"."T" ALTER big SET STORAGE EXTERNAL')
    create_publication(source.connection, source.publication, [TableName("a.b", "T")])
    source.begin_lsn = create_slot(source.connection, source.slot)
    source.run(
        "INSERT INTO \"a.b\".\"T\" VALUES (1, 'é', repeat('x', 5000)), (2, NULL, NULL)",
        'UPDATE "a.b"."T" SET v = \'w\' WHERE id = 1',
        'UPDATE "a.b"."T" SET id = 3 WHERE id = 1',
        'DELETE FROM "a.b"."T" WHERE id = 3',
        'ALTER TABLE "a.b"."T" REPLICA IDENTITY FULL',
        'UPDATE "a.b"."T" SET v = \'z\' WHERE id = 2',
        'TRUNCATE "a.b"."T"',
        "SELECT pg_logical_emit_message(true, 'p', 'in'), pg_logical_emit_message(false, 'p', 'out')",
    )
    found = rows(source)
    big = "x" * 5000
    assert [(row["kind"], row["key"], row["before"], row["after"], row["unchanged"]) for row in found] == [
        ("insert", {"id": "1"}, None, {"id": "1", "v": "é", "big": big}, None),
        ("insert", {"id": "2"}, None, {"id": "2", "v": None, "big": None}, None),
        ("update", {"id": "1"}, None, {"id": "1", "v": "w"}, ["big"]),
        ("update", {"id": "1"}, None, {"id": "3", "v": "w"}, ["big"]),
        ("delete", {"id": "3"}, None, None, None),
        (
            "update",
            {"id": "2", "v": None, "big": None},
            {"id": "2", "v": None, "big": None},
            {"id": "2", "v": "z", "big": None},
            None,
        ),
        ("truncate", None, None, None, None),
        ("message", None, None, None, None),
    ]
    assert {(row["schema"], row["table"]) for row in found[:-1]} == {("a.b", "T")}
    assert found[-1]["message"] == b"in"
    assert [row["sequence"] for row in found] == [0, 1, 0, 0, 0, 0, 0, 0]
    order = [(row["commit_lsn"], row["sequence"]) for row in found]
    assert order == sorted(set(order))
    assert all(row["lsn"] <= row["commit_lsn"] for row in found[:-1])


VALUES = {
    "smallint": "-32768",
    "int": "7",
    "bigint": "9223372036854775807",
    "oid": "4294967295",
    "real": "1.5",
    "double precision": "'-Infinity'",
    "numeric(12,2)": "1234567890.12",
    "numeric": "1.50",
    "bool": "true",
    "text": "E'\\t\\\\ \\u00e9'",
    "char(3)": "'a'",
    "bytea": "'\\x00ff'",
    "date": "'2024-02-29'",
    "timestamp": "'2024-02-29 01:02:03.456'",
    "timestamptz": "'2024-02-29 01:02:03.456+05'",
    "cents": "1.25",
    "colour": "'red'",
    "int[]": "'{1,NULL}'",
    "jsonb": "'{\"a\": 1}'",
    "uuid": "'00000000-0000-0000-0000-000000000001'",
    "interval": "'1 day 02:00:00'",
}
AS_TEXT = {"numeric", "char(3)", "colour", "int[]", "jsonb", "uuid", "interval"}


def test_values_arrive_as_a_client_of_the_server_reads_them(source: Source) -> None:
    source.run("CREATE DOMAIN cents AS numeric(12,2)", "CREATE TYPE colour AS ENUM ('red')")
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(VALUES))
    source.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    source.publish("t")
    source.run(f"INSERT INTO t VALUES (1, {', '.join(VALUES.values())})", "INSERT INTO t VALUES (2)")
    [table] = published_tables(source.connection, [source.publication])
    fields = tuple(pa.field(each.name, arrow_type(each.type_oid, each.type_modifier)) for each in table.columns)
    batches = list(typed_batches(source.changes(), TypedTable(table.table, fields)))
    read = ", ".join(f"c{number}{'::text' if name in AS_TEXT else ''}" for number, name in enumerate(VALUES)).replace(
        "c10::text", "c10"
    )  # a cast to text would strip the blanks
    expected = source.rows(f"SELECT id, {read} FROM t ORDER BY id")
    found = [tuple(row[field.name] for field in fields) for batch in batches for row in batch.to_pylist()]
    assert found == expected


def test_ranges_cut_anywhere_have_each_transaction_once(source: Source) -> None:
    chance = random.Random(3)
    source.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.publish("t")
    for number in range(60):
        source.run(f"INSERT INTO t VALUES ({number}, repeat('x', {chance.randrange(9000)}))")
    end_lsn = source.end_lsn()
    whole = places(source.changes())
    assert len(whole) == 60
    for moves in (False, True):
        cuts = sorted(chance.randrange(source.begin_lsn, end_lsn) for _ in range(40))
        found, begin_lsn = [], source.begin_lsn
        for cut_lsn in [*cuts, end_lsn]:
            found += places(list(source.reader().read(source.connection, source.asking, begin_lsn, cut_lsn)))
            begin_lsn = cut_lsn
            if moves:
                advance(source.connection, source.slot, cut_lsn)
        assert found == whole


def test_transactions_in_pieces_are_the_same_as_whole_ones(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.publish("t")
    with client(source.conninfo) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO t SELECT i, 'kept' FROM generate_series(1, 900) i")
        other.execute("SAVEPOINT a")
        other.execute("INSERT INTO t SELECT i, 'gone' FROM generate_series(1001, 2500) i")
        source.run("INSERT INTO t VALUES (5000, 'between')")
        other.execute("ROLLBACK TO a")
        other.execute("ALTER TABLE t ADD COLUMN w int")
        other.execute("INSERT INTO t SELECT i, 'kept', 3 FROM generate_series(3001, 4000) i")
        other.execute("COMMIT")
        other.execute("BEGIN")
        other.execute("INSERT INTO t SELECT i, 'never' FROM generate_series(6001, 7000) i")
        other.execute("ROLLBACK")
        other.execute("BEGIN")
        other.execute("INSERT INTO t SELECT i, 'not yet' FROM generate_series(8001, 9000) i")
        whole = source.changes()
        in_pieces = source.changes(stream=True, memory_bytes=50_000)
        other.execute("COMMIT")
    assert len(whole) == 1 + 900 + 1000
    assert [(each.kind, each.transaction, each.sequence, each.after) for each in in_pieces] == [
        (each.kind, each.transaction, each.sequence, each.after) for each in whole
    ]
    assert [change.after[0] for change in whole[:2] if change.after] == [b"5000", b"1"]
    assert {len(change.after) for change in whole if change.after} == {2, 3}


def test_a_record_that_is_not_flushed_holds_nobody_up(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.publish("t")
    source.run("INSERT INTO t VALUES (1)")
    with client(source.conninfo) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(2, 1000) i")
        # All whole pages are flushed, and the record that goes on behind them is not.
        behind = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn())"

        def is_record_behind() -> bool:
            [(behind_bytes,)] = source.rows(behind)
            if behind_bytes == 0:  # The server has flushed that record, too.
                other.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
            return 1 <= behind_bytes <= 8191

        wait_until(is_record_behind)
        began = time.monotonic()
        assert len(source.changes()) == 1
        assert time.monotonic() - began < 8  # the server itself flushes after up to 15 s
        other.execute("ROLLBACK")


def test_a_column_that_is_added_comes_beside_the_typed_ones(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.publish("t")
    typed = TypedTable(TableName("public", "t"), (pa.field("id", pa.int32()), pa.field("v", pa.string())))
    source.run("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD w int, DROP v", "INSERT INTO t VALUES (2, 5)")
    [batch] = typed_batches(source.changes(), typed)
    found = batch.to_pylist(maps_as_pydicts="strict")
    assert [(row["id"], row["v"], row["_other"]) for row in found] == [(1, "a", None), (2, None, {"w": "5"})]


def test_what_is_out_of_line_and_untouched_is_said_to_be_unchanged(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY, v int, big text)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    source.publish("t")
    source.run("INSERT INTO t VALUES (1, 1, repeat('x', 4000))", "UPDATE t SET v = 2")
    assert source.changes()[-1].after == (b"1", b"2", UNCHANGED)


@pytest.mark.parametrize(("major", "version"), [(13, 1), (14, 2), (15, 3), (16, 4), (17, 4), (18, 4), (19, 4)])
def test_the_newest_protocol_that_both_sides_know_is_spoken(major: int, version: int) -> None:
    assert protocol_version(major) == version


class SafeUpTo(SafeLsn):
    """Says that everything is on the quorum, and notes what was waited for."""

    def __init__(self) -> None:
        super().__init__("none")
        self.waited_for: list[int] = []

    def wait_for(self, connection: Connection, lsn: int, timeout_s: float) -> None:
        self.waited_for.append(lsn)


def test_a_range_that_ends_within_a_commit_record_waits_until_the_quorum_has_the_record(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    source.publish("t")
    source.run("INSERT INTO t VALUES (1)")
    commit_lsn = source.changes()[0].transaction.commit_lsn
    safe = SafeUpTo()
    found = source.reader(safe).read(source.connection, source.asking, source.begin_lsn, commit_lsn + 8)
    next(found)
    end_lsn, waited_lsn = safe.waited_for
    assert end_lsn == commit_lsn + 8
    assert list(found) == []
    assert commit_lsn + 8 < waited_lsn <= source.end_lsn()
    assert list(source.reader(safe).read(source.connection, source.asking, source.begin_lsn, commit_lsn)) == []


class Refusal(NamedTuple):
    prepare: Callable[[Source], None]
    says: str


def _make_slot(query: str) -> Callable[[Source], None]:
    def prepare(source: Source) -> None:
        source.run(query.replace("NAME", f"'{source.slot}'"))

    return prepare


def _of_another_database(source: Source) -> None:
    source.server.execute(f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')")


REFUSALS = {
    "missing": Refusal(lambda source: None, "does not exist: .*cdc create"),
    "physical": Refusal(_make_slot("SELECT pg_create_physical_replication_slot(NAME)"), "physical one"),
    "plugin": Refusal(_make_slot("SELECT pg_create_logical_replication_slot(NAME, 'test_decoding')"), "test_decoding"),
    "two_phase": Refusal(
        _make_slot("SELECT pg_create_logical_replication_slot(NAME, 'pgoutput', false, true)"), "two_phase"
    ),
    "database": Refusal(_of_another_database, "belongs to the database 'postgres'.*dbname=postgres"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_slot_that_cannot_be_read_here_is_refused_in_one_line(source: Source, what: str) -> None:
    create_publication(source.connection, source.publication, [])
    REFUSALS[what].prepare(source)
    try:
        with pytest.raises(SourceRefused, match=REFUSALS[what].says) as raised:
            source.reader().check(source.connection)
        assert "\n" not in str(raised.value)
    finally:
        if what != "missing":
            source.server.execute("SELECT pg_drop_replication_slot(%s)", source.slot)


def test_a_slot_whose_wal_was_removed_is_refused(source: Source) -> None:
    source.publish()
    source.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        # A reload only sends a signal.
        wait_until(lambda: source.server.execute("SHOW max_slot_wal_keep_size") == [("1MB",)])
        for _ in range(3):
            source.run("SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()", "CHECKPOINT")
        with pytest.raises(SourceRefused, match=r"is lost \(.*\): changes are missing"):
            usable_slot(source.connection, source.slot)
        with pytest.raises(SourceRefused, match="is lost"):
            list(source.reader().read(source.connection, source.asking, source.begin_lsn, source.end_lsn()))
    finally:
        source.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def state_but_for_what_it_retains(source: Source) -> LogicalSlot:
    """Return the slot without the number of bytes, which rises with whatever the server writes."""
    state = read_slot(source.connection, source.slot)
    assert state is not None
    return dataclasses.replace(state, retained_bytes=None)


def test_a_slot_that_somebody_moved_is_refused(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    source.publish("t")
    source.run("INSERT INTO t VALUES (1)")
    advance(source.connection, source.slot, source.end_lsn())
    with pytest.raises(SourceRefused, match="another program advanced it"):
        source.changes()
    state = state_but_for_what_it_retains(source)
    advance(source.connection, source.slot, source.begin_lsn)  # never back
    assert state_but_for_what_it_retains(source) == state


def test_a_publication_that_is_missing_or_younger_than_the_slot_is_refused(source: Source) -> None:
    source.begin_lsn = create_slot(source.connection, source.slot)
    with pytest.raises(SourceRefused, match="publication 'my pub' does not exist"):
        source.reader().check(source.connection)
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    create_publication(source.connection, source.publication, [parse_table("t")])
    source.run("INSERT INTO t VALUES (2)")
    try:
        found = source.changes()
    except SourceRefused as error:
        assert "must be older than the slot" in str(error)
    else:
        assert [change.after for change in found] == [(b"2",)]  # newer servers pass over what was before


@pytest.fixture
def hold(source: Source) -> Iterator[Callable[[], Connection]]:
    """A function that takes hold of the slot, as another reader does, until the connection is closed."""
    with contextlib.ExitStack() as stack:

        def take() -> Connection:
            holder = stack.enter_context(closing(connect(source.conninfo, replication=True)))
            options = "(proto_version '1', publication_names '\"my pub\"')"
            holder.pgconn.send_query(f"START_REPLICATION SLOT {source.slot} LOGICAL 0/0 {options}".encode())
            wait_until(
                lambda: (state := read_slot(source.connection, source.slot)) is not None and bool(state.active_pid)
            )
            return holder

        yield take


def test_a_slot_in_use_is_waited_for(source: Source, hold: Callable[[], Connection]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    source.publish("t")
    source.run("INSERT INTO t VALUES (1)")
    timer = threading.Timer(0.3, hold().close)
    timer.start()
    assert len(source.changes()) == 1
    timer.join()
    timer = threading.Timer(0.3, hold().close)
    timer.start()
    end_lsn = source.end_lsn()
    advance(source.connection, source.slot, end_lsn)
    timer.join()
    state = read_slot(source.connection, source.slot)
    assert state is not None and state.confirmed_flush_lsn == end_lsn


def test_a_slot_is_not_waited_for_for_ever(
    source: Source, hold: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    source.publish()
    hold()
    monkeypatch.setattr(patiently, "__kwdefaults__", {"timeout_s": 0.0})
    with pytest.raises(SourceUnavailable, match="is active for PID"):
        source.changes()


def test_a_server_that_is_not_there_or_does_not_decode_is_said_in_one_line(source: Source) -> None:
    with pytest.raises(SourceUnavailable, match="could not connect to the server"):
        connect("host=127.0.0.1 port=1 connect_timeout=1")
    with pytest.raises(ConfigurationError):
        connect("host")
    source.run("CREATE ROLE nobody LOGIN")
    try:
        create_publication(source.connection, source.publication, [])
        with (
            closing(connect(source.server.conninfo(user="nobody", dbname=source.name))) as weak,
            pytest.raises(SourceRefused, match="ALTER ROLE"),
        ):
            create_slot(weak, source.slot)
    finally:
        source.run("DROP ROLE nobody")


def test_a_role_with_the_right_to_replicate_is_enough(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE ROLE reader LOGIN REPLICATION")
    source.publish("t")
    source.run("INSERT INTO t VALUES (1)")
    try:
        with closing(connect(source.server.conninfo(user="reader", dbname=source.name))) as weak:
            end_lsn = SafeLsn(None).read(weak)
            found = list(source.reader(SafeLsn(None)).read(weak, source.asking, source.begin_lsn, end_lsn))
            assert len(found) == 1
            advance(weak, source.slot, source.end_lsn())
    finally:
        source.run("DROP ROLE reader")


@pytest.fixture
def walproxy_receiver(source: Source, tmp_path: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A receiver that calls itself walproxy and reports what it has on disk, as the proxy reports the quorum's."""
    receiver = subprocess.Popen(
        [
            *(source.server.binaries.path("pg_receivewal"), "-D", tmp_path, "--synchronous", "--no-loop", "-s", "1"),
            *("-d", source.server.conninfo(application_name="walproxy", dbname="replication")),
        ],
        stderr=subprocess.DEVNULL,
    )
    known = "SELECT count(flush_lsn) FROM pg_stat_replication WHERE application_name = 'walproxy'"
    wait_until(lambda: source.server.execute(known) == [(1,)])
    yield receiver
    receiver.send_signal(signal.SIGCONT)
    receiver.terminate()
    receiver.wait()
    # The server may not yet have noticed: the next test would still find a walproxy.
    listed = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'walproxy'"
    wait_until(lambda: source.server.execute(listed) == [(0,)])


def test_only_what_is_on_the_quorum_is_safe(source: Source, walproxy_receiver: subprocess.Popen[bytes]) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    source.publish("t")
    safe = SafeLsn(None)
    wait_until(lambda: safe.read(source.connection) == source.end_lsn())
    walproxy_receiver.send_signal(signal.SIGSTOP)
    os.waitpid(walproxy_receiver.pid, os.WUNTRACED)  # until it stands still
    source.run("INSERT INTO t VALUES (1)")
    end_lsn = source.end_lsn()
    reached_lsn = safe.read(source.connection)
    assert reached_lsn < end_lsn
    assert list(source.reader(safe).read(source.connection, source.asking, source.begin_lsn, reached_lsn)) == []
    with pytest.raises(SourceUnavailable, match=r"the quorum has not reached .*`walproxy status`"):
        safe.wait_for(source.connection, end_lsn, 0.01)
    assert SafeLsn("none").read(source.connection) >= end_lsn
    assert SafeLsn("standby:elsewhere").read(source.connection) == 0
    walproxy_receiver.send_signal(signal.SIGCONT)
    safe.wait_for(source.connection, end_lsn, 20)
    reached_lsn = safe.read(source.connection)
    assert len(list(source.reader(safe).read(source.connection, source.asking, source.begin_lsn, reached_lsn))) == 1


def test_nothing_is_safe_while_a_walproxy_is_known_and_away(source: Source) -> None:
    source.run("SELECT pg_create_physical_replication_slot('walproxy')", "CREATE ROLE reader LOGIN REPLICATION")
    try:
        assert SafeLsn(None).read(source.connection) == 0
        with (
            closing(connect(source.server.conninfo(user="reader", dbname=source.name))) as weak,
            pytest.raises(SourceRefused, match="GRANT pg_monitor"),
        ):
            SafeLsn(None).read(weak)
    finally:
        source.run("SELECT pg_drop_replication_slot('walproxy')", "DROP ROLE reader")
    assert SafeLsn(None).read(source.connection) > 0


def test_the_proxy_itself_can_say_what_is_safe(source: Source) -> None:
    lsn = source.end_lsn() - 8
    shown: dict[str, Any] = {"tli": None, "commit_lsn": format_lsn(lsn)}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(status(**shown)))

        def log_message(self, *words: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            safe = SafeLsn(f"http://127.0.0.1:{listener.server_port}")
            assert safe.read(source.connection) == lsn
            shown["tli"] = 1
            assert safe.read(source.connection) == lsn
            shown["tli"] = 2  # the server is one that was replaced, and its WAL beyond the fork was discarded
            with pytest.raises(SourceUnavailable, match="leads timeline 2, the server is on timeline 1"):
                safe.read(source.connection)
        finally:
            listener.shutdown()
            thread.join()
    with pytest.raises(ConfigurationError, match="standby:NAME"):
        SafeLsn("localhost:7432")


def test_the_commands_make_show_and_drop_what_is_read_from(source: Source) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int)")
    where = ["--primary", source.conninfo, "--slot", source.slot]
    named = [*where, "--publication", source.publication]

    def say(*words: str) -> str:
        result = CliRunner().invoke(cdc, words, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    made = say("create", *named, "--table", "t")
    assert "publication my pub created" in made
    assert f"slot {source.slot} created, at " in made
    assert parse_lsn(made.split()[-1]) > 0
    assert say("create", *named, "--table", "t").count("exists") == 2
    with pytest.raises(ConfigurationError, match=r"without public\.u"):
        say("create", *named, "--table", "u")
    shown = say("status", *named)
    assert "public.t: key id" in shown
    assert "WAL that it retains on the primary" in shown
    assert "dropped" in say("drop", *named)
    assert "does not exist" in say("drop", *where)
    with pytest.raises(SourceRefused, match=f"slot '{source.slot}' does not exist"):
        say("status", *where)
