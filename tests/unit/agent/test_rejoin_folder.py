"""The record of an overwrite that has begun, and what is kept meanwhile."""

import fcntl
import os
from pathlib import Path

import pytest

from walproxy.agent.errors import RejoinFailed
from walproxy.agent.owner_commands import Owner
from walproxy.agent.rejoin_folder import Overwrite, OverwriteStep, RejoinFolder, is_users_file

OURSELVES = Owner(os.geteuid(), os.getegid(), "we", "/")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def test_the_record_outlives_its_writer(data: Path) -> None:
    begun = Overwrite(OverwriteStep.REWIND, 2**63 + 7, 3)
    folder = RejoinFolder(data)
    assert folder.read() is None
    with folder.locked(1.0):
        folder.write(begun)
    assert RejoinFolder(data).read() == begun
    folder.remove()
    assert RejoinFolder(data).read() is None
    assert list(data.parent.iterdir()) == [data]
    folder.remove()


def test_a_damaged_record_is_not_taken_for_none(data: Path) -> None:
    folder = RejoinFolder(data)
    folder.path.mkdir()
    (folder.path / "overwrite.json").write_text("{")
    with pytest.raises(RejoinFailed, match="is damaged"):
        folder.read()


def test_the_lock_is_held_by_one_process_and_its_children(data: Path) -> None:
    folder = RejoinFolder(data)
    with folder.locked(1.0) as file:
        inherited = os.dup(file)
        with pytest.raises(RejoinFailed, match="is locked"), RejoinFolder(data).locked(0.1):
            pass
    with pytest.raises(RejoinFailed, match="is locked"), RejoinFolder(data).locked(0.1):
        pass
    os.close(inherited)


def test_a_lock_that_its_holder_removes_meanwhile_is_not_taken(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = RejoinFolder(data), fcntl.flock
    calls: list[int] = []

    def after_the_holder(file: int, operation: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            folder.remove()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", after_the_holder)
    with folder.locked(5.0), pytest.raises(RejoinFailed, match="is locked"), RejoinFolder(data).locked(0.1):
        pass


def test_the_users_files_replace_those_of_the_source(data: Path) -> None:
    (data / "postgresql.conf").write_text("port = 1")
    (data / "conf.d").mkdir()
    (data / "conf.d" / "own.conf").write_text("mine")
    (data / "PG_VERSION").write_text("15")
    (data / "link").symlink_to("postgresql.conf")
    folder = RejoinFolder(data)
    folder.path.mkdir()
    folder.keep_users_files()
    (data / "postgresql.conf").write_text("port = 2")
    (data / "conf.d" / "own.conf").write_text("theirs")
    (data / "conf.d" / "further.conf").write_text("theirs")
    (data / "PG_VERSION").write_text("16")
    (data / "theirs.conf").write_text("")
    folder.restore_users_files(data, OURSELVES)
    assert sorted(path.name for path in data.iterdir()) == ["PG_VERSION", "conf.d", "link", "postgresql.conf"]
    assert (data / "postgresql.conf").read_text() == "port = 1"
    assert [path.read_text() for path in (data / "conf.d").iterdir()] == ["mine"]
    assert (data / "PG_VERSION").read_text() == "16"
    assert (data / "link").is_symlink()


def test_what_postgresql_has_in_its_folder_is_not_the_users() -> None:
    users = ("postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf", "server.key", "conf.d")
    own = ("base", "global", "pg_wal", "pg_xact", "PG_VERSION", "standby.signal", "backup_label", "postmaster.pid")
    assert all(is_users_file(name) for name in users)
    assert not any(is_users_file(name) for name in own)
