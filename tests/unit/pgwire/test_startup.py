"""The startup packet: what is taken from it, and who is sent away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.pgwire.events import Authenticated
from safekeeper.pgwire.refusal import ClientRefused
from safekeeper.pgwire.startup import admission, clean_name, parse_parameters, parse_settings
from tests.unit.pgwire_client import PROTOCOL_3_0, startup


def body(**parameters: str) -> bytes:
    return startup(PROTOCOL_3_0, **parameters)[8:]


@pytest.mark.parametrize("word", ["true", "TRUE", "t", "yes", "y", "on", "On", "1"])
def test_every_word_for_true_asks_for_physical_replication(word: str) -> None:
    assert admission(PROTOCOL_3_0, body(replication=word)).client.user == "me"


@pytest.mark.parametrize("word", ["", "database", "false", "off", "0", "o", "maybe"])
def test_whoever_wants_a_database_is_answered_what_this_is(word: str) -> None:
    with pytest.raises(ClientRefused, match="connect with replication=true") as caught:
        admission(PROTOCOL_3_0, body(replication=word))
    assert caught.value.sqlstate == "0A000"
    assert "primary" in caught.value.hint


def test_settings_come_from_the_packet_and_from_its_options() -> None:
    wanted = admission(
        PROTOCOL_3_0,
        body(application_name="s1", client_encoding="UTF8", options="-c wal_sender_timeout=3s -c Client_Encoding=x"),
    )
    assert wanted.client == Authenticated("me", "s1", {"client_encoding": "UTF8", "wal_sender_timeout": "3s"})
    assert (wanted.is_negotiated, wanted.unknown_options) == (False, ())


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("-c a=b", {"a": "b"}),
        ("-ca=b --c-d=e=f", {"a": "b", "c_d": "e=f"}),
        (r"-c a=b\ c\\d  -c x=", {"a": "b c\\d", "x": ""}),
        ("-c -c -B 7 stray a=b", {}),
        ("-c", {}),
        ("-c -c a=b", {}),
        ("-c a", {}),
        ("-c =b", {}),
        ("\\", {}),
    ],
)
def test_options_are_read_as_a_servers_command_line(options: str, settings: dict[str, str]) -> None:
    assert parse_settings(options) == settings


@pytest.mark.parametrize("protocol", [2 << 16, 4 << 16, 0, 1234 << 16 | 5680])
def test_another_protocol_is_refused(protocol: int) -> None:
    with pytest.raises(ClientRefused, match=r"must use protocol 3\.0") as caught:
        admission(protocol, body())
    assert caught.value.sqlstate == "0A000"


def test_a_newer_minor_protocol_and_its_options_are_negotiated() -> None:
    assert admission(PROTOCOL_3_0 | 2, body()).is_negotiated
    wanted = admission(PROTOCOL_3_0, body(**{"_pq_.x": "1"}))
    assert (wanted.is_negotiated, wanted.unknown_options, wanted.client.options) == (True, ("_pq_.x",), {})


@pytest.mark.parametrize("user", ["", "a\nb", "a\x1b[2J"])
def test_a_user_must_have_a_name_that_can_be_printed(user: str) -> None:
    with pytest.raises(ClientRefused, match="has no user name"):
        admission(PROTOCOL_3_0, body(user=user))


@pytest.mark.parametrize(
    ("packet_body", "match"),
    [
        (b"", "truncated"),
        (b"user", "truncated"),
        (b"user\0me\0", "truncated"),
        (b"user\0me\0\0x", "truncated"),
        (b"user\0me\0\0\0", "truncated"),
        (b"user\0me\0user\0", "truncated"),
        (b"\0me\0\0", "twice or empty"),
        (b"user\0me\0user\0you\0\0", "twice or empty"),
        (b"user\0\xff\0\0", "UTF-8"),
    ],
)
def test_a_packet_that_is_no_list_of_parameters_is_refused(packet_body: bytes, match: str) -> None:
    with pytest.raises(ClientRefused, match=match) as caught:
        parse_parameters(packet_body)
    assert caught.value.sqlstate == "08P01"


def test_a_packet_without_parameters_is_understood() -> None:
    assert parse_parameters(b"\0") == {}


@given(
    st.dictionaries(
        st.text(min_size=1).map(lambda t: t.replace("\0", "") or "x"), st.text().map(lambda t: t.replace("\0", ""))
    )
)
def test_parameters_come_back_as_they_were(parameters: dict[str, str]) -> None:
    sent = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
    assert parse_parameters(sent) == parameters


@given(st.text())
def test_an_application_name_is_short_and_printable_ascii(text: str) -> None:
    name = clean_name(text)
    assert len(name) <= 63
    assert name.isascii()
    assert name.isprintable()


def test_a_plain_application_name_stays_as_it_is() -> None:
    assert clean_name("standby_1 (Frankfurt)") == "standby_1 (Frankfurt)"
    assert clean_name("é\n" + "x" * 100) == "???" + "x" * 60


@given(st.text(), st.binary(max_size=60))
def test_any_packet_is_understood_or_refused_in_one_line(options: str, junk: bytes) -> None:
    parse_settings(options)
    try:
        admission(PROTOCOL_3_0, junk)
    except ClientRefused as refused:
        assert refused.message.isprintable()
