"""A safekeeper's process: puts the parts together, runs until it is told to stop or has to, takes them apart.

SIGTERM, SIGINT  take no new connection, bring everything to disk, say so, exit 0; a second one exits at once
SIGHUP           read the configuration again; what cannot change in a running process is named in the log
"""

import asyncio
import logging
import os
import secrets
import signal
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from safekeeper.config import SafekeeperConfig
from safekeeper.data_folder import DataFolder
from safekeeper.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError, StorageFailed, WalproxyError
from safekeeper.http import HttpDoor, safekeeper_routes, serve_http
from safekeeper.logs import configure, set_level
from safekeeper.lsn import format_lsn
from safekeeper.node import Node
from safekeeper.proposer_door import ProposerDoor
from safekeeper.settings import changed_options
from safekeeper.wal.filesystem import FileSystem

_log = logging.getLogger(__name__)


class Service:
    """One `safekeeper run`.

    Args:
        config: the settings.
        fs: where the data folder is.
        reload: returns the settings as they are written now; called at SIGHUP.
    """

    def __init__(self, config: SafekeeperConfig, fs: FileSystem, reload: Callable[[], SafekeeperConfig]) -> None:
        self._config = config
        self._fs = fs
        self._reload = reload
        self._term = 0
        self._node: Node | None = None
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal comes or the node fails, which is logged; return the process's exit code.

        Raises:
            WalproxyError: it could not begin to serve.
        """
        configure(self._who, self._config.log_level)
        folder = DataFolder.open(self._fs, self._config.data_dir, self._config.id, secrets.token_hex(16))
        # Its files close with the process: to close them after a failure could wait for ever for a disk that hangs.
        self._node = Node(folder, asyncio.get_running_loop())
        try:
            await self._serve(self._node)
        except ConfigurationError:
            raise
        except WalproxyError as error:
            _log.error("%s", error)
            return error.exit_code
        except Exception as error:
            _log.error("unexpected %s: %s%s", type(error).__name__, error, _where(error))
            return EXIT_UNEXPECTED
        folder.close()
        return EXIT_FINE

    async def _serve(self, node: Node) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        node.room.free_warning_bytes = config.disk_free_warning
        door = ProposerDoor(
            node,
            connections_max=config.connections_max,
            greeting_timeout_s=config.greeting_timeout,
            idle_timeout_s=config.idle_timeout,
        )
        node.attach(door)
        http: HttpDoor | None = None
        ticks = None
        try:
            await door.open(config.listen)
            http = await serve_http(
                safekeeper_routes(node, lambda: {"proposers": str(door.address), "http": str(http and http.address)}),
                config.http,
            )
            self._take_signals(loop)
            self._announce(node.folder, door, http)
            ticks = loop.create_task(self._tick(node))
            await self._until_stop_or_failure(node)
            door.stop_accepting()
            await self._drain(node)
            _log.info("stopped; WAL ends at %s", format_lsn(node.acceptor.flush_lsn))
        finally:
            door.stop_accepting()
            door.close_all()
            if ticks is not None:
                ticks.cancel()
            if http is not None:
                await http.close()
            node.stop()

    def _who(self) -> str:
        node = self._node
        if node is None:
            return f"safekeeper {self._config.id}"
        return f"safekeeper {self._config.id} term {node.acceptor.control.promised.term}"

    def _announce(self, folder: DataFolder, door: ProposerDoor, http: HttpDoor) -> None:
        _log.info(
            "listens for proxies on %s, HTTP on %s; data folder %s, incarnation %s, WAL ends at %s; process %d",
            door.address,
            http.address,
            folder.directory,
            folder.control.incarnation[:8],
            format_lsn(folder.flush_lsn),
            os.getpid(),
        )

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_signal)

    def _stop_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            _log.warning("a second %s: stops at once", number.name)
            os._exit(128 + number)
        _log.info("%s: stops", number.name)
        self._stop.set()

    def _reload_signal(self) -> None:
        try:
            new = self._reload()
        except ConfigurationError as error:
            _log.error("could not read the configuration again: %s; nothing was changed", error)
            return
        taken, fixed = changed_options(self._config, new)
        set_level(new.log_level)
        if self._node is not None:
            self._node.room.free_warning_bytes = new.disk_free_warning
        _log.info("read the configuration again; changed: %s", ", ".join(taken) or "nothing")
        if fixed:
            _log.warning("a change of %s takes a restart", ", ".join(fixed))

    async def _tick(self, node: Node) -> None:
        while True:
            node.measure_room()
            await asyncio.sleep(self._config.checkpoint_interval)
            node.checkpoint()

    async def _until_stop_or_failure(self, node: Node) -> None:
        await _first_of(self._stop.wait(), node.failed, None)

    async def _drain(self, node: Node) -> None:
        if not await _first_of(node.drain(), node.failed, self._config.drain_timeout):
            raise StorageFailed(
                f"the disk has not answered for {self._config.drain_timeout:g} s: "
                "stopped without what was not on disk, of which nothing was acknowledged"
            )


async def _first_of(wanted: Coroutine[Any, Any, object], failed: asyncio.Future[None], timeout_s: float | None) -> bool:
    """Wait for `wanted`; return whether it came in time.

    Raises:
        Whatever `failed` holds, if that comes first.
    """
    task = asyncio.ensure_future(wanted)
    waiting: set[asyncio.Future[Any]] = {task, failed}
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        return task.done()
    finally:
        task.cancel()


def _where(error: BaseException) -> str:
    """Return where an error that nobody expected was raised: what a report of it needs."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}; please report it)" if frames else ""
