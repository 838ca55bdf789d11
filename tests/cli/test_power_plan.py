"""`whorl advise power-plan` over stores that `whorl probe run` made of a simulated fleet, one GPU of it braked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whorl
from whorl.errors import InputError
from whorl.simulation.fleet import Fleet
from whorl.simulation.models import H100
from whorl.tests.cli import calling
from whorl.tests.cli.calling import refusal
from whorl.tests.cli.calling import whorl as call
from whorl.tests.conftest import BuiltOnce
from whorl.tests.hints import hints

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("stores_stay_open")]

SEED, GPUS = 21, 12
FLEET = ("--backend", f"simulated:model=H100,gpus={GPUS},seed={SEED}")
BRAKED = next(iter(Fleet.draw(H100, GPUS, SEED, faults=1, kinds=["brake"]).planted))
BRAKED_NODE = f"c001-{BRAKED // 4 + 1}"
HEALTHY = [f"c001-{node}" for node in range(1, 4) if f"c001-{node}" != BRAKED_NODE]
LIMITS = (650, 600)


def probe(store: Path, line: str) -> None:
    done = call(f"probe run --neighbours busy {line}", *FLEET, "--store", store)
    assert done.exit_code == 0, done.output


def asked(store: Path, hosts: str, *words: object, workload: str = "gemm-fp32") -> tuple[Any, ...]:
    return ("advise power-plan --store", store, "--hosts", hosts, "--workload", workload, *words)


@pytest.fixture(scope="module")
def store(built_once: BuiltOnce) -> Path:
    """A fleet under three limits, and in a workload that does not reach its limit."""

    def build(folder: Path) -> None:
        brake = "--backend simulated:fault=brake,faults=1"
        for limit in ("", *(f"--power-limit {limit}" for limit in LIMITS)):
            probe(folder / "store", f"gemm-fp32 --suite full {brake} {limit}")
        probe(folder / "store", f"stream-triad --suite quick {brake}")

    return built_once("power-plan", build) / "store"


def plan(store: Path, hosts: str, *words: object, workload: str = "gemm-fp32") -> dict[str, Any]:
    return calling.document(*asked(store, hosts, *words, workload=workload), schema="power-plan")


def test_a_limit_for_each_gpu_with_what_it_does_and_the_commands(store: Path) -> None:
    hosts = ",".join(HEALTHY[:2])
    document = plan(store, hosts)
    assert document["refused"] is None
    assert document["waits_for"] is None
    rows = document["rows"]
    assert [row["node"] for row in rows] == [node for node in HEALTHY[:2] for _ in range(4)]
    slowest = max(rows, key=lambda row: row["time_ms"])
    assert slowest["plan_limit_w"] == slowest["limit_w"] == 700
    for row in rows:
        assert row["held"]
        assert 600 <= row["plan_limit_w"] <= 700
        assert row["plan_limit_w"] % 5 == 0
    by_speed = sorted(rows, key=lambda row: row["time_ms"])
    limits = [row["plan_limit_w"] for row in by_speed]
    assert limits == sorted(limits), "the faster a GPU is, the lower its limit"
    assert document["low_saved_pct"] <= document["saved_pct"] <= document["high_saved_pct"]
    assert 1 < document["saved_pct"] < 9
    assert 0 <= document["low_slower_pct"] <= document["slower_pct"] <= document["high_slower_pct"] < 1.5
    assert document["plan_power_w"] < document["power_w"]
    assert 0 < document["noise_pct"] < 0.3
    assert document["class_gpus"] == GPUS - 1, "the braked GPU is not of the class's curve"
    assert document["class_limits_w"] == [600, 650, 700]
    expected = [
        {"node": row["node"], "command": f"nvidia-smi -i {row['gpu']} -pl {row['plan_limit_w']:g}"}
        for row in rows
        if row["plan_limit_w"] != 700
    ]
    assert document["commands"] == expected
    printed = call(*asked(store, hosts))
    assert all(line["command"] in printed.stdout.splitlines() for line in expected)
    reply = whorl.advise_power_plan(store, hosts=hosts, workload="gemm-fp32")
    assert reply.json() == document
    assert reply.frame.height == 8


def test_a_braked_gpu_is_named_before_the_plan_with_the_gain_of_exchanging_it(store: Path) -> None:
    waits = plan(store, f"{HEALTHY[0]},{BRAKED_NODE}")["waits_for"]
    assert len(waits["gpus"]) == 1
    assert 10 < waits["gpus"][0]["slower_pct"] < 25
    assert -25 < waits["low_slower_pct"] < waits["slower_pct"] < waits["high_slower_pct"] < -8
    assert waits["low_saved_pct"] < waits["saved_pct"] < waits["high_saved_pct"]
    answer = call(*asked(store, BRAKED_NODE))
    assert "lowest limit that the class was measured under" in answer.stderr
    printed = answer.stdout
    assert f"{BRAKED_NODE}/{BRAKED % 4}" in printed.splitlines()[0]
    assert printed.index("Exchange") < printed.index("nvidia-smi")


def test_a_budget_is_kept_and_the_present_power_makes_a_faster_job(store: Path) -> None:
    hosts = ",".join(HEALTHY)
    document = plan(store, hosts, "--budget", "5.2kW")
    assert document["plan_power_w"] <= document["budget_w"] == 5200
    assert document["power_w"] > 5200
    assert "0.00 to 0.04 %" in document["independent_jobs"]
    assert plan(store, hosts, "--budget", "1000W")["refused"] == "budget too low"
    below = plan(store, hosts, "--limit", 650)
    assert {row["limit_w"] for row in below["rows"]} == {650}
    assert max(row["plan_limit_w"] for row in below["rows"]) == 650
    same_power = plan(store, hosts, "--limit", 650, "--budget", f"{below['power_w']} W")
    assert same_power["slower_pct"] < 0
    assert max(row["plan_limit_w"] for row in same_power["rows"]) > 650


def test_a_class_without_curve_is_told_what_to_measure(tmp_path: Path) -> None:
    probe(tmp_path / "store", "gemm-fp32 --suite quick")
    sentence = refusal(*asked(tmp_path / "store", "c001-1"))
    assert "3 or more GPUs" in sentence
    (words,) = hints(sentence)
    assert (words[:3], words[-2:]) == (["probe", "run", "gemm-fp32"], ["--power-limit", "665"])
    with pytest.raises(InputError, match="3 or more GPUs"):
        whorl.advise_power_plan(tmp_path / "store", hosts="c001-1", workload="gemm-fp32")


def test_imported_work_is_told_how_it_gets_runs_without_a_probe(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    rows = [f"G{n},n1,{n},sgemm,{100 + n},295,300,{mhz}" for n, mhz in enumerate((1400, 1400, 1400, ""))]
    names = {"gpu": "gpu", "host": "node", "slot": "slot", "app": "workload", "ms": "time:ms", "watts": "power:W",
             "limit": "power_limit:W", "mhz": "sm_clock:MHz"}  # fmt: skip
    expected = asked(tmp_path / "store", "n1", workload="sgemm")

    def imported(*, clocks: bool) -> str:
        table.write_text("\n".join([",".join(names), *(row if clocks else row[: row.rindex(",") + 1] for row in rows)]))
        words = [word for column, meaning in names.items() for word in ("--map", f"{column}={meaning}")]
        done = call("import --model V100 --store", tmp_path / "store", *words, table)
        assert done.exit_code == 0, done.output
        return call(*expected, "--limit", 300).stderr

    without_clocks = imported(clocks=False)
    assert "the clock of the runs of sgemm on n1 is not known" in without_clocks
    assert "--limit" in call(*expected).stderr, "the present limit is not known"
    assert hints(without_clocks) == []
    assert "whorl probe run" not in without_clocks
    assert "import its times with columns for power, SM clock and power limit" in without_clocks


def test_gpus_of_two_models_have_no_plan(tmp_path: Path) -> None:
    for model in ("H100", "V100"):
        backend = f"--backend simulated:model={model},gpus=4"
        done = call(f"probe run launch --suite quick --cluster both {backend} --store", tmp_path / "store")
        assert done.exit_code == 0, done.output
    assert "H100-SXM5 and V100-SXM2" in refusal(*asked(tmp_path / "store", "c001-1", workload="launch"))
