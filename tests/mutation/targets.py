"""The modules that are mutated, and their syntax trees."""

import ast
import importlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.mutation.edits import Mutation, mutations
from tests.mutation.names import Names, attributes_of

ROOT = Path(__file__).parents[2]
PURE = ("safekeeper/acceptor", "safekeeper/consensus", "walproxy/proposer")
PACKAGES = (*PURE, "safekeeper/storage", "safekeeper/node")
# What they do is of no consequence for WAL: events and reports for operators and agents, what commands print.
LEFT_OUT = frozenset(
    (
        "safekeeper.node.agent_registry",
        "safekeeper.node.event_keeper",
        "safekeeper.node.state_log",
        "safekeeper.storage.event_file",
        "safekeeper.storage.inspection",
        "walproxy.proposer.view",
    )
)
# Their classes have attributes that the mutated modules read.
NAMED = ("safekeeper/base",)
MODULES: dict[str, Path] = {
    name: path
    for package in PACKAGES
    for path in sorted((ROOT / package).glob("*.py"))
    if (name := ".".join(path.relative_to(ROOT).with_suffix("").parts)) not in LEFT_OUT and path.stem != "__init__"
}


class UnknownMutation(Exception):
    """A name that is not that of a mutation of the present source."""


def unit_folders(mutations: Iterable[Mutation]) -> tuple[str, ...]:
    """Return the folders of the unit tests that can detect mutations: those of pure packages need no disk.

    Tests of a package execute it and the packages before it in `PACKAGES`, as far as they are not pure.
    """
    used = {package for each in mutations for package in PACKAGES if each.module.replace(".", "/").startswith(package)}
    if used <= set(PURE):
        packages = PURE
    elif used.isdisjoint(PURE):
        packages = PACKAGES[min(map(PACKAGES.index, used)) :]
    else:
        packages = PACKAGES
    return tuple(f"tests/unit/{Path(package).name}" for package in packages)


def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module, which the caller may change."""
    return ast.parse(MODULES[module].read_text())


@cache
def names() -> Names:
    """Return the names of all classes that mutated modules use."""
    paths = [*MODULES.values(), *(path for folder in NAMED for path in sorted((ROOT / folder).glob("*.py")))]
    return Names(attributes_of(ast.parse(path.read_text()) for path in paths))


def all_mutations(prefix: str = "") -> Iterator[Mutation]:
    """Yield the mutations of all modules whose names begin with `prefix`."""
    for module in MODULES:
        if module.startswith(prefix):
            yield from mutations(module, tree_of(module), names())


def mutated(mutation_id: str) -> tuple[Mutation, ast.Module]:
    """Return a mutation and the tree of its module with it.

    Raises:
        UnknownMutation: the present source has no such mutation.
    """
    module = mutation_id.split(":")[0]
    if module in MODULES:
        tree = tree_of(module)
        for mutation in mutations(module, tree, names()):
            if mutation.id == mutation_id:
                return mutation, tree
    raise UnknownMutation(f"{mutation_id} is not a mutation of the present source: python -m tests.mutation --list")


def import_all() -> None:
    """Import all modules, so that a forked child has them."""
    for module in MODULES:
        importlib.import_module(module)
