"""The generated kernel: what fits is known before it is compiled, its results are right, and every mistake is found."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import partial

import pytest

from whorl.errors import InputError
from whorl.kernels.cupy_library import source
from whorl.kernels.simulated_device import facts_of as simulated_facts
from whorl.kernels.simulated_device import timing
from whorl.kernels.stress import KNOBS, PRECISIONS, build, fits, knobs_of
from whorl.kernels.work import Facts, Launch, Unfit, Work
from whorl.simulation.models import A100, H100, MODELS, V100, GpuModel
from whorl.tests.kernels import compiling
from whorl.tests.kernels.hosting import SMALL, HostDevice, facts_of, work_of
from whorl.tests.sizes import count, sample

needs_compiler = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())
Setting = dict[str, int]


def drawn(facts: Facts, seed: int) -> Setting:
    """A random setting, whether it fits or not."""
    draw = random.Random(seed)
    return {knob.name: draw.choice(knob.values) for knob in knobs_of(facts)}


def fitting(facts: Facts, number: int, first: int = 0) -> list[Setting]:
    """So many random settings that fit."""
    settings: list[Setting] = []
    seed = first
    while len(settings) < number:
        setting = drawn(facts, seed)
        if fits(facts, setting) is None:
            settings.append(setting)
        seed += 1
    return settings


# -- what fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"bf16": 1}, "bf16 multiply-adds need compute capability 8.0"),
        ({"fp32": 0, "far": 0}, "nothing to do"),
        ({"fp32": 0, "far": 0, "stores": 4}, "nothing to do"),
        ({"threads": 1024, "fp64": 4, "fp32": 8, "far": 8}, "registers a thread, where 64 are left"),
        ({"threads": 256, "bound_blocks": 8}, "registers a thread, where 32 are left"),
        ({"shared_kib": 128}, "128 KiB of shared memory for a block, which may have 96 KiB"),
        ({"shared_kib": 64, "blocks": 2}, "2 blocks of 256 threads at a time: 1 fit"),
        ({"threads": 1024, "blocks": 4, "fp32": 1, "far": 0}, "registers a thread, where 16 are left"),
        ({"far_mib": 8192, "width": 1}, "MiB to load from"),
        ({"near": 1, "far": 0, "near_pct": 100, "threads": 1024}, ""),
    ],
)
def test_what_does_not_fit_is_known_beforehand(knobs: Setting, reason: str) -> None:
    facts = facts_of((7, 0), memory_bytes=8 << 30)
    answer = fits(facts, knobs)
    built = build(facts, **knobs)
    assert isinstance(built, Unfit) == bool(reason)
    assert (answer is None) == (not reason)
    if isinstance(answer, Unfit):
        assert reason in answer.reason
        assert built == answer


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [({"fp32": 5}, "the knob fp32 of stress is one of"), ({"tiles": 4}, "no knob 'tiles'; there are fp32, ")],
)
def test_a_knob_or_value_that_there_is_not_is_said(knobs: Setting, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        fits(SMALL, knobs)
    with pytest.raises(InputError, match=re.escape(sentence)):
        build(SMALL, **knobs)


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 6), (9, 0), (12, 0)])
def test_what_fits_is_a_work_of_the_device_and_half_of_the_settings_and_more_do_not(
    capability: tuple[int, int],
) -> None:
    model = max(older for older in ((7, 0), (8, 0), (9, 0)) if older <= capability)
    facts = replace(facts_of(model), capability=capability)
    number = count(2000, short=40)
    unfit = 0
    for seed in range(number):
        setting = drawn(facts, seed)
        if fits(facts, setting) is not None:
            unfit += 1
            continue
        work = work_of("stress", facts, **setting)
        assert work.memory_bytes <= 0.9 * facts.memory_bytes
        assert work.compared > 0
        assert work.flop or work.bytes or work.operations
        launch = work.turns[0][0]
        assert isinstance(launch, Launch)
        assert launch.shared <= facts.shared_bytes
        assert launch.block[0] <= 1024
    assert 0.5 <= unfit / number <= 0.9


def _compiled(compiler: compiling.Compiler, sm: int, setting: Setting, facts: Facts) -> tuple[int, int]:
    """Registers of a thread and bytes that spill."""
    launch = work_of("stress", facts, **setting).turns[0][0]
    assert isinstance(launch, Launch)
    _, report = compiler.compile(source(launch.source), f"sm_{sm}", launch.defines)
    report_line = re.search(r"function 'stress'.*?(\d+) bytes spill stores.*?Used (\d+) registers", report, re.DOTALL)
    assert report_line, report
    return int(report_line[2]), int(report_line[1])


@needs_compiler
def test_every_setting_that_fits_compiles_for_every_architecture_and_finds_its_registers() -> None:
    """No more than one in twenty spills: the estimate of registers is one."""
    targets = [(compiler, sm) for compiler in compiling.compilers() for sm in compiler.architectures]
    spilled = 0
    number = count(300, short=3)
    for place, (compiler, sm) in enumerate(sample(targets * 20, short=number)[:number]):
        model = max(older for older in ((7, 0), (8, 0), (9, 0)) if older <= divmod(sm, 10))
        facts = replace(facts_of(model), capability=divmod(sm, 10))
        (setting,) = fitting(facts, 1, first=1000 * place)
        registers, spills = _compiled(compiler, sm, setting, facts)
        blocks = max(setting["blocks"], setting["bound_blocks"], 1)
        assert -(-registers // 8) * 8 * setting["threads"] * blocks <= 65536, (sm, setting)
        spilled += spills > 0
    assert spilled <= max(1, number // 20)


# -- results ----------------------------------------------------------------------------------------------------------

FEW = {"far_mib": 0, "near_pct": 0}
HALF_MIB = replace(SMALL, l2_bytes=3 << 17)


def small(number: int) -> list[Work]:
    """Random settings at sizes for the host."""
    narrow = [knob for knob in KNOBS if knob.name not in ("threads", "blocks", "shared_kib", "launches", *FEW)]
    works: list[Work] = []
    seed = 0
    while len(works) < number:
        draw = random.Random(seed)
        setting = {knob.name: draw.choice(knob.values) for knob in narrow} | FEW
        setting |= {"threads": draw.choice((32, 64)), "blocks": draw.choice((1, 2)), "launches": draw.choice((1, 2))}
        setting["rounds"] = min(setting["rounds"], 4)
        seed += 1
        if fits(HALF_MIB, setting) is None:
            works.append(work_of("stress", HALF_MIB, **setting, steps=2, waves=draw.choice((1, 2)), footprint=1 << 18))
    return works


@needs_compiler
def test_random_settings_are_right_whichever_compiler_and_left_out_blocks_are_found() -> None:
    versions = [compiler.version for compiler in compiling.compilers()]
    for place, work in enumerate(small(count(60, short=2))):
        device = HostDevice(work, seed=place, compiler=versions[place % len(versions)])
        for _ in range(3):
            device.run()
        assert device.wrong() == 0, work.parameters
        launches = [step for step in work.turns[0] if isinstance(step, Launch)]
        if launches[0].grid[0] > 1:
            short = replace(launches[0], grid=(launches[0].grid[0] - 1, 1, 1))
            device.run(instead=(short, *launches[1:]))
        else:
            device.run(instead=())
        assert device.wrong() > 0, work.parameters


ALL = {
    **dict.fromkeys(PRECISIONS, 1),
    "rounds": 2,
    "threads": 32,
    "blocks": 1,
    "far": 1,
    "near": 1,
    "shared": 1,
    "stores": 1,
}
mixed = partial(work_of, "stress", HALF_MIB, **ALL, steps=2, waves=2, footprint=1 << 16)

MISTAKES = [
    ("x[p] = FUSED(ahead, y[p], x[p])", "x[p] = FUSED(ahead, x[p], y[p])"),
    ("r < ROUNDS", "r + 1 < ROUNDS"),
    ("start[(2 * p + 1) * PERIOD + lane]", "start[2 * p * PERIOD + lane]"),
    ("far + (unsigned long long)far_at", "far + (unsigned long long)(far_at ^ 1)"),
    ("near + (unsigned long long)near_at", "near + (unsigned long long)(near_at ^ 4)"),
    ("((const vector*)slab)[slab_place[j]]", "((const vector*)slab)[slab_place[j] ^ 1]"),
    ("keep_v[j][c] + factor", "keep_v[j][c] + 2 * factor"),
    ("kept[keep_place[j] + c] =", "kept[keep_place[j] ^ 1] ="),
    ("step < steps", "step + 1 < steps"),
]


@needs_compiler
@pytest.mark.parametrize(("old", "new"), sample(MISTAKES, short=2))
def test_a_mistake_in_the_source_is_found(old: str, new: str) -> None:
    assert old in source("stress.cu")
    device = HostDevice(mixed(), seed=3, edit=lambda text: text.replace(old, new))
    device.run()
    assert device.wrong() > 0


# -- on simulated GPUs ------------------------------------------------------------------------------------------------


def shares(model: GpuModel, **knobs: int) -> tuple[float, float, float]:
    """FLOP/s, bytes/s from memory, and activity at the highest clock."""
    work = work_of("stress", simulated_facts(model), **knobs)
    timed = timing(work, model)
    moved = timed.workload.bandwidth_share * model.bandwidth_gb_s * 1e9
    return work.flop / timed.unit_s, moved, timed.workload.activity


CHAINS = {"fp32": 8, "rounds": 64, "far": 0}
LOADS = {"fp32": 0, "far": 8, "far_mib": 4096}


@pytest.mark.parametrize("model", [V100, A100, H100], ids=lambda model: model.name)
def test_knobs_that_ask_what_a_kernel_of_the_catalogue_asks_have_its_rate_and_activity(model: GpuModel) -> None:
    chains, triad = (work_of(name, simulated_facts(model)) for name in ("fma-fp32", "stream-triad"))
    rate, _, activity = shares(model, **CHAINS)
    assert rate == pytest.approx(chains.flop / timing(chains, model).unit_s, rel=0.2)
    assert activity == pytest.approx(chains.activity, abs=0.1)
    _, moved, activity = shares(model, **LOADS)
    assert moved == pytest.approx(triad.bytes / timing(triad, model).unit_s, rel=0.15)
    assert triad.activity < activity < 0.6


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_no_setting_has_more_than_the_peaks_of_its_model(model: GpuModel) -> None:
    facts = simulated_facts(model)
    for setting in fitting(facts, count(200, short=10)):
        work = work_of("stress", facts, **setting)
        timed = timing(work, model)
        assert 0 < timed.workload.activity <= 1
        assert 0 <= timed.workload.bandwidth_share <= 0.92 + 1e-9
        assert 0 <= timed.workload.compute_share <= 1
        assert timed.workload.compute_share + timed.workload.fixed_share <= 1 + 1e-9
        assert timed.unit_s < 0.4
