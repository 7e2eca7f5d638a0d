"""From which LSN to which the options ask, and the records of a piece that lie there."""

import dataclasses

import numpy as np

from safekeeper.lsn import Lsn
from walproxy.pipeline.decoder.decode import Decoded
from walproxy.pipeline.decoder.walker import BlockArrays, RecordArrays
from walproxy.pipeline.input.wal_input import WalInput
from walproxy.pipeline.source.options import SourceOptions
from walproxy.recovery.sources import LogPath


def bounds_of(options: SourceOptions, wal_input: WalInput, path: LogPath) -> tuple[Lsn | None, Lsn | None]:
    """Return the first LSN that is wanted and the one behind the last; None where the options say nothing.

    Raises:
        As WalInput.read.
    """
    return options.start_lsn, options.end_lsn


def without_records_before(decoded: Decoded, lsn: Lsn) -> Decoded:
    """Return the records that begin at `lsn` or behind it. The arrays are views of the same memory."""
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
