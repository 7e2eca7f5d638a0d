"""Shortages of a process: connections that prove nothing, and no free file descriptor."""

import contextlib
import resource
import socket
import threading
from collections.abc import Sequence

# Open at a time to each address: more than a listener keeps of one host.
_CONNECTIONS_EACH = 150
_PAUSE_S = 0.005
_CONNECT_TIMEOUT_S = 1.0
# The beginning of a request, of a frame and of a startup packet, and nothing at all.
_HALF_SENT = (b"GET /status HTTP/1.1\r\nHost: x\r\n", b"W", b"\0\0\0", b"")
# A process that has its standard streams opens nothing more.
_NONE_LEFT = 3


class Flood:
    """Keeps half-sent connections open to some addresses of this machine, and opens more, until it is stopped.

    Args:
        addresses: host and port of each; loopback only.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._addresses = addresses
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections; return when they are."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        kept: dict[tuple[str, int], list[socket.socket]] = {address: [] for address in self._addresses}
        count = 0
        try:
            while kept and not self._stop.wait(_PAUSE_S):
                for address, clients in kept.items():
                    # One that is refused, or that finds no listener, is tried again in the next round.
                    with contextlib.suppress(OSError):
                        client = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
                        clients.append(client)
                        client.sendall(_HALF_SENT[count % len(_HALF_SENT)])
                    if len(clients) > _CONNECTIONS_EACH:
                        clients.pop(0).close()
                count += 1
        finally:
            for clients in kept.values():
                for client in clients:
                    client.close()


class TakenDescriptors:
    """Lets a process that we have started open nothing more, until `give_back`. Linux only.

    Args:
        pid: of the process, which keeps what it has open.

    Raises:
        ProcessLookupError: it has ended.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self._limits = soft, hard
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_NONE_LEFT, hard))

    def give_back(self) -> None:
        """Set the limit that it had; harmless if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._limits)
