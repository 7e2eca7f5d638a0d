"""Runs into Delta tables in S3 that are killed with SIGKILL in the middle: each record is there once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.archive_fixtures import credentials
from tests.integration.faulty_relay import FaultyRelay, Forward, Request
from tests.integration.object_stores import MotoServer, Server
from tests.pipeline.run_without_spark import TABLES, run_segments
from tests.pipeline.small_wal import decoded_rows, small_wal, write_wal
from tests.pipeline.test_run import next_event, process
from tests.unit.wal_builder import MIB
from walproxy.pipeline.jobs.run import RunConfig
from walproxy.pipeline.lake.location import LakeLocation
from walproxy.pipeline.lake.opening import open_lake_table

START_TIMEOUT_S = 300.0
SEGMENTS = 4


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    with credentials(), MotoServer() as made:
        yield made


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_wal(tmp_path / "pg_wal", small_wal(SEGMENTS * MIB + 200_000))


def assert_each_record_is_there_once(source: str, location: LakeLocation) -> None:
    for name in TABLES:
        with open_lake_table(location, name) as table:
            found = sorted(table.to_arrow(["lsn"])["lsn"].to_pylist())
        assert found == decoded_rows(source, name)["lsn"].to_pylist(), name


class Victim:
    """A run that the relay kills: at a request, before or after the store has carried it out."""

    def __init__(self, source: str, server: Server, relay: FaultyRelay, request: str, *, is_done: bool) -> None:
        place = server.place("lake", relay.endpoint)
        relay.when("PUT", request, self._kill_done if is_done else self._kill_undone)
        command = [sys.executable, "-m", "tests.pipeline.run_without_spark", source, place.url]
        self._process = subprocess.Popen([*command, json.dumps(dict(place.options))])
        try:
            assert self._process.wait(START_TIMEOUT_S) == -signal.SIGKILL
        finally:
            self._process.kill()
            self._process.wait()
            relay.clear()

    async def _kill_done(self, request: Request, forward: Forward) -> web.Response:
        response = await forward(request)
        os.kill(self._process.pid, signal.SIGKILL)
        return response

    async def _kill_undone(self, request: Request, forward: Forward) -> web.Response:
        os.kill(self._process.pid, signal.SIGKILL)
        return web.Response(status=503)


def test_a_run_that_is_killed_between_two_tables_and_before_a_commit_has_each_record_once(
    moto: Server, source: str
) -> None:
    place = moto.place("lake")
    location = LakeLocation.parse(place.url, place.options)
    with FaultyRelay(moto.endpoint) as relay:
        # The second batch is in the first table, and not in the other one.
        Victim(source, moto, relay, r"/records/_delta_log/0+2\.json", is_done=True)
        ends = [open_lake_table(location, name).last_batch("walproxy-7") for name in TABLES]
        assert ends == [3 * MIB, 2 * MIB]
        # The files of the third batch are stored, and no table names them.
        Victim(source, moto, relay, r"/records/_delta_log/0+3\.json", is_done=False)
        assert [open_lake_table(location, name).last_batch("walproxy-7") for name in TABLES] == [3 * MIB, 3 * MIB]
    assert run_segments(RunConfig(source, location, None, TABLES)) == SEGMENTS - 2
    assert_each_record_is_there_once(source, location)
    assert run_segments(RunConfig(source, location, None, TABLES)) == 0


@pytest.mark.nightly
def test_the_command_that_is_killed_at_any_time_has_each_record_once(
    moto: Server, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")  # Spark starts faster with what it has kept there.
    place = moto.place("command")
    options = ",".join(f"{name}={value}" for name, value in place.options.items())
    further = ("--lake-options", options, "--tables", ",".join(TABLES), "--max-bytes-per-trigger", "256kB")
    for batches in (1, 3):
        with process(source, place.url, *further, "--interval", "100ms") as killed:
            for _ in range(batches):
                assert next_event(killed)["event"] == "batch"
            killed.kill()
    with process(source, place.url, *further, "--once") as last:
        output, errors = last.communicate(timeout=START_TIMEOUT_S)
    assert (last.returncode, errors) == (0, "")
    assert json.loads(output.splitlines()[-1])["event"] == "finished"
    assert_each_record_is_there_once(source, LakeLocation.parse(place.url, place.options))
