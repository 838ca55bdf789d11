"""Curves of workloads under power limits: by hand, and of Zeus's sweeps in a store."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.power_classes import curves, sweep
from whorl.store.importing import Options, import_file
from whorl.tests.stores import new_store

ZEUS = Path(__file__).parents[4] / "shared" / "data" / "power"


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
    (curve,) = curves(frame)
    assert curve.family == "a"
    assert curve.load == pytest.approx(290 / 300)
    assert curve.share.tolist() == [0.5, 1.0]
    assert curve.time.tolist() == pytest.approx([2.1, 1.0])


@pytest.mark.skipif(not ZEUS.is_dir(), reason=f"the files of Zeus are not at {ZEUS}")
def test_an_imported_sweep_has_the_curves_of_its_file(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    columns = {"network": "workload", "time_per_epoch": "time:s", "average_power": "power:W"}
    columns |= {"power_limit": "power_limit:W", "batch_size": "input_size"}
    path = ZEUS / "zeus_power_limits_v100.csv.gz"
    import_file(store, path, Options(columns=columns, gpu="V100"))
    names = {"network": "family", "batch_size": "setting", "power_limit": "cap", "time_per_epoch": "time"}
    expected = curves(pl.read_csv(path).rename({**names, "average_power": "power_w"}))
    stored = curves(sweep(store))
    assert len(stored) == len(expected) > 30
    loads, expected_loads = (sorted((curve.family, curve.load) for curve in table) for table in (stored, expected))
    assert [name for name, _ in loads] == [name for name, _ in expected_loads]
    assert [load for _, load in loads] == pytest.approx([load for _, load in expected_loads])
    assert sum(curve.time[0] for curve in stored) == pytest.approx(sum(curve.time[0] for curve in expected))
