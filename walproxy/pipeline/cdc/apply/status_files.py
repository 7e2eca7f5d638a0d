"""Write the reports of a running job, for people and for monitoring.

LOCATION/_walproxy_apply/status.json    position, lag, and the state of each table
LOCATION/_walproxy_apply/metrics.prom   the same in Prometheus' text format, for a textfile collector

`status_pages.py` serves the same over HTTP. Both are replaced whole after each step. They are not synced: after a crash
the next step writes them again. In an object store, where each put is charged, a step that only moves positions does
not replace reports of the last 10 s.
"""

import time
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn, parse_lsn
from walproxy.pipeline.cdc.apply.job_file import OWN_FOLDER, Job
from walproxy.pipeline.cdc.apply.parallel_copy import CopyProgress
from walproxy.pipeline.cdc.apply.tables import Tables
from walproxy.pipeline.lake.disk import TEMPORARY_SUFFIX, storage_errors
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.state import StateObject

_STATUS_FILE: Final = "status.json"
_METRICS_FILE: Final = "metrics.prom"
_STORE_INTERVAL_S: Final = 10.0


class TableStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table: followed up to `position`, or quarantined for `reason` since a Unix time, or being copied.

    Attributes:
        ranges_done: of a copy, the number of `ranges` that are copied; no `ranges` if it is read as a whole.
    """

    state: Literal["following", "quarantined", "copying"]
    position: str | None = None
    reason: str | None = None
    since: float | None = None
    ranges_done: int = 0
    ranges: int = 0


class ApplyStatus(msgspec.Struct, frozen=True):
    """The content of status.json.

    Attributes:
        position: all tables that follow have what was committed below it.
        lag_bytes: of WAL on the quorum that are not read yet; while a table is copied, up to the position of the copy.
        retained_bytes: of WAL that the slot retains on the primary.
        copies: tables that were copied since the connection to the server was made.
        time: Unix time of the report.
        current_time: Unix time at which the tables were known last to have everything that was on the quorum; before
            the first time, that of the start of the first job.
        mode: what the tables keep of changes.
    """

    slot: str
    position: str
    lag_bytes: int
    retained_bytes: int
    copies: int
    time: float
    tables: dict[str, TableStatus]
    current_time: float = 0.0
    mode: str = "mirror"


class StatusFiles:
    """Writes both files of a location.

    Attributes:
        last: the last report, None before the first one.
        problem: why the job waits, empty if it does not. Both are replaced, never changed: another thread reads them.
    """

    def __init__(self, tables: LakeLocation) -> None:
        self._tables = tables
        self.last: ApplyStatus | None = None
        self.problem = ""
        self._current_at: float | None = None
        self._started_at = time.time()
        self._stored_at = 0.0
        self._stored_states: dict[str, str] = {}

    def write(
        self,
        job: Job,
        tables: Tables,
        lag_bytes: int,
        retained_bytes: int,
        *,
        copying: CopyProgress | None = None,
    ) -> None:
        """Replace both files. Raises StorageFailed, StorageFull, ArchiveError.

        Args:
            copying: the table that is copied at present.
        """
        now = time.time()
        if lag_bytes == 0 and copying is None:
            self._current_at = now
        elif self._current_at is None:
            self._current_at = self._former_current_time() or self._started_at
        in_copy = {}
        if copying is not None:
            in_copy[str(copying.table)] = TableStatus("copying", ranges_done=copying.done, ranges=copying.ranges)
        status = ApplyStatus(
            job.slot,
            format_lsn(job.position_lsn),
            lag_bytes,
            retained_bytes,
            tables.copies,
            now,
            {
                **{str(target.table): TableStatus("following", str(target.position)) for target in tables},
                **{
                    name: TableStatus("quarantined", None, each.reason, each.since)
                    for name, each in sorted(tables.quarantined.items())
                },
                **in_copy,
            },
            self._current_at,
            job.mode,
        )
        self.last, self.problem = status, ""
        if self._tables.folder is None:
            states: dict[str, str] = {name: table.state for name, table in status.tables.items()}
            elapsed_s = time.monotonic() - self._stored_at
            if states == self._stored_states and elapsed_s < _STORE_INTERVAL_S:
                return
            self._stored_states, self._stored_at = states, time.monotonic()
        content = msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n"
        self._replace(_STATUS_FILE, content)
        self._replace(_METRICS_FILE, metrics_text(status))

    def _former_current_time(self) -> float | None:
        """Return what an earlier job reported: a job that is started again and again does not look current."""
        try:
            return read_status(self._tables).current_time
        except ConfigurationError:
            return None

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


def metrics_text(status: ApplyStatus) -> bytes:
    """Return a report in Prometheus' text format."""
    return "\n".join(_metrics(status)).encode() + b"\n"


def _metrics(status: ApplyStatus) -> Iterable[str]:
    position_lsn = parse_lsn(status.position)
    gauges = {
        "walproxy_apply_position_bytes": ("LSN below which all tables that follow have everything.", position_lsn),
        "walproxy_apply_lag_bytes": ("WAL on the quorum that is not read yet.", status.lag_bytes),
        "walproxy_apply_slot_retained_bytes": ("WAL that the slot retains on the primary.", status.retained_bytes),
        "walproxy_apply_report_time_seconds": ("Unix time of this report.", status.time),
        "walproxy_apply_current_time_seconds": (
            "Unix time at which the tables had everything that was on the quorum.",
            status.current_time,
        ),
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
        yield f'walproxy_apply_table_quarantined{{table="{_label(name)}"}} {int(table.state == "quarantined")}'
    copies = {name: table for name, table in status.tables.items() if table.state == "copying"}
    for suffix, text in (("ranges", "Ranges of a table that is being copied."), ("ranges_done", "Those copied.")):
        yield f"# HELP walproxy_apply_copy_{suffix} {text}"
        yield f"# TYPE walproxy_apply_copy_{suffix} gauge"
        for name, table in copies.items():
            yield f'walproxy_apply_copy_{suffix}{{table="{_label(name)}"}} {getattr(table, suffix)}'


def _label(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
