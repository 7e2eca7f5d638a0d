"""The identity of a table: `_walproxy/table.json` in its folder has its format and its columns.

Readers of Parquet, Iceberg and Delta Lake pass over names that begin with an underscore.

    FOLDER/NAME/_walproxy/table.json    format, columns, schema
    FOLDER/NAME/_walproxy/lock          held while something changes
"""

import base64
import re
import stat
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from safekeeper.base.errors import ConfigurationError
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.tables.disk import Disk, replace_durably
from walproxy.pipeline.tables.parquet_files import normal_schema, schema_difference

APPLY_JOB_FILE: Final = "_walproxy_apply/job.json"
"""Where a job of `walproxy pipeline apply` keeps its state beside the tables that it writes."""

FORMATS: Final = TABLE_FORMATS

OWN_FOLDER: Final = "_walproxy"
TABLE_FILE: Final = "table.json"
LOCK_FILE: Final = "lock"
_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


class Identity(msgspec.Struct, frozen=True):
    """The content of `table.json`.

    Attributes:
        columns: for people: name and type of each column.
        arrow_schema: the same, exactly: Arrow's serialized schema in base64.
    """

    version: int
    format: TableFormat
    columns: dict[str, str]
    arrow_schema: str

    def schema(self) -> pa.Schema:
        """Return the table's schema."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow_schema)))


def identity_of(table_format: TableFormat, schema: pa.Schema) -> Identity:
    """Return the identity of a new table."""
    columns = {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}
    return Identity(_VERSION, table_format, columns, base64.b64encode(schema.serialize().to_pybytes()).decode())


def folder_of(url_or_folder: str | Path, name: str) -> Path:
    """Return the absolute folder of a table.

    Raises:
        ConfigurationError: the folder is none of a file system, or the name cannot be that of a table.
    """
    check_table_name(name)
    return local_folder(url_or_folder) / name


def check_table_name(name: str) -> None:
    """Verify that a table can have this name. Raises ConfigurationError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a table: use letters, digits, '_', '-' and '.', and begin with one of the "
            "first two"
        )


def local_folder(url_or_folder: str | Path) -> Path:
    """Return the absolute path of a folder that is named by a path or a file:// URL.

    Raises:
        ConfigurationError: it is a URL of something else.
    """
    text = str(url_or_folder)
    if "://" in text:
        parts = urlsplit(text)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"a folder of this machine or a shared one is needed here, not {text}: `run`, `query`, `report` and "
                "`maintain` use object stores"
            )
        text = unquote(parts.path)
    if not text:
        raise ConfigurationError("the folder of the tables has no name")
    return Path(text).expanduser().absolute()


def read_identity(folder: Path) -> Identity | None:
    """Return the identity of the table in `folder`, None if it has none.

    Raises:
        ConfigurationError: `table.json` cannot be understood.
    """
    path = folder / OWN_FOLDER / TABLE_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        identity = msgspec.json.decode(content, type=Identity)
        identity.schema()
    except (msgspec.DecodeError, ValueError, pa.ArrowInvalid) as error:
        raise ConfigurationError(
            f"{path} is damaged, or a newer version's: {str(error).partition(chr(10))[0]}"
        ) from None
    if identity.version != _VERSION:
        raise ConfigurationError(f"{path} is of version {identity.version}, this program reads version {_VERSION}")
    return identity


def write_identity(disk: Disk, folder: Path, identity: Identity) -> Identity:
    """Write the identity of a new table, durably; its folders are made. Return the one that it has.

    It is another one if another process has made the table meanwhile. Raises OSError.
    """
    own = folder / OWN_FOLDER
    new = [path for path in (own, *own.parents) if not path.exists()]
    disk.make_folder(own)
    for path in new:
        disk.sync_folder(path.parent)
    with disk.locked(own / LOCK_FILE):
        made = read_identity(folder)
        if made is None:
            content = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
            replace_durably(disk, own / TABLE_FILE, content)
        return made or identity


def what_is_in(folder: Path) -> str | None:
    """Return what an existing folder without identity holds, as words for a message; None if nothing at all."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return "a file"
        names = {path.name for path in folder.iterdir()} - {OWN_FOLDER}
    except FileNotFoundError:
        return None
    if "_delta_log" in names:
        return "a Delta table that another program made"
    if "metadata" in names:
        return "perhaps an Iceberg table that another program made"
    return f"something else, such as {min(names)}" if names else None


def check_identity(
    folder: Path, identity: Identity, table_format: TableFormat | None, schema: pa.Schema | None
) -> None:
    """Verify that a table has the requested format and columns.

    Raises:
        ConfigurationError: it is not.
    """
    if table_format is not None and identity.format != table_format:
        raise ConfigurationError(
            f"the table {folder} has the format {identity.format}, not {table_format}: name that one, or another folder"
        )
    if schema is None:
        return
    difference = schema_difference(identity.schema(), normal_schema(schema))
    if difference is not None:
        raise ConfigurationError(f"the table {folder} has other columns: {difference}; write to another table")
