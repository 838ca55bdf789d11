"""Grams of a kWh over time, against a plain search through the settings at each time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.energy.carbon.dated import ALWAYS, NEVER, Dated
from whorl.analysis.energy.carbon.factors import canonical, shipped
from whorl.analysis.energy.carbon.grid import Grid
from whorl.analysis.energy.carbon.settings import Factor, HoursFile, Method, Settings, read_settings
from whorl.errors import InputError
from whorl.tests.sizes import count

_HOUR = 3600 * 10**9
_FIRST = 490_000  # hours since 1970
_LAST = 12  # hours that are looked at
_ZONES = ("DE", "FR", "X-1")


def _ns(hour: int) -> int:
    return (_FIRST + hour) * _HOUR


def _spans(random: np.random.Generator, cluster: str | None) -> list[tuple[int, int, str | None]]:
    """Spans that do not overlap, some of them without an end or a begin."""
    edges = np.sort(random.choice(_LAST + 1, random.integers(2, 5), replace=False)).tolist()
    spans = [(_ns(a), _ns(b), cluster) for a, b in pairwise(edges) if random.random() < 0.6]
    if spans and random.random() < 0.4:
        spans[0] = (ALWAYS, spans[0][1], cluster)
    if spans and random.random() < 0.4:
        spans[-1] = (spans[-1][0], NEVER, cluster)
    return spans


@pytest.mark.parametrize("seed", range(count(20, short=5)))
def test_the_grid_says_at_each_hour_what_the_settings_say(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    places = [span for name in (None, "alpha") for span in _spans(random, name)]
    zones = tuple(Dated(str(random.choice(_ZONES)), *span) for span in places)
    method = Method.MARKET if random.random() < 0.2 else Method.LOCATION
    factors = []
    for zone in (*_ZONES, None):
        for span in (span for name in (None, "alpha") for span in _spans(random, name)):
            grams = float(random.integers(1, 6))
            how = Method.MARKET if zone is None else Method.LOCATION
            factors.append(Factor(grams, "stated", 2025, how, zone, *span))
    known = {(zone, hour): 100.0 + hour for zone in _ZONES for hour in range(_LAST) if random.random() < 0.5}
    path = tmp_path / "hours.csv"
    rows = [
        f"{zone},{(_FIRST + hour) * 3600},{known.get((zone, hour), '')}" for zone in _ZONES for hour in range(_LAST)
    ]
    path.write_text("zone,time,g_per_kwh\n" + "\n".join(rows) + "\n")
    made = Grid(Settings(method=method, zones=zones, factors=tuple(factors), hours=(HoursFile(path),)))

    def stated(at: int, how: Method, zone: str | None, cluster: str) -> float | None:
        holding = [one for one in factors if one.method is how and one.zone == zone and one.began <= at < one.ended]
        for name in (cluster, None):
            for one in holding:
                if one.cluster == name:
                    return one.g_per_kwh
        return None

    def plain(at: int, hour: int, cluster: str) -> float | None:
        if method is Method.MARKET:
            return stated(at, method, None, cluster)
        holding = [one for one in zones if one.began <= at < one.ended and one.cluster in (cluster, None)]
        here = next((str(one.value) for name in (cluster, None) for one in holding if one.cluster == name), None)
        if here is None:
            return None
        if (here, hour) in known:
            return known[here, hour]
        own = stated(at, method, here, cluster)
        table = shipped(here)
        return own if own is not None or table is None else table.g_per_kwh

    for cluster in ("alpha", "beta"):
        steps = made.carbon(cluster)
        assert (steps.starts[1:] > steps.starts[:-1]).all()
        for hour in range(-1, _LAST + 1):
            for at in (_ns(hour), _ns(hour) + _HOUR - 1):
                (value,) = steps.at(np.array([at]))
                (code,) = steps.code_at(np.array([at]))
                assert (None if np.isnan(value) else value) == plain(at, hour, cluster), (cluster, hour)
                assert (code < 0) == bool(np.isnan(value))
                here = made.zone_at(cluster, np.array([at]))[0]
                if code >= 0 and method is Method.LOCATION:
                    assert made.sources[code].zone == canonical(str(here))


def test_a_file_without_zones_is_of_the_only_zone_of_the_settings(tmp_path: Path) -> None:
    """As docs/carbon.md shows it; where there are two zones, nobody can tell which one it is."""
    (tmp_path / "hours.csv").write_text("time,g_per_kwh\n2026-01-01T00:00Z,412\n2026-01-01T01:00Z,405\n")
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nintensity = "hours.csv"\n')
    steps = Grid(read_settings(settings)).of_zone("DE", "alpha")
    assert steps.at(np.array([1_767_225_600 * 10**9 + _HOUR])).tolist() == [405.0]
    settings.write_text('intensity = "hours.csv"\n[[zone]]\nvalue = "DE"\ncluster = "alpha"\n[[zone]]\nvalue = "FR"\n')
    with pytest.raises(InputError, match=r'no column of zones: .* \[\[intensity\]\] with file = "hours.csv" and zone'):
        Grid(read_settings(settings)).of_zone("DE", "alpha")
