"""The smallest effect that could have been named: what is a little larger is named, what is smaller is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import Probed
from whorl.analysis.verdicts import Smallest
from whorl.analysis.verdicts.judge import judged
from whorl.analysis.verdicts.model import Model
from whorl.analysis.verdicts.verdict import Gap
from whorl.tests.analysis.verdicts.made import Change, fleet


def made(seed: int, changes: Mapping[int, Mapping[str, Change]] | None = None, sittings: int = 3) -> Probed:
    found = fleet(changes, gpus=16, seed=seed, sittings=sittings)
    none = [pl.lit(None, pl.String).alias(name) for name in ("vbios", "driver", "job_id")]
    runs = found.runs.with_columns(*none, probe_version=pl.lit("1"))
    return replace(found, gpus=found.gpus.with_columns(none), runs=runs)


def told(campaign: Probed, workload: str = "gemm") -> Smallest:
    [one] = [one for one in judged(campaign).smallest if one.workload == workload]
    return one


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
    for share, named in ((0.6, False), (1.5, True)):
        slow = made(seed, {gpu: {"gemm": {"slower": 1 + share * limit.pct / 100}}})
        rows = judged(slow).rows
        assert any(row.name == f"n{gpu // 4}/{gpu % 4}" and "gemm" in row.workloads for row in rows) is named


def test_one_run_of_each_gpu_names_none() -> None:
    one = told(made(1, sittings=1))
    assert (one.pct, one.any_clock_pct) == (None, None)
    assert one.why is Gap.ALONE
