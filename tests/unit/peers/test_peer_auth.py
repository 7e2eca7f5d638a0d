"""The proof of the shared secret: both sides get through with it, and nobody gets through without it."""

import hashlib
import hmac
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.base.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError
from safekeeper.peers.codec import (
    ACCEPTOR_AUTHENTICATION,
    ACCEPTOR_DIALECT,
    PROPOSER_AUTHENTICATION,
    PROPOSER_DIALECT,
    FrameDecoder,
    encode_authentication,
)
from safekeeper.peers.peer_auth import (
    NONCE_BYTES,
    AcceptorSide,
    AuthenticationMessage,
    Challenge,
    Hello,
    Proof,
    ProposerSide,
    Reason,
    Refused,
    decode_body,
    encode_body,
)

SECRET = b"a secret of the whole cluster"
CERTIFICATE = b"the DER of a certificate"
_nonces = itertools.count(1)


def nonce() -> bytes:
    return next(_nonces).to_bytes(NONCE_BYTES, "big")


def proposer(secret: bytes = SECRET, safekeeper_id: int = 7, certificate: bytes = b"") -> ProposerSide:
    return ProposerSide(secret, safekeeper_id, nonce(), certificate)


def acceptor(secret: bytes = SECRET, safekeeper_id: int = 7, certificate: bytes = b"") -> AcceptorSide:
    return AcceptorSide(secret, safekeeper_id, nonce(), certificate)


def converse(one: ProposerSide, other: AcceptorSide) -> list[AuthenticationMessage]:
    """Let the two talk to the end; return what was said."""
    said: list[AuthenticationMessage] = [one.begin()]
    while True:
        said.append(other.receive(said[-1]))
        answer = one.receive(said[-1])
        if answer is None:
            return said
        said.append(answer)


@pytest.mark.parametrize("certificate", [b"", CERTIFICATE])
def test_both_sides_get_through_with_the_same_secret(certificate: bytes) -> None:
    one, other = proposer(certificate=certificate), acceptor(certificate=certificate)
    said = converse(one, other)
    assert one.done and other.done
    assert [type(message) for message in said] == [Hello, Challenge, Proof, Proof]
    assert said[2] != said[3]
    assert not any(SECRET in encode_body(message) for message in said)


def test_a_proof_is_what_the_protocol_says() -> None:
    one, other = proposer(certificate=CERTIFICATE), acceptor(certificate=CERTIFICATE)
    hello, challenge, of_proposer, of_acceptor = converse(one, other)
    assert isinstance(hello, Hello) and isinstance(challenge, Challenge)
    for role, proof in ((b"proposer", of_proposer), (b"safekeeper", of_acceptor)):
        text = (
            b"walproxy peer authentication, version 1"
            + role.ljust(16, b"\0")
            + struct.pack("<QB", 7, 1)
            + hashlib.sha256(CERTIFICATE).digest()
            + hello.nonce
            + challenge.nonce
        )
        assert proof == Proof(hmac.new(hashlib.sha256(SECRET).digest(), text, hashlib.sha256).digest())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (proposer(b"another secret"), acceptor()),
        (proposer(), acceptor(b"another secret")),
        (proposer(SECRET + b"\0"), acceptor()),
        (proposer(certificate=CERTIFICATE), acceptor()),
        (proposer(), acceptor(certificate=CERTIFICATE)),
        (proposer(certificate=CERTIFICATE), acceptor(certificate=CERTIFICATE + b"!")),
    ],
    ids=["wrong secret", "other wrong", "padded", "TLS begun anew", "TLS stripped", "relay with another certificate"],
)
def test_who_has_another_secret_or_sees_another_certificate_does_not_get_through(
    one: ProposerSide, other: AcceptorSide
) -> None:
    with pytest.raises(AuthenticationFailed, match="proof of the shared secret is wrong") as end:
        converse(one, other)
    assert end.value.refusal is Reason.WRONG_PROOF
    assert not one.done and not other.done


def test_a_safekeeper_that_does_not_know_the_secret_is_noticed() -> None:
    one = proposer()
    one.begin()
    one.receive(Challenge(7, nonce()))
    with pytest.raises(AuthenticationFailed, match="the safekeeper does not have the shared secret"):
        one.receive(Proof(bytes(32)))
    assert not one.done


def test_a_proof_that_is_sent_back_to_its_author_proves_nothing() -> None:
    one = proposer()
    hello = one.begin()
    # The peer has no secret: it uses our nonce as its own, and our proof as its own.
    proof = one.receive(Challenge(7, hello.nonce))
    assert isinstance(proof, Proof)
    with pytest.raises(AuthenticationFailed, match="does not have the shared secret"):
        one.receive(proof)


def test_what_one_safekeeper_says_does_not_make_a_proposer_of_another_one() -> None:
    # An attacker answers a proxy that connects to it with the challenge of a safekeeper with another id.
    victim, proxy = acceptor(safekeeper_id=8), proposer(safekeeper_id=7)
    challenge = victim.receive(proxy.begin())
    assert isinstance(challenge, Challenge)
    with pytest.raises(AuthenticationFailed, match="safekeeper 8 replied where safekeeper 7 is expected: correct"):
        proxy.receive(challenge)
    lied_to = proposer(safekeeper_id=7)
    victim = acceptor(safekeeper_id=8)
    challenge = victim.receive(lied_to.begin())
    assert isinstance(challenge, Challenge)
    proof = lied_to.receive(Challenge(7, challenge.nonce))
    assert proof is not None
    with pytest.raises(AuthenticationFailed):
        victim.receive(proof)


def test_a_recorded_conversation_opens_no_other_connection() -> None:
    hello, challenge, of_proposer, of_acceptor = converse(proposer(), acceptor())
    replayed_to = acceptor()
    replayed_to.receive(hello)
    with pytest.raises(AuthenticationFailed):
        replayed_to.receive(of_proposer)
    fooled = proposer()
    fooled.begin()
    fooled.receive(challenge)
    with pytest.raises(AuthenticationFailed):
        fooled.receive(of_acceptor)


def test_nobody_gets_a_second_try_on_one_connection() -> None:
    other = acceptor()
    one = proposer()
    challenge = other.receive(one.begin())
    proof = one.receive(challenge)
    assert proof is not None
    with pytest.raises(AuthenticationFailed):
        other.receive(Proof(bytes(32)))
    with pytest.raises(AuthenticationFailed):
        other.receive(proof)
    assert not other.done


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_is_one_line_that_says_what_to_do(reason: Reason) -> None:
    one = proposer()
    one.begin()
    with pytest.raises(AuthenticationFailed, match=r"set its secret_file|set secret_file|use the same one") as refused:
        one.receive(Refused(reason))
    assert refused.value.refusal is None


@pytest.mark.parametrize("message", [Proof(bytes(32)), Refused(Reason.WRONG_PROOF), Challenge(7, bytes(32))])
def test_what_does_not_fit_a_safekeepers_turn_ends_it(message: AuthenticationMessage) -> None:
    other = acceptor()
    with pytest.raises(AuthenticationFailed, match="is not expected"):
        other.receive(message)
    with pytest.raises(AuthenticationFailed):
        other.receive(Hello(bytes(32)))


@pytest.mark.parametrize("message", [Proof(bytes(32)), Hello(bytes(32))])
def test_what_does_not_fit_a_proxys_turn_ends_it(message: AuthenticationMessage) -> None:
    one = proposer()
    one.begin()
    with pytest.raises(AuthenticationFailed, match="is not expected"):
        one.receive(message)


def test_our_own_mistakes_are_bugs() -> None:
    with pytest.raises(LocalProtocolError):
        ProposerSide(b"", 1, bytes(32), b"")
    with pytest.raises(LocalProtocolError):
        AcceptorSide(SECRET, 1, bytes(31), b"")
    one = proposer()
    one.begin()
    with pytest.raises(LocalProtocolError):
        one.begin()


MESSAGES = st.one_of(
    st.builds(Hello, st.binary(min_size=32, max_size=32)),
    st.builds(Challenge, st.just(7), st.binary(min_size=32, max_size=32)),
    st.builds(Proof, st.binary(min_size=32, max_size=32)),
    st.builds(Refused, st.sampled_from(Reason)),
)


@given(st.lists(MESSAGES, max_size=6))
def test_no_stranger_gets_through_whatever_it_says(messages: list[AuthenticationMessage]) -> None:
    one, other = proposer(), acceptor()
    one.begin()
    for side in (one, other):
        for message in messages:
            try:
                side.receive(message)
            except RemoteProtocolError:
                continue
        assert not side.done


# The frames.


@given(MESSAGES)
def test_a_message_comes_out_of_its_frame_as_it_went_in(message: AuthenticationMessage) -> None:
    frame = encode_authentication(message)
    for dialect in (PROPOSER_AUTHENTICATION, ACCEPTOR_AUTHENTICATION):
        decoder = FrameDecoder(dialect)
        assert [each for byte in frame for each in decoder.feed(bytes([byte]))] == [message]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_messages_or_a_protocol_error(data: bytes, framed: bool) -> None:
    if framed:
        data = encode_authentication(Hello(bytes(32)))[:4] + struct.pack("<I", len(data)) + data
    try:
        FrameDecoder(PROPOSER_AUTHENTICATION).feed(data)
    except RemoteProtocolError:
        return


@given(st.binary(min_size=1, max_size=50))
def test_any_body_is_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        message = decode_body(body)
    except RemoteProtocolError:
        return
    assert encode_body(message) == body


def test_an_authentication_that_one_side_does_not_expect_says_who_lacks_what() -> None:
    frame = encode_authentication(Hello(bytes(32)))
    with pytest.raises(AuthenticationFailed, match="this safekeeper has none: set its secret_file") as refused:
        FrameDecoder(PROPOSER_DIALECT).feed(frame)
    assert refused.value.refusal is Reason.NO_SECRET_HERE
    with pytest.raises(AuthenticationFailed, match="the safekeeper requires a shared secret: set secret_file"):
        FrameDecoder(ACCEPTOR_DIALECT).feed(frame)
