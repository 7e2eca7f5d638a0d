"""The password request: the SASL messages around one SCRAM exchange.

    AuthenticationSASL(mechanisms)       -->
                                         <--     SASLInitialResponse(mechanism, client's first)
    AuthenticationSASLContinue(challenge) -->
                                         <--     SASLResponse(client's final)
    AuthenticationSASLFinal(our proof)   -->     and the exchange is done

A client may send its mechanism alone; then it gets an empty challenge first.
Source: https://www.postgresql.org/docs/current/sasl-authentication.html

Pure. A client that fails raises ClientRefused, an invalid message RemoteProtocolError.
"""

from enum import Enum

from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.pgwire import backend
from safekeeper.pgwire.refusal import ClientRefused
from safekeeper.pgwire.scram import ScramServer, parse_verifier

# PostgreSQL's own limit.
SASL_BYTES_MAX = 1024


class AuthenticationStep(Enum):
    """The client's next message; each member's comment gives the state after it."""

    MECHANISM = "mechanism"  # the initial response: CLIENT_FINAL; one without data: CLIENT_FIRST
    CLIENT_FIRST = "client_first"  # the client's first SCRAM message: CLIENT_FINAL
    CLIENT_FINAL = "client_final"  # the proof: DONE
    DONE = "done"  # nothing: the password was right


class PasswordExchange:
    """The proof of one client's password.

    Args:
        user: the name in the startup packet.
        verifier: the text of the user's verifier, None if the user does not exist.
        nonce, channel_binding, mock_salt: as for ScramServer.
        advice: what to add to the log's line about a wrong password.
    """

    def __init__(
        self,
        user: str,
        verifier: str | None,
        *,
        nonce: str,
        channel_binding: bytes | None,
        mock_salt: bytes,
        advice: str = "",
    ) -> None:
        self._user = user
        self._advice = advice
        self._step = AuthenticationStep.MECHANISM
        self._mechanism = ""
        try:
            known = None if verifier is None else parse_verifier(verifier)
        except ConfigurationError as error:
            raise self._failed(f'the verifier of user "{user}" cannot be used: {error}') from None
        self._scram = ScramServer(known, user=user, nonce=nonce, channel_binding=channel_binding, mock_salt=mock_salt)

    @property
    def done(self) -> bool:
        """Whether the password was right."""
        return self._step is AuthenticationStep.DONE

    def request(self) -> bytes:
        """Return the request for a password."""
        return backend.authentication_sasl(self._scram.mechanisms)

    def receive(self, body: bytes) -> bytes:
        """Handle the body of the client's message; return the reply.

        Raises:
            RemoteProtocolError: the message is not valid.
            ClientRefused: the password is wrong, or was sent in plain text or as MD5.
        """
        if len(body) > SASL_BYTES_MAX:
            raise RemoteProtocolError(f"a SASL message has {len(body)} bytes, more than {SASL_BYTES_MAX}")
        if self._step is AuthenticationStep.MECHANISM:
            self._mechanism, first = parse_initial_response(body)
            if self._mechanism not in self._scram.mechanisms:
                raise ClientRefused("28000", f"the client chose none of {', '.join(self._scram.mechanisms)}")
            if first is None:
                self._step = AuthenticationStep.CLIENT_FIRST
                return backend.authentication_sasl_continue(b"")
            body = first
        if self._step is not AuthenticationStep.CLIENT_FINAL:
            challenge = self._scram.challenge(self._mechanism, body)
            self._step = AuthenticationStep.CLIENT_FINAL
            return backend.authentication_sasl_continue(challenge)
        proof = self._scram.verify(body)
        if proof is None:
            raise self._failed("" if self._scram.is_known else f'user "{self._user}" does not exist in pg_users')
        self._step = AuthenticationStep.DONE
        return backend.authentication_sasl_final(proof)

    def _failed(self, log_message: str = "") -> ClientRefused:
        message = f'password authentication failed for user "{self._user}"'
        return ClientRefused("28P01", message, log_message=log_message or message + self._advice)


def parse_initial_response(body: bytes) -> tuple[str, bytes | None]:
    """Return the SASL mechanism that the client chose and its first message, None if an empty challenge must be sent.

    Raises:
        ClientRefused: the message is not such a response, but for instance a password.
    """
    name, end, rest = body.partition(b"\0")
    length, data = int.from_bytes(rest[:4], signed=True), rest[4:]
    is_asked_for = length == -1 and not data
    if not end or len(rest) < 4 or not name.isascii() or not (is_asked_for or length == len(data)):
        raise ClientRefused("28000", "the client sent a password or its MD5: only SCRAM-SHA-256 is accepted here")
    return name.decode(), None if is_asked_for else data
