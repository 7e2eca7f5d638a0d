"""The source pgcdc in Spark: a batch that leaves the slot alone, and a stream that has each change once."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import format_lsn
from tests.pipeline.logical_server import Source
from walproxy.pipeline.cdc.options import CdcOptions
from walproxy.pipeline.cdc.server import SourceRefused
from walproxy.pipeline.cdc.slot import drop_slot, usable_slot
from walproxy.pipeline.spark_errors import spark_errors

Rows = list[dict[str, Any]]


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2), at timestamptz DEFAULT now())")
    empty.run("CREATE TABLE u (id int PRIMARY KEY)")
    empty.publish("t", "u")
    return empty


def options(source: Source, **more: str) -> dict[str, str]:
    return {"conninfo": source.conninfo, "slot": source.slot, "publication": source.publication, **more}


def confirmed_lsn(source: Source) -> int:
    return usable_slot(source.connection, source.slot)[1]


class Stream:
    """One query with its checkpoint, run again and again; what it wrote stays in `batches`."""

    def __init__(self, spark: SparkSession, source: Source, checkpoint: Path, **given: str) -> None:
        self._spark = spark
        self._source = source
        self._options = given
        self.checkpoint = checkpoint
        self.batches: dict[int, Rows] = {}

    def run(self) -> None:
        """Read what is there."""

        def keep(frame: DataFrame, number: int) -> None:
            self.batches[number] = rows = frame.toArrow().to_pylist(maps_as_pydicts="strict")
            # Nothing is gone from the slot that is not in the checkpoint yet.
            assert all(confirmed_lsn(self._source) <= row["commit_lsn"] for row in rows)

        with spark_errors():
            frame = self._spark.readStream.format("pgcdc").options(**self._options).load()
            writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint.as_uri())
            writer.trigger(availableNow=True).start().awaitTermination()

    def forget_commit(self, number: int) -> None:
        """Remove Spark's note that a batch is done, as a crash right before it does."""
        for name in (f"{number}", f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    def places(self) -> list[tuple[int, int]]:
        return [(row["commit_lsn"], row["sequence"]) for rows in self.batches.values() for row in rows]


def test_a_stream_has_each_change_once_and_moves_the_slot_behind_itself(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    stream = Stream(
        spark, source, tmp_path / "checkpoint", **options(source, maxBytesPerTrigger="256kB", streaming="true")
    )
    source.run(
        "INSERT INTO t SELECT i, repeat('x', 100), i FROM generate_series(1, 2000) i",
        "INSERT INTO u VALUES (1)",
        "UPDATE t SET v = 'y' WHERE id <= 10",
    )
    stream.run()
    assert len(stream.batches) > 1
    assert confirmed_lsn(source) > source.begin_lsn
    first = dict(stream.batches)
    source.run("DELETE FROM t WHERE id <= 5")
    # A crash right before Spark notes the last batch: it comes again, and is the same.
    last = max(stream.batches)
    stream.forget_commit(last)
    stream.run()
    assert stream.batches[last] == first[last]
    places = stream.places()
    assert len(places) == len(set(places)) == 2000 + 1 + 10 + 5
    assert places == sorted(places)
    kinds = [row["kind"] for rows in stream.batches.values() for row in rows]
    assert [kinds.count(kind) for kind in ("insert", "update", "delete")] == [2001, 10, 5]


def test_a_batch_has_typed_columns_and_leaves_the_slot(spark: SparkSession, source: Source) -> None:
    source.run("INSERT INTO t VALUES (1, 'a', 1.5), (2, NULL, NULL)", "INSERT INTO u VALUES (1)", "DELETE FROM t")
    before = confirmed_lsn(source)
    with spark_errors():
        frame = spark.read.format("pgcdc").options(**options(source, table="t", textColumns="at")).load()
        rows = frame.orderBy("_commit_lsn", "_sequence").collect()
    assert [(row["_kind"], row["id"], row["v"], str(row["n"])) for row in rows] == [
        ("insert", 1, "a", "1.50"),
        ("insert", 2, None, "None"),
        ("delete", 1, None, "None"),
        ("delete", 2, None, "None"),
    ]
    assert rows[0]["at"].endswith("+00")
    assert confirmed_lsn(source) == before


def test_a_slot_that_is_gone_ends_the_query_in_one_line(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    stream = Stream(spark, source, tmp_path / "checkpoint", **options(source))
    source.run("INSERT INTO u VALUES (1)")
    stream.run()
    drop_slot(source.connection, source.slot)
    source.run("INSERT INTO u VALUES (2)")
    with pytest.raises(SourceRefused, match=f"slot '{source.slot}' does not exist") as raised:
        stream.run()
    assert "\n" not in str(raised.value)


def test_options_are_read_once_and_strictly(source: Source) -> None:
    given = options(source, STARTLSN=format_lsn(7), maxbytespertrigger="1MB", table="a.b", status="none")
    read = CdcOptions.parse(given)
    assert (read.start_lsn, read.max_bytes_per_trigger, str(read.table)) == (7, 1 << 20, "a.b")
    assert CdcOptions.parse({**given, "publication": "a, b"}).publications == ("a", "b")
    for wrong in (
        {"colour": "red"},
        {"startLsn": "x"},
        {"streaming": "maybe"},
        {"arrays": "maybe"},
        {"quorumTimeout": "-1"},
        {"status": "here"},
        {"table": "."},
        {"slot": ""},
    ):
        with pytest.raises(ConfigurationError):
            CdcOptions.parse({**given, **wrong})
