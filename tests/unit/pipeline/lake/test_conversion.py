"""Tables that earlier versions wrote in folders are taken over: all rows once, with their positions."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from safekeeper.base.errors import ConfigurationError
from tests.unit.former_tables import OWN, FormerParquet, former_delta, former_iceberg, identity
from tests.unit.table_rows import SMALL, lsns_of, open_table, path_of, tree, written
from walproxy.cli.pipeline_commands.maintain import maintain as command
from walproxy.pipeline.duck import FolderTables, query
from walproxy.pipeline.jobs.maintain import convert, maintain
from walproxy.pipeline.lake.conversion import Converted
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_names
from walproxy.pipeline.lake.position import After

Make = Callable[[Path], None]


def former_parquet(folder: Path) -> None:
    table = FormerParquet(folder)
    table.append(range(5), "me", 4)
    table.append([7], "you", 1)
    table.append(range(5, 7), "me", 6)


def unfinished_append(folder: Path) -> None:
    table = FormerParquet(folder)
    table.append(range(5), "me", 4)
    table.append([7], "you", 1)
    table.append(range(5, 7), "me", 6, is_carried_out=False)


def compacted(folder: Path) -> None:
    table = FormerParquet(folder)
    table.append(range(5), "me", 4)
    table.append([7], "you", 1)
    table.compact([*range(5), 7])
    table.append(range(5, 7), "me", 6)


def unfinished_compaction(folder: Path) -> None:
    table = FormerParquet(folder)
    table.append(range(5), "me", 4)
    table.append([7], "you", 1)
    table.append(range(5, 7), "me", 6)
    table.compact([*range(5), 7], kept=["part-2.parquet"], is_carried_out=False)


def checkpointed(folder: Path) -> None:
    table = FormerParquet(folder)
    table.append(range(5), "me", 4)
    table.append([7], "you", 1)
    table.checkpoint(["part-0.parquet", "part-1.parquet"], {"me": 4, "you": 1})
    table.append(range(5, 7), "me", 6)


PARQUET = [former_parquet, unfinished_append, compacted, unfinished_compaction, checkpointed]


def delta(folder: Path) -> None:
    former_delta(folder, range(8), "me", 6)


def iceberg(folder: Path) -> None:
    former_iceberg(folder, range(8), "me", 6)


def converted(folder: Path) -> list[Converted | None]:
    done = convert(LakeLocation.parse(folder))
    assert [each.problem for each in done] == [None] * len(done)
    return [each.converted for each in done]


def assert_goes_on(folder: Path) -> None:
    """The table has the rows 0 to 7 once, and its writer continues after its batch 6, once."""
    with open_table(folder, "t", schema=SMALL) as table:
        assert lsns_of(table) == list(range(8))
        assert table.last_batch("me") == 6
        assert not table.commit("me", 6, [written(table, [5, 6])], after=After(4)), "it is in already"
        assert table.commit("me", 9, [written(table, [8])], after=After(6))
        assert lsns_of(table) == list(range(9))
    with query(FolderTables(folder), "SELECT count(*), sum(lsn) FROM t") as result:
        assert list(result.rows) == [(9, 36)]


@pytest.mark.parametrize("make", [*PARQUET, delta, iceberg])
def test_a_table_has_its_rows_and_positions_and_goes_on(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "t")
    before = {path.stat().st_ino for path in (tmp_path / "t").rglob("*.parquet*")}
    (done,) = converted(tmp_path)
    assert done is not None
    with open_table(tmp_path, "t") as table:
        assert table.format == done.to == ("iceberg" if make is iceberg else "delta")
        assert len(table.live_files()) == done.files
        if make in PARQUET:
            assert done.positions == {"me": 6, "you": 1}
            assert table.last_batch("you") == 1
        assert {path_of(table, file).stat().st_ino for file in table.live_files()} <= before, "no file is copied"
    assert not [name for name in tree(tmp_path / "t") if "_walproxy" in name or name == "data/data"]
    assert converted(tmp_path) == []
    assert_goes_on(tmp_path)
    (maintained,) = maintain(LakeLocation.parse(tmp_path), keep_s=0, orphans_after_s=0)
    assert (maintained.problem, maintained.files) == (None, 1)
    with open_table(tmp_path, "t") as table:
        assert lsns_of(table) == list(range(9))


class Killed(BaseException):
    """The process is no more."""


class Kill:
    """Ends the world before the step `at` of this thread, counted from 0: a change of a file or a name."""

    steps = ("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "shutil.copyfile")

    def __init__(self) -> None:
        self.at: int | None = None
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: Any) -> None:
        if self.at is not None and event in self.steps:
            if self.at == 0:
                self.at = None
                raise Killed
            self.at -= 1


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    made = Kill()
    yield made
    made.at = None


@pytest.mark.parametrize("make", [former_parquet, unfinished_compaction, delta, iceberg])
def test_a_conversion_that_is_killed_anywhere_is_completed_by_the_next_one(
    tmp_path: Path, make: Make, kill: Kill
) -> None:
    at = 0
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        make(folder / "t")
        kill.at = at
        try:
            convert(LakeLocation.parse(folder))
        except Killed:
            pass
        was_killed, kill.at = kill.at is None, None
        if not was_killed:
            break
        converted(folder)
        assert_goes_on(folder)
        assert not [name for name in tree(folder / "t") if "_walproxy" in name]
        at += 1
    assert at >= 3


def test_rows_that_came_after_a_killed_conversion_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = FormerParquet(tmp_path / "t")
    table.append(range(5), "me", 4)
    rename, killed = Path.rename, []

    def stops(self: Path, target: Path) -> Path:
        if self.name == str(OWN) and not killed:
            killed.append(self)
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stops)
    with pytest.raises(Killed):
        convert(LakeLocation.parse(tmp_path))
    assert DeltaTable(tmp_path / "t").transaction_version("me") == 4
    table.append(range(5, 8), "me", 6)  # by the earlier version
    converted(tmp_path)
    assert_goes_on(tmp_path)


def test_a_table_that_is_not_converted_is_refused_with_what_to_do(tmp_path: Path) -> None:
    former_parquet(tmp_path / "t")
    location = LakeLocation.parse(tmp_path)
    for use in (
        lambda: open_table(tmp_path, "t", "delta", SMALL),
        lambda: find_names(location),
        lambda: maintain(location),
        lambda: query(FolderTables(tmp_path), "SELECT 1").__enter__(),
    ):
        with pytest.raises(ConfigurationError, match=f"maintain --convert {tmp_path}`$") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_tables_that_were_only_about_to_be_made_are_empty_ones(tmp_path: Path) -> None:
    for table_format in ("parquet", "delta", "iceberg"):
        identity(tmp_path / table_format, table_format)
    assert [each.files for each in converted(tmp_path) if each is not None] == [0, 0, 0]
    for table_format in ("parquet", "delta", "iceberg"):
        with open_table(tmp_path, table_format, schema=SMALL) as table:
            assert lsns_of(table) == []


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    for make in (former_parquet, delta, iceberg):
        make(tmp_path / make.__name__)
    before = tree(tmp_path)
    shown = CliRunner().invoke(command, [str(tmp_path), "--convert", "--dry-run"])
    assert shown.output.splitlines() == [
        "delta: would be taken over, 1 files",
        "former_parquet: would become a delta table, 3 files",
        "iceberg: would be taken over, 1 files",
    ]
    assert tree(tmp_path) == before


def test_the_command_converts_what_it_can_and_names_what_it_cannot(tmp_path: Path) -> None:
    for name in ("broken", "good", "odd", "theirs", "lost"):
        former_parquet(tmp_path / name)
    (tmp_path / "broken" / OWN / "commits" / f"{2:016d}.json").write_text("{")
    (tmp_path / "odd" / OWN / "table.json").write_text("[]")
    write_deltalake(tmp_path / "theirs", pa.table({"lsn": [1]}))
    (tmp_path / "lost" / "data" / "part-1.parquet").unlink()
    done = CliRunner().invoke(command, [str(tmp_path), "--convert", "--json"])
    assert done.exit_code == 1
    problems = done.stderr.splitlines()
    for problem, expected in zip(
        problems,
        ("0000000000000002.json is damaged", "part-1.parquet is missing", "table.json is damaged", "another program"),
        strict=True,
    ):
        assert problem.startswith("PROBLEM: ")
        assert expected in problem
    names = {each["name"]: each["converted"] for each in json.loads(done.stdout)}
    assert {name for name, one in names.items() if one is not None} == {"good"}
    assert DeltaTable(tmp_path / "theirs").to_pyarrow_table().num_rows == 1, "what another program made is left alone"
    for name in ("broken", "odd", "theirs", "lost"):
        with pytest.raises(ConfigurationError, match="--convert"):
            open_table(tmp_path, name)
    again = CliRunner().invoke(command, [str(tmp_path), "--convert", "--table", "good"])
    assert again.output == f"{tmp_path} has no table of an earlier version\n"
    missing = CliRunner().invoke(command, [str(tmp_path), "--convert", "--table", "other"])
    assert isinstance(missing.exception, ConfigurationError)


def test_only_tables_in_folders_are_converted() -> None:
    with pytest.raises(ConfigurationError, match="remove --convert"):
        convert(LakeLocation("s3://bucket/lake"))


def test_files_are_copied_where_the_file_system_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former_parquet(tmp_path / "t")

    def no_links(*arguments: Any, **options: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    converted(tmp_path)
    assert_goes_on(tmp_path)


def test_an_iceberg_table_that_was_moved_is_refused(tmp_path: Path) -> None:
    iceberg(tmp_path / "old" / "t")
    (tmp_path / "old").rename(tmp_path / "new")
    (done,) = convert(LakeLocation.parse(tmp_path / "new"))
    assert done.problem is not None
    assert "could not convert the table" in done.problem
