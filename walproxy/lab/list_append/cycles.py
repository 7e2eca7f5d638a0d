"""Strongly connected components of a graph, by Tarjan's algorithm, and a short cycle in one."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from walproxy.lab.list_append.dependencies import Edge, Graph, Kind

_STARTS_MAX = 32
_SINGLES_MAX = 1000

Cycle = list[tuple[int, Edge]]
"""Each node with the edge to the next one; the last edge leads to the first node."""


def components(graph: Graph, nodes: Collection[int], kinds: Collection[Kind]) -> list[list[int]]:
    """Return the strongly connected components of more than one node, by the edges of these kinds between the nodes.

    Linear, and without recursion: a history has more transactions than Python has stack.
    """
    within = set(nodes)
    found: list[list[int]] = []
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    path: list[tuple[int, Iterator[Edge]]] = []

    def enter(node: int) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        on_stack.add(node)
        path.append((node, iter(graph[node])))

    for root in nodes:
        if root not in order:
            enter(root)
        while path:
            node, edges = path[-1]
            for edge in edges:
                if edge.kind not in kinds or edge.to not in within:
                    continue
                if edge.to not in order:
                    enter(edge.to)
                    break
                if edge.to in on_stack:
                    lowest[node] = min(lowest[node], order[edge.to])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        found.append(component)
    return found


def shortest_cycle(graph: Graph, component: Sequence[int], kinds: Collection[Kind]) -> Cycle:
    """Return a short cycle in a component of these kinds, by breadth-first searches from a few of its nodes."""
    within = set(component)
    cycles = (_path(graph, start, start, within, kinds) for start in component[:_STARTS_MAX])
    return min((cycle for cycle in cycles if cycle is not None), key=len)


def single_cycle(graph: Graph, nodes: Sequence[int], single: Kind, kinds: Collection[Kind]) -> Cycle | None:
    """Return a short cycle with exactly one edge of the kind `single`, and else of `kinds`; None if none was found.

    A thousand edges are tried.
    """
    within = set(nodes)
    best: Cycle | None = None
    tried = 0
    for node in nodes:
        for edge in graph[node]:
            if edge.kind == single and edge.to in within and tried < _SINGLES_MAX:
                tried += 1
                path = _path(graph, edge.to, node, within, kinds)
                if path is not None and (best is None or len(path) + 1 < len(best)):
                    best = [(node, edge), *path]
    return best


def _path(graph: Graph, start: int, end: int, within: Collection[int], kinds: Collection[Kind]) -> Cycle | None:
    """Return a shortest path of at least one edge."""
    came_from: dict[int, tuple[int, Edge]] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for edge in graph[node]:
            if edge.kind not in kinds or edge.to not in within or edge.to in came_from:
                continue
            came_from[edge.to] = node, edge
            if edge.to == end:
                path = [came_from[end]]
                while path[-1][0] != start:
                    path.append(came_from[path[-1][0]])
                return path[::-1]
            waiting.append(edge.to)
    return None
