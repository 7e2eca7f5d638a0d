"""The proxy's link and a safekeeper's listener: who comes together, and the one line on each side of who does not."""

import asyncio
import contextlib
import logging
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from safekeeper.base.networks import Networks
from safekeeper.base.settings import Address, Secret
from safekeeper.consensus.messages import PROTOCOL_VERSION, AcceptorGreeting, ProposerGreeting
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.net.tls import ClientTls, ServerTls
from safekeeper.peers.codec import encode
from safekeeper.peers.shared_secret import SharedSecret
from tests.unit.certificates import Authority, Pair
from tests.unit.event_loop import on_the_loop, until
from tests.unit.node.test_proposer_listener import House, house
from tests.unit.proxy.test_safekeeper_link import Owner
from walproxy.proxy.safekeeper_link import SafekeeperLink

GREETING = encode(ProposerGreeting(PROTOCOL_VERSION, "run1", 1))


class World(NamedTuple):
    """Two CAs and what they signed."""

    authority: Authority
    server: Pair
    other_server: Pair
    client: Pair
    expired: Pair
    stranger: Authority
    strangers_client: Pair


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    authority, stranger = Authority(tmp_path_factory.mktemp("ca")), Authority(tmp_path_factory.mktemp("other"))
    return World(
        authority,
        authority.sign("server"),
        authority.sign("other"),
        authority.sign("client"),
        authority.sign("expired", expired=True),
        stranger,
        stranger.sign("client"),
    )


def secret(value: str) -> SharedSecret:
    return SharedSecret(None, Secret(value.encode()))


DIFFERS = (
    "the safekeeper refuses the proof of the shared secret: the secrets differ, use the same one "
    "(ours is that in the environment)"
)
OURS, THEIRS = "the secret of this cluster", "the secret of another one"


def expired_server(world: World) -> ServerTls:
    """A listener whose certificate was good when it began."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*world.expired)
    tls = ServerTls(*world.server)
    tls._loaded = tls._loaded._replace(context=context)
    return tls


def expired_client(world: World) -> ClientTls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(*world.expired)
    context.load_verify_locations(world.authority.ca)
    tls = ClientTls(world.authority.ca)
    tls._loaded = tls._loaded._replace(context=context)
    return tls


class GreetingOwner(Owner):
    """Speaks as soon as it may, as a proxy does."""

    def __init__(self) -> None:
        super().__init__()
        self.greeted: SafekeeperLink

    def link_up(self, safekeeper_id: int) -> None:
        super().link_up(safekeeper_id)
        self.greeted.send(GREETING)


class Listener(NamedTuple):
    """How the safekeeper's side is configured."""

    tls: Callable[[World], ServerTls] | None = None
    secret: str = ""
    networks: str = ""


class Proxy(NamedTuple):
    """How the proxy's side is configured."""

    tls: Callable[[World], ClientTls] | None = None
    secret: str = ""


def server_tls(world: World) -> ServerTls:
    return ServerTls(*world.server)


def mutual_tls(world: World) -> ServerTls:
    return ServerTls(*world.server, world.authority.ca)


def trusts(world: World) -> ClientTls:
    return ClientTls(world.authority.ca)


def presents(world: World) -> ClientTls:
    return ClientTls(world.authority.ca, *world.client)


@contextlib.asynccontextmanager
async def meeting(
    directory: Path, world: World, listener: Listener, proxy: Proxy, *, safekeeper_id: int = 1
) -> AsyncIterator[tuple[House, SafekeeperLink, Owner]]:
    """A listener, and a link that tries to come through it."""
    async with house(
        directory,
        tls=listener.tls(world) if listener.tls else None,
        secret=secret(listener.secret) if listener.secret else None,
        networks=Networks.parse(listener.networks) if listener.networks else None,
    ) as there:
        credentials = Credentials(
            proxy.tls(world) if proxy.tls else None, secret(proxy.secret) if proxy.secret else None
        )
        owner = GreetingOwner()
        owner.greeted = link = SafekeeperLink(safekeeper_id, there.listener.address, owner, credentials)
        task = asyncio.create_task(link.run())
        try:
            yield there, link, owner
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.parametrize(
    ("listener", "proxy"),
    [
        (Listener(), Proxy()),
        (Listener(networks="127.0.0.0/8"), Proxy()),
        (Listener(secret=OURS), Proxy(secret=OURS)),
        (Listener(server_tls), Proxy(trusts)),
        (Listener(server_tls), Proxy(presents)),
        (Listener(mutual_tls), Proxy(presents)),
        (Listener(mutual_tls, OURS, "127.0.0.1"), Proxy(presents, OURS)),
    ],
    ids=["nothing", "network", "secret", "TLS", "TLS, unasked certificate", "mutual TLS", "all"],
)
@on_the_loop
async def test_those_who_fit_talk_in_both_directions(
    tmp_path: Path, world: World, listener: Listener, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with meeting(tmp_path, world, listener, proxy) as (_, link, owner):
        await until(lambda: owner.ups == 1)
        for count in range(2, 200):
            link.send(GREETING)
            if count % 50 == 0:
                await until(lambda count=count: len(owner.messages) == count)  # type: ignore[misc]
        await until(lambda: len(owner.messages) == 199)
        assert {type(message) for message in owner.messages} == {AcceptorGreeting}
        assert link.problem == ""
        assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("listener", "proxy", "at_the_listener", "at_the_proxy"),
    [
        (
            Listener(secret=OURS),
            Proxy(secret=THEIRS),
            "its proof of the shared secret is wrong",
            DIFFERS,
        ),
        (
            Listener(secret=OURS),
            Proxy(),
            "the proxy sends no proof of a shared secret, and this safekeeper requires one: set the proxy's "
            "secret_file",
            "the safekeeper requires a shared secret: set secret_file or WALPROXY_SECRET",
        ),
        (
            Listener(),
            Proxy(secret=OURS),
            "the proxy sends a proof of a shared secret, and this safekeeper has none: set its secret_file",
            "the safekeeper has no shared secret, and this side requires one: set its secret_file",
        ),
        (
            Listener(server_tls),
            Proxy(),
            "the peer does not use TLS, and this listener requires it: set the peer's tls_ca",
            "the safekeeper requires TLS: set the proxy's tls_ca",
        ),
        (
            Listener(server_tls, OURS),
            Proxy(secret=OURS),
            "the peer does not use TLS, and this listener requires it: set the peer's tls_ca",
            "the safekeeper requires TLS: set the proxy's tls_ca",
        ),
        (
            Listener(),
            Proxy(trusts),
            "the proxy uses TLS, and this listener does not: set the safekeeper's tls_cert and tls_key",
            "it closed the connection during the TLS handshake: check its tls_cert and tls_key",
        ),
        (
            Listener(server_tls),
            Proxy(lambda world: ClientTls(world.stranger.ca)),
            "the peer does not trust the CA of this side's certificate: give it that CA's file",
            "the peer's certificate is refused: it is not signed by a CA of the configured file",
        ),
        (
            Listener(mutual_tls),
            Proxy(trusts),
            "the peer sent no client certificate, and one is required",
            "the peer requires a client certificate: set tls_cert and tls_key",
        ),
        (
            Listener(mutual_tls, OURS),
            Proxy(lambda world: ClientTls(world.authority.ca, *world.strangers_client), OURS),
            "the peer's certificate is refused: it is not signed by a CA of the configured file",
            "the peer does not trust the CA of this side's certificate: give it that CA's file",
        ),
        (
            Listener(expired_server),
            Proxy(trusts),
            "the peer reports this side's certificate as expired: renew it",
            "the peer's certificate is refused: it has expired",
        ),
        (
            Listener(mutual_tls),
            Proxy(expired_client),
            "the peer's certificate is refused: it has expired",
            "the peer reports this side's certificate as expired: renew it",
        ),
        (
            Listener(mutual_tls, OURS),
            Proxy(presents, THEIRS),
            "its proof of the shared secret is wrong",
            DIFFERS,
        ),
        (
            Listener(secret=OURS, networks="192.0.2.0/24"),
            Proxy(secret=OURS),
            "its address is in none of the networks of allow",
            "the safekeeper closed the connection before it proved the shared secret: see its log",
        ),
    ],
    ids=[
        "wrong secret",
        "proxy without secret",
        "safekeeper without secret",
        "plaintext to TLS",
        "plaintext to TLS with secret",
        "TLS to plaintext",
        "wrong CA",
        "no client certificate",
        "client certificate of another CA",
        "expired server",
        "expired client",
        "mutual TLS and wrong secret",
        "other network",
    ],
)
@on_the_loop
async def test_those_who_do_not_fit_are_distinguished_on_both_sides_and_the_proxy_says_it_once(
    tmp_path: Path,
    world: World,
    listener: Listener,
    proxy: Proxy,
    at_the_listener: str,
    at_the_proxy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines(name: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == name and r.levelno >= logging.WARNING]

    async with meeting(tmp_path, world, listener, proxy) as (there, link, owner):
        # Three attempts: the first line of the listener is the first one's.
        await until(lambda: len(lines("safekeeper.node.proposer_listener")) == 3)
        assert all(at_the_listener in line for line in lines("safekeeper.node.proposer_listener"))
        await until(lambda: bool(link.problem) and not link.is_up)
        assert at_the_proxy in link.problem
        (reported,) = lines("walproxy.proxy.safekeeper_link")
        assert reported == link.problem
        assert owner.messages == []
        assert there.node.acceptor.leader is None
        assert OURS not in caplog.text and THEIRS not in caplog.text


@on_the_loop
async def test_a_safekeeper_with_another_id_is_not_given_a_proof(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with meeting(tmp_path, world, Listener(secret=OURS), Proxy(secret=OURS), safekeeper_id=2) as (_, link, owner):
        await until(lambda: "safekeeper 1 replied where safekeeper 2 is expected" in link.problem)
        assert owner.ups == 0


@contextlib.asynccontextmanager
async def relay(target: int, accept: ssl.SSLContext | None, connect: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Somebody in between: takes connections with a certificate, and passes on what is said over one of its own."""
    pumps: list[asyncio.Task[None]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", target, ssl=connect)
        pumps.append(asyncio.create_task(pump(reader, onward_writer)))
        pumps.append(asyncio.create_task(pump(onward_reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=accept)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


@pytest.mark.parametrize("onward_tls", [True, False], ids=["begins TLS anew", "strips TLS"])
@on_the_loop
async def test_somebody_in_between_with_a_good_certificate_cannot_pass_on_a_proof(
    tmp_path: Path, world: World, onward_tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    accept = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accept.load_cert_chain(*world.other_server)
    connect = ClientTls(world.authority.ca).context if onward_tls else None
    listener = Listener(server_tls if onward_tls else None, OURS)
    async with (
        house(tmp_path, tls=listener.tls(world) if listener.tls else None, secret=secret(OURS)) as there,
        relay(there.listener.address.port, accept, connect) as port,
    ):
        owner = Owner()
        link = SafekeeperLink(1, Address("127.0.0.1", port), owner, Credentials(trusts(world), secret(OURS)))
        task = asyncio.create_task(link.run())
        await until(lambda: "refuses the proof" in link.problem)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: there.listener.connection_count == 0)
    assert owner.ups == 0
    assert "a third party relays the connection" in caplog.text


@on_the_loop
async def test_the_same_relay_without_a_secret_gets_through_which_is_why_there_is_one(
    tmp_path: Path, world: World
) -> None:
    accept = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accept.load_cert_chain(*world.other_server)
    async with (
        house(tmp_path, tls=server_tls(world)) as there,
        relay(there.listener.address.port, accept, ClientTls(world.authority.ca).context) as port,
    ):
        owner = Owner()
        link = SafekeeperLink(1, Address("127.0.0.1", port), owner, Credentials(trusts(world)))
        task = asyncio.create_task(link.run())
        await until(lambda: owner.ups == 1)
        link.send(GREETING)
        await until(lambda: len(owner.messages) == 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@on_the_loop
async def test_certificates_are_renewed_under_load_without_a_connection_lost(tmp_path: Path, world: World) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"

    def install(pair: Pair) -> None:
        shutil.copy(pair.cert, cert)
        shutil.copy(pair.key, key)

    install(world.server)
    tls = ServerTls(cert, key)
    async with meeting(tmp_path, world, Listener(lambda _: tls), Proxy(trusts)) as (there, link, owner):
        await until(lambda: owner.ups == 1)
        shown = set()
        for count in range(2, 42):
            link.send(GREETING)
            install(world.server if count % 2 else world.other_server)
            assert tls.reload()
            late = await there.client(ClientTls(world.authority.ca).context)
            shown.add(late.writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            assert isinstance(await late.greet(), AcceptorGreeting)
            late.writer.close()
            await until(lambda count=count: len(owner.messages) == count)  # type: ignore[misc]
        assert len(shown) == 2
        assert (owner.ups, owner.downs) == (1, 0)


@on_the_loop
async def test_a_new_secret_is_for_new_connections(tmp_path: Path, world: World) -> None:
    file = tmp_path / "secret"
    file.write_text(OURS)
    of_listener, of_proxy = SharedSecret(file, None), SharedSecret(file, None)
    async with house(tmp_path, secret=of_listener) as there:
        owner = Owner()
        link = SafekeeperLink(1, there.listener.address, owner, Credentials(secret=of_proxy))
        task = asyncio.create_task(link.run())
        await until(lambda: owner.ups == 1)
        file.write_text(THEIRS + "\n")
        assert of_listener.reload()
        link.send(GREETING)
        await until(lambda: len(owner.messages) == 1)
        link.disconnect("the test wants another one")
        await until(lambda: "refuses the proof" in link.problem)
        assert of_proxy.reload()
        await until(lambda: owner.ups == 2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
