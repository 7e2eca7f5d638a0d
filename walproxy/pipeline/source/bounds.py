"""From which LSN to which the options ask, and the records of a piece that lie there."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from safekeeper.base.lsn import Lsn
from walproxy.pipeline.decoder.arrays import BlockArrays, RecordArrays
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.input.times import begin_of_time, end_of_time
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.source.options import SourceOptions
from walproxy.wal_sources.source import Extent, LogPath


def bounds_of(
    options: SourceOptions, wal_input: WalInput, path: LogPath, extents: Sequence[Extent]
) -> tuple[Lsn | None, Lsn | None]:
    """Return the first LSN to read and the one after the last; None where the options have none.

    Args:
        extents: what is there.

    Raises:
        SourceCorrupt: what is there is no valid WAL.
        As WalInput.read.
    """
    begin_lsn, end_lsn = options.start_lsn, options.end_lsn
    if extents and options.start_time is not None:
        begin_lsn = begin_of_time(wal_input, path, extents, options.start_time)
    if extents and options.end_time is not None:
        end_lsn = end_of_time(wal_input, path, extents, options.end_time)
    return begin_lsn, end_lsn


def without_records_before(decoded: Decoded, lsn: Lsn) -> Decoded:
    """Return the records that begin at or after `lsn`. The arrays are views of the same memory."""
    first = int(np.searchsorted(decoded.lsn, lsn))
    first_block = int(decoded.first_block[first])
    records = {name: getattr(decoded, name)[first:] for name in RecordArrays._fields}
    blocks = {
        name: getattr(decoded, name)[first_block:]
        for name in ("block_image_bytes" if name == "image_bytes" else name for name in BlockArrays._fields)
    }
    return dataclasses.replace(
        decoded,
        count=decoded.count - first,
        block_count=decoded.block_count - first_block,
        **{**records, "first_block": records["first_block"] - first_block},
        **{**blocks, "block_record": blocks["block_record"] - first},
    )
