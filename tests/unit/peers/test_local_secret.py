"""The secret of this user on this machine: one for all processes, made once, and nobody else's."""

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.peers.local_secret import LocalSecret, local_secret_file


def secret_in(state: Path) -> LocalSecret:
    return LocalSecret({"XDG_STATE_HOME": str(state)})


def test_it_is_made_at_the_first_use_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    secret = secret_in(tmp_path / "state")
    assert not secret.file.exists()
    assert len(secret.value) == 64
    assert secret.file == tmp_path / "state/walproxy/secret"
    assert secret.file.stat().st_mode & 0o777 == 0o600
    assert secret.file.parent.stat().st_mode & 0o777 == 0o700
    assert secret_in(tmp_path / "state").value == secret.value
    assert f"in {secret.file}" in secret.origin and pwd.getpwuid(os.geteuid()).pw_name in secret.origin


def test_processes_that_make_it_at_once_get_the_same_one(tmp_path: Path) -> None:
    program = "from safekeeper.peers.local_secret import LocalSecret; input(); print(LocalSecret().value.decode())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")},
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = {process.communicate(timeout=60)[0] for process in processes}
    assert said == {secret_in(tmp_path / "state").value.decode() + "\n"}


def test_a_crash_while_it_is_made_leaves_nothing_that_counts(tmp_path: Path) -> None:
    folder = tmp_path / "walproxy"
    folder.mkdir(mode=0o700)
    for name in ("lock", "secret.new"):
        (folder / name).write_text("half of a sec")
        (folder / name).chmod(0o600)
    assert len(secret_in(tmp_path).value) == 64


def test_it_is_read_again_when_asked_and_only_if_it_was_used(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    assert not secret.reload()
    assert not secret.file.exists()
    before = secret.value
    assert not secret.reload()
    secret.file.write_text("another secret, of enough bytes\n")
    assert secret.reload()
    assert secret.value == b"another secret, of enough bytes" != before
    secret.file.write_text("short")
    with pytest.raises(ConfigurationError, match="contains no shared secret: remove it"):
        secret.reload()
    assert secret.value == b"another secret, of enough bytes"


def readable(secret: LocalSecret) -> None:
    secret.file.chmod(0o640)


def a_link(secret: LocalSecret) -> None:
    secret.file.rename(secret.file.with_name("elsewhere"))
    secret.file.symlink_to("elsewhere")


def open_folder(secret: LocalSecret) -> None:
    secret.file.parent.chmod(0o777)


def a_linked_folder(secret: LocalSecret) -> None:
    folder = secret.file.parent
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (readable, "may be known to others: it must be a file of user .* chmod 600"),
        (a_link, "could not read or make the shared secret of user"),
        (open_folder, "is not private to that user: remove it"),
        (a_linked_folder, "is not private to that user: remove it"),
    ],
)
def test_what_others_may_change_or_read_is_refused(tmp_path: Path, harm, words: str) -> None:  # type: ignore[no-untyped-def]
    secret = secret_in(tmp_path)
    secret.ensure()
    harm(secret)
    with pytest.raises(ConfigurationError, match=words):
        secret_in(tmp_path).ensure()


def test_where_it_cannot_be_made_the_line_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"exists: .* set XDG_STATE_HOME, or give --secret-file$"):
        secret_in(tmp_path / "file").ensure()


def known_password(secret: LocalSecret) -> None:
    secret.passfile.chmod(0o644)


def a_linked_password(secret: LocalSecret) -> None:
    secret.passfile.unlink()
    secret.passfile.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (open_folder, "is not private to that user: remove it, or give pg_users$"),
        (
            known_password,
            "the password of replication clients in .*/pgpass may be known to others: .* chmod 600, or remove it and "
            ".*/secret, and restart",
        ),
        (a_linked_password, "could not read or make the password of replication clients of user .* in .*/pgpass: "),
    ],
)
def test_a_replication_listener_gives_the_advice_that_is_for_it(
    tmp_path: Path, harm: Callable[[LocalSecret], None], words: str
) -> None:
    secret = LocalSecret({"XDG_STATE_HOME": str(tmp_path)}, instead_of_it="pg_users")
    secret.reader_password()
    harm(secret)
    with pytest.raises(ConfigurationError, match=words):
        LocalSecret({"XDG_STATE_HOME": str(tmp_path)}, instead_of_it="pg_users").reader_password()


@pytest.mark.parametrize(
    ("state", "home", "expected"),
    [
        ("{tmp}/state", "{tmp}/home", "{tmp}/state/walproxy/secret"),
        ("relative", "{tmp}/home", "{tmp}/home/.local/state/walproxy/secret"),
        ("", "{tmp}/home", "{tmp}/home/.local/state/walproxy/secret"),
        ("/proc/1", "{tmp}/home", "{tmp}/home/.local/state/walproxy/secret"),
        ("", "/nonexistent", "/var/tmp/walproxy-7/secret"),
        ("", "/", "/var/tmp/walproxy-7/secret"),
        ("", None, "/var/tmp/walproxy-7/secret"),
    ],
    ids=["XDG_STATE_HOME", "relative", "home", "another user's state", "no home", "root folder", "unknown user"],
)
def test_its_place_depends_on_the_user_alone(
    tmp_path: Path, state: str, home: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()

    def entry_of(uid: int) -> pwd.struct_passwd:
        if home is None:
            raise KeyError(uid)
        return pwd.struct_passwd(("x", "x", uid, uid, "", home.format(tmp=tmp_path), "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", entry_of)
    place = local_secret_file({"XDG_STATE_HOME": state.format(tmp=tmp_path)}, 7)
    assert str(place) == expected.format(tmp=tmp_path)
