"""A cluster in which every listener is protected: TLS, client certificates, SCRAM, the shared secret, lists of
networks.

PostgreSQL, its standby and pg_receivewal use their own libpq, so it takes a server that was built with TLS.
"""

import contextlib
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from safekeeper.net.tls import ClientTls
from safekeeper.serving.users import user_line
from tests.cluster_templates import init_by_copying
from tests.integration.cluster.cluster_fixtures import Gated, Load, field_of, wait_for
from tests.unit.certificates import HOST, Authority, Pair
from walproxy.postgres.binaries import ServerBinaries, server_user
from walproxy.postgres.local_server import LocalPostgres

SECRET = "the secret of the locked cluster"
PASSWORDS = {name: f"the password of {name}" for name in ("postgres", "walproxy", "standby1", "standby2")}
NETWORK = f"{HOST}/32"
# Another address of this machine, which is in none of the lists.
ELSEWHERE = "127.0.0.2"


def has_tls(binaries: ServerBinaries) -> bool:
    """Return whether a server was built with TLS."""
    command = [str(binaries.path("postgres")), "--describe-config"]
    # Under root it would refuse to run even for that.
    user = server_user()
    as_user: dict[str, Any] = {"user": user.uid, "group": user.gid, "extra_groups": []} if user is not None else {}
    described = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **as_user).stdout
    return any(line.startswith("ssl_ciphers\t") and "\tnone\t" not in line for line in described.splitlines())


class LockedCluster(Gated):
    """A gated cluster behind locks; `lock`, which starts PostgreSQL, comes before `start_gated`.

    Attributes:
        authority: who signs for all of them.
        keys: the folder of what is secret, and of the certificates.
    """

    authority: Authority
    keys: Path

    def lock(self) -> None:
        """Make the keys, and put a lock on every listener."""
        self.keys = self.directory / "keys"
        self.keys.mkdir(mode=0o755)
        self.authority = Authority(self.keys)
        self._pairs: dict[tuple[Authority, str, bool], Pair] = {}
        (self.keys / "secret").write_text(SECRET)
        (self.keys / "users").write_text("\n".join(user_line(name, PASSWORDS[name]) for name in _READERS))
        self._private("passwords", "".join(f"*:*:*:{name}:{value}\n" for name, value in PASSWORDS.items()))
        self._lock_postgres()
        self._lock_safekeepers()
        self._lock_proxy()

    def trust(self) -> dict[str, str]:
        """Return the options with which libpq accepts only one of them."""
        return {"sslmode": "verify-full", "sslrootcert": str(self.authority.ca), "channel_binding": "require"}

    def pair(self, name: str, *, authority: Authority | None = None, expired: bool = False) -> Pair:
        """Return a certificate whose CN is `name`, and its key, for libpq and for PostgreSQL's user."""
        key = (authority or self.authority, name, expired)
        if key not in self._pairs:
            authority, kind = key[0], "expired" if expired else "good"
            self._pairs[key] = authority.sign(f"{kind}-{name}", common_name=name, expired=expired)
            _give(self._pairs[key].key)
        return self._pairs[key]

    def port(self, safekeeper_id: int) -> int:
        """Return where a safekeeper listens for proxies."""
        return self._listen_ports[safekeeper_id]

    def pg_port(self, safekeeper_id: int) -> int:
        """Return where a safekeeper listens for replication clients."""
        return self._pg_listen_ports[safekeeper_id]

    def _private(self, name: str, content: str) -> Path:
        path = self.keys / name
        path.write_text(content)
        _give(path)
        return path

    def _lock_postgres(self) -> None:
        postgres, pair = self.postgres, self.pair("postgres")
        for source, name in ((pair.cert, "server.crt"), (pair.key, "server.key")):
            shutil.copy(source, postgres.data_directory / name)
            _give(postgres.data_directory / name)
        postgres.configure({"ssl": "on"})
        postgres.start()
        postgres.execute("CREATE ROLE walproxy LOGIN REPLICATION")
        for name in ("postgres", "walproxy"):
            postgres.execute(f"ALTER ROLE {name} PASSWORD '{PASSWORDS[name]}'")
        lines = [
            ("all", "postgres"),
            ("replication", "postgres"),
            ("replication", "walproxy"),
            ("postgres", "walproxy"),
        ]
        hba = "".join(f"hostssl {database} {user} {NETWORK} scram-sha-256\n" for database, user in lines)
        (postgres.data_directory / "pg_hba.conf").write_text(hba)
        postgres.client_options = {**self.trust(), "passfile": str(self.keys / "passwords")}
        postgres.restart()

    def _lock_safekeepers(self) -> None:
        ca, trusting = str(self.authority.ca), ClientTls(self.authority.ca).context
        for safekeeper_id, process in self.safekeepers.items():
            pair = self.pair(f"safekeeper{safekeeper_id}")
            process.arguments += [
                *("-c", f"tls_cert={pair.cert}", "-c", f"tls_key={pair.key}", "-c", "http_tls=true"),
                *(
                    "-c",
                    f"tls_ca={ca}",
                    "-c",
                    f"tls_client_ca={ca}",
                    "--secret-file",
                    str(self.keys / "secret"),
                    "-c",
                    f"allow={NETWORK}",
                ),
                *("-c", f"pg_client_ca={ca}", "-c", f"pg_users={self.keys / 'users'}", "-c", f"pg_allow={NETWORK}"),
                *("-c", f"http_allow={NETWORK}"),
            ]
            process.http_tls = trusting
        reader = self.pair("standby1")
        self.reader_options = {
            **self.trust(),
            "user": "standby1",
            "passfile": str(self.keys / "passwords"),
            "connect_timeout": "5",
            "sslcert": str(reader.cert),
            "sslkey": str(reader.key),
        }

    def _lock_proxy(self) -> None:
        proxy = self.proxies[0] = self.make_proxy(
            *("walproxy", "-c", "window_size=16MiB"), *self.credentials(), conninfo=self.proxy_conninfo()
        )
        proxy.environment = {"PGPASSFILE": str(self.keys / "passwords")}
        proxy.http_tls = ClientTls(self.authority.ca).context

    def proxy_conninfo(self) -> str:
        """Return what a proxy has as --primary: its password is in the file that the environment names."""
        words = {"host": HOST, "port": str(self.postgres.port), "user": "walproxy", "dbname": "postgres"}
        return psycopg.conninfo.make_conninfo("", **words, **self.trust())

    def credentials(self) -> tuple[str, ...]:
        """Return the options of a proxy."""
        pair = self.pair("proxy")
        return (
            *("-c", f"tls_ca={self.authority.ca}", "-c", f"tls_cert={pair.cert}", "-c", f"tls_key={pair.key}"),
            *("--secret-file", str(self.keys / "secret"), "-c", "http_tls=true", "-c", f"http_allow={NETWORK}"),
        )


_READERS = ("standby1", "standby2")


def _give(path: Path) -> None:
    """Make `path` readable for PostgreSQL's user and root only, as libpq and PostgreSQL demand it."""
    path.chmod(0o600)
    user = server_user()
    if user is not None:
        os.chown(path, user.uid, user.gid)


@contextlib.contextmanager
def warned_once(log_path: Path, part: str, *, begin: int | None = None, beside: str | None = None) -> Iterator[None]:
    """In the `with` block a log gets one line with `part`, and nothing else above INFO.

    Args:
        begin: from where on in the log; by default from its end at the beginning of the block on.
        beside: how other warnings begin that are allowed; by default none is.
    """
    begin = log_path.stat().st_size if begin is None else begin

    def weighty() -> list[str]:
        lines = log_path.read_bytes()[begin:].decode().splitlines()
        return [line for line in lines if " INFO " not in line and " DEBUG " not in line]

    yield
    wait_for(lambda: any(part in line for line in weighty()), lambda: f"{log_path.name} has {part!r}: {weighty()}")
    lines = weighty()
    assert sum(part in line for line in lines) == 1, lines
    assert all(" WARNING " in line for line in lines), lines
    messages = [line.partition(": ")[2] for line in lines if part not in line]
    assert all(beside is not None and message.startswith(beside) for message in messages), lines


@contextlib.contextmanager
def undisturbed(load: Load) -> Iterator[None]:
    """Commits go on during the `with` block and behind it, in the same term, over the same connections."""
    cluster = load.cluster
    before = (field_of(cluster.proxy, "term"), cluster.proxy.log_path.read_text().count("lost safekeeper"))
    began_at = time.monotonic()
    yield
    load.wait_for_commits(since=began_at)
    load.wait_for_commits()
    assert (field_of(cluster.proxy, "term"), cluster.proxy.log_path.read_text().count("lost safekeeper")) == before


def make_locked(binaries: ServerBinaries, template: Path, folder: Path, settings: dict[str, str]) -> LockedCluster:
    """Return a cluster in `folder` of which nothing runs, and that is still to be locked."""
    folder.chmod(0o755)  # PostgreSQL's user enters it, too.
    server = LocalPostgres(binaries, folder / "primary", settings=settings)
    return LockedCluster(folder, init_by_copying(server, template))


def context_of(pair: Pair) -> ssl.SSLContext:
    """Return what a server with this certificate presents, whatever it is worth."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context
