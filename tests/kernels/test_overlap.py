"""Copies beside kernels: the traces against published counts, and the schedules against what no cache would give."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from whorl.kernels.overlap import beta_order, embedding_trace, fetched_ahead, pairs_by_state

# -- traces -----------------------------------------------------------------------------------------------------------


def test_the_trace_of_the_embedding_is_the_published_one() -> None:
    trace = embedding_trace()
    assert sum(len(np.unique(batch)) for batch in trace) == 361_872
    assert len(np.unique(trace)) == 78_896


@pytest.mark.parametrize(
    ("lookahead", "fetched", "most_kept"),
    [(1, 279_533, 234), (10, 182_504, 1_370), (50, 121_067, 5_498), (200, 84_899, 18_486)],
)
def test_a_look_ahead_fetches_as_many_rows_as_published(lookahead: int, fetched: int, most_kept: int) -> None:
    fetches = fetched_ahead(embedding_trace(), lookahead)
    assert len(fetches.rows) == fetched
    assert fetches.most_kept == most_kept
    assert (fetches.rows[fetches.fetch_of] == embedding_trace()).all(), "a draw finds its row"


@pytest.mark.parametrize(("partitions", "capacity", "swaps"), [(8, 4, 9), (16, 4, 42), (32, 8, 78), (64, 8, 308)])
def test_the_order_of_partitions_has_the_published_swaps_and_joins_every_pair_once(
    partitions: int, capacity: int, swaps: int
) -> None:
    states = beta_order(partitions, capacity)
    assert len(states) - 1 == swaps
    assert all(len(set(state)) == capacity for state in states)
    assert all(len(set(later) - set(state)) == 1 for state, later in pairwise(states))
    pairs = pairs_by_state(states)
    joined = [pair for state_pairs in pairs for pair in state_pairs]
    assert sorted(joined) == [(i, j) for i in range(partitions) for j in range(partitions)]
    assert all({i, j} <= set(state) for state, here in zip(states, pairs, strict=True) for i, j in here)
