"""Worked examples on the published Longhorn files, computed beforehand with numpy, scipy and DuckDB."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl
import pytest

from whorl.analysis import Variability, variability
from whorl.tests.analysis.correlations import spearman
from whorl.tests.analysis.longhorn import needs_longhorn, runs

pytestmark = needs_longhorn


@cache
def table() -> dict[tuple[str, str], Variability]:
    return {(row.workload, row.level): row for row in variability(runs(), replicates=0)}


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
