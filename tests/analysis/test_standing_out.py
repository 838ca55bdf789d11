"""Which GPUs stand out of a campaign, with what cause: on stores whose faults are known."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis import measurements, signatures, untrusted, variability
from whorl.analysis.probing import probed, stresses
from whorl.analysis.standing_out import LEAST_GPUS, Judged, frozen_readings, judge
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.stores import new_store

from ..probed_fleet import BEGAN_NS, CLUSTER, PROBES, stored, uuids

EXPECTED = {
    "brake": signatures.POWER,
    "hot": signatures.COOLING,
    "pinned": signatures.CEILING,
    "slow_memory": signatures.DRAM,
    "stuck_sensor": signatures.SENSOR,
    "wrong_results": signatures.WRONG,
    "lost": signatures.LOST,
}


def found(store: Store) -> dict[str, str]:
    return {one.gpu: one.cause for one in judge(probed(store), store).found}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_kind_of_fault_is_found_for_what_it_is_and_nothing_else(tmp_path: Path, seed: int) -> None:
    store, fleet = stored(tmp_path / "s", 128, seed, kinds=tuple(EXPECTED))
    assert found(store) == {gpu: EXPECTED[kind] for gpu, kind in uuids(fleet).items()}


def test_who_is_slow_comes_before_who_is_only_warm(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 64, seed=1, kinds=("hot", "brake", "pinned"))
    judged = judge(probed(store), store)
    slowest = [max((d.excess_pct for d in one.deviations if d.probe), default=0.0) for one in judged.found]
    assert len(slowest) == 3
    assert slowest == sorted(slowest, reverse=True)
    assert judged.found[0].cause == signatures.CEILING
    assert judged.found[-1].cause == signatures.COOLING


@pytest.mark.parametrize("seed", range(4, 12))
def test_a_healthy_fleet_has_nobody_that_stands_out(tmp_path: Path, seed: int) -> None:
    store, _ = stored(tmp_path / "s", 96, seed, telemetry=False)
    assert found(store) == {}


def test_a_slow_link_is_told_from_a_slow_gpu(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 32, slow_links=(5,), telemetry=False)
    [one] = judge(probed(store), store).found
    assert (one.cause, one.node, one.slot) == (signatures.BUS, "c001-2", 1)
    [deviation] = one.deviations
    assert deviation.probe == "copy-h2d"
    assert deviation.excess_pct == pytest.approx(100, abs=1)
    assert deviation.low_pct is not None
    assert deviation.high_pct is not None
    assert deviation.low_pct < deviation.excess_pct < deviation.high_pct
    assert deviation.p < 1e-6
    assert deviation.n == 32


def test_a_node_whose_links_are_all_slow_looks_like_the_host(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 64, slow_links=(8, 9, 10, 11), telemetry=False)
    judged = judge(probed(store), store)
    assert [one.cause for one in judged.found] == [signatures.HOST] * 4
    assert {one.node for one in judged.found} == {"c001-3"}


def test_the_looks_are_counted_and_few_gpus_are_not_compared(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "few", LEAST_GPUS - 1, kinds=("slow_memory",), telemetry=False)
    judged = judge(probed(store), store)
    assert judged.found == ()
    assert judged.looks == 0
    assert set(judged.not_judged) == {probe.name for probe in PROBES if probe.time_ms is not None}
    assert "7 GPUs ran it; 8 are needed" in judged.not_judged["pagerank"]
    store, _ = stored(tmp_path / "enough", 16, telemetry=False)
    timed = sum(probe.time_ms is not None for probe in PROBES)
    assert judge(probed(store), store).looks == 16 * timed + 16  # and the temperature rise of each


def test_gpus_are_compared_with_their_own_model(tmp_path: Path) -> None:
    """Half of the fleet is another model that takes twice as long: nobody stands out."""
    store, _ = stored(tmp_path / "s", 40, telemetry=False)
    campaign = probed(store)
    names = campaign.gpus["gpu"].to_list()
    other = pl.col("gpu").is_in(names[::2])
    gpus = campaign.gpus.with_columns(pl.when(other).then(pl.lit("B")).otherwise("model").alias("model"))
    runs = campaign.runs.with_columns(
        pl.when(other).then(pl.lit("B")).otherwise("model").alias("model"),
        *((pl.col(name) * pl.when(other).then(2.0).otherwise(1.0)).alias(name) for name in ("value", "low", "high")),
    )
    changed = type(campaign)(campaign.cluster, campaign.campaign, gpus, runs, campaign.events)
    assert judge(changed).found == ()


def test_a_difference_that_does_not_matter_is_not_named(tmp_path: Path) -> None:
    """One part in a hundred is many standard deviations of a memory probe, and nothing to take a GPU out for."""
    store, _ = stored(tmp_path / "s", 64, telemetry=False)
    campaign = probed(store)
    gpu = campaign.gpus["gpu"][20]
    for factor, named in ((1.01, 0), (1.05, 1)):
        chosen = (pl.col("gpu") == gpu) & (pl.col("workload") == "stream-triad")
        runs = campaign.runs.with_columns(
            *((pl.col(n) * pl.when(chosen).then(factor).otherwise(1.0)).alias(n) for n in ("value", "low", "high"))
        )
        changed = type(campaign)(campaign.cluster, campaign.campaign, campaign.gpus, runs, campaign.events)
        assert len(judge(changed).found) == named


def test_a_fast_gpu_is_no_slow_one(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 64, telemetry=False)
    campaign = probed(store)
    chosen = (pl.col("gpu") == campaign.gpus["gpu"][3]) & (pl.col("workload") == "gemm-fp32")
    runs = campaign.runs.with_columns(
        *((pl.col(n) * pl.when(chosen).then(0.7).otherwise(1.0)).alias(n) for n in ("value", "low", "high"))
    )
    [one] = judge(type(campaign)(campaign.cluster, campaign.campaign, campaign.gpus, runs, campaign.events)).found
    assert one.cause == signatures.FAST
    assert one.deviations[0].excess_pct < -20


def test_a_failure_that_is_no_loss_is_a_failure(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 16, telemetry=False)
    campaign = probed(store)
    chosen = (pl.col("gpu") == campaign.gpus["gpu"][3]) & (pl.col("workload") == "gemm-fp32")
    runs = campaign.runs.with_columns(
        pl.when(chosen).then(pl.lit("the kernel did not end within 2 s")).otherwise("status").alias("status"),
        pl.when(chosen).then(None).otherwise("value").alias("value"),
    )
    [one] = judge(type(campaign)(campaign.cluster, campaign.campaign, campaign.gpus, runs, campaign.events)).found
    assert one.cause == signatures.FAILED
    assert one.seen == ("gemm-fp32 did not end: the kernel did not end within 2 s",)
    assert one.p is None


def test_the_time_of_a_wrong_result_counts_nowhere(tmp_path: Path) -> None:
    """The same GPUs are peers here and in `whorl variability`, and those left out are counted."""
    store, fleet = stored(tmp_path / "s", 32, kinds=("brake", "wrong_results"), telemetry=False)
    campaign = probed(store)
    peers = {row.workload: row.n for row in variability(measurements(store), replicates=0) if row.level == "gpu"}
    assert peers["gemm-fp32"] == peers["pagerank"] == 31
    assert {d.n for one in judge(campaign, store).found for d in one.deviations if d.probe == "gemm-fp32"} == {31}
    wrong = next(gpu for gpu, kind in uuids(fleet).items() if kind == "wrong_results")
    assert wrong in {one.gpu for one in judge(campaign, store).found}
    assert wrong not in campaign.sound.filter(pl.col("workload") == "gemm-fp32")["gpu"]
    assert campaign.untrusted == {"gemm-fp32": 1, "pagerank": 1}
    assert campaign.untrusted_says == (
        "left out of the times: 2 runs, as their results were wrong (1 of gemm-fp32, 1 of pagerank)"
    )
    assert untrusted(store) == [
        f"{probe} on {CLUSTER}: 1 of 32 runs is left out: failed, or with a wrong result"
        for probe in ("gemm-fp32", "pagerank")
    ]
    assert untrusted(store, workloads=["idle"]) == []
    healthy, _ = stored(tmp_path / "healthy", 8, telemetry=False)
    assert probed(healthy).untrusted_says is None


def test_what_is_found_is_plain_data(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 32, kinds=("brake", "wrong_results"), telemetry=False)
    judged: Judged = judge(probed(store), store)
    text = json.dumps([one.as_dict() for one in judged.found])
    assert {one["cause"] for one in json.loads(text)} == {signatures.POWER, signatures.WRONG}


def test_the_last_campaign_is_taken_and_a_missing_one_is_named(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 8, telemetry=False)
    assert probed(store).campaign == "made-1"
    assert probed(store).probes == [probe.name for probe in PROBES]
    with pytest.raises(InputError, match="no campaign 'other'"):
        probed(store, "other")
    with pytest.raises(InputError, match="holds no runs: "):
        probed(new_store(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"path": "dram", "flop": 2e12, "bytes": 1e9}, "compute"),
        ({"path": "none", "flop": 2e12, "bytes": 0}, "compute"),
        ({"path": "dram", "flop": 2e8, "bytes": 2.4e9}, "memory"),
        ({"path": "dram", "flop": 0, "bytes": 0, "operations": 100}, "memory"),
        ({"path": "l2", "bytes": 1e9}, "cache"),
        ({"path": "pcie", "bytes": 1e9}, "link"),
        ({"path": "peer", "bytes": 1e9}, "link"),
        ({"path": "none", "operations": 1000}, "other"),
        ({}, "other"),
    ],
)
def test_what_a_probe_stresses_is_told_by_its_work(conditions: dict[str, object], expected: str) -> None:
    assert stresses(json.dumps(conditions)) == expected


def test_conditions_that_are_no_object_say_nothing() -> None:
    assert [stresses(text) for text in (None, "", "[1]", "{torn")] == ["other"] * 4


def test_a_gpu_that_ran_fewer_probes_is_not_compared_by_its_temperature_rise(tmp_path: Path) -> None:
    """The rise is a slope over probes of seconds: over other probes it is another one."""
    store, _ = stored(tmp_path / "s", 16, telemetry=False)
    campaign = probed(store)
    looks = judge(campaign).looks
    gone = (pl.col("gpu") == campaign.gpus["gpu"][2]) & (pl.col("workload") == "idle")  # which has no time to compare
    changed = type(campaign)(
        campaign.cluster, campaign.campaign, campaign.gpus, campaign.runs.filter(~gone), campaign.events
    )
    assert judge(changed).looks == looks - 1


@pytest.mark.parametrize(
    ("seconds", "interval_s", "busy_until", "frozen"),
    [
        (12, 1.0, 6, True),
        (12, 0.1, 6, True),
        (12, 1.0, 12, False),  # the load does not move either
        (12, 2.0, 6, False),  # seven readings
        (4, 0.1, 2, False),  # a short while
    ],
)
def test_a_reading_is_frozen_only_where_the_load_moves_for_long(
    tmp_path: Path, seconds: int, interval_s: float, busy_until: int, frozen: bool
) -> None:
    store, _ = stored(tmp_path / "s", 8, telemetry=False)
    gpu = probed(store).gpus["gpu"][4]
    at = [step * interval_s for step in range(int(seconds / interval_s) + 1)]
    rows = {
        "ts": [BEGAN_NS + round(1e9 * since) for since in at],
        "cluster": [CLUSTER] * len(at),
        "gpu": [gpu] * len(at),
        "power_mw": [151_500] * len(at),
        "utilization": [100 if since < busy_until or busy_until == seconds else 0 for since in at],
    }
    store.append({"telemetry": arrow_rows("telemetry", rows)}, "frozen")
    found = frozen_readings(store, probed(store))
    assert list(found) == ([gpu] if frozen else [])
    if frozen:
        assert found[gpu].startswith("the power reading stayed at 151.500 W for 12 s (")
