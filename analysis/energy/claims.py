"""Claims: which allocation had which physical GPU, or how much of it, from when to when.

They are read from `jobs_now`. Beside them stands what the store knows of the GPUs: their power limits, on which nodes
they were when (boards are exchanged to see whether a fault goes with them), and how active MIG instances were.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.catalog import quoted
from ...store.file_names import Bounds
from ...store.instants import date_of_ns, in_sql
from ...store.vocabulary import GpuFrom
from .readings import ALL_GPUS, GpuRange
from .sensor import Flags, Floats, Ints, Times

if TYPE_CHECKING:
    from ...store import Store

Key = tuple[str | None, str | None]
"""Cluster and GPU, or cluster and node."""
Stay = tuple[str | None, int, int]
"""A node, and from when to when a GPU was there, ns."""

RUNS = np.iinfo(np.int64).min
"""The end of a job that runs, or of which nobody knows when it ended."""
ALWAYS, NEVER = -(2**62), 2**62
_KEYS = ["cluster", "gpu"]
_SLICES = {"A30": 4}  # compute slices of a GPU that can be cut into instances, by a word of its model
_SLICES_ELSE = 7
_PROFILE = re.compile(r"(?:^|\b)(?:\d+c\.)?(\d+)g\.")
_LONGEST_S = 300.0  # a reading of activity speaks for the time since the one before it, at most so long
_AROUND_NS = 3600 * 10**9  # so much of the activity before and after a time is read too
_BY_PROCESS = f"gpu_from IS NOT DISTINCT FROM '{GpuFrom.PROCESS}'"  # beside others it held no fixed share


@dataclass(frozen=True)
class Claims:
    """All claims, one a row, with those of one GPU side by side. Arrays (n,)."""

    jobs: pl.DataFrame
    """cluster, allocation, job_id, node, claimed (the GPU as the job names it), gpu (the physical one; NULL where
    nobody knows it), node_gpus (how many it had on the node), in_store (whether the store knows the GPU), gpu_node and
    limit_w (the node of the GPU and its power limit)."""
    began: Times
    ended: Times
    """RUNS where it is not known."""
    heard: Times
    """When the batch system last told of the job."""
    share: Floats
    """Of the physical GPU; NaN where unknown."""
    busy: Floats
    """Of a job that is known by its processes: its part of the busy time of a GPU that it shared; NaN elsewhere."""
    nodes: Mapping[Key, str | None]
    """The node of each GPU that the store knows."""
    moves: Mapping[Key, Sequence[Stay]]
    """Of GPUs that were on several nodes, their stays: the first has no begin, the last one no end."""
    activity: Mapping[Key, tuple[Times, Floats, Floats]]
    """Of MIG instances with readings: when, and up to then the seconds active and the seconds read. `with_activity`
    has it."""
    of_gpu: Mapping[Key, range]
    """The rows of each physical GPU, in order of `began`."""
    of_node: Mapping[Key, Ints]
    """The rows of each node whose GPU nobody knows; under the node None those that name no node either."""
    of_some_gpus: bool = False
    """Only the claims of some GPUs are there, and those whose GPU nobody knows."""

    def within(
        self, rows: Ints, since_ns: int | Times | None, until_ns: int | Times | None, last_ns: Times | int = RUNS
    ) -> tuple[Flags, Times, Times]:
        """Which claims have a part of the time that is asked for and do not end before they begin, and that part of
        each.

        A job that runs has the GPU to `last_ns`, its last reading; where it has none, to when it was last heard of.
        """
        began, ended = self.began[rows], self.ended[rows]
        ended = np.where(ended == RUNS, np.where(began < last_ns, last_ns, self.heard[rows]), ended)
        low = began if since_ns is None else np.maximum(began, since_ns)
        high = ended if until_ns is None else np.minimum(ended, until_ns)
        inside = (high > low) | ((began == ended) & (low == high))
        return inside, low[inside], high[inside]

    def of_gpus(self, names: GpuRange) -> Claims:
        """Those of GPUs with names in a range, and those of which nobody knows the GPU."""
        if names == ALL_GPUS:
            return self
        rows = [np.arange(rows.start, rows.stop) for (_, gpu), rows in self.of_gpu.items() if gpu in names]
        nodes = {key: node for key, node in self.nodes.items() if key[1] in names}
        claims = self._only(np.sort(np.concatenate([np.arange(0), *rows, *self.of_node.values()])))
        return replace(claims, nodes=nodes)

    def touching(self, since_ns: int, until_ns: int) -> Claims:
        """Those that have a part of a time, or an end of it."""
        return self._only(np.flatnonzero((self.began <= until_ns) & ((self.ended == RUNS) | (self.ended >= since_ns))))

    def _only(self, rows: Ints) -> Claims:
        """Some of them, in order."""
        if len(rows) == len(self.began):
            return self
        keys, ranges = list(self.of_gpu), self.of_gpu.values()
        first, last = (
            np.searchsorted(rows, [getattr(of_gpu, end) for of_gpu in ranges]).tolist() for end in ("start", "stop")
        )
        of_node = {key: np.searchsorted(rows, of_node[np.isin(of_node, rows)]) for key, of_node in self.of_node.items()}
        return replace(
            self, jobs=self.jobs[rows], began=self.began[rows], ended=self.ended[rows], heard=self.heard[rows],
            share=self.share[rows], busy=self.busy[rows],
            of_gpu={key: range(*ends) for key, *ends in zip(keys, first, last, strict=True) if ends[0] < ends[1]},
            of_node={key: of_rows for key, of_rows in of_node.items() if len(of_rows)},
        )  # fmt: skip

    def edges(self, gpu: Key) -> Times:
        """When claims of a GPU, or of a node that it was on, begin and end, and when GPUs moved; ns, in no order."""
        rows = self.of_gpu.get(gpu, range(0))
        parts = [self.move_times, self.began[rows.start : rows.stop], self.ended[rows.start : rows.stop]]
        for node, _, _ in self.stays(gpu, self.nodes.get(gpu)) if self.of_node else ():
            of_node = self.of_node.get((gpu[0], node), np.zeros(0, np.int64))
            parts += [self.began[of_node], self.ended[of_node]]
        times = np.concatenate(parts)
        ends: Times = times[times != RUNS]
        return ends

    @cached_property
    def move_times(self) -> Times:
        """When GPUs moved, ns."""
        return np.unique(np.array([since for stays in self.moves.values() for _, since, _ in stays[1:]], np.int64))

    def backward(self) -> Ints:
        """The rows that end before they begin; they claim nothing."""
        return np.flatnonzero((self.ended != RUNS) & (self.ended < self.began))

    def stays(self, gpu: Key, node: str | None) -> Sequence[Stay]:
        """Where a GPU was when; one that has not moved was always on its `node`."""
        return self.moves.get(gpu) or [(node, ALWAYS, NEVER)]

    def placed(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Pieces, each with the node on which its GPU was; they are cut where GPUs moved."""
        rows = [(*key, since, node) for key, stays in self.moves.items() for node, since, _ in stays]
        if not rows:
            return pieces
        schema = {"cluster": pl.String, "gpu": pl.String, "at": pl.Int64, "there": pl.String}
        stays = pl.DataFrame(rows, schema, orient="row").sort("at")
        dated = pieces.with_row_index("_row").with_columns(pl.col("began").dt.epoch("ns").alias("at")).sort("at")
        dated = dated.join_asof(stays, on="at", by=_KEYS, check_sortedness=False).sort("_row")
        return dated.with_columns(pl.coalesce("there", "node").alias("node")).select(pieces.columns)

    def active(self, rows: Ints, began: Times, ended: Times) -> Floats:
        """How active the GPU or MIG instance of each claim was from `began` to `ended`, 0 to 1; NaN where nobody knows.

        `rows` may have a claim several times.
        """
        active = self.busy[rows]
        for row in np.unique(rows).tolist() if self.activity else ():
            read = self.activity.get((self.jobs["cluster"][row], self.jobs["claimed"][row]))
            if read is not None:
                at = np.flatnonzero(rows == row)
                active_s, read_s = (np.interp(ended[at], read[0], sums) - np.interp(began[at], read[0], sums)
                                    for sums in read[1:])  # fmt: skip
                active[at] = np.where(read_s > 0, active_s / np.where(read_s > 0, read_s, 1.0), np.nan)
        return active


def read_claims(
    store: Store,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    cluster: str | None = None,
    gpus: Collection[Key] | None = None,
) -> Claims:
    """The allocations that touch the time from `since_ns` to `until_ns`; of those that end before they begin, their
    begin. `gpus`: only those of these physical GPUs and their instances, and those without a GPU. Raises StoreError."""
    names = ", ".join(sorted({quoted(gpu) for _, gpu in gpus or ()})) or "NULL"
    of_gpus = "" if gpus is None else f" WHERE gpu IN ({names}) OR parent IN ({names})"
    boards = store.sql(
        "SELECT cluster, gpu, node, model, parent, mig_profile, "
        f"coalesce(power_limit_max_mw, power_limit_default_mw, power_limit_mw) / 1e3 AS limit_w FROM gpus_now{of_gpus}"
    ).polars()
    conditions = ["began IS NOT NULL"]
    if cluster is not None:
        conditions.append(f"cluster = {quoted(cluster)}")
    if gpus is not None:
        conditions.append(
            f"coalesce(cluster, '') IN ({', '.join(sorted({quoted(name or '') for name, _ in gpus})) or 'NULL'})"
        )
        conditions.append(f"(gpu IS NULL OR gpu IN ({', '.join(map(quoted, boards['gpu'])) or 'NULL'}, {names}))")
    if until_ns is not None:
        conditions.append(f"began < {in_sql(int(until_ns))}")
    if since_ns is not None:
        since = in_sql(int(since_ns))
        conditions.append(f"(ended IS NULL OR ended >= {since} OR ended < began AND began >= {since})")
    jobs = store.sql(
        "SELECT cluster, allocation, job_id, node, gpu, node_gpus, began, ended, recorded, "
        f"CASE WHEN {_BY_PROCESS} THEN NULL ELSE share END AS share, CASE WHEN {_BY_PROCESS} THEN share END AS busy "
        f"FROM jobs_now WHERE {' AND '.join(conditions)}"
    ).polars()
    claims = claims_of(jobs, boards, moves=_moves(store, None if gpus is None else names))
    return replace(claims, of_some_gpus=gpus is not None)


def claims_of(
    jobs: pl.DataFrame,
    boards: pl.DataFrame,
    *,
    moves: Mapping[Key, Sequence[Stay]] | None = None,
    activity: Mapping[Key, tuple[Times, Floats, Floats]] | None = None,
) -> Claims:
    """The claims of rows of `jobs_now` (with `busy`) on GPUs, of which `boards` has rows of `gpus_now` (limit_w)."""
    instances = boards.filter(pl.col("parent").is_not_null()).join(
        boards.select("cluster", pl.col("gpu").alias("parent"), pl.col("model").alias("of_parent")),
        on=["cluster", "parent"], how="left", nulls_equal=True,
    )  # fmt: skip
    parts = [
        profile_share(profile, of_parent or model)
        for profile, of_parent, model in instances.select("mig_profile", "of_parent", "model").iter_rows()
    ]
    instances = instances.select(
        "cluster", pl.col("gpu").alias("claimed"), "parent", pl.Series("part", parts, pl.Float64)
    )
    share = pl.col("share").cast(pl.Float64)
    of_part = pl.when(pl.col("parent").is_null()).then(share).otherwise(share.fill_null(1.0) * pl.col("part"))
    jobs = (
        jobs.rename({"gpu": "claimed"})
        .join(instances, on=["cluster", "claimed"], how="left", nulls_equal=True)
        .with_columns(pl.coalesce("parent", "claimed").alias("gpu"), of_part.alias("share"))
        .sort("cluster", "gpu", "began", "ended", "allocation", nulls_last=True)
        .with_row_index("row")
    )
    began, ended, heard = (
        jobs[name].dt.epoch("ns").fill_null(RUNS).to_numpy() for name in ("began", "ended", "recorded")
    )
    shares, busy = (
        jobs[name].cast(pl.Float64).fill_null(float("nan")).to_numpy(writable=True) for name in ("share", "busy")
    )
    shares[~(shares > 0)] = np.nan
    has_gpu = pl.col("gpu").is_not_null()
    of_gpu = jobs.filter(has_gpu).group_by(_KEYS, maintain_order=True).agg(pl.col("row").first(), pl.len())
    of_node = jobs.filter(~has_gpu).group_by("cluster", "node", maintain_order=True).agg("row")
    limit_w = pl.when(pl.col("limit_w") > 0).then("limit_w").alias("limit_w")
    of_boards = boards.select(*_KEYS, pl.col("node").alias("gpu_node"), limit_w, pl.lit(True).alias("in_store"))
    jobs = jobs.join(of_boards, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    return Claims(
        jobs.select("cluster", "allocation", "job_id", "node", "claimed", "gpu", "node_gpus",
                    pl.col("in_store").fill_null(False), "gpu_node", "limit_w"),
        began, ended, np.maximum(heard, began), shares, busy,
        {(cluster, gpu): node for cluster, gpu, node in boards.select(*_KEYS, "node").iter_rows()},
        moves or {}, activity or {},
        {(cluster, gpu): range(first, first + n) for cluster, gpu, first, n in of_gpu.iter_rows()},
        {(cluster, node): np.array(rows, np.int64) for cluster, node, rows in of_node.iter_rows()},
    )  # fmt: skip


def profile_share(profile: str | None, model: str | None) -> float | None:
    """Which part of a GPU a MIG profile is, by its compute slices: 3/7 of 3g.20gb. None where it cannot be read."""
    match = _PROFILE.search(profile or "")
    if match is None:
        return None
    slices = next((n for word, n in _SLICES.items() if word in (model or "").split()), _SLICES_ELSE)
    return min(int(match[1]) / slices, 1.0)


def _moves(store: Store, names: str | None) -> dict[Key, list[Stay]]:
    """The stays of GPUs that the table `gpus` shows on several nodes; of some GPUs (in SQL) or of all.

    `n1` and `n1.example.org` are one node. A row without a UUID, of a GPU that has one, was found by its node.
    """
    rows = store.sql(
        "SELECT cluster, gpu, arg_max(node, length(node)) AS node, since FROM (SELECT cluster, gpu, node, "
        f"coalesce(epoch_ns(first_seen), {ALWAYS}) AS since FROM gpus WHERE node IS NOT NULL AND parent IS NULL"
        f"{'' if names is None else f' AND gpu IN ({names})'} "
        "QUALIFY (uuid IS NOT NULL OR max(uuid) OVER (PARTITION BY cluster, gpu) IS NULL) "
        "AND count(DISTINCT split_part(node, '.', 1)) OVER (PARTITION BY cluster, gpu) > 1) GROUP BY ALL ORDER BY since"
    )
    moves: dict[Key, list[Stay]] = {}
    for row in rows.to_pylist():
        stays = moves.setdefault((row["cluster"], row["gpu"]), [])
        node, since, _ = stays[-1] if stays else (None, ALWAYS, NEVER)
        if node is None:
            stays.append((row["node"], ALWAYS, NEVER))
        elif node.partition(".")[0] != row["node"].partition(".")[0]:
            stays[-1:] = [(node, since, row["since"]), (row["node"], row["since"], NEVER)]
    return moves


def with_activity(store: Store, claims: Claims, since_ns: int, until_ns: int) -> Claims:
    """Claims with their `activity` from `since_ns` to `until_ns`: from `utilization` in the telemetry of MIG instances.
    Raises StoreError."""
    instances = claims.jobs.filter(pl.col("claimed") != pl.col("gpu"))["claimed"].unique().to_list()
    if not instances:
        return claims
    began_ns, ended_ns = since_ns - _AROUND_NS, until_ns + _AROUND_NS
    rows = store.scan("telemetry", instances, within=Bounds(began_ns // 1000, ended_ns // 1000))
    near = pl.col("ts").is_between(pl.lit(date_of_ns(began_ns)), pl.lit(date_of_ns(ended_ns)))
    rows = rows.filter(pl.col("gpu").is_in(instances), near)
    rows = rows.select(*_KEYS, pl.col("ts").dt.epoch("ns"), "utilization").drop_nulls("utilization")
    activity: dict[Key, tuple[Times, Floats, Floats]] = {}
    for (cluster, gpu), part in store.collect(rows).sort("ts").group_by(_KEYS):
        ts = part["ts"].to_numpy()
        read_s = np.minimum(np.diff(ts, prepend=ts[:1]) / 1e9, _LONGEST_S)
        active_s = read_s * part["utilization"].to_numpy() / 100
        activity[str(cluster), str(gpu)] = ts, np.cumsum(active_s), np.cumsum(read_s)
    return replace(claims, activity=activity)
