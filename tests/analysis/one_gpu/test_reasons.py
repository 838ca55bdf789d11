"""Why a clock had its value over time: counters, readings, pruned minutes, resets and gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from whorl.analysis.one_gpu.happened import Held, Reasons, reasons
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import reason_bit

BEGAN = 1_788_220_800_000_000_000
SECOND = 10**9
DAY = 86_400 * SECOND


def readings(store: Store, ts: np.ndarray[Any, Any], **columns: Any) -> None:
    rows = {"ts": ts, "cluster": ["c"] * len(ts), "gpu": ["g"] * len(ts)}
    store.append({"telemetry": arrow_rows("telemetry", rows | columns)}, f"readings-{ts[0]}")


def asked(store: Store, *between: int | None) -> tuple[Reasons, dict[str, Held]]:
    clock_reasons = reasons(store, "c", ["g"], *between)
    assert clock_reasons is not None
    return clock_reasons, {span.reason.name: span for span in clock_reasons.held}


def every_second(seconds: int, began: int = BEGAN) -> np.ndarray[Any, Any]:
    return began + SECOND * np.arange(seconds)


def test_a_counter_tells_the_share_of_the_time(store: Store) -> None:
    """Held down for a quarter of each second of the second half of an hour."""
    held = np.maximum(np.arange(3600) - 1800, 0) * SECOND // 4
    readings(store, every_second(3600), power_violation_ns=held, clock_event_reasons=[reason_bit("power_cap")] * 3600)
    clock_reasons, by_name = asked(store)
    power = by_name["power_cap"]
    assert power.counted
    assert power.whole == pytest.approx(0.125, abs=0.001)
    assert np.allclose(power.share[:58], 0, atol=1e-6)
    assert np.allclose(power.share[-58:], 0.25, atol=1e-3)
    assert set(by_name) == {"power_cap"}
    assert clock_reasons.n.sum() == clock_reasons.readings == 3600
    assert np.allclose(clock_reasons.covered, 1.0, atol=0.05)
    assert set(clock_reasons.stretch.tolist()) == {0}


def test_without_a_counter_the_readings_tell_it(store: Store) -> None:
    mask = np.where(
        np.arange(1200) < 600,
        reason_bit("thermal_software") | reason_bit("hw_slowdown"),
        reason_bit("idle"),
    )
    readings(store, every_second(1200), clock_event_reasons=mask)
    _, by_name = asked(store)
    assert set(by_name) == {"thermal_software", "hw_slowdown"}, "that nothing runs holds no clock down"
    heat = by_name["thermal_software"]
    assert not heat.counted
    assert heat.whole == pytest.approx(0.5)
    assert (heat.share[:59] == 1).all()
    assert (heat.share[61:] == 0).all()


def test_what_nobody_read_is_a_gap_and_not_a_zero(store: Store) -> None:
    readings(store, every_second(600), clock_event_reasons=[reason_bit("power_brake")] * 600)
    readings(store, every_second(600, BEGAN + DAY), clock_event_reasons=[None] * 600)
    clock_reasons, by_name = asked(store)
    assert sorted(set(clock_reasons.stretch.tolist())) == [0, 1]
    last, first = (
        int(np.flatnonzero(clock_reasons.stretch == 0)[-1]),
        int(np.flatnonzero(clock_reasons.stretch == 1)[0]),
    )
    assert (clock_reasons.began[first] - clock_reasons.ended[last]).total_seconds() == pytest.approx(86_400 - 599)
    brake = by_name["power_brake"].share
    assert (brake[clock_reasons.stretch == 0] == 1).all()
    assert np.isnan(brake[clock_reasons.stretch == 1]).all()
    assert by_name["power_brake"].whole == 1


def test_a_counter_that_is_read_less_often_and_was_reset(store: Store) -> None:
    held: list[int | None] = [None] * 1200
    held[::10] = [SECOND * tick // 2 for tick in range(0, 600, 10)] + [SECOND * tick // 2 for tick in range(0, 600, 10)]
    readings(store, every_second(1200), hardware_thermal_ns=held)
    _, by_name = asked(store)
    assert by_name["thermal_hardware"].whole == pytest.approx(0.5, abs=0.005)


def test_pruned_minutes_count_as_what_they_replaced(store: Store) -> None:
    """An hour is held down for a tenth of the time; in one second of each minute it is hot."""
    held, hot = (
        SECOND // 10 * np.arange(3600),
        np.where(np.arange(3600) % 60 == 7, reason_bit("thermal_software"), 0),
    )
    readings(store, every_second(3600), power_violation_ns=held, clock_event_reasons=hot)
    store.prune("1m", offline=True, now=BEGAN + 2 * DAY)
    readings(store, every_second(600, BEGAN + 3600 * SECOND), clock_event_reasons=[0] * 600)
    clock_reasons, by_name = asked(store)
    assert (clock_reasons.minutes, clock_reasons.readings) == (60, 4200)
    assert by_name["power_cap"].whole == pytest.approx(0.1, abs=0.01)
    assert by_name["thermal_software"].whole == pytest.approx(3600 / 4200), "at most: any second counts for its minute"
