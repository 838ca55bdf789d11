"""Energy of hosts: what meters of nodes read, less what their GPUs used, split over the GPUs: GPU + host = node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.instants import date_of_ns
from .nodes import WHOLE, NodeMeter, node_meters
from .series import Floats

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
) -> pl.DataFrame:
    """The pieces of a time with `measured_host_j`, as `measured_hosts` says; as they are without meters of nodes."""
    since, until = date_of_ns(since_ns) - _AROUND, date_of_ns(until_ns) + _AROUND
    meters = node_meters(store, cluster=cluster, since=since, until=until)
    if not meters:
        return pieces
    whole = (
        "select cluster, node, count(*) as gpus from gpus_now where parent is null and node is not null group by all"
    )
    gpus = {(row["cluster"], row["node"]): row["gpus"] for row in store.sql(whole).to_pylist()}
    return measured_hosts(pieces, meters, gpus)


def measured_hosts(pieces: pl.DataFrame, meters: Sequence[NodeMeter], gpus: Mapping[Node, int]) -> pl.DataFrame:
    """The pieces with `measured_host_j`: the energy of the rest of their nodes, their share.

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
    host_j = np.full(len(pieces), np.nan)
    for key, own in rows.filter(pl.col("gpu").is_not_null() & pl.col("node").is_not_null()).group_by("cluster", "node"):
        node = str(key[0]), str(key[1])
        if node in of_node and own["gpu"].n_unique() >= gpus.get(node, 1):
            host_j[own["row"].to_numpy()] = _of_node(own, of_node[node], max(own["gpu"].n_unique(), gpus.get(node, 1)))
    return pieces.with_columns(pl.Series("measured_host_j", host_j).fill_nan(None))


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
    whole = [meter for meter in meters if meter.covers in WHOLE][:1]
    watts = np.zeros(len(seconds))
    known = all_gpus.copy() if whole else np.ones(len(seconds), bool)
    for meter in whole or meters:
        joules, read_s = meter.over(edges[:-1], edges[1:])
        known &= (read_s >= _READ * seconds) & (read_s > 0)
        watts += joules / np.maximum(read_s, 1e-9)
    if whole:
        watts -= total(np.nan_to_num(energy_j) / np.maximum(lasted, 1e-9))
    joules = np.append(0.0, np.cumsum(np.where(known, watts * seconds, 0.0)))
    known_s = np.append(0.0, np.cumsum(known * seconds))
    host_j, host_s = joules[last] - joules[first], known_s[last] - known_s[first]
    found = np.where(host_s >= _READ * lasted, host_j * lasted / np.maximum(host_s, 1e-9) * share / gpus, np.nan)
    return np.where(found >= 0, found, np.nan)
