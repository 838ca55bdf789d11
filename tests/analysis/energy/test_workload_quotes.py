"""Quotes of a workload before it has run, and of a job whose workload ran under caps: simulated GPUs, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import whorl
from whorl.analysis.energy.choices.quoting import Option, Ran, caps
from whorl.analysis.power_classes import Curve, curve_of_runs, own_runs
from whorl.cli import cli
from whorl.cli.answers.measuring import measure
from whorl.errors import InputError
from whorl.store import Store
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import ACCOUNTED, SITTING_S, job

LIMITS_W = (None, 630, 560, 490, 385)
"""Of an H100, whose default is 700 W; 60 % of it, 420 W, is what is predicted."""


def run(store: Path, *, limit_w: float | None = None, lock_mhz: float | None = None, **fleet: Any) -> None:
    measure(store, "gemm-fp32", backend="simulated", suite="quick", gpus=2, power_limit=limit_w, lock_clock=lock_mhz,
            **({"model": "H100"} | fleet))  # fmt: skip


@pytest.fixture(scope="module")
def measured(built_once: BuiltOnce) -> Path:
    """Two H100 under several limits, and locked clocks of which one draws less than 60 % of the limit. Job 7 ran the
    workload at the default limit."""

    def build(folder: Path) -> None:
        for limit_w in LIMITS_W:
            with pytest.MonkeyPatch.context() as patch:
                if limit_w is None:
                    patch.setenv("SLURM_JOB_ID", "7")
                run(folder, limit_w=limit_w)
        accounts = folder.parent / "workload-quotes-sacct.txt"
        accounts.write_text("\n".join([ACCOUNTED, job(7, "c001-1", SITTING_S, seconds=14, gpus=2), ""]))
        imported = ("--file", str(accounts), "--cluster", "simulated-H100-1", "--gpus-per-node", "2")
        result = CliRunner().invoke(cli, ["jobs", "import", "--store", str(folder), *imported])
        assert result.exit_code == 0, result.output
        run(folder, lock_mhz=1200)
        run(folder, lock_mhz=1600, limit_w=600)

    return built_once("workload-quotes", build)


def quoted(store: Path, *words: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["energy", "quote", "--store", str(store), *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def failure(store: Path, *words: str) -> str:
    result = CliRunner().invoke(cli, ["energy", "quote", "--store", str(store), *words])
    assert result.exit_code != 0
    return str(result.exception if isinstance(result.exception, InputError) else result.output)


def test_a_cap_of_a_workload_is_quoted_within_ten_per_cent_and_the_truth_lies_in_it(
    measured: Path, tmp_path: Path
) -> None:
    document = quoted(measured, "--workload", "gemm-fp32", "--gpus", "1", "--time", "2h", "--cap", "60%")
    default, capped, _ = document["rows"]
    assert (default["option"], default["duration_s"], default["n"]) == ("default", 7200.0, 2)
    assert (capped["what"], capped["basis"], capped["n"]) == ("420 W (60 %)", "gemm-fp32 itself", 14)
    for of in (default, capped):
        assert (of["high_j"] - of["low_j"]) / 2 < 0.1 * of["energy_j"]
    for limit_w in (None, 420):
        run(tmp_path / "truth", limit_w=limit_w)
    runs = own_runs(Store.open(tmp_path / "truth"), workload="gemm-fp32").sort("gpu", "cap_w")
    energy, time = (runs[name].to_numpy().reshape(2, 2) for name in ("energy_j", "time_s"))
    ratio = capped["energy_j"] / default["energy_j"]
    assert ratio == pytest.approx(float((energy[:, 0] / energy[:, 1]).mean()), rel=0.03)
    for slower in time[:, 0] / time[:, 1]:
        assert capped["duration_low_s"] <= 7200 * slower <= capped["duration_high_s"]


def test_energy_follows_the_gpus_and_grams_and_money_follow_the_energy(measured: Path, tmp_path: Path) -> None:
    settings = tmp_path / "energy.toml"
    settings.write_text(
        'zone = "XX"\npue = 1.5\ncurrency = "EUR"\nprice = 0.2\nhost_w = 100\n'
        '[[factor]]\nzone = "XX"\ng_per_kwh = 400\nsource = "test"\nyear = 2026\n'
    )
    words = ("--workload", "gemm-fp32", "--settings", str(settings), "--gpus")
    of_one, of_eight = (quoted(measured, *words, gpus)["rows"] for gpus in ("1", "8"))
    for one, eight in zip(of_one, of_eight, strict=True):
        if one["energy_j"] is None or one["option"] == "start":
            continue
        assert eight["energy_j"] == pytest.approx(8 * one["energy_j"])
        kwh = 1.5 * (one["energy_j"] + 100 * one["duration_s"]) / 3.6e6
        assert one["co2e_g"] == pytest.approx(400 * kwh)
        assert one["cost"] == pytest.approx(0.2 * kwh)
    relative = [(rows[0]["high_j"] - rows[0]["low_j"]) / rows[0]["energy_j"] for rows in (of_one, of_eight)]
    assert relative[1] < relative[0]  # GPUs differ, and their mean is known better
    whats = [row["what"] for row in of_one if row["option"] == "cap"]
    assert whats == ["630 W (90 %)", "560 W (80 %)", "490 W (70 %)", "420 W (60 %)", "350 W (50 %)"]


def test_what_cannot_be_quoted_is_said_with_what_to_do(measured: Path, tmp_path: Path) -> None:
    assert "whorl tune gemm-fp16 --store" in failure(measured, "--workload", "gemm-fp16")
    assert "name one of --job and --workload" in failure(measured)
    assert "name one of --job and --workload" in failure(measured, "--job", "1", "--workload", "gemm-fp32")
    assert "--gpus works only with --workload" in failure(measured, "--job", "1", "--gpus", "2")
    assert "--since works only with --job" in failure(measured, "--workload", "gemm-fp32", "--since", "1d")
    assert "no run of gemm-fp32 at the default power limit on B200" in failure(
        measured, "--workload", "gemm-fp32", "--model", "B200"
    )
    with pytest.raises(InputError, match="share of the limit"):
        whorl.energy_quote(measured, workload="gemm-fp32", cap=60)
    few = tmp_path / "few"
    run(few)
    run(few, model="V100")
    assert "choose one with --model and --cluster" in failure(few, "--workload", "gemm-fp32")
    reply = whorl.energy_quote(few, workload="gemm-fp32", cluster="simulated-V100-1")
    assert any("from other workloads" in note for note in reply.notes)
    assert reply.frame.filter(pl.col("option") == "cap")["energy_j"].null_count() > 0


def test_a_job_that_ran_is_quoted_from_the_curve_of_its_workload(measured: Path) -> None:
    rows = [row for row in quoted(measured, "--job", "7", "--cap", "60%")["rows"] if row["option"] == "cap"]
    assert [(row["what"], row["basis"], row["n"]) for row in rows] == [("420 W (60 %)", "gemm-fp32 itself", 14)]
    assert rows[0]["low_j"] < rows[0]["energy_j"] < rows[0]["high_j"]


def test_a_job_of_a_workload_with_an_own_curve_is_quoted_from_it(measured: Path) -> None:
    itself = curve_of_runs(own_runs(Store.open(measured), workload="gemm-fp32"))
    assert itself is not None
    joules = 650.0 * 3600
    ran = Ran("c", ("H100-SXM5",), 1, 3600.0, 3600.0, joules, joules, joules, 0.0, 1.0, "compute", "gemm-fp32", 700.0,
              None, None)  # fmt: skip
    shares = np.array([0.3, 0.6, 1.0])
    others = [Curve(name, "s", 0.9, shares, np.array([3.0, time, 1.0]), np.array([0.3, 0.6, 1.0]))
              for name, time in (("a", 1.1), ("b", 1.9))]  # fmt: skip
    without, with_curve = (caps(ran, others, curve, shares=(0.6, 0.4))[0] for curve in (None, itself))
    assert with_curve.option == Option.CAP
    assert (with_curve.basis, without.basis) == ("gemm-fp32 itself", "a, b")
    for quote, most in ((with_curve, 0.1), (without, np.inf)):
        assert quote.energy_j is not None
        assert quote.low_j is not None
        assert quote.high_j is not None
        assert (quote.high_j - quote.low_j) / 2 < most * quote.energy_j
    assert caps(ran, others, itself, shares=(0.4,))[0].basis == "a, b"  # below what was measured
    under_cap = caps(replace(ran, limit_w=560.0), others, itself, shares=(0.75,))[0]
    assert under_cap.time_s is not None
    assert with_curve.time_s is not None
    assert 3600 < under_cap.time_s < with_curve.time_s  # from 560 W to 420 W
