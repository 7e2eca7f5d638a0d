"""The position up to which commits may be shown: those below it are on a quorum, so no failure loses them (S7a).

A primary decodes a commit as soon as its own disk has it, while the client still waits for the quorum. If the primary
is lost just then, the commit may never have been: a table that shows it stays wrong. So changes are read up to the
quorum's commit_lsn only, and quorum_gate.py holds back a transaction whose commit record is not below it. Where that is
read:

    URL           GET /status of the proxy, which must lead the timeline of the server whose changes are read
    standby:NAME  the flush position that the walreceiver NAME reports to the primary: for a walproxy that is commit_lsn
    none          the end of the primary's durable WAL. For a primary without walproxy
    (not given)   standby:walproxy, if the server has traces of a walproxy: one that streams, a slot of that name, or
                  synchronous_standby_names; else as `none`
"""

import time
from typing import Final

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import Lsn, format_lsn, parse_lsn
from walproxy.pipeline.cdc.server import Connection, SourceRefused, SourceUnavailable, one_line_errors, one_value
from walproxy.proxy.status_client import fetch_status, shown_url

NO_QUORUM: Final = "none"
_STANDBY: Final = "standby:"
_WALPROXY: Final = "walproxy"
_POLL_S: Final = 0.2

_REPORTED = """
    SELECT pg_current_wal_flush_lsn()::text,
           (SELECT max(flush_lsn)::text FROM pg_stat_replication WHERE application_name = %(name)s),
           EXISTS (SELECT FROM pg_stat_replication WHERE application_name = %(name)s)
           OR EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(name)s AND slot_type = 'physical')
           OR %(name)s = ANY (regexp_split_to_array(current_setting('synchronous_standby_names'), '[^A-Za-z0-9_]+')),
           pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
           left(pg_walfile_name(pg_current_wal_flush_lsn()), 8)
"""


def flush_lsn(connection: Connection) -> Lsn:
    """Return the end of the WAL that the server itself has flushed.

    Raises:
        SourceUnavailable, SourceRefused.
    """
    return parse_lsn(one_value(connection, "SELECT pg_current_wal_flush_lsn()::text", doing="look at the WAL"))


class SafeLsn:
    """Asks one source. `status` is one of the four above, None for not given.

    Raises:
        ConfigurationError: `status` is none of them.
    """

    def __init__(self, status: str | None) -> None:
        self.status = status
        if status not in (None, NO_QUORUM) and not status.startswith((_STANDBY, "http://", "https://")):
            raise ConfigurationError(
                f"{status!r} does not name a source of the quorum's position: give the URL of walproxy's HTTP "
                f"listener, {_STANDBY}NAME, or {NO_QUORUM}"
            )

    def read(self, connection: Connection) -> Lsn:
        """Return the position, 0 while it is not known; never beyond what the primary itself has durably.

        Raises:
            WalproxyError: its source does not answer.
        """
        name = (self.status or "").removeprefix(_STANDBY) if (self.status or "").startswith(_STANDBY) else _WALPROXY
        with one_line_errors("ask for the position of the quorum"):
            row = connection.execute(_REPORTED, {"name": name}).fetchone()
        if row is None:
            raise SourceUnavailable("could not ask for the position of the quorum: no answer")
        flushed_lsn, reported, is_known, may_read = parse_lsn(row[0]), row[1], row[2], row[3]
        if self.status == NO_QUORUM:
            return flushed_lsn
        if self.status is None and not is_known:
            return flushed_lsn
        if self.status is not None and not self.status.startswith(_STANDBY):
            return min(flushed_lsn, self._commit_lsn(self.status, int(row[4], 16)))
        if not may_read:
            raise SourceRefused(
                f"this role cannot read the position of {name!r}: GRANT pg_monitor to it, or set the URL of walproxy's "
                "HTTP listener as status"
            )
        return min(flushed_lsn, parse_lsn(reported)) if reported else 0

    @staticmethod
    def _commit_lsn(url: str, tli: int) -> Lsn:
        """Return the position of a proxy. Beyond the fork it would be one of another server's WAL.

        Raises:
            SourceUnavailable: it leads another timeline, as it may during a failover.
            WalproxyError: it does not answer.
        """
        status = fetch_status(url)
        if status.tli not in (None, tli):
            raise SourceUnavailable(
                f"the proxy at {shown_url(url)} leads timeline {status.tli}, the server is on timeline {tli}: name "
                "the primary from which that proxy streams"
            )
        return parse_lsn(status.commit_lsn)

    def wait_for(self, connection: Connection, lsn: Lsn, timeout_s: float) -> None:
        """Return when the position is at or beyond `lsn`.

        Raises:
            SourceUnavailable: it is not within `timeout_s`.
            WalproxyError: its source does not answer.
        """
        deadline = time.monotonic() + timeout_s
        while (reached_lsn := self.read(connection)) < lsn:
            if time.monotonic() > deadline:
                raise SourceUnavailable(
                    f"the quorum has not reached {format_lsn(lsn)} within {timeout_s:.0f} s, it is at "
                    f"{format_lsn(reached_lsn)}: look at `walproxy status`"
                )
            time.sleep(_POLL_S)
