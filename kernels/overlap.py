"""Copies beside kernels, as applications have them: three shapes of traffic between a host and its GPU.

`traces` of which rows, partitions or activations move when are exact, so that every copy and every sum is known.

* `overlap-embedding`: an embedding's rows are fetched ahead of the batches that use them, and kept while a batch in
  the look-ahead needs them (Bagpipe: Agarwal, Yan, Zhang and Venkataraman, SOSP 2023).
* `overlap-partitions`: a graph's partitions go through a buffer in BETA order, and each pair of partitions is joined
  while both are there (Marius++: Waleffe, Mohoney, Rekatsinas and Venkataraman, EuroSys 2023).
* `overlap-activations`: activations are encoded, leave for the host, come back and are decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ROWS, BATCHES, DRAWS, SKEW = 200_000, 400, 2048, 1.1
"""Of the embedding's trace: rows of the table, batches, draws of a batch, and the exponent of Zipf's law."""


@lru_cache(maxsize=1)
def embedding_trace() -> Ints:
    """The rows that each batch draws, of shape (`BATCHES`, `DRAWS`): row k of a table with probability k^-1.1."""
    random = np.random.default_rng(0)
    shares = np.cumsum(np.arange(1, ROWS + 1) ** -SKEW)
    shares /= shares[-1]
    return np.stack([np.searchsorted(shares, random.random(DRAWS)) for _ in range(BATCHES)])


@dataclass(frozen=True)
class Fetches:
    """What a look-ahead of some batches fetches of a trace, one fetch after another in the order of the batches."""

    rows: Ints
    """The row that each fetch brings. Shape (fetches,)."""
    ends: Ints
    """How many fetches there are up to and with each batch. Shape (batches,)."""
    last: Ints
    """The last batch that uses what a fetch brought. Shape (fetches,)."""
    fetch_of: Ints
    """The fetch that brought the row of each draw. Shape (batches, draws)."""

    @property
    def most_kept(self) -> int:
        """Rows that stay after a batch because a later one needs them, at most."""
        first = np.searchsorted(self.ends, np.arange(len(self.rows)), side="right")
        change = np.bincount(first, minlength=len(self.ends) + 1) - np.bincount(self.last, minlength=len(self.ends) + 1)
        return int(np.cumsum(change).max())


def fetched_ahead(trace: Ints, lookahead: int) -> Fetches:
    """What must be fetched if a row stays after batch i while one of the batches i+1 .. i+`lookahead` uses it.

    So a use of a row costs a fetch where the use before it lies more than `lookahead` batches back, or there is none.
    """
    used = np.full(int(trace.max()) + 1, -lookahead - 1, np.int64)  # the last batch that used a row
    current = np.zeros_like(used)  # the fetch that brought it
    rows, ends, last, fetch_of = [], [], np.empty(0, np.int64), []
    count = 0
    for batch, draws in enumerate(trace):
        distinct = np.unique(draws)
        missing = distinct[batch - used[distinct] > lookahead]
        current[missing] = count + np.arange(len(missing))
        count += len(missing)
        used[distinct] = batch
        last = np.concatenate([last, np.empty(len(missing), np.int64)])
        last[current[distinct]] = batch
        rows.append(missing)
        ends.append(count)
        fetch_of.append(current[draws])
    return Fetches(np.concatenate(rows), np.array(ends), last, np.stack(fetch_of))


def beta_order(partitions: int, capacity: int) -> list[tuple[int, ...]]:
    """The contents of a buffer of `capacity` partitions, state after state, until every pair was in it together.

    All but the last slot stay while every other partition passes through the last one; then other partitions replace
    those that stayed, one after another, and these are done with.
    """
    held, outside = list(range(capacity)), list(range(capacity, partitions))
    states = [tuple(held)]
    while outside:
        for place, partition in enumerate(outside):
            held[-1], outside[place] = partition, held[-1]
            states.append(tuple(held))
        replaced = min(capacity - 1, len(outside))
        for slot in range(replaced):
            held[slot] = outside[slot]
            states.append(tuple(held))
        outside = outside[replaced:]
    return states


def pairs_by_state(states: list[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """Every ordered pair of partitions once, in a state that holds both: of these the one with the fewest so far."""
    pairs: list[list[tuple[int, int]]] = [[] for _ in states]
    partitions = max(max(state) for state in states) + 1
    holding = np.array([[partition in state for partition in range(partitions)] for state in states])
    for i in range(partitions):
        for j in range(partitions):
            choices = np.flatnonzero(holding[:, i] & holding[:, j])
            pairs[min(choices, key=lambda state: len(pairs[state]))].append((i, j))
    return pairs
