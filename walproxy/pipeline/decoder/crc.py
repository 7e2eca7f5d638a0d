"""CRC-32C for compiled code: the checksum of a WAL record, by the processor's own instruction where it has one.

Three ways, the same result: `crc32c_sse42` (x86-64 since 2008), `crc32c_aarch64` (ARMv8 with CRC, as all servers have)
and `crc32c_sliced`, which looks up eight bytes at a time in tables. `crc32c` is the best that this machine has. Over
records of 187 bytes on average the first took 11 ns each, the last 120.

Each takes (array, begin, end, register): the bytes [begin, end) of a uint8 array, and the register to go on from, which
begins as REGISTER_BEGIN. The checksum is the last register XOR REGISTER_BEGIN. Nothing is checked against the array's
size.
"""

import platform
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from walproxy.pipeline.decoder.jit import load_u8, load_u16, load_u32, load_u64, part

REGISTER_BEGIN: Final = 0xFFFFFFFF
_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, bits reversed


def _instruction(name: str, register_bits: int, data_bits: int) -> Any:
    """Return a function (register, data) -> register that is one instruction of the processor, named as in LLVM."""
    register_type, data_type, number = ir.IntType(register_bits), ir.IntType(data_bits), ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(register_type, [register_type, data_type])
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        narrowed = [
            argument if to == number else builder.trunc(argument, to)
            for argument, to in zip(arguments, (register_type, data_type), strict=True)
        ]
        result = builder.call(function, narrowed)
        return result if register_type == number else builder.zext(result, number)

    @intrinsic
    def step(typing_context: Any, register: Any, data: Any) -> Any:
        return types.uint64(types.uint64, types.uint64), generate

    return step


def _by_instructions(step_1: Any, step_2: Any, step_4: Any, step_8: Any) -> Any:
    """Return a checksum function with steps over 1, 2, 4 and 8 bytes."""

    @part
    def crc32c_by_instructions(array: Any, begin: int, end: int, register: int) -> Any:
        value: Any = np.uint64(register)
        at = begin
        while at + 8 <= end:
            value = step_8(value, load_u64(array, at))
            at += 8
        if end - at >= 4:
            value = step_4(value, np.uint64(load_u32(array, at)))
            at += 4
        if end - at >= 2:
            value = step_2(value, np.uint64(load_u16(array, at)))
            at += 2
        if end > at:
            value = step_1(value, np.uint64(load_u8(array, at)))
        return np.int64(value)

    return crc32c_by_instructions


# By LLVM's name, bits of the register and of the data; for 1, 2, 4 and 8 bytes.
SSE42_INSTRUCTIONS: Final = (
    ("llvm.x86.sse42.crc32.32.8", 32, 8),
    ("llvm.x86.sse42.crc32.32.16", 32, 16),
    ("llvm.x86.sse42.crc32.32.32", 32, 32),
    ("llvm.x86.sse42.crc32.64.64", 64, 64),
)
AARCH64_INSTRUCTIONS: Final = (
    ("llvm.aarch64.crc32cb", 32, 32),
    ("llvm.aarch64.crc32ch", 32, 32),
    ("llvm.aarch64.crc32cw", 32, 32),
    ("llvm.aarch64.crc32cx", 32, 64),
)
crc32c_sse42 = _by_instructions(*(_instruction(*each) for each in SSE42_INSTRUCTIONS))
crc32c_aarch64 = _by_instructions(*(_instruction(*each) for each in AARCH64_INSTRUCTIONS))


def _make_tables() -> Any:
    """Return 8 tables of 256: the effect of a byte at each distance before the register's end on it."""
    tables = np.zeros((8, 256), np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for distance in range(1, 8):
        tables[distance] = tables[distance - 1] >> 8 ^ tables[0][tables[distance - 1] & 0xFF]
    return tables.ravel()


_TABLES = _make_tables()


@part
def crc32c_sliced(array: Any, begin: int, end: int, register: int) -> int:
    """The checksum by tables, on any processor."""
    at = begin
    while at + 8 <= end:
        low = register ^ load_u32(array, at)
        high = load_u32(array, at + 4)
        register = (
            _TABLES[0x700 | low & 0xFF]
            ^ _TABLES[0x600 | low >> 8 & 0xFF]
            ^ _TABLES[0x500 | low >> 16 & 0xFF]
            ^ _TABLES[0x400 | low >> 24]
            ^ _TABLES[0x300 | high & 0xFF]
            ^ _TABLES[0x200 | high >> 8 & 0xFF]
            ^ _TABLES[0x100 | high >> 16 & 0xFF]
            ^ _TABLES[high >> 24]
        )
        at += 8
    while at < end:
        register = register >> 8 ^ _TABLES[(register ^ load_u8(array, at)) & 0xFF]
        at += 1
    return register


def _choose() -> Any:
    """Return the fastest way for which numba compiles here: LLVM ends the process at the request of another."""
    stated = config.CPU_FEATURES
    features = (get_host_cpu_features() if stated is None else stated).split(",")
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64") and "+crc32" in features:
        return crc32c_sse42
    # Apple's processors all have it, but LLVM does not report it.
    if machine in ("aarch64", "arm64") and ("+crc" in features or platform.system() == "Darwin"):
        return crc32c_aarch64
    return crc32c_sliced


crc32c = _choose()
