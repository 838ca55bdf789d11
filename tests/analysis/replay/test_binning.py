"""Groups against every possible grouping, levels and PAL's list against its definition."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whorl.analysis.replay.binning import binned, grouped, outlying

Floats = npt.NDArray[np.float64]


def squares(values: Floats, group: npt.NDArray[np.intp]) -> float:
    return float(sum(((part - part.mean()) ** 2).sum() for part in (values[group == g] for g in set(group.tolist()))))


def least_squares(values: Floats, groups: int) -> float:
    """By trying every way to cut the sorted values."""
    ordered = np.sort(values)
    tried = []
    for cuts in itertools.combinations(range(1, ordered.size), groups - 1):
        label = np.searchsorted(np.array(cuts, dtype=np.intp), np.arange(ordered.size), side="right")
        tried.append(squares(ordered, label))
    return min(tried)


@given(
    values=st.lists(st.integers(-20, 20).map(lambda n: n / 7), min_size=1, max_size=10),
    groups=st.integers(1, 5),
)
def test_no_grouping_is_better(values: list[float], groups: int) -> None:
    array = np.array(values)
    label = grouped(array, groups)
    wanted = min(groups, len(set(values)))
    assert sorted(set(label.tolist())) == list(range(wanted))
    assert squares(array, label) == pytest.approx(least_squares(array, wanted), abs=1e-12)
    in_order = label[np.argsort(array, kind="stable")]
    assert (np.diff(in_order) >= 0).all()
    assert all(label[i] == label[j] for i in range(array.size) for j in range(i) if array[i] == array[j])


def test_many_values_in_many_groups() -> None:
    """The bisection over ends against the plain recurrence over all of them."""
    values = np.sort(np.random.default_rng(5).lognormal(sigma=0.5, size=200))
    sums, square_sums = (np.concatenate(([0.0], np.cumsum(x))) for x in (values, values**2))
    begin, end = np.meshgrid(np.arange(201), np.arange(201), indexing="ij")
    with np.errstate(invalid="ignore", divide="ignore"):
        cost = square_sums[end] - square_sums[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
    cost = np.where(begin < end, cost, np.inf)
    least = cost[0]
    for groups in range(2, 30):
        least = (least[:, None] + cost).min(axis=0)
        assert squares(values, grouped(values, groups)) == pytest.approx(least[-1], rel=1e-6), groups


def test_nothing_and_one_and_all_alike() -> None:
    assert grouped(np.array([]), 2).size == 0
    assert grouped(np.array([1.3]), 2).tolist() == [0]
    alike = binned(np.full(8, 1.07))
    assert alike.values.tolist() == [1.0]
    assert alike.sf.tolist() == [1.0] * 8


def test_an_outlier_gets_a_further_level() -> None:
    """Worked by hand: 62 GPUs at 0.99 and 1.01, one at 2; mean 1.0154, sd 0.126, so the limit is 1.39."""
    scores = np.array([0.99] * 31 + [1.01] * 31 + [2.0])
    assert np.flatnonzero(outlying(scores)).tolist() == [62]
    bins = binned(scores)
    assert bins.level.tolist() == [0] * 31 + [1] * 31 + [2]
    assert bins.values == pytest.approx([0.99 / 1.01, 1.0, 2.0 / 1.01])
    without = binned(scores[:62])
    assert not outlying(scores[:62]).any()
    assert without.values == pytest.approx([0.99, 1.01])  # over their mean, which is the median of two


def test_the_sd_is_that_of_a_sample() -> None:
    """2 is 3.03 sd above the mean by n and 2.96 by n - 1; 2.03 is 3.06 by n - 1."""
    assert np.flatnonzero(outlying(np.array([1.0] * 19 + [2.0, 2.03]))).tolist() == [20]
