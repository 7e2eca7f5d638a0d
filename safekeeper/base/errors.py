"""The errors of this project. The exit code of a process is that of the error that ended it.

    WalproxyError                      1  something unexpected
    ├── ConfigurationError             3  a setting is not valid; retrying does not help
    ├── PrimaryRefused                 4  this PostgreSQL must not be streamed (S10)
    ├── Fenced                         5  another proxy has taken over
    ├── StorageFailed                  6  the data folder can no longer be trusted or written (S12)
    │   └── DiskLost                   6  the WAL that the control file records is missing (S8)
    ├── StorageFull                       no disk space to prepare a file; nothing is torn, reads continue
    │   └── ResourceShortage           1  no free file descriptor, or no memory for one more file: retry
    ├── RemoteProtocolError               a peer sent an invalid message (S11): its connection is closed
    │   └── AuthenticationFailed          or does not prove the shared secret
    ├── ArchiveError                   1  an operation on the archive failed
    │   ├── ArchiveUnavailable               no reply, or a temporary error: retry
    │   ├── ArchiveRefused             3  it is another cluster's, or access is refused: an operator must correct it
    │   ├── ArchiveConflict                  it has other bytes under the same name: nothing is overwritten
    │   ├── ArchiveCorrupt                   an object does not have the bytes that its receipt states
    │   └── ObjectMissing                    the object does not exist
    ├── LogChanged                        the log was replaced while its bytes were being read
    ├── CommandError                      a replication client's command is refused, with an error to the client
    ├── LocalProtocolError                this side would have sent an invalid message: a bug of this project
    └── InvariantViolation             1  the state contradicts itself: stop before harm is done

Every message is one line: the problem, with the LSN, path or name, and what to do.
"""

EXIT_FINE = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2
EXIT_CONFIGURATION = 3
EXIT_PRIMARY_REFUSED = 4
EXIT_FENCED = 5
EXIT_STORAGE = 6


class WalproxyError(Exception):
    """The base class of the errors that this project raises on purpose."""

    exit_code = EXIT_UNEXPECTED


class ConfigurationError(WalproxyError):
    """An option, a file or the environment has a value that is not valid."""

    exit_code = EXIT_CONFIGURATION


class PrimaryRefused(WalproxyError):
    """The connected PostgreSQL is not, or no longer, the primary of this cluster's WAL."""

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
    """No disk space to prepare a segment or a temporary file. Nothing was torn; it may be retried."""


class ResourceShortage(StorageFull):
    """The process or the machine has no free file descriptor or memory to open a file. Nothing was changed: retry."""


class RemoteProtocolError(WalproxyError):
    """A peer broke the protocol. Close its connection; nothing else is affected."""


class ArchiveError(WalproxyError):
    """An operation on the archive failed. Commits do not depend on it."""


class ArchiveUnavailable(ArchiveError):
    """The archive does not reply, or reports a temporary error. It may be retried later."""


class ArchiveRefused(ArchiveError):
    """The archive belongs to another cluster, or refuses access. An operator must correct it; retries do not help."""

    exit_code = EXIT_CONFIGURATION


class ArchiveConflict(ArchiveError):
    """The archive has other bytes under the same name. Neither is overwritten."""


class ArchiveCorrupt(ArchiveError):
    """An object of the archive does not have the bytes that its receipt states."""


class ObjectMissing(ArchiveError):
    """The archive does not have the object."""


class LogChanged(WalproxyError):
    """While bytes of the log were read concurrently, it may have been cut and continued with others: they are void."""


class CommandError(WalproxyError):
    """A replication client's command is refused. The client receives the error, and nothing else changes.

    Attributes:
        sqlstate: PostgreSQL's code of the error.
        detail, hint: as in PostgreSQL's errors.
    """

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint


class AuthenticationFailed(RemoteProtocolError):
    """A peer does not prove that it has the shared secret, or one of the two sides has none.

    Attributes:
        refusal: the reason to send to the peer before its connection is closed, a `safekeeper.peers.peer_auth.Reason`;
            None for nothing.
    """

    def __init__(self, message: str, refusal: int | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


class LocalProtocolError(WalproxyError):
    """This side was about to break the protocol: a bug in this project."""


class InvariantViolation(WalproxyError):
    """An invariant of docs/design/invariants.md does not hold. The process stops at once."""
