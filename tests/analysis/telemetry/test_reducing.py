"""A reduced line has every spike and every gap of the readings that it is made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.telemetry.lines import FEWEST, PER_STRETCH, kept, reduced
from whorl.analysis.telemetry.readings import Series
from whorl.tests.sizes import count


@st.composite
def _series(draw: st.DrawFn) -> Series:
    n = draw(st.integers(0, 300))
    steps = draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    values = draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n))
    gaps = set(draw(st.lists(st.integers(0, 299), max_size=20)))
    ts = np.cumsum(np.array(steps, np.int64)) + draw(st.integers(-100, 10**18))
    return Series(ts, np.array(values, float), np.array([place not in gaps for place in range(max(n - 1, 0))], bool), n)


@settings(max_examples=count(40, short=10))
@given(_series(), st.integers(1, 500))
def test_each_stretch_keeps_its_first_lowest_highest_and_last_reading(series: Series, width: int) -> None:
    places = kept(series.ts, series.value, width)
    stretch = series.ts // width
    assert np.all(np.diff(places) > 0)
    for one in np.unique(stretch):
        every = np.flatnonzero(stretch == one)
        own = places[stretch[places] == one]
        assert len(own) <= PER_STRETCH
        assert {every[0], every[-1]} <= set(own)
        assert series.value[own].min() == series.value[every].min()
        assert series.value[own].max() == series.value[every].max()


@settings(max_examples=count(40, short=10))
@given(_series(), st.integers(1, 500), st.integers(4, 120))
def test_a_line_has_few_points_no_spike_is_lost_and_none_crosses_a_gap(series: Series, width: int, most: int) -> None:
    ts, value = reduced(series, width, most, dot_ns=0)
    assert len(ts) == len(value) <= max(most, FEWEST)
    assert np.all(np.diff(ts) >= 0)
    if not len(series.ts):
        return
    assert (np.nanmin(value), np.nanmax(value)) == (series.value.min(), series.value.max())
    known = ~np.isnan(value)
    gaps = np.concatenate([[0], np.cumsum(~series.near)])
    at = np.searchsorted(series.ts, ts, "right") - 1
    for one, other in zip(np.flatnonzero(known)[:-1], np.flatnonzero(known)[1:], strict=True):
        parted = gaps[at[other]] > gaps[at[one]]
        assert (other - one == 2) == parted, "a line crosses a gap, or is parted where there is none"


@settings(max_examples=count(20, short=5))
@given(_series())
def test_few_readings_stay_as_they_are(series: Series) -> None:
    ts, value = reduced(series, 1, 4000, dot_ns=0)
    known = ~np.isnan(value)
    assert list(dict.fromkeys(zip(ts[known].tolist(), value[known].tolist(), strict=True))) == list(
        zip(series.ts.tolist(), series.value.tolist(), strict=True)
    )


def test_a_reading_between_two_gaps_is_drawn_as_a_dot() -> None:
    series = Series(np.array([0, 1000, 2000], np.int64), np.array([1.0, 9.0, 1.0]), np.array([False, False]), 3)
    ts, value = reduced(series, 1, 100, dot_ns=10)
    dots = [(int(at), float(one)) for at, one in zip(ts, value, strict=True) if not np.isnan(one)]
    assert dots == [(0, 1.0), (10, 1.0), (1000, 9.0), (1010, 9.0), (2000, 1.0), (2010, 1.0)]
    assert np.count_nonzero(np.isnan(value)) == 2
