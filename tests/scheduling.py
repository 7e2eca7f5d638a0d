"""The order in which a whole run executes the tests' files, and which files one worker executes.

A run ends when its last worker does: files that take long come first, and the small ones fill what is left. The files
that use a Spark session share it, on one worker: its start and its first job take longer than any of their tests.
"""

from typing import Final

# tests/unit/test_scheduling.py compares them with the files that have the fixture.
SPARK: Final = tuple(
    f"tests/pipeline/test_{name}.py"
    for name in ("run", "cdc", "sink", "source_stream", "source_batch", "lake_readers", "apply_arrays")
)
_LONG: Final = (
    *("tests/integration/", "tests/pipeline/", "tests/simulation/"),
    *("tests/unit/web/test_page_in_chromium.py", "tests/unit/cli/test_wal_pull_cli.py"),
)


def scope(node_id: str) -> str:
    """Return what the tests of one worker have in common: their file, or the Spark session."""
    path = node_id.partition("::")[0]
    return "Spark" if path in SPARK else path


def rank(node_id: str) -> int:
    """Return when a test is executed: one with a lower number is earlier."""
    path = node_id.partition("::")[0]
    if path in SPARK:
        return 0
    return 1 if path.startswith(_LONG) else 2
