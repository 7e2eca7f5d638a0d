"""What the pulls of one safekeeper must do, stated once more: as one sequence, which waits for one thing at a time.

Theory of operation. `_run` is a pull from its beginning to its end. Where it waits it yields `Wait`; each event of the
world lets it go on if that is what it waits for, or if its time is over. Whatever it leads to must be the next thing
that the safekeeper has done: a connection, a request, WAL that is passed to the node, a report that no source is left.
"""

from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

from safekeeper.acceptor import pull_sources
from safekeeper.base.lsn import Lsn, format_lsn, segment_start
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    FolderStates,
    PeerRead,
    ProposerGreeting,
    PullSource,
    PullWal,
    ReadResponse,
    Refusal,
)
from safekeeper.node import wal_pull
from safekeeper.peers.codec import PROBLEM_BYTES_MAX
from tests.simulation.synthetic_wal import SEGMENT_SIZE
from tests.simulation.violation import Violation

SYSTEM_ID = 77


class Wait(NamedTuple):
    """What a pull waits for, and how long; None for as long as it takes."""

    what: str
    until_s: float | None = None


class Problem(Exception):
    """A source cannot be read."""


class Log(NamedTuple):
    """The positions of the safekeeper, and the pull that it is asked for."""

    write_lsn: Lsn
    flush_lsn: Lsn
    pull: PullWal | None


class PullReference:
    """The pulls of one safekeeper.

    Args:
        seen: what the safekeeper has done, and nobody has looked at.
        log: the safekeeper's.
        obstacle: why none can connect to another one.

    Attributes:
        waits: what the present pull waits for, None if it waits for nothing, or there is none.
        source: the source that is read.
        is_open: whether the connection to it is open.
        inbox: answers that were not handled.
        pulled_bytes: by source, since the start; `of_this` of the present pull.
    """

    def __init__(self, seen: deque[tuple[Any, ...]], log: Log, obstacle: str) -> None:
        self.waits: Wait | None = None
        self.source: PullSource | None = None
        self.is_open = False
        self.inbox: deque[Any] = deque()
        self.pulled_bytes: dict[int, int] = {}
        self.of_this: dict[int, int] = {}
        self.began_at = 0.0
        self.now = 0.0
        self.log = log
        self._seen = seen
        self._obstacle = obstacle
        self._pull: PullWal | None = None
        self._running: Generator[Wait, Any, None] | None = None
        self._sources: list[PullSource] = []
        self._speeds: dict[int, float] = {}
        self._reason = ""

    # ------------------------------------------------------------------ events

    def updated(self, now: float, log: Log) -> None:
        """The node has new positions, or another pull."""
        self.now, self.log = now, log
        if log.pull is self._pull:
            if self.waits == Wait("flush"):
                self._go_on(None)
            return
        self.ended()
        if log.pull is not None:
            self._pull, self.began_at = log.pull, now
            self._running = self._run(log.pull)
            self._go_on(None)

    def ended(self) -> None:
        """There is no pull any more."""
        self._pull = self._running = self.waits = self.source = None
        self.is_open = False
        self.of_this = {}
        self.inbox.clear()

    def connected(self, now: float, problem: str) -> None:
        """The attempt to connect has ended, with a problem or without."""
        self.now = now
        if self.waits is not None and self.waits.what == "connect":
            self._go_on(problem)

    def answered(self, now: float, message: Any) -> None:
        """The source has sent something."""
        self.now = now
        if not self.is_open or isinstance(message, FolderStates):
            return
        if len(self.inbox) == wal_pull.BLOCKS_IN_FLIGHT:
            self.lost(now, "the safekeeper sends more messages than were requested")
            return
        self.inbox.append(message)
        self._look()

    def lost(self, now: float, reason: str = "the safekeeper closed the connection") -> None:
        """The connection has ended."""
        self.now = now
        if self.is_open:
            self.is_open, self._reason = False, reason
            self.inbox.append(None)
            self._look()

    def written(self, now: float, log: Log) -> None:
        """The node has handled what was passed to it."""
        self.now, self.log = now, log
        if self.waits == Wait("write"):
            self._go_on(None)

    def expired(self, now: float) -> None:
        """The time of what it waits for is over."""
        self.now = now
        assert self.waits is not None
        if self.waits.what == "rest":
            self._go_on(None)
        else:
            self._go_on(TimeoutError())

    def _look(self) -> None:
        if self.waits is not None and self.waits.what == "answer":
            self._go_on(None)

    def _go_on(self, result: Any) -> None:
        assert self._running is not None
        try:
            if isinstance(result, Exception):
                self.waits = self._running.throw(result)
            else:
                self.waits = self._running.send(result)
        except StopIteration:
            self.waits = None

    # ------------------------------------------------------------------ what must be done

    def take(self, *what: Any) -> None:
        """Take what the safekeeper has done next, which must be this."""
        done = self._seen.popleft() if self._seen else None
        if done != what:
            raise Violation("PullsAsReference", f"a pull does {done}, not {what}")

    def _run(self, pull: PullWal) -> Generator[Wait, Any, None]:
        self._sources, self._speeds = list(pull.sources), {}
        problems = [self._obstacle] if self._obstacle else []
        while self._sources and not self._obstacle:
            # The first that was not slow, else the fastest.
            source = max(self._sources, key=lambda each: self._speeds.get(each.safekeeper_id, float("inf")))
            try:
                yield from self._read_from(source, pull)
            except (Problem, TimeoutError) as error:
                problems.append(f"safekeeper {source.safekeeper_id} at {source.address}: {error or ''}")
                if isinstance(error, TimeoutError):
                    problems[-1] += "timeout"
                self._sources.remove(source)
            self.source, self.is_open = None, False
            self.inbox.clear()
        self.take("failed", pull, "; ".join(problems)[:PROBLEM_BYTES_MAX])

    def _read_from(self, source: PullSource, pull: PullWal) -> Generator[Wait, Any, None]:
        host, _, port = source.address.rpartition(":")
        if not host or not port.isdigit():
            raise Problem(f"{source.address!r} is not an address: write HOST:PORT, for example 127.0.0.1:5454")
        self.source = source
        self.take("connect", host, int(port))
        problem = yield Wait("connect", self.now + wal_pull.CONNECT_TIMEOUT_S)
        if problem:
            raise Problem(problem)
        self.is_open, self._reason = True, "the safekeeper closed the connection"
        self.take(
            "send", ProposerGreeting(PROTOCOL_VERSION, "safekeeper-1", source.safekeeper_id, SYSTEM_ID, SEGMENT_SIZE)
        )
        yield from self._next(AcceptorGreeting)
        yield from self._blocks(source, pull)

    def _blocks(self, source: PullSource, pull: PullWal) -> Generator[Wait, Any, None]:
        next_lsn, number = self.log.write_lsn, 0
        requests: deque[PeerRead] = deque()
        allowed_at, received_bytes, waited_s = self.now, 0, 0.0
        while next_lsn < pull.end_lsn or requests:
            while len(requests) < wal_pull.BLOCKS_IN_FLIGHT and next_lsn < pull.end_lsn:
                end_of_segment = segment_start(next_lsn, SEGMENT_SIZE) + SEGMENT_SIZE
                end_lsn = min(next_lsn + wal_pull.BLOCK_BYTES, end_of_segment, pull.end_lsn)
                number += 1
                requests.append(PeerRead(pull.leader_id, number, next_lsn, end_lsn))
                if not self.is_open:
                    raise Problem(self._reason)
                self.take("send", requests[-1])
                next_lsn = end_lsn
            asked_at = self.now
            answer = yield from self._next(ReadResponse)
            answered_at = self.now
            waited_s += answered_at - asked_at
            request, size = requests.popleft(), len(answer.payload)
            if (answer.request_id, answer.begin_lsn) != (request.request_id, request.begin_lsn) or (
                size != request.end_lsn - request.begin_lsn
            ):
                raise Problem(
                    f"a read at {format_lsn(request.begin_lsn)} was answered with {size} bytes "
                    f"at {format_lsn(answer.begin_lsn)}"
                )
            for counts in (self.pulled_bytes, self.of_this):
                counts[source.safekeeper_id] = counts.get(source.safekeeper_id, 0) + size
            self.take("pulled", pull.leader_id, answer.begin_lsn, answer.payload)
            yield Wait("write")
            received_bytes += size
            if self._is_slow(source, pull, received_bytes, waited_s):
                return
            if pull.bytes_per_s:
                allowed_at = max(answered_at, allowed_at) + size / pull.bytes_per_s
                if allowed_at - self.now > wal_pull.PAUSE_MIN_S:
                    yield Wait("rest", self.now + (allowed_at - self.now))
            while self.log.write_lsn - self.log.flush_lsn > wal_pull.UNFLUSHED_BYTES_MAX:
                yield Wait("flush")
        raise Problem(f"its WAL does not continue this log at {format_lsn(self.log.write_lsn)}")

    def _is_slow(self, source: PullSource, pull: PullWal, received_bytes: int, waited_s: float) -> bool:
        """Return whether another source is likely to be faster."""
        least = pull_sources.SLOW_BYTES_PER_S
        if pull.bytes_per_s:
            least = min(least, pull.bytes_per_s // 2)
        if waited_s < pull_sources.SLOW_AFTER_S or received_bytes >= least * waited_s:
            return False
        speed = self._speeds[source.safekeeper_id] = received_bytes / waited_s
        others = [self._speeds.get(each.safekeeper_id, float("inf")) for each in self._sources]
        return any(other > pull_sources.FASTER_BY * speed for other in others)

    def _next(self, kind: type) -> Generator[Wait, Any, Any]:
        if not self.inbox:
            yield Wait("answer", self.now + wal_pull.ANSWER_TIMEOUT_S)
        message = self.inbox.popleft()
        if message is None:
            raise Problem(self._reason)
        if isinstance(message, Refusal):
            raise Problem(f"it refuses ({message.code}): {message.reason}")
        if not isinstance(message, kind):
            raise Problem(f"it answers with {type(message).__name__} in place of {kind.__name__}")
        return message
