"""Out of the archive, verified."""

from pathlib import Path

from safekeeper.archive.catalog import Catalog
from safekeeper.archive.objects import ArchivedObject, Manifest
from safekeeper.archive.store import ObjectStore
from safekeeper.lsn import Lsn


class ArchiveReader:
    """Reads an archive. Blocking, thread-safe."""

    store: ObjectStore

    def __init__(self, store: ObjectStore) -> None:
        raise NotImplementedError

    def manifest(self) -> Manifest | None:
        """Return whose archive it is; None if there is no archive here yet.

        Raises:
            ArchiveRefused: the manifest is not understood.
        """
        raise NotImplementedError

    def catalog(self) -> Catalog:
        """Return all that is in the archive: everything is listed, and the history files are read.

        Raises:
            ObjectMissing: there is no manifest, hence no archive.
        """
        raise NotImplementedError

    def find(self, tli: int, begin_lsn: Lsn) -> ArchivedObject | None:
        """Return the file of `tli` for the segment that holds byte `begin_lsn`: whole, else the longest partial.

        One folder is listed.

        Raises:
            ArchiveConflict: there are two, and they differ.
        """
        raise NotImplementedError

    def candidates(self, tli: int, begin_lsn: Lsn) -> list[ArchivedObject]:
        """Return all objects that `find` chooses from, the best first: for another try when one is corrupt."""
        raise NotImplementedError

    def fetch(self, archived: ArchivedObject, target: Path) -> None:
        """Write the plain bytes of an object to `target`, which is there with all of them or not at all.

        Raises:
            ArchiveCorrupt: the object is not what its receipt says.
            ObjectMissing: it is gone.
            StorageFull, StorageFailed: `target` cannot be written.
        """
        raise NotImplementedError

    def fetch_bytes(self, archived: ArchivedObject) -> bytes:
        """Return the plain bytes of an object.

        Raises:
            As `fetch`.
        """
        raise NotImplementedError

    def history(self, tli: int) -> bytes | None:
        """Return the history file of `tli`, None if it is not in the archive.

        Raises:
            ArchiveConflict: there are two, and they differ.
            ArchiveCorrupt: it is not what its receipt says.
        """
        raise NotImplementedError
