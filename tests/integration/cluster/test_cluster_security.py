"""A cluster behind mutual TLS and a shared secret: commits, new certificates and secrets under load, intruders."""

import os
import shutil
import signal
from pathlib import Path

from tests.integration.cluster.cluster_fixtures import Gated, field_of, wait_for
from tests.integration.conftest import NEWEST, NewGated
from tests.unit.certificates import Authority, Pair
from walproxy.lab.cluster.local_cluster import LocalProcess

SECRET, NEXT_SECRET = "the first secret of this cluster", "the second secret of this cluster"


def _install(authority: Authority, name: str, directory: Path) -> None:
    pair = authority.sign(name)
    for source, target in zip(pair, Pair(directory / "cert", directory / "key"), strict=True):
        shutil.copy(source, target)


def _reload(*processes: LocalProcess) -> None:
    """Send SIGHUP and wait until each has read its files."""
    for process in processes:
        before = process.log_path.read_text().count("reloaded certificates, users and secrets")
        assert process.pid is not None
        os.kill(process.pid, signal.SIGHUP)
        wait_for(
            lambda p=process, n=before: p.log_path.read_text().count("reloaded certificates, users and secrets") > n,  # type: ignore[misc]
            f"{process.name} has read its files again",
        )


def _credentials(directory: Path) -> list[str]:
    files = ("-c", f"tls_cert={directory / 'cert'}", "-c", f"tls_key={directory / 'key'}")
    return [*files, "--secret-file", str(directory / "secret")]


def _protect(cluster: Gated, directory: Path, ca: Path) -> None:
    both = _credentials(directory)
    for safekeeper in cluster.safekeepers.values():
        safekeeper.arguments += [*both, "-c", f"tls_client_ca={ca}"]
    cluster.proxy.arguments += [*both, "-c", f"tls_ca={ca}"]


@NEWEST
def test_certificates_and_secrets_change_under_load_and_intruders_change_nothing(
    new_gated: NewGated, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    _install(authority, "first", tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    cluster = new_gated()
    _protect(cluster, tmp_path, authority.ca)
    cluster.start_gated()
    processes = [*cluster.safekeepers.values(), cluster.proxy]
    term = cluster.status()["term"]
    with cluster.load() as load:
        _install(authority, "second", tmp_path)
        (tmp_path / "secret").write_text(NEXT_SECRET)
        _reload(*processes)
        # Connections that exist have gone on; a new one is made with what is new on both sides.
        assert "lost safekeeper" not in cluster.proxy.log_path.read_text()
        cluster.safekeepers[1].kill9()
        cluster.safekeepers[1].start()
        wait_for(lambda: cluster.member(1)["state"] == "streaming", "the new connection is let in")
        # A proxy with the old secret, and one without any, would depose the serving one if they could.
        ours = [*_credentials(tmp_path), "-c", f"tls_ca={authority.ca}"]
        (tmp_path / "old").write_text(SECRET)
        old = [option if option != str(tmp_path / "secret") else str(tmp_path / "old") for option in ours]
        for options, problem in ((old, "refuses the proof"), ([], "requires TLS")):
            intruder = cluster.add_proxy("--takeover", "true", *options)
            wait_for(
                lambda i=intruder: i.log_path.read_text().count(problem) >= 3,  # type: ignore[misc]  # noqa: B023
                "each safekeeper refuses the intruder",
            )
            assert field_of(intruder, "term") == 0
            intruder.kill9()
            cluster.proxies.remove(intruder)
        load.stop()
    assert cluster.status()["term"] == term
    assert all(SECRET not in p.log_path.read_text() and NEXT_SECRET not in p.log_path.read_text() for p in processes)
