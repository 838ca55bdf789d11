"""`whorl demo sim` from the command line: what people see, the JSON, and what follows from it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.simulation.faults import KINDS
from whorl.simulation.load import LOADS
from whorl.simulation.models import MODELS
from whorl.store import Store

RUN = ("demo", "sim", "--gpus", "16", "--seed", "7", "--fault", "3")


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Result]:
    store = str(tmp_path_factory.mktemp("sim") / "S")
    result = whorl(*RUN, "--set", "hours=0.02", "--store", store)
    assert result.exit_code == 0, result.output
    return store, result


@pytest.mark.parametrize("model", MODELS)
def test_describe_names_every_number_its_basis_and_the_faults(model: str) -> None:
    result = whorl("demo", "sim", "--describe", "--model", model.split("-", maxsplit=1)[0].lower())
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{model}, simulated")
    for words in ("resistance_k_w", "fitted" if model == "V100-SXM2" else "assumed", "sgemm at steady state", *KINDS):
        assert words in result.output
    for load in LOADS:
        assert load in result.output


def test_a_repeated_run_says_so_and_stores_nothing(stepped: tuple[str, Result]) -> None:
    store, result = stepped
    files = sorted(Path(store).rglob("*.parquet"))
    again = whorl(*RUN, "--set", "hours=0.02", "--store", store)
    assert again.exit_code == 0, again.output
    assert "nothing was stored" in again.stdout
    assert again.stdout.splitlines()[:4] == result.stdout.splitlines()[:4]
    assert sorted(Path(store).rglob("*.parquet")) == files


def test_steady_runs_over_weeks_as_json(tmp_path: Path) -> None:
    arguments = ["demo", "sim", "--store", str(tmp_path / "S"), "--gpus", "16", "--model", "A100", "--set", "runs=3"]
    arguments += ["--set", "every=7d", "--fault", "drift", "--fault", "lost", "--set", "began=2026-03-01"]
    result = whorl(*arguments, "--set", "cluster=green", "--load", "pagerank", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "whorl.sim.run/1"
    assert (found["began"], found["ended"]) == ("2026-03-01T00:00:00Z", "2026-03-22T00:00:00Z")
    assert (found["model"], found["cluster"], found["load"]) == ("A100-SXM4-80", "green", "pagerank")
    assert found["rows"]["runs"] == 48
    assert "telemetry" not in found["rows"]
    assert [one["kind"] for one in sorted(found["planted"], key=lambda one: one["kind"])] == ["drift", "lost"]
    assert Store.open(tmp_path / "S").sql("select distinct cluster, workload from runs").to_pylist() == [
        {"cluster": "green", "workload": "pagerank"}
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--describe", "--model", "K80"], "no simulated GPU model 'K80'"),
        (["--store", "S", "--model", "K80"], "no simulated GPU model"),
        (["--store", "S", "--load", "doom"], "no simulated load 'doom'"),
        (["--store", "S", "--fault", "rust"], "no fault 'rust'"),
        (["--store", "S", "--gpus", "2", "--fault", "3"], "3 faults cannot be planted in 2 GPUs"),
        (["--store", "S", "--gpus", "0"], "0 is not in the range"),
        (["--store", "S", "--seed", "-1"], "-1 is not in the range"),
        (["--store", "S", "--set", "hours=nan"], "not nan"),
        (["--store", "S", "--set", "hours=-1"], "not -1"),
        (["--store", "S", "--set", "interval=0.001"], "from 0.02 s"),
        (["--store", "S", "--set", "began=noon"], "'noon' is not a time"),
        (["--store", "S", "--set", "began=1492-10-12"], "from 1970 to 2159"),
        (["--store", "S", "--set", "began=1969-12-31T23:59:59.9"], "from 1970 to 2159"),
        (["--store", "S", "--set", "began=2160-01-01"], "from 1970 to 2159"),
        (["--store", "S", "--set", "began=9999-12-31T23:00:00-12:00"], "from 1970 to 2159"),
        (["--store", "S", "--set", "runs=1", "--set", "every=soon"], "'soon' is not a time"),
        (["--store", "S", "--set", "runs=1", "--set", "every=1s"], "to a year, not 1 s"),
        (["--store", "S", "--set", "runs=1", "--set", "every=1h", "--load", "pagerank"], "to a year, not 3600 s"),
        (["--store", "S", "--set", "every=366d", "--set", "runs=101"], "more than a century"),
        (["--store", "S", "--seed", str(1 << 63)], "from 0 to 2^63 - 1"),
        (["--store", "S", "--set", "runs=1", "--set", "hours=2"], "hours cannot be used with runs"),
        (["--store", "S", "--set", "every=2d"], "every needs runs"),
        (["--store", "S", "--set", "runs=1", "--load", "idle"], "has no work"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = whorl("demo", "sim", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert not (tmp_path / "S").exists(), "no store is made for nothing"


def test_fleets_are_clusters_of_their_own(tmp_path: Path) -> None:
    store = str(tmp_path / "S")
    for model, seed in (("V100", "1"), ("H100", "1"), ("V100", "2")):
        arguments = ("--model", model, "--seed", seed, "--gpus", "24", "--set", "runs=1", "--fault", "0")
        assert whorl("demo", "sim", "--store", store, *arguments).exit_code == 0
    found = json.loads(whorl("verdicts", "variability", "--store", store, "--set", "replicates=0", "--json").stdout)
    by_gpu = {row["cluster"]: row for row in found["rows"] if row["level"] == "gpu"}
    assert sorted(by_gpu) == ["simulated-H100-1", "simulated-V100-1", "simulated-V100-2"]
    assert all(row["gpus"] == 24 and row["fence_pct"] < 20 for row in by_gpu.values())


def test_what_is_too_short_for_a_run_says_so_and_names_no_command_that_fails(tmp_path: Path) -> None:
    store = str(tmp_path / "S")
    result = whorl("demo", "sim", "--store", store, "--gpus", "1", "--set", "hours=0.001", "--fault", "HOT")
    assert result.exit_code == 0, result.output
    assert "no runs: under load gemm-fp32 the first one would end after 300 s\n" in result.stdout
    following = result.stdout.splitlines()[-1].split("next: whorl ")[1]
    assert following.startswith("sql ")
    assert whorl(*shlex.split(following)).exit_code == 0
    idle = whorl(
        "demo", "sim", "--store", store, "--gpus", "1", "--set", "hours=0.001", "--load", "idle", "--fault", "hot"
    )
    assert "no runs: under load idle no turn is measured\n" in idle.stdout
