"""Whole conversations: what PostgreSQL's clients say, what they are told, and what ends it."""

import hashlib
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient

from safekeeper.base.errors import LocalProtocolError, RemoteProtocolError
from safekeeper.pgwire.backend import keepalive, xlog_data_header
from safekeeper.pgwire.commands import (
    CreateSlot,
    DropSlot,
    IdentifySystem,
    ReadSlot,
    Show,
    StartReplication,
    TimelineHistory,
)
from safekeeper.pgwire.events import (
    Authenticated,
    CommandReceived,
    CommandRefused,
    CopyEnded,
    Event,
    HotStandbyFeedback,
    StartTls,
    StatusUpdate,
    Terminated,
)
from safekeeper.pgwire.refusal import ClientRefused
from safekeeper.pgwire.scram import make_verifier
from safekeeper.pgwire.session import Session, SessionState
from tests.unit.pgwire_client import (
    CANCEL_REQUEST,
    COPY_DONE,
    COPY_FAIL,
    FLUSH,
    GSSENC_REQUEST,
    PARSE,
    PROTOCOL_3_0,
    SSL_REQUEST,
    SYNC,
    TERMINATE,
    TEXT_COLUMN,
    answer,
    copy_data,
    error_of,
    hot_standby_feedback,
    kinds_of,
    message,
    messages_of,
    new_session,
    packet,
    query,
    ready_session,
    row_of,
    sasl_initial_response,
    sasl_response,
    startup,
    status_update,
    streaming_session,
)

USERS = {"me": str(make_verifier("pencil", b"0123456789abcdef"))}


def refusal(session: Session, data: bytes) -> tuple[str, dict[str, str]]:
    """What `data` makes of the session that it ends: our words and the client's."""
    with pytest.raises(RemoteProtocolError) as caught:
        session.receive(data)
    assert session.state is SessionState.CLOSED
    error = error_of(session.take_output())
    assert error["S"] == "FATAL"
    return str(caught.value), error


# What clients say, as it was seen on the wire of PostgreSQL 13 to 18, and what comes of it.


@dataclass(frozen=True)
class Said:
    """One thing that the client says; the events that it makes; the types of the messages that answer it."""

    data: bytes
    events: list[Event]
    answered: str


def walreceiver(
    create_slot: bytes | None = None, slot: str | None = "standby_1", start: str = 'SLOT "standby_1" '
) -> list[Said]:
    """A standby connects, looks at the timelines, streams, and is shut down."""
    asks = [
        Said(
            startup(application_name="standby_1", client_encoding="UTF8"),
            [Authenticated("me", "standby_1", {"client_encoding": "UTF8"})],
            "RSSZ",
        ),
        Said(query("IDENTIFY_SYSTEM"), [CommandReceived(IdentifySystem())], "TDCZ"),
        Said(query("TIMELINE_HISTORY 2"), [CommandReceived(TimelineHistory(2))], "TDCZ"),
    ]
    if create_slot is not None:
        made = CreateSlot("pg_walreceiver_7", temporary=True, reserve_wal=True)
        asks.append(Said(create_slot, [CommandReceived(made)], "TDCZ"))
    return [
        *asks,
        Said(
            query(f"START_REPLICATION {start}0/3000000 TIMELINE 2"),
            [CommandReceived(StartReplication(slot, 0x3000000, 2))],
            "W",
        ),
        # The first reply can say more flushed than written.
        Said(
            status_update(0, 0x3000060, 0x3000060) + hot_standby_feedback(731, 0),
            [StatusUpdate(0, 0x3000060, 0x3000060, False), HotStandbyFeedback(731, 0)],
            "",
        ),
        Said(
            status_update(0x30000A0, 0x3000060, 0x3000060, True),
            [StatusUpdate(0x30000A0, 0x3000060, 0x3000060, True)],
            "",
        ),
        Said(COPY_DONE, [CopyEnded()], "cCCZ"),
        Said(TERMINATE, [Terminated()], ""),
    ]


def pg_receivewal(read_slot: bytes | None) -> list[Said]:
    """pg_receivewal looks around, streams, and is interrupted."""
    begin = [
        Said(startup(application_name="pg_receivewal"), [Authenticated("me", "pg_receivewal", {})], "RSSZ"),
        Said(query("SHOW data_directory_mode"), [CommandReceived(Show("data_directory_mode"))], "TDCZ"),
        Said(query("IDENTIFY_SYSTEM"), [CommandReceived(IdentifySystem())], "TDCZ"),
        Said(query("SHOW wal_segment_size"), [CommandReceived(Show("wal_segment_size"))], "TDCZ"),
        Said(query("IDENTIFY_SYSTEM"), [CommandReceived(IdentifySystem())], "TDCZ"),
    ]
    if read_slot is not None:
        begin.append(Said(read_slot, [CommandReceived(ReadSlot("wp"))], "TDCZ"))
    return [
        *begin,
        Said(query("IDENTIFY_SYSTEM"), [CommandReceived(IdentifySystem())], "TDCZ"),
        Said(
            query('START_REPLICATION SLOT "wp" 0/3000000 TIMELINE 1'),
            [CommandReceived(StartReplication("wp", 0x3000000, 1))],
            "W",
        ),
        Said(status_update(0x3000100, 0x3000100, 0), [StatusUpdate(0x3000100, 0x3000100, 0, False)], ""),
        Said(COPY_DONE, [CopyEnded()], "cCCZ"),
        Said(TERMINATE, [Terminated()], ""),
    ]


CONVERSATIONS = {
    "walreceiver, slot named": walreceiver(),
    "walreceiver, no slot": walreceiver(slot=None, start=""),
    "walreceiver 13 and 14, temporary slot": walreceiver(
        query('CREATE_REPLICATION_SLOT "pg_walreceiver_7" TEMPORARY PHYSICAL RESERVE_WAL'),
        slot="pg_walreceiver_7",
        start='SLOT "pg_walreceiver_7" ',
    ),
    "walreceiver 15 to 18, temporary slot": walreceiver(
        query('CREATE_REPLICATION_SLOT "pg_walreceiver_7" TEMPORARY PHYSICAL (RESERVE_WAL)'),
        slot="pg_walreceiver_7",
        start='SLOT "pg_walreceiver_7" ',
    ),
    "pg_receivewal 13 and 14": pg_receivewal(None),
    "pg_receivewal 15": pg_receivewal(query("READ_REPLICATION_SLOT wp")),
    "pg_receivewal 15 to 18, newer minors": pg_receivewal(query('READ_REPLICATION_SLOT "wp"')),
    "pg_receivewal makes and drops a slot": [
        Said(SSL_REQUEST, [], "N"),
        Said(startup(), [Authenticated("me", "", {})], "RSSZ"),
        Said(
            query('CREATE_REPLICATION_SLOT "wp" PHYSICAL (RESERVE_WAL)'),
            [CommandReceived(CreateSlot("wp", temporary=False, reserve_wal=True))],
            "TDCZ",
        ),
        Said(query('DROP_REPLICATION_SLOT "wp"'), [CommandReceived(DropSlot("wp", wait=False))], "CZ"),
        Said(TERMINATE, [Terminated()], ""),
    ],
    "psql asks for what is not here": [
        Said(GSSENC_REQUEST, [], "N"),
        Said(SSL_REQUEST, [], "N"),
        Said(startup(), [Authenticated("me", "", {})], "RSSZ"),
        Said(query(""), [], "IZ"),
        Said(query(";"), [], "IZ"),
        Said(query("SELECT now() + x"), [CommandRefused("0A000", "a safekeeper does not support SQL")], "EZ"),
        Said(
            query("SHOW"),
            [CommandRefused("42601", "syntax error at its end: expected a name in 'SHOW'")],
            "EZ",
        ),
        Said(PARSE + FLUSH, [CommandRefused("0A000", "only the simple query protocol is supported")], "E"),
        Said(PARSE + query("IDENTIFY_SYSTEM") + SYNC, [], "Z"),
        Said(SYNC + FLUSH, [], "Z"),
        Said(message("F", bytes(8)), [CommandRefused("0A000", "only the simple query protocol is supported")], "EZ"),
        Said(query("IDENTIFY_SYSTEM"), [CommandReceived(IdentifySystem())], "TDCZ"),
        Said(TERMINATE, [Terminated()], ""),
    ],
}


def kinds_and_encryption(output: bytes) -> str:
    """The types of messages, or the one byte that answers a request for encryption."""
    return output.decode() if len(output) == 1 else kinds_of(output)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversation_goes_as_it_does_with_postgresql(name: str) -> None:
    session = new_session()
    for said in CONVERSATIONS[name]:
        events = session.receive(said.data)
        assert events == said.events
        answer(session, events)
        assert kinds_and_encryption(session.take_output()) == said.answered
    assert session.state is SessionState.CLOSED


@given(st.sampled_from(sorted(CONVERSATIONS)), st.lists(st.integers(0, 100), max_size=40))
def test_conversation_does_not_depend_on_how_its_bytes_were_cut(name: str, cuts: list[int]) -> None:
    session = new_session()
    sizes = iter(cuts)
    for said in CONVERSATIONS[name]:
        rest, events, output = said.data, [], b""
        while rest:
            size = 1 + next(sizes, len(rest)) % len(rest)
            got = session.receive(rest[:size])
            events += got
            answer(session, got)
            output += session.take_output()
            rest = rest[size:]
        assert (events, kinds_and_encryption(output)) == (said.events, said.answered)


# Bytes that no client sends.


def converse(session: Session, pieces: list[bytes]) -> bytes:
    """Feed `pieces` and answer as a listener would; return all that was sent. An error must be the end, and say why."""
    output = b""
    for piece in pieces:
        try:
            events = session.receive(piece)
        except RemoteProtocolError as error:
            assert str(error).isprintable()
            assert session.state is SessionState.CLOSED
            assert session.receive(b"more") == []
            return output + session.take_output()
        if session.state is SessionState.TLS_HANDSHAKE:
            output += session.take_output()
            session.tls_started(None)
        answer(session, events)
        output += session.take_output()
    return output


@given(st.booleans(), st.booleans(), st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_of_a_stranger_end_cleanly(tls: bool, asks: bool, pieces: list[bytes]) -> None:
    converse(new_session(tls=tls, users=USERS if asks else None), pieces)


begin_of_message = st.tuples(st.sampled_from("QPBEFHSCDdcfpX"), st.binary(max_size=50)).map(lambda m: message(*m))


@given(
    st.sampled_from([ready_session, streaming_session]),
    st.lists(begin_of_message | st.binary(max_size=20) | st.just(status_update(1, 2, 3)), max_size=8),
)
def test_any_messages_end_cleanly_and_are_answered_by_messages(
    begin: Callable[[], Session], pieces: list[bytes]
) -> None:
    messages_of(converse(begin(), pieces))


@given(st.lists(st.binary(max_size=60).map(sasl_response) | st.binary(max_size=60), max_size=4))
def test_any_answer_to_the_request_for_a_password_ends_cleanly(pieces: list[bytes]) -> None:
    session = new_session(users=USERS)
    messages_of(converse(session, [startup(), sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=abc"), *pieces]))
    assert session.state in (SessionState.AUTHENTICATING, SessionState.CLOSED)


@given(
    st.sampled_from(sorted(CONVERSATIONS)),
    st.integers(0, 11),
    st.integers(0, 200),
    st.integers(0, 3),
    st.binary(max_size=4),
)
def test_a_damaged_conversation_ends_cleanly(name: str, step: int, position: int, cut: int, put: bytes) -> None:
    pieces = [said.data for said in CONVERSATIONS[name]]
    step %= len(pieces)
    position %= len(pieces[step])
    pieces[step] = pieces[step][:position] + put + pieces[step][position + cut :]
    converse(new_session(), pieces)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0", b"\0\0\0\x04", b"SSH-2.0-x\r\n"])
def test_what_is_no_client_gets_no_answer(data: bytes) -> None:
    session = new_session()
    with pytest.raises(RemoteProtocolError):
        session.receive(data)
    assert (session.state, session.take_output()) == (SessionState.CLOSED, b"")


# The beginning.


def test_a_request_to_cancel_is_a_good_bye() -> None:
    session = new_session()
    assert session.receive(CANCEL_REQUEST) == [Terminated()]
    assert (session.state, session.take_output()) == (SessionState.CLOSED, b"")


def test_encryption_by_gssapi_is_declined_and_tls_may_follow() -> None:
    session = new_session(tls=True)
    assert session.receive(GSSENC_REQUEST) == []
    assert session.take_output() == b"N"
    assert session.receive(SSL_REQUEST) == [StartTls(b"")]
    assert session.take_output() == b"S"


@pytest.mark.parametrize("request_twice", [SSL_REQUEST, GSSENC_REQUEST])
def test_encryption_is_asked_for_once(request_twice: bytes) -> None:
    session = new_session()
    with pytest.raises(RemoteProtocolError, match="twice"):
        session.receive(request_twice + request_twice)


def test_encryption_within_tls_is_refused() -> None:
    session = new_session(tls=True)
    session.receive(SSL_REQUEST)
    session.tls_started(None)
    with pytest.raises(RemoteProtocolError, match="twice"):
        session.receive(GSSENC_REQUEST)


def test_a_session_goes_on_behind_tls() -> None:
    session = new_session(tls=True)
    session.receive(SSL_REQUEST)
    assert session.state is SessionState.TLS_HANDSHAKE
    assert session.take_output() == b"S"
    with pytest.raises(LocalProtocolError):
        session.receive(b"\x16\x03")
    session.tls_started(None)
    assert session.receive(startup()) == [Authenticated("me", "", {})]


def test_unencrypted_bytes_behind_the_request_for_tls_are_refused() -> None:
    ours, theirs = refusal(new_session(tls=True), SSL_REQUEST + startup()[:1])
    assert theirs["C"] == "08P01"
    assert "unencrypted" in ours


def test_a_client_that_begins_with_tls_gets_its_bytes_to_the_handshake() -> None:
    session = new_session(tls=True)
    assert session.receive(b"\x16\x03\x01rest") == [StartTls(b"\x16\x03\x01rest")]
    assert (session.state, session.take_output()) == (SessionState.TLS_HANDSHAKE, b"")


def test_tls_within_tls_is_refused() -> None:
    session = new_session(tls=True)
    session.receive(b"\x16\x03\x01")
    session.tls_started(None)
    with pytest.raises(RemoteProtocolError, match="not a PostgreSQL client"):
        session.receive(b"\x16\x03\x01\x02")


def test_a_clients_certificate_lets_in_whom_it_names() -> None:
    named, other = new_session(tls=True), new_session(tls=True)
    for session in (named, other):
        session.receive(SSL_REQUEST)
        session.take_output()
        session.tls_started(None, only_user="me")
    assert named.receive(startup()) == [Authenticated("me", "", {})]
    _, theirs = refusal(other, startup(user="you"))
    assert theirs["C"] == "28000"
    assert 'certificate authentication failed for user "you"' in theirs["M"]


def test_plaintext_at_a_listener_with_tls_is_asked_to_use_it() -> None:
    ours, theirs = refusal(new_session(tls=True), startup())
    assert theirs == {
        "S": "FATAL",
        "V": "FATAL",
        "C": "28000",
        "M": "this listener requires TLS: connect with sslmode=require",
    }
    assert ours == theirs["M"]


def test_parameters_of_the_server_are_reported() -> None:
    session = new_session(parameters={"server_version": "18.1", "in_hot_standby": "on"})
    session.receive(startup())
    assert messages_of(session.take_output()) == [
        ("R", bytes(4)),
        ("S", b"server_version\x0018.1\0"),
        ("S", b"in_hot_standby\0on\0"),
        ("Z", b"I"),
    ]


def test_a_newer_protocol_is_negotiated_down() -> None:
    session = new_session(parameters={})
    session.receive(startup(PROTOCOL_3_0 | 2, **{"_pq_.x": "1"}))
    ((kind, body), *rest) = messages_of(session.take_output())
    assert (kind, body) == ("v", struct.pack(">II", PROTOCOL_3_0, 1) + b"_pq_.x\0")
    assert [kind for kind, _ in rest] == ["R", "Z"]


def test_a_client_of_a_database_is_answered_what_this_is() -> None:
    _, theirs = refusal(new_session(), startup(replication=""))
    assert (theirs["C"], theirs["M"]) == (
        "0A000",
        "this is a safekeeper, not a database: connect with replication=true",
    )
    assert "primary" in theirs["H"]


# Passwords.


def log_in(session: Session, password: str, user: str = "me", binding: bytes | None = None) -> list[Event]:
    """Log in as another implementation of SCRAM does; it checks the server's proof."""
    assert session.receive(startup(user=user)) == []
    ((kind, body),) = messages_of(session.take_output())
    assert (kind, body[:4]) == ("R", struct.pack(">I", 10))
    mechanisms = body[4:-2].decode().split("\0")
    client = ScramClient(mechanisms, "ignored", password, ("tls-server-end-point", binding) if binding else None)
    session.receive(sasl_initial_response(client.mechanism_name, client.get_client_first().encode()))
    ((kind, body),) = messages_of(session.take_output())
    assert (kind, body[:4]) == ("R", struct.pack(">I", 11))
    client.set_server_first(body[4:].decode())
    events = session.receive(sasl_response(client.get_client_final().encode()))
    ((kind, body), *rest) = messages_of(session.take_output())
    assert (kind, body[:4]) == ("R", struct.pack(">I", 12))
    client.set_server_final(body[4:].decode())
    assert "".join(kind for kind, _ in rest) == "RSSZ"
    return events


def test_a_client_with_the_password_is_let_in() -> None:
    session = new_session(users=USERS)
    assert log_in(session, "pencil") == [Authenticated("me", "", {})]
    assert session.state is SessionState.READY


def test_a_client_with_the_password_and_the_certificate_is_let_in() -> None:
    certificate = ssl.PEM_cert_to_DER_cert(trustme.CA().issue_cert("localhost").cert_chain_pems[0].bytes().decode())
    session = new_session(tls=True, users=USERS)
    session.receive(SSL_REQUEST)
    session.take_output()
    session.tls_started(certificate)
    assert log_in(session, "pencil", binding=hashlib.sha256(certificate).digest()) == [Authenticated("me", "", {})]


@pytest.mark.parametrize(("user", "password"), [("me", "pencils"), ("you", "pencil")])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(user: str, password: str) -> None:
    session = new_session(users=USERS)
    with pytest.raises(ClientRefused) as caught:
        log_in(session, password, user)
    assert session.state is SessionState.CLOSED
    assert error_of(session.take_output()) == {
        "S": "FATAL",
        "V": "FATAL",
        "C": "28P01",
        "M": f'password authentication failed for user "{user}"',
    }
    assert str(caught.value) == (
        'password authentication failed for user "me"' if user == "me" else 'user "you" does not exist in pg_users'
    )


def test_a_verifier_that_cannot_be_used_lets_nobody_in_and_is_for_the_log_only() -> None:
    ours, theirs = refusal(new_session(users={"me": "md5abc"}), startup())
    assert theirs["M"] == 'password authentication failed for user "me"'
    assert "cannot be used" in ours
    assert "md5abc" not in ours


def test_a_mechanism_without_data_is_answered_by_an_empty_challenge() -> None:
    session = new_session(users=USERS)
    session.receive(startup())
    session.take_output()
    session.receive(sasl_initial_response("SCRAM-SHA-256", None))
    assert messages_of(session.take_output()) == [("R", struct.pack(">I", 11))]
    session.receive(sasl_response(b"n,,n=,r=abc"))
    ((_, body),) = messages_of(session.take_output())
    assert body[4:].startswith(b"r=abcserver-nonce,")


@pytest.mark.parametrize(
    "body",
    [b"pencil\0", b"md5d41d8cd98f00b204e9800998ecf8427e\0", b"", b"SCRAM-SHA-256\0\0\0\0\x09abc", b"\xff\0\0\0\0\0"],
)
def test_a_password_that_is_sent_as_it_is_is_refused_and_not_quoted(body: bytes) -> None:
    session = new_session(users=USERS)
    session.receive(startup())
    session.take_output()
    ours, theirs = refusal(session, sasl_response(body))
    assert theirs["C"] == "28000"
    assert "only SCRAM-SHA-256 is accepted" in ours
    assert "pencil" not in ours


@pytest.mark.parametrize(
    ("data", "sqlstate", "match"),
    [
        (sasl_initial_response("SCRAM-SHA-1", b"n,,n=,r=abc"), "28000", "none of SCRAM-SHA-256"),
        (sasl_initial_response("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=abc"), "28000", "none of SCRAM"),
        (sasl_initial_response("SCRAM-SHA-256", b"n,,"), "08P01", "is invalid"),
        (sasl_initial_response("SCRAM-SHA-256", b"n,,n=,r=" + b"a" * 1020), "08P01", "more than 1024"),
        (query("IDENTIFY_SYSTEM"), "08P01", "is not expected in the state authenticating"),
        (copy_data(b""), "08P01", "is not expected in the state authenticating"),
    ],
)
def test_whoever_does_not_prove_the_password_stays_out(data: bytes, sqlstate: str, match: str) -> None:
    session = new_session(users=USERS)
    session.receive(startup())
    session.take_output()
    ours, theirs = refusal(session, data)
    assert theirs["C"] == sqlstate
    assert match in ours


def test_what_is_sent_along_with_the_startup_packet_is_no_way_in() -> None:
    session = new_session(users=USERS)
    with pytest.raises(RemoteProtocolError, match="authenticating"):
        session.receive(startup() + query("IDENTIFY_SYSTEM"))


# Commands.


def test_an_answer_is_a_table_of_one_row() -> None:
    session = ready_session()
    session.receive(query("TIMELINE_HISTORY 2"))
    session.answer([TEXT_COLUMN] * 3, ["00000002.history", b"1\t0/1\n", None], "TIMELINE_HISTORY")
    output = session.take_output()
    assert kinds_of(output) == "TDCZ"
    assert row_of(output) == [b"00000002.history", b"1\t0/1\n", None]
    assert messages_of(output)[2] == ("C", b"TIMELINE_HISTORY\0")


def test_an_answer_may_have_no_row() -> None:
    session = ready_session()
    session.receive(query("SHOW x"))
    session.answer([TEXT_COLUMN], None, "SHOW")
    assert kinds_of(session.take_output()) == "TCZ"


def test_a_refused_command_leaves_the_client_ready() -> None:
    session = ready_session()
    session.receive(query("TIMELINE_HISTORY 9"))
    session.refuse("58P01", "there is no TLI 9", detail="d", hint="h")
    output = session.take_output()
    assert kinds_of(output) == "EZ"
    assert error_of(output) == {"S": "ERROR", "V": "ERROR", "C": "58P01", "M": "there is no TLI 9", "D": "d", "H": "h"}
    assert session.state is SessionState.READY


def test_a_command_waits_for_the_answer_to_the_last_one() -> None:
    ours, theirs = refusal(ready_session(), query("IDENTIFY_SYSTEM") * 2)
    assert theirs["C"] == "08P01"
    assert "in the state busy" in ours


@pytest.mark.parametrize("data", [sasl_response(b"x"), message("Q", b"SHOW x"), message("Q", b"a\0b\0")])
def test_what_is_no_command_ends_the_conversation(data: bytes) -> None:
    _, theirs = refusal(ready_session(), data)
    assert theirs["C"] == "08P01"


# COPY.


def test_wal_and_keepalives_follow_the_response_that_begins_the_copy() -> None:
    session = ready_session()
    session.receive(query("START_REPLICATION 0/3000000"))
    session.begin_copy()
    output = (
        session.take_output() + xlog_data_header(0x3000000, 0x3000002, 0, 2) + b"ab" + keepalive(0x3000002, 0, True)
    )
    assert kinds_of(output) == "Wdd"
    assert session.state is SessionState.COPY


def test_only_start_replication_begins_a_copy() -> None:
    session = ready_session()
    session.receive(query("IDENTIFY_SYSTEM"))
    with pytest.raises(LocalProtocolError, match="START_REPLICATION"):
        session.begin_copy()


def test_the_end_of_a_timeline_is_reported_once_both_sides_have_ended_the_copy() -> None:
    session = streaming_session()
    session.end_copy()
    assert kinds_of(session.take_output()) == "c"
    assert session.state is SessionState.COPY_ENDING
    # What was under way counts.
    assert session.receive(status_update(1, 2, 3)) == [StatusUpdate(1, 2, 3, False)]
    with pytest.raises(LocalProtocolError, match="before the client"):
        session.finish_copy((2, 0x3000100))
    assert session.receive(COPY_DONE) == [CopyEnded()]
    assert session.state is SessionState.COPY_ENDING
    session.finish_copy((2, 0x3000100))
    output = session.take_output()
    assert kinds_of(output) == "TDCCZ"
    assert row_of(output) == [b"2", b"0/3000100"]
    assert [body for kind, body in messages_of(output) if kind == "C"] == [b"START_STREAMING\0", b"START_REPLICATION\0"]
    assert session.state is SessionState.READY


def test_a_start_at_the_end_of_a_timeline_is_answered_without_a_copy() -> None:
    session = ready_session()
    session.receive(query("START_REPLICATION 0/3000100 TIMELINE 1"))
    session.finish_copy((2, 0x3000100))
    assert kinds_of(session.take_output()) == "TDCCZ"


def test_the_next_copy_begins_anew() -> None:
    session = streaming_session()
    for _ in range(2):
        answer(session, session.receive(COPY_DONE))
        assert kinds_of(session.take_output()) == "cCCZ"
        answer(session, session.receive(query("START_REPLICATION 0/0")))
        assert kinds_of(session.take_output()) == "W"
        assert session.receive(status_update(1, 1, 1)) == [StatusUpdate(1, 1, 1, False)]


@pytest.mark.parametrize("end", ["", "ours", "theirs"])
def test_a_copy_that_fails_leaves_the_client_ready_and_its_last_words_ignored(end: str) -> None:
    session = streaming_session()
    if end == "ours":
        session.end_copy()
    if end == "theirs":
        session.receive(COPY_DONE)
    session.refuse("58P01", "requested WAL segment has already been removed")
    assert kinds_of(session.take_output()).lstrip("c") == "EZ"
    assert session.receive(status_update(1, 2, 3) + COPY_DONE + COPY_FAIL) == []
    answer(session, session.receive(query("IDENTIFY_SYSTEM")))
    assert kinds_of(session.take_output()) == "TDCZ"


@pytest.mark.parametrize(
    "data",
    [
        COPY_FAIL,
        query("IDENTIFY_SYSTEM"),
        SYNC,
        copy_data(b""),
        copy_data(b"r"),
        COPY_DONE * 2,
        COPY_DONE + status_update(1, 2, 3),
    ],
)
def test_what_cannot_come_within_a_copy_ends_the_conversation(data: bytes) -> None:
    _, theirs = refusal(streaming_session(), data)
    assert theirs["C"] == "08P01"


def test_a_good_bye_within_a_copy_is_taken() -> None:
    session = streaming_session()
    assert session.receive(status_update(1, 2, 3) + TERMINATE + b"junk") == [StatusUpdate(1, 2, 3, False), Terminated()]
    assert session.state is SessionState.CLOSED


# From the owner.


def test_answers_to_a_client_that_has_left_are_dropped() -> None:
    session = ready_session()
    session.receive(query("START_REPLICATION 0/0"))
    assert session.receive(TERMINATE) == [Terminated()]
    session.answer([TEXT_COLUMN], None, "SHOW")
    session.complete("SHOW")
    session.begin_copy()
    session.end_copy()
    session.finish_copy(None)
    session.refuse("XX000", "x", fatal=True)
    assert (session.state, session.take_output()) == (SessionState.CLOSED, b"")


@pytest.mark.parametrize(
    "say",
    [
        lambda session: session.answer([TEXT_COLUMN], None, "SHOW"),
        lambda session: session.complete("SHOW"),
        lambda session: session.begin_copy(),
        lambda session: session.end_copy(),
        lambda session: session.finish_copy(None),
        lambda session: session.refuse("XX000", "x"),
        lambda session: session.tls_started(None),
    ],
)
def test_what_is_not_asked_for_is_not_said(say: Callable[[Session], None]) -> None:
    session = ready_session()
    with pytest.raises(LocalProtocolError, match="ready"):
        say(session)
    assert session.take_output() == b""


@pytest.mark.parametrize("begin", [new_session, ready_session, streaming_session])
def test_a_client_can_be_sent_away_at_any_time(begin: Callable[[], Session]) -> None:
    session = begin()
    session.refuse("57P01", "the safekeeper stops", hint="connect again", fatal=True)
    assert error_of(session.take_output()) == {
        "S": "FATAL",
        "V": "FATAL",
        "C": "57P01",
        "M": "the safekeeper stops",
        "H": "connect again",
    }
    assert session.state is SessionState.CLOSED


def test_nothing_is_said_in_plaintext_during_a_handshake() -> None:
    session = new_session(tls=True)
    session.receive(SSL_REQUEST)
    session.take_output()
    session.refuse("57P01", "the safekeeper stops", fatal=True)
    assert (session.state, session.take_output()) == (SessionState.CLOSED, b"")


def test_the_end_of_a_connection_is_explained_by_where_it_stood() -> None:
    asked = new_session(users=USERS)
    asked.receive(startup())
    shaking = new_session(tls=True)
    shaking.receive(SSL_REQUEST)
    explained = [session.explain_eof() for session in (new_session(), asked, shaking, ready_session())]
    assert len(set(explained)) == 4
    assert "does not support SCRAM-SHA-256" in explained[1]
    assert "certificate" in explained[2]


def test_a_protocol_of_another_major_version_is_refused() -> None:
    _, theirs = refusal(new_session(), packet(2 << 16, b""))
    assert theirs["C"] == "0A000"
