"""Faults planted in a simulated fleet whose runs lie in a store: what was seen, channels, causes, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts import Judgement, Kind, Level, State
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.channels import RISE, channels
from whorl.analysis.verdicts.compare import LEAST_GPUS
from whorl.analysis.verdicts.facts import Fact, facts, still_power, still_readings
from whorl.analysis.verdicts.judge import judge, judged
from whorl.analysis.verdicts.verdict import Gap, Measured, Part, Quantity
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, PROBES, stored, uuids
from whorl.tests.sizes import sample

SEEN = {"stuck_sensor": Kind.SENSOR, "wrong_results": Kind.WRONG, "lost": Kind.LOST}
NAMED = {"brake": Kind.BRAKED, "pinned": Kind.PINNED, "slow_memory": Kind.SLOW, **SEEN}
"""The verdict of each kind of fault that one campaign shows beyond doubt."""


def changed(campaign: Probed, place: int, probe: str, factor: float = 1.0, **columns: str | None) -> Probed:
    """The same, but a GPU's run of a probe takes longer, or has other values in these columns."""
    chosen = (pl.col("gpu") == campaign.gpus["gpu"][place]) & (pl.col("workload") == probe)
    times = [(pl.col(n) * pl.when(chosen).then(factor).otherwise(1.0)).alias(n) for n in ("value", "low", "high")]
    others = [pl.when(chosen).then(pl.lit(value)).otherwise(n).alias(n) for n, value in columns.items()]
    return replace(campaign, runs=campaign.runs.with_columns(times).with_columns(others))


def twice(campaign: Probed) -> Probed:
    """The same, and once more a day later."""
    again = campaign.runs.with_columns(
        pl.col("run_id") + "-again", (pl.col("value") * 1.0001).alias("value"),
        *((pl.col(name) + pl.duration(days=1, time_unit="ns")).alias(name) for name in ("began", "ended")),
    )  # fmt: skip
    return replace(campaign, runs=pl.concat([campaign.runs, again]))


def kinds_of(found: Judgement, campaign: Probed) -> dict[str, set[Kind]]:
    return {gpu: {one.kind for one in own} for gpu, own in found.by_key(campaign.gpus, batches=True).items()}


def test_power_that_stands_still_is_seen_without_telemetry(tmp_path: Path) -> None:
    """Five runs of different load have the same power to the milliwatt: its power then explains nothing."""
    store, fleet = stored(tmp_path / "s", 32, kinds=("stuck_sensor",), telemetry=False)
    campaign = probed(Store.open(store.root))
    evidence = Evidence.of(campaign)
    [one] = evidence.facts()
    assert uuids(fleet) == {one.gpu: "stuck_sensor"}
    assert one.kind == Kind.SENSOR
    assert [value.figure for value in one.measured] == [Quantity.STILL_POWER, Quantity.MOVED_POWER]
    assert len(one.runs) == 4
    assert evidence.by_gpu.filter(pl.col("gpu") == one.gpu)["power"].is_null().all()


@pytest.mark.parametrize("seed", sample([3, 1], short=1))
def test_every_kind_of_fault_has_its_verdict_and_no_healthy_gpu_has_any(tmp_path: Path, seed: int) -> None:
    store, fleet = stored(tmp_path / "s", 128, seed, kinds=tuple(NAMED))
    campaign, planted = probed(store), uuids(fleet)
    found = judge(store, campaign=campaign.campaign)
    kinds = kinds_of(found, campaign)
    assert kinds.keys() == planted.keys()
    for gpu, kind in planted.items():
        assert NAMED[kind] in kinds[gpu], kind
    assert {row.state for row in found.rows} == {State.SUSPECTED}, "one sitting confirms nothing"
    assert [row.kind for row in found.rows[:2]] == [Kind.LOST, Kind.WRONG]
    assert all((row.figure == "") is (row.kind in SEEN.values()) for row in found.rows)
    timed = [row.timed for row in found.rows if row.kind not in SEEN.values()]
    assert timed == sorted(timed, reverse=True), "what costs time comes before what is only warm"


@pytest.mark.long
def test_one_run_that_stands_alone_names_nobody_and_two_days_do(tmp_path: Path) -> None:
    """A slow copy that no other look backs may be a glitch; after another sitting it is a confirmed verdict."""
    store, _ = stored(tmp_path / "s", 32, slow_links=(5,), telemetry=False)
    campaign = probed(store)
    once = judged(campaign, store)
    assert once.rows == ()
    assert any(one.why is Gap.RUN_ONCE for one in once.not_judged)
    [one] = judged(twice(campaign), store).rows
    assert (one.level, one.name, one.kind, one.state) == (Level.GPU, "c001-2/1", Kind.SLOW, State.CONFIRMED)
    assert one.workloads == ("copy-h2d",)
    assert one.effect_pct == pytest.approx(100, abs=1)
    assert one.low_pct is not None
    assert one.high_pct is not None
    assert one.effect_pct is not None
    assert one.low_pct < one.effect_pct < one.high_pct
    assert one.causes[0].what == Part.LINK


def test_few_gpus_are_not_compared(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "few", LEAST_GPUS - 1, kinds=("slow_memory",), telemetry=False)
    found = judged(probed(store), store)
    assert (found.rows, found.looks) == ((), 0)
    few = {one.subject for one in found.not_judged if (one.why, one.n, one.total) == (Gap.FEW_GPUS, 7, 8)}
    assert few == {probe.name for probe in PROBES if probe.time_ms is not None}


@pytest.mark.long
def test_gpus_are_compared_with_their_own_model(tmp_path: Path) -> None:
    """Half of the fleet is another model that takes twice as long: nobody stands out."""
    store, _ = stored(tmp_path / "s", 40, telemetry=False)
    campaign = probed(store)
    other = pl.col("gpu").is_in(campaign.gpus["gpu"].to_list()[::2])
    model = pl.when(other).then(pl.lit("B")).otherwise("model").alias("model")
    longer = [(pl.col(n) * pl.when(other).then(2.0).otherwise(1.0)).alias(n) for n in ("value", "low", "high")]
    mixed = replace(campaign, gpus=campaign.gpus.with_columns(model), runs=campaign.runs.with_columns(model, *longer))
    assert judged(mixed).rows == ()


@pytest.mark.long
def test_a_difference_that_does_not_matter_is_not_named(tmp_path: Path) -> None:
    """Half a part in a hundred is many standard deviations of a memory probe, and nothing to take a GPU out for."""
    store, _ = stored(tmp_path / "s", 64, telemetry=False)
    campaign = twice(probed(store))
    for factor, named in ((1.005, []), (1.05, [Kind.SLOW])):
        assert [row.kind for row in judged(changed(campaign, 20, "stream-triad", factor)).rows] == named


def test_a_failure_that_is_no_loss_is_a_failure(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 16, telemetry=False)
    why = "the kernel did not end within 2 s"
    campaign = changed(probed(store), 3, "gemm-fp32", status="failed", status_detail=why)
    chosen = pl.col("status") == "failed"
    runs = campaign.runs.with_columns(pl.when(chosen).then(None).otherwise("value").alias("value"))
    [one] = judged(replace(campaign, runs=runs)).rows
    assert one.kind is Kind.FAILED
    assert (one.workloads, one.measured) == (("gemm-fp32",), (Measured(Quantity.FAILED_RUNS, 1, text=why),))
    assert one.p is None


def test_a_gpu_that_ran_fewer_probes_is_not_compared_by_its_temperature_rise(tmp_path: Path) -> None:
    """The rise is a slope over probes of seconds: over other probes it is another one."""
    store, _ = stored(tmp_path / "s", 16, telemetry=False)
    campaign = probed(store)
    gpu = campaign.gpus["gpu"][2]
    gone = (pl.col("gpu") == gpu) & (pl.col("workload") == "idle")  # which has no time to compare
    rows = channels(Evidence.of(replace(campaign, runs=campaign.runs.filter(~gone))))
    rises = rows[RISE]["gpu"]
    assert set(rises) == set(campaign.gpus["gpu"]) - {gpu}


@pytest.mark.long(short=1)
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
    found = still_readings(store, probed(store)).still
    assert list(found) == ([gpu] if frozen else [])
    if frozen:
        power, seconds_still, _ = found[gpu]
        assert (power.value, seconds_still.value) == (151.5, 12.0)


@pytest.mark.long(short=1)
@pytest.mark.parametrize("kind", ["stuck_sensor", "zero_power"])
def test_what_a_collector_says_of_a_power_sensor_is_enough(kind: str, tmp_path: Path) -> None:
    campaign = probed(stored(tmp_path / "s", 8, telemetry=False)[0])
    row = {"ts": None, "gpu": campaign.gpus["gpu"][3], "node": None, "kind": kind, "code": None, "detail": "all 0 W"}
    told = replace(campaign, events=pl.DataFrame([row], schema=campaign.events.schema))
    assert still_power(told, None).still == {row["gpu"]: (Measured(Quantity.REPORTED, text="all 0 W"),)}


def test_retired_pages_and_losses_are_told_with_what_the_store_has_of_them(tmp_path: Path) -> None:
    """No run shows a loss between two runs: the last good one before it does. No run shows a retired page."""
    store, _ = stored(tmp_path / "s", 16, telemetry=False)
    campaign = probed(store)
    lost, retired = campaign.gpus["gpu"][3], campaign.gpus["gpu"][7]
    mine = campaign.sound.filter(pl.col("gpu") == lost).sort("began")
    at = mine["began"].cast(pl.Datetime("ns"))[2]
    rows = [
        {"ts": at, "gpu": lost, "node": None, "kind": "lost", "code": None, "detail": "gone"},
        {"ts": at, "gpu": retired, "node": None, "kind": "xid", "code": 63, "detail": "retired"},
    ]
    told = pl.DataFrame(rows, schema=campaign.events.schema)

    def seen(gpu: str, runs: pl.DataFrame) -> Fact:
        [fact] = [fact for fact in facts(replace(campaign, events=told, runs=runs), {}) if fact.gpu == gpu]
        return fact

    errors = seen(retired, campaign.runs)
    assert (errors.kind, errors.first_seen, errors.runs) == (Kind.MEMORY_ERRORS, told["ts"][1], ())
    assert errors.measured == (Measured(Quantity.XID, 63, n=1),)
    gone = seen(lost, campaign.runs)
    assert (gone.kind, gone.runs) == (Kind.LOST, (mine["run_id"][1],))
    assert gone.measured[1].text == mine["workload"][1]
    never = seen(lost, campaign.runs.filter(pl.col("gpu") != lost))
    assert (never.runs, never.measured[1]) == ((), Measured(Quantity.LAST_GOOD_RUN))
