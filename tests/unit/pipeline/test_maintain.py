"""`walproxy pipeline maintain`: what it does to tables, and what it says."""

import os
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from safekeeper.base.errors import ConfigurationError
from tests.unit.table_rows import SMALL, lsns_of, open_table, path_of, tree, written
from walproxy.cli.pipeline_commands.maintain import maintain as command
from walproxy.pipeline.jobs.maintain import maintain
from walproxy.pipeline.lake.location import LakeLocation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tables with three small files each, and one file of a task that was killed long ago."""
    for name in ("one", "two"):
        with open_table(tmp_path, name, "delta", SMALL) as table:
            for batch in range(3):
                table.commit("me", batch, [written(table, [batch])])
    with open_table(tmp_path, "one") as table:
        long_ago = time.time() - 2 * 86400
        os.utime(path_of(table, written(table, [9])), (long_ago, long_ago))
    return tmp_path


def test_all_tables_of_a_folder_are_tidied_up(folder: Path) -> None:
    reported: list[str] = []
    one, two = maintain(LakeLocation.parse(folder), progress=lambda name, done, total: reported.append(name))
    assert (one.name, one.format, one.files, one.problem) == ("one", "delta", 1, None)
    assert one.compaction.files_removed == two.compaction.files_removed == 3
    assert (one.orphans.files, two.orphans.files) == (1, 0)
    assert one.expired.files == 0
    assert reported == ["one", "two"]
    for name in ("one", "two"):
        with open_table(folder, name) as table:
            assert lsns_of(table) == [0, 1, 2]
    later = maintain(LakeLocation.parse(folder), ["one"], keep_s=0)
    assert [each.name for each in later] == ["one"]
    assert later[0].compaction.files_removed == 0
    assert later[0].expired.files >= 3


def test_a_dry_run_changes_nothing(folder: Path) -> None:
    before = tree(folder)
    one, two = maintain(LakeLocation.parse(folder), keep_s=0, dry_run=True)
    assert (one.compaction.files_removed, one.orphans.files, two.files) == (3, 1, 3)
    assert tree(folder) == before


def test_a_table_that_is_damaged_does_not_keep_the_others_from_being_done(folder: Path) -> None:
    entry = folder / "one" / "_delta_log" / f"{1:020d}.json"
    entry.write_text("{")
    one, two = maintain(LakeLocation.parse(folder))
    assert one.problem is not None
    assert "could not open the table" in one.problem
    assert (two.problem, two.files) == (None, 1)
    result = CliRunner().invoke(command, [str(folder)])
    assert result.exit_code == 1
    assert f"PROBLEM: could not open the table {folder}/one: " in result.output


def test_tables_that_are_not_there_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r" has no table 'three': it has one, two"):
        maintain(LakeLocation.parse(folder), ["three"])
    with pytest.raises(ConfigurationError, match="has no tables"):
        maintain(LakeLocation.parse(folder / "nowhere"))


def test_the_command_shows_a_table_or_json(folder: Path) -> None:
    shown = CliRunner().invoke(command, [str(folder), "--dry-run"])
    assert shown.exit_code == 0
    assert "what would be done" in shown.output
    assert "3 into 1" in shown.output
    printed = CliRunner().invoke(command, [str(folder), "--json", "--table", "one", "--keep", "0s"])
    (one,) = msgspec.json.decode(printed.output)
    assert (one["name"], one["compaction"]["files_removed"], one["orphans"]["files"]) == ("one", 3, 1)


@pytest.mark.parametrize(
    ("option", "value"), [("--keep", "1w"), ("--keep", ""), ("--keep", "-1d"), ("-c", "target_size=much")]
)
def test_a_value_that_is_not_a_time_or_a_size_is_refused(folder: Path, option: str, value: str) -> None:
    result = CliRunner().invoke(command, [str(folder), option, value])
    assert result.exit_code != 0
    assert ": write " in f"{result.output}{result.exception}"
