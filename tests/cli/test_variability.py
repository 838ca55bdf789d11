"""`whorl variability` from the command line: what people see, and the JSON that programs read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.tests.probed_fleet import stored
from whorl.tests.stores import new_store

LONGHORN = Path(__file__).resolve().parents[3] / "shared" / "data" / "longhorn"

KEYS = {
    *("cluster", "workload", "level", "n", "gpus", "unit", "median", "fence_pct", "whisk_pct", "range_pct"),
    *("p95p5_pct", "cov_pct", "rcov_pct", "worst_over_median", "slow", "fast", "icc", "icc_job", "correlation"),
    *("modes", "imported"),
}


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = whorl(*arguments)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the generated sample fleet."""
    folder = tmp_path_factory.mktemp("sample")
    assert whorl("sample", str(folder / "files")).exit_code == 0
    files = [str(path) for path in sorted((folder / "files").iterdir())]
    result = whorl("import", "--store", str(folder / "store"), "--cluster", "sample", *files)
    assert result.exit_code == 0, result.output
    return str(folder / "store")


@pytest.fixture(scope="module")
def longhorn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the four published Longhorn files."""
    if not LONGHORN.is_dir():
        pytest.skip(f"the published measurements are not at {LONGHORN}")
    store = str(tmp_path_factory.mktemp("longhorn") / "S")
    files = [str(path) for path in sorted(LONGHORN.glob("*.csv.gz"))]
    result = whorl("import", "--store", store, "--cluster", "longhorn", *files)
    assert result.exit_code == 0, result.output
    return store


def by_level(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["workload"], row["level"]): row for row in found["rows"]}


@pytest.mark.long
def test_the_worked_examples_come_out_of_the_files(longhorn: str) -> None:
    rows = by_level(document("variability", "--store", longhorn, "--replicates", "0", "--json"))
    sgemm, gpus = rows["sgemm", "run"], rows["sgemm", "gpu"]
    assert (sgemm["n"], sgemm["unit"], round(sgemm["median"], 2)) == (8803, "ms", 2440.11)
    assert (round(sgemm["fence_pct"], 3), round(sgemm["whisk_pct"], 3)) == (8.722, 8.576)
    assert (gpus["n"], round(gpus["fence_pct"], 3), round(gpus["worst_over_median"], 4)) == (392, 9.299, 1.2027)
    assert len(gpus["slow"]) == 5
    assert gpus["slow"][0]["gpu"].startswith("GPU-87570fdd")
    resnet = rows["resnet", "run"]
    assert (round(resnet["fence_pct"], 2), round(resnet["whisk_pct"], 2)) == (22.41, 20.53)
    assert round(rows["resnet", "gpu"]["fence_pct"], 2) == 12.12
    assert round(rows["bert", "run"]["fence_pct"], 3) == 8.034
    assert round(rows["pagerank", "run"]["fence_pct"], 3) == 0.745
    clock = sgemm["correlation"]["sm_clock"]
    assert (round(clock["pearson"], 3), round(clock["spearman"], 3)) == (-0.947, -0.981)
    constant = rows["bert", "run"]["correlation"]["sm_clock"]
    assert constant["pearson"] is None
    assert constant["spearman"] is None
    assert "constant" in constant["reason"]
    assert len(rows["pagerank", "run"]["modes"]) == len(rows["pagerank", "gpu"]["modes"]) == 2
    assert len(rows["sgemm", "gpu"]["modes"]) == 1
    assert sgemm["imported"] == {"rows": 11087, "duplicates": 2284, "refused": 0}


@pytest.mark.long
def test_the_spread_of_coupled_jobs_is_said_not_to_be_the_gpus(longhorn: str) -> None:
    shown = whorl("variability", "--store", longhorn, "--workload", "resnet", "--replicates", "200").output
    assert "real but does not belong to the GPUs" in " ".join(shown.split())
    row = by_level(document("variability", "--store", longhorn, "--workload", "resnet", "--json"))["resnet", "run"]
    assert row["icc"]["value"] < 0.1 < 0.9 < row["icc_job"]["value"]
    assert row["icc_job"]["by"] == "job"


@pytest.mark.long
def test_workloads_are_joined_through_every_identity(longhorn: str) -> None:
    found = document("variability", "--store", longhorn, "--across", "--json")
    assert found["schema"] == "whorl.across/1"
    rows = {(row["workload_a"], row["figure_a"], row["workload_b"], row["figure_b"]): row for row in found["rows"]}
    assert rows["pagerank", "time", "sgemm", "time"]["n"] == 168
    # resnet names places, sgemm UUIDs: only the PageRank file links them.
    assert rows["resnet", "time", "sgemm", "time"]["n"] == 124
    power = rows["pagerank", "power", "sgemm", "sm_clock"]
    assert power["low"] < -0.64 < power["high"]


@pytest.mark.long
def test_json_has_the_promised_keys(sample: str) -> None:
    found = document("variability", "--store", sample, "--json", "--replicates", "50", "--seed", "7")
    assert found["schema"] == "whorl.variability/1"
    assert (found["seed"], found["replicates"]) == (7, 50)
    assert len(found["rows"]) == 6
    for row in found["rows"]:
        assert row.keys() >= KEYS
        assert row["icc"].keys() >= {"value", "low", "high", "trimmed", "by"}
        for side in ("slow", "fast"):
            assert all(outlier.keys() >= {"gpu", "ratio"} for outlier in row[side])
        for figure in ("sm_clock", "power", "temperature"):
            assert row["correlation"][figure].keys() >= {"pearson", "spearman", "n"}
        low, high = row["interval"]["fence_pct"]
        assert low <= high
        assert row["imported"]["rows"] >= row["n"] if row["level"] == "run" else row["imported"]


@pytest.mark.long
def test_the_planted_gpus_stand_out(sample: str, tmp_path: Path) -> None:
    listed = whorl("sample", str(tmp_path / "again")).output.splitlines()
    planted = {line.partition("(")[2].rstrip(")") for line in listed if line.startswith("planted")}
    row = by_level(document("variability", "--store", sample, "--json", "--replicates", "0"))["sgemm", "gpu"]
    assert {outlier["gpu"] for outlier in row["slow"]} == planted


def test_markdown_is_a_document(sample: str) -> None:
    text = whorl("variability", "--store", sample, "--markdown", "--replicates", "50").stdout
    lines = text.splitlines()
    assert lines[0] == "# Variability"
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "## sgemm on sample" in lines


def test_a_filter_that_matches_nothing_says_so(sample: str) -> None:
    result = whorl("variability", "--store", sample, "--workload", "linpack")
    assert result.exit_code == 2
    assert "holds no runs of workload linpack" in result.stderr


def test_a_store_without_times_is_filled_by_an_import_or_by_probes(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    result = whorl("variability", "--store", str(store.root))
    assert result.exit_code == 2
    assert "`whorl import --store" in result.stderr
    assert f"or `whorl probe run --store {store.root} --suite quick` adds some" in result.stderr


def test_what_a_store_of_probes_has_is_said_where_nothing_matches(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 8, telemetry=False)
    refused = whorl("variability", "--store", str(store.root), "--workload", "idle").stderr
    assert "it has copy-h2d on made; gemm-fp32 on made; pagerank on made; stream-triad on made\n" in refused


def test_runs_with_wrong_results_are_counted_as_left_out(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", 16, kinds=("wrong_results",), telemetry=False)
    result = whorl("variability", "--store", str(store.root), "--json", "--replicates", "20")
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
        result = whorl("variability", "--store", str(store.root), "--workload", "gemm-fp32", "--replicates", "20")
        assert result.exit_code == 0, result.output
        remarks[gpus] = [line.strip() for line in result.stdout.splitlines() if "intervals" in line]
    assert "no intervals: a bootstrap needs more than one GPU" in remarks[1]
    assert remarks[4][0].startswith("the intervals are too narrow: they come from fewer than 20 GPUs; from 4 GPUs")


def test_the_folder_of_a_demo_leads_to_its_store(tmp_path: Path) -> None:
    new_store(tmp_path / "D" / "store")
    result = whorl("variability", "--store", str(tmp_path / "D"))
    assert result.exit_code == 3
    assert f"{tmp_path / 'D'} is not a store (it has no store.toml); the store is in {tmp_path / 'D' / 'store'}\n" in (
        result.stderr
    )
    for name in ("none", ""):
        refused = whorl("variability", "--store", str(tmp_path / name)).stderr
        assert "`whorl import --store" in refused
        assert "`whorl probe run --store" in refused


def test_flags_that_exclude_each_other(sample: str) -> None:
    result = whorl("variability", "--store", sample, "--json", "--markdown")
    assert result.exit_code == 2
    assert "cannot be used together" in result.stderr


@pytest.mark.long
def test_a_table_fits_80_columns_and_is_plain_where_asked(sample: str) -> None:
    script = f"stty cols 80 rows 40; NO_COLOR=1 {sys.executable} -m whorl variability --store {sample} --replicates 20"
    done = subprocess.run(["script", "-qec", script, "/dev/null"], capture_output=True, text=True, check=False)
    if done.returncode == 127:
        pytest.skip("there is no script(1) to give the command a terminal")
    assert done.returncode == 0, done.stdout
    # Progress redraws its line; what stays is behind the last carriage return.
    lines = [line.rstrip("\r").rpartition("\r")[2].removeprefix("\x1b[K") for line in done.stdout.split("\n")]
    assert any(line.startswith("workload") for line in lines)
    assert max(len(line) for line in lines) <= 80
    assert "\x1b[1m" not in done.stdout
