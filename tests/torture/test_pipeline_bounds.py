"""The decoder's unit tests once more, with each access to an array checked.

What is compiled for use checks nothing: a read behind the end of the WAL would go unseen, or end the process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "decode",
    "decode_cases",
    "crc",
    "jit",
    "transactions",
    "views",
    "volume",
    "tuple_stats",
    "page_versions",
    "waldump",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_code_stays_within_its_arrays(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    files = [path for name in TESTS if (path := ROOT / "tests" / "unit" / f"test_pipeline_{name}.py").exists()]
    assert len(files) >= 4
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.glob("compiled-*-checked")]
