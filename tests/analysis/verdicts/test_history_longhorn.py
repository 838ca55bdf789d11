"""The history of 392 real GPUs, with the noise of dates that are not judged."""

from __future__ import annotations

import numpy as np
import polars as pl

from whorl.analysis.runs.sittings import Sittings, sittings
from whorl.analysis.verdicts.changes import ALARM, search
from whorl.analysis.verdicts.levels import RELEVANT, Noise, estimate
from whorl.tests.analysis.longhorn import needs_longhorn, runs


def _newest(of: Sittings, later: np.ndarray, planted: float) -> Sittings:
    """A series for each of these sittings: it, with `planted` added to it, and all before it."""
    first = of.first[of.series[later]]
    sizes = later - first + 1
    places = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, later, strict=True)])
    some = of.take(places, np.repeat(np.arange(len(later)), sizes), len(later))
    added = np.zeros(len(some))
    added[some.first + some.per_series - 1] = -planted
    return some.less(added)


def _alarms(of: Sittings, noise: Noise, later: np.ndarray, planted: float) -> int:
    some = _newest(of, later, planted)
    base = some.warmth[some.first][some.series]
    some = some.less(noise.a_kelvin * (some.warmth - base))
    newest = search(some, noise, some.first, some.per_series)["newest"]
    return int(((newest["p"] <= ALARM) & (newest["effect"] >= RELEVANT)).sum())


@needs_longhorn
def test_two_per_cent_against_earlier_sittings_on_dates_that_are_held_back() -> None:
    frame = runs("sgemm").drop_nulls("began").sort("began")
    series = frame["gpu"].rank("dense").cast(pl.Int64).to_numpy() - 1
    at = frame["began"].dt.epoch("s").to_numpy() / 86_400
    value, warmth = np.log(frame["value"].to_numpy()), frame["temperature_c"].to_numpy()
    of, _ = sittings(series, at, value, warmth=warmth)
    half = np.quantile(of.at, 0.5)
    false = found = 0
    for known in (at < half, at >= half):
        noise = estimate(*sittings(series[known], at[known], value[known], of.count, warmth[known]))
        assert noise is not None
        later = np.flatnonzero((of.place >= 1) & ((of.at >= half) == (at[known].max() < half)))
        false += _alarms(of, noise, later, 0.0)
        found += _alarms(of, noise, later, 0.02)
    looks = int((of.place >= 1).sum())
    assert looks == 1208
    assert false <= 0.002 * looks
    assert found >= 0.95 * looks
