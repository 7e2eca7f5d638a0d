"""`pgtable`: Spark writes to the tables, and what it writes again after a crash is there once."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from tests.pipeline.formats import MOSTLY_DELTA
from tests.unit.table_rows import Table, folder_of, lsns_of, open_table
from walproxy.pipeline.choices import TABLE_FORMATS, TableFormat
from walproxy.pipeline.schemas import spark_ddl


def rows(spark: SparkSession, begin: int, end: int, partitions: int = 2) -> DataFrame:
    """Return rows with numbers, texts, nulls, times and lists."""
    return spark.range(begin, end, 1, partitions).selectExpr(
        "id AS lsn",
        "CAST(id % 3 AS SMALLINT) AS kind",
        "IF(id % 4 = 0, NULL, CONCAT('word ', id)) AS word",
        "timestamp_micros(id) AS time",
        "array(named_struct('n', CAST(id AS INT), 'b', id % 2 = 0)) AS parts",
    )


def files_of(table: Table) -> set[str]:
    """Return all data files in the folder of a table, also those that are not part of it."""
    return {path.name for path in folder_of(table).glob("*.parquet")}


@pytest.mark.parametrize("table_format", MOSTLY_DELTA)
def test_a_batch_query_adds_its_rows(spark: SparkSession, tmp_path: Path, table_format: TableFormat) -> None:
    writer = rows(spark, 0, 10).write.format("pgtable").option("table", "t").option("tableFormat", table_format)
    writer.mode("append").save(str(tmp_path))
    rows(spark, 10, 15, 8).write.format("pgtable").option("table", "t").mode("append").save(str(tmp_path))
    with open_table(tmp_path, "t", create=False) as table:
        assert table.format == table_format
        assert table.schema == to_arrow_schema(rows(spark, 0, 1).schema, timezone="UTC")
        found = table.to_arrow().sort_by("lsn")
    assert found == rows(spark, 0, 15).toArrow().cast(found.schema).sort_by("lsn")
    assert found["word"].to_pylist()[3:6] == ["word 3", None, "word 5"]


def test_a_batch_with_a_number_is_written_once_however_often_the_query_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    for _ in range(2):
        writer = rows(spark, 0, 4).write.format("pgtable").option("tableFormat", "delta").option("table", "t")
        writer.option("writer", "nightly").option("batch", "20").mode("append").save(str(tmp_path))
    with open_table(tmp_path, "t", create=False) as table:
        assert lsns_of(table) == [0, 1, 2, 3]
        assert table.last_batch("nightly") == 20
        assert files_of(table) == {file.path for file in table.live_files()}, "no file of the second try is left"


class Stream:
    """A stream of JSON files into a table; each file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path, table_format: TableFormat) -> None:
        self._spark = spark
        self.tables = folder / "tables"
        self.checkpoint = folder / "checkpoint"
        self._source = folder / "source"
        self._source.mkdir()
        self._format = table_format

    def add(self, number: int, lsns: range) -> None:
        """Give the stream a batch."""
        (self._source / f"{number}.json").write_text("".join(json.dumps({"lsn": lsn}) + "\n" for lsn in lsns))

    def run(self) -> None:
        """Run it until it has taken everything."""
        schema = spark_ddl(pa.schema([pa.field("lsn", pa.int64())]))
        source = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._source))
        query: StreamingQuery = (
            source.writeStream.format("pgtable")
            .option("path", str(self.tables))
            .option("table", "t")
            .option("tableFormat", self._format)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_the_last_commit(self) -> None:
        """Make the checkpoint what it is if Spark is killed between the table's commit and its own."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


# The batch query above writes every format, and tests/unit/pipeline/lake/test_tables.py repeats batches in each.
@pytest.mark.parametrize(
    "table_format",
    [each if each == "delta" else pytest.param(each, marks=pytest.mark.nightly) for each in TABLE_FORMATS],
)
def test_a_stream_that_repeats_a_batch_after_a_crash_adds_it_once(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat
) -> None:
    stream = Stream(spark, tmp_path, table_format)
    stream.add(0, range(5))
    stream.add(1, range(5, 8))
    stream.run()
    stream.forget_the_last_commit()
    stream.add(2, range(8, 10))
    stream.run()
    writer = f"spark-{json.loads((stream.checkpoint / 'metadata').read_text())['id']}"
    with open_table(stream.tables, "t", create=False) as table:
        assert lsns_of(table) == list(range(10))
        assert table.last_batch(writer) == 2
        assert len(table.live_files()) == 3
        assert table.remove_orphans(0, dry_run=True).files == 0


def test_rows_that_cannot_be_computed_leave_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    # One task: others that run beside the one that fails are killed, and their files are orphans for a day.
    broken = rows(spark, 0, 10).coalesce(1).selectExpr("lsn", "IF(lsn = 7, raise_error('seven'), 1) AS one")
    writer = broken.write.format("pgtable").option("table", "t").option("tableFormat", "delta").mode("append")
    with pytest.raises(PySparkException, match="seven"):
        writer.save(str(tmp_path))
    with open_table(tmp_path, "t", create=False) as table:
        assert lsns_of(table) == []
        assert files_of(table) == set()


def test_what_makes_no_sense_is_reported_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    with open_table(tmp_path, "t", "delta", pa.schema([pa.field("lsn", pa.int64()), pa.field("kind", pa.int16())])):
        pass
    for mode, complaint in [
        ("overwrite", r"pgtable only adds rows: use mode\('append'\)"),
        ("append", "has other columns: column 'kind' is missing; write to another table"),
    ]:
        writer = rows(spark, 0, 1).select("lsn").write.format("pgtable").option("table", "t").mode(mode)
        with pytest.raises(PySparkException, match=complaint):
            writer.save(str(tmp_path))
    with open_table(tmp_path, "t") as table:
        assert lsns_of(table) == []
