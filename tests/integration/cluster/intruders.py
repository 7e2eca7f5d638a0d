"""Clients and servers that must be refused: strangers at a listener, relays, and a server that poses as another.

Each of `knock`, `log_in` and `Raw.log_in` tries once and returns the reply, in one line where there is
anything.
"""

import asyncio
import contextlib
import hashlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from scramp import ScramClient

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.settings import Address, Secret
from safekeeper.consensus.messages import PROTOCOL_VERSION, ProposerGreeting
from safekeeper.net.safekeeper_connection import Credentials, SafekeeperConnection
from safekeeper.net.tls import ClientTls
from safekeeper.peers.codec import (
    ACCEPTOR_AUTHENTICATION,
    PROPOSER_AUTHENTICATION,
    FrameDecoder,
    encode,
    encode_authentication,
)
from safekeeper.peers.peer_auth import AuthenticationMessage, Challenge, Hello, Proof
from safekeeper.peers.shared_secret import SharedSecret
from tests.unit.certificates import HOST
from tests.unit.pgwire_client import SSL_REQUEST, sasl_initial_response, sasl_response, startup
from tests.unit.replication_client import ReplicationClient, ServerError

_DEADLINE_S = 20.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def log_in(conninfo: str, **options: str) -> str:
    """Log in by libpq, and return the error, "let in" if there is none."""
    try:
        psycopg.connect(psycopg.conninfo.make_conninfo(conninfo, **options)).close()
    except psycopg.OperationalError as error:
        return str(error)
    return "let in"


def knock(port: int, tls: ClientTls | None, secret: str, safekeeper_id: int = 1) -> str:
    """Connect to a proposers' listener as a proxy does, and return the proxy's error, "let in" if there is none."""
    credentials = Credentials(tls, SharedSecret(None, Secret(secret.encode())) if secret else None)

    async def run() -> str:
        lost = asyncio.Event()
        connection = SafekeeperConnection(
            safekeeper_id, credentials, opened=lambda: None, received=lambda message: None, lost=lost.set
        )
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await connection.connect(Address(HOST, port), tls)
                # Without a secret there is nothing to wait for but the end, or the first word.
                if not secret:
                    connection.writelines(encode(ProposerGreeting(PROTOCOL_VERSION, "run1", safekeeper_id)))
                    await lost.wait()
                    return connection.reason
        except (OSError, RemoteProtocolError) as error:
            return str(error)
        finally:
            connection.abort("the intruder has seen enough")
        return "let in"

    return asyncio.run(run())


class Raw(ReplicationClient):
    """A replication client of this file's own over TLS, which sends anything.

    Attributes:
        binding: what the certificate that it was shown has for channel binding (tls-server-end-point).
    """

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port, startup=False)
        self.socket.sendall(SSL_REQUEST)
        assert self.socket.recv(1) == b"S"
        secured = context.wrap_socket(self.socket, server_hostname=HOST)
        self.socket = secured
        self.binding = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").digest()

    def log_in(self, user: str, password: str, *, strips_plus: bool = False, replayed: bytes = b"") -> str:
        """Log in by SCRAM, and return the server's error.

        Args:
            strips_plus: as a client does to which no channel binding was offered.
            replayed: sent instead of the proof.
        """
        offered = ["SCRAM-SHA-256"] if strips_plus else ["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]
        scram = ScramClient(offered, user, password, channel_binding=("tls-server-end-point", self.binding))
        try:
            self.socket.sendall(startup(user=user))
            self.receive()
            first = scram.get_client_first().encode()
            self.socket.sendall(sasl_initial_response(scram.mechanism_name, first))
            _, challenge = self.receive()
            scram.set_server_first(challenge[4:].decode())
            self.final = replayed or scram.get_client_final().encode()
            self.socket.sendall(sasl_response(self.final))
            self.receive()
        except ServerError as error:
            return str(error)
        return "let in"


class Prover:
    """A proxy over TLS as far as it proves the secret, word for word."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        plain = socket.create_connection((HOST, port), timeout=_DEADLINE_S)
        self.socket = context.wrap_socket(plain, server_hostname=HOST)
        self._decoder = FrameDecoder(ACCEPTOR_AUTHENTICATION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def certificate_der(self) -> bytes:
        """The safekeeper's."""
        return self.socket.getpeercert(binary_form=True) or b""

    def ask(self, message: AuthenticationMessage) -> AuthenticationMessage:
        """Send a message and return the answer."""
        self.socket.sendall(encode_authentication(message))
        while True:
            data = self.socket.recv(1 << 16)
            assert data, "the safekeeper hung up without a reply"
            for answer in self._decoder.feed(data):
                return answer


class Impostor:
    """Listens on loopback in the place of another server; used in a `with` statement.

    Attributes:
        port: where.

    Args:
        serve: what is done with each connection.
        tls: what it presents; behind PostgreSQL's request for TLS if `postgres`, else at once.
    """

    def __init__(self, serve: Serve, tls: ssl.SSLContext, *, postgres: bool = False, port: int = 0) -> None:
        self._serve = serve
        self._tls = tls
        self._postgres = postgres
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: list[tuple[asyncio.WriteTransport, Any]] = []
        self.port = port

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE_S)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_DEADLINE_S)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, HOST, self.port, ssl=None if self._postgres else self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        # asyncio forgets the socket of a connection that is being accepted when the server is closed.
        while accepting := asyncio.all_tasks() - self._tasks - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        # A transport closes its socket in a later turn of the loop, which is about to end.
        for transport, _ in self._connections:
            with contextlib.suppress(AttributeError):  # Python 3.11.2: its TLS is closed already.
                transport.abort()
        while any(sock.fileno() != -1 for _, sock in self._connections):
            await asyncio.sleep(0.01)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append((writer.transport, writer.get_extra_info("socket")))
        task = self._loop.create_task(self._welcome(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                if self._postgres:
                    await reader.readexactly(len(SSL_REQUEST))
                    writer.write(b"S")
                    await writer.start_tls(self._tls)
                await self._serve(reader, writer)
        finally:
            writer.close()


def passes_on(port: int, tls: ssl.SSLContext, *, postgres: bool = False) -> Serve:
    """A relay in between: it passes bytes to a server with a certificate of its own, and back."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(HOST, port)
        try:
            if postgres:
                onward_writer.write(SSL_REQUEST)
                assert await onward_reader.readexactly(1) == b"S"
            await onward_writer.start_tls(tls, server_hostname=HOST)
            await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))
        finally:
            onward_writer.close()

    return serve


async def reflects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A safekeeper without the secret: it returns the proxy's proof as its own."""
    decoder = FrameDecoder(PROPOSER_AUTHENTICATION)
    while data := await reader.read(1 << 16):
        for message in decoder.feed(data):
            assert isinstance(message, Hello | Proof)
            answer = Challenge(1, message.nonce) if isinstance(message, Hello) else message
            writer.write(encode_authentication(answer))


def hung_up(port: int, host: str) -> bool:
    """Connect from the address `host` and return whether that is answered by the end of the connection alone."""
    with socket.create_connection((HOST, port), timeout=_DEADLINE_S, source_address=(host, 0)) as connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def presents(ca: Path, cert: Path, key: Path) -> ClientTls:
    """A client that presents a certificate which no honest one would, because it has expired."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    context.load_cert_chain(cert, key)
    tls = ClientTls(ca)
    tls._loaded = tls._loaded._replace(context=context)
    return tls
