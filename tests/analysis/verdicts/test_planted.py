"""Faults planted in a simulated fleet whose runs lie in a store: what was seen, channels, causes, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts import Judgement, Kind, State
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.facts import Fact, facts
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.verdict import Measured, Quantity
from whorl.store import Store
from whorl.tests.probed_fleet import stored, uuids
from whorl.tests.sizes import sample

SEEN = {"stuck_sensor": Kind.SENSOR, "wrong_results": Kind.WRONG, "lost": Kind.LOST}
NAMED = {"brake": Kind.BRAKED, "pinned": Kind.PINNED, "slow_memory": Kind.SLOW, **SEEN}
"""The verdict of each kind of fault that one campaign shows beyond doubt."""


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
