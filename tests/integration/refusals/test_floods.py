"""Floods of connections that prove nothing, at safekeepers with few file descriptors: commits and proxies go on."""

import contextlib
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.conftest import NEWEST, NewStand
from tests.integration.refusals.refusal_fixtures import Stand, log_of, wait_for
from walproxy.lab.cluster.local_cluster import LocalProcess
from walproxy.lab.testing.shortages import TakenDescriptors
from walproxy.postgres.local_server import free_port

LIMIT = 256
EACH = 110
# What a stranger sends: the beginning of a request, of a frame, of a startup packet.
HALF_SENT = {"http": b"GET /status HTTP/1.1\r\nHost: x\r\n", "proposers": b"W", "pg": b"\0\0\0"}
LIMITED = (
    "import resource, runpy, sys; "
    f"resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT})); "
    "runpy.run_module('safekeeper', run_name='__main__', alter_sys=True)"
)
LARGE_INSERT = "INSERT INTO ledger SELECT generate_series(1, 80000)"


class Flood:
    """Keeps EACH half-sent connections open to each address, and opens another for each that was closed."""

    def __init__(self, addresses: list[tuple[int, bytes]]) -> None:
        self._addresses = addresses
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.opened = 0

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.opened >= EACH * len(self._addresses), "the flood is there")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            rings: dict[int, list[socket.socket]] = {port: [] for port, _ in self._addresses}
            while not self._stop.wait(0.002):
                for port, half in self._addresses:
                    ring = rings[port]
                    with contextlib.suppress(OSError):
                        client = socket.create_connection(("127.0.0.1", port), timeout=2)
                        stack.callback(client.close)
                        client.sendall(half)
                        ring.append(client)
                    self.opened += 1
                    if len(ring) > EACH:
                        ring.pop(0).close()


def limit(process: LocalProcess) -> None:
    assert process.arguments[:2] == ["-m", "safekeeper"]
    process.arguments[:2] = ["-c", LIMITED]


def listeners(stand: Stand, safekeeper_id: int, pg_port: int) -> list[tuple[int, bytes]]:
    process = stand.safekeepers[safekeeper_id]
    proposers = int(process.arguments[process.arguments.index("--listen") + 1].rpartition(":")[2])
    ports = {"http": process.http_port, "proposers": proposers, "pg": pg_port}
    return [(ports[name], half) for name, half in HALF_SENT.items()]


def files_of(process: LocalProcess) -> int:
    """Return how many descriptors of a process are no sockets."""
    count = 0
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It is closed by now.
            count += "socket:" not in str(path.readlink())
    return count


@NEWEST
def test_floods_at_a_majority_stop_no_commit_keep_out_no_proxy_and_end_no_process(new_stand: NewStand) -> None:
    stand = new_stand()
    addresses: list[tuple[int, bytes]] = []
    for safekeeper_id in (1, 2):
        process, pg_port = stand.safekeepers[safekeeper_id], free_port()
        limit(process)
        process.arguments += ["--pg-listen", f"127.0.0.1:{pg_port}"]
        addresses += listeners(stand, safekeeper_id, pg_port)
    stand.serve()
    stand.commit(1)
    with Flood(addresses):
        for number in range(2, 8):
            stand.postgres.execute("SELECT pg_switch_wal()")
            stand.commit(number)
        # The third one would make a quorum with either: now both of the flooded ones are needed.
        stand.safekeepers[3].kill9()
        stand.commit(8)
        stand.proxy.kill9()
        began_at = time.monotonic()
        stand.start_proxy(stand.proxy)
        stand.commit(9)
        assert time.monotonic() - began_at < 20
        assert all(files_of(stand.safekeepers[number]) < 60 for number in (1, 2))
    for number in (1, 2):
        assert stand.safekeepers[number].pid is not None
        log = log_of(stand.safekeepers[number])
        assert f"the limit of open files, {LIMIT}, is below" in log
        assert "for a newer one" in log and "Too many open files" not in log
    stand.safekeepers[3].start()
    stand.verify()


@NEWEST
def test_a_majority_that_can_open_nothing_goes_on_by_itself_when_it_can(new_stand: NewStand) -> None:
    stand = new_stand().serve()
    stand.commit(1)
    two = [stand.safekeepers[number] for number in (1, 2)]
    taken = [TakenDescriptors(process.pid) for process in two if process.pid is not None]
    # More than a segment, and the one behind it may be prepared already.
    waits = threading.Thread(target=stand.postgres.execute, args=(LARGE_INSERT,))
    waits.start()
    try:
        wait_for(lambda: all("Too many open files: retrying" in log_of(process) for process in two), "both lack files")
        assert waits.is_alive()
    finally:
        for each in taken:
            each.give_back()
    waits.join(60)
    assert not waits.is_alive()
    stand.commit(2)
    assert all(process.pid is not None for process in two)
    stand.verify()
