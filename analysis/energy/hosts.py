"""Energy of hosts: what meters of nodes read, less what their GPUs used, split over the GPUs: GPU + host = node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.instants import date_of_ns
from ...store.power_sensors import NORMAL_95
from .nodes import WHOLE, NodeMeter, NodeProblem, node_meters
from .problems import PROBLEMS
from .sensor import Floats

if TYPE_CHECKING:
    from ...store import Store

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
