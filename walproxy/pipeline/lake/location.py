"""Where tables are: a folder of this machine or a shared one, or a prefix of an object store.

Credentials come from the options or the environment (as obstore and delta-rs read it: `AWS_ACCESS_KEY_ID` etc.), never
from the URL, because messages show it. The client of object stores is imported only for such a store.
"""

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self
from urllib.parse import unquote, urlsplit

from safekeeper.archive.objects import NO_OPTIONS, ObjectInfo
from safekeeper.base.errors import ConfigurationError, ObjectMissing
from walproxy.pipeline.lake.disk import make_folder, storage_errors, sync_folder
from walproxy.pipeline.lake.names import local_folder

if TYPE_CHECKING:
    from safekeeper.archive.store import ObjectStore


class FolderStore:
    """The files below a folder, by their paths in it.

    Every method raises StorageFailed, and StorageFull if the disk is full.

    Attributes:
        url: the absolute path of the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self._folder = folder

    def put(self, key: str, data: bytes | memoryview | Iterable[bytes], *, absent: bool) -> bool:
        """Store a file, durably; False if `absent` and it exists."""
        path = self._folder / key
        pieces = [data] if isinstance(data, bytes | memoryview) else data
        with storage_errors(f"write {path}"):
            make_folder(path.parent)
            try:
                with path.open("xb" if absent else "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                return False
            sync_folder(path.parent)
        return True

    def get(self, key: str) -> bytes:
        """Return the content of a file. Raises ObjectMissing."""
        with self._reading(key) as path:
            return path.read_bytes()

    def part(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a file, fewer only if it ends before. Raises ObjectMissing."""
        with self._reading(key) as path, path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def list(self, folder: str = "") -> list[ObjectInfo]:
        """Return all files below `folder`, by key; none if it does not exist."""
        with storage_errors(f"list {self._folder / folder}"):
            return sorted(self._walk(self._folder / folder))

    def _walk(self, folder: Path) -> Iterator[ObjectInfo]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(Path(entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):  # It is removed meanwhile.
                status = entry.stat(follow_symlinks=False)
                yield ObjectInfo(os.path.relpath(entry.path, self._folder), status.st_size, status.st_mtime)

    def entries(self, folder: str = "") -> tuple[set[str], set[str]]:
        """Return the names of the folders and of the files directly in `folder`; none if it does not exist."""
        found: tuple[set[str], set[str]] = set(), set()
        with storage_errors(f"list {self._folder / folder}"):
            try:
                entries = list(os.scandir(self._folder / folder))
            except FileNotFoundError:
                return found
            for entry in entries:
                found[0 if entry.is_dir() else 1].add(entry.name)
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files; those that do not exist are ignored."""
        for key in keys:
            with storage_errors(f"remove {self._folder / key}"):
                (self._folder / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self._folder / key
        with storage_errors(f"read {path}"):
            try:
                yield path
            except (FileNotFoundError, NotADirectoryError) as error:
                raise ObjectMissing(f"{path} is missing") from error


_SCHEMES: Final = ("s3", "gs", "az")
_TIMEOUT_S: Final = 30.0
_STORES_MAX: Final = 64
_SHOWN: Final = ("uri", "type", "name", "namespace", "warehouse")
_NOT_FOR_DELTA: Final = "root_certificate"
_CATALOG_FILE: Final = "iceberg.db"
_BUSY_TIMEOUT_S: Final = 60


class Store(Protocol):
    """What a table needs of the place of its files. See `ObjectStore`, `FolderStore`."""

    @property
    def url(self) -> str: ...

    def put(self, key: str, data: bytes | memoryview | Iterable[bytes], *, absent: bool) -> bool: ...

    def get(self, key: str) -> bytes: ...

    def part(self, key: str, begin: int, end: int) -> bytes: ...

    def list(self, folder: str = "") -> list[ObjectInfo]: ...

    def entries(self, folder: str = "") -> tuple[set[str], set[str]]: ...

    def delete(self, keys: Iterable[str]) -> None: ...


class LakeLocation(NamedTuple):
    """A folder of tables, or of one table. Can be pickled.

    Attributes:
        url: an absolute path, or `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
        options: of the object store, by obstore's names.
        catalog: of Iceberg tables, by pyiceberg's names (`catalog.py`); none: Delta tables, and in a folder any.
    """

    url: str
    options: tuple[tuple[str, str], ...] = ()
    catalog: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(
        cls, text: str | Path, options: Mapping[str, str] = NO_OPTIONS, catalog: Mapping[str, str] = NO_OPTIONS
    ) -> Self:
        """Return the location that a path or a URL names. No request is sent.

        Raises:
            ConfigurationError: it is not a location of tables, or an option is not valid.
        """
        url = str(text)
        if "://" not in url or url.lower().startswith("file://"):
            if options:
                raise ConfigurationError(f"tables in the folder {url} have no options: remove {', '.join(options)}")
            if catalog:
                raise ConfigurationError(
                    f"Iceberg tables in the folder {url} have their catalog beside them: remove iceberg_catalog"
                )
            return cls(str(local_folder(url)))
        scheme = url.partition("://")[0].lower()
        if scheme not in _SCHEMES:
            raise ConfigurationError(
                f"{scheme}:// cannot store tables: name a folder, or s3://BUCKET/PREFIX, gs:// or az://"
            )
        if "%" in url:
            raise ConfigurationError(f"{url} has a '%', which its libraries would decode: name another prefix")
        if _NOT_FOR_DELTA in map(str.lower, options):
            raise ConfigurationError(f"{url}: the option {_NOT_FOR_DELTA} is not supported for tables")
        from safekeeper.archive.location import open_location

        opened = open_location(url, options, _TIMEOUT_S)
        return cls(opened.url, tuple(sorted(options.items())), tuple(sorted(catalog.items())))

    @property
    def folder(self) -> Path | None:
        """The local folder; None for an object store."""
        return None if "://" in self.url else Path(self.url)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def below(self, name: str) -> "LakeLocation":
        """Return the location of a folder in this one."""
        return self._replace(url=f"{self.url.rstrip('/')}/{name}")

    def with_catalog_beside(self) -> "LakeLocation":
        """Return a folder of tables with the catalog of its Iceberg tables, a SQLite file in it."""
        return self._replace(catalog=(("uri", f"sqlite:///{self.url}/{_CATALOG_FILE}?timeout={_BUSY_TIMEOUT_S}"),))

    @property
    def has_catalog_beside(self) -> bool:
        """Whether a folder of tables has such a catalog."""
        return self.folder is not None and (self.folder / _CATALOG_FILE).exists()

    def store(self) -> Store:
        """Return the files of this location."""
        return self.object_store() if self.folder is None else FolderStore(self.folder)

    def object_store(self) -> "ObjectStore":
        """Return the object store of this location, which is not a folder, opened once in a process."""
        return _store(self)

    def delta_options(self) -> dict[str, str] | None:
        """Return what delta-rs takes for the options of this store; None for a folder."""
        if self.folder is not None:
            return None
        from safekeeper.archive.location import REQUEST_RETRIES, endpoint_is_plain

        options = dict(self.options)
        plain = str(endpoint_is_plain(options)).lower()
        # Callers repeat a failed request themselves, after they have read the table again.
        return {"allow_http": plain, "max_retries": str(REQUEST_RETRIES), "retry_timeout": "10s", **options}

    @property
    def secrets(self) -> list[str]:
        """What no message may contain."""
        from safekeeper.archive.store_errors import secrets_of

        password = unquote(urlsplit(dict(self.catalog).get("uri", "")).password or "")
        hidden = {name: value for name, value in self.catalog if name not in _SHOWN}
        return [*secrets_of(dict(self.options)), *secrets_of(hidden), *([password] if password else [])]

    def __str__(self) -> str:
        return self.url


@functools.lru_cache(_STORES_MAX)
def _store(location: LakeLocation) -> "ObjectStore":
    from safekeeper.archive.store import ObjectStore

    return ObjectStore.open(location.url, options=dict(location.options), timeout_s=_TIMEOUT_S)
