"""Where compiled code is kept, and that it is found there."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from walproxy.pipeline.decoder.jit import cache_folder, compiled, load_i64, load_u8, load_u16, load_u32, load_u64

ROOT = Path(__file__).parents[3]
MODULE = """
from walproxy.pipeline.decoder.jit import compiled

@compiled
def twice(number):
    return 2 * number

assert twice(21) == 42
print("found" if twice.stats.cache_hits else "compiled")
"""


def run(folder: Path, **environment: str) -> str:
    """Import a module with a compiled function in a new process and return what became of it."""
    (folder / "small.py").write_text(MODULE)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{folder}", **environment}
    command = [sys.executable, "-c", "import small"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_one_process_compiles_is_found_by_the_next(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    assert run(tmp_path, NUMBA_CACHE_DIR=kept) == "compiled"
    assert run(tmp_path, NUMBA_CACHE_DIR=kept) == "found"


def test_without_any_place_to_keep_it_the_code_is_compiled_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "kept")
    assert run(tmp_path, NUMBA_CACHE_DIR=nowhere) == "compiled"
    assert run(tmp_path, NUMBA_CACHE_DIR=nowhere) == "compiled"


def test_code_is_kept_in_the_first_folder_that_can_be_written_and_apart_for_other_sources(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("one")
    (tmp_path / "file").touch()
    parents = [tmp_path / "file" / "inside", tmp_path / "second", tmp_path / "third"]
    folder = cache_folder(parents, [source])
    assert folder is not None
    assert (folder.parent, folder.is_dir()) == (tmp_path / "second", True)
    assert cache_folder(parents, [source]) == folder
    source.write_text("two")
    assert cache_folder(parents, [source]) not in (folder, None)
    assert cache_folder(parents[:1], [source]) is None
    assert cache_folder(parents, [tmp_path / "some.zip" / "source.py"]) is None


def test_what_another_user_compiled_is_copied_if_it_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.py"
    source.write_text("one")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ready = cache_folder([theirs], [source])
    assert ready is not None
    (ready / "decoder").mkdir()
    (ready / "decoder" / "walk.nbc").write_text("compiled")
    make = tempfile.TemporaryFile

    def only_ours(dir: Path) -> Any:
        if theirs in dir.parents:
            raise PermissionError(f"{dir} cannot be written")
        return make(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", only_ours)
    folder = cache_folder([theirs, ours], [source])
    assert folder == ours / ready.name
    assert (folder / "decoder" / "walk.nbc").read_text() == "compiled"
    assert [path.name for path in ours.iterdir()] == [ready.name]
    # What is there by then stays.
    (folder / "decoder" / "walk.nbc").write_text("compiled here")
    assert cache_folder([theirs, ours], [source]) == folder
    assert (folder / "decoder" / "walk.nbc").read_text() == "compiled here"


@pytest.mark.parametrize(
    ("load", "size", "signed"),
    [(load_u8, 1, False), (load_u16, 2, False), (load_u32, 4, False), (load_u64, 8, False), (load_i64, 8, True)],
)
def test_a_number_is_read_at_any_byte(load, size: int, signed: bool) -> None:  # type: ignore[no-untyped-def]
    raw = bytes(range(256 - 24, 256)) + bytes(range(8))
    array = np.frombuffer(raw, np.uint8)
    read = compiled(lambda array, offset: load(array, offset))
    for offset in range(len(raw) - size + 1):
        assert read(array, offset) == int.from_bytes(raw[offset : offset + size], "little", signed=signed)
