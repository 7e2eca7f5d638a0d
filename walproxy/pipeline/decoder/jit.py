"""How the decoder's functions are compiled, and how they read bytes.

The compiled code is kept beside the source or, where that cannot be written, in the user's cache (NUMBA_CACHE_DIR says
otherwise). Where neither can be written it is compiled anew in each process: slow to start, as fast afterwards.

Each function is compiled for one combination of types only. Then processes that compile at the same time write the
same files, by renaming: whichever is last, what is there is whole and right.

`load_u8` to `load_u64` read little-endian numbers at any byte of an array, aligned or not. They check nothing, unless
NUMBA_BOUNDSCHECK=1 is set, as tests do: whoever calls them has checked.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_CHECKED = bool(config.BOUNDSCHECK)


def compiled(function: Callable[..., Any]) -> Any:
    """Return `function` as machine code that runs without the interpreter's lock."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # There is no folder for the cache.
        return njit(nogil=True, error_model="numpy")(function)


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

    @compiled
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
