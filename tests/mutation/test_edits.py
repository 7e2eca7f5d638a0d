"""Which mutations are derived from a source, and that the tree is whole again after each."""

import ast
from typing import Any

import pytest

from tests.mutation.edits import KINDS, Mutation, mutations
from tests.mutation.names import Names, attributes_of
from tests.mutation.targets import MODULES, UnknownMutation, all_mutations, mutated, names, tree_of

SOURCE = '''
class Log:
    """A log."""

    write_lsn: Lsn
    flush_lsn: Lsn
    is_open: bool

    def flush(self, begin_lsn: Lsn, end_lsn: Lsn) -> Effects:
        """Flush."""
        if begin_lsn > self.write_lsn and self.is_open:
            raise ValueError(f"{begin_lsn} > {end_lsn}")
        _log.info("flush %s", begin_lsn + 1)
        yield Flush(end_lsn)
        self.flush_lsn = max(end_lsn, self.flush_lsn)
        for segment in self.segments[1:]:
            segment.close()
'''


def mutations_of(source: str) -> list[Mutation]:
    tree = ast.parse(source)
    before = ast.dump(tree)
    found = list(mutations("toy", tree, Names(attributes_of([ast.parse(source)]))))
    assert ast.dump(tree) == before, "a mutation was not undone"
    return found


def test_mutations_of_each_kind_are_derived() -> None:
    changes = {(each.kind, each.change) for each in mutations_of(SOURCE)}
    assert changes >= {
        ("compare", "begin_lsn > self.write_lsn -> begin_lsn >= self.write_lsn"),
        ("condition", "begin_lsn > self.write_lsn -> not begin_lsn > self.write_lsn"),
        ("condition", "self.is_open -> not self.is_open"),
        ("boolean", "begin_lsn > self.write_lsn and self.is_open -> begin_lsn > self.write_lsn or self.is_open"),
        ("boolean", "begin_lsn > self.write_lsn and self.is_open -> self.is_open"),
        ("number", "max(end_lsn, self.flush_lsn) -> min(end_lsn, self.flush_lsn)"),
        ("number", "1 -> 2"),
        ("name", "begin_lsn -> end_lsn"),
        ("name", "self.write_lsn -> self.flush_lsn"),
        ("effect", "dropped: yield Flush(end_lsn)"),
        ("drop", "dropped: segment.close()"),
        ("raise", "dropped: raise ValueError(f'{begin_lsn} > {end_lsn}')"),
        ("swap", "yield Flush(end_lsn) <-> self.flush_lsn = max(end_lsn, self.flush_lsn)"),
        ("early", "return before: for segment in self.segments[1:]: segment.close()"),
    }
    assert {kind for kind, _ in changes} == set(KINDS)


def test_what_only_a_person_reads_is_not_mutated() -> None:
    lines = SOURCE.splitlines()
    for mutation in mutations_of(SOURCE):
        line = lines[mutation.line - 1]
        assert "_log.info" not in line, mutation
        assert "raise" not in line or mutation.kind == "raise", mutation


def test_ids_are_unique_and_do_not_depend_on_other_functions_or_comments() -> None:
    ids = [each.id for each in mutations_of(SOURCE)]
    assert len(set(ids)) == len(ids)
    moved = "\n\n# A comment.\ndef other(a: int) -> bool:\n    return a < 1\n" + SOURCE.replace("Flush.", "Flush it.")
    assert set(ids) < {each.id for each in mutations_of(moved)}
    changed = SOURCE.replace("segment.close()", "segment.drop()")
    assert not set(ids) & {each.id for each in mutations_of(changed)}


def test_a_dropped_yield_leaves_a_generator() -> None:
    tree = ast.parse("def effects():\n    yield 1\n")
    yielded = {}
    for mutation in mutations("toy", tree, Names()):
        namespace: dict[str, Any] = {}
        exec(compile(tree, "toy", "exec"), namespace)
        yielded[mutation.change] = list(namespace["effects"]())
    assert yielded == {"dropped: yield 1": [], "1 -> 2": [2]}


@pytest.mark.parametrize("module", ["safekeeper.consensus.commitment", "safekeeper.acceptor.trimming"])
def test_each_mutation_of_a_module_compiles_and_is_another_function(module: str) -> None:
    tree = tree_of(module)
    whole = ast.unparse(tree)
    for mutation in mutations(module, tree, names()):
        compile(tree, str(MODULES[module]), "exec")
        assert ast.unparse(tree) != whole, mutation


def test_a_mutation_of_the_project_is_found_by_its_id() -> None:
    chosen = next(all_mutations("walproxy.proposer.election"))
    mutation, tree = mutated(chosen.id)
    assert mutation == chosen
    assert ast.unparse(tree) != ast.unparse(tree_of(chosen.module))
    with pytest.raises(UnknownMutation, match="is not a mutation of the present source"):
        mutated(chosen.id.replace("@", "@0"))
