"""Changes of definitions are announced with a real server: what is sent, at least once, and no table waits for it."""

import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.lsn import parse_lsn
from tests.pipeline.apply_fixtures import ApplyProcess, compare, options_of
from tests.pipeline.logical_server import Source, wait_until
from tests.pipeline.test_apply import Crash, crash_once
from tests.unit.pipeline.test_announcer import SECRETS, HookServer, assert_no_secret
from tests.waiting import wait_for
from walproxy.pipeline.cdc.apply import announcer as announcer_module
from walproxy.pipeline.cdc.apply import job as job_module
from walproxy.pipeline.cdc.apply import receivers
from walproxy.pipeline.cdc.apply.announcer import Announcer, announcing
from walproxy.pipeline.cdc.apply.delta import DeltaFollowing
from walproxy.pipeline.cdc.apply.job import ApplyOptions, TablesQuarantined, opened_job, run_apply
from walproxy.pipeline.cdc.apply.job_file import Job, job_state, only_job, read_job
from walproxy.pipeline.cdc.apply.status_files import read_status
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.cdc.safe_lsn import SafeLsn

HOSTILE = """we"ird 'tab' <script>alert(1)</script> \\ é {} """ + "x" * 16
COLUMN = """co"l <b> \\""" + "y" * 53
TABLE = '"' + HOSTILE.replace('"', '""') + '"'
QUOTED = '"' + COLUMN.replace('"', '""') + '"'


@pytest.fixture
def source(empty: Source) -> Source:
    assert len(HOSTILE.encode()) == len(COLUMN.encode()) == 63
    empty.run(
        "CREATE TYPE mood AS ENUM ('low')",
        "CREATE TABLE t (id int PRIMARY KEY, v text, m mood)",
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, d date)",
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE w0 PARTITION OF whole FOR VALUES FROM (0) TO (10)",
        f"""CREATE PUBLICATION "my pub" FOR TABLE t, whole, {TABLE} WITH (publish_via_partition_root)""",
        f"INSERT INTO {TABLE} VALUES (1)",
    )
    empty.publish()
    return empty


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shown(announced: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(each["table"], each["action"], each["change"]) for each in announced]


def job_of(options: ApplyOptions) -> Job:
    job = read_job(job_state(options.location))
    assert job is not None
    return job


def test_each_change_is_announced_with_what_became_of_it(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    options = options_of(source, tmp_path, on_schema_change=str(path))

    def announced(*statements: str) -> list[dict[str, Any]]:
        source.run(*statements, "INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        before = len(lines(path))
        try:
            run_apply(options, once=True)
        except TablesQuarantined:
            pass
        return lines(path)[before:]

    assert announced() == announced("INSERT INTO t VALUES (100, 'row', 'low')", "TRUNCATE t") == []  # No change.
    [added] = announced(f"ALTER TABLE {TABLE} ADD {QUOTED} numeric(5,2)")
    assert shown([added]) == [(HOSTILE, "followed", f"column {COLUMN} was added, here of type decimal128(5, 2)")]
    assert (added["schema"], added["database"], added["slot"]) == ("public", source.name, source.slot)
    assert source.begin_lsn <= parse_lsn(added["lsn"]) <= job_of(options).position_lsn
    assert shown(announced("ALTER TYPE mood ADD VALUE 'high'")) == [
        ("t", "followed", "a type of its columns has new labels")
    ]
    assert shown(announced("CREATE TABLE w1 PARTITION OF whole FOR VALUES FROM (10) TO (20)")) == [
        ("whole", "followed", "1 partition added")
    ]
    assert shown(announced("ALTER TABLE t DROP v", f"ALTER TABLE {TABLE} RENAME d TO day")) == [
        ("t", "followed", "column v was dropped, and keeps its values here"),
        (HOSTILE, "copied", "its column d is called day"),
    ]
    [quarantined] = announced(f"UPDATE {TABLE} SET day = 'infinity'")
    assert (quarantined["table"], quarantined["action"]) == (HOSTILE, "quarantined")
    assert ".day has the value 'infinity', which date32[day] cannot hold" in quarantined["change"]
    assert announced() == []  # The same reason is not announced again.
    [copied] = announced(f"UPDATE {TABLE} SET day = '2026-11-26'", f"ALTER TABLE {TABLE} ADD z int DEFAULT 5")
    assert (copied["table"], copied["action"]) == (HOSTILE, "copied")
    assert copied["change"].startswith("it was quarantined (")
    assert shown(announced(f'ALTER PUBLICATION "my pub" DROP TABLE {TABLE}')) == [
        (HOSTILE, "stopped", "it is no longer published: its copy stays as it is")
    ]
    every = lines(path)
    assert len({each["id"] for each in every}) == len(every)
    assert [each["time"] for each in every] == sorted(each["time"] for each in every)
    assert job_of(options).announcements == []
    assert len(run_verify(options, repair=False)) == 2


def test_a_running_job_notices_what_is_no_longer_published(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    options = options_of(source, tmp_path, on_schema_change=str(path))
    with (
        announcing(str(path)) as announcer,
        only_job(options.location),
        opened_job(options, first=True, ends=True, announcer=announcer) as job,
    ):
        job.copy_missing()
        source.run(f'ALTER PUBLICATION "my pub" DROP TABLE {TABLE}')
        job.step()
        job.end_announcements()
    assert shown(lines(path)) == [(HOSTILE, "stopped", "it is no longer published: its copy stays as it is")]


CRASHES = ["note", "noted", "send", "copied"]


@pytest.mark.parametrize("crash_at", CRASHES)
def test_a_crash_loses_no_announcement(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    path = tmp_path / "changes.jsonl"
    options = options_of(source, tmp_path, on_schema_change=str(path))
    run_apply(options, once=True)
    source.run("ALTER TABLE t ADD w int DEFAULT 7", f"ALTER TABLE {TABLE} ADD x int")
    sent: list[str] = []
    with monkeypatch.context() as patched:
        if crash_at in ("note", "noted"):
            # The first note is that of the start; the second one has the columns that were followed.
            crashing = crash_once(job_module.write_job, 2, after=crash_at == "noted")
            patched.setattr(job_module, "write_job", crashing)
        elif crash_at == "send":
            patched.setattr(Announcer, "send", crash_once(Announcer.send))
        else:
            patched.setattr(DeltaFollowing, "replace", crash_once(DeltaFollowing.replace, after=True))
        patched.setattr(receivers.FileReceiver, "send", lambda self, content: sent.append(json.loads(content)["id"]))
        with pytest.raises(Crash):
            run_apply(options, once=True)
    pending = {each.id for each in job_of(options).announcements}
    assert bool(pending) == (crash_at != "note")
    run_apply(options, once=True)
    assert sorted(shown(lines(path))) == sorted(
        [
            ("t", "copied", "its column w was added with values in old rows"),
            (HOSTILE, "followed", "column x was added, here of type int32"),
        ]
    )
    # What was in the job's file is sent under the name that it had.
    assert pending <= {each["id"] for each in lines(path)}
    compare(source, options.location, "delta", "t")


def test_a_receiver_that_is_away_delays_no_table_and_gets_everything_later(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcer_module, "_RETRY_MIN_S", 0.02)
    monkeypatch.setattr(announcer_module, "_RETRY_MAX_S", 0.02)
    caplog.set_level(logging.DEBUG)
    with closing(HookServer()) as hook:
        options = options_of(source, tmp_path, on_schema_change=hook.url())
        run_apply(options, once=True)
        hook.replies = [503] * 1000
        with (
            announcing(hook.url()) as announcer,
            only_job(options.location),
            opened_job(options, first=True, ends=True, announcer=announcer) as job,
        ):
            job.copy_missing()
            for name in ("a", "b"):
                source.run(f"ALTER TABLE t ADD {name} int", f"INSERT INTO t (id, {name}) SELECT count(*), 1 FROM t")
                job.step()
            source.run("INSERT INTO t SELECT max(id) + 1 FROM t")
            job.step()
            compare(source, options.location, "delta", "t")
            assert read_status(options.location).announcements == 2
            wait_for(lambda: len(hook.posts) >= 10, "the announcement is sent again and again", 30)
            assert caplog.text.count("schema changes are not announced") == 1
            hook.replies = []
            wait_for(lambda: len(hook.taken) >= 2, "both announcements are taken", 30)
            # A job without work notes that they were taken.
            monkeypatch.setattr(SafeLsn, "read", lambda *_: job.position_lsn)

            def is_noted() -> bool:
                job.step()
                return not job_of(options).announcements

            wait_for(is_noted, "the job notes that they were taken", 30)
        assert [each["change"][:8] for each in hook.taken] == ["column a", "column b"]
        assert caplog.text.count("schema changes are announced again") == 1
        folder = options.location.folder
        assert folder is not None
        for path in (folder / "_walproxy_apply").iterdir():
            assert_no_secret(path.read_text())
        assert_no_secret(caplog.text)
        assert SECRETS[0] in hook.url()


def test_announcements_wait_in_the_file_of_a_job_that_ends(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer_module, "_RETRY_MIN_S", 30)
    with closing(HookServer()) as hook:
        options = options_of(source, tmp_path, on_schema_change=hook.url())
        run_apply(options, once=True)
        source.run("ALTER TABLE t ADD a int")
        hook.replies = [500] * 1000
        run_apply(options, once=True)
        [pending] = job_of(options).announcements
        # It is not lost if the option is absent for a while, or all tables are copied again.
        source.run("ALTER TABLE t ADD b int", "INSERT INTO t (id) VALUES (1)")
        run_apply(options._replace(on_schema_change=None), once=True)
        run_apply(options._replace(on_schema_change=None, start_over=True), once=True)
        assert job_of(options).announcements == [pending]
        hook.replies = []
        run_apply(options, once=True)
        assert [each["id"] for each in hook.taken] == [pending.id]
        assert job_of(options).announcements == []


def test_kill_9_of_the_command_loses_no_announcement(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(HookServer()) as hook:
        hook.replies = [503] * 1000
        monkeypatch.setenv("WALPROXY_ON_SCHEMA_CHANGE", hook.url())
        process = ApplyProcess(source, tmp_path / "lake", "delta")
        try:
            source.run("INSERT INTO t VALUES (1)")
            process.wait_for_steps(1)
            source.run("ALTER TABLE t ADD w int", "INSERT INTO t VALUES (2)")
            # The receiver has the post before the job has the answer.
            refused = f"not announced, retrying until they are: http://127.0.0.1:{hook.port} replied with status 503"
            wait_until(lambda: refused in process.log.read_text())
            process.kill9()
            hook.replies = []
            process = ApplyProcess(source, tmp_path / "lake", "delta")
            wait_until(lambda: bool(hook.taken))
            assert process.stop() == 0
        finally:
            if process.is_running:
                process.kill9()
        assert hook.taken[0]["id"] == json.loads(hook.posts[0][2])["id"]
        assert len(hook.taken) == 1
        assert_no_secret(process.log.read_text())
        assert_no_secret((tmp_path / "lake" / "_walproxy_apply" / "status.json").read_text())


def test_a_receiver_that_is_none_ends_the_job_at_its_start(source: Source, tmp_path: Path) -> None:
    for bad in ("ftp://u:s3cret@host", str(tmp_path)):
        with pytest.raises(ConfigurationError):
            run_apply(options_of(source, tmp_path / "lake", on_schema_change=bad), once=True)
    assert not (tmp_path / "lake").exists()
