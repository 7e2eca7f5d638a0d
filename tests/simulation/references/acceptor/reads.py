"""Reads of the log for leaders and members, and pulls: 4.5, 4.6 and step 6 of docs/design/protocol.md.

Part of the reference of the acceptor (acceptor.py).
"""

from safekeeper.acceptor.effects import Send, ServeRead
from safekeeper.base.errors import StorageFull
from safekeeper.consensus.control_state import LeaderId
from safekeeper.consensus.messages import (
    DigestRequest,
    DigestResponse,
    PeerRead,
    PullEnded,
    PullWal,
    ReadRequest,
    ReadResponse,
    RefusalCode,
    TailRequest,
    TailResponse,
)
from tests.simulation.references.acceptor.histories import (
    last_term,
)
from tests.simulation.references.acceptor.log import Effects
from tests.simulation.references.acceptor.state import AcceptorState

READ_BYTES_MAX = 1 << 20
DIGEST_BYTES_MAX = 1 << 30


class Reads(AcceptorState):
    """What an acceptor reads for others, and pulls from them."""

    def pulled(self, leader_id: LeaderId, begin_lsn: int, payload: bytes) -> Effects:
        """6.8: pulled WAL is written under the rules of an append."""
        pull = self.pull
        if pull is None or not leader_id == pull.leader_id == self.leader == self.control.promised:
            return
        if not begin_lsn == self.write_lsn < pull.end_lsn:
            return
        try:
            yield from self.write(begin_lsn, payload[: pull.end_lsn - begin_lsn])
        except StorageFull as full:
            yield from self._end_pull(str(full))
            raise
        self.look_for_forks()
        if self.write_lsn == pull.end_lsn:
            yield from self._end_pull("")

    def pull_failed(self, pull: PullWal, problem: str) -> Effects:
        """6.9."""
        if pull is self.pull:
            yield from self._end_pull(problem)

    def _pull_wal(self, connection: int, message: PullWal, now: float) -> Effects:
        """6.6, 6.8."""
        if not self._is_led_by(message.leader_id, connection):
            yield from self._refuse_leader(connection, message.leader_id)
            return
        self.pulled_from_lsn = min(self.pulled_from_lsn, self.write_lsn)
        self.pull = message
        if not message.sources or message.end_lsn <= self.write_lsn:
            yield from self._end_pull("")

    def _end_pull(self, problem: str) -> Effects:
        """6.9."""
        pull, self.pull = self.pull, None
        if pull is not None:
            yield from self._send_leader(PullEnded(pull.leader_id, pull.request_id, self.write_lsn, problem))

    def _peer_read(self, connection: int, message: PeerRead, now: float) -> Effects:
        """6.7."""
        if message.leader_id != self.control.promised:
            yield from self._refuse(connection, RefusalCode.STALE_TERM, close=True)
        elif not self._has_log_of(message.leader_id):
            yield from self._refuse(connection, RefusalCode.NOT_ADOPTED, close=True)
        elif not self._has_range(message.begin_lsn, message.end_lsn):
            yield from self._refuse(connection, RefusalCode.RANGE)
        else:
            yield ServeRead(connection, message)

    def serves(self, request: PeerRead) -> bool:
        """6.7: whether the range may be sent, now that it was read."""
        return self._has_log_of(request.leader_id) and self._has_range(request.begin_lsn, request.end_lsn)

    def _has_log_of(self, leader_id: LeaderId) -> bool:
        control = self.control
        return leader_id == control.promised and last_term(control.history) == leader_id.term and self.is_whole

    def _has_range(self, begin_lsn: int, end_lsn: int) -> bool:
        return self.control.wal_begin_lsn <= begin_lsn <= end_lsn <= self.flush_lsn

    def _reader_refusal(self, leader_id: LeaderId, begin_lsn: int, end_lsn: int) -> RefusalCode | None:
        """6.2."""
        if leader_id != self.control.promised:
            return RefusalCode.STALE_TERM
        return None if self._has_range(begin_lsn, end_lsn) else RefusalCode.RANGE

    def _read(self, connection: int, message: ReadRequest, now: float) -> Effects:
        """6.2."""
        refusal = self._reader_refusal(message.leader_id, message.begin_lsn, message.end_lsn)
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=refusal is RefusalCode.STALE_TERM)
            return
        end_lsn = min(message.end_lsn, message.begin_lsn + READ_BYTES_MAX)
        payload = self.wal.read(message.begin_lsn, end_lsn)
        yield Send(connection, ReadResponse(message.request_id, message.begin_lsn, payload))

    def _digest(self, connection: int, message: DigestRequest, now: float) -> Effects:
        """4.6, 6.2."""
        refusal = self._reader_refusal(message.leader_id, message.begin_lsn, message.end_lsn)
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=refusal is RefusalCode.STALE_TERM)
            return
        begin_lsn, timed_lsn = message.begin_lsn, 0
        if message.back_to_timed:
            size, log_begin_lsn = self.control.segment_size, self.control.wal_begin_lsn
            timed_lsn = self.wal.last_timed_record(log_begin_lsn, message.end_lsn)
            begin_lsn = min(begin_lsn, (timed_lsn or log_begin_lsn) // size * size)
        end_lsn = min(message.end_lsn, begin_lsn + DIGEST_BYTES_MAX)
        crcs = self.wal.page_crcs(begin_lsn, end_lsn)
        yield Send(connection, DigestResponse(message.request_id, begin_lsn, end_lsn, crcs, timed_lsn))

    def _tail(self, connection: int, message: TailRequest, now: float) -> Effects:
        """4.5."""
        refusal = self._reader_refusal(message.leader_id, message.lsn, self.flush_lsn)
        if refusal is not None:
            yield from self._refuse(connection, refusal, close=refusal is RefusalCode.STALE_TERM)
            return
        end_lsn, start_lsn = self.wal.record_end(message.lsn), self.wal.last_record_start(message.lsn)
        yield Send(connection, TailResponse(message.request_id, message.lsn, end_lsn, start_lsn, None))
