"""Worked examples on the published Longhorn files, computed beforehand with numpy, scipy and DuckDB."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl
import pytest

from whorl.analysis import Variability, variability
from whorl.tests.analysis.correlations import pearson, spearman
from whorl.tests.analysis.longhorn import identities, needs_longhorn, runs

pytestmark = needs_longhorn


@cache
def table() -> dict[tuple[str, str], Variability]:
    return {(row.workload, row.level): row for row in variability(runs(), replicates=0)}


def test_gpu_level_correlations_are_those_of_gpu_medians() -> None:
    medians = runs("sgemm").group_by("gpu").agg(pl.col("value", "sm_clock_mhz", "power_w", "temperature_c").median())
    for name, column in (("sm_clock", "sm_clock_mhz"), ("power", "power_w"), ("temperature", "temperature_c")):
        found = table()["sgemm", "gpu"].correlation[name]
        assert found.spearman == pytest.approx(spearman(medians["value"], medians[column]), abs=1e-12)
        assert found.pearson == pytest.approx(pearson(medians["value"], medians[column]), abs=1e-12)


def test_process_numbers_are_no_jobs() -> None:
    # resnet50's own job_id has one chance repeat among 1,403: a group of two must not pass for a sample of jobs.
    frame = runs("resnet50").with_columns(job_id=pl.int_range(pl.len()).clip(1).cast(pl.String))
    found = variability(frame, replicates=0)[0].icc_job
    assert found.value is None
    assert found.reason == "fewer than half of the runs share their job with another GPU"


def test_split_half_agrees_with_a_plain_computation() -> None:
    ordered = runs("sgemm").with_row_index().sort("began", "index", nulls_last=True)
    ordered = ordered.with_columns(half=pl.int_range(pl.len()).over("gpu") % 2)
    halves = ordered.group_by("gpu", "half").agg(pl.col("value").median()).pivot("half", index="gpu").drop_nulls()
    found = table()["sgemm", "run"].split_half
    assert found["gpus"] == halves.height
    assert found["spearman"] == pytest.approx(spearman(halves["0"], halves["1"]), abs=1e-12)


def test_shares_use_a_place_known_from_any_run_and_say_how_many_runs_they_rest_on() -> None:
    both = table()["sgemm", "run"].shares
    assert both["n"] < 8803
    assert both["gpu"] > 0.9
    assert sum(both[level] for level in ("cabinet", "node", "gpu", "run")) == pytest.approx(1.0)
    alone = variability(runs("sgemm"), replicates=0)[0].shares
    # PageRank knows the place of GPUs for which SGEMM has only -1.
    assert alone["n"] <= both["n"]


def test_scaling_the_unit_scales_the_median_and_nothing_else() -> None:
    frame = runs("pagerank")
    ms = variability(frame, replicates=50)
    s = variability(frame.with_columns(pl.col("value") / 1000, unit=pl.lit("s")), replicates=50)
    for a, b in zip(ms, s, strict=True):
        assert b.median == pytest.approx(a.median / 1000)
        for name in ("fence_pct", "whisk_pct", "range_pct", "p95p5_pct", "cov_pct", "rcov_pct", "worst_over_median"):
            assert getattr(b, name) == pytest.approx(getattr(a, name))
        assert b.icc.value == pytest.approx(a.icc.value or np.nan)
        assert [mode["n"] for mode in b.modes] == [mode["n"] for mode in a.modes]
        assert b.interval["fence_pct"] == pytest.approx(a.interval["fence_pct"])


def test_what_runs_moves_clock_and_power_more_than_a_fault_does() -> None:
    """So `whorl collect`, which does not know what runs, raises no alarm of a GPU's level (docs/history.md)."""
    of = runs("sgemm", "resnet50", "bert")
    by_place = dict(identities().select("place", "gpu").iter_rows())
    logs = of.select("workload", pl.col("gpu").replace(by_place), "began", pl.col("sm_clock_mhz", "power_w").log())
    usual = logs.group_by("gpu", "workload").agg(pl.col("sm_clock_mhz", "power_w").median())
    both = usual.filter(pl.col("workload") == "resnet50").join(usual.filter(pl.col("workload") == "sgemm"), on="gpu")
    apart = both.select(pl.col(one) - pl.col(f"{one}_right") for one in ("sm_clock_mhz", "power_w")).median()
    assert both.height == 124
    assert np.expm1(apart["sm_clock_mhz"][0]) == pytest.approx(0.12, abs=0.005)
    assert np.expm1(apart["power_w"][0]) == pytest.approx(-0.34, abs=0.005)
    moves = logs.sort("gpu", "began").with_columns(
        pl.col("sm_clock_mhz", "power_w").diff().abs().over("workload", "gpu")
    )
    for workload, pairs, clock, power in (("resnet50", 1068, 0.011, 0.79), ("bert", 960, 0.0, 0.69)):
        some = moves.filter(pl.col("workload") == workload).drop_nulls("sm_clock_mhz")
        assert some.height == pairs
        assert some.select((pl.col("sm_clock_mhz") >= 0.02).mean()).item() == pytest.approx(clock, abs=0.001)
        assert some.select((pl.col("power_w") >= 0.05).mean()).item() == pytest.approx(power, abs=0.005)
