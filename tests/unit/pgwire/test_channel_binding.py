"""The hash of a certificate that channel binding wants: that of its own signature."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from safekeeper.pgwire.channel_binding import server_end_point

RSA = rsa.generate_private_key(65537, 2048)
ECDSA = ec.generate_private_key(ec.SECP256R1())


def certificate(key: Any, hash_function: Any, **options: Any) -> bytes:
    """A certificate that `key` has signed for itself, as DER."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "safekeeper")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2120, 1, 1, tzinfo=UTC)
    )
    signed = builder.serial_number(7).sign(key, hash_function, **options)
    return signed.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("key", [RSA, ECDSA], ids=["RSA", "ECDSA"])
@pytest.mark.parametrize(
    "hash_function",
    [hashes.SHA224(), hashes.SHA256(), hashes.SHA384(), hashes.SHA512()],
    ids=lambda function: function.name,
)
def test_a_certificate_is_hashed_as_it_is_signed(key: Any, hash_function: Any) -> None:
    der = certificate(key, hash_function)
    assert server_end_point(der) == hashlib.new(hash_function.name, der).digest()


def test_the_parameters_of_a_pss_signature_say_how_to_hash() -> None:
    der = certificate(RSA, hashes.SHA384(), rsa_padding=padding.PSS(padding.MGF1(hashes.SHA384()), 48))
    assert server_end_point(der) == hashlib.sha384(der).digest()


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), ed448.Ed448PrivateKey.generate()])
def test_a_signature_without_a_hash_function_binds_nothing(key: Any) -> None:
    assert server_end_point(certificate(key, None)) is None


def test_a_signature_over_sha1_is_bound_by_sha256() -> None:
    # Nobody signs like that any more: the signature's algorithm is put into a certificate that exists.
    sha256_with_rsa, sha1_with_rsa = bytes.fromhex("2a864886f70d01010b"), bytes.fromhex("2a864886f70d010105")
    der = certificate(RSA, hashes.SHA256()).replace(sha256_with_rsa, sha1_with_rsa)
    assert server_end_point(der) == hashlib.sha256(der).digest()


@given(st.binary(max_size=100))
def test_what_is_no_certificate_binds_nothing(junk: bytes) -> None:
    assert server_end_point(junk) is None
