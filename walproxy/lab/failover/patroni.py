"""Patroni in the place of the agent, to compare the gaps: the real one, with etcd beside each safekeeper.

    with_walproxy=True    as docs/guide/ha.md sets it up: commits wait for the safekeepers, and a standby is promoted
                          once walproxy ready-to-promote lets it
    with_walproxy=False   Patroni's own synchronous replication (synchronous_mode), no safekeepers

ttl is the lowest that Patroni takes, 20 s, and it looks every second: its defaults, 30 s and 10 s, make longer gaps.
A host runs Patroni and, with walproxy, a proxy, which is started again whenever it ends. Patroni refuses to run as
root: then it runs as the servers' user.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from psycopg.conninfo import make_conninfo

from safekeeper.base.errors import ConfigurationError
from walproxy.lab.failover.host import Place
from walproxy.lab.failover.manager import Supporter, Surroundings
from walproxy.postgres.binaries import server_user
from walproxy.postgres.local_server import as_reader_of_all

TTL_S = 20

_SCOPE = "main"
_LOOP_S, _RETRY_S = 1, 3
_ETCD_PORT, _ETCD_PEER_PORT = 2379, 2380
_PARAMETERS = {
    "wal_keep_size": "256MB",
    "max_connections": 60,
    "shared_buffers": "16MB",
    "wal_retrieve_retry_interval": "200ms",
}


class PatroniManager:
    """Patroni on each host.

    Args:
        restores: with walproxy, standbys have a restore_command.
    """

    has_discarded_reports = False
    makes_servers = True
    history: tuple[str, ...] = ()

    def __init__(self, *, with_walproxy: bool, restores: bool = True) -> None:
        missing = [program for program in ("etcd", "setpriv", "sh") if shutil.which(program) is None]
        if importlib.util.find_spec("patroni") is None:
            missing.append("the Python package patroni[etcd3]")
        if missing:
            raise ConfigurationError(f"{', '.join(missing)} missing: install etcd-server and patroni[etcd3]")
        self.name = "Patroni with walproxy" if with_walproxy else "Patroni"
        self._with_walproxy = with_walproxy
        self._restores = restores
        self._etcds: list[str] = []

    def supporters(self, around: Surroundings, folder: Path, port: Callable[[int], int]) -> Sequence[Supporter]:
        members = []
        for number, (member, address) in enumerate(around.safekeeper_addresses.items(), 1):
            members.append((f"etcd{number}", member, address, port(_ETCD_PORT), port(_ETCD_PEER_PORT)))
        self._etcds = [f"{address}:{client_port}" for _, _, address, client_port, _ in members]
        cluster = ",".join(f"{name}=http://{address}:{peer_port}" for name, _, address, _, peer_port in members)
        supporters = []
        for name, member, address, client_port, peer_port in members:
            url, peer_url = f"http://{address}:{client_port}", f"http://{address}:{peer_port}"
            command = (
                *("etcd", "--name", name, "--data-dir", str(folder / name), "--initial-cluster", cluster),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            )
            supporters.append(Supporter(name, member, command))
        return supporters

    def command(self, place: Place, around: Surroundings) -> Sequence[str]:
        path = place.folder / "patroni.json"  # Patroni reads YAML, and this is.
        path.write_bytes(msgspec.json.encode(self._configuration(place, around)))
        user = server_user()
        if user is not None:
            os.chown(path, user.uid, user.gid)
        reader = as_reader_of_all(user) if user is not None else ()
        patroni = shlex.join([*reader, sys.executable, "-m", "patroni", str(path)])
        lines = [f"export HOME={shlex.quote(str(place.folder))} PYTHONWARNINGS=ignore", f"exec {patroni}"]
        if self._with_walproxy:
            proxy = shlex.join(self._proxy(place, around))
            lines.insert(0, f"while :; do {proxy}; sleep 0.25; done &")
        return ("sh", "-c", "\n".join(lines))

    def switchover(self, to: Place, around: Surroundings) -> Sequence[str]:
        # Of its own synchronous replication, only the synchronous standby can be the candidate.
        candidate = ("--candidate", to.name) if self._with_walproxy else ()
        path = to.folder / "patroni.json"
        command = (sys.executable, "-c", "from patroni.ctl import ctl; ctl()", "-c", str(path))
        return (*command, "switchover", _SCOPE, *candidate, "--force")

    def expire_leader(self) -> None:
        """Remove the leader's key from etcd, as etcd does once its time to live is over.

        Raises:
            subprocess.CalledProcessError: etcd does not accept it.
        """
        command = ["etcdctl", f"--endpoints={','.join(self._etcds)}", "del", f"/service/{_SCOPE}/leader"]
        subprocess.run(command, env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True)

    @staticmethod
    def _proxy(place: Place, around: Surroundings) -> list[str]:
        primary = make_conninfo(
            "",
            host=",".join(each.address for each in around.places.values()),
            port=",".join(str(each.pg_port) for each in around.places.values()),
            user="postgres",
            dbname="postgres",
            target_session_attrs="read-write",
        )
        return [
            *(sys.executable, "-m", "walproxy", "run", "--primary", primary),
            *("--safekeepers", around.safekeepers, "--bootstrap", "true"),
            *("--http-listen", f"{place.address}:{place.proxy_http_port}"),
        ]

    def _configuration(self, place: Place, around: Surroundings) -> dict[str, Any]:
        name, walproxy = place.name, f"{sys.executable} -m walproxy"
        dcs: dict[str, Any] = {
            "ttl": TTL_S,
            "loop_wait": _LOOP_S,
            "retry_timeout": _RETRY_S,
            "maximum_lag_on_failover": 1 << 20,
            "postgresql": {"use_pg_rewind": True, "parameters": dict(_PARAMETERS)},
        }
        postgresql: dict[str, Any] = {
            "listen": f"{place.address}:{place.pg_port}",
            "connect_address": f"{place.address}:{place.pg_port}",
            "data_dir": str(place.data_directory),
            "bin_dir": str(around.bin_directory),
            "pgpass": str(place.folder / "pgpass"),
            "use_unix_socket": True,
            "authentication": {
                "superuser": {"username": "postgres", "password": "postgres"},
                "replication": {"username": "replicator", "password": "replicator"},
            },
            "parameters": {
                "unix_socket_directories": str(place.socket_directory),
                "dynamic_shared_memory_type": "mmap",
                "cluster_name": name,
            },
            "pg_hba": [
                "local all all trust",
                "local replication all trust",
                f"host all all {around.allowed} trust",
                f"host replication all {around.allowed} trust",
            ],
        }
        if self._with_walproxy:
            dcs["slots"] = {"walproxy": {"type": "physical"}}
            dcs["postgresql"]["parameters"]["synchronous_standby_names"] = "walproxy"
            if self._restores:
                # The password file of the recipe, or none: these listeners ask for none.
                fetch = f"{walproxy} wal-fetch %f %p --safekeepers '{around.standby_conninfo}'"
                postgresql["recovery_conf"] = {"restore_command": fetch}
            postgresql["pre_promote"] = (
                f"env WALPROXY_SAFEKEEPERS={around.safekeepers} {walproxy} ready-to-promote "
                f"--pgdata {place.data_directory} --conninfo user=postgres --old-is-dead"
            )
        else:
            dcs["synchronous_mode"] = True
        return {
            "scope": _SCOPE,
            "name": name,
            "restapi": {
                "listen": f"{place.address}:{place.http_port}",
                "connect_address": f"{place.address}:{place.http_port}",
            },
            "etcd3": {"hosts": self._etcds},
            "bootstrap": {
                "dcs": dcs,
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums", {"wal-segsize": "1"}],
            },
            "postgresql": postgresql,
        }
