"""Ranges of a slot, one after the other, out of one session: what `SlotReader.read` gives, without beginning again.

A range [begin_lsn, end_lsn) holds the transactions whose commit record begins in it (transactions.py). It is over when
the server has sent a transaction that begins beyond it, or reports a position at or beyond its end. Such a transaction
waits here for the next range. Pure but for waiting: `feed` and `quorum` do what can block.

A range may end within a record, of which a server with `synchronized_standby_slots` sends nothing before those slots
have all of it. If the proxy that reads for them has stopped, the server replies to each question, and never sends more.
It may also be silent for long while it decodes a large transaction; a session that was begun again would decode it
again. So the server is asked which of the two it is.
"""

import threading
import time
from collections.abc import Callable, Generator
from typing import Final, Protocol

from safekeeper.base.errors import WalproxyError
from safekeeper.base.lsn import Lsn
from walproxy.pipeline.cdc.changes import Change, Changes, RowsByRelation
from walproxy.pipeline.cdc.messages import Begin, Commit, Rows
from walproxy.pipeline.cdc.quorum_gate import QuorumWaiter, on_quorum
from walproxy.pipeline.cdc.server import SourceUnavailable
from walproxy.pipeline.cdc.spool import Spool
from walproxy.pipeline.cdc.transactions import Assembler, Sent
from walproxy.postgres.logical_replication import Item

_ASK_S: Final = 1.0
_QUIET_MAX_S: Final = 300.0


class Stopped(WalproxyError):
    """The job is to stop, and the server sends nothing that would end its step."""


class Feed(Protocol):
    """The used part of `ChangeFeed`."""

    def take(self, timeout_s: float) -> list[Item]: ...

    def ask(self) -> None: ...


class SlotStream:
    """The changes of a slot from `begin_lsn` on.

    Args:
        version: of the plugin's protocol.
        held_bytes_max: how much of a transaction waits for its Commit.
        is_held_back: whether the server waits for other slots before it sends more.
        stop: when set, nothing is waited for.
    """

    def __init__(
        self,
        feed: Feed,
        quorum: QuorumWaiter,
        begin_lsn: Lsn,
        *,
        version: int,
        held_bytes_max: int,
        is_held_back: Callable[[], bool],
        stop: threading.Event,
    ) -> None:
        self._feed = feed
        self._is_held_back = is_held_back
        self._stop = stop
        self._quorum = quorum
        self._held_bytes_max = held_bytes_max
        self._assembler = Assembler(Spool(), version, begin_lsn)
        self._changes = Changes()
        self._items: list[Item] = []
        self._taken = 0  # of the items
        self._ahead: Sent | None = None  # the Begin of a transaction beyond the last range
        self._is_open = False  # a transaction has begun, and not ended
        self._is_reading = False
        self._complete_lsn = begin_lsn  # all transactions whose commit record begins below it have arrived

    def has(self, end_lsn: Lsn) -> bool:
        """Return whether a range up to `end_lsn` is known to be here, so that the server need not send more."""
        return self._complete_lsn >= end_lsn

    def read(self, end_lsn: Lsn, flush: Callable[[], None]) -> Generator[Change | RowsByRelation, None, None]:
        """Yield the changes from the end of the last range on, up to `end_lsn`, in commit order.

        The quorum has the whole commit record of each change that is yielded. After a generator was left before its
        end, changes are missing: the stream is of no use then.

        Args:
            end_lsn: a position that the quorum has.
            flush: has the server flush the WAL that it has not; called if it must send more.

        Raises:
            SourceUnavailable: other slots hold the server back for long; or as usual.
            Stopped: the job is to stop, and nothing arrives.
            SourceRefused, RemoteProtocolError.
        """
        assert not self._is_reading, "the last range was left early"
        self._is_reading = True
        if not self.has(end_lsn):
            flush()
            self._feed.ask()
        for sent in on_quorum(
            self._below(end_lsn), self._quorum, known_lsn=end_lsn, held_bytes_max=self._held_bytes_max
        ):
            if isinstance(sent.message, Rows):
                yield self._changes.take_rows(sent)
            else:
                yield from self._changes.take(sent)
        self._is_reading = False

    def _below(self, end_lsn: Lsn) -> Generator[Sent, None, None]:
        if self._ahead is not None:
            assert isinstance(self._ahead.message, Begin)
            if self._ahead.message.commit_lsn >= end_lsn:
                return
            sent, self._ahead, self._is_open = self._ahead, None, True
            yield sent
        quiet_s = 0.0  # waited without result; what the reader of this range needs does not count
        while self._is_open or self._complete_lsn < end_lsn:
            if self._taken == len(self._items):
                began = time.monotonic()
                self._items, self._taken = self._feed.take(_ASK_S), 0
                if any(data or lsn > self._complete_lsn for lsn, data in self._items):
                    quiet_s = 0.0
                else:
                    quiet_s += time.monotonic() - began
                    self._check_wait(quiet_s)
                if not self._items:
                    self._feed.ask()
                    continue
            if self._is_open:
                count, rows = self._assembler.take_rows(self._items, self._taken, self._held_bytes_max)
            else:
                count, rows = self._assembler.take_transactions(self._items, self._taken, end_lsn, self._held_bytes_max)
            if count:
                self._taken += count
                for sent in rows:
                    assert isinstance(sent.message, Rows)
                    self._complete_lsn = max(self._complete_lsn, sent.message.end_lsn or 0)
                    yield sent
                continue
            lsn, data = self._items[self._taken]
            self._taken += 1
            if not data:
                self._complete_lsn = max(self._complete_lsn, lsn)
                continue
            for sent in self._assembler.take(lsn, data):
                if isinstance(sent.message, Begin):
                    self._complete_lsn = max(self._complete_lsn, sent.message.commit_lsn)
                    if sent.message.commit_lsn >= end_lsn:
                        self._ahead = sent
                        return
                    self._is_open = True
                elif isinstance(sent.message, Commit):
                    self._complete_lsn = max(self._complete_lsn, sent.message.end_lsn)
                    self._is_open = False
                yield sent

    def _check_wait(self, quiet_s: float) -> None:
        if self._stop.is_set():
            raise Stopped("stopped while nothing came from the server; the next job reads the step again")
        if quiet_s > _QUIET_MAX_S and self._is_held_back():
            raise SourceUnavailable(
                f"no changes from the server for {_QUIET_MAX_S:.0f} s: it waits for the slots in "
                "synchronized_standby_slots; see that the proxy or standby of each of them runs"
            )
