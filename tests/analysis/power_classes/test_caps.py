"""The effect of a cap, from other workloads: made curves whose answer is known, and Zeus's sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.power_classes import METHODS, Curve, cap_effect, curves, leave_one_out, predict, sweep
from whorl.benchmarks.power_classes import zeus
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.schema import arrow_rows
from whorl.tests.stores import new_store

ZEUS = Path(__file__).parents[4] / "shared" / "data" / "power"
needs_zeus = pytest.mark.skipif(not ZEUS.is_dir(), reason=f"the files of Zeus are not at {ZEUS}")
SHARES = np.array([0.5, 0.75, 1.0])


def curve(family: str, load: float, setting: str = "s") -> Curve:
    """Under a cap below its load it takes load/cap times as long, and draws the cap."""
    return Curve(family, setting, load, SHARES, np.maximum(1, load / SHARES), np.minimum(1, SHARES / load))


KNOWN = [curve(f"w{load}", load / 100) for load in range(40, 101, 4)]


def test_a_workload_behaves_like_those_with_its_load() -> None:
    found = predict(KNOWN, 0.8, 0.5)
    assert found.time == pytest.approx(0.8 / 0.5, rel=0.05)
    assert found.power == pytest.approx(0.5 / 0.8, rel=0.05)
    assert found.energy == pytest.approx(found.time * found.power)  # type: ignore[operator]
    assert predict(KNOWN, 0.42, 0.5).time == pytest.approx(1.0)
    assert found.nearest[0] == "w80"
    assert found.families == len(KNOWN)
    assert found.time_error_pct is not None
    assert 0 < found.time_error_pct < 8
    assert predict(KNOWN, 0.8, 0.625).time == pytest.approx((1.6 + 0.8 / 0.75) / 2, rel=0.05)  # between two caps


def test_a_workload_is_left_out_with_all_its_settings() -> None:
    odd = [curve("odd", 0.8, str(i)) for i in range(8)]
    odd = [Curve(one.family, one.setting, one.load, SHARES, 3 * one.time, one.power) for one in odd]
    errors = leave_one_out([*KNOWN, *odd], 0.5)
    assert errors["odd"][0] > 50  # its own settings, all alike, would have told the answer
    assert predict([*KNOWN, *odd], 0.8, 0.5).time > 3  # type: ignore[operator]
    assert predict([*KNOWN, *odd], 0.8, 0.5, without="odd").time < 2  # type: ignore[operator]


def test_what_cannot_be_predicted_says_why() -> None:
    low = predict(KNOWN, 0.8, 0.3)
    assert (low.time, low.power, low.time_error_pct) == (None, None, None)
    assert low.reason == "no workload was run under a cap as low as this"
    alone = predict([curve("one", 0.8)], 0.8, 0.5)
    assert alone.time == pytest.approx(1.6)
    assert (alone.time_error_pct, alone.families) == (None, 0)


def test_curves_need_two_caps_and_known_values() -> None:
    rows = [
        ("a", "a1", 300.0, 10.0, 290.0),
        ("a", "a1", 150.0, 20.0, 150.0),
        ("a", "a1", 150.0, 22.0, 148.0),
        ("a", "a2", 300.0, 10.0, 290.0),
        ("b", "b1", 300.0, 10.0, None),
        ("b", "b1", 150.0, 20.0, 149.0),
    ]
    frame = pl.DataFrame(rows, schema=["family", "setting", "cap", "time", "power_w"], orient="row")
    (found,) = curves(frame)
    assert found.family == "a"
    assert found.load == pytest.approx(290 / 300)
    assert found.share.tolist() == [0.5, 1.0]
    assert found.time.tolist() == pytest.approx([2.1, 1.0])


def swept(path: Path, *, clocks: bool = False) -> Store:
    """Five workloads of rising load on one model under three caps, and one that was run under none."""
    store = new_store(path)
    runs: dict[str, list[Any]] = {key: [] for key in ("run_id", "cluster", "workload", "gpu", "power_w", "conditions")}
    times: list[float] = []
    for number, load in enumerate((0.5, 0.6, 0.7, 0.8, 0.9, 0.75)):
        for share in (0.5, 0.75, 1.0) if number < 5 else (1.0,):
            slower = 1 / share if clocks else max(1.0, load / share)
            watts = 300 * load * share if clocks else 300 * min(load, share)
            asked = (
                {"clock": "locked", "locked_clock_mhz": 1500 * share}
                if clocks
                else {"asked_power_limit_w": 300 * share}
            )
            stated = asked if share < 1 or clocks else {"asked_power_limit_w": None}
            row = (f"r{len(times)}", "c", f"w{number}" if number < 5 else "new", "g", watts, stated)
            for key, cell in zip(runs, row, strict=True):
                runs[key].append(cell)
            times.append(100 * slower)
    n = len(times)
    results = {key: runs[key] for key in ("run_id", "cluster", "workload", "gpu")}
    results |= {"figure": ["time"] * n, "unit": ["ms"] * n, "repeat": [0] * n, "value": times}
    gpus = {"cluster": ["c"], "gpu": ["g"], "model": ["V100"], "power_limit_default_mw": [300_000]}
    tables: dict[str, dict[str, Any]] = {"runs": runs, "results": results, "gpus": gpus}
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "made")
    return store


def test_a_power_cap_on_a_workload_of_a_store(tmp_path: Path) -> None:
    found = cap_effect(swept(tmp_path / "s"), "new", 150)
    assert found.time == pytest.approx(0.75 / 0.5, rel=0.1)
    assert found.power == pytest.approx(0.5 / 0.75, rel=0.1)
    assert found.families == 5
    assert "new" not in found.nearest


def test_a_clock_cap_on_a_workload_of_a_store(tmp_path: Path) -> None:
    store = swept(tmp_path / "s", clocks=True)
    assert sweep(store, capped="clock")["cap"].unique().sort().to_list() == [750, 1125, 1500]
    found = cap_effect(store, "new", 750, capped="clock")
    assert found.time == pytest.approx(2.0)
    assert found.power == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("workload", "cap", "reason"),
    [
        ("none", 150, "no run of none has a time, its power and a power limit"),
        ("new", 400, "the cap must be above 0 and at most 300"),
        ("new", 60, "no workload was run under a cap as low as this"),
    ],
)
def test_a_cap_that_cannot_be_judged_says_why(workload: str, cap: float, reason: str, tmp_path: Path) -> None:
    found = cap_effect(swept(tmp_path / "s"), workload, cap)
    assert found.time is None
    assert found.reason is not None
    assert found.reason.startswith(reason)


@needs_zeus
@pytest.mark.parametrize(("model", "highest"), [("v100", 250), ("rtx6000", 260)])
def test_zeus_sweeps_are_predicted_better_than_by_their_mean_curve(model: str, highest: int) -> None:
    known = zeus(model)
    assert len({one.family for one in known}) == 6
    wrong = {}
    for name, method in METHODS.items():
        errors = [list(leave_one_out(known, cap / highest, method).values()) for cap in (100, 150, 200)]
        wrong[name] = np.mean(errors, axis=(0, 1))
    assert (wrong["nearest"] < 0.7 * wrong["mean curve"]).all()
    assert (wrong["nearest"] < wrong["limit rule"]).all()


@needs_zeus
def test_an_imported_sweep_answers_for_another_workload(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    columns = {"network": "workload", "time_per_epoch": "time:s", "average_power": "power:W"}
    columns |= {"power_limit": "power_limit:W", "batch_size": "input_size"}
    import_file(store, ZEUS / "zeus_power_limits_v100.csv.gz", Options(columns=columns, gpu="V100"))
    found = cap_effect(store, "resnet50", 125)
    assert found.reason is None
    assert "resnet50" not in found.nearest
    assert found.time_error_pct is not None
    measured = 1.43  # the median over its settings; predicted from the other networks only
    assert found.time == pytest.approx(measured, rel=found.time_error_pct / 100)
