"""TLS between two channels: who gets through, what each side says of who does not, and what happens to bad files."""

import shutil
import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper.base.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from safekeeper.net.tls import ClientTls, ServerTls, TlsChannel
from tests.unit.certificates import HOST, Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another CA."""
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.sign("server")


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.sign("client", common_name="standby1")


def converse(server: TlsChannel, client: TlsChannel) -> tuple[str, str]:
    """Let the two shake hands; return why the server gave up and why the client did, empty if one did not."""
    reasons = {server: "", client: ""}
    client.begin()
    for _ in range(10):
        for sender, receiver in ((client, server), (server, client)):
            data = sender.take_outgoing()
            if data and not reasons[receiver]:
                try:
                    receiver.receive(data)
                except RemoteProtocolError as error:
                    reasons[receiver] = str(error)
    return reasons[server], reasons[client]


def connected(server_tls: ServerTls, client_tls: ClientTls) -> tuple[TlsChannel, TlsChannel]:
    server, client = server_tls.channel(), client_tls.channel(HOST)
    assert converse(server, client) == ("", "")
    assert server.established and client.established
    return server, client


def test_what_is_sent_arrives_in_order_and_travels_encrypted(authority: Authority, server_pair: Pair) -> None:
    server, client = connected(ServerTls(*server_pair), ClientTls(authority.ca))
    large = bytes(range(256)) * 400
    client.send(b"head", memoryview(large), b"", b"tail")
    travelling = client.take_outgoing()
    assert b"head" not in travelling and large[:256] not in travelling
    assert server.receive(travelling) == b"head" + large + b"tail"
    server.send(b"one", b"two")
    travelling = server.take_outgoing()
    assert b"".join(client.receive(travelling[i : i + 1]) for i in range(len(travelling))) == b"onetwo"


def test_plaintext_is_read_as_far_as_the_reader_has_room(authority: Authority, server_pair: Pair) -> None:
    server, client = connected(ServerTls(*server_pair), ClientTls(authority.ca))
    client.send(b"0123456789")
    server.feed(client.take_outgoing())
    buffer = bytearray(4)
    read = []
    while size := server.read_into(buffer):
        read.append(bytes(buffer[:size]))
    assert read == [b"0123", b"4567", b"89"]


def test_both_sides_know_the_servers_certificate(authority: Authority, server_pair: Pair) -> None:
    server_tls = ServerTls(*server_pair)
    server, client = connected(server_tls, ClientTls(authority.ca))
    assert server.server_certificate_der == client.server_certificate_der == server_tls.certificate_der
    assert server_tls.certificate_der == ssl.PEM_cert_to_DER_cert(server_pair.cert.read_text().split("\n-----BEGIN")[0])
    assert server.peer_certificate() is None and server.peer_common_name is None


def test_a_clients_certificate_says_who_it_is(authority: Authority, server_pair: Pair, client_pair: Pair) -> None:
    server, _ = connected(ServerTls(*server_pair, authority.ca), ClientTls(authority.ca, *client_pair))
    assert server.peer_common_name == "standby1"
    unnamed = authority.sign("unnamed")
    server, _ = connected(ServerTls(*server_pair, authority.ca), ClientTls(authority.ca, *unnamed))
    assert server.peer_certificate() and server.peer_common_name is None


def test_the_end_of_a_conversation_is_noticed(authority: Authority, server_pair: Pair) -> None:
    server, client = connected(ServerTls(*server_pair), ClientTls(authority.ca))
    client.send(b"last")
    client.close()
    assert server.receive(client.take_outgoing()) == b"last"
    assert server.ended and not client.ended
    assert server.receive(b"more") == b""


def test_nothing_is_sent_before_the_handshake(server_pair: Pair) -> None:
    channel = ServerTls(*server_pair).channel()
    channel.close()
    with pytest.raises(LocalProtocolError):
        channel.send(b"x")


EXPIRED = "it has expired"
UNTRUSTED = "it is not signed by a CA of the configured file"


def test_a_client_refuses_a_server_of_another_ca(stranger: Authority, server_pair: Pair) -> None:
    server, client = ServerTls(*server_pair).channel(), ClientTls(stranger.ca).channel(HOST)
    of_server, of_client = converse(server, client)
    assert of_client == f"the peer's certificate is refused: {UNTRUSTED}"
    assert "the peer does not trust the CA of this side's certificate" in of_server
    assert not server.established and not client.established


@pytest.mark.parametrize("host", ["127.0.0.2", "sk1", "::1"])
def test_a_client_refuses_a_server_of_another_name(authority: Authority, server_pair: Pair, host: str) -> None:
    of_server, of_client = converse(ServerTls(*server_pair).channel(), ClientTls(authority.ca).channel(host))
    assert "mismatch" in of_client and f"is not valid for '{host}'" in of_client
    assert "the peer refuses this side's certificate, or the name in it" in of_server


def test_names_are_compared_too(authority: Authority) -> None:
    tls = ServerTls(*authority.sign("named", "sk1.example.org"))
    for name, reason in (("sk1.example.org", ""), ("SK1.example.org", ""), ("sk2.example.org", "mismatch")):
        assert reason in converse(tls.channel(), ClientTls(authority.ca).channel(name))[1]


def _unchecked(protocol: int, pair: Pair, ca: Path | None = None) -> ssl.SSLContext:
    """A context whose own certificate nobody has looked at."""
    context = ssl.SSLContext(protocol)
    context.load_cert_chain(*pair)
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def test_an_expired_server_is_refused_and_both_sides_say_so(authority: Authority) -> None:
    expired = authority.sign("expired", expired=True)
    server = TlsChannel(_unchecked(ssl.PROTOCOL_TLS_SERVER, expired))
    of_server, of_client = converse(server, ClientTls(authority.ca).channel(HOST))
    assert of_client == f"the peer's certificate is refused: {EXPIRED}"
    assert of_server == "the peer reports this side's certificate as expired: renew it, or set the peer's clock"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_expired_client_is_refused_and_both_sides_say_so(
    authority: Authority, server_pair: Pair, version: ssl.TLSVersion
) -> None:
    context = _unchecked(ssl.PROTOCOL_TLS_CLIENT, authority.sign("expired", expired=True), authority.ca)
    context.maximum_version = version
    client = TlsChannel(context, server_side=False, server_hostname=HOST)
    server = ServerTls(*server_pair, authority.ca).channel()
    of_server, of_client = converse(server, client)
    assert of_server == f"the peer's certificate is refused: {EXPIRED}"
    assert of_client == "the peer reports this side's certificate as expired: renew it, or set the peer's clock"
    assert not server.established


def test_a_client_without_a_certificate_is_refused_where_one_is_demanded(
    authority: Authority, server_pair: Pair
) -> None:
    server = ServerTls(*server_pair, authority.ca).channel()
    of_server, of_client = converse(server, ClientTls(authority.ca).channel(HOST))
    assert of_server == "the peer sent no client certificate, and one is required"
    assert of_client == "the peer requires a client certificate: set tls_cert and tls_key"
    assert not server.established


def test_a_client_of_another_ca_is_refused(authority: Authority, stranger: Authority, server_pair: Pair) -> None:
    server = ServerTls(*server_pair, authority.ca).channel()
    of_server, of_client = converse(server, ClientTls(authority.ca, *stranger.sign("client")).channel(HOST))
    assert of_server == f"the peer's certificate is refused: {UNTRUSTED}"
    assert "the peer does not trust the CA of this side's certificate" in of_client
    assert not server.established


def test_tls_older_than_1_2_is_refused(authority: Authority, server_pair: Pair) -> None:
    assert ServerTls(*server_pair).context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert ClientTls(authority.ca).context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_no_session_is_resumed(authority: Authority, server_pair: Pair, client_pair: Pair) -> None:
    client_tls = ClientTls(authority.ca, *client_pair)
    tls = ServerTls(*server_pair, authority.ca)
    _, client = connected(tls, client_tls)
    for context in (tls.context, client_tls.context):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_TICKET and context.options & ssl.OP_NO_RENEGOTIATION
    assert tls.context.num_tickets == 0
    session = client._object.session
    assert session is None or not session.has_ticket


# What is no TLS.


@pytest.mark.parametrize("data", [b"PW\x01\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\x80\x2e\x01\x00\x02"])
def test_plaintext_is_noticed_at_its_first_byte_and_reported(server_pair: Pair, data: bytes) -> None:
    channel = ServerTls(*server_pair).channel()
    with pytest.raises(
        RemoteProtocolError, match="does not use TLS, and this listener requires it: set the peer's tls_ca"
    ):
        channel.receive(data)
    # Two alerts, long enough to be taken for a frame's header.
    answer = channel.take_outgoing()
    assert len(answer) == 14 and answer[0] == answer[7] == 0x15


def test_a_server_that_answers_in_plaintext_is_noticed(authority: Authority) -> None:
    channel = ClientTls(authority.ca).channel(HOST)
    channel.begin()
    with pytest.raises(RemoteProtocolError, match="the server does not use TLS: set its tls_cert and tls_key"):
        channel.receive(b"PW\x01\x01")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([b"", b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05", b"\x15\x03\x03"]), st.binary(max_size=300)
)
def test_any_bytes_raise_a_protocol_error_or_nothing(
    fuzzed: tuple[ServerTls, ClientTls], head: bytes, tail: bytes
) -> None:
    server_tls, client_tls = fuzzed
    client = client_tls.channel(HOST)
    client.begin()
    for channel in (server_tls.channel(), client):
        for _ in range(2):
            try:
                assert channel.receive(head + tail) == b""
            except RemoteProtocolError as error:
                assert str(error).isprintable()
        channel.take_outgoing()
        channel.close()


@pytest.fixture(scope="module")
def fuzzed(authority: Authority, server_pair: Pair, client_pair: Pair) -> tuple[ServerTls, ClientTls]:
    return ServerTls(*server_pair, authority.ca), ClientTls(authority.ca, *client_pair)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 5), st.integers(0, 1 << 20), st.integers(1, 255), st.booleans())
def test_a_conversation_in_which_a_byte_is_changed_ends_in_a_protocol_error_or_is_not_harmed(
    fuzzed: tuple[ServerTls, ClientTls], flight: int, position: int, mask: int, in_data: bool
) -> None:
    server, client = fuzzed[0].channel(), fuzzed[1].channel(HOST)
    client.begin()
    count = 0
    received = b""
    try:
        for sender, receiver in 4 * ((client, server), (server, client)):
            if in_data and sender is client and client.established and count < 6:
                client.send(b"payload")
                flight = count
            data = bytearray(sender.take_outgoing())
            if data and count == flight:
                data[position % len(data)] ^= mask
            count += bool(data)
            received += receiver.receive(bytes(data))
    except RemoteProtocolError as error:
        assert str(error).isprintable()
    assert received.replace(b"payload", b"") == b""


# Files.


def test_an_expired_certificate_of_our_own_is_refused_with_its_date(authority: Authority) -> None:
    expired = authority.sign("expired", expired=True)
    for make in (lambda: ServerTls(*expired), lambda: ClientTls(authority.ca, *expired)):
        with pytest.raises(ConfigurationError, match=r"ca-expired\.pem expired at 2020-02-29 12:00:00 UTC: renew it"):
            make()


@pytest.mark.parametrize(
    ("cert", "key", "ca", "reason"),
    [
        ("none", "server.key", None, r"could not read the certificate in .*none: No such file"),
        ("server.pem", "none", None, r"could not read the private key in .*none: No such file"),
        ("server.pem", "server.key", "none", r"could not read the certificates of CAs in .*none: No such file"),
        ("server.pem", "client.key", None, r"client\.key is not the private key of the certificate in .*server\.pem"),
        ("server.key", "server.key", None, r"server\.key has no certificate in PEM format"),
        ("garbled", "server.key", None, r"garbled has no certificate in PEM format"),
        (
            "server.pem",
            "server.pem",
            None,
            r"could not use the certificate in .* with the private key in .*server\.pem",
        ),
        ("server.pem", "server.key", "server.key", r"certificates of CAs in .*server\.key: it has none in PEM"),
        ("server.pem", "passphrase.key", None, r"passphrase\.key has a passphrase, which a server cannot enter"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, server_pair: Pair, client_pair: Pair, cert: str, key: str, ca: str | None, reason: str
) -> None:
    shutil.copy(server_pair.cert, tmp_path / "server.pem")
    shutil.copy(server_pair.key, tmp_path / "server.key")
    shutil.copy(client_pair.key, tmp_path / "client.key")
    (tmp_path / "garbled").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    (tmp_path / "passphrase.key").write_text(PASSPHRASE_KEY)
    with pytest.raises(ConfigurationError, match=reason) as refused:
        ServerTls(tmp_path / cert, tmp_path / key, tmp_path / ca if ca else None)
    assert "\n" not in str(refused.value)


def _passphrase_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open sesame"),
    ).decode()


PASSPHRASE_KEY = _passphrase_key()


def test_a_host_that_no_certificate_can_have_is_refused(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name in a certificate"):
        ClientTls(authority.ca).channel("a..b")


def test_a_reload_is_for_new_connections_and_those_that_exist_go_on(
    tmp_path: Path, authority: Authority, server_pair: Pair
) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"
    shutil.copy(server_pair.cert, cert)
    shutil.copy(server_pair.key, key)
    tls, client_tls = ServerTls(cert, key), ClientTls(authority.ca)
    server, client = connected(tls, client_tls)
    assert tls.reload() is False
    renewed = authority.sign("renewed")
    shutil.copy(renewed.cert, cert)
    shutil.copy(renewed.key, key)
    assert tls.reload() is True
    client.send(b"goes on")
    assert server.receive(client.take_outgoing()) == b"goes on"
    new_server, new_client = connected(tls, client_tls)
    assert new_client.server_certificate_der == new_server.server_certificate_der != client.server_certificate_der
    # What an older connection presented does not change under it.
    assert server.server_certificate_der == client.server_certificate_der


def test_files_that_cannot_be_used_leave_the_old_ones_in_use(
    tmp_path: Path, authority: Authority, stranger: Authority, server_pair: Pair
) -> None:
    cert, key, ca = tmp_path / "cert", tmp_path / "key", tmp_path / "ca"
    shutil.copy(server_pair.cert, cert)
    shutil.copy(server_pair.key, key)
    shutil.copy(authority.ca, ca)
    tls = ServerTls(cert, key, ca)
    before = tls.context, tls.certificate_der
    for file, bad in ((cert, stranger.sign("x").cert), (key, stranger.sign("x").key), (ca, server_pair.key)):
        kept = file.read_bytes()
        shutil.copy(bad, file)
        with pytest.raises(ConfigurationError):
            tls.reload()
        assert (tls.context, tls.certificate_der) == before
        file.write_bytes(kept)
    shutil.copy(stranger.ca, ca)
    assert tls.reload() is True
    of_server, _ = converse(tls.channel(), ClientTls(authority.ca, *authority.sign("client")).channel(HOST))
    assert UNTRUSTED in of_server
