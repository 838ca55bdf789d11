"""Where a GPU stands: its fingerprint beside the quantiles of its peers, stored or computed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.one_gpu.standing import figures, standings, times
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprint, fingerprints
from whorl.analysis.verdicts.model import Model
from whorl.store import Store
from whorl.store.vocabulary import EventKind
from whorl.tests.judged_fleet import CLUSTER, judged_store, uuid

SLOW = 5


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """16 GPUs on three days, one of them 12 % slower; nobody stored fingerprints."""
    return judged_store(tmp_path_factory.mktemp("standing") / "S", 16, (0, 2, 4), slow={SLOW: 0.12})


@pytest.mark.long
def test_a_figure_has_its_place_in_the_quantiles_of_all_gpus_of_its_model(fleet: Store) -> None:
    fleet_figures = figures(fleet, CLUSTER)
    assert fleet_figures is not None
    assert fleet_figures.rows is not None
    assert fleet_figures.made_at is None
    of_gpu = {
        (standing.workload, standing.figure): standing for standing in standings(fleet, fleet_figures, uuid(SLOW))
    }
    time = of_gpu["gemm-fp32", "time"]
    values = fleet_figures.rows.filter((pl.col("workload") == "gemm-fp32") & (pl.col("figure") == "time"))
    assert time.band == pytest.approx(np.quantile(values["value"], (0.05, 0.25, 0.5, 0.75, 0.95)))
    assert (time.gpus, time.peers, time.n, time.sittings, time.rank) == (16, 16, 3, 3, 16)
    assert time.off_pct is not None
    assert time.off_low_pct is not None
    assert time.off_high_pct is not None
    assert time.off_low_pct < 12 < time.off_high_pct
    assert time.band_pct is not None
    assert time.band_pct[3] < 2 < time.off_pct
    assert len(time.runs) == 3
    assert of_gpu[None, "xids"].value == 0
    assert of_gpu[None, "xids"].off_pct is None


@pytest.mark.long
def test_what_is_stored_counts_and_says_the_same_as_what_is_computed(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 9, (0, 2), slow={SLOW: 0.12})
    computed = figures(store, CLUSTER)
    fingerprints(store)
    stored = figures(store, CLUSTER)
    assert computed is not None
    assert stored is not None
    assert stored.made_at is not None
    assert stored.rows is None
    assert standings(store, stored, uuid(SLOW)) == standings(store, computed, uuid(SLOW))
    judged_store(tmp_path / "S", 9, (5,), seed=2)  # what came since is not in it
    times_ = times(standings(store, stored, uuid(SLOW)))
    assert {standing.n for standing in times_} == {2}
    assert [standing.off_pct for standing in times_] == sorted(
        (standing.off_pct or math.nan for standing in times_), reverse=True
    )


def test_errors_that_nobody_watched_for_are_not_known(tmp_path: Path) -> None:
    campaign = probed(judged_store(tmp_path / "S", 4, (0,)), every=True)
    runs = campaign.runs.with_columns(pl.lit(None, pl.String).alias("probe_version"))
    xids = pl.DataFrame([{"gpu": uuid(1), "kind": EventKind.XID.value}], schema=campaign.events.schema)

    def counted(rows: pl.DataFrame, figure: str, gpu: int) -> tuple[Any, ...]:
        row = rows.filter((pl.col("figure") == figure) & (pl.col("gpu") == uuid(gpu)))
        return row.select("value", "rank", "peers").row(0)

    watched = fingerprint(Model(campaign))
    imported = fingerprint(Model(replace(campaign, runs=runs, events=xids)))
    assert counted(watched, "xids", 2) == counted(watched, "losses", 2) == (0, 1, 4)
    assert counted(imported, "xids", 2)[:2] == counted(imported, "losses", 2)[:2] == (None, None)
    assert counted(imported, "xids", 1) == (1, 1, 1), "an imported file told of it"
    assert counted(imported, "failed_runs", 2) == (0, 1, 4)
