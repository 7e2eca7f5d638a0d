"""A proposer that does what the test says: one blocking connection to one safekeeper, messages out, messages in."""

import secrets
import socket
from collections import deque
from types import TracebackType
from typing import Self, TypeVar

from safekeeper.consensus.control_state import LeaderId, TliHistory
from safekeeper.consensus.membership import Member, Membership, bootstrap_cluster_id
from safekeeper.consensus.messages import (
    PROTOCOL_VERSION,
    AcceptorGreeting,
    AcceptorMessage,
    AppendRequest,
    AppendResponse,
    ArchiveReport,
    Bootstrap,
    Bootstrapped,
    Elected,
    FolderStates,
    ProposerGreeting,
    ProposerMessage,
    VoteRequest,
    VoteResponse,
)
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from safekeeper.peers.codec import (
    ACCEPTOR_AUTHENTICATION,
    ACCEPTOR_DIALECT,
    FrameDecoder,
    encode,
    encode_authentication,
)
from safekeeper.peers.local_secret import LocalSecret
from safekeeper.peers.peer_auth import NONCE_BYTES, ProposerSide

SYSTEM_ID = 7_123_456_789_012_345_678
SEGMENT_SIZE = 1 << 20
BASE_LSN = 3 << 20
SERVER_VERSION = 150018
DEADLINE_S = 20.0

_Message = TypeVar("_Message")


class ScriptedProposer:
    """One connection of one proposer run to safekeeper `safekeeper_id`, which has proved this user's secret."""

    def __init__(self, port: int, *, safekeeper_id: int = 1, run: str = "run1") -> None:
        self.run = run
        self.safekeeper_id = safekeeper_id
        self.sequence = 0
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder: FrameDecoder[AcceptorMessage] = FrameDecoder(ACCEPTOR_DIALECT)
        self._received: deque[AcceptorMessage] = deque()
        self._authenticate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._socket.close()

    def _authenticate(self) -> None:
        side = ProposerSide(LocalSecret().value, self.safekeeper_id, secrets.token_bytes(NONCE_BYTES), b"")
        decoder = FrameDecoder(ACCEPTOR_AUTHENTICATION)
        self._socket.sendall(encode_authentication(side.begin()))
        while not side.done:
            data = self._socket.recv(1 << 16)
            assert data, "the safekeeper closed the connection during the authentication"
            for message in decoder.feed(data):
                answer = side.receive(message)
                if answer is not None:
                    self._socket.sendall(encode_authentication(answer))

    def send(self, *messages: ProposerMessage) -> None:
        self._socket.sendall(b"".join(b"".join(encode(message)) for message in messages))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, kind: type[_Message]) -> _Message:
        """Return the next message, which must be of `kind`; archive reports and folder states are passed over."""
        while True:
            while not self._received:
                data = self._socket.recv(1 << 16)
                if not data:
                    raise ConnectionError("the safekeeper closed the connection")
                self._received.extend(self._decoder.feed(data))
            message = self._received.popleft()
            if isinstance(message, kind):
                return message
            assert isinstance(message, ArchiveReport | FolderStates), message

    def is_closed(self) -> bool:
        """Wait until the safekeeper closes the connection; False if a message comes instead."""
        try:
            message = self.receive(object)
            while isinstance(message, ArchiveReport):
                message = self.receive(object)
        except ConnectionError:
            return True
        return False

    def greet(self) -> AcceptorGreeting:
        self.send(ProposerGreeting(PROTOCOL_VERSION, self.run, self.safekeeper_id, SYSTEM_ID, SEGMENT_SIZE))
        self.greeting = self.receive(AcceptorGreeting)
        return self.greeting

    def bootstrap(self) -> Bootstrapped:
        """Make a cluster of this one safekeeper."""
        members = (Member(self.safekeeper_id, self.greeting.incarnation),)
        self.membership = Membership(1, members)
        self.cluster_id = bootstrap_cluster_id(SYSTEM_ID, members)
        self.send(Bootstrap(self.cluster_id, SYSTEM_ID, SEGMENT_SIZE, SERVER_VERSION, self.membership))
        return self.receive(Bootstrapped)

    @property
    def generation(self) -> int:
        """That of the membership that the safekeeper has greeted with, else of the first one."""
        return self.greeting.membership.generation if self.greeting.membership is not None else 1

    def be_voted_for(self, term: int) -> VoteResponse:
        self.leader_id = LeaderId(term, self.run)
        membership = self.greeting.membership or self.membership
        assert membership is not None
        self.send(VoteRequest(self.leader_id, self.generation, self.greeting.cluster_id or self.cluster_id, membership))
        return self.receive(VoteResponse)

    def be_elected(self, vote: VoteResponse, commit_lsn: int = 0) -> AppendResponse:
        """Lead with the history of the vote, as the only member's."""
        start_lsn = vote.flush_lsn or BASE_LSN
        history = (*vote.history, HistoryEntry(self.leader_id.term, start_lsn, 1))
        return self.have_adopted(history, commit_lsn=commit_lsn)

    def have_adopted(
        self,
        history: TermHistory,
        *,
        histories: tuple[TliHistory, ...] = (),
        commit_lsn: int = 0,
        base_lsn: int = BASE_LSN,
    ) -> AppendResponse:
        """Have a history adopted."""
        assert self.greeting.membership is not None or self.membership is not None
        self.send(
            Elected(
                leader_id=self.leader_id,
                cluster_id=self.greeting.cluster_id or self.cluster_id,
                system_id=SYSTEM_ID,
                segment_size=SEGMENT_SIZE,
                server_version=SERVER_VERSION,
                membership=self.greeting.membership or self.membership,
                history=history,
                tli_histories=histories,
                base_lsn=base_lsn,
                commit_lsn=commit_lsn,
            )
        )
        answer = self.receive(AppendResponse)
        self.write_lsn = answer.write_lsn
        return answer

    def lead(self, term: int = 1) -> AppendResponse:
        """Greet, bootstrap if that is still to be done, be voted for and elected."""
        if self.greet().membership is None:
            self.bootstrap()
        return self.be_elected(self.be_voted_for(term))

    def append(self, payload: bytes, commit_lsn: int = 0) -> AppendRequest:
        """Send WAL at the write position, or a heartbeat, without waiting for the answer; return what was sent."""
        self.sequence += 1
        request = AppendRequest(
            self.leader_id, self.generation, self.write_lsn, commit_lsn, 0, self.sequence, healthy=True, payload=payload
        )
        self.send(request)
        self.write_lsn += len(payload)
        return request

    def wait_flushed(self, lsn: int) -> AppendResponse:
        """Wait for the answer that says that everything below `lsn` is on disk."""
        while (answer := self.receive(AppendResponse)).flush_lsn < lsn:
            assert answer.flush_lsn <= answer.write_lsn
        return answer

    def wait_answered(self, request: AppendRequest) -> None:
        """Wait for the answer to `request`: what it says is committed can be read from then on."""
        while self.receive(AppendResponse).sequence < request.sequence:
            pass
