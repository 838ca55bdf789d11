"""Copy and triad of STREAM on 32-bit words: what the device memory delivers.

Repetitions go to and fro between two arrays, x(n + 1) = f(x(n)), by operations modulo 2^32 that can be undone: a wrong
word stays wrong to the check, which compares x(n) with its formula, and x(n - 1) in its place is wrong. McCalpin's
STREAM has fp64; there roundings would hide errors, and on a GPU with few fp64 units these would limit the rate.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from .inputs import key
from .sizing import bytes_per_s, far_beyond_l2, fitting, room
from .work import Buffer, Facts, Launch, Output, Unfit, Words, WordsExpected, Work, WorkPart

FACTOR = 3
"""Odd, so that two words that differ still differ when they are multiplied by it."""
BLOCK = 256
TILE = BLOCK * 4 * 4
"""Words that a block moves: 4 loads of 4 by each thread, as in stream.cu."""

MOST_WORDS = 1 << 32
"""In an array: so many differ."""

ARRAYS = {"copy": 2, "triad": 3}


def build(facts: Facts, *, operation: str, count: int | None = None) -> Work | Unfit:
    """Bytes: 4 · count · 2 (copy) or 3 (triad).

    `count`: words in an array; by default so many that a repetition takes about 4 ms, each array is more than four
    times the L2 cache, and all fit the memory.
    """
    arrays = ARRAYS[operation]
    if count is None:
        size = max(far_beyond_l2(facts), bytes_per_s(facts) * 4e-3 / arrays)
        count = min(int(min(size, room(facts) / arrays) / 4), MOST_WORDS)
    count = count // TILE * TILE
    if count < 3 * TILE:
        return Unfit(f"an array needs at least {3 * TILE} words, {3 * TILE * 4 * arrays >> 10} KiB in all")
    parts = moved(operation, count)
    work = Work(
        kernel=f"stream-{operation}",
        precision="int32",
        buffers=parts.buffers,
        turns=tuple((step,) for step in parts.turns),
        bytes=4 * count * arrays,
        outputs=parts.outputs,
        parameters={"count": count},
        activity=0.2,
    )
    return fitting(facts, work)


def moved(operation: str, count: int, suffix: str = "") -> WorkPart:
    """The arrays of an operation (a, out, and b where it has one, with a suffix), its two turns, and what comes out."""
    a, b, out = "a" + suffix, "b" + suffix, "out" + suffix
    added = ARRAYS[operation] == 3

    def launch(source: str, target: str) -> Launch:
        args = (source, b, target, np.uint32(FACTOR)) if added else (source, target)
        return Launch("stream.cu", f"stream_{operation}", (count // TILE, 1, 1), (BLOCK, 1, 1), args)

    expect = partial(_expect, operation, a, b)
    buffers = (Buffer(a, "uint32", count, Words()), Buffer(out, "uint32", count))
    return WorkPart(
        buffers=(*buffers, Buffer(b, "uint32", count, Words())) if added else buffers,
        turns=(launch(a, out), launch(out, a)),
        outputs=(Output(out, expect, turn=0), Output(a, expect, turn=1)),
    )


def _expect(operation: str, first: str, second: str, seed: int, repetitions: int) -> WordsExpected:
    """x(n) is x(0) moved by n tiles, or x(0) + FACTOR n b."""
    stream = key(seed, first)
    if operation == "copy":
        return WordsExpected(stream, first=repetitions * TILE)
    return WordsExpected(stream, plus=key(seed, second), plus_factor=repetitions * FACTOR)
