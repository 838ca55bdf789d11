"""Energy of nodes: what meters outside the GPUs read of them, GPU + host = node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.vocabulary import Code, PowerMeter, PowerOf
from .sensor import Floats, Times

if TYPE_CHECKING:
    from ...store import Store

WHOLE = (PowerOf.NODE_WALL, PowerOf.NODE_DC, PowerOf.NODE)
"""What covers a whole node, the one that covers more first."""
OF_HOST = (PowerOf.CPU, PowerOf.DRAM)
"""Parts of the host that have counters of their own."""
_BEST = (PowerMeter.PDU, PowerMeter.SIMULATED, PowerMeter.REDFISH, PowerMeter.IPMI, PowerMeter.HWMON, PowerMeter.RAPL)
_GAIN, _USUAL_GAIN = {PowerMeter.PDU: 0.005, PowerMeter.SIMULATED: 0.005}, 0.025
_LONGEST = 3.0  # times the usual time between two readings: a longer one is a gap
_LONGEST_S = 90.0  # and not shorter than this
_MOST_W = 1e5  # no node draws more: a counter that says so began anew


class NodeProblem(Code):
    """What is wrong with the meters of a node, and what was done about it."""

    METERS_DISAGREE = (
        "meters of a node disagree",
        "two meters of a node differ: the one that covers more counts, of two alike a PDU before a BMC; the interval "
        "reaches to the other one",
    )
    BELOW_GPUS = "node below its GPUs", "the meter of a node reads less than its GPUs: it counts for none of its energy"


@dataclass(frozen=True)
class NodeMeter:
    """What one meter read of one node, or of a part of it, summed over the parts that it has. Arrays (k,)."""

    cluster: str
    node: str
    source: PowerMeter
    covers: PowerOf
    ts_ns: Times
    """When it was read, UTC."""
    placed_ns: Times
    """Up to when `joules` and `seconds` are: a mean of the time before a reading is of the middle of that time."""
    joules: Floats
    """Energy since the first reading, without that of gaps."""
    seconds: Floats
    """Time since the first reading, without gaps."""
    watts: Floats
    """The power that a row says, else the mean since the row before; NaN where that is a gap."""
    window_s: Floats
    """Over how much time before `ts_ns` that power is the mean; NaN where the meter does not say."""

    @property
    def gain_sd(self) -> float:
        """The assumed standard deviation of its gain: a metered PDU is of class 1 %, what sits in a node within 5 %."""
        return _GAIN.get(self.source, _USUAL_GAIN)

    def over(self, began: Times, ended: Times) -> tuple[Floats, Floats]:
        """Energy (J) from `began` to `ended` (ns UTC), and of how many seconds of it there are readings."""
        since = self.placed_ns[0]
        knots, first, last = ((times - since) / 1e9 for times in (self.placed_ns, began, ended))
        joules, seconds = (
            np.interp(last, knots, sums) - np.interp(first, knots, sums) for sums in (self.joules, self.seconds)
        )
        return joules, seconds


def node_meters(
    store: Store, *, cluster: str | None = None, since: datetime | None = None, until: datetime | None = None
) -> list[NodeMeter]:
    """The meters of the store's nodes (of one cluster, or of all) from `since` to `until`, by cluster and node, those
    that cover more first. Raises StoreError."""
    rows = store.scan("node_power").filter(
        pl.col("power_mw").is_not_null() | pl.col("energy_mj").is_not_null(),
        *([pl.col("cluster") == cluster] if cluster is not None else []),
        *([pl.col("ts") >= since] if since is not None else []),
        *([pl.col("ts") <= until] if until is not None else []),
    )
    columns = ("cluster", "node", "source", "covers", "part", "ts", "power_mw", "window_ms", "energy_mj")
    parts: dict[tuple[str, ...], list[_Arrays]] = {}
    groups = store.collect(rows.select(columns)).group_by(columns[:5])
    for (*meter, _), of_part in sorted(groups, key=lambda group: tuple(map(str, group[0]))):
        of_part = of_part.unique("ts", keep="last").sort("ts")  # quick, as words of all rows are not
        if meter[2] in _BEST and meter[3] in (*WHOLE, *OF_HOST) and of_part.height > 1:
            parts.setdefault(tuple(map(str, meter)), []).append(_part(of_part))
    meters = [
        NodeMeter(name, node, PowerMeter(source), PowerOf(covers), *_summed(of_meter))
        for (name, node, source, covers), of_meter in parts.items()
    ]
    rank = {code: place for place, code in enumerate((*WHOLE, *OF_HOST))}
    return sorted(meters, key=lambda meter: (meter.cluster, meter.node, rank[meter.covers], _BEST.index(meter.source)))


_Arrays = tuple[Times, Times, Floats, Floats, Floats, Floats]


def _part(rows: pl.DataFrame) -> _Arrays:
    """The arrays of a `NodeMeter` of one part, from its two or more readings in order of time."""
    ts = rows["ts"].dt.epoch("ns").to_numpy()
    power_w, window_s, counted_j = (
        rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy() / 1e3
        for name in ("power_mw", "window_ms", "energy_mj")
    )
    step_s = np.diff(ts) / 1e9
    counted = np.diff(counted_j)
    by_counter = (counted >= 0) & (counted <= _MOST_W * step_s)
    middle = ts - (np.nan_to_num(window_s) * 5e8).astype(np.int64)
    placed = ts if by_counter.any() else np.maximum.accumulate(middle)
    step_j = np.where(by_counter, counted, (power_w[1:] + power_w[:-1]) / 2 * np.diff(placed) / 1e9)
    gap = np.isnan(step_j) | (step_s > max(_LONGEST * float(np.median(step_s)), _LONGEST_S))
    joules, seconds = (
        np.append(0.0, np.cumsum(np.where(gap, 0.0, steps))) for steps in (step_j, np.diff(placed) / 1e9)
    )
    no_power = np.isnan(power_w)
    watts = np.where(no_power, np.append(np.nan, np.where(gap, np.nan, step_j / step_s)), power_w)
    return ts, placed, joules, seconds, watts, np.where(no_power, np.append(np.nan, step_s), window_s)


def _summed(parts: Sequence[_Arrays]) -> _Arrays:
    """The arrays of the whole of some parts, at the times at which any was read: without a part there is no whole."""
    if len(parts) == 1:
        return parts[0]
    ts = np.unique(np.concatenate([part[0] for part in parts]))
    placed = ts + np.interp(ts, parts[0][0], parts[0][1] - parts[0][0]).astype(np.int64)
    joules, watts, seconds = np.zeros(len(ts)), np.zeros(len(ts)), np.full(len(ts), np.inf)
    window_s = np.zeros(len(ts))
    for part_ts, _, part_j, part_s, part_w, part_window_s in parts:
        row = np.searchsorted(part_ts, ts).clip(max=len(part_ts) - 1)
        is_read = part_ts[row] == ts
        joules += np.interp(ts, part_ts, part_j)
        seconds = np.minimum(seconds, np.interp(ts, part_ts, part_s))
        watts += np.where(is_read, part_w[row], np.nan)
        window_s = np.maximum(window_s, np.where(is_read, part_window_s[row], np.nan))
    return ts, placed, joules, seconds, watts, window_s
