"""Random places in memory: gathers from a table far larger than the caches, and atomic additions within the L2."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of, word_content, words
from .sizing import bytes_per_s, far_beyond_l2, fitting, room
from .work import Array, Buffer, Expected, Facts, Kernel, Launch, Output, Unfit, Work, unchanging

EACH = 8
"""Places per thread, as in irregular.cu."""

BLOCK = 256
INDICES = 1 << 18
"""Random numbers, after which they repeat (a gather then looks elsewhere)."""

TABLE_PERIOD = 1 << 16
SECTOR = 32
"""Bytes that one random load moves from memory."""

SHIFT = 37 * TABLE_PERIOD
"""By how much a gather's places move from one round of indices to the next: whole periods of the table."""


def build_gather(facts: Facts, *, table_bytes: int | None = None, gathers: int | None = None) -> Work | Unfit:
    """Bytes: 32 (a sector) per gather and 4 per 8 gathers written. Operations: gathers.

    The indices (1 MiB) stay in the L2 cache. `table_bytes`: a power of two; by default the first above 1 GiB and four
    times the L2 cache that fits. `gathers`: by default such that a repetition takes about 5 ms.
    """
    if table_bytes is None:
        table_bytes = 1 << (max(far_beyond_l2(facts), 1 << 30) - 1).bit_length()
        while table_bytes > room(facts) // 2:
            table_bytes //= 2
    size = table_bytes // 4
    if size < TABLE_PERIOD or size & (size - 1) or size > 1 << 32:
        return Unfit(f"a table of {table_bytes} bytes must be a power of two from 256 KiB to 16 GiB")
    if gathers is None:
        gathers = int(bytes_per_s(facts) * 0.3 * 5e-3 / SECTOR)
    gathers = max(1, gathers // INDICES) * INDICES
    args = ("table", "index", "out", np.uint32(size - 1), np.uint32(INDICES), np.uint32(SHIFT))
    says = f"random numbers below {size}"
    work = Work(
        kernel="gather",
        precision="int32",
        buffers=(
            Buffer("table", "uint32", size, word_content("table", TABLE_PERIOD)),
            Buffer("index", "uint32", INDICES, Array(says, partial(_indices, size))),
            Buffer("out", "uint32", gathers // EACH),
        ),
        turns=((Launch("irregular.cu", "gather", (gathers // EACH // BLOCK, 1, 1), (BLOCK, 1, 1), args),),),
        flop=0,
        bytes=SECTOR * gathers + 4 * gathers // EACH,
        outputs=(Output("out", unchanging(partial(_expect_gathered, size)), "none: sums modulo 2^32"),),
        parameters={"table_bytes": table_bytes, "gathers": gathers},
        operations=gathers,
        activity=0.08,
    )
    return fitting(facts, work)


def _indices(size: int, seed: int) -> NDArray[Any]:
    return stream_of(seed, "index").integers(0, size, INDICES, dtype=np.uint32)


@lru_cache(maxsize=8)
def _expect_gathered(size: int, seed: int) -> Expected:
    table = words(seed, "table", TABLE_PERIOD)
    found = table[_indices(size, seed) % TABLE_PERIOD].reshape(-1, EACH)
    values = found.sum(axis=1, dtype=np.uint32).astype(np.float64).reshape(1, -1)
    return Expected(values.shape[1], values, np.zeros_like(values))


def build_atomics(facts: Facts, *, counters: int = 1 << 16, additions: int | None = None) -> Work | Unfit:
    """Operations: `additions` atomic additions of 1 to random counters, which are cleared before.

    By default so many that a repetition takes about 3 ms at one for each multiprocessor and clock.
    """
    if counters < BLOCK or counters & (counters - 1):
        return Unfit(f"{counters} counters must be a power of two, at least {BLOCK}")
    if additions is None:
        additions = int(facts.sms * facts.max_clock_mhz * 1e6 * 3e-3)
    additions = max(1, additions // INDICES) * INDICES
    work = Work(
        kernel="atomics",
        precision="int32",
        buffers=(
            Buffer("index", "uint32", INDICES, Array(f"random below {counters}", partial(_indices, counters))),
            Buffer("counters", "uint32", counters),
        ),
        turns=(
            (
                Launch("irregular.cu", "clear", (counters // BLOCK, 1, 1), (BLOCK, 1, 1), ("counters",)),
                Launch(
                    "irregular.cu",
                    "count",
                    (additions // EACH // BLOCK, 1, 1),
                    (BLOCK, 1, 1),
                    ("index", "counters", np.uint32(INDICES)),
                ),
            ),
        ),
        flop=0,
        bytes=0,
        outputs=(Output("counters", unchanging(partial(_expect_counts, counters, additions)), "none: whole numbers"),),
        path="none",
        parameters={"counters": counters, "additions": additions},
        operations=additions,
        activity=0.1,
    )
    return fitting(facts, work)


@lru_cache(maxsize=8)
def _expect_counts(counters: int, additions: int, seed: int) -> Expected:
    once = np.bincount(_indices(counters, seed), minlength=counters)
    values = (once * (additions // INDICES)).astype(np.float64).reshape(1, -1)
    return Expected(counters, values, np.zeros_like(values))


GATHER = Kernel(
    name="gather",
    version="1",
    stresses="device memory, random sectors",
    says="single words from random places of a table of 1 GiB or more, four times the L2 cache at least",
    build=build_gather,
)
ATOMICS = Kernel(
    name="atomics",
    version="1",
    stresses="atomic units of the L2 cache",
    says="atomic additions to 65,536 counters in random order",
    build=build_atomics,
)
