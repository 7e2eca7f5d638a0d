"""What is wrong with one table does not stop the others: it is quarantined, and copied again when it can be."""

import json
import logging
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from safekeeper.base.settings import Address
from tests.pipeline.apply_fixtures import compare, options_of, rows_here
from tests.pipeline.formats import MOSTLY_DELTA, MOSTLY_ICEBERG
from tests.pipeline.logical_server import Source, client, wait_until
from walproxy.cli.pipeline_commands.cdc import cdc
from walproxy.pipeline.cdc.apply import tables as tables_module
from walproxy.pipeline.cdc.apply.job import TablesQuarantined, run_apply
from walproxy.pipeline.cdc.apply.status_files import read_status
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.publication import parse_table
from walproxy.pipeline.cdc.slot import usable_slot
from walproxy.pipeline.choices import TableFormat
from walproxy.postgres.local_server import LocalPostgres

SETUP = (
    "CREATE TABLE good (id int PRIMARY KEY, v text)",
    "INSERT INTO good SELECT i, 'v' || i FROM generate_series(1, 100) i",
    "CREATE TABLE bad (id int PRIMARY KEY, d date, n numeric(10,2), at timestamptz)",
    "INSERT INTO bad SELECT i, '2024-01-01', i, now() FROM generate_series(1, 100) i",
)
BAD_VALUES = ("UPDATE bad SET d = 'infinity' WHERE id = 1", "UPDATE bad SET n = 'NaN', at = '-infinity' WHERE id = 2")


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run(*SETUP)
    empty.publish("good", "bad")
    return empty


def get(address: str, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_bad_table_is_quarantined_and_the_others_go_on(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables_module, "_RETRY_MIN_S", 0.2)
    monkeypatch.setattr(tables_module, "_RETRY_MAX_S", 0.5)
    options = options_of(source, tmp_path, interval_s=0.05, http_listen=Address("127.0.0.1", 0))
    stop = threading.Event()
    caplog.set_level(logging.INFO, "walproxy")

    def state(table: str) -> str:
        return read_status(options.location).tables[f"public.{table}"].state

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run_apply, options, once=False, stop=stop)
        try:
            source.run("INSERT INTO good VALUES (1000, 'first')")
            wait_until(lambda: job.done() or usable_slot(source.connection, source.slot)[1] >= source.begin_lsn + 1)
            source.run(BAD_VALUES[0], "UPDATE good SET v = 'second' WHERE id = 1000")
            end_lsn = source.end_lsn()
            wait_until(lambda: job.done() or usable_slot(source.connection, source.slot)[1] >= end_lsn)
            wait_until(lambda: job.done() or state("bad") == "quarantined")
            assert state("good") == "following"
            reason = read_status(options.location).tables["public.bad"].reason or ""
            assert "public.bad.d has the value 'infinity'" in reason
            metrics = tmp_path / "lake" / "_walproxy_apply" / "metrics.prom"
            quarantined = 'walproxy_apply_table_quarantined{table="public.bad"} 1'
            wait_until(lambda: job.done() or quarantined in metrics.read_text())  # It is written after the status.
            assert quarantined in metrics.read_text()
            assert 'walproxy_apply_table_quarantined{table="public.good"} 0' in metrics.read_text()
            compare(source, options.location, "delta", "good")
            (address,) = re.findall(r"HTTP on (\S+)", caplog.text)
            assert get(address, "/readyz") == (503, {"status": "not ready", "reason": "quarantined: public.bad"})
            words = ["status", "--primary", source.conninfo, "--slot", source.slot, "--to", str(options.location)]
            shown = CliRunner().invoke(cdc, words)
            assert shown.exit_code == 1
            assert "public.good: following" in shown.output and "public.bad: quarantined since" in shown.output
            source.run("UPDATE bad SET d = '2024-02-02' WHERE id = 1")
            wait_until(lambda: job.done() or state("bad") == "following")
            assert get(address, "/readyz")[0] == 200
        finally:
            stop.set()
        job.result(60)
    assert CliRunner().invoke(cdc, words).exit_code == 0
    run_apply(options, once=True)
    compare(source, options.location, "delta", "good", "bad")


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_bad_values_become_null_or_text_as_the_options_demand(
    source: Source, tmp_path: Path, table_format: TableFormat
) -> None:
    as_null = options_of(source, tmp_path / "null", table_format, on_bad_value="null")
    run_apply(as_null, once=True)
    source.run(*BAD_VALUES, "UPDATE bad SET d = '2024-03-03' WHERE id = 3")
    assert len(run_verify(as_null, repair=False)) == 2
    found = rows_here(as_null.location, table_format, parse_table("bad")).to_pylist()
    rows = {row["id"]: (row["d"], row["n"], row["at"]) for row in found}
    assert rows[1][0] is None and rows[1][1] is not None
    assert rows[2][0] is not None and rows[2][1:] == (None, None)
    # What became null so far becomes text now.
    as_text = as_null._replace(on_bad_value="text")
    run_apply(as_text, once=True)
    source.run("UPDATE bad SET d = '-infinity' WHERE id = 5", "UPDATE bad SET n = 7 WHERE id = 2")
    assert len(run_verify(as_text, repair=False)) == 2
    compare(source, as_text.location, table_format, "good", "bad")
    [row] = [row for row in rows_here(as_text.location, table_format, parse_table("bad")).to_pylist() if row["id"] == 5]
    assert (row["d"], row["n"]) == ("-infinity", "5.00")


def test_a_table_that_its_format_does_not_take_is_quarantined(source: Source, tmp_path: Path) -> None:
    source.run(
        'CREATE TABLE odd (id int PRIMARY KEY, "Id" int)',
        "CREATE TABLE empty ()",
        'ALTER PUBLICATION "my pub" ADD TABLE odd, empty',
    )
    with pytest.raises(TablesQuarantined, match=r"public\.empty: .* no column .*public\.odd: .*case-insensitive"):
        run_apply(options_of(source, tmp_path), once=True)
    compare(source, tmp_path / "lake", "delta", "good", "bad")


def test_text_that_is_not_utf8_concerns_its_table_alone(server: LocalPostgres, tmp_path: Path) -> None:
    with closing(Source(server, "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")) as source:
        source.run(*SETUP, "CREATE TABLE raw (id int PRIMARY KEY, v text)", "INSERT INTO raw VALUES (1, 'ä')")
        source.publish()
        options = options_of(source, tmp_path)
        run_apply(options, once=True)
        assert rows_here(options.location, "delta", parse_table("raw")).to_pylist() == [{"id": 1, "v": "ä"}]
        source.run("SET client_encoding = 'SQL_ASCII'", "INSERT INTO raw VALUES (2, E'\\xff')", "RESET client_encoding")
        source.run("DELETE FROM good WHERE id < 10")
        with pytest.raises(TablesQuarantined, match=r"public\.raw: .*invalid byte sequence"):
            run_apply(options, once=True)
        compare(source, options.location, "delta", "good", "bad")
        source.run("UPDATE raw SET v = 'ü' WHERE id = 2")
        run_apply(options, once=True)
        compare(source, options.location, "delta", "good", "bad", "raw")


def test_a_publication_that_leaves_changes_out_quarantines_its_tables_until_it_sends_them(
    source: Source, tmp_path: Path
) -> None:
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    source.run("""ALTER PUBLICATION "my pub" SET (publish = 'insert, update')""", "DELETE FROM good WHERE id < 10")
    with pytest.raises(TablesQuarantined, match=r"2 tables are quarantined.*does not send all changes"):
        run_apply(options, once=True)
    source.run("""ALTER PUBLICATION "my pub" SET (publish = 'insert, update, delete, truncate')""")
    run_apply(options, once=True)
    compare(source, options.location, "delta", "good", "bad")


def test_a_table_of_which_the_role_sees_some_rows_only_is_quarantined(source: Source, tmp_path: Path) -> None:
    source.run(
        "CREATE ROLE follower LOGIN REPLICATION IN ROLE pg_monitor",
        "GRANT SELECT ON good, bad TO follower",
        "ALTER TABLE bad ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON bad USING (id < 5)",
    )
    try:
        options = options_of(source, tmp_path)
        options = options._replace(conninfo=source.server.conninfo(dbname=source.name, user="follower"))
        with pytest.raises(TablesQuarantined, match=r"public\.bad: .*row-level security.*BYPASSRLS"):
            run_apply(options, once=True)
        compare(source, options.location, "delta", "good")
    finally:
        source.run("DROP OWNED BY follower", "DROP ROLE follower")


def test_a_copy_that_must_wait_for_transactions_does_not_keep_the_other_tables_waiting(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "_RETRY_MIN_S", 0.2)
    monkeypatch.setattr(tables_module, "_RETRY_MAX_S", 0.5)
    monkeypatch.setattr(tables_module, "_SNAPSHOT_WAIT_S", 0.2)
    options = options_of(source, tmp_path, interval_s=0.05)
    run_apply(options, once=True)
    stop = threading.Event()

    def state(table: str) -> str:
        return read_status(options.location).tables[f"public.{table}"].state

    def names_transactions() -> bool:
        return "transactions" in (read_status(options.location).tables["public.bad"].reason or "")

    with ThreadPoolExecutor(1) as pool, closing(client(source.conninfo)) as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        source.run("ALTER TABLE bad ALTER n TYPE numeric(12,2) USING n * 2")
        job = pool.submit(run_apply, options, once=False, stop=stop)
        try:
            source.run("UPDATE good SET v = 'meanwhile' WHERE id = 1")
            end_lsn = source.end_lsn()
            wait_until(lambda: job.done() or usable_slot(source.connection, source.slot)[1] >= end_lsn)
            compare(source, options.location, "delta", "good")
            wait_until(lambda: job.done() or names_transactions())  # The status is written after the slot has moved.
            assert names_transactions()
            other.execute("COMMIT")
            wait_until(lambda: job.done() or state("bad") == "following")
        finally:
            other.close()
            stop.set()
        job.result(60)
    compare(source, options.location, "delta", "good", "bad")


def test_a_slot_that_retains_too_much_is_made_again_and_everything_is_copied(
    source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(source, tmp_path, max_retained_bytes=4 << 20)
    run_apply(options, once=True)
    before_lsn = usable_slot(source.connection, source.slot)[1]
    source.run(
        "CREATE TABLE unpublished AS SELECT i, repeat('x', 100) AS x FROM generate_series(1, 50000) i",
        "DELETE FROM good WHERE id < 10",
    )
    run_apply(options, once=True)
    assert "more than max_retained allows" in caplog.text
    compare(source, options.location, "delta", "good", "bad")
    state, confirmed_lsn = usable_slot(source.connection, source.slot)
    assert confirmed_lsn > before_lsn and (state.retained_bytes or 0) < 4 << 20
    run_apply(options, once=True)


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_a_larger_precision_is_followed_in_place_where_the_format_can(
    source: Source, tmp_path: Path, table_format: TableFormat, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    options = options_of(source, tmp_path, table_format)
    run_apply(options, once=True)
    caplog.clear()
    source.run("ALTER TABLE bad ALTER n TYPE numeric(14,2)", "UPDATE bad SET n = 123456789012.34 WHERE id = 4")
    run_apply(options, once=True)
    assert ("copying public.bad" in caplog.text) == (table_format == "delta")
    compare(source, options.location, table_format, "good", "bad")
    source.run("ALTER TABLE good ALTER id TYPE bigint", "INSERT INTO good VALUES (5000000000, 'large')")
    run_apply(options, once=True)
    compare(source, options.location, table_format, "good", "bad")
