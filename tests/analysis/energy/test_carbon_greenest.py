"""The greenest start: against a search of every minute, with a forecast and with the past weeks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.energy.carbon.dated import Steps
from whorl.analysis.energy.carbon.greenest import Greenest, NoStart, Outlook, _best, greenest
from whorl.analysis.energy.carbon.settings import Settings, read_settings
from whorl.errors import InputError

_HOUR = 3600 * 10**9
_NOW = int(datetime(2026, 6, 1, 8, 20, tzinfo=UTC).timestamp()) * 10**9


def _settings(folder: Path, values: list[float], first: int, more: str = "") -> Settings:
    """Hours of DE from the hour `first` after now on (negative: before)."""
    began = _NOW // _HOUR + first
    rows = [f"{(began + i) * 3600},{g}" for i, g in enumerate(values)]
    (folder / "de.csv").write_text("time,g_per_kwh\n" + "\n".join(rows) + "\n")
    (folder / "energy.toml").write_text(
        f'intensity = {{ file = "de.csv", zone = "DE" }}\nzone = "DE"\npue = 1.5\n{more}'
    )
    return read_settings(folder / "energy.toml")


def _find(settings: Settings, hours: float = 2, within: float = 24, watts: float = 1000) -> Greenest:
    deadline = _NOW + round(within * _HOUR)
    return greenest(settings, duration_s=hours * 3600, watts=watts, now=_NOW, deadline=deadline)


def test_a_forecast_gives_the_hours_with_fewest_grams(tmp_path: Path) -> None:
    values = [400.0] * 30
    values[10] = values[11] = 100.0
    found = _find(_settings(tmp_path, values, 0))
    assert (found.outlook, found.zone, found.weeks) == (Outlook.FORECAST, "DEU", None)
    assert found.start == _NOW // _HOUR * _HOUR + 10 * _HOUR
    assert found.g == pytest.approx(2 * 1.5 * 100)
    assert found.now_g == pytest.approx(2 * 1.5 * 400)
    assert found.saved_g == pytest.approx(900)
    # A start before the deadline only, and none is better than now if all hours are equal.
    assert _find(_settings(tmp_path, values, 0), within=8).start == _NOW
    assert _find(_settings(tmp_path, values, 0), within=8).saved_g == 0


def test_no_minute_is_better_than_the_start_that_is_found() -> None:
    random = np.random.default_rng(4)
    for _ in range(30):
        edges = np.unique(random.integers(0, 600, 12)).astype(np.int64)
        steps = Steps.of(edges[:-1], edges[1:], random.integers(10, 900, len(edges) - 1).astype(float), 0)
        length = int(random.integers(1, (edges[-1] - edges[0]) // 2 + 1))
        second = 10**9
        scaled = Steps(np.where(steps.starts > 0, steps.starts * second, steps.starts), steps.values, steps.codes)
        now, deadline = int(edges[0]), int(edges[-1])
        start, least, _ = _best(scaled, now * second, deadline * second, length * second)
        grams = steps.at(np.arange(now, deadline))
        every = np.convolve(grams, np.ones(length), "valid")
        assert least == pytest.approx(every.min())
        assert start % second == 0
        assert every[start // second - now] == pytest.approx(every.min())


def test_without_a_forecast_the_last_weeks_count(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    noon = np.tile(300 + 200 * np.cos(2 * np.pi * np.arange(168) / 24), 6)  # lowest 12 hours from now on
    settings = _settings(tmp_path, (noon + random.normal(0, 20, len(noon))).tolist(), -len(noon))
    found = _find(settings)
    assert (found.outlook, found.weeks) == (Outlook.WEEKS, 6)
    assert found.start is not None
    assert 10 <= (found.start - _NOW) / _HOUR <= 13
    assert found.low_g is not None
    assert found.high_g is not None
    assert found.saved_g is not None
    assert 0 < found.low_g <= found.saved_g <= found.high_g
    assert found.low_g < found.high_g


def test_weeks_that_tell_nothing_promise_no_saving(tmp_path: Path) -> None:
    now = 0
    for seed in range(20):
        values = np.random.default_rng(seed).normal(300, 100, 6 * 168).clip(0)
        found = _find(_settings(tmp_path, values.tolist(), -len(values)))
        now += found.start == _NOW
        if found.reason is not None:
            assert (found.reason, found.saved_g, found.low_g) == (NoStart.NOT_SHOWN, 0, None)
    assert now >= 16  # by chance, some weeks agree: once in twenty


def test_without_hours_every_start_is_equal_and_the_reason_is_given(tmp_path: Path) -> None:
    assert _find(_settings(tmp_path, [1.0], 900)).reason is NoStart.NO_HOURS
    assert _find(_settings(tmp_path, [1.0] * 40, 0, 'method = "market"')).reason is NoStart.MARKET
    assert _find(Settings()).reason is NoStart.NO_ZONE
    nothing = _find(Settings())
    assert (nothing.start, nothing.g, nothing.saved_g) == (None, None, None)


def test_a_job_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the job takes 30 h and the deadline is 24 h away"):
        _find(Settings(), hours=30)
    with pytest.raises(InputError, match="must take more than 0 s"):
        _find(Settings(), hours=0)
