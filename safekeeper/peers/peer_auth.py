"""How a proxy and a safekeeper prove to each other that they know one secret, before anything else is said.

    proxy                                safekeeper
      Hello(nonce)               ------>
                                 <------   Challenge(its id, its nonce)
      Proof(as proposer)         ------>
                                 <------   Proof(as safekeeper), or Refused and the end

A proof is HMAC-SHA-256, keyed with the SHA-256 of the secret, over a label, the role of the side that proves, the
safekeeper's id, whether the connection is TLS and if so the SHA-256 of the server's certificate, and both nonces. All
have fixed lengths, so no two conversations have the same text. What follows:

- the secret never travels, and a recorded proof fits no other conversation: both sides contribute a nonce (replay);
- a proof that is sent back to its author is of the wrong role (reflection);
- a third party that ends TLS on one side and begins it again on the other has another certificate on one of the
  two, or none, and the proofs do not fit (relay, and stripping of TLS);
- the side that has a secret continues with no peer that does not prove it (downgrade);
- the proxy proves first. So a stranger who asks safekeepers gets nothing to try guesses on, and a wrong proof is
  answered with the bare fact that it is wrong, and the end of the connection.

Without TLS that protects the listener and not the bytes: a party that can change the traffic can take over a connection
after it was proved. docs/guide/security.md says what each protection is for.

Pure: two value machines, messages in, messages out. Nonces are arguments. What a peer sends raises
AuthenticationFailed, a RemoteProtocolError, and nothing else.
"""

import enum
import hashlib
import hmac
import struct
from typing import NamedTuple

from safekeeper.base.errors import AuthenticationFailed, LocalProtocolError, RemoteProtocolError

NONCE_BYTES = 32
PROOF_BYTES = 32

_LABEL = b"walproxy peer authentication, version 1"
_TEXT = struct.Struct(f"<{len(_LABEL)}s16sQB32s{NONCE_BYTES}s{NONCE_BYTES}s")


class Reason(enum.IntEnum):
    """Why the safekeeper ends an authentication; the numbers are the protocol's."""

    NO_SECRET_HERE = 1
    SECRET_NEEDED = 2
    WRONG_PROOF = 3


class Hello(NamedTuple):
    """The proxy's first word."""

    nonce: bytes


class Challenge(NamedTuple):
    """The safekeeper's answer."""

    safekeeper_id: int
    nonce: bytes


class Proof(NamedTuple):
    """That its sender knows the secret."""

    proof: bytes


class Refused(NamedTuple):
    """The safekeeper's last word on a connection that it does not serve."""

    reason: Reason


AuthenticationMessage = Hello | Challenge | Proof | Refused

_BODIES: dict[int, tuple[type[AuthenticationMessage], struct.Struct]] = {
    1: (Hello, struct.Struct(f"<{NONCE_BYTES}s")),
    2: (Challenge, struct.Struct(f"<Q{NONCE_BYTES}s")),
    3: (Proof, struct.Struct(f"<{PROOF_BYTES}s")),
    4: (Refused, struct.Struct("<B")),
}
_NUMBERS = {kind: number for number, (kind, _) in _BODIES.items()}
# The least and the most bytes that the body of a frame has.
BODY_BYTES = (2, 1 + max(layout.size for _, layout in _BODIES.values()))


def encode_body(message: AuthenticationMessage) -> bytes:
    """Return the body of the frame of `message`."""
    number = _NUMBERS[type(message)]
    return bytes([number]) + _BODIES[number][1].pack(*message)


def decode_body(body: bytes) -> AuthenticationMessage:
    """Return the message of a frame's body, which is not empty.

    Raises:
        RemoteProtocolError: it is none.
    """
    if body[0] not in _BODIES or len(body) != 1 + _BODIES[body[0]][1].size:
        raise RemoteProtocolError(f"invalid authentication message: number {body[0]} and {len(body)} bytes")
    kind, layout = _BODIES[body[0]]
    fields = layout.unpack_from(body, 1)
    if kind is not Refused:
        return kind(*fields)
    try:
        return Refused(Reason(*fields))
    except ValueError:
        raise RemoteProtocolError(f"unknown reason {fields[0]} in a refused authentication") from None


# What the proxy's operator reads.
_REFUSALS = {
    Reason.NO_SECRET_HERE: "the safekeeper has no shared secret, and this side requires one: give it --secret-file",
    Reason.SECRET_NEEDED: "the safekeeper requires a shared secret: give --secret-file or WALPROXY_SECRET",
    Reason.WRONG_PROOF: "the safekeeper refuses the proof of the shared secret: the secrets differ, use the same one",
}


class _State(enum.Enum):
    """Where a conversation stands."""

    NEW = enum.auto()  # Nothing was said. The proxy's begin, or its Hello, ends it.
    ASKED = enum.auto()  # Hello (proxy) or Challenge (safekeeper) is sent; the other's answer ends it.
    PROVED = enum.auto()  # Proxy only: its Proof is sent; the safekeeper's ends it.
    DONE = enum.auto()  # Both have proved it.
    FAILED = enum.auto()  # An error was raised: this state is final.


class _Side:
    """What both sides have in common."""

    def __init__(
        self, secret: bytes, safekeeper_id: int, nonce: bytes, server_certificate_der: bytes, origin: str = ""
    ) -> None:
        if not secret or len(nonce) != NONCE_BYTES:
            raise LocalProtocolError(f"an authentication requires a secret and a nonce of {NONCE_BYTES} bytes")
        # Hashed, because HMAC itself takes a key and the same with zero bytes behind it for one.
        self._key = hashlib.sha256(secret).digest()
        self._safekeeper_id = safekeeper_id
        self._nonce = nonce
        self._binding = (1, hashlib.sha256(server_certificate_der).digest()) if server_certificate_der else (0, b"")
        self._state = _State.NEW
        self._ours = f" (ours is {origin})" if origin else ""

    @property
    def done(self) -> bool:
        """Whether each side has proved the secret to the other."""
        return self._state is _State.DONE

    def _proof(self, role: bytes, proposer_nonce: bytes, acceptor_nonce: bytes) -> bytes:
        text = _TEXT.pack(_LABEL, role, self._safekeeper_id, *self._binding, proposer_nonce, acceptor_nonce)
        return hmac.digest(self._key, text, "sha256")

    def _fail(self, message: str, tell: Reason | None = None) -> AuthenticationFailed:
        self._state = _State.FAILED
        return AuthenticationFailed(message, tell)


class ProposerSide(_Side):
    """The proxy's side of one connection.

    Args:
        secret: the shared secret.
        safekeeper_id: the safekeeper that this connection is meant to reach.
        nonce: 32 random bytes, never used before.
        server_certificate_der: the certificate that the safekeeper presented over TLS; empty without TLS.
        origin: where the secret is, for messages.
    """

    def begin(self) -> Hello:
        """Return the first message."""
        if self._state is not _State.NEW:
            raise LocalProtocolError("the authentication has already started")
        self._state = _State.ASKED
        return Hello(self._nonce)

    def receive(self, message: AuthenticationMessage) -> Proof | None:
        """Take the safekeeper's next message and return the answer, if there is one.

        Raises:
            AuthenticationFailed: the safekeeper refuses, or does not prove that it knows the secret.
        """
        if isinstance(message, Refused) and self._state in (_State.ASKED, _State.PROVED):
            raise self._fail(_REFUSALS[message.reason] + self._ours)
        if isinstance(message, Challenge) and self._state is _State.ASKED:
            if message.safekeeper_id != self._safekeeper_id:
                raise self._fail(
                    f"safekeeper {message.safekeeper_id} replied where safekeeper {self._safekeeper_id} is expected: "
                    "correct --safekeepers"
                )
            self._acceptor_nonce = message.nonce
            self._state = _State.PROVED
            return Proof(self._proof(b"proposer", self._nonce, message.nonce))
        if isinstance(message, Proof) and self._state is _State.PROVED:
            expected = self._proof(b"safekeeper", self._nonce, self._acceptor_nonce)
            if not hmac.compare_digest(message.proof, expected):
                raise self._fail(
                    "the safekeeper does not have the shared secret: it does not belong to this cluster" + self._ours
                )
            self._state = _State.DONE
            return None
        raise self._fail(f"{type(message).__name__} is not expected at this point of the authentication")


class AcceptorSide(_Side):
    """The safekeeper's side of one connection.

    Args:
        secret, nonce: see ProposerSide.
        safekeeper_id: our own.
        server_certificate_der: the certificate that we presented; empty without TLS.
        origin: see ProposerSide.
    """

    def receive(self, message: AuthenticationMessage) -> Challenge | Proof:
        """Take the proxy's next message and return the answer.

        Raises:
            AuthenticationFailed: the proxy does not prove that it knows the secret. What to tell it is in `tell`.
        """
        if isinstance(message, Hello) and self._state is _State.NEW:
            self._proposer_nonce = message.nonce
            self._state = _State.ASKED
            return Challenge(self._safekeeper_id, self._nonce)
        if isinstance(message, Proof) and self._state is _State.ASKED:
            expected = self._proof(b"proposer", self._proposer_nonce, self._nonce)
            if not hmac.compare_digest(message.proof, expected):
                raise self._fail(
                    "its proof of the shared secret is wrong: the secrets differ, or a third party "
                    "relays the connection" + self._ours,
                    Reason.WRONG_PROOF,
                )
            self._state = _State.DONE
            return Proof(self._proof(b"safekeeper", self._proposer_nonce, self._nonce))
        raise self._fail(f"{type(message).__name__} is not expected at this point of the authentication")
