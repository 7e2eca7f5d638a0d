"""Report what delta-rs raises about an object store as errors of this program, in one line.

delta-rs prints the chain of causes over several lines, with arrows and colours; joined again it is the text that
obstore has, since both use the same client library. `safekeeper/archive/store_errors.py` distinguishes what may pass
from what an operator must correct.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from safekeeper.base.errors import ArchiveUnavailable, StorageFailed, WalproxyError
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.parquet_files import first_line

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_SIGNS_OF_DAMAGE: Final = ("404 Not Found", "416 Range Not Satisfiable")
"""A store's replies, as delta-rs prints them, about a file of a table that is missing or too short."""

_ARROW: Final = re.compile(r"\s*(?:↳|->)\s*")


@contextlib.contextmanager
def lake_errors(doing: str, location: LakeLocation) -> Iterator[None]:
    """Turn what delta-rs raises in the block into one line: "could not `doing`: reason".

    Raises:
        ArchiveUnavailable: the object store does not reply, or reports a temporary error.
        ArchiveRefused: an operator must correct it.
        StorageFailed: the table, or a local folder, cannot be read or written.
    """
    try:
        yield
    except WalproxyError:
        raise
    except (DeltaError, OSError, pa.ArrowInvalid) as error:
        raise lake_error(error, doing, location) from error


def lake_error(error: Exception, doing: str, location: LakeLocation) -> WalproxyError:
    """Return the error that stands for one of delta-rs. See `lake_errors`."""
    text = _ARROW.sub(": ", _COLOUR.sub("", str(error)))
    if location.folder is None and ("Error performing" in text or "Generic S3 error" in text):
        from safekeeper.archive.store_errors import translated  # It imports the client of object stores.

        failure = translated(Exception(text), doing, location.secrets)
        if isinstance(failure, ArchiveUnavailable) and any(sign in text for sign in _SIGNS_OF_DAMAGE):
            return StorageFailed(str(failure))  # The store works; this table does not.
        return failure
    return StorageFailed(f"could not {doing}: {first_line(Exception(text)) or type(error).__name__}")
