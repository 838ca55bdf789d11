"""The runs of a GPU under the names of their kinds, its past beside its peers, and how well its runs repeat."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from whorl.analysis.one_gpu.explain import explain, own_runs, timed
from whorl.analysis.one_gpu.happened import Held, Reasons, events, lost_since, marks, reasons
from whorl.analysis.one_gpu.standing import Line, figures, standings, times
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprints
from whorl.store import Store
from whorl.store.events import Event, event_rows
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import OUT_OF_USE, EventKind, reason_bit
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, judged_store, uuid

SLOW = 5


def lines(store: Store, gpu: str) -> dict[str, Line]:
    """The past of a GPU, as its page shows it."""
    return {line.workload: line for line in explain(store, gpu, peers=True).lines}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """16 GPUs on four days with three runs each; one becomes 5 % slower on the third day."""
    return judged_store(
        tmp_path_factory.mktemp("past") / "S", 16, (0, 2, 4, 6), runs=lambda _: 3,
        time=lambda gpu, day: 1.05 if gpu == SLOW and day >= 4 else 1.0,
    )  # fmt: skip


@pytest.mark.long
def test_a_change_shows_in_the_gpu_and_not_in_its_peers(fleet: Store) -> None:
    line = lines(fleet, uuid(SLOW))["gemm-fp32"]
    before, after = line.sittings[1], line.sittings[2]
    assert after.off_pct - before.off_pct == pytest.approx(5, abs=1)
    assert before.low_pct is not None
    assert before.high_pct is not None
    assert before.low_pct < before.off_pct < before.high_pct < after.off_pct
    assert line.between is not None
    assert line.between.peers_pct is not None
    assert line.between.pct > line.between.peers_pct[4], "it moves more from sitting to sitting than its peers"
    assert line.within is not None
    assert line.within.freedom == 8
    assert line.within.low_pct is not None
    assert line.within.high_pct is not None
    assert line.within.low_pct < line.within.pct < line.within.high_pct
    assert line.within.peers_pct is not None
    assert line.within.peers_pct[2] == pytest.approx(0.2, abs=0.05), "the noise of a run is 0.2 %"
    assert (line.within.peers, line.between.peers) == (15, 15)


def test_the_spread_is_that_of_the_runs(fleet: Store) -> None:
    x = (
        timed(own_runs(fleet, CLUSTER, [uuid(3)]))
        .filter(pl.col("workload") == "stream-triad")
        .sort("at")["x"]
        .to_numpy()
    )
    line = lines(fleet, uuid(3))["stream-triad"]
    assert line.within is not None
    assert line.within.pct == pytest.approx(100 * np.sqrt(x.reshape(4, 3).var(axis=1, ddof=1).mean()))
    low, high = line.sittings[0].low_pct, line.sittings[0].high_pct
    assert low is not None
    assert high is not None
    assert (high - low) / 2 == pytest.approx(1.96 * 1.2533 * line.within.pct / np.sqrt(3), rel=0.02)


def add_run(store: Store, gpu: str, began: int | None, time: float, **conditions: object) -> None:
    shared = {"run_id": [f"{gpu}-{began}-{time}"], "cluster": [CLUSTER], "workload": ["gemm-fp32"], "gpu": [gpu]}
    columns = {"conditions": [conditions or None], "began": [began], "status": ["ok"]}
    figure = {"figure": ["time"], "repeat": [0], "value": [time], "unit": ["ms"]}
    rows = {"runs": arrow_rows("runs", shared | columns), "results": arrow_rows("results", shared | figure)}
    store.append(rows, shared["run_id"][0])


@pytest.mark.long
def test_runs_at_another_power_limit_have_the_name_of_their_kind(tmp_path: Path) -> None:
    """The kinds follow from the runs of all GPUs, of which only one's are read."""
    store = judged_store(tmp_path / "S", 9, (0, 2), workloads=("gemm-fp32",))
    for gpu in range(4, 9):
        for day in (1, 3):
            add_run(store, uuid(gpu), BEGAN_NS + day * DAY_NS, 150.0 + gpu, asked_power_limit_w=200)
    all_runs = probed(store, cluster=CLUSTER, every=True).runs
    assert set(all_runs["workload"]) == {"gemm-fp32", "gemm-fp32 [200 W]"}
    for gpu in (1, 6):
        assert set(lines(store, uuid(gpu))) == set(all_runs.filter(pl.col("gpu") == uuid(gpu))["workload"])
    assert lines(store, uuid(6))["gemm-fp32 [200 W]"].sittings[0].peers == 5


# -- reasons -----------------------------------------------------------------------------------------------------------
# Why a clock had its value over time: counters, readings, pruned minutes, resets and gaps.


BEGAN = 1_788_220_800_000_000_000
SECOND = 10**9
DAY = 86_400 * SECOND


def readings(store: Store, ts: np.ndarray[Any, Any], **columns: Any) -> None:
    rows = {"ts": ts, "cluster": ["c"] * len(ts), "gpu": ["g"] * len(ts)}
    store.append({"telemetry": arrow_rows("telemetry", rows | columns)}, f"readings-{ts[0]}")


def asked(store: Store, *between: int | None) -> tuple[Reasons, dict[str, Held]]:
    clock_reasons = reasons(store, "c", ["g"], *between)
    assert clock_reasons is not None
    return clock_reasons, {span.reason.name: span for span in clock_reasons.held}


def every_second(seconds: int, began: int = BEGAN) -> np.ndarray[Any, Any]:
    return began + SECOND * np.arange(seconds)


def test_a_counter_tells_the_share_of_the_time(store: Store) -> None:
    """Held down for a quarter of each second of the second half of an hour."""
    held = np.maximum(np.arange(3600) - 1800, 0) * SECOND // 4
    readings(store, every_second(3600), power_violation_ns=held, clock_event_reasons=[reason_bit("power_cap")] * 3600)
    clock_reasons, by_name = asked(store)
    power = by_name["power_cap"]
    assert power.counted
    assert power.whole == pytest.approx(0.125, abs=0.001)
    assert np.allclose(power.share[:58], 0, atol=1e-6)
    assert np.allclose(power.share[-58:], 0.25, atol=1e-3)
    assert set(by_name) == {"power_cap"}
    assert clock_reasons.n.sum() == clock_reasons.readings == 3600
    assert np.allclose(clock_reasons.covered, 1.0, atol=0.05)
    assert set(clock_reasons.stretch.tolist()) == {0}


def test_what_nobody_read_is_a_gap_and_not_a_zero(store: Store) -> None:
    readings(store, every_second(600), clock_event_reasons=[reason_bit("power_brake")] * 600)
    readings(store, every_second(600, BEGAN + DAY), clock_event_reasons=[None] * 600)
    clock_reasons, by_name = asked(store)
    assert sorted(set(clock_reasons.stretch.tolist())) == [0, 1]
    last, first = (
        int(np.flatnonzero(clock_reasons.stretch == 0)[-1]),
        int(np.flatnonzero(clock_reasons.stretch == 1)[0]),
    )
    assert (clock_reasons.began[first] - clock_reasons.ended[last]).total_seconds() == pytest.approx(86_400 - 599)
    brake = by_name["power_brake"].share
    assert (brake[clock_reasons.stretch == 0] == 1).all()
    assert np.isnan(brake[clock_reasons.stretch == 1]).all()
    assert by_name["power_brake"].whole == 1


def test_pruned_minutes_count_as_what_they_replaced(store: Store) -> None:
    """An hour is held down for a tenth of the time; in one second of each minute it is hot."""
    held, hot = (SECOND // 10 * np.arange(3600), np.where(np.arange(3600) % 60 == 7, reason_bit("thermal_software"), 0))
    readings(store, every_second(3600), power_violation_ns=held, clock_event_reasons=hot)
    store.prune("1m", offline=True, now=BEGAN + 2 * DAY)
    readings(store, every_second(600, BEGAN + 3600 * SECOND), clock_event_reasons=[0] * 600)
    clock_reasons, by_name = asked(store)
    assert (clock_reasons.minutes, clock_reasons.readings) == (60, 4200)
    assert by_name["power_cap"].whole == pytest.approx(0.1, abs=0.01)
    assert by_name["thermal_software"].whole == pytest.approx(3600 / 4200), "at most: any second counts for its minute"


# -- standing ----------------------------------------------------------------------------------------------------------
# Where a GPU stands: its fingerprint beside the quantiles of its peers, stored or computed.


@pytest.fixture(scope="module")
def measured_fleet(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """16 GPUs on three days, one of them 12 % slower; nobody stored fingerprints."""
    return judged_store(tmp_path_factory.mktemp("standing") / "S", 16, (0, 2, 4), slow={SLOW: 0.12})


@pytest.mark.long
def test_a_figure_has_its_place_in_the_quantiles_of_all_gpus_of_its_model(measured_fleet: Store) -> None:
    fleet_figures = figures(measured_fleet, CLUSTER)
    assert fleet_figures is not None
    assert fleet_figures.rows is not None
    assert fleet_figures.made_at is None
    of_gpu = {
        (standing.workload, standing.figure): standing
        for standing in standings(measured_fleet, fleet_figures, uuid(SLOW))
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


# -- happened ----------------------------------------------------------------------------------------------------------
# What happened to a GPU: changes of driver, firmware and place, and its events.


FIRST_DAY = datetime(2026, 9, 1)  # noqa: DTZ001  times in tables have no zone


def seen(store: Store, day: float, **columns: Any) -> None:
    row = {"cluster": ["c"], "gpu": ["g"], "uuid": ["g"], "first_seen": [FIRST_DAY + timedelta(days=day)]}
    rows = row | {name: [value] for name, value in columns.items()}
    store.append({"gpus": arrow_rows("gpus", rows)}, f"seen-{day}-{len(columns)}")


def happened(store: Store, *events: Event) -> None:
    store.append({"events": pa.Table.from_batches([event_rows(events, cluster="c")])}, f"events-{len(events)}")


def event(day: float, kind: EventKind, gpu: str | None = "g", says: str = "it happened", **columns: Any) -> Event:
    at = (FIRST_DAY + timedelta(days=day) - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
    return Event(kind, gpu, says, at * 1000, **columns)


def test_a_change_of_driver_firmware_or_place_is_a_mark(store: Store) -> None:
    seen(store, 0, driver="535", vbios="a", node="n1", slot=0, power_limit_mw=300_000)
    seen(store, 1, driver="535", vbios="a", node="n1", slot=0, power_limit_mw=300_000)
    seen(store, 2, driver="550", node="n1")
    seen(store, 3, driver="550", vbios="b", node="n2", slot=3, power_limit_mw=250_000)
    assert [(event.at - FIRST_DAY, event.what, event.says) for event in marks(store, "c", ["g"])] == [
        (timedelta(2), "driver", "driver 535 to 550"),
        (timedelta(3), "vbios", "VBIOS a to b"),
        (timedelta(3), "power_limit_w", "power limit, W 300 to 250"),
        (timedelta(3), "place", "moved from n1/0 to n2/3"),
    ]


@pytest.mark.parametrize("kind", OUT_OF_USE)
def test_a_gpu_is_lost_until_it_comes_back(store: Store, kind: EventKind) -> None:
    happened(store, event(1, kind))
    assert lost_since(events(store, "c", ["g"])) == FIRST_DAY + timedelta(1)
    happened(store, event(2, EventKind.RETURNED), event(2.1, EventKind.XID))
    assert lost_since(events(store, "c", ["g"])) is None
    assert lost_since([]) is None
