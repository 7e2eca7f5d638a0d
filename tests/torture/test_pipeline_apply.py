"""The apply job, killed again and again under changes of rows and of tables, and its rows compared in the end."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.archive.archive_fixtures import credentials
from tests.integration.archive.object_stores import MotoServer, Place, SeaweedServer
from tests.pipeline.apply_fixtures import (
    CHURN,
    PGBENCH_TABLES,
    ApplyProcess,
    check_churn,
    compare,
    make_bench,
    make_churn,
    start_bench,
)
from tests.pipeline.logical_server import Source, client, logical_server, wait_until
from tests.pipeline.random_steps import SETUP, TABLES, RandomSteps
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.slot import create_slot
from walproxy.pipeline.choices import FOLLOWING_MODES, TABLE_FORMATS, FollowingMode, TableFormat
from walproxy.pipeline.lake.location import LakeLocation

KILLS = 10
RANDOM_STEPS = 200
RANDOM_KILLS = 12
LOAD_S = 60
SEED = 7
SCRIPT = """
\\set id 2 * random(1, 250) + :client_id
\\set other 2 * random(1, 250) + :client_id
BEGIN;
INSERT INTO wide VALUES (:id, :other, repeat('x', 4000)) ON CONFLICT (id) DO UPDATE SET n = wide.n + 1;
DELETE FROM wide WHERE id = :other;
UPDATE wide SET id = :other WHERE id = :id AND NOT EXISTS (SELECT FROM wide WHERE id = :other);
INSERT INTO log SELECT :id, 'one of several' FROM generate_series(1, 3);
SAVEPOINT s;
UPDATE wide SET n = n + 1000 WHERE id = :other;
ROLLBACK TO s;
COMMIT;
"""
COLUMNS = (
    "ALTER TABLE wide ADD COLUMN plain int",
    "ALTER TABLE wide ADD COLUMN filled int DEFAULT 7",
    "ALTER TABLE wide DROP COLUMN plain",
    "ALTER TABLE wide RENAME COLUMN filled TO renamed",
    "TRUNCATE log",
    "ALTER TABLE log ADD COLUMN at timestamptz DEFAULT clock_timestamp()",
)


@pytest.fixture
def source() -> Iterator[Source]:
    with logical_server() as server, closing(Source(server)) as made:
        yield made


class Lake(NamedTuple):
    """Where tables follow, and in which format."""

    location: LakeLocation
    format: TableFormat


@pytest.fixture(params=["folder", "moto", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A folder, and a real S3 server: two of them."""
    if request.param == "folder":
        yield Place(str(tmp_path / "lake"))
        return
    with credentials(), MotoServer() if request.param == "moto" else SeaweedServer() as server:
        yield server.place("lake")


@pytest.fixture(params=TABLE_FORMATS)
def lake(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Lake:
    has_catalog = request.param == "iceberg" and "://" in place.url
    catalog = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} if has_catalog else {}
    return Lake(LakeLocation.parse(place.url, place.options, catalog), request.param)


def change_tables(source: Source, stop: threading.Event) -> None:
    """Change columns now and then, one after the other."""
    with closing(client(source.conninfo)) as connection:
        for statement in COLUMNS:
            if stop.wait(LOAD_S / 2 / len(COLUMNS)):
                return
            connection.execute(statement.encode())


def test_ten_kills_cost_no_row_and_double_none(source: Source, tmp_path: Path, lake: Lake) -> None:
    chance = random.Random(SEED)
    script = tmp_path / "script.sql"
    script.write_text(SCRIPT)
    make_bench(source)
    source.run(
        "CREATE TABLE wide (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE wide ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE log (x int, y text)",
    )
    source.publish()
    stop, folder = threading.Event(), tmp_path / "lake"
    loads = [start_bench(source, LOAD_S, "--rate=200"), start_bench(source, LOAD_S, "--rate=50", f"--file={script}")]
    changer = threading.Thread(target=change_tables, args=(source, stop))
    changer.start()
    job = ApplyProcess(source, folder, lake.format, ["-c", "memory=1MB"], lake.location)
    try:
        for kill in range(KILLS):
            time.sleep(chance.uniform(1.5, LOAD_S / KILLS))
            assert job.is_running, job.log.read_text()
            job.kill9()
            job = ApplyProcess(source, folder, lake.format, ["-c", "memory=1MB"], lake.location)
            print(f"{lake.location}: kill {kill + 1} of {KILLS}")
        for load in loads:
            assert load.wait(2 * LOAD_S) == 0, "a client of the workload gave up"
    finally:
        stop.set()
        changer.join()
        for load in loads:
            load.kill()
            load.wait()
        job.kill9()
    # A change of columns is seen with the next change of a row.
    source.run("INSERT INTO wide (id, n) VALUES (-1, 0)", "INSERT INTO log (x) VALUES (-1)")
    last = ApplyProcess(source, folder, lake.format, ["--verify"], lake.location)
    assert last.wait() == 0, last.log.read_text()
    compare(source, lake.location, lake.format, *PGBENCH_TABLES, "wide", "log")


@pytest.mark.parametrize("mode", FOLLOWING_MODES[1:])
def test_ten_kills_cost_no_change_and_double_none(
    source: Source, tmp_path: Path, lake: Lake, mode: FollowingMode
) -> None:
    chance = random.Random(SEED)
    make_churn(source)
    source.publish("churn")
    script, folder, words = tmp_path / "script.sql", tmp_path / "lake", [f"--mode={mode}", "-c", "memory=1MB"]
    script.write_text(CHURN)
    options = ApplyOptions(source.conninfo, source.slot, (source.publication,), *lake, mode=mode)
    run_apply(options, once=True)
    load = start_bench(source, LOAD_S, "--rate=200", f"--file={script}")
    job = ApplyProcess(source, folder, lake.format, words, lake.location)
    try:
        for kill in range(KILLS):
            time.sleep(chance.uniform(1.5, LOAD_S / KILLS))
            assert job.is_running, job.log.read_text()
            job.kill9()
            job = ApplyProcess(source, folder, lake.format, words, lake.location)
            print(f"{lake.location}: kill {kill + 1} of {KILLS}")
        assert load.wait(2 * LOAD_S) == 0, "a client of the workload gave up"
    finally:
        load.kill()
        load.wait()
        job.kill9()
    last = ApplyProcess(source, folder, lake.format, [*words, "--verify"], lake.location)
    assert last.wait() == 0, last.log.read_text()
    check_churn(source, options)
    # A copy would begin the history again: nothing has been missed that made one necessary.
    assert "copying public.churn" not in last.log.read_text()
    # A copy of all that is there loses nothing either, whatever moment the job is killed at.
    for _ in range(3):
        source.run("ALTER TABLE churn ADD COLUMN filled int DEFAULT 7", "ALTER TABLE churn DROP COLUMN filled")
        job = ApplyProcess(source, folder, lake.format, words, lake.location)
        time.sleep(chance.uniform(1.5, 6))
        job.kill9()
    last = ApplyProcess(source, folder, lake.format, [*words, "--verify"], lake.location)
    assert last.wait() == 0, last.log.read_text()
    check_churn(source, options)


@pytest.mark.parametrize("seed", [1, 2])
def test_verification_is_clean_after_200_random_steps_with_kills(
    source: Source, tmp_path: Path, lake: Lake, seed: int
) -> None:
    source.publication = "p"
    source.run(*SETUP)
    create_slot(source.connection, source.slot)
    chance, steps, folder = random.Random(seed), RandomSteps(seed), tmp_path / "lake"
    kills = set(chance.sample(range(RANDOM_STEPS), RANDOM_KILLS))
    status, store = "_walproxy_apply/status.json", lake.location.store()  # written by the first step
    job = ApplyProcess(source, folder, lake.format, ["-c", "memory=1MB"], lake.location)
    try:
        for number in range(RANDOM_STEPS):
            print(f"{number}: {'; '.join(steps.run(source))}")
            # Some steps meet between two of the job's, some do not.
            time.sleep(chance.choice([0, 0, 0.1, 0.5]))
            if number in kills:
                if chance.random() < 0.7:
                    wait_until(lambda: any(each.key == status for each in store.list("_walproxy_apply")))
                assert job.is_running, job.log.read_text()
                job.kill9()
                store.delete([status])
                job = ApplyProcess(source, folder, lake.format, ["-c", "memory=1MB"], lake.location)
        assert job.is_running, job.log.read_text()
    finally:
        job.kill9()
    verified = ApplyProcess(source, folder, lake.format, ["--verify"], lake.location)
    assert verified.wait() == 0, verified.log.read_text()
    compare(source, lake.location, lake.format, *TABLES)
