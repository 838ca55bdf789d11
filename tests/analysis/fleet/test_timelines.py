"""Telemetry of a GPU stands beside that of all GPUs in the same probe, whenever each of them ran it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest

from whorl.analysis.fleet.timelines import timelines
from whorl.analysis.runs.probing import probed
from whorl.store import Store
from whorl.tests.probed_fleet import RUN_S, stored

LATER = pl.duration(seconds=3 * RUN_S)


def test_a_gpu_that_begins_each_probe_later_is_compared_in_the_same_probe(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 16, 3)
    campaign = probed(store)
    late, calm = campaign.gpus["gpu"][0], campaign.gpus["gpu"][1]
    second = campaign.runs.filter(pl.col("gpu") == late)["began"].sort()[1]

    def delayed(name: str) -> pl.Expr:
        after = (pl.col("gpu") == late) & (pl.col(name) >= second)
        return pl.when(after).then(pl.col(name) + LATER).otherwise(pl.col(name)).alias(name)

    runs = campaign.runs.with_columns(
        delayed("began"), (pl.col("ended") + (delayed("began") - pl.col("began"))).alias("ended")
    )
    moved = SimpleNamespace(scan=lambda table: store.scan(table).with_columns(delayed("ts")), collect=store.collect)
    lines = timelines(cast("Store", moved), replace(campaign, runs=runs), [late, calm])
    assert lines is not None
    compared = 0
    for late_window, others in zip(lines.windows[late], lines.windows[calm], strict=True):
        assert late_window.probe == others.probe
        inside = {
            gpu: (lines.time_s > window.began_s) & (lines.time_s < window.ended_s)
            for gpu, window in ((late, late_window), (calm, others))
        }
        for metric in ("power_w", "temperature_c"):
            late_w, calm_w = (lines.fleet[gpu][metric][inside[gpu]] for gpu in (late, calm))
            late_w, calm_w = late_w[np.isfinite(late_w)], calm_w[np.isfinite(calm_w)]
            assert bool(len(late_w)) is bool(len(calm_w))
            if len(late_w):
                compared += 1
                assert np.median(late_w) == pytest.approx(np.median(calm_w), rel=0.03)
    assert compared > 4
    waiting = (lines.time_s > lines.windows[late][0].ended_s + 1) & (lines.time_s < lines.windows[late][1].began_s - 1)
    assert waiting.any()
    assert np.isnan(lines.fleet[late]["power_w"][waiting]).all(), "no other GPU waited there: nothing to compare with"
