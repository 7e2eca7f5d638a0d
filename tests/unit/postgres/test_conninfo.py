"""Connection strings are read as libpq does, and a password in a wrong one does not come out again."""

import os
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError
from walproxy.postgres.conninfo import parse_conninfo

PASSWORD = "s3cr3t"


def test_what_libpq_understands_is_understood() -> None:
    expected = {"host": "db1", "port": "5433", "user": "walproxy", "password": PASSWORD}
    assert parse_conninfo(f"host=db1 port=5433 user=walproxy password={PASSWORD}") == expected
    assert parse_conninfo(f"postgresql://walproxy:{PASSWORD}@db1:5433") == expected
    assert parse_conninfo("postgresql://walproxy:a%40b@db1")["password"] == "a@b"
    assert parse_conninfo("") == {}


def test_a_user_without_a_home_folder_has_no_password_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with a user id of its own, which is in no user database."""
    for name in ("HOME", "PGPASSFILE", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert parse_conninfo("host=db1") == {"host": "db1"}


@pytest.mark.parametrize(
    "conninfo",
    [
        f"host=db1 password=my {PASSWORD}",
        f"host=db1 PASSWORD=my {PASSWORD}=",
        f"host=db1 password='{PASSWORD}",
        f"host=db1 password=x {PASSWORD}=1",
        f"postgresql://walproxy:{PASSWORD}@[::1",
        f"postgresql://walproxy:%zz{PASSWORD}@db1",
        f"postgresql://walproxy:{PASSWORD}%@db1",
        f"postgresql://walproxy:p@{PASSWORD}@db1",
        f"postgresql://walproxy:x@db1/?{PASSWORD}",
    ],
)
def test_a_wrong_string_is_one_line_without_any_part_of_a_password(conninfo: str) -> None:
    with pytest.raises(ConfigurationError, match="the primary's connection string is wrong: ") as refused:
        parse_conninfo(conninfo)
    message = str(refused.value)
    assert PASSWORD not in message and "\n" not in message
    assert "a password should be stored in .pgpass or PGPASSWORD" in message
    assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_a_wrong_string_without_a_password_is_quoted() -> None:
    with pytest.raises(ConfigurationError, match='invalid connection option "colour"'):
        parse_conninfo("host=db1 colour=red")


@given(st.text(alphabet="ab=:/@%'\\ ?&[]", max_size=20))
def test_whatever_stands_before_and_behind_a_password_it_is_not_shown(around: str) -> None:
    try:
        parse_conninfo(f"password={around}{PASSWORD}{around}")
    except ConfigurationError as error:
        assert PASSWORD not in str(error)


@pytest.fixture
def passfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "passfile"
    path.write_text("*:*:*:*:secret\n")
    monkeypatch.setenv("PGPASSFILE", str(path))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    return path


def test_a_password_file_that_others_can_read_is_one_line_of_the_log_and_nothing_on_stderr(
    passfile: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    passfile.chmod(0o640)
    for _ in range(2):
        parameters = parse_conninfo("host=127.0.0.1 port=1")
        # libpq looks for the password before it connects.
        assert psycopg.pq.PGconn.connect(make_conninfo("", **parameters).encode()).status == psycopg.pq.ConnStatus.BAD
    assert capfd.readouterr().err == ""
    assert [record.getMessage() for record in caplog.records] == [
        f"the password file {passfile} is ignored: other users can read it (mode 0640): chmod 600"
    ]


def test_a_password_file_of_the_owner_alone_is_left_to_libpq(passfile: Path, caplog: pytest.LogCaptureFixture) -> None:
    passfile.chmod(0o600)
    assert parse_conninfo("host=127.0.0.1") == {"host": "127.0.0.1"}
    assert caplog.records == []
