"""The process of a safekeeper: composes the parts, runs until a signal or a failure, and stops them.

At SIGTERM and SIGINT it accepts no new connection, flushes everything to disk, archives it if it is the archiver,
logs that, and exits with 0. The other signals: safekeeper/base/signals.py.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from safekeeper.archive.access import ArchiveAccess
from safekeeper.archiving.archiver import Archiver
from safekeeper.archiving.read_through import ReadThrough
from safekeeper.base.errors import EXIT_FINE, EXIT_UNEXPECTED, ConfigurationError, StorageFailed, WalproxyError
from safekeeper.base.event_log import EventRecorder
from safekeeper.base.logs import configure, describe_bug, log_event
from safekeeper.base.lsn import format_lsn
from safekeeper.base.signals import reload_settings, take_signals
from safekeeper.base.worker import Worker
from safekeeper.net.admission import Budget, Wish
from safekeeper.net.http_server import HTTP_BUDGET, HttpListener, Route, made_at_first_request, serve_http
from safekeeper.net.listener import Listener
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import ProposerListener
from safekeeper.node.wal_pull import WalPuller
from safekeeper.process.config import SafekeeperConfig
from safekeeper.process.open_files import listener_budgets
from safekeeper.process.retention import Retention
from safekeeper.process.security import Protection
from safekeeper.process.status_pages import safekeeper_routes, safekeeper_status
from safekeeper.serving.readers import ReaderHub
from safekeeper.serving.replication_listener import ReplicationListener
from safekeeper.serving.slots import Slots
from safekeeper.storage.data_folder import DataFolder
from safekeeper.storage.filesystem import FileSystem
from safekeeper.web.page import with_page

# An archive folder that hangs must not prevent a safekeeper from serving.
_ARCHIVE_LOOK_S = 5.0

# The time limit for writing the last events at a shutdown.
_EVENTS_CLOSE_S = 1.0

# The listeners, as metrics and log lines name them.
PROPOSERS, REPLICATION, HTTP = "proposers", "replication", "http"

_log = logging.getLogger(__name__)


class Service:
    """One `safekeeper run`.

    Args:
        config: the settings.
        fs: the file system that contains the data folder.
        reload: returns the settings as they are written now; called at SIGHUP.
    """

    def __init__(self, config: SafekeeperConfig, fs: FileSystem, reload: Callable[[], SafekeeperConfig]) -> None:
        self._config = config
        self._fs = fs
        self._reload = reload
        self._term = 0
        self._node: Node | None = None
        self._protection: Protection
        self._slots: Slots
        self._archiver: Archiver | None = None
        self._retention: Retention
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal or a failure of the node, which is logged; return the process's exit code.

        Raises:
            WalproxyError: it could not start to serve.
        """
        self._configure_log(None)
        self._protection = Protection(self._config)
        archive = await self._open_archive()
        folder = DataFolder.open(self._fs, self._config.data_dir, self._config.id, secrets.token_hex(16))
        # The process's end closes the files: after a failure, closing them could wait indefinitely for a hung disk.
        self._node = Node(folder, asyncio.get_running_loop())
        self._configure_log(self._node.services.events.recorder)
        try:
            await self._serve(self._node, archive)
        except ConfigurationError:
            raise
        except WalproxyError as error:
            _log.error("%s", error)
            return error.exit_code
        except Exception as error:
            _log.error("%s", describe_bug(error))
            return EXIT_UNEXPECTED
        folder.close()
        return EXIT_FINE

    def _configure_log(self, events: EventRecorder | None) -> None:
        configure(self._who, self._config.log_level, log_format=self._config.log_format, events=events)

    async def _serve(self, node: Node, archive: ArchiveAccess | None) -> None:
        config, protection, loop = self._config, self._protection, asyncio.get_running_loop()
        node.disk_space.free_warning_bytes = config.disk_free_warning
        budgets = listener_budgets(listener_wishes(config))
        listener = ProposerListener(
            node,
            budget=budgets[PROPOSERS],
            greeting_timeout_s=config.greeting_timeout,
            idle_timeout_s=config.idle_timeout,
            tls=protection.proposers_tls,
            secret=protection.secret,
            networks=protection.allow.proposers,
        )
        node.attach(listener)
        puller = WalPuller(node, protection.peers, protection.obstacle_to_peers)
        node.attach_readers(puller)
        self._slots = slots = Slots.open(self._fs, config.data_dir, node.disk, config.slots_max)
        self._archiver = archiver = self._make_archiver(node, archive) if archive is not None else None
        read_through = hub = pg_listener = None
        if config.pg_listen is not None:
            if archive is not None:
                read_through = ReadThrough(self._fs, config.data_dir, archive, lambda: node.acceptor.control)
            hub = ReaderHub(node, loop, read_through)
            pg_listener = self._make_pg_listener(node, slots, hub, budgets[REPLICATION])
        self._retention = retention = Retention(
            node,
            slots,
            hub,
            archiver,
            keep_bytes=config.wal_keep,
            limit_bytes=config.wal_limit,
            slot_idle_timeout_s=config.slot_idle_timeout,
        )
        node.attach_readers(retention)
        listeners: dict[str, Listener[Any]] = {PROPOSERS: listener}
        if pg_listener is not None:
            listeners[REPLICATION] = pg_listener

        def metrics() -> Route:
            # Not imported before: 25 ms of processor time and 3 MB, which a start would wait for.
            from safekeeper.net.metrics_page import metrics_route
            from safekeeper.process.metrics import SafekeeperCollector

            return metrics_route(
                SafekeeperCollector(
                    node,
                    retention,
                    listeners=listeners,
                    hub=hub,
                    archiver=archiver,
                    read_through=read_through,
                    puller=puller,
                    certificates={
                        PROPOSERS: protection.proposers_tls,
                        REPLICATION: protection.replication_tls if pg_listener is not None else None,
                        HTTP: protection.http_tls,
                    },
                )
            )

        http: HttpListener | None = None
        ticks = []
        try:
            await listener.open(protection.proposers_address())
            if pg_listener is not None and config.pg_listen is not None:
                await pg_listener.open(protection.replication_address(config.pg_listen))

            def addresses() -> dict[str, str]:
                found = {"proposers": str(listener.address), "http": str(http and http.address)}
                return found | ({"pg": str(pg_listener.address)} if pg_listener is not None else {})

            http = await serve_http(
                with_page(
                    safekeeper_routes(
                        node, lambda: safekeeper_status(node, addresses(), pg_listener, archiver, retention, puller)
                    )
                    | {"/metrics": made_at_first_request(metrics)},
                    "safekeeper",
                    keeps_history=True,
                ),
                config.http_listen,
                tls=protection.http_tls,
                networks=protection.allow.http,
                access=protection.http_access,
                budget=budgets[HTTP],
            )
            listeners[HTTP] = http
            take_signals(self._stop.set, partial(self._take_settings, listener, http, pg_listener), self._archive_now)
            self._announce(node.folder, listener, http, pg_listener)
            if archiver is not None:
                archiver.start()
            ticks = [loop.create_task(self._tick(node)), loop.create_task(retention.run())]
            await self._until_stop_or_failure(node)
            listener.stop_accepting()
            puller.close()
            await self._drain(node)
            if pg_listener is not None:
                await pg_listener.close()
            await self._drain_archiver(node)
            await _first_of(slots.save(), node.failed, config.drain_timeout)
            flush_lsn = format_lsn(node.acceptor.flush_lsn)
            log_event(_log, "safekeeper-stopped", {"flush_lsn": flush_lsn}, "stopped; WAL ends at %s", flush_lsn)
            if not await _first_of(node.services.events.close(), node.failed, _EVENTS_CLOSE_S):
                _log.warning("the last events are not written: the disk has not answered for %g s", _EVENTS_CLOSE_S)
        finally:
            listener.stop_accepting()
            listener.close_all()
            if pg_listener is not None:
                pg_listener.abort()
            puller.close()
            for tick in ticks:
                tick.cancel()
            if archiver is not None:
                archiver.close()
            if http is not None:
                await http.close()
            node.stop()

    def _who(self) -> str:
        node = self._node
        if node is None:
            return f"safekeeper {self._config.id}"
        return f"safekeeper {self._config.id} term {node.acceptor.control.promised.term}"

    async def _open_archive(self) -> ArchiveAccess | None:
        """Return the access to the archive, None if none is configured.

        Raises:
            ConfigurationError: the archive's configuration is not valid.
        """
        config = self._config
        if config.archive is None:
            return None
        access = ArchiveAccess(config.archive, config.archive_options, timeout_s=config.archive_timeout)
        worker = Worker("archive", asyncio.get_running_loop())
        try:
            await asyncio.wait_for(worker.run(access.store), _ARCHIVE_LOOK_S)
        except TimeoutError:
            _log.warning("the archive %s does not reply: starting without it, and retrying", access.url)
        worker.stop()
        return access

    def _make_archiver(self, node: Node, archive: ArchiveAccess) -> Archiver:
        archiver = Archiver(
            node,
            self._fs,
            archive,
            compress=self._config.archive_compression != "none",
            partial_interval_s=self._config.archive_partial_interval,
        )
        node.attach_readers(archiver)
        return archiver

    def _archive_now(self) -> None:
        if self._archiver is not None:
            _log.info("SIGUSR1: archiving the open segment, if this safekeeper is the archiver")
            self._archiver.archive_now()
        else:
            _log.warning("SIGUSR1: no archive is configured: see --archive")

    def _make_pg_listener(self, node: Node, slots: Slots, hub: ReaderHub, budget: Budget) -> ReplicationListener:
        node.attach_readers(hub)
        return ReplicationListener(
            node,
            hub,
            slots,
            budget=budget,
            greeting_timeout_s=self._config.greeting_timeout,
            timeout_s=self._config.pg_timeout,
            tls=self._protection.replication_tls,
            users=self._protection.users,
            networks=self._protection.allow.replication,
        )

    def _announce(
        self,
        folder: DataFolder,
        listener: ProposerListener,
        http: HttpListener,
        pg_listener: ReplicationListener | None,
    ) -> None:
        log_event(
            _log,
            "safekeeper-started",
            {"incarnation": folder.control.incarnation, "flush_lsn": format_lsn(folder.flush_lsn)},
            "listening for proxies on %s, for HTTP on %s%s; data folder %s, incarnation %s, WAL ends at %s; process %d",
            listener.address,
            http.address,
            f", for replication clients on {pg_listener.address}" if pg_listener is not None else "",
            folder.directory,
            folder.control.incarnation[:8],
            format_lsn(folder.flush_lsn),
            os.getpid(),
        )

    def _take_settings(
        self, listener: ProposerListener, http: HttpListener, pg_listener: ReplicationListener | None
    ) -> None:
        new = reload_settings(self._config, self._reload)
        if new is None or self._node is None:
            return
        self._node.disk_space.free_warning_bytes = new.disk_free_warning
        self._retention.keep_bytes, self._retention.limit_bytes = new.wal_keep, new.wal_limit
        self._retention.slot_idle_timeout_s = new.slot_idle_timeout
        if self._archiver is not None:
            self._archiver.partial_interval_s = new.archive_partial_interval
        self._protection.reload(new)
        allow = self._protection.allow
        listener.networks, http.networks = allow.proposers, allow.http
        http.access = self._protection.http_access
        if pg_listener is not None:
            pg_listener.networks = allow.replication

    async def _tick(self, node: Node) -> None:
        while True:
            node.measure_room()
            await asyncio.sleep(self._config.checkpoint_interval)
            node.checkpoint()
            self._slots.checkpoint()

    async def _until_stop_or_failure(self, node: Node) -> None:
        await _first_of(self._stop.wait(), node.failed, None)

    async def _drain(self, node: Node) -> None:
        if not await _first_of(node.drain(), node.failed, self._config.drain_timeout):
            raise StorageFailed(
                f"the disk has not answered for {self._config.drain_timeout:g} s: "
                "stopped; WAL that was not durable was not acknowledged"
            )

    async def _drain_archiver(self, node: Node) -> None:
        archiver = self._archiver
        if archiver is not None and not await _first_of(archiver.finish(), node.failed, self._config.drain_timeout):
            _log.warning("%d bytes of committed WAL are not in the archive", archiver.unarchived_bytes)


def listener_wishes(config: SafekeeperConfig) -> dict[str, Wish]:
    """Return the number of connections that each listener requests, if enough file descriptors are free."""
    wishes = {PROPOSERS: Wish(Budget(config.connections_max)), HTTP: Wish(HTTP_BUDGET)}
    if config.pg_listen is not None:
        # A reader has one retained segment open, and one that was fetched from the archive.
        wishes[REPLICATION] = Wish(Budget(config.pg_connections_max), files_per_proven=2)
    return wishes


async def _first_of(wanted: Coroutine[Any, Any, object], failed: asyncio.Future[None], timeout_s: float | None) -> bool:
    """Wait for `wanted`; return whether it finished within the timeout.

    Raises:
        The exception of `failed`, if it is set first.
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
