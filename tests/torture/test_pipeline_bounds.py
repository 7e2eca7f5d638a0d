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
    "crc",
    "decode",
    "decode_cases",
    "decoder_pages",
    "jit",
    "opcodes",
    "row_hashes",
    "transaction_bodies",
    "transactions",
    "views",
    "waldump",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_code_stays_within_its_arrays(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    files = [ROOT / "tests" / "unit" / "pipeline" / f"test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.glob("compiled-*-checked")]
