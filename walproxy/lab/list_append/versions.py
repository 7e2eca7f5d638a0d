"""The order of the appends to each list: all reads of a list are beginnings of its longest read.

What contradicts that needs no graph. Kinds of anomalies, by Adya's names where there is one:

    G1a             a transaction has read an append that was certainly not committed
    G1b             a transaction has read a list between two appends of another transaction
    Stranger        a read has a value that was not appended, or to another list
    Duplicate       a read has a value twice
    Internal        a transaction contradicts itself: its reads lack its own appends, have them too early, or differ
    Incompatible    two reads of a list, neither of which is the beginning of the other
    Torn            the appends of one transaction to one list are not together, or not in their order
    Lost            a read that began after an append was acknowledged, and no read at all, has it
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from walproxy.lab.list_append.transactions import Append, ListTransaction, Read, counting, writers

_SHOWN = 8


class Anomaly(NamedTuple):
    """What no serial order explains."""

    kind: str
    message: str


@dataclass
class Versions:
    """What the transactions that count have appended and read.

    Attributes:
        counting: their indexes in the history, ascending.
        writer_of: by value the index of the transaction that has appended it.
        orders: by list its longest read, without lists whose reads contradict each other.
        places: by value its place in the order of its list.
        external: by transaction and list what it has read of it, without its own appends.
        appends: by transaction and list what it has appended to it, in order.
        unseen: by list the transactions with an append to it that no read has; without those that are lost.
        anomalies: of single lists.
    """

    counting: list[int] = field(default_factory=list)
    writer_of: dict[int, int] = field(default_factory=dict)
    orders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    external: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    appends: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    unseen: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    anomalies: list[Anomaly] = field(default_factory=list)


def find_versions(history: Sequence[ListTransaction]) -> Versions:
    """Return the versions of all lists.

    Raises:
        ValueError: two appends have the same value.
    """
    versions = Versions(writer_of=writers(history))
    versions.counting = counting(history, versions.writer_of)
    reads: dict[int, list[tuple[int, Read]]] = defaultdict(list)
    for index in versions.counting:
        _read_transaction(history, index, versions)
        for step in history[index].steps:
            if isinstance(step, Read):
                reads[step.key].append((index, step))
    wrong_lists = {key for key, found in reads.items() if not _order(history, key, found, versions)}
    for (index, key), items in versions.external.items():
        _check_end(history, index, key, items, versions)
    last_begun = {key: max(found, key=lambda each: history[each[0]].begun_at)[0] for key, found in reads.items()}
    for (index, key), values in versions.appends.items():
        if key not in wrong_lists:
            _check_appends(history, index, key, values, last_begun.get(key), versions)
    return versions


def _read_transaction(history: Sequence[ListTransaction], index: int, versions: Versions) -> None:
    """Divide what a transaction has read into its own appends and those of others."""
    transaction = history[index]
    own: dict[int, tuple[int, ...]] = {}
    expected: dict[int, tuple[int, ...]] = {}
    for step in transaction.steps:
        key = step.key
        if isinstance(step, Append):
            own[key] = (*own.get(key, ()), step.value)
            if key in expected:
                expected[key] += (step.value,)
            continue
        appended = own.get(key, ())
        before = len(step.items) - len(appended)
        if key not in expected and step.items[max(0, before) :] == appended:
            versions.external[index, key] = step.items[:before]
            expected[key] = step.items
        elif step.items != expected.get(key):
            message = f"{transaction.name} has read {_shown(step.items)} in list {key}, against its own steps before"
            versions.anomalies.append(Anomaly("Internal", message))
            expected[key] = step.items
    for key, values in own.items():
        if not set(values).isdisjoint(versions.external.get((index, key), ())):
            message = f"{transaction.name} has read its own append to list {key} before it appended {_shown(values)}"
            versions.anomalies.append(Anomaly("Internal", message))
        versions.appends[index, key] = values


def _order(history: Sequence[ListTransaction], key: int, reads: list[tuple[int, Read]], versions: Versions) -> bool:
    """Find the order of a list by its reads; return whether there is one."""
    by, longest = max(reads, key=lambda each: len(each[1].items))
    items = longest.items
    found = []
    if len(set(items)) < len(items):
        found.append(Anomaly("Duplicate", f"{history[by].name} has read {_shown(items)} in list {key}"))
    for index, read in reads:
        if read.items != items[: len(read.items)]:
            message = (
                f"{history[index].name} has read {_shown(read.items)} in list {key}, and {history[by].name} "
                f"{_shown(items)}: neither is the beginning of the other"
            )
            found.append(Anomaly("Incompatible", message))
            found += _foreign(history, index, read, versions)
            break
    found += _foreign(history, by, longest, versions)
    versions.anomalies += found
    if any(each.kind in ("Duplicate", "Incompatible") for each in found):
        return False
    versions.orders[key] = items
    versions.places.update((value, place) for place, value in enumerate(items))
    return True


def _foreign(history: Sequence[ListTransaction], index: int, read: Read, versions: Versions) -> list[Anomaly]:
    """Return the anomalies of values that should not be in a list at all."""
    found = []
    for value in read.items:
        writer = versions.writer_of.get(value)
        if writer is None or Append(read.key, value) not in history[writer].steps:
            why = "which was not appended to it"
            found.append(Anomaly("Stranger", f"{history[index].name} has read {value} in list {read.key}, {why}"))
        elif history[writer].outcome == "fail":
            why = f"an append of {history[writer].name}, which was not committed"
            found.append(Anomaly("G1a", f"{history[index].name} has read {value} in list {read.key}, {why}"))
    return found


def _check_end(
    history: Sequence[ListTransaction], index: int, key: int, items: tuple[int, ...], versions: Versions
) -> None:
    """Check that a read does not end between two appends of another transaction."""
    writer = versions.writer_of.get(items[-1]) if items else None
    if writer is None or writer == index:
        return
    own = versions.appends.get((writer, key), ())
    if own and items[-1] != own[-1]:
        message = f"{history[index].name} has read list {key} up to {items[-1]}, and {history[writer].name} appended "
        versions.anomalies.append(Anomaly("G1b", message + f"{_shown(own)} to it"))


def _check_appends(
    history: Sequence[ListTransaction],
    index: int,
    key: int,
    values: tuple[int, ...],
    last_reader: int | None,
    versions: Versions,
) -> None:
    """Check that a transaction's appends to a list are together in it, or that none is and no read proves a loss."""
    order = versions.orders.get(key, ())
    places = [versions.places[value] for value in values if value in versions.places]
    if places:
        there = order[min(places) : min(places) + len(values)]
        # Fewer are there if the longest read is the transaction's own, before its last append.
        if there != values[: len(there)]:
            message = f"{history[index].name} has appended {_shown(values)} to list {key}, which has {_shown(there)}"
            versions.anomalies.append(Anomaly("Torn", message))
        return
    transaction = history[index]
    if last_reader is not None and transaction.outcome == "ok":
        reader = history[last_reader]
        if reader.begun_at > transaction.ended_at:
            message = f"{_shown(values)}, appended to list {key} by {transaction.name} and acknowledged, is missing in "
            versions.anomalies.append(Anomaly("Lost", message + f"what {reader.name} has read later: {_shown(order)}"))
            return
    versions.unseen[key].append(index)


def _shown(items: Sequence[int]) -> str:
    """Return the end of a list in words."""
    cut = "..., " if len(items) > _SHOWN else ""
    return f"[{cut}{', '.join(map(str, items[-_SHOWN:]))}]"
