"""The wire: every message survives the round trip, and nothing but RemoteProtocolError comes out of bad bytes."""

import itertools
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import LocalProtocolError, RemoteProtocolError
from safekeeper.base.events import FIELD_BYTES_MAX, FIELDS_MAX, PAGE_EVENTS_MAX, TEXT_BYTES_MAX, Event, KeptEvent
from safekeeper.base.lsn import LSN_MAX
from safekeeper.consensus.control_state import NOBODY, LeaderId, TliHistory
from safekeeper.consensus.membership import ADDRESS_BYTES_MAX, Member, Membership, QuorumSizes
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
    KeptReport,
    PeerRead,
    PreVoteRequest,
    PreVoteResponse,
    ProposerGreeting,
    ProposerMessage,
    PullEnded,
    PullSource,
    PullWal,
    ReadRequest,
    ReadResponse,
    Reconfigure,
    Reconfigured,
    Refusal,
    RefusalCode,
    Replaced,
    Standby,
    StandbyFeedback,
    TailRequest,
    TailResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from safekeeper.peers.codec import (
    ACCEPTOR_DIALECT,
    CONTROL_BYTES_MAX,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    PROPOSER_AUTHENTICATION,
    PROPOSER_DIALECT,
    AppendEncoder,
    DeliveringDecoder,
    FrameDecoder,
    encode,
)
from safekeeper.peers.message_checks import (
    AGENT_NAME_BYTES_MAX,
    AGENT_REPORT_BYTES_MAX,
    AGENT_SETTINGS_BYTES_MAX,
    AGENTS_MAX,
    PROBLEM_BYTES_MAX,
)

words = st.text("0123456789abcdefXYZ_-", min_size=1, max_size=32)
numbers = st.integers(0, LSN_MAX)
positive = st.integers(1, LSN_MAX)
lsns = st.integers(1, LSN_MAX - PAYLOAD_BYTES_MAX)
payloads = st.binary(max_size=300)
leader_ids = st.builds(LeaderId, positive, words)
maybe_nobody = st.one_of(st.just(NOBODY), leader_ids)
addresses = st.sampled_from(["", "db1:9001", "[2001:db8::1]:9001", "ä" * (ADDRESS_BYTES_MAX // 2)])
segment_sizes = st.sampled_from([1 << 20, 16 << 20, 1 << 30])


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    def half(least: int) -> tuple[Member, ...]:
        ids = draw(st.lists(st.integers(1, 9), min_size=least, max_size=5, unique=True))
        return tuple(Member(i, draw(words), draw(addresses)) for i in sorted(ids))

    return Membership(draw(positive), half(1), half(0), draw(numbers))


@st.composite
def histories(draw: st.DrawFn, least: int = 0) -> tuple[HistoryEntry, ...]:
    terms = sorted(draw(st.lists(st.integers(1, 1000), min_size=least, max_size=6, unique=True)))
    starts = sorted(draw(st.lists(positive, min_size=len(terms), max_size=len(terms))))
    tlis = sorted(draw(st.lists(st.integers(1, 50), min_size=len(terms), max_size=len(terms))))
    floors = draw(st.lists(st.integers(0, 50), min_size=len(terms), max_size=len(terms)))
    given_up = draw(st.lists(st.booleans(), min_size=len(terms), max_size=len(terms)))
    return tuple(HistoryEntry(*entry) for entry in zip(terms, starts, tlis, given_up, floors, strict=True))


tli_histories = st.lists(st.builds(TliHistory, st.integers(1, 99), payloads), max_size=3).map(tuple)
ranges = st.tuples(positive, positive).map(sorted)

pull_sources = st.builds(PullSource, positive, st.sampled_from(["host:1", "[::1]:5454", "x" * ADDRESS_BYTES_MAX]))

agent_names = st.sampled_from(["db1", "Rechner ü", "x" * AGENT_NAME_BYTES_MAX])
agent_settings = st.builds(
    AgentSettingsVersion, positive, st.text("0123456789abcdef", min_size=32, max_size=32), payloads
)
kept_reports = st.dictionaries(agent_names, st.tuples(numbers, payloads)).map(
    lambda kept: tuple(KeptReport(name, *kept[name]) for name in sorted(kept))
)

fields = st.dictionaries(
    words,
    st.sampled_from(["", "0/3000000", "ü" * 100]) | st.integers(-(1 << 62), 1 << 62) | st.floats(-1e9, 1e9),
    max_size=3,
)
events = st.builds(
    Event, words, numbers, words, st.sampled_from(["walproxy", "safekeeper 2"]), st.just("one line"), fields
)
proposer_messages = st.one_of(
    st.builds(ProposerGreeting, positive, words, positive, st.none() | positive, st.none() | segment_sizes),
    st.builds(Bootstrap, words, positive, segment_sizes, positive, memberships(), st.booleans()),
    st.builds(PreVoteRequest, words, st.booleans()),
    st.builds(VoteRequest, leader_ids, positive, words, memberships()),
    st.builds(Reconfigure, leader_ids, memberships()),
    st.builds(
        Elected,
        leader_ids,
        words,
        positive,
        segment_sizes,
        positive,
        memberships(),
        histories(1),
        tli_histories,
        numbers,
        numbers,
        numbers,
        numbers,
    ),
    st.builds(AgentExchange, words, agent_names, st.binary(min_size=1, max_size=300), st.none() | agent_settings),
    st.builds(AgentExchange, words, st.just(""), st.just(b""), st.none() | agent_settings),
    st.builds(EventExchange, st.just("") | words, st.lists(events, max_size=3).map(tuple), st.none() | numbers),
    st.builds(ArchiveAssignment, leader_ids, numbers, numbers),
    st.builds(AppendRequest, leader_ids, positive, lsns, numbers, numbers, numbers, st.booleans(), payloads),
    st.builds(lambda node, i, r: ReadRequest(node, i, *r), leader_ids, numbers, ranges),
    st.builds(lambda node, i, r: PeerRead(node, i, *r), leader_ids, numbers, ranges),
    st.builds(PullWal, leader_ids, numbers, numbers, numbers, st.lists(pull_sources, max_size=3).map(tuple)),
    st.builds(
        lambda node, i, b, n: DigestRequest(node, i, b, b + n), leader_ids, numbers, lsns, st.integers(0, 1 << 20)
    ),
    st.builds(TailRequest, leader_ids, numbers, numbers),
)
standbys = st.builds(Standby, st.sampled_from(["", "walreceiver", "Standby 1"]), lsns, lsns, lsns, numbers, numbers)
problems = st.sampled_from(["", "no route to the store", "x" * PROBLEM_BYTES_MAX, "fichier non trouvé: ü"])
acceptor_messages = st.one_of(
    st.builds(AgentView, words, words, maybe_nobody, *[numbers] * 6, st.none() | agent_settings, kept_reports),
    st.builds(EventPage, st.lists(st.builds(KeptEvent, numbers, events), max_size=3).map(tuple), numbers),
    st.builds(Reconfigured, leader_ids, positive),
    st.builds(PullEnded, leader_ids, numbers, numbers, problems),
    st.builds(StandbyFeedback, st.lists(standbys, max_size=3).map(tuple)),
    st.builds(ArchiveReport, numbers, st.booleans(), st.booleans(), numbers, problems),
    st.builds(
        AcceptorGreeting,
        positive,
        positive,
        words,
        st.just("") | words,
        numbers,
        st.just(0) | segment_sizes,
        numbers,
        st.none() | memberships(),
        maybe_nobody,
        numbers,
        numbers,
        numbers,
        numbers,
        numbers,
        st.none() | st.builds(Replaced, words, numbers, segment_sizes, numbers, memberships(), numbers, numbers),
        numbers,
        numbers,
    ),
    st.builds(Bootstrapped, words, positive),
    st.builds(PreVoteResponse, st.booleans(), st.just("") | words),
    st.builds(
        VoteResponse,
        leader_ids,
        st.booleans(),
        maybe_nobody,
        histories(),
        tli_histories,
        *[numbers] * 5,
    ),
    st.builds(lambda node, r, s, h: AppendResponse(node, r[1], r[0], s, h), leader_ids, ranges, numbers, st.booleans()),
    st.builds(ReadResponse, numbers, lsns, payloads),
    st.builds(DigestResponse, numbers, numbers, numbers, st.lists(st.integers(0, 0xFFFFFFFF)).map(tuple)),
    st.builds(TailResponse, numbers, numbers, numbers, numbers),
    st.builds(Refusal, st.sampled_from(RefusalCode), st.text(max_size=50), maybe_nobody, numbers),
)

NODE = LeaderId(7, "run7")


def frame(message: object) -> bytes:
    return b"".join(encode(message))  # type: ignore[arg-type]


def decode_in_pieces(decoder: FrameDecoder, data: bytes, cuts: list[int]) -> list[object]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [m for low, high in itertools.pairwise(edges) for m in decoder.feed(data[low:high])]


@given(st.lists(proposer_messages, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_every_proposer_message_survives_the_wire_in_pieces_of_any_size(messages: list, cuts: list[int]) -> None:
    data = b"".join(frame(m) for m in messages)
    assert decode_in_pieces(FrameDecoder(PROPOSER_DIALECT), data, cuts) == messages


@given(st.lists(acceptor_messages, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_every_acceptor_message_survives_the_wire_in_pieces_of_any_size(messages: list, cuts: list[int]) -> None:
    data = b"".join(frame(m) for m in messages)
    assert decode_in_pieces(FrameDecoder(ACCEPTOR_DIALECT), data, cuts) == messages


class Deliveries:
    """A decoder that delivers, and what it has delivered."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.errors: list[RemoteProtocolError] = []
        self.decoder = DeliveringDecoder(ACCEPTOR_DIALECT, self.messages.append, self.errors.append)

    def receive(self, data: bytes) -> None:
        """Do what the event loop does."""
        while data:
            room = self.decoder.room
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.decoder.received(size)


answers = st.builds(lambda r, s, h: AppendResponse(NODE, r[1], r[0], s, h), ranges, numbers, st.booleans())


@given(
    st.lists(st.one_of(answers, answers, answers, acceptor_messages), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=6),
)
def test_every_acceptor_message_is_delivered_in_pieces_of_any_size(messages: list, cuts: list[int]) -> None:
    data = b"".join(frame(m) for m in messages)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    deliveries = Deliveries()
    for low, high in itertools.pairwise(edges):
        deliveries.receive(data[low:high])
    assert deliveries.messages == messages and deliveries.errors == []


def test_a_short_message_is_delivered_after_an_answer_that_arrived_in_two_pieces() -> None:
    answer, vote = AppendResponse(NODE, 200, 100, 1), PreVoteResponse(True, "")
    deliveries = Deliveries()
    deliveries.receive(frame(answer))
    deliveries.receive(frame(answer)[:20])
    deliveries.receive(frame(answer)[20:])
    deliveries.receive(frame(vote))
    assert deliveries.messages == [answer, answer, vote]


@pytest.mark.parametrize("fields", [(100, 200, 1, 0), (200, 100, 1, 2)])
def test_a_usual_answer_with_a_field_out_of_range_is_refused(fields: tuple[int, int, int, int]) -> None:
    usual = frame(AppendResponse(NODE, 200, 100, 1))
    deliveries = Deliveries()
    deliveries.receive(usual)
    deliveries.receive(usual[:-25] + struct.pack("<QQQB", *fields))
    assert len(deliveries.messages) == 1
    assert "out of range" in str(deliveries.errors[0])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_incomplete(data: bytes) -> None:
    for dialect in (PROPOSER_DIALECT, ACCEPTOR_DIALECT):
        try:
            assert FrameDecoder(dialect).feed(data) == []  # type: ignore[arg-type]
        except RemoteProtocolError:
            pass


@given(st.binary(max_size=200), st.sampled_from([1, 2, 3, 4]))
def test_random_bodies_behind_a_right_header_are_refused_or_decoded(body: bytes, kind: int) -> None:
    header = struct.pack("<HBBI", 0x5750, 1, kind, len(body))
    for dialect in (PROPOSER_DIALECT, ACCEPTOR_DIALECT):
        try:
            FrameDecoder(dialect).feed(header + body)  # type: ignore[arg-type]
        except RemoteProtocolError:
            pass


@settings(max_examples=300)
@given(st.one_of(proposer_messages, acceptor_messages), st.data())
def test_flipped_and_missing_bytes_raise_nothing_but_remote_protocol_errors(
    message: object, data: st.DataObject
) -> None:
    damaged = bytearray(frame(message))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] ^= data.draw(st.integers(1, 255))
    del damaged[data.draw(st.integers(1, len(damaged))) :]
    for dialect in (PROPOSER_DIALECT, ACCEPTOR_DIALECT):
        try:
            FrameDecoder(dialect).feed(bytes(damaged))  # type: ignore[arg-type]
        except RemoteProtocolError:
            pass


@given(
    st.one_of(proposer_messages, acceptor_messages).filter(lambda m: not isinstance(m, AppendRequest | ReadResponse))
)
def test_a_control_frame_with_bytes_behind_its_message_is_refused(message: object) -> None:
    body = frame(message)[HEADER_BYTES:] + b"\x00"
    kind = frame(message)[3]
    dialect = PROPOSER_DIALECT if isinstance(message, msgspec.Struct) and decodes(PROPOSER_DIALECT, message) else None
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(dialect or ACCEPTOR_DIALECT).feed(struct.pack("<HBBI", 0x5750, 1, kind, len(body)) + body)


def decodes(dialect: object, message: object) -> bool:
    try:
        return bool(FrameDecoder(dialect).feed(frame(message)))  # type: ignore[arg-type,var-annotated]
    except RemoteProtocolError:
        return False


def control(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return struct.pack("<HBBI", 0x5750, 1, 1, len(body)) + body


VOTE = {"type": "vote_request", "leader_id": [7, "run7"], "generation": 1}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("magic", b"GET / HTTP/1.1\r\n\r\n"),
        ("version", struct.pack("<HBBI", 0x5750, 9, 1, 10)),
        ("kind", struct.pack("<HBBI", 0x5750, 1, 77, 10)),
        ("other side's kind", struct.pack("<HBBI", 0x5750, 1, 3, 65)),
        ("empty control frame", struct.pack("<HBBI", 0x5750, 1, 1, 0)),
        ("oversized control frame", struct.pack("<HBBI", 0x5750, 1, 1, CONTROL_BYTES_MAX + 1)),
        ("oversized append", struct.pack("<HBBI", 0x5750, 1, 2, PAYLOAD_BYTES_MAX + 82)),
        ("append too short for its fields", struct.pack("<HBBI", 0x5750, 1, 2, 80)),
        ("unknown message", control(VOTE | {"type": "coup"})),
        ("other side's message", control({"type": "bootstrapped", "cluster_id": "c", "generation": 1})),
        ("unknown field", control(VOTE | {"colour": "red"})),
        ("missing field", control({"type": "vote_request", "generation": 1})),
        ("wrong type", control(VOTE | {"generation": "1"})),
        ("negative number", control(VOTE | {"generation": -1})),
        ("generation 0", control(VOTE | {"generation": 0})),
        ("term 0", control(VOTE | {"leader_id": [0, "run7"]})),
        ("empty run", control(VOTE | {"leader_id": [7, ""]})),
        ("run that is a path", control(VOTE | {"leader_id": [7, "../x"]})),
        ("run of 33 bytes", control(VOTE | {"leader_id": [7, "x" * 33]})),
        ("too large a number", control(VOTE | {"generation": 1.5})),
        ("message whose name has two lines", control(VOTE | {"type": "coup\nINFO all is well"})),
        ("message with an endless name", control(VOTE | {"type": "coup" * 100_000})),
        ("deep nesting", struct.pack("<HBBI", 0x5750, 1, 1, 100_000) + b"\x91" * 100_000),
        ("text that is not UTF-8", struct.pack("<HBBI", 0x5750, 1, 1, 7) + b"\x81\xa4type\xff"),
    ],
)
def test_what_is_not_understood_is_refused_with_one_line(name: str, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        FrameDecoder(PROPOSER_DIALECT).feed(data)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500, name
    with pytest.raises(RemoteProtocolError) as after_an_append:
        decoder_of_appends().feed(data.ljust(100, b"\0"))
    assert str(after_an_append.value) == str(caught.value) or name in ("empty control frame",), name


EXCHANGE = {"type": "agent_exchange", "cluster_id": "c", "name": "db1", "report": b"{}", "settings": None}
VIEW = {
    "type": "agent_view",
    "cluster_id": "c",
    "incarnation": "i",
    "promised": [7, "run7"],
    **dict.fromkeys(("leader_age_ms", "last_term", "log_tli", "floor", "flush_lsn", "commit_lsn"), 1),
    "settings": None,
    "reports": [],
}
AUTHOR = "a" * 32


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"name": "ä" * 31, "report": bytes(AGENT_REPORT_BYTES_MAX)}, ""),
        ({"settings": [1, AUTHOR, bytes(AGENT_SETTINGS_BYTES_MAX)]}, ""),
        ({"cluster_id": ""}, "AgentExchange.cluster_id: it cannot be empty"),
        ({"name": ""}, "AgentExchange with a name or a report alone"),
        ({"report": b""}, "AgentExchange with a name or a report alone"),
        ({"name": "ä" * 32}, "AgentExchange.name: '" + "ä" * 32 + "' cannot be the name of an agent"),
        ({"name": "two\nlines"}, "AgentExchange.name: 'two\\nlines' cannot be the name of an agent"),
        ({"report": bytes(AGENT_REPORT_BYTES_MAX + 1)}, "AgentExchange.report: 4097 bytes are more than"),
        ({"settings": [1, AUTHOR, bytes(AGENT_SETTINGS_BYTES_MAX + 1)]}, "settings: 16385 bytes are more than"),
        ({"settings": [0, AUTHOR, b""]}, "AgentExchange.settings: 0 is not positive"),
        ({"settings": [-1, AUTHOR, b""]}, "AgentExchange.settings: -1 is out of range"),
        ({"settings": [1, "A" * 32, b""]}, "is not an author: 32 hexadecimal digits are required"),
        ({"settings": [1, "a" * 31, b""]}, "is not an author"),
    ],
)
def test_what_an_agent_sends_is_bounded(changes: dict[str, Any], problem: str) -> None:
    decoder, data = FrameDecoder(PROPOSER_DIALECT), control(EXCHANGE | changes)
    if not problem:
        assert len(decoder.feed(data)) == 1
        return
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(data)
    assert problem in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"reports": [[f"{i:02}", 0, bytes(AGENT_REPORT_BYTES_MAX)] for i in range(AGENTS_MAX)]}, ""),
        ({"reports": [[f"{i:02}", 0, b"{}"] for i in range(AGENTS_MAX + 1)]}, "65 reports are more than the maximum"),
        ({"reports": [["b", 0, b"{}"], ["a", 0, b"{}"]]}, "the names of the agents are not ascending"),
        ({"reports": [["a", 0, b"{}"], ["a", 0, b"{}"]]}, "the names of the agents are not ascending"),
        ({"reports": [["", 0, b"{}"]]}, "the names of the agents are not ascending"),
        ({"reports": [["x" * 64, 0, b"{}"]]}, "cannot be the name of an agent"),
        ({"reports": [["a", -1, b"{}"]]}, "-1 is out of range"),
        ({"reports": [["a", 0, bytes(AGENT_REPORT_BYTES_MAX + 1)]]}, "4097 bytes are more than the maximum of 4096"),
        ({"leader_age_ms": -1}, "AgentView.leader_age_ms: -1 is out of range"),
        ({"cluster_id": ""}, "AgentView.cluster_id: it cannot be empty"),
        ({"promised": [7, ""]}, "AgentView.promised"),
    ],
)
def test_what_an_agent_receives_is_bounded(changes: dict[str, Any], problem: str) -> None:
    decoder, data = FrameDecoder(ACCEPTOR_DIALECT), control(VIEW | changes)
    if not problem:
        assert len(decoder.feed(data)) == 1
        return
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed(data)
    assert problem in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


EVENT = ["a-1", 5, "term-won", "walproxy", "text", {}]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({4: "x" * TEXT_BYTES_MAX, 5: {str(i): "x" * FIELD_BYTES_MAX for i in range(FIELDS_MAX)}}, ""),
        ({0: "a b"}, "'a b' is not 1 to 32 letters and digits"),
        ({1: -1}, "-1 is out of range"),
        ({2: ""}, "'' is not 1 to 32 letters and digits"),
        ({3: "x" * 101}, "cannot be the source of an event"),
        ({3: "two\nlines"}, "cannot be the source of an event"),
        ({4: "two\nlines"}, "'two\\nlines' is not one line of at most 1000 bytes"),
        ({4: "x" * (TEXT_BYTES_MAX + 1)}, "is not one line of at most 1000 bytes"),
        ({5: {str(i): 0 for i in range(FIELDS_MAX + 1)}}, "17 fields are more than the maximum of 16"),
        ({5: {"a b": 0}}, "'a b' is not 1 to 32 letters and digits"),
        ({5: {"a": "two\nlines"}}, "cannot be the value of a field"),
        ({5: {"a": "x" * (FIELD_BYTES_MAX + 1)}}, "cannot be the value of a field"),
        ({5: {"a": float("nan")}}, "'nan' cannot be the value of a field"),
        ({5: {"a": float("inf")}}, "'inf' cannot be the value of a field"),
        ({5: {"a": [1]}}, "a control frame is malformed"),
    ],
)
def test_events_are_bounded_in_both_directions(changes: dict[int, Any], problem: str) -> None:
    event = [changes.get(i, value) for i, value in enumerate(EVENT)]
    exchange = {"type": "event_exchange", "cluster_id": "c", "events": [event], "since": None}
    page = {"type": "event_page", "events": [[1, event]], "next_seq": 2}
    for dialect, message in ((PROPOSER_DIALECT, exchange), (ACCEPTOR_DIALECT, page)):
        decoder: FrameDecoder[Any] = FrameDecoder(dialect)
        if not problem:
            assert len(decoder.feed(control(message))) == 1
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            decoder.feed(control(message))
        assert problem in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_the_number_of_events_in_a_message_is_bounded() -> None:
    for count in (PAGE_EVENTS_MAX, PAGE_EVENTS_MAX + 1):
        decoder = FrameDecoder(PROPOSER_DIALECT)
        data = control({"type": "event_exchange", "cluster_id": "c", "events": [EVENT] * count, "since": 0})
        if count == PAGE_EVENTS_MAX:
            assert len(decoder.feed(data)) == 1
        else:
            with pytest.raises(RemoteProtocolError, match="201 events are more than the maximum of 200"):
                decoder.feed(data)


def append_frame(**changes: int) -> bytes:
    fields = {"term": 7, "generation": 1, "begin_lsn": 100, "healthy": 1} | changes
    return struct.pack(
        "<HBBIQ32sQQQQQB3s",
        0x5750,
        1,
        2,
        84,
        fields["term"],
        b"run7",
        fields["generation"],
        fields["begin_lsn"],
        0,
        0,
        5,
        fields["healthy"],
        b"WAL",
    )


def decoder_of_appends() -> FrameDecoder[ProposerMessage]:
    """Return a decoder that knows a term: it decodes the next append in one call."""
    decoder = FrameDecoder(PROPOSER_DIALECT)
    assert len(decoder.feed(append_frame())) == 1
    return decoder


def test_an_append_is_decoded_as_it_stands() -> None:
    expected = AppendRequest(NODE, 1, 100, 0, 0, 5, True, b"WAL")
    assert FrameDecoder(PROPOSER_DIALECT).feed(append_frame()) == [expected]
    assert frame(expected) == append_frame()
    assert decoder_of_appends().feed(2 * append_frame()) == [expected, expected]
    of_another_term = append_frame(term=8) + append_frame()
    terms = [message.leader_id.term for message in decoder_of_appends().feed(of_another_term)]  # type: ignore[union-attr]
    assert terms == [8, 7]


def test_an_append_that_is_not_like_the_last_one_is_decoded_as_it_stands() -> None:
    frames = [append_frame(), append_frame(generation=2), append_frame(healthy=0), append_frame(), append_frame(term=8)]
    appends: Any = FrameDecoder(PROPOSER_DIALECT).feed(b"".join(frames))
    reported = [(append.leader_id.term, append.generation, append.healthy) for append in appends]
    assert reported == [(7, 1, True), (7, 2, True), (7, 1, False), (7, 1, True), (8, 1, True)]
    assert [append.payload for append in appends] == [b"WAL"] * 5


def test_an_append_that_is_like_the_last_one_is_refused_in_another_dialect() -> None:
    decoder: FrameDecoder[Any] = decoder_of_appends()
    decoder.use(PROPOSER_AUTHENTICATION)
    with pytest.raises(RemoteProtocolError):
        decoder.feed(append_frame())


def test_an_append_that_is_like_the_last_one_is_no_longer_than_the_peer_may_send() -> None:
    decoder = FrameDecoder(PROPOSER_DIALECT, frame_bytes_max=len(append_frame()))
    assert len(decoder.feed(2 * append_frame())) == 2
    longer = frame(AppendRequest(NODE, 1, 100, 0, 0, 5, True, b"WAL+"))
    with pytest.raises(RemoteProtocolError, match="too long before authentication"):
        decoder.feed(longer)


def test_the_room_is_where_the_next_bytes_go() -> None:
    decoder = FrameDecoder(PROPOSER_DIALECT)
    frames = [append_frame(begin_lsn=number, healthy=number % 4 > 0) for number in range(1, 100)]
    data, received, whole = b"".join(frames), [], len(frames[0])
    sizes = itertools.cycle((whole, whole, whole, whole + 8, 10, 2 * whole - 18))
    while data:
        size = min(next(sizes), len(data))
        decoder.room[:size] = data[:size]
        data = data[size:]
        message = decoder.next_append(size)
        while message is not None:
            received.append(message)
            message = decoder.next_append() if decoder.begin < decoder.end else None
    assert received == [AppendRequest(NODE, 1, at, 0, 0, 5, at % 4 > 0, b"WAL") for at in range(1, 100)]


@pytest.mark.parametrize(("offset", "value"), [(0, 0), (2, 9), (3, 3)], ids=["magic", "version", "kind"])
def test_a_frame_that_is_an_append_but_for_its_header_is_refused(offset: int, value: int) -> None:
    data = bytearray(append_frame())
    data[offset] = value
    with pytest.raises(RemoteProtocolError):
        decoder_of_appends().feed(data)


def test_an_append_that_is_too_long_is_refused_although_the_buffer_has_room_for_it() -> None:
    decoder = decoder_of_appends()
    members = Membership(1, (Member(1, "i" * 32),))
    history = (HistoryEntry(7, 1 << 24, 1),)
    tli_histories = (TliHistory(2, b"x" * (CONTROL_BYTES_MAX - 1000)),)
    decoder.feed(frame(Elected(NODE, "c", 1, 1 << 24, 170000, members, history, tli_histories, 1 << 24, 0)))
    length = PAYLOAD_BYTES_MAX + 82
    data = struct.pack("<HBBI", 0x5750, 1, 2, length) + append_frame()[8:-3] + bytes(PAYLOAD_BYTES_MAX + 1)
    room = decoder.get_buffer()
    room[: len(data)] = data
    with pytest.raises(RemoteProtocolError, match="a frame of kind 2 has"):
        decoder.next_append(len(data))


def test_an_append_that_is_too_short_for_its_fields_is_refused_although_more_was_received() -> None:
    data = bytearray(2 * append_frame())
    data[4] = len(append_frame()) - HEADER_BYTES - len(b"WAL") - 1
    with pytest.raises(RemoteProtocolError, match="a frame of kind 2 has 80 bytes"):
        decoder_of_appends().feed(data)


def test_an_append_in_two_pieces_is_decoded_once_it_is_complete() -> None:
    data = append_frame()
    for index in range(len(data)):
        decoder = decoder_of_appends()
        assert decoder.feed(data[:index]) == []
        assert len(decoder.feed(data[index:])) == 1


def test_an_append_in_pieces_is_decoded_once_it_is_complete() -> None:
    decoder, data = decoder_of_appends(), append_frame()
    for index in range(len(data) - 1):
        assert decoder.feed(data[index : index + 1]) == []
    assert decoder.feed(data[-1:]) == [AppendRequest(NODE, 1, 100, 0, 0, 5, True, b"WAL")]


@pytest.mark.parametrize(
    "changes", [{"term": 0}, {"generation": 0}, {"begin_lsn": 0}, {"begin_lsn": LSN_MAX}, {"healthy": 2}]
)
def test_an_append_with_a_field_out_of_range_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        FrameDecoder(PROPOSER_DIALECT).feed(append_frame(**changes))
    with pytest.raises(RemoteProtocolError) as after_an_append:
        decoder_of_appends().feed(append_frame(**changes))
    assert str(after_an_append.value) == str(caught.value)


@pytest.mark.parametrize(
    "standby",
    [Standby("a" * 64), Standby("é" * 32), Standby("a\nb")]
    + [
        msgspec.structs.replace(Standby("a", 5, 5, 5, 5, 5), **{field: wrong})
        for field in Standby.__struct_fields__[1:]
        for wrong in (-1, LSN_MAX + 1)
    ],
)
def test_a_standby_that_cannot_be_is_refused_by_both_sides(standby: Standby) -> None:
    feedback = StandbyFeedback((Standby("good", 1, 2, 3, 4, 5), standby))
    with pytest.raises(LocalProtocolError, match=r"StandbyFeedback\.standbys: "):
        encode(feedback)
    if all(number <= LSN_MAX for number in msgspec.structs.astuple(standby)[1:]):  # Others cannot be encoded.
        with pytest.raises(RemoteProtocolError, match="StandbyFeedback"):
            FrameDecoder(ACCEPTOR_DIALECT).feed(control(feedback))


def test_feedback_about_too_many_standbys_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="1001 standbys are more than the maximum of 1000"):
        encode(StandbyFeedback(tuple(Standby(f"s{number}") for number in range(1001))))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ((PullSource(1, "host:1"), PullSource(2, "")), "safekeeper 2 has no address"),
        ((PullSource(0, "host:1"),), "0 is not positive"),
        ((PullSource(1, "two\nlines"),), "is not the address of a member"),
        ((PullSource(1, "x" * (ADDRESS_BYTES_MAX + 1)),), "is not the address of a member"),
        (
            tuple(PullSource(number, "host:1") for number in range(1, 102)),
            "101 sources are more than the maximum of 100",
        ),
    ],
)
def test_sources_that_cannot_be_are_refused_by_both_sides(sources: tuple[PullSource, ...], message: str) -> None:
    pull = PullWal(NODE, 1, 100, 0, sources)
    with pytest.raises(LocalProtocolError, match=message):
        encode(pull)
    with pytest.raises(RemoteProtocolError, match=message):
        FrameDecoder(PROPOSER_DIALECT).feed(control(pull))


def test_an_append_response_that_flushed_more_than_it_wrote_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(ACCEPTOR_DIALECT).feed(frame(AppendResponse(NODE, 100, 200, 1)))


@pytest.mark.parametrize("kind", [ReadRequest, PeerRead])
def test_a_read_that_ends_before_it_begins_is_refused_on_both_sides(kind: type[ReadRequest | PeerRead]) -> None:
    with pytest.raises(LocalProtocolError):
        encode(kind(NODE, 1, 200, 100))
    good = msgspec.to_builtins(kind(NODE, 1, 100, 200)) | {"begin_lsn": 300}
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(PROPOSER_DIALECT).feed(control(good))


def test_a_history_that_goes_back_is_refused() -> None:
    history = (HistoryEntry(2, 100, 1), HistoryEntry(1, 200, 1))
    with pytest.raises(LocalProtocolError, match="goes back"):
        encode(VoteResponse(NODE, True, NODE, history))


@pytest.mark.parametrize("problem", ["two\nlines", "a bell: \a", "x" * (PROBLEM_BYTES_MAX + 1), "ü" * 501])
def test_a_problem_of_the_archive_is_one_line_that_fits(problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"ArchiveReport\.problem"):
        encode(ArchiveReport(100, True, True, 0, problem))
    forged = msgspec.to_builtins(ArchiveReport(100, True, True, 0, "fits")) | {"problem": problem}
    with pytest.raises(RemoteProtocolError, match=r"ArchiveReport\.problem"):
        FrameDecoder(ACCEPTOR_DIALECT).feed(control(forged))


def test_an_order_of_nobody_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        encode(ArchiveAssignment(NOBODY, 1, 100))


def test_an_oversized_frame_is_refused_before_any_of_it_is_buffered() -> None:
    decoder = FrameDecoder(PROPOSER_DIALECT)
    with pytest.raises(RemoteProtocolError, match="bytes, not"):
        decoder.feed(struct.pack("<HBBI", 0x5750, 1, 2, 0xFFFFFFFF))


def test_the_buffer_never_holds_more_than_one_frame_of_the_largest_kind() -> None:
    decoder = FrameDecoder(PROPOSER_DIALECT)
    data = frame(AppendRequest(NODE, 1, 100, 0, 0, 0, True, bytes(PAYLOAD_BYTES_MAX)))
    fed, count = 0, 0
    while count < 3:
        room = decoder.get_buffer()
        assert 0 < len(room) <= len(data)
        size = min(len(room), len(data) - fed % len(data))
        room[:size] = data[fed % len(data) : fed % len(data) + size]
        fed += size
        decoder.buffer_updated(size)
        while decoder.next_message() is not None:
            count += 1
    assert fed == 3 * len(data)


def test_wal_is_not_copied_when_it_is_encoded() -> None:
    wal = memoryview(b"0123456789")
    header, payload = encode(AppendRequest(NODE, 1, 100, 90, 80, 3, False, wal))
    assert payload is wal
    assert header == AppendEncoder(NODE).header(AppendRequest(NODE, 1, 100, 90, 80, 3, False, b""), 10)
    assert encode(ReadResponse(4, 100, wal))[1] is wal


def test_the_longest_payload_fits_and_one_byte_more_is_our_own_mistake() -> None:
    longest = AppendRequest(NODE, 1, 100, 0, 0, 0, True, bytes(PAYLOAD_BYTES_MAX))
    assert FrameDecoder(PROPOSER_DIALECT).feed(frame(longest)) == [longest]
    for message in (
        AppendRequest(NODE, 1, 100, 0, 0, 0, True, bytes(PAYLOAD_BYTES_MAX + 1)),
        ReadResponse(1, 100, bytes(PAYLOAD_BYTES_MAX + 1)),
        AppendRequest(LeaderId(7, "x" * 33), 1, 100, 0, 0, 0, True, b""),
        AppendRequest(NODE, 1, -1, 0, 0, 0, True, b""),
    ):
        with pytest.raises(LocalProtocolError):
            encode(message)


@pytest.mark.parametrize(
    ("membership", "problem"),
    [
        (
            Membership(1, (Member(1, "a"),), quorum_sizes=QuorumSizes(elect="2")),
            "the elect quorum '2' is 2 for N = 1",
        ),
        (Membership(1, (Member(1, "a", "two\nlines"),)), "is not the address of a member"),
        (Membership(1, (Member(1, "a", "x" * (ADDRESS_BYTES_MAX + 1)),)), "is not the address of a member"),
    ],
)
def test_a_membership_that_is_not_understood_is_refused(membership: Membership, problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=rf"Bootstrap\.membership: .*{problem}"):
        encode(Bootstrap("c", 5, 1 << 20, 150000, membership))
    good = Bootstrap("c", 5, 1 << 20, 150000, Membership(1, (Member(1, "a"),)))
    forged = msgspec.to_builtins(good) | {"membership": msgspec.to_builtins(membership)}
    with pytest.raises(RemoteProtocolError, match=problem):
        FrameDecoder(PROPOSER_DIALECT).feed(control(forged))
