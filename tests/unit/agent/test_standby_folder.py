"""The files of a standby: segments in place and new ones, history files, and what restore_command has."""

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from safekeeper.base.errors import ConfigurationError
from walproxy.agent.standby_folder import LocalStandbyFolder
from walproxy.postgres.binaries import server_user

SIZE = 1 << 20
SEGMENT = "000000010000000000000004"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder, which under root is another user's."""
    folder = tmp_path / "data"
    (folder / "pg_wal").mkdir(parents=True, mode=0o700)
    user = server_user()
    if user is not None:
        for each in (*tmp_path.parents[:2], tmp_path):
            each.chmod(0o755)
        for each in (folder, folder / "pg_wal"):
            os.chown(each, user.uid, user.gid)
    return folder


@pytest.fixture
def server(data: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that passes for its server. It does not ignore SIGHUP, as it would under nohup."""
    (tmp_path / "postgres").symlink_to("/bin/sleep")
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen([tmp_path / "postgres", "60"], cwd=data)
    signal.signal(signal.SIGHUP, inherited)
    yield process
    process.kill()
    process.wait()


def runs(data: Path, process: subprocess.Popen[bytes], sockets: str, listens: str) -> None:
    lines = [str(process.pid), str(data), "1790000000", "5433", sockets, listens, " 1 2", "standby "]
    (data / "postmaster.pid").write_text("\n".join(lines) + "\n")


def test_a_segment_is_written_in_place(data: Path) -> None:
    path = data / "pg_wal" / SEGMENT
    path.write_bytes(b"a" * SIZE)
    inode = path.stat().st_ino
    file = LocalStandbyFolder(data).open_segment(SEGMENT, SIZE)
    assert not file.is_new
    assert file.read(10, 3) == b"aaa"
    file.write(10, b"bc")
    file.finish()
    file.close()
    assert path.read_bytes() == b"a" * 10 + b"bc" + b"a" * (SIZE - 12)
    assert path.stat().st_ino == inode


def test_a_new_segment_exists_when_it_is_finished_and_belongs_to_the_server(data: Path) -> None:
    (data / "pg_wal").chmod(0o750)
    path = data / "pg_wal" / SEGMENT
    folder = LocalStandbyFolder(data)
    file = folder.open_segment(SEGMENT, SIZE)
    file.write(0, b"x")
    file.close()
    assert list((data / "pg_wal").iterdir()) == []
    file = folder.open_segment(SEGMENT, SIZE)
    assert file.is_new
    file.write(0, b"x")
    assert not path.exists()
    file.finish()
    file.close()
    assert path.read_bytes() == b"x" + bytes(SIZE - 1)
    status, of_folder = path.stat(), (data / "pg_wal").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (of_folder.st_uid, of_folder.st_gid, 0o640)
    assert [each.name for each in (data / "pg_wal").iterdir()] == [SEGMENT]


def test_a_segment_that_a_walreceiver_has_made_meanwhile_stays(data: Path) -> None:
    path = data / "pg_wal" / SEGMENT
    file = LocalStandbyFolder(data).open_segment(SEGMENT, SIZE)
    path.write_bytes(b"its own")
    file.finish()
    file.close()
    assert path.read_bytes() == b"its own"


def test_a_history_file_is_not_replaced(data: Path) -> None:
    folder = LocalStandbyFolder(data)
    folder.place_history(2, b"first")
    folder.place_history(2, b"second")
    assert (data / "pg_wal" / "00000002.history").read_bytes() == b"first"
    assert [each.name for each in (data / "pg_wal").iterdir()] == ["00000002.history"]


def test_a_number_is_taken_if_pg_wal_or_restore_command_has_its_history(data: Path) -> None:
    (data / "pg_wal" / "00000002.history").write_text("")
    folder = LocalStandbyFolder(data)
    assert [folder.history_probe("")(tli) for tli in (2, 3)] == [True, False]
    # %% is a percent sign, and the command runs in the data folder, as PostgreSQL's does.
    command = "test %f = 00000003.history -a $(echo %%) = % && echo > %p"
    has_history = folder.history_probe(command)
    assert [has_history(tli) for tli in (2, 3, 4)] == [True, True, False]
    assert [each.name for each in (data / "pg_wal").iterdir()] == ["00000002.history"]


def test_the_server_is_reached_as_its_pid_file_says(data: Path, server: subprocess.Popen[bytes]) -> None:
    folder = LocalStandbyFolder(data)
    runs(data, server, "/run/postgresql", "*")
    words = conninfo_to_dict(folder.conninfo("user=operator"))
    assert words == {"host": "/run/postgresql", "port": "5433", "user": "operator", "dbname": "postgres"}
    runs(data, server, "", "*")
    assert conninfo_to_dict(folder.conninfo("port=1"))["host"] == "127.0.0.1"
    words = conninfo_to_dict(folder.conninfo("host=pg2 dbname=other"))
    assert (words["host"], words["dbname"], words.get("port")) == ("pg2", "other", None)


def test_a_folder_without_a_server_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no PostgreSQL server runs on .*: start the standby first"):
        LocalStandbyFolder(data).conninfo("")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory: --pgdata is"):
        LocalStandbyFolder(tmp_path / "missing").conninfo("")


def test_another_servers_folder_is_refused(data: Path, tmp_path: Path) -> None:
    folder = LocalStandbyFolder(data)
    (tmp_path / "link").symlink_to(data)
    folder.check(tmp_path / "link")
    for other in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match="correct --pgdata or --conninfo"):
            folder.check(other)


def test_signals_reach_the_server_and_its_children_only(data: Path, server: subprocess.Popen[bytes]) -> None:
    folder = LocalStandbyFolder(data)
    with subprocess.Popen(["sleep", "60"], cwd=data) as bystander:
        folder.end_walreceiver(bystander.pid)
        assert bystander.poll() is None
        bystander.kill()
    runs(data, server, "", "")
    folder.wake()
    assert server.wait(5) == -signal.SIGHUP


def test_a_walreceiver_is_ended(data: Path, server: subprocess.Popen[bytes]) -> None:
    LocalStandbyFolder(data).end_walreceiver(server.pid)
    assert server.wait(5) == -signal.SIGTERM
