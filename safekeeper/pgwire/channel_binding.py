"""Channel binding, which ties a SCRAM exchange to its TLS connection: tls-server-end-point of RFC 5929.

It is the hash of the server's certificate, by the hash function of the certificate's own signature, or by SHA-256 if
that is MD5 or SHA-1. A third party in between has another certificate, so client and server sign different values.

Pure: no I/O.
"""

import hashlib

_TOO_WEAK = ("md5", "sha1")
# asn1crypto names the hash function inside these signatures; OpenSSL, and so libpq, treats them as having none.
_WITHOUT_HASH = ("ed25519", "ed448")


def server_end_point(certificate_der: bytes) -> bytes | None:
    """Return the channel binding data of a connection on which the server presented this certificate.

    None if its signature has no separate hash function, as Ed25519: then clients have no hash function either, and
    channel binding is not offered.
    """
    # The import takes 0.1 s, and listeners without TLS never need it.
    from asn1crypto import x509

    try:
        certificate = x509.Certificate.load(certificate_der)
        if certificate.signature_algo in _WITHOUT_HASH:
            return None
        name = certificate.hash_algo
        return hashlib.new("sha256" if name in _TOO_WEAK else name, certificate_der).digest()
    except (ValueError, TypeError, KeyError):
        return None
