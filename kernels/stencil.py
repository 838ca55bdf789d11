"""A 27-point stencil over a periodic box: neighbouring reads that caches serve, as in codes on regular grids."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import product

import numpy as np

from .inputs import content, numbers
from .rounding import unit
from .sizing import bytes_per_s, fitting, room
from .work import Buffer, Expected, Facts, Kernel, Launch, Output, Scalar, Unfit, Work, unchanging

PLANES = 4
"""The input repeats after this number of planes."""

BLOCK = (64, 4, 1)
WEIGHTS = (0.4, 0.05, 0.02, 0.0075)
"""Of the centre, the 6 faces, the 12 edges and the 8 corners; they add up to 1."""

POINTS = 27
FLOP = 53
"""Of one point: a product and 26 multiply-adds."""


def build(facts: Facts, *, side: int | None = None, sweeps: int | None = None) -> Work | Unfit:
    """FLOP: 53 · side³ · sweeps. Bytes: 8 · side³ · sweeps, each point read and written once.

    `side`: of the box, by default 512, or the largest half of that which fits. `sweeps`: all from the same input, by
    default as many as take about 6 ms at 70 % of the bandwidth.
    """
    if side is None:
        side = 512
        while 8 * side**3 > room(facts) and side > BLOCK[0]:
            side //= 2
    if side % BLOCK[0] or side < BLOCK[0]:
        return Unfit(f"a side of {side} points is not a multiple of {BLOCK[0]}")
    if sweeps is None:
        sweeps = max(1, round(0.7 * bytes_per_s(facts) * 6e-3 / (8 * side**3)))
    args: tuple[str | Scalar, ...] = ("in", "out", *map(np.float32, WEIGHTS))
    grid = (side // BLOCK[0], side // BLOCK[1], side)
    work = Work(
        kernel="stencil27",
        precision="fp32",
        buffers=(
            Buffer("in", "float32", side**3, content("in", PLANES * side * side, "uniform", "fp32")),
            Buffer("out", "float32", side**3),
        ),
        turns=((Launch("stencil.cu", "sweep27", grid, BLOCK, args, times=sweeps),),),
        flop=FLOP * side**3 * sweeps,
        bytes=8 * side**3 * sweeps,
        outputs=(Output("out", unchanging(partial(_expect, side)), _DERIVATION),),
        parameters={"side": side, "sweeps": sweeps},
        activity=0.3,
    )
    return fitting(facts, work)


_DERIVATION = "a sum of 27 products is off by at most 27 u / (1 - 27 u) of the sum of their magnitudes, u = 2^-24"


@lru_cache(maxsize=4)
def _expect(side: int, seed: int) -> Expected:
    box = numbers(seed, "in", PLANES * side * side, "uniform", "fp32").reshape(PLANES, side, side)
    values, magnitudes = np.zeros_like(box), np.zeros_like(box)
    for shift in product((-1, 0, 1), repeat=3):
        weight = float(np.float32(WEIGHTS[sum(map(abs, shift))]))
        moved = np.roll(box, shift, axis=(0, 1, 2))
        values += weight * moved
        magnitudes += abs(weight) * np.abs(moved)
    bound = POINTS * unit("fp32") / (1 - POINTS * unit("fp32"))
    return Expected(PLANES * side * side, values.reshape(1, -1), (bound * magnitudes).reshape(1, -1))


STENCIL27 = Kernel(
    name="stencil27",
    version="1",
    stresses="device memory and L1 caches",
    says="sweeps of a 27-point stencil in fp32 over a box of 512³ points",
    build=build,
)
