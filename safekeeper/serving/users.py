"""The users of the replication listener: a file of names and verifiers.

Each line is `name:verifier`, the verifier as in PostgreSQL, `SCRAM-SHA-256$4096:salt$StoredKey:ServerKey`:
`safekeeper user NAME` prints one, and so does PostgreSQL (`SELECT rolpassword FROM pg_authid`). Empty lines and lines
that begin with `#` are ignored. A verifier is not a password, but it allows guessing the password offline and
impersonating the server: only the file's owner should be able to read it.

No message ever quotes a line.

On loopback without such a file, and without client certificates, every name is accepted with the password that only
this user can read (LocalUsers): other users of the machine can connect to loopback, too, and WAL is the whole database.
"""

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.private_files import warn_if_shared
from safekeeper.base.regular_files import read_regular
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.pgwire.scram import SALT_BYTES, make_verifier, parse_verifier

# PostgreSQL's own limit for a name.
NAME_BYTES_MAX = 63


class KnownUsers(Protocol):
    """The users of a listener: Users or LocalUsers.

    Attributes:
        advice: what a client needs that has not authenticated, for the log; empty if that differs by client.
    """

    advice: str

    @property
    def verifiers(self) -> Mapping[str, str]:
        """The text of each verifier by user name, for new connections."""

    def reload(self) -> bool:
        """Read them again; return whether they changed. Raises ConfigurationError and keeps the old ones."""


class LocalUsers:
    """Every name, with the password that the local secret makes (safekeeper/peers/local_secret.py).

    Raises:
        ConfigurationError: the secret or the password file cannot be read or made.
    """

    def __init__(self) -> None:
        self._secret = LocalSecret(instead_of_it="pg_users")
        self._password = self._secret.reader_password()
        self._verifier = _new_verifier(self._password)
        self.advice = f"the password is in {self._secret.passfile}: connect with passfile={self._secret.passfile}"

    @property
    def verifiers(self) -> Mapping[str, str]:
        """See KnownUsers."""
        return _EveryName(self._verifier)

    def reload(self) -> bool:
        """See KnownUsers."""
        self._secret.reload()
        before, self._password = self._password, self._secret.reader_password()
        if before == self._password:
            return False
        self._verifier = _new_verifier(self._password)
        return True


class _EveryName(Mapping[str, str]):
    """The same verifier for each name; it has no list of them."""

    def __init__(self, verifier: str) -> None:
        self._verifier = verifier

    def __getitem__(self, name: str) -> str:
        return self._verifier

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Users:
    """The users of a file.

    Args:
        path: the file.

    Raises:
        ConfigurationError: it cannot be read, or a line is not valid.
    """

    def __init__(self, path: Path) -> None:
        self.advice = ""
        self._path = path
        self._verifiers = _read(path)

    @property
    def verifiers(self) -> Mapping[str, str]:
        """The text of each verifier by user name, as of the last `reload`."""
        return MappingProxyType(self._verifiers)

    def reload(self) -> bool:
        """Read the file again; return whether its content changed.

        Raises:
            ConfigurationError: the file is not valid; the previous users stay in use.
        """
        before, self._verifiers = self._verifiers, _read(self._path)
        return before != self._verifiers


def name_problem(name: str) -> str:
    """Return why `name` cannot be a user in such a file, empty if it can."""
    if not name or len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        return f"a name has 1 to {NAME_BYTES_MAX} bytes"
    if ":" in name or name.startswith("#") or name != name.strip() or not name.isprintable():
        return "a name must not contain a colon or a control character, begin with #, or begin or end with a blank"
    return ""


def user_line(name: str, password: str) -> str:
    """Return a line of such a file, with a new salt.

    Raises:
        ConfigurationError: the name is not valid, or the password is empty.
    """
    problem = name_problem(name)
    if problem:
        raise ConfigurationError(f"{name!r} cannot be a user's name: {problem}")
    if not password or "\0" in password:
        raise ConfigurationError("a password must not be empty or contain a zero byte")
    return f"{name}:{_new_verifier(password)}"


def _new_verifier(password: str) -> str:
    return str(make_verifier(password, secrets.token_bytes(SALT_BYTES)))


def _verifier_problem(text: str) -> str:
    try:
        parse_verifier(text)
    except ConfigurationError as error:
        return str(error)
    return ""


def _read(path: Path) -> dict[str, str]:
    warn_if_shared(path, "verifiers of users")
    try:
        content = read_regular(path).decode()
    except OSError as error:
        raise ConfigurationError(f"could not read the users in {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        # Not chained: the error would contain the file's content.
        raise ConfigurationError(f"could not read the users in {path}: it is not UTF-8") from None
    verifiers: dict[str, str] = {}
    for number, line in enumerate(content.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, verifier = line.partition(":")
        problem = name_problem(name) or _verifier_problem(verifier)
        if problem:
            raise ConfigurationError(f"{path}: line {number}: {problem}; write the line with safekeeper user NAME")
        if name in verifiers:
            raise ConfigurationError(f"{path}: line {number} repeats the user of an earlier line")
        verifiers[name] = verifier
    return verifiers
