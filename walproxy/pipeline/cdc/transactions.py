"""Assemble what a slot sends: committed transactions only, one after the other, in the order of their commits.

The server may send a large transaction in pieces before it is committed (version 2 of the protocol), or a prepared one
before that is (version 3). `committed` gives the same stream without either: Begin, changes, Commit. Pieces wait in a
*shelf* for each transaction, as the bytes that came; they are decoded when they leave it. A subtransaction that is
rolled back takes its changes along: they carry its xid.

A relation is described once in a session. So relations and types are yielded also from transactions that are passed
over, and stay when the subtransaction around them is rolled back: the server may not send them again.

A range [begin_lsn, end_lsn) holds the transactions whose commit record *begins* in it. That is how the server itself
reads: it passes over commit records that begin below the slot's confirmed position, and ends after the first record
that ends at or beyond `upto_lsn`. So ranges that meet have each transaction once, wherever they are cut.

Pure: no I/O; the shelves may lie on disk (spool.py).
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from walproxy.pipeline.cdc.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    Rows,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    Truncate,
    Type,
    Update,
)
from walproxy.pipeline.cdc.pgoutput import begin_of, commit_of, decode

Piece = tuple[Lsn, int, bytes]
"""(LSN, xid of the subtransaction or 0, the message as it came)."""

_DEFINITIONS = b"RY"
_ROW_KINDS = frozenset((b"I", b"U", b"D"))
_CHANGES = (Insert, Update, Delete, Truncate, LogicalMessage, Relation, Type, Origin)


class Shelf(Protocol):
    """The pieces of one transaction, in order, until it ends."""

    def add(self, piece: Piece) -> None: ...

    def pieces(self) -> Iterator[Piece]: ...

    def clear(self) -> None: ...


class Shelves(Protocol):
    """Makes shelves; they share one limit of memory."""

    def new(self) -> Shelf: ...


class Sent(NamedTuple):
    """A message, where the server sent it, and how many bytes it had."""

    lsn: Lsn
    message: Message | Rows
    size: int


class _Waiting(NamedTuple):
    """A transaction that is not committed yet, and its subtransactions that were rolled back."""

    shelf: Shelf
    rolled_back: set[int]


def committed(
    messages: Iterable[tuple[Lsn, bytes]],
    shelves: Shelves,
    *,
    version: int,
    begin_lsn: Lsn = 0,
    end_lsn: Lsn = LSN_MAX,
) -> Generator[Sent, None, None]:
    """Yield the committed transactions of what a slot sent: Begin, then relations, types and changes, then Commit.

    Relations and types may also stand outside. Messages that belong to no transaction are left out: nothing says
    in which range they belong.

    Args:
        messages: LSN and bytes, as the server sent them, from the slot's confirmed position on.
        begin_lsn, end_lsn: the range in which a transaction's commit record begins.

    Raises:
        RemoteProtocolError: a message is not understood, or comes where it cannot.
    """
    assembler = Assembler(shelves, version, begin_lsn, end_lsn)
    try:
        for lsn, data in messages:
            yield from assembler.take(lsn, data)
        assembler.check_end()
    finally:
        assembler.forget()


class Assembler:
    """What `committed` does with one message after the other.

    The state between two messages: at most one of `open` (B), `piece` (S) and `preparing` (b) is set.
    """

    def __init__(self, shelves: Shelves, version: int, begin_lsn: Lsn = 0, end_lsn: Lsn = LSN_MAX) -> None:
        self._shelves = shelves
        self._version = version
        self._begin_lsn = begin_lsn
        self._end_lsn = end_lsn
        self._open: Begin | None = None
        self._passes_over = False  # the open transaction is outside the range
        self._piece: int | None = None
        self._preparing: BeginPrepare | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._prepared: dict[int, _Waiting] = {}

    def take(self, lsn: Lsn, data: bytes) -> Iterable[Sent]:
        """Return what the message completes. Raises RemoteProtocolError."""
        if self._open is not None:
            return self._take_open(lsn, data)
        if self._piece is not None:
            self._shelve_piece(self._piece, lsn, data)
            return ()
        if self._preparing is not None:
            self._shelve_prepared(self._preparing, lsn, data)
            return ()
        return self._take_outside(lsn, data, decode(data, lsn=lsn, version=self._version))

    def take_rows(self, items: Sequence[tuple[Lsn, bytes]], begin: int, bytes_max: int) -> tuple[int, Sequence[Sent]]:
        """Take the changes of rows at the front of `items[begin:]` without decoding them, if a transaction is open.

        Args:
            bytes_max: at most one change more.

        Returns:
            The number of those taken, which may be 0, and what they are.
        """
        if self._open is None:
            return 0, ()
        size, end = 0, begin
        for end in range(begin, len(items)):
            data = items[end][1]
            if data[:1] not in _ROW_KINDS or size >= bytes_max:
                break
            size += len(data)
        else:
            end = len(items)
        if end == begin or self._passes_over:
            return end - begin, ()
        rows = Rows(items[begin:end], (self._open,), (0,), None)
        return end - begin, (Sent(items[begin][0], rows, size),)

    def take_transactions(
        self, items: Sequence[tuple[Lsn, bytes]], begin: int, end_lsn: Lsn, bytes_max: int
    ) -> tuple[int, Sequence[Sent]]:
        """Take whole transactions at the front of `items[begin:]` that only change rows, without decoding them.

        Args:
            end_lsn: only those whose commit record ends at or below it.
            bytes_max: at most one transaction more.

        Returns:
            As `take_rows`. What is left, `take` and `take_rows` take.
        """
        if self._open is not None or self._piece is not None or self._preparing is not None:
            return 0, ()
        rows: list[tuple[Lsn, bytes]] = []
        transactions: list[Begin] = []
        starts: list[int] = []
        size, taken, last_lsn = 0, begin, 0
        while taken < len(items) and size < bytes_max:
            opened = begin_of(items[taken][1])
            if opened is None or not self._is_in_range(opened.commit_lsn):
                break
            at = taken + 1
            while at < len(items) and items[at][1][:1] in _ROW_KINDS:
                size += len(items[at][1])
                at += 1
            ended = commit_of(items[at][1]) if at < len(items) else None
            if ended is None or ended.commit_lsn != opened.commit_lsn or ended.end_lsn > end_lsn:
                break
            transactions.append(opened)
            starts.append(len(rows))
            rows += items[taken + 1 : at]
            taken, last_lsn = at + 1, ended.end_lsn
        if taken == begin:
            return 0, ()
        return taken - begin, (Sent(items[begin][0], Rows(rows, transactions, starts, last_lsn), size),)

    def forget(self) -> None:
        """Give up the transactions that still wait."""
        for waiting in (*self._waiting.values(), *self._prepared.values()):
            waiting.shelf.clear()

    def check_end(self) -> None:
        """See that the messages did not end in the middle."""
        if self._open is not None or self._piece is not None or self._preparing is not None:
            raise RemoteProtocolError(
                "the changes of the slot end in the middle of a transaction: the connection broke; read them again"
            )

    def _take_open(self, lsn: Lsn, data: bytes) -> Iterable[Sent]:
        """Take a message between Begin and Commit: the way of nearly all."""
        kind = data[:1]
        if self._passes_over and kind != b"C" and kind not in (b"R", b"Y"):
            return ()
        message = decode(data, lsn=lsn, version=self._version)
        if isinstance(message, Commit):
            assert self._open is not None
            if message.commit_lsn != self._open.commit_lsn:
                raise _unexpected(lsn, message, "it ends a transaction other than the one that began")
            self._open = None
            return () if self._passes_over else (Sent(lsn, message, len(data)),)
        if not isinstance(message, _CHANGES):
            raise _unexpected(lsn, message, "it is inside a transaction")
        return (Sent(lsn, message, len(data)),)

    def _take_outside(self, lsn: Lsn, data: bytes, message: Message) -> Iterable[Sent]:
        match message:
            case Begin(commit_lsn=commit_lsn):
                self._open = message
                self._passes_over = not self._is_in_range(commit_lsn)
                return () if self._passes_over else (Sent(lsn, message, len(data)),)
            case StreamStart(xid=xid, is_first=is_first):
                if is_first == (xid in self._waiting):
                    raise _unexpected(lsn, message, "it is not the next piece")
                if is_first:
                    self._waiting[xid] = _Waiting(self._shelves.new(), set())
                self._piece = xid
            case StreamCommit(xid=xid, commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time_us=time_us):
                return self._give_out(lsn, self._take_waiting(lsn, message, xid), xid, commit_lsn, end_lsn, time_us)
            case StreamAbort(xid=xid, subxid=subxid):
                if subxid == xid:
                    self._take_waiting(lsn, message, xid).shelf.clear()
                elif xid in self._waiting:
                    self._waiting[xid].rolled_back.add(subxid)
                else:
                    raise _unexpected(lsn, message, "no part of its transaction was sent before")
            case StreamPrepare(xid=xid):
                self._prepared[xid] = self._take_waiting(lsn, message, xid)
            case BeginPrepare(xid=xid):
                self._preparing = message
                self._prepared[xid] = _Waiting(self._shelves.new(), set())
            case CommitPrepared(commit_lsn=commit_lsn, end_lsn=end_lsn, commit_time_us=time_us, xid=xid):
                waiting = self._prepared.pop(xid, None)
                if waiting is None:
                    raise _unexpected(lsn, message, "its prepared transaction was not sent before: drop the slot")
                return self._give_out(lsn, waiting, xid, commit_lsn, end_lsn, time_us)
            case RollbackPrepared(xid=xid):
                waiting = self._prepared.pop(xid, None)
                if waiting is not None:
                    waiting.shelf.clear()
            case Relation() | Type():
                return (Sent(lsn, message, len(data)),)
            case LogicalMessage(is_transactional=False):
                pass
            case _:
                raise _unexpected(lsn, message, "it belongs to no transaction")
        return ()

    def _shelve_piece(self, xid: int, lsn: Lsn, data: bytes) -> None:
        kind = data[:1]
        if kind == b"E":
            decode(data, lsn=lsn, version=self._version)
            self._piece = None
        elif kind in (b"I", b"U", b"D", b"T", b"M", b"R", b"Y") and len(data) >= 5:
            # Whole messages are decoded when the transaction is committed: most bytes of one that is not are spared.
            self._waiting[xid].shelf.add((lsn, int.from_bytes(data[1:5]), data))
        elif kind != b"O":
            raise _unexpected(lsn, decode(data, lsn=lsn, version=self._version, in_piece=True), "it is inside a piece")

    def _shelve_prepared(self, begin: BeginPrepare, lsn: Lsn, data: bytes) -> None:
        message = decode(data, lsn=lsn, version=self._version)
        if isinstance(message, Prepare) and message.xid == begin.xid:
            self._preparing = None
        elif isinstance(message, _CHANGES):
            self._prepared[begin.xid].shelf.add((lsn, 0, data))
        else:
            raise _unexpected(lsn, message, "it is inside a transaction that is being prepared")

    def _take_waiting(self, lsn: Lsn, message: Message, xid: int) -> _Waiting:
        waiting = self._waiting.pop(xid, None)
        if waiting is None:
            raise _unexpected(lsn, message, "no part of its transaction was sent before")
        return waiting

    def _give_out(
        self, lsn: Lsn, waiting: _Waiting, xid: int, commit_lsn: Lsn, end_lsn: Lsn, commit_time_us: int
    ) -> Iterator[Sent]:
        wanted = self._is_in_range(commit_lsn)
        try:
            if wanted:
                yield Sent(lsn, Begin(commit_lsn, commit_time_us, xid), 0)
            for piece_lsn, subxid, data in waiting.shelf.pieces():
                if data[0] in _DEFINITIONS or (wanted and subxid not in waiting.rolled_back):
                    message = decode(data, lsn=piece_lsn, version=self._version, in_piece=subxid != 0)
                    yield Sent(piece_lsn, message, len(data))
        finally:
            waiting.shelf.clear()
        if wanted:
            yield Sent(lsn, Commit(commit_lsn, end_lsn, commit_time_us), 0)

    def _is_in_range(self, commit_lsn: Lsn) -> bool:
        return self._begin_lsn <= commit_lsn < self._end_lsn


def _unexpected(lsn: Lsn, message: Message, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"the slot sent {type(message).__name__} at {format_lsn(lsn)}, but {reason}")
