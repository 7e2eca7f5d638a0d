"""Tables in folders as earlier versions wrote them, with rows of the schema SMALL."""

import base64
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction
from pyiceberg.catalog.sql import SqlCatalog

from tests.unit.table_rows import SMALL, small

OWN = Path("_walproxy")


def identity(folder: Path, table_format: str, schema: pa.Schema = SMALL) -> None:
    """Give a folder the identity of a table."""
    (folder / OWN).mkdir(parents=True)
    content = {
        "version": 1,
        "format": table_format,
        "columns": {field.name: str(field.type) for field in schema},
        "arrow_schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }
    (folder / OWN / "table.json").write_text(json.dumps(content))
    (folder / OWN / "lock").touch()


def write_file(path: Path, lsns: Iterable[int]) -> dict[str, Any]:
    """Write a Parquet file; return how the log of plain Parquet states it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = small(lsns)
    pq.write_table(pa.Table.from_batches([batch]), path)
    name = path.name.removesuffix(".staged")
    return {"name": name, "rows": batch.num_rows, "bytes": path.stat().st_size, "bounds": {"lsn": [0, 1]}}


class FormerParquet:
    """A table of plain Parquet, with its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = folder / OWN
        self.generation = 1
        self.number = -1
        identity(folder, "parquet")
        (self.own / "staged").mkdir()
        self._point()
        self.log("create")

    def log(self, operation: str, **more: Any) -> None:
        """Write an entry of the log."""
        self.number += 1
        entry = {"version": 1, "number": self.number, "time": 0.0, "operation": operation, **more}
        path = self.own / "commits" / f"{self.number:016d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"generation": self.generation, **entry}))

    def append(self, lsns: Iterable[int], writer: str, batch: int, *, is_carried_out: bool = True) -> None:
        """Commit a file of a batch; not carried out: as a process that was killed right after its entry left it."""
        name = f"part-{self.number}.parquet"
        place = self._files if is_carried_out else self.own / "staged"
        file = write_file(place / (name if is_carried_out else f"{name}.staged"), lsns)
        self.log("append", add=[file], writer=writer, batch=batch)

    def compact(self, lsns: Iterable[int], *, kept: Sequence[str] = (), is_carried_out: bool = True) -> None:
        """Put one file in the place of all but those that are kept."""
        removed = [path.name for path in self._files.iterdir() if path.name not in kept]
        before = self._files
        name = f"compacted-{self.number}.parquet"
        self.generation += 1
        if is_carried_out:
            file = write_file(self._files / name, lsns)
            for each in kept:
                (self._files / each).hardlink_to(before / each)
            self._point()
        else:
            file = write_file(self.own / "staged" / f"{name}.staged", lsns)
        self.log("compact", add=[file], remove=removed)

    def checkpoint(self, files: Sequence[str], batches: dict[str, int]) -> None:
        """Replace the entries by what they amount to."""
        for path in (self.own / "commits").iterdir():
            path.unlink()
        logged = {name: {"name": name, "rows": 0, "bytes": 0} for name in files}
        state = {"number": self.number, "generation": self.generation, "files": logged, "batches": batches}
        (self.own / "checkpoint.json").write_text(json.dumps({"version": 1, **state}))

    @property
    def _files(self) -> Path:
        return self.own / "generations" / f"{self.generation:06d}"

    def _point(self) -> None:
        self._files.mkdir(parents=True, exist_ok=True)
        link = self.folder / "data"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{OWN}/generations/{self.generation:06d}")


def former_delta(folder: Path, lsns: Iterable[int], writer: str, batch: int) -> None:
    """Make a Delta table with one batch."""
    identity(folder, "delta")
    table = DeltaTable.create(str(folder), Schema.from_arrow(SMALL), name=folder.name)
    file = write_file(folder / "part-0.parquet", lsns)
    action = AddAction("part-0.parquet", file["bytes"], {}, 0, True, json.dumps({"numRecords": file["rows"]}))
    properties = CommitProperties({}, 0, [Transaction(writer, batch, 0)])
    table.create_write_transaction([action], "append", Schema.from_arrow(SMALL), commit_properties=properties)


def former_iceberg(folder: Path, lsns: Iterable[int], writer: str, batch: int) -> None:
    """Make an Iceberg table with one batch, and the catalog of its folder."""
    identity(folder, "iceberg")
    catalog = SqlCatalog("walproxy", uri=f"sqlite:///{folder.parent}/iceberg.db", warehouse=str(folder.parent))
    catalog.create_namespace_if_not_exists("wal")
    properties = {"commit.retry.num-retries": "0", f"walproxy.batch.{writer}": str(batch)}
    table = catalog.create_table(("wal", folder.name), SMALL, location=str(folder), properties=properties)
    write_file(folder / "data" / "part-0.parquet", lsns)
    table.add_files([str(folder / "data" / "part-0.parquet")])
    catalog.close()
