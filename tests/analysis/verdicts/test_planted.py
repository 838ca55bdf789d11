"""Faults planted in a simulated fleet whose runs lie in a store: what was seen, what a channel shows, and the cause."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.probing import probed
from whorl.analysis.verdicts import Kind
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.channels import RISE, THROTTLED, channels
from whorl.analysis.verdicts.saying import Part
from whorl.store import Store
from whorl.tests.sizes import sample

from ...probed_fleet import stored, uuids

CAUSES = {"brake": Part.BRAKE, "hot": Part.HEAT, "pinned": Part.PINNED, "slow_memory": Part.MEMORY}
SEEN = {"stuck_sensor": Kind.SENSOR, "wrong_results": Kind.WRONG, "lost": Kind.LOST}


def slow(evidence: Evidence) -> dict[str, dict[str, float]]:
    """The effects of each GPU that is 2 % slower and 3.5 robust standard deviations from its peers."""
    over = evidence.levels.with_columns(effect=pl.col("time") - pl.col("peers_time"))
    over = over.filter((pl.col("effect") > 0.02) & (pl.col("effect") > 3.5 * pl.col("spread_time")))
    found: dict[str, dict[str, float]] = {}
    for gpu, workload, effect in over.select("gpu", "workload", "effect").iter_rows():
        found.setdefault(gpu, {})[workload] = effect
    return found


@pytest.mark.parametrize("seed", sample(range(1, 9), short=2))
def test_every_planted_fault_is_told_for_what_it_is(tmp_path: Path, seed: int) -> None:
    store, fleet = stored(tmp_path / "s", 96, seed, kinds=(*CAUSES, *SEEN))
    planted = uuids(fleet)
    evidence = Evidence.of(probed(store), store)
    seen = evidence.seen()
    assert {planted.get(one.gpu): one.kind for one in seen} == SEEN
    assert all(one.runs and one.first_seen and one.action and one.sittings == 1 for one in seen)
    causes = {planted.get(gpu): evidence.slow(gpu, effects).main for gpu, effects in slow(evidence).items()}
    # A hot GPU is slow only where it warms enough; its temperature rise tells it in any case.
    assert causes == {kind: cause for kind, cause in CAUSES.items() if kind in causes}
    assert {"brake", "pinned", "slow_memory"} <= set(causes)
    rows = channels(evidence)
    rise = rows.filter(pl.col("channel") == RISE.name).sort("value", descending=True)
    assert {planted.get(gpu) for gpu in rise["gpu"][:2]} == {"hot", "brake"}
    throttled = rows.filter((pl.col("channel") == THROTTLED.name) & (pl.col("value") > 0.05))
    assert [planted.get(gpu) for gpu in throttled["gpu"]] == ["brake"]


def test_a_healthy_fleet_has_nothing_to_see(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 64, seed=4)
    evidence = Evidence.of(probed(store), store)
    assert evidence.seen() == ()
    assert evidence.frozen == {}


def test_power_that_stands_still_is_seen_without_telemetry(tmp_path: Path) -> None:
    """Five runs of different load have the same power to the milliwatt: its power then explains nothing."""
    store, fleet = stored(tmp_path / "s", 32, kinds=("stuck_sensor",), telemetry=False)
    campaign = probed(Store.open(store.root))
    evidence = Evidence.of(campaign)
    [one] = evidence.seen()
    assert uuids(fleet) == {one.gpu: "stuck_sensor"}
    assert one.kind == Kind.SENSOR
    assert "to the milliwatt" in one.looks
    assert len(one.runs) == 4
    assert evidence.levels.filter(pl.col("gpu") == one.gpu)["power"].is_null().all()
