"""Why a GPU is slow, on made-up fleets, simulated ones and a public cluster: parts that add up, and the right cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import Probed
from whorl.analysis.verdicts import Kind
from whorl.analysis.verdicts.causes import Evidence, Explanation
from whorl.analysis.verdicts.judge import judged
from whorl.analysis.verdicts.states import of_sittings
from whorl.analysis.verdicts.verdict import Action, Part, Quantity
from whorl.benchmarks.fleets import fleet_of
from whorl.tests.analysis.verdicts.made import (
    COPY,
    FMA,
    GEMM,
    RUN_S,
    STREAM,
    Change,
    campaign_of,
    fleet,
)

GPU = "GPU-007"


def effects(evidence: Evidence, gpu: str = GPU) -> dict[str, float]:
    own = evidence.by_gpu.filter((pl.col("gpu") == gpu) & (pl.col("time") > pl.col("peers_time") + 0.005))
    return {name: time - peers for name, time, peers in own.select("workload", "time", "peers_time").iter_rows()}


def explained(campaign: Probed, gpu: str = GPU) -> Explanation:
    evidence = Evidence.of(campaign)
    slow = effects(evidence, gpu)
    found = evidence.slow(gpu, slow)
    assert sum(one.pct for one in found.causes) == pytest.approx(100 * math.expm1(max(slow.values())), abs=1e-9)
    for one in found.causes:
        assert one.low_pct is not None
        assert one.high_pct is not None
        assert one.low_pct <= one.pct <= one.high_pct
    return found


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
    found = explained(fleet({7: change}))
    assert (found.main, found.kind) == (main, kind)


@pytest.mark.parametrize("power", [1.0, 0.9])
def test_a_brake_is_named_only_where_a_counter_or_bit_says_so(power: float) -> None:
    """The same GPU, without reasons recorded: its clock is held, and nobody knows by what."""
    change = {"gemm": {"slower": 1.1, "clock": 0.98, "power": power}}
    for told in (False, True):
        assert Part.BRAKE not in {one.what for one in explained(fleet({7: change}, told=told)).causes}
    held = explained(fleet({7: {"gemm": {"slower": 1.1, "clock": 0.98, "power": 0.9}}}, told=False))
    assert (held.main, held.kind) == (Part.UNTOLD, Kind.UNDER_CAP)


def test_the_hardwares_bit_beside_the_brakes_counter_is_the_brake() -> None:
    """The bit is read now and then, so that its share may be twice that of the counter."""
    events = {"power_brake": 0.1 * RUN_S, "hw_slowdown": 0.25 * RUN_S}
    found = explained(fleet({7: {"gemm": {"events": events, "slower": 1.06, "power": 0.95}}}))
    assert found.main == Part.BRAKE
    assert Part.SLOWDOWN not in {one.what for one in found.causes}


def test_heat_that_the_sensor_does_not_show_has_another_remedy() -> None:
    events = {"thermal_hardware": 0.3 * RUN_S}
    cool = explained(fleet({7: {"gemm": {"events": events, "slower": 1.15, "temperature": -25}}}))
    warm = explained(fleet({7: {"gemm": {"events": events, "slower": 1.15, "temperature": 15}}}))
    assert (cool.main, warm.main) == (Part.HEAT, Part.HEAT)
    assert (cool.action, warm.action) == (Action.CHECK_HOT_SPOT, Action.CLEAN_COOLING)


def test_errors_of_the_memory_are_named_beside_slow_memory() -> None:
    campaign = fleet({7: {"stream": {"slower": 1.03}}})
    xid = pl.DataFrame({"gpu": [GPU, GPU, "GPU-001"], "code": [63, 79, 63]}).join(campaign.events, on="gpu", how="left")
    xid = xid.select(pl.col(name) for name in campaign.events.columns)
    found = explained(Probed("made", "", campaign.gpus, campaign.runs, xid))
    assert found.main == Part.MEMORY
    assert [(one.figure, one.value) for one in found.measured] == [(Quantity.XID, 63)]


def test_a_link_between_gpus_is_told_from_that_to_the_host() -> None:
    campaign = fleet({7: {"copy": {"slower": 1.2}}})
    for path, part in (("pcie", Part.LINK), ("peer", Part.PEER)):
        runs = campaign.runs.with_columns(conditions=pl.struct(pl.lit(path).alias("path")))
        assert explained(Probed("made", "", campaign.gpus, runs, campaign.events)).main == part


def test_a_lower_limit_takes_what_it_costs_and_the_cap_the_rest() -> None:
    """250 W instead of 300 W take 0.4 of the difference in ln power; 3 % more of clock are its silicon."""
    lower = (250 / 300) ** 0.4
    change = {"": {"limit_w": 250.0}, "gemm": {"power": 250 / 300, "clock": lower * 0.97}}
    found = explained(fleet({7: change}))
    parts = {one.what: one for one in found.causes}
    assert parts[Part.LIMIT].pct == pytest.approx(100 * 0.95 * -math.log(lower), rel=0.15)
    assert parts[Part.CAP].pct > 1


def test_one_probe_says_less() -> None:
    """Slow memory, link and host are told by a probe that is well; with one probe there is none."""
    for probe, factor in ((STREAM, 1.1), (COPY, 1.5)):
        assert explained(fleet({7: {"": {"slower": factor}}}, probes=[probe])).main == Part.UNEXPLAINED
    assert explained(fleet({7: {"": {"slower": 1.1, "clock": 0.9}}}, probes=[STREAM])).main == Part.UNEXPLAINED


def test_a_gpu_hot_as_its_peers_is_not_called_hot() -> None:
    """All GPUs of the fleet run at 81 degC, 2 K below the limit: heat holds none of them more than the others."""
    hot = GEMM.__class__(**{**GEMM.__dict__, "temperature": 81.0})
    found = explained(fleet({7: {"gemm": {"clock": 0.95}}}, probes=[hot, FMA]))
    assert found.main == Part.CAP


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


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_explains_nothing_and_breaks_nothing(what: str) -> None:
    campaign = fleet({7: {"": {"slower": 1.08}}}, probes=[GEMM, STREAM])
    everywhere = {name: pl.lit(value, campaign.runs.schema[name]) for name, value in MISSING[what].items()}
    for where in (pl.col("gpu") == GPU, pl.lit(value=True)):
        changed = (pl.when(where).then(value).otherwise(pl.col(name)).alias(name) for name, value in everywhere.items())
        runs = campaign.runs.with_columns(*changed)
        found = explained(Probed("made", "", campaign.gpus, runs, campaign.events))
        assert found.main == Part.UNEXPLAINED


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_few_gpus_give_no_error(gpus: int) -> None:
    evidence = Evidence.of(fleet(gpus=gpus, sittings=1))
    found = evidence.slow("GPU-000", {"gemm": 0.05})
    assert sum(one.pct for one in found.causes) == pytest.approx(100 * math.expm1(0.05), abs=1e-9)
    assert evidence.slow("GPU-000", {}).causes == ()
    assert evidence.slow("GPU-000", {"gemm": math.nan}).causes == ()
    assert evidence.slow("nobody", {"gemm": 0.05}).main == Part.UNEXPLAINED
    assert evidence.slow("GPU-000", {"gemm": -0.05}).kind == Kind.FAST


def test_the_same_evidence_gives_the_same_intervals() -> None:
    first, second = (explained(fleet({7: CASES["heat, with its counter"][0]})) for _ in range(2))
    assert first == second


@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True])
def test_a_gpu_that_is_slow_in_compute_at_its_clock_is_not_called_power_cap(*, alone: bool) -> None:
    """Caps hold clocks 1.8 % apart, by the luck of the silicon; what is rare of the slow GPUs is the rest."""
    found = 0
    for seed in range(4):
        drawn = fleet_of(np.random.default_rng([38, seed]), 64, "normal", faults=3, fault="compute", effect=0.03)
        runs = drawn.campaign.runs.filter((pl.col("workload") == "gemm") | (not alone))
        verdicts = {verdict.name: verdict for verdict in judged(replace(drawn.campaign, runs=runs)).rows}
        for gpu in np.flatnonzero(drawn.faulty):
            verdict = verdicts.pop(drawn.names[gpu], None)
            if verdict is not None:
                found += 1
                assert [cause.what for cause in verdict.causes] == [Part.UNEXPLAINED]
                assert verdict.action == Action.RUN_FULL_SUITE
                assert verdict.effect_pct == pytest.approx(verdict.causes[0].pct, abs=1e-9)
    assert found >= 9


def test_gpus_of_a_node_that_are_slow_alike_are_explained_together() -> None:
    """Four GPUs at 84 degC: heat; four at full clock with less power: their host."""
    hot = {number: {"gemm": {"clock": 0.95, "temperature": 18, "power": 0.93}} for number in range(4, 8)}
    starved = {number: {"fma": {"slower": 1.1, "power": 0.88}} for number in range(8, 12)}
    evidence = Evidence.of(fleet(hot | starved))
    found = evidence.slow([f"GPU-{number:03d}" for number in range(4, 8)], {"gemm": 0.05})
    assert (found.main, found.kind) == (Part.HEAT, Kind.HOT)
    found = evidence.slow([f"GPU-{number:03d}" for number in range(8, 12)], {"fma": 0.09})
    assert found.kind == Kind.STARVED
    assert found.action == Action.CHECK_HOST_OF_NODE


def test_runs_are_gathered_by_sitting_as_a_plain_loop_does() -> None:
    """Sittings end after a pause of 6 hours or 24 hours; the lowest and the highest of three runs or more are left out.

    Runs at unknown times are one sitting.
    """
    random = np.random.default_rng(3)
    start = datetime(2026, 3, 2, tzinfo=UTC).replace(tzinfo=None)
    hours: dict[str, list[float | None]] = {
        "A": [0.0, 1.0, 2.0, 7.9, 14.0, 14.5, 100.0],
        "B": [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, None, None],
    }
    expected: dict[str, list[list[float | None]]] = {
        "A": [[0.0, 1.0, 2.0, 7.9], [14.0, 14.5], [100.0]],
        "B": [[None, None], [0.0, 5.0, 10.0, 15.0, 20.0], [25.0, 30.0]],
    }
    rows = [
        {"gpu": gpu, "at": hour, "workload": probe, "value": float(np.exp(random.normal()))}
        for gpu, at in hours.items()
        for hour in at
        for probe in ("x", "y")
    ]
    table = pl.DataFrame(rows).sample(fraction=1.0, shuffle=True, seed=1)
    runs = table.with_columns(
        began=start + pl.duration(seconds=pl.col("at") * 3600), ended=pl.lit(None, pl.Datetime("us")),
        status=pl.lit("ok"), sm_clock_mhz=pl.lit(1400.0), power_w=pl.lit(300.0), temperature_c=pl.lit(60.0),
        run_id=pl.lit("x"),
    )  # fmt: skip
    found = of_sittings(campaign_of(runs))
    for gpu, chains in expected.items():
        for probe in ("x", "y"):
            own = found.filter((pl.col("gpu") == gpu) & (pl.col("workload") == probe)).sort("sitting")
            for row, chain in zip(own.iter_rows(named=True), chains, strict=True):
                is_in = pl.col("at").is_in([hour for hour in chain if hour is not None]) | (
                    pl.col("at").is_null() & pl.lit(chain[0] is None)
                )
                values = table.filter((pl.col("gpu") == gpu) & (pl.col("workload") == probe) & is_in)["value"].log()
                inner = sorted(values)[1:-1] if len(values) > 2 else list(values)
                assert row["time"] == pytest.approx(np.mean(inner))
                assert row["runs"] == len(chain)
