"""Real safekeepers that pull WAL from each other: sources that die, are slow, refuse, or are not there; a new term."""

import contextlib
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from safekeeper.base.lsn import format_lsn
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.membership import Member, Membership, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    AppendRequest,
    AppendResponse,
    Bootstrap,
    Bootstrapped,
    Elected,
    PullEnded,
    PullSource,
    PullWal,
    ReadRequest,
    ReadResponse,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry
from tests.unit.safekeeper_process import SafekeeperProcess
from tests.unit.scripted_proposer import (
    BASE_LSN,
    DEADLINE_S,
    SEGMENT_SIZE,
    SERVER_VERSION,
    SYSTEM_ID,
    ScriptedProposer,
)
from tests.waiting import wait_for

MIB = 1 << 20
# Every MiB is another one, so that a block in the wrong place shows.
BLOCKS = [bytes([number]) * MIB for number in range(1, 13)]
END_LSN = BASE_LSN + len(BLOCKS) * MIB


class Trio:
    """Three safekeepers, and a leader of them. The first two have `BLOCKS`, the third has nothing."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, *options: str) -> None:
        self.processes = [
            stack.enter_context(SafekeeperProcess(directory / f"sk{i}", *options, safekeeper_id=i)) for i in (1, 2, 3)
        ]
        self._stack = stack
        self.links: list[ScriptedProposer] = []
        self.history: tuple[HistoryEntry, ...] = ()
        self.leader_id = LeaderId(1, "run1")
        links = [self.connect(i) for i in (1, 2, 3)]
        members = tuple(Member(i, link.greet().incarnation) for i, link in zip((1, 2, 3), links, strict=True))
        self.membership = Membership(1, members)
        self.cluster_id = bootstrap_cluster_id(SYSTEM_ID, members)
        for link in links:
            link.send(Bootstrap(self.cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, self.membership))
            link.receive(Bootstrapped)
        self.links = links
        self.lead(1, (1, 2, 3))
        for link in links[:2]:
            for number, block in enumerate(BLOCKS):
                link.send(self.append(BASE_LSN + number * MIB, block))
            link.wait_flushed(END_LSN)

    @property
    def puller(self) -> ScriptedProposer:
        """The leader's connection to the third."""
        return self.links[2]

    def connect(self, safekeeper_id: int) -> ScriptedProposer:
        port = self.processes[safekeeper_id - 1].port
        return self._stack.enter_context(ScriptedProposer(port, safekeeper_id=safekeeper_id))

    def lead(self, term: int, safekeeper_ids: tuple[int, ...], start_lsn: int = BASE_LSN) -> None:
        """Be voted for and elected on the connections to these."""
        self.leader_id = LeaderId(term, f"run{term}")
        self.history = (*self.history, HistoryEntry(term, start_lsn, 1))
        for safekeeper_id in safekeeper_ids:
            link = self.links[safekeeper_id - 1]
            link.send(VoteRequest(self.leader_id, 1, self.cluster_id, self.membership))
            assert link.receive(VoteResponse).granted
            self.adopt(safekeeper_id)

    def adopt(self, safekeeper_id: int) -> None:
        link = self.links[safekeeper_id - 1]
        link.send(
            Elected(
                self.leader_id,
                self.cluster_id,
                SYSTEM_ID,
                SEGMENT_SIZE,
                SERVER_VERSION,
                self.membership,
                self.history,
                (),
                BASE_LSN,
                0,
            )
        )
        link.write_lsn = link.receive(AppendResponse).write_lsn

    def append(self, begin_lsn: int, payload: bytes = b"", sequence: int = 1) -> AppendRequest:
        return AppendRequest(self.leader_id, 1, begin_lsn, BASE_LSN, 0, sequence, healthy=True, payload=payload)

    def source(self, safekeeper_id: int, port: int | None = None) -> PullSource:
        return PullSource(safekeeper_id, f"127.0.0.1:{port or self.processes[safekeeper_id - 1].port}")

    def pull(self, *sources: PullSource, number: int = 1, bytes_per_s: int = 0) -> None:
        self.puller.send(PullWal(self.leader_id, number, END_LSN, bytes_per_s, sources))

    def wait_ended(self, timeout_s: float = DEADLINE_S) -> PullEnded:
        """Wait for the end of the pull; the positions until then only rise."""
        deadline, lsn = time.monotonic() + timeout_s, 0
        while time.monotonic() < deadline:
            message = self.puller.receive((AppendResponse, PullEnded))  # type: ignore[arg-type]
            if isinstance(message, PullEnded):
                return message
            assert message.flush_lsn >= lsn
            lsn = message.flush_lsn
        raise AssertionError("the pull did not end")

    def wait_pulled(self, lsn: int) -> None:
        """Wait until the third has WAL up to `lsn` on disk."""
        while self.puller.receive(AppendResponse).flush_lsn < lsn:
            pass

    def assert_has_everything(self) -> None:
        """Read the third's log to END_LSN, as its leader: it has the bytes that were appended to the others."""
        self.puller.wait_flushed(END_LSN)
        for number, block in enumerate(BLOCKS):
            begin_lsn = BASE_LSN + number * MIB
            self.puller.send(ReadRequest(self.leader_id, number, begin_lsn, begin_lsn + MIB))
            assert self.puller.receive(ReadResponse).payload == block

    def log_lines(self, part: str) -> list[str]:
        return [line for line in self.processes[2].lines if part in line]


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[Trio]:
    with contextlib.ExitStack() as stack:
        yield Trio(tmp_path, stack)


def test_a_member_pulls_what_it_lacks_and_goes_on_with_the_leaders_appends(trio: Trio) -> None:
    trio.pull(trio.source(1), trio.source(2), number=7)
    ended = trio.wait_ended()
    assert (ended.request_id, ended.write_lsn, ended.problem) == (7, END_LSN, "")
    trio.assert_has_everything()
    trio.puller.send(trio.append(END_LSN, b"the next"))
    trio.puller.wait_flushed(END_LSN + 8)
    third = trio.processes[2]
    begun = third.wait_for_line("pulling WAL")
    assert f"[{format_lsn(BASE_LSN)}, {format_lsn(END_LSN)}) from safekeeper 1 at 127.0.0.1:" in begun
    assert f"pulled {12 * MIB} bytes of WAL in " in third.wait_for_line("bytes of WAL in")
    assert f"({12 * MIB} from safekeeper 1)" in third.wait_for_line("bytes of WAL in")
    assert third.get("/status")[1]["pull"] is None


def test_a_source_that_is_killed_is_replaced_by_the_next_one(trio: Trio) -> None:
    trio.pull(trio.source(1), trio.source(2), bytes_per_s=8 * MIB)
    trio.wait_pulled(BASE_LSN + 2 * MIB)
    trio.processes[0].signal(signal.SIGKILL)
    ended = trio.wait_ended()
    assert (ended.write_lsn, ended.problem) == (END_LSN, "")
    trio.assert_has_everything()
    line = trio.processes[2].wait_for_line("bytes of WAL in")
    assert "from safekeeper 1," in line and "from safekeeper 2)" in line
    (problem,) = trio.log_lines("could not pull WAL")
    assert f"safekeeper 1 at 127.0.0.1:{trio.processes[0].port}: " in problem


def test_a_source_that_dies_when_there_is_no_other_ends_the_pull_with_a_reason(trio: Trio) -> None:
    trio.pull(trio.source(1), bytes_per_s=8 * MIB)
    trio.wait_pulled(BASE_LSN + 2 * MIB)
    trio.processes[0].signal(signal.SIGKILL)
    ended = trio.wait_ended()
    assert BASE_LSN + 2 * MIB <= ended.write_lsn < END_LSN
    assert f"safekeeper 1 at 127.0.0.1:{trio.processes[0].port}" in ended.problem
    # The leader sends the rest, from where the pull has ended.
    lsn = ended.write_lsn
    while lsn < END_LSN:
        block = BLOCKS[(lsn - BASE_LSN) // MIB][(lsn - BASE_LSN) % MIB :]
        trio.puller.send(trio.append(lsn, block))
        lsn += len(block)
    trio.assert_has_everything()


def test_sources_that_cannot_be_reached_are_each_logged_once(trio: Trio) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for number in (1, 2):
        trio.pull(trio.source(1, port), trio.source(2, trio.processes[0].port), number=number)
        ended = trio.wait_ended()
        assert (ended.request_id, ended.write_lsn) == (number, BASE_LSN)
        assert f"safekeeper 1 at 127.0.0.1:{port}: " in ended.problem
        # Another safekeeper answers there than the leader has named.
        assert f"safekeeper 2 at 127.0.0.1:{trio.processes[0].port}: " in ended.problem
    wait_for(lambda: len(trio.log_lines("could not pull WAL")) == 2, "it has logged both")


def test_a_source_is_found_at_its_second_address(trio: Trio) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    trio.pull(trio.source(1, port), trio.source(2, port), trio.source(1))
    assert trio.wait_ended().problem == ""
    trio.assert_has_everything()


class SlowRelay:
    """Passes connections on to a port, and what comes back a little at a time."""

    def __init__(self, port: int, bytes_per_s: int) -> None:
        self._target = ("127.0.0.1", port)
        self._bytes_per_s = bytes_per_s
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = False
        self.port = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "SlowRelay":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                for source, sink, chunk in ((near, far, 1 << 16), (far, near, self._bytes_per_s // 50)):
                    thread = threading.Thread(target=self._pass_on, args=(source, sink, chunk), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, chunk: int) -> None:
        with source, sink, contextlib.suppress(OSError):
            while not self._ends and (data := source.recv(chunk)):
                sink.sendall(data)
                time.sleep(0.02)  # The rate of this line.
            sink.shutdown(socket.SHUT_RDWR)


def test_a_slow_source_is_left_for_another_one(trio: Trio) -> None:
    with SlowRelay(trio.processes[0].port, MIB) as relay:
        trio.pull(trio.source(1, relay.port), trio.source(2))
        assert trio.wait_ended().problem == ""
        trio.assert_has_everything()
    assert "bytes in" in trio.processes[2].wait_for_line(f"safekeeper 1 at 127.0.0.1:{relay.port} is slow: ")
    assert "from safekeeper 2)" in trio.processes[2].wait_for_line("bytes of WAL in")


@pytest.mark.nightly
def test_a_slow_source_is_used_when_there_is_no_other(trio: Trio) -> None:
    with SlowRelay(trio.processes[0].port, 2 * MIB) as relay:
        trio.pull(trio.source(1, relay.port))
        assert trio.wait_ended().problem == ""
        trio.assert_has_everything()
    assert not trio.log_lines("is slow")


def test_a_source_that_does_not_answer_is_replaced(trio: Trio) -> None:
    trio.processes[0].signal(signal.SIGSTOP)
    trio.pull(trio.source(1), trio.source(2))
    assert trio.wait_ended().problem == ""
    trio.assert_has_everything()
    trio.processes[0].signal(signal.SIGCONT)


def test_heartbeats_are_answered_during_a_pull_wherever_the_leader_believes_the_member_to_be(trio: Trio) -> None:
    trio.pull(trio.source(1), bytes_per_s=4 * MIB)
    trio.wait_pulled(BASE_LSN + MIB)
    trio.puller.send(trio.append(BASE_LSN, sequence=50))
    while trio.puller.receive(AppendResponse).sequence < 50:
        pass
    # Bytes there would be an overlap.
    trio.puller.send(trio.append(BASE_LSN, b"x"))
    with pytest.raises((ConnectionError, AssertionError)):
        trio.wait_ended()
    assert trio.processes[2].wait_for_line("does not start at the write position")


def test_the_leader_ends_a_pull_and_has_its_position(trio: Trio) -> None:
    trio.pull(trio.source(1), bytes_per_s=4 * MIB)
    trio.wait_pulled(BASE_LSN + MIB)
    trio.pull(number=2)
    ended = trio.wait_ended()
    assert (ended.request_id, ended.problem) == (2, "") and BASE_LSN + MIB <= ended.write_lsn < END_LSN
    block = BLOCKS[(ended.write_lsn - BASE_LSN) // MIB][(ended.write_lsn - BASE_LSN) % MIB :]
    trio.puller.send(trio.append(ended.write_lsn, block))
    assert trio.puller.wait_flushed(ended.write_lsn + len(block)).write_lsn == ended.write_lsn + len(block)
    # A pull that is replaced is not answered.
    trio.pull(trio.source(1), number=3, bytes_per_s=4 * MIB)
    trio.pull(trio.source(2), number=4)
    assert trio.wait_ended().request_id == 4
    trio.assert_has_everything()


def test_a_new_term_in_the_midst_ends_the_pull_and_the_next_leader_goes_on_from_there(trio: Trio) -> None:
    trio.pull(trio.source(1), bytes_per_s=4 * MIB)
    trio.wait_pulled(BASE_LSN + MIB)
    # Another leader, on other connections.
    trio.links = [trio.connect(i) for i in (1, 2, 3)]
    for link in trio.links:
        link.greet()
    trio.lead(2, (1, 2, 3), END_LSN)
    position_lsn = trio.puller.write_lsn
    assert BASE_LSN + MIB <= position_lsn < END_LSN
    assert trio.processes[2].wait_for_line("bytes of WAL in")
    trio.puller.send(trio.append(position_lsn, sequence=9))
    # Nothing of the old pull is written any more: an answer after this heartbeat has the same position.
    while (answer := trio.puller.receive(AppendResponse)).sequence < 9:
        pass
    assert answer.write_lsn == position_lsn
    trio.pull(trio.source(2), number=1)
    assert trio.wait_ended().problem == ""
    trio.assert_has_everything()


def test_the_end_of_the_leaders_connection_ends_the_pull(trio: Trio) -> None:
    trio.pull(trio.source(1), bytes_per_s=2 * MIB)
    trio.wait_pulled(BASE_LSN + MIB)
    trio.puller._socket.close()
    trio.processes[2].wait_for_line("bytes of WAL in")
    assert trio.processes[2].get("/status")[1]["pull"] is None


def test_a_safekeeper_that_stops_ends_its_pull_and_continues_after_the_start(trio: Trio, tmp_path: Path) -> None:
    trio.pull(trio.source(1), bytes_per_s=4 * MIB)
    trio.wait_pulled(BASE_LSN + MIB)
    third = trio.processes[2]
    third.signal(signal.SIGTERM)
    assert third.wait_exit() == 0
    assert len(trio.log_lines("pulling WAL")) == len(trio.log_lines("bytes of WAL in")) == 1
    with SafekeeperProcess(tmp_path / "sk3", safekeeper_id=3) as third:
        trio.processes[2] = third
        with trio.connect(3) as link:
            trio.links[2] = link
            assert link.greet().flush_lsn >= BASE_LSN + MIB
            trio.adopt(3)
            trio.pull(trio.source(2))
            assert trio.wait_ended().problem == ""
            trio.assert_has_everything()
            assert f"({END_LSN - link.write_lsn} from safekeeper 2)" in third.wait_for_line("bytes of WAL in")


def test_a_source_that_has_only_promised_the_term_serves_nothing(trio: Trio) -> None:
    trio.leader_id = leader_id = LeaderId(2, "run2")
    trio.links[0].send(VoteRequest(leader_id, 1, trio.cluster_id, trio.membership))
    assert trio.links[0].receive(VoteResponse).granted
    trio.lead(2, (3,), END_LSN)
    trio.pull(trio.source(1), trio.source(2))
    ended = trio.wait_ended()
    assert ended.write_lsn == BASE_LSN
    assert "safekeeper 1 at " in ended.problem and "not_adopted" in ended.problem
    # The other one has promised nothing of this term.
    assert "safekeeper 2 at " in ended.problem and "stale_term" in ended.problem
    trio.adopt(1)
    trio.pull(trio.source(1), number=2)
    assert trio.wait_ended().problem == ""
    trio.assert_has_everything()


def metrics_of(process: SafekeeperProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/metrics", timeout=DEADLINE_S) as answer:
        return str(answer.read(), "utf-8")


def test_the_pages_show_a_pull(trio: Trio) -> None:
    trio.pull(trio.source(2), bytes_per_s=4 * MIB)
    trio.wait_pulled(BASE_LSN + MIB)
    pull = trio.processes[2].get("/status")[1]["pull"]
    assert (pull["source"], pull["end_lsn"]) == (2, format_lsn(END_LSN))
    assert pull["address"] == f"127.0.0.1:{trio.processes[1].port}" and pull["bytes"] >= MIB
    assert "safekeeper_pulling 1.0" in metrics_of(trio.processes[2])
    assert trio.wait_ended().problem == ""
    metrics = metrics_of(trio.processes[2])
    assert "safekeeper_pulling 0.0" in metrics
    (pulled,) = [line for line in metrics.splitlines() if line.startswith('safekeeper_pulled_bytes_total{source="2"}')]
    assert float(pulled.split()[-1]) == 12 * MIB
    assert "safekeeper_served_to_members_bytes_total 0.0" in metrics
    assert "safekeeper_served_to_members_bytes_total 0.0" not in metrics_of(trio.processes[1])
