"""SCRAM-SHA-256: the server's half, which verifies a password without receiving it.

    client                                       server
    n,,n=,r=<client nonce>               -->
                                         <--     r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    c=<binding>,r=<nonce>,p=<proof>      -->
                                         <--     v=<signature>

A server stores a verifier, from which neither the password nor a proof can be computed. SCRAM-SHA-256-PLUS is the same
over TLS, with the server's certificate in the proof. The user's name is that of the startup packet: the `n=` of
PostgreSQL's clients is empty and is ignored.
Sources: RFC 5802, RFC 7677, https://www.postgresql.org/docs/current/sasl-authentication.html

For a user that does not exist the exchange is the same, with a salt that is always the same for its name, and fails at
the end as with a wrong password. Why this is not the scramp package: docs/design/adr/0010-scram.md.

Pure: nonces, salts and secrets are arguments. What a client sends raises only RemoteProtocolError.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field

from safekeeper.base.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from safekeeper.pgwire.saslprep import prepare_password

SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_256_PLUS = "SCRAM-SHA-256-PLUS"
DEFAULT_ITERATIONS = 4096
SALT_BYTES = 16

_ITERATIONS_MAX = (1 << 31) - 1
_SALT_BYTES_MAX = 256
_KEY_BYTES = hashlib.sha256().digest_size
_BINDING = "tls-server-end-point"

_VERIFIER = re.compile(r"SCRAM-SHA-256\$(\d{1,10}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII)
# Printable ASCII without the comma.
_NONCE = r"[!-+\--~]+"
_EXTENSIONS = r"(?:,[A-Za-z]=[^,\0]*)*"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>(?P<flag>[ny]|p=(?P<binding>[A-Za-z0-9.-]+)),(?P<authorization>[^,\0]*),)"
    rf"(?P<bare>(?P<mandatory>m=[^,\0]*,)?n=[^,\0]*,r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<binding>[^,\0]*),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>[^,\0]*)"
)


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What a server stores of a password. `str()` returns the text as in pg_authid.rolpassword."""

    iterations: int
    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __str__(self) -> str:
        salt, stored_key, server_key = (_base64(part) for part in (self.salt, self.stored_key, self.server_key))
        return f"{SCRAM_SHA_256}${self.iterations}:{salt}${stored_key}:{server_key}"


def parse_verifier(text: str) -> ScramVerifier:
    """Return the verifier in `text`, which has the format of pg_authid.rolpassword.

    Raises:
        ConfigurationError: it is not a verifier. The message does not quote it.
    """
    match = _VERIFIER.fullmatch(text)
    parts = [_from_base64(part) for part in match.groups()[1:]] if match else []
    if match is None or None in parts:
        raise ConfigurationError("not a SCRAM verifier: it must be SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey")
    salt, stored_key, server_key = (part or b"" for part in parts)
    iterations = int(match[1])
    if not 0 < iterations <= _ITERATIONS_MAX or not 0 < len(salt) <= _SALT_BYTES_MAX:
        raise ConfigurationError("not a SCRAM verifier: its number of iterations or its salt is out of bounds")
    if len(stored_key) != _KEY_BYTES or len(server_key) != _KEY_BYTES:
        raise ConfigurationError(f"not a SCRAM verifier: its keys must have {_KEY_BYTES} bytes each")
    return ScramVerifier(iterations, salt, stored_key, server_key)


def make_verifier(password: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS) -> ScramVerifier:
    """Return the verifier of `password`. This takes milliseconds on purpose.

    Args:
        salt: SALT_BYTES random bytes, for this verifier alone.
    """
    secret = prepare_password(password).encode(errors="surrogateescape")
    salted = hashlib.pbkdf2_hmac("sha256", secret, salt, iterations)
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return ScramVerifier(iterations, salt, stored_key, _hmac(salted, b"Server Key"))


class ScramServer:
    """One exchange: `challenge` for the client's first message, `verify` for its final one.

    Args:
        verifier: that of the user, None if the user does not exist.
        user: the name in the startup packet.
        nonce: the server's half of the nonce, never used before: printable ASCII without commas.
        channel_binding: the tls-server-end-point of this connection; None: PLUS is not offered.
        mock_salt: a secret of this process, from which salts of users that do not exist are computed.

    Attributes:
        is_known: whether the user exists. For the log only: the client must not learn it.
    """

    def __init__(
        self, verifier: ScramVerifier | None, *, user: str, nonce: str, channel_binding: bytes | None, mock_salt: bytes
    ) -> None:
        if re.fullmatch(_NONCE, nonce) is None:
            raise LocalProtocolError("a SCRAM nonce is printable ASCII without commas")
        self.is_known = verifier is not None
        self._verifier = verifier or _mock_verifier(user, mock_salt)
        self._server_nonce = nonce
        self._channel_binding = channel_binding
        # Empty until a challenge was sent; a client's nonce is never empty.
        self._nonce = ""
        self._bound_to = ""
        self._exchanged = b""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that are offered to the client, in order of preference."""
        return (SCRAM_SHA_256,) if self._channel_binding is None else (SCRAM_SHA_256_PLUS, SCRAM_SHA_256)

    def challenge(self, mechanism: str, client_first: bytes) -> bytes:
        """Return the reply to the client's first message: the nonce, the salt and the number of iterations.

        Raises:
            RemoteProtocolError: the mechanism was not offered, the message is not valid, or it does not fit the
                mechanism.
        """
        if mechanism not in self.mechanisms:
            raise RemoteProtocolError(f"the client chose the SASL mechanism {mechanism[:40]!r}, which was not offered")
        match = _CLIENT_FIRST.fullmatch(_decode(client_first))
        if match is None:
            raise RemoteProtocolError("the client's first SCRAM message is invalid")
        if match["authorization"] or match["mandatory"]:
            raise RemoteProtocolError("the client requests an authorization identity or an extension of SCRAM")
        self._check_binding(mechanism, match["flag"], match["binding"])
        bound = self._channel_binding if match["binding"] and self._channel_binding else b""
        self._bound_to = _base64(match["gs2"].encode() + bound)
        self._nonce = match["nonce"] + self._server_nonce
        answer = f"r={self._nonce},s={_base64(self._verifier.salt)},i={self._verifier.iterations}"
        self._exchanged = f"{match['bare']},{answer},".encode()
        return answer.encode()

    def verify(self, client_final: bytes) -> bytes | None:
        """Return the server's signature if the client's proof is right, None if it is not.

        Raises:
            RemoteProtocolError: the message is not valid, belongs to another exchange, or to another TLS
                connection.
        """
        match = _CLIENT_FINAL.fullmatch(_decode(client_final))
        proof = _from_base64(match["proof"]) if match else None
        if match is None or proof is None or len(proof) != _KEY_BYTES:
            raise RemoteProtocolError("the client's final SCRAM message is invalid")
        if not hmac.compare_digest(match["nonce"], self._nonce):
            raise RemoteProtocolError("the client's final SCRAM message has another nonce")
        if not hmac.compare_digest(match["binding"].encode(), self._bound_to.encode()):
            raise RemoteProtocolError(
                "the client's SCRAM channel binding does not match: a third party may relay the connection"
            )
        exchanged = self._exchanged + match["unproven"].encode()
        signature = _hmac(self._verifier.stored_key, exchanged)
        client_key = bytes(ours ^ theirs for ours, theirs in zip(signature, proof, strict=True))
        is_proven = hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)
        if not (is_proven and self.is_known):
            return None
        return b"v=" + _base64(_hmac(self._verifier.server_key, exchanged)).encode()

    def _check_binding(self, mechanism: str, flag: str, binding: str | None) -> None:
        """Require the flag that a client with this mechanism and this offer sends."""
        if (mechanism == SCRAM_SHA_256_PLUS) != (binding is not None):
            raise RemoteProtocolError(f"the client's SCRAM message does not fit its mechanism {mechanism}")
        if binding not in (None, _BINDING):
            raise RemoteProtocolError(
                f"the client requests the channel binding {binding!r}, only {_BINDING} is supported"
            )
        # RFC 5802, section 6: the client supports binding, and assumes that the server does not: the offer was changed.
        if flag == "y" and self._channel_binding is not None:
            raise RemoteProtocolError(
                "the client did not receive the offer of channel binding: a third party may relay the connection"
            )


def _mock_verifier(user: str, secret: bytes) -> ScramVerifier:
    salt = _hmac(secret, b"salt " + user.encode())[:SALT_BYTES]
    return ScramVerifier(DEFAULT_ITERATIONS, salt, _hmac(secret, b"stored key " + user.encode()), bytes(_KEY_BYTES))


def _decode(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a SCRAM message is not UTF-8") from None


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
