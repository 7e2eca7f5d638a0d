"""Valid inputs for each target, made by the encoders that the other side really uses, or by those of the unit tests."""

import struct
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
from scramp import ScramClient

from safekeeper.archive.objects import ArchivedObject, Manifest, history_file, partial_file, segment_file
from safekeeper.base.events import Event, KeptEvent
from safekeeper.base.timelines import format_timeline_history
from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.membership import Member, Membership, QuorumSizes
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AgentExchange,
    AgentSettingsVersion,
    AgentView,
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    DigestRequest,
    DigestResponse,
    Elected,
    EventExchange,
    EventPage,
    FolderIsOlder,
    FolderStates,
    KeptReport,
    PeerRead,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    PullEnded,
    PullSource,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    Standby,
    StandbyFeedback,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.peers.codec import HEADER_BYTES, encode, encode_authentication
from safekeeper.peers.peer_auth import Challenge, Hello, Proof, Reason, Refused
from safekeeper.pgwire.backend import keepalive, xlog_data_header
from tests.unit import pgoutput_bytes as built
from tests.unit import pgwire_client as client
from tests.unit.transactions_wal import new_log
from tests.unit.wal_builder import WalBuilder
from walproxy.failover.discarded import BODY_RMIDS
from walproxy.postgres.replication import build_hot_standby_feedback, build_status_update

_NODE = LeaderId(7, "run7")
_MEMBERS = Membership(3, (Member(1, "a", "host:9001"), Member(2, "b"), Member(3, "c")), (), 7)
_HISTORY = (HistoryEntry(1, 100, 1), HistoryEntry(7, 200, 2, True, 1))
_FILES = (TliHistory(2, b"1\t0/64\tno recovery target specified\n"),)
_SIZE = 16 << 20

_FOLDER = FolderState(1, "a", 3, 7, 300)
_SETTINGS = AgentSettingsVersion(3, "0123456789abcdef" * 2, b'{"is_paused":true}')
_EVENT = Event("5f2a81c0-9", 1795000000000, "term-won", "walproxy", "term 7", {"term": 7, "s": 1.5, "run": "run7"})
_FROM_PROPOSERS = (
    ProposerGreeting(5, "run7", 5, 9, _SIZE),
    Bootstrap("cluster", 5, _SIZE, 170002, _MEMBERS, True),
    PreVoteRequest("run7", False),
    VoteRequest(_NODE, 3, "cluster", _MEMBERS),
    Reconfigure(_NODE, _MEMBERS),
    Reconfigure(_NODE, Membership(4, _MEMBERS.members, _MEMBERS.members[:2], 7, QuorumSizes("N-N/3", "(N+2)/2"))),
    Elected(_NODE, "cluster", 5, _SIZE, 170002, _MEMBERS, _HISTORY, _FILES, 300, 100, 0, 5),
    FolderStates("cluster", (_FOLDER, FolderState(2, "b", 1, 6, 200))),
    FolderIsOlder(_NODE, _FOLDER),
    AgentExchange("cluster", "db1", b'{"name":"db1"}', _SETTINGS),
    AgentExchange("cluster", ""),
    EventExchange("cluster", (_EVENT,)),
    EventExchange("", since=7),
    ArchiveAssignment(_NODE, 1, 100),
    AppendRequest(_NODE, 3, 300, 200, 100, 5, True, b"WAL"),
    AppendRequest(_NODE, 3, 300, 200, 100, 6, False, b""),
    ReadRequest(_NODE, 1, 100, 300),
    PeerRead(_NODE, 1, 100, 300),
    PullWal(_NODE, 1, 300, 1 << 20, (PullSource(2, "host:5454"),)),
    DigestRequest(_NODE, 2, 100, 300),
    TailRequest(_NODE, 3, 200),
)
_FROM_ACCEPTORS = (
    AcceptorGreeting(4, 1, "a", "cluster", 5, _SIZE, 170002, _MEMBERS, _NODE, 7, 300, 200, 100, 0, None),
    Bootstrapped("cluster", 3),
    PreVoteResponse(True, "run6"),
    VoteResponse(_NODE, True, _NODE, _HISTORY, _FILES, 300, 200, 100, 0, 5),
    AppendResponse(_NODE, 300, 200, 5, True),
    Reconfigured(_NODE, 3),
    FolderStates("cluster", (_FOLDER,)),
    AgentView("cluster", "a", _NODE, 250, 7, 2, 1, 300, 200, _SETTINGS, (KeptReport("db1", 9, b"{}"),)),
    AgentView("cluster", "a", _NODE, 250, 7, 2, 1, 300, 200),
    EventPage((KeptEvent(7, _EVENT),), 8),
    PullEnded(_NODE, 1, 300, "safekeeper 2 at host:5454: timeout"),
    StandbyFeedback((Standby("standby_1", 300, 200, 100, 7, 0),)),
    ArchiveReport(100, True, True, 0, "no route to the store"),
    ReadResponse(1, 100, b"WAL"),
    DigestResponse(2, 100, 300, (1, 0xFFFFFFFF)),
    TailResponse(3, 200, 208, 100, None),
    Refusal(RefusalCode.VERSION, "too old", _NODE, 3),
)
_AUTHENTICATION = (Hello(bytes(range(32))), Challenge(1, bytes(32)), Proof(bytes(32)), Refused(Reason.WRONG_PROOF))


def _frame(message: object) -> bytes:
    return b"".join(bytes(piece) for piece in encode(message))  # type: ignore[arg-type]


def proposer_frames() -> Iterable[bytes]:
    """Each message, and all behind each other."""
    return [*map(_frame, _FROM_PROPOSERS), b"".join(map(_frame, _FROM_PROPOSERS))]


def acceptor_frames() -> Iterable[bytes]:
    """Each message, and all behind each other."""
    return [*map(_frame, _FROM_ACCEPTORS), b"".join(map(_frame, _FROM_ACCEPTORS))]


def bodies() -> Iterable[bytes]:
    """What stands behind the header of each frame, behind the place of its kind."""
    frames = [*map(_frame, (*_FROM_PROPOSERS, *_FROM_ACCEPTORS)), *map(encode_authentication, _AUTHENTICATION)]
    return [bytes([frame[3] - 1]) + frame[HEADER_BYTES:] for frame in frames]


def authentication() -> Iterable[bytes]:
    """Each message, and all that a proxy sends."""
    frames = [encode_authentication(message) for message in _AUTHENTICATION]
    return [*frames, frames[0] + frames[2]]


@cache
def _log_in() -> tuple[bytes, bytes]:
    """The two messages of a client that has the password, for the server's nonce of the targets."""
    scram = ScramClient(["SCRAM-SHA-256"], "me", "pencil", c_nonce="client-nonce")
    first = scram.get_client_first().encode()
    scram.set_server_first("r=client-nonceserver-nonce,s=MDEyMzQ1Njc4OWFiY2RlZg==,i=4096")
    return first, scram.get_client_final().encode()


def sessions() -> Iterator[bytes]:
    """Conversations: without a password, with one, over TLS, in pieces."""
    hello = client.startup(application_name="standby_1")
    stream = (
        client.query("IDENTIFY_SYSTEM")
        + client.query("START_REPLICATION SLOT s 0/1000000 TIMELINE 1")
        + client.status_update(3, 2, 1)
        + client.hot_standby_feedback(7, 1)
        + client.COPY_DONE
        + client.PARSE
        + client.SYNC
        + client.TERMINATE
    )
    first, final = _log_in()
    password = client.sasl_initial_response("SCRAM-SHA-256", first) + client.sasl_response(final)
    yield b"\0\xff" + hello + stream
    yield b"\0\x06" + client.SSL_REQUEST + hello + stream
    yield b"\1\xff" + hello + password + stream
    yield b"\2\x07" + client.SSL_REQUEST + hello + stream
    yield b"\0\xff" + client.CANCEL_REQUEST
    yield b"\0\xff" + client.GSSENC_REQUEST + client.startup(options="-c wal_sender_timeout=10s") + client.COPY_FAIL


def startups() -> Iterable[bytes]:
    """The bodies of startup packets."""
    return [
        client.startup()[8:],
        client.startup(application_name="größe", options="-c a=b --c-d=e\\ f", **{"_pq_.x": "1"})[8:],
    ]


def commands() -> Iterable[bytes]:
    """A command of each kind, in both grammars."""
    return [
        b"IDENTIFY_SYSTEM;",
        b"SHOW a.b",
        b"TIMELINE_HISTORY 2",
        b"CREATE_REPLICATION_SLOT s TEMPORARY PHYSICAL RESERVE_WAL",
        b'CREATE_REPLICATION_SLOT "S""1" PHYSICAL (RESERVE_WAL true)',
        b"CREATE_REPLICATION_SLOT s LOGICAL p",
        b"READ_REPLICATION_SLOT s",
        b"DROP_REPLICATION_SLOT s WAIT",
        b"START_REPLICATION SLOT s PHYSICAL 16/B374D848 TIMELINE 3",
        b"BASE_BACKUP",
        b"select 'x'",
    ]


def scram() -> Iterable[bytes]:
    """Both messages of a client, and of one that requests channel binding."""
    first, final = _log_in()
    return [first + b"\0" + final, b"p=tls-server-end-point,,n=,r=abc\0c=biws,r=abc,p=AAAA"]


def copy_from_client() -> Iterable[bytes]:
    """What walproxy itself sends as a client."""
    return [build_status_update(3, 2, 1, 0, True), build_hot_standby_feedback(0, 7, 1, 6, 1)]


def copy_from_server() -> Iterable[bytes]:
    """What safekeepers send as PostgreSQL does, without the frames around it."""
    return [xlog_data_header(100, 300, 0, 3)[5:] + b"WAL", keepalive(300, 0, True)[5:]]


def rows() -> Iterable[bytes]:
    """IDENTIFY_SYSTEM, the end of a timeline, a size."""
    return [b"7000000000000000001\x001\x0016/B374D848\0", b"2\x000/3000000", b"16MB", b"1GB"]


def histories() -> Iterable[bytes]:
    """Of timelines 1 to 3, and one that a person has edited."""
    return [
        b"\1",
        b"\2" + format_timeline_history(((1, 0x3000000),)),
        b"\3" + format_timeline_history(((1, 0x3000000), (2, 0x5000000)), 'at restore point "x"'),
        b"\2# a comment\n\n1\t0/3000000\r\n",
    ]


def pgoutput() -> Iterator[bytes]:
    """Messages of the first and of the last version, in a piece and not."""
    columns = (("id", 23), ("größe", 1700))
    for head, xid in ((b"\0", 0), (b"\x83", 8)):
        yield head + built.begin(0x200, 7)
        yield head + built.commit(0x200, 0x230)
        yield head + built.relation(16384, "t", columns, key=["id"], xid=xid)
        yield head + built.insert(1, "a", None, built.UNSENT, b"\0", xid=xid)
        yield head + built.update(1, ["b", "x"], key=["a", None], xid=xid)
        yield head + built.delete(1, before=["a", "x"], xid=xid)
        yield head + built.truncate([1, 2], 3, xid=xid)
        yield head + built.message("p", b"x", xid=xid)
    yield b"\3" + built.stream_abort_where(7, 8, 0x150, 6)
    yield b"\3" + built.prepare(0x10, 0x20, 7, "g")
    yield b"\3" + built.rollback_prepared(0x20, 0x40, 7, "g")


def wal() -> Iterable[bytes]:
    """Two pages with records, a commit among them."""
    builder = WalBuilder()
    builder.add(b"x" * 100)
    builder.add(bytes([255, 8]) + struct.pack("<q", 7), rmid=1)
    builder.add(b"y" * 9000)
    return [bytes(builder.data), bytes(builder.data[:400])]


def transaction_records() -> Iterator[bytes]:
    """Records that a transaction writes, and those that end it, of every version."""
    managers = sorted(BODY_RMIDS)
    for major in range(13, 19):
        log = new_log(major=major)
        log.running(7)
        log.insert(7)
        log.insert_many(7, 3)
        log.delete(7)
        log.sequence(7)
        log.create(7, (1663, 5, 16384))
        log.message(7, transactional=True)
        log.assign(7, [8])
        log.commit(7, [8], relfiles=1, invalidations=1)
        log.prepare(7, b"gid", [8])
        log.end_prepared(7, commit=True, subxids=[8])
        for record in log.records:
            yield bytes([major - 13, managers.index(record.rmid), record.info]) + record.body


def manifests() -> Iterable[bytes]:
    """As an archiver writes it."""
    return [msgspec.json.encode(Manifest(5, _SIZE, ("cluster",), "2024-01-01T00:00:00Z", "0" * 32))]


def listings() -> Iterable[bytes]:
    """A segment, a compressed partial and a history file, with their receipts."""
    keys = ["manifest.json", "probe/x", "stranger"]
    for file, compressed in (
        (segment_file(1, _SIZE, _SIZE), False),
        (partial_file(2, 2 * _SIZE, 2 * _SIZE + 9, _SIZE), True),
        (history_file(2), False),
    ):
        key = file.key(compressed)
        keys += [key, ArchivedObject(file, key, 0xABCDEF01, file.plain_bytes or 7, compressed).receipt_key]
    return ["\n".join(keys).encode()]
