"""The new primary, as far as a rejoin needs it: its history, and the WAL around the fork.

Everything is read over SQL, by the functions that pg_rewind needs too (pg_read_binary_file and others), so one role and
one connection string are enough: https://www.postgresql.org/docs/current/app-pgrewind.html
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import Lsn, segment_name, segment_start
from safekeeper.base.timelines import parse_timeline_history, timeline_history_name
from walproxy.agent.errors import RejoinFailed
from walproxy.agent.rejoin_plan import ComparedWal, Fork, TimelineLineage
from walproxy.postgres.bounded_sql import BoundedConnection, bounded_connection, quoted
from walproxy.postgres.problems import PrimaryProblem, ServerHangs

_DOING = "read the state of the new primary"
_POLL_S = 0.1
_CHECKPOINT_TIMEOUT_S = 600.0
_PIECE_BYTES = 16 << 20
_FACTS = """
SELECT (SELECT system_identifier FROM pg_control_system()), pg_is_in_recovery(),
  CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_walfile_name(pg_current_wal_flush_lsn()) END,
  current_setting('server_version_num'), (SELECT count(*) FROM pg_tablespace) - 2
"""


@dataclass(frozen=True)
class SourceFacts:
    """The new primary.

    Attributes:
        history: None for a standby.
        tablespaces: those outside of its data folder.
    """

    system_id: int
    in_recovery: bool
    major: int
    tablespaces: int
    history: TimelineLineage | None


class Source:
    """The new primary.

    Args:
        conninfo: of a superuser, or of a role with the rights that pg_rewind needs.
        timeout_s: for each reply.
    """

    def __init__(self, conninfo: str, timeout_s: float) -> None:
        self.conninfo = conninfo
        self._timeout_s = timeout_s

    def facts(self) -> SourceFacts:
        """Return its state.

        Raises:
            RejoinFailed: no connection, no right, or no reply in time.
        """
        with _failures(), self._connection() as connection:
            system_id, in_recovery, segment, version, tablespaces = connection.rows(_FACTS, _DOING)[0]
            history = None
            if segment is not None:
                tli = int(segment[:8], 16)
                content = _read_file(connection, f"pg_wal/{timeline_history_name(tli)}") if tli > 1 else b""
                if content is None:
                    raise RejoinFailed(f"the new primary has no history file of its timeline {tli}")
                history = TimelineLineage(tli, parse_timeline_history(tli, content))
            return SourceFacts(
                system_id=int(system_id or 0) % (1 << 64),  # PostgreSQL prints it as a signed number.
                in_recovery=in_recovery == "t",
                major=int(version or 0) // 10000,
                tablespaces=int(tablespaces or 0),
                history=history,
            )

    def compare_wal(
        self, pg_wal: Path, local: TimelineLineage, source: TimelineLineage, fork: Fork, segment_size: int
    ) -> ComparedWal:
        """Compare the WAL directly before the fork: all of the last segment, and of the one before if both have it.

        Args:
            pg_wal: of the local server.
            local: its history. A segment is named after the timeline that wrote it last.
            source: the history of the new primary.

        Raises:
            RejoinFailed: as `facts`.
        """
        assert fork.lsn is not None
        last = segment_start(fork.lsn - 1, segment_size)
        compared = ComparedWal.UNREADABLE
        with _failures(), self._connection() as connection:
            for start in (last, last - segment_size):
                size = min(segment_size, fork.lsn - start)
                ours = theirs = None
                if start >= 0:
                    ours = _local_hashes(pg_wal, _names(local, fork, start, segment_size), size)
                    theirs = _remote_hashes(connection, _names(source, fork, start, segment_size), size)
                if ours is None or theirs is None:
                    break
                if ours != theirs:
                    return ComparedWal.DIFFERENT
                compared = ComparedWal.EQUAL
        return compared

    def checkpoint(self) -> None:
        """Have pg_control of the new primary contain its timeline, by a checkpoint. Older pg_rewind read it only there.

        Raises:
            RejoinFailed: the role has no right to (`pg_checkpoint`), or it has not completed in time.
        """
        deadline = time.monotonic() + _CHECKPOINT_TIMEOUT_S
        timeout_s = _CHECKPOINT_TIMEOUT_S
        with _failures(), bounded_connection(self.conninfo, whose="the new primary", timeout_s=timeout_s) as connection:
            connection.rows("CHECKPOINT", "write a checkpoint on the new primary")
            while not _has_current_tli(connection):
                if time.monotonic() > deadline:
                    raise RejoinFailed("pg_control of the new primary still contains its former timeline")
                time.sleep(_POLL_S)

    def _connection(self) -> contextlib.AbstractContextManager[BoundedConnection]:
        return bounded_connection(self.conninfo, whose="the new primary", timeout_s=self._timeout_s)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except PrimaryProblem as error:
        raise RejoinFailed(f"the new primary: {error.message}") from None
    except (ServerHangs, RemoteProtocolError) as error:
        raise RejoinFailed(str(error)) from None


def _names(history: TimelineLineage, fork: Fork, start: Lsn, segment_size: int) -> list[str]:
    """Return the names under which a server may have the WAL before the fork that begins at `start`, the best first.

    The segment with the fork is copied at a promotion, so that of a later timeline has the same bytes up to the fork;
    the older one may be gone, or renamed because it is not complete.
    """
    tlis = [tli for tli, _, _ in history.with_ends()]
    at = tlis.index(fork.tli)
    in_order = [*tlis[at:], *reversed(tlis[:at])]
    names = [segment_name(tli, start, segment_size) for tli in in_order]
    return [names[0], f"{names[0]}.partial", *names[1:]]


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of the pieces that are hashed separately: one value of SQL has 1 GB at most."""
    for offset in range(0, size, _PIECE_BYTES):
        yield offset, min(_PIECE_BYTES, size - offset)


def _local_hashes(pg_wal: Path, names: Sequence[str], size: int) -> list[str] | None:
    for name in names:
        try:
            with (pg_wal / name).open("rb") as file:
                contents = [file.read(length) for _, length in _pieces(size)]
        except FileNotFoundError:
            continue
        if sum(map(len, contents)) == size:
            return [hashlib.sha256(content).hexdigest() for content in contents]
    return None


def _remote_hashes(connection: BoundedConnection, names: Sequence[str], size: int) -> list[str] | None:
    for name in names:
        hashes = []
        for offset, length in _pieces(size):
            read = f"pg_read_binary_file({quoted(f'pg_wal/{name}')}, {offset}, {length}, true)"
            sql = f"SELECT encode(sha256(content), 'hex') FROM (SELECT {read} AS content) r"
            rows = connection.rows(f"{sql} WHERE length(content) = {length}", _DOING)
            hashes += [value or "" for (value,) in rows]
        if len(hashes) == len(list(_pieces(size))):
            return hashes
    return None


def _read_file(connection: BoundedConnection, path: str) -> bytes | None:
    text = connection.value(f"SELECT encode(pg_read_binary_file({quoted(path)}, 0, 1048576, true), 'hex')", _DOING)
    return None if text is None else bytes.fromhex(text)


def _has_current_tli(connection: BoundedConnection) -> bool:
    row = connection.rows(
        "SELECT timeline_id, pg_walfile_name(pg_current_wal_flush_lsn()) FROM pg_control_checkpoint()", _DOING
    )[0]
    return row[0] is not None and row[1] is not None and int(row[0]) == int(row[1][:8], 16)
