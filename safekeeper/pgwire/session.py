"""The protocol state of one client's connection: bytes in, events and bytes out.

    STARTUP --SSLRequest--> TLS_HANDSHAKE --tls_started()--> STARTUP
       |  startup packet
       v
    AUTHENTICATING --proof--> READY --command--> BUSY --answer()--> READY
                                ^                  | begin_copy()
                                |                  v
                                '--finish_copy()-- COPY_ENDING <--end_copy(), CopyDone-- COPY

The session implements only the protocol: it requests passwords, refuses unsupported commands, and returns the commands
that its owner has to answer. It has no transport, no clock and no WAL. After every call its owner sends the pending
output (`take_output`); received bytes are passed to `receive`. During COPY the owner writes WAL itself, after the
output of `take_output`.

What a client sends raises only RemoteProtocolError (S11). The session is over then; the part of the reason that the
client can decode is in `take_output`, for the connection's last write.
Source: https://www.postgresql.org/docs/current/protocol-flow.html

Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from safekeeper.base.errors import LocalProtocolError, RemoteProtocolError
from safekeeper.base.lsn import Lsn, format_lsn
from safekeeper.pgwire import backend
from safekeeper.pgwire.authentication import PasswordExchange
from safekeeper.pgwire.backend import INT8, TEXT, ResultColumn
from safekeeper.pgwire.channel_binding import server_end_point
from safekeeper.pgwire.commands import EmptyQuery, StartReplication, Unsupported, parse_command
from safekeeper.pgwire.events import (
    Authenticated,
    CommandReceived,
    CommandRefused,
    CopyEnded,
    Event,
    StartTls,
    Terminated,
)
from safekeeper.pgwire.frontend import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    FrontendDecoder,
    parse_copy_data,
    parse_string,
)
from safekeeper.pgwire.refusal import ClientRefused
from safekeeper.pgwire.startup import admission


class SessionState(Enum):
    """The state of a session; each member's comment gives the transitions to the next."""

    STARTUP = "startup"  # the startup packet: AUTHENTICATING or READY; a request for TLS: TLS_HANDSHAKE
    TLS_HANDSHAKE = "tls_handshake"  # tls_started(): STARTUP again
    AUTHENTICATING = "authenticating"  # the proof of the password: READY
    READY = "ready"  # a command: BUSY; one of the extended protocol: SKIPPING
    SKIPPING = "skipping"  # Sync: READY
    BUSY = "busy"  # answer(), complete() or refuse(): READY; begin_copy(): COPY; finish_copy(): READY
    COPY = "copy"  # end_copy() or the client's CopyDone: COPY_ENDING; refuse(): READY
    COPY_ENDING = "copy_ending"  # finish_copy() once the client ended it too: READY; refuse(): READY
    CLOSED = "closed"  # none: the client disconnected, broke the protocol, or was refused for good


_TLS_RECORD_HANDSHAKE = 0x16
_COPY_DATA = ord("d")
_NEXT_TIMELINE_COLUMNS = (ResultColumn("next_tli", *INT8), ResultColumn("next_tli_startpos", *TEXT))


class Session:
    """The protocol state of one client's connection.

    Args:
        tls: whether clients must use TLS. If so, plaintext is refused; if not, TLS is.
        users: SCRAM verifiers by user name. None: no password is required.
        parameters: the settings that are sent to the client, e.g. server_version.
        nonce: the server's half of the SCRAM nonce: printable ASCII without commas, never used before.
        mock_salt: a secret of this process, from which salts of users that do not exist are computed.
        password_advice: what to add to the log's line about a client without the right password.
    """

    def __init__(
        self,
        *,
        tls: bool,
        users: Mapping[str, str] | None,
        parameters: Mapping[str, str],
        nonce: str,
        mock_salt: bytes,
        password_advice: str = "",
    ) -> None:
        self._tls = tls
        self._password_advice = f"; {password_advice}" if password_advice else ""
        self._users = users
        self._parameters = parameters
        self._nonce = nonce
        self._mock_salt = mock_salt
        self._decoder = FrontendDecoder()
        self._output = bytearray()
        self._state = SessionState.STARTUP
        self._encrypted = False
        self._asked_for: set[int] = set()
        self._channel_binding: bytes | None = None
        self._only_user: str | None = None
        self._client: Authenticated | None = None
        self._exchange: PasswordExchange | None = None
        self._streaming_command = False
        self._client_copy_done = False
        self._our_copy_done = False

    @property
    def state(self) -> SessionState:
        """The session's state."""
        return self._state

    def take_output(self) -> bytes:
        """Return the pending output, and clear it."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def explain_eof(self) -> str:
        """Return, for the log, the likely reason if the client disconnects in the present state."""
        match self._state:
            case SessionState.AUTHENTICATING:
                user = f'user "{self._client.user}" ' if self._client is not None else ""
                return (
                    f"{user}disconnected at the request for a password: it has none, or does not support SCRAM-SHA-256"
                    f"{self._password_advice}"
                )
            case SessionState.TLS_HANDSHAKE:
                return "disconnected during the TLS handshake: it may not trust the certificate"
            case SessionState.STARTUP:
                return "disconnected before its startup packet"
            case _:
                return "disconnected without a Terminate message"

    # Input from the client.

    def receive(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """Handle received bytes and return the resulting events.

        Raises:
            RemoteProtocolError: the client is refused, or the input is not valid; the session is over, and the rest of
                `data` no longer matters.
        """
        if self._state is SessionState.CLOSED:
            return []
        if self._state is SessionState.TLS_HANDSHAKE:
            raise LocalProtocolError("bytes of a TLS handshake must not reach the session")
        self._decoder.feed(data)
        events: list[Event] = []
        try:
            while self._receive_one(events):
                pass
        except ClientRefused as refused:
            self.refuse(refused.sqlstate, refused.message, hint=refused.hint, fatal=True)
            raise
        except RemoteProtocolError as error:
            # Without a startup packet the client may use any protocol, and could not decode a reply.
            if self._state is not SessionState.STARTUP:
                self._output += backend.error_response("FATAL", "08P01", str(error))
            self._state = SessionState.CLOSED
            raise
        return events

    def tls_started(self, server_certificate_der: bytes | None, only_user: str | None = None) -> None:
        """Continue after the TLS handshake.

        Args:
            server_certificate_der: the certificate that the client received, for channel binding; None: without.
            only_user: the name in the client's certificate; no other user is admitted. None: it sent none.
        """
        self._require(SessionState.TLS_HANDSHAKE)
        if server_certificate_der is not None:
            self._channel_binding = server_end_point(server_certificate_der)
        self._only_user = only_user
        self._encrypted = True
        self._state = SessionState.STARTUP

    def _receive_one(self, events: list[Event]) -> bool:
        """Decode and handle one packet or message; return whether there may be another one."""
        state = self._state
        if state is SessionState.STARTUP:
            return self._receive_packet(events)
        if state is SessionState.CLOSED or state is SessionState.TLS_HANDSHAKE:
            return False
        message = self._decoder.next_message()
        if message is None:
            return False
        kind, body = message
        if kind == _COPY_DATA and (state is SessionState.COPY or state is SessionState.COPY_ENDING):
            if self._client_copy_done:
                raise RemoteProtocolError("the client sent more after it had ended its direction of the COPY")
            events.append(parse_copy_data(body))
        else:
            self._receive_message(chr(kind), body, events)
        return True

    def _receive_message(self, kind: str, body: bytes, events: list[Event]) -> None:
        state = self._state
        if kind == "X":
            self._state = SessionState.CLOSED
            events.append(Terminated())
        elif state is SessionState.AUTHENTICATING and kind == "p":
            self._receive_password(body, events)
        elif state is SessionState.READY:
            self._receive_command(kind, body, events)
        elif state is SessionState.SKIPPING:
            if kind == "S":
                self._output += backend.ready_for_query()
                self._state = SessionState.READY
        elif kind == "c" and state in (SessionState.COPY, SessionState.COPY_ENDING) and not self._client_copy_done:
            self._client_copy_done = True
            self._state = SessionState.COPY_ENDING
            events.append(CopyEnded())
        else:
            raise _misplaced(kind, state)

    # The start of a connection.

    def _receive_packet(self, events: list[Event]) -> bool:
        if self._is_direct_tls():
            if not self._tls:
                raise RemoteProtocolError(
                    "the client started TLS, which this listener does not offer: connect with sslmode=disable"
                )
            self._start_tls(events, direct=True)
            return False
        packet = self._decoder.next_packet()
        if packet is None:
            return False
        if packet.code == CANCEL_REQUEST:
            # No command here runs long enough to be cancelled, and the client does not wait for a reply.
            self._state = SessionState.CLOSED
            events.append(Terminated())
        elif packet.code in (SSL_REQUEST, GSSENC_REQUEST):
            self._receive_encryption_request(packet.code, events)
        else:
            self._receive_startup(packet.code, packet.body, events)
        return True

    def _is_direct_tls(self) -> bool:
        return not self._encrypted and not self._asked_for and self._decoder.peek() == _TLS_RECORD_HANDSHAKE

    def _receive_encryption_request(self, code: int, events: list[Event]) -> None:
        if self._encrypted or code in self._asked_for:
            raise RemoteProtocolError("the client requested encryption twice")
        self._asked_for.add(code)
        if code == SSL_REQUEST and self._tls:
            self._start_tls(events, direct=False)
        else:
            self._output += b"N"

    def _start_tls(self, events: list[Event], direct: bool) -> None:
        rest = self._decoder.take_rest()
        if rest and not direct:
            # A third party could have inserted them, to be taken for the client's after the handshake (CVE-2021-23222).
            raise ClientRefused("08P01", "the client sent unencrypted bytes after its request for TLS")
        if not direct:
            self._output += b"S"
        self._state = SessionState.TLS_HANDSHAKE
        events.append(StartTls(rest))

    def _receive_startup(self, version: int, body: bytes, events: list[Event]) -> None:
        if self._tls and not self._encrypted:
            raise ClientRefused("28000", "this listener requires TLS: connect with sslmode=require")
        wanted = admission(version, body)
        if wanted.is_negotiated:
            self._output += backend.negotiate_protocol_version(wanted.unknown_options)
        self._client = wanted.client
        user = wanted.client.user
        if self._only_user is not None and user != self._only_user:
            whose = f'is that of "{self._only_user}"' if self._only_user else "contains no name"
            raise ClientRefused(
                "28000", f'certificate authentication failed for user "{user}": the certificate {whose} (CN)'
            )
        if self._users is None:
            self._let_in(wanted.client, events)
            return
        self._exchange = PasswordExchange(
            user,
            self._users.get(user),
            nonce=self._nonce,
            channel_binding=self._channel_binding,
            mock_salt=self._mock_salt,
            advice=self._password_advice,
        )
        self._output += self._exchange.request()
        self._state = SessionState.AUTHENTICATING

    def _receive_password(self, body: bytes, events: list[Event]) -> None:
        if self._exchange is None or self._client is None:
            raise LocalProtocolError("no password was requested")
        self._output += self._exchange.receive(body)
        if self._exchange.done:
            self._let_in(self._client, events)

    def _let_in(self, client: Authenticated, events: list[Event]) -> None:
        self._output += backend.authentication_ok()
        for name, value in self._parameters.items():
            self._output += backend.parameter_status(name, value)
        self._output += backend.ready_for_query()
        self._state = SessionState.READY
        events.append(client)

    # Commands.

    def _receive_command(self, kind: str, body: bytes, events: list[Event]) -> None:
        match kind:
            case "Q":
                self._receive_query(parse_string(body), events)
            case "S":
                self._output += backend.ready_for_query()
            case "P" | "B" | "E" | "C" | "D" | "F":
                self._refuse_command("0A000", "only the simple query protocol is supported", "", events)
                # A function call is answered at once; after all others wait for Sync.
                if kind == "F":
                    self._output += backend.ready_for_query()
                else:
                    self._state = SessionState.SKIPPING
            case "d" | "c" | "f" | "H":
                # Flush needs no reply; the others were sent before the client received the error that ended its COPY.
                pass
            case _:
                raise _misplaced(kind, self._state)

    def _receive_query(self, text: str, events: list[Event]) -> None:
        try:
            command = parse_command(text)
        except RemoteProtocolError as error:
            self._refuse_command("42601", str(error), "", events)
            self._output += backend.ready_for_query()
            return
        if isinstance(command, EmptyQuery):
            self._output += backend.empty_query_response() + backend.ready_for_query()
        elif isinstance(command, Unsupported):
            self._refuse_command("0A000", f"a safekeeper does not support {command.what}", command.hint, events)
            self._output += backend.ready_for_query()
        else:
            self._state = SessionState.BUSY
            self._streaming_command = isinstance(command, StartReplication)
            events.append(CommandReceived(command))

    def _refuse_command(self, sqlstate: str, message: str, hint: str, events: list[Event]) -> None:
        self._output += backend.error_response("ERROR", sqlstate, message, hint=hint)
        events.append(CommandRefused(sqlstate, message))

    # Calls of the owner. In CLOSED they do nothing: the client may disconnect while its answer is being prepared.

    def answer(self, columns: Sequence[ResultColumn], row: Sequence[str | bytes | None] | None, tag: str) -> None:
        """Answer the command with a result of one row, or of none, and the command's tag.

        Raises:
            LocalProtocolError: no command waits for an answer.
        """
        if self._is_over():
            return
        self._require(SessionState.BUSY)
        self._output += backend.row_description(columns)
        if row is not None:
            self._output += backend.data_row(row)
        self._become_ready(tag)

    def complete(self, tag: str) -> None:
        """Answer the command with only its tag."""
        if self._is_over():
            return
        self._require(SessionState.BUSY)
        self._become_ready(tag)

    def refuse(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "", fatal: bool = False) -> None:
        """Answer the command, or end the COPY, with an error. A fatal one ends the session, in any state."""
        if self._is_over():
            return
        if not fatal:
            self._require(SessionState.BUSY, SessionState.COPY, SessionState.COPY_ENDING)
            self._output += backend.error_response("ERROR", sqlstate, message, detail, hint)
            self._become_ready()
            return
        # During a TLS handshake the client could not decode it.
        if self._state is not SessionState.TLS_HANDSHAKE:
            self._output += backend.error_response("FATAL", sqlstate, message, detail, hint)
        self._state = SessionState.CLOSED

    def begin_copy(self) -> None:
        """Start streaming, in answer to START_REPLICATION."""
        if self._is_over():
            return
        self._require(SessionState.BUSY)
        if not self._streaming_command:
            raise LocalProtocolError("only START_REPLICATION starts a COPY")
        self._output += backend.copy_both_response()
        self._client_copy_done = self._our_copy_done = False
        self._state = SessionState.COPY

    def end_copy(self) -> None:
        """End the server's direction of the COPY: no more WAL may be written; the client's messages still count."""
        if self._is_over():
            return
        self._require(SessionState.COPY, SessionState.COPY_ENDING)
        if not self._our_copy_done:
            self._output += backend.copy_done()
            self._our_copy_done = True
        self._state = SessionState.COPY_ENDING

    def finish_copy(self, next_timeline: tuple[int, Lsn] | None) -> None:
        """Leave the COPY that the client has ended, or that did not begin because the timeline ends at its start.

        Args:
            next_timeline: (TLI, the LSN at which it begins), if the streamed timeline ends there.
        """
        if self._is_over():
            return
        self._require(SessionState.BUSY, SessionState.COPY_ENDING)
        if self._state is SessionState.COPY_ENDING:
            if not self._client_copy_done:
                raise LocalProtocolError("a COPY cannot end before the client ended it")
            self.end_copy()
        if next_timeline is not None:
            tli, begin_lsn = next_timeline
            self._output += backend.row_description(_NEXT_TIMELINE_COLUMNS)
            self._output += backend.data_row((str(tli), format_lsn(begin_lsn)))
        # libpq's walreceiver waits for two completions, whatever their tags.
        self._output += backend.command_complete("START_STREAMING")
        self._become_ready("START_REPLICATION")

    def _become_ready(self, tag: str = "") -> None:
        if tag:
            self._output += backend.command_complete(tag)
        self._output += backend.ready_for_query()
        self._state = SessionState.READY

    def _is_over(self) -> bool:
        return self._state is SessionState.CLOSED

    def _require(self, *states: SessionState) -> None:
        if self._state not in states:
            raise LocalProtocolError(f"this message cannot be sent in the state {self._state.value}")


def _misplaced(kind: str, state: SessionState) -> RemoteProtocolError:
    return RemoteProtocolError(f"a message of type {kind!r} is not expected in the state {state.value}")
