"""One node and its listener beside their reference, driven by random events: states that clusters seldom reach.

Theory of operation. Node, ProposerListener, PeerReads and DataFolder are the product's; there is no other process.
Messages are drawn from the state of the acceptor (lone_messages.py) and sent on connections that arrive in pieces of
any size, that stop reading, break, send what is no frame, prove a secret or a wrong one, or only fill the listener.
Threads do their jobs, and the loop learns of it, in any order that their queues permit (lone_node_process.py); flushes
are quick or slow; the disk lacks space or descriptors, or fails; the process is killed, or drains. After each step the
reference (listener_reference.py, node_reference.py) says what the node must have done, and nothing else.

The time is drawn, and one seed decides everything but the random numbers of the authentication.
"""

from collections.abc import Callable
from typing import Any

from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.base.errors import LocalProtocolError
from safekeeper.consensus.messages import (
    AppendRequest,
    PeerRead,
    PreVoteRequest,
    ProposerGreeting,
    PullSource,
    PullWal,
)
from safekeeper.peers.codec import HEADER_BYTES, encode, encode_authentication
from safekeeper.peers.peer_auth import NONCE_BYTES, Challenge, Hello, Proof, ProposerSide
from tests.simulation.bends import Bends
from tests.simulation.counts import Counts
from tests.simulation.listener_reference import Authentication, Broken
from tests.simulation.lone_messages import SAFEKEEPER_ID
from tests.simulation.lone_node_life import SECRET, UNLIMITED_BYTES, NodeLife
from tests.simulation.lone_node_process import replaced_for
from tests.simulation.lone_node_socket import LoneSocket
from tests.simulation.synthetic_wal import SEGMENT_SIZE
from tests.simulation.world import SimulationFailed, history_entries_max, small_frames

STEPS = 45
HOSTS = ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3")
NO_FRAME = b"\x00" * HEADER_BYTES


def drive(seed: int, steps: int = STEPS) -> Counts:
    """Let random events happen to a node; return how many were compared.

    Raises:
        SimulationFailed: it does something else than the reference.
    """
    lone = LoneNode(seed)
    with small_frames(history_entries_max(seed), Bends()), replaced_for(lambda: lone.process, lone.space_log):
        try:
            lone.run(steps)
        except Exception as error:
            raise SimulationFailed(error, lone.trace()) from error
    return lone.counts


class LoneNode(NodeLife):
    """A node, its peers, and the events that happen to it."""

    # ------------------------------------------------------------------ steps

    def run(self, steps: int) -> None:
        """Let so many events happen."""
        kinds: dict[Callable[[], None], int] = {
            self._batch: 40,
            self._append: 6,
            self._deliver: 25,
            self._work: 60,
            self._pass_time: 14,
            self._elected: 10,
            self._vote: 4,
            self._pre_vote: 2,
            self._greet: 4,
            self._reader: 8,
            self._stranger: 4,
            self._disconnect: 4,
            self._pause: 5,
            self._write_again: 6,
            self._bootstrap: 3,
            self._reconfigure: 2,
            self._folders: 2,
            self._pull: 4,
            self._pulled: 6,
            self._read: 3,
            self._archive: 3,
            self._trim: 4,
            self._readers: 4,
            self._checkpoint: 3,
            self._exchange: 2,
            self._measure: 4,
            self._break_disk: 16,
            self._stop: 2,
            self._kill: 1,
            self._break_acceptor: 3,
            self._request_pull: 4,
        }
        for kind in (*kinds,):
            kinds[kind] *= self.rng.choice((1, 1, 1, 2, 3)) if kinds[kind] < 10 else 1
        self._start()
        for step in self.rng.choices(list(kinds), list(kinds.values()), k=steps):
            if self._reference.has_failed:
                self._silent_steps += 1
                if self._silent_steps > 3:
                    self._kill()
            if not self._greeted:
                self._greet(well=True)
            if not self._greeted:
                continue
            if self._chance(self._pace):
                self._lead_on()
            else:
                step()
                if self._chance(0.3):
                    self._work()

        if not self._reference.has_failed:
            self._stop(is_last=True)

    def _lead_on(self) -> None:
        """What leads to a term, and on in it."""
        socket = self._leader_socket()
        is_busy = any(each.has_jobs or each.has_results for each in self.process.workers.values())
        acceptor = self._acceptor
        if self._chance(0.12 if is_busy else 0.03):
            self._pass_time()
        elif is_busy and self._chance(0.8 if socket is None or not self._reference.ready else 0.4):
            self._work()
        elif socket is None:
            self._elected()
        elif self._reference.peers[socket.number].is_paused:
            self._write_again()
        elif socket.has_bytes:
            self._deliver()
        elif self._chance(0.06):
            self._reader()
        elif acceptor.write_lsn - acceptor.control.wal_begin_lsn > 2 * SEGMENT_SIZE and self._chance(0.3):
            self._happens("trim", TrimRequest(None, 0, None, False))
        elif acceptor.pull is not None and acceptor.leader is not None and self._chance(0.6):
            self._happens("pulled", acceptor.leader, acceptor.write_lsn, self._wal(self.rng.choice((100, 4000))))
        else:
            self._batch()

    # ------------------------------------------------------------------ connections

    def _connect(self) -> int:
        side = None
        if self._secret is not None:
            wrong = self._chance(0.1)
            secret = b"another secret" if wrong else self._secret.value
            side = ProposerSide(secret, SAFEKEEPER_ID, self.rng.randbytes(NONCE_BYTES), b"")
        socket = LoneSocket(self.process, self.rng.choice(HOSTS), side)
        with self.loop.running():
            socket.accepted(self._listener.new_protocol())
        self._sockets[socket.number] = socket
        self._reference.connected(socket.number, socket.host, authenticates=side is not None)
        self._note("connection", socket.number, socket.host)
        self._happened()
        if side is not None:
            self._authenticate(socket, side)
        return socket.number

    def _greet(self, well: bool = False) -> None:
        super()._greet(well)
        self._greeted = [number for number in self._greeted if number in self._reference.peers]

    def _authenticate(self, socket: LoneSocket, side: ProposerSide) -> None:
        is_right = side._key == ProposerSide(SECRET.value, 1, b"n" * NONCE_BYTES, b"")._key
        first: Any = side.begin()
        if self._chance(0.05):
            socket.send(Authentication(False, False), encode_authentication(Proof(b"p" * 32)))
            self._arrives(socket)
            return
        socket.send(Authentication(True, True), encode_authentication(first))
        if self._chance(0.05):
            socket.send(Authentication(True, True), encode_authentication(Hello(b"n" * NONCE_BYTES)))
        self._arrives(socket)
        if socket.is_closed or not socket.handshake or socket.has_bytes:
            return
        challenge = socket.handshake.popleft()
        assert isinstance(challenge, Challenge)
        proof = side.receive(challenge)
        assert proof is not None
        socket.send(Authentication(False, is_right), encode_authentication(proof))
        self._arrives(socket)
        if not socket.is_closed and socket.handshake and is_right:
            side.receive(socket.handshake.popleft())
            socket.begin_messages()

    def _send(self, message: Any, connection: int | None = None) -> None:
        number = connection if connection is not None else self._connection()
        if self._chance(0.01):
            number = self.rng.choice(list(self._sockets))
        socket = self._sockets.get(number)
        if socket is None or socket.is_closed or socket.side is not None:
            return
        try:
            frame = b"".join(bytes(buffer) for buffer in encode(message))
        except LocalProtocolError:
            return  # No peer can send it.
        self._note(number, "sends", message)
        peer = self._reference.peers[number]
        if not peer.is_proven and len(frame) > 2000:
            return
        is_valid = not isinstance(message, AppendRequest) or message.begin_lsn > 0
        socket.send(message if is_valid else Broken(), frame)
        if self._chance(0.01):
            socket.send(Broken(), NO_FRAME)
        if self._chance(0.85):
            self._arrives(socket)

    def _arrives(self, socket: LoneSocket) -> None:
        """Deliver what a peer has sent, in one or several pieces."""
        splits = self._chance(0.25)
        while socket.has_bytes and socket.is_read and not socket.is_closed:
            size = self.rng.choice((1, HEADER_BYTES, 100, 3000)) if splits else 1 << 20
            if splits and self._chance(0.1):
                return
            with self.loop.running():
                messages = socket.deliver(size)
            self._reference.received(socket.number, messages)
            self._happened()

    def _deliver(self) -> None:
        able = [each for each in self._sockets.values() if each.has_bytes and each.is_read and not each.is_closed]
        if able:
            self._arrives(self.rng.choice(able))

    def _stranger(self) -> None:
        """Somebody connects who says nothing, or something else than a greeting."""
        for _ in range(self.rng.choice((0, 0, 0, 3, 4))):
            self._connect()
        number = self._connect()
        if self._chance(0.6):
            message = self.rng.choice(
                (
                    AppendRequest(self._leader_id(), 1, 5, 0, 0, 1, True, b""),
                    ProposerGreeting(5, "run-s", SAFEKEEPER_ID + 1, None, None),
                    ProposerGreeting(9, "run-s", SAFEKEEPER_ID, None, None),
                )
            )
            self._send(message, number)

    def _disconnect(self) -> None:
        number = self.rng.choice(list(self._sockets)) if self._chance(0.4) else self._connection(leader=0.3)
        socket = self._sockets[number]
        if socket.is_closed:
            del self._sockets[number]
            return
        self._note(number, "ends")
        with self.loop.running():
            stays_open = self._chance(0.5) and socket.protocol.eof_received()
            if not stays_open:
                socket.close()
        self._reference.lost(number)
        self._happened()

    def _pause(self) -> None:
        """A peer reads nothing from its next message on."""
        socket = self._sockets[self._connection()]
        if not socket.is_closed and not self._reference.peers[socket.number].is_paused:
            socket.is_slow = True

    def _write_again(self) -> None:
        """Peers that did not read do so again."""
        for number, socket in list(self._sockets.items()):
            peer = self._reference.peers.get(number)
            if peer is not None and peer.is_paused and self._chance(0.8):
                self._note(number, "reads again")
                with self.loop.running():
                    socket.protocol.resume_writing()
                self._reference.writable(number)
                self._happened()

    # ------------------------------------------------------------------ what happens

    def _happens(self, event: str, *arguments: Any) -> None:
        self._note(event, *arguments)
        handled = None
        with self.loop.running():
            if event == "trim":
                self._node.trim(lambda: arguments[0])
            elif event == "pull_failed" and arguments[0] is self._acceptor.pull:
                self._node.pull_failed(self._node.acceptor.pull, arguments[1])
            else:
                handled = getattr(self._node, event)(*arguments)
        self._reference.happens(event, *arguments)
        self._happened()
        if handled is not None and self._reference.ready and not handled.done():
            raise AssertionError("pulled WAL was handled, and that is not reported")

    def _leader_socket(self) -> LoneSocket | None:
        number = self._acceptor.leader_connection or 0
        return self._sockets[number] if number in self._reference.peers else None

    def _batch(self) -> None:
        """The leader sends WAL in several appends."""
        acceptor, rng = self._acceptor, self.rng
        number, membership, leader = acceptor.leader_connection, acceptor.control.membership, acceptor.leader
        socket = self._leader_socket()
        if socket is None or membership is None or leader is None or socket.has_bytes or not acceptor.write_lsn:
            if self._chance(0.3):
                self._elected()
            return
        wal = self._wal(rng.choice((1, 60, 800, 800, 3000, 9000)))
        begin_lsn, count = acceptor.write_lsn, rng.choice((1, 1, 1, 2, 3, 5))
        size = max(1, len(wal) // count)
        for at in range(0, len(wal), size):
            payload = wal[at : at + size] if self._chance(0.97) else b""
            commit_lsn = rng.choice((0, acceptor.commit_lsn, acceptor.flush_lsn, acceptor.flush_lsn, begin_lsn))
            self._sequence += rng.choice((0, 1, 1))
            healthy = self._chance(0.95)
            message = AppendRequest(
                leader, membership.generation, begin_lsn, commit_lsn,
                rng.choice((min(acceptor.truncate_lsn, commit_lsn), commit_lsn)),
                self._sequence, healthy, payload,
            )  # fmt: skip
            self._note(number, "sends", message)
            socket.send(message, b"".join(bytes(buffer) for buffer in encode(message)))
            begin_lsn += len(payload)
        if self._chance(0.9):
            self._arrives(socket)

    def _reader(self) -> None:
        """A member reads, maybe more than it may at once."""
        acceptor = self._acceptor
        begin_lsn, end_lsn = acceptor.control.wal_begin_lsn, acceptor.flush_lsn
        if begin_lsn >= end_lsn:
            return
        number = self._connection(leader=0.1)
        for _ in range(self.rng.choice((1, 2, 6))):
            self._requests += 1
            first, last = sorted((self.rng.randrange(begin_lsn, end_lsn), self.rng.randrange(begin_lsn, end_lsn)))
            self._send(PeerRead(acceptor.control.promised, self._requests, first, last + 1), number)
        worker = self.process.workers.get("peer reader")
        if worker is not None and worker.has_jobs and self._chance(0.4):
            # Meanwhile the log may change.
            self._do_job(worker)
            if self._greeted:
                self.rng.choice((self._elected, self._vote))()
            for _ in range(4):
                self._work()

    def _request_pull(self) -> None:
        """The leader requests that WAL is pulled."""
        leader, acceptor = self._leader_socket(), self._acceptor
        if leader is not None and acceptor.leader is not None:
            self._requests += 1
            end_lsn = acceptor.write_lsn + self.rng.choice((100, 5000, 20_000))
            self._send(PullWal(acceptor.leader, self._requests, end_lsn, 0, (PullSource(2, "h:2"),)), leader.number)

    def _break_acceptor(self) -> None:
        """The state of the acceptor is impossible: the node notices it before it does anything else, and ends."""
        socket = self._sockets[self._connection()]
        if not self._reference.ready or socket.is_closed or socket.side is not None or socket.has_bytes:
            return
        self._note("the acceptor breaks")
        self.process.breaks = True
        if self._chance(0.5):
            with self.loop.running():
                self._node.receive(socket.number, PreVoteRequest("run-a", False))
        else:
            with self.loop.running():
                self._node.messages_handled()
            self.process.seen.clear()  # Its flush.
        self._reference.breaks()
        self._happened()

    def _time_passes_for_reads(self) -> None:
        pass

    def _measure(self) -> None:
        """The free space is measured, at times often, while it and the limit change."""
        self._measure_once()
        disk = self.process.workers["disk"]
        for _ in range(self.rng.choice((0, 0, 6))):
            if self._chance(0.4):
                self.fs.capacity_bytes = self.rng.choice((UNLIMITED_BYTES, self.fs.used_bytes() + 500_000))
            if self._chance(0.2):
                self._node.disk_space.free_warning_bytes = self.rng.choice((1 << 18, 1 << 20))
            if disk.has_jobs:
                self._do_job(disk)
            if disk.has_results:
                self._return_job(disk)
            if self._chance(0.3):
                self._pass_time()
            self._measure_once()

    def _measure_once(self) -> None:
        with self.loop.running():
            self._node.measure_room()
        self._reference._take("submit", "disk", None)
        self._happened()

    def _break_disk(self) -> None:
        fs, soon = self.fs, self.rng.randint(1, 6)
        kind = self.rng.choice(("full", "full", "room", "room", "short", "short", "fail", "write"))
        self._note("the disk:", kind)
        if kind == "full":
            fs.capacity_bytes = fs.used_bytes() + self.rng.choice((0, 0, 20_000))
            if self._chance(0.4):
                self._happens("checkpoint")
        elif kind == "room":
            fs.capacity_bytes = UNLIMITED_BYTES
        elif kind == "short":
            fs.short = self.rng.choice((1, 3, 6, 7, 8, 20))
        elif self._chance(0.5):
            fs.fail_in(soon, only="write" if kind == "write" else None)
