"""The handshake in which a proxy and a safekeeper prove to each other that they have the same secret.

    proxy                                safekeeper
      Hello(nonce)               ------>
                                 <------   Challenge(its id, its nonce)
      Proof(as proposer)         ------>
                                 <------   Proof(as safekeeper), or Refused and the end

A proof is HMAC-SHA-256, keyed with the SHA-256 of the secret, over a label, the role of the side that proves, the
safekeeper's id, whether the connection is TLS and if so the SHA-256 of the server's certificate, and both nonces. All
have fixed lengths, so no two handshakes authenticate the same text. Therefore:

- the secret is never sent, and a recorded proof fits no other handshake: both sides contribute a nonce (replay);
- a proof that is sent back to its author has the wrong role (reflection);
- a third party that terminates TLS on one side and starts it again on the other has another certificate on one of the
  two, or none, and the proofs do not match (relay, and stripping of TLS);
- the side that has a secret does not continue with a peer that does not prove it (downgrade);
- the proxy proves first. So a stranger that connects to safekeepers receives no proof that would allow guessing the
  secret offline. The reply to a wrong proof only states that it is wrong, and the connection is closed.

Without TLS this protects the listener and not the bytes: a party that can change the traffic can take over a connection
after the handshake. docs/guide/security.md compares the protections.

Pure: two state machines, messages in, messages out. Nonces are arguments. Messages from a peer raise only
AuthenticationFailed, a RemoteProtocolError.
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
    """Why the safekeeper ends an authentication; the numbers are part of the protocol."""

    NO_SECRET_HERE = 1
    SECRET_NEEDED = 2
    WRONG_PROOF = 3


class Hello(NamedTuple):
    """The proxy's first message."""

    nonce: bytes


class Challenge(NamedTuple):
    """The safekeeper's reply."""

    safekeeper_id: int
    nonce: bytes


class Proof(NamedTuple):
    """The proof that its sender has the secret."""

    proof: bytes


class Refused(NamedTuple):
    """The safekeeper's last message on a connection that it refuses."""

    reason: Reason


AuthenticationMessage = Hello | Challenge | Proof | Refused

_BODIES: dict[int, tuple[type[AuthenticationMessage], struct.Struct]] = {
    1: (Hello, struct.Struct(f"<{NONCE_BYTES}s")),
    2: (Challenge, struct.Struct(f"<Q{NONCE_BYTES}s")),
    3: (Proof, struct.Struct(f"<{PROOF_BYTES}s")),
    4: (Refused, struct.Struct("<B")),
}
_NUMBERS = {kind: number for number, (kind, _) in _BODIES.items()}
# The minimum and maximum length of a frame's body.
BODY_BYTES = (2, 1 + max(layout.size for _, layout in _BODIES.values()))


def encode_body(message: AuthenticationMessage) -> bytes:
    """Return the body of the frame of `message`."""
    number = _NUMBERS[type(message)]
    return bytes([number]) + _BODIES[number][1].pack(*message)


def decode_body(body: bytes) -> AuthenticationMessage:
    """Return the message of a frame's body, which is not empty.

    Raises:
        RemoteProtocolError: it is not valid.
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


# Shown to the proxy's operator.
_REFUSALS = {
    Reason.NO_SECRET_HERE: "the safekeeper has no shared secret, and this side requires one: set its secret_file",
    Reason.SECRET_NEEDED: "the safekeeper requires a shared secret: set secret_file or WALPROXY_SECRET",
    Reason.WRONG_PROOF: "the safekeeper refuses the proof of the shared secret: the secrets differ, use the same one",
}


class _State(enum.Enum):
    """The state of a handshake."""

    NEW = enum.auto()  # Nothing was sent. Until the proxy's begin, or its Hello.
    ASKED = enum.auto()  # Hello (proxy) or Challenge (safekeeper) is sent. Until the other's reply.
    PROVED = enum.auto()  # Proxy only: its Proof is sent. Until the safekeeper's.
    DONE = enum.auto()  # Both have proved it.
    FAILED = enum.auto()  # An error was raised: this state is final.


class _Side:
    """The common part of both sides."""

    def __init__(
        self, secret: bytes, safekeeper_id: int, nonce: bytes, server_certificate_der: bytes, origin: str = ""
    ) -> None:
        if not secret or len(nonce) != NONCE_BYTES:
            raise LocalProtocolError(f"an authentication requires a secret and a nonce of {NONCE_BYTES} bytes")
        # Hashed, because HMAC itself treats a key and the same key with zero bytes appended as equal.
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

    def _fail(self, message: str, refusal: Reason | None = None) -> AuthenticationFailed:
        self._state = _State.FAILED
        return AuthenticationFailed(message, refusal)


class ProposerSide(_Side):
    """The proxy's side of one connection.

    Args:
        secret: the shared secret.
        safekeeper_id: the safekeeper to which this connection was made.
        nonce: 32 random bytes, never used before.
        server_certificate_der: the certificate that the safekeeper presented over TLS; empty without TLS.
        origin: where the secret is stored, for messages.
    """

    def begin(self) -> Hello:
        """Return the first message."""
        if self._state is not _State.NEW:
            raise LocalProtocolError("the authentication has already started")
        self._state = _State.ASKED
        return Hello(self._nonce)

    def receive(self, message: AuthenticationMessage) -> Proof | None:
        """Handle the safekeeper's next message and return the reply, if there is one.

        Raises:
            AuthenticationFailed: the safekeeper refuses, or does not prove that it has the secret.
        """
        if isinstance(message, Refused) and self._state in (_State.ASKED, _State.PROVED):
            raise self._fail(_REFUSALS[message.reason] + self._ours)
        if isinstance(message, Challenge) and self._state is _State.ASKED:
            if message.safekeeper_id != self._safekeeper_id:
                raise self._fail(
                    f"safekeeper {message.safekeeper_id} replied where safekeeper {self._safekeeper_id} is expected: "
                    "correct the list of safekeepers"
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
        safekeeper_id: this safekeeper's id.
        server_certificate_der: the certificate that this side presented; empty without TLS.
        origin: see ProposerSide.
    """

    def receive(self, message: AuthenticationMessage) -> Challenge | Proof:
        """Handle the proxy's next message and return the reply.

        Raises:
            AuthenticationFailed: the proxy does not prove that it has the secret; `refusal` is sent to it.
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
