"""The anomalies of a history: what no serial order of its transactions explains that agrees with real time.

A history without an anomaly is strictly serializable: the order of its lists is known, so a topological order of an
acyclic graph explains every read. Of each strongly connected component one cycle is reported, of the first of these
kinds that it has:

    G0          of ww edges only: appends of two transactions are interleaved
    G1c         of ww and wr edges: transactions have read each other's appends
    G-single    with one rw edge: a transaction has read a state from before a transaction that it depends on
    G2          with several rw edges, write skew for instance

With rt edges their names end in -realtime: each transaction alone is explained, but one that began after another one
was acknowledged comes before it. A stale read after a failover is a G-single-realtime.
"""

from collections.abc import Sequence
from typing import Final

from walproxy.lab.list_append.cycles import Cycle, components, shortest_cycle, single_cycle
from walproxy.lab.list_append.dependencies import Graph, Kind, build_graph
from walproxy.lab.list_append.transactions import ListTransaction
from walproxy.lab.list_append.versions import Anomaly, find_versions

# First what each transaction alone contradicts, then what contradicts real time.
_LEVELS: Final[tuple[tuple[str, tuple[Kind, ...]], ...]] = (("", ()), ("-realtime", ("rt",)))
_WRITES: Final[tuple[Kind, ...]] = ("ww",)
_READS: Final[tuple[Kind, ...]] = ("ww", "wr")
_ALL: Final[tuple[Kind, ...]] = ("ww", "wr", "rw")


def find_anomalies(history: Sequence[ListTransaction]) -> list[Anomaly]:
    """Return the anomalies of a history; none if it is strictly serializable. Its order does not matter.

    Raises:
        ValueError: two appends have the same value, so the history cannot be checked.
    """
    versions = find_versions(history)
    graph = build_graph(history, versions)
    found = components(graph, range(len(graph)), (*_ALL, "rt"))
    return versions.anomalies + [_anomaly(history, graph, component) for component in found]


def _anomaly(history: Sequence[ListTransaction], graph: Graph, component: list[int]) -> Anomaly:
    kind, cycle = _classify(graph, component)
    return Anomaly(kind, _described(history, cycle))


def _classify(graph: Graph, component: list[int]) -> tuple[str, Cycle]:
    """Return the first kind that a component has, with a cycle."""
    for suffix, extra in _LEVELS:
        for kind, kinds in (("G0", _WRITES), ("G1c", _READS)):
            if parts := components(graph, component, (*kinds, *extra)):
                return kind + suffix, _shortest(graph, parts, (*kinds, *extra))
        if single := single_cycle(graph, component, "rw", (*_READS, *extra)):
            return "G-single" + suffix, single
        if parts := components(graph, component, (*_ALL, *extra)):
            return "G2" + suffix, _shortest(graph, parts, (*_ALL, *extra))
    raise AssertionError("a component has a cycle")


def _shortest(graph: Graph, parts: list[list[int]], kinds: tuple[Kind, ...]) -> Cycle:
    return min((shortest_cycle(graph, part, kinds) for part in parts), key=len)


def _described(history: Sequence[ListTransaction], cycle: Cycle) -> str:
    """Return a cycle in words, without the moments between its transactions."""
    begin = next(place for place, (node, _) in enumerate(cycle) if node < len(history))
    steps = [(node, edge) for node, edge in [*cycle[begin:], *cycle[:begin]] if node < len(history)]
    sentences = []
    for place, (node, edge) in enumerate(steps):
        before, after = history[node], history[steps[(place + 1) % len(steps)][0]]
        sentences.append(
            {
                "ww": f"{after.name} appended to list {edge.key} after {before.name}",
                "wr": f"{after.name} read in list {edge.key} what {before.name} appended",
                "rw": f"{before.name} did not read in list {edge.key} what {after.name} appended",
                "rt": f"{after.name} began after {before.name} was acknowledged",
            }[edge.kind]
        )
    return "; ".join(sentences)
