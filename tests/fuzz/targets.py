"""Every decoder of bytes that come from peers, as a function that takes any bytes; and schedules of the simulator.

A target's function returns if the bytes were understood or were incomplete, and raises one of the errors that its
decoder documents if they are not (S11). `attempt` turns those into a plain return; whatever else comes out is a
finding. Where the decoder has an encoder, the function also requires that both agree, and where it may be fed in
pieces, that the pieces do not matter. `seeds` are valid inputs, made by the real encoders: damage to them reaches
deeper than noise.

HTTP is not here, which h11 parses; nor are TLS, which is OpenSSL's, and what libpq takes apart before we see it.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from safekeeper.archive.fetch import read_manifest
from safekeeper.archive.objects import ObjectInfo, parse_keys
from safekeeper.base.errors import ArchiveRefused, RemoteProtocolError, WalproxyError
from safekeeper.base.lsn import LSN_MAX
from safekeeper.base.timelines import format_timeline_history, parse_timeline_history
from safekeeper.peers.codec import (
    ACCEPTOR_AUTHENTICATION,
    ACCEPTOR_DIALECT,
    CONTROL_BYTES_MAX,
    HEADER_BYTES,
    PROPOSER_AUTHENTICATION,
    PROPOSER_DIALECT,
    Dialect,
    FrameDecoder,
    encode,
)
from safekeeper.peers.peer_auth import AcceptorSide, ProposerSide
from safekeeper.pgwire.commands import StartReplication, parse_command
from safekeeper.pgwire.events import CommandReceived, CopyEnded, StartTls
from safekeeper.pgwire.frontend import parse_copy_data, parse_string
from safekeeper.pgwire.scram import SCRAM_SHA_256, ScramServer, make_verifier
from safekeeper.pgwire.session import Session, SessionState
from safekeeper.pgwire.startup import admission
from safekeeper.waldecode.records import Record, RecordDecoder
from tests.fuzz import schedules, seeds
from walproxy.failover.discarded import BODY_RMIDS, TailReader
from walproxy.failover.discarded_report import commit_time
from walproxy.pipeline.cdc import pgoutput
from walproxy.postgres.replication import (
    parse_copy_message,
    parse_identify_system,
    parse_segment_size,
    parse_timeline_end,
)
from walproxy.recovery.record_times import scan

# The longest quotes a whole startup packet.
ERROR_CHARACTERS_MAX = 12_000
_MIB = 1 << 20
_SECRET, _NONCE = b"one secret", bytes(range(32))
_VERIFIER = make_verifier("pencil", b"0123456789abcdef")
_KINDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        run: feeds it; raises what is in `allowed`, or there is a bug.
        allowed: the errors that the decoder documents.
        seeds: valid inputs.
        is_slow: an input takes a tenth of a second, so only findings are added to the corpus.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    allowed: tuple[type[WalproxyError], ...] = (RemoteProtocolError,)
    is_slow: bool = False


def attempt(name: str, data: bytes) -> bool:
    """Run the target called `name`; return whether the bytes were acceptable. Raises whatever is a finding."""
    target = TARGETS[name]
    try:
        target.run(data)
    except target.allowed as error:
        text = str(error)
        assert text.splitlines() == [text] and len(text) <= ERROR_CHARACTERS_MAX, f"not a line for a log: {text!r}"
        return False
    return True


def _one_of(*decoders: Callable[[], object]) -> None:
    """Let each of them try, and raise the last error if all refuse."""
    errors = []
    for decode in decoders:
        try:
            decode()
        except RemoteProtocolError as error:
            errors.append(error)
    if len(errors) == len(decoders):
        raise errors[-1]


# Between proxies and safekeepers.


def _frames(dialect: Dialect, data: bytes) -> None:
    decoder = FrameDecoder(dialect)
    messages = decoder.feed(data)
    assert len(decoder.get_buffer()) <= HEADER_BYTES + CONTROL_BYTES_MAX, "more is held than one frame"
    encoded = b"".join(bytes(piece) for message in messages for piece in encode(message))
    assert data.startswith(encoded), "a frame does not encode to what it was"
    pieces = FrameDecoder(dialect)
    assert [message for byte in data[:600] for message in pieces.feed(bytes([byte]))] == messages or len(data) > 600


def _proposer_frames(data: bytes) -> None:
    _frames(PROPOSER_DIALECT, data)


def _acceptor_frames(data: bytes) -> None:
    _frames(ACCEPTOR_DIALECT, data)


def _bodies(data: bytes) -> None:
    """A frame whose header is right, for either side; the first byte chooses its kind."""
    if len(data) < 2:
        return
    frame = struct.pack("<HBBI", 0x5750, 1, _KINDS[data[0] % len(_KINDS)], len(data) - 1) + data[1:]
    dialects = (PROPOSER_DIALECT, ACCEPTOR_DIALECT, PROPOSER_AUTHENTICATION)
    _one_of(*(partial(FrameDecoder(dialect).feed, frame) for dialect in dialects))


def _authentication(data: bytes) -> None:
    """What a stranger sends to either side; neither may take it for one that has the secret."""
    acceptor = AcceptorSide(_SECRET, 1, _NONCE, b"")
    proposer = ProposerSide(_SECRET, 1, _NONCE, b"")
    proposer.begin()

    def receive(side: AcceptorSide | ProposerSide, dialect: Dialect) -> None:
        for message in FrameDecoder(dialect).feed(data):
            side.receive(message)

    _one_of(partial(receive, acceptor, PROPOSER_AUTHENTICATION), partial(receive, proposer, ACCEPTOR_AUTHENTICATION))
    assert not acceptor.done and not proposer.done, "a proof that no holder of the secret has given"


# From PostgreSQL's replication clients.


def _session(data: bytes) -> None:
    """Whole conversations. The first byte chooses whether there are passwords and TLS, the second cuts the rest."""
    choice, cut = (data[0], data[1] + 1) if len(data) > 1 else (0, 1)
    session = Session(
        tls=bool(choice & 2),
        users={"me": str(_VERIFIER)} if choice & 1 else None,
        parameters={"server_version": "17.2"},
        nonce="server-nonce",
        mock_salt=b"a salt",
    )
    rest = data[2:]
    for begin, end in pairwise([*range(0, len(rest), cut), len(rest)]):
        for event in session.receive(rest[begin:end]):
            _serve(session, event)
        assert len(session.take_output()) <= 64 * (len(rest) + 64), "far more is answered than was sent"


def _serve(session: Session, event: object) -> None:
    """What the owner of a session does, as far as the session needs it to go on."""
    if isinstance(event, StartTls):
        session.tls_started(None)
    elif isinstance(event, CommandReceived) and isinstance(event.command, StartReplication):
        session.begin_copy()
    elif isinstance(event, CommandReceived):
        session.complete("DONE")
    elif isinstance(event, CopyEnded) and session.state is SessionState.COPY_ENDING:
        session.finish_copy(None)


def _startup(data: bytes) -> None:
    admission(3 << 16, data)


def _command(data: bytes) -> None:
    parse_command(parse_string(data + b"\0"))


def _scram(data: bytes) -> None:
    """The client's two messages, with a zero byte between them."""
    first, _, final = data.partition(b"\0")
    scram = ScramServer(_VERIFIER, user="me", nonce="server-nonce", channel_binding=None, mock_salt=b"a salt")
    scram.challenge(SCRAM_SHA_256, first)
    scram.verify(final)


def _copy_from_client(data: bytes) -> None:
    parse_copy_data(data)


# From PostgreSQL.


def _copy_from_server(data: bytes) -> None:
    parse_copy_message(memoryview(data))


def _rows(data: bytes) -> None:
    """The columns of one row, with zero bytes between them, to every reader of rows."""
    row: list[str | None] = [text.decode(errors="replace") or None for text in data.split(b"\0")]
    _one_of(
        partial(parse_identify_system, row),
        partial(parse_timeline_end, row),
        partial(parse_segment_size, row[0] or ""),
    )


def _history(data: bytes) -> None:
    """A history file; the first byte is the TLI."""
    tli = data[0] if data else 1
    lineage = parse_timeline_history(tli, data[1:])
    assert parse_timeline_history(tli, format_timeline_history(lineage)) == lineage
    assert all(0 < parent < tli and end_lsn <= LSN_MAX for parent, end_lsn in lineage)


def _pgoutput(data: bytes) -> None:
    """The first byte has the version and whether the message stands in a piece."""
    if data:
        version = pgoutput.VERSIONS[data[0] % len(pgoutput.VERSIONS)]
        pgoutput.decode(data[1:], lsn=7, version=version, in_piece=data[0] >= 128)


def _wal(data: bytes) -> None:
    """WAL by the byte and as a whole; the times of its commits, too."""
    scan([data], _MIB, _MIB)
    RecordDecoder(_MIB, _MIB, range(256)).feed(data)


def _transaction_records(data: bytes) -> None:
    """The body of one record; its first bytes are the version, the resource manager and the info."""
    if len(data) < 3:
        return
    major, rmid = 13 + data[0] % 6, sorted(BODY_RMIDS)[data[1] % len(BODY_RMIDS)]
    record = Record(_MIB + 40, _MIB + 80, 0, 24 + len(data) - 3, 7, rmid, data[2], data[3:])
    reader = TailReader(_MIB, major)
    reader.add(record)
    reader.finish()
    for transaction in reader.tail().transactions:
        commit_time(transaction.time_us)


# From archives.


class _OneObject:
    """A store that answers with the same bytes whatever it is asked for."""

    url = "memory://fuzz"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def get(self, key: str) -> bytes:
        return self._content


def _manifest(data: bytes) -> None:
    read_manifest(_OneObject(data))  # type: ignore[arg-type]


def _listing(data: bytes) -> None:
    """The keys of a listing, a line each: none may be lost, and none guessed at."""
    keys = {line.decode(errors="replace") for line in data.split(b"\n")}
    listing = parse_keys([ObjectInfo(key, 0, 0.0) for key in keys], 16 * _MIB)
    for archived in listing.objects:
        assert archived.file.key(archived.compressed) == archived.key
        assert {archived.key, archived.receipt_key} <= keys


# Of everything that happens.


def _schedule(data: bytes) -> None:
    schedules.play(data)


TARGETS: dict[str, Target] = {
    "proposer_frames": Target(_proposer_frames, seeds.proposer_frames),
    "acceptor_frames": Target(_acceptor_frames, seeds.acceptor_frames),
    "bodies": Target(_bodies, seeds.bodies),
    "authentication": Target(_authentication, seeds.authentication),
    "session": Target(_session, seeds.sessions),
    "startup": Target(_startup, seeds.startups),
    "command": Target(_command, seeds.commands),
    "scram": Target(_scram, seeds.scram),
    "copy_from_client": Target(_copy_from_client, seeds.copy_from_client),
    "copy_from_server": Target(_copy_from_server, seeds.copy_from_server),
    "rows": Target(_rows, seeds.rows),
    "history": Target(_history, seeds.histories),
    "pgoutput": Target(_pgoutput, seeds.pgoutput),
    "wal": Target(_wal, seeds.wal),
    "transaction_records": Target(_transaction_records, seeds.transaction_records),
    "manifest": Target(_manifest, seeds.manifests, (ArchiveRefused,)),
    "listing": Target(_listing, seeds.listings),
    "schedule": Target(_schedule, schedules.seeds, (), is_slow=True),
}
