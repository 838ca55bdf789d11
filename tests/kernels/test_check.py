"""check.cu, as NVRTC compiles it: what it calls wrong is what lies outside the tolerance, in every format."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.kernels import checking
from whorl.kernels.checking import Counts
from whorl.kernels.cupy_library import source
from whorl.kernels.device import Verdict
from whorl.kernels.inputs import cleared_faults
from whorl.kernels.work import Expected
from whorl.tests.kernels import compiling
from whorl.tests.kernels.interpreter import Memory, Module, Shape, run_kernel
from whorl.tests.sizes import sample

pytestmark = pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not())


def compare(result: NDArray, values: NDArray, tolerance: NDArray, columns: int, blocks: int = 3) -> Counts:  # type: ignore[type-arg]
    """What `compare` finds."""
    reference = checking.contiguous(Expected(columns, values, tolerance), "c")
    counters, memory = cleared_faults(), Memory()
    held = [memory.holding(array) for array in (result, reference.values, reference.tolerance, counters)]
    addresses = [np.uint64(allocation.base) for allocation in held]
    args = (*addresses[:3], *checking.sizes_of(reference, result.size), addresses[3])
    code = Module(compiling.ptx(source(checking.SOURCE), "90", (checking.element_define(result.dtype.name),)), memory)
    run_kernel(code, "compare", Shape((blocks, 1, 1), (checking.BLOCK, 1, 1)), args, sms=4)
    return Counts.of(held[3].view(np.uint64)[: counters.size])


@pytest.mark.long(short=1)
@pytest.mark.parametrize("blocks", [1, 3, 64])
def test_every_element_is_compared_with_its_place_in_the_period(blocks: int) -> None:
    draw = np.random.default_rng(1)
    p, q, rows, columns = 3, 5, 31, 47  # no period divides its length
    values = draw.normal(size=(p, q))
    tolerance = draw.uniform(0.01, 0.1, (p, q))
    row, column = np.indices((rows, columns))
    should, allowed = values[row % p, column % q], tolerance[row % p, column % q]
    off = draw.uniform(-2, 2, (rows, columns)) * allowed
    result = should + off
    error = np.abs(result - should) / allowed
    counts = compare(result.reshape(-1), values, tolerance, columns, blocks)
    wrong = np.flatnonzero(error.reshape(-1) > 1)
    assert counts.wrong == wrong.size > 0
    assert counts.first == wrong[0]
    assert counts.worst == pytest.approx(error.max(), rel=1e-12)
    assert counts.compared == rows * columns


@pytest.mark.long(short=1)
@pytest.mark.parametrize("dtype", sample(["float64", "float32", "float16"], short=2))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_wrong_whatever_the_tolerance(dtype: str, bad: float) -> None:
    result = np.ones(1000, dtype)
    result[[400, 700]] = bad
    counts = compare(result, np.ones((1, 1)), np.full((1, 1), 1e300), 1)
    assert counts.wrong == 2
    assert counts.first == 400
    assert counts.worst == math.inf


def test_what_is_no_number_is_right_where_just_that_is_expected() -> None:
    values = np.array([[math.nan, math.inf, -math.inf]])
    counts = compare(np.tile(values.reshape(-1), 5), values, np.zeros((1, 3)), 3)
    assert counts.wrong == 0
    crossed = compare(np.tile([math.inf, -math.inf, math.nan], 5), values, np.full((1, 3), 9.0), 3)
    assert crossed.wrong == 15


def every_value(dtype: str) -> tuple[NDArray, NDArray[np.float64]]:  # type: ignore[type-arg]
    """All bit patterns of a small format, and what they mean by an independent rule."""
    bits = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        if dtype == "float16":
            return bits.view(np.float16), bits.view(np.float16).astype(np.float64)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.long(short=1)
@pytest.mark.parametrize("dtype", ["float16", "uint16"])
def test_every_bit_pattern_of_the_small_formats_is_decoded(dtype: str) -> None:
    result, means = every_value(dtype)
    counts = compare(result, means[None, :], np.zeros((1, means.size)), means.size)
    assert counts.wrong == 0
    shifted = compare(result, np.roll(means, 1)[None, :], np.zeros((1, means.size)), means.size)
    assert shifted.wrong > 0.9 * means.size


def test_words_and_sums() -> None:
    reference = Expected(4, np.array([[1.0, 2.0]]), np.array([[0.5, 0.25]]))
    says = checking.position_in_words("c", 7, np.array([9.0]), expected=reference, count=8)
    assert says == "c, row 1, column 3: 9, should be 2 within 0.25"
    total = Verdict(4, 0, repetitions=7) + Verdict(6, 2, "there", 3.0, 10, {5: 2})
    assert total == Verdict(10, 2, "there", 3.0, 17, {5: 2})
    assert checking.grid(1, 100) == (1, 1, 1)
    assert checking.grid(10**9, 100) == (1600, 1, 1)
