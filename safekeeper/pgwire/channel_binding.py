"""What ties a SCRAM exchange to the TLS connection that it runs over: tls-server-end-point of RFC 5929.

It is the hash of the server's certificate, by the hash function of the certificate's own signature, or by SHA-256
where that is MD5 or SHA-1. Somebody in between has another certificate, so what client and server sign differs.

The certificate is ours, and all that is needed of it is the name of its signature's algorithm: the second element of
its outermost sequence. A reader of DER for just that is less than a library for all of X.509.

Pure: no I/O.
"""

import hashlib

_SEQUENCE, _OBJECT_IDENTIFIER, _FIRST_PARAMETER = 0x30, 0x06, 0xA0

# Object identifiers as DER writes them, of signatures that name their hash function ...
_RSA = bytes.fromhex("2a864886f70d0101")  # 1.2.840.113549.1.1
_ECDSA_SHA2 = bytes.fromhex("2a8648ce3d0403")  # 1.2.840.10045.4.3
_HASH_OF_SIGNATURE = {
    _RSA + b"\x04": "sha256",  # signed over MD5
    _RSA + b"\x05": "sha256",  # signed over SHA-1
    _RSA + b"\x0b": "sha256",
    _RSA + b"\x0c": "sha384",
    _RSA + b"\x0d": "sha512",
    _RSA + b"\x0e": "sha224",
    bytes.fromhex("2a8648ce3d0401"): "sha256",  # ECDSA over SHA-1
    _ECDSA_SHA2 + b"\x01": "sha224",
    _ECDSA_SHA2 + b"\x02": "sha256",
    _ECDSA_SHA2 + b"\x03": "sha384",
    _ECDSA_SHA2 + b"\x04": "sha512",
}
# ... and of the one that has it as its first parameter, SHA-1 if it is left out.
_RSA_PSS = _RSA + b"\x0a"
_SHA2 = bytes.fromhex("6086480165030402")  # 2.16.840.1.101.3.4.2
_HASH = {_SHA2 + b"\x01": "sha256", _SHA2 + b"\x02": "sha384", _SHA2 + b"\x03": "sha512", _SHA2 + b"\x04": "sha224"}


def server_end_point(certificate_der: bytes) -> bytes | None:
    """Return the channel binding data of a connection on which the server showed this certificate.

    None if its signature has no hash function of its own (Ed25519), or one that is not known here: then neither side
    can say what to hash, and channel binding is not offered.
    """
    try:
        name = _hash_name(certificate_der)
    except IndexError:
        return None
    return None if name is None else hashlib.new(name, certificate_der).digest()


def _hash_name(certificate: bytes) -> str | None:
    begin, _ = _enter(certificate, 0, _SEQUENCE)
    _, to_be_signed_end = _enter(certificate, begin, _SEQUENCE)
    algorithm_begin, algorithm_end = _enter(certificate, to_be_signed_end, _SEQUENCE)
    begin, end = _enter(certificate, algorithm_begin, _OBJECT_IDENTIFIER)
    if certificate[begin:end] != _RSA_PSS:
        return _HASH_OF_SIGNATURE.get(certificate[begin:end])
    begin, parameters_end = _enter(certificate[:algorithm_end], end, _SEQUENCE)
    if begin == parameters_end or certificate[begin] != _FIRST_PARAMETER:
        return "sha256"
    begin, _ = _enter(certificate, begin, _FIRST_PARAMETER)
    begin, _ = _enter(certificate, begin, _SEQUENCE)
    begin, end = _enter(certificate, begin, _OBJECT_IDENTIFIER)
    return _HASH.get(certificate[begin:end])


def _enter(der: bytes, position: int, tag: int) -> tuple[int, int]:
    """Return where the content of the element at `position` begins and ends.

    Raises:
        IndexError: there is no such element.
    """
    if der[position] != tag:
        raise IndexError(f"no element of type {tag} at byte {position}")
    length = der[position + 1]
    begin = position + 2
    if length >= 0x80:
        size = length & 0x7F
        begin += size
        length = int.from_bytes(der[position + 2 : begin])
    if begin + length > len(der):
        raise IndexError(f"the element at byte {position} is cut short")
    return begin, begin + length
