"""TLS for listeners and for connections to them: certificates, trust, and a channel of bytes.

`ServerTls` and `ClientTls` read their files again at `reload`: later connections use the new files, existing ones are
not affected, and files that cannot be used change nothing. TLS 1.2 is the oldest version, without renegotiation and
without resumption: each connection is a full handshake, so a certificate that is no longer trusted is refused at the
next one.

`TlsChannel` is TLS without a socket: bytes from the transport in, plaintext out, and the reverse. The owner of the
transport receives the first byte, decides when to continue to read, and closes it with a reason. OpenSSL checks
certificates; asn1crypto reads the dates of this side's, for an error that names the day.

Bytes from a peer raise only RemoteProtocolError. The alert for the peer is then in `take_outgoing`.
"""

import hashlib
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from safekeeper.base.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from safekeeper.base.private_files import warn_if_shared
from safekeeper.base.regular_files import read_regular

# The first byte of each TLS record that can begin a connection.
HANDSHAKE_RECORD = 0x16
ALERT_RECORD = 0x15

# Sent to a peer that does not use TLS: the alerts unexpected_message and close_notify, which TLS clients recognise.
_NO_TLS = bytes.fromhex("1503030002020a15030300020100")
_READ_BYTES = 64 << 10
# The maximum plaintext of one record: shorter buffers are joined before encryption (RFC 8446, 5.1).
_RECORD_BYTES_MAX = 16 << 10
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class _Loaded(NamedTuple):
    """The content of the files.

    Attributes:
        context: for new connections.
        certificate_der: this side's certificate, empty if there is none.
        valid_until: its last moment, None if there is none.
        fingerprint: of all the files' bytes; never shown.
    """

    context: ssl.SSLContext
    certificate_der: bytes
    valid_until: datetime | None
    fingerprint: bytes


class _Tls:
    """Certificate files, and their content as last read."""

    def __init__(self, load: Callable[[], _Loaded]) -> None:
        self._load = load
        self._loaded = load()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""
        return self._loaded.context

    @property
    def certificate_der(self) -> bytes:
        """The certificate that new connections present, without its chain; empty if there is none."""
        return self._loaded.certificate_der

    @property
    def valid_until(self) -> datetime | None:
        """The last moment of this side's certificate, in UTC; None if there is none."""
        return self._loaded.valid_until

    def reload(self) -> bool:
        """Read the files again; return whether their content changed.

        Raises:
            ConfigurationError: they cannot be used; the previous content stays in use.
        """
        before, self._loaded = self._loaded, self._load()
        return before.fingerprint != self._loaded.fingerprint


class ServerTls(_Tls):
    """The certificate that a listener presents, and the clients that it accepts.

    Args:
        cert: PEM file: this side's certificate first, then the intermediate ones.
        key: PEM file of its private key, without a passphrase.
        client_ca: PEM file of CAs; if given, a client must present a certificate that one of them has signed.

    Raises:
        ConfigurationError: a file is missing or not valid, the key is not the certificate's, or it has expired.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        super().__init__(lambda: _load(ssl.PROTOCOL_TLS_SERVER, cert, key, client_ca))

    def channel(self) -> "TlsChannel":
        """Return the channel of a new connection, before its handshake."""
        return TlsChannel(self.context, certificate_der=self.certificate_der)


class ClientTls(_Tls):
    """The servers that a client trusts, and the certificate that it presents.

    Args:
        ca: PEM file of CAs that have signed the servers' certificates; it may also contain a server's own certificate.
        cert: PEM file of a certificate to present, or None.
        key: PEM file of its private key.

    Raises:
        ConfigurationError: as for ServerTls.
    """

    def __init__(self, ca: Path, cert: Path | None = None, key: Path | None = None) -> None:
        super().__init__(lambda: _load(ssl.PROTOCOL_TLS_CLIENT, cert, key, ca))

    def channel(self, host: str) -> "TlsChannel":
        """Return the channel of a new connection to `host`, a name or an IP address that the certificate must have.

        Raises:
            ConfigurationError: `host` cannot be in a certificate.
        """
        return TlsChannel(self.context, server_side=False, server_hostname=host)


def _load(protocol: Any, cert: Path | None, key: Path | None, ca: Path | None) -> _Loaded:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    digest = hashlib.sha256()
    if protocol is ssl.PROTOCOL_TLS_SERVER:
        # libpq requires it with sslnegotiation=direct; clients that offer other protocols, or none, continue without.
        context.set_alpn_protocols(["postgresql"])
        context.num_tickets = 0
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if ca is not None:
        digest.update(_load_ca(context, ca))
        context.verify_mode = ssl.CERT_REQUIRED
    if cert is None or key is None:
        return _Loaded(context, b"", None, digest.digest())
    warn_if_shared(key, "private key")
    certificate = _read(cert, "certificate")
    digest.update(hashlib.sha256(certificate).digest() + hashlib.sha256(_read(key, "private key")).digest())
    certificate_der, valid_until = _first_certificate(cert, certificate)
    try:
        context.load_cert_chain(cert, key, password=lambda: _refuse_passphrase(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"{key} is not the private key of the certificate in {cert}") from error
        raise ConfigurationError(
            f"could not use the certificate in {cert} with the private key in {key}: {_plain(error)}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"could not read {cert} or {key}: {error.strerror or error}") from error
    return _Loaded(context, certificate_der, valid_until, digest.digest())


def _read(path: Path, what: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ConfigurationError(f"could not read the {what} in {path}: {error.strerror or error}") from error


def _load_ca(context: ssl.SSLContext, ca: Path) -> bytes:
    content = _read(ca, "certificates of CAs")
    try:
        context.load_verify_locations(cadata="\n".join(block.decode("ascii") for block in _PEM.findall(content)))
    except (ssl.SSLError, ValueError) as error:
        reason = _plain(error) if isinstance(error, ssl.SSLError) else "it has none in PEM format"
        raise ConfigurationError(f"could not use the certificates of CAs in {ca}: {reason}") from error
    return hashlib.sha256(content).digest()


def _first_certificate(path: Path, content: bytes) -> tuple[bytes, datetime]:
    """Return the first certificate of a PEM file, which is the one to present, and its last moment."""
    from asn1crypto import x509

    block = _PEM.search(content)
    try:
        if block is None:
            raise ValueError
        der = ssl.PEM_cert_to_DER_cert(block[0].decode("ascii"))
        parsed = x509.Certificate.load(der)
        begins, ends = parsed.not_valid_before, parsed.not_valid_after
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} has no certificate in PEM format") from error
    now = datetime.now(UTC)
    if now > ends:
        raise ConfigurationError(f"the certificate in {path} expired at {_moment(ends)}: renew it")
    if now < begins:
        raise ConfigurationError(f"the certificate in {path} is not valid before {_moment(begins)}")
    return der, ends


def _refuse_passphrase(key: Path) -> str:
    raise ConfigurationError(f"the private key in {key} has a passphrase, which a server cannot enter: remove it")


def _moment(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class TlsChannel:
    """One TLS connection without its socket.

    Feed what the transport received (`feed`, then `read_into` until it returns 0; or `receive`, which does both), and
    write what `take_outgoing` returns to the transport after each call, also after one that raised. A client begins
    with `begin`.

    Attributes:
        established: the handshake is done, and the peer's certificate is checked if one is required.
        ended: the peer has announced that it sends nothing more.

    Args:
        context: with the certificates.
        server_side: whether this side is the server.
        server_hostname: the name that a client expects in the certificate.
        certificate_der: the server's own certificate, see `server_certificate_der`.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool = True,
        server_hostname: str | None = None,
        certificate_der: bytes = b"",
    ) -> None:
        self.established = False
        self.ended = False
        self._server_side = server_side
        self._certificate_der = certificate_der
        self._began = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        except ValueError as error:
            raise ConfigurationError(f"{server_hostname!r} cannot be the name in a certificate: {error}") from error

    def begin(self) -> None:
        """Start the handshake as a client."""
        self._shake_hands()

    def receive(self, data: bytes | bytearray | memoryview) -> bytes:
        """Decrypt bytes from the transport; return the available plaintext, empty during the handshake.

        Raises:
            RemoteProtocolError: this is not TLS, or the handshake failed, or a record is broken: close the connection.
        """
        self.feed(data)
        buffer = bytearray(_READ_BYTES)
        plaintext = bytearray()
        while size := self.read_into(buffer):
            plaintext += memoryview(buffer)[:size]
        return bytes(plaintext)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes from the transport; `read_into` decrypts them.

        Raises:
            RemoteProtocolError: the peer does not use TLS.
        """
        if not self._began and len(data):
            self._began = True
            if data[0] not in (HANDSHAKE_RECORD, ALERT_RECORD):
                if not self._server_side:
                    raise RemoteProtocolError("the server does not use TLS: set its tls_cert and tls_key")
                self._outgoing.write(_NO_TLS)
                raise RemoteProtocolError(
                    "the peer does not use TLS, and this listener requires it: set the peer's tls_ca"
                )
        self._incoming.write(data)

    def read_into(self, buffer: bytearray | memoryview) -> int:
        """Write plaintext into `buffer` and return its size in bytes; 0 if more must be fed first.

        Raises:
            RemoteProtocolError: see `receive`.
        """
        if self.ended or not (self.established or self._shake_hands()):
            return 0
        try:
            size: int = self._object.read(len(buffer), buffer)  # type: ignore[assignment]  # with a buffer it counts
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLError as error:
            raise RemoteProtocolError(describe_failure(error)) from error
        self.ended = size == 0 < len(buffer)
        return size

    def send(self, *buffers: bytes | memoryview) -> None:
        """Encrypt the buffers, one after the other, for `take_outgoing`.

        Raises:
            LocalProtocolError: the handshake is not done.
        """
        if not self.established:
            raise LocalProtocolError("data cannot be sent before the TLS handshake is complete")
        if len(buffers) > 1 and sum(map(len, buffers)) <= _RECORD_BYTES_MAX:
            buffers = (b"".join(buffers),)
        try:
            for buffer in buffers:
                if buffer:
                    self._object.write(buffer)
        except ssl.SSLError as error:
            raise RemoteProtocolError(describe_failure(error)) from error

    def take_outgoing(self) -> bytes:
        """Return the bytes to write to the transport, and remove them."""
        return self._outgoing.read()

    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the peer's certificate as `ssl.SSLSocket.getpeercert` shows it, None if it presented none."""
        return self._object.getpeercert() if self.established else None

    @property
    def peer_common_name(self) -> str | None:
        """The common name (CN) of the peer's certificate; None without one, or if it has not exactly one CN."""
        subject = (self.peer_certificate() or {}).get("subject", ())
        names = [value for part in subject for name, value in part if name == "commonName"]
        return names[0] if len(names) == 1 else None

    @property
    def server_certificate_der(self) -> bytes:
        """The server's certificate, on either side: channel binding uses it (RFC 5929, 4)."""
        if self._server_side:
            return self._certificate_der
        return (self._object.getpeercert(binary_form=True) or b"") if self.established else b""

    def close(self) -> None:
        """Announce that this side sends nothing more."""
        if not self.established:
            return
        try:
            self._object.unwrap()
        except ssl.SSLError:
            # It would wait for the peer's close_notify, or the connection is broken. Neither matters: ours is sent.
            return

    def _shake_hands(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise RemoteProtocolError(describe_failure(error)) from error
        self.established = True
        return True


# The meaning of a peer's alert, or of a local error, for the operator. Alerts: RFC 8446, 6.2.
_ALERTS = {
    "UNKNOWN_CA": "the peer does not trust the CA of this side's certificate: give it that CA's file (its tls_ca, or "
    "tls_client_ca)",
    "CERTIFICATE_EXPIRED": "the peer reports this side's certificate as expired: renew it, or set the peer's clock",
    "CERTIFICATE_REQUIRED": "the peer requires a client certificate: set tls_cert and tls_key",
    "BAD_CERTIFICATE": "the peer refuses this side's certificate, or the name in it: see the peer's log",
    "CERTIFICATE_UNKNOWN": "the peer refuses this side's certificate: see the peer's log",
    "CERTIFICATE_REVOKED": "the peer reports this side's certificate as revoked",
    "UNSUPPORTED_CERTIFICATE": "the peer refuses this side's certificate: it is not meant for this use",
    "PROTOCOL_VERSION": "the peer uses another version of TLS: 1.2 or newer is required",
    "HANDSHAKE_FAILURE": "the peer shares no TLS parameters with this side: see the peer's log",
}
# X509_V_ERR_*: openssl-verification-options(1).
_NO_CA = "it is not signed by a CA of the configured file"
_CERTIFICATE_PROBLEMS = {
    9: "it is not valid yet",
    10: "it has expired",
    18: _NO_CA,
    19: _NO_CA,
    20: _NO_CA,
    21: _NO_CA,
}
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer sent no client certificate, and one is required",
    "UNSUPPORTED_PROTOCOL": "the peer uses a version of TLS older than 1.2",
    "NO_SHARED_CIPHER": "the peer shares no cipher with this side",
    "WRONG_VERSION_NUMBER": "the peer does not send TLS",
    "HTTP_REQUEST": "the peer sends HTTP, not TLS",
}


def describe_failure(error: ssl.SSLError | ssl.CertificateError) -> str:
    """Return why TLS failed, as one line for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = _CERTIFICATE_PROBLEMS.get(error.verify_code, error.verify_message.rstrip("."))
        return f"the peer's certificate is refused: {problem}"
    reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else ""
    _, is_alert, alert = reason.partition("ALERT_")
    if is_alert:
        return _ALERTS.get(alert, f"the peer ended TLS: {alert.replace('_', ' ').lower()}")
    return _REASONS.get(reason, f"TLS failed: {_plain(error)}")


def _plain(error: ssl.SSLError | ssl.CertificateError) -> str:
    """Return OpenSSL's reason, in lower case and without the source line of the module."""
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if reason else "unknown reason"
