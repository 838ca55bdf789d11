"""`whorl verdicts variability` from the command line: what people see, and the JSON that programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.tests.probed_fleet import stored
from whorl.tests.stores import new_store


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = whorl(*arguments)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_what_a_store_of_probes_has_is_said_where_nothing_matches(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 8, telemetry=False)
    refused = whorl("verdicts", "variability", "--store", str(store.root), "--workload", "idle").stderr
    assert "it has copy-h2d on made; gemm-fp32 on made; pagerank on made; stream-triad on made\n" in refused


def test_runs_with_wrong_results_are_counted_as_left_out(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 16, kinds=("wrong_results",), telemetry=False)
    result = whorl("verdicts", "variability", "--store", str(store.root), "--json", "--set", "replicates=100")
    said = "gemm-fp32 on made: 1 of 16 runs is left out: failed, or with a wrong result"
    assert f"whorl: note: {said}\n" in result.stderr
    found = json.loads(result.stdout)
    assert said in found["notes"]
    rows = {(row["workload"], row["level"]): row for row in found["rows"]}
    assert rows["gemm-fp32", "gpu"]["n"] == 15
    rho = rows["gemm-fp32", "gpu"]["correlation"]["sm_clock"]
    assert rho["low"] <= rho["spearman"] <= rho["high"]


def test_one_gpu_has_no_intervals_and_few_have_narrow_ones(tmp_path: Path) -> None:
    remarks = {}
    for gpus in (1, 4):
        store, _ = stored(tmp_path / str(gpus), gpus, telemetry=False)
        result = whorl(
            "verdicts", "variability", "--store", str(store.root), "--workload", "gemm-fp32", "--set", "replicates=100"
        )
        assert result.exit_code == 0, result.output
        remarks[gpus] = [line.strip() for line in result.stdout.splitlines() if "intervals" in line]
    assert "no intervals: a bootstrap needs more than one GPU" in remarks[1]
    assert remarks[4][0].startswith("the intervals are too narrow: they come from fewer than 20 GPUs; from 4 GPUs")


def test_the_folder_of_a_demo_leads_to_its_store(tmp_path: Path) -> None:
    new_store(tmp_path / "D" / "store")
    result = whorl("verdicts", "variability", "--store", str(tmp_path / "D"))
    assert result.exit_code == 3
    assert f"{tmp_path / 'D'} is not a store (it has no store.toml); the store is in {tmp_path / 'D' / 'store'}\n" in (
        result.stderr
    )
    for name in ("none", ""):
        refused = whorl("verdicts", "variability", "--store", str(tmp_path / name)).stderr
        assert "`whorl import --store" in refused
        assert "`whorl probe run --store" in refused


def test_too_few_replicates_for_an_interval_are_refused(tmp_path: Path) -> None:
    for replicates in ("1", "99"):
        refused = whorl("verdicts", "variability", "--store", str(tmp_path), "--set", f"replicates={replicates}")
        assert (refused.exit_code, f"at least 100, not {replicates}\n" in refused.stderr) == (2, True)
