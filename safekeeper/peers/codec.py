"""Encodes and decodes messages: the framing of the protocol between proposers and acceptors.

A frame is a header of 8 bytes and a body, all numbers little-endian:

    | magic u16 | wire version u8 | kind u8 | length of the body u32 | body ...

    kind 1  control          one MessagePack map, tagged with the message's name
    kind 2  append request   a fixed structure, then the WAL
    kind 3  append response  a fixed structure
    kind 4  read response    a fixed structure, then the WAL
    kind 5  authentication   a byte for the kind of message, and its fixed structure (safekeeper/peers/peer_auth.py)

The three that carry or acknowledge WAL are nearly all of the traffic and cost one `struct` call each. WAL is not copied
when it is sent: `encode` returns a list of buffers, and `AppendEncoder` is for a proposer that sends one payload to
several safekeepers. When it is received it is copied once, out of the receive buffer.

Control messages are MessagePack in one canonical form: a message that does not encode to the same bytes again is
refused, so unknown fields, duplicates and padded numbers are. Negative numbers, empty fields that must not be empty,
and ids that cannot be part of a file name are refused here too, before a state machine receives them (S11).

Frames have no checksum. TCP and the link layers have theirs, every WAL record has a CRC-32C that PostgreSQL checks
before it replays it, and PostgreSQL's own replication relies on these. A further CRC would be computed once per member
and commit, where CPU limits throughput.

Pure: no I/O, no clock. Bytes from a peer raise only RemoteProtocolError.
"""

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from safekeeper.base.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from safekeeper.consensus.control_state import NOBODY, LeaderId
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    AcceptorMessage,
    AgentExchange,
    AgentView,
    AppendRequest,
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    ChangeMembers,
    DigestRequest,
    DigestResponse,
    Elected,
    EventExchange,
    EventPage,
    FolderIsOlder,
    FolderStates,
    MembersAnswer,
    PeerRead,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    PullEnded,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    StandbyFeedback,
    TailPreVoteRequest,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.peers.message_checks import QUOTED_CHARACTERS_MAX, WORD, WORD_BYTES_MAX, check_control, check_leader_id
from safekeeper.peers.peer_auth import BODY_BYTES, AuthenticationMessage, Reason, decode_body, encode_body

WIRE_VERSION = 1
PAYLOAD_BYTES_MAX = 1 << 20
CONTROL_BYTES_MAX = 2 << 20

_MAGIC = 0x5750
_CONTROL, _APPEND_REQUEST, _APPEND_RESPONSE, _READ_RESPONSE, _AUTHENTICATION = 1, 2, 3, 4, 5
# The first bytes of TLS: a handshake record, or an alert, of any version; read as if they were the magic.
_TLS_MAGICS = (0x0316, 0x0315)

_HEADER = struct.Struct("<HBBI")
# A LeaderId is its term, u64, and its proposer id in 32 bytes, padded with zeros.
_APPEND_REQUEST_BODY = struct.Struct("<Q32sQQQQQB")  # generation, begin, commit, truncate, sequence, healthy
_APPEND_RESPONSE_BODY = struct.Struct("<Q32sQQQB")  # write, flush, sequence, has_readers
_READ_RESPONSE_BODY = struct.Struct("<QQ")  # request_id, begin
# The frame of an append begins with its header without the length, as one number.
_APPEND_REQUEST_FRAME = struct.Struct("<IIQ32sQQQQQB")
# What one append has in common with the last, nearly always, as one value: term, proposer id and generation. And what
# all responses to a leader's appends begin with: header, term and proposer id.
_APPEND_REQUEST_PREFIX = struct.Struct("<Q32sQ")
_unpack_append_request = struct.Struct(f"<II{_APPEND_REQUEST_PREFIX.size}sQQQQB").unpack_from
_APPEND_RESPONSE_PREFIX = struct.Struct("<8sQ32s")
_APPEND_RESPONSE_FRAME = struct.Struct(f"<{_APPEND_RESPONSE_PREFIX.size}sQQQB")
_READ_RESPONSE_FRAME = struct.Struct("<HBBIQQ")

HEADER_BYTES = _HEADER.size
_APPEND_REQUEST_BYTES = _APPEND_REQUEST_FRAME.size
_APPEND_REQUEST_BODY_BYTES = _APPEND_REQUEST_BODY.size
_APPEND_REQUEST_HEAD = int.from_bytes(_HEADER.pack(_MAGIC, WIRE_VERSION, _APPEND_REQUEST, 0)[:4], "little")
_APPEND_RESPONSE_BYTES = _APPEND_RESPONSE_FRAME.size
_APPEND_RESPONSE_HEADER = _HEADER.pack(_MAGIC, WIRE_VERSION, _APPEND_RESPONSE, _APPEND_RESPONSE_BODY.size)
_LENGTHS: dict[int, tuple[int, int]] = {
    _CONTROL: (1, CONTROL_BYTES_MAX),
    _APPEND_REQUEST: (_APPEND_REQUEST_BODY.size, _APPEND_REQUEST_BODY.size + PAYLOAD_BYTES_MAX),
    _APPEND_RESPONSE: (_APPEND_RESPONSE_BODY.size, _APPEND_RESPONSE_BODY.size),
    _READ_RESPONSE: (_READ_RESPONSE_BODY.size, _READ_RESPONSE_BODY.size + PAYLOAD_BYTES_MAX),
    _AUTHENTICATION: BODY_BYTES,
}
_BUFFER_BYTES = 256 << 10
_ROOM_BYTES_MIN = 16 << 10

_Message = TypeVar("_Message")
Buffers = list[bytes | memoryview]


# Encoding.


def encode(message: ProposerMessage | AcceptorMessage) -> Buffers:
    """Return the frame of `message` as buffers to be written one after the other; WAL is not copied.

    Raises:
        LocalProtocolError: the other side would have to refuse the message.
    """
    if isinstance(message, AppendResponse):
        return [encode_append_response(message)]
    if isinstance(message, AppendRequest):
        header = AppendEncoder(message.leader_id).header(message, len(message.payload))
        return [header, message.payload] if message.payload else [header]
    if isinstance(message, ReadResponse):
        _require_payload(len(message.payload))
        length = _READ_RESPONSE_BODY.size + len(message.payload)
        header = _pack(
            _READ_RESPONSE_FRAME, _MAGIC, WIRE_VERSION, _READ_RESPONSE, length, message.request_id, message.begin_lsn
        )
        return [header, message.payload] if message.payload else [header]
    try:
        check_control(message)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from error
    body = msgspec.msgpack.encode(message)
    if len(body) > CONTROL_BYTES_MAX:
        raise LocalProtocolError(f"{type(message).__name__} takes {len(body)} bytes, more than {CONTROL_BYTES_MAX}")
    return [_HEADER.pack(_MAGIC, WIRE_VERSION, _CONTROL, len(body)) + body]


class AppendEncoder:
    """Packs the frames of one leader's appends, without the WAL: one call a frame, whatever is constant made once.

    Attributes:
        leader_id: whose appends they are.
    """

    def __init__(self, leader_id: LeaderId) -> None:
        self.leader_id = leader_id
        self._term, run = leader_id
        self._run = _run_to_bytes(run)

    def header(self, message: AppendRequest, payload_bytes: int) -> bytes:
        """Return everything of the frame of `message` but the WAL.

        Raises:
            LocalProtocolError: the payload is longer than a frame may carry.
        """
        if payload_bytes > PAYLOAD_BYTES_MAX:
            _require_payload(payload_bytes)
        try:
            return _APPEND_REQUEST_FRAME.pack(
                _APPEND_REQUEST_HEAD,
                _APPEND_REQUEST_BODY_BYTES + payload_bytes,
                self._term,
                self._run,
                message.generation,
                message.begin_lsn,
                message.commit_lsn,
                message.truncate_lsn,
                message.sequence,
                message.healthy,
            )
        except struct.error as error:
            raise _misfit(error) from error


def encode_authentication(message: AuthenticationMessage) -> bytes:
    """Return the frame of a message of safekeeper/peers/peer_auth.py."""
    body = encode_body(message)
    return _HEADER.pack(_MAGIC, WIRE_VERSION, _AUTHENTICATION, len(body)) + body


def encode_append_response(message: AppendResponse) -> bytes:
    """Return the frame of `message`; see `encode`."""
    pack = append_response_packer(message.leader_id)
    try:
        return pack(message.write_lsn, message.flush_lsn, message.sequence, message.has_readers)
    except struct.error as error:
        raise _misfit(error) from error


def append_response_packer(leader_id: LeaderId) -> Callable[[Lsn, Lsn, int, bool], bytes]:
    """Return the function that packs the frames of the responses to this leader's appends. No Python code runs in it.

    Its arguments are write_lsn, flush_lsn, sequence and has_readers; it raises struct.error for one that does not fit.

    Raises:
        LocalProtocolError: the LeaderId cannot be sent.
    """
    return partial(_APPEND_RESPONSE_FRAME.pack, _append_response_prefix(leader_id))


def _append_response_prefix(leader_id: LeaderId) -> bytes:
    term, run = leader_id
    return _pack(_APPEND_RESPONSE_PREFIX, _APPEND_RESPONSE_HEADER, term, _run_to_bytes(run))


def _pack(layout: struct.Struct, *fields: int | bytes) -> bytes:
    try:
        return layout.pack(*fields)
    except struct.error as error:
        raise _misfit(error) from error


def _misfit(error: struct.error) -> LocalProtocolError:
    return LocalProtocolError(f"a field does not fit its frame: {error}")


def _require_payload(payload_bytes: int) -> None:
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise LocalProtocolError(f"{payload_bytes} bytes of WAL do not fit a frame, which carries {PAYLOAD_BYTES_MAX}")


@lru_cache(maxsize=64)
def _run_to_bytes(run: str) -> bytes:
    if WORD.fullmatch(run) is None:
        raise LocalProtocolError(
            f"{run!r} cannot be a proposer id: 1 to {WORD_BYTES_MAX} letters and digits are required"
        )
    return run.encode()


# Decoding.


class Dialect(NamedTuple, Generic[_Message]):
    """The messages that one side may send.

    Attributes:
        control: decodes its control messages; None if it has none.
        kinds: the kinds of its frames.
        one_sided: the error if only one side authenticates; and the reason that is sent to the peer.
        tls: the error if it sends TLS.
    """

    control: msgspec.msgpack.Decoder[_Message] | None
    kinds: frozenset[int]
    one_sided: tuple[str, Reason | None]
    tls: str


_PROPOSER_TLS = (
    "the proxy uses TLS, and this listener does not: set the safekeeper's tls_cert and tls_key, "
    "or start the proxy without tls_ca"
)
_ACCEPTOR_TLS = "the safekeeper requires TLS: set the proxy's tls_ca"
PROPOSER_DIALECT: Dialect[ProposerMessage] = Dialect(
    msgspec.msgpack.Decoder(
        ProposerGreeting
        | Bootstrap
        | PreVoteRequest
        | TailPreVoteRequest
        | VoteRequest
        | Elected
        | Reconfigure
        | ChangeMembers
        | MembersAnswer
        | FolderStates
        | FolderIsOlder
        | AgentExchange
        | EventExchange
        | ArchiveAssignment
        | PullWal
        | PeerRead
        | ReadRequest
        | DigestRequest
        | TailRequest
    ),
    frozenset({_CONTROL, _APPEND_REQUEST}),
    (
        "the proxy sends a proof of a shared secret, and this safekeeper has none: set its secret_file",
        Reason.NO_SECRET_HERE,
    ),
    _PROPOSER_TLS,
)
ACCEPTOR_DIALECT: Dialect[AcceptorMessage] = Dialect(
    msgspec.msgpack.Decoder(
        AcceptorGreeting
        | Bootstrapped
        | PreVoteResponse
        | VoteResponse
        | Reconfigured
        | ChangeMembers
        | MembersAnswer
        | PullEnded
        | FolderStates
        | AgentView
        | EventPage
        | StandbyFeedback
        | ArchiveReport
        | DigestResponse
        | TailResponse
        | Refusal
    ),
    frozenset({_CONTROL, _APPEND_RESPONSE, _READ_RESPONSE}),
    ("the safekeeper requires a shared secret: set secret_file or WALPROXY_SECRET", None),
    _ACCEPTOR_TLS,
)
# While the two sides authenticate each other; `FrameDecoder.speak` then sets the next dialect.
PROPOSER_AUTHENTICATION: Dialect[AuthenticationMessage] = Dialect(
    None,
    frozenset({_AUTHENTICATION}),
    (
        "the proxy sends no proof of a shared secret, and this safekeeper requires one: set the proxy's secret_file",
        Reason.SECRET_NEEDED,
    ),
    _PROPOSER_TLS,
)
ACCEPTOR_AUTHENTICATION: Dialect[AuthenticationMessage] = Dialect(
    None,
    frozenset({_AUTHENTICATION}),
    (
        "the safekeeper continues without proving that it has the shared secret: it does not belong to this cluster",
        None,
    ),
    _ACCEPTOR_TLS,
)


class FrameDecoder(Generic[_Message]):
    """Decodes the messages in a stream of bytes, received in pieces of any size.

    Either `feed`, or, without a copy, `get_buffer`, `buffer_updated` and `next_message`, the interface of
    asyncio.BufferedProtocol. Memory is bounded by one frame of the largest kind. After an error the decoder is no
    longer usable: the connection must be closed.

    Attributes:
        begin, end: the bytes [begin, end) of the buffer are received and not decoded yet.
        room: where the next bytes go, as `get_buffer` returns it. Up to date after `make_room`, and after
            `next_append` has returned None, or a message with which all received bytes are decoded.

    Args:
        dialect: the messages that the peer may send, e.g. PROPOSER_DIALECT or ACCEPTOR_DIALECT.
        frame_bytes_max: longer frames are refused, and the buffer has this size, until `accept_all_frames`.
    """

    def __init__(self, dialect: Dialect[_Message], frame_bytes_max: int | None = None) -> None:
        self._dialect = dialect
        self._kinds = dialect.kinds
        self._frame_bytes_max = frame_bytes_max
        self._buffer = self.room = memoryview(bytearray(frame_bytes_max or _BUFFER_BYTES))
        self.begin = 0
        self.end = 0
        self._wanted = HEADER_BYTES  # Length of the frame at _begin as far as it is known.
        # Every append of a term has the same LeaderId, so it is decoded once.
        self._term = 0
        self._run = b""
        self._leader_id = NOBODY
        # The last append's term, proposer id and generation: their bytes, and decoded.
        self._append_prefix = b""
        self._append_leader_id = NOBODY
        self._generation = 0

    def use(self, dialect: Dialect[_Message]) -> None:
        """Decode the bytes after the last message as another dialect."""
        self._dialect = dialect
        self._kinds = dialect.kinds
        self._append_prefix = b""

    def accept_all_frames(self) -> None:
        """Accept frames up to the maximum of their kind from now on: the peer is proven."""
        self._frame_bytes_max = None
        old = self._buffer[self.begin : self.end]
        if len(self._buffer) < _BUFFER_BYTES:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
            self._buffer[: len(old)] = old
            self.begin, self.end = 0, len(old)

    def feed(self, data: bytes | memoryview) -> list[_Message]:
        """Decode the next bytes and return the messages that they complete.

        Raises:
            RemoteProtocolError: a frame is malformed. Complete messages before it are lost with it.
        """
        messages = []
        data = memoryview(data)
        while data:
            room = self.get_buffer()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)
            while (message := self.next_append()) is not None:
                messages.append(message)
        return messages

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Return where the next bytes go; never empty if `next_message` was called until it returned None."""
        buffer, begin, end = self._buffer, self.begin, self.end
        if begin == end:
            self.begin = self.end = end = 0
            if self._wanted > len(buffer):
                self._buffer = buffer = memoryview(bytearray(self._wanted))
            return buffer
        elif begin + self._wanted > len(buffer) or (begin and len(buffer) - end < min(_ROOM_BYTES_MIN, len(buffer))):
            target = buffer if self._wanted <= len(buffer) else memoryview(bytearray(self._wanted))
            target[: end - begin] = bytes(buffer[begin:end])
            self._buffer = buffer = target
            self.begin, self.end = 0, end - begin
            end = self.end
        return buffer[end:]

    def make_room(self) -> None:
        """Set `room`."""
        self.room = self.get_buffer()

    def buffer_updated(self, size: int) -> None:
        """Count `size` bytes that were written to the start of `get_buffer()`."""
        self.end += size

    def next_message(self, received: int = 0) -> _Message | None:
        """Count so many bytes as `buffer_updated`; return the next message, or None if more bytes are needed.

        Raises:
            RemoteProtocolError: the next frame is not one that this peer may send. Raised as soon as its header is
                complete: a frame that will be refused is not buffered.
        """
        begin = self.begin
        end = self.end = self.end + received
        available = end - begin
        if available < self._wanted:
            return None
        magic, version, kind, length = _HEADER.unpack_from(self._buffer, begin)
        if self._wanted == HEADER_BYTES:
            self._check_header(magic, version, kind, length)
            self._wanted = HEADER_BYTES + length
            if available < self._wanted:
                return None
        body_begin, body_end = begin + HEADER_BYTES, begin + self._wanted
        self.begin = body_end
        self._wanted = HEADER_BYTES
        message: Any
        if kind == _APPEND_REQUEST:
            message = self._append_request(body_begin, body_end)
        elif kind == _APPEND_RESPONSE:
            message = self._append_response(body_begin)
        elif kind == _READ_RESPONSE:
            message = self._read_response(body_begin, body_end)
        elif kind == _AUTHENTICATION:
            message = decode_body(bytes(self._buffer[body_begin:body_end]))
        else:
            message = self._control_message(bytes(self._buffer[body_begin:body_end]))
        return message  # type: ignore[no-any-return]  # Its kind is one of the dialect's.

    def next_append(self, received: int = 0) -> _Message | None:
        """Do what `next_message` does; quicker if the next message is an append that is complete and like the last one.

        Such an append has the term, proposer id and generation of the one that `next_message` has decoded before. It is
        checked as the others are. An append of another kind, or any other message, is for `next_message`.
        """
        begin = self.begin
        end = self.end + received
        if end - begin >= _APPEND_REQUEST_BYTES:
            buffer = self._buffer
            head, length, prefix, begin_lsn, commit_lsn, truncate_lsn, sequence, healthy = _unpack_append_request(
                buffer, begin
            )
            payload_bytes = length - _APPEND_REQUEST_BODY_BYTES
            frame_end = begin + HEADER_BYTES + length
            if (
                prefix == self._append_prefix
                and head == _APPEND_REQUEST_HEAD
                and 0 <= payload_bytes <= PAYLOAD_BYTES_MAX
                and frame_end <= end
                and healthy == 1
                and begin_lsn
                and begin_lsn + payload_bytes <= LSN_MAX
            ):
                append: Any = AppendRequest(
                    self._append_leader_id,
                    self._generation,
                    begin_lsn,
                    commit_lsn,
                    truncate_lsn,
                    sequence,
                    True,
                    bytes(buffer[begin + _APPEND_REQUEST_BYTES : frame_end]),
                )
                self._wanted = HEADER_BYTES
                if frame_end == end:
                    self.begin = self.end = 0
                    self.room = buffer
                else:
                    self.begin = frame_end
                    self.end = end
                return append  # type: ignore[no-any-return]  # It is one of the dialect's.
        message = self.next_message(received)
        if message is None or self.begin == self.end:
            self.make_room()
        return message

    def _check_header(self, magic: int, version: int, kind: int, length: int) -> None:
        if magic in _TLS_MAGICS:
            raise RemoteProtocolError(self._dialect.tls)
        if magic != _MAGIC:
            raise RemoteProtocolError(f"magic {magic:04X} is not {_MAGIC:04X}: this peer is not a safekeeper or proxy")
        if version != WIRE_VERSION:
            raise RemoteProtocolError(f"wire version {version} is not supported, only {WIRE_VERSION} is")
        if kind not in self._kinds:
            if kind in _LENGTHS and (kind == _AUTHENTICATION) != (_AUTHENTICATION in self._kinds):
                raise AuthenticationFailed(*self._dialect.one_sided)
            raise RemoteProtocolError(f"a frame of kind {kind} is not expected on this side")
        shortest, longest = _LENGTHS[kind]
        if not shortest <= length <= longest:
            raise RemoteProtocolError(f"a frame of kind {kind} has {length} bytes, not {shortest} to {longest}")
        if self._frame_bytes_max is not None and HEADER_BYTES + length > self._frame_bytes_max:
            raise RemoteProtocolError(f"a frame of {length} bytes is too long before authentication")

    def _append_request(self, begin: int, end: int) -> AppendRequest:
        term, run, generation, begin_lsn, commit_lsn, truncate_lsn, sequence, healthy = (
            _APPEND_REQUEST_BODY.unpack_from(self._buffer, begin)
        )
        payload = bytes(self._buffer[begin + _APPEND_REQUEST_BODY.size : end])
        if healthy > 1 or not generation or not begin_lsn:
            raise RemoteProtocolError(
                f"an append has a field out of range: healthy {healthy}, generation {generation}, "
                f"begin {format_lsn(begin_lsn)}"
            )
        if begin_lsn + len(payload) > LSN_MAX:
            raise RemoteProtocolError(f"an append at {format_lsn(begin_lsn)} ends above the highest possible LSN")
        leader_id = self._node(term, run)
        self._append_prefix = _APPEND_REQUEST_PREFIX.pack(term, run, generation)
        self._append_leader_id, self._generation = leader_id, generation
        return AppendRequest(
            leader_id,
            generation,
            begin_lsn,
            commit_lsn,
            truncate_lsn,
            sequence,
            healthy == 1,
            payload,
        )

    def _append_response(self, begin: int) -> AppendResponse:
        term, run, write_lsn, flush_lsn, sequence, has_readers = _APPEND_RESPONSE_BODY.unpack_from(self._buffer, begin)
        if has_readers > 1 or flush_lsn > write_lsn:
            raise RemoteProtocolError(
                f"an append response has a field out of range: write {format_lsn(write_lsn)}, "
                f"flush {format_lsn(flush_lsn)}, has_readers {has_readers}"
            )
        return AppendResponse(self._node(term, run), write_lsn, flush_lsn, sequence, has_readers == 1)

    def _read_response(self, begin: int, end: int) -> ReadResponse:
        request_id, begin_lsn = _READ_RESPONSE_BODY.unpack_from(self._buffer, begin)
        payload = bytes(self._buffer[begin + _READ_RESPONSE_BODY.size : end])
        if begin_lsn + len(payload) > LSN_MAX:
            raise RemoteProtocolError(f"WAL at {format_lsn(begin_lsn)} ends above the highest possible LSN")
        return ReadResponse(request_id, begin_lsn, payload)

    def _control_message(self, body: bytes) -> _Message:
        assert self._dialect.control is not None  # Only such a dialect has control frames.
        try:
            message = self._dialect.control.decode(body)
            if msgspec.msgpack.encode(message) != body:
                raise RemoteProtocolError(f"{type(message).__name__} has unknown fields or another form")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"a control frame is malformed: {_quotable(error)}") from error
        check_control(message)
        return message

    def _node(self, term: int, run: bytes) -> LeaderId:
        if term != self._term or run != self._run:
            leader_id = LeaderId(term, run.rstrip(b"\0").decode("latin-1"))
            check_leader_id(leader_id)
            self._term, self._run, self._leader_id = term, run, leader_id
        return self._leader_id


class DeliveringDecoder(FrameDecoder[_Message]):
    """A decoder that passes each message on as soon as its bytes are received: what a proposer reads answers with.

    The event loop reads into `room` and calls `received`. Nearly all messages are append responses of one term, one in
    each read; these are decoded by one comparison and one `unpack`.

    Attributes:
        deliver: called with each message; may raise RemoteProtocolError.

    Args:
        deliver: see above.
        fail: called with a RemoteProtocolError; the connection must be closed.
    """

    def __init__(
        self,
        dialect: Dialect[_Message],
        deliver: Callable[[_Message], None],
        fail: Callable[[RemoteProtocolError], None],
    ) -> None:
        super().__init__(dialect)
        self.deliver = deliver
        self._fail = fail
        self._prefix = b""  # of the append responses that were received last

    def received(self, nbytes: int) -> None:
        """Handle `nbytes` that were written to the start of `room`."""
        begin, end = self.begin, self.end + nbytes
        buffer = self._buffer
        try:
            while end - begin >= _APPEND_RESPONSE_BYTES:
                prefix, write_lsn, flush_lsn, sequence, has_readers = _APPEND_RESPONSE_FRAME.unpack_from(buffer, begin)
                if prefix != self._prefix or flush_lsn > write_lsn or has_readers > 1:
                    break
                begin += _APPEND_RESPONSE_BYTES
                self._wanted = HEADER_BYTES
                # It is one of the dialect's: the prefix is that of one that was.
                answer: Any = AppendResponse(self._leader_id, write_lsn, flush_lsn, sequence, has_readers == 1)
                self.deliver(answer)
            if begin == end:
                self.begin = self.end = 0
                self.room = buffer
                return
            self.begin, self.end = begin, end
            while (message := self.next_message()) is not None:
                if type(message) is AppendResponse:
                    self._prefix = _append_response_prefix(self._leader_id)
                self.deliver(message)
            self.make_room()
        except RemoteProtocolError as error:
            self._fail(error)


def _quotable(error: Exception) -> str:
    """Return msgspec's error, which quotes received bytes, cut so that it fits into a log line."""
    return "".join(each if each.isprintable() else "?" for each in str(error)[:QUOTED_CHARACTERS_MAX])
