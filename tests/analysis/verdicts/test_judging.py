"""The judge on real files: who is named on Longhorn, and what is not judged."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts import Judgement, Kind, Level, State
from whorl.analysis.verdicts.fingerprint import fingerprint
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.model import Model
from whorl.analysis.verdicts.verdict import Gap
from whorl.store import Store
from whorl.tests.analysis.longhorn import needs_longhorn, runs
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_longhorn

pytestmark = needs_longhorn


@pytest.fixture(scope="module")
def files(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("contract-longhorn", build_longhorn) / "store")


@pytest.fixture(scope="module")
def longhorn(files: Store) -> Judgement:
    return judge(files)


@pytest.mark.long
def test_hot_gpus_of_longhorn_are_thermal(longhorn: Judgement) -> None:
    hot = {row.name[:12] for row in longhorn.rows if row.kind is Kind.HOT and row.state is State.CONFIRMED}
    assert hot == {"GPU-87570fdd", "GPU-01f6142b", "c008-11/2", "c008-3/3"}
    for row in longhorn.rows:
        if row.kind is Kind.HOT:
            assert row.causes[0].what == "heat"
            assert sum(one.pct for one in row.causes) == pytest.approx(row.effect_pct)


@pytest.mark.long
def test_no_gpu_is_named_where_jobs_couple_gpus(longhorn: Judgement) -> None:
    assert not [row for row in longhorn.rows if {"resnet", "bert"} & set(row.workloads)]
    for workload in ("resnet", "bert"):
        assert any(one.subject == workload and one.why is Gap.JOBS for one in longhorn.not_judged)


@pytest.mark.long
def test_the_fast_revision_of_longhorn_is_one_batch(longhorn: Judgement) -> None:
    (batch,) = [row for row in longhorn.rows if row.level is Level.BATCH]
    assert (batch.kind, batch.workloads, len(batch.gpus)) == (Kind.FAST, ("pagerank",), 28)


@pytest.mark.long
def test_every_verdict_has_evidence(longhorn: Judgement) -> None:
    assert longhorn.rows
    for row in longhorn.rows:
        assert row.runs
        assert row.action
        assert row.first_seen is not None
        if row.low_pct is not None and row.high_pct is not None and row.effect_pct is not None:
            assert row.low_pct <= row.effect_pct <= row.high_pct


@pytest.mark.long
def test_what_jobs_do_to_times_is_no_spread_of_a_gpu(files: Store) -> None:
    """Its two sittings of SGEMM differ by 0.26 %; those of the ResNet jobs that it was in, by 4.8 %."""
    gpu = "GPU-b3fc68e5-25d0-8406-47ed-49613e4a207b"
    found = fingerprint(Model(probed(files, every=True))).filter(pl.col("figure") == "time_spread")
    [own] = found.filter(pl.col("gpu") == gpu)["value"]
    times = runs("sgemm").filter(pl.col("gpu") == gpu)
    pause = pl.col("began").diff().dt.total_hours().fill_null(0) >= 6
    sittings = times.sort("began").group_by(pause.cum_sum()).agg(pl.col("value").log().median())["value"]
    assert len(sittings) == 2
    assert own == pytest.approx(100 * np.std(sittings.to_numpy(), ddof=1), rel=0.05)


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
