"""The WAL of an acceptor: appends, pulls, reads and removals.

See messages.py.
"""

import msgspec

from safekeeper.acceptor.trimming import TrimRequest
from safekeeper.consensus.messages import (
    AppendRequest,
    DigestRequest,
    PeerRead,
    PullSource,
    PullWal,
    ReadRequest,
    TailRequest,
)
from tests.simulation.lone.messages import (
    DrawnMessages,
)
from tests.simulation.model.synthetic_wal import SEGMENT_SIZE, make_record


class LoneWal(DrawnMessages):
    """Events of the log."""

    def _wal(self, count: int) -> bytes:
        """Return the next bytes of records; a record that was cut is not continued."""
        rng, lsn = self.rng, self._acceptor.write_lsn
        wal = self._record if self._record_lsn == lsn else b""
        if lsn == self._acceptor.control.wal_begin_lsn and self._chance(0.3):
            # The log begins amidst a record, of which no more than the rest is here.
            before = rng.choice((20, 3000))
            wal = make_record(before + rng.choice((100, 3000)), lsn - before, rng)[before:]
        while len(wal) < count:
            size = rng.choice((40, 300, 300, 3000, 3000, 2 * SEGMENT_SIZE))
            wal += make_record(size, lsn + len(wal), rng, is_timed=self._chance(self._timed))
        if self._chance(0.4):
            count = len(wal)
        self._record, self._record_lsn = wal[count:], lsn + count
        return wal[:count]

    def _append(self) -> None:
        acceptor, rng = self._acceptor, self.rng
        own = acceptor.control.membership
        payload = self._wal(rng.choice((1, 50, 500, 3000, SEGMENT_SIZE))) if self._chance(0.75) else b""
        begin_lsn = acceptor.write_lsn if payload or self._chance(0.7) else self._position()
        if self._chance(0.02):
            begin_lsn += rng.choice((-1, 1))
        commit_lsn = rng.choice(
            (0, acceptor.commit_lsn, acceptor.flush_lsn, begin_lsn + len(payload), self._position())
        )
        truncate_lsn = rng.choice(
            (0, 0, acceptor.truncate_lsn, commit_lsn, commit_lsn // 2, commit_lsn + int(self._chance(0.02)))
        )
        self._sequence += rng.choice((0, 1, 1))
        message = AppendRequest(
            self._leader_id(),
            (own.generation if own is not None else 1) + int(self._chance(0.02)),
            begin_lsn,
            commit_lsn,
            min(truncate_lsn, commit_lsn + 1),
            self._sequence,
            self._chance(0.7),
            payload,
        )
        self._send(message, self._connection(0.97))

    def _pull(self) -> None:
        self._requests += 1
        acceptor = self._acceptor
        sources = (PullSource(2, "h:2"),) if self._chance(0.8) else ()
        if acceptor.pull is not None and self._chance(0.3):
            pull = acceptor.pull if self._chance(0.7) else msgspec.structs.replace(acceptor.pull)
            self._happens("pull_failed", pull, "no source")
            return
        end_lsn = self.rng.choice((acceptor.write_lsn + 5000, self._position()))
        self._send(PullWal(self._leader_id(), self._requests, end_lsn, 0, sources))

    def _pulled(self) -> None:
        acceptor = self._acceptor
        begin_lsn = acceptor.write_lsn if self._chance(0.8) else self._position()
        content = self._leader_id(), begin_lsn, self._wal(self.rng.choice((100, 4000)))
        self._happens("pulled", *content)

    def _read(self) -> None:
        self._requests += 1
        leader_id, begin_lsn, end_lsn = self._leader_id(), self._position(), self._position()
        if self._chance(0.9):
            begin_lsn, end_lsn = sorted((begin_lsn, end_lsn))
        if self._chance(0.6):
            begin_lsn = max(begin_lsn, self._acceptor.control.wal_begin_lsn)
            end_lsn = max(begin_lsn, min(end_lsn, self._acceptor.flush_lsn))
        kind = self.rng.randrange(4)
        if kind == 0:
            self._send(ReadRequest(leader_id, self._requests, begin_lsn, end_lsn))
        elif kind == 1:
            self._send(DigestRequest(leader_id, self._requests, begin_lsn, end_lsn, self._chance(0.5)))
        elif kind == 2:
            self._send(TailRequest(leader_id, self._requests, begin_lsn))
        else:
            request = PeerRead(leader_id, self._requests, begin_lsn, end_lsn)
            self._send(request, self._connection(0.2))
        self._time_passes_for_reads()

    def _trim(self) -> None:
        rng = self.rng
        request = TrimRequest(
            wanted_lsn=rng.choice((None, None, self._position())),
            keep_bytes=rng.choice((0, 0, SEGMENT_SIZE, 3 * SEGMENT_SIZE)),
            limit_bytes=rng.choice((None, 2 * SEGMENT_SIZE, 4 * SEGMENT_SIZE, 4 * SEGMENT_SIZE + 1)),
            has_archive=self._chance(0.5),
        )
        self._happens("trim", request)
