"""Where the block references of records are: in a table of their own, or in `records` if that was made without it."""

from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from tests.pipeline.formats import MOSTLY_DELTA, MOSTLY_ICEBERG
from tests.pipeline.run_without_spark import run_segments
from tests.pipeline.small_wal import MIB, decoded_rows, small_wal, write_wal
from tests.unit.table_rows import open_table
from walproxy.pipeline.choices import TableFormat
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.duck import FolderTables, query_arrow
from walproxy.pipeline.input.opening import open_input
from walproxy.pipeline.input.pieces import decode_piece, plan_pieces
from walproxy.pipeline.jobs.run import RunConfig
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.schemas import arrow_schema

SEGMENTS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_wal(tmp_path_factory.mktemp("wal"), small_wal((SEGMENTS + 1) * MIB))


def config(source: str, tables: Path, *names: str, table_format: TableFormat | None = None) -> RunConfig:
    return RunConfig(source, LakeLocation.parse(tables), table_format, names)


def columns(folder: Path, name: str) -> list[str]:
    with open_table(folder, name, create=False) as table:
        return list(table.schema.names)


def without(columns: frozenset[str], view: str) -> list[str]:
    return [name for name in arrow_schema(view).names if name not in columns]


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_a_new_folder_has_them_in_a_table_of_their_own(source: str, tmp_path: Path, table_format: TableFormat) -> None:
    run_segments(config(source, tmp_path, "records", "blocks", table_format=table_format))
    assert columns(tmp_path, "records") == without(frozenset({"blocks"}), "records")
    for name in ("records", "blocks"):
        with open_table(tmp_path, name, create=False) as table:
            expected = decoded_rows(source, name).select(table.schema.names)
            assert table.to_arrow().sort_by("lsn").to_pylist() == expected.to_pylist()
    # The table cannot go on without the other one.
    with pytest.raises(ConfigurationError, match="has its block references in the table blocks: name both in --tables"):
        run_segments(config(source, tmp_path, "records"))


@pytest.mark.parametrize("table_format", MOSTLY_ICEBERG)
def test_a_table_with_the_references_keeps_them_beside_the_other_table(
    source: str, tmp_path: Path, table_format: TableFormat
) -> None:
    wal_input = open_input(source)
    path = wal_input.log_path()
    first, *_ = plan_pieces(path, wal_input.extents(path), None, None)
    decoded = decode_piece(wal_input, path, first)
    schemas = {name: arrow_schema(name) for name in ("records", "blocks")}
    for name, schema in schemas.items():
        with open_table(tmp_path, name, table_format, schema) as table:
            batch = view_batch(name, decoded, Piece(first.begin_lsn, first.end_lsn), schema.names)
            table.commit("walproxy-7", first.end_lsn, [table.new_file().write([batch])])
    run_segments(config(source, tmp_path, "records", "blocks"))
    for name, schema in schemas.items():
        with open_table(tmp_path, name, create=False) as table:
            assert table.schema.names == schema.names
            assert table.to_arrow().sort_by("lsn").to_pylist() == decoded_rows(source, name).to_pylist()


def test_the_view_blocks_is_the_table_that_the_decoder_writes(source: str, tmp_path: Path) -> None:
    run_segments(config(source, tmp_path, "records"))
    assert columns(tmp_path, "records") == arrow_schema("records").names
    with query_arrow(FolderTables(tmp_path), "SELECT * FROM blocks ORDER BY lsn, block_id") as rows:
        assert rows.read_all().to_pylist() == decoded_rows(source, "blocks").to_pylist()


def test_columns_that_are_not_optional_must_be_there(tmp_path: Path, source: str) -> None:
    with open_table(tmp_path, "blocks", "delta", arrow_schema("blocks", ["lsn", "block"])):
        pass
    with pytest.raises(ConfigurationError, match="column 'end_lsn' is not in the table; write to another table"):
        run_segments(config(source, tmp_path, "blocks"))
