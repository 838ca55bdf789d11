"""What buffers are filled with: distributions by name, drawn from a seed, in every precision; and places.

`mix`, `word` and `scale` are the same functions as those of place.cuh.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .rounding import Doubles, encode, nearest
from .work import FAULTS, Array, Buffer, Lanes, Words, WordsExpected

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

GRID = 4
"""In fp8 a uniform number is a multiple of 1/4 between -1 and 1, so that sums of 65,536 products stay exact in the 14
bits that Hopper adds with (`gemm.LONGEST`)."""


TABLE = 4096
"""Numbers that the elements of `Lanes` are chosen from."""

SCALES = (1, 2, 4, 8, -1, -2, -4, -8)
"""What a row of `Lanes` is scaled by, by the highest three bits of its hash."""


def mix(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A bijection of 32 bits, element by element: the finaliser of MurmurHash3 (Appleby, public domain)."""
    mixed = values ^ (values >> np.uint32(16))
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def key(seed: int, name: str) -> int:
    """The stream of a buffer's places, uint32: of the seed and the buffer's name."""
    return zlib.crc32(f"{seed} {name}".encode())


def word(stream: int, places: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The words of a stream at places, uint32: two whose places differ in one bit differ."""
    low, high = places.astype(np.uint32), (places >> np.uint64(32)).astype(np.uint32)
    return mix(low + np.uint32(stream) + np.uint32(0x9E3779B9) * high)


def expected_words(expected: WordsExpected, count: int, places: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """What the elements at some places of a result of `count` words must be."""
    words = word(expected.stream, (places + np.uint64(expected.first % count)) % np.uint64(count))
    return words + word(expected.plus, places) * np.uint32(expected.plus_factor % 2**32)


def _scale_code(rows: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return mix(rows.astype(np.uint32) + np.uint32(0x85EBCA6B)) >> np.uint32(29)


def scale(rows: NDArray[np.uint64]) -> NDArray[np.float64]:
    """What rows of `Lanes` are scaled by: +-1, +-2, +-4 or +-8, by a hash of the row's number."""
    return np.array(SCALES, np.float64)[_scale_code(rows)]


def table(seed: int, name: str, content: Lanes) -> Doubles:
    """The 4096 numbers that the elements of a buffer's `Lanes` are chosen from, float64."""
    return numbers(seed, name, TABLE, content.distribution, content.precision)


def stored_table(seed: int, name: str, content: Lanes) -> NDArray[Any]:
    """The same times each of the eight scales, as they are stored. Shape (8 * 4096,)."""
    return encode(np.multiply.outer(SCALES, table(seed, name, content)).reshape(-1), content.precision)


def _places(seed: int, name: str, lane: NDArray[np.uint64], column: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return word(key(seed, name), (lane << np.uint64(32)) + column) % np.uint32(TABLE)


def lane_values(seed: int, name: str, content: Lanes) -> Doubles:
    """The lanes of a buffer before they are scaled, float64. Shape (lanes, length)."""
    lane, column = np.indices((content.lanes, content.length), np.uint64)
    return table(seed, name, content)[_places(seed, name, lane, column)]


def filled(seed: int, buffer: Buffer) -> NDArray[Any]:
    """All of a buffer's content, by numpy: what fill.cu makes on a device. Shape (count,)."""
    return content_at(seed, buffer, np.arange(buffer.count, dtype=np.uint64))


def content_at(seed: int, buffer: Buffer, places: NDArray[np.uint64]) -> NDArray[Any]:
    """The elements of a buffer's content at some places."""
    content = buffer.content
    assert content is not None, f"{buffer.name} has no content"
    if isinstance(content, Words):
        return word(key(seed, buffer.name), places)
    if isinstance(content, Array):
        period = content.make(seed)
        number, place = np.divmod(places, np.uint64(period.size))
        risen: NDArray[Any] = period[place] + (number * np.uint64(content.rise % 2**32)).astype(np.uint32).astype(
            period.dtype
        )
        return risen
    rows = np.uint64(buffer.count // content.length)
    high, low = np.divmod(places, rows if content.across else np.uint64(content.length))
    row, column = (low, high) if content.across else (high, low)
    place = _places(seed, buffer.name, row % np.uint64(content.lanes), column)
    elements: NDArray[Any] = stored_table(seed, buffer.name, content)[_scale_code(row) * np.uint32(TABLE) + place]
    return elements


def cleared_faults() -> NDArray[np.uint64]:
    """The counters of a buffer `faults` before anything is compared."""
    counters = np.zeros(FAULTS, np.uint64)
    counters[2] = 2**64 - 1
    return counters


def lanes(distribution: str, precision: str, count: int, length: int, *, across: bool = False) -> Lanes:
    """`count` lanes of `length` numbers of a distribution. InputError where there is no such distribution."""
    return Lanes(describe(distribution, precision), distribution, precision, lanes=count, length=length, across=across)


def stream_of(seed: int, name: str) -> np.random.Generator:
    """The random numbers of one buffer: of the seed and the buffer's name, so that no two buffers are alike."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def numbers(seed: int, name: str, count: int, distribution: str, precision: str) -> Doubles:
    """`count` numbers of a distribution that a precision holds exactly, as float64."""
    draw = stream_of(seed, name)
    if distribution == "uniform" and precision == "fp8":
        return draw.integers(1 - GRID, GRID, count) / GRID
    if distribution == "uniform":
        return nearest(draw.uniform(-1.0, 1.0, count), precision)
    if distribution == "normal":
        return nearest(draw.standard_normal(count), precision)
    if distribution == "small-integers":
        return draw.integers(-4, 5, count).astype(np.float64)
    if distribution == "zeros":
        return np.zeros(count)
    raise InputError(f"no input distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")


def describe(distribution: str, precision: str) -> str:
    """A distribution in words. InputError where there is no such distribution."""
    if distribution not in DISTRIBUTIONS:
        raise InputError(f"no input distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")
    if distribution == "uniform" and precision == "fp8":
        return f"multiples of 1/{GRID}, uniform in (-1, 1)"
    return DISTRIBUTIONS[distribution]


def words(seed: int, name: str, count: int) -> NDArray[np.uint32]:
    """`count` random 32-bit words."""
    return stream_of(seed, name).integers(0, 2**32, count, dtype=np.uint32)
