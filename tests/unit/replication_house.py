"""A safekeeper's node with its listeners for proposers and for replication clients, on a loop in a thread of its own.

So a test is plain blocking code: a scripted proposer on one side, replication clients on the other, and `call` for a
look inside.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from safekeeper.archive.access import ArchiveAccess
from safekeeper.archiving.archiver import Archiver
from safekeeper.archiving.read_through import ReadThrough
from safekeeper.base.settings import Address
from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.messages import (
    AppendResponse,
    ArchiveAssignment,
    ArchiveReport,
    FolderStates,
    Standby,
    StandbyFeedback,
)
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from safekeeper.net.admission import Budget
from safekeeper.node.node import Node
from safekeeper.node.proposer_listener import ProposerListener
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.serving.readers import ReaderHub
from safekeeper.serving.replication_listener import ReplicationListener
from safekeeper.serving.slots import Slots
from safekeeper.storage.data_folder import DataFolder
from tests.unit.faulty_filesystem import FaultyFileSystem
from tests.unit.replication_client import DEADLINE_S, ReplicationClient
from tests.unit.scripted_proposer import BASE_LSN, ScriptedProposer

_Result = TypeVar("_Result")


class Leader(ScriptedProposer):
    """A proposer of a cluster of one, which commits what it is told to commit and knows timelines.

    Attributes:
        feedback, archive_reports: what it was told about the standbys and the archive, while it waited for something
            else.
        archive_id: of the archive that was reported last.
    """

    commit_lsn = 0

    def __init__(self, port: int, *, run: str) -> None:
        super().__init__(port, run=run)
        self.feedback: list[tuple[Standby, ...]] = []
        self.archive_reports: list[ArchiveReport] = []
        self.archive_id = ""

    def receive(self, kind: type[_Result]) -> _Result:
        while True:
            message = super().receive(object)
            if isinstance(message, kind):
                return message
            assert isinstance(message, StandbyFeedback | ArchiveReport | FolderStates), message
            if isinstance(message, StandbyFeedback):
                self.feedback.append(message.standbys)
            else:
                self.archive_reports.append(message)

    def take_over(
        self,
        term: int,
        history: TermHistory,
        *,
        histories: tuple[TliHistory, ...] = (),
        commit_lsn: int = 0,
        base_lsn: int = BASE_LSN,
    ) -> AppendResponse:
        """Win `term` and have `history` adopted."""
        if self.greet().membership is None:
            self.bootstrap()
            self.greet()
        self.be_voted_for(term)
        return self.have_adopted(history, histories=histories, commit_lsn=commit_lsn, base_lsn=base_lsn)

    def write(self, payload: bytes) -> int:
        """Append and wait until it is on disk; return where it ends. Nothing is committed by it."""
        for begin in range(0, len(payload), 1 << 20):
            self.append(payload[begin : begin + (1 << 20)], commit_lsn=self.commit_lsn)
        self.wait_flushed(self.write_lsn)
        return self.write_lsn

    def commit(self, lsn: int | None = None) -> int:
        """Commit up to `lsn`, by default all that was written; return where that is."""
        self.commit_lsn = self.write_lsn if lsn is None else lsn
        self.wait_answered(self.append(b"", commit_lsn=self.commit_lsn))
        return self.commit_lsn

    def order_archive(self, archiver: int, archived_lsn: int = 0) -> None:
        """Say who archives, and how far the archive is; return when that was heard."""
        self.send(ArchiveAssignment(self.leader_id, archiver, archived_lsn, self.archive_id))
        self.commit(self.commit_lsn)

    def await_archive_report(self, matches: Callable[[ArchiveReport], bool]) -> ArchiveReport:
        """Wait for a report on the archive that `matches`; whatever comes before it is forgotten."""
        while True:
            report = self.archive_reports.pop(0) if self.archive_reports else super().receive(object)
            if isinstance(report, ArchiveReport):
                self.archive_id = report.archive_id or self.archive_id
                if matches(report):
                    return report


class ReplicationHouse:
    """Open at the beginning of the `with` block; everything is closed at its end.

    Attributes:
        fs: its disk.
        node, hub, slots, listener, archiver, read_through: its parts; use them in `call` only.
        pg_port: where replication clients connect.

    Args:
        archive: the URL of an archive: with it there are an archiver, which does not begin by itself, and a way for
            readers into the archive.
        protection: tls, users and networks of the replication listener.
    """

    node: Node
    hub: ReaderHub
    slots: Slots
    listener: ReplicationListener
    archiver: Archiver
    read_through: ReadThrough | None = None

    def __init__(
        self,
        directory: Path,
        *,
        connections_max: int = 200,
        greeting_timeout_s: float = 60,
        timeout_s: float = 60,
        slots_max: int = 8,
        archive: str = "",
        partial_interval_s: float = 60,
        compress: bool = False,
        **protection: Any,
    ) -> None:
        self.fs = FaultyFileSystem()
        self._directory = directory / "sk"
        self._protection = protection
        self._archive = (archive, partial_interval_s, compress)
        self._options = (connections_max, greeting_timeout_s, timeout_s, slots_max)
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._opened: list[ScriptedProposer | ReplicationClient] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for opened in self._opened:
            opened.__exit__(None, None, None)
        self.fs.release()
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _open(self) -> None:
        connections_max, greeting_timeout_s, timeout_s, slots_max = self._options
        folder = DataFolder.open(self.fs, self._directory, 1, "a" * 32)
        self.node = node = Node(folder, self._loop)
        self._proposers = ProposerListener(
            node,
            budget=Budget(8),
            greeting_timeout_s=DEADLINE_S,
            idle_timeout_s=DEADLINE_S,
            secret=LocalSecret(),
        )
        node.attach(self._proposers)
        self.slots = Slots.open(self.fs, self._directory, node.disk, slots_max)
        if self._archive[0]:
            self._open_archive(*self._archive)
        self.hub = ReaderHub(node, self._loop, self.read_through)
        node.attach_readers(self.hub)
        self.listener = ReplicationListener(
            node,
            self.hub,
            self.slots,
            budget=Budget(connections_max),
            greeting_timeout_s=greeting_timeout_s,
            timeout_s=timeout_s,
            **self._protection,
        )
        await self._proposers.open(Address("127.0.0.1", 0))
        await self.listener.open(Address("127.0.0.1", 0))
        self.pg_port = self.listener.address.port

    def _open_archive(self, url: str, partial_interval_s: float, compress: bool) -> None:
        access, node = ArchiveAccess(url, timeout_s=5), self.node
        self.read_through = ReadThrough(self.fs, self._directory, access, lambda: node.acceptor.control)
        self.archiver = Archiver(node, self.fs, access, compress=compress, partial_interval_s=partial_interval_s)
        node.attach_readers(self.archiver)

    async def _close(self) -> None:
        if self.read_through is not None:
            self.archiver.close()
        self._proposers.stop_accepting()
        self._proposers.close_all()
        self.listener.abort()
        await self.node.drain()
        self.node.stop()
        self.node.folder.close()

    def leader(self, run: str = "run1") -> Leader:
        leader = Leader(self._proposers.address.port, run=run)
        self._opened.append(leader)
        return leader

    def led(self) -> Leader:
        """Return the leader of term 1, on timeline 1 from BASE_LSN on."""
        leader = self.leader()
        leader.take_over(1, (HistoryEntry(1, BASE_LSN, 1),))
        return leader

    def client(self, name: str = "standby1", *, receive_buffer: int = 0) -> ReplicationClient:
        client = ReplicationClient(self.pg_port, name=name, receive_buffer=receive_buffer)
        self._opened.append(client)
        return client

    def stranger(self) -> ReplicationClient:
        """A connection on which nothing was said yet."""
        client = ReplicationClient(self.pg_port, startup=False)
        self._opened.append(client)
        return client

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return what `function` returns on the loop's thread."""

        async def run() -> _Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(DEADLINE_S)

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Return what `coroutine` returns on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds on the loop's thread."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.call(condition):
            assert time.monotonic() < deadline, "it does not come about"

    def watch_later(self, seconds: float, name: str = "standby1") -> None:
        """Have the connection of a client watched as if so much more time had passed since its last message."""

        def watch() -> None:
            (connection,) = (each for each in self.listener._connections.values() if each.name == name)
            connection.received_at -= seconds
            self.listener.watch()

        self.call(watch)

    def readable_lsn(self) -> int:
        return self.call(lambda: self.node.acceptor.readable_lsn)

    def _wait(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)  # type: ignore[arg-type]
