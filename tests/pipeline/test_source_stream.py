"""The stream of pgwal in Spark: over its checkpoint, each record is in exactly one batch."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from safekeeper.base.errors import ConfigurationError
from tests.pipeline.small_wal import add_transactions, decoded_rows, small_wal, write_wal
from tests.unit.wal_builder import MIB, WalBuilder
from walproxy.pipeline.spark_errors import spark_errors

Batches = dict[int, list[int]]


class Stream:
    """One query with its checkpoint, run again and again."""

    def __init__(self, spark: SparkSession, folder: str, checkpoint: Path, **options: str) -> None:
        self._spark = spark
        self._folder = folder
        self.checkpoint = checkpoint
        self._options = {"columns": "lsn", **options}

    def run(self) -> Batches:
        """Read what is there; return the records' LSNs by the batch that they came in."""
        batches: Batches = {}

        def keep(frame: DataFrame, number: int) -> None:
            batches[number] = sorted(frame.toArrow()["lsn"].to_pylist())

        with spark_errors():
            frame = self._spark.readStream.format("pgwal").options(**self._options).load(self._folder)
            writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint.as_uri())
            writer.trigger(availableNow=True).start().awaitTermination()
        return batches

    def forget_commit(self, number: int) -> None:
        """Remove Spark's note that a batch is done, as a crash right before it does."""
        for name in (f"{number}", f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink()

    def change_offset(self, number: int, **changes: Any) -> None:
        """Change where a batch ended."""
        path = self.checkpoint / "offsets" / str(number)
        *lines, offset = path.read_text().splitlines()
        path.write_text("\n".join([*lines, json.dumps({**json.loads(offset), **changes})]))
        (self.checkpoint / "offsets" / f".{number}.crc").unlink(missing_ok=True)


@pytest.fixture
def wal() -> WalBuilder:
    return small_wal(3 * MIB)


@pytest.fixture
def folder(wal: WalBuilder, tmp_path: Path) -> str:
    return write_wal(tmp_path / "pg_wal", wal)


@pytest.fixture
def stream(spark: SparkSession, folder: str, tmp_path: Path) -> Stream:
    return Stream(spark, folder, tmp_path / "checkpoint", maxBytesPerTrigger="900kB")


def all_of(*runs: Batches) -> list[int]:
    return [lsn for run in runs for number in sorted(run) for lsn in run[number]]


def test_batches_have_each_record_once_over_restarts_and_crashes(stream: Stream, folder: str, wal: WalBuilder) -> None:
    first = stream.run()
    assert len(first) == 3
    assert stream.run() == {}
    write_wal(Path(folder), add_transactions(wal, 4 * MIB + 500_000, seed=2))
    second = stream.run()
    assert min(second) == 3
    found = all_of(first, second)
    assert found == decoded_rows(folder, "records")["lsn"].to_pylist()[: len(found)]
    assert found[-1] > 4 * MIB + 400_000
    last = max(second)
    stream.forget_commit(last)
    assert stream.run() == {last: second[last]}


def test_a_checkpoint_of_other_wal_is_refused_in_one_line(stream: Stream) -> None:
    last = max(stream.run())
    stream.change_offset(last, system_id="8")
    with pytest.raises(ConfigurationError, match=r"^the checkpoint is of the system 8, and .* has the WAL of 7: name"):
        stream.run()
    stream.change_offset(last, system_id="7", lsn="7/0")
    with pytest.raises(ConfigurationError, match=r"^the stream is at 7/0, and the WAL of .* ends at 0/"):
        stream.run()
