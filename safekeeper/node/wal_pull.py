"""Pulls committed WAL from other safekeepers, as the leader requests it, and appends it to this node's log.

The leader sends `PullWal` to a member that lacks much WAL (docs/design/protocol.md, 6.6). This safekeeper then connects
to the proposer listener of a source, with the same protection as a proxy, and reads with `PeerRead`. It requests blocks
of bounded size, two at a time, within the leader's rate, and not while much WAL waits for its own disk: so memory is
bounded (S14). The acceptor decides what is written (`Acceptor.pulled`), and answers the leader.

A source that fails is replaced by the next one, and so is a slow one (safekeeper/acceptor/pull_sources.py). If none is
left, the leader is told, and sends the WAL itself.
"""

import asyncio
import logging
from collections import deque
from typing import TypeVar

from safekeeper.acceptor.pull_sources import PullSources
from safekeeper.base.errors import ConfigurationError, RemoteProtocolError
from safekeeper.base.logs import ProblemLog, describe_bug, one_line
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn, segment_start
from safekeeper.base.settings import address as parse_address
from safekeeper.base.status_fields import PullStatus
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    FolderStates,
    PeerRead,
    ProposerGreeting,
    PullSource,
    PullWal,
    ReadResponse,
    Refusal,
)
from safekeeper.net.safekeeper_connection import Credentials, SafekeeperConnection
from safekeeper.node.node import Node
from safekeeper.peers.codec import encode
from safekeeper.peers.message_checks import PROBLEM_BYTES_MAX

BLOCK_BYTES = 512 << 10
BLOCKS_IN_FLIGHT = 2
CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 5.0
# While this much pulled WAL is not on disk, no more is requested.
UNFLUSHED_BYTES_MAX = 8 << 20
# Pauses for the rate are this long at least, because shorter ones cost more processor time than they are exact.
PAUSE_MIN_S = 0.02

_Message = TypeVar("_Message", AcceptorGreeting, ReadResponse)

_log = logging.getLogger(__name__)


class WalPuller:
    """The pulls of one node. Attach it to the node as one of its log readers.

    Args:
        node: the safekeeper.
        credentials: for the connections to other safekeepers.
        obstacle: why no other safekeeper can be connected to, empty if that is possible.

    Attributes:
        wakes_at_lsn: see LogReaders.
        pulled_bytes: the WAL that was pulled, by source.
        source: the source that is read from at present, None if there is none.
    """

    def __init__(self, node: Node, credentials: Credentials, obstacle: str = "") -> None:
        self.wakes_at_lsn: Lsn = LSN_MAX
        self.pulled_bytes: dict[int, int] = {}
        self.source: PullSource | None = None
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._credentials = credentials
        self._obstacle = obstacle
        self._is_closed = False
        self._pull: PullWal | None = None
        self._task: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._of_this_pull: dict[int, int] = {}  # Bytes, by source.
        self._has_moved = asyncio.Event()
        self._problems: dict[int, ProblemLog] = {}

    # For the node.

    def update(self) -> None:
        """See LogReaders."""
        pull = self._node.acceptor.pull if not self._is_closed else None
        if pull is self._pull:
            self._has_moved.set()
            return
        self._end()
        self._pull = pull
        if pull is not None:
            self.wakes_at_lsn = 0
            self._began_at = self._loop.time()
            _log.info(
                "pulling WAL [%s, %s) from %s%s",
                format_lsn(self._node.acceptor.write_lsn),
                format_lsn(pull.end_lsn),
                ", ".join(map(_name, pull.sources)),
                f" at {pull.bytes_per_s} bytes/s" if pull.bytes_per_s else "",
            )
            self._task = self._loop.create_task(self._run(pull))

    def close(self) -> None:
        """End a pull that is under way, and begin no other."""
        self._is_closed = True
        self._end()

    def describe(self) -> PullStatus | None:
        """Return the pull under way for /status, None if there is none."""
        if self._pull is None:
            return None
        return PullStatus(
            end_lsn=format_lsn(self._pull.end_lsn),
            source=self.source.safekeeper_id if self.source is not None else None,
            address=self.source.address if self.source is not None else None,
            bytes=sum(self._of_this_pull.values()),
            seconds=round(self._loop.time() - self._began_at, 1),
        )

    def _end(self) -> None:
        if self._pull is None:
            return
        if self._task is not None:
            self._task.cancel()
            self._task = None
        took_s = self._loop.time() - self._began_at
        parts = ", ".join(f"{size} from safekeeper {source}" for source, size in self._of_this_pull.items())
        _log.info(
            "pulled %d bytes of WAL in %.1f s%s; WAL ends at %s",
            sum(self._of_this_pull.values()),
            took_s,
            f" ({parts})" if parts else "",
            format_lsn(self._node.acceptor.write_lsn),
        )
        self._pull, self.source = None, None
        self._of_this_pull = {}
        self.wakes_at_lsn = LSN_MAX

    # One pull.

    async def _run(self, pull: PullWal) -> None:
        """Pull until the end, or until all sources have failed; `update` cancels this when the pull is over."""
        sources = PullSources(pull.sources, pull.bytes_per_s)
        problems: list[str] = []
        if self._obstacle:
            problems.append(self._obstacle)
        while not self._obstacle and (source := sources.next()) is not None:
            problem_log = self._problems.setdefault(source.safekeeper_id, ProblemLog(_log))
            try:
                await self._pull_from(source, pull, sources)
            except (OSError, RemoteProtocolError, ConfigurationError) as error:
                # TimeoutError is an OSError without a text.
                reason = one_line(str(error)) or "timeout"
                problems.append(f"{_name(source)}: {reason}")
                problem_log.note(
                    reason,
                    "could not pull WAL from safekeeper %d at %s: %s",
                    source.safekeeper_id,
                    source.address,
                    reason,
                )
                sources.failed(source)
            except Exception as error:
                problems.append(describe_bug(error))
                _log.error("could not pull WAL: %s", problems[-1])
                break
        problem = one_line("; ".join(problems)).encode()[:PROBLEM_BYTES_MAX].decode(errors="ignore")
        self._node.pull_failed(pull, problem)

    async def _pull_from(self, source: PullSource, pull: PullWal, sources: PullSources) -> None:
        """Read from one source until another one is to be used.

        Raises:
            OSError, RemoteProtocolError, ConfigurationError: it cannot be read.
        """
        try:
            address = parse_address(source.address)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        answers = Answers()
        connection = SafekeeperConnection(
            source.safekeeper_id,
            self._credentials,
            opened=_do_nothing,
            received=answers.received,
            lost=answers.lost,
        )
        self.source = source
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect(address, self._credentials.tls)
            control = self._node.acceptor.control
            greeting = ProposerGreeting(
                PROTOCOL_VERSION,
                f"safekeeper-{control.safekeeper_id}",
                source.safekeeper_id,
                control.system_id,
                control.segment_size,
            )
            connection.writelines(encode(greeting))
            await answers.next(AcceptorGreeting, connection)
            await self._read(source, pull, sources, connection, answers)
        finally:
            if self.source is source:  # Otherwise the next pull has begun.
                self.source = None
            connection.abort("the pull has ended")

    async def _read(
        self,
        source: PullSource,
        pull: PullWal,
        sources: PullSources,
        connection: SafekeeperConnection,
        answers: "Answers",
    ) -> None:
        node, loop = self._node, self._loop
        acceptor, segment_size = node.acceptor, node.folder.control.segment_size
        next_lsn, number = acceptor.write_lsn, 0
        requests: deque[PeerRead] = deque()
        allowed_at, received_bytes, waited_s = loop.time(), 0, 0.0
        while next_lsn < pull.end_lsn or requests:
            while len(requests) < BLOCKS_IN_FLIGHT and next_lsn < pull.end_lsn:
                # A read ends with its segment at the latest.
                end_lsn = min(
                    next_lsn + BLOCK_BYTES, segment_start(next_lsn, segment_size) + segment_size, pull.end_lsn
                )
                number += 1
                requests.append(PeerRead(pull.leader_id, number, next_lsn, end_lsn))
                if not connection.is_open:
                    raise RemoteProtocolError(connection.reason)
                connection.writelines(encode(requests[-1]))
                next_lsn = end_lsn
            asked_at = loop.time()
            answer = await answers.next(ReadResponse, connection)
            now = loop.time()
            waited_s += now - asked_at
            request = requests.popleft()
            size = len(answer.payload)
            if (answer.request_id, answer.begin_lsn, answer.begin_lsn + size) != (
                request.request_id,
                request.begin_lsn,
                request.end_lsn,
            ):
                raise RemoteProtocolError(
                    f"a read at {format_lsn(request.begin_lsn)} was answered with {size} bytes "
                    f"at {format_lsn(answer.begin_lsn)}"
                )
            for counts in (self.pulled_bytes, self._of_this_pull):
                counts[source.safekeeper_id] = counts.get(source.safekeeper_id, 0) + size
            await node.pulled(pull.leader_id, answer.begin_lsn, answer.payload)
            received_bytes += size
            problem_log = self._problems.get(source.safekeeper_id)
            if problem_log is not None:
                problem_log.over()
            if sources.is_to_be_left(source, received_bytes, waited_s):
                _log.info(
                    "safekeeper %d at %s is slow: %d bytes in %.1f s; pulling from another safekeeper",
                    source.safekeeper_id,
                    source.address,
                    received_bytes,
                    waited_s,
                )
                return
            if pull.bytes_per_s:
                allowed_at = max(now, allowed_at) + size / pull.bytes_per_s
                if allowed_at - loop.time() > PAUSE_MIN_S:
                    await asyncio.sleep(allowed_at - loop.time())
            while acceptor.write_lsn - acceptor.flush_lsn > UNFLUSHED_BYTES_MAX:
                self._has_moved.clear()
                await self._has_moved.wait()
        # If the acceptor has ended the pull, `update` has cancelled this task, which shows only when it waits.
        await asyncio.sleep(0)
        raise RemoteProtocolError(f"its WAL does not continue this log at {format_lsn(acceptor.write_lsn)}")


class Answers:
    """The messages of a source that were not handled yet; at most as many as there are requests."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[AcceptorMessage | None] = asyncio.Queue()

    def received(self, message: AcceptorMessage) -> None:
        """Keep a message.

        Raises:
            RemoteProtocolError: it answers no request.
        """
        if isinstance(message, FolderStates):
            return  # It is for proposers.
        if self._messages.qsize() >= BLOCKS_IN_FLIGHT:
            raise RemoteProtocolError("the safekeeper sends more messages than were requested")
        self._messages.put_nowait(message)

    def lost(self) -> None:
        """Record the end of the connection."""
        self._messages.put_nowait(None)

    async def next(self, kind: type[_Message], connection: SafekeeperConnection) -> _Message:
        """Return the next message.

        Raises:
            RemoteProtocolError: it is of another kind, or a refusal, or the connection is closed.
            TimeoutError: there was none in time.
        """
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            message = await self._messages.get()
        if isinstance(message, kind):
            return message
        if message is None:
            raise RemoteProtocolError(connection.reason)
        if isinstance(message, Refusal):
            raise RemoteProtocolError(f"it refuses ({message.code}): {message.reason}")
        raise RemoteProtocolError(f"it answers with {type(message).__name__} in place of {kind.__name__}")


def _name(source: PullSource) -> str:
    return f"safekeeper {source.safekeeper_id} at {source.address}"


def _do_nothing() -> None:
    """Handle a connection that is open: `connect` returns then."""
