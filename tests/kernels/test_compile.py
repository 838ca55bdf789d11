"""Every source compiles with NVRTC of CUDA 12 and 13 for each architecture, and its machine code is what is meant."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import prod

import pytest

from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.cupy_library import FOLDER, source
from whorl.kernels.fma import chain_launch
from whorl.kernels.work import Launch, Work
from whorl.tests.kernels.compiling import (
    CompileError,
    Compiler,
    MachineInstruction,
    compilers,
    listing,
    operations,
    why_no_listing,
)
from whorl.tests.kernels.hosting import facts_of
from whorl.tests.sizes import sample

pytestmark = pytest.mark.skipif(not compilers(), reason="no NVRTC here")
lists = pytest.mark.skipif(bool(why_no_listing()), reason=why_no_listing())

TARGETS = [(compiler, sm) for compiler in compilers() for sm in compiler.architectures]
LISTED = [target for target in TARGETS if target[1] >= 75]
"""What the lister of CUDA 13 knows: Volta's code is compiled and not looked into."""

PLAIN: dict[str, list[tuple[str, ...]]] = {
    "check.cu": [(f"ELEMENT={element}",) for element in range(5)],
    "fill.cu": [*((f"BYTES={size}",) for size in (1, 2, 4, 8)), ("NUMBER=float",)],
    "peers.cu": [()],
}
"""Sources of no kernel, with what they are compiled with."""


def named(target: object) -> str:
    return f"CUDA {target.version}" if isinstance(target, Compiler) else str(target)


def capability(sm: int) -> tuple[int, int]:
    return divmod(sm, 10)


@cache
def works(sm: int) -> list[Work]:
    """The catalogue on the largest of V100, A100 and H200 that is no newer, with its capability."""
    model = max(oldest for oldest in ((7, 0), (8, 0), (9, 0)) if oldest <= capability(sm))
    facts = replace(facts_of(model), capability=capability(sm))
    built = [find_kernel(name).build(facts) for name in KERNELS]
    return [work for work in built if isinstance(work, Work)]


@cache
def launches(sm: int) -> list[Launch]:
    """Every launch of the catalogue, and one of each source of no kernel."""
    steps = [step for work in works(sm) for step in work.steps if isinstance(step, Launch)]
    size = ((1, 1, 1), (256, 1, 1), ())
    return steps + [Launch(name, "", *size, defines) for name, variants in PLAIN.items() for defines in variants]


@cache
def machine_code(compiler: Compiler, name: str, sm: int, defines: tuple[str, ...]) -> tuple[bytes, str]:
    """The machine code of a source, and the assembler's report."""
    return compiler.compile(source(name), f"sm_{sm}", defines)


def registers(report: str, function: str) -> int:
    """Of a thread."""
    used = re.search(rf"entry function '{function}'.*?Used (\d+) registers", report, re.DOTALL)
    assert used, report
    return int(used[1])


def test_every_source_belongs_to_a_kernel() -> None:
    assert {launch.source for launch in launches(90)} == {path.name for path in FOLDER.glob("*.cu")}


@pytest.mark.parametrize(("compiler", "sm"), sample(TARGETS, short=2), ids=named)
def test_every_source_compiles_without_spilling_and_a_block_finds_registers_enough(compiler: Compiler, sm: int) -> None:
    """A multiprocessor has 65,536 registers: a block that needs more is not launched."""
    sources = sorted({(launch.source, launch.defines) for launch in launches(sm)})
    for name, defines in sample(sources, short=5):
        _, report = machine_code(compiler, name, sm, defines)
        complaints = [line for line in report.splitlines() if "warning" in line and "_75' are deprecated" not in line]
        assert not complaints, (name, complaints)
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
        assert set(spills) == {("0", "0")}, (name, report)
        assert set(re.findall(r"(\d+) bytes stack frame", report)) == {"0"}, (name, report)
        for launch in launches(sm):
            if (launch.source, launch.defines) == (name, defines) and launch.function:
                assert -(-registers(report, launch.function) // 8) * 8 * prod(launch.block) <= 65536, launch


def test_a_source_that_is_wrong_does_not_compile() -> None:
    for compiler in compilers():
        with pytest.raises(CompileError, match="identifier"):
            compiler.compile(source("launch.cu").replace("out, 1u", "out, one"), "sm_80")


ROUNDS_A_LOOP = 16
"""UNROLL of fma.cu."""

WORDS = {"fp64": 12, "fp16": 24}
"""Of a thread's numbers, where not 16."""

CHAINS = {"fp64": "DFMA", "fp32": "FFMA", "fp16": "HFMA2", "int32": "IMAD"}
"""The instruction of each chain."""


@lists
@pytest.mark.parametrize(
    ("precision", "compiler", "sm"),
    sample([(chain, *target) for chain in CHAINS for target in LISTED], short=1),
    ids=named,
)
def test_the_loop_of_a_chain_is_multiply_adds_whose_registers_are_read_as_fast_as_it_multiplies(
    precision: str, compiler: Compiler, sm: int
) -> None:
    """16 rounds of all numbers in a loop, and at most 6 other instructions (10 on Turing).

    The register file delivers two 32-bit operands a cycle, one from even and one from odd registers. A multiply-add
    that could start every cycle (fp32 and packed ones on sm_90, packed fp16 on sm_80) must therefore read two
    registers, not three, and in all as many even as odd ones: exactly on sm_80 and sm_90, within 9 % elsewhere. One of
    fp64 reads pairs, and starts every other cycle at most.
    """
    defines = chain_launch(precision, 1, 256, 16).defines
    code = listing(machine_code(compiler, "fma.cu", sm, defines)[0])["chains"]
    code = [step for step in code if step.operation != "NOP"]
    places = [i for i, step in enumerate(code) if step.operation.startswith(CHAINS[precision]) and len(step.read) >= 2]
    loop = _longest(places)
    count = ROUNDS_A_LOOP * WORDS.get(precision, 16)
    fused = [code[i] for i in loop]
    assert count <= len(fused) <= count + 2
    assert loop[-1] - loop[0] + 1 - len(fused) <= (10 if sm == 75 else 6)
    assert all(len(step.read) == 2 for step in fused)
    if precision != "fp64":
        even = sum(register % 2 == 0 for step in fused for register in step.read)
        assert even == pytest.approx(len(fused), rel=0.02 if sm in (80, 90) else 0.09)


@pytest.mark.parametrize("sm", sample([70, 80, 90], short=1))
def test_chains_run_in_whole_waves(sm: int) -> None:
    """A last wave of a few blocks could fall to some of the multiprocessors while the others idle."""
    for work in works(sm):
        if work.kernel.startswith("fma-"):
            (launch,) = work.steps
            assert isinstance(launch, Launch)
            report = machine_code(compilers()[0], launch.source, sm, launch.defines)[1]
            used = registers(report, launch.function)
            at_a_time = min(2048 // prod(launch.block), 65536 // (-(-used // 8) * 8 * prod(launch.block)))
            sms = facts_of(capability(sm)).sms
            assert launch.grid[0] % (at_a_time * sms) == 0, (work.kernel, at_a_time)


def _longest(places: list[int]) -> list[int]:
    """The longest run of places with at most four others between two."""
    runs = [[places[0]]]
    for place in places[1:]:
        if place - runs[-1][-1] > 5:
            runs.append([])
        runs[-1].append(place)
    return max(runs, key=len)


def loads(code: list[MachineInstruction]) -> list[str]:
    return [name for name in operations(code).elements() if name.startswith(("LDG", "LD."))]


WIDE = {"stream_copy": (4, 4), "stream_triad": (8, 4)}
"""Loads and stores of 128 bits of a thread, and there are no others."""


@pytest.mark.long
@lists
@pytest.mark.parametrize(("compiler", "sm"), sample(LISTED, short=1), ids=named)
def test_what_reads_and_writes_memory_does_as_the_kernels_say(compiler: Compiler, sm: int) -> None:
    """Streams move 128 bits at a time; loads of L2 and chases pass by the L1 cache; the stencil's loop does two
    planes, each in 9 loads and 27 multiply-adds a thread, which are those of one point."""
    streams = listing(machine_code(compiler, "stream.cu", sm, ())[0])
    for function, (read, written) in WIDE.items():
        stores = [name for name in operations(streams[function]).elements() if name.startswith("STG")]
        assert [len(loads(streams[function])), len(stores)] == [read, written]
        assert all(".128" in name for name in (*loads(streams[function]), *stores))
    access = listing(machine_code(compiler, "access.cu", sm, _defines("access.cu", sm))[0])
    assert loads(access["read_again"]) == ["LDG.E.128.STRONG.GPU"] * 4
    assert operations(access["chase"])["LDG.E.STRONG.GPU"] == 4
    assert len(loads(access["chase"])) == 5, "and where the walk begins"
    stencil = listing(machine_code(compiler, "stencil.cu", sm, _defines("stencil.cu", sm))[0])["sweep27"]
    assert len([name for name in loads(stencil) if ".64" not in name]) == 2 * 9
    assert 2 * 27 <= sum(name.startswith("FFMA") for name in operations(stencil).elements()) <= 2 * 27 + 8


def _defines(name: str, sm: int) -> tuple[str, ...]:
    return next(launch.defines for launch in launches(sm) if launch.source == name)
