"""Who may import what: the layers of both packages, read from the source.

Each package imports from itself and from those before it in its list; `walproxy` may import all of `safekeeper`, never
the reverse. No modules import each other in a circle.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# From the bottom to the top.
LAYERS = {
    "safekeeper": (
        "base",
        "waldecode",
        "consensus",
        "acceptor",
        "peers",
        "net",
        "web",
        "pgwire",
        "archive",
        "storage",
        "node",
        "archiving",
        "serving",
        "process",
        "cli",
        "__main__",
    ),
    "walproxy": (
        "terminal",
        "installation",
        "html_page",
        "postgres",
        "proposer",
        "wal_sources",
        "limbo",
        "proxy",
        "failover",
        "recovery",
        "agent",
        "pipeline",
        "lab",
        "testing",
        "failure_codes",
        "cli",
        "__main__",
    ),
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in LAYERS
    for path in sorted((ROOT / package).rglob("*.py"))
}
PURE_FOLDERS = (
    "safekeeper/waldecode",
    "safekeeper/consensus",
    "safekeeper/acceptor",
    "safekeeper/pgwire",
    "walproxy/proposer",
)
PURE = sorted(
    [
        *(path for folder in PURE_FOLDERS for path in (ROOT / folder).glob("*.py")),
        *(ROOT / "safekeeper" / "base" / name for name in ("lsn.py", "timelines.py", "log_once.py", "histogram.py")),
        *(ROOT / "safekeeper" / "base" / name for name in ("events.py", "event_catalogue.py", "status_fields.py")),
        *(ROOT / "safekeeper" / "peers" / name for name in ("codec.py", "message_checks.py", "peer_auth.py")),
        *(ROOT / "safekeeper" / "archive" / name for name in ("objects.py", "catalog.py")),
        ROOT / "safekeeper" / "archiving" / "plan.py",
        *(ROOT / "safekeeper" / "net" / name for name in ("admission.py", "http_access.py", "share.py")),
        *(ROOT / "walproxy" / "agent" / name for name in ("report.py", "sight.py")),
        ROOT / "walproxy" / "failover" / "discarded.py",
        *(ROOT / "walproxy" / "proxy" / name for name in ("gate.py", "levels.py", "members_plan.py", "sight.py")),
        *(
            ROOT / "walproxy" / "limbo" / name
            for name in ("transactions.py", "commit_policy.py", "facts.py", "literals.py")
        ),
        *(ROOT / "walproxy" / "proxy" / name for name in ("state_events.py", "status_fields.py", "health_check.py")),
        *(
            ROOT / "walproxy" / "pipeline" / "cdc" / name
            for name in ("messages.py", "pgoutput.py", "transactions.py", "changes.py", "quorum_gate.py")
        ),
        *(ROOT / "walproxy" / "pipeline" / "cdc" / "apply" / name for name in ("net_changes.py", "fingerprint.py")),
    ]
)
PURE_MAY_IMPORT = {
    "asn1crypto",
    "bisect",
    "base64",
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "google_crc32c",
    "hashlib",
    "hmac",
    "ipaddress",
    "itertools",
    "math",
    "msgspec",
    "re",
    "stringprep",
    "struct",
    "types",
    "typing",
    "unicodedata",
}


def module_of(path: Path) -> str:
    """Return the name under which a file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PURE_MODULES = {"safekeeper.base.errors", *(module_of(path) for path in PURE)}


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return frozenset(found)


def calls(path: Path) -> set[str]:
    """Return the plain names that a file calls."""
    tree = ast.parse(path.read_text())
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def layer_of(module: str) -> tuple[str, int]:
    """Return a module's package and its layer there; the package's own `__init__` lies below all others."""
    package, _, rest = module.partition(".")
    return package, LAYERS[package].index(rest.partition(".")[0]) if rest else -1


def may_import(module: str, imported: str) -> bool:
    """Return whether a module of ours may import another module, as far as the layers go."""
    if imported.partition(".")[0] not in LAYERS:
        return True
    (package, layer), (other_package, other_layer) = layer_of(module), layer_of(imported)
    return other_layer <= layer if other_package == package else package == "walproxy"


def imported_of(module: str, top: str) -> set[str]:
    """Return what a module of ours imports of a top-level package."""
    return {imported for imported in imports(MODULES[module]) if imported.partition(".")[0] == top}


def is_within(module: str, packages: list[str]) -> bool:
    """Return whether a module is one of these packages, or in one."""
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def with_any(found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the entries with anything in them: a failure lists all that is wrong at once."""
    return {name: wrong for name, wrong in found.items() if wrong}


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        index[module] = low[module] = len(index)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in path:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            circle = path[path.index(module) :]
            del path[path.index(module) :]
            if len(circle) > 1:
                yield circle

    for module in sorted(graph):
        if module not in index:
            yield from visit(module)


def test_a_pure_module_reads_no_clock_no_chance_and_no_file() -> None:
    impure = {
        module_of(path): (imports(path) - PURE_MAY_IMPORT - PURE_MODULES)
        | (calls(path) & {"open", "print", "input", "exec", "eval", "__import__"})
        for path in PURE
    }
    assert with_any(impure) == {}


def test_imports_run_down_the_layers() -> None:
    above = {
        module: {imported for imported in imports(path) if not may_import(module, imported)}
        for module, path in MODULES.items()
    }
    assert with_any(above) == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: imports(path) & MODULES.keys() for module, path in MODULES.items()}
    assert list(circles(graph)) == []


def test_a_circle_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"d"}}
    assert [sorted(circle) for circle in circles(graph)] == [["a", "b", "c"]]


def test_what_a_package_lists_is_there() -> None:
    missing = {}
    for package, path in MODULES.items():
        lines = (
            (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines() if path.name == "__init__.py" else []
        )
        listed = {f"{package}.{name}" for line in lines for name in _listed_in(line)}
        missing[package] = listed - MODULES.keys()
    assert with_any(missing) == {}


def _listed_in(line: str) -> list[str]:
    """Return the modules of a line `name, name   what they are`; none if it is no such line."""
    found = re.match(r"(\w+(?:, \w+)*) {2,}\S", line)
    return found[1].split(", ") if found else []


def test_a_public_class_name_means_one_thing_in_a_package() -> None:
    owners: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(".".join(module.split(".")[:2]))
    doubled = {name: packages for name, packages in owners.items() if len(packages) > 1}
    assert {name for name, packages in doubled.items() if len(set(packages)) < len(packages)} == set()
    # The same word for two things of two packages.
    assert doubled.keys() <= {"Origin", "SourceUnavailable", "StartReplication", "TimelineEnd"}


def test_nothing_that_is_shipped_imports_a_test() -> None:
    assert with_any({module: imported_of(module, "tests") for module in MODULES}) == {}


def test_only_the_pipeline_imports_spark() -> None:
    pipeline = "walproxy.pipeline"
    parts = ("schemas", "decoder", "input", "tables", "cdc.apply", "duck")
    without_spark = [f"{pipeline}.{part}" for part in parts]
    without_spark += [module for module in MODULES if module.startswith(f"{pipeline}.jobs.report")]
    may = {module for module in MODULES if is_within(module, [pipeline]) and not is_within(module, without_spark)}
    assert with_any({module: imported_of(module, "pyspark") for module in MODULES.keys() - may}) == {}


def test_the_reader_of_imports_sees_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "import os.path\nfrom safekeeper.base import lsn, x\ndef f():\n    from asyncio import sleep\n    open('')\n"
    )
    assert imports(file) == {"os.path", "asyncio", "safekeeper.base", "safekeeper.base.lsn"}
    assert calls(file) == {"open"}


def test_only_the_containers_of_clusters_for_tests_import_the_engines_client() -> None:
    importing = {
        path.relative_to(ROOT).as_posix()
        for path in MODULES.values()
        if {imported.split(".")[0] for imported in imports(path)} & {"docker", "testcontainers"}
    }
    assert importing == {"walproxy/lab/testing/container_parts.py", "walproxy/lab/testing/containers.py"}
