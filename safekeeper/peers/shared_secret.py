"""The sources of the secret that proxies and safekeepers prove to each other (safekeeper/peers/peer_auth.py).

It is read from a file, again at SIGHUP, or from the environment; without either, on loopback, it is the local secret
(safekeeper/peers/local_secret.py). No option has it as its value, because command lines are visible in every list of
processes. No message quotes it, nor an invalid one.
"""

from pathlib import Path
from typing import Protocol

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.private_files import warn_if_shared
from safekeeper.base.regular_files import read_regular
from safekeeper.base.settings import SECRET_BYTES_MIN, Secret, secret_value


class SharedSecret:
    """The secret of one program, or the password of its HTTP listener.

    Args:
        file: the file that contains it, or None.
        value: its value in the environment; required without a file.
        what: its name in messages.

    Attributes:
        origin: where it is stored, for messages.

    Raises:
        ConfigurationError: the file cannot be read, or contains no secret.
    """

    def __init__(self, file: Path | None, value: Secret | None = None, *, what: str = "shared secret") -> None:
        self._file = file
        self._what = what
        self._secret = value
        self.origin = f"that in {file}" if file is not None else "that in the environment"
        if file is not None:
            self._secret = _read(file, what)

    @property
    def value(self) -> bytes:
        """The secret, as of the last `reload`: for new connections."""
        assert self._secret is not None  # There is a file, or a value.
        return self._secret.value

    def reload(self) -> bool:
        """Read the file again; return whether the secret changed.

        Raises:
            ConfigurationError: see above; the previous secret stays in use.
        """
        before = self._secret
        if self._file is not None:
            self._secret = _read(self._file, self._what)
        return before != self._secret


class PeerSecret(Protocol):
    """The secret that authenticates a connection: SharedSecret or LocalSecret."""

    @property
    def origin(self) -> str:
        """Where it is stored, for messages."""

    @property
    def value(self) -> bytes:
        """The secret. Raises ConfigurationError if it cannot be read or created."""

    def reload(self) -> bool:
        """Read it again; return whether it has changed. Raises ConfigurationError and keeps the old one."""


def read_shared_secret(file: Path | None, value: Secret | None, variable: str) -> SharedSecret | None:
    """Return the configured secret, None if there is none.

    Args:
        variable: the name of the environment's variable, for the message.

    Raises:
        ConfigurationError: both are given, or the file cannot be used.
    """
    if file is not None and value is not None:
        raise ConfigurationError(f"{variable}_FILE (--secret-file) and {variable} are both given: remove one of them")
    return SharedSecret(file, value) if file is not None or value is not None else None


def _read(file: Path, what: str) -> Secret:
    warn_if_shared(file, what)
    try:
        return secret_value(read_regular(file).decode())
    except OSError as error:
        raise ConfigurationError(f"could not read the {what} in {file}: {error.strerror or error}") from error
    except ValueError:
        # Not chained: the decoder's error would contain the content.
        raise ConfigurationError(
            f"the {what} in {file} is not a text of at least {SECRET_BYTES_MIN} bytes: "
            "make one with openssl rand -hex 32"
        ) from None
