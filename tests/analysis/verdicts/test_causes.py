"""Why a GPU is slow, on made-up fleets, simulated ones and a public cluster: parts that add up, and the right cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import Probed
from whorl.analysis.verdicts import Kind
from whorl.analysis.verdicts.causes import Evidence, Explanation, by_heat
from whorl.analysis.verdicts.changes import typical_size
from whorl.analysis.verdicts.judge import judged
from whorl.analysis.verdicts.states import HUNGRY, IDLING, RISE, THROTTLED, TOP, UNDER, WORK, Channel
from whorl.analysis.verdicts.verdict import Action, Part, Quantity
from whorl.benchmarks.fleets import figures_of, place_name
from whorl.tests.analysis.verdicts.made import GEMM, RUN_S, STREAM, Change, fleet
from whorl.tests.sizes import count

GPU = "GPU-007"


def effects(evidence: Evidence, gpu: str = GPU) -> dict[str, float]:
    differing_rows = evidence.by_gpu.filter((pl.col("gpu") == gpu) & (pl.col("time") > pl.col("peers_time") + 0.005))
    return {
        name: time - peers for name, time, peers in differing_rows.select("workload", "time", "peers_time").iter_rows()
    }


def explained(campaign: Probed, gpu: str = GPU) -> Explanation:
    evidence = Evidence.of(campaign)
    slow = effects(evidence, gpu)
    explanation = evidence.slow(gpu, slow)
    assert sum(cause.pct for cause in explanation.causes) == pytest.approx(
        100 * math.expm1(max(slow.values())), abs=1e-9
    )
    for cause in explanation.causes:
        assert cause.low_pct is not None
        assert cause.high_pct is not None
        assert cause.low_pct <= cause.pct <= cause.high_pct
    return explanation


CASES: dict[str, tuple[Mapping[str, Change], str, Kind]] = {
    "brake with its counter": (
        {"gemm": {"events": {"power_brake": 0.2 * RUN_S, "hw_slowdown": 0.19 * RUN_S}, "slower": 1.11, "power": 0.9}},
        Part.BRAKE,
        Kind.BRAKED,
    ),
    "hardware slowdown without a brake or heat": (
        {"gemm": {"events": {"hw_slowdown": 0.2 * RUN_S}, "slower": 1.11, "power": 0.9}},
        Part.SLOWDOWN,
        Kind.SLOWED,
    ),
    "heat, with its counter": (
        {"gemm": {"events": {"thermal_software": 0.8 * RUN_S}, "clock": 0.95, "temperature": 20, "power": 0.95}},
        Part.HEAT,
        Kind.HOT,
    ),
    "heat, without a counter": ({"gemm": {"clock": 0.95, "temperature": 17, "power": 0.93}}, Part.HEAT, Kind.HOT),
    "heat under the cap, as leakage": ({"gemm": {"clock": 0.964, "temperature": 24}}, Part.HEAT, Kind.HOT),
    "lower power limit": (
        {"": {"limit_w": 250.0}, "gemm": {"power": 250 / 300, "clock": (250 / 300) ** 0.4}},
        Part.LIMIT,
        Kind.LIMITED,
    ),
    "silicon that needs more power": ({"gemm": {"clock": 0.94}}, Part.CAP, Kind.SLOW),
    "pinned clock": (
        {"": {"sm_clock_mhz": 1200.0, "slower": 1.05}, "gemm": {"sm_clock_mhz": 1200.0, "power": 0.8, "slower": 1.13}}
        | {"fma": {"sm_clock_mhz": 1200.0, "slower": 1.26}},
        Part.PINNED,
        Kind.PINNED,
    ),
    "slow memory": ({"stream": {"slower": 1.06}, "gemm": {"slower": 1.004}}, Part.MEMORY, Kind.SLOW),
    "lower memory clock": ({"stream": {"slower": 1.06, "mem_clock_mhz": 810.0}}, Part.MEMORY_CLOCK, Kind.SLOW),
    "slow link": ({"copy": {"slower": 1.5}}, Part.LINK, Kind.SLOW),
    "starved": ({"fma": {"slower": 1.1, "power": 0.88}}, Part.STARVED, Kind.STARVED),
    "slow alike in all probes": ({"": {"slower": 1.05}}, Part.STARVED, Kind.STARVED),
    "slow for no reason that shows": ({"fma": {"slower": 1.1}}, Part.UNEXPLAINED, Kind.SLOW),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_told_by_its_signs(case: str) -> None:
    change, main, kind = CASES[case]
    explanation = explained(fleet({7: change}))
    assert (explanation.main, explanation.kind) == (main, kind)


@pytest.mark.parametrize("power", [1.0, 0.9])
def test_a_brake_is_named_only_where_a_counter_or_bit_says_so(power: float) -> None:
    """The same GPU, without reasons recorded: its clock is held, and nobody knows by what."""
    change = {"gemm": {"slower": 1.1, "clock": 0.98, "power": power}}
    for is_told in (False, True):
        assert Part.BRAKE not in {cause.what for cause in explained(fleet({7: change}, told=is_told)).causes}
    held = explained(fleet({7: {"gemm": {"slower": 1.1, "clock": 0.98, "power": 0.9}}}, told=False))
    assert (held.main, held.kind) == (Part.UNTOLD, Kind.UNDER_CAP)


def test_errors_of_the_memory_are_named_beside_slow_memory() -> None:
    campaign = fleet({7: {"stream": {"slower": 1.03}}})
    xid = pl.DataFrame({"gpu": [GPU, GPU, "GPU-001"], "code": [63, 79, 63]}).join(campaign.events, on="gpu", how="left")
    xid = xid.select(pl.col(name) for name in campaign.events.columns)
    explanation = explained(Probed("made", "", campaign.gpus, campaign.runs, xid))
    assert explanation.main == Part.MEMORY
    assert [(row.figure, row.value) for row in explanation.measured] == [(Quantity.XID, 63)]


def test_a_lower_limit_takes_what_it_costs_and_the_cap_the_rest() -> None:
    """250 W instead of 300 W take 0.4 of the difference in ln power; 3 % more of clock are its silicon."""
    lower = (250 / 300) ** 0.4
    change = {"": {"limit_w": 250.0}, "gemm": {"power": 250 / 300, "clock": lower * 0.97}}
    explanation = explained(fleet({7: change}))
    parts = {cause.what: cause for cause in explanation.causes}
    assert parts[Part.LIMIT].pct == pytest.approx(100 * 0.95 * -math.log(lower), rel=0.15)
    assert parts[Part.CAP].pct > 1


MISSING: dict[str, dict[str, Any]] = {
    "no clock": {"sm_clock_mhz": None},
    "no power": {"power_w": None},
    "no temperature": {"temperature_c": None},
    "nothing but times": {"sm_clock_mhz": None, "power_w": None, "temperature_c": None, "clock_events": None},
    "clock of NaN": {"sm_clock_mhz": math.nan},
    "power of NaN": {"power_w": math.nan, "temperature_c": math.inf},
    "constant clock": {"sm_clock_mhz": 1530.0},
    "zero power": {"power_w": 0.0},
    "no limit": {"power_limit_w": None},
}


@pytest.mark.parametrize("column", MISSING)
def test_what_is_missing_explains_nothing_and_breaks_nothing(column: str) -> None:
    campaign = fleet({7: {"": {"slower": 1.08}}}, probes=[GEMM, STREAM])
    everywhere = {name: pl.lit(value, campaign.runs.schema[name]) for name, value in MISSING[column].items()}
    for rows in (pl.col("gpu") == GPU, pl.lit(value=True)):
        changed = (pl.when(rows).then(value).otherwise(pl.col(name)).alias(name) for name, value in everywhere.items())
        runs = campaign.runs.with_columns(*changed)
        explanation = explained(Probed("made", "", campaign.gpus, runs, campaign.events))
        assert explanation.main == Part.UNEXPLAINED


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_few_gpus_give_no_error(gpus: int) -> None:
    evidence = Evidence.of(fleet(gpus=gpus, sittings=1))
    explanation = evidence.slow("GPU-000", {"gemm": 0.05})
    assert sum(cause.pct for cause in explanation.causes) == pytest.approx(100 * math.expm1(0.05), abs=1e-9)
    assert evidence.slow("GPU-000", {}).causes == ()
    assert evidence.slow("GPU-000", {"gemm": math.nan}).causes == ()
    assert evidence.slow("nobody", {"gemm": 0.05}).main == Part.UNEXPLAINED
    assert evidence.slow("GPU-000", {"gemm": -0.05}).kind == Kind.FAST


@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True])
def test_a_gpu_that_is_slow_in_compute_at_its_clock_is_not_called_power_cap(*, alone: bool) -> None:
    """Caps hold clocks 1.8 % apart, by the luck of the silicon; what is rare of the slow GPUs is the rest."""
    explanation = 0
    for seed in range(4):
        random = np.random.default_rng([38, seed])
        drawn = figures_of(random, 64, "normal", faults=3, fault="compute", effect=0.03)
        campaign = drawn.probed(random)
        runs = campaign.runs.filter((pl.col("workload") == "gemm") | (not alone))
        verdicts = {verdict.name: verdict for verdict in judged(replace(campaign, runs=runs)).rows}
        for gpu in np.flatnonzero(drawn.faulty):
            verdict = verdicts.pop(place_name(int(gpu)), None)
            if verdict is not None:
                explanation += 1
                assert [cause.what for cause in verdict.causes] == [Part.UNEXPLAINED]
                assert verdict.action == Action.RUN_FULL_SUITE
                assert verdict.effect_pct == pytest.approx(verdict.causes[0].pct, abs=1e-9)
    assert explanation >= 9


def test_gpus_of_a_node_that_are_slow_alike_are_explained_together() -> None:
    """Four GPUs at 84 degC: heat; four at full clock with less power: their host."""
    hot = {number: {"gemm": {"clock": 0.95, "temperature": 18, "power": 0.93}} for number in range(4, 8)}
    starved = {number: {"fma": {"slower": 1.1, "power": 0.88}} for number in range(8, 12)}
    evidence = Evidence.of(fleet(hot | starved))
    slowness = evidence.slow([f"GPU-{number:03d}" for number in range(4, 8)], {"gemm": 0.05})
    assert (slowness.main, slowness.kind) == (Part.HEAT, Kind.HOT)
    slowness = evidence.slow([f"GPU-{number:03d}" for number in range(8, 12)], {"fma": 0.09})
    assert slowness.kind == Kind.STARVED
    assert slowness.action == Action.CHECK_HOST_OF_NODE


def differing(campaign: Probed) -> dict[Channel, dict[str, float]]:
    """By channel, the GPUs whose median differs from that of the fleet by what is relevant and by 4 robust sd."""
    explanation: dict[Channel, dict[str, float]] = {}
    for channel, rows_of_channel in Evidence.of(campaign).channels.items():
        for rows in rows_of_channel.collect().partition_by("workload"):
            level = rows.group_by("gpu").agg(pl.col("value").median())
            over = level.select("gpu", value=channel.sign * (pl.col("value") - pl.col("value").median()))
            scale = max(1.4826 * float(over["value"].abs().median()), channel.floor)  # type: ignore[arg-type]
            far = over.filter((pl.col("value") >= channel.relevant) & (pl.col("value") > 4 * scale))
            if far.height:
                explanation.setdefault(channel, {}).update(far.iter_rows())
    return explanation


CHANNEL_CASES: dict[str, tuple[Mapping[str, Change], Channel]] = {
    "hot": ({"": {"temperature": 4}, "fma": {"temperature": 14}, "gemm": {"temperature": 22}}, RISE),
    "hungry": ({"": {"power": 1.12}, "gemm": {}}, HUNGRY),
    "pinned": ({"": {"sm_clock_mhz": 1455.0}, "gemm": {}}, TOP),
    "under its cap": ({"gemm": {"power": 0.93, "clock": 0.97}}, UNDER),
    "starved": ({"fma": {"power": 0.88}}, IDLING),
    "throttled": ({"fma": {"events": {"thermal_software": 0.5 * RUN_S}}}, THROTTLED),
    "slow at the same power": ({"fma": {"energy": 1.2}}, WORK),
}


@pytest.mark.long(short=4)
@pytest.mark.parametrize("case", CHANNEL_CASES)
def test_each_kind_shows_in_its_channel(case: str) -> None:
    change, channel = CHANNEL_CASES[case]
    by_channel = differing(fleet({7: change}))
    assert list(by_channel[channel]) == [GPU]
    assert {gpu for gpus in by_channel.values() for gpu in gpus} == {GPU}


ROW = {"temperature": 82.0, "peers_temperature": 66.0}


def runs(n: int, slope: float, noise: float = 0.001, seed: int = 1) -> pl.DataFrame:
    """Runs of one GPU whose log time changes by `slope` with its log power."""
    random = np.random.default_rng(seed)
    power = random.uniform(-0.02, 0.02, n)
    value = np.exp(slope * power + random.normal(0, noise, n))
    return pl.DataFrame({"value": 100 * value, "sm_clock_mhz": [1312.0] * n, "power_w": 290 * np.exp(power)})


def told(frame: pl.DataFrame) -> object:
    return by_heat(ROW, frame, 1.5, np.random.default_rng(0))


def test_runs_that_are_slower_with_less_power_are_held_by_heat() -> None:
    heat_causes = by_heat(ROW, runs(20, -1.0), 1.5, np.random.default_rng(0))
    assert heat_causes is not None
    heat, cap = heat_causes.causes
    assert (heat.what, cap.what) == (Part.HEAT, Part.UNEXPLAINED)
    assert heat.pct > 1.4
    assert heat.pct + cap.pct == pytest.approx(1.5)
    assert heat.low_pct is not None
    assert heat.high_pct is not None
    assert heat.low_pct <= heat.pct <= heat.high_pct <= 1.5
    figures = {figure.figure: (figure.value, figure.peers) for figure in heat_causes.measured}
    assert figures[Quantity.TEMPERATURE] == (82.0, 66.0)
    slower, faster = figures[Quantity.POWER_OF_SLOWER_RUNS]
    assert slower is not None
    assert faster is not None
    assert slower < faster
    assert heat_causes.action == Action.CLEAN_COOLING


@pytest.mark.parametrize(
    "frame",
    [
        runs(20, 0.0),
        runs(20, 1.0),
        runs(7, -1.0),
        runs(20, -1.0).with_columns(sm_clock_mhz=None, power_w=None),
        runs(20, -1.0).with_columns(value=100.0),
    ],
    ids=["power says nothing", "slower with more power", "few runs", "nothing recorded", "times alike"],
)
def test_else_nothing_is_said(frame: pl.DataFrame) -> None:
    assert told(frame) is None


@pytest.mark.parametrize("n", [2, 4, 12])
def test_the_interval_of_an_unstable_gpu_holds_the_middle_of_its_sizes(n: int) -> None:
    random, draws = np.random.default_rng(3), count(4000, short=2000)
    size = 0.02 * np.exp(random.normal(0, 0.4, draws * n))
    median, low, high = typical_size(size, np.repeat(np.arange(draws), n), np.full(draws, n))
    holds = np.mean((low <= 0.02) & (high >= 0.02))
    assert 0.935 <= holds <= 0.99
    assert bool(((low <= median) & (median <= high)).all())
