"""Patterns in what each multiprocessor has to itself, a check of the arithmetic of each lane, and its clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of
from .rounding import fused
from .sizing import fitting
from .work import COUNTERS, FAULTS, Array, Buffer, Facts, Launch, Scalar, Unfit, Work, zeros

THREADS = 1024
VALUES = 32
STARTS = 64
STEPS = 512
ROW = 8
SMS = FAULTS - 4
"""Rows of the table by multiprocessor; these five as in sm.cu."""

STEP = float(np.float32(0.5**0.5))
"""h of the circle that the fp32 check goes around: x += h y, then y -= h x."""
FACTOR = 0x9E3779B1
ROUNDS = 64
SLAB = 128 << 10
"""Bytes of each multiprocessor for the patterns in its L1 cache: about what it holds beside no shared memory."""
MOST_FAR = 16 << 20
"""Bytes that every multiprocessor reads from the L2 cache, at most."""
VECTOR = 16

PARTS = ("L2 cache", "registers", "shared memory", "L1 cache", "fp32", "int32")
"""By bit, as in sm.cu."""


def build(facts: Facts, *, rounds: int = ROUNDS, slab: int = SLAB, far: int | None = None) -> Work | Unfit:
    """FLOP: of the fp32 check, 4 · 512 steps · 1024 threads · rounds · multiprocessors · 2 launches.

    `rounds`: in a repetition; every second one has the bits of the one before inverted. `slab`: bytes of each
    multiprocessor in its L1 cache. `far`: bytes that all read from the L2 cache, by default a third of it.
    """
    step = THREADS * VECTOR
    far_vectors = (min(facts.l2_bytes // 3, MOST_FAR) if far is None else far) // step * THREADS
    slab_vectors = slab // step * THREADS
    shared_words = facts.shared_bytes // 4
    if not far_vectors or not slab_vectors or rounds < 1:
        held = f"the L2 cache has {facts.l2_bytes:,} B"
        return Unfit(f"patterns by multiprocessor need at least one round, and {step:,} B of each cache; {held}")
    grid, block = (facts.sms, 1, 1), (THREADS, 1, 1)

    def exercise(slab_vectors: int, far_vectors: int, shared_words: int, salt: int) -> Launch:
        starts: tuple[str | Scalar, ...] = ("starts", np.float32(STEP))
        caches: tuple[str | Scalar, ...] = ("slab", np.uint32(slab_vectors), "far", np.uint32(far_vectors))
        args = (*starts, *caches, *map(np.uint32, (shared_words, rounds, salt)), "sms", "faults")
        return Launch("sm.cu", "exercise", grid, block, args, shared=4 * shared_words)

    def turn(salt: int) -> tuple[Launch, ...]:
        written = ("far", np.uint32(1), np.uint32(0), np.uint32(salt), np.uint32(0))
        return (
            Launch("memory.cu", "write_pattern", (far_vectors // THREADS, 1, 1), (THREADS, 1, 1), written),
            # The L1 cache and shared memory are one memory: each in turn has as much of it as it can.
            exercise(0, far_vectors, shared_words, salt),
            exercise(slab_vectors, 0, 0, salt),
        )

    by_thread = rounds * (VALUES + 3)
    work = Work(
        kernel="sm",
        precision="fp32",
        buffers=(
            Buffer("starts", "uint32", STARTS * 6, Array("uniform in [-1, 1), and integers", _starts)),
            Buffer("slab", "uint32", facts.sms * slab_vectors * 4),
            Buffer("far", "uint32", far_vectors * 4),
            Buffer("sms", "uint64", SMS * ROW, zeros("uint64")),
            COUNTERS,
        ),
        turns=(turn(0x243F6A88), turn(0x85A308D3)),
        flop=4 * STEPS * THREADS * rounds * facts.sms * 2,
        path="none",
        parameters={"rounds": rounds, "slab": slab_vectors * VECTOR, "far": far_vectors * VECTOR},
        activity=0.4,
        compared=facts.sms * (2 * by_thread * THREADS + rounds * (shared_words + 8 * slab_vectors) + 4 * far_vectors),
    )
    return fitting(facts, work)


def _starts(seed: int) -> NDArray[Any]:
    """Of each row: x, y, both after STEPS steps around the circle, an integer and its value after as many steps."""
    random = stream_of(seed, "starts")
    points = random.uniform(-1.0, 1.0, (2, STARTS)).astype(np.float32)
    x, y = points.astype(np.float64)
    integers = random.integers(0, 2**32, STARTS, dtype=np.uint32)
    moved = integers.copy()
    factor = np.full(STARTS, STEP)
    for step in range(STEPS):
        x = fused(factor, y, x, "fp32")
        y = fused(-factor, x, y, "fp32")
        moved = moved * np.uint32(FACTOR) + np.uint32(step)
    ends = np.array([x, y]).astype(np.float32)
    return np.stack([*points.view(np.uint32), *ends.view(np.uint32), integers, moved], axis=1).reshape(-1)


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor did and found in all repetitions."""

    number: int
    """`%smid`."""
    blocks: int
    wrong: int
    """Words and results that were not what they had to be."""
    lanes: tuple[int, ...]
    """Places in a warp, 0 to 31, of the threads that found them."""
    parts: tuple[str, ...]
    """Where: of `PARTS`."""
    clock_mhz: float | None
    """Cycles of its own clock over the time that they took."""
    block_us: float
    """Time of a block, mean of all."""

    def __str__(self) -> str:
        lanes = "all lanes" if len(self.lanes) == 32 else f"lane {', '.join(map(str, self.lanes))}"
        return f"multiprocessor {self.number}: {self.wrong:,} wrong in {', '.join(self.parts)}, found by {lanes}"


def multiprocessors(table: NDArray[np.uint64]) -> list[Multiprocessor]:
    """Read the buffer `sms` of the work: those that ran a block, by number."""
    return [
        Multiprocessor(
            number,
            blocks,
            wrong,
            lanes=tuple(lane for lane in range(32) if lanes >> lane & 1),
            parts=tuple(part for bit, part in enumerate(PARTS) if parts >> bit & 1),
            clock_mhz=1000 * cycles / ns if ns else None,
            block_us=ns / blocks / 1000,
        )
        for number, (blocks, wrong, lanes, parts, cycles, ns, *_) in enumerate(table.reshape(-1, ROW).tolist())
        if blocks
    ]


def written(rows: Sequence[Multiprocessor]) -> NDArray[np.uint64]:
    """The buffer `sms` as sm.cu leaves it after that."""
    table = np.zeros((SMS, ROW), np.uint64)
    for row in rows:
        ns = round(1000 * row.block_us * row.blocks)
        lanes = sum(1 << lane for lane in row.lanes)
        parts = sum(1 << PARTS.index(part) for part in row.parts)
        table[row.number, :6] = row.blocks, row.wrong, lanes, parts, round(ns * (row.clock_mhz or 0.0) / 1000), ns
    return table.reshape(-1)
