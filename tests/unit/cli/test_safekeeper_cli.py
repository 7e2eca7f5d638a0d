"""The command `safekeeper`, as real processes: conversations, crashes, refusals, exit codes."""

import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import google_crc32c
import pytest
from click.testing import CliRunner

from safekeeper.archive.fetch import ArchiveReader
from safekeeper.archive.store import ObjectStore
from safekeeper.base.lsn import format_lsn
from safekeeper.base.settings import command_line_name, environment_variable, option_name, options_of
from safekeeper.cli import cli
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    AppendResponse,
    ArchiveAssignment,
    DigestRequest,
    DigestResponse,
    PreVoteRequest,
    PreVoteResponse,
    ReadRequest,
    ReadResponse,
    Refusal,
    RefusalCode,
)
from safekeeper.process.config import ENVIRONMENT_PREFIX, SafekeeperConfig
from tests.unit.safekeeper_process import SafekeeperProcess, safekeeper
from tests.unit.scripted_proposer import BASE_LSN, DEADLINE_S, SEGMENT_SIZE

WAL = bytes(range(256)) * 40
OPEN = ("-c", "allow=192.0.2.0/24")


def one_line(result: "subprocess.CompletedProcess[str]") -> str:
    """Return the only line that a refused command printed, but for what it logged before."""
    (line,) = [line for line in result.stderr.splitlines() if " INFO safekeeper " not in line]
    assert line.startswith("safekeeper: ")
    assert result.stdout == ""
    return line


def test_a_whole_conversation(tmp_path: Path) -> None:
    with SafekeeperProcess(tmp_path / "sk", forked=False) as process:
        assert process.get("/healthz") == (200, {"ok": True})
        code, readiness = process.get("/readyz")
        assert code == 503 and "empty" in readiness["reason"]
        with process.proposer() as proposer:
            adopted = proposer.lead(term=3)
            assert (adopted.write_lsn, adopted.flush_lsn) == (BASE_LSN, BASE_LSN)
            for _ in range(3):
                proposer.append(WAL)
            end_lsn = BASE_LSN + 3 * len(WAL)
            proposer.wait_flushed(end_lsn)
            heartbeat = proposer.append(b"", commit_lsn=end_lsn - 5)
            while proposer.wait_flushed(end_lsn).sequence != heartbeat.sequence:
                pass

            proposer.send(ReadRequest(proposer.leader_id, 1, BASE_LSN + 3, end_lsn))
            assert proposer.receive(ReadResponse).payload == (3 * WAL)[3:]
            proposer.send(DigestRequest(proposer.leader_id, 2, BASE_LSN, BASE_LSN + 9000))
            expected = (google_crc32c.value((2 * WAL)[:8192]), google_crc32c.value(WAL[8192:9000]))
            assert proposer.receive(DigestResponse).page_crcs == expected
            with process.proposer(run="other") as other:
                other.greet()
                other.send(PreVoteRequest("other"))
                assert other.receive(PreVoteResponse) == PreVoteResponse(granted=False, live_proposer_id="run1")

            assert process.get("/readyz") == (200, {"ok": True})
            status = process.get("/status")[1]
            assert (status["id"], status["state"], status["term"], status["tli"]) == (1, "following", 3, 1)
            assert status["flush_lsn"] == status["write_lsn"] == format_lsn(end_lsn)
            assert status["commit_lsn"] == format_lsn(end_lsn - 5)
            assert status["addresses"]["proposers"] == f"127.0.0.1:{process.port}"
            process.signal(signal.SIGTERM)
            assert process.wait_exit() == 0
            assert proposer.is_closed()
    with SafekeeperProcess(tmp_path / "sk") as process, process.proposer(run="run2") as proposer:
        greeting = proposer.greet()
        # The checkpoint at SIGTERM kept what is otherwise written lazily.
        assert (greeting.flush_lsn, greeting.commit_lsn) == (end_lsn, end_lsn - 5)


def test_after_kill_9_everything_that_was_acknowledged_is_there_and_was_sent(tmp_path: Path) -> None:
    acknowledged = BASE_LSN
    for term in range(1, 4):
        with SafekeeperProcess(tmp_path / "sk") as process, process.proposer(run=f"run{term}") as proposer:
            adopted = proposer.lead(term)
            assert adopted.flush_lsn >= acknowledged
            while proposer.write_lsn < adopted.write_lsn + 2 * SEGMENT_SIZE:
                proposer.append(WAL)
                if proposer.sequence % 16 == 0:
                    acknowledged = proposer.wait_flushed(proposer.write_lsn - 8 * len(WAL)).flush_lsn
            process.signal(signal.SIGKILL)
            assert process.wait_exit() == -signal.SIGKILL
    with SafekeeperProcess(tmp_path / "sk") as process, process.proposer(run="last") as proposer:
        flush_lsn = proposer.lead(9).flush_lsn
        assert acknowledged <= flush_lsn
        # What lies between the runs' ends is whole appends or parts of them: always the same bytes.
        proposer.send(ReadRequest(proposer.leader_id, 1, BASE_LSN, BASE_LSN + 10 * len(WAL)))
        assert proposer.receive(ReadResponse).payload == 10 * WAL


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with SafekeeperProcess(tmp_path / "sk") as process:
        result = safekeeper("run", "--id", "1", "--data-dir", str(tmp_path / "sk"))
        assert result.returncode == 3
        assert f"in use by process {process.process.pid}" in one_line(result)


def test_inspect_of_a_running_safekeeper_is_refused_with_its_pid(tmp_path: Path) -> None:
    with SafekeeperProcess(tmp_path / "sk") as process:
        result = safekeeper("inspect", "--data-dir", str(tmp_path / "sk"))
        assert result.returncode == 3
        assert f"is running (pid {process.process.pid})" in one_line(result)


def folder_with_wal(directory: Path) -> Path:
    with SafekeeperProcess(directory) as process, process.proposer() as proposer:
        proposer.lead()
        proposer.append(WAL)
        proposer.wait_flushed(BASE_LSN + len(WAL))
        process.signal(signal.SIGTERM)
        process.wait_exit()
    return directory


def test_inspect_shows_where_the_valid_wal_ends(tmp_path: Path) -> None:
    directory = folder_with_wal(tmp_path / "sk")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    plain = safekeeper("inspect", "--data-dir", str(directory))
    assert plain.returncode == 0
    assert "valid WAL ends at: 0/302800" in plain.stdout.splitlines()
    assert "segment 000000010000000000000003: [0/300000, 0/302800)" in plain.stdout.splitlines()
    shown = json.loads(safekeeper("inspect", "--data-dir", str(directory), "--json").stdout)
    assert shown["flush_lsn"] == "0/302800"
    entry = {"term": 1, "start_lsn": "0/300000", "tli": 1, "gives_up": False, "floor": 0, "given": 0}
    assert shown["control"]["history"] == [entry]
    sizes = {"commit": "N/2+1", "elect": "N/2+1"}
    assert shown["control"]["membership"]["quorum_sizes"] == sizes
    assert "; quorums: commit N/2+1, elect N/2+1" in plain.stdout
    assert shown["lost"] == ""
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_damaged_control_file_ends_start_and_inspect_with_6_and_one_line(tmp_path: Path) -> None:
    directory = folder_with_wal(tmp_path / "sk")
    control = directory / "control"
    control.write_bytes(control.read_bytes()[:-1] + b"\x00")
    result = safekeeper("run", "--id", "1", "--data-dir", str(directory))
    assert result.returncode == 6
    assert "damaged" in one_line(result)
    result = safekeeper("inspect", "--data-dir", str(directory))
    assert result.returncode == 6
    assert "LOST" in result.stdout


def test_lost_wal_ends_start_and_inspect_with_6_and_says_what_to_do(tmp_path: Path) -> None:
    directory = folder_with_wal(tmp_path / "sk")
    shutil.rmtree(directory / "wal")
    result = safekeeper("run", "--id", "1", "--data-dir", str(directory))
    assert result.returncode == 6
    assert "start with an empty one, which walproxy members replace makes a member" in one_line(result)
    result = safekeeper("inspect", "--data-dir", str(directory))
    assert result.returncode == 6
    assert "is missing" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("run", "--data-dir", "DIR"), 3, "--id is missing"),
        (("run", "--id", "1"), 3, "--data-dir is missing"),
        (("run", "--id", "zero", "--data-dir", "DIR"), 3, "'zero' is not a number"),
        (("run", "--id", "1", "--data-dir", "DIR/a/b"), 3, "does not exist"),
        (("run", "--id", "1", "--data-dir", "DIR", "--config", "DIR/no.toml"), 3, "could not read"),
        (("run", "--id", "1", "--data-dir", "DIR", "--listen", "203.0.113.1:1", *OPEN), 3, "could not listen"),
        (("run", "--id", "1", "--data-dir", "DIR", "--listen", "127.0.0.1:0", "--http", "203.0.113.1:1"), 3, "HTTP"),
        (("inspect", "--data-dir", "DIR/missing"), 3, "does not exist"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_3(
    tmp_path: Path, arguments: tuple[str, ...], code: int, part: str
) -> None:
    result = safekeeper(*(argument.replace("DIR", str(tmp_path)) for argument in arguments))
    assert result.returncode == code
    assert part in one_line(result)


@pytest.mark.parametrize("arguments", [("run", "--colour", "red"), ("dance",)])
def test_wrong_usage_is_exit_code_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    result = safekeeper(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_settings_also_come_from_the_environment_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sk.toml"
    file.write_text('log_level = "loud"\n')
    result = safekeeper(
        "run", environment={"SAFEKEEPER_ID": "1", "SAFEKEEPER_DATA_DIR": "sk", "WALPROXY_CONFIG": str(file)}
    )
    assert result.returncode == 3
    assert "log_level: 'loud' is not one of" in one_line(result)


def test_sighup_reads_the_configuration_again(tmp_path: Path) -> None:
    file = tmp_path / "sk.toml"
    file.write_text("")
    with SafekeeperProcess(tmp_path / "sk", "--config", str(file)) as process:
        file.write_text('log_level = "debug"\n[safekeeper]\nidle_timeout = 5\n')
        process.signal(signal.SIGHUP)
        assert process.wait_for_line("reloaded the configuration").endswith("changed: log_level")
        assert "idle_timeout" in process.wait_for_line("requires a restart")
        with process.proposer():
            process.wait_for_line("DEBUG")
        file.write_text("nonsense = 1")
        process.signal(signal.SIGHUP)
        assert "nothing was changed" in process.wait_for_line("the unknown key nonsense")
        process.signal(signal.SIGTERM)
        assert process.wait_exit() == 0


def test_garbage_on_the_listener_is_one_line_and_the_leader_goes_on(tmp_path: Path) -> None:
    with SafekeeperProcess(tmp_path / "sk") as process, process.proposer() as leader:
        leader.lead()
        with process.proposer() as stranger:
            stranger.send_raw(b"\x16\x03\x01\x02\x00garbage")
            assert stranger.is_closed()
        assert "WARNING safekeeper 1 term 1: closed proxy connection" in process.wait_for_line("uses TLS")
        leader.append(WAL)
        leader.wait_flushed(BASE_LSN + len(WAL))


def test_every_line_of_the_log_says_when_how_grave_and_who(tmp_path: Path) -> None:
    with SafekeeperProcess(tmp_path / "sk", safekeeper_id=7) as process:
        with SafekeeperProcess(tmp_path / "other") as other, other.proposer() as proposer:
            proposer.lead(term=12)
            other.wait_for_line("follows")
            assert " INFO safekeeper 1 term 12: follows (12, run1)" in other.lines[-1]
        process.signal(signal.SIGINT)
        assert process.wait_exit() == 0
        for line in process.lines:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ safekeeper 7 term 0: .+", line)


FAULTY = textwrap.dedent(
    """
    import signal, sys
    sys.path.insert(0, ".")
    import safekeeper.cli
    from tests.unit.faulty_filesystem import FaultyFileSystem

    fs = FaultyFileSystem()
    safekeeper.cli.RealFileSystem = lambda: fs
    signal.signal(signal.SIGWINCH, lambda *_: setattr(fs, "failing", True))
    signal.signal(signal.SIGUSR2, lambda *_: setattr(fs, "full", not fs.full))
    safekeeper.cli.main()
    """
)


def test_a_failed_fdatasync_ends_the_process_with_6_and_one_line(tmp_path: Path) -> None:
    program = (sys.executable, "-c", FAULTY)
    with SafekeeperProcess(tmp_path / "sk", program=program) as process, process.proposer() as proposer:
        proposer.lead()
        proposer.append(WAL)
        proposer.wait_flushed(BASE_LSN + len(WAL))
        process.signal(signal.SIGWINCH)
        process.get("/status")  # The signal was taken before this was answered.
        proposer.append(WAL)
        with pytest.raises((ConnectionError, AssertionError)):
            proposer.wait_flushed(BASE_LSN + 2 * len(WAL))
        assert process.wait_exit() == 6
        errors = [line for line in process.lines if " ERROR " in line]
        assert len(errors) == 1 and "Input/output error" in errors[0]
        assert process.lines[-1] == errors[0]
    with SafekeeperProcess(tmp_path / "sk") as process, process.proposer() as proposer:
        assert proposer.greet().flush_lsn >= BASE_LSN + len(WAL)


def test_a_full_disk_refuses_appends_answers_reads_and_says_so(tmp_path: Path) -> None:
    program = (sys.executable, "-c", FAULTY)
    with SafekeeperProcess(tmp_path / "sk", program=program) as process:
        with process.proposer() as proposer:
            proposer.lead()
            process.signal(signal.SIGUSR2)
            process.get("/status")
            proposer.append(bytes(SEGMENT_SIZE))
            proposer.wait_flushed(BASE_LSN + SEGMENT_SIZE)
            proposer.append(WAL)
            assert proposer.receive(Refusal).code is RefusalCode.STORAGE_FULL
        code, readiness = process.get("/readyz")
        assert code == 503 and "No space" in readiness["reason"]
        with process.proposer() as reader:
            reader.greet()
            reader.send(ReadRequest(LeaderId(1, "run1"), 1, BASE_LSN, BASE_LSN + 100))
            assert reader.receive(ReadResponse).payload == bytes(100)
        process.signal(signal.SIGUSR2)
        process.get("/status")
        with process.proposer() as proposer:
            proposer.lead(term=2)
            proposer.append(WAL)
            proposer.wait_flushed(BASE_LSN + SEGMENT_SIZE + len(WAL))
            assert process.get("/readyz") == (200, {"ok": True})


def test_a_process_archives_when_it_is_asked_to_and_before_it_stops(tmp_path: Path) -> None:
    url = str(tmp_path / "archive")
    options = ("--archive", url, "-c", "archive_partial_interval=3600")
    with SafekeeperProcess(tmp_path / "sk", *options) as process, process.proposer() as proposer:
        proposer.lead()

        def commit() -> int:
            proposer.append(WAL)
            proposer.wait_flushed(proposer.write_lsn)
            answer = proposer.append(b"", commit_lsn=proposer.write_lsn)
            while proposer.receive(AppendResponse).sequence < answer.sequence:
                pass
            return proposer.write_lsn

        def wait_archived(lsn: int) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while process.get("/status")[1]["archive"]["archived_lsn"] != format_lsn(lsn):
                assert time.monotonic() < deadline

        end_lsn = commit()
        proposer.send(ArchiveAssignment(proposer.leader_id, archiver=1, archived_lsn=0))
        wait_archived(end_lsn)
        end_lsn = commit()
        process.signal(signal.SIGUSR1)
        wait_archived(end_lsn)
        end_lsn = commit()
        process.signal(signal.SIGTERM)
        assert process.wait_exit() == 0
    found = ArchiveReader(ObjectStore.open(url)).find(1, BASE_LSN)
    assert found is not None
    assert found.file.end_lsn == end_lsn
    assert ArchiveReader(ObjectStore.open(url)).fetch_bytes(found) == 3 * WAL


def test_an_archive_that_cannot_be_one_is_refused_at_the_start(tmp_path: Path) -> None:
    result = safekeeper("run", "--id", "1", "--data-dir", str(tmp_path / "sk"), "--archive", "ftp://somewhere/wal")
    assert result.returncode == 3
    assert "ftp" in one_line(result)
    assert not (tmp_path / "sk").exists()


def test_the_help_shows_every_option_an_example_and_the_exit_codes() -> None:
    result = CliRunner().invoke(cli, ["run", "--help"])
    for name, option in options_of(SafekeeperConfig).items():
        if option.environment_only:
            assert f"{command_line_name(name)} " not in result.output
            assert environment_variable(ENVIRONMENT_PREFIX, name) in result.output
            continue
        assert option_name(name, option) in result.output
        assert option.is_key_only or option.help.split()[0] in result.output
    for command in ("run", "inspect"):
        text = CliRunner().invoke(cli, [command, "--help"]).output
        assert "Example" in text and "Exit codes" in text
