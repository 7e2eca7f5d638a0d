"""The commands with which to look at a cluster that the demo left running, and to end it."""

import shlex
import shutil
import sys
from pathlib import Path

from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.demo.loss_steps import archive_folder


def commands_to_look(cluster: LocalCluster) -> str:
    """Return lines that can be pasted into a shell, each with what it is for."""
    postgres = cluster.postgres
    pids = {process.name: process.pid for process in [*cluster.safekeepers.values(), *cluster.proxies]}
    psql = shutil.which("psql") or str(postgres.binaries.bin_directory / "psql")
    archive = shlex.quote(str(archive_folder(cluster.directory)))
    lines = [
        ("look at the bank", f"{shlex.quote(psql)} {shlex.quote(postgres.conninfo())}"),
        *(
            (f"watch {proxy.name}", f"{_program('walproxy')} status --watch --url {proxy.url}")
            for proxy in cluster.proxies
        ),
        *((f"ask {process.name}", f"curl -s {process.url}/status") for process in cluster.safekeepers.values()),
        *((f"crash {name}", f"kill -9 {pid}") for name, pid in pids.items()),
        *(
            (
                f"start {process.name} again",
                f"{shlex.join([sys.executable, *process.arguments])} >> {shlex.quote(str(process.log_path))} 2>&1 &",
            )
            for process in [*cluster.safekeepers.values(), *cluster.proxies]
        ),
        (
            "look into the folder of a safekeeper that is stopped",
            f"{_program('safekeeper')} inspect --data-dir {shlex.quote(str(cluster.safekeeper_directory(1)))}",
        ),
        ("see what can be restored from the archive", f"{_program('walproxy')} archive list --archive {archive}"),
        ("end PostgreSQL", f"kill -INT {postgres.pid}"),
        ("end the others", f"kill {' '.join(str(pid) for pid in pids.values())}"),
        ("remove everything", f"rm -r {shlex.quote(str(cluster.directory))}"),
    ]
    return "\n".join(["Everything runs on.", *(f"# {what}\n{command}" for what, command in lines)])


def _program(name: str) -> str:
    """Return how to call one of our commands from a shell."""
    beside = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(beside):
        return name
    return shlex.quote(str(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m {name}"
