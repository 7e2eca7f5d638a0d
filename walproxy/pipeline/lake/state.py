"""A small object beside the tables that one process replaces: compare-and-set in an object store, a file in a folder.

In a folder a lock lets one process write (`run_folder.py`). An object store has none: an object is replaced only if it
is still the version that this process has read or written last.

A put without a reply may have succeeded, then or later. Its content is remembered: an object with this content is this
process's own, and the next put replaces it.
"""

from safekeeper.archive.store import ObjectTag
from safekeeper.base.errors import ObjectMissing, StorageFailed
from walproxy.pipeline.lake.disk import replace_durably, storage_errors
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.position import TableMoved


class StateObject:
    """One object. Not thread-safe.

    Args:
        location: of the tables.
        key: of the object in it.

    Attributes:
        name: of the object, for messages.
    """

    def __init__(self, location: LakeLocation, key: str) -> None:
        self.name = f"{location}/{key}"
        self._location = location
        self._key = key
        self._tag: ObjectTag | None = None
        self._unclear: list[bytes] = []  # What was put since the last put whose outcome is known.

    def read(self) -> bytes | None:
        """Return the content, None if there is no object.

        Raises:
            StorageFailed, ArchiveError: it cannot be read.
        """
        folder = self._location.folder
        try:
            if folder is not None:
                return (folder / self._key).read_bytes()
            content, self._tag = self._location.object_store().get_tagged(self._key)
        except (FileNotFoundError, ObjectMissing):
            self._tag = None
            return None
        except OSError as error:
            raise StorageFailed(f"cannot read {self.name}: {error.strerror}") from error
        return content

    def write(self, content: bytes) -> None:
        """Replace the content that was read or written last, durably.

        Raises:
            TableMoved: another process has replaced it.
            StorageFull, StorageFailed, ArchiveError: it cannot be written.
        """
        folder = self._location.folder
        if folder is not None:
            with storage_errors(f"write {self.name}"):
                replace_durably(folder / self._key, content)
            return
        unclear = [*self._unclear]
        self._unclear.append(content)
        while not self._put(content):
            # The reply to a put may have been lost, and its client has repeated it: what is there decides.
            found = self.read()
            if found == content:
                break
            if found not in unclear:
                raise TableMoved(f"{self.name} was replaced by another job: stop one of the jobs")
            unclear.remove(found)
        self._unclear.clear()

    def _put(self, content: bytes) -> bool:
        """Put the object in the place of the version that is known; return whether it is the object now."""
        store = self._location.object_store()
        if self._tag is None:
            store.put(self._key, content, absent=True)
            return False  # Only reading it returns its tag.
        tag = store.replace(self._key, content, self._tag)
        self._tag = tag or self._tag
        return tag is not None
