"""Ask an object store for WAL; raise its failures as what they mean to a reader."""

from collections.abc import Callable
from typing import TypeVar

from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveUnavailable,
    ObjectMissing,
    WalproxyError,
)
from walproxy.wal_sources.source import SourceCorrupt, SourceUnavailable, WalMissing

_Result = TypeVar("_Result")


def ask(question: Callable[[], _Result], missing_error: type[WalproxyError] = WalMissing) -> _Result:
    """Ask the archive; return its answer.

    Raises:
        SourceUnavailable, SourceCorrupt
        missing_error: an object is not there.
    """
    try:
        return question()
    except ArchiveUnavailable as error:
        raise SourceUnavailable(str(error)) from error
    except (ArchiveConflict, ArchiveCorrupt) as error:
        raise SourceCorrupt(str(error)) from error
    except ObjectMissing as error:
        raise missing_error(str(error)) from error
