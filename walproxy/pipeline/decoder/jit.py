"""Compile the decoder's functions, cache the result, and read bytes in them.

`compiled` is for what Python calls; `part` and `inlined` are for what compiled functions call. Reference counts are
left out: a compiled function uses arrays that its caller holds, and cannot make any. (With them each look at one of
the arrays in a tuple was two atomic instructions; they took nine tenths of a walk's time.)

What `compiled` makes is kept beside the source in `__pycache__` or, where that cannot be written, in the user's cache
folder or the one for temporary files; NUMBA_CACHE_DIR puts it elsewhere. Where nothing can be written it is compiled
again in each process: slow to start, as fast afterwards. The folder is named by a digest of all sources of the decoder:
numba itself looks only at the file of the function that Python calls, and would go on using old code of what that one
calls.

Each function is compiled for one combination of types only. So processes that compile at the same time write files
that are the same, by renaming them into place.

`load_u8` to `load_u64` read little-endian numbers at any byte of an array, aligned or not. They check nothing, unless
NUMBA_BOUNDSCHECK=1 is set, as tests do: their callers have checked.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from safekeeper.waldecode import format as wal_format

_CHECKED: Final = bool(config.BOUNDSCHECK)
_OPTIONS: Final = {"nogil": True, "error_model": "numpy", "_nrt": False}
_HERE: Final = Path(__file__).parent


def cache_folder(parents: Iterable[Path], sources: Iterable[Path]) -> Path | None:
    """Return a folder for what is compiled from `sources`, in the first of `parents` where one can be written.

    The folder has been made. What was compiled into an earlier one that can only be read, as in an image that another
    user made, is copied into it: numba does not use a folder that it cannot write. None if there is no such place, or
    no source to read, as in a zip file.
    """
    try:
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    except OSError:
        return None
    name = f"compiled-{digest.hexdigest()[:16]}{'-checked' if _CHECKED else ''}"
    ready: Path | None = None
    for parent in parents:
        folder = parent / name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            if ready is not None and not folder.exists():
                _copy(ready, folder)
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            if ready is None and os.access(folder, os.R_OK | os.X_OK):
                ready = folder
    return None


def _copy(ready: Path, folder: Path) -> None:
    """Copy a folder, whole or not at all. Another process may do the same."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        shutil.copytree(ready, Path(scratch, "copy"), copy_function=shutil.copyfile).rename(folder)


def _parents() -> Iterator[Path]:
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR)
        return
    yield _HERE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # This user has no home.
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "walproxy")
    temporary = Path(tempfile.gettempdir(), f"walproxy-{os.getuid()}")
    if _is_ours_alone(temporary):  # What is compiled there will be run.
        yield temporary


def _is_ours_alone(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


_CACHE_FOLDER: Final = cache_folder(_parents(), (*sorted(_HERE.glob("*.py")), Path(wal_format.__file__)))


def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` as machine code that runs without the interpreter's lock. The code is kept on disk."""
    if _CACHE_FOLDER is None:
        return njit(**_OPTIONS)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_CACHE_FOLDER)  # numba reads it once, here.
    try:
        return njit(cache=True, **_OPTIONS)(function)
    finally:
        config.CACHE_DIR = before


def part(function: Callable[..., Any]) -> Any:
    """Return `function` for compiled functions to call. It is compiled with the function that calls it."""
    return njit(**_OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Return what `part` does, but without a call: with tens of arrays as arguments, a call is dear."""
    return njit(forceinline=True, **_OPTIONS)(function)


def _unaligned_load(bits: int, result: Any) -> Any:
    """Return a function (array, offset) -> number for compiled code. Numbers of up to 32 bits come as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(builder.bitcast(array.data, cgutils.voidptr_t), [arguments[1]])
        value = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
        return value if bits == 64 else builder.zext(value, ir.IntType(64))

    @intrinsic
    def load(typing_context: Any, array: Any, offset: Any) -> Any:
        return result(array, types.intp), generate

    @part
    def checked_load(array: Any, offset: int) -> Any:
        if not 0 <= offset <= len(array) - bits // 8:
            raise IndexError("a read outside of the array")
        return load(array, offset)

    return checked_load if _CHECKED else load


load_u8 = _unaligned_load(8, types.int64)
load_u16 = _unaligned_load(16, types.int64)
load_u32 = _unaligned_load(32, types.int64)
load_i64 = _unaligned_load(64, types.int64)
load_u64 = _unaligned_load(64, types.uint64)
