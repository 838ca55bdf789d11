"""The check of a result on a device: the launch of check.cu, and its findings in words."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .device import Verdict
from .work import Expected

SOURCE, FUNCTION = "check.cu", "compare"
BLOCK = 256
_ELEMENT = {
    "float64": 0,
    "float32": 1,
    "float16": 2,
    "uint16": 3,  # bf16
    "uint8": 4,  # fp8, E4M3
    "int32": 5,
    "uint32": 6,
    "int64": 7,
    "uint64": 8,
}


def element_define(dtype: str) -> str:
    """The definition that check.cu is compiled with for a buffer of this dtype."""
    name = np.dtype(dtype).name
    if name not in _ELEMENT:
        raise InputError(f"results of dtype {name} cannot be checked; there are {', '.join(_ELEMENT)}")
    return f"ELEMENT={_ELEMENT[name]}"


def blocks(count: int, sms: int) -> int:
    """Thread blocks for `count` elements: enough to fill the GPU, none that has nothing to do."""
    return max(1, min(-(-count // BLOCK), 16 * sms))


@dataclass(frozen=True)
class Reference:
    """An `Expected` as the kernel takes it: contiguous arrays and their shape. InputError where it is not one."""

    values: NDArray[np.float64]
    tolerance: NDArray[np.float64]
    columns: int

    @staticmethod
    def of(expected: Expected, buffer: str) -> Reference:
        values = np.ascontiguousarray(expected.values, np.float64)
        tolerance = np.ascontiguousarray(expected.tolerance, np.float64)
        if values.ndim != 2 or values.size == 0 or values.shape != tolerance.shape or expected.columns < 1:
            raise InputError(
                f"the reference of {buffer} has shape {values.shape}, its tolerance {tolerance.shape} and rows of "
                f"{expected.columns}; it needs two equal shapes (p, q) and rows of at least one"
            )
        return Reference(values, tolerance, expected.columns)


def found_nothing() -> NDArray[np.uint64]:
    """What `found` of check.cu starts from: none wrong, no first one, no error, none compared."""
    return np.array([0, 2**64 - 1, 0, 0], np.uint64)


def decoded(dtype: str, raw: bytes) -> float:
    """The value of one element by its bytes."""
    name = np.dtype(dtype).name
    if name == "uint16":
        return float(struct.unpack("<f", b"\0\0" + raw)[0])
    if name == "uint8":
        sign, e, low = (-1.0 if raw[0] & 0x80 else 1.0), raw[0] >> 3 & 15, raw[0] & 7
        if raw[0] & 0x7F == 0x7F:
            return math.nan
        return sign * math.ldexp(low if e == 0 else low + 8, -9 if e == 0 else e - 10)
    return float(np.frombuffer(raw, name)[0])


def worst_of(found: NDArray[np.uint64]) -> float:
    return float(found[2:3].view(np.float64)[0])


def position_in_words(buffer: str, index: int, value: float, reference: Reference) -> str:
    """Where the first wrong element is, what it is, and what it should be."""
    row, column = divmod(index, reference.columns)
    p, q = reference.values.shape
    should, tolerance = reference.values[row % p, column % q], reference.tolerance[row % p, column % q]
    place = f"row {row}, column {column}" if reference.columns > 1 else f"element {index}"
    return f"{buffer}, {place}: {value:.9g}, should be {should:.9g} within {tolerance:.3g}"


def together(verdicts: list[Verdict]) -> Verdict:
    """The verdict on all outputs of a work."""
    first = next((verdict.first for verdict in verdicts if verdict.first is not None), None)
    return Verdict(
        elements=sum(verdict.elements for verdict in verdicts),
        wrong=sum(verdict.wrong for verdict in verdicts),
        first=first,
        worst=max((verdict.worst for verdict in verdicts), default=0.0),
    )
