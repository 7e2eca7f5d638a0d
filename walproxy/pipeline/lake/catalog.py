"""Iceberg's catalogs, and their errors as errors of ours, in one line.

A table of Iceberg is what its catalog names, and a commit is the catalog's: it replaces the name of the table's
metadata if it is still the one that was read. So the store needs no conditional puts, and a catalog must be given;
only a folder has one of its own, a SQLite file (`LakeLocation.with_catalog_beside`). pyiceberg has them: SQL, REST,
Glue. Options are pyiceberg's (`uri`, `type`, `warehouse`, `token` ...), completed by what it finds in `.pyiceberg.yaml`
and the environment under the catalog's name; `name` and `namespace` are ours.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from safekeeper.archive.store_errors import reason_of
from safekeeper.base.errors import (
    ArchiveRefused,
    ArchiveUnavailable,
    ConfigurationError,
    ObjectMissing,
    StorageFailed,
    WalproxyError,
)
from walproxy.pipeline.lake.location import LakeLocation

CATALOG_NAME: Final = "walproxy"
NAMESPACE: Final = "wal"
DAMAGE_ERRORS: Final = (ValidationError, ValueError, TypeError, EOFError, LookupError, SystemError, zlib.error)
"""What pyiceberg raises when it reads metadata or a manifest that is damaged."""

FILES: Final = "walproxy.pipeline.lake.iceberg_files.StoreFiles"
STORE_OPTIONS: Final = "walproxy.store-options"
"""The property of the catalog, in memory only, that has the store's options for `StoreFiles`."""

_OURS: Final = ("name", "namespace")
_REFUSED: Final = (BadRequestError, ForbiddenError, OAuthError, UnauthorizedError)
CATALOG_ERRORS: Final = (
    SQLAlchemyError,
    RESTError,
    CommitFailedException,
    ValidationException,
    NoSuchTableError,
    NoSuchNamespaceError,
    OSError,  # Those of `requests` are such errors.
    *DAMAGE_ERRORS,
)


def namespace_of(location: LakeLocation) -> str:
    """Return the namespace of the tables of a location."""
    return given_namespace(location) or NAMESPACE


def given_namespace(location: LakeLocation) -> str | None:
    """Return the namespace that the catalog's options name, None if they do not."""
    return dict(location.catalog).get("namespace")


def open_catalog(location: LakeLocation) -> Catalog:
    """Open the catalog of a location, which must have one. The caller closes it.

    Raises:
        ConfigurationError: its options do not describe a catalog.
        ArchiveUnavailable, ArchiveRefused, StorageFailed: see `catalog_errors`.
    """
    options = dict(location.catalog)
    name = options.get("name", CATALOG_NAME)
    properties: dict[str, str | None] = {
        "pool_pre_ping": "true",  # A database that was restarted meanwhile must not fail a commit.
        "init_catalog_tables": "false",  # Done here: pyiceberg would leave its connections open if it fails.
        **{key: value for key, value in options.items() if key not in _OURS},
        "py-io-impl": FILES,
        STORE_OPTIONS: json.dumps(dict(location.options)),
    }
    whose = f" of {location}" if location.folder is not None else ""
    with catalog_errors(f"open the catalog{whose}", location):
        try:
            # What the environment has of a catalog of this name is not meant for a folder.
            is_beside = location.folder is not None
            catalog = SqlCatalog(name, **properties) if is_beside else load_catalog(name, **properties)
        except (ArgumentError, NoSuchPropertyException, NotInstalledError, ImportError, ValueError) as error:
            raise ConfigurationError(f"iceberg_catalog: {_reason(error, location)}") from error
        if isinstance(catalog, SqlCatalog):
            try:
                _create_tables(catalog)
            except BaseException:
                catalog.close()
                raise
        return catalog


def _create_tables(catalog: SqlCatalog) -> None:
    """Create the tables of a SQL catalog if it has none. Raises SQLAlchemyError."""
    for _ in SqlCatalogBaseTable.metadata.tables:
        try:
            catalog.create_tables()
            return
        except SQLAlchemyError:
            continue  # Another process has created one of them at the same time, and perhaps not yet the next one.
    catalog.create_tables()


@contextlib.contextmanager
def catalog_errors(doing: str, location: LakeLocation) -> Iterator[None]:
    """Turn what pyiceberg raises in the block into one line: "could not `doing`: reason".

    Raises:
        ArchiveUnavailable: the catalog does not reply, or reports a temporary error.
        ArchiveRefused: an operator must correct it.
        StorageFailed: the table cannot be read or written.
    """
    try:
        with missing_files(doing):
            yield
    except WalproxyError:
        raise
    except CATALOG_ERRORS as error:
        raise catalog_error(error, doing, location) from error


@contextlib.contextmanager
def missing_files(doing: str) -> Iterator[None]:
    """Raise StorageFailed if a file is missing that a table needs: the store works, this table does not."""
    try:
        yield
    except ObjectMissing as error:
        raise StorageFailed(f"could not {doing}: {error}") from error


def catalog_error(error: Exception, doing: str, location: LakeLocation) -> WalproxyError:
    """Return the error that stands for one of pyiceberg or of a catalog. See `catalog_errors`."""
    reason = f"could not {doing}: {_reason(error, location)}"
    if isinstance(error, NoSuchTableError | NoSuchNamespaceError):
        return StorageFailed(f"could not {doing}: its catalog no longer has it")
    if location.folder is not None:
        return StorageFailed(reason)
    if isinstance(error, _REFUSED):
        return ArchiveRefused(f"{reason}: correct the catalog's options")
    if isinstance(error, SQLAlchemyError | RESTError | OSError):
        return ArchiveUnavailable(f"{reason} (reply of its catalog)")
    return StorageFailed(reason)


def _reason(error: Exception, location: LakeLocation) -> str:
    # SQLAlchemy adds the statement and a link.
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return reason_of(Exception(str(cause)), location.secrets)
