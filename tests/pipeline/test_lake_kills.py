"""Runs into tables in S3 that are killed with SIGKILL in the middle: each record is there once."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.archive.archive_fixtures import credentials
from tests.integration.archive.faulty_relay import FaultyRelay, Forward, Request
from tests.integration.archive.object_stores import MotoServer, SeaweedServer, Server
from tests.pipeline.formats import MOSTLY_ICEBERG
from tests.pipeline.run_without_spark import TABLES, run_segments
from tests.pipeline.small_wal import decoded_rows, small_wal, write_wal
from tests.pipeline.test_run import next_event, process
from tests.unit.wal_builder import MIB
from walproxy.pipeline.jobs.run import RunConfig
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table

START_TIMEOUT_S = 900.0
SEGMENTS = 4


@pytest.fixture(scope="module", params=[MotoServer, pytest.param(SeaweedServer, marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with credentials(), request.param() as made:
        yield made


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_wal(tmp_path / "pg_wal", small_wal(SEGMENTS * MIB + 200_000))


@pytest.fixture(params=MOSTLY_ICEBERG)
def location(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> LakeLocation:
    """A place for tables of each format."""
    place = server.place("lake/" + re.sub(r"\W+", "-", request.node.name))
    is_iceberg = request.param == "iceberg"
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if is_iceberg else {}
    return LakeLocation.parse(place.url, place.options, catalog)


def assert_each_record_is_there_once(source: str, location: LakeLocation) -> None:
    for name in TABLES:
        with open_lake_table(location, name) as table:
            found = sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())
        assert found == decoded_rows(source, name)["lsn"].to_pylist(), name


class Killer:
    """A fault of the relay that kills a process at a request, before or after the store has carried it out."""

    def __init__(self, *, is_done: bool) -> None:
        self.process_id: int | None = None
        self._is_done = is_done

    async def __call__(self, request: Request, forward: Forward) -> web.Response:
        response = await forward(request) if self._is_done else web.Response(status=503)
        if self.process_id is not None:
            os.kill(self.process_id, signal.SIGKILL)
        return response


def kill_a_run(
    source: str, location: LakeLocation, relay: FaultyRelay, request: str, *, is_done: bool, skip: int = 0
) -> None:
    """Start a run, which the relay kills at the first PUT like this after those that are skipped."""
    killer = Killer(is_done=is_done)
    relay.when("PUT", request, killer, skip=skip)
    command = [sys.executable, "-m", "tests.pipeline.run_without_spark", source, location.url]
    options = {**dict(location.options), "endpoint": relay.endpoint}
    victim = subprocess.Popen([*command, json.dumps(options), json.dumps(dict(location.catalog))])
    killer.process_id = victim.pid
    try:
        assert victim.wait(START_TIMEOUT_S) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()
        relay.clear()


def ends_of(location: LakeLocation) -> list[int | None]:
    """Return the position of each table."""
    ends = []
    for name in TABLES:
        with open_lake_table(location, name) as table:
            ends.append(table.last_batch("walproxy-7"))
    return ends


KILLS = {
    # The second batch is in the first table, and not in the other one. The files of the third batch are stored, and no
    # table names them.
    "delta": ((r"/records/_delta_log/0+2\.json", True), (r"/records/_delta_log/0+3\.json", False)),
    # The same; in the second case the table's metadata is stored too, and the catalog does not name it.
    "iceberg": ((r"/transactions/metadata/0+2-.*json", False), (r"/records/metadata/0+3-.*json", True)),
}


def test_a_run_that_is_killed_between_two_tables_and_before_a_commit_has_each_record_once(
    server: Server, source: str, location: LakeLocation
) -> None:
    kills = KILLS["iceberg" if location.catalog else "delta"]
    with FaultyRelay(server.endpoint) as relay:
        for (request, is_done), ends in zip(kills, ([3 * MIB, 2 * MIB], [3 * MIB, 3 * MIB]), strict=True):
            kill_a_run(source, location, relay, request, is_done=is_done)
            assert ends_of(location) == ends
    assert run_segments(RunConfig(source, location, None, TABLES)) == SEGMENTS - 2
    assert_each_record_is_there_once(source, location)
    assert run_segments(RunConfig(source, location, None, TABLES)) == 0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_ten_times_has_each_record_once(
    server: Server, tmp_path: Path, location: LakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a request of each kind, before and after the store has carried it out, and every time in another batch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write_wal(tmp_path / "pg_wal", small_wal(16 * MIB))
    commit = r"metadata/\d+-.*\.json" if location.catalog else r"_delta_log/\d+\.json"
    requests = (r"/records/part", r"/transactions/part", f"/records/{commit}", f"/transactions/{commit}", r"run\.json")
    kills = [(request, is_done) for request in requests for is_done in (False, True)]
    ends = []
    with FaultyRelay(server.endpoint) as relay:
        for request, is_done in kills:
            kill_a_run(source, location, relay, request, is_done=is_done, skip=1)
            ends.append(ends_of(location))
    assert run_segments(RunConfig(source, location, None, TABLES))
    assert all(later > earlier for earlier, later in itertools.pairwise(ends)), "each of them has added something"
    assert_each_record_is_there_once(source, location)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_command_that_is_killed_at_any_time_has_each_record_once(
    source: str, location: LakeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")  # Spark starts faster with what it has kept there.
    further = ["--tables", ",".join(TABLES), "-c", "max_bytes_per_trigger=256kB"]
    for key, settings in (("lake_options", location.options), ("iceberg_catalog", location.catalog)):
        further += ["-c", f"{key}=" + ",".join(f"{name}={value}" for name, value in settings)]
    for batches in (1, 3):
        with process(source, location.url, *further, "-c", "interval=100ms") as killed:
            for _ in range(batches):
                assert next_event(killed)["event"] == "batch"
            killed.kill()
    with process(source, location.url, *further, "--once") as last:
        output, errors = last.communicate(timeout=START_TIMEOUT_S)
    assert (last.returncode, errors) == (0, "")
    assert json.loads(output.splitlines()[-1])["event"] == "finished"
    assert_each_record_is_there_once(source, location)
