"""What whorl concluded, as series: the rows of the tables, and nothing judged anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.verdicts.fingerprint import fingerprints
from whorl.analysis.verdicts.judgements import conclude
from whorl.dashboards.exported.exporter import Exporter, Settings
from whorl.dashboards.exported.findings import Metered
from whorl.dashboards.exported.series import GpuLabels, Series
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.analysis.energy.stored import meters
from whorl.tests.conftest import BuiltOnce
from whorl.tests.exported.rows import SECOND
from whorl.tests.judged_fleet import CLUSTER, judged_store, uuid
from whorl.tests.stores import new_store

NOW = 1_800_000_000 * SECOND


def judged(root: Path) -> None:
    """A fleet with a GPU that is slow on two days."""
    store = judged_store(root / "store", 16, slow={3: 0.1})
    conclude(store)
    fingerprints(store)


@pytest.fixture(scope="module")
def store(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("exported findings", judged) / "store")


Points = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="module")
def points(store: Store) -> Points:
    """By name, the labels and value of each point of the exporter."""
    exporter = Exporter(store, Settings())
    exporter.refresh()
    listed = [series for series in exporter.series() if series.labels]
    assert len({series.prometheus for series in listed}) == len(listed)
    for series in listed:
        assert len({tuple(labels.items()) for labels, _, _ in series.points}) == len(series.labels), series.prometheus
    return {series.prometheus: [(dict(labels), value) for labels, value, _ in series.points] for series in listed}


@pytest.mark.long
def test_a_verdict_is_a_set_of_states_of_which_one_is_true_and_all_are_counted(store: Store, points: Points) -> None:
    rows = store.sql("select * exclude (judged_at, first_seen, last_seen) from verdicts_now where kind = 'slow'")
    (row,) = rows.to_pylist()
    assert [gpu["gpu"] for gpu in row["gpus"]] == [uuid(3)]
    labels = {"cluster": CLUSTER, "gpu": uuid(3), "level": "gpu", "kind": "slow"}
    assert [point for point in points["whorl_gpu_verdict"] if point[0]["kind"] == "slow"] == [
        (labels | {"state": state}, row["state"] == state) for state in ("suspected", "confirmed")
    ]
    assert (labels, row["effect_pct"] / 100) in points["whorl_gpu_verdict_effect_ratio"]
    assert (labels, row["n"]) in points["whorl_gpu_verdict_peers"]
    names = ("level", "kind", "state")
    counted = Counter(tuple(row[n] for n in names) for row in store.sql("from verdicts_now").to_pylist())
    assert {tuple(point[n] for n in names): value for point, value in points["whorl_verdicts"]} == counted
    assert points["whorl_judged_gpus"] == [({"cluster": CLUSTER}, 16)]
    ((_, judged_s),) = points["whorl_judged_timestamp_seconds"]
    (at,) = store.sql("select epoch_ns(judged_at) as at from judgements").to_pylist()
    assert judged_s == at["at"] / 1e9


def test_ratios_have_their_interval_and_how_many_are_compared(store: Store, points: Points) -> None:
    rows = store.sql(
        "select workload, figure, ratio, ratio_low, ratio_high, peers, sittings from fingerprints_now "
        f"where gpu = '{uuid(3)}' and figure = 'time' and workload is not null"
    ).to_pylist()
    assert len(rows) == 2
    for row in rows:
        labels = {"cluster": CLUSTER, "gpu": uuid(3), "workload": row["workload"], "figure": "time"}
        assert (labels, row["ratio"]) in points["whorl_gpu_fleet_ratio"]
        assert row["ratio"] > 1.05
        for end in ("low", "high"):
            assert (labels | {"end": end}, row[f"ratio_{end}"]) in points["whorl_gpu_fleet_ratio_bound"]
        for name in ("peers", "sittings"):
            assert (labels, row[name]) in points[f"whorl_gpu_fleet_{name}"]


def test_a_gpu_that_is_judged_and_not_read_says_who_it_is(points: Points) -> None:
    infos = {labels["gpu"]: labels for labels, _ in points["whorl_gpu_info"]}
    assert (infos[uuid(3)]["node"], infos[uuid(3)]["serial"]) == ("n01", "S0003")


def _telemetry(store: Store, gpu: str, seconds: int, watts: np.ndarray, counter: np.ndarray | None) -> None:
    rows = {
        "ts": NOW + np.arange(seconds) * SECOND, "cluster": ["c"] * seconds, "gpu": [gpu] * seconds,
        "power_mw": (1000 * watts).astype(np.int32),
    }  # fmt: skip
    if counter is not None:
        rows["energy_mj"] = counter.astype(np.int64)
    store.append({"telemetry": arrow_rows("telemetry", rows)}, f"telemetry-{gpu}")


def values(series: list[Series], name: str) -> dict[tuple[tuple[str, str], ...], float]:
    (entry,) = (entry for entry in series if entry.prometheus == name)
    return {tuple(labels.items()): value for labels, value, _ in entry.points}


def test_energy_in_steps_is_that_of_the_whole_time(tmp_path: Path) -> None:
    """One GPU by its counter, which begins anew in between; one by its power; one whose readings end."""
    store, seconds = new_store(tmp_path / "store"), 900
    watts = 200 + 100 * np.sin(np.arange(seconds) / 50)
    counter = 1000 * np.cumsum(watts)
    counter[500:] -= counter[499]
    _telemetry(store, "counted", seconds, watts, counter)
    _telemetry(store, "powered", seconds, watts, None)
    _telemetry(store, "ended", 400, watts[:400], None)
    metered, labels = Metered(store, NOW + 100 * SECOND), GpuLabels()
    assert values(metered.series(labels), "whorl_gpu_metered_energy_joules_total") == {}
    before: dict[tuple[tuple[str, str], ...], float] = {}
    for at in (130, 250, 251, 480, 530, 830):
        metered.advance(NOW + at * SECOND)
        now = values(metered.series(labels), "whorl_gpu_metered_energy_joules_total")
        assert all(now[gpu] >= joules for gpu, joules in before.items())
        before = now
    began, ended = np.array([NOW + 100 * SECOND]), np.array([NOW + 800 * SECOND])
    by_gpu = {meter.gpu: meter.over(began, ended) for meter in meters(store)}
    for gpu in ("counted", "powered"):
        selected = (("cluster", "c"), ("gpu", gpu))
        assert before[selected] == pytest.approx(by_gpu[gpu].energy_j[0], rel=1e-3)
        assert before[selected] == pytest.approx(watts[100:800].sum(), rel=0.01)
        assert values(metered.series(labels), "whorl_gpu_metered_seconds_total")[selected] == pytest.approx(700, abs=1)
        doubt = values(metered.series(labels), "whorl_gpu_metered_doubt_joules_total")
        assert {side: doubt[(*selected, ("side", side))] >= 0 for side in ("below", "above")} == {
            "below": True,
            "above": True,
        }
    gone = (("cluster", "c"), ("gpu", "ended"))
    assert before[gone] == pytest.approx(watts[100:400].sum(), rel=0.02)
    # It is said for how long the energy is not known, and no energy is made up for it.
    assert values(metered.series(labels), "whorl_gpu_unmetered_seconds_total")[gone] > 0
