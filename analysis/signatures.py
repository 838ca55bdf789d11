"""What a GPU that stands out looks like: its clock, power and temperature beside those of its peers.

The rules are those that operators read slow GPUs by (docs/report.md). Each gives a cautious cause: what it looks like,
with the figures that say so, and never that it is so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl

from ..store.clock_events import BRAKE, THERMAL, names
from .probing import COMPUTE, LINK, MEMORY

LOST, WRONG, FAILED = "lost", "wrong_results", "failed"
POWER, CEILING, COOLING, DRAM, BUS, STARVED = "power", "clock_ceiling", "cooling", "memory", "link", "starved"
SENSOR, HOST, FAST, UNEXPLAINED = "stuck_sensor", "host", "fast", "unexplained"

CAUSES = (LOST, WRONG, FAILED, POWER, CEILING, COOLING, DRAM, BUS, STARVED, HOST, SENSOR, FAST, UNEXPLAINED)
"""The worst first: the first three were seen, and are not inferred from times."""

SPOKEN = {
    LOST: "lost",
    WRONG: "wrong results",
    FAILED: "failed",
    POWER: "power brake or lower power limit",
    CEILING: "clock ceiling",
    COOLING: "poor cooling",
    DRAM: "slow memory",
    BUS: "slow link to the host",
    STARVED: "waits for the host",
    HOST: "the host, not the GPU",
    SENSOR: "frozen power sensor",
    FAST: "other settings than its peers",
    UNEXPLAINED: "no known cause",
}
"""What people call it."""

_LOW, _LOW_CLOCK, _NEAR_LIMIT = 0.95, 0.97, 0.93  # shares: of the peers' power, of their clock, of the power limit
_BRAKED = 0.05  # of the window, beyond what the peers have
_NEAR_SLOWDOWN_K = 2.0
_MOSTLY = 3.0  # how many times more the memory's probes are slowed than those of the cores


@dataclass(frozen=True)
class Run:
    """One probe on one GPU beside the same probe on its peers: medians, None where unknown."""

    probe: str
    stresses: str
    excess_pct: float | None
    """By how much its time is above its peers'."""
    clock_mhz: float | None
    peers_clock_mhz: float | None
    power_w: float | None
    peers_power_w: float | None
    temperature_c: float | None
    peers_temperature_c: float | None
    limit_w: float | None
    slowdown_c: float | None
    braked: float | None
    """Share of the window in which the hardware held the clock down, beyond the peers' median share."""
    heated: float | None
    """The same, because of temperature."""

    @property
    def clock(self) -> float | None:
        return _ratio(self.clock_mhz, self.peers_clock_mhz)

    @property
    def power(self) -> float | None:
        return _ratio(self.power_w, self.peers_power_w)


class Peers:
    """The runs of a campaign with the medians of each model's GPUs beside them."""

    def __init__(self, runs: pl.DataFrame) -> None:
        self._by_gpu: dict[str, list[Run]] = {}
        self._runs = runs

    @classmethod
    def of(cls, runs: pl.DataFrame) -> Peers:
        """`runs`: the rows of `probing.Probed.runs`."""
        window = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9
        clock_events = runs.select("clock_events").unique()
        shares = pl.DataFrame(
            {
                "clock_events": clock_events["clock_events"],
                "braked_s": [_seconds(text, names(BRAKE)) for text in clock_events["clock_events"]],
                "heated_s": [_seconds(text, names(THERMAL)) for text in clock_events["clock_events"]],
            },
            schema={"clock_events": pl.String, "braked_s": pl.Float64, "heated_s": pl.Float64},
        )
        whole = runs.join(shares, on="clock_events", how="left", nulls_equal=True).with_columns(
            (pl.col("braked_s") / window).alias("braked"), (pl.col("heated_s") / window).alias("heated")
        )
        medians = ("value", "sm_clock_mhz", "power_w", "temperature_c", "braked", "heated")
        return cls(
            whole.with_columns(
                pl.col(name).median().over("model", "workload").alias(f"peers_{name}") for name in medians
            )
        )

    def of_gpu(self, gpu: str) -> list[Run]:
        """The runs of a GPU that have a clock, in the order of time."""
        found = []
        for row in self._runs.filter(pl.col("gpu") == gpu).sort("began").iter_rows(named=True):
            if row["value"] is None and row["sm_clock_mhz"] is None:
                continue
            found.append(
                Run(
                    row["workload"],
                    row["stresses"],
                    None if row["value"] is None else 100 * (row["value"] / row["peers_value"] - 1),
                    row["sm_clock_mhz"],
                    row["peers_sm_clock_mhz"],
                    row["power_w"],
                    row["peers_power_w"],
                    row["temperature_c"],
                    row["peers_temperature_c"],
                    row["power_limit_w"],
                    row["temperature_slowdown_c"],
                    _beyond(row["braked"], row["peers_braked"]),
                    _beyond(row["heated"], row["peers_heated"]),
                )
            )
        return found


def cause(
    seen: Sequence[str], excess_pct: Mapping[str, float], rise_pct: float | None, runs: Sequence[Run]
) -> tuple[str, str]:
    """What a GPU looks like: one of `CAUSES`, and a sentence.

    `seen`: causes that were seen; `excess_pct`: by how much its time in a probe is above its peers' (negative:
    below), of the probes in which it stands out; `rise_pct`: by how much its temperature rises more a watt, None
    where that does not stand out.
    """
    for one in (LOST, WRONG, FAILED):
        if one in seen:
            return one, _SEEN[one]
    slow = {probe: excess for probe, excess in excess_pct.items() if excess > 0}
    if slow:
        return _slow(slow, rise_pct, runs)
    if rise_pct is not None and rise_pct > 0:
        return COOLING, f"it warms {rise_pct:.0f} % more a watt than its peers: looks like poor cooling"
    if SENSOR in seen:
        return SENSOR, "looks like a frozen power sensor: leave its power out of energy accounts"
    if excess_pct:
        return FAST, "it is faster than its peers: looks like another power limit, clock setting or cooling"
    return UNEXPLAINED, "it warms less a watt than its peers: no known cause"


_SEEN = {
    LOST: "it fell off the bus: look at its XID events, its seating and its power",
    WRONG: "looks like silent data corruption: take it out of service and test it",
    FAILED: "it could not run what its peers ran",
}


def _slow(slow: Mapping[str, float], rise_pct: float | None, runs: Sequence[Run]) -> tuple[str, str]:
    by_probe = {run.probe: run for run in runs}
    slowed = [by_probe[probe] for probe in sorted(slow, key=lambda name: -slow[name]) if probe in by_probe]
    kinds = {run.stresses for run in slowed}
    if kinds == {LINK}:
        return BUS, "only its copies to and from the host are slow: looks like a link of less width or speed"
    highest = max((run.clock_mhz for run in runs if run.clock_mhz is not None), default=None)
    peers = max((run.peers_clock_mhz for run in runs if run.peers_clock_mhz is not None), default=None)
    if highest is not None and peers is not None and highest < _LOW * peers:
        return CEILING, (
            f"its clock never rises above {highest:.0f} MHz where its peers reach {peers:.0f} MHz: looks like a clock "
            "ceiling, locked or set lower"
        )
    memory = max((slow[run.probe] for run in slowed if run.stresses == MEMORY), default=0.0)
    # The median, so that a mix of arithmetic and memory among them does not count as the cores.
    cores = median([run.excess_pct for run in runs if run.stresses == COMPUTE and run.excess_pct is not None] or [0.0])
    if memory > _MOSTLY * max(cores, 0.0) and all((run.clock or 1) > _LOW_CLOCK for run in slowed):
        return DRAM, "its memory's probes are slow at the clock of its peers: looks like slow memory"
    for run in slowed:
        limit = _limiting_cause(run, rise_pct)
        if limit is not None:
            return limit
    if rise_pct is not None and rise_pct > 0:
        return COOLING, f"it warms {rise_pct:.0f} % more a watt than its peers: looks like poor cooling"
    return UNEXPLAINED, "neither clock, power nor temperature explains it"


def _limiting_cause(run: Run, rise_pct: float | None) -> tuple[str, str] | None:
    """What holds a GPU back in one probe in which it is slow, if its telemetry shows that."""
    hot = "" if rise_pct is None or rise_pct <= 0 else f"; it also warms {rise_pct:.0f} % more a watt"
    at_limit = _ratio(run.peers_power_w, run.limit_w)
    below = run.power is not None and run.power < _LOW
    if run.braked is not None and run.braked > _BRAKED:
        return POWER, (
            f"the hardware held its clock down for {100 * run.braked:.0f} % of {run.probe}: looks like a power brake "
            f"or a hardware slowdown{hot}"
        )
    near = (
        run.temperature_c is not None
        and run.slowdown_c is not None
        and run.temperature_c >= run.slowdown_c - _NEAR_SLOWDOWN_K
    )
    if near or (run.heated is not None and run.heated > _BRAKED):
        return COOLING, (
            f"in {run.probe} it is at {run.temperature_c:.0f} degC, its peers at {run.peers_temperature_c:.0f}: looks "
            "like poor cooling"
        )
    if below and at_limit is not None and at_limit > _NEAR_LIMIT:
        return POWER, (
            f"in {run.probe} it draws {run.power_w:.0f} W where its peers draw {run.peers_power_w:.0f} W, near their "
            f"limit: looks like a power brake or a lower power limit{hot}"
        )
    if below and run.clock is not None and run.clock >= _LOW_CLOCK and run.stresses == COMPUTE:
        return STARVED, (
            f"in {run.probe} it has the clock of its peers and draws {run.power_w:.0f} W where they draw "
            f"{run.peers_power_w:.0f} W: looks like waiting for the host, not like a slow GPU"
        )
    return None


def _seconds(text: str | None, names: Sequence[str]) -> float | None:
    """How long the clock was held down for any of these reasons, the longest of them; None where nothing is known."""
    if text is None:
        return None
    try:
        seconds = json.loads(text)
    except ValueError:
        return None
    if not isinstance(seconds, dict):
        return None
    return max((float(seconds[name]) for name in names if isinstance(seconds.get(name), int | float)), default=0.0)


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def _beyond(value: float | None, peers: float | None) -> float | None:
    return None if value is None else value - (peers or 0.0)
