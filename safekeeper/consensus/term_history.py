"""Term histories: which term wrote which part of a log.

A history is a tuple of entries in the order of the log. Entry i states: from `start_lsn` up to the start of entry i+1
(or to the log's end) the bytes were first streamed in `term`, on PostgreSQL timeline `tli`. A term is won at most
once (S3), so two logs that share a term share every byte up to the end of that term in the shorter of the two.
That is what makes `divergence` exact: no byte has to be compared.

An entry of length zero is meaningful as the last one: it records that the term adopted the log (S4), so its owner
counts as newer.

Old entries may be missing: `forgotten_term` is the highest term that was removed, 0 if none was. The remaining entries
of terms up to it, the first entry of each timeline, do not tell where two logs diverge.
"""

from typing import NamedTuple

import msgspec

from safekeeper.base.errors import RemoteProtocolError
from safekeeper.base.lsn import LSN_MAX, Lsn, format_lsn
from safekeeper.base.status_fields import HistoryTerm


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True):
    """One term's part of the log.

    Attributes:
        term: the term that wrote it; positive, strictly increasing along a history.
        start_lsn: its first byte; never decreasing along a history.
        tli: PostgreSQL's timeline id of those bytes; never decreasing along a history.
        gives_up: an operator allowed this fork to cut WAL that may have been committed (S9).
        floor: the highest timeline that a failover has sealed, 0 if none.
        given: the highest timeline that was handed out for a promotion, or was a primary's.
    """

    term: int
    start_lsn: Lsn
    tli: int
    gives_up: bool = False
    floor: int = 0
    given: int = 0


TermHistory = tuple[HistoryEntry, ...]


def listed_terms(history: TermHistory) -> list[HistoryTerm]:
    """Return a history as /status has it."""
    return [
        HistoryTerm(
            term=entry.term,
            start_lsn=format_lsn(entry.start_lsn),
            tli=entry.tli,
            gives_up=entry.gives_up,
            floor=entry.floor,
            given=entry.given,
        )
        for entry in history
    ]


# Votes and elections must fit a frame with their histories: 10,000 entries take a quarter of a MiB.
HISTORY_ENTRIES_MAX = 10_000


class Divergence(NamedTuple):
    """Where two logs diverge.

    Attributes:
        lsn: the first position at which they may differ: bytes below it are equal in both.
        gives_up: the other log diverges with an entry that gives up committed WAL.
    """

    lsn: Lsn
    gives_up: bool = False


def check_history(history: TermHistory) -> None:
    """Refuse a history that no valid peer can have.

    Raises:
        RemoteProtocolError: terms do not increase, positions or timelines go back, or a field is zero.
    """
    previous: HistoryEntry | None = None
    for entry in history:
        if entry.term <= 0 or entry.tli <= 0 or min(entry.floor, entry.given) < 0 or not 0 < entry.start_lsn <= LSN_MAX:
            raise RemoteProtocolError(f"term history entry {entry} has a field out of range")
        if previous is not None and (
            entry.term <= previous.term or entry.start_lsn < previous.start_lsn or entry.tli < previous.tli
        ):
            raise RemoteProtocolError(f"term history goes back from {previous} to {entry}")
        previous = entry


def cut_history(history: TermHistory, end_lsn: Lsn) -> TermHistory:
    """Return the entries that apply to a log that ends at `end_lsn`: those that start at or below it."""
    count = len(history)
    while count and history[count - 1].start_lsn > end_lsn:
        count -= 1
    return history[:count]


def forget_front(history: TermHistory, forgotten_term: int, kept_lsn: Lsn) -> tuple[TermHistory, int]:
    """Remove the entries that are completely below `kept_lsn`; return the others, and the highest removed term.

    The last entry that starts below it stays, and so does the first one of each timeline.
    """
    count = max((index for index, entry in enumerate(history) if entry.start_lsn < kept_lsn), default=0)
    return forget_entries(history, forgotten_term, count)


def bound_history(history: TermHistory, forgotten_term: int, commit_lsn: Lsn) -> tuple[TermHistory, int]:
    """Remove the oldest entries if there are more than fit a message, even if their WAL is retained.

    The oldest remaining one begins below `commit_lsn`, so a quorum has adopted it or a later one, and shares a term
    with this history. A member that has adopted neither refuses the history (5.4).
    """
    count = len(history) - HISTORY_ENTRIES_MAX
    while count > 0 and history[count].start_lsn >= commit_lsn:
        count -= 1
    return forget_entries(history, forgotten_term, max(count, 0))


def forget_entries(history: TermHistory, forgotten_term: int, count: int) -> tuple[TermHistory, int]:
    """Remove the first `count` entries except the landmarks, the first of each timeline."""
    landmarks, highest = [], 0
    for index, entry in enumerate(history[:count]):
        if index == 0 or entry.tli != history[index - 1].tli:
            landmarks.append(entry)
        else:
            highest = entry.term
    if not highest:
        return history, forgotten_term
    return (*landmarks, *history[count:]), max(forgotten_term, highest)


def last_term(history: TermHistory) -> int:
    """Return the term of the last entry, 0 for an empty history."""
    return history[-1].term if history else 0


def tli_at(history: TermHistory, lsn: Lsn) -> int:
    """Return the timeline of the byte at `lsn`; of the first entry if `lsn` is below it; 0 if empty."""
    for entry in reversed(history):
        if entry.start_lsn <= lsn:
            return entry.tli
    return history[0].tli if history else 0


def last_tli(history: TermHistory, log_end_lsn: Lsn) -> int:
    """Return the timeline of the last byte of a log that ends at `log_end_lsn`, 0 if it has no byte."""
    if not history or log_end_lsn <= history[0].start_lsn:
        return 0
    return tli_at(history, log_end_lsn - 1)


def next_tli_switch(history: TermHistory, lsn: Lsn) -> Lsn:
    """Return the first position above `lsn` where the timeline changes, `LSN_MAX` if it does not change."""
    tli = tli_at(history, lsn)
    for entry in history:
        if entry.start_lsn > lsn and entry.tli != tli:
            return entry.start_lsn
    return LSN_MAX


def term_end(history: TermHistory, index: int, log_end_lsn: Lsn) -> Lsn:
    """Return the end of entry `index`: the next entry's start, or the log's end."""
    return history[index + 1].start_lsn if index + 1 < len(history) else log_end_lsn


def divergence(own: TermHistory, own_end_lsn: Lsn, other: TermHistory, forgotten_term: int = 0) -> Divergence | None:
    """Return where the own log and the log of `other` diverge (S5); None if they share no term.

    Args:
        own: the own history; entries above `own_end_lsn` are ignored.
        own_end_lsn: the end of the own log.
        other: the history to adopt; its last term has no end yet.
        forgotten_term: the highest term that was removed from one of the two: terms up to it do not count.

    Raises:
        RemoteProtocolError: both have a term, but with different entries: one of the two is forged or damaged.
    """
    own = tuple(entry for entry in cut_history(own, own_end_lsn) if entry.term > forgotten_term)
    other = tuple(entry for entry in other if entry.term > forgotten_term)
    index_of = {entry.term: index for index, entry in enumerate(other)}
    for own_index in range(len(own) - 1, -1, -1):
        other_index = index_of.get(own[own_index].term)
        if other_index is None:
            continue
        if own[: own_index + 1][-(other_index + 1) :] != other[: other_index + 1][-(own_index + 1) :]:
            raise RemoteProtocolError(
                f"two different histories contain term {own[own_index].term}: "
                f"{own[own_index]} here, {other[other_index]} there"
            )
        lsn = min(term_end(own, own_index, own_end_lsn), term_end(other, other_index, LSN_MAX))
        leaves_with = other[other_index + 1 : other_index + 2]
        return Divergence(lsn, any(entry.gives_up for entry in leaves_with))
    return None


def describe_history(history: TermHistory) -> str:
    """Return the history for a log line: `1@0/1000000/1 3@0/2000028/2!`; `!` gives up WAL."""
    return " ".join(f"{e.term}@{format_lsn(e.start_lsn)}/{e.tli}{'!' * e.gives_up}" for e in history)
