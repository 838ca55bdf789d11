"""The caches: how fast the L2 cache is read, and how long one load takes by the size of what is walked through."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of, word_content, words
from .sizing import far_beyond_l2, fitting
from .work import Array, Buffer, Expected, Facts, Kernel, Launch, Output, Unfit, Work, unchanging

PERIOD = 1024
"""Vectors of 16 bytes after which the L2 kernel's data repeat."""

BLOCK = 256
BLOCKS_PER_SM = 4
TURN = 1032
"""Vectors by which a pass is shifted against the last: whole lines, and no multiple of the period."""

LINE = 128
"""Bytes between the elements of a chase: a cache line."""


def build_read(facts: Facts, *, footprint: int | None = None, passes: int | None = None) -> Work | Unfit:
    """Bytes: footprint · passes. `footprint` (bytes): by default a third of the L2 cache, in whole steps of the grid:
    where the cache has two halves, a line may be held in both.
    """
    threads = facts.sms * BLOCKS_PER_SM * BLOCK
    if footprint is None:
        footprint = facts.l2_bytes // 3
    steps = max(1, round(footprint / 16 / threads))
    vectors = steps * threads
    if vectors * 16 > facts.l2_bytes:
        held = facts.l2_bytes >> 20
        return Unfit(f"{vectors * 16 >> 20} MiB, one step of the whole grid, do not fit into an L2 cache of {held} MiB")
    passes = max(4, round((16384 / steps if passes is None else passes) / 4) * 4)
    args = ("from", "out", np.uint32(vectors), np.uint32(steps), np.uint32(passes), np.uint32(TURN))
    work = Work(
        kernel="l2-read",
        precision="int32",
        buffers=(
            Buffer("from", "uint32", vectors * 4, word_content("from", PERIOD * 4)),
            Buffer("out", "uint32", threads),
        ),
        turns=((Launch("cache.cu", "read_again", (facts.sms * BLOCKS_PER_SM, 1, 1), (BLOCK, 1, 1), args),),),
        flop=0,
        bytes=vectors * 16 * passes,
        outputs=(Output("out", unchanging(partial(_expect_sums, steps, passes)), "none: sums modulo 2^32"),),
        path="l2",
        parameters={"footprint": vectors * 16, "passes": passes},
        activity=0.35,
    )
    return fitting(facts, work)


@lru_cache(maxsize=16)
def _expect_sums(steps: int, passes: int, seed: int) -> Expected:
    vectors = words(seed, "from", PERIOD * 4).astype(np.uint64).reshape(PERIOD, 4).sum(axis=1)
    total = np.zeros(PERIOD, np.uint64)
    for group in range(passes // 4):
        for shift in range(4):
            total += np.roll(vectors, -((group + shift) * TURN % PERIOD))
    values = (total * np.uint64(steps) % np.uint64(2**32)).astype(np.float64).reshape(1, -1)
    return Expected(PERIOD, values, np.zeros_like(values))


def build_chase(facts: Facts, *, footprint: int | None = None, hops: int | None = None) -> Work | Unfit:
    """Operations: `hops` dependent loads of 4 bytes by one thread; two more tell where it began and ended.

    `footprint` (bytes): what the chain goes through, one element a line of 128; by default four times the L2 cache.
    """
    if footprint is None:
        footprint = far_beyond_l2(facts)
    count = footprint // LINE
    if count < 2:
        return Unfit(f"a chain needs at least two lines, {2 * LINE} bytes")
    if hops is None:
        hops = 16384 if footprint > facts.l2_bytes else 32768
    args = ("lines", "at", "out", np.uint32(count), np.uint32(hops))
    work = Work(
        kernel="chase",
        precision="int32",
        buffers=(
            Buffer("lines", "uint32", count * LINE // 4, Array("one random cycle", partial(_lines, count))),
            Buffer("at", "uint32", 1, Array("zero", _zero)),
            Buffer("out", "uint32", 1),
        ),
        turns=((Launch("cache.cu", "chase", (1, 1, 1), (1, 1, 1), args),),),
        flop=0,
        bytes=0,
        outputs=(Output("out", unchanging(partial(_expect_advance, count, hops)), "none: whole numbers"),),
        path="none",
        parameters={"footprint": count * LINE, "hops": hops, "stride": LINE},
        operations=hops,
        activity=0.03,
    )
    return fitting(facts, work)


def _lines(count: int, seed: int) -> NDArray[Any]:
    """Lines of 32 words: the next line's number, and the line's own place in the cycle.

    The cycle is a random order of all lines, closed: every cyclic permutation is as likely (as Sattolo's shuffle).
    """
    order = stream_of(seed, "lines").permutation(count).astype(np.uint32)
    lines = np.zeros((count, LINE // 4), np.uint32)
    lines[order, 0] = np.roll(order, -1)
    lines[order, 1] = np.arange(count, dtype=np.uint32)
    return lines.reshape(-1)


def _zero(seed: int) -> NDArray[Any]:  # noqa: ARG001
    return np.zeros(1, np.uint32)


def _expect_advance(count: int, hops: int, seed: int) -> Expected:  # noqa: ARG001
    return Expected(1, np.array([[float(hops % count)]]), np.zeros((1, 1)))


L2_READ = Kernel(
    name="l2-read",
    version="1",
    stresses="L2 cache, reads",
    says="all multiprocessors read a third of the L2 cache again and again, past their L1 caches",
    build=build_read,
)
CHASE = Kernel(
    name="chase",
    version="1",
    stresses="latency of one load",
    says="one thread follows a random chain of cache lines; by default through four times the L2 cache",
    build=build_chase,
)
