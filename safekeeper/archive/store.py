"""A folder of an object store: put, get, list, delete.

Any store with whole objects is sufficient: nothing is renamed or copied, and a store without range requests only sends
more than is needed. Stores differ in one respect that matters. Most refuse a put that must not overwrite if the object
exists; some ignore the condition and overwrite. `probe` finds out, once. For a store of the second kind `put` checks
first, which leaves a gap that the caller must close by checking again afterwards.

Objects up to WHOLE_MAX_BYTES are sent in one request. Larger ones are streamed and put in parts, for which no store
supports a condition.

Errors are those of safekeeper/base/errors.py: ArchiveUnavailable for everything that may pass, ArchiveRefused if an
operator must correct it, ObjectMissing. None of them contains credentials.
"""

import logging
import threading
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from safekeeper.archive.local_folder import LocalFolder
from safekeeper.archive.location import REQUEST_RETRIES, Location, open_location
from safekeeper.archive.objects import NO_OPTIONS, PROBE_FOLDER, ObjectInfo
from safekeeper.archive.store_errors import ConditionsNotSupported, needs_checksum, secrets_of, translated
from safekeeper.base.errors import ArchiveError, ArchiveRefused, ObjectMissing

if TYPE_CHECKING:
    from obstore import PutMode, PutResult, UpdateVersion  # They exist in the stubs only.

WHOLE_MAX_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_STREAMED_BYTES = 64 << 10
# Parts in flight: together they take no more memory than an object in one request.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
# No process takes longer than this to write one file.
_LEFTOVER_AGE_S = 3600.0

# obstore's error if the answer to a request for a range is the whole object.
_IGNORED_RANGE = "non-partial response"

_log = logging.getLogger(__name__)


class _RangesNotSupported(Exception):
    """The store sends whole objects only."""


class ObjectTag(NamedTuple):
    """The identity of one version of an object; which of the two a store has depends on its kind."""

    e_tag: str | None
    version: str | None


def _version_of(tag: ObjectTag) -> "UpdateVersion":
    version: UpdateVersion = {}
    if tag.e_tag is not None:
        version["e_tag"] = tag.e_tag
    if tag.version is not None:
        version["version"] = tag.version
    return version


class ObjectStore:
    """A folder of an object store. Created by `open`. Blocking, thread-safe.

    Attributes:
        url: its URL, without credentials.
        folder: its local folder, None for a remote store.
    """

    def __init__(self, location: Location, secrets: Iterable[str]) -> None:
        self.url = location.url
        self._client = location.client
        self._with_checksums = location.with_checksums
        self._sends_checksums = False
        self._checksum_lock = threading.Lock()
        self.folder = location.folder
        self._folder = LocalFolder(location.folder) if location.folder is not None else None
        self._secrets = tuple(secrets)
        self._probe_lock = threading.Lock()
        self._honours_conditions: bool | None = None
        self._knows_ranges = True  # Until a request shows that the store does not support them.

    @classmethod
    def open(
        cls,
        url: str,
        *,
        options: Mapping[str, str] = NO_OPTIONS,
        timeout_s: float = 30,
        retries: int = REQUEST_RETRIES,
        makes_folder: bool = False,
    ) -> Self:
        """Return the folder at `url`. No request is sent to a remote store yet.

        Args:
            url: `/path`, `file:///path`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
            options: obstore's own configuration keys, e.g. endpoint, region, virtual_hosted_style_request; also
                allow_http, allow_invalid_certificates, proxy_url and root_certificate (the path of a PEM file).
            timeout_s: the maximum time of a request without a reply.
            retries: how often the client itself repeats a request that may succeed later.
            makes_folder: create a local folder that does not exist, for the processes that begin an archive.

        Raises:
            ConfigurationError: the URL or an option is not valid, or the local folder does not exist.
        """
        location = open_location(url, options, timeout_s, retries, makes_folder=makes_folder)
        return cls(location, secrets_of(options))

    def probe(self) -> bool:
        """Return whether the store refuses to overwrite if asked to. Tested once, remembered afterwards."""
        with self._probe_lock:
            if self._honours_conditions is None:
                self._honours_conditions = self._ask_for_conditions()
                if not self._honours_conditions:
                    _log.warning(
                        "the archive %s does not support conditional puts: checking names before and after each upload",
                        self.url,
                    )
            return self._honours_conditions

    def put(self, key: str, data: bytes | memoryview | Iterable[bytes], *, absent: bool) -> bool:
        """Store an object; it is durable when this returns.

        Args:
            data: the bytes, or pieces for an object that is too large for that. Their iterator may raise any error
                that is not an OSError.
            absent: do not overwrite an existing object.

        Returns:
            False if `absent` and it exists.
        """
        if self._folder is not None:
            with self._translating(f"put {self._name(key)}"):
                self._folder.prepare(key)
        if absent and not (isinstance(data, bytes | memoryview) and self.probe()):
            if self._exists(key):
                return False
            absent = False
        if isinstance(data, bytes | memoryview):
            return self._put_whole(key, data, absent=absent)
        with self._translating(f"put {self._name(key)}"):
            try:
                obstore.put(
                    self._client, key, data, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
                )
            except BaseError as error:
                self._add_checksums(error)  # For the next attempt: the pieces of this one are used up.
                raise
            self._make_durable(key)
        return True

    def get(self, key: str) -> bytes:
        """Return the content of a small object.

        Raises:
            ObjectMissing: it does not exist.
        """
        return b"".join(self.pieces(key))

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces: of some MiB, or all in one if it has at most WHOLE_MAX_BYTES.

        Raises:
            ObjectMissing: it does not exist.
        """
        with self._translating(f"get {self._name(key)}"):
            if self._folder is not None:
                yield from self._folder.pieces(key)
                return
            result = obstore.get(self._client, key)
            if result.meta["size"] <= WHOLE_MAX_BYTES:
                yield bytes(result.bytes())
            else:
                yield from result.stream(min_chunk_size=_PIECE_BYTES)

    def part(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of an object, fewer only if it ends before.

        Raises:
            ObjectMissing: it does not exist.
        """
        if self._folder is not None:
            with self._translating(f"get {self._name(key)}"):
                return self._folder.part(key, begin, end)
        if self._knows_ranges:
            try:
                return self._ranged(key, begin, end)
            except _RangesNotSupported:
                self._knows_ranges = False
        passed, found = 0, bytearray()
        for piece in self.stream(key):
            found += piece[max(begin - passed, 0) : max(end - passed, 0)]
            passed += len(piece)
            if passed >= end:
                break
        return bytes(found)

    def stream(self, key: str) -> Generator[bytes, None, None]:
        """Yield the content of an object as it is received; close the iterator to stop the transfer.

        Raises:
            ObjectMissing: it does not exist.
        """
        with self._translating(f"get {self._name(key)}"):
            if self._folder is not None:
                yield from self._folder.pieces(key)
            else:
                yield from obstore.get(self._client, key).stream(min_chunk_size=_STREAMED_BYTES)

    def list(self, folder: str = "", *, after: str = "") -> list[ObjectInfo]:
        """Return all objects below `folder` (whole parts of keys), by key; none if the folder does not exist.

        Args:
            after: only those with a greater key, which a remote store finds without listing the others.
        """
        with self._translating(f"list {self._name(folder)}"):
            if self._folder is not None:
                return [info for info in self._folder.list(folder) if info.key > after]
            return sorted(
                ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp())
                for page in obstore.list(self._client, folder or None, offset=after or None, chunk_size=1000)
                for meta in page
                if meta["path"] > after  # Some stores ignore the start.
            )

    def entries(self, folder: str = "") -> tuple[set[str], set[str]]:
        """Return the names of the folders and of the objects directly in `folder`; none if it does not exist."""
        with self._translating(f"list {self._name(folder)}"):
            if self._folder is not None:
                return self._folder.entries(folder)
            listed = obstore.list_with_delimiter(self._client, folder or None)
            return (
                {prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"]},
                {meta["path"].rpartition("/")[2] for meta in listed["objects"]},
            )

    def get_tagged(self, key: str) -> tuple[bytes, ObjectTag]:
        """Return the content of a small object of a remote store, and the tag of this version for `replace`.

        Raises:
            ObjectMissing: it does not exist.
        """
        with self._translating(f"get {self._name(key)}"):
            result = obstore.get(self._client, key)
            return bytes(result.bytes()), ObjectTag(result.meta["e_tag"], result.meta["version"])

    def replace(self, key: str, data: bytes, tag: ObjectTag) -> ObjectTag | None:
        """Store a small object of a remote store in the place of the version that has this tag.

        Returns:
            the tag of the new version; None if the object has another version now, or none.
        """
        with self._translating(f"put {self._name(key)}"):
            try:
                put = self._put_small(key, data, _version_of(tag))
                return ObjectTag(put["e_tag"], put["version"])
            except PreconditionError:
                return None

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, one after the other in the given order; those that do not exist are ignored."""
        for key in keys:
            try:
                with self._translating(f"delete {self._name(key)}"):
                    obstore.delete(self._client, key)
            except ObjectMissing:
                continue

    def remove_leftovers(self) -> None:
        """Remove the temporary files of killed writers, which only a local folder has."""
        if self._folder is not None:
            with self._translating(f"clean up {self.url}"):
                removed = self._folder.remove_leftovers(_LEFTOVER_AGE_S)
            if removed:
                _log.info("removed %d unfinished files from the archive %s", removed, self.url)

    def _ask_for_conditions(self) -> bool:
        key = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
        try:
            if not self._put_whole(key, b"1", absent=True):
                return False  # The request was refused, but not because the object exists.
            return not self._put_whole(key, b"2", absent=True)
        except ConditionsNotSupported:
            return False
        finally:
            self._delete_probe(key)

    def _delete_probe(self, key: str) -> None:
        try:
            self.delete([key])
        except ArchiveRefused as error:
            _log.info(
                "could not remove the probe from the archive: %s", error
            )  # Stores that keep everything are good archives.
        except ArchiveError as error:
            _log.debug("could not remove the probe from the archive: %s", error)

    def _ranged(self, key: str, begin: int, end: int) -> bytes:
        with self._translating(f"get {self._name(key)}"):
            try:
                return bytes(obstore.get_range(self._client, key, start=begin, end=end))
            except BaseError as error:
                if _IGNORED_RANGE in str(error):
                    raise _RangesNotSupported from error
                raise

    def _put_whole(self, key: str, data: bytes | memoryview, *, absent: bool) -> bool:
        with self._translating(f"put {self._name(key)}"):
            try:
                self._put_small(key, data, "create" if absent else "overwrite")
            except (AlreadyExistsError, PreconditionError):
                if not absent:
                    raise
                return False
            self._make_durable(key)
        return True

    def _put_small(self, key: str, data: bytes | memoryview, mode: "PutMode") -> "PutResult":
        """Put an object in one request, which is repeated with a checksum if the store requires that."""
        try:
            return obstore.put(self._client, key, data, use_multipart=False, mode=mode)
        except BaseError as error:
            if not self._add_checksums(error):
                raise
        return obstore.put(self._client, key, data, use_multipart=False, mode=mode)

    def _add_checksums(self, error: BaseError) -> bool:
        """Send a checksum with each further put if the store has refused one without; return whether it has.

        Not from the start: stores that imitate S3 may refuse the header. SHA-256 costs nothing more, since the
        signature of a request contains it anyway.
        """
        if self._with_checksums is None or not needs_checksum(error):
            return False
        with self._checksum_lock:
            if not self._sends_checksums:
                self._client, self._sends_checksums = self._with_checksums(), True
                _log.info("the archive %s requires checksums (Object Lock): sending SHA-256 with each object", self.url)
        return True

    def _exists(self, key: str) -> bool:
        try:
            with self._translating(f"look for {self._name(key)}"):
                obstore.head(self._client, key)
        except ObjectMissing:
            return False
        return True

    def _make_durable(self, key: str) -> None:
        if self._folder is not None:
            self._folder.sync(key)

    def _name(self, key: str) -> str:
        return f"{self.url.rstrip('/')}/{key}"

    @contextmanager
    def _translating(self, action: str) -> Iterator[None]:
        """Turn errors of obstore and the operating system into those of this program."""
        try:
            yield
        except (BaseError, OSError) as error:
            raise translated(error, action, self._secrets) from error
