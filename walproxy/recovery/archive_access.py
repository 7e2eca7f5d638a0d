"""How whoever reads an archive opens it, asks it, and learns what its failures mean."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.objects import MANIFEST_KEY
from safekeeper.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveRefused,
    ArchiveUnavailable,
    ConfigurationError,
    ObjectMissing,
    WalproxyError,
)
from walproxy.recovery.sources import Origin, SourceCorrupt, SourceUnavailable

_Result = TypeVar("_Result")


def existing_archive(url: str) -> str:
    """Return the URL, a local folder's absolute.

    Raises:
        ConfigurationError: the folder is not there. Opening would make it, and who reads has mistyped it.
    """
    scheme, has_scheme, _ = url.partition("://")
    if has_scheme and scheme != "file":
        return url
    folder = Path(unquote(urlsplit(url).path) if has_scheme else url).absolute()
    if not folder.is_dir():
        raise ConfigurationError(f"there is no archive in {folder}, which is no folder: correct the archive's URL")
    return str(folder)


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
