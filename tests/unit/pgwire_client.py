"""The client's half of PostgreSQL's wire protocol, as far as tests need it: bytes to send, and a reader of answers."""

import struct
from collections.abc import Iterator

from safekeeper.pgwire.backend import ResultColumn
from safekeeper.pgwire.commands import (
    CreateSlot,
    IdentifySystem,
    ReadSlot,
    Show,
    StartReplication,
    TimelineHistory,
)
from safekeeper.pgwire.events import CommandReceived, CopyEnded, Event
from safekeeper.pgwire.session import Session

SSL_REQUEST = struct.pack(">II", 8, 80877103)
GSSENC_REQUEST = struct.pack(">II", 8, 80877104)
CANCEL_REQUEST = struct.pack(">IIII", 16, 80877102, 1234, 5678)
PROTOCOL_3_0 = 3 << 16

COPY_DONE = b"c" + struct.pack(">I", 4)
COPY_FAIL = b"f" + struct.pack(">I", 6) + b"x\0"
SYNC = b"S" + struct.pack(">I", 4)
FLUSH = b"H" + struct.pack(">I", 4)
TERMINATE = b"X" + struct.pack(">I", 4)
PARSE = b"P" + struct.pack(">I", 4 + 9) + b"\0x\0\0\0\0\0\0\0"

PARAMETERS = {"server_version": "17.2", "integer_datetimes": "on"}
TEXT_COLUMN = ResultColumn("answer", 25, -1)


def packet(code: int, body: bytes) -> bytes:
    return struct.pack(">II", 8 + len(body), code) + body


def startup(protocol: int = PROTOCOL_3_0, **parameters: str) -> bytes:
    """A startup packet of user "me" for replication; `parameters` go over that, an empty one takes away."""
    wanted = {"user": "me", "database": "replication", "replication": "true"} | parameters
    return packet(protocol, b"".join(f"{n}\0{v}\0".encode() for n, v in wanted.items() if v) + b"\0")


def message(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack(">I", 4 + len(body)) + body


def query(text: str) -> bytes:
    return message("Q", text.encode() + b"\0")


def copy_data(body: bytes) -> bytes:
    return message("d", body)


def status_update(write_lsn: int, flush_lsn: int, apply_lsn: int, reply_requested: bool = False) -> bytes:
    return copy_data(b"r" + struct.pack(">QQQqB", write_lsn, flush_lsn, apply_lsn, 7, reply_requested))


def hot_standby_feedback(xmin: int, epoch: int, catalog_xmin: int = 0, catalog_epoch: int = 0) -> bytes:
    return copy_data(b"h" + struct.pack(">qIIII", 7, xmin, epoch, catalog_xmin, catalog_epoch))


def sasl_initial_response(mechanism: str, data: bytes | None) -> bytes:
    length = struct.pack(">i", -1 if data is None else len(data))
    return message("p", mechanism.encode() + b"\0" + length + (data or b""))


def sasl_response(data: bytes) -> bytes:
    return message("p", data)


def messages_of(output: bytes) -> list[tuple[str, bytes]]:
    """(type, body) of each message in what a server sent. It must end with a whole one."""
    return list(_messages_of(output))


def _messages_of(output: bytes) -> Iterator[tuple[str, bytes]]:
    position = 0
    while position < len(output):
        kind, length = struct.unpack_from(">cI", output, position)
        assert position + 1 + length <= len(output)
        yield kind.decode(), output[position + 5 : position + 1 + length]
        position += 1 + length


def kinds_of(output: bytes) -> str:
    """The types of the messages in what a server sent, e.g. "TDCZ"."""
    return "".join(kind for kind, _ in messages_of(output))


def error_of(output: bytes) -> dict[str, str]:
    """The fields of the one error in what a server sent, by their letters."""
    (body,) = [body for kind, body in messages_of(output) if kind == "E"]
    assert body[-2:] == b"\0\0"
    return {field[:1].decode(): field[1:].decode() for field in body[:-2].split(b"\0")}


def row_of(output: bytes) -> list[bytes | None]:
    """The values of the one row in what a server sent."""
    (body,) = [body for kind, body in messages_of(output) if kind == "D"]
    (count,) = struct.unpack_from(">h", body)
    values: list[bytes | None] = []
    position = 2
    for _ in range(count):
        (length,) = struct.unpack_from(">i", body, position)
        position += 4
        values.append(None if length < 0 else body[position : position + length])
        position += max(length, 0)
    assert position == len(body)
    return values


def new_session(
    *, tls: bool = False, users: dict[str, str] | None = None, parameters: dict[str, str] | None = None
) -> Session:
    return Session(
        tls=tls,
        users=users,
        parameters=PARAMETERS if parameters is None else parameters,
        nonce="server-nonce",
        mock_salt=b"secret of the process",
    )


def ready_session() -> Session:
    """A session that waits for commands, with nothing to send."""
    session = new_session()
    session.receive(startup())
    session.take_output()
    return session


def streaming_session() -> Session:
    """A session in COPY, with nothing to send."""
    session = ready_session()
    session.receive(query("START_REPLICATION 0/0"))
    session.begin_copy()
    session.take_output()
    return session


def answer(session: Session, events: list[Event]) -> None:
    """Do with each event what a replication listener would."""
    for event in events:
        match event:
            case CommandReceived(IdentifySystem()):
                session.answer([TEXT_COLUMN] * 4, ["7", "1", "0/3000000", None], "IDENTIFY_SYSTEM")
            case CommandReceived(Show()):
                session.answer([TEXT_COLUMN], ["16MB"], "SHOW")
            case CommandReceived(TimelineHistory()):
                session.answer([TEXT_COLUMN] * 2, ["00000002.history", b"1\t0/3000000\tx\n"], "TIMELINE_HISTORY")
            case CommandReceived(ReadSlot()):
                session.answer([TEXT_COLUMN] * 3, [None] * 3, "READ_REPLICATION_SLOT")
            case CommandReceived(CreateSlot(name)):
                session.answer([TEXT_COLUMN] * 4, [name, "0/0", None, None], "CREATE_REPLICATION_SLOT")
            case CommandReceived(StartReplication()):
                session.begin_copy()
            case CommandReceived():
                session.complete("DROP_REPLICATION_SLOT")
            case CopyEnded():
                session.finish_copy(None)
            case _:
                pass
