"""What `histories` finds in stores whose past is known, and what it says where it cannot judge."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from whorl.analysis import measurements
from whorl.analysis.runs.probing import probed
from whorl.analysis.runs.sittings import Sittings, sittings
from whorl.analysis.verdicts.changes import ALARM, own_past, search
from whorl.analysis.verdicts.history import DepartureKind, Histories, histories
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.judgements import conclude, newest, record
from whorl.analysis.verdicts.levels import RELEVANT, Noise, estimate
from whorl.analysis.verdicts.model import Model
from whorl.analysis.verdicts.verdict import Gap, Kind, Level, Measured, NotJudged, Quantity, State
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.analysis.longhorn import needs_longhorn, runs
from whorl.tests.stores import new_store

BEGAN = datetime(2026, 1, 5)  # noqa: DTZ001  times in tables have no zone
NOW = datetime(2026, 12, 1, tzinfo=UTC)


class Past:
    """The runs of a small fleet of four GPUs a node, week by week, with quiet noise."""

    def __init__(self, gpus: int = 48, weeks: int = 8, runs: int = 3, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        shape = (gpus, weeks, runs)
        self.times = 100 * (1 + 0.02 * rng.normal(size=(gpus, 1, 1)) + 0.001 * rng.normal(size=(gpus, weeks, 1)))
        self.times = self.times + 0.08 * rng.normal(size=shape)
        self.began = np.array(
            [[[BEGAN + timedelta(weeks=w, minutes=10 * r) for r in range(runs)] for w in range(weeks)]] * gpus
        )
        self.temperature = np.full(shape, 60.0)
        self.job: list[str | None] = [None] * int(np.prod(shape))
        self.probe_version: str | None = None
        self.conditions: dict[str, Any] | None = None
        self.identities: list[dict[str, Any]] = [
            {"gpu": f"g{i:02}", "node": f"n{i // 4}", "slot": i % 4, "driver": "535", "first_seen": BEGAN}
            for i in range(gpus)
        ]

    def stored(self, path: Path) -> Store:
        store = new_store(path)
        n = self.times.size
        gpu = [f"g{i:02}" for i in np.indices(self.times.shape)[0].ravel()]
        ids = [f"r{i}" for i in range(n)]
        runs = {
            "run_id": ids, "cluster": ["c"] * n, "workload": ["gemm"] * n, "gpu": gpu, "job_id": self.job,
            "began": pa.array(self.began.ravel().tolist(), pa.timestamp("ns")),
            "temperature_c": self.temperature.ravel(), "status": ["ok"] * n,
            "probe_version": pa.array([self.probe_version] * n, pa.string()),
            "conditions": arrow_rows("runs", {"conditions": [self.conditions] * n})["conditions"],
        }  # fmt: skip
        results = {"run_id": ids, "figure": ["time"] * n, "repeat": [0] * n, "value": self.times.ravel()}
        gpus = pl.DataFrame([{"cluster": "c", **identity} for identity in self.identities], infer_schema_length=None)
        gpus = gpus.with_columns(pl.col("slot").cast(pl.Int64))
        tables = {"runs": pa.table(runs), "results": pa.table(results), "gpus": gpus.to_arrow()}
        store.append(tables, "made")
        return store

    def found(self, path: Path) -> Histories:
        store = self.stored(path)
        return histories(Model(probed(store, every=True), now=NOW), store)


def test_a_gpu_that_became_slower_is_found_with_its_date(tmp_path: Path) -> None:
    past = Past()
    past.times[7, 5:] *= 1.03
    past.temperature[7, 5:] = 75.0
    (change,) = past.found(tmp_path / "S").changes
    assert (change.gpu, change.kind, change.state) == ("g07", DepartureKind.CHANGE, State.CONFIRMED)
    assert change.low_pct is not None
    assert change.high_pct is not None
    assert change.low_pct < 3.0 < change.high_pct
    assert abs(change.effect_pct - 3.0) < 0.5
    assert change.since == BEGAN + timedelta(weeks=4)
    assert change.at == BEGAN + timedelta(weeks=5)
    assert set(change.runs) == {f"r{7 * 24 + i}" for i in range(15, 24)}
    [moved] = [value for value in change.joined_with if value.figure == Quantity.TEMPERATURE]
    assert [moved.peers, moved.value] == pytest.approx([60, 75], abs=0.5)


def test_dates_of_change_are_stored_for_better_and_for_worse(tmp_path: Path) -> None:
    past = Past()
    past.times[7, 5:] *= 1.03
    past.times[9, 3:] *= 0.96
    store = past.stored(tmp_path / "S")
    reported = conclude(store).judgements
    assert newest(store) == [replace(reported[0], watch=(), peers=None)]
    worse, better = sorted(reported[0].changes, key=lambda row: row.gpu)
    assert (worse.gpu, worse.at, worse.together) == ("g07", BEGAN + timedelta(weeks=5), 1)
    assert (better.gpu, better.since, better.at) == ("g09", BEGAN + timedelta(weeks=2), BEGAN + timedelta(weeks=3))
    assert worse.effect_pct > 2
    assert better.effect_pct < -3
    assert reported[0].runs == past.times.size
    of_tomorrow = replace(reported[0], not_judged=(NotJudged("c", "gemm", cast("Gap", "of tomorrow")),))
    record(store, [of_tomorrow], datetime.now(UTC).replace(tzinfo=None))
    assert [gap.why for gap in newest(store)[0].not_judged] == [Gap.NEWER], "a gap of a newer whorl"


def test_a_step_and_a_drift_have_names_of_their_own(tmp_path: Path) -> None:
    past = Past(weeks=12)
    past.times[7, 8:] *= 1.02
    past.times[20] *= (1 + 0.002 * np.arange(12))[:, None]
    past.times[36:40, 5:] *= 1.03
    past.times[:, 10:] *= 1.04
    judgement = judge(past.stored(tmp_path / "S"))
    kinds = {(row.level, row.name): (row.kind, row.timed) for row in judgement.rows}
    assert kinds == {
        (Level.GPU, "n1/3"): (Kind.SLOWER, True),
        (Level.GPU, "n5/0"): (Kind.DRIFTING, True),
        (Level.NODE, "n9"): (Kind.SLOWER, True),
        (Level.BATCH, "all, on 2026-03-16"): (Kind.SLOWER, True),
    }


def test_a_drift_over_weeks_is_a_drift_and_no_step(tmp_path: Path) -> None:
    past = Past(weeks=12)
    past.times[20] *= (1 + 0.005 * np.arange(12))[:, None]
    judgement = past.found(tmp_path / "S")
    (drift,) = judgement.drifts
    assert (drift.gpu, judgement.changes, judgement.steps) == ("g20", (), ())
    assert drift.low_pct is not None
    assert drift.high_pct is not None
    assert drift.low_pct < 0.5 * 11 < drift.high_pct
    assert [value.value for value in drift.measured if value.figure == Quantity.SPAN] == pytest.approx([77], abs=0.1)


def test_a_driver_that_costs_every_gpu_the_same_is_one_finding(tmp_path: Path) -> None:
    """Half of the fleet gets it two weeks before the other half; a GPU that changed by itself is still seen."""
    past = Past()
    past.times[:24, 4:] *= 1.03
    past.times[24:, 6:] *= 1.03
    past.times[30, 3:] *= 1.04
    for i in range(48):
        at = BEGAN + timedelta(weeks=4 if i < 24 else 6, hours=-1)
        past.identities.append({**past.identities[i], "driver": "550", "first_seen": at})
    judgement = past.found(tmp_path / "S")
    (step,) = judgement.steps
    assert step.joined_with == (Measured(Quantity.DRIVER, text="550", text_before="535"),)
    assert len(step.gpus) == 48
    assert abs(step.effect_pct - 3.0) < 0.1
    assert [change.gpu for change in judgement.changes] == ["g30"]


def test_a_day_on_which_all_gpus_are_slower_is_one_finding(tmp_path: Path) -> None:
    past = Past()
    past.times[:, 5] *= 1.05
    judgement = past.found(tmp_path / "S")
    (day,) = judgement.steps
    assert abs(day.effect_pct - 5) < 0.3
    assert Measured(Quantity.UNTIL) in day.measured
    assert judgement.changes == judgement.drifts == judgement.unstable == ()


def test_a_gpu_that_throttles_in_some_of_its_runs_is_unstable(tmp_path: Path) -> None:
    past = Past(runs=5)
    past.times[13, ::2, 1] *= 1.05
    judgement = past.found(tmp_path / "S")
    (row,) = judgement.unstable
    assert row.gpu == "g13"
    assert [(value.figure, value.value, value.limit) for value in row.measured] == [(Quantity.SLOWER_RUNS, 4, 40)]
    assert row.low_pct is not None
    assert row.high_pct is not None
    assert 4 < row.low_pct <= row.effect_pct <= row.high_pct < 6
    assert abs(row.effect_pct - 5) < 0.5
    assert judgement.changes == judgement.drifts == ()


@pytest.mark.long
def test_jobs_that_couple_gpus_are_one_look(tmp_path: Path) -> None:
    """All GPUs of a job wait for one another: no GPU of them can be judged by itself."""
    past = _in_jobs_of_a_node()
    past.times[8:12, -1] *= 1.08
    judgement = past.found(tmp_path / "S")
    assert judgement.comparisons == 12
    assert all(row.gpu is None for row in (*judgement.changes, *judgement.watch, *judgement.unstable))
    assert any(row.why is Gap.PAST_OF_NODES for row in judgement.not_judged)


def test_probes_in_one_job_are_looks_of_their_own(tmp_path: Path) -> None:
    """A campaign measures all GPUs of a node in one job, but times each alone."""
    past = _in_jobs_of_a_node()
    past.probe_version = "1"
    past.times[7, -2:] *= 1.08
    store = past.stored(tmp_path / "S")
    judgement = histories(Model(probed(store, every=True), now=NOW), store)
    assert judgement.comparisons == 48
    assert [change.gpu for change in judgement.changes] == ["g07"]
    assert judgement.not_judged == ()
    assert measurements(store)["job_id"].null_count() == past.times.size


def _in_jobs_of_a_node() -> Past:
    past = Past(weeks=4)
    node = np.indices(past.times.shape)
    past.job = [f"{g // 4}-{w}-{r}" for g, w, r in zip(*(part.ravel() for part in node), strict=True)]
    return past


def test_a_long_past_has_its_dates_to_the_sitting() -> None:
    """Four hundred sittings are searched a few together, and the date is then found among them."""
    rng = np.random.default_rng(5)
    gpu, day = (part.ravel() for part in np.indices((12, 400)))
    value = 0.001 * rng.normal(size=gpu.shape)
    value[(gpu == 3) & (day >= 251)] += 0.03
    value[gpu == 5] += 0.0002 * day[gpu == 5]
    value[(gpu == 7) & (day == 399)] += 0.03
    judgement = own_past(gpu, day.astype(float), value)
    assert [(step.series, judgement.sittings.at[step.place]) for step in judgement.steps] == [(3, 251.0)]
    assert [drift.series for drift in judgement.drifts] == [5]
    assert 7 in [newest.series for newest in judgement.watch]


def test_a_gpu_that_changed_twice_has_both_sizes(tmp_path: Path) -> None:
    past = Past(weeks=16)
    past.times[7, 4:] *= 1.03
    past.times[7, 10:] *= 1.05
    first, second = sorted(past.found(tmp_path / "S").changes, key=lambda row: str(row.at))
    assert (first.at, second.at) == (BEGAN + timedelta(weeks=4), BEGAN + timedelta(weeks=10))
    assert abs(first.effect_pct - 3) < 0.3
    assert abs(second.effect_pct - 5) < 0.3
    assert [value.at for value in first.measured if value.figure == Quantity.UNTIL] == [second.at]


def test_a_step_of_a_part_of_the_fleet_that_nobody_recorded_is_one_finding(tmp_path: Path) -> None:
    past = Past(weeks=10)
    past.times[::4, 6:] *= 1.03  # one GPU of each node
    past.times[1, 3:] *= 1.05
    past.times[7, 4:] *= 1.05
    judgement = past.found(tmp_path / "S")
    (step,) = judgement.steps
    assert step.gpus == tuple(f"g{i:02}" for i in range(0, 48, 4))
    assert (step.level, step.name) == (Level.BATCH, "12 GPUs of 12 nodes")
    assert (step.since, step.at) == (BEGAN + timedelta(weeks=5), BEGAN + timedelta(weeks=6))
    assert sorted(change.gpu or "" for change in judgement.changes) == ["g01", "g07"]


def _newest(history: Sittings, later: np.ndarray, planted: float) -> Sittings:
    """A series for each of these sittings: it, with `planted` added to it, and all before it."""
    first = history.first[history.series[later]]
    sizes = later - first + 1
    places = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, later, strict=True)])
    newest = history.take(places, np.repeat(np.arange(len(later)), sizes), len(later))
    added = np.zeros(len(newest))
    added[newest.first + newest.per_series - 1] = -planted
    return newest.less(added)


def _alarms(history: Sittings, noise: Noise, later: np.ndarray, planted: float) -> int:
    cut = _newest(history, later, planted)
    base = cut.warmth[cut.first][cut.series]
    cut = cut.less(noise.a_kelvin * (cut.warmth - base))
    newest = search(cut, noise, cut.first, cut.per_series)["newest"]
    return int(((newest["p"] <= ALARM) & (newest["effect"] >= RELEVANT)).sum())


@needs_longhorn
def test_two_per_cent_against_earlier_sittings_on_dates_that_are_held_back() -> None:
    frame = runs("sgemm").drop_nulls("began").sort("began")
    series = frame["gpu"].rank("dense").cast(pl.Int64).to_numpy() - 1
    at = frame["began"].dt.epoch("s").to_numpy() / 86_400
    value, warmth = np.log(frame["value"].to_numpy()), frame["temperature_c"].to_numpy()
    history, _ = sittings(series, at, value, warmth=warmth)
    half = np.quantile(history.at, 0.5)
    false = hits = 0
    for dates in (at < half, at >= half):
        noise = estimate(*sittings(series[dates], at[dates], value[dates], history.count, warmth[dates]))
        assert noise is not None
        later = np.flatnonzero((history.place >= 1) & ((history.at >= half) == (at[dates].max() < half)))
        false += _alarms(history, noise, later, 0.0)
        hits += _alarms(history, noise, later, 0.02)
    sitting_count = int((history.place >= 1).sum())
    assert sitting_count == 1208
    assert false <= 0.002 * sitting_count
    assert hits >= 0.95 * sitting_count
