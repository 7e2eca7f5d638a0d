"""What `walproxy pipeline cdc status` shows of a slot and of the tables that follow it."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from safekeeper.base.lsn import parse_lsn
from tests.pipeline.apply_fixtures import options_of
from tests.pipeline.logical_server import Source
from walproxy.cli.pipeline_commands.cdc import cdc
from walproxy.pipeline.cdc.apply.job import ApplyOptions, TablesQuarantined, opened_job, run_apply
from walproxy.pipeline.cdc.apply.job_file import only_job
from walproxy.pipeline.cdc.apply.status_files import read_status


@pytest.fixture
def source(empty: Source) -> Source:
    empty.run("CREATE TABLE t (id int PRIMARY KEY, at date)", "INSERT INTO t VALUES (1)", 'CREATE TABLE "q""x" (y int)')
    empty.publish("t", 'q"x')
    return empty


def shown(source: Source, *more: str, exit_code: int = 0) -> str:
    words = ["status", "--primary", source.conninfo, "--slot", source.slot, *more]
    result = CliRunner().invoke(cdc, words)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def as_json(source: Source, *more: str, exit_code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(source, "--json", *more, exit_code=exit_code))
    return found


def set_current_time(options: ApplyOptions, unix_time: float) -> None:
    folder = options.location.folder
    assert folder is not None
    path = folder / "_walproxy_apply" / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "current_time": unix_time}))


def test_it_shows_the_mode_and_the_lag_of_the_tables(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path, mode="append")
    run_apply(options, once=True)
    place = ["--to", str(options.location)]
    source.run("INSERT INTO t VALUES (2)")
    set_current_time(options, time.time() - 500)
    text = shown(source, *place)
    [lag] = re.findall(
        r"^tables, mode append: followed up to \S+, lag: .+ and at most (\d+) s; reported \d+ s ago$",
        text,
        re.MULTILINE,
    )
    assert 500 <= int(lag) <= 560
    found = as_json(source, *place, "--publication", source.publication)
    apply = found["apply"]
    assert (found["slot"], apply["mode"], found["keys"]) == (
        source.slot,
        "append",
        {"public.t": ["id"], 'public.q"x': []},
    )
    assert apply["lag_bytes"] == parse_lsn(found["quorum_lsn"]) - parse_lsn(apply["position"]) > 0
    assert found["lag_bytes"] == parse_lsn(found["quorum_lsn"]) - parse_lsn(found["confirmed_lsn"]) > 0
    assert 500 <= apply["lag_seconds"] <= 560
    assert apply["tables"]['public.q"x']["state"] == "following"
    # Without a place nothing is known of tables.
    assert as_json(source)["apply"] is None and as_json(source)["keys"] is None
    source.run("INSERT INTO t VALUES (3, 'infinity')")
    with pytest.raises(TablesQuarantined):
        run_apply(options, once=True)
    assert as_json(source, *place, exit_code=1)["apply"]["tables"]["public.t"]["state"] == "quarantined"


def test_tables_that_have_everything_are_not_behind(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path)
    run_apply(options, once=True)
    position_lsn = parse_lsn(read_status(options.location).position)
    set_current_time(options, time.time() - 500)
    with pytest.MonkeyPatch.context() as patch:
        # The server writes WAL by itself.
        patch.setattr("walproxy.cli.pipeline_commands.cdc.SafeLsn.read", lambda *_: position_lsn)
        assert "mode mirror: followed up to" in shown(source, "--to", str(options.location))
        assert ", lag: none; reported" in shown(source, "--to", str(options.location))
        apply = as_json(source, "--to", str(options.location))["apply"]
    assert (apply["lag_bytes"], apply["lag_seconds"]) == (0, 0)


def test_a_job_that_is_started_again_does_not_look_current(source: Source, tmp_path: Path) -> None:
    options = options_of(source, tmp_path, max_bytes=1000)
    run_apply(options, once=True)
    before = time.time() - 500
    set_current_time(options, before)
    source.run("INSERT INTO t SELECT i FROM generate_series(10, 500) i")
    with only_job(options.location), opened_job(options, first=True, ends=True) as job:
        job.step()
    report = read_status(options.location)
    assert report.lag_bytes > 0 and report.current_time == before
    run_apply(options, once=True)
    assert read_status(options.location).current_time > before + 400
