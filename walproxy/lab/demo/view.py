"""The demo's output while it runs: the steps as lines, and below them, on a terminal, the cluster live.

A thread looks at the cluster a few times a second, so that neither drawing nor the story waits for a process that does
not answer. Without a terminal the same is one line every two seconds.
"""

import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from walproxy.lab.cluster.local_cluster import LocalCluster
from walproxy.lab.demo.bank import Transfer
from walproxy.lab.demo.stage import leading_proxy
from walproxy.lab.load.history import History
from walproxy.proxy.status_fields import ProxyStatus
from walproxy.proxy.status_table import format_bytes, render

_SAMPLE_S = 0.25
_PLAIN_EVERY_SAMPLES = 8
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#"
_BARS_SHOWN = 48


class View:
    """The live view, as a context manager; `print_line` prints a line above it."""

    def __init__(self, console: Console, cluster: LocalCluster, history: History[Transfer]) -> None:
        self._console = console
        self._cluster = cluster
        self._history = history
        self._rates: deque[float] = deque([0.0] * _BARS_SHOWN, maxlen=_BARS_SHOWN)
        self._status: ProxyStatus | None = None
        self._sampled_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, name="view", daemon=True)
        self._live = Live(console=console, get_renderable=self._picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._live.stop()

    def print_line(self, line: RenderableType) -> None:
        """Print a line that stays."""
        self._console.print(line)

    def _sample_until_ended(self) -> None:
        samples = 0
        while not self._ended.wait(_SAMPLE_S):
            now = time.monotonic()
            self._rates.append(self._history.acknowledged_between(self._sampled_at, now) / (now - self._sampled_at))
            self._sampled_at = now
            leading = leading_proxy(self._cluster)
            self._status = leading[1] if leading is not None else None
            samples += 1
            if not self._console.is_terminal and samples % _PLAIN_EVERY_SAMPLES == 0:
                self.print_line(Text(self._plain_line()))

    def _plain_line(self) -> str:
        recent = list(self._rates)[-_PLAIN_EVERY_SAMPLES:]
        load = f"     {sum(recent) / len(recent):6,.0f} commits/s"
        status = self._status
        if status is None:
            return f"{load}  no proxy answers"
        lags = "  ".join(f"{each.id} {each.state} lag {format_bytes(each.lag_bytes)}" for each in status.safekeepers)
        return f"{load}  {status.state}  commit_lsn {status.commit_lsn}  {lags}"

    def _picture(self) -> RenderableType:
        history = self._history
        top = max(*self._rates, 1.0)
        heights = _BARS if self._console.encoding.startswith("utf") else _ASCII_BARS
        bars = "".join(heights[round(rate / top * (len(heights) - 1))] for rate in self._rates)
        load = Text.assemble(
            (f"\n{self._rates[-1]:7,.0f} commits/s ", "bold"),
            (bars, "green"),
            f"  {len(history.acknowledged):,} acknowledged, {len(history.in_doubt)} in doubt",
        )
        cluster = render(self._status) if self._status is not None else Text("no proxy answers", style="red")
        return Group(load, cluster)
