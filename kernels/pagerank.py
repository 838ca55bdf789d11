"""PageRank on a generated power-law graph: irregular reads with little arithmetic, as graph and sparse codes do."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of
from .rounding import Doubles, unit
from .sizing import fitting
from .work import Array, Buffer, Expected, Facts, Kernel, Launch, Output, Step, Unfit, Work, unchanging

DAMPING = 0.85
BLOCK = 256
TAIL = 0.6
"""In-degree of the r-th vertex of n is 0.4 · mean · (r/n)^-0.6: a density that falls with the power 1 + 1/0.6."""

MOST = 512
"""Predecessors of a vertex at most: bounds the longest thread, and the rounding error."""


def build(
    facts: Facts, *, vertices: int = 1 << 19, mean_degree: int = 8, iterations: int = 8, sweeps: int = 8
) -> Work | Unfit:
    """FLOP of one sweep: iterations · (edges + 3 · vertices). One repetition is `sweeps` of them, each from the start.

    Bytes of one sweep: iterations · (8 · edges + 4 · (vertices + 1)) for the graph and the shares gathered along it,
    and 8 · vertices · iterations + 4 · vertices for inverses, shares and ranks. Operations: edges passed.
    """
    if iterations < 1 or sweeps < 1 or vertices < 2 or mean_degree < 1:
        return Unfit("a PageRank needs at least two vertices, a degree of 1, one iteration and one sweep")
    edges = int(degrees(vertices, mean_degree).sum())
    graph = partial(_graph, vertices, mean_degree)
    buffers = (
        Buffer("row", "uint32", vertices + 1, Array("offsets of a power-law graph", partial(_part, graph, 0))),
        Buffer("from", "uint32", edges, Array("its edges' ends, power-law too", partial(_part, graph, 1))),
        Buffer("inverse", "float32", vertices, Array("1 / out-degree", partial(_part, graph, 2))),
        Buffer("share", "float32", vertices),
        Buffer("next", "float32", vertices),
        Buffer("rank", "float32", vertices),
    )
    steps = _sweep(vertices, iterations) * sweeps
    moved = iterations * (8 * edges + 4 * (vertices + 1)) + 8 * vertices * iterations + 4 * vertices
    work = Work(
        kernel="pagerank",
        precision="fp32",
        buffers=buffers,
        turns=(steps,),
        flop=sweeps * iterations * (edges + 3 * vertices),
        bytes=sweeps * moved,
        outputs=(Output("rank", unchanging(partial(_expect, vertices, mean_degree, iterations)), _DERIVATION),),
        parameters={"vertices": vertices, "edges": edges, "iterations": iterations, "sweeps": sweeps},
        operations=sweeps * iterations * edges,
        activity=0.052,
    )
    return fitting(facts, work)


_DERIVATION = (
    "all terms are positive: a sum of d of them is off by at most d u in proportion, the scaling by 2 u more, and an "
    "iteration passes the largest proportion on; u = 2^-24, d the largest in-degree"
)


def _sweep(vertices: int, iterations: int) -> tuple[Step, ...]:
    grid = (-(-vertices // BLOCK), 1, 1)
    number = np.uint32(vertices)
    steps: list[Step] = [
        Launch("pagerank.cu", "begin", grid, (BLOCK, 1, 1), ("inverse", "share", np.float32(1 / vertices), number))
    ]
    tail = (np.float32((1 - DAMPING) / vertices), np.float32(DAMPING), number)
    share, following = "share", "next"
    for _ in range(iterations - 1):
        args = ("row", "from", "inverse", share, following, *tail)
        steps.append(Launch("pagerank.cu", "spread", grid, (BLOCK, 1, 1), args))
        share, following = following, share
    steps.append(Launch("pagerank.cu", "finish", grid, (BLOCK, 1, 1), ("row", "from", share, "rank", *tail)))
    return tuple(steps)


@lru_cache(maxsize=4)
def degrees(vertices: int, mean_degree: int) -> NDArray[np.int64]:
    """In-degrees, the largest first: the same for every seed, so that the size of the work is."""
    place = (np.arange(vertices) + 0.5) / vertices
    wanted = (1 - TAIL) * mean_degree * place**-TAIL
    return np.clip(np.round(wanted), 1, min(MOST, vertices)).astype(np.int64)


@lru_cache(maxsize=2)
def _graph(
    vertices: int, mean_degree: int, seed: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float32]]:
    """Offsets (vertices + 1), predecessors (edges) and inverse out-degrees (vertices).

    The degrees are dealt out at random. A predecessor is drawn with a density that falls as the root of its place in
    another random order, so that out-degrees have a heavy tail too.
    """
    draw = stream_of(seed, "graph")
    row = np.zeros(vertices + 1, np.uint32)
    row[1:] = np.cumsum(draw.permutation(degrees(vertices, mean_degree)))
    popular = (vertices * draw.random(int(row[-1])) ** 2).astype(np.uint32)
    ends = draw.permutation(vertices).astype(np.uint32)[popular]
    out = np.bincount(ends, minlength=vertices)
    inverse = np.divide(1.0, out, out=np.zeros(vertices), where=out > 0).astype(np.float32)
    return row, ends, inverse


def _part(graph: Callable[[int], tuple[NDArray[Any], ...]], which: int, seed: int) -> NDArray[Any]:
    return graph(seed)[which]


@lru_cache(maxsize=4)
def _expect(vertices: int, mean_degree: int, iterations: int, seed: int) -> Expected:
    row, ends, stored = _graph(vertices, mean_degree, seed)
    inverse = stored.astype(np.float64)
    base, damping = float(np.float32((1 - DAMPING) / vertices)), float(np.float32(DAMPING))
    rank: Doubles = np.full(vertices, float(np.float32(1 / vertices)))
    for _ in range(iterations):
        share = rank * inverse
        rank = base + damping * np.add.reduceat(share[ends], row[:-1])
    roundings = iterations * (int(np.diff(row).max()) + 2) + 1
    tolerance = roundings * unit("fp32") / (1 - roundings * unit("fp32")) * rank
    return Expected(vertices, rank.reshape(1, -1), tolerance.reshape(1, -1))


PAGERANK = Kernel(
    name="pagerank",
    version="1",
    stresses="irregular reads, L2 cache",
    says="PageRank by pulling on a power-law graph of half a million vertices and 4.1 million edges",
    build=build,
)
