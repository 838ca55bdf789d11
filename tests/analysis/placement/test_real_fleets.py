"""Advice from the published Longhorn measurements comes true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from whorl.analysis import measurements
from whorl.analysis.placement import Gain, advise, scores
from whorl.store import Store
from whorl.tests.analysis.longhorn import needs_longhorn
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_longhorn
from whorl.tests.stores import new_store


@pytest.fixture(scope="module")
def longhorn(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("contract-longhorn", build_longhorn) / "store")


def _against(gains: tuple[Gain, ...], choice: str) -> Gain:
    return next(gain for gain in gains if (gain.choice, gain.against) == (choice, "random"))


@pytest.mark.long
@needs_longhorn
def test_what_the_first_half_of_the_runs_promises_comes_true_in_the_second(longhorn: Store, tmp_path: Path) -> None:
    """SGEMM runs over six weeks: advice from each GPU's earlier runs, judged by its later ones."""
    frame = measurements(longhorn, workloads=["sgemm"], run_ids=True).sort("began", nulls_last=True)
    place = pl.int_range(pl.len()).over("gpu")
    early = frame.filter(place < pl.len().over("gpu") // 2)
    late = frame.filter(place >= pl.len().over("gpu") // 2).group_by("gpu").agg(pl.col("value").median())
    store = new_store(tmp_path / "early")
    run_ids = early["run_id"].implode()
    store.append(
        {
            "runs": longhorn.collect(longhorn.scan("runs").filter(pl.col("run_id").is_in(run_ids))).to_arrow(),
            "results": longhorn.collect(longhorn.scan("results").filter(pl.col("run_id").is_in(run_ids))).to_arrow(),
            "gpus": longhorn.collect(longhorn.scan("gpus")).to_arrow(),
        },
        "early",
    )
    fleet_scores = scores(store, ["sgemm"])
    later = {str(gpu): value for gpu, value in late.iter_rows()}
    times = np.array([later[gpu] for gpu in fleet_scores.gpus])
    scored, usual = fleet_scores.of["sgemm"], times / np.median(times)
    # Held by the 90 % intervals: those of the runs at hand held half.
    assert np.mean((scored.lower <= usual) & (usual <= scored.upper)) > 0.85
    homed = np.array([node is not None for node in fleet_scores.nodes])
    for gpus in (1, 4, 16):
        spread = advise(fleet_scores, "sgemm", gpus=gpus).spread
        assert spread is not None
        chosen = np.array([gpu in spread.gpus for gpu in fleet_scores.gpus])
        rng = np.random.default_rng(0)
        random = np.mean([rng.choice(times[homed], gpus, replace=False).max() for _ in range(4000)])
        promised = _against(advise(fleet_scores, "sgemm", gpus=gpus).gains, "spread")
        assert 1.0 - times[chosen].max() / random == pytest.approx(promised.median, abs=0.012)
