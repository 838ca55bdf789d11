"""What is measured of GPUs besides times: each kind shows in its channel, and what nobody recorded has no row."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pytest

from whorl.analysis.runs.probing import Probed
from whorl.analysis.verdicts.causes import Evidence
from whorl.analysis.verdicts.channels import (
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
)
from whorl.tests.analysis.verdicts.made import GEMM, RUN_S, Change, fleet

GPU = "GPU-007"


def differing(campaign: Probed) -> dict[Channel, dict[str, float]]:
    """By channel, the GPUs whose median differs from that of the fleet by what is relevant and by 4 robust sd."""
    found: dict[Channel, dict[str, float]] = {}
    for channel, all_rows in channels(Evidence.of(campaign)).items():
        for rows in all_rows.partition_by("workload"):
            level = rows.group_by("gpu").agg(pl.col("value").median())
            over = level.select("gpu", value=channel.sign * (pl.col("value") - pl.col("value").median()))
            scale = max(1.4826 * float(over["value"].abs().median()), channel.floor)  # type: ignore[arg-type]
            far = over.filter((pl.col("value") >= channel.relevant) & (pl.col("value") > 4 * scale))
            if far.height:
                found.setdefault(channel, {}).update(far.iter_rows())
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
    assert list(found[channel]) == [GPU]
    assert {gpu for gpus in found.values() for gpu in gpus} == {GPU}


def test_one_probe_tells_heat_by_its_temperature() -> None:
    found = differing(fleet({7: {"": {"temperature": 30}}}, probes=[GEMM]))
    assert found == {WARM: {GPU: pytest.approx(30, abs=8)}}


@pytest.mark.long(short=3)
@pytest.mark.parametrize("gone", ["sm_clock_mhz", "power_w", "temperature_c", "clock_events", "energy"])
def test_what_nobody_recorded_has_no_row(gone: str) -> None:
    campaign = fleet(gpus=10)
    runs = campaign.runs.with_columns(pl.lit(None, campaign.runs.schema[gone]).alias(gone))
    had = {channel for channel, rows in channels(Evidence.of(campaign)).items() if rows.height}
    left = channels(Evidence.of(Probed("made", "", campaign.gpus, runs, campaign.events)))
    assert not any(rows["value"].is_null().any() for rows in left.values())
    needs = {"clock_events": {THROTTLED}, "temperature_c": {RISE}, "sm_clock_mhz": {TOP, UNDER, IDLING}}
    needs |= {"power_w": {RISE, UNDER, IDLING, HUNGRY}, "energy": set()}
    assert {channel for channel, rows in left.items() if rows.height} <= (had | {WARM}) - needs[gone]
