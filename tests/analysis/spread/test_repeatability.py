"""The ICC and the shares of variance against plain sums, balanced analysis of variance and known components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from whorl.analysis.spread.repeats import Column, keep_rule
from whorl.analysis.statistics.repeatability import Moments, shares
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.sizes import count
from whorl.tests.stores import new_store

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def moments(values: Floats, group: Ints) -> Moments:
    order = np.argsort(group, kind="stable")
    return Moments.of(values[order], np.concatenate(([0], np.cumsum(np.bincount(group)))))


def machine(
    seed: int, sds: tuple[float, float, float, float], unbalanced: bool, cabinets: int = 8
) -> tuple[Floats, Ints, Ints, Ints]:
    """Values with their GPU, and each GPU's node and cabinet."""
    rng = np.random.default_rng([9, seed])

    def children(parents: int, least: int, most: int) -> Ints:
        return np.repeat(np.arange(parents), rng.integers(least, most + 1, parents) if unbalanced else most)

    cabinet_of_node = children(cabinets, 2, 6)
    node_of_gpu = children(len(cabinet_of_node), 2, 4)
    gpu_of_run = children(len(node_of_gpu), 1, 5)
    cabinet_of_gpu = cabinet_of_node[node_of_gpu]
    c, b, a, e = sds
    values = (
        1000
        + rng.normal(0, c, cabinets)[cabinet_of_gpu[gpu_of_run]]
        + rng.normal(0, b, len(cabinet_of_node))[node_of_gpu[gpu_of_run]]
        + rng.normal(0, a, len(node_of_gpu))[gpu_of_run]
        + rng.normal(0, e, len(gpu_of_run))
    )
    return values, gpu_of_run, node_of_gpu, cabinet_of_gpu


def test_shares_of_a_balanced_machine_are_those_of_the_nested_analysis_of_variance() -> None:
    values, gpu, node, cabinet = machine(0, (4.0, 3.0, 5.0, 2.0), unbalanced=False)
    cube = values.reshape(8, 6, 4, 5)  # cabinet, node, GPU, run
    by_gpu, by_node, by_cabinet = cube.mean(3), cube.mean((2, 3)), cube.mean((1, 2, 3))
    ms_run = ((cube - by_gpu[..., None]) ** 2).sum() / (192 * 4)
    ms_gpu = 5 * ((by_gpu - by_node[..., None]) ** 2).sum() / (48 * 3)
    ms_node = 20 * ((by_node - by_cabinet[:, None]) ** 2).sum() / (8 * 5)
    ms_cabinet = 120 * ((by_cabinet - cube.mean()) ** 2).sum() / 7
    parts = np.array([(ms_cabinet - ms_node) / 120, (ms_node - ms_gpu) / 20, (ms_gpu - ms_run) / 5, ms_run])
    assert (parts > 0).all()
    estimate = shares(moments(values, gpu), cabinet, node).share
    assert list(estimate.values()) == pytest.approx((parts / parts.sum()).tolist(), rel=1e-9)


def test_shares_of_unbalanced_machines_are_right_on_average() -> None:
    sds = (2.0, 1.0, 3.0, 2.0)
    true = np.square(sds) / np.square(sds).sum()
    estimate = np.array([
        list(shares(moments(v, gpu), cabinet, node).share.values())
        for v, gpu, node, cabinet in (machine(seed, sds, unbalanced=True, cabinets=25) for seed in range(200))
    ], dtype=float)  # fmt: skip
    # The share is a ratio of estimates: 0.02 is its bias, beside four standard errors.
    assert np.abs(estimate.mean(0) - true).max() < 0.02 + 4 * estimate.std(0).max() / np.sqrt(200)


def test_levels_that_cannot_be_told_apart_say_so() -> None:
    values, gpu, node, _ = machine(4, (0.0, 1.0, 3.0, 2.0), unbalanced=True)
    two_moments = moments(values, gpu)
    one_cabinet = shares(two_moments, np.zeros(len(node), dtype=np.intp), node)
    assert one_cabinet.share["cabinet"] is None
    assert one_cabinet.reasons["cabinet"] == "there is one cabinet"
    node_is_gpu = shares(two_moments, None, np.arange(len(node)))
    assert node_is_gpu.share["node"] is None
    assert node_is_gpu.reasons["node"] == "each node has one GPU, so the two cannot be separated"
    once = shares(moments(values[:40], np.arange(40)), None, node[:40])
    assert once.share["gpu"] is None
    assert once.reasons["gpu"] == "each GPU has one run, so the two cannot be separated"
    assert once.share["node"] is not None
    same = shares(moments(np.full(40, 5.0), np.arange(40) // 2), None, np.arange(20) // 4)
    assert set(same.share.values()) == {None}
    assert same.reasons["run"] == "every value is the same"


# -- keep rule ---------------------------------------------------------------------------------------------------------
# The keep rule of the probes, on columns whose repeatability and own share are known.


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
