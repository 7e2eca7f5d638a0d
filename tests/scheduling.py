"""The order in which a whole run executes the tests' files, and which files one worker executes.

A run ends when its last worker does: files that take long come first, and the small ones fill what is left. The files
that use a Spark session share it, on one worker: its start and its first job take longer than any of their tests. The
container tests share a deployment, which they break, on one worker: it is begun first, as they wait for minutes.
"""

from typing import Final

# tests/unit/test_scheduling.py compares them with the files that have the fixture.
SPARK: Final = tuple(
    f"tests/pipeline/test_{name}.py"
    for name in ("run", "cdc", "sink", "source_stream", "source_batch", "lake_readers", "apply_arrays")
)
CONTAINERS: Final = "tests/e2e/"
_LONG: Final = (
    *("tests/integration/", "tests/pipeline/", "tests/simulation/"),
    *("tests/unit/web/test_page_in_chromium.py", "tests/unit/cli/test_wal_pull_cli.py"),
)


def scope(node_id: str) -> str:
    """Return what the tests of one worker have in common: their file, the Spark session, or the deployment."""
    path = node_id.partition("::")[0]
    if path.startswith(CONTAINERS):
        return "containers"
    return "Spark" if path in SPARK else path


def rank(node_id: str) -> int:
    """Return when a test is executed: one with a lower number is earlier."""
    path = node_id.partition("::")[0]
    if path.startswith(CONTAINERS):
        return 0
    if path in SPARK:
        return 1
    return 2 if path.startswith(_LONG) else 3
