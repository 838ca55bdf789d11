"""`whorl verdicts variability` from the command line: what people see, and the JSON that programs read."""

from __future__ import annotations

import json
from pathlib import Path

from whorl.tests.cli.calling import refusal, whorl
from whorl.tests.probed_fleet import stored
from whorl.tests.stores import new_store


def test_runs_with_wrong_results_are_counted_as_left_out(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 16, kinds=("wrong_results",), telemetry=False)
    result = whorl("verdicts variability --json --set replicates=100 --store", store.root)
    note = "gemm-fp32 on made: 1 of 16 runs is left out: failed, or with a wrong result"
    assert f"whorl: note: {note}\n" in result.stderr
    answer = json.loads(result.stdout)
    assert note in answer["notes"]
    (row,) = (row for row in answer["rows"] if (row["workload"], row["level"]) == ("gemm-fp32", "gpu"))
    assert row["n"] == 15
    rho = row["correlation"]["sm_clock"]
    assert rho["low"] <= rho["spearman"] <= rho["high"]


def test_one_gpu_has_no_intervals_and_few_have_narrow_ones(tmp_path: Path) -> None:
    remarks = {}
    for gpus in (1, 4):
        store, _ = stored(tmp_path / str(gpus), gpus, telemetry=False)
        text = whorl("verdicts variability --workload gemm-fp32 --set replicates=100 --store", store.root).stdout
        remarks[gpus] = [line.strip() for line in text.splitlines() if "intervals" in line]
    assert "no intervals: a bootstrap needs more than one GPU" in remarks[1]
    assert remarks[4][0].startswith("the intervals are too narrow: they come from fewer than 20 GPUs; from 4 GPUs")


def test_what_is_no_store_and_too_few_replicates_for_an_interval_are_refused(tmp_path: Path) -> None:
    """The folder of a demo leads to its store."""
    new_store(tmp_path / "D" / "store")
    command = "verdicts variability --store"
    sentence = refusal(command, tmp_path / "D", status=3)
    assert f"{tmp_path / 'D'} is not a store (it has no store.toml); the store is in {tmp_path / 'D' / 'store'}" in (
        sentence
    )
    for name in ("none", ""):
        sentence = refusal(command, tmp_path / name, status=3)
        assert "`whorl import --store" in sentence
        assert "`whorl probe run --store" in sentence
    for replicates in (1, 99):
        few = refusal(command, tmp_path, "--set", f"replicates={replicates}")
        assert few.endswith(f"at least 100, not {replicates}")
