"""What can go wrong, as a tree. The exit code of a process is that of the error that ended it.

    WalproxyError                      1  something unexpected
    ├── ConfigurationError             3  what the operator wrote cannot work; retrying does not help
    ├── PrimaryRefused                 4  this PostgreSQL must not be streamed (S10)
    ├── Fenced                         5  another proxy has taken over
    ├── StorageFailed                  6  the data folder can no longer be trusted or written (S12)
    │   └── DiskLost                   6  the WAL that the control file records is gone (S8)
    ├── StorageFull                       no room to prepare a file; nothing is torn, reads go on
    │   └── ResourceShortage           1  no free file descriptor, or no memory for one more file: retry
    ├── RemoteProtocolError               a peer sent what is not understood (S11): its connection is closed
    │   └── AuthenticationFailed          or does not prove the secret that it must know
    ├── ArchiveError                   1  the archive does not do what it should
    │   ├── ArchiveUnavailable               it does not answer, or not now: try again
    │   ├── ArchiveRefused             3  it is not ours, or we may not use it: an operator must look
    │   ├── ArchiveConflict                  it holds other bytes under a name of ours: nothing is overwritten
    │   ├── ArchiveCorrupt                   an object does not have the bytes that its receipt states
    │   └── ObjectMissing                    there is no such object
    ├── LogChanged                        the log went on without the bytes that were being read
    ├── CommandError                      a replication client asked for what it cannot have: it is told so
    ├── LocalProtocolError                we would have sent it: a bug of ours
    └── InvariantViolation             1  the state contradicts itself: stop before harm is done

Every message is one line: what is wrong, with the LSN, path or name, and what to do.
"""

EXIT_FINE = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_CONFIGURATION = 3
EXIT_PRIMARY_REFUSED = 4
EXIT_FENCED = 5
EXIT_STORAGE = 6


class WalproxyError(Exception):
    """The root: every error that the project raises on purpose."""

    exit_code = EXIT_UNEXPECTED


class ConfigurationError(WalproxyError):
    """An option, a file or the environment says something that cannot work."""

    exit_code = EXIT_CONFIGURATION


class PrimaryRefused(WalproxyError):
    """The PostgreSQL at hand is not, or no longer, the primary of this cluster's WAL."""

    exit_code = EXIT_PRIMARY_REFUSED


class Fenced(WalproxyError):
    """A majority of safekeepers follows another proxy that is alive."""

    exit_code = EXIT_FENCED


class StorageFailed(WalproxyError):
    """A read, write or sync of live data failed, or what is on disk contradicts itself."""

    exit_code = EXIT_STORAGE


class DiskLost(StorageFailed):
    """The control file records WAL that is missing: this folder is no longer a member."""


class StorageFull(WalproxyError):
    """No space to prepare a segment or a temporary file. Nothing was torn; it can be tried again."""


class ResourceShortage(StorageFull):
    """The process or the machine has no free file descriptor or memory to open a file. Nothing was changed: retry."""


class RemoteProtocolError(WalproxyError):
    """A peer broke the protocol. Close its connection; nothing else is disturbed."""


class ArchiveError(WalproxyError):
    """The archive does not do what it should. Commits do not depend on it."""


class ArchiveUnavailable(ArchiveError):
    """The archive does not answer, or answers that it cannot now. It may be tried again later."""


class ArchiveRefused(ArchiveError):
    """The archive belongs to another cluster, or does not let us in. Trying again does not help by itself."""

    exit_code = EXIT_CONFIGURATION


class ArchiveConflict(ArchiveError):
    """The archive holds other bytes under a name that is ours. Neither is overwritten."""


class ArchiveCorrupt(ArchiveError):
    """An object of the archive does not have the bytes that its receipt states."""


class ObjectMissing(ArchiveError):
    """There is no such object in the archive."""


class LogChanged(WalproxyError):
    """While bytes of the log were read from the side, it may have gone back and on with others: they are void."""


class CommandError(WalproxyError):
    """A replication client's command cannot be carried out. The client is told so, and nothing else changes.

    Attributes:
        sqlstate: PostgreSQL's code of the error.
        detail, hint: what PostgreSQL would say further.
    """

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint


class AuthenticationFailed(RemoteProtocolError):
    """A peer does not prove that it knows the shared secret, or one of the two sides has none.

    Attributes:
        tell: what the peer is told before its connection is closed, a `safekeeper.peers.peer_auth.Reason`; None for
            nothing.
    """

    def __init__(self, message: str, tell: int | None = None) -> None:
        super().__init__(message)
        self.tell = tell


class LocalProtocolError(WalproxyError):
    """We were about to break the protocol: a bug in this project."""


class InvariantViolation(WalproxyError):
    """An invariant of docs/design/invariants.md does not hold. The process stops at once."""
