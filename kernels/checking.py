"""The check of results on a device: launches of check.cu, and their findings in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .device import Verdict
from .inputs import expected_words, scale
from .rounding import decode
from .work import Buffer, Expected, Launch, WordsExpected

SOURCE = "check.cu"
BLOCK = 256
BLOCKS_PER_SM = 16
VECTOR_BYTES = 16
_ELEMENT = {
    "float64": 0,
    "float32": 1,
    "float16": 2,
    "uint16": 3,  # bf16
    "uint32": 4,
}


def element_define(dtype: str) -> str:
    """The definition that check.cu is compiled with for a buffer of this dtype."""
    name = np.dtype(dtype).name
    if name not in _ELEMENT:
        raise InputError(f"results of dtype {name} cannot be checked; there are {', '.join(_ELEMENT)}")
    return f"ELEMENT={_ELEMENT[name]}"


def grid(count: int, sms: int) -> tuple[int, int, int]:
    """Thread blocks for `count` elements: enough to fill the GPU, none that has nothing to do."""
    return max(1, min(-(-count // BLOCK), BLOCKS_PER_SM * sms)), 1, 1


# -- for the audit of a work --------------------------------------------------------------------------------------


def alike(ring: Buffer, slots: int, sms: int, *, period: int = 1) -> Launch:
    """An audit: the slots of a ring are equal bit for bit, those `period` apart, and were written since the last audit.

    A repetition adds a comparison for 4 bytes of a slot. InputError where a slot is not whole 16-byte vectors.
    """
    slot_bytes = ring.bytes // slots
    if slot_bytes % VECTOR_BYTES:
        raise InputError(f"a slot of {slot_bytes} bytes in the ring {ring.name} is not a multiple of {VECTOR_BYTES}")
    vectors = slot_bytes // VECTOR_BYTES
    args = (ring.name, np.uint64(vectors), np.uint32(period), np.uint32(slots), "faults")
    return Launch(SOURCE, "alike", grid(vectors, sms), (BLOCK, 1, 1), args)


# -- for outputs --------------------------------------------------------------------------------------------------


def contiguous(expected: Expected, buffer: str) -> Expected:
    """The reference as the kernel takes it: contiguous arrays of float64. InputError where its shapes do not fit."""
    values = np.ascontiguousarray(expected.values, np.float64)
    tolerance = np.ascontiguousarray(expected.tolerance, np.float64)
    if values.ndim != 2 or values.size == 0 or values.shape != tolerance.shape or expected.columns < 1:
        raise InputError(
            f"the reference of {buffer} has shape {values.shape}, its tolerance {tolerance.shape} and rows of "
            f"{expected.columns}; it needs two equal shapes (p, q) and rows of at least one"
        )
    return Expected(expected.columns, values, tolerance, scaled=expected.scaled, rise=expected.rise)


def sizes_of(expected: Expected, count: int) -> tuple[np.generic, ...]:
    """The arguments of `compare` by value: count, columns, p, q, whether it is scaled, and the rise."""
    p, q = expected.values.shape
    sizes = np.uint64(count), np.uint64(expected.columns), np.uint32(p), np.uint32(q)
    return *sizes, np.uint32(expected.scaled), np.float64(expected.rise)


def right_values(expected: Expected, places: NDArray[np.uint64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the elements of a result at some places must be, and their tolerances."""
    row, column = np.divmod(places, np.uint64(expected.columns))
    p, q = (np.uint64(size) for size in expected.values.shape)
    factor = scale(row) * scale(column) if expected.scaled else np.ones(places.size)
    at = row % p, column % q
    return factor * (expected.values[at] + expected.rise * (row // p)), np.abs(factor) * expected.tolerance[at]


def right_value(expected: Expected, index: int) -> tuple[float, float]:
    """What element `index` of a result must be, and its tolerance."""
    value, tolerance = right_values(expected, np.array([index], np.uint64))
    return float(value[0]), float(tolerance[0])


def position_in_words(
    buffer: str, index: int, element: NDArray[Any], *, expected: Expected | WordsExpected, count: int
) -> str:
    """Where the first wrong element of `count` is, what it is, and what it should be; `element` is an array of one."""
    if isinstance(expected, WordsExpected):
        should = expected_words(expected, count, np.array([index], np.uint64))
        return f"{buffer}, word {index}: 0x{int(element[0]):08x}, should be 0x{int(should[0]):08x}"
    value = float(decode(element, "bf16" if element.dtype == np.uint16 else "fp64")[0])
    row, column = divmod(index, expected.columns)
    right, tolerance = right_value(expected, index)
    place = f"row {row}, column {column}" if expected.columns > 1 else f"element {index}"
    return f"{buffer}, {place}: {value:.9g}, should be {right:.9g} within {tolerance:.3g}"


# -- findings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """The counters of faults.cuh."""

    compared: int
    wrong: int
    first: int
    """Place of the first wrong one."""
    worst: float
    """Largest error in tolerances; 0 where the kernel has none."""
    by_sm: dict[int, int]

    @staticmethod
    def of(counters: NDArray[np.uint64]) -> Counts:
        by_sm = counters[4:]
        return Counts(
            compared=int(counters[0]),
            wrong=int(counters[1]),
            first=int(counters[2]),
            worst=float(counters[3:4].view(np.float64)[0]),
            by_sm={int(sm): int(by_sm[sm]) for sm in np.flatnonzero(by_sm)},
        )


def inside(kernel: str, counts: Counts, repetitions: int, compared: int) -> Verdict:
    """The verdict of what a work's own kernels and audits counted: comparisons that are missing are wrong too."""
    due = repetitions * compared
    missing = abs(due - counts.compared)
    first = f"{kernel} counted {counts.compared:,} comparisons instead of {due:,}" if missing else None
    if counts.wrong:
        first = f"{kernel}, place {counts.first}, compared on the GPU"
    worst = math.inf if counts.wrong or missing else 0.0
    return Verdict(due, counts.wrong + missing, first, worst, by_sm=counts.by_sm)


def words_of(expected: WordsExpected, count: int) -> tuple[np.generic, ...]:
    """The arguments of `compare_words` by value: count, and which words a result of `count` must be."""
    place = (np.uint64(count), np.uint32(expected.stream), np.uint64(expected.first % count))
    return *place, np.uint32(expected.plus), np.uint32(expected.plus_factor % 2**32)
