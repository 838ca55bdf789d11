"""Every source compiles for V100, A100 and H100, as CuPy compiles it, and its machine code is what is meant."""

from __future__ import annotations

import re
from functools import cache
from math import prod

import pytest

from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.fma import chain_launch
from whorl.kernels.sources import FOLDER, source
from whorl.kernels.work import Launch, Work
from whorl.tests.kernels.compiling import MULTIPLY_ADDS, CompileError, compiled, instructions, library
from whorl.tests.kernels.hosting import facts_of
from whorl.tests.sizes import sample

pytestmark = pytest.mark.skipif(library() is None, reason="no NVRTC here")

CAPABILITIES = {"70": (7, 0), "80": (8, 0), "90": (9, 0)}
TRIED = sample(CAPABILITIES, short=1)


@cache
def variants(capability: tuple[int, int]) -> dict[tuple[str, tuple[str, ...]], str]:
    """Source and defines of every launch of the catalogue on such a device, with a kernel that has it."""
    found: dict[tuple[str, tuple[str, ...]], str] = {}
    for name in KERNELS:
        work = find_kernel(name).build(facts_of(capability))
        if isinstance(work, Work):
            for step in work.steps:
                if isinstance(step, Launch):
                    found[step.source, step.defines] = name
    return found


def test_every_source_belongs_to_a_kernel() -> None:
    used = {name for name, _ in variants((9, 0))}
    assert used | {"check.cu", "fill.cu"} == {path.name for path in FOLDER.glob("*.cu")}


@pytest.mark.long
@pytest.mark.parametrize("sm", TRIED)
def test_every_source_compiles_to_machine_code_without_spilling(sm: str) -> None:
    found = [*variants(CAPABILITIES[sm]), *(("check.cu", (f"ELEMENT={element}",)) for element in range(9))]
    for name, defines in found:
        log = report(name, f"sm_{sm}", defines)
        complaints = [line for line in log.splitlines() if "warning" in line and "_75' are deprecated" not in line]
        assert not complaints, (name, complaints)
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert spills, (name, log)
        assert set(spills) == {("0", "0")}, (name, log)
        assert all(int(stack) == 0 for stack in re.findall(r"(\d+) bytes stack frame", log)), (name, log)


@pytest.mark.long
@pytest.mark.parametrize("sm", TRIED)
def test_a_block_finds_registers_enough(sm: str) -> None:
    """A multiprocessor has 65,536: a block that needs more is not launched."""
    for name in KERNELS:
        work = find_kernel(name).build(facts_of(CAPABILITIES[sm]))
        for step in work.steps if isinstance(work, Work) else ():
            if isinstance(step, Launch):
                log = report(step.source, f"sm_{sm}", step.defines)
                used = re.search(rf"entry function '{step.function}'.*?Used (\d+) registers", log, re.DOTALL)
                assert used, log
                assert -(-int(used[1]) // 8) * 8 * prod(step.block) <= 65536


@cache
def report(name: str, arch: str, defines: tuple[str, ...]) -> str:
    return compiled(source(name), arch, defines)[1]


def test_a_source_that_is_wrong_does_not_compile() -> None:
    with pytest.raises(CompileError, match="identifier"):
        compiled(source("launch.cu").replace("out, 1u", "out, one"), "sm_80")


ROUNDS_A_LOOP = 16
"""UNROLL of fma.cu."""

WORDS = {"fp64": 12, "fp16": 24, "bf16": 24}
"""Of a thread's numbers, where not 16."""

CHAINS = {
    "fp64": r"fma\.rn\.f64",
    "fp32": r"fma\.rn\.ftz\.f32",
    "fp16": r"fma\.rn\.f16x2",
    "bf16": r"fma\.rn\.bf16x2",
    "int32": r"mad\.lo\.s32",
}


@pytest.mark.parametrize("precision", CHAINS)
def test_the_loop_of_a_chain_is_multiply_adds_and_little_else(precision: str) -> None:
    """16 rounds of all numbers in a loop, and at most 4 other instructions, but for PTX's registers for constants."""
    ptx, _ = compiled(source("fma.cu"), "compute_80", chain_launch(precision, 1, 256, 16).defines)
    body = [line for line in loop_of(ptx) if not re.match(r"mov\.|ld\.param", line)]
    fused = [line for line in body if re.match(CHAINS[precision], line)]
    assert len(fused) == ROUNDS_A_LOOP * WORDS.get(precision, 16)
    assert len(body) - len(fused) <= 4, body


@pytest.mark.parametrize(
    ("precision", "sm"),
    sample([(each, sm) for each in CHAINS for sm in CAPABILITIES if (each, sm) != ("bf16", "70")], short=3),
)
def test_the_registers_of_a_chain_can_be_read_as_fast_as_it_multiplies(precision: str, sm: str) -> None:
    """The register file delivers two 32-bit operands a cycle, one from even and one from odd registers.

    A multiply-add that could start every cycle (fp32 and packed ones on sm_90, packed fp16 on sm_80) must therefore
    read two registers, not three, and in all as many even as odd ones. One of fp64 reads pairs, and starts every
    other cycle at most.
    """
    code = instructions(source("fma.cu"), f"sm_{sm}", chain_launch(precision, 1, 256, 16).defines, "chains")
    rounds = {0x023: "fp32", 0x024: "int32", 0x02B: "fp64", 0x031: "16", 0x035: "16"}
    meant = {operation for operation, of in rounds.items() if precision.endswith(of)}
    places = [i for i, each in enumerate(code) if each.operation in meant and len(each.registers) >= 2]
    loop = _longest(places)
    count = ROUNDS_A_LOOP * WORDS.get(precision, 16)
    fused = [code[i] for i in loop]
    assert count <= len(fused) <= count + 2, [MULTIPLY_ADDS[operation] for operation in meant]
    assert loop[-1] - loop[0] + 1 - len(fused) <= 6
    assert all(len(each.registers) == 2 for each in fused)
    if precision != "fp64" and sm != "70":
        even = sum(register % 2 == 0 for each in fused for register in each.registers)
        assert even == pytest.approx(len(fused), rel=0.02)


@pytest.mark.parametrize("sm", TRIED)
def test_chains_run_in_whole_waves(sm: str) -> None:
    """A last wave of a few blocks could fall to some of the multiprocessors while the others idle."""
    facts = facts_of(CAPABILITIES[sm])
    for name in KERNELS:
        work = find_kernel(name).build(facts)
        if name.startswith("fma-") and isinstance(work, Work):
            (launch,) = work.steps
            assert isinstance(launch, Launch)
            used = re.search(r"Used (\d+) registers", report(launch.source, f"sm_{sm}", launch.defines))
            assert used
            at_a_time = min(2048 // prod(launch.block), 65536 // (-(-int(used[1]) // 8) * 8 * prod(launch.block)))
            assert launch.grid[0] % (at_a_time * facts.sms) == 0, (name, at_a_time)


def _longest(places: list[int]) -> list[int]:
    """The longest run of places with at most four others between two."""
    runs = [[places[0]]]
    for place in places[1:]:
        if place - runs[-1][-1] > 5:
            runs.append([])
        runs[-1].append(place)
    return max(runs, key=len)


def loop_of(ptx: str) -> list[str]:
    """Instructions between the only label that is jumped back to and the jump."""
    lines = [line.strip() for line in ptx.splitlines()]
    for at, line in enumerate(lines):
        jump = re.search(r"bra(?:\.uni)?\s+(\$\w+);", line)
        if jump and f"{jump[1]}:" in lines[:at]:
            inside = lines[lines.index(f"{jump[1]}:") + 1 : at + 1]
            return [each for each in inside if each.endswith(";") and not each.startswith(("//", "."))]
    raise AssertionError("no loop")


def test_loads_of_the_l2_kernel_pass_by_the_l1_cache() -> None:
    ptx, _ = compiled(source("access.cu"), "compute_80")
    body = ptx.split(".entry read_again")[1].split(".entry")[0]
    past = len(re.findall(r"ld\.global\.cg\.v4\.u32", body))
    assert past >= 4
    assert len(re.findall(r"ld\.global", body)) == past


def test_the_chase_waits_for_each_load() -> None:
    """The place of each load is made from the word before: four loads in a loop, none of them asked for early."""
    ptx, _ = compiled(source("access.cu"), "compute_80")
    body = ptx.split(".entry chase")[1].split(".entry")[0]
    assert len(re.findall(r"ld\.global\.cg\.u32", body)) == 4


@pytest.mark.parametrize("operation", ["copy", "scale", "add"])
def test_streams_move_16_bytes_at_a_time(operation: str) -> None:
    ptx, _ = compiled(source("stream.cu"), "compute_80")
    body = ptx.split(f".entry stream_{operation}")[1].split(".entry")[0]
    assert len(re.findall(r"ld\.global[.\w]*v4\.u32", body)) == (8 if operation == "add" else 4)
    assert len(re.findall(r"st\.global[.\w]*v4\.u32", body)) == 4
