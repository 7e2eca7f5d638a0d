"""Which input of WAL a path names.

/dir, file:///dir           an archive if there is a manifest.json in it, a folder of segments otherwise
s3://, gs://, az://         an archive; the options are those of its store, as in --archive-option
safekeeper://HOST:PORT[,HOST:PORT...][?user=..&password=..&sslmode=..]
                            replication listeners, of one cluster; PG* variables and .pgpass count as with libpq
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from safekeeper.archive.objects import MANIFEST_KEY
from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.input.archive_input import ArchiveInput
from walproxy.pipeline.input.folder_input import FolderInput
from walproxy.pipeline.input.safekeeper_input import SafekeeperInput
from walproxy.pipeline.input.wal_input import NO_OPTIONS, SAFEKEEPER_SCHEME, WalInput

_REMOTE_SCHEMES = ("s3", "gs", "az")


def open_input(path: str, options: Mapping[str, str] = NO_OPTIONS) -> WalInput:
    """Return the input that `path` names; a remote one is not asked anything yet.

    Raises:
        ConfigurationError: it cannot be one.
    """
    scheme, has_scheme, _ = path.partition("://")
    if not has_scheme:
        return _open_folder(path, Path(path), options)
    if scheme == SAFEKEEPER_SCHEME:
        return SafekeeperInput(path, options)
    if scheme == "file":
        parts = urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(f"{path} names another host: write file:///path")
        return _open_folder(path, Path(unquote(parts.path)), options)
    if scheme not in _REMOTE_SCHEMES:
        raise ConfigurationError(
            f"{scheme}:// is no input of WAL: give a folder, s3://, gs://, az:// or {SAFEKEEPER_SCHEME}://HOST:PORT"
        )
    return ArchiveInput(path, options)


def _open_folder(path: str, folder: Path, options: Mapping[str, str]) -> WalInput:
    try:
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is no folder: correct the input's path")
        is_archive = (folder / MANIFEST_KEY).exists()
    except OSError as error:
        raise ConfigurationError(f"cannot read {folder}: {error.strerror}") from error
    if is_archive:
        return ArchiveInput(path, options)
    if options:
        raise ConfigurationError(f"the folder {folder} has no options: remove {', '.join(options)}")
    return FolderInput(folder)
