"""The tolerance of matrix products against tensor cores as they are known to add: aligned, and cut off."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.kernels import gemm
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.gemm import ALPHA, OUT, PERIOD
from whorl.kernels.inputs import DISTRIBUTIONS, lane_values, lanes
from whorl.kernels.rounding import DTYPES, nearest
from whorl.kernels.simulated_device import facts_of
from whorl.kernels.sizing import bytes_per_s, flop_per_s
from whorl.kernels.work import Expected, Gemm, Unfit
from whorl.simulation.models import MODELS
from whorl.tests.kernels import compiling
from whorl.tests.kernels.hosting import SMALL, HostDevice, reference, work_of
from whorl.tests.sizes import sample

Doubles = NDArray[np.float64]

_BLACKWELL = replace(SMALL, sms=148, memory_bytes=180 << 30, l2_bytes=126 << 20, max_clock_mhz=1965, bandwidth_gb_s=8e3)
OTHERS = {name: facts_of(model) for name, model in MODELS.items()} | {
    "B200": replace(_BLACKWELL, capability=(10, 0)),
    "B300": replace(_BLACKWELL, capability=(10, 3), memory_bytes=270 << 30),
}

needs_compiler = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


def on_tensor_cores(a: Doubles, b: Doubles, *, block: int, bits: int) -> Doubles:
    """A times B transposed, adding `block` exact products to the sum at a time.

    All are cut to a step 2^-(bits - 1) of the power of two of the largest, added, and the sum is cut to `bits` bits.
    """
    total = np.zeros((len(a), len(b)))
    for start in range(0, a.shape[1], block):
        products = a[:, None, start : start + block] * b[None, :, start : start + block]
        terms = np.concatenate([products, total[:, :, None]], axis=2)
        largest = np.abs(terms).max(axis=2, keepdims=True)
        step = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - (bits - 1))
        total = (np.trunc(terms / step) * step).sum(axis=2)
        last = np.exp2(np.floor(np.log2(np.where(total != 0, np.abs(total), 1))) - (bits - 1))
        total = np.trunc(total / last) * last
    return total


def product(precision: str, k: int, distribution: str, seed: int) -> tuple[Doubles, Doubles, Expected]:
    """The lanes of A and B, and what their product without scales must be."""
    work = work_of(f"gemm-{precision}", n=64, k=k, input=distribution)
    a, b = (lane_values(seed, name, lanes(distribution, precision, PERIOD, k)) for name in "ab")
    expected, alpha = reference(work.outputs[0], seed), ALPHA.get(precision, 1)
    return a, b, replace(expected, values=expected.values / alpha, tolerance=expected.tolerance / alpha)


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("distribution", "precision", "block"),
    [("uniform", "tf32", 4), ("normal", "bf16", 8), ("uniform", "bf16", 16), ("normal", "fp16", 16)],
)
def test_sums_that_are_cut_off_are_within_the_tolerance(distribution: str, precision: str, block: int) -> None:
    a, b, expected = product(precision, 1024, distribution, seed=block)
    total = on_tensor_cores(a, b, block=block, bits=24)
    used = np.abs(nearest(total, OUT[precision]) - expected.values) / expected.tolerance
    assert 1e-3 < used.max() < 0.6


@pytest.mark.long
@pytest.mark.parametrize("distribution", ["uniform", "small-integers"])
def test_fp8_products_are_exact_in_14_bits(distribution: str) -> None:
    a, b, _ = product("fp8", gemm.LONGEST, distribution, seed=1)
    np.testing.assert_array_equal(on_tensor_cores(a[:8], b[:8], block=32, bits=14), a[:8] @ b[:8].T)


@needs_compiler
@pytest.mark.parametrize(
    ("precision", "distribution"),
    sample(itertools.product(("fp64", "fp32", "tf32", "fp16", "bf16", "fp8"), DISTRIBUTIONS), short=6),
)
def test_every_distribution_has_a_reference(precision: str, distribution: str) -> None:
    work = work_of(f"gemm-{precision}", n=64, k=256, input=distribution)
    device = HostDevice(work, seed=2)
    device.run()
    assert device.wrong() == 0
    stored = {buffer.name: buffer for buffer in work.buffers}
    assert stored["a"].content is not None
    assert DISTRIBUTIONS[distribution] in work.input or precision == "fp8"


def small_ring(precision: str, distribution: str = "uniform", *, poisoned: bool = False) -> HostDevice:
    work = work_of(f"gemm-{precision}", n=64, k=64, input=distribution)
    return HostDevice(work, seed=4, poisoned=poisoned)


@needs_compiler
@pytest.mark.parametrize("precision", sample(OUT, short=2))
def test_every_single_bit_flip_of_a_product_is_found(precision: str) -> None:
    device = small_ring(precision)
    for _ in range(3):
        device.run()
    width = 8 * np.dtype(DTYPES[OUT[precision]]).itemsize
    bits = device.arrays["c"].view(f"uint{width}")[: 2 * 64 * 64]  # the first two slots; the third is the last result
    flips = np.array([1 << bit for bit in range(width)], bits.dtype)
    bits[7919 * np.arange(1, width + 1) % bits.size] ^= flips
    assert device.wrong() == width


@needs_compiler
def test_a_wrong_product_that_repeats_is_found_by_the_reference() -> None:
    device = small_ring("fp16")
    for _ in range(3):
        device.run()
    device.arrays["c"].view(np.uint16)[5 :: 64 * 64] ^= np.uint16(0x4000)
    assert device.wrong() == 1
    assert device.arrays["faults"][1] == 0, "the slots are alike"


@needs_compiler
@pytest.mark.parametrize("distribution", ["uniform", "zeros"])
@pytest.mark.parametrize(("before", "laps"), [(0, 1), (1, 2)])
def test_laps_that_write_nothing_are_found_though_the_sign_fits_again(
    distribution: str, before: int, laps: int
) -> None:
    device = small_ring("fp16", distribution, poisoned=True)
    for _ in range(before * gemm.SLOTS):
        device.run()
    for _ in range(laps * gemm.SLOTS):
        device.run(instead=())
    for _ in range(2 * gemm.SLOTS):
        device.run()
    assert device.wrong() > 0


@needs_compiler
@pytest.mark.parametrize("precision", ["fp64", "fp16"])
def test_a_tile_that_is_left_out_for_two_laps_is_found(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, product = small_ring(precision), HostDevice._gemm

    def without_a_tile(device: HostDevice, step: Gemm) -> None:
        slot = device.arrays["c"][step.c_at :][: 64 * 64].reshape(64, 64)
        stale = slot[32:48, 48:].copy()
        product(device, step)
        if gemm.SLOTS <= device.repetitions < 3 * gemm.SLOTS:
            slot[32:48, 48:] = stale

    monkeypatch.setattr(HostDevice, "_gemm", without_a_tile)
    for _ in range(4 * gemm.SLOTS):
        device.run()
    assert device.wrong() > 0


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("precision", OUT)
def test_a_ring_is_small_and_read_again_in_a_hundredth_of_the_time(name: str, precision: str) -> None:
    facts = OTHERS[name]
    work = find_kernel(f"gemm-{precision}").build(facts)
    if isinstance(work, Unfit):
        return
    c = work.buffers[2].bytes
    assert c == work.parameters["ring_bytes"]
    assert c <= 0.05 * facts.memory_bytes
    seconds = work.flop / flop_per_s(facts, precision, matrix=True)
    assert 6e-3 < seconds < 9.5e-3
    assert c / gemm.SLOTS / bytes_per_s(facts) < 0.0105 * seconds


@pytest.mark.parametrize("name", ["fma-fp64", "gemm-fp64"])
def test_fp64_on_a_gpu_with_next_to_none_takes_as_long_as_on_others(name: str) -> None:
    work = work_of(name, OTHERS["B300"])
    assert 5.5e-3 < work.flop / flop_per_s(OTHERS["B300"], "fp64") < 8.5e-3
