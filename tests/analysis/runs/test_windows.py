"""What is made of telemetry in parts, against whole queries: parts so small that borders fall everywhere."""

from __future__ import annotations

import datetime as dt
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from whorl.analysis.engines import Here
from whorl.analysis.power_classes import power_profiles, profiles
from whorl.analysis.runs import windows
from whorl.analysis.runs.probing import failed_memory, probed
from whorl.analysis.runs.windows import windows_of_runs
from whorl.analysis.spread.passive import read_in_runs
from whorl.analysis.verdicts.facts import still_readings
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.verdict import Gap
from whorl.store import Store
from whorl.store.metrics import power_is_trusted
from whorl.store.schema import arrow_rows
from whorl.tests.sizes import count
from whorl.tests.stores import new_store

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

NOON = dt.datetime(2026, 11, 1, 12)
CLUSTERS, GPUS = ("c", "d"), ("g0", "g1", "MIG-g1/1/0")  # in both clusters GPUs have the same names
STEP_S = 900
READINGS = 3 * 86_400 // STEP_S
WATTS = "coalesce(power_instant_mw, power_mw)"


def at(step: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=STEP_S * step)


def drawn_store(path: Path, seed: int) -> Store:
    """Three days from noon to noon with NULLs, marks, power that stands still, late rows and files of some hours."""
    rng, store = np.random.default_rng(seed), new_store(path)

    def telemetry(cluster: str, gpu: str, first: int, last: int) -> list[dict[str, Any]]:
        return [
            {
                "ts": at(step), "cluster": cluster, "gpu": gpu,
                "power_mw": None if rng.random() < 0.05 else 250_000 + 1000 * int(step // 40 if gpu == "g0" else step),
                "power_instant_mw": None if rng.random() < 0.7 or gpu == "g0" else int(rng.integers(90_000, 300_000)),
                "utilization": None if rng.random() < 0.02 else int(rng.integers(0, 100)),
                "memory_utilization": int(rng.integers(0, 100)),
                "sm_clock_mhz": None if rng.random() < 0.1 else int(rng.integers(1000, 1500)),
                "sm_active_ppm": int(rng.integers(0, 10**6)) if cluster == "c" else None,
                "quality": "power_stuck,other" if rng.random() < 0.03 else None,
                "energy_mj": 1000 * step * STEP_S * 200,
                "ecc_uncorrected": int(rng.integers(0, 3)) if (cluster, gpu) == ("c", "g1") and step > 60 else 0,
            }
            for step in range(first, last)
        ]  # fmt: skip

    borders = [0, *sorted(map(int, rng.integers(1, READINGS, 3))), READINGS]
    for number, (first, last) in enumerate(pairwise(borders)):
        readings = [row for cluster in CLUSTERS for gpu in GPUS for row in telemetry(cluster, gpu, first, last)]
        if readings:
            store.append({"telemetry": rows("telemetry", readings)}, f"t{number}")
    late = [row for row in telemetry("c", "g0", 0, READINGS) if rng.random() < 0.1]
    store.append({"telemetry": rows("telemetry", late)}, "late")
    runs = []
    for number in range(60):
        began = float(rng.integers(-20, 10 * READINGS)) / 10
        ended = began + float(rng.choice([0, 3, 20, 120])) + float(rng.choice([0.0, 0.5]))
        runs.append(
            {
                "run_id": f"r{number}", "cluster": str(rng.choice(CLUSTERS)), "gpu": str(rng.choice(GPUS)),
                "workload": f"w{number % 3}", "began": at(began), "ended": None if number == 7 else at(ended),
                "status": "ok",
            }
        )  # fmt: skip
    runs.append(runs[0] | {"run_id": "nobody's", "cluster": None})
    identities = [
        {"cluster": cluster, "gpu": gpu, "power_limit_default_mw": 300_000, "model": "A"}
        for cluster in CLUSTERS
        for gpu in GPUS
    ]
    store.append({"runs": rows("runs", runs), "gpus": rows("gpus", identities)}, "runs")
    return store


def rows(table: str, records: list[dict[str, Any]]) -> Any:
    return arrow_rows(table, {name: [record[name] for record in records] for name in records[0]})


@pytest.fixture(params=range(count(24, short=2)))
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each day of each GPU is a part of its own, and each workload."""
    monkeypatch.setattr(windows, "READINGS", 1)
    monkeypatch.setattr(profiles, "READINGS", 1)
    return drawn_store(tmp_path / "S", request.param)


def by_run(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort("run_id")


def test_parts_give_what_whole_queries_give(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of runs, passive figures, sensors that stand still, and memory that failed."""
    answer = windows_of_runs(store, engine=Here(3))
    assert answer.coverage.parts >= 12
    view = store.sql("from run_windows").polars()
    assert_frame_equal(by_run(answer.rows), by_run(view), rel_tol=1e-9, check_dtypes=False)
    one_cluster = windows_of_runs(store, cluster="c", since=at(30), until=at(100)).rows
    assert_frame_equal(
        one_cluster, answer.rows.filter(pl.col("cluster") == "c", pl.col("began").is_between(at(30), at(100), "left"))
    )

    query = f"""select r.run_id, quantile_cont({WATTS}, 0.95) / 1e3 as read_w, median(t.sm_clock_mhz) as read_mhz,
        max(t.sm_active_ppm) / 1e6 as active
        from runs r join telemetry t on t.cluster = r.cluster and t.gpu = r.gpu and t.ts between r.began and r.ended
        where {WATTS} is not null and {power_is_trusted("t.quality")} group by r.run_id having count(*) >= 5"""
    read, _ = read_in_runs(store, engine=Here(2))
    assert_frame_equal(by_run(read), by_run(store.sql(query).polars()), rel_tol=1e-9, check_dtypes=False)

    campaign = probed(store, cluster="c", every=True)
    still = still_readings(store, campaign, engine=Here(2)).still
    assert {gpu: tuple(reading.value for reading in gpu_readings) for gpu, gpu_readings in still.items()} == still_of(
        store, campaign
    )
    assert "g0" in still
    told_memory, _ = failed_memory(store)
    query = """select cluster, gpu, min(ts) as first, max(ts) as last, max(row_remap_failed) as row_remap_failed,
        max(ecc_uncorrected) as ecc_uncorrected from telemetry where row_remap_failed > 0 or ecc_uncorrected > 0
        group by all order by all"""
    assert_frame_equal(told_memory, store.sql(query).polars(), check_dtypes=False)

    in_parts = power_profiles(store, engine=Here(2))
    assert {profile.workload for profile in in_parts if profile.readings} == {"w0", "w1", "w2"}
    monkeypatch.setattr(profiles, "READINGS", 10**9)
    assert [profile.as_row() for profile in power_profiles(store)] == [profile.as_row() for profile in in_parts]


def still_of(store: Store, campaign: Any) -> dict[str, tuple[Any, ...]]:
    """By GPU, the longest stretch of equal power: W, s, and by how much the utilisation moved."""
    began, ended = campaign.runs["began"].min(), campaign.runs["ended"].max()
    query = f"""select gpu, epoch_us(ts) as us, {WATTS} as mw, utilization as used from telemetry where cluster = 'c'
        and ts between '{began}' and '{ended}' and {WATTS} is not null and used is not null order by gpu, ts"""
    stretches_by_gpu: dict[str, list[tuple[Any, ...]]] = {}
    for (gpu, mw), group in groupby(store.sql(query).to_pylist(), key=lambda row: (row["gpu"], row["mw"])):
        stretch = list(group)
        used = [row["used"] for row in stretch]
        seconds, moved = (stretch[-1]["us"] - stretch[0]["us"]) / 1e6, max(used) - min(used)
        if len(stretch) >= 10 and seconds >= 10 and moved >= 30:
            stretches_by_gpu.setdefault(gpu, []).append((len(stretch), mw / 1000, seconds, moved))
    return {
        gpu: max(reversed(stretches), key=lambda stretch: stretch[0])[1:] for gpu, stretches in stretches_by_gpu.items()
    }


@pytest.mark.parametrize("readings_of_part", [1, windows.READINGS])
def test_what_a_damaged_file_had_is_not_known_and_the_rest_is(
    readings_of_part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "READINGS", readings_of_part)
    drawn = drawn_store(tmp_path / "S", 0)
    drawn.compact(offline=True)
    at_once, profiled = windows_of_runs(drawn).rows, sum(profile.runs for profile in power_profiles(drawn))
    [damaged] = sorted((drawn.root / "telemetry" / "day=2026-11-02").glob("*.parquet"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    store = Store.open(drawn.root)
    answer = windows_of_runs(store)
    assert answer.coverage.failures
    assert all(str(damaged) in failure.reason for failure in answer.coverage.failures)
    unknown = answer.rows["n"].is_null()
    assert 0 < unknown.sum() < answer.rows.height
    assert_frame_equal(answer.rows.filter(~unknown), at_once.filter(~unknown))
    over_it = (pl.col("began") < dt.datetime(2026, 11, 3)) & (pl.col("ended") > dt.datetime(2026, 11, 2))
    assert answer.rows.filter(over_it, pl.col("cluster").is_not_null())["n"].drop_nulls().is_empty()

    judgement = judge(store, cluster="c")
    assert judgement.coverage.failures
    gaps = {gap.subject for gap in judgement.not_judged if gap.why is Gap.NOT_READ}
    assert len(gaps) == len(GPUS) + 1  # and the cluster, as nobody knows whose memory failed on that day
    assert 0 < sum(profile.runs for profile in power_profiles(store) if profile.reason is None) < profiled
