"""The run job on a standalone Spark cluster, archive and tables in S3: each record is there once, whatever dies."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.archive.archive_fixtures import Archive
from tests.integration.archive.faulty_relay import FaultyRelay, first
from tests.integration.archive.object_stores import Server
from tests.pipeline.small_wal import decoded_rows, small_wal, write_wal
from tests.pipeline.spark_cluster import SparkCluster
from tests.pipeline.test_run import next_event, process
from tests.unit.wal_builder import MIB
from tests.unit.wal_places import ArchiveMaker
from tests.waiting import wait_for
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table

TABLES = ("records", "transactions", "relation_volume")
END_TIMEOUT_S = 900.0
SEGMENTS = 6
pytestmark = pytest.mark.timeout(1200)


class Job:
    """A run from an archive in S3 into tables in S3.

    Attributes:
        tables: where they are.
        segments: a folder with the same WAL.
    """

    def __init__(self, folder: Path, moto: Server, prefix: str) -> None:
        wal = small_wal(SEGMENTS * MIB + 200_000)
        self.segments = write_wal(folder / "pg_wal", wal)
        self.archive = Archive(moto, f"{prefix}/archive", moto.place(f"{prefix}/archive"))
        ArchiveMaker(self.archive.store()).put_all(wal)
        place = moto.place(f"{prefix}/lake")
        self.tables = LakeLocation.parse(place.url, place.options)

    def options(self, cluster: SparkCluster, relay: FaultyRelay) -> Sequence[str]:
        """Return the command's options; the tables are reached through the relay."""
        lake = {**dict(self.tables.options), "endpoint": relay.endpoint}
        return (
            *("-c", f"archive_options={joined(self.archive.place.options)}", "-c", f"lake_options={joined(lake)}"),
            *("--tables", ",".join(TABLES), "-c", "max_bytes_per_trigger=2MB"),
            *("-c", f"master={cluster.url}", "-c", "cores=2"),
            *(word for setting in cluster.settings for word in ("-c", f"spark_conf={setting}")),
        )

    def assert_each_record_is_there_once(self) -> None:
        for name in TABLES:
            with open_lake_table(self.tables, name) as table:
                found = table.to_arrow()
            expected = decoded_rows(self.segments, name)
            if "lsn" in found.column_names:
                assert sorted(found["lsn"].to_pylist()) == expected["lsn"].to_pylist(), name
            else:
                assert sum(found["records"].to_pylist()) == sum(expected["records"].to_pylist()), name


def joined(options: object) -> str:
    assert isinstance(options, dict)
    return ",".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.nightly
def test_a_worker_that_is_killed_while_its_tasks_write_costs_no_record_and_doubles_none(
    moto: Server, tmp_path: Path
) -> None:
    job = Job(tmp_path, moto, "killed")
    with SparkCluster(tmp_path, workers=2) as cluster, FaultyRelay(moto.endpoint) as relay:
        tasks: list[int] = []

        def kill() -> None:
            tasks.extend(cluster.tasks(number) for number in range(2))
            cluster.kill(0)

        # Two tasks in each batch; this is a file of the second batch.
        relay.when("PUT", r"/records/part-[^/]+\.parquet", first(kill), skip=2, times=1)
        with process(job.archive.place.url, job.tables.url, *job.options(cluster, relay), "--once") as run:
            output, errors = run.communicate(timeout=END_TIMEOUT_S)
        assert (run.returncode, errors) == (0, "")
        events = [json.loads(line) for line in output.splitlines()]
        assert [event["event"] for event in events] == ["batch"] * (len(events) - 1) + ["finished"]
        assert len(events) > SEGMENTS // 2
        assert len(tasks) == 2 and all(tasks), "both workers had tasks before"
        assert cluster.tasks(1) > tasks[1] + 1, "the other worker went on"
    job.assert_each_record_is_there_once()


@pytest.mark.nightly
def test_a_job_continues_after_the_death_of_its_driver_and_waits_for_a_worker_when_all_are_dead(
    moto: Server, tmp_path: Path
) -> None:
    job = Job(tmp_path, moto, "driver")
    with SparkCluster(tmp_path, workers=2) as cluster, FaultyRelay(moto.endpoint) as relay:
        options = job.options(cluster, relay)
        with process(job.archive.place.url, job.tables.url, *options) as killed:
            assert next_event(killed)["event"] == "batch"
            killed.kill()
        cluster.kill(0)
        cluster.kill(1)
        with process(job.archive.place.url, job.tables.url, *options, "--once") as run:
            wait_for(lambda: cluster.jobs() == 2 or run.poll() is not None, "the second job begins", END_TIMEOUT_S)
            cluster.add(2)
            _, errors = run.communicate(timeout=END_TIMEOUT_S)
        assert (run.returncode, errors) == (0, "")
        assert cluster.tasks(2)
    job.assert_each_record_is_there_once()
