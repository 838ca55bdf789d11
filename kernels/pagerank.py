"""PageRank on a generated power-law graph: irregular reads with little arithmetic, as graph and sparse codes do."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of
from .rounding import fused
from .sizing import fitting
from .work import COUNTERS, Argument, Array, Buffer, Facts, Launch, Unfit, Work

DAMPING = 0.85
BLOCK = 256
TAIL = 0.6
"""In-degree of the r-th vertex of n is 0.4 · mean · (r/n)^-0.6: a density that falls with the power 1 + 1/0.6."""

MOST = 512
"""Predecessors of a vertex at most: bounds the longest thread."""


def build(
    facts: Facts, *, vertices: int = 1 << 19, mean_degree: int = 8, iterations: int = 8, sweeps: int = 8
) -> Work | Unfit:
    """FLOP of one sweep: iterations · (edges + 3 · vertices). One repetition is `sweeps` of them, each from the start,
    with ranks above and below 0 in turn, so that what one sweep leaves is wrong for the next.

    Bytes of one sweep: iterations · (8 · edges + 4 · (vertices + 1)) for the graph and the shares gathered along it,
    and 8 · vertices · iterations + 4 · vertices for inverses, shares and the ranks to compare with. Operations: edges
    passed.
    """
    if iterations < 1 or sweeps < 1 or vertices < 2 or mean_degree < 1:
        return Unfit("a PageRank needs at least two vertices, a degree of 1, one iteration and one sweep")
    edges = int(degrees(vertices, mean_degree).sum())
    graph = partial(_graph, vertices, mean_degree)
    ranks = Array("its ranks", partial(_ranks, vertices, mean_degree, iterations))
    buffers = (
        Buffer("row", "uint32", vertices + 1, Array("offsets of a power-law graph", partial(_part, graph, 0))),
        Buffer("from", "uint32", edges, Array("its edges' ends, power-law too", partial(_part, graph, 1))),
        Buffer("inverse", "float32", vertices, Array("1 / out-degree", partial(_part, graph, 2))),
        Buffer("share", "float32", vertices),
        Buffer("next", "float32", vertices),
        Buffer("expected", "float32", vertices, ranks),
        COUNTERS,
    )
    moved = iterations * (8 * edges + 4 * (vertices + 1)) + 8 * vertices * iterations + 4 * vertices
    work = Work(
        kernel="pagerank",
        precision="fp32",
        buffers=buffers,
        turns=tuple(
            tuple(chain.from_iterable(_sweep(vertices, iterations, turn * sweeps + sweep) for sweep in range(sweeps)))
            for turn in range(1 + sweeps % 2)
        ),
        flop=sweeps * iterations * (edges + 3 * vertices),
        bytes=sweeps * moved,
        parameters={"vertices": vertices, "edges": edges, "iterations": iterations, "sweeps": sweeps},
        operations=sweeps * iterations * edges,
        activity=0.052,
        compared=sweeps * vertices,
    )
    return fitting(facts, work)


def _sweep(vertices: int, iterations: int, number: int) -> tuple[Launch, ...]:
    """The launches of a sweep, of its number since the inputs were filled."""
    grid = (-(-vertices // BLOCK), 1, 1)
    count, sign = np.uint32(vertices), np.float32(-1 if number % 2 else 1)
    tail = (sign * np.float32((1 - DAMPING) / vertices), np.float32(DAMPING), count)

    def launch(function: str, *args: Argument) -> Launch:
        return Launch("pagerank.cu", function, grid, (BLOCK, 1, 1), args)

    launches = [launch("begin", "inverse", "share", sign * np.float32(1 / vertices), count)]
    share, following = "share", "next"
    for _ in range(iterations - 1):
        launches.append(launch("spread", "row", "from", "inverse", share, following, *tail))
        share, following = following, share
    return (*launches, launch("finish", "row", "from", share, "expected", sign, *tail, "faults"))


@lru_cache(maxsize=4)
def degrees(vertices: int, mean_degree: int) -> NDArray[np.int64]:
    """In-degrees, the largest first: the same for every seed, so that the size of the work is."""
    place = (np.arange(vertices) + 0.5) / vertices
    in_degrees = (1 - TAIL) * mean_degree * place**-TAIL
    return np.clip(np.round(in_degrees), 1, min(MOST, vertices)).astype(np.int64)


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


@lru_cache(maxsize=2)
def _ranks(vertices: int, mean_degree: int, iterations: int, seed: int) -> NDArray[np.float32]:
    """The ranks bit for bit: the GPU's operations in its order, the n-th edge of all vertices at once."""
    row, ends, inverse = _graph(vertices, mean_degree, seed)
    lengths = np.diff(row.astype(np.int64))
    longest_first = np.argsort(-lengths, kind="stable")
    starts = row[:-1][longest_first]
    reaching = np.searchsorted(-lengths[longest_first], -np.arange(1, lengths.max() + 1), side="right")
    nth_edges = [ends[starts[:count] + np.uint32(n)] for n, count in enumerate(reaching)]
    base, damping = (np.full(vertices, float(np.float32(c))) for c in ((1 - DAMPING) / vertices, DAMPING))
    rank = np.full(vertices, 1 / vertices, np.float32)
    for _ in range(iterations):
        share, total = rank * inverse, np.zeros(vertices, np.float32)
        for edges in nth_edges:
            total[: len(edges)] += share[edges]
        rank[longest_first] = fused(damping, total.astype(np.float64), base, "fp32")
    return rank
