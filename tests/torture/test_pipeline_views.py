"""The compiled code of the views stays inside its arrays: its tests once more, with every access checked."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("test_pipeline_views.py", "test_pipeline_transaction_bodies.py")


def test_no_access_is_outside_of_an_array(tmp_path: Path) -> None:
    checked = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/unit/{name}" for name in TESTS),
    ]
    done = subprocess.run(command, cwd=ROOT, env=checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
