"""The names that a function can use by mistake: locals and attributes of one annotated type.

Types are the texts of annotations. A local that ends in `_lsn` is an Lsn, by the rules of the house. The class of
an object is that of its annotation, the enclosing one for `self`, otherwise the only class that has such an attribute.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

Function = ast.FunctionDef | ast.AsyncFunctionDef
# How many of the candidates are tried; which ones, a digest of the place decides.
ALTERNATIVES = {"Lsn": 2}
CONFUSED = frozenset(("Lsn", "int", "bool", "float", "str", "LeaderId", "Lsn | None", "int | None", "float | None"))
Attributes = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Names:
    """The attributes of all classes, and the locals of one function.

    Attributes:
        attributes: by class, the type of each attribute.
        locals: the type of each local, and the line where it is first assigned.
        class_name: the class of the function, empty if none.
    """

    attributes: Attributes = field(default_factory=dict)
    locals: dict[str, tuple[str, int]] = field(default_factory=dict)
    class_name: str = ""

    def of_function(self, function: Function, class_name: str) -> "Names":
        """Return the names that a function can use."""
        return replace(self, locals=_locals(function), class_name=class_name)

    def type_of(self, node: ast.Name | ast.Attribute) -> str:
        """Return the annotated type of a name, empty if it is unknown."""
        if isinstance(node, ast.Name):
            return self.locals.get(node.id, ("", 0))[0]
        return self.attributes.get(self._class_of(node), {}).get(node.attr, "")

    def alternatives(self, node: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
        """Yield other names of the same type."""
        kind = self.type_of(node)
        if kind not in CONFUSED:
            return
        if isinstance(node, ast.Name):
            others = [
                name
                for name, (other, line) in self.locals.items()
                if other == kind and name != node.id and line < node.lineno
            ]
        else:
            others = [
                name
                for name, other in self.attributes[self._class_of(node)].items()
                if other == kind and name != node.attr
            ]
        place = ast.unparse(node)
        others.sort(key=lambda name: hashlib.sha256(f"{self.class_name} {place} {name}".encode()).digest())
        for name in others[: ALTERNATIVES.get(kind, 1)]:
            yield (
                ast.Name(name, ast.Load())
                if isinstance(node, ast.Name)
                else ast.Attribute(node.value, name, ast.Load())
            )

    def _class_of(self, node: ast.Attribute) -> str:
        if isinstance(node.value, ast.Name):
            if node.value.id == "self":
                return self.class_name
            annotated = self.locals.get(node.value.id, ("", 0))[0].removesuffix(" | None")
            if annotated in self.attributes:
                return annotated
        having = [name for name, attributes in self.attributes.items() if node.attr in attributes]
        return having[0] if len(having) == 1 else ""


def attributes_of(trees: Iterable[ast.Module]) -> Attributes:
    """Return the attributes of all classes of modules, those of base classes included."""
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    return {name: dict(_attributes(node, classes)) for name, node in classes.items()}


def _attributes(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[tuple[str, str]]:
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _attributes(classes[base.id], classes)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, _type(statement.annotation)
        elif isinstance(statement, ast.FunctionDef):
            if any(isinstance(each, ast.Name) and each.id == "property" for each in statement.decorator_list):
                yield statement.name, _type(statement.returns)
            elif statement.name == "__init__":
                yield from _assigned_to_self(statement)


def _assigned_to_self(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    types = _locals(function)
    for node in ast.walk(function):
        match node:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                yield name, _type(annotation)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Constant(value=v)):
                yield name, type(v).__name__
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Name(id=local)):
                yield name, types.get(local, ("", 0))[0]


def _locals(function: Function) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        found[argument.arg] = (_type(argument.annotation), 0)
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, (_type(node.annotation), node.lineno))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.endswith("_lsn"):
            found.setdefault(node.id, ("Lsn", node.lineno))
    return found


def _type(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation).strip("'\"") if annotation is not None else ""
