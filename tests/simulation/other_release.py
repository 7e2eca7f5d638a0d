"""Proxies of other releases, and data folders that an older release has begun.

A proxy of the release before speaks protocol version 4 (docs/design/protocol.md, steps 1.2 and 3): it requests votes
without a membership, and knows no `FolderStates`. It is the present proposer behind a translation, up to the moment at
which it has won a term: what the older release did then, the present one does not do, so its process ends there. One of
any other version is refused.
"""

from pathlib import Path

import msgspec

from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    Elected,
    FolderStates,
    ProposerGreeting,
    ProposerMessage,
    Reconfigure,
    VoteRequest,
)
from safekeeper.storage.control_file import CONTROL_FILE_NAME, StateFile
from safekeeper.storage.filesystem import FileSystem
from tests.simulation.violation import Violation


class TermWon(Exception):
    """A proxy of another release has won a term."""


def outgoing(message: ProposerMessage, version: int) -> ProposerMessage | None:
    """Return what a proxy of this version sends instead of a message, None for nothing.

    Raises:
        TermWon: it would lead from now on.
    """
    if isinstance(message, ProposerGreeting):
        return msgspec.structs.replace(message, protocol_version=version)
    if isinstance(message, VoteRequest):
        return msgspec.structs.replace(message, cluster_id="", membership=None)
    if isinstance(message, Elected | Reconfigure):
        raise TermWon
    return None if isinstance(message, FolderStates) else message


def incoming(message: AcceptorMessage, version: int) -> AcceptorMessage:
    """Return what the present proposer would receive instead of a message to a proxy of this version.

    Raises:
        Violation: such a proxy would not understand the message.
    """
    if isinstance(message, AcceptorGreeting):
        if (message.protocol_version, message.log_tli, message.floor) == (version, 0, 0):
            return msgspec.structs.replace(message, protocol_version=PROTOCOL_VERSION)
    elif not isinstance(message, FolderStates):
        return message
    raise Violation("VersionIsSpoken", f"a proxy of protocol version {version} is sent {message}")


class OlderControlState(msgspec.Struct, frozen=True):
    """The control state of a data folder before its bootstrap, as releases before this one have written it."""

    safekeeper_id: int
    incarnation: str
    format_version: int


def begin_older_folder(fs: FileSystem, directory: Path, state: OlderControlState) -> None:
    """Write what a safekeeper of an older release leaves on its first start."""
    fs.make_directory(directory)
    path = directory / CONTROL_FILE_NAME
    StateFile(fs, path, magic=b"SAFEKEEP", what="", what_to_do="", version=state.format_version).store(state)
