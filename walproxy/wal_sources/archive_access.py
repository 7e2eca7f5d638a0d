"""What the answers of an archive, and its failures, mean to a reader."""

from collections.abc import Callable
from typing import TypeVar

from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.objects import MANIFEST_KEY
from safekeeper.base.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ArchiveUnavailable,
    ObjectMissing,
    WalproxyError,
)
from walproxy.wal_sources.source import Origin, SourceCorrupt, SourceUnavailable

_Result = TypeVar("_Result")


def ask_archive(question: Callable[[], _Result], missing: type[WalproxyError]) -> _Result:
    """Ask the archive; return its answer.

    Raises:
        SourceUnavailable, SourceCorrupt: what its failure means to a reader.
        missing: an object is not there.
    """
    try:
        return question()
    except ArchiveUnavailable as error:
        raise SourceUnavailable(str(error)) from error
    except (ArchiveConflict, ArchiveCorrupt) as error:
        raise SourceCorrupt(str(error)) from error
    except ObjectMissing as error:
        raise missing(str(error)) from error


def archive_origin(name: str, reader: ArchiveReader) -> Origin:
    """Return whose WAL an archive holds. It does not change, so one answer is enough.

    Raises:
        ArchiveRefused: it has no manifest.
        SourceUnavailable, SourceCorrupt: it cannot be read.
    """
    manifest = ask_archive(reader.manifest, ArchiveRefused)
    if manifest is None:
        raise ArchiveRefused(f"{name} has no {MANIFEST_KEY}: nothing was ever archived there; correct the URL")
    return Origin(manifest.system_id, manifest.segment_size)
