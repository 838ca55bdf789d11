"""One model under all of it: every command says the same level of a GPU, with the same interval."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from whorl.analysis.one_gpu.explain import explain
from whorl.analysis.placement import scores
from whorl.analysis.placement.scores import in_another_sitting
from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts import Level, Smallest, State
from whorl.analysis.verdicts.difference import difference
from whorl.analysis.verdicts.fingerprint import fingerprint
from whorl.analysis.verdicts.judge import judge, judged
from whorl.analysis.verdicts.model import Model
from whorl.analysis.verdicts.plan import planned
from whorl.analysis.verdicts.verdict import Gap
from whorl.analysis.verdicts.watch import known
from whorl.dashboards.documents.verdicts import least
from whorl.store.schema import arrow_rows
from whorl.tests.analysis.verdicts.made import Change, fleet
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, judged_store, uuid

BATCH = 40
"""The first GPU with another VBIOS, which makes them 3 % slower."""


@pytest.mark.long
def test_every_command_says_the_same_level_and_interval_of_a_gpu(tmp_path: Path) -> None:
    slow = BATCH + 2
    store = judged_store(
        tmp_path / "S", 64, (0, 2), slow={slow: 0.12}, time=lambda gpu, day: 1.03 if gpu >= BATCH else 1.0,
        runs=lambda gpu: 3, spread=0.001, noise=0.001,
    )  # fmt: skip
    boards = {"cluster": [CLUSTER] * 64, "gpu": [uuid(gpu) for gpu in range(64)], "first_seen": [BEGAN_NS + 1] * 64}
    boards["vbios"] = ["new" if gpu >= BATCH else "old" for gpu in range(64)]
    store.append({"gpus": arrow_rows("gpus", boards)}, "boards")
    judgement = judge(store)
    [verdict] = [entry for entry in judgement.rows if entry.level == "gpu"]
    assert verdict.effect_pct is not None
    assert any(entry.level == "batch" and len(entry.gpus) == 64 - BATCH for entry in judgement.rows)
    workload = verdict.workloads[0]
    expected = pytest.approx((verdict.effect_pct, verdict.low_pct, verdict.high_pct, verdict.n))

    [place] = [entry for entry in explain(store, verdict.name).places if entry.workload == workload]
    assert (place.effect_pct, place.low_pct, place.high_pct, place.peers) == expected

    rows = fingerprint(Model(probed(store, every=True)))
    of_gpu = (pl.col("gpu") == uuid(slow)) & (pl.col("workload") == workload) & (pl.col("figure") == "time")
    row = rows.row(by_predicate=of_gpu, named=True)
    assert (*(100 * (row[f"ratio{end}"] - 1) for end in ("", "_low", "_high")), row["peers"]) == expected

    level = known(store, [uuid(slow)], [workload]).levels[uuid(slow)][workload]
    assert (level.own_ms, level.low_ms, level.high_ms) == pytest.approx((row["value"], row["low"], row["high"]))
    assert level.peers_ms == pytest.approx(row["value"] / row["ratio"])

    # Placement gives times over the whole fleet's and believes less than was measured, but its level is the same one.
    # So is the batch that a GPU is compared with, and what another sitting may bring.
    score = scores(store, [workload]).of[workload]
    at = score.raw / score.raw[slow]
    times = rows.filter((pl.col("workload") == workload) & (pl.col("figure") == "time")).sort("gpu")["value"].to_numpy()
    assert np.sort(at) == pytest.approx(np.sort(times / row["value"]))
    campaign = probed(store, every=True)
    judged = next(figure for figure in Model(campaign).times if figure.workload == workload)
    number = int(np.argmax(score.raw))
    unit = score.unit[number]
    assert 100 * (score.slow(score.raw)[slow] - 1) == pytest.approx(verdict.effect_pct, abs=0.1)
    assert [entry.vbios for entry in score.references] == ["old", "new"]
    belief = score.slow(score.belief)[number]
    long_run = (score.posterior.lower[unit], score.posterior.upper[unit])
    ends = [end[number] for end in in_another_sitting(judged.levels, belief, *long_run)]
    assert [score.slow(ends_)[number] for ends_ in (score.lower, score.upper)] == pytest.approx(ends)

    day = datetime.fromtimestamp(BEGAN_NS / 1e9, UTC).replace(tzinfo=None)
    changes = difference(store, day + timedelta(days=1), day + timedelta(days=1))
    [step] = [entry for entry in changes.steps if entry.workload == workload]
    assert (step.n, step.moved) == (64, 0)
    plan = planned(store, [workload], budget_s=1e6, seconds=1.0, now=day + timedelta(days=3))
    assert plan.decided.get("slow", 0) + sum(entry.slow_chance > 0.5 for entry in plan.gpus) == 1


@pytest.mark.parametrize(("days", "state"), [((0,), State.SUSPECTED), ((0, 2), State.CONFIRMED)])
def test_a_batch_is_confirmed_where_two_days_show_it(days: tuple[int, ...], state: State, tmp_path: Path) -> None:
    store = judged_store(
        tmp_path / "S", 32, days, time=lambda gpu, day: 1.03 if gpu >= 20 and (gpu != 21 or day == 0) else 1.0,
        spread=0.001, noise=0.001,
    )  # fmt: skip
    boards = {"cluster": [CLUSTER] * 32, "gpu": [uuid(gpu) for gpu in range(32)], "first_seen": [BEGAN_NS + 1] * 32}
    boards["vbios"] = ["new" if gpu >= 20 else "old" for gpu in range(32)]
    store.append({"gpus": arrow_rows("gpus", boards)}, "boards")
    (batch,) = [row for row in judge(store).rows if row.level is Level.BATCH]
    assert (batch.name, batch.state) == ("vbios new", state)


def made(seed: int, changes: Mapping[int, Mapping[str, Change]] | None = None, sittings: int = 3) -> Probed:
    result = fleet(changes, gpus=16, seed=seed, sittings=sittings)
    none = [pl.lit(None, pl.String).alias(name) for name in ("vbios", "driver", "job_id")]
    runs = result.runs.with_columns(*none, probe_version=pl.lit("1"))
    return replace(result, gpus=result.gpus.with_columns(none), runs=runs)


def told(campaign: Probed, workload: str = "gemm") -> Smallest:
    [row] = [row for row in judged(campaign).smallest if row.workload == workload]
    return row


def middle(campaign: Probed, workload: str) -> int:
    """The GPU that is most like its peers, at its clock and in all."""
    times = [figure for figure in Model(campaign).figures if figure.timed and figure.workload == workload]
    return int(np.argmin(np.sum([np.abs(figure.effect) for figure in times], axis=0)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_larger_effect_is_named_and_a_smaller_one_is_not(seed: int) -> None:
    healthy = made(seed)
    limit = told(healthy)
    assert limit.pct is not None
    assert limit.any_clock_pct is not None
    assert 1 <= limit.pct <= limit.any_clock_pct
    assert (limit.gpus, limit.sittings) == (16, 3)
    gpu = middle(healthy, "gemm")
    for share, is_named in ((0.6, False), (1.5, True)):
        slow = made(seed, {gpu: {"gemm": {"slower": 1 + share * limit.pct / 100}}})
        rows = judged(slow).rows
        assert any(row.name == f"n{gpu // 4}/{gpu % 4}" and "gemm" in row.workloads for row in rows) is is_named


def test_one_run_of_each_gpu_names_none() -> None:
    row = told(made(1, sittings=1))
    assert (row.pct, row.any_clock_pct) == (None, None)
    assert row.why is Gap.ALONE


def test_judging_does_not_load_what_takes_a_second_to_import() -> None:
    """A store of 64 GPUs is judged in a second: `scipy.stats` alone takes as long to import."""
    code = (
        "import sys\nimport whorl.analysis.verdicts.judgements, whorl.dashboards.answers.judging\n"
        "from whorl.analysis.verdicts.null import Null\nimport numpy\n"
        "Null(numpy.random.default_rng(1).normal(0, 0.01, 64), 1e-4).p(numpy.array([0.05]))\n"
        "print(*sorted({'scipy.stats', 'whorl.store.importing.importer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_a_lower_clock_hides_is_told_beside_what_a_usual_clock_hides() -> None:
    limit = Smallest("gemm", None, 4.9, any_clock_pct=14.0, gpus=16, sittings=3, why=None)
    says = "Too small to see: a GPU slower by less than about 4.9 % in gemm ("
    assert least([limit]) == says + "14.0 % at a lower clock; 16 GPUs, 3 sittings each)."
    assert least([replace(limit, any_clock_pct=4.94)]) == says + "16 GPUs, 3 sittings each)."
