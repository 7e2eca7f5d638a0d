"""Which tests execute which statements, measured once for a state of the source.

All mutated modules get code in which a call precedes each statement (`instrumented`); a child then runs all tests, and
reports after each one what was executed. A test that fails without a mutation would detect every mutation: a unit test
is then left out, because those that wait for a disk may fail on a busy machine; a seed or a scenario ends the run.
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.children import Send, run_all
from tests.mutation.edits import functions
from tests.mutation.install import replace_codes
from tests.mutation.suites import Suite, Units, run_caught
from tests.mutation.targets import MODULES, tree_of

REACHED = "_mutation_reached"
MEASURING_S_MAX = 3600.0

FAILED = "failed"
# By suite, by "module:line": the tests, in the order of the suite. By `FAILED`, by test: why it was left out.
Reach = dict[str, dict[str, list[str]]]


class SuiteFails(Exception):
    """Tests fail without any mutation."""


def measure(suites: Sequence[Suite]) -> Reach:
    """Run all tests, and return which statements each of them executes.

    Raises:
        SuiteFails: a seed or a scenario fails.
    """
    reach: Reach = {FAILED: {}, **{suite.name: defaultdict(list) for suite in suites}}
    failures = []

    def job(send: Send) -> None:
        places = _instrument()
        for suite in suites:
            for test in suite.tests:
                places.clear()
                why = run_caught(suite, test)
                send({"suite": suite.name, "test": test, "why": why, "places": sorted(places)})

    for ended in run_all([("all tests", job)], 1, MEASURING_S_MAX):
        for report in ended.reports:
            if "error" in report:
                raise SuiteFails(report["error"])
            if report["why"] and report["suite"] == Units.name:
                reach[FAILED][report["test"]] = [report["why"]]
                continue
            if report["why"]:
                failures.append(f"{report['test']}: {report['why']}")
            for place in report["places"]:
                reach[report["suite"]][place].append(report["test"])
        if ended.status:
            raise SuiteFails(f"the process that measures has ended with {ended.status}")
    if failures:
        raise SuiteFails("\n".join(failures))
    return reach


def measured(path: Path, suites: Sequence[Suite]) -> Reach:
    """Return what `path` has from an earlier measurement, otherwise measure and write it."""
    if path.exists():
        found: Reach = json.loads(path.read_text())
        return found
    count = sum(len(suite.tests) for suite in suites)
    print(f"running {count} tests without mutations, to record the statements that each executes", flush=True)
    reach = measure(suites)
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(reach))
    unfinished.rename(path)
    return reach


def _instrument() -> set[str]:
    """Let all mutated modules record their statements; return the set that they record in."""
    places: set[str] = set()
    for module in MODULES:
        setattr(sys.modules[module], REACHED, places.add)
        replace_codes(module, instrumented(module, tree_of(module)))
    return places


def instrumented(module: str, tree: ast.Module) -> ast.Module:
    """Put a call before each statement of a module's functions that records its place."""
    for _, _, function in functions(tree):
        _record_each(module, function, keeps_first=ast.get_docstring(function) is not None)
    return ast.fix_missing_locations(tree)


def _record_each(module: str, node: ast.AST, keeps_first: bool = False) -> None:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        value = getattr(node, name, None)
        if not isinstance(value, list):
            continue
        for each in value:
            _record_each(module, each)
        if name not in ("handlers", "cases"):
            statements = [each for each in value if not isinstance(each, ast.Nonlocal | ast.Global)]
            declared = [each for each in value if isinstance(each, ast.Nonlocal | ast.Global)]
            first = statements[:1] if keeps_first and name == "body" else []
            recorded = [
                each for statement in statements[len(first) :] for each in (_record(module, statement), statement)
            ]
            value[:] = [*first, *declared, *recorded]


def _record(module: str, statement: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(REACHED, ast.Load()), [ast.Constant(f"{module}:{statement.lineno}")], [])
    return ast.copy_location(ast.Expr(call), statement)
