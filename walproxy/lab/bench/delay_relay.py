"""A network that takes its time, for the benchmark: relays of walproxy/lab/testing/relay.py that only delay."""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from walproxy.lab.testing.relay_control import RelayProcess


class DelayRelays:
    """Relays of one delay, each a process of its own; they end with the block. No delay needs none."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_ms = delay_ms
        self._processes = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._processes.close()

    def through(self, target_port: int) -> int:
        """Return a port whose connections lead to `target_port`, which need not be there yet.

        Raises:
            WalproxyError: the relay does not start.
        """
        if not self._delay_ms:
            return target_port
        relay = self._processes.enter_context(RelayProcess()).control
        port = relay.open("delayed", "127.0.0.1", target_port)
        relay.delay("delayed", self._delay_ms)
        return port
