"""WAL that a standby lacks, written to its pg_wal by a command on its machine.

PostgreSQL replays what it finds in pg_wal: "The standby server will also attempt to restore any WAL found in the
standby cluster's pg_wal directory. [...] you can also manually copy files to pg_wal at any time to have them replayed."
It looks there after restore_command and walreceiver have failed, every wal_retrieve_retry_interval, and at once after
SIGHUP (tried on 15, 17 and 18).

A segment that exists is written in place: the bytes are those that a walreceiver would write at the same positions, so
a walreceiver that is started meanwhile does no harm. It would continue to write to a file that was replaced. Only bytes
below the end of a log that is sealed are written, which a quorum has, and none below the position of the replay.
Source: https://www.postgresql.org/docs/current/warm-standby.html#STANDBY-SERVER-OPERATION
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from safekeeper.base.errors import PrimaryRefused, WalproxyError
from safekeeper.base.lsn import Lsn, format_lsn, segment_name, segment_start
from safekeeper.base.timelines import PASSED_OVER_HISTORY, tli_of_byte
from walproxy.agent.standby_folder import LocalStandbyFolder, StandbySegment
from walproxy.failover.candidates import HostLook
from walproxy.failover.log_end import LogEnd, Read

_PAGE_BYTES = 8192
_PIECE_BYTES = 1 << 20


class Part(NamedTuple):
    """A range of the log within one segment, and the timeline in the name of its file."""

    tli: int
    begin_lsn: Lsn
    end_lsn: Lsn


def parts_to_hand_over(end: LogEnd, replayed_lsn: Lsn, segment_size: int) -> Iterator[Part]:
    """Yield the log from the segment of `replayed_lsn` to the last complete record, in order.

    A segment in which the timeline changes is read under the name of the later one.
    """
    begin_lsn = segment_start(replayed_lsn, segment_size)
    while begin_lsn < end.records_end_lsn:
        end_lsn = min(begin_lsn + segment_size, end.records_end_lsn)
        yield Part(tli_of_byte(end.tli, end.lineage, end_lsn - 1), begin_lsn, end_lsn)
        begin_lsn = end_lsn


async def hand_over(
    folder: LocalStandbyFolder,
    read: Read,
    end: LogEnd,
    look: HostLook,
    segment_size: int,
    histories: Mapping[int, bytes],
) -> int:
    """Write what a standby lacks of the log to its pg_wal; return the number of bytes.

    Args:
        read: returns the log's bytes [begin, end), of the term whose seal is committed.
        look: of the standby, just now.
        histories: the history files of the log's timelines.

    Raises:
        PrimaryRefused: the standby's WAL differs from the log.
        WalproxyError: no safekeeper delivers the bytes, or they cannot be written.
    """
    handed = 0
    try:
        for tli in range(look.tli + 1, end.tli + 1):
            await asyncio.to_thread(folder.place_history, tli, histories.get(tli, PASSED_OVER_HISTORY))
        for part in parts_to_hand_over(end, look.replayed_lsn, segment_size):
            name = segment_name(part.tli, part.begin_lsn, segment_size)
            file = await asyncio.to_thread(folder.open_segment, name, segment_size)
            try:
                begin_lsn = part.begin_lsn
                if not file.is_new and begin_lsn < look.replayed_lsn:
                    begin_lsn = look.replayed_lsn
                    await _compare_page(file, read, part.begin_lsn, begin_lsn)
                for piece_lsn in range(begin_lsn, part.end_lsn, _PIECE_BYTES):
                    payload = await read(piece_lsn, min(piece_lsn + _PIECE_BYTES, part.end_lsn))
                    await asyncio.to_thread(file.write, piece_lsn - part.begin_lsn, payload)
                await asyncio.to_thread(file.finish)
                handed += max(0, part.end_lsn - max(begin_lsn, look.reached_lsn))
            finally:
                file.close()
    except OSError as error:
        raise WalproxyError(
            f"the WAL that {look.name} lacks cannot be written: {error.filename or folder}: {error.strerror or error}"
        ) from None
    return handed


async def _compare_page(file: StandbySegment, read: Read, segment_lsn: Lsn, replayed_lsn: Lsn) -> None:
    """Compare the part of a page that was replayed with the log's."""
    page_lsn = replayed_lsn - replayed_lsn % _PAGE_BYTES
    if page_lsn == replayed_lsn:
        return
    ours = await asyncio.to_thread(file.read, page_lsn - segment_lsn, replayed_lsn - page_lsn)
    if ours != await read(page_lsn, replayed_lsn):
        raise PrimaryRefused(
            f"the standby's WAL differs from the log between {format_lsn(page_lsn)} and {format_lsn(replayed_lsn)}: it "
            "must not be promoted; rebuild it with pg_basebackup"
        )
