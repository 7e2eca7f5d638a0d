"""The demo's last chapter: the WAL of everything before becomes tables, and the tables are queried.

All WAL that the archive has is read. What only the lost disks had is missing there, unless a segment that came later
brought it, so gaps are allowed, and named. The commits are counted in the WAL after the loss, of which no byte may be
missing, and compared with the replies to clients.
"""

import json
import time
from pathlib import Path
from typing import Any

from safekeeper.base.lsn import format_lsn
from walproxy.lab.demo.loss_steps import archive_folder
from walproxy.lab.demo.stage import DemoStage, Step
from walproxy.proxy.status_table import format_bytes

_SHOWN_RELATIONS = 3
# A transfer is what puts a row into the table of transfers, and commits.
_COMMITTED_TRANSFERS = """
    SELECT count(DISTINCT xid) AS transfers FROM blocks JOIN transactions USING (xid)
    WHERE blocks.lsn >= {lsn} AND rmgr = 'Heap' AND operation LIKE 'INSERT%' AND relation = {relation}
      AND outcome = 'commit' AND transactions.lsn > blocks.lsn
"""


def _make_tables(stage: DemoStage) -> str:
    directory = stage.cluster.directory
    stage.command("pipeline", "catalog", "--primary", stage.cluster.postgres.conninfo(), "--output", _names(stage))
    began_at = time.monotonic()
    output = stage.command(
        *("pipeline", "run", archive_folder(directory), "--to", _tables(stage), "--once", "--allow-gaps", "--json")
    )
    seconds = time.monotonic() - began_at
    events = [json.loads(line) for line in output.splitlines()]
    batches = [event for event in events if event["event"] == "batch"]
    stage.require(bool(batches), "the archive was found empty")
    records = sum(event["rows"]["records"] for event in batches)
    return f"{records:,} records up to {batches[-1]['lsn']} are in tables, {seconds:.1f} s with the start of Spark"


def _ask_tables(stage: DemoStage) -> str:
    postgres = stage.cluster.postgres
    [(relation, transfers)] = postgres.execute(
        "SELECT pg_relation_filenode('transfer')::bigint, (SELECT count(*) FROM transfer)"
    )
    expected = transfers - stage.old_transfers
    query = _COMMITTED_TRANSFERS.format(lsn=stage.new_log_lsn, relation=relation)
    [counted] = _query(stage, query)
    stage.require(
        counted["transfers"] == expected,
        f"the tables have {counted['transfers']} committed transfers since {format_lsn(stage.new_log_lsn)}, but the "
        f"clients received {expected} acknowledgements",
    )
    volumes = _query(
        stage,
        "SELECT relation, sum(wal_bytes) AS bytes FROM relation_volume WHERE relation IS NOT NULL "
        f"GROUP BY relation ORDER BY bytes DESC LIMIT {_SHOWN_RELATIONS}",
    )
    names = dict(
        postgres.execute("SELECT pg_relation_filenode(oid)::bigint, relname::text FROM pg_class WHERE relfilenode <> 0")
    )
    top = ", ".join(f"{names.get(row['relation'], row['relation'])} {format_bytes(row['bytes'])}" for row in volumes)
    return f"{expected:,} transfers committed since the loss, all of them acknowledged; most WAL was written for {top}"


def _report(stage: DemoStage) -> str:
    options = ("--tables", _tables(stage), "--catalog", _names(stage), "--output", stage.report)
    stage.command("pipeline", "report", *options)
    return f"one page with everything in it, {format_bytes(stage.report.stat().st_size)}: {stage.report}"


def _query(stage: DemoStage, sql: str) -> list[dict[str, Any]]:
    output = stage.command("pipeline", "query", " ".join(sql.split()), "--tables", _tables(stage), "--json")
    rows = [json.loads(line) for line in output.splitlines()]
    stage.require(bool(rows), f"no row came back: {sql}")
    return rows


def _tables(stage: DemoStage) -> Path:
    return stage.cluster.directory / "tables"


def _names(stage: DemoStage) -> Path:
    return stage.cluster.directory / "names.json"


PIPELINE_STEPS = (
    Step("turn all its WAL into tables", _make_tables),
    Step("ask them who wrote what, and what committed", _ask_tables),
    Step("draw a report", _report),
)
