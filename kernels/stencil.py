"""A 27-point stencil over a periodic box: neighbouring reads that caches serve, as in codes on regular grids.

The box holds f(x, y, z) = A(x) + B(y) + rise z + growth, A and B random whole numbers. A source, f less the stencil of
f, makes each sweep of it the same box, grown; sweeps go to and fro between two boxes, in exact arithmetic, and compare
every point that they read.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of
from .sizing import bytes_per_s, fitting, room
from .work import COUNTERS, Array, Buffer, Expected, Facts, Launch, Output, Unfit, Work

BLOCK = (64, 4, 1)
DEPTH = 32
"""Points of a thread, as in stencil.cu."""

WEIGHTS = (36 / 128, 8 / 128, 3 / 128, 1 / 128)
"""Of the centre, the 6 faces, the 12 edges and the 8 corners; they add up to 1."""
BESIDE = WEIGHTS[1] + 4 * WEIGHTS[2] + 4 * WEIGHTS[3]
"""The weights of a plane beside the centre."""

LONGEST = 1600
"""Side of a box whose points are numbered in 32 bits."""
RANGE = 1 << 13
"""A and B are below this, and each has no number twice."""
HEIGHT = 1 << 15
"""The rise along the box is below this: with A, B and the sources all numbers have at most 24 bits."""

GROWTH = (1, 1, 1, -3)
"""Of one sweep after another: what a box held two sweeps ago is always off by 2."""

FLOP = 54
"""Of one point: 27 multiply-adds."""


def build(facts: Facts, *, side: int | None = None, sweeps: int | None = None) -> Work | Unfit:
    """FLOP: 54 · side³ · sweeps. Bytes: 8 · side³ · sweeps, each point read and written once.

    `side`: of the box, by default 512, or the largest half of that which fits. `sweeps`: by default as many as take
    about 6 ms at 70 % of the bandwidth.
    """
    if side is None:
        side = 512
        while 8 * side**3 > room(facts) and side > BLOCK[0]:
            side //= 2
    if side % BLOCK[0] or not BLOCK[0] <= side <= LONGEST:
        return Unfit(f"a side of {side} points is not a multiple of {BLOCK[0]} up to {LONGEST}")
    if sweeps is None:
        sweeps = max(1, round(0.7 * bytes_per_s(facts) * 6e-3 / (8 * side**3)))
    if sweeps < 1:
        return Unfit("a stencil needs at least one sweep")
    turns = len(GROWTH) // gcd(len(GROWTH), sweeps)
    rise = HEIGHT // side
    boxes = ("in", "out")
    expect = partial(_expect, side, sweeps)
    work = Work(
        kernel="stencil27",
        precision="fp32",
        buffers=(
            Buffer("in", "float32", side**3, Array("sums of whole numbers by axis", partial(_plane, side), rise=rise)),
            Buffer("out", "float32", side**3),
            Buffer(
                "axes", "float32", 4 * side, Array("the numbers of two axes, and their sources", partial(_axes, side))
            ),
            COUNTERS,
        ),
        turns=tuple(
            tuple(_sweep(side, turn * sweeps + sweep, rise) for sweep in range(sweeps)) for turn in range(turns)
        ),
        flop=FLOP * side**3 * sweeps,
        bytes=8 * side**3 * sweeps,
        outputs=tuple(Output(boxes[(turn + 1) * sweeps % 2], expect, turn) for turn in range(turns)),
        parameters={"side": side, "sweeps": sweeps},
        activity=0.3,
        compared=side**3 * sweeps,
    )
    return fitting(facts, work)


def _sweep(side: int, number: int, rise: int) -> Launch:
    """The sweep of a number, counted from 0 since the box was filled."""
    boxes = ("in", "out") if number % 2 == 0 else ("out", "in")
    numbers = (*WEIGHTS, rise, _grown(number), GROWTH[number % len(GROWTH)])
    grid = (side // BLOCK[0], side // BLOCK[1], side // DEPTH)
    return Launch("stencil.cu", "sweep27", grid, BLOCK, (*boxes, "axes", *map(np.float32, numbers), "faults"))


def _grown(sweeps: int) -> int:
    return sum(GROWTH[: sweeps % len(GROWTH)])


@lru_cache(maxsize=4)
def _along(side: int, seed: int) -> NDArray[np.float64]:
    """The numbers of A and B. Shape (2, side)."""
    return np.array([stream_of(seed, axis).permutation(RANGE)[:side] for axis in ("A", "B")], np.float64)


def _plane(side: int, seed: int) -> NDArray[Any]:
    """The first plane of the box, flat."""
    a, b = _along(side, seed)
    plane: NDArray[Any] = np.add.outer(b, a).astype(np.float32)
    return plane.reshape(-1)


def _axes(side: int, seed: int) -> NDArray[Any]:
    """Of each x, then of each y, its number and by how much the stencil makes it less; flat."""
    along = _along(side, seed)
    source = BESIDE * (2 * along - np.roll(along, 1, axis=1) - np.roll(along, -1, axis=1))
    return np.stack([along, source], axis=-1).astype(np.float32).reshape(-1)


@lru_cache(maxsize=4)
def _expect_grown(side: int, seed: int, growth: int) -> Expected:
    plane = _plane(side, seed).astype(np.float64).reshape(side, side) + growth
    return Expected(side, plane, np.zeros_like(plane), rise=HEIGHT // side)


def _expect(side: int, sweeps: int, seed: int, repetitions: int) -> Expected:
    return _expect_grown(side, seed, _grown(repetitions * sweeps))
