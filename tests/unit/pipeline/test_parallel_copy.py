"""Copies of tables whose reads and commits fail, or are much faster than their begin."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from safekeeper.base.errors import ArchiveUnavailable, StorageFailed, StorageFull, WalproxyError
from tests.waiting import wait_for
from walproxy.pipeline.cdc.apply import table_copy
from walproxy.pipeline.cdc.apply.copies import CopyPlan, put_copy
from walproxy.pipeline.cdc.apply.copy_ranges import CopyRange
from walproxy.pipeline.cdc.apply.copy_state import CopyBasis, CopyState
from walproxy.pipeline.cdc.apply.copying import Snapshot
from walproxy.pipeline.cdc.apply.opening import following_table
from walproxy.pipeline.cdc.apply.options import ApplyOptions
from walproxy.pipeline.cdc.apply.parallel_copy import CopyOptions, copy_tables
from walproxy.pipeline.cdc.apply.table_copy import TableCopy, Task
from walproxy.pipeline.cdc.publication import TableName
from walproxy.pipeline.cdc.server import SourceUnavailable
from walproxy.pipeline.lake.files import NewLakeFile
from walproxy.pipeline.lake.location import LakeLocation

SCHEMA = pa.schema([pa.field("id", pa.int32())])
SESSIONS = 2
TIMEOUT_S = 20.0


class Made(TableCopy):
    """A copy of a table of one range, without a server."""

    def __init__(self, folder: Path, name: str, rows: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        table, location = TableName("public", name), LakeLocation.parse(folder)
        options = ApplyOptions("", "slot", (), location, "delta")
        made = cast(Any, SimpleNamespace(table=table, key=("id",), row_filter=None))
        following = following_table(location, "delta", table)
        super().__init__(snapshot(), made, following, options, set(), lists=True, reason="")
        self._given = rows
        self.is_begun = self.is_read = self.is_committed = False

    def begin(self, range_bytes: int, note: Callable[[], None]) -> list[Task]:
        self.ranges = [CopyRange(*self.made.table)]
        self._state = CopyState.new(CopyBasis("", cast(Any, None), "", [], None, is_direct=True), self.ranges)
        self._before = self._state.copied
        location = self._following.location
        assert location.folder is not None
        location.folder.mkdir(parents=True)
        self._new_file = NewLakeFile(location, self._state.id, SCHEMA)
        self._plan = CopyPlan(SCHEMA, frozenset(), None)
        self.is_begun = True
        return [Task(self, 0, None)]

    def _rows(self, session: Any, each: CopyRange) -> Any:
        yield from self._given()
        self.is_read = True

    def commit(self, note: Callable[[], None]) -> None:
        super().commit(note)
        self.is_committed = True


def snapshot() -> Snapshot:
    found = SimpleNamespace(lsn=5, unix_us=0, horizon_xid=1, session=MagicMock, check=lambda: None)
    return cast(Snapshot, found)


def one_row() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": [1]}, SCHEMA)


def copied(copies: list[Made]) -> Any:
    options = CopyOptions(SESSIONS, 1 << 20, threading.Event(), lambda _: None)
    return copy_tables(snapshot(), copies, options, lambda _: None)


def test_small_tables_are_committed_before_all_are_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [Made(tmp_path, f"t{number}", one_row) for number in range(40)]
    open_at_once: list[int] = []
    begin = Made.begin

    def slow_begin(copy: Made, range_bytes: int, note: Callable[[], None]) -> list[Task]:
        before = [each for each in copies if each.is_begun]
        tasks = begin(copy, range_bytes, note)
        wait_for(lambda: all(each.is_read for each in before), "what was begun before is read", TIMEOUT_S)
        open_at_once.append(sum(each.is_begun and not each.is_committed for each in copies))
        return tasks

    monkeypatch.setattr(Made, "begin", slow_begin)
    monkeypatch.setattr(table_copy, "put_copy", lambda *_, **__: None)
    assert [error for _, error in copied(copies)] == [None] * 40
    assert max(open_at_once) <= 3 * SESSIONS


@pytest.mark.parametrize("error", [StorageFailed, StorageFull, ArchiveUnavailable, SourceUnavailable])
def test_a_commit_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[WalproxyError]
) -> None:
    def fail(*_: object, **__: object) -> None:
        assert list(tmp_path.rglob("*.parquet"))
        raise error("no")

    monkeypatch.setattr(table_copy, "put_copy", fail)
    copies = [Made(tmp_path, "t", one_row)]
    if error is StorageFailed:
        assert [type(found) for _, found in copied(copies)] == [StorageFailed]
    else:
        with pytest.raises(error):
            list(copied(copies))
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_files_of_a_commit_that_was_made_stay_though_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = put_copy

    def put_and_fail(*given: Any, **more: Any) -> None:
        put(*given, **more)
        raise StorageFull("no")

    monkeypatch.setattr(table_copy, "put_copy", put_and_fail)
    with pytest.raises(StorageFull):
        list(copied([Made(tmp_path, "t", one_row)]))
    with closing(following_table(LakeLocation.parse(tmp_path), "delta", TableName("public", "t"))) as table:
        assert table.to_arrow()["id"].to_pylist() == [1]


def test_copies_that_are_closed_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [Made(tmp_path, name, one_row) for name in ("t0", "t1")]
    with closing(copied(copies)) as results:

        def put(*_: object, **__: object) -> None:
            wait_for(lambda: not copies[1].is_begun or copies[1].is_read, "what was begun is read", TIMEOUT_S)

        monkeypatch.setattr(table_copy, "put_copy", put)
        done, error = next(results)
        assert error is None
    kept = {path.parent.name for path in tmp_path.rglob("*.parquet")}
    assert kept == {f"public.{done.made.table.name}"}


def test_what_arrow_refuses_of_a_table_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Iterator[pa.RecordBatch]:
        yield from one_row()
        raise pa.ArrowInvalid("offset overflow")

    monkeypatch.setattr(table_copy, "put_copy", lambda *_, **__: None)
    copies = [Made(tmp_path, "bad", refused), Made(tmp_path, "good", one_row)]
    found = {copy.made.table.name: error for copy, error in copied(copies)}
    assert found["good"] is None and isinstance(found["bad"], StorageFailed)
    assert str(found["bad"]) == "could not copy public.bad: offset overflow"
