"""How pieces of energy add up to a figure with an interval."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from whorl.analysis.energy.attribute import PIECES
from whorl.analysis.energy.boards import BoardErrors
from whorl.analysis.energy.books import add_up
from whorl.store.power_sensors import SensorError

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC).replace(tzinfo=None)
EXACT = SensorError.stated(0, 0)


def piece(gpu: str = "GPU-a", at_s: float = 0, s: float = 100, watts: float = 200, **other: Any) -> dict[str, Any]:
    share = other.get("share", 1.0)
    energy = share * watts * s
    row = dict.fromkeys(PIECES) | {
        "cluster": "c", "gpu": gpu, "node": "n1", "kind": "job", "allocation": "1", "share": share,
        "began": NOON + timedelta(seconds=at_s), "ended": NOON + timedelta(seconds=at_s + s),
        "energy_j": energy, "idle_j": share * 50 * s, "below_j": 0.0, "above_j": 0.0, "variance_j2": 0.0,
        "sensed_j": energy, "sensed_s": share * s, "measured_s": share * s, "method": "power", "reason": None,
    }  # fmt: skip
    return row | other


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=PIECES)


def one(pieces: pl.DataFrame, sensor: SensorError = EXACT) -> dict[str, Any]:
    return add_up(pieces, ["allocation"], errors=BoardErrors.alike(sensor)).row(0, named=True)


def test_energy_and_bounds_add_linearly_and_variances_as_variances() -> None:
    found = one(frame(
        piece(below_j=10.0, above_j=30.0, variance_j2=9.0),
        piece(at_s=100, below_j=5.0, above_j=5.0, variance_j2=16.0),
    ))  # fmt: skip
    assert found["energy_j"] == 40_000
    assert found["low_j"] == pytest.approx(40_000 - 15 - 1.959964 * 5)
    assert found["high_j"] == pytest.approx(40_000 + 35 + 1.959964 * 5)
    assert found["duration_s"] == 200
    assert found["gpu_s"] == 200
    assert found["idle_j"] == 10_000


def test_times_that_overlap_count_once_in_the_duration_and_twice_in_gpu_seconds() -> None:
    found = one(frame(piece("GPU-a"), piece("GPU-b", at_s=50), piece("GPU-b", at_s=300, share=0.5)))
    assert found["duration_s"] == 250
    assert found["gpu_s"] == 250
    assert found["gpus"] == 2


def test_the_error_of_independent_boards_adds_in_quadrature() -> None:
    stated = SensorError.stated(5, 0)

    def half(gpus: int) -> float:
        found = one(frame(*(piece(f"GPU-{i}") for i in range(gpus))), stated)
        return float(found["high_j"] - found["energy_j"])

    assert half(1) == pytest.approx(0.05 * 20_000)
    assert half(4) == pytest.approx(half(1) * 2)
    same = one(frame(piece(), piece(at_s=100)), stated)  # one board twice: its error is the same in both
    assert same["high_j"] - same["energy_j"] == pytest.approx(2 * half(1))


def test_a_figure_is_refused_where_half_of_its_time_has_a_reason() -> None:
    bad = piece(at_s=100, s=101, reason="sensor stuck", method=None, measured_s=0.0, below_j=1e3, above_j=1e4)
    found = one(frame(piece(), bad))
    assert (found["energy_j"], found["low_j"], found["high_j"], found["idle_j"]) == (None, None, None, None)
    assert found["reason"] == "sensor stuck"
    assert found["known_j"] == 20_000
    bad["ended"] = bad["began"] + timedelta(seconds=50)
    found = one(frame(piece(), bad))
    assert found["reason"] is None
    assert found["high_j"] >= found["energy_j"] + 1e4


def test_a_piece_that_nothing_bounds_makes_no_silent_zero() -> None:
    blind = piece(at_s=100, s=1, energy_j=None, idle_j=None, reason="no telemetry", method=None)
    found = one(frame(piece(), blind))
    assert found["energy_j"] is None
    assert found["reason"] == "no telemetry"
    assert found["known_j"] == 20_000


def test_the_method_is_the_one_that_most_of_the_time_has() -> None:
    assert one(frame(piece(), piece(at_s=100, s=101, method="counter")))["method"] == "counter"
    assert one(frame(piece(), piece(at_s=100, s=99, method="counter")))["method"] == "power"


def test_all_pieces_in_one_figure_and_rows_without_an_allocation() -> None:
    pieces = frame(piece(), piece(at_s=100, kind="idle", allocation=None, watts=50))
    assert add_up(pieces, [])["energy_j"].to_list() == [25_000]
    found = add_up(pieces, ["kind", "allocation"], also=["share"])
    assert found.select("kind", "allocation", "energy_j", "duration_s").rows() == [
        ("idle", None, 5_000, 100), ("job", "1", 20_000, 100),
    ]  # fmt: skip


def test_the_same_pieces_give_the_same_last_digit_each_time() -> None:
    pieces = frame(*(piece(f"GPU-{n % 500}", watts=100 + math.sqrt(n)) for n in range(3_000)))
    (only,) = {add_up(pieces, ["kind"]).select("energy_j", "idle_j", "low_j", "high_j").row(0) for _ in range(20)}
    assert only[0] == pytest.approx(sum(100 * (100 + math.sqrt(n)) for n in range(3_000)))
