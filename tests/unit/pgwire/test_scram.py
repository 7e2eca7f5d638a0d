"""SCRAM, server side: the RFC's example, verifiers as PostgreSQL writes them, and every way to fail."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient

from safekeeper.base.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from safekeeper.pgwire.saslprep import prepare_password
from safekeeper.pgwire.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_256_PLUS,
    ScramServer,
    ScramVerifier,
    make_verifier,
    parse_verifier,
)

SALT = b"0123456789abcdef"
VERIFIER = make_verifier("pencil", SALT)
BINDING = hashlib.sha256(b"a certificate").digest()
OTHER_BINDING = hashlib.sha256(b"another certificate").digest()

# RFC 7677, section 3.
RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
RFC_SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
RFC_CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
RFC_SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def server(
    verifier: ScramVerifier | None = VERIFIER,
    *,
    user: str = "me",
    nonce: str = "server-nonce",
    binding: bytes | None = None,
    secret: bytes = b"secret",
) -> ScramServer:
    return ScramServer(verifier, user=user, nonce=nonce, channel_binding=binding, mock_salt=secret)


def log_in(scram: ScramServer, password: str, binding: bytes | None = None) -> bytes | None:
    """Let another implementation of SCRAM log in; it checks our proof, too."""
    client = ScramClient(scram.mechanisms, "me", password, ("tls-server-end-point", binding) if binding else None)
    client.set_server_first(scram.challenge(client.mechanism_name, client.get_client_first().encode()).decode())
    proof = scram.verify(client.get_client_final().encode())
    if proof is not None:
        client.set_server_final(proof.decode())
    return proof


def test_the_example_of_rfc_7677_comes_out_to_the_byte() -> None:
    scram = server(make_verifier("pencil", RFC_SALT, 4096), nonce=RFC_SERVER_NONCE)
    assert scram.challenge(SCRAM_SHA_256, RFC_CLIENT_FIRST) == RFC_SERVER_FIRST
    assert scram.verify(RFC_CLIENT_FINAL) == RFC_SERVER_FINAL


def test_libpq_sends_no_user_name_and_is_understood() -> None:
    assert server().challenge(SCRAM_SHA_256, b"n,,n=,r=abc").startswith(b"r=abcserver-nonce,s=")


@pytest.mark.parametrize("iterations", [4096, 10_000])
def test_another_implementation_logs_in(iterations: int) -> None:
    assert log_in(server(make_verifier("pencil", SALT, iterations)), "pencil") is not None


def test_another_implementation_logs_in_with_channel_binding() -> None:
    scram = server(binding=BINDING)
    assert scram.mechanisms == (SCRAM_SHA_256_PLUS, SCRAM_SHA_256)
    assert log_in(scram, "pencil", BINDING) is not None


def test_a_wrong_password_fails_without_an_error() -> None:
    assert log_in(server(), "pencils") is None


def test_a_client_that_saw_another_certificate_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="a third party may relay"):
        log_in(server(binding=BINDING), "pencil", OTHER_BINDING)


def test_an_unknown_user_meets_the_same_motions_and_fails() -> None:
    scram = server(None)
    first = scram.challenge(SCRAM_SHA_256, b"n,,n=,r=abc").decode()
    nonce, salt, iterations = first.split(",")
    assert (nonce, iterations) == ("r=abcserver-nonce", "i=4096")
    assert len(base64.b64decode(salt[2:])) == len(SALT)
    assert log_in(server(None), "pencil") is None


def test_the_salt_of_an_unknown_user_is_always_the_same_and_its_own() -> None:
    def salt(user: str, secret: bytes) -> bytes:
        return server(None, user=user, secret=secret).challenge(SCRAM_SHA_256, b"n,,n=,r=abc").split(b",")[1]

    assert salt("you", b"one") == salt("you", b"one")
    assert len({salt("you", b"one"), salt("they", b"one"), salt("you", b"two")}) == 3


@pytest.mark.parametrize(
    ("binding", "mechanism", "message"),
    [
        (None, SCRAM_SHA_256, b"n,,n=,r=abc"),
        (None, SCRAM_SHA_256, b"y,,n=,r=abc"),  # the client could bind, we did not offer it
        (BINDING, SCRAM_SHA_256, b"n,,n=,r=abc"),  # the client cannot, or does not want to
        (BINDING, SCRAM_SHA_256_PLUS, b"p=tls-server-end-point,,n=,r=abc"),
        (None, SCRAM_SHA_256, b"n,,n=me,r=abc,x=what,y="),  # extensions may be left alone
        (None, SCRAM_SHA_256, "n,,n=é,r=!~".encode()),
    ],
)
def test_first_message_that_fits_the_offer_is_taken(binding: bytes | None, mechanism: str, message: bytes) -> None:
    assert server(binding=binding).challenge(mechanism, message).startswith(b"r=")


@pytest.mark.parametrize(
    ("binding", "mechanism", "message", "match"),
    [
        (BINDING, SCRAM_SHA_256, b"y,,n=,r=abc", "a third party may relay"),  # a downgrade
        (None, SCRAM_SHA_256_PLUS, b"p=tls-server-end-point,,n=,r=abc", "not offered"),
        (None, "SCRAM-SHA-1", b"n,,n=,r=abc", "not offered"),
        (BINDING, SCRAM_SHA_256_PLUS, b"n,,n=,r=abc", "does not fit its mechanism"),
        (BINDING, SCRAM_SHA_256_PLUS, b"y,,n=,r=abc", "does not fit its mechanism"),
        (BINDING, SCRAM_SHA_256, b"p=tls-server-end-point,,n=,r=abc", "does not fit its mechanism"),
        (BINDING, SCRAM_SHA_256_PLUS, b"p=tls-unique,,n=,r=abc", "tls-unique"),
        (None, SCRAM_SHA_256, b"n,a=root,n=,r=abc", "authorization"),
        (None, SCRAM_SHA_256, b"n,,m=x,n=,r=abc", "extension"),
        (None, SCRAM_SHA_256, b"n,,n=,r=", "is invalid"),
        (None, SCRAM_SHA_256, b"n,,r=abc", "is invalid"),
        (None, SCRAM_SHA_256, b"n,,n=,r=a\0b", "is invalid"),
        (None, SCRAM_SHA_256, b"n,,n=,r=abc,", "is invalid"),
        (None, SCRAM_SHA_256, b"z,,n=,r=abc", "is invalid"),
        (None, SCRAM_SHA_256, b"", "is invalid"),
        (None, SCRAM_SHA_256, b"\xff", "UTF-8"),
    ],
)
def test_first_message_that_does_not_fit_is_refused(
    binding: bytes | None, mechanism: str, message: bytes, match: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        server(binding=binding).challenge(mechanism, message)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (b"c=biws,r=abcserver-nonce,p=" + base64.b64encode(bytes(31)), "is invalid"),
        (b"c=biws,r=abcserver-nonce,p=!", "is invalid"),
        (b"c=biws,r=abcserver-nonce", "is invalid"),
        (b"", "is invalid"),
        (b"\xff", "UTF-8"),
        (b"c=biws,r=abc,p=" + base64.b64encode(bytes(32)), "another nonce"),
        (b"c=eSws,r=abcserver-nonce,p=" + base64.b64encode(bytes(32)), "a third party may relay"),
    ],
)
def test_final_message_that_does_not_fit_is_refused(message: bytes, match: str) -> None:
    scram = server()
    scram.challenge(SCRAM_SHA_256, b"n,,n=,r=abc")
    with pytest.raises(RemoteProtocolError, match=match):
        scram.verify(message)


def test_a_proof_without_a_challenge_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="another nonce"):
        server().verify(b"c=,r=x,p=" + base64.b64encode(bytes(32)))


def test_a_proof_received_in_another_exchange_is_of_no_use() -> None:
    first = server(make_verifier("pencil", RFC_SALT), nonce=RFC_SERVER_NONCE)
    first.challenge(SCRAM_SHA_256, RFC_CLIENT_FIRST)
    assert first.verify(RFC_CLIENT_FINAL) is not None
    second = server(make_verifier("pencil", RFC_SALT), nonce="another")
    second.challenge(SCRAM_SHA_256, RFC_CLIENT_FIRST)
    with pytest.raises(RemoteProtocolError, match="another nonce"):
        second.verify(RFC_CLIENT_FINAL)


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_are_refused_or_fail(first: bytes, final: bytes) -> None:
    scram = server()
    try:
        scram.challenge(SCRAM_SHA_256, first)
    except RemoteProtocolError:
        scram.challenge(SCRAM_SHA_256, b"n,,n=,r=abc")
    try:
        assert scram.verify(final) is None
    except RemoteProtocolError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("nonce", ["", "a,b", "a b", "é", "a\n"])
def test_a_nonce_that_the_message_cannot_hold_is_a_bug_of_ours(nonce: str) -> None:
    with pytest.raises(LocalProtocolError, match="nonce"):
        server(nonce=nonce)


# What CREATE ROLE ... PASSWORD of PostgreSQL 15.18 made of these passwords.
POSTGRES_VERIFIERS = [
    (
        "pencil",
        "SCRAM-SHA-256$4096:E2QBbHnlYWNPInvllnBQFg==$mT70XpYyvcKYLYw8oBCv1IrSspbc2Cw0PZjOKQGmE/M=:WdAbO/b5dgHuL6PrhXgilR8GhpiKJmZIWlRH6KD2ygk=",
    ),
    (  # a soft hyphen is dropped
        "I\u00adX",
        "SCRAM-SHA-256$4096:lzYrjG4kVGeqUo0e3HL/lQ==$lj3boz79qOvXRB9njBrq0AlP1jfJ+t9kFScMQ7Kq6+E=:u8kDp8lAU4U1EBwJ2qQcLS1o3qjxJ4WcdYINrhIJqPc=",
    ),
    (  # a Roman numeral is three letters
        "\u2168",
        "SCRAM-SHA-256$4096:+WVMD02Aj1DDoTnUp4BaBA==$KS28Y4DYhSzF3K6UWAA/p6c86A22I4dH/uhU7J+hbwc=:LtTTDhz6nqKxSx3asHlVXEqmTHpy8tMaiHbpVHh7M5g=",
    ),
    (  # a control character: taken as it is
        "a\u0007é",
        "SCRAM-SHA-256$4096:vYfqtvcAS/Yy2lY5bkesSw==$hWVzxg9pc7Z55Fza4H0m9APPkojsS0h8LqaQiKy3asE=:h29sBii22B01t58sO4XKvhk8enLJBBZlf3wuxMjW144=",
    ),
    (  # right to left, with something else at the end: taken as it is
        "\u06271",
        "SCRAM-SHA-256$4096:4tMaNMnoOJK+0JOEp659bw==$3vjuiWgZGQa2MzmyVfWTmUOpXojQJwyxBI48wPdAMjk=:XAV+NsnvuwqGHzWiUZyL+ojjMXkePfh+mQiGWzMP3XI=",
    ),
    (  # a space that does not break is a space
        "caf\u00e9\u00a0x",
        "SCRAM-SHA-256$4096:RxSO+L7ZXn+JdXpHrLZRVw==$HGKLPcyTbmd9zNPWNqe32rvbrdoGY9UcI4AAFf+vwJA=:NQv/bkq53i8tjumWxBBC5b/SUqEL4SZStFqHgWdaz58=",
    ),
    (  # nothing is left of it: taken as it is
        "\u00ad",
        "SCRAM-SHA-256$4096:QlqUHHXR/ZXEyiZIMMx1SQ==$gkI1dLJ62lDQUc8bx/yEC9Mg/oK76L/1OywiNgGn8t4=:+njy1/9j2qjC8p7Fb53zF+UFn/6fp4R453Vry7mGeEI=",
    ),
    (  # not in Unicode 3.2: taken as it is
        "\U0001f600",
        "SCRAM-SHA-256$4096:WhzbQPMdQbNfsFHY8D1Bww==$L2HFCP9IThCCC+u6kf2gyHoAIfAkPHuiySny0ejSe2M=:esupLz0gQMSW2ZDgi/xcdHWy1kw33Mb2h8HXwfuOngs=",
    ),
]


@pytest.mark.parametrize(("password", "text"), POSTGRES_VERIFIERS)
def test_verifier_is_the_one_that_postgresql_makes(password: str, text: str) -> None:
    verifier = parse_verifier(text)
    assert str(verifier) == text
    assert str(make_verifier(password, verifier.salt, verifier.iterations)) == text


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        ("a\u0007b ", "a\u0007b "),
        ("\u200bx\u00e9", " x\u00e9"),
        ("\u05d0\u200b", "\u05d0\u200b"),  # the space at its end is not right to left
        ("\u05d0a", "\u05d0a"),
        ("\u05d0\u00aa\u05d0", "\u05d0\u00aa\u05d0"),  # a letter that is left to right among others
        ("\u05d01\u05d0\u00ad", "\u05d01\u05d0"),
        ("a\u0340", "a\u0340"),  # prohibited before it is normalized
        ("\u2135a", "\u05d0a"),  # only becomes right to left when it is normalized
        ("\udc80", "\udc80"),
    ],
)
def test_password_is_prepared_as_postgresql_does_it(password: str, prepared: str) -> None:
    assert prepare_password(password) == prepared


def test_bytes_that_are_no_text_can_be_a_password() -> None:
    assert make_verifier(b"\x80abc".decode(errors="surrogateescape"), SALT).salt == SALT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md5d41d8cd98f00b204e9800998ecf8427e",
        "secret password",
        str(VERIFIER)[:-1],
        str(VERIFIER) + "=",
        str(VERIFIER) + "\n",
        str(VERIFIER).replace("$4096:", "$0:"),
        str(VERIFIER).replace("$4096:", "$99999999999:"),
        str(VERIFIER).replace("$4096:", "$-1:"),
        str(VERIFIER).replace("SHA-256", "SHA-1"),
        "SCRAM-SHA-256$4096:$" + str(VERIFIER).split("$")[2],
        str(ScramVerifier(4096, SALT, bytes(31), bytes(32))),
        str(ScramVerifier(4096, SALT, bytes(32), bytes(33))),
        str(ScramVerifier(4096, bytes(257), bytes(32), bytes(32))),
    ],
)
def test_text_that_is_no_verifier_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a SCRAM verifier") as caught:
        parse_verifier(text)
    assert not text or text not in str(caught.value)


def test_a_verifier_does_not_show_its_keys() -> None:
    assert "key" not in repr(VERIFIER)


@given(st.integers(1, 1 << 30), st.binary(min_size=1, max_size=40), *[st.binary(min_size=32, max_size=32)] * 2)
def test_verifier_comes_back_from_its_text(iterations: int, salt: bytes, stored_key: bytes, server_key: bytes) -> None:
    verifier = ScramVerifier(iterations, salt, stored_key, server_key)
    assert parse_verifier(str(verifier)) == verifier
