"""Tables in a real S3 server (moto) are tidied up, in both formats, while jobs write to them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from safekeeper.base.errors import ConfigurationError
from tests.integration.archive.faulty_relay import FaultyRelay, answer
from tests.integration.archive.object_stores import Server
from tests.pipeline.formats import MOSTLY_DELTA
from tests.unit.table_rows import SMALL, small
from walproxy.cli.pipeline_commands.maintain import maintain as command
from walproxy.pipeline.jobs.maintain import Maintained, maintain
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import find_lake_table, open_lake_table
from walproxy.pipeline.lake.position import After
from walproxy.pipeline.lake.table import LakeTable, RemovedFiles

OF_ANY_AGE_S = -3600.0


@pytest.fixture(params=MOSTLY_DELTA)
def location(moto: Server, request: pytest.FixtureRequest, tmp_path: Path) -> LakeLocation:
    """An empty place for tables of each format."""
    place = moto.place("maintain/" + re.sub(r"\W+", "-", request.node.name))
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if request.param == "iceberg" else {}
    return LakeLocation.parse(place.url, place.options, catalog)


@pytest.fixture
def table(location: LakeLocation) -> Iterator[LakeTable[Any]]:
    """The table `rows`, with three small files."""
    found = find_lake_table(location.below("rows"), SMALL)
    assert found is not None
    with found:
        for batch in range(3):
            add(found, batch)
        yield found


def add(table: LakeTable[Any], batch: int) -> None:
    """Add a row, as a job does."""
    file = table.new_file().write([small([batch])])
    assert file is not None
    assert table.commit("me", batch, [file], after=After(batch - 1 if batch else None))


def lsns_of(location: LakeLocation) -> list[int]:
    with open_lake_table(location, "rows") as table:
        return sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())


def objects_of(location: LakeLocation) -> set[str]:
    return {info.key for info in location.below("rows").store().list()}


def test_small_files_are_merged_and_what_is_old_is_removed(location: LakeLocation, table: LakeTable[Any]) -> None:
    orphan = table.new_file().write([small([9])])
    assert orphan is not None
    small_files = {file.path for file in table.live_files()}
    before = objects_of(location)
    planned = maintain(location, keep_s=0, orphans_after_s=OF_ANY_AGE_S, dry_run=True)
    assert (planned[0].compaction.files_removed, planned[0].orphans.files, planned[0].files) == (3, 1, 3)
    assert objects_of(location) == before

    progress: list[Any] = []
    (done,) = maintain(location, orphans_after_s=OF_ANY_AGE_S, progress=lambda *step: progress.append(step))
    orphans = RemovedFiles(1, orphan.bytes)
    size = done.compaction.bytes_after
    assert done == Maintained("rows", table.format, done.compaction, orphans=orphans, files=1, bytes=size)
    assert (done.compaction.files_removed, done.compaction.files_added, done.compaction.rows) == (3, 1, 3)
    assert [(name, step == total) for name, step, total in progress] == [("rows", True)]
    assert objects_of(location) > before - {orphan.path}, "a reader that has begun finds the small files"
    assert lsns_of(location) == [0, 1, 2]

    (old,) = maintain(location, keep_s=0, orphans_after_s=OF_ANY_AGE_S)
    assert (old.problem, old.orphans.files) == (None, 0)
    assert old.expired.versions >= 3
    assert old.expired.files > len(small_files)
    assert not objects_of(location) & small_files
    assert lsns_of(location) == [0, 1, 2]
    add(table, 3)  # It has known the table since before.
    with open_lake_table(location, "rows") as later:
        assert later.last_batch("me") == 3
        assert later.remove_orphans(OF_ANY_AGE_S).files == 0, "nothing was left"
    assert lsns_of(location) == [0, 1, 2, 3]


def test_a_compaction_goes_on_beside_a_job_and_gives_up_if_another_one_was_faster(
    location: LakeLocation, table: LakeTable[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = type(table)._replaced
    steps = iter((lambda job: add(job, 3), lambda job: job.compact()))

    def meanwhile(self: LakeTable[Any], replacements: Any) -> Any:
        monkeypatch.undo()
        with open_lake_table(location, "rows") as job:
            next(steps)(job)
        return replaced(self, replacements)

    monkeypatch.setattr(type(table), "_replaced", meanwhile)
    assert table.compact().files_removed == 3
    assert len(table.live_files()) == 2
    monkeypatch.setattr(type(table), "_replaced", meanwhile)
    files = objects_of(location)
    assert table.compact().files_removed == 0
    assert len({key for key in objects_of(location) - files if key.endswith(".parquet")}) == 1, "the file is discarded"
    assert lsns_of(location) == [0, 1, 2, 3]
    assert table.last_batch("me") == 3


def test_a_replacement_of_files_in_a_version_that_is_no_longer_the_newest_does_nothing(
    location: LakeLocation, table: LakeTable[Any]
) -> None:
    version = table._load()
    old = version.live_files()
    with open_lake_table(location, "rows") as job:
        add(job, 3)  # type: ignore[arg-type]
    file = table.new_file().write([small([0, 1, 2])])
    assert file is not None
    assert not table._commit(version, None, [table._checked(file)], {}, old)
    assert lsns_of(location) == [0, 1, 2, 3]


def test_the_command_prints_json_and_a_store_that_fails_is_one_line(
    moto: Server, location: LakeLocation, table: LakeTable[Any]
) -> None:
    def run(endpoint: str, *further: str) -> Result:
        options = {**dict(location.options), "endpoint": endpoint}
        store, catalog = (
            ",".join(f"{name}={value}" for name, value in pairs) for pairs in (options.items(), location.catalog)
        )
        arguments = [location.url, "-c", f"lake_options={store}", "-c", f"iceberg_catalog={catalog}", *further]
        return CliRunner().invoke(command, arguments, catch_exceptions=False)

    with FaultyRelay(moto.endpoint) as relay:
        relay.when("GET", r"\.parquet", answer(403, "AccessDenied"))
        failed = run(relay.endpoint)
    assert failed.exit_code == 1
    assert re.fullmatch(r"PROBLEM: could not .*rows.*AccessDenied.*\n", failed.stderr)
    # Not through the relay, a thread of this process: delta-rs holds Python's lock while it changes properties.
    printed = run(moto.endpoint, "--json")
    assert printed.exit_code == 0, printed.output
    (done,) = msgspec.json.decode(printed.stdout)
    assert (done["name"], done["format"], done["compaction"]["files_removed"]) == ("rows", table.format, 3)
    with pytest.raises(ConfigurationError, match="has no table 'other': it has rows"):
        maintain(location, ["other"])
