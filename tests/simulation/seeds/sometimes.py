"""Which branches of the decisions a run has taken: `python -m tests.simulation --seeds N --sometimes`.

A rule that no run gets to was not tested by it. `counts.py` counts situations that were named by hand; this names every
branch of the watched packages where it is, so that a new one is watched from its first run on. The points are:

    entered                  a function was called
    CONDITION is true        a condition, or a part of one that `and`, `or` and `not` join, had this value; so of
    CONDITION is false       `if a and b` three outcomes are distinguished: not a; a, but not b; both
    case PATTERN             a case of a match
    except ERROR             an error was handled

    SITUATION                a conjunction that situations.py names

Conditions are those of if, while, conditional expressions and comprehensions, what functions return that return a bool,
and all but the last part of other `and` and `or`. Assertions, and conditions of branches that only raise
InvariantViolation or LocalProtocolError, are no points: a run that gets there has failed.

The points come from the syntax trees of the sources, and a point is its module, its function and the text of its
condition, with a number where a function has the same one again: `CONDITION (2) is true`. An edit elsewhere changes
none. Nothing of this is in the product. `watching` compiles the changed trees, and
gives the code of each function in them to the function that was imported; afterwards each has its own again. A run is
then a third slower.

Some points cannot be reached by the simulator, for instance what refuses a peer's wrong messages.
"""

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

from tests.mutation.install import codes_of, functions_of
from tests.simulation.seeds.situations import SITUATIONS, Situation

ROOT: Final = Path(__file__).parents[3]
WATCHED: Final = ("safekeeper/acceptor", "safekeeper/consensus", "safekeeper/storage", "walproxy/proposer")

_HITS, _PROBE = "_sometimes_hits", "_sometimes_probe"
_NEVER_RAISED: Final = ("InvariantViolation", "LocalProtocolError")
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_TEXT_MAX: Final = 100
RAREST: Final = 10


class Point(NamedTuple):
    """A branch. The line is for people, and no part of its identity."""

    path: str
    function: str
    what: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.what}"


class Points:
    """The points of some files, and how often each was reached since `take`.

    Attributes:
        points: all, in the order of the files.
    """

    def __init__(self, paths: Iterable[Path], root: Path = ROOT, situations: Sequence[Situation] = ()) -> None:
        self._situations = situations
        self.points = [Point("situations", f"{s.owner.__name__}.{s.method}", s.name, 0) for s in situations]
        self._hits: list[int] = []
        self._codes: dict[str, dict[tuple[str, int], CodeType]] = {}
        for path in paths:
            transformer = _Probes(path.relative_to(root).as_posix(), self.points)
            tree = ast.fix_missing_locations(transformer.visit(ast.parse(path.read_text())))
            self._codes[str(path)] = dict(codes_of(compile(tree, str(path), "exec")))
        self._hits.extend([0] * len(self.points))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count while the block runs, in this process and in those that it forks."""
        global _active
        names = {_HITS: self._hits, _PROBE: self._probe}
        before = []
        for module in [each for each in sys.modules.values() if getattr(each, "__file__", None) in self._codes]:
            vars(module).update(names)
            for function in functions_of(module):
                old = function.__code__
                new = self._codes.get(old.co_filename, {}).get((old.co_qualname, old.co_firstlineno))
                if new is not None and new is not old:
                    before.append((function, old))
                    function.__code__ = new
        _active, outer = self, _active
        methods = [(each.owner, each.method, vars(each.owner)[each.method]) for each in self._situations]
        for index, situation in enumerate(self._situations):
            self._watch(index, situation)
        try:
            yield
        finally:
            _active = outer
            for owner, name, method in reversed(methods):
                setattr(owner, name, method)
            for function, old in before:
                function.__code__ = old

    def take(self) -> tuple[int, ...]:
        """Return the indexes of the points that were reached, and begin again."""
        reached = tuple(index for index, count in enumerate(self._hits) if count)
        self._hits[:] = [0] * len(self._hits)
        return reached

    def _watch(self, index: int, situation: Situation) -> None:
        """Evaluate a situation before each call of its method."""
        method = vars(situation.owner)[situation.method]

        def call(*arguments: Any) -> Any:
            if situation.holds(*arguments):
                self._hits[index] = 1
            return method(*arguments)

        setattr(situation.owner, situation.method, call)

    def _probe(self, value: Any, index: int) -> Any:
        self._hits[index if value else index + 1] = 1
        return value


_active: Points | None = None


def take() -> tuple[int, ...]:
    """Return the points that were reached since the last call; none if no points are watched."""
    return _active.take() if _active is not None else ()


def watched_points() -> Points:
    """Return the points of the watched packages, whose modules are imported."""
    paths = [path for folder in WATCHED for path in sorted((ROOT / folder).glob("*.py"))]
    for path in paths:
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return Points(paths, situations=SITUATIONS)


def report(points: Sequence[Point], seeds: Counter[int], total: int, rarest: int = RAREST) -> str:
    """Return what was reached and what was not, as lines.

    Args:
        seeds: by point, the number of seeds that reached it.
        total: the number of seeds.
        rarest: how many of those that fewest seeds have reached are listed, too.
    """
    never = [point for index, point in enumerate(points) if not seeds[index]]
    lines = [f"{'':40} {'points':>7} {'reached':>8} {'never':>6}"]
    for path in dict.fromkeys(point.path for point in points):
        here = sum(point.path == path for point in points)
        missed = sum(point.path == path for point in never)
        lines.append(f"{path:40} {here:7} {here - missed:8} {missed:6}")
    lines.append(f"{total} seeds reached {len(points) - len(never)} of {len(points)} points")
    lines += [f"  never: {point}" for point in never]
    seldom = sorted((count, index) for index, count in seeds.items() if count)[:rarest]
    lines += [f"  in {count} seeds: {points[index]}" for count, index in seldom]
    return "\n".join(lines)


_Located = ast.stmt | ast.expr | ast.pattern | ast.excepthandler


class _Probes(ast.NodeTransformer):
    """Adds the probes to a module, and its points to a list."""

    def __init__(self, path: str, points: list[Point]) -> None:
        self._path = path
        self._points = points
        self._names: list[str] = []
        self._texts: Counter[tuple[str, str]] = Counter()
        self._returns_bool = False

    def visit_Module(self, node: ast.Module) -> ast.AST:
        # What runs at the import has run already.
        node.body = [self.visit(each) if isinstance(each, _DEFINITIONS) else each for each in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._names.append(node.name)
        node.body = [self.visit(each) if isinstance(each, _DEFINITIONS) else each for each in node.body]
        self._names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Watch a function, unless it is a declaration."""
        outer = self._returns_bool
        self._names.append(node.name)
        self._returns_bool = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        begin = 1 if ast.get_docstring(node, clean=False) is not None else 0
        body = node.body[begin:]
        if body and not _is_declaration(body):
            entered = self._hit("entered", node, body[0])
            node.body = [*node.body[:begin], entered, *(self.visit(each) for each in body)]
        self._returns_bool = outer
        self._names.pop()
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if _only_raises(node.body):
            node.orelse = [self.visit(each) for each in node.orelse]
            return node
        return self._with_test(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._with_test(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._with_test(node)

    def _with_test(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        node.test = self._decision(node.test)
        for name, value in ast.iter_fields(node):
            if name != "test":
                visited = [self.visit(each) for each in value] if isinstance(value, list) else self.visit(value)
                setattr(node, name, visited)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter = self.visit(node.iter)
        node.ifs = [self._decision(each) for each in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values = [*map(self._decision, node.values[:-1]), self.visit(node.values[-1])]
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            node.value = self._decision(node.value) if self._returns_bool else self.visit(node.value)
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        if node.guard is not None:
            node.guard = self._decision(node.guard)
        case = self._hit(f"case {ast.unparse(node.pattern)}", node.pattern, node.body[0])
        node.body = [case, *(self.visit(each) for each in node.body)]
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        caught = ast.unparse(node.type) if node.type is not None else ""
        handled = self._hit(f"except {caught}", node, node.body[0])
        node.body = [handled, *(self.visit(each) for each in node.body)]
        return node

    def _decision(self, node: ast.expr) -> ast.expr:
        """Return a condition with a probe at each part."""
        if isinstance(node, ast.BoolOp):
            node.values = [self._decision(each) for each in node.values]
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = self._decision(node.operand)
            return node
        if isinstance(node, ast.Constant):
            return node
        text = ast.unparse(node)
        text = self._numbered(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}...")
        index = len(self._points)
        self._add(f"{text} is true", node)
        self._add(f"{text} is false", node)
        probe = ast.Call(ast.Name(_PROBE, ast.Load()), [self.visit(node), ast.Constant(index)], [])
        return ast.copy_location(probe, node)

    def _hit(self, what: str, node: _Located, at: ast.stmt) -> ast.stmt:
        """Return a statement that counts a point, to stand before `at`."""
        place = ast.Subscript(ast.Name(_HITS, ast.Load()), ast.Constant(len(self._points)), ast.Store())
        self._add(self._numbered(what), node)
        return ast.copy_location(ast.Assign([place], ast.Constant(1)), at)

    def _numbered(self, text: str) -> str:
        """Return the text of a point, with a number from the second time on."""
        key = ".".join(self._names), text
        self._texts[key] += 1
        return text if self._texts[key] == 1 else f"{text} ({self._texts[key]})"

    def _add(self, what: str, node: _Located) -> None:
        self._points.append(Point(self._path, ".".join(self._names), what, node.lineno))


def _is_declaration(body: list[ast.stmt]) -> bool:
    """Return whether a function has no body, as in a protocol."""
    return len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def _only_raises(body: list[ast.stmt]) -> bool:
    """Return whether a branch does nothing but to raise what must not happen."""
    last = body[0]
    if len(body) > 1 or not isinstance(last, ast.Raise) or not isinstance(last.exc, ast.Call):
        return False
    return isinstance(last.exc.func, ast.Name) and last.exc.func.id in _NEVER_RAISED
