"""The CUDA C of every kernel, as NVRTC compiles it, against the reference: right as it is, and wrong when changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whorl.kernels.catalogue import KERNELS
from whorl.kernels.work import Expected, Launch, WordsExpected, Work
from whorl.tests.kernels import compiling
from whorl.tests.kernels.hosting import SMALL, HostDevice, work_of
from whorl.tests.sizes import is_all, is_long, sample

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())

SIZES: dict[str, dict[str, Any]] = {
    "fma-fp64": {"blocks": 2},
    "fma-fp32": {"blocks": 2},
    "fma-fp16": {"rounds": 64, "blocks": 2},
    "fma-int32": {"blocks": 2},
    **{f"gemm-{p}": {"n": 256, "k": 512} for p in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")},
    **{f"stream-{o}": {"count": 3 * 4096} for o in ("copy", "triad")},
    "l2-read": {"passes": 8},
    "chase": {"footprint": 128 << 10, "hops": 1500},
    "gather": {"table_bytes": 1 << 20, "gathers": 1 << 19},
    "atomics": {"counters": 4096, "additions": 1 << 18},
    "copy-h2d": {"size": 1 << 19},
    "copy-d2h": {"size": 1 << 19},
    "copy-d2d": {"size": 1 << 19},
    "copy-p2p": {"size": 1 << 19},
    "launch": {"launches": 5},
    "memory": {"size": 1 << 20},
    "sm": {"rounds": 1, "slab": 1 << 14, "far": 1 << 14},
    "power-mix": {"n": 256, "count": 8192, "blocks": 2},
    "power-share": {"share": 0.5, "times": 1},
    "stress": {
        "fp32": 2,
        "fp64": 1,
        "fp16": 1,
        "int32": 1,
        "rounds": 2,
        "threads": 64,
        "blocks": 1,
        "near": 1,
        "shared": 1,
        "stores": 1,
        "steps": 2,
        "waves": 2,
        "footprint": 1 << 18,
    },
    "pagerank": {"vertices": 700, "iterations": 3, "sweeps": 2},
    "stencil27": {"side": 64, "sweeps": 1},
    "overlap-embedding": {"width": 32, "turns": 4, "batches": 6, "lookahead": 2, "blocks": 1},
    "overlap-partitions": {"partitions": 6, "capacity": 3, "vertices": 64, "width": 32, "blocks": 1},
    "overlap-activations": {"tensors": 2, "channels": 256, "blocks": 1},
    "transformer": {"width": 128, "tokens": 32, "sequences": 3},
    "transformer-back": {"width": 128, "tokens": 16, "sequences": 3},
}
"""Parameters with which each kernel is quick on the host."""

CHANGES = {
    "fma-fp64": ("y[p] = FUSED(BACK, x[p], y[p])", "y[p] = FUSED(BACK, x[p], y[p] + (u == 3 ? 1e-9 : 0))"),
    "fma-fp32": ("r < rounds", "r + UNROLL < rounds"),
    "fma-fp16": ("FUSED(BACK, x[p], y[p])", "FUSED(BACK, x[p], y[p] ^ (u == 3))"),
    "fma-int32": ("return a * x + c", "return a * x + c + (c == 0x12345678 || (a & 4)) "),
    "stream-copy": ("a[from + u", "a[(from ^ 1) + u"),
    "stream-triad": ("v[u].w += factor", "v[u].w += 3 + factor - 3 * (v[u].w > 1u << 24)"),
    "l2-read": ("load_past_l1(from + place[u])", "load_past_l1(from + (place[u] ^ 1u))"),
    "chase": ("load_past_l1(lines + here)", "load_past_l1(lines + (here & ~32u))"),
    "gather": ("loaded[u] = table[place[u]]", "loaded[u] = table[place[u] & ~64u]"),
    "atomics": ("& mask), 1u)", "& mask), first == 64u ? 2u : 1u)"),
    "launch": ("atomicAdd(out, 1u)", "*out += 2u"),
    "memory": ("memory[v] = pattern", "memory[v ^ 1] = pattern"),
    "sm": ("values[VALUES - 1] = ~moved", "values[VALUES - 1] = ~moved ^ (thread == 40)"),
    "power-mix": ("v[u].y += factor * w[u].y", "v[u].y += factor * w[u].x"),
    "power-share": ("start[2 * p * PERIOD + lane]", "start[2 * p * PERIOD + (lane ^ 1)]"),
    "stress": ("x[p] = FUSED(ahead, y[p], x[p])", "x[p] = FUSED(ahead, y[p], p ? x[p] : y[p])"),
    "pagerank": ("e < end", "e + 1 < end"),
    "stencil27": ("x + 1 < nx ?", "x + 2 < nx ?"),
    "transformer": ("0.5f * x", "0.52f * x"),
    "transformer-back": ("1.0f - bent * bent", "1.0f - bent"),
    "overlap-embedding": ("slot[first + row] * WIDE + column", "slot[first + row] * WIDE + (column ^ 1)"),
    "overlap-partitions": ("place[sum * EACH + e]", "place[sum * EACH]"),
    "overlap-activations": ("-LEVELS), LEVELS - 1.0f)", "-LEVELS), LEVELS - 2.0f)"),
}
"""A mistake in the source of each kernel that has one, which the check must find."""


COSTLY = set() if is_all() else {"power-mix", "transformer", "transformer-back"}
"""Kernels of which the interpreter takes seconds for each case: what all kernels share is tried of the others."""
SLOW = set() if is_long() else {"power-share", *COSTLY}

RUN_HERE = sample(sorted(set(KERNELS) - SLOW), short=3)
"""Kernels that the tests run: what is compiled for one test serves the others."""


def small_work(name: str) -> Work:
    return work_of(name, **SIZES[name])


def test_every_kernel_is_run_here() -> None:
    assert set(SIZES) == set(KERNELS)


def test_every_kernel_with_a_source_has_a_mistake_here() -> None:
    launched = {name for name in KERNELS if any(isinstance(step, Launch) for step in small_work(name).turns[0])}
    assert set(CHANGES) == launched


@pytest.mark.long
@pytest.mark.parametrize("name", sample(sorted(set(CHANGES) - SLOW), short=3))
def test_a_mistake_in_the_source_is_found(name: str) -> None:
    old, new = CHANGES[name]
    device = HostDevice(small_work(name), seed=3, edit=lambda text: text.replace(old, new) if old in text else text)
    device.run()
    assert device.wrong() > 0


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", [name for name in RUN_HERE if name not in COSTLY and not name.startswith("overlap-")])
def test_a_repetition_that_did_nothing_or_left_out_a_block_is_found_after_three_more(name: str) -> None:
    work = small_work(name)
    cut = tuple(replace(step, grid=(step.grid[0] - 1, *step.grid[1:])) for step in launches(work))
    for turn in ((), *sample([(step,) for step in cut if step.grid[0]], short=1)[: None if is_all() else 3]):
        device = HostDevice(work, seed=5, poisoned=True)
        device.run()
        device.run(instead=turn)
        for _ in range(3):
            device.run()
        assert device.wrong() > 0


def launches(work: Work) -> list[Launch]:
    """Those of the second repetition."""
    return [step for step in work.turns[1 % len(work.turns)] if isinstance(step, Launch)]


@pytest.mark.long(short=8)
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"launch", "chase"}))
def test_other_seeds_have_other_results(name: str) -> None:
    for output in small_work(name).outputs:
        first, again, of_second_seed = (output.expect(seed, 1) for seed in (1, 1, 2))
        if isinstance(first, WordsExpected):
            assert first == again != of_second_seed
        else:
            assert isinstance(again, Expected)
            assert isinstance(of_second_seed, Expected)
            np.testing.assert_array_equal(first.values, again.values)
            assert (first.values != of_second_seed.values).any()


LOOSEST = {"fp64": 1e-11, "fp32": 1e-3, "tf32": 1e-3, "fp16": 2e-2, "bf16": 1e-2, "fp8": 1e-2, "int32": 0.0}
"""The tolerance at most, as a share of the result and the root mean square of all results together."""


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_tolerances_are_small_beside_the_results(name: str) -> None:
    work = small_work(name)
    for output in work.outputs:
        expected = output.expect(1, 1)
        if isinstance(expected, WordsExpected):
            continue
        size = np.sqrt(np.mean(expected.values**2))
        assert size > 0
        loosest = LOOSEST[work.precision]
        assert np.max(expected.tolerance / (size + np.abs(expected.values))) <= loosest
        assert np.min(expected.tolerance) >= 0


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    "name", sample(sorted({"gemm-fp32", "gemm-tf32", "gemm-fp16", "gemm-bf16", "transformer"} - SLOW), short=3)
)
def test_rounding_uses_a_fair_part_of_its_tolerance(name: str) -> None:
    """A bound that honest rounding comes nowhere near would let wrong results pass."""
    device = HostDevice(small_work(name), seed=7)
    device.run()
    _, off, tolerance = device.errors(device.work.outputs[0])
    used = np.max(off / tolerance)
    assert 1e-3 < used < 0.8


@pytest.mark.long
@pytest.mark.parametrize("name", ["fma-fp32", "fma-fp16", "power-share"])
def test_chains_do_the_flop_that_they_state(name: str) -> None:
    work = small_work(name)
    device = HostDevice(work, seed=1)
    device.run()
    assert 2 * device.multiply_adds == work.flop


@pytest.mark.long
def test_a_transformer_block_without_tensor_cores_is_right_in_fp32() -> None:
    work = work_of("transformer", replace(SMALL, capability=(6, 0)), **SIZES["transformer"])
    assert work.precision == "fp32"
    device = HostDevice(work, seed=3)
    device.run()
    assert device.wrong() == 0
    _, off, tolerance = device.errors(work.outputs[0])
    assert 1e-3 < np.max(off / tolerance) < 0.8
    assert np.max(tolerance) < 1e-4
