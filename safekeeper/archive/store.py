"""A folder of an object store: put, get, list, delete, and nothing else."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from safekeeper.archive.objects import ObjectInfo

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class ObjectStore:
    """A folder of an object store. Made by `open`. Blocking, thread-safe.

    Attributes:
        url: where it is, without credentials.
    """

    url: str

    @classmethod
    def open(cls, url: str, *, options: Mapping[str, str] = NO_OPTIONS, timeout_s: float = 30) -> "ObjectStore":
        """Return the folder that `url` names. Nothing is asked of a remote store yet; a local folder is made.

        Args:
            url: `/path`, `file:///path`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
            options: obstore's own configuration keys, e.g. endpoint, region, virtual_hosted_style_request.
            timeout_s: how long a request may go on without an answer.

        Raises:
            ConfigurationError: the URL or an option cannot work.
        """
        raise NotImplementedError

    def probe(self) -> bool:
        """Say whether the store honours a put that must not overwrite. Asked once, remembered afterwards."""
        raise NotImplementedError

    def put(self, key: str, data: bytes | memoryview | Iterable[bytes], *, absent: bool) -> bool:
        """Store an object, durably when this returns.

        Args:
            data: the bytes at once, or pieces for an object that is too large for that.
            absent: nothing may be overwritten.

        Returns:
            False if `absent` and it exists.
        """
        raise NotImplementedError

    def get(self, key: str) -> bytes:
        """Return the content of a small object.

        Raises:
            ObjectMissing: there is none.
        """
        raise NotImplementedError

    def pieces(self, key: str) -> Iterator[bytes]:
        """Return the content of an object, piece by piece.

        Raises:
            ObjectMissing: there is none.
        """
        raise NotImplementedError

    def list(self, folder: str = "") -> list[ObjectInfo]:
        """Return all objects below `folder` (whole parts of keys), by key."""
        raise NotImplementedError

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, one after the other in the order given; those that are not there are passed over."""
        raise NotImplementedError
