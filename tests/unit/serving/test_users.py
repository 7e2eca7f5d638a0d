"""Files of users: what is read, what is refused without being quoted, and the line that a command makes."""

from pathlib import Path

import pytest

from safekeeper.base.errors import ConfigurationError
from safekeeper.pgwire.scram import parse_verifier
from safekeeper.serving.users import NAME_BYTES_MAX, Users, user_line

PASSWORD = "correct horse battery"


def test_the_users_of_a_file_are_its_lines_without_comments_and_blanks(tmp_path: Path) -> None:
    file = tmp_path / "users"
    lines = [user_line("standby1", PASSWORD), user_line("ö b", "x")]
    file.write_text(f"# users\n\n  {lines[0]}  \r\n{lines[1]}", encoding="utf-8")
    users = Users(file)
    assert dict(users.verifiers) == dict(line.split(":", 1) for line in lines)


def test_a_line_has_a_verifier_that_fits_the_password_and_a_salt_of_its_own() -> None:
    name, _, verifier = user_line("standby1", PASSWORD).partition(":")
    assert name == "standby1"
    assert parse_verifier(verifier).iterations == 4096
    assert user_line("standby1", PASSWORD) != user_line("standby1", PASSWORD)
    assert PASSWORD not in verifier


GOOD = user_line("standby1", PASSWORD)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("standby1", "line 1: not a SCRAM verifier"),
        (f"{GOOD}\nstandby2:hunter2", "line 2: not a SCRAM verifier"),
        ("standby1:md5" + 32 * "a", "line 1: not a SCRAM verifier"),
        (GOOD + "=", "line 1: not a SCRAM verifier"),
        (GOOD.replace("4096", "0"), "line 1: not a SCRAM verifier"),
        (":" + GOOD.partition(":")[2], "line 1: a name has 1 to 63 bytes"),
        ("n" * (NAME_BYTES_MAX + 1) + ":" + GOOD.partition(":")[2], "line 1: a name has 1 to 63 bytes"),
        (f"{GOOD}\n# more\n{GOOD}", "line 3 repeats the user of an earlier line"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number_and_never_quoted(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "users"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=reason) as refused:
        Users(file)
    message = str(refused.value)
    assert str(file) in message
    assert "hunter2" not in message and "md5a" not in message and GOOD[20:50] not in message
    assert refused.value.__cause__ is None


def test_a_file_that_is_no_text_is_refused_without_its_content(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"bob:\xff\xfesecret")
    with pytest.raises(ConfigurationError, match="it is not UTF-8") as refused:
        Users(file)
    assert refused.value.__suppress_context__


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"could not read the users in .*/none: No such file"):
        Users(tmp_path / "none")


def test_a_reload_takes_the_new_users_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(GOOD)
    users = Users(file)
    assert users.reload() is False
    file.write_text(user_line("other", "x"))
    assert users.reload() is True
    assert set(users.verifiers) == {"other"}
    file.write_text("nonsense")
    with pytest.raises(ConfigurationError):
        users.reload()
    assert set(users.verifiers) == {"other"}


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a ", "a\nb", "a\0b", "n" * 64])
def test_what_cannot_be_a_name_makes_no_line(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a user's name"):
        user_line(name, PASSWORD)


@pytest.mark.parametrize("password", ["", "a\0b"])
def test_what_is_no_password_makes_no_line(password: str) -> None:
    with pytest.raises(ConfigurationError, match="must not be empty"):
        user_line("bob", password)
