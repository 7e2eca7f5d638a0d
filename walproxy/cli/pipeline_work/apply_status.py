"""`walproxy pipeline cdc status --to DIR|URL`: the tables that `apply` keeps there."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn, parse_lsn
from walproxy.pipeline.cdc.apply.status_files import ApplyStatus, read_status
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.proxy.status_table import format_bytes


class ApplyPosition:
    """The last report of the job of a location, beside the position of the quorum now.

    Attributes:
        lag_bytes: of WAL on the quorum that the tables do not have.
        lag_s: seconds since the tables were known to have everything that was on the quorum; 0 if they have it now.

    Raises:
        WalproxyError: there is no report.
    """

    def __init__(self, location: str, lake_options: Mapping[str, str], safe_lsn: Lsn) -> None:
        now = time.time()
        self._status: ApplyStatus = read_status(LakeLocation.parse(location, lake_options))
        self._age_s = max(now - self._status.time, 0)
        self.lag_bytes = max(safe_lsn - parse_lsn(self._status.position), 0)
        self.lag_s = max(now - self._status.current_time, 0) if self.lag_bytes else 0

    def as_json(self) -> dict[str, Any]:
        """Return the report, and what is known beside it."""
        shown: dict[str, Any] = msgspec.to_builtins(self._status)
        return {**shown, "lag_bytes": self.lag_bytes, "lag_seconds": round(self.lag_s, 3)}

    def show(self) -> None:
        """Print the tables."""
        status = self._status
        lag = f"{format_bytes(self.lag_bytes)} and at most {self.lag_s:.0f} s" if self.lag_bytes else "none"
        where = f"tables, mode {status.mode}: followed up to {status.position}"
        click.echo(f"{where}, lag: {lag}; reported {self._age_s:.0f} s ago")
        for name, table in status.tables.items():
            if table.state == "quarantined":
                since = datetime.fromtimestamp(table.since or 0, UTC)
                click.echo(f"{name}: quarantined since {since:%Y-%m-%d %H:%M:%S} UTC: {table.reason}")
            elif table.state == "copying":
                click.echo(f"{name}: being copied, {table.ranges_done} of {table.ranges} ranges")
            else:
                click.echo(f"{name}: following, at {table.position}")

    def require_all(self) -> None:
        """See that no table is quarantined. Raises WalproxyError."""
        tables = self._status.tables
        quarantined = sum(table.state == "quarantined" for table in tables.values())
        if quarantined:
            raise WalproxyError(f"{quarantined} of {len(tables)} tables are quarantined: see above")
