"""Where tables are: a folder of this machine or a shared one, or a prefix of an object store.

Credentials come from the options or the environment (as obstore and delta-rs read it: `AWS_ACCESS_KEY_ID` etc.), never
from the URL, because messages show it.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from safekeeper.archive.location import REQUEST_RETRIES, endpoint_is_plain, open_location
from safekeeper.archive.objects import NO_OPTIONS
from safekeeper.archive.store import ObjectStore
from safekeeper.archive.store_errors import secrets_of
from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.tables.table_folder import local_folder

_SCHEMES: Final = ("s3", "gs", "az")
_TIMEOUT_S: Final = 30.0
_STORES_MAX: Final = 64
_SHOWN: Final = ("uri", "type", "name", "namespace", "warehouse")
_NOT_FOR_DELTA: Final = "root_certificate"


class LakeLocation(NamedTuple):
    """A folder of tables, or of one table. Can be pickled.

    Attributes:
        url: an absolute path, or `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
        options: of the object store, by obstore's names.
        catalog: of Iceberg tables in an object store, by pyiceberg's names (`catalog.py`); none: Delta tables.
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
                    f"Iceberg tables in the folder {url} have their catalog beside them: remove --iceberg-catalog"
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

    def store(self) -> ObjectStore:
        """Return the store of this location, opened once in a process; a local folder is created.

        Raises:
            ConfigurationError: the local folder cannot be created.
        """
        return _store(self)

    def delta_options(self) -> dict[str, str] | None:
        """Return what delta-rs takes for the options of this store; None for a folder."""
        if self.folder is not None:
            return None
        options = dict(self.options)
        plain = str(endpoint_is_plain(options)).lower()
        # Callers repeat a failed request themselves, after they have read the table again.
        return {"allow_http": plain, "max_retries": str(REQUEST_RETRIES), "retry_timeout": "10s", **options}

    @property
    def secrets(self) -> list[str]:
        """What no message may contain."""
        password = unquote(urlsplit(dict(self.catalog).get("uri", "")).password or "")
        hidden = {name: value for name, value in self.catalog if name not in _SHOWN}
        return [*secrets_of(dict(self.options)), *secrets_of(hidden), *([password] if password else [])]

    def __str__(self) -> str:
        return self.url


@functools.lru_cache(_STORES_MAX)
def _store(location: LakeLocation) -> ObjectStore:
    is_local = location.folder is not None
    return ObjectStore.open(location.url, options=dict(location.options), timeout_s=_TIMEOUT_S, makes_folder=is_local)
