"""What tests of `walproxy pipeline apply` share: a workload of pgbench, the job as a process, and the comparison."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.pipeline.logical_server import Source
from walproxy.pipeline.cdc.apply.job import ApplyOptions
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.publication import TableName, parse_table
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.lake.location import LakeLocation

PGBENCH_TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")


def options_of(
    source: Source, place: LakeLocation | Path, table_format: TableFormat = "delta", **more: Any
) -> ApplyOptions:
    """Return the options of a job whose tables are below a place."""
    location = _location(place).below("lake")
    return ApplyOptions(source.conninfo, source.slot, (source.publication,), location, table_format, **more)


def _location(place: LakeLocation | Path) -> LakeLocation:
    return LakeLocation.parse(place) if isinstance(place, Path) else place


def rows_here(place: LakeLocation | Path, table_format: TableFormat, name: TableName) -> pa.Table:
    """Return the rows of a table that follows."""
    table = following_table(_location(place), table_format, name)
    try:
        return table.to_arrow()
    finally:
        table.close()


def compare(source: Source, place: LakeLocation | Path, table_format: TableFormat, *tables: str) -> None:
    """See that tables have the rows of their sources, each as often, in every column that the source has."""
    for text in tables:
        name = parse_table(text)
        found = rows_here(place, table_format, name)
        columns = source.rows(
            "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND attrelid = "
            f'\'"{name.schema}"."{name.name}"\'::regclass ORDER BY attnum'
        )
        names = [column for (column,) in columns]
        picked = ", ".join(_as_printed(column, found.schema.field(column).type) for column in names)
        rows = source.rows(f'SELECT {picked} FROM "{name.schema}"."{name.name}"')
        expected = Counter(tuple(map(_hashable, row)) for row in rows)
        got = Counter(tuple(_hashable(row[column]) for column in names) for row in found.select(names).to_pylist())
        assert got == expected, f"{text}: {_few(got - expected)} instead of {_few(expected - got)}"


def _as_printed(column: str, data_type: pa.DataType) -> str:
    """What is text here is what the server prints; a cast would strip the blanks of a char(n)."""
    quoted = f'"{column}"'
    if pa.types.is_list(data_type) and pa.types.is_string(data_type.value_type):
        elements = f"unnest({quoted}) WITH ORDINALITY each (element, number)"
        printed = "CASE WHEN element IS NOT NULL THEN format('%s', element) END"
        return f"CASE WHEN {quoted} IS NOT NULL THEN ARRAY(SELECT {printed} FROM {elements} ORDER BY number) END"
    return (
        f"CASE WHEN {quoted} IS NOT NULL THEN format('%s', {quoted}) END" if pa.types.is_string(data_type) else quoted
    )


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _few(rows: "Counter[tuple[Any, ...]]") -> str:
    return f"{sum(rows.values())} rows, such as {list(rows)[:2]}"


class ApplyProcess:
    """The command, running.

    Args:
        folder: of the tables; beside it is the log.
        location: of the tables, if they are in an object store.
    """

    def __init__(
        self,
        source: Source,
        folder: Path,
        table_format: str,
        options: Sequence[str] = (),
        location: LakeLocation | None = None,
    ) -> None:
        to = location or LakeLocation.parse(folder)
        lake_options, catalog = (",".join(map("=".join, pairs)) for pairs in (to.options, to.catalog))
        words = ["--primary", source.conninfo, "--slot", source.slot, "--publication", source.publication]
        self.log = folder.with_name(folder.name + ".log")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "walproxy", "pipeline", "apply", *words),
                    *("--to", to.url, "-c", f"lake_options={lake_options}", "-c", f"iceberg_catalog={catalog}"),
                    *("--format", table_format, "-c", "interval=100ms", *options),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONWARNINGS": "error"},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def wait(self) -> int:
        """Wait for its end, and return its exit code."""
        return self._process.wait(300)

    def wait_for_steps(self, count: int) -> None:
        """Wait until so many steps with changes are done, those of earlier runs included."""
        deadline = time.monotonic() + 60
        while self.log.read_text().count(" changes, up to ") < count:
            assert self.is_running and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)


def make_bench(source: Source, accounts: int = 10_000) -> None:
    """Fill the database with pgbench's tables; its history has no key."""
    pgbench(source, "--initialize", "--quiet", "--init-steps=dtgp")
    source.run(f"DELETE FROM pgbench_accounts WHERE aid > {accounts}")


CHURN = """
\\set id 2 * random(1, 100) + :client_id
\\set other 2 * random(1, 100) + :client_id
BEGIN;
INSERT INTO churn VALUES (:id, 0, repeat('x', 3000)) ON CONFLICT (id) DO UPDATE SET n = churn.n + 1;
DELETE FROM churn WHERE id = :other;
UPDATE churn SET id = :other WHERE id = :id AND :id % 3 = 0;
COMMIT;
"""
"""A workload of two clients, each with rows of its own."""


def make_churn(source: Source) -> None:
    """Make the table of CHURN, empty, and one in which the server notes each change of it."""
    source.run(
        "CREATE TABLE churn (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE churn ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE noted (number bigserial, op text, id int)",
        """CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND OLD.id <> NEW.id THEN
                INSERT INTO noted (op, id) VALUES ('delete', OLD.id);
            END IF;
            IF TG_OP <> 'DELETE' THEN
                INSERT INTO noted (op, id) VALUES (lower(TG_OP), NEW.id);
            END IF;
            RETURN NULL;
        END $$""",
        "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON churn FOR EACH ROW EXECUTE FUNCTION note()",
    )


def check_churn(source: Source, options: ApplyOptions) -> None:
    """See that the table has each change once, or each deleted row with a mark. It was empty when it was copied."""
    found = rows_here(options.location, options.format, TableName("public", "churn")).to_pylist()
    noted = source.rows("SELECT op, id FROM noted ORDER BY number")
    assert len({op for op, _ in noted}) == 3
    if options.mode == "append":
        changes = Counter((row["_op"], row["id"]) for row in found if row["_op"] not in ("copy", "reset"))
        assert changes == Counter(noted), _few(changes - Counter(noted)) + " too many"
        return
    last = {number: op for op, number in noted}
    marks = Counter((row["id"], row["_deleted"]) for row in found)
    assert marks == Counter((number, op == "delete") for number, op in last.items())


def start_bench(source: Source, seconds: int, *options: str) -> "subprocess.Popen[bytes]":
    """Begin a workload."""
    return subprocess.Popen(
        _pgbench_words(source, f"--time={seconds}", "--client=2", "--no-vacuum", *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def pgbench(source: Source, *options: str) -> None:
    """Run pgbench to its end."""
    subprocess.run(_pgbench_words(source, *options), check=True, capture_output=True)


def _pgbench_words(source: Source, *options: str) -> list[str]:
    server = source.server
    where = ["--host=127.0.0.1", f"--port={server.port}", "--username=postgres", source.name]
    return [str(server.binaries.path("pgbench")), *options, *where]
