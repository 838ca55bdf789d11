"""What `measurements` takes from a store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from whorl.analysis import measurements
from whorl.tests.stores import new_store


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
    runs = [f"r{i}" for i in range(8)]
    about = {
        "run_id": runs,
        "cluster": ["c"] * 8,
        "workload": ["training"] * 4 + ["gemm-fp32"] * 4,
        "gpu": list("abcd") * 2,
        "job_id": ["1", "1", "2", "2"] * 2,
        "probe_version": [None] * 4 + ["1"] * 4,
    }
    times = {"run_id": runs, "figure": ["time"] * 8, "repeat": [0] * 8, "unit": ["ms"] * 8, "value": [1.0] * 8}
    store.append({"runs": pa.table(about), "results": pa.table(times)}, "campaign")
    jobs = {name: part["job_id"].to_list() for (name,), part in measurements(store).group_by("workload")}
    assert jobs == {"training": ["1", "1", "2", "2"], "gemm-fp32": [None] * 4}
