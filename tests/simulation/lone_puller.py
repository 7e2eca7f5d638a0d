"""The pulls of one safekeeper beside their reference, driven by random events: sources that clusters seldom have.

Theory of operation. WalPuller and its connections are the product's; the node is a stand-in, which has positions, is
asked for pulls, and handles what is pulled some time later. Sources refuse, are silent, are slow, answer something
else, twice or too much, and end their connections; pulls are replaced and end at any moment. After each event the
reference (puller_reference.py) says what the safekeeper must have done, and nothing else.

The time is drawn, and one seed decides everything.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from safekeeper.base.lsn import LSN_MAX, format_lsn
from safekeeper.consensus.control_state import ControlState, LeaderId
from safekeeper.consensus.folder_state import FolderState
from safekeeper.consensus.messages import (
    AcceptorGreeting,
    FolderStates,
    PeerRead,
    PullSource,
    PullWal,
    ReadResponse,
    Refusal,
    RefusalCode,
)
from safekeeper.net.safekeeper_connection import Credentials
from safekeeper.node import wal_pull
from safekeeper.node.node import Node
from safekeeper.node.wal_pull import WalPuller
from safekeeper.peers.codec import PROPOSER_DIALECT, FrameDecoder, encode
from tests.simulation.bends import Bends
from tests.simulation.counts import Counts
from tests.simulation.lone_node_process import LoneLoop
from tests.simulation.puller_reference import SYSTEM_ID, Log, PullReference
from tests.simulation.synthetic_wal import SEGMENT_SIZE
from tests.simulation.trace import shown
from tests.simulation.violation import Violation
from tests.simulation.world import SimulationFailed, small_frames

STEPS = 36
FIRST_LSN = 4 * SEGMENT_SIZE
LEADER = LeaderId(3, "run-a")
OBSTACLE = "no shared secret is configured"
ADDRESSES = ("h2:1", "h3:2", "h4:3", "h5:4", "nowhere")
TRACE_LINES = 40


def drive(seed: int, steps: int = STEPS) -> Counts:
    """Let random events happen to the pulls of a safekeeper; return how many were compared.

    Raises:
        SimulationFailed: they do something else than the reference.
    """
    lone = LonePuller(seed)
    with small_frames(10_000, Bends()):
        wal_pull.describe_bug = lone.is_wrong  # type: ignore[attr-defined, assignment]
        try:
            lone.run(steps)
        except Exception as error:
            raise SimulationFailed(error, lone.trace()) from error
    return lone.counts


class PullLoop(LoneLoop):
    """The loop of the pulls."""

    async def create_connection(  # type: ignore[override]
        self, new_protocol: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Begin to connect to a source."""
        lone: LonePuller = cast(Any, self.process)
        return await lone.connects(new_protocol, host, port)

    def create_task(self, coro: Any, **_: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()


class SourceSocket(asyncio.Transport):
    """A connection to a source."""

    def __init__(self, lone: "LonePuller", protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.is_closed = False
        self._lone = lone
        self._decoder: FrameDecoder[Any] = FrameDecoder(PROPOSER_DIALECT)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.2", 5000) if name == "peername" else None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for message in self._decoder.feed(bytes(data)):
            self._lone.seen.append(("send", message))
            self._lone.requests.append(message)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._lone.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class LonePuller:
    """The pulls, the node that they are for, and their sources.

    Attributes:
        counts: how many steps were compared.
        seen: what the pulls have done, and nobody has looked at.
        requests: what the present source was asked for, and has not answered.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed} lone puller")
        self.counts = Counts()
        self.seen: deque[tuple[Any, ...]] = deque()
        self.requests: deque[Any] = deque()
        self.loop = PullLoop(cast(Any, self), 100.0)  # type: ignore[abstract]
        self._trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self._sockets: list[SourceSocket] = []
        self._dialling: tuple[Any, asyncio.Future[Any]] | None = None
        self._writing: tuple[int, bytes, asyncio.Future[None]] | None = None
        control = ControlState(safekeeper_id=1, incarnation="folder-0", system_id=SYSTEM_ID, segment_size=SEGMENT_SIZE)
        self._acceptor: Any = SimpleNamespace(
            pull=None, write_lsn=FIRST_LSN + 100, flush_lsn=FIRST_LSN + 100, control=control
        )
        self._pulls = 0
        self._is_closed = False
        self._pace = self.rng.choice((0.6, 0.9, 0.97))  # How often something happens that leads on.
        obstacle = OBSTACLE if self._chance(0.05) else ""
        node = SimpleNamespace(
            acceptor=self._acceptor,
            folder=SimpleNamespace(control=control),
            pulled=self._pulled,
            pull_failed=self._failed,
        )
        with self.loop.running():
            self._puller = WalPuller(cast(Node, node), Credentials(), obstacle)
        self._reference = PullReference(self.seen, self._log(), obstacle)

    def trace(self) -> list[str]:
        """Return what happened last, a line each."""
        return [" ".join(map(shown, happened)) for happened in self._trace]

    def is_wrong(self, error: Exception) -> str:
        """Let the run fail with an error that the product only logs."""
        self.loop.failure = self.loop.failure or error
        return str(error)

    # ------------------------------------------------------------------ what the pulls do

    async def connects(self, new_protocol: Callable[[], Any], host: str, port: int) -> Any:
        """A source is dialled."""
        self.seen.append(("connect", host, port))
        self.requests.clear()
        self._dialling = new_protocol, self.loop.create_future()
        return await self._dialling[1]

    def _pulled(self, leader_id: LeaderId, begin_lsn: int, payload: Any) -> "asyncio.Future[None]":
        self.seen.append(("pulled", leader_id, begin_lsn, bytes(payload)))
        self._writing = begin_lsn, bytes(payload), self.loop.create_future()
        return self._writing[2]

    def _failed(self, pull: PullWal, problem: str) -> None:
        self.seen.append(("failed", pull, problem))

    # ------------------------------------------------------------------ steps

    def run(self, steps: int) -> None:
        """Let so many events happen."""
        others: dict[Callable[[], None], int] = {
            self._answer: 20,
            self._answer_wrongly: 6,
            self._lose: 3,
            self._pass_time: 12,
            self._flush: 6,
            self._begin: 4,
            self._end: 2,
            self._dial: 6,
            self._write: 10,
        }
        for _ in range(steps):
            if self._chance(self._pace):
                self._lead_on()
            else:
                self.rng.choices(list(others), list(others.values()))[0]()
            self.counts.count("steps of a lone puller")
        self._close()
        self._begin()

    def _lead_on(self) -> None:
        waits = self._reference.waits
        if waits is None:
            self._begin()
        elif waits.what == "connect":
            self._dial()
        elif waits.what == "answer":
            self._pass_time(self.rng.choice((0.0, 0.001, 0.02, 0.1)))
            self._answer()
        elif waits.what == "write":
            self._write()
        elif waits.what == "rest":
            self._pass_time()
        else:
            self._flush()

    def _log(self) -> Log:
        acceptor = self._acceptor
        return Log(acceptor.write_lsn, acceptor.flush_lsn, acceptor.pull)

    def _happened(self) -> None:
        """Compare what was done with what must be."""
        reference, puller = self._reference, self._puller
        if self.seen:
            raise Violation("PullsAsReference", f"a pull does {list(self.seen)}, which is not due")
        if self._dialling is not None and self._dialling[1].done():
            self._dialling = None
        waits = reference.waits
        wanted: Any = [waits.until_s] if waits is not None and waits.until_s is not None else []
        pull, source = self._acceptor.pull if not self._is_closed else None, reference.source
        open_sockets = sum(not socket.is_closed for socket in self._sockets)
        found: Any = self.loop.pending(), puller.source, puller.pulled_bytes, open_sockets, puller.wakes_at_lsn
        wanted = (
            wanted,
            source,
            reference.pulled_bytes,
            int(reference.is_open),
            LSN_MAX if pull is None else 0,
        )
        if found != wanted:
            raise Violation("PullsAsReference", f"shows {found}, not {wanted}")
        shows = None
        if pull is not None:
            shows = {
                "end_lsn": format_lsn(pull.end_lsn),
                "source": source.safekeeper_id if source is not None else None,
                "address": source.address if source is not None else None,
                "bytes": sum(reference.of_this.values()),
                "seconds": round(self.loop.now - reference.began_at, 1),
            }
        if puller.describe() != shows:
            raise Violation("PullsAsReference", f"describes {puller.describe()}, not {shows}")

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _note(self, *what: Any) -> None:
        self._trace.append((f"{self.loop.now:.4f}", *what))

    # ------------------------------------------------------------------ the node

    def _update(self) -> None:
        with self.loop.running():
            self._puller.update()
        if not self._is_closed:
            self._reference.updated(self.loop.now, self._log())
        self._happened()

    def _begin(self) -> None:
        """The leader asks for a pull."""
        rng, acceptor = self.rng, self._acceptor
        self._pulls += 1
        addresses = rng.sample(ADDRESSES, rng.choice((0, 1, 2, 2, 3)))
        sources = tuple(PullSource(ADDRESSES.index(address) + 2, address) for address in addresses)
        end_lsn = acceptor.write_lsn + rng.choice((1, 3000, 5000, 12_000, 40_000, 60_000))
        rate = rng.choice((0, 0, 20_000, 400_000, 10_000_000))
        acceptor.pull = PullWal(LEADER, self._pulls, end_lsn, rate, sources)
        self._note("pull", acceptor.pull)
        self._update()

    def _end(self) -> None:
        """The acceptor has ended the pull."""
        self._note("no pull")
        self._acceptor.pull = None
        self._update()

    def _close(self) -> None:
        self._note("closed")
        with self.loop.running():
            self._puller.close()
        self._is_closed = True
        self._reference.ended()
        self._happened()

    def _write(self) -> None:
        """The node handles what was pulled."""
        if self._writing is None:
            return
        acceptor, (begin_lsn, payload, handled) = self._acceptor, self._writing
        self._writing = None
        if begin_lsn == acceptor.write_lsn and self._chance(0.97):
            acceptor.write_lsn += len(payload)
        if self._chance(0.3):
            acceptor.flush_lsn = acceptor.write_lsn
        if acceptor.pull is not None and acceptor.write_lsn >= acceptor.pull.end_lsn:
            acceptor.pull = None
        self._note("written", begin_lsn, len(payload))
        with self.loop.running():
            if not handled.done():
                handled.set_result(None)
            self._puller.update()
        self._reference.updated(self.loop.now, self._log())
        self._reference.written(self.loop.now, self._log())
        self._happened()

    def _flush(self) -> None:
        acceptor = self._acceptor
        acceptor.flush_lsn = self.rng.choice((acceptor.write_lsn, acceptor.flush_lsn, acceptor.write_lsn - 9000))
        acceptor.flush_lsn = max(acceptor.flush_lsn, FIRST_LSN)
        self._note("flushed to", acceptor.flush_lsn)
        self._update()

    def _pass_time(self, for_s: float | None = None) -> None:
        drawn_s = self.rng.choice((0.01, 0.1, 0.3, 0.6)) if for_s is None else for_s
        until_s = self.loop.now + drawn_s
        self._note("until", until_s)
        pending = self.loop.pending()
        if pending and (pending[0] <= until_s or (for_s is None and self._chance(0.3))):
            with self.loop.running():
                self.loop.expire()
            self._reference.expired(self.loop.now)
        else:
            self.loop.now = until_s
        self._happened()

    # ------------------------------------------------------------------ the sources

    def _dial(self) -> None:
        """An attempt to connect succeeds or fails."""
        if self._dialling is None or self._dialling[1].done():
            return
        (new_protocol, dialled), problem = self._dialling, self.rng.choice(("", "", "", "", "refused"))
        self._dialling = None
        self._note("connected", problem)
        with self.loop.running():
            if problem:
                dialled.set_exception(OSError(problem))
            else:
                socket = SourceSocket(self, new_protocol())
                self._sockets = [each for each in self._sockets if not each.is_closed] + [socket]
                dialled.set_result((socket, socket.protocol))
                socket.protocol.connection_made(socket)
        self._reference.connected(self.loop.now, problem)
        self._happened()

    def _open_socket(self) -> SourceSocket | None:
        return next((each for each in self._sockets if not each.is_closed), None)

    def _deliver(self, *messages: Any) -> None:
        socket = self._open_socket()
        if socket is None:
            return
        self._note("answers", *messages)
        data = b"".join(bytes(buffer) for message in messages for buffer in encode(message))
        with self.loop.running():
            room = socket.protocol.get_buffer(-1)
            room[: len(data)] = data
            socket.protocol.buffer_updated(len(data))
        for message in messages:
            self._reference.answered(self.loop.now, message)
        self._happened()

    def _answers(self) -> list[Any]:
        """Return the answers to some of the requests, in their order."""
        found: list[Any] = []
        for _ in range(self.rng.choice((1, 1, 2))):
            if self.requests:
                request = self.requests.popleft()
                found.append(self._answer_to(request))
        return found

    def _answer_to(self, request: Any) -> Any:
        if isinstance(request, PeerRead):
            return ReadResponse(
                request.request_id, request.begin_lsn, self.rng.randbytes(request.end_lsn - request.begin_lsn)
            )
        return AcceptorGreeting(
            protocol_version=5, safekeeper_id=2, incarnation="f" * 32, cluster_id="c", system_id=SYSTEM_ID,
            segment_size=SEGMENT_SIZE, server_version=150000, membership=None, promised=LEADER, last_term=3,
            wal_begin_lsn=FIRST_LSN, flush_lsn=FIRST_LSN, commit_lsn=FIRST_LSN, truncate_lsn=0, replaced=None,
        )  # fmt: skip

    def _answer(self) -> None:
        self._deliver(*self._answers())

    def _answer_wrongly(self) -> None:
        """A source refuses, or answers something else."""
        rng = self.rng
        known = ReadResponse(1, FIRST_LSN, b"x" * 100)
        wrong: list[list[Any]] = [
            [Refusal(RefusalCode.RANGE, "no such WAL", LEADER)],
            [FolderStates("c", (FolderState(2, "f" * 32, 1, 1, 1),))],
            [known],
            [known, known, known],
            [self._answer_to(None)],
        ]
        answers = self._answers()
        if answers and isinstance(answers[0], ReadResponse):
            right = answers[0]
            for fields in (
                {"request_id": right.request_id + 1},
                {"begin_lsn": right.begin_lsn + 1},
                {"payload": bytes(right.payload)[1:]},
                {"payload": bytes(right.payload) + b"x"},
            ):
                wrong.append([msgspec.structs.replace(right, **fields)])
        self._deliver(*rng.choice(wrong))

    def _lose(self) -> None:
        socket = self._open_socket()
        if socket is None:
            return
        self._note("the connection ends")
        with self.loop.running():
            socket.close()
        self._reference.lost(self.loop.now)
        self._happened()
