"""Who may import what: the rooms of the house, read from the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = sorted(
    [
        *(ROOT / "safekeeper" / "consensus").glob("*.py"),
        *(
            ROOT / "safekeeper" / "wal" / name
            for name in ("format.py", "records.py", "continuity.py", "timed_records.py")
        ),
        ROOT / "safekeeper" / "wire.py",
        ROOT / "safekeeper" / "peer_auth.py",
        ROOT / "safekeeper" / "admission.py",
        ROOT / "safekeeper" / "lsn.py",
        ROOT / "safekeeper" / "timelines.py",
        *(ROOT / "safekeeper" / "archive" / name for name in ("objects.py", "catalog.py", "archiving_plan.py")),
        *(ROOT / "safekeeper" / "pgwire").glob("*.py"),
        *(
            ROOT / "walproxy" / "pipeline" / "cdc" / name
            for name in ("messages.py", "pgoutput.py", "transactions.py", "changes.py")
        ),
        *(ROOT / "walproxy" / "pipeline" / "cdc" / "apply" / name for name in ("net_changes.py", "fingerprint.py")),
    ]
)
PURE_MAY_IMPORT = {
    "asn1crypto",
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
    "typing",
    "unicodedata",
}
PURE_ROOMS = (
    "safekeeper.consensus",
    "safekeeper.wal.format",
    "safekeeper.wal.records",
    "safekeeper.wal.continuity",
    "safekeeper.wal.timed_records",
)
PURE_ROOMS_AND_FILES = (
    *PURE_ROOMS,
    "safekeeper.errors",
    "safekeeper.lsn",
    "safekeeper.wire",
    "safekeeper.peer_auth",
    "safekeeper.timelines",
    "safekeeper.archive.objects",
    "safekeeper.pgwire",
    "walproxy.pipeline.cdc.messages",
    "walproxy.pipeline.cdc.pgoutput",
    "walproxy.pipeline.cdc.transactions",
    "walproxy.pipeline.cdc.changes",
)


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.add(node.module or "")
    return found


def calls(path: Path) -> set[str]:
    """Return the plain names that a file calls."""
    tree = ast.parse(path.read_text())
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_pure_room_reads_no_clock_no_chance_and_no_file(path: Path) -> None:
    foreign = {
        module
        for module in imports(path)
        if module not in PURE_MAY_IMPORT
        and not any(module == room or module.startswith(f"{room}.") for room in PURE_ROOMS_AND_FILES)
    }
    assert foreign == set()
    assert calls(path) & {"open", "print", "input", "exec", "eval", "__import__"} == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "safekeeper").rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_the_safekeeper_never_imports_the_proxy(path: Path) -> None:
    assert {module for module in imports(path) if module.split(".")[0] in ("walproxy", "tests")} == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "walproxy").rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_nothing_that_is_shipped_imports_a_test(path: Path) -> None:
    assert {module for module in imports(path) if module.split(".")[0] == "tests"} == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "walproxy").rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_only_the_pipeline_imports_spark(path: Path) -> None:
    pipeline = ROOT / "walproxy" / "pipeline"
    without_spark = [
        pipeline / "schemas.py",
        *(pipeline / room for room in ("decoder", "input", "tables", "cdc/apply")),
    ]
    if pipeline in path.parents and not any(room == path or room in path.parents for room in without_spark):
        return
    assert {module for module in imports(path) if module.split(".")[0] == "pyspark"} == set()


def test_the_reader_of_imports_sees_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text("import os.path\ndef f():\n    from asyncio import sleep\n    return open('x')\n")
    assert imports(file) == {"os.path", "asyncio"}
    assert calls(file) == {"open"}


def test_only_the_containers_of_clusters_for_tests_import_the_engines_client() -> None:
    importing = {
        path.relative_to(ROOT).as_posix()
        for room in ("walproxy", "safekeeper")
        for path in (ROOT / room).rglob("*.py")
        if {module.split(".")[0] for module in imports(path)} & {"docker", "testcontainers"}
    }
    assert importing == {"walproxy/testing/container_parts.py", "walproxy/testing/containers.py"}
