"""The interval of an energy holds what an external power meter would say: a part of `benchmarks.energy`, as a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from whorl.benchmarks.metered import (
    FOR_EVER,
    Judged,
    MeteredStream,
    compared,
    judged_windows,
    stored,
    streams,
    streams_of_known_load,
    summed,
    trial,
)
from whorl.tests.sizes import count, is_long
from whorl.tests.stores import copied_stores, new_store

DATA = Path(__file__).parents[4] / "shared" / "data" / "power"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """Windows of boards of all kinds; with `--long` many, and up to ten minutes."""
    folder, rng = tmp_path_factory.mktemp("boards"), np.random.default_rng(5)
    drawn = [trial(rng, number, longest_ms=6e5 if is_long() else 3e4) for number in range(48 if is_long() else 12)]
    streams = [board for board in drawn if board.says["source"] != "rows"][: count(4, short=1)]  # slow to import
    boards = [board for board in drawn if board.says["source"] == "rows"] + streams
    store = new_store(folder / "store")
    stored(store, boards, folder)
    return [row for row in compared(store, boards) if row.says["load"] not in FOR_EVER]


def held(rows: list[Judged]) -> float:
    known = [row for row in rows if not np.isnan(row.best_j)]
    return float(np.mean([row.low_j <= row.true_j <= row.high_j for row in known]))


def least(rows: list[Judged]) -> float:
    """What share must hold: 95 %, less three standard errors; windows of one board are not independent."""
    return 0.95 - 3.0 * float(np.sqrt(0.05 * 0.95 / len({row.gpu for row in rows})))


def test_intervals_hold_the_true_energy(judged: list[Judged]) -> None:
    assert held(judged) >= least(judged)
    near = np.mean([abs(row.trapezoid_j - row.true_j) <= 0.05 * row.trapezoid_j for row in judged])
    assert near < 0.75  # where a plain 5 % holds as often, these boards judge nothing


def test_they_hold_for_each_kind_of_polling_and_window(judged: list[Judged]) -> None:
    for group in ("polling", "window", "source", "gaps"):
        for kind in {row.says[group] for row in judged}:
            some = [row for row in judged if row.says[group] == kind]
            assert held(some) >= least(some), (group, kind)


def test_they_are_no_wider_than_needed(judged: list[Judged]) -> None:
    close = [row for row in judged if row.says["polling"] in ("8-20 ms", "50-200 ms") and not np.isnan(row.best_j)]
    half = np.median([(row.high_j - row.low_j) / 2 / row.true_j for row in close])
    assert 0.05 < half < 0.35


def test_the_sum_of_boards_is_known_better_than_each(judged: list[Judged]) -> None:
    sums = summed(judged, 4)
    assert sums["sums"] >= 1
    assert sums["covered_pct"] >= 90
    alone = np.median([(row.high_j - row.low_j) / 2 / row.true_j for row in judged if not np.isnan(row.best_j)])
    assert sums["half_width_pct"][0] < 100 * alone


def real() -> list[MeteredStream]:
    return [*streams(DATA / "metered", {"metered": "NVIDIA RTX A5000"}), *streams_of_known_load(DATA)]


@pytest.mark.long
@pytest.mark.skipif(not DATA.is_dir(), reason="the streams of real GPUs are not beside the clone")
@pytest.mark.parametrize("number", range(3))
def test_windows_of_a_real_gpu_hold_what_its_meter_measured(number: int) -> None:
    with copied_stores():
        windows = [row for named in (True, False) for row in judged_windows(real()[number], with_model=named)]
    assert all(row["low_j"] <= row["true_j"] <= row["high_j"] for row in windows)
    half = [(row["high_j"] - row["low_j"]) / 2 / row["true_j"] for row in windows]
    assert np.median(half) < 0.35
    near = [abs(row["trapezoid_j"] - row["true_j"]) <= 0.05 * row["true_j"] for row in windows]
    assert np.mean(near) < 0.7  # where a plain 5 % holds as often, this stream judges nothing
