"""What is measured of GPUs besides times: each kind shows in its channel, and what nobody recorded has no row."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pytest

from whorl.analysis.runs.probing import COMPUTE, Probed
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.channels import (
    CHANNELS,
    HUNGRY,
    IDLING,
    RISE,
    THROTTLED,
    TOP,
    UNDER,
    WARM,
    WORK,
    Channel,
    channels,
    fingerprint_figures,
)
from whorl.tests.analysis.verdicts.made import GEMM, RUN_S, Change, Probe, fleet

GPU = "GPU-007"


def differing(campaign: Probed) -> dict[str, dict[str, float]]:
    """By channel, the GPUs whose median differs from that of the fleet by what is relevant and by 4 robust sd."""
    found: dict[str, dict[str, float]] = {}
    by_name = {one.name: one for one in CHANNELS}
    for (name, _), rows in channels(Evidence.of(campaign)).group_by(["channel", "workload"]):
        channel = by_name[str(name)]
        level = rows.group_by("gpu").agg(pl.col("value").median())
        over = level.select("gpu", value=channel.sign * (pl.col("value") - pl.col("value").median()))
        scale = max(1.4826 * float(over["value"].abs().median()), channel.floor)  # type: ignore[arg-type]
        far = over.filter((pl.col("value") >= channel.relevant) & (pl.col("value") > 4 * scale))
        if far.height:
            found.setdefault(channel.name, {}).update(far.iter_rows())
    return found


CASES: dict[str, tuple[Mapping[str, Change], Channel]] = {
    "hot": ({"": {"temperature": 4}, "fma": {"temperature": 14}, "gemm": {"temperature": 22}}, RISE),
    "hungry": ({"": {"power": 1.12}, "gemm": {}}, HUNGRY),
    "pinned": ({"": {"sm_clock_mhz": 1455.0}, "gemm": {}}, TOP),
    "under its cap": ({"gemm": {"power": 0.93, "clock": 0.97}}, UNDER),
    "starved": ({"fma": {"power": 0.88}}, IDLING),
    "throttled": ({"fma": {"events": {"thermal_software": 0.5 * RUN_S}}}, THROTTLED),
    "slow at the same power": ({"fma": {"energy": 1.2}}, WORK),
}


@pytest.mark.long(short=4)
@pytest.mark.parametrize("case", CASES)
def test_each_kind_shows_in_its_channel(case: str) -> None:
    change, channel = CASES[case]
    found = differing(fleet({7: change}))
    assert list(found[channel.name]) == [GPU]
    assert {gpu for gpus in found.values() for gpu in gpus} == {GPU}


def test_one_probe_tells_heat_by_its_temperature() -> None:
    found = differing(fleet({7: {"": {"temperature": 30}}}, probes=[GEMM]))
    assert found == {WARM.name: {GPU: pytest.approx(30, abs=8)}}


def test_a_clock_that_heat_holds_is_not_pinned() -> None:
    hot = {"": {"sm_clock_mhz": 1400.0, "temperature": 30}}
    found = differing(fleet({7: hot}, probes=[Probe("fma", COMPUTE, 0.95, 1530, 220, 58)]))
    assert TOP.name not in found
    assert GPU in found[WARM.name]


@pytest.mark.long(short=3)
@pytest.mark.parametrize("gone", ["sm_clock_mhz", "power_w", "temperature_c", "clock_events", "energy"])
def test_what_nobody_recorded_has_no_row(gone: str) -> None:
    campaign = fleet(gpus=10)
    runs = campaign.runs.with_columns(pl.lit(None, campaign.runs.schema[gone]).alias(gone))
    had = set(channels(Evidence.of(campaign))["channel"])
    left = channels(Evidence.of(Probed("made", "", campaign.gpus, runs, campaign.events)))
    assert not left["value"].is_null().any()
    needs = {"clock_events": {THROTTLED}, "temperature_c": {RISE}, "sm_clock_mhz": {TOP, UNDER, IDLING}}
    needs |= {"power_w": {RISE, UNDER, IDLING, HUNGRY}, "energy": set()}
    assert set(left["channel"]) <= (had | {WARM.name}) - {one.name for one in needs[gone]}


def test_no_runs_give_an_empty_table() -> None:
    campaign = fleet(gpus=2)
    none = Probed("made", "", campaign.gpus, campaign.runs.head(0), campaign.events)
    empty: pl.DataFrame = channels(Evidence.of(none))
    assert empty.is_empty()
    assert empty.columns == channels(Evidence.of(campaign)).columns


def test_a_row_a_sitting_and_figures_of_the_fingerprint() -> None:
    evidence = Evidence.of(fleet(gpus=10, sittings=4))
    rows = channels(evidence).filter((pl.col("channel") == RISE.name) & (pl.col("gpu") == GPU))
    assert rows.height == 4
    assert rows["sitting"].n_unique() == 4
    figures = fingerprint_figures(evidence)
    assert set(figures["channel"]) >= {RISE.name, HUNGRY.name, TOP.name, WORK.name}
    assert figures.filter(pl.col("workload") == "fma")["stresses"].unique().to_list() == [COMPUTE]
