"""Certificates for tests: a CA, servers, clients, in files; good ones and each kind of bad one."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import trustme

HOST = "127.0.0.1"
EXPIRED_AT = datetime(2020, 2, 29, 12, 0, tzinfo=UTC)


class Pair(NamedTuple):
    """A certificate with its chain, and its private key, in PEM files."""

    cert: Path
    key: Path


class Authority:
    """A CA in a folder; what it signs lies beside it."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA()
        self.ca = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def sign(
        self,
        name: str,
        host: str = HOST,
        *,
        common_name: str | None = None,
        expired: bool = False,
        valid_until: datetime | None = None,
    ) -> Pair:
        """Write NAME.pem and NAME.key, for `host`; an expired one ended at EXPIRED_AT."""
        signed = self._ca.issue_cert(
            host,
            common_name=common_name,
            not_before=datetime(2020, 1, 1, tzinfo=UTC) if expired else None,
            not_after=EXPIRED_AT if expired else valid_until,
        )
        pair = Pair(self._directory / f"{self._name}-{name}.pem", self._directory / f"{self._name}-{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in signed.cert_chain_pems))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(signed.private_key_pem.bytes())
        return pair
