"""Loads and additions that do not stream: the L2 cache, the latency of one load, random places, atomic additions."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from .inputs import key, word
from .sizing import bytes_per_s, far_beyond_l2, fitting, multiple, room
from .work import COUNTERS, Array, Buffer, Expected, Facts, Key, Launch, Output, Unfit, Words, Work, exactly, zeros

BLOCK = 256
WARP = 32

BLOCKS_PER_SM = 4
TURN = 1032
"""Vectors of 16 bytes, whole lines, by which a pass of `l2-read` is shifted against the last."""
RISE = 0x9E3779B1
"""From one word of `l2-read` to the next, modulo 2^32: compared in far fewer instructions than a hash."""

UNROLL = 4
"""Passes of `l2-read`, and hops of `chase`, come in multiples of this, as in access.cu."""

LINE = 128
"""Bytes between the elements of a chase: a cache line."""

EACH = 8
"""Places at once in a thread, as in access.cu."""
ROUNDS = 8
"""How often a thread gathers."""
SECTOR = 32
"""Bytes that one random load moves from memory."""
PERIOD = 1 << 18
"""Additions after which the counters repeat, so that the host can count them."""


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
        size, held = vectors * 16 >> 10, facts.l2_bytes >> 10
        return Unfit(f"{size:,} KiB, whole loads of all threads, do not fit into the {held:,} KiB of the L2 cache")
    passes = multiple(16384 / steps if passes is None else passes, UNROLL)
    turn = min(TURN, vectors // 32 * 8)
    sizes = (np.uint32(vectors), np.uint32(steps), np.uint32(passes), np.uint32(turn))
    args = ("from", *sizes, Key("from"), "faults")
    content = Array(
        f"a ramp by {RISE:#x} modulo 2^32", lambda seed: np.array([key(seed, "from")], np.uint32), rise=RISE
    )
    work = Work(
        kernel="l2-read",
        precision="int32",
        buffers=(Buffer("from", "uint32", vectors * 4, content), COUNTERS),
        turns=((Launch("access.cu", "read_again", (facts.sms * BLOCKS_PER_SM, 1, 1), (BLOCK, 1, 1), args),),),
        bytes=vectors * 16 * passes,
        path="l2",
        parameters={"footprint": vectors * 16, "passes": passes},
        activity=0.35,
        compared=vectors * passes,
    )
    return fitting(facts, work)


def build_chase(facts: Facts, *, footprint: int | None = None, hops: int | None = None) -> Work | Unfit:
    """Operations: `hops` dependent loads of 4 bytes by one thread, past the L1 cache.

    `footprint` (bytes): what the thread goes through, one load a line of 128; a power of two, by default the first
    from four times the L2 cache on.
    """
    if footprint is None:
        footprint = 1 << (far_beyond_l2(facts) - 1).bit_length()
        while footprint > room(facts):
            footprint //= 2
    if footprint & (footprint - 1) or not 2 * LINE <= footprint <= 1 << 34:
        return Unfit(f"a chase through {footprint} bytes: it must be a power of two from {2 * LINE} bytes to 16 GiB")
    if hops is None:
        hops = 16384 if footprint > facts.l2_bytes else 32768
    hops = max(1, hops // UNROLL) * UNROLL
    bits = (footprint // LINE).bit_length() - 1
    args = ("lines", "at", np.uint32(bits), np.uint32(hops), Key("lines"), "faults")
    work = Work(
        kernel="chase",
        precision="int32",
        buffers=(
            Buffer("lines", "uint32", footprint // 4, Words()),
            Buffer("at", "uint32", 1, zeros("uint32")),
            COUNTERS,
        ),
        turns=((Launch("access.cu", "chase", (1, 1, 1), (WARP, 1, 1), args),),),
        outputs=(Output("at", lambda seed, repetitions: exactly(hops * repetitions % 2**32)),),  # noqa: ARG005
        path="none",
        parameters={"footprint": footprint, "hops": hops, "stride": LINE},
        operations=hops,
        activity=0.03,
        compared=hops,
    )
    return fitting(facts, work)


def build_gather(facts: Facts, *, table_bytes: int | None = None, gathers: int | None = None) -> Work | Unfit:
    """Bytes: 32 (a sector) per gather. Operations: gathers.

    `table_bytes`: a power of two; by default the first above 1 GiB and four times the L2 cache that fits. `gathers`: by
    default such that a repetition takes about 5 ms.
    """
    if table_bytes is None:
        table_bytes = 1 << (max(far_beyond_l2(facts), 1 << 30) - 1).bit_length()
        while table_bytes > room(facts):
            table_bytes //= 2
    size = table_bytes // 4
    if size & (size - 1) or not 1 << 18 <= table_bytes <= 1 << 34:
        return Unfit(f"a table of {table_bytes} bytes must be a power of two from 256 KiB to 16 GiB")
    if gathers is None:
        gathers = int(bytes_per_s(facts) * 0.3 * 5e-3 / SECTOR)
    by_block = BLOCK * EACH * ROUNDS
    blocks = min(max(1, gathers // by_block), (1 << 32) // by_block)
    args = ("table", np.uint32(size - 1), np.uint32(ROUNDS), Key("table"), "faults")
    work = Work(
        kernel="gather",
        precision="int32",
        buffers=(Buffer("table", "uint32", size, Words()), COUNTERS),
        turns=((Launch("access.cu", "gather", (blocks, 1, 1), (BLOCK, 1, 1), args),),),
        bytes=SECTOR * blocks * by_block,
        parameters={"table_bytes": table_bytes, "gathers": blocks * by_block},
        operations=blocks * by_block,
        activity=0.08,
        compared=blocks * by_block,
    )
    return fitting(facts, work)


def build_atomics(facts: Facts, *, counters: int = 1 << 16, additions: int | None = None) -> Work | Unfit:
    """Operations: `additions` atomic additions of 1 to random counters, which grow with every repetition.

    By default so many that a repetition takes about 3 ms at one for each multiprocessor and clock.
    """
    if counters < BLOCK or counters & (counters - 1):
        return Unfit(f"{counters} counters must be a power of two, at least {BLOCK}")
    if additions is None:
        additions = int(facts.sms * facts.max_clock_mhz * 1e6 * 3e-3)
    rounds = max(1, additions // PERIOD)
    args = ("counters", np.uint32(counters - 1), np.uint32(PERIOD), Key("counters"))
    work = Work(
        kernel="atomics",
        precision="int32",
        buffers=(Buffer("counters", "uint32", counters, zeros("uint32")),),
        turns=((Launch("access.cu", "count", (rounds * PERIOD // EACH // BLOCK, 1, 1), (BLOCK, 1, 1), args),),),
        outputs=(Output("counters", partial(_expect_counts, counters, rounds)),),
        path="none",
        parameters={"counters": counters, "additions": rounds * PERIOD},
        operations=rounds * PERIOD,
        activity=0.1,
    )
    return fitting(facts, work)


@lru_cache(maxsize=8)
def _expect_counts(counters: int, rounds: int, seed: int, repetitions: int) -> Expected:
    places = word(key(seed, "counters"), np.arange(PERIOD, dtype=np.uint64)) & np.uint32(counters - 1)
    counts = np.bincount(places, minlength=counters) * (rounds * repetitions) % 2**32
    values = counts.astype(np.float64).reshape(1, -1)
    return Expected(counters, values, np.zeros_like(values))
