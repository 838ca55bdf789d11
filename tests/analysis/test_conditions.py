"""Runs of several models, power limits or clocks are not pooled; what is pooled all the same is named."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.analysis import measurements, mixed_conditions, told_apart
from whorl.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """sgemm on two models, one of them at two power limits and once at a locked clock; copy alike everywhere."""
    made = Store.create(tmp_path / "store")
    free, low = {"clock": "free", "asked_power_limit_w": None}, {"clock": "free", "asked_power_limit_w": 250.0}
    locked = {"clock": "locked", "locked_clock_mhz": 1200.0, "asked_power_limit_w": None}
    runs = [
        ("a", "sgemm", "v1", free),
        ("b", "sgemm", "v1", low),
        ("c", "sgemm", "v1", locked),
        ("d", "sgemm", "a1", free),
        ("e", "sgemm", "new", None),
        ("f", "copy", "v1", free | {"suite": "quick"}),
        ("g", "copy", "v1", free | {"suite": "full"}),
    ]
    columns = {
        "run_id": [run[0] for run in runs],
        "cluster": ["c"] * len(runs),
        "workload": [run[1] for run in runs],
        "gpu": [run[2] for run in runs],
        "conditions": [run[3] and json.dumps(run[3]) for run in runs],
    }
    results = {"run_id": columns["run_id"], "figure": ["time"] * 7, "value": [1.0] * 7, "unit": ["ms"] * 7}
    gpus = {"cluster": ["c"] * 3, "gpu": ["v1", "v1", "a1"], "model": [None, "V100", "A100"]}
    made.append({"runs": pa.table(columns), "results": pa.table(results), "gpus": pa.table(gpus)}, "x")
    return made


def test_models_power_limits_and_clocks_part_a_workload(store: Store) -> None:
    found = told_apart(store, measurements(store, run_ids=True)).sort("run_id")
    assert dict(found.select("run_id", "workload").iter_rows()) == {
        "a": "sgemm [V100, power limit not set, clock not locked]",
        "b": "sgemm [V100, 250 W, clock not locked]",
        "c": "sgemm [V100, power limit not set, locked at 1200 MHz]",
        "d": "sgemm [A100, power limit not set, clock not locked]",
        "e": "sgemm [model unknown, power limit not set, clock not locked]",
        "f": "copy",
        "g": "copy",
    }


def test_what_is_told_apart_is_not_said_to_be_pooled(store: Store) -> None:
    pooled = mixed_conditions(store)
    assert [sentence.partition(" on ")[0] for sentence in pooled] == ["copy", "sgemm"]
    (copies,) = mixed_conditions(store, apart=True)
    assert "copy on c: the runs differ in suite (full, quick)" in copies
