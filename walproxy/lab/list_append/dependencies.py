"""The graph of a history: which transaction must precede which, in every serial order that explains it.

    ww    the second has appended to a list after the first
    wr    the second has read what the first has appended
    rw    the second has appended what the first has not read
    rt    the first was acknowledged before the second began: strict serializability

An append that no read has seen comes after all that some read has. Edges to such appends are their number times that of
the reads of the whole list, which is little for short lists; all other edges are linear in the history. For that, the
order of real time is a chain of moments, one for each acknowledgement, each a node: a transaction leads to the moment
of its own, and the last moment before its BEGIN leads to it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple

from walproxy.lab.list_append.transactions import ListTransaction
from walproxy.lab.list_append.versions import Versions

Kind = Literal["ww", "wr", "rw", "rt"]


class Edge(NamedTuple):
    """An edge to a node. `key` is the list that it follows from, -1 for real time."""

    to: int
    kind: Kind
    key: int = -1


Graph = list[list[Edge]]
"""By node its edges. The first nodes are the transactions of the history by their index, the others are moments."""


def build_graph(history: Sequence[ListTransaction], versions: Versions) -> Graph:
    """Return the graph of the transactions that count; the others have no edges."""
    graph: Graph = [[] for _ in history]
    _add_lists(graph, versions)
    _add_real_time(graph, history, versions.counting)
    return graph


def _add_lists(graph: Graph, versions: Versions) -> None:
    counts = set(versions.counting)
    # By list the transaction of each place of its order, None for one that does not count.
    places = {
        key: [writer if (writer := versions.writer_of.get(value)) in counts else None for value in order]
        for key, order in versions.orders.items()
    }
    following = {key: _following(writers, versions.unseen.get(key, [])) for key, writers in places.items()}

    def add(before: int | None, after: int | None, kind: Kind, key: int) -> None:
        if before is not None and after is not None and before != after:
            graph[before].append(Edge(after, kind, key))

    for key, writers in places.items():
        for place, writer in enumerate(writers):
            for after in following[key][place + 1]:
                add(writer, after, "ww", key)
    for (reader, key), items in versions.external.items():
        if key in places:
            if items:
                add(places[key][len(items) - 1], reader, "wr", key)
            for after in following[key][len(items)]:
                add(reader, after, "rw", key)


def _following(writers: list[int | None], unseen: list[int]) -> list[list[int]]:
    """Return for each length of a list, from 0 on, the transactions that come next."""
    found = [unseen]
    for writer in reversed(writers):
        found.append(found[-1] if writer is None else [writer])
    return found[::-1]


def _add_real_time(graph: Graph, history: Sequence[ListTransaction], counting: Sequence[int]) -> None:
    acknowledged = [index for index in counting if history[index].outcome == "ok"]
    acknowledged.sort(key=lambda index: history[index].ended_at)
    ended = [history[index].ended_at for index in acknowledged]
    first = len(graph)
    graph.extend([] for _ in acknowledged)
    for place, index in enumerate(acknowledged):
        graph[index].append(Edge(first + place, "rt"))
        if place > 0:
            graph[first + place - 1].append(Edge(first + place, "rt"))
    for index in counting:
        place = bisect_left(ended, history[index].begun_at)
        if place > 0:
            graph[first + place - 1].append(Edge(index, "rt"))
