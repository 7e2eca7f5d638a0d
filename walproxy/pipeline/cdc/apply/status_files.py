"""Write the reports of a running job, for people and for monitoring.

LOCATION/_walproxy_apply/status.json    position, lag, and the state of each table
LOCATION/_walproxy_apply/metrics.prom   the same in Prometheus' text format, for a textfile collector

Both are replaced whole after each step. They are not synced: after a crash the next step writes them again. In an
object store, where each put is charged, a step that only moves positions does not replace reports of the last 10 s.
"""

import time
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn
from walproxy.pipeline.cdc.apply.job_file import OWN_FOLDER, Job
from walproxy.pipeline.cdc.apply.tables import Tables
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.state import StateObject
from walproxy.pipeline.tables.disk import TEMPORARY_SUFFIX, storage_errors

_STATUS_FILE: Final = "status.json"
_METRICS_FILE: Final = "metrics.prom"
_STORE_INTERVAL_S: Final = 10.0


class TableStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table: followed up to `position`, or quarantined for `reason` since a Unix time."""

    state: Literal["following", "quarantined"]
    position: str | None = None
    reason: str | None = None
    since: float | None = None


class ApplyStatus(msgspec.Struct, frozen=True):
    """The content of status.json.

    Attributes:
        position: all tables that follow have what was committed below it.
        lag_bytes: of WAL on the quorum that are not read yet.
        retained_bytes: of WAL that the slot retains on the primary.
        copies: tables that were copied since the job was started.
        time: Unix time of the report.
    """

    slot: str
    position: str
    lag_bytes: int
    retained_bytes: int
    copies: int
    time: float
    tables: dict[str, TableStatus]


class StatusFiles:
    """Writes both files of a location."""

    def __init__(self, tables: LakeLocation) -> None:
        self._tables = tables
        self._stored_at = 0.0
        self._stored_states: dict[str, str] = {}

    def write(self, job: Job, tables: Tables, lag_bytes: int, retained_bytes: int) -> None:
        """Replace both files. Raises StorageFailed, StorageFull, ArchiveError."""
        status = ApplyStatus(
            job.slot,
            format_lsn(job.position_lsn),
            lag_bytes,
            retained_bytes,
            tables.copies,
            time.time(),
            {
                **{str(target.table): TableStatus("following", str(target.position)) for target in tables},
                **{
                    name: TableStatus("quarantined", None, each.reason, each.since)
                    for name, each in sorted(tables.quarantined.items())
                },
            },
        )
        if self._tables.folder is None:
            states: dict[str, str] = {name: table.state for name, table in status.tables.items()}
            now = time.monotonic()
            if states == self._stored_states and now - self._stored_at < _STORE_INTERVAL_S:
                return
            self._stored_states, self._stored_at = states, now
        content = msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n"
        self._replace(_STATUS_FILE, content)
        self._replace(_METRICS_FILE, "\n".join(_metrics(status, job.position_lsn)).encode() + b"\n")

    def _replace(self, name: str, content: bytes) -> None:
        folder = self._tables.folder
        if folder is None:
            self._tables.store().put(f"{OWN_FOLDER}/{name}", content, absent=False)
            return
        path = folder / OWN_FOLDER / name
        with storage_errors(f"write {path}"):
            temporary = path.with_name(name + TEMPORARY_SUFFIX)
            temporary.write_bytes(content)
            temporary.rename(path)


def read_status(tables: LakeLocation) -> ApplyStatus:
    """Return what the job of a location reported last.

    Raises:
        ConfigurationError: it has not reported anything that this version understands.
        StorageFailed, ArchiveError: the file cannot be read.
    """
    report = StateObject(tables, f"{OWN_FOLDER}/{_STATUS_FILE}")
    content = report.read()
    if content is None:
        raise ConfigurationError(f"{report.name} does not exist: no job has completed a step in {tables}")
    try:
        return msgspec.json.decode(content, type=ApplyStatus)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{report.name} is damaged, or a newer version's: {error}") from None


def _metrics(status: ApplyStatus, position_lsn: Lsn) -> Iterable[str]:
    gauges = {
        "walproxy_apply_position_bytes": ("LSN below which all tables that follow have everything.", position_lsn),
        "walproxy_apply_lag_bytes": ("WAL on the quorum that is not read yet.", status.lag_bytes),
        "walproxy_apply_slot_retained_bytes": ("WAL that the slot retains on the primary.", status.retained_bytes),
        "walproxy_apply_report_time_seconds": ("Unix time of this report.", status.time),
    }
    for name, (text, value) in gauges.items():
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} gauge"
        yield f"{name} {value}"
    yield "# HELP walproxy_apply_copies_total Tables that were copied since the job was started."
    yield "# TYPE walproxy_apply_copies_total counter"
    yield f"walproxy_apply_copies_total {status.copies}"
    yield "# HELP walproxy_apply_table_quarantined 1 if a table is quarantined, 0 if it follows."
    yield "# TYPE walproxy_apply_table_quarantined gauge"
    for name, table in status.tables.items():
        label = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'walproxy_apply_table_quarantined{{table="{label}"}} {int(table.state == "quarantined")}'
