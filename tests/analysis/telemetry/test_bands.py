"""Bands over many GPUs are the quantiles of their means, with the lowest and highest reading of any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.telemetry.bands import LEVELS, SAMPLE, bands, sample
from whorl.analysis.telemetry.readings import Key
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import reason_bit

S = 1_000_000_000
BEGAN = 1_790_000_040 * S
GPUS, SECONDS = 40, 600
Values = NDArray[np.int64]
KEYS: tuple[Key, ...] = tuple(("c", f"GPU-{number:02d}") for number in range(GPUS))


@pytest.fixture
def fleet(store: Store) -> tuple[Store, Values]:
    """Forty GPUs at 1 Hz; one draws far less, one has a spike of one reading, one was not read for two minutes."""
    random = np.random.default_rng(1)
    power = 300_000 + random.integers(-5_000, 5_000, (GPUS, SECONDS))
    power[7] -= 80_000
    power[11, 333] = 699_000
    rows: dict[str, Any] = {
        "ts": np.tile(BEGAN + S * np.arange(SECONDS), GPUS),
        "cluster": ["c"] * power.size,
        "gpu": np.repeat([gpu for _, gpu in KEYS], SECONDS),
        "power_mw": power.ravel(),
        "energy_mj": np.cumsum(power, axis=1).ravel(),
        "clock_event_reasons": np.where(np.repeat(np.arange(GPUS), SECONDS) < 10, reason_bit("power_cap"), 0),
    }
    visible = ~((rows["gpu"] == "GPU-20") & (rows["ts"] >= BEGAN + 240 * S) & (rows["ts"] < BEGAN + 360 * S))
    columns = {name: np.asarray(values)[visible] for name, values in rows.items()}
    store.append({"telemetry": arrow_rows("telemetry", columns)}, "fleet")
    return store, power


def test_a_band_is_the_quantiles_of_means_and_the_extremes_of_readings(fleet: tuple[Store, Values]) -> None:
    store, power = fleet
    drawn = bands(store, KEYS, ["power_mw"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    (band,) = drawn.bands
    assert (drawn.asked, drawn.taken, drawn.seen, drawn.readings) == (GPUS, GPUS, GPUS, power.size - 120)
    at = 100  # a stretch in which all GPUs were read
    began = int(drawn.ts[at] - drawn.width_ns // 2)
    seconds_of_step = [second for second in range(SECONDS) if began <= BEGAN + second * S < began + drawn.width_ns]
    assert band.levels[:, at] == pytest.approx(np.quantile(power[:, seconds_of_step].mean(axis=1) / 1000, LEVELS))
    assert (band.low[at], band.high[at]) == (
        power[:, seconds_of_step].min() / 1000,
        power[:, seconds_of_step].max() / 1000,
    )
    assert np.nanmax(band.high) == 699.0
    assert set(band.gpus) == {GPUS, GPUS - 1}
    assert [(key[1], round(apart)) for key, apart in band.far] == [("GPU-07", -80)]


def test_reasons_are_shares_of_the_gpus(fleet: tuple[Store, Values]) -> None:
    store, _ = fleet
    drawn = bands(store, KEYS, ["clock_event_reasons"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    (share,) = drawn.shares
    assert share.reason == "power_cap"
    assert share.percent[5] == pytest.approx(100 * 10 / GPUS)


def test_pruned_minutes_are_in_a_band_with_their_extremes(fleet: tuple[Store, Values]) -> None:
    store, power = fleet
    store.prune("1m", offline=True, now=BEGAN + SECONDS * S)
    drawn = bands(store, KEYS, ["power_mw"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    (band,) = drawn.bands
    assert np.nanmax(band.high) == 699.0
    assert drawn.readings == power.size - 120
    measured = ~np.isnan(band.levels[2])
    assert band.levels[2][measured] == pytest.approx(300.0, rel=0.02)


def test_too_many_readings_are_answered_from_fewer_gpus(
    fleet: tuple[Store, Values], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = fleet
    monkeypatch.setattr("whorl.analysis.telemetry.bands._ROWS", 20 * SECONDS)
    drawn = bands(store, KEYS, ["power_mw"], BEGAN, BEGAN + SECONDS * S, asked=GPUS)
    assert drawn.taken == 20
    assert 15 < drawn.off_points < 20, "196 * sqrt(0.25 / 20 * 20 / 39)"


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    keys: tuple[Key, ...] = tuple(("c", f"{number}") for number in range(27_648))
    chosen_keys = sample(keys)
    assert len(set(chosen_keys)) == SAMPLE
    assert chosen_keys == sample(keys)
    assert np.diff([int(gpu) for _, gpu in chosen_keys]) == pytest.approx(108, abs=1)
    assert sample(keys[:10]) == keys[:10]
