import random

import google_crc32c
import numpy as np
import pytest
from llvmlite import binding, ir

from walproxy.pipeline.decoder import crc
from walproxy.pipeline.decoder.jit import compiled

USABLE = {"tables": crc.crc32c_sliced, "chosen": crc.crc32c}


@pytest.mark.parametrize("way", sorted(USABLE))
def test_each_way_has_the_same_checksum_whatever_the_length_and_place(way: str) -> None:
    function = USABLE[way]

    @compiled
    def checksum(array, begin, middle, end):  # type: ignore[no-untyped-def]
        return function(array, middle, end, function(array, begin, middle, 0xFFFFFFFF)) ^ 0xFFFFFFFF

    numbers = random.Random(1)
    content = np.frombuffer(numbers.randbytes(3000), np.uint8)
    places = [(begin, begin, begin + size) for begin in range(9) for size in range(70)]
    places += [tuple(sorted(numbers.sample(range(3001), 3))) for _ in range(300)]
    for begin, middle, end in places:
        assert checksum(content, begin, middle, end) == google_crc32c.value(content[begin:end].tobytes())


@pytest.mark.parametrize(
    ("triple", "features", "instructions", "mnemonics"),
    [
        ("x86_64-linux-gnu", "+crc32", crc.SSE42_INSTRUCTIONS, ["crc32b", "crc32w", "crc32l", "crc32q"]),
        ("aarch64-linux-gnu", "+crc", crc.AARCH64_INSTRUCTIONS, ["crc32cb", "crc32ch", "crc32cw", "crc32cx"]),
    ],
)
def test_the_instructions_are_those_of_the_processor(
    triple: str, features: str, instructions: tuple[tuple[str, int, int], ...], mnemonics: list[str]
) -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(features=features)
    for (name, register_bits, data_bits), mnemonic in zip(instructions, mnemonics, strict=True):
        function_type = ir.FunctionType(ir.IntType(register_bits), [ir.IntType(register_bits), ir.IntType(data_bits)])
        module = ir.Module()
        module.triple = triple
        instruction = ir.Function(module, function_type, name)
        caller = ir.Function(module, function_type, "caller")
        builder = ir.IRBuilder(caller.append_basic_block())
        builder.ret(builder.call(instruction, caller.args))
        assembly = machine.emit_assembly(binding.parse_assembly(str(module)))
        assert mnemonic in assembly


def test_this_machine_uses_an_instruction_if_it_is_one_of_the_common_ones() -> None:
    features = binding.get_host_cpu_features()
    if features.get("crc32") or features.get("crc"):
        assert crc.crc32c is not crc.crc32c_sliced
