"""Derive mutations from a syntax tree: change one thing in place, yield it, and restore it.

What only a person reads is not mutated: the arguments of exceptions, f-strings, log lines, docstrings, annotations.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.mutation.names import Names

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
# Of one comparison with such an operator, the negation is the comparison with the other operator.
NEGATED_BY_OPERATOR = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
OTHER_SIGN: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
OTHER_EXTREME = {"min": "max", "max": "min"}
KINDS = {
    "compare": "another comparison operator",
    "condition": "a condition is negated",
    "boolean": "and instead of or, or the reverse; one operand is dropped",
    "number": "off by one; plus instead of minus; min instead of max",
    "name": "another name of the same type",
    "effect": "a dropped effect, action, write, flush or persist",
    "drop": "another dropped statement",
    "raise": "a check that does not raise its error",
    "swap": "two neighbouring statements in the other order",
    "early": "the function returns before this statement",
}
WRITES = frozenset(("append", "appendleft", "extend", "add", "put", "write", "pwrite"))
EFFECTS = WRITES | frozenset(("flush", "sync", "fsync", "persist", "store", "send", "run"))
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign)
LOGS = frozenset(("_log",))
TEXT_BYTES_MAX = 70

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutation:
    """One change of one function.

    Attributes:
        module, function: their qualified names.
        kind: a key of `KINDS`.
        number: counts the mutations of this kind in the function, from 1 on.
        digest: of the function without comments and docstring.
        function_line, line: where the function and the mutated statement begin.
        change: the change in words.
    """

    module: str
    function: str
    kind: str
    number: int
    digest: str
    function_line: int
    line: int
    change: str

    @property
    def id(self) -> str:
        """The name that survives edits of other functions."""
        return f"{self.module}:{self.function}:{self.kind}:{self.number}@{self.digest}"

    def __str__(self) -> str:
        return f"{self.id} (line {self.line}): {self.change}"


class Slot(NamedTuple):
    """The place of a node in its parent, and the statement that it is a part of."""

    holder: ast.AST | list[ast.stmt] | list[ast.expr]
    key: str | int
    statement: ast.stmt

    def put(self, node: ast.AST) -> None:
        """Replace the node."""
        if isinstance(self.holder, list):
            self.holder[int(self.key)] = node  # type: ignore[call-overload]
        else:
            setattr(self.holder, str(self.key), node)


class Change(NamedTuple):
    """A change that is in place: what it is, in which statement, and in words."""

    kind: str
    line: int
    words: str


def functions(tree: ast.Module) -> Iterator[tuple[str, str, Function]]:
    """Yield the functions of a module with their qualified names and the classes that define them, if any."""
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, "", node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Function):
                    yield f"{node.name}.{method.name}", node.name, method


def first_line(function: Function) -> int:
    """Return the line where the code object of a function begins: that of the first decorator, if any."""
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def mutations(module: str, tree: ast.Module, names: Names) -> Iterator[Mutation]:
    """Yield all mutations of a module; while one is yielded, `tree` has it."""
    for qualified_name, class_name, function in functions(tree):
        if function.name in ("__str__", "__repr__"):
            continue
        digest = _digest(function)
        numbers: dict[str, int] = {}
        for change in changes(function, names.of_function(function, class_name)):
            number = numbers[change.kind] = numbers.get(change.kind, 0) + 1
            yield Mutation(
                module, qualified_name, change.kind, number, digest, first_line(function), change.line, change.words
            )


def changes(function: Function, names: Names) -> Iterator[Change]:
    """Yield all changes of a function; while one is yielded, it is in place."""
    returns_nothing = function.returns is None or ast.unparse(function.returns) in ("None", "Effects")
    for body in list(_bodies(function)):
        is_outermost = body is function.body
        for index in range(len(body)):
            yield from _changes_of_statement(body, index)
            if is_outermost and index and returns_nothing and isinstance(body[index], ast.If | ast.For | ast.With):
                yield from _early_return(body, index)
    for slot, node in list(_expressions(function)):
        for kind, other in _alternatives(node, names):
            ast.copy_location(other, node)
            slot.put(other)
            ast.fix_missing_locations(other)
            yield Change(kind, slot.statement.lineno, f"{_text(node)} -> {_text(other)}")
            slot.put(node)


def _digest(function: Function) -> str:
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    text = "\n".join([ast.unparse(function.args), *map(ast.unparse, body)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= TEXT_BYTES_MAX else text[: TEXT_BYTES_MAX - 3] + "..."


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements below a node, the outermost first."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        value = getattr(node, name, None)
        if not isinstance(value, list):
            continue
        if name in ("body", "orelse", "finalbody") and value:
            yield value
        for each in value:
            yield from _bodies(each)


def _changes_of_statement(body: list[ast.stmt], index: int) -> Iterator[Change]:
    statement = body[index]
    kind = _kind_of_drop(statement)
    if kind:
        # The statement stays in the tree: a generator without its last yield would be another kind of function.
        body[index] = _never(statement)
        yield Change(kind, statement.lineno, f"dropped: {_text(statement)}")
        body[index] = statement
    if index + 1 < len(body) and _may_be_swapped(statement, body[index + 1]):
        following = body[index + 1]
        body[index], body[index + 1] = following, statement
        yield Change("swap", statement.lineno, f"{_text(statement)} <-> {_text(following)}")
        body[index], body[index + 1] = statement, following


def _early_return(body: list[ast.stmt], index: int) -> Iterator[Change]:
    statement = body[index]
    body.insert(index, ast.copy_location(ast.Return(None), statement))
    yield Change("early", statement.lineno, f"return before: {_text(statement)}")
    del body[index]


def _never(statement: ast.stmt) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(ast.If(ast.Constant(False), [statement], []), statement))


def _kind_of_drop(statement: ast.stmt) -> str:
    """Return the kind of mutation that dropping the statement is; empty if it is not dropped."""
    match statement:
        case ast.Raise():
            return "raise"
        case ast.Continue() | ast.Break() | ast.Return(None):
            return "drop"
        case ast.Expr(ast.Constant()):
            return ""
        case ast.Expr() if _is_log(statement):
            return ""
        case ast.Expr(ast.Yield() | ast.YieldFrom()):
            return "effect"
        case ast.Expr(ast.Call(func=ast.Attribute(attr=name))) if name in EFFECTS:
            return "effect"
        case ast.Expr() | ast.AugAssign():
            return "drop"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "drop"
        case ast.Assign(targets=[ast.Tuple(elts=elements)]) if all(isinstance(e, ast.Attribute) for e in elements):
            return "drop"
    return ""


def _may_be_swapped(one: ast.stmt, other: ast.stmt) -> bool:
    """Return whether two statements can change places, and one of them does more than to assign a value."""
    if not isinstance(one, SIMPLE) or not isinstance(other, SIMPLE) or _is_log(one) or _is_log(other):
        return False
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
        return False
    if _stored(one) & _names(other):
        return False
    return any(
        isinstance(node, ast.Yield | ast.YieldFrom | ast.Call) for each in (one, other) for node in ast.walk(each)
    )


def _stored(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _names(tree: ast.AST) -> set[str]:
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }


def _is_log(statement: ast.stmt) -> bool:
    """Return whether a statement only writes a line of the log, now or as an action."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Name(id=name))) if name.startswith("log_"):
            return True
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name)))) if name in LOGS:
            return True
        case ast.Expr(ast.Call(args=[ast.Call(func=ast.Name(id="Note"))])):
            return True
    return False


def _expressions(function: Function) -> Iterator[tuple[Slot, ast.expr]]:
    """Yield the expressions of a function that decide something, with their places."""
    for body in _bodies(function):
        for statement in body:
            if not _is_log(statement) and not isinstance(statement, ast.Raise):
                yield from _below(statement, statement)


def _below(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[Slot, ast.expr]]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # Of zip: a check that is never to fail.
        places: Iterable[tuple[Slot, ast.AST]]
        if isinstance(value, list):
            places = [(Slot(value, index, statement), each) for index, each in enumerate(value)]
        else:
            places = [(Slot(node, name, statement), value)]
        for slot, each in places:
            if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case | ast.JoinedStr):
                continue  # A statement has its own turn in `_expressions`.
            is_called = isinstance(node, ast.Call) and name == "func"
            if isinstance(each, ast.expr) and not is_called:
                yield slot, each
            if isinstance(each, ast.AST):
                yield from _below(each, statement)


def _alternatives(node: ast.expr, names: Names) -> Iterator[tuple[str, ast.expr]]:
    """Yield what can stand in the place of an expression, with the kind of mutation."""
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                operators = list(node.ops)
                operators[index] = COMPARED[type(operator)]()
                yield "compare", ast.Compare(node.left, operators, node.comparators)
            if len(node.ops) > 1 or not isinstance(node.ops[0], NEGATED_BY_OPERATOR):
                yield "condition", ast.UnaryOp(ast.Not(), node)
        case ast.BoolOp():
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for index in range(len(node.values)):
                rest = node.values[:index] + node.values[index + 1 :]
                yield "boolean", ast.BoolOp(node.op, rest) if len(rest) > 1 else _copied(rest[0])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            if not isinstance(operand, ast.Compare):
                yield "condition", _copied(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield "number", ast.BinOp(node.left, OTHER_SIGN[type(node.op)](), node.right)
            if any(name.endswith("_lsn") for name in _names(node)):
                yield "number", ast.BinOp(node, ast.Add(), ast.Constant(1))
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_EXTREME:
            yield "number", ast.Call(ast.Name(OTHER_EXTREME[name], ast.Load()), node.args, node.keywords)
        case ast.Constant(value=value) if type(value) is int:
            yield "number", ast.Constant(value + 1)
        case ast.Constant(value=value) if type(value) is bool:
            yield "condition", ast.Constant(not value)
        case ast.Name() | ast.Attribute() if isinstance(node.ctx, ast.Load):
            for other in names.alternatives(node):
                yield "name", other
            if names.type_of(node) == "bool":
                yield "condition", ast.UnaryOp(ast.Not(), node)


def _copied(node: ast.expr) -> ast.expr:
    """Return another node for the same expression, so that positions can be given to it."""
    fields = {name: getattr(node, name) for name in node._fields}
    return type(node)(**fields)
