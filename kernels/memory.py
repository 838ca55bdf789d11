"""Patterns over the memory: written, read and compared, with every error by its place, bits and pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .sizing import bytes_per_s, room
from .work import COUNTERS, Buffer, Facts, Launch, Unfit, Work, zeros

BLOCK = 256
BLOCKS_PER_SM = 4
"""All of them run at the same time, with 64 KiB of loads on the way on each multiprocessor."""
UNROLL = 4
"""Vectors of 16 bytes that a thread has on the way at a time, as in memory.cu."""

TURN_S = 0.01
CAPACITY = 4096
"""Errors that the log holds; all are counted."""
RECORD = 8
"""Words of an error in the log, as in memory.cu."""

PAGE = 64 << 10
"""Bytes by which errors are counted as neighbours: the smaller of the pages in which drivers of GPUs manage memory."""

INVERT = 0xFFFFFFFF


@dataclass(frozen=True)
class Pattern:
    """What is written: its name, its form in pattern.cuh, and the stream of the hash."""

    name: str
    form: int
    salt: int
    flip: int = 0


# Each bit is tried as 0 and as 1 beside the same neighbours: every pattern comes inverted as well.
PATTERNS = tuple(
    Pattern(f"{name}, inverted" if flip else name, form, salt, flip)
    for name, form, salt in (
        ("hash of the address", 0, 0x243F6A88),
        ("address", 1, 0),
        ("one bit", 2, 0x85A308D3),
        ("another one bit", 2, 0x13198A2E),
        ("alternate bits", 3, 0x03707344),
        ("another hash of the address", 0, 0xA4093822),
    )
    for flip in (0, INVERT)
)


def build(facts: Facts, *, size: int | None = None) -> Work | Unfit:
    """Bytes: 2 · size, for one pattern is written and read.

    `size` (bytes): by default what takes some 10 ms; the probe of this name gives nearly all memory that is free.
    """
    grid = facts.sms * BLOCKS_PER_SM
    sweep = grid * BLOCK * UNROLL
    if size is None:
        size = int(min(room(facts), TURN_S / 2 * bytes_per_s(facts)))
    steps = size // 16 // sweep * UNROLL
    vectors = steps * grid * BLOCK
    if not steps:
        return Unfit(f"patterns over the memory need at least {sweep * 16 >> 10} KiB, a step of the whole grid")
    shape = (grid, 1, 1), (BLOCK, 1, 1)

    def turn(number: int, pattern: Pattern) -> tuple[Launch, Launch]:
        form, salt, flip = np.uint32(pattern.form), np.uint32(pattern.salt), np.uint32(pattern.flip)
        written = ("memory", np.uint32(steps), form, salt, flip)
        return (
            Launch("memory.cu", "write_pattern", *shape, written),
            Launch(
                "memory.cu",
                "compare_pattern",
                *shape,
                (*written, np.uint32(number), "log", np.uint32(CAPACITY), "faults"),
            ),
        )

    return Work(
        kernel="memory",
        precision="int32",
        buffers=(
            Buffer("memory", "uint32", 4 * vectors),
            Buffer("log", "uint32", (CAPACITY + 1) * RECORD, zeros("uint32")),
            COUNTERS,
        ),
        turns=tuple(turn(number, pattern) for number, pattern in enumerate(PATTERNS)),
        bytes=2 * 16 * vectors,
        parameters={"size": 16 * vectors, "patterns": len(PATTERNS)},
        activity=0.25,
        compared=4 * vectors,
    )


@dataclass(frozen=True)
class WordError:
    """A 32-bit word that was not what had been written."""

    offset: int
    """Bytes from the beginning of the memory that was tested; where that lies in the chips, no program is told."""
    expected: int
    actual: int
    pattern: str
    sm: int
    """The multiprocessor that read it."""

    def __str__(self) -> str:
        bits = [bit for bit in range(32) if (self.expected ^ self.actual) >> bit & 1]
        return (
            f"offset {self.offset:#x}: {self.actual:#010x}, should be {self.expected:#010x} "
            f"(bit {', '.join(map(str, bits))}; pattern: {self.pattern}; read by multiprocessor {self.sm})"
        )


@dataclass(frozen=True)
class MemoryFindings:
    """What patterns over the memory found, from the log of memory.cu."""

    errors: tuple[WordError, ...]
    """The first ones, as many as the log holds."""
    rose: int
    """Mask of the bits of a word that were ever 1 and should have been 0 ..."""
    fell: int
    """... and the other way round."""

    @property
    def addresses(self) -> int:
        """Distinct words among the errors that the log holds."""
        return len({error.offset for error in self.errors})

    @property
    def pages(self) -> int:
        """Distinct pages of 64 KiB among them."""
        return len({error.offset // PAGE for error in self.errors})


def log_of_stuck_bits(places: Sequence[int]) -> NDArray[np.uint32]:
    """The buffer `log` as memory.cu leaves it where words, by their number, have a bit that is stuck at 1."""
    alternate = next(number for number, pattern in enumerate(PATTERNS) if pattern.name == "alternate bits")
    log = np.zeros((CAPACITY + 1, RECORD), np.uint32)
    log[0, 0] = min(len(places), CAPACITY)
    for record, place in zip(log[1:], places, strict=False):
        bit = 1 << place % 16 * 2
        record[:5] = place % 2**32, place >> 32, 0xAAAAAAAA, 0xAAAAAAAA | bit, alternate
        log[0, 1] |= bit
    return log.reshape(-1)


def findings(log: NDArray[np.uint32]) -> MemoryFindings:
    """Read the buffer `log` of the work."""
    count, rose, fell = log[:3].tolist()
    records = log[RECORD : RECORD * (1 + min(count, CAPACITY))].reshape(-1, RECORD).tolist()
    errors = (
        WordError(4 * (low + (high << 32)), expected, actual, PATTERNS[pattern].name, sm)
        for low, high, expected, actual, pattern, sm, *_ in records
    )
    return MemoryFindings(tuple(sorted(errors, key=lambda error: error.offset)), rose, fell)
