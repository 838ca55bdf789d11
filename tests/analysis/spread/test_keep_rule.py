"""The keep rule of the probes, on columns whose repeatability and own share are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.analysis.spread.repeats import Column, keep_rule
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.sizes import count
from whorl.tests.stores import new_store

PROBES = ("first", "alike", "half", "noise")
DAY_NS = 86_400_000_000_000


def stored(path: Path, gpus: int, sittings: int, seed: int, driver: str = "550.54") -> Store:
    """A store of four probes. Of the level of a GPU, 1 % wide, `alike` has all and `half` half of the variance from
    `first`; `noise` has none. A sitting is 0.2 % off that."""
    random = np.random.default_rng(seed)
    first, second = random.normal(0, 0.01, (2, gpus))
    levels = {"first": first, "alike": 2 * first, "half": (first + second) / np.sqrt(2), "noise": np.zeros(gpus)}
    names = [f"GPU-{gpu}" for gpu in range(gpus)]
    store = new_store(path)
    runs: dict[str, list[Any]] = {key: [] for key in ("run_id", "cluster", "workload", "gpu", "began", "status")}
    results: dict[str, list[Any]] = {
        key: [] for key in ("run_id", "cluster", "workload", "gpu", "repeat", "figure", "unit", "value")
    }
    for sitting in range(sittings):
        for probe in PROBES:
            for gpu, name in enumerate(names):
                for run in range(2):
                    run_id, at = f"{sitting} {probe} {gpu} {run}", (20_000 + sitting) * DAY_NS + run * 60_000_000_000
                    of_run = (run_id, "real", probe, name)
                    time = 5 * np.exp(levels[probe][gpu] + random.normal(0, 0.002))
                    for key, value in zip(runs, (*of_run, at, "ok"), strict=True):
                        runs[key].append(value)
                    for key, value in zip(results, (*of_run, 0, "time", "ms", float(time)), strict=True):
                        results[key].append(value)
    gpu_rows = {"cluster": ["real"] * gpus, "gpu": names, "model": ["H100"] * gpus, "driver": [driver] * gpus}
    tables: dict[str, dict[str, list[Any]]] = {
        "runs": runs,
        "results": results,
        "gpus": gpu_rows | {"first_seen": [DAY_NS] * gpus},
    }
    store.append({table: arrow_rows(table, rows) for table, rows in tables.items()}, "made")
    return store


def columns(store: Store) -> dict[str, Column]:
    return {column.workload: column for column in keep_rule(store, PROBES)}


def test_a_probe_stays_that_repeats_and_says_what_those_before_it_do_not(tmp_path: Path) -> None:
    by_probe = columns(stored(tmp_path / "store", 60, 3, seed=1))
    assert [(column.stays, column.explained_by) for column in by_probe.values()] == [
        (True, 0),
        (False, 1),
        (True, 2),
        (False, 3),
    ]
    assert {(column.gpus, column.sittings, column.simulated) for column in by_probe.values()} == {(60, 3, False)}
    assert by_probe["first"].unexplained == 1
    assert by_probe["alike"].unexplained == pytest.approx(0, abs=0.02)
    assert by_probe["half"].unexplained == pytest.approx(0.5, abs=0.15)
    # A sitting is the median of two runs: its variance is half of theirs.
    assert by_probe["half"].icc == pytest.approx(1 / (1 + 0.04 / 2), abs=0.02)
    assert by_probe["noise"].icc == pytest.approx(0, abs=0.2)


@pytest.mark.long
def test_the_interval_of_the_own_share_holds_it(tmp_path: Path) -> None:
    tried = count(40, short=10)
    held = 0
    for seed in range(tried):
        half = columns(stored(tmp_path / str(seed), 40, 2, seed))["half"]
        assert half.unexplained_low is not None
        assert half.unexplained_high is not None
        held += half.unexplained_low <= 0.5 <= half.unexplained_high
    assert held >= 0.8 * tried


def test_too_few_data_are_said(tmp_path: Path) -> None:
    once = columns(stored(tmp_path / "once", 30, 1, seed=1))["half"]
    assert (once.icc, once.unexplained, once.stays) == (None, None, None)
    few = columns(stored(tmp_path / "few", 11, 3, seed=1))
    assert few["alike"].unexplained is not None
    assert few["half"].unexplained is None
    assert few["half"].icc is not None
    assert few["half"].stays is None


def test_simulated_gpus_are_said(tmp_path: Path) -> None:
    assert all(column.simulated for column in columns(stored(tmp_path / "store", 12, 2, 1, "simulated")).values())
