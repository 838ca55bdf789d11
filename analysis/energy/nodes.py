"""Energy of nodes, GPU + host = node: what meters outside the GPUs read, less what the GPUs used, split over these."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.instants import date_of_ns
from ...store.power_sensors import NORMAL_95
from ...store.vocabulary import Code, PowerMeter, PowerOf
from .claims import PROBLEMS
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


# -- energy of hosts --------------------------------------------------------------------------------------------------


_AROUND = timedelta(minutes=10)
"""So much before and after is read too: what a meter says of the ends lies beside them."""
_READ = 0.9
"""The part of a time for which a meter must have readings; what it read is then taken for all of it."""

Node = tuple[str, str]
"""Cluster and node."""


def with_measured_hosts(
    store: Store, pieces: pl.DataFrame, since_ns: int, until_ns: int, *, cluster: str | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pieces of a time with what `measured_hosts` adds, NULL without meters of nodes; and `node_problems`."""
    since, until = date_of_ns(since_ns) - _AROUND, date_of_ns(until_ns) + _AROUND
    meters = node_meters(store, cluster=cluster, since=since, until=until)
    whole = (
        "select cluster, node, count(*) as gpus from gpus_now where parent is null and node is not null group by all"
    )
    gpus = {(row["cluster"], row["node"]): row["gpus"] for row in store.sql(whole).to_pylist()}
    problems = node_problems(pieces, meters)
    apart = problems.filter(pl.col("problem") == NodeProblem.METERS_DISAGREE.value, pl.col("percent").is_finite())
    apart_by_node = {
        (row["cluster"], row["node"]): abs(row["percent"]) / 100
        for row in apart.sort(pl.col("percent").abs()).to_dicts()
    }
    return measured_hosts(pieces, meters, gpus, apart=apart_by_node), problems


def node_problems(pieces: pl.DataFrame, meters: Sequence[NodeMeter]) -> pl.DataFrame:
    """Meters of one node that disagree, and those that read less than its GPUs: columns of `problems.PROBLEMS`."""
    began, ended = (pl.col(name).dt.epoch("ns") for name in ("began", "ended"))
    read = pieces.filter(pl.col("gpu").is_not_null(), pl.col("node").is_in([meter.node for meter in meters]))
    of_node = dict(read.select("cluster", "node", "energy_j", began, ended).group_by("cluster", "node"))
    rows = []
    first: NodeMeter | None = None
    for meter in meters:
        if first is None or (meter.cluster, meter.node) != (first.cluster, first.node):
            first = meter
            own = of_node.get((meter.cluster, meter.node), read.clear())
            own = own.filter(pl.col("began") >= meter.placed_ns[0], pl.col("ended") <= meter.placed_ns[-1])
            if meter.covers not in WHOLE or own.is_empty():
                continue
            ends = own["began"].to_numpy().min(), own["ended"].to_numpy().max()
            other_j, problem, detail = float(own["energy_j"].sum()), NodeProblem.BELOW_GPUS, f"{meter.source}"
            low, high = 0.0, 1 + NORMAL_95 * meter.gain_sd
        else:
            ends = max(first.placed_ns[0], meter.placed_ns[0]), min(first.placed_ns[-1], meter.placed_ns[-1])
            (joules,), _ = meter.over(*(np.array([end]) for end in ends))
            other_j, problem = float(joules), NodeProblem.METERS_DISAGREE
            detail = f"{meter.source} of {meter.covers}, {first.source} of {first.covers}"
            apart = NORMAL_95 * math.hypot(first.gain_sd, meter.gain_sd)
            # Power supplies lose up to a tenth; a part of a node has any part of its power.
            low = 0.0 if meter.covers not in WHOLE else 1 - apart if meter.covers == first.covers else 0.9 - apart
            high = 1 + apart
        (joules,), (seconds,) = first.over(*(np.array([end]) for end in ends))
        if first.covers not in WHOLE or seconds * 1e9 < _READ * (ends[1] - ends[0]) or joules <= 0:
            continue
        if not low <= other_j / joules <= high:
            times = {name: date_of_ns(int(end)) for name, end in zip(("began", "ended"), ends, strict=True)}
            rows.append({
                "cluster": meter.cluster, "node": meter.node, "problem": problem.value, **times, "n": 1,
                "joules": other_j - joules, "percent": 100 * (other_j / joules - 1), "detail": detail,
            })  # fmt: skip
    return pl.DataFrame(rows, schema=PROBLEMS)


def measured_hosts(
    pieces: pl.DataFrame,
    meters: Sequence[NodeMeter],
    gpus: Mapping[Node, int],
    *,
    apart: Mapping[Node, float] | None = None,
) -> pl.DataFrame:
    """The pieces with `measured_host_j`, the energy of the rest of their nodes, their share; and `host_doubt_j`, how
    far it may be off with 95 %, because of the gain of the meter: of all that the node used. Where the meters of a node
    disagree (`apart`: by which share), it reaches to the other one.

    A piece has a part of the host as its GPU is one of the node's (`gpus`: how many it has) and as it has a share of
    that. Between two edges of pieces, the power of a GPU is taken as constant. NULL where the node has no meter, where
    that was not read for most of the time, or where a GPU of the node has no energy. `meters`: from `node_meters`; the
    first one that is of a whole node counts, else all that are of parts of the host.
    """
    of_node: dict[Node, list[NodeMeter]] = {}
    for meter in meters:
        of_node.setdefault((meter.cluster, meter.node), []).append(meter)
    rows = pieces.select("cluster", "node", "gpu", "share", "energy_j", began=pl.col("began").dt.epoch("ns"),
                         ended=pl.col("ended").dt.epoch("ns")).with_row_index("row")  # fmt: skip
    host_j, gain = np.full(len(pieces), np.nan), np.zeros(len(pieces))
    with_meter = pl.col("node").is_in([node for _, node in of_node])
    for key, own in rows.filter(pl.col("gpu").is_not_null(), with_meter).group_by("cluster", "node"):
        node = str(key[0]), str(key[1])
        if node in of_node and own["gpu"].n_unique() >= gpus.get(node, 1):
            at = own["row"].to_numpy()
            host_j[at] = _of_node(own, of_node[node], max(own["gpu"].n_unique(), gpus.get(node, 1)))
            gain[at] = max(NORMAL_95 * of_node[node][0].gain_sd, (apart or {}).get(node, 0.0))
    used_j = host_j + pieces["energy_j"].fill_null(0.0).to_numpy()
    return pieces.with_columns(
        pl.Series("measured_host_j", host_j).fill_nan(None),
        pl.Series("host_doubt_j", gain * np.abs(used_j)).fill_nan(None),
    )


def _of_node(rows: pl.DataFrame, meters: Sequence[NodeMeter], gpus: int) -> Floats:
    """The energy of the host of each piece of a node, NaN where it is not known."""
    began, ended, share = (rows[name].to_numpy() for name in ("began", "ended", "share"))
    energy_j = rows["energy_j"].fill_null(float("nan")).to_numpy()
    edges, place = np.unique(np.concatenate([began, ended]), return_inverse=True)
    first, last = place[: len(rows)], place[len(rows) :]
    seconds = np.diff(edges) / 1e9
    lasted = (ended - began) / 1e9

    def total(values: Floats) -> Floats:
        """The sum of something over the pieces that hold between two edges."""
        steps = np.zeros(len(edges))
        np.add.at(steps, first, values)
        np.subtract.at(steps, last, values)
        return np.cumsum(steps)[:-1]

    all_gpus = (total(share) > gpus - 1e-6) & (total(np.isnan(energy_j).astype(float)) < 0.5)
    of_whole = [meter for meter in meters if meter.covers in WHOLE][:1]
    watts = np.zeros(len(seconds))
    is_known = all_gpus.copy() if of_whole else np.ones(len(seconds), bool)
    for meter in of_whole or meters:
        joules, read_s = meter.over(edges[:-1], edges[1:])
        is_known &= (read_s >= _READ * seconds) & (read_s > 0)
        watts += joules / np.maximum(read_s, 1e-9)
    if of_whole:
        watts -= total(np.nan_to_num(energy_j) / np.maximum(lasted, 1e-9))
    joules = np.append(0.0, np.cumsum(np.where(is_known, watts * seconds, 0.0)))
    known_s = np.append(0.0, np.cumsum(is_known * seconds))
    host_j, host_s = joules[last] - joules[first], known_s[last] - known_s[first]
    if joules[-1] < 0:  # it reads less than the GPUs: it is no meter of all of the node
        return np.full(len(rows), np.nan)
    return np.where(host_s >= _READ * lasted, host_j * lasted / np.maximum(host_s, 1e-9) * share / gpus, np.nan)
