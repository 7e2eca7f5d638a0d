"""The local secret: one user's shared secret on one machine, without an option, for processes on loopback.

The loopback interface excludes other machines, but not this machine's other users. So a loopback listener without other
protection requires this secret, which only processes of the same user can read:

    $XDG_STATE_HOME/walproxy/secret       if the variable names a folder of this user, or one that does not exist yet
    ~/.local/state/walproxy/secret        else, in the home folder according to the user database
    /var/tmp/walproxy-<uid>/secret        for users without a home folder that is writable for them

PostgreSQL's replication clients cannot prove it, but a password: `pgpass` beside the secret is a password file of
libpq, with a password that is derived from the secret. It does not reveal the secret, so it can be given to a server
that runs as another user, which then may read WAL, and not lead the cluster.

The first process that needs it creates it. Processes that start at the same time get the same one: they lock the
folder, and the file is renamed to its name once it is complete. A file that other users may read or write is refused,
and so is a folder that they may write to.
"""

import contextlib
import fcntl
import hashlib
import hmac
import os
import pwd
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from safekeeper.base.errors import ConfigurationError
from safekeeper.base.settings import Secret, secret_value

_FOLDER, _FILE, _PASSFILE = "walproxy", "secret", "pgpass"
_READER_KEY = b"walproxy replication listener"
_HOME_STATE = Path(".local", "state")
_WITHOUT_HOME = Path("/var/tmp")
_BYTES = 32
# What the files contain, for messages.
_SECRET, _PASSWORD = "shared secret", "password of replication clients"
_READ_BYTES_MAX = 4096


class LocalSecret:
    """The secret of the user who runs this process; created at the first use if it does not exist.

    Args:
        environment: the variables, for XDG_STATE_HOME.
        instead_of_it: the option to give where it cannot be read or made, for messages.

    Attributes:
        file: its path.
        passfile: the path of the password file.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, *, instead_of_it: str = "--secret-file") -> None:
        self._instead_of_it = instead_of_it
        self.file = local_secret_file(environment, os.geteuid())
        self.passfile = self.file.with_name(_PASSFILE)
        self._secret: Secret | None = None

    @property
    def origin(self) -> str:
        """The secret's owner and path, for messages."""
        return f"that of user {_user_name()} in {self.file}"

    @property
    def value(self) -> bytes:
        """The secret, as of the last `reload`: for new connections.

        Raises:
            ConfigurationError: it cannot be read or created, or other users may read it.
        """
        if self._secret is None:
            self._secret = self._read_or_make()
        return self._secret.value

    def reload(self) -> bool:
        """Read the file again if it has been read; return whether the secret changed.

        Raises:
            ConfigurationError: see above; the previous secret stays in use.
        """
        before = self._secret
        if before is not None:
            self._secret = self._read_or_make()
        return before != self._secret

    def ensure(self) -> None:
        """Read the file, or create it.

        Raises:
            ConfigurationError: see above.
        """
        self._secret = self._read_or_make()

    def reader_password(self) -> str:
        """Return the password of replication clients, and keep it in the password file.

        Raises:
            ConfigurationError: see above.
        """
        password = hmac.new(self.value, _READER_KEY, hashlib.sha256).hexdigest()
        content = passfile_line(password)
        try:
            if _read(self.passfile, _PASSWORD, f"it and {self.file}") != content:
                with _locked(self.passfile.parent):
                    _write(self.passfile, content)
        except OSError as error:
            raise self._unusable(_PASSWORD, self.passfile, error) from error
        return password

    def _read_or_make(self) -> Secret:
        try:
            _make_folder(self.file.parent, self._instead_of_it)
            content = _read(self.file)
            if content is None:
                _make(self.file)
                content = _read(self.file)
        except OSError as error:
            raise self._unusable(_SECRET, self.file, error) from error
        try:
            return secret_value((content or b"").decode("ascii"))
        except ValueError:
            raise ConfigurationError(
                f"{self.file} contains no shared secret: remove it, and restart this user's safekeepers and proxies"
            ) from None

    def _unusable(self, what: str, file: Path, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"could not read or make the {what} of user {_user_name()} in {file}: {error.strerror or error}: "
            f"make that possible, set XDG_STATE_HOME, or give {self._instead_of_it}"
        )


def passfile_line(password: str) -> bytes:
    """Return the content of a password file of libpq with this password for every server."""
    return f"*:*:*:*:{password}\n".encode()


def local_secret_file(environment: Mapping[str, str], uid: int) -> Path:
    """Return the path of this user's secret, whether or not it exists."""
    state = Path(environment.get("XDG_STATE_HOME", ""))
    if state.is_absolute() and _may_be_ours(state, uid):
        return state / _FOLDER / _FILE
    try:
        file = Path(pwd.getpwuid(uid).pw_dir, _HOME_STATE, _FOLDER, _FILE)
    except KeyError:
        return _WITHOUT_HOME / f"{_FOLDER}-{uid}" / _FILE
    home = file.parents[len(_HOME_STATE.parts) + 1]
    is_home = home != Path("/") and os.access(home, os.W_OK | os.X_OK)
    return file if is_home or os.access(file, os.R_OK) else _WITHOUT_HOME / f"{_FOLDER}-{uid}" / _FILE


def _may_be_ours(folder: Path, uid: int) -> bool:
    """Return whether the folder belongs to this user or does not exist; under sudo it may be the calling user's."""
    try:
        return folder.stat().st_uid == uid
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _make_folder(folder: Path, instead_of_it: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigurationError(
            f"{folder}, the folder of user {_user_name()}'s shared secret, is not private to that user: "
            f"remove it, or give {instead_of_it}"
        )


def _read(file: Path, what: str = _SECRET, to_remove: str = "it") -> bytes | None:
    """Return the file's content, None if it does not exist.

    Args:
        what: what it contains, for the message.
        to_remove: what must be removed if others know that.

    Raises:
        ConfigurationError: other users may read or write it.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigurationError(
                f"the {what} in {file} may be known to others: it must be a file of user {_user_name()} that no other "
                f"user may read or write: chmod 600, or remove {to_remove}, and restart this user's safekeepers and "
                "proxies"
            )
        return os.read(descriptor, _READ_BYTES_MAX)
    finally:
        os.close(descriptor)


def _make(file: Path) -> None:
    """Create the file, unless another process was faster."""
    with _locked(file.parent):
        if not file.exists():
            _write(file, secrets.token_hex(_BYTES).encode() + b"\n")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(_create(folder / "lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, content: bytes) -> None:
    new = file.with_name(file.name + ".new")
    with open(_create(new), "wb") as stream:
        os.ftruncate(stream.fileno(), 0)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    new.rename(file)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _create(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _user_name() -> str:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
