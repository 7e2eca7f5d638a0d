"""Formulas of an election, as docs/design/protocol.md states them: quorums, the donor, and where a term begins.

Part of the reference of the proposer (proposer.py). Nothing here is shared with walproxy/proposer or
safekeeper/consensus but the types: an error in one of the two must not be an error in the other. Each function looks
at whole values; none is fast. The numbers in the docstrings are those of the protocol.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from safekeeper.consensus.control_state import TliHistory
from safekeeper.consensus.membership import Identity, Membership
from safekeeper.consensus.messages import VoteResponse
from safekeeper.consensus.term_history import HistoryEntry, TermHistory
from tests.simulation.references.acceptor.histories import bounded, entries_of_log, last_term, tli_of_byte
from walproxy.proposer.primary import PrimaryIdentity
from walproxy.proposer.purpose import CancelSeal, Purpose, Readmit, Reserve, Seal, TakeBack

Votes = Mapping[Identity, VoteResponse]

TLI_HISTORY_BYTES_MAX = 512 << 10
ENTRIES_MAX = 10_000
MAJORITY_ABOVE = 31


class Half(NamedTuple):
    """The members of one half of a membership, and the number of them in a commit and in an elect quorum."""

    folders: frozenset[Identity]
    commit: int
    elect: int


class Beginning(NamedTuple):
    """Where a term begins, the timeline that is streamed from there, and whether it cuts the donor's log (4.4)."""

    lsn: int
    tli: int
    cuts: bool


class Refused(Exception):
    """This primary cannot continue that log."""


# Quorums (Parts).


@lru_cache
def halves(membership: Membership) -> tuple[Half, ...]:
    """The two halves of a joint membership, or the one."""
    pairs = [(membership.members, membership.quorum_sizes)]
    if membership.new_members:
        pairs.append((membership.new_members, membership.new_quorum_sizes))
    return tuple(
        Half(
            frozenset((member.id, member.incarnation) for member in members),
            size_of_quorum(sizes.commit, len(members)),
            size_of_quorum(sizes.elect, len(members)),
        )
        for members, sizes in pairs
    )


@lru_cache
def size_of_quorum(expression: str, count: int) -> int:
    """Parts: an expression in N, whose division drops the remainder; of more members it is a majority."""
    if count > MAJORITY_ABOVE:
        return count // 2 + 1
    size: int = eval(expression.replace("/", "//"), {"__builtins__": {}, "N": count})
    return size


def can_elect(membership: Membership, folders: Iterable[Identity]) -> bool:
    """Whether these data folders are an elect quorum of each half."""
    present = set(folders)
    return all(len(present & half.folders) >= half.elect for half in halves(membership))


def can_commit(membership: Membership, folders: Iterable[Identity]) -> bool:
    """Whether these data folders are a commit quorum of each half."""
    present = set(folders)
    return all(len(present & half.folders) >= half.commit for half in halves(membership))


def _positions(membership: Membership, lsns: Mapping[Identity, int]) -> list[int]:
    """7.5: element [N - Q] of each half, in ascending order; what is not in `lsns` counts as 0."""
    return [
        sorted([lsns.get(folder, 0) for folder in half.folders])[len(half.folders) - half.commit]
        for half in halves(membership)
    ]


def committed(membership: Membership, lsns: Mapping[Identity, int], start_lsn: int) -> int:
    """7.5: the position of a commit quorum, 0 below the term's start."""
    lsn = min(_positions(membership, lsns))
    return lsn if lsn >= start_lsn else 0


# The votes (4.1, 4.5, 5.1).


def donor_of(votes: Votes) -> Identity:
    """4.1."""
    newest = max((last_term(vote.history), vote.flush_lsn) for vote in votes.values())
    return min(folder for folder, vote in votes.items() if (last_term(vote.history), vote.flush_lsn) == newest)


def possibly_committed(votes: Votes, membership: Membership, held: tuple[int, int]) -> int:
    """4.5, 10.8: M. `held`: the term that this run held last, and its commit_lsn, at least its start."""
    donor = votes[donor_of(votes)]
    term = last_term(donor.history)
    if term and term == held[0]:
        return held[1]
    if all(folder in votes for half in halves(membership) for folder in half.folders):
        flush_lsns = {folder: vote.flush_lsn for folder, vote in votes.items() if last_term(vote.history) == term}
        return max(*_positions(membership, flush_lsns), *[e.start_lsn for e in donor.history if e.term == term], 0)
    return donor.flush_lsn


def numbers_of_tail(purpose: Purpose | None, floor: int, given: int) -> tuple[int, int]:
    """13.2, 13.3: floor and given of a tail term, from those of the donor's last entry."""
    match purpose:
        case Seal(k):
            return max(k, floor), given
        case Reserve(_, n):
            return floor, max(n, given)
        case TakeBack(k, g):
            return min(k - 1, floor), g
        case CancelSeal(k):
            return k - 1, given
        case Readmit(p):
            return min(p - 1, floor), given
    return floor, given


def is_admitted(purpose: Purpose | None, donor: VoteResponse, own_terms: Iterable[int]) -> bool:
    """13.3: whether a log admits a purpose. `own_terms`: the terms that this run has led for one."""
    if purpose is None or isinstance(purpose, Readmit) or (isinstance(purpose, Reserve) and purpose.is_taken):
        return True
    if tli_of_log(donor.history, donor.flush_lsn) != purpose.tli:
        return False
    if isinstance(purpose, CancelSeal):
        return donor.history[-1].floor >= purpose.tli
    return isinstance(purpose, Seal) or donor.history[-1].term in own_terms


def history_of_term(
    votes: Votes,
    membership: Membership,
    beginning: Beginning,
    term: int,
    gives_up: bool,
    purpose: Purpose | None,
) -> tuple[TermHistory, int]:
    """5.1: the history of a new term, and the highest forgotten term."""
    donor = votes[donor_of(votes)]
    kept = tuple(
        entry
        for index, entry in enumerate(donor.history)
        if entry.start_lsn < beginning.lsn
        or (index == 0 and entry.start_lsn == beginning.lsn and entry.tli == beginning.tli)
    )
    gives_up = gives_up or any(entry.gives_up for entry in donor.history if entry not in kept)
    floor, given = (donor.history[-1].floor, donor.history[-1].given) if donor.history else (0, 0)
    if purpose is None:
        given = max(given, beginning.tli)
    numbers = numbers_of_tail(purpose, floor, given)
    history = (*kept, HistoryEntry(term, beginning.lsn, beginning.tli, gives_up, *numbers))
    forgotten = donor.forgotten_term
    if all(folder in votes for half in halves(membership) for folder in half.folders):
        lowest = min((vote.wal_begin_lsn for vote in votes.values() if vote.flush_lsn), default=0)
        history, forgotten = _without_front(history, forgotten, lowest)
    return bounded(history, forgotten, min(donor.commit_lsn, beginning.lsn), ENTRIES_MAX)


def _without_front(history: TermHistory, forgotten: int, lowest_lsn: int) -> tuple[TermHistory, int]:
    """5.1, H2: without what lies wholly below the lowest beginning of any member's WAL."""
    begin_below = [index for index, entry in enumerate(history) if entry.start_lsn < lowest_lsn]
    last = max(begin_below, default=0)
    firsts = {0, *(index for index, pair in enumerate(pairwise(history), start=1) if pair[0].tli != pair[1].tli)}
    gone = [e for index, e in enumerate(history) if index < last and index not in firsts]
    return tuple(e for e in history if e not in gone), max([forgotten, *(e.term for e in gone)])


def tli_histories_of(
    history: TermHistory, of_primary: Iterable[TliHistory], of_donor: Iterable[TliHistory]
) -> tuple[TliHistory, ...]:
    """5.1: those of the timelines in it: the primary's, else the donor's; the newest that fit."""
    files = {**{each.tli: each for each in of_donor}, **{each.tli: each for each in of_primary}}
    wanted = sorted((files[tli] for tli in {entry.tli for entry in history} if tli in files), key=lambda e: e.tli)
    for first in range(len(wanted)):
        if sum(len(each.content) for each in wanted[first:]) <= TLI_HISTORY_BYTES_MAX or first == len(wanted) - 1:
            return tuple(wanted[first:])
    return ()


# The primary (4.3, 4.4, 13.5).


def beginning_of_term(vote: VoteResponse, primary: PrimaryIdentity) -> Beginning:
    """4.3 to 4.5, 13.5: where a term begins behind this donor's log.

    Raises:
        Refused: the primary cannot continue that log.
    """
    if not vote.history:
        return Beginning(primary.flush_lsn - primary.flush_lsn % primary.segment_size, primary.tli, False)
    if primary.tli <= vote.history[-1].floor:
        raise Refused("it is sealed")
    beginning = _fork(vote.history, vote.flush_lsn, primary)
    if beginning.lsn < vote.wal_begin_lsn:
        raise Refused("the fork is below the donor's WAL")
    return beginning


def fits_log(history: TermHistory, end_lsn: int, primary: PrimaryIdentity) -> bool:
    """4.4: whether a log that ends there can be continued by this primary."""
    try:
        _fork(history, end_lsn, primary)
    except Refused:
        return False
    return True


def _fork(history: TermHistory, end_lsn: int, primary: PrimaryIdentity) -> Beginning:
    """4.4: both lines as lists of (timeline, end), walked side by side; timelines without a byte are left out."""
    log = _line(history, end_lsn)
    line = _line_of_primary(primary)
    if not log:
        if primary.flush_lsn < end_lsn:
            raise Refused("its WAL does not reach the log")
        return Beginning(end_lsn, _tli_of_primary(primary, end_lsn), False)
    if log[0][0] not in [tli for tli, _ in line]:
        forks = [(each.tli, each.end_lsn) for each in primary.ancestors if each.tli == log[0][0]]
        if not forks:
            raise Refused("the log's first timeline is not in its line")
        line = forks + [(tli, end) for tli, end in line if tli > log[0][0]]
    tlis = [tli for tli, _ in line]
    line = line[tlis.index(log[0][0]) :]
    shared = 0
    while shared + 1 < min(len(log), len(line)) and log[shared + 1][0] == line[shared + 1][0]:
        if log[shared][1] != line[shared][1]:
            break
        shared += 1
    # Up to `shared` both have the same timelines, and have left all but that one at the same positions.
    (tli, log_end), (_, line_end) = log[shared], line[shared]
    log_stays, line_stays = shared == len(log) - 1, shared == len(line) - 1
    if line_stays:
        if not log_stays:
            raise Refused("the log has left the timeline on which the primary is")
        if line_end < log_end:
            raise Refused("its WAL ends below the log")
        return Beginning(log_end, tli, False)
    if line_end > log_end:
        if not log_stays:
            raise Refused("the log has left that timeline earlier")
        return Beginning(log_end, tli, False)
    return Beginning(line_end, line[shared + 1][0], line_end < end_lsn)


def _line_of_primary(primary: PrimaryIdentity) -> list[tuple[int, int]]:
    """Its timelines that have a byte, each with where its line leaves it."""
    line: list[tuple[int, int]] = []
    for tli, line_end in [(each.tli, each.end_lsn) for each in primary.ancestors]:
        if line_end > max((end for _, end in line), default=0):
            line.append((tli, line_end))
    return [*line, (primary.tli, primary.flush_lsn)]


def _tli_of_primary(primary: PrimaryIdentity, lsn: int) -> int:
    """The timeline on which it has the byte at a position, or will have it."""
    return next((tli for tli, end in _line_of_primary(primary) if end > lsn), primary.tli)


def _line(history: TermHistory, end_lsn: int) -> list[tuple[int, int]]:
    """The timelines of the log's bytes, each with where the log leaves it."""
    ends = [entry.start_lsn for entry in history[1:]] + [end_lsn]
    line: dict[int, int] = {}
    for entry, end in zip(history, ends, strict=True):
        if end != entry.start_lsn:
            line[entry.tli] = end
    return list(line.items())


# What is compared (4.6).


def segment_before(lsn: int, segment_size: int) -> int:
    """The start of the segment that holds byte lsn - 1."""
    return (lsn - 1) // segment_size * segment_size


def tli_of_comparison(history: TermHistory, begin_lsn: int, lsn: int, tli: int, segment_size: int) -> int:
    """4.6: the timeline on which the primary has the first segment of [begin_lsn, lsn), if it goes on with `tli` there.

    That is the timeline of the segment's last byte.
    """
    last = begin_lsn + segment_size - 1
    return tli if last >= lsn else tli_of_byte(history, last)


def tli_of_log(history: TermHistory, end_lsn: int) -> int:
    """12.3: the timeline of the last byte, 0 without a byte."""
    entries = entries_of_log(history, end_lsn)
    return tli_of_byte(history, end_lsn - 1) if entries and end_lsn > history[0].start_lsn else 0
