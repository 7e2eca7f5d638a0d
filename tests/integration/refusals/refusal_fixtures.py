"""A whole cluster with bad input, and what it must report.

`Stand` is a cluster whose proxies may end: `end_of` returns the exit code and the one line with the reason.
`untouched` is what a refusal must leave as it was. `Relay` stands between a proxy and a safekeeper and reads along.
"""

import contextlib
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

from safekeeper.consensus.messages import ProposerMessage
from safekeeper.peers.codec import PROPOSER_AUTHENTICATION, PROPOSER_DIALECT, FrameDecoder
from safekeeper.peers.peer_auth import Proof
from tests.cluster_templates import init_by_copying
from tests.forking.daemons import run_walproxy as run_walproxy
from tests.integration.cluster.cluster_fixtures import Gated
from tests.waiting import NotThereYet, entry
from tests.waiting import wait_for as wait_for
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.lab.wal_compare import compare_wal
from walproxy.postgres.local_server import LocalPostgres, ServerBinaries

SEGMENT_SIZE = 1 << 20
SETTINGS = {
    "max_connections": "20",
    "shared_buffers": "16MB",
    "log_checkpoints": "off",
    "min_wal_size": "2MB",
    "max_wal_size": "8MB",
    "wal_keep_size": "64MB",  # What is compared must still be there at the end.
    "checkpoint_timeout": "1h",
}


def only_line(text: str) -> str:
    """Return the only line of `text`, which is no part of a traceback."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text and "unexpected" not in text, text
    return lines[0]


class Stand(Gated):
    """A cluster with 1 MiB segments; its first proxy is started by `serve`."""

    def serve(self) -> "Stand":
        """Start everything; commits wait for the quorum from then on."""
        self.start()
        self.postgres.execute("CREATE TABLE ledger (number int)")
        return self

    def proxy_for(self, name: str, *options: str, conninfo: str = "") -> LocalProcess:
        """Make and start another proxy, which is closed with the cluster."""
        proxy = self.make_proxy(name, *options, conninfo=conninfo)
        self.proxies.append(proxy)
        return self.start_proxy(proxy)

    def commit(self, number: int = 0) -> None:
        """Commit a row; returns when the quorum has it."""
        self.postgres.execute("INSERT INTO ledger VALUES (%s)", number)

    def member(self, safekeeper_id: int, proxy: LocalProcess | None = None) -> dict[str, Any]:
        """Return the entry of a safekeeper in the status of a proxy, by default the first."""
        status = (proxy or self.proxy).status()
        if status is None:
            raise NotThereYet("the proxy does not answer")
        return entry(status["safekeepers"], "id", safekeeper_id)

    def wait_for_member(self, safekeeper_id: int, state: str, proxy: LocalProcess | None = None) -> dict[str, Any]:
        """Wait until a proxy reports a safekeeper in `state`; return its entry."""
        found: dict[str, Any] = {}

        def is_in_state() -> bool:
            found.update(self.member(safekeeper_id, proxy))
            return bool(found["state"] == state)

        wait_for(is_in_state, f"safekeeper {safekeeper_id} is {state}")
        return found

    def untouched(self) -> dict[int, dict[str, Any]]:
        """Return what a refused proxy must not change on the safekeepers that run."""
        names = ("term", "promised", "history", "flush_lsn", "commit_lsn", "incarnation", "cluster_id", "generation")
        found: dict[int, dict[str, Any]] = {}
        for safekeeper_id, safekeeper in self.safekeepers.items():
            if safekeeper.pid is not None:
                self.wait_until(lambda s=safekeeper: s.status() is not None, "it answers", process=safekeeper)  # type: ignore[misc]
                status = safekeeper.status()
                assert status is not None
                found[safekeeper_id] = {name: status[name] for name in names}
        return found

    def verify(self, *safekeeper_ids: int) -> None:
        """The safekeepers, by default all, have the primary's bytes, all of them."""
        commit_lsn = self.primary_flush_lsn()
        wait_for(lambda: self.commit_lsn() >= commit_lsn, "the quorum has the primary's WAL")
        for safekeeper_id in safekeeper_ids or tuple(self.safekeepers):
            wait_for(
                lambda i=safekeeper_id: self.flush_lsn_of(i) >= commit_lsn,  # type: ignore[misc]
                f"safekeeper {safekeeper_id} has the primary's WAL",
            )
            wal = self.safekeeper_directory(safekeeper_id) / "wal"
            compare_wal(wal, [self.postgres.pg_wal], SEGMENT_SIZE, commit_lsn)

    def wipe(self, safekeeper_id: int) -> None:
        """Take a safekeeper's disk away: an empty folder is in its place."""
        self.safekeepers[safekeeper_id].kill9()
        shutil.rmtree(self.safekeeper_directory(safekeeper_id))

    def switch_to(self, postgres: LocalPostgres) -> None:
        """Let another server be the primary; the old one is closed with the cluster."""
        self.former_primaries.append(self.postgres)
        self.postgres = postgres


def end_of(process: LocalProcess, timeout_s: float = 20.0) -> tuple[int, str]:
    """Wait for the end of a process; return its exit code and the only line of its log with the reason.

    A safekeeper that counts as missing, a lost quorum and WAL at risk are errors of their own, and may be logged
    before.
    """
    reported_before = ("counts as missing", "no quorum for", "is at risk")
    code = process.wait(timeout_s)
    lines = process.log_path.read_text().splitlines()
    assert not any("Traceback" in line or "unexpected" in line for line in lines), lines
    errors = [line for line in lines if " ERROR " in line or line.startswith(("walproxy: ", "safekeeper: "))]
    assert errors and errors[-1] == lines[-1], lines
    (reason,) = [line for line in errors if not any(each in line for each in reported_before)]
    return code, reason


def log_of(process: LocalProcess) -> str:
    """Return the whole log of a process, without a traceback in it."""
    text = process.log_path.read_text()
    assert "Traceback" not in text and "unexpected" not in text, text
    return text


def make_server(binaries: ServerBinaries, template: Path, directory: Path, **settings: str) -> LocalPostgres:
    """Return a server, not started, on a copy of a folder that was stopped; equal copies have one system id."""
    return init_by_copying(LocalPostgres(binaries, directory, settings={**SETTINGS, **settings}), template)


def make_stand(directory: Path, postgres: LocalPostgres, safekeeper_count: int = 3) -> Stand:
    """Return a cluster whose processes do not run yet."""
    return Stand(directory, postgres, safekeeper_count)


class Relay:
    """Passes on what a proxy and a safekeeper send to each other, decodes it, and can break off or pause.

    Attributes:
        port: where it listens.
        cut_at: it closes a connection instead of handing on a message of this type; None: hands on everything.
        silent: while set, it hands on nothing and closes nothing: a half-open connection.
        cut: how often it has closed one.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_at: type[ProposerMessage] | None = None
        self.silent = threading.Event()
        self.cut = 0
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._passing: list[threading.Thread] = []
        self._accepting.start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        # A connection that was just accepted is in none of the lists before its thread has ended.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._passing:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self._target_port), timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._sockets += [client, server]
                decoder: FrameDecoder[Any] = FrameDecoder(PROPOSER_AUTHENTICATION)
                for ways in ((client, server, decoder), (server, client, None)):
                    thread = threading.Thread(target=self._pass_on, args=ways, daemon=True)
                    self._passing.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, decoder: FrameDecoder[Any] | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.silent.is_set():
                    continue
                if decoder is not None and self.cut_at is not None:
                    if any(isinstance(message, self.cut_at) for message in _decoded(decoder, data)):
                        self.cut += 1
                        break
                elif decoder is not None:
                    _decoded(decoder, data)
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _decoded(decoder: FrameDecoder[Any], data: bytes) -> list[Any]:
    """Return a proxy's next messages: after its proof of the shared secret they are a proposer's."""
    messages = decoder.feed(data)
    if any(isinstance(message, Proof) for message in messages):
        decoder.use(PROPOSER_DIALECT)
    return messages
