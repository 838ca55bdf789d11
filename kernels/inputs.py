"""What buffers are filled with: distributions by name, drawn from a seed, in every precision."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .rounding import Doubles, encode, nearest
from .work import Content

DISTRIBUTIONS = {
    "uniform": "uniform in [-1, 1)",
    "normal": "standard normal",
    "small-integers": "integers from -4 to 4, each as likely",
    "zeros": "zeros",
}
"""The inputs that can be asked for. Data alone moves the power of a GEMM by tens of per cent: runs record it."""

SWITCHING = {"uniform": 1.0, "normal": 1.0, "small-integers": 0.75, "zeros": 0.5}
"""Of the switching activity of a product of uniform numbers: what a simulated device takes for each input.

Assumed, so that data moves the power by tens of per cent as on GPUs: bits that do not change switch nothing.
"""

GRID = 8
"""In fp8 a uniform number is a multiple of 1/8: E4M3 holds these exactly, and nothing much finer near 1."""


def stream_of(seed: int, name: str) -> np.random.Generator:
    """The random numbers of one buffer: of the seed and the buffer's name, so that no two buffers are alike."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def numbers(seed: int, name: str, count: int, distribution: str, precision: str) -> Doubles:
    """`count` numbers of a distribution that a precision holds exactly, as float64."""
    draw = stream_of(seed, name)
    if distribution == "uniform" and precision == "fp8":
        return draw.integers(-GRID, GRID, count) / GRID
    if distribution == "uniform":
        return nearest(draw.uniform(-1.0, 1.0, count), precision)
    if distribution == "normal":
        return nearest(draw.standard_normal(count), precision)
    if distribution == "small-integers":
        return draw.integers(-4, 5, count).astype(np.float64)
    if distribution == "zeros":
        return np.zeros(count)
    raise InputError(f"no input distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")


def _encoded(name: str, count: int, distribution: str, precision: str, seed: int) -> NDArray[Any]:
    return encode(numbers(seed, name, count, distribution, precision), precision)


def content(name: str, count: int, distribution: str, precision: str) -> Content:
    """One period of `count` numbers for the buffer `name`. InputError where there is no such distribution."""
    if distribution not in DISTRIBUTIONS:
        raise InputError(f"no input distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")
    says = DISTRIBUTIONS[distribution]
    if distribution == "uniform" and precision == "fp8":
        says = f"multiples of 1/{GRID}, uniform in [-1, 1)"
    return Content(says, partial(_encoded, name, count, distribution, precision))


def words(seed: int, name: str, count: int) -> NDArray[np.uint32]:
    """`count` random 32-bit words."""
    return stream_of(seed, name).integers(0, 2**32, count, dtype=np.uint32)


def word_content(name: str, count: int) -> Content:
    """One period of random 32-bit words for the buffer `name`."""

    def make(seed: int) -> NDArray[Any]:
        return words(seed, name, count)

    return Content("random 32-bit words", make)
