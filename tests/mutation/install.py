"""Give the functions of an imported module other code, in this process only.

A function object keeps its identity, so each module that has imported it, and each class that has inherited it, runs
the new code. Results that caches have stored are dropped.
"""

import ast
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutation.edits import Mutation

Key = tuple[str, int]


class NotInstalled(Exception):
    """The function of a mutation is not an object of its module, or its new code does not fit."""


def install(mutation: Mutation, tree: ast.Module) -> None:
    """Replace the code of the mutated function.

    Raises:
        NotInstalled: see there.
    """
    key = mutation.function, mutation.function_line
    if not replace_codes(mutation.module, tree, {key}):
        raise NotInstalled(f"{mutation.id}: {mutation.function} is not a function of the module")


def replace_codes(module_name: str, tree: ast.Module, wanted: set[Key] | None = None) -> int:
    """Give functions of a module the code of the same functions in `tree`; return the number of functions.

    Args:
        wanted: qualified names and first lines, None for all.

    Raises:
        NotInstalled: the code does not fit, because it uses other variables of the class.
    """
    module = sys.modules[module_name]
    path = str(module.__file__)
    codes = dict(codes_of(compile(ast.fix_missing_locations(tree), path, "exec")))
    replaced = 0
    for function in functions_of(module):
        key = function.__qualname__, function.__code__.co_firstlineno
        if key in codes and (wanted is None or key in wanted):
            try:
                function.__code__ = codes[key]
            except ValueError as error:
                raise NotInstalled(f"{module_name}:{function.__qualname__}: {error}") from error
            replaced += 1
    return replaced


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions and methods that a module defines; forget what their caches have stored."""
    for value in list(vars(module).values()):
        yield from _functions_in(value, module)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute in list(vars(value).values()):
                yield from _functions_in(attribute, module)


def _functions_in(value: Any, module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of an object: of a property there are up to three."""
    if isinstance(value, property):
        for each in (value.fget, value.fset, value.fdel):
            yield from _functions_in(each, module)
        return
    if hasattr(value, "cache_clear"):
        value.cache_clear()
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = getattr(value, "func", value)  # Of functools.cached_property.
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__:
        yield value


def codes_of(code: CodeType) -> Iterator[tuple[Key, CodeType]]:
    """Yield all code within a module's, by its qualified name and first line."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from codes_of(constant)
