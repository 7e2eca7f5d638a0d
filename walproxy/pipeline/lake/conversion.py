"""Take over a table in a folder that an earlier version wrote: `walproxy pipeline maintain --convert`.

Such a table has its format and columns in `_walproxy/table.json`. No command but this one uses a table while it has
that file.

- **delta, iceberg**: the table is marked as ours, in its own log. Files and positions stay as they are.
- **parquet**: the log of the earlier version (`_walproxy/commits`, `_walproxy/checkpoint.json`) states which files make
  up the table, and what each writer committed last. Each file gets a second name (a hard link, or a copy where the file
  system has no links) beside the new log, whose first entry has all files and all positions at once.

Each step can be repeated after a crash. The former log is read until the new one is complete and on disk. Then
`_walproxy` is renamed, which is when the table is converted, and removed.
"""

import base64
import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.table import DeltaTable
from deltalake.transaction import AddAction, create_table_with_add_actions

from safekeeper.base.errors import ConfigurationError, StorageFailed
from walproxy.pipeline.choices import FORMER_FORMAT
from walproxy.pipeline.lake.delta import LOG, OURS
from walproxy.pipeline.lake.delta_statistics import statistics_of
from walproxy.pipeline.lake.disk import locked, storage_errors, sync_file, sync_folder
from walproxy.pipeline.lake.errors import lake_errors
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import FORMER_IDENTITY, check_path
from walproxy.pipeline.lake.parquet_files import first_line, normal_schema, read_footer, schema_difference

_OWN: Final = Path(FORMER_IDENTITY).parent
_REMOVED: Final = Path("_walproxy.converted")
_DATA_LINK: Final = "data"
_STAGED_SUFFIX: Final = ".staged"
_VERSION: Final = 1


class Converted(NamedTuple):
    """The conversion of a table, done or planned.

    Attributes:
        format: of the earlier version.
        to: what it is now.
        files: of the table.
        positions: what each writer committed last; None where they stay in the table's own log.
    """

    name: str
    format: str
    to: str
    files: int
    positions: dict[str, int] | None = None


class _Former(NamedTuple):
    """A plain Parquet table, by its log.

    Attributes:
        files: their paths.
        batches: each writer's last batch.
    """

    files: list[Path]
    batches: dict[str, int]


def former_tables(folder: Path) -> list[str]:
    """Return the names of the tables of a folder that an earlier version wrote, also half removed ones, sorted.

    Raises:
        StorageFailed: the folder cannot be read.
    """
    with storage_errors(f"read the folder {folder}"):
        paths = list(folder.iterdir()) if folder.is_dir() else []
        return sorted(path.name for path in paths if (path / FORMER_IDENTITY).exists() or (path / _REMOVED).exists())


def convert(location: LakeLocation, name: str, *, dry_run: bool = False) -> Converted | None:
    """Take over a table; None if only the rest of its former log had to be removed.

    No job may write to it meanwhile.

    Raises:
        ConfigurationError: the table cannot be understood, or has a column that Delta has no type for.
        StorageFull, StorageFailed.
    """
    assert location.folder is not None, "only tables in folders are of an earlier version"
    folder = location.folder / name
    done = None
    with storage_errors(f"convert the table {folder}"):
        if (folder / FORMER_IDENTITY).exists():
            with contextlib.nullcontext() if dry_run else locked(folder / _OWN / "lock"):
                done = _converted(location, name, *_identity(folder), dry_run=dry_run)
                if not dry_run:
                    (folder / _OWN).rename(folder / _REMOVED)
                    sync_folder(folder)
        if not dry_run:
            _remove_former(folder)
    return done


def _converted(location: LakeLocation, name: str, table_format: str, schema: pa.Schema, *, dry_run: bool) -> Converted:
    place = location.below(name)
    if table_format == FORMER_FORMAT:
        return _convert_parquet(Path(place.url), schema, dry_run=dry_run)
    if table_format == "delta":
        return _convert_delta(place, dry_run=dry_run)
    if table_format == "iceberg":
        return _convert_iceberg(location, name, schema, dry_run=dry_run)
    raise ConfigurationError(f"{place}/{FORMER_IDENTITY}: the format {table_format} is not known")


def _remove_former(folder: Path) -> None:
    if (folder / _DATA_LINK).is_symlink():
        (folder / _DATA_LINK).unlink()
    if (folder / _REMOVED).exists():
        shutil.rmtree(folder / _REMOVED)
    sync_folder(folder)


def _identity(folder: Path) -> tuple[str, pa.Schema]:
    """Return format and columns of a table."""
    path = folder / FORMER_IDENTITY
    try:
        content = _decoded(path)
        return content["format"], pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content["arrow_schema"])))
    except (KeyError, ValueError, TypeError, pa.ArrowInvalid) as error:
        raise ConfigurationError(f"{path} is damaged: {first_line(error)}") from None


def _decoded(path: Path) -> dict[str, Any]:
    """Return the content of a file of the former log. Raises StorageFailed, FileNotFoundError."""
    try:
        content = json.loads(path.read_bytes())
        version = content["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageFailed(f"{path} is damaged: {first_line(error)}; restore it from a copy") from None
    if version != _VERSION:
        raise StorageFailed(f"{path} is of version {version}, this program reads version {_VERSION}")
    return dict(content)


# ---- parquet


def _convert_parquet(folder: Path, schema: pa.Schema, *, dry_run: bool) -> Converted:
    schema = normal_schema(schema)
    check_path(folder)
    try:
        columns = Schema.from_arrow(schema)
    except Exception as error:  # That is the class that delta-rs raises.
        raise ConfigurationError(f"{folder} has a column that Delta cannot have: {first_line(error)}") from error
    former = _former(folder)
    done = Converted(folder.name, FORMER_FORMAT, "delta", len(former.files), former.batches)
    if dry_run:
        return done
    _discard_unfinished(folder)
    now_ms = round(time.time() * 1000)
    actions = []
    for path in former.files:
        footer = read_footer(str(path))
        difference = schema_difference(schema, footer.schema)
        if difference is not None:
            raise StorageFailed(f"{path} does not fit its table: {difference}")
        new = folder / path.name.removesuffix(_STAGED_SUFFIX)
        _second_name(path, new)
        actions.append(AddAction(new.name, footer.bytes, {}, now_ms, True, statistics_of(footer)))
    sync_folder(folder)
    transactions = [Transaction(writer, batch, now_ms) for writer, batch in former.batches.items()]
    with lake_errors(f"convert the table {folder}", LakeLocation(str(folder))):
        create_table_with_add_actions(
            str(folder),
            columns,
            actions,
            "error",
            name=folder.name,
            description=OURS,
            commit_properties=CommitProperties({"walproxy.operation": "convert"}, 0, transactions),
        )
    _sync_log(folder)
    return done


def _discard_unfinished(folder: Path) -> None:
    """Remove the new log of a conversion that was killed: the former log may have been continued since.

    Raises:
        ConfigurationError: another program made it.
    """
    log = folder / LOG
    if not log.exists():
        return
    try:
        description = DeltaTable(str(folder)).metadata().description
    except (TableNotFoundError, DeltaError):
        description = OURS  # Its first entry is missing, or not complete.
    if description != OURS:
        raise ConfigurationError(f"{folder} has {LOG} of another program: move it elsewhere")
    shutil.rmtree(log)
    sync_folder(folder)


def _second_name(old: Path, new: Path) -> None:
    if new.exists() and new.stat().st_size == old.stat().st_size:
        return
    new.unlink(missing_ok=True)
    try:
        os.link(old, new)
    except OSError:  # The file system has no links, or no more of this file.
        temporary = new.with_name(f"{new.name}.new")
        shutil.copyfile(old, temporary)
        sync_file(temporary)
        temporary.rename(new)


def _former(folder: Path) -> _Former:
    """Return what the log of a plain Parquet table amounts to.

    The newest entry may not have been carried out: then its files are still where tasks wrote them, and those that it
    keeps are in the generation before.
    """
    own = folder / _OWN
    state: dict[str, Any] = {"number": -1, "generation": 0, "files": {}, "batches": {}}
    with contextlib.suppress(FileNotFoundError):
        state = _decoded(own / "checkpoint.json")
    files, batches = {*state.get("files", {})}, dict(state.get("batches", {}))
    number, generation = state.get("number", -1), state.get("generation", 0)
    for entry in _entries(own / "commits", number + 1):
        generation = entry["generation"]
        files -= {*entry.get("remove", [])}
        files |= {file["name"] for file in entry.get("add", [])}
        if entry.get("writer") is not None and entry.get("batch") is not None:
            batches[entry["writer"]] = entry["batch"]
    places = [own / "generations" / f"{each:06d}" for each in (generation, generation - 1)]
    return _Former([_found(name, places, own / "staged") for name in sorted(files)], batches)


def _entries(folder: Path, number: int) -> Iterator[dict[str, Any]]:
    while (path := folder / f"{number:016d}.json").exists():
        yield _decoded(path)
        number += 1


def _found(name: str, places: list[Path], staged: Path) -> Path:
    for path in (places[0] / name, staged / f"{name}{_STAGED_SUFFIX}", places[1] / name):
        if path.exists():
            return path
    raise StorageFailed(f"{places[0] / name} is missing, which the log of its table names: restore it from a copy")


# ---- delta, iceberg


def _convert_delta(place: LakeLocation, *, dry_run: bool) -> Converted:
    folder = Path(place.url)
    if not (folder / LOG).exists() and not any(folder.glob("*.parquet")):
        return Converted(place.name, "delta", "delta", 0)  # It was only about to be made.
    with lake_errors(f"convert the table {place}", place):
        table = DeltaTable(place.url)
        done = Converted(place.name, "delta", "delta", len(table.file_uris()))
        if not dry_run and table.metadata().description != OURS:
            table.alter.set_table_description(OURS)
    if not dry_run:
        _sync_log(folder)
    return done


def _convert_iceberg(location: LakeLocation, name: str, schema: pa.Schema, *, dry_run: bool) -> Converted:
    from walproxy.pipeline.lake.catalog import NAMESPACE, catalog_errors, open_catalog
    from walproxy.pipeline.lake.iceberg import require_location, schema_property

    place = location.with_catalog_beside().below(name)
    identifier = (NAMESPACE, name)
    with catalog_errors(f"convert the table {place}", place), contextlib.closing(open_catalog(place)) as catalog:
        if not catalog.table_exists(identifier) and not any(Path(place.url).glob("data/*")):
            return Converted(name, "iceberg", "iceberg", 0)  # It was only about to be made.
        table = catalog.load_table(identifier)
        require_location(table, identifier, place)
        done = Converted(name, "iceberg", "iceberg", len(list(table.scan().plan_files())))
        wanted = schema_property(normal_schema(schema))
        if not dry_run and any(table.properties.get(key) != value for key, value in wanted.items()):
            with table.transaction() as transaction:
                transaction.set_properties(wanted)
    return done


def _sync_log(folder: Path) -> None:
    log = folder / LOG
    for path in log.iterdir():
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)
    sync_folder(log)
    sync_folder(folder)
