"""The tolerance of matrix products against tensor cores as they are known to add: aligned, and cut off."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.kernels import gemm
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.gemm import OUT, PERIOD
from whorl.kernels.inputs import DISTRIBUTIONS, filled, numbers
from whorl.kernels.rounding import nearest
from whorl.kernels.work import Expected, Gemm, Work
from whorl.tests.kernels.hosting import COMPILER, SMALL, HostDevice, reference
from whorl.tests.sizes import sample

Doubles = NDArray[np.float64]


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
    work = find_kernel(f"gemm-{precision}").build(SMALL, n=64, k=k, input=distribution)
    assert isinstance(work, Work)
    a, b = (numbers(seed, name, PERIOD * k, distribution, precision).reshape(PERIOD, k) for name in "ab")
    return a, b, reference(work.outputs[0], seed, 1)


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("distribution", "precision", "block"),
    [("uniform", "tf32", 4), ("normal", "bf16", 8), ("uniform", "bf16", 16), ("normal", "fp16", 16)],
)
def test_sums_that_are_cut_off_are_within_the_tolerance(distribution: str, precision: str, block: int) -> None:
    a, b, expected = product(precision, 2048, distribution, seed=block)
    total = on_tensor_cores(a, b, block=block, bits=24)
    used = np.abs(nearest(total, OUT[precision]) - expected.values) / expected.tolerance
    assert 1e-3 < used.max() < 0.6


@pytest.mark.long(short=1)
@pytest.mark.parametrize("distribution", ["uniform", "small-integers"])
def test_fp8_products_are_exact_in_14_bits(distribution: str) -> None:
    a, b, _ = product("fp8", gemm.LONGEST["fp8"], distribution, seed=1)
    np.testing.assert_array_equal(on_tensor_cores(a, b, block=32, bits=14), a @ b.T)


@pytest.mark.long
def test_fp8_products_that_are_not_exact_are_within_the_tolerance() -> None:
    a, b, expected = product("fp8", gemm.LONGEST["fp8"], "normal", seed=1)
    used = np.abs(nearest(on_tensor_cores(a, b, block=32, bits=14), "bf16") - expected.values) / expected.tolerance
    assert 1e-3 < used.max() < 0.6


def test_a_bit_less_would_not_do() -> None:
    """That the fp8 inputs are exact in 14 bits is no matter of course: the same sums in 10 bits are not."""
    a, b, expected = product("fp8", gemm.LONGEST["fp8"], "uniform", seed=1)
    assert (np.abs(on_tensor_cores(a, b, block=32, bits=10) - expected.values) > expected.tolerance).any()


@pytest.mark.parametrize("precision", sample(["tf32", "fp16", "bf16"], short=1))
def test_a_lost_product_is_found(precision: str) -> None:
    """One of 2048 products left out: nearly always more than the tolerance."""
    a, b, expected = product(precision, 2048, "uniform", seed=1)
    off = np.abs(np.outer(a[:, 0], b[:, 0]))
    found = np.mean(off > 2 * expected.tolerance)
    assert found > (0.5 if precision != "bf16" else 0.1)


@pytest.mark.skipif(COMPILER is None, reason="no g++ here")
@pytest.mark.parametrize(
    ("precision", "distribution"),
    sample(itertools.product(("fp64", "fp32", "tf32", "fp16", "bf16", "fp8"), DISTRIBUTIONS), short=6),
)
def test_every_distribution_has_a_reference(precision: str, distribution: str) -> None:
    work = find_kernel(f"gemm-{precision}").build(SMALL, n=64, k=256, input=distribution)
    assert isinstance(work, Work)
    device = HostDevice(work, seed=2)
    device.run()
    assert device.wrong() == 0
    stored = {buffer.name: buffer for buffer in work.buffers}
    assert stored["a"].content is not None
    assert DISTRIBUTIONS[distribution] in work.input or precision == "fp8"


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_where_b_lies_plainly_its_columns_are_those_of_the_reference(precision: str) -> None:
    n, k = 192, 32
    work = find_kernel(f"gemm-{precision}").build(SMALL, n=n, k=k)
    assert isinstance(work, Work)
    (step,) = work.steps
    assert isinstance(step, Gemm)
    assert step.plain
    a, b = (filled(3, buffer) for buffer in work.buffers[:2])
    c = a.reshape(n, k).astype(float) @ b.reshape(k, n).astype(float)
    expected = reference(work.outputs[0], 3, 1)
    assert np.abs(c - np.tile(expected.values, (3, 3))).max() < expected.tolerance.min()
