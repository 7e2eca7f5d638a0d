"""Measure how fast row changes are read from a slot and put into a table, beside pg_recvlogical.

    pg_recvlogical   PostgreSQL's own client, which writes what it receives to /dev/null
    received         the session of `walproxy pipeline apply`, nothing decoded
    apply            `walproxy pipeline apply` into a Delta table

Each of them reads the same WAL of one server, from copies of one slot for each workload. The server decodes meanwhile
on the same machine, so changes a second are bounded by both; the client's own CPU time is reported beside them.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.logs import one_line
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.lab.bench.rounds import ratio
from walproxy.postgres.binaries import ServerBinaries
from walproxy.postgres.local_server import LocalPostgres

if TYPE_CHECKING:
    from walproxy.pipeline.cdc.apply.job import ApplyOptions

RECVLOGICAL, RECEIVED, APPLY = "pg_recvlogical", "received", "apply"
READERS: Final = (RECVLOGICAL, RECEIVED, APPLY)
WORKLOADS: Final = {"inserts": 100, "updates": 100, "single rows": 1}
"""The number of rows of each transaction, by workload. Single rows are inserted."""

SCALE_CHANGES: Final = 10_000
"""Number of changes of each workload for one unit of --scale."""

_SETTINGS: Final = {"autovacuum": "off", "checkpoint_timeout": "1h", "fsync": "off", "max_wal_size": "16GB"}
_SETTINGS_LOGICAL: Final = {"wal_level": "logical", "shared_buffers": "256MB"}
_TABLE: Final = """
CREATE TABLE {name} (id bigint PRIMARY KEY, account int, amount numeric(12, 2), at timestamptz, note text)
"""
_INSERT: Final = """
INSERT INTO {name} SELECT id, id % 1000, id * 0.25, now(), 'the note of row ' || id
FROM generate_series({first}, {last}) id
"""
_UPDATE: Final = "UPDATE {name} SET amount = amount + 1, at = now() WHERE id BETWEEN {first} AND {last}"
_LOAD: Final = """
DO $$ BEGIN
    FOR part IN 0 .. {parts} - 1 LOOP
        {statement};
        COMMIT;
    END LOOP;
END $$
"""


class ChangesCell(NamedTuple):
    """The case that is measured once a round: one of WORKLOADS, one of READERS."""

    workload: str
    reader: str


class ChangesTurn(msgspec.Struct, frozen=True):
    """The measurements of one turn.

    Attributes:
        cpu_s: the CPU time that the client used.
    """

    round: int
    workload: str
    reader: str
    changes: int
    seconds: float
    cpu_s: float


class ChangesResult(msgspec.Struct, frozen=True):
    """The medians of one cell over the rounds.

    Attributes:
        changes_s: changes a second, between `low` and `high`.
        to_recvlogical: median of the rounds' ratios of changes a second.
        changes_cpu_s: changes for each second of the client's CPU time.
    """

    workload: str
    reader: str
    changes_s: float
    low: float
    high: float
    to_recvlogical: float | None
    changes_cpu_s: float


class _Load(NamedTuple):
    """What a workload has written: its end, the folder of its tables, and that folder as it was before."""

    options: "ApplyOptions"
    folder: Path
    template: Path
    end_lsn: Lsn


class ChangesSite:
    """A server whose WAL has the changes of every workload, and a job for each that has applied none of them."""

    def __init__(self, directory: Path, postgres: LocalPostgres, changes: int) -> None:
        self._directory = directory
        self._postgres = postgres
        self._changes = changes
        self._loads = {workload: self._load(workload, rows) for workload, rows in WORKLOADS.items()}

    def take_turn(self, number: int, cell: ChangesCell) -> ChangesTurn:
        """Let a client read the changes of a workload.

        Raises:
            WalproxyError: it failed.
        """
        load = self._loads[cell.workload]
        self._copy_slot(load.options.slot)
        read = {RECVLOGICAL: self._recvlogical, RECEIVED: self._receive, APPLY: self._apply}[cell.reader]
        with _untouched_tables(load):
            seconds, cpu_s = _timed(lambda: read(load))
        return ChangesTurn(number, *cell, self._changes, seconds, cpu_s)

    def _load(self, workload: str, rows: int) -> _Load:
        from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
        from walproxy.pipeline.lake.location import LakeLocation

        name = workload.replace(" ", "_")
        self._postgres.execute(_TABLE.format(name=name))
        if workload == "updates":
            self._postgres.execute(_INSERT.format(name=name, first=0, last=self._changes - 1))
        self._postgres.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}")
        self._postgres.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"{name}_base")
        self._copy_slot(name)
        folder = self._directory / name
        location = LakeLocation.parse(folder)
        options = ApplyOptions(self._postgres.conninfo(), name, (name,), location, "delta")
        run_apply(options, once=True)
        template = folder.rename(folder.with_name(f"{name}.template"))
        statement = (_UPDATE if workload == "updates" else _INSERT).format(
            name=name, first=f"part * {rows}", last=f"(part + 1) * {rows} - 1"
        )
        self._postgres.execute(_LOAD.format(parts=self._changes // rows, statement=statement))
        [(end,)] = self._postgres.execute("SELECT pg_current_wal_flush_lsn()::text")
        return _Load(options, folder, template, parse_lsn(end))

    def _copy_slot(self, name: str) -> None:
        """Let the slot be where it was before the changes of its workload."""
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        self._postgres.execute(drop, name)
        self._postgres.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", f"{name}_base", name)

    def _recvlogical(self, load: _Load) -> None:
        options = load.options
        command = [str(self._postgres.binaries.path("pg_recvlogical")), "--start", "--no-loop", "--file", "/dev/null"]
        command += ["--dbname", options.conninfo, "--slot", options.slot, "--endpos", format_lsn(load.end_lsn)]
        command += ["--option", "proto_version=1", "--option", f"publication_names={options.publications[0]}"]
        answer = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if answer.returncode:
            raise WalproxyError(f"pg_recvlogical failed: {one_line(answer.stderr[-500:])}")

    def _receive(self, load: _Load) -> None:
        from walproxy.pipeline.cdc.change_feed import ChangeFeed
        from walproxy.pipeline.cdc.server import connect

        options = load.options
        with (
            closing(connect(options.conninfo)) as beside,
            closing(ChangeFeed(options.conninfo, options.slot, options.publications, 0, beside=beside)) as feed,
        ):
            feed.ask()
            while True:
                items = feed.take(1.0)
                if any(not data and lsn >= load.end_lsn for lsn, data in items):
                    return
                if not items:
                    feed.ask()

    def _apply(self, load: _Load) -> None:
        from walproxy.pipeline.cdc.apply.job import opened_job

        with opened_job(load.options, first=False, ends=True) as job:
            job.follow_until(load.end_lsn, Event())


@contextmanager
def _untouched_tables(load: _Load) -> Iterator[None]:
    shutil.copytree(load.template, load.folder)
    try:
        yield
    finally:
        shutil.rmtree(load.folder)


@contextmanager
def changes_site(directory: Path, binaries: ServerBinaries, changes: int) -> Iterator[ChangesSite]:
    """Yield a server that has written the changes of each workload.

    Raises:
        WalproxyError: the server or a job failed.
    """
    directory.mkdir()
    if os.geteuid() == 0:
        directory.chmod(0o755)
    with LocalPostgres(binaries, directory / "data", settings=_SETTINGS | _SETTINGS_LOGICAL) as postgres:
        postgres.init().start()
        yield ChangesSite(directory, postgres, changes)


def compare_changes(turns: Sequence[ChangesTurn]) -> list[ChangesResult]:
    """Return the medians, in the order of WORKLOADS and READERS."""
    speeds = {(turn.round, ChangesCell(turn.workload, turn.reader)): turn.changes / turn.seconds for turn in turns}
    results = []
    for workload in WORKLOADS:
        for reader in READERS:
            mine = [turn for turn in turns if (turn.workload, turn.reader) == (workload, reader)]
            if not mine:
                continue
            own = [turn.changes / turn.seconds for turn in mine]
            relation = ratio(speeds, ChangesCell(workload, reader), ChangesCell(workload, RECVLOGICAL))
            results.append(
                ChangesResult(
                    workload,
                    reader,
                    median(own),
                    min(own),
                    max(own),
                    relation.median if relation is not None else None,
                    median(turn.changes / max(turn.cpu_s, 0.01) for turn in mine),
                )
            )
    return results


def cells() -> list[ChangesCell]:
    """Return all cells."""
    return [ChangesCell(workload, reader) for workload in WORKLOADS for reader in READERS]


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that the work took, and the CPU time of this process and the child that it ended."""
    began, began_at = os.times(), monotonic()
    work()
    ended = os.times()
    return monotonic() - began_at, sum(ended[:4]) - sum(began[:4])
