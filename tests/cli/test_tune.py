"""`whorl tune` from the command line, on sweeps, simulated GPUs, and a command over the simulated NVML library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import whorl as package
from whorl.cli.output import ProgressBar
from whorl.jobs import tuning_command
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal
from whorl.tests.measured_sweep import sweep
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.without import COMMAND, NODE, run_without

SIMULATED = ("gemm-fp16", "--backend", "simulated:model=H100,gpus=2", "--suite", "quick")
BOUND = ("--max-slowdown", "30%", "--trials", "5")


def whorl(*words: object) -> Result:
    return calling.whorl("tune", *words)


def document(*words: object, schema: str = "tune") -> dict[str, Any]:
    return calling.document("tune", *words, schema=schema)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder of its own, and nothing chosen by the environment."""
    monkeypatch.setenv("WHORL_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("WHORL_STORE", raising=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text(sweep())
    return path


def test_a_row_for_each_workload_and_batch_size(table: Path) -> None:
    rows = document("--sweep", table, "--max-slowdown", "5%")["rows"]
    assert [(row["network"], row["batch_size"]) for row in rows] == [
        (network, batch) for network in ("small", "large") for batch in (16, 32, 64)
    ]
    hungry = rows[1]
    assert (hungry["power_limit_w"], hungry["zeus_power_limit_w"]) == (200, 100)
    assert hungry["zeus_saved_pct"] < 0 < hungry["saved_pct"]
    assert all(row["slower_pct"] <= 5 and row["bound_met"] and not row["within_noise"] for row in rows)
    text = whorl("--sweep", table, "--max-slowdown", "5%").stdout
    assert "another setting in 1 of 6 sweeps, and one that uses more energy than the default in 1" in text
    assert "a saving below about 2 % is noise" in text
    large = ("--sweep", table, "--max-slowdown", "10%")
    across = document(*large, "--set", "across=batch")["rows"]
    assert [(row["network"], row["batch_size"], row["default_batch_size"]) for row in across] == [
        ("small", 64, 32), ("large", 64, 32)
    ]  # fmt: skip
    assert across[0]["saved_pct"] > document(*large)["rows"][2]["saved_pct"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "say what to tune"),
        ("gemm-fp16 --command true", "not a probe and --command"),
        ("gemm-fp16 --max-slowdown 5%", "give --store"),
        ("gemm-fp16 --store {here}/S", "say either how much slower it may be"),
        ("gemm-fp16 --store {here}/S --max-slowdown 5% --max-latency 16ms", "say either"),
        ("gemm-fp16 --store {here}/S --max-slowdown 5% --set timeout=5s", "timeout does not go with"),
        ("power-square --store {here}/S --backend simulated --max-slowdown 5%", "no steady work"),
        ("--sweep {here}/sweep.csv --trials 5", "trials does not go with --sweep"),
        ("--sweep {here}/sweep.csv --max-latency 0", "more than 0 s"),
        ("--sweep {here}/sweep.csv --max-latency 16kg", "'16kg' is not a time"),
        ("--sweep {here}/sweep.csv", "say either how much slower it may be"),
        ("--sweep {here}/absent --max-slowdown 5%", "cannot be read"),
        *(
            (f"{{bound}} --knob {knob}", f"'{knob}' is no knob: write its name and numbers")
            for knob in ("n=x", "batch", "batch=", "batch=1,two", "batch=inf", "2x=1,2")
        ),
        ("{bound} --knob power_limit_w=100,200", "power_limit_w is a knob of the GPU, which whorl sets itself"),
        ("--max-slowdown 5% --knob batch=1,2 --command serve", "no place for the knob batch: write {batch}"),
        ("--max-slowdown 5% --knob batch=1,2 --command serve_${{batch}}", "no place for the knob batch"),
        (
            "--max-slowdown 5% --knob batch=1,2 --command serve_{{batch}}{{size}}",
            "has {size} and there is no knob size: state it, or write {{size}}",
        ),
        ("--max-slowdown 5% --knob batch=1,2 --command '{{batch}}", "cannot be split"),
        ("--max-slowdown 5% --knob batch=1,2 --command=", "the command is empty"),
        ("{bound} --knob n=1 --knob n=2", "two knobs have one name"),
        ("{bound} --set warm-start={here}/sweep.csv", "choose one workload"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(line: str, sentence: str, table: Path) -> None:
    bound = " ".join((*SIMULATED, *BOUND, "--store", f"{table.parent}/S"))
    assert sentence in refusal("tune", *line.format(here=table.parent, bound=bound).split())


def count(store: Path) -> int:
    """The runs of a store."""
    return int(package.Store.open(store).sql("select count(*) as n from runs").column("n")[0].as_py())


@pytest.mark.long
def test_a_probe_is_tuned_on_simulated_gpus_and_goes_on_from_its_log(tmp_path: Path) -> None:
    log, store = tmp_path / "trials", tmp_path / "S"
    words = (*SIMULATED, "--store", store, *BOUND, "--set", f"resume={log}")
    tuned = document(*words)
    assert (tuned["workload"], len(tuned["trials"]), len(tuned["gpus"])) == ("gemm-fp16", 5, 2)
    assert tuned["trials"][0]["setting"] == tuned["default"]
    assert tuned["low_saved_pct"] <= tuned["saved_pct"] <= tuned["high_saved_pct"]
    assert 0 < tuned["high_slower_pct"] < 31
    assert tuned["saved_pct"] > 0, "of this seed"
    assert tuned["within"]
    runs = count(store)
    again = document(*words)
    assert again == tuned
    assert count(store) == runs, "nothing is measured again"
    text = whorl(*words).stdout
    assert text.startswith("Set power limit")
    assert (
        f"{tuned['saved_pct']:.1f} % [{tuned['low_saved_pct']:.1f}, {tuned['high_saved_pct']:.1f}] less energy" in text
    )
    assert all(command in text for command in tuned["commands"])
    warm = document("gemm-fp16", "--backend", "simulated:gpus=1", "--suite", "quick", "--store", store,
                    "--max-slowdown", "10%", "--trials", "3", "--set", f"warm-start={log}")  # fmt: skip
    shares = {name: warm["trials"][1]["setting"][name] / warm["default"][name] for name in warm["default"]}
    assert min(shares.values()) > 0.5, "it begins where the other model is good, and not anywhere"
    bounded = whorl(*words[:-6], "--max-slowdown", "20%", *words[-4:])
    assert bounded.exit_code == 2
    assert "it is the log of another search" in bounded.stderr


@pytest.mark.long
def test_an_interrupt_says_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: ProgressBar, done: int, total: int, text: str) -> None:
        assert done < total
        assert text
        if done == 4:
            raise KeyboardInterrupt

    words = (*SIMULATED, "--store", tmp_path / "S", *BOUND, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "__call__", interrupt)
        lost = whorl(*words)
        ended = whorl(*words, "--set", f"resume={tmp_path / 'log'}")
    assert (lost.exit_code, ended.exit_code) == (130, 130)
    assert "with --set resume=FILE it can go on" in lost.stderr
    assert f"what was measured stays in {tmp_path / 'log'}" in ended.stderr
    assert len((tmp_path / "log").read_text().splitlines()) == 5, "the head and what was measured"
    assert whorl(*words, "--set", f"resume={tmp_path / 'log'}").exit_code == 0


@pytest.mark.long
def test_the_kernel_of_most_power_is_searched_beside_the_probes(tmp_path: Path) -> None:
    words = ("--stress", "power", "--backend", "simulated:gpus=1", "--trials", "4")
    tuned = document(*words, schema="tune.stress")
    assert (len(tuned["trials"]), len(tuned["gpus"]), tuned["kernel"]) == (4, 1, "stress")
    assert tuned["low"] <= tuned["value"] <= tuned["high"]
    assert tuned["best_probe"]["kernel"] in {probe["kernel"] for probe in tuned["probes"]}
    assert "--max-slowdown does not go with --stress" in refusal("tune --max-slowdown 5%", *words)


@pytest.fixture
def driver(nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> NvmlLibrary:
    """A V100 that works all the time, and a user who may not set it; rough figures of short runs do."""
    monkeypatch.setattr(tuning_command, "MOST_EDGE", 5)
    nvml.write("gpus 1", "model V100", "root no", "load 1 1")
    return nvml


@pytest.mark.long
def test_a_command_whose_gpu_cannot_be_set_is_tuned_by_its_own_knob(driver: NvmlLibrary) -> None:
    script = "sh -c 'echo whorl: begin; sleep 1; echo whorl: latency_ms=$((4 + {batch})) work=$(({batch} * {batch}))'"
    words = ("--command", script, "--knob", "batch=8,1,16,64", "--max-latency", "30ms", "--trials", "3")
    tuned = document(*words)
    assert tuned["setting"] == {"batch": 16.0}
    assert tuned["saved_pct"] == pytest.approx(75, abs=20), "a quarter of the energy, on a machine as busy as it may be"
    assert {knob["name"] for knob in tuned["unset"]} >= {"power_limit_w", "sm_clock_mhz"}


def test_without_a_knob_the_answer_is_a_plan_for_an_administrator(driver: NvmlLibrary) -> None:
    result = whorl("--command", "sleep 2", "--set", "unit-of-work=10", "--max-slowdown", "5%")
    assert result.exit_code == 2
    assert "no knob can be set here" in result.stderr
    assert "nvidia-smi -i 0 -pl W" in result.stdout
    assert "nvidia-smi -i 0 -lgc MIN,MAX" in result.stdout


@pytest.mark.long
def test_it_works_on_a_node_that_only_measures(tmp_path: Path) -> None:
    words = (*SIMULATED, "--store", tmp_path / "S", "--max-slowdown", "10%", "--trials", "3", "--json")
    done = run_without(NODE, COMMAND, "tune", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "whorl.tune/1"
