"""Runs of several models, power limits or clocks are not pooled; what is pooled all the same is named."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from whorl.analysis import measurements, mixed_conditions, untrusted, variability
from whorl.analysis.fleet.side_by_side import comparable
from whorl.analysis.placement import available
from whorl.analysis.runs.probing import probed
from whorl.analysis.runs.sittings import in_order
from whorl.dashboards.report import look
from whorl.errors import InputError
from whorl.jobs.steering import advise
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.probed_fleet import CLUSTER, PROBES, stored, uuids
from whorl.tests.stores import new_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """sgemm on two models, one of them at two power limits and once at a locked clock; copy alike everywhere."""
    store = new_store(tmp_path / "store")
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
        "conditions": [run[3] for run in runs],
    }
    identity_columns = {key: columns[key] for key in ("run_id", "cluster", "workload")}
    results = {**identity_columns, "figure": ["time"] * 7, "value": [1.0] * 7, "unit": ["ms"] * 7}
    gpus = {"cluster": ["c"] * 3, "gpu": ["v1", "v1", "a1"], "model": [None, "V100", "A100"]}
    store.append({"runs": pa.table(columns), "results": pa.table(results), "gpus": pa.table(gpus)}, "x")
    return store


@pytest.mark.long
def test_models_power_limits_and_clocks_part_a_workload(store: Store) -> None:
    expected = {
        "a": "sgemm [V100]",
        "b": "sgemm [V100, 250 W, clock not locked]",
        "c": "sgemm [V100, power limit not set, locked at 1200 MHz]",
        "d": "sgemm [A100]",
        "e": "sgemm [model unknown]",
        "f": "copy",
        "g": "copy",
    }
    rows = measurements(store, run_ids=True)
    assert dict(rows.select("run_id", "workload").iter_rows()) == expected
    assert dict(probed(store).runs.select("run_id", "workload").iter_rows()) == expected
    assert {row.workload for row in look(store).spread} == set(expected.values())
    assert available(store) == sorted({("c", name) for name in expected.values()})


def test_a_place_in_which_another_model_stands_now_parts_its_runs_by_time(tmp_path: Path) -> None:
    """A card with a UUID stays one model, however tools spell it; of a place, only the model that was there counts."""
    store = new_store(tmp_path / "store")
    may, june, july = (dt.datetime(2026, month, 1) for month in (5, 6, 7))  # noqa: DTZ001
    runs = [("1", "n1:0", may), ("2", "n1:0", june), ("3", "n1:0", None), ("4", "n1:1", may), ("5", "GPU-u", may)]
    columns = dict(zip(("run_id", "gpu", "began"), map(list, zip(*runs, strict=True)), strict=True))
    same = {"cluster": ["c"] * 5, "workload": ["sgemm"] * 5}
    store.append({"runs": arrow_rows("runs", columns | same)}, "runs")
    times = {"run_id": columns["run_id"], "figure": ["time"] * 5, "value": [1.0] * 5, "unit": ["ms"] * 5} | same
    gpus = [
        ("n1:0", None, "Tesla V100-SXM2-16GB", may), ("n1:0", None, "NVIDIA A100-SXM4-40GB", june),
        ("n1:1", None, "NVIDIA A100", may), ("n1:1", None, "NVIDIA A100-SXM4-40GB", july),
        ("GPU-u", "GPU-u", "Tesla V100-SXM2-16GB", may), ("GPU-u", "GPU-u", "NVIDIA A100-SXM4-40GB", june),
    ]  # fmt: skip
    gpu_columns = dict(zip(("gpu", "uuid", "model", "first_seen"), map(list, zip(*gpus, strict=True)), strict=True))
    gpu_columns["cluster"] = ["c"] * len(gpus)
    store.append({"results": arrow_rows("results", times), "gpus": arrow_rows("gpus", gpu_columns)}, "rest")
    v100, a100 = "sgemm [Tesla V100-SXM2-16GB]", "sgemm [NVIDIA A100-SXM4-40GB]"
    workload_by_run = dict(measurements(store, run_ids=True).select("run_id", "workload").iter_rows())
    assert workload_by_run == {"1": v100, "2": a100, "3": a100, "4": a100, "5": a100}
    (cluster,) = comparable(store)
    assert {work.name: work.gpus for work in cluster.works} == {v100: 1, a100: 3}


def test_what_is_told_apart_is_not_said_to_be_pooled(store: Store) -> None:
    (copies,) = mixed_conditions(store)
    assert "copy on c: the runs differ in suite (full, quick)" in copies


LOW = "sgemm [V100, 250 W, clock not locked]"


def test_advice_asks_which_kind_is_meant(store: Store) -> None:
    for workload in ("sgemm", "gemm-fp32"):
        with pytest.raises(InputError, match="runs of sgemm differ in model, power limit or clock: ") as why:
            advise(store, workload, no_scheduler=True)
        assert f'"{LOW}"' in str(why.value)


def test_a_run_of_several_repeats_is_one_row(tmp_path: Path) -> None:
    """Its repeats share its conditions: counted as runs they would pass for repeated measurements."""
    store = new_store(tmp_path / "S")
    runs = ["r1"] * 3 + ["r2"] * 4 + ["r3"]
    results = {
        "run_id": [*runs, "r1"],
        "figure": ["time"] * 8 + ["wrong_elements"],
        "repeat": [0, 1, 2, 0, 1, 2, 3, 0, 0],
        "unit": ["ms"] * 8 + [""],
        "value": [1.0, 9.0, 2.0, 4.0, 5.0, 7.0, 100.0, 3.0, 0.0],
    }
    about = {"run_id": ["r1", "r2", "r3"], "cluster": ["c"] * 3, "workload": ["w"] * 3, "gpu": ["a", "a", "b"]}
    store.append({"runs": pa.table(about), "results": pa.table(results)}, "campaign")
    assert sorted(measurements(store)["value"]) == [2.0, 3.0, 6.0]


def test_the_gpus_of_a_job_are_coupled_unless_it_ran_probes(tmp_path: Path) -> None:
    """A job of a campaign measures every GPU of its node for itself, at the same time."""
    store = new_store(tmp_path / "S")
    runs = [f"r{i}" for i in range(10)]
    about = {
        "run_id": runs,
        "cluster": ["c"] * 10,
        "workload": ["training"] * 5 + ["gemm-fp32"] * 5,
        "gpu": list("abcde") * 2,
        "job_id": ["1", "1", "2", "2", "alone"] * 2,
        "probe_version": [None] * 5 + ["1"] * 5,
    }
    times = {"run_id": runs, "figure": ["time"] * 10, "repeat": [0] * 10, "unit": ["ms"] * 10, "value": [1.0] * 10}
    store.append({"runs": pa.table(about), "results": pa.table(times)}, "campaign")
    jobs = {name: part["job_id"].to_list() for (name,), part in measurements(store).group_by("workload")}
    assert jobs == {"training": ["1", "1", "2", "2", None], "gemm-fp32": [None] * 5}


# -- probing -----------------------------------------------------------------------------------------------------------
# The runs of a campaign as a store holds them: which are taken, which are left out, what their probes stress.


@pytest.mark.long
def test_the_time_of_a_wrong_result_counts_nowhere(tmp_path: Path) -> None:
    """The same GPUs are peers here and in `whorl verdicts variability`, and those left out are counted."""
    store, fleet = stored(tmp_path / "s", 32, kinds=("brake", "wrong_results"), telemetry=False)
    campaign = probed(store)
    peers = {row.workload: row.n for row in variability(measurements(store), replicates=0) if row.level == "gpu"}
    assert peers["gemm-fp32"] == peers["pagerank"] == 31
    assert campaign.sound.filter(pl.col("workload") == "gemm-fp32")["gpu"].n_unique() == 31
    wrong = next(gpu for gpu, kind in uuids(fleet).items() if kind == "wrong_results")
    assert wrong not in campaign.sound.filter(pl.col("workload") == "gemm-fp32")["gpu"]
    assert campaign.untrusted == {"gemm-fp32": 1, "pagerank": 1}
    assert campaign.untrusted_says == (
        "left out of the times: 2 runs, as their results were wrong (1 of gemm-fp32, 1 of pagerank)"
    )
    assert untrusted(store) == [
        f"{probe} on {CLUSTER}: 1 of 32 runs is left out: failed, or with a wrong result"
        for probe in ("gemm-fp32", "pagerank")
    ]
    assert untrusted(store, workloads=["idle"]) == []
    healthy, _ = stored(tmp_path / "healthy", 8, telemetry=False)
    assert probed(healthy).untrusted_says is None


def test_the_last_campaign_is_taken_and_a_missing_one_is_named(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 8, telemetry=False)
    assert probed(store).campaign == "made-1"
    assert probed(store).probes == [probe.name for probe in PROBES]
    with pytest.raises(InputError, match="no campaign 'other'"):
        probed(store, "other")
    with pytest.raises(InputError, match="holds no runs: "):
        probed(new_store(tmp_path / "empty"))


@pytest.mark.parametrize("most", [3, 70_000, 1 << 33])
@pytest.mark.parametrize("in_time", [True, False])
def test_the_order_by_owner_and_time_keeps_equal_ones_as_they_are(most: int, in_time: bool) -> None:
    random = np.random.default_rng(1)
    owner, at = random.integers(0, most, 500), np.round(random.random(500), 1)
    at = np.sort(at) if in_time else at
    assert in_order(owner, at).tolist() == np.lexsort((at, owner)).tolist()
    order = np.lexsort((at, owner))
    assert in_order(owner[order], at[order]).tolist() == list(range(500))
