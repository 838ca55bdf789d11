"""The greenest start: against a search of every minute, with a forecast and with the past weeks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.energy.outlook import Greenest, HoursFrom, NoStart, WaitingJob, greenest
from whorl.analysis.energy.settings import EnergySettings, read_settings
from whorl.errors import InputError

_HOUR = 3600 * 10**9
_NOW = int(datetime(2026, 6, 1, 8, 20, tzinfo=UTC).timestamp()) * 10**9


def _settings(folder: Path, values: list[float], first: int, extra: str = "") -> EnergySettings:
    """Hours of DE from the hour `first` after now on (negative: before)."""
    began = _NOW // _HOUR + first
    rows = [f"{(began + i) * 3600},{g}" for i, g in enumerate(values)]
    (folder / "de.csv").write_text("time,g_per_kwh\n" + "\n".join(rows) + "\n")
    (folder / "energy.toml").write_text(
        f'intensity = {{ file = "de.csv", zone = "DE" }}\nzone = "DE"\npue = 1.5\n{extra}'
    )
    return read_settings(folder / "energy.toml")


def _find(settings: EnergySettings, hours: float = 2, within: float = 24, watts: float = 1000) -> Greenest:
    deadline = _NOW + round(within * _HOUR)
    return greenest(settings, WaitingJob(hours * 3600, watts, _NOW, deadline))


def test_a_forecast_gives_the_hours_with_fewest_grams(tmp_path: Path) -> None:
    values = [400.0] * 30
    values[10] = values[11] = 100.0
    best = _find(_settings(tmp_path, values, 0))
    assert (best.outlook, best.zone, best.weeks) == (HoursFrom.FORECAST, "DEU", None)
    assert best.start == _NOW // _HOUR * _HOUR + 10 * _HOUR
    assert best.g == pytest.approx(2 * 1.5 * 100)
    assert best.now_g == pytest.approx(2 * 1.5 * 400)
    assert best.saved_g == pytest.approx(900)
    # A start before the deadline only, and none is better than now if all hours are equal.
    assert _find(_settings(tmp_path, values, 0), within=8).start == _NOW
    assert _find(_settings(tmp_path, values, 0), within=8).saved_g == 0


def test_no_minute_is_better_than_the_start_that_is_found(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    for _ in range(8):
        settings = _settings(tmp_path, random.integers(10, 900, 12).astype(float).tolist(), 0)
        minutes, within = int(random.integers(1, 300)), int(random.integers(300, 690))
        best = _find(settings, minutes / 60, within / 60, 60_000)  # a kWh in a minute
        lines = [line.split(",") for line in (tmp_path / "de.csv").read_text().splitlines()[1:]]
        grams = np.repeat([float(g) for _, g in lines], 60)[20 : 20 + within]
        sums = 1.5 * np.convolve(grams, np.ones(minutes), "valid")
        assert best.start is not None
        assert best.g == pytest.approx(sums.min())
        assert sums[(best.start - _NOW) // (60 * 10**9)] == pytest.approx(sums.min())


def test_without_a_forecast_the_last_weeks_count(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    noon = np.tile(300 + 200 * np.cos(2 * np.pi * np.arange(168) / 24), 6)  # lowest 12 hours from now on
    settings = _settings(tmp_path, (noon + random.normal(0, 20, len(noon))).tolist(), -len(noon))
    best = _find(settings)
    assert (best.outlook, best.weeks) == (HoursFrom.WEEKS, 6)
    assert best.start is not None
    assert 10 <= (best.start - _NOW) / _HOUR <= 13
    assert best.low_g is not None
    assert best.high_g is not None
    assert best.saved_g is not None
    assert 0 < best.low_g <= best.saved_g <= best.high_g
    assert best.low_g < best.high_g


def test_weeks_that_tell_nothing_promise_no_saving(tmp_path: Path) -> None:
    now = 0
    for seed in range(20):
        values = np.random.default_rng(seed).normal(300, 100, 6 * 168).clip(0)
        best = _find(_settings(tmp_path, values.tolist(), -len(values)))
        now += best.start == _NOW
        if best.reason is not None:
            assert (best.reason, best.saved_g, best.low_g) == (NoStart.NOT_SHOWN, 0, None)
    assert now >= 16  # by chance, some weeks agree: once in twenty


def test_without_hours_every_start_is_equal_and_the_reason_is_given(tmp_path: Path) -> None:
    assert _find(_settings(tmp_path, [1.0], 900)).reason is NoStart.NO_HOURS
    assert _find(_settings(tmp_path, [1.0] * 40, 0, 'method = "market"')).reason is NoStart.MARKET
    assert _find(EnergySettings()).reason is NoStart.NO_ZONE
    nothing = _find(EnergySettings())
    assert (nothing.start, nothing.g, nothing.saved_g) == (None, None, None)


def test_a_job_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the job takes 30 h and the deadline is 24 h away"):
        _find(EnergySettings(), hours=30)
    with pytest.raises(InputError, match="must take more than 0 s"):
        _find(EnergySettings(), hours=0)
