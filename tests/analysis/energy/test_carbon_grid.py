"""Grams of a kWh over time, against a plain search through the settings at each time."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.carbon import canonical, grams_per_kwh, shipped_table
from whorl.analysis.energy.grid import rates
from whorl.analysis.energy.settings import (
    ALWAYS,
    NEVER,
    Dated,
    EnergySettings,
    HoursFile,
    Method,
    StatedFactor,
    read_settings,
)
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
            by = Method.MARKET if zone is None else Method.LOCATION
            factors.append(StatedFactor(grams, *span, source="stated", year=2025, method=by, zone=zone))
    of_hour = {(zone, hour): 100.0 + hour for zone in _ZONES for hour in range(_LAST) if random.random() < 0.5}
    path = tmp_path / "hours.csv"
    rows = [
        f"{zone},{(_FIRST + hour) * 3600},{of_hour.get((zone, hour), '')}" for zone in _ZONES for hour in range(_LAST)
    ]
    path.write_text("zone,time,g_per_kwh\n" + "\n".join(rows) + "\n")
    settings = EnergySettings(method=method, zones=zones, factors=tuple(factors), hours=(HoursFile(path),))

    def stated(at: int, by: Method, zone: str | None, cluster: str) -> float | None:
        holding = [entry for entry in factors if entry.method is by and entry.zone == zone]
        holding = [entry for entry in holding if entry.began_ns <= at < entry.ended_ns]
        for name in (cluster, None):
            for entry in holding:
                if entry.cluster == name:
                    return float(entry.value)
        return None

    def plain(at: int, hour: int, cluster: str) -> float | None:
        if method is Method.MARKET:
            return stated(at, method, None, cluster)
        holding = [
            entry for entry in zones if entry.began_ns <= at < entry.ended_ns and entry.cluster in (cluster, None)
        ]
        here = next((str(entry.value) for name in (cluster, None) for entry in holding if entry.cluster == name), None)
        if here is None:
            return None
        if (here, hour) in of_hour:
            return of_hour[here, hour]
        g_stated = stated(at, method, here, cluster)
        table = shipped_table().get(canonical(here))
        return g_stated if g_stated is not None or table is None else table.g_per_kwh

    steps = rates(settings, _ns(-1), _ns(_LAST + 1), ["alpha"])
    for cluster in ("alpha", "beta"):  # beta is a cluster of which the settings say nothing of its own
        cluster_steps = steps.filter(pl.col("cluster").eq_missing(None if cluster == "beta" else cluster)).to_dicts()
        assert all(row["from_ns"] < after["from_ns"] for row, after in pairwise(cluster_steps))
        for hour in range(-1, _LAST + 1):
            for at in (_ns(hour), _ns(hour) + _HOUR - 1):
                row = [row for row in cluster_steps if row["from_ns"] <= at][-1]
                assert row["g_per_kwh"] == plain(at, hour, cluster), (cluster, hour)
                assert (row["reason"] is None) == (row["g_per_kwh"] is not None)
            if hour % 4 == 0:
                ahead = grams_per_kwh(settings, cluster, _ns(hour) + _HOUR // 4, ahead_s=3600)
                ends = plain(_ns(hour), hour, cluster), plain(_ns(hour + 1), hour + 1, cluster)
                mean = None if ends[0] is None or ends[1] is None else 0.75 * ends[0] + 0.25 * ends[1]
                assert ahead.g_per_kwh == (None if mean is None else pytest.approx(mean))


def test_a_file_without_zones_is_of_the_only_zone_of_the_settings(tmp_path: Path) -> None:
    """As docs/energy.md shows it; where there are two zones, nobody can tell which one it is."""
    (tmp_path / "hours.csv").write_text("time,g_per_kwh\n2026-01-01T00:00Z,412\n2026-01-01T01:00Z,405\n")
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nintensity = "hours.csv"\n')
    began = 1_767_225_600 * 10**9
    assert rates(read_settings(settings), began, began + 2 * _HOUR, ["alpha"])["g_per_kwh"][:2].to_list() == [412, 405]
    settings.write_text('intensity = "hours.csv"\n[[zone]]\nvalue = "DE"\ncluster = "alpha"\n[[zone]]\nvalue = "FR"\n')
    with pytest.raises(InputError, match=r'no column of zones: .* \[\[intensity\]\] with file = "hours.csv" and zone'):
        rates(read_settings(settings), began, began + _HOUR, ["alpha"])


def test_a_node_without_polars_knows_what_a_kwh_emits(tmp_path: Path) -> None:
    (tmp_path / "energy.toml").write_text('zone = "DE"\npue = 1.5\n')
    program = """if True:
        import sys
        sys.modules["polars"] = sys.modules["scipy"] = None
        from pathlib import Path
        from whorl.analysis.energy.carbon import grams_per_kwh
        from whorl.analysis.energy.settings import find_settings
        now = grams_per_kwh(find_settings(Path(sys.argv[1])), "alpha", 1_767_225_600 * 10**9, ahead_s=3600)
        print(now.g_per_kwh, now.zone, now.basis, now.year, now.pue)
    """
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout == "344.14 DEU table 2024 1.5\n"
