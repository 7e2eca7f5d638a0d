"""From a safekeeper into the archive, so that two at once do no harm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

from safekeeper.archive.objects import ArchivedFile, Listing, Manifest
from safekeeper.archive.store import ObjectStore


class Source(Protocol):
    """Bytes that can be read several times."""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        ...

    def pieces(self) -> Iterator[bytes]:
        """Return them from the first one on, in pieces of about 1 MiB at most."""
        ...


Content: TypeAlias = bytes | memoryview | Path | Source


class Uploader:
    """What one safekeeper puts into the archive. Blocking; not for several threads at once."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        cluster_id: str,
        system_id: int,
        segment_size: int,
        safekeeper_id: int,
        compress: bool,
    ) -> None:
        raise NotImplementedError

    def claim(self) -> Manifest:
        """Make sure that the archive is ours: write its manifest if there is none.

        Raises:
            ArchiveRefused: it belongs to another cluster.
        """
        raise NotImplementedError

    def upload(self, file: ArchivedFile, content: Content) -> bool:
        """Put a file into the archive, verified and with its receipt; remove the partials that it supersedes.

        Returns:
            False if it was there already.

        Raises:
            ArchiveConflict: the archive holds other bytes under this name.
            ArchiveCorrupt: what was read back is not what was written.
        """
        raise NotImplementedError

    def listing(self, *folders: str) -> Listing:
        """Return what lies in these folders (see `objects.wal_folder`), in all of them if none is named."""
        raise NotImplementedError

    def delete_partials(self, file: ArchivedFile) -> None:
        """Remove the partials that `file`, which is in the archive, supersedes."""
        raise NotImplementedError


def adopt(store: ObjectStore, cluster_id: str) -> Manifest:
    """Let another cluster of the same database write into this archive: an operator's step after a rebootstrap.

    Raises:
        ArchiveRefused: there is no manifest, or it is not understood.
    """
    raise NotImplementedError
