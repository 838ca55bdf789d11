"""Claims: which allocation had which physical GPU, or how much of it, from when to when. Read from `jobs_now`.

With them: the nodes on which GPUs were when (`Moves`), and how active MIG instances were (`Activities`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.catalog import quoted
from ...store.instants import date_of_ns, in_sql
from ...store.vocabulary import GpuFrom
from .series import Floats, Times

if TYPE_CHECKING:
    from ...store import Store

Key = tuple[str | None, str | None]
"""Cluster and GPU, or cluster and node."""
Ints = NDArray[np.int64]

_SLICES = {"A30": 4}  # compute slices of a GPU that can be cut into instances, by a word of its model
_SLICES_ELSE = 7
_PROFILE = re.compile(r"(?:^|\b)(?:\d+c\.)?(\d+)g\.")
_BY_PROCESS = f"gpu_from IS NOT DISTINCT FROM '{GpuFrom.PROCESS}'"  # beside others it held no fixed share
OPEN = np.iinfo(np.int64).min
"""`ended` of a job that runs, or of which nobody knows when it ended."""


@dataclass(frozen=True)
class Claims:
    """All claims, one a row, with those of one GPU side by side. `frame` has the same rows, for people.

    Columns of `frame`: cluster, allocation, job_id, node, claimed (the GPU as the job names it), gpu (the physical
    one; NULL where nobody knows it), node_gpus.
    """

    frame: pl.DataFrame
    began: Times
    ended: Times
    """OPEN where it is not known."""
    recorded: Times
    """When the row was stored."""
    share: Floats
    """Of the physical GPU; NaN where unknown."""
    busy: Floats
    """Of a job that is known by its processes: its part of the busy time of a GPU that it shared; NaN elsewhere."""
    of_gpu: dict[Key, range]
    """The rows of each physical GPU, in order of `began`."""
    of_node: dict[Key, Ints]
    """The rows of each node whose GPU nobody knows; under the node None those that name no node either."""
    backward: Ints
    """The rows that end before they begin; they claim nothing."""


@dataclass(frozen=True)
class Fleet:
    """What the table `gpus` says: rows of `gpus_now` by cluster and GPU, with a MIG instance's physical GPU."""

    node: dict[Key, str | None]
    limit_w: dict[Key, float]
    parent: dict[Key, str]
    share: dict[Key, float]
    """Of a MIG instance with a profile: which part of its GPU it is."""

    @classmethod
    def read(cls, store: Store, gpus: Collection[Key] | None = None) -> Fleet:
        """The fleet of a store, or some of its physical GPUs with their instances."""
        where = "" if gpus is None else f" WHERE gpu IN ({listed(gpus)}) OR parent IN ({listed(gpus)})"
        answer = store.sql(
            "SELECT cluster, gpu, node, model, parent, mig_profile, "
            "coalesce(power_limit_max_mw, power_limit_default_mw, power_limit_mw) / 1e3 AS limit_w FROM gpus_now"
            + where
        )
        rows = list(answer.polars().iter_rows(named=True))
        models: dict[Key, str | None] = {(row["cluster"], row["gpu"]): row["model"] for row in rows}
        fleet = cls({}, {}, {}, {})
        for row in rows:
            key = row["cluster"], row["gpu"]
            fleet.node[key] = row["node"]
            if row["limit_w"]:
                fleet.limit_w[key] = row["limit_w"]
            if row["parent"]:
                fleet.parent[key] = row["parent"]
                share = profile_share(row["mig_profile"], models.get((row["cluster"], row["parent"])) or row["model"])
                if share is not None:
                    fleet.share[key] = share
        return fleet


def profile_share(profile: str | None, model: str | None) -> float | None:
    """Which part of a GPU a MIG profile is, by its compute slices: 3/7 of 3g.20gb. None where it cannot be read."""
    found = _PROFILE.search(profile or "")
    if found is None:
        return None
    slices = next((n for word, n in _SLICES.items() if word in (model or "").split()), _SLICES_ELSE)
    return min(int(found[1]) / slices, 1.0)


def read_claims(
    store: Store,
    fleet: Fleet,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    cluster: str | None = None,
    gpus: Collection[Key] | None = None,
) -> Claims:
    """The allocations that touch the time from `since_ns` to `until_ns`; of those that end before they begin, their
    begin. `gpus`: only those of these physical GPUs and their instances in `fleet`, and those without a GPU."""
    wanted = ["TRUE"]
    if gpus is not None:
        instances = [key for key, parent in fleet.parent.items() if (key[0], parent) in gpus]
        wanted.append(f"(gpu IS NULL OR gpu IN ({listed([*gpus, *instances])}))")
    if until_ns is not None:
        wanted.append(f"began < {in_sql(int(until_ns))}")
    if since_ns is not None:
        since = in_sql(int(since_ns))
        wanted.append(f"(ended IS NULL OR ended >= {since} OR ended < began AND began >= {since})")
    answer = store.sql(
        "SELECT cluster, allocation, job_id, node, gpu, node_gpus, began, ended, recorded, "
        f"CASE WHEN {_BY_PROCESS} THEN NULL ELSE share END AS share, CASE WHEN {_BY_PROCESS} THEN share END AS busy "
        f"FROM jobs_now WHERE began IS NOT NULL AND {' AND '.join(wanted)}"
    )
    jobs = answer.polars()
    return claims(jobs if cluster is None else jobs.filter(pl.col("cluster") == cluster), fleet)


def listed(gpus: Collection[Key]) -> str:
    """The names of GPUs in SQL."""
    return ", ".join(sorted({quoted(gpu) for _, gpu in gpus})) or "NULL"


def claims(jobs: pl.DataFrame, fleet: Fleet) -> Claims:
    """The claims of rows of `jobs_now`, with `busy`."""
    known = [(*key, parent, fleet.share.get(key)) for key, parent in fleet.parent.items()]
    schema = {"cluster": pl.String, "claimed": pl.String, "parent": pl.String, "part": pl.Float64}
    instances = pl.DataFrame(known, schema=schema, orient="row")
    jobs = jobs.rename({"gpu": "claimed"}).join(instances, on=["cluster", "claimed"], how="left", nulls_equal=True)
    share = pl.col("share").cast(pl.Float64)
    jobs = jobs.with_columns(
        pl.coalesce("parent", "claimed").alias("gpu"),
        pl.when(pl.col("parent").is_not_null())
        .then(share.fill_null(1.0) * pl.col("part"))
        .otherwise(share)
        .alias("share"),
    )
    jobs = jobs.sort("cluster", "gpu", "began", "ended", "allocation", nulls_last=True)
    frame = jobs.select("cluster", "allocation", "job_id", "node", "claimed", "gpu", "node_gpus")
    began = jobs["began"].dt.epoch("ns").to_numpy()
    ended = jobs["ended"].dt.epoch("ns").fill_null(OPEN).to_numpy()
    recorded = jobs["recorded"].dt.epoch("ns").fill_null(OPEN).to_numpy()
    backward = (ended != OPEN) & (ended < began)
    numbered = frame.with_row_index("row")
    groups = numbered.filter(pl.col("gpu").is_not_null()).group_by("cluster", "gpu", maintain_order=True)
    of_gpu = {
        (cluster, gpu): range(first, first + n)
        for cluster, gpu, first, n in groups.agg(pl.col("row").first(), pl.len()).iter_rows()
    }
    unknown = numbered.filter(pl.col("gpu").is_null())
    of_node: dict[Key, Ints] = {
        (cluster, node): np.array(rows, np.int64)
        for cluster, node, rows in unknown.group_by("cluster", "node", maintain_order=True).agg("row").iter_rows()
    }
    shares = np.array(jobs["share"].fill_null(float("nan")).to_numpy(), np.float64)
    shares[~(shares > 0)] = np.nan
    busy = np.array(jobs["busy"].cast(pl.Float64).fill_null(float("nan")).to_numpy(), np.float64)
    return Claims(frame, began, ended, recorded, shares, busy, of_gpu, of_node, np.flatnonzero(backward))


def clipped(
    claims: Claims, rows: Ints, last_ns: Times | int | None, since_ns: int | None, until_ns: int | None
) -> tuple[NDArray[np.bool_], Times, Times]:
    """Which claims have a part of the time that is asked for and do not end before they begin, and that part of each.

    A job that runs has the GPU to its last reading; where it has none, to when the job was last heard of.
    """
    began, ended = claims.began[rows], claims.ended[rows]
    heard = np.maximum(claims.recorded[rows], began)
    to = heard if last_ns is None else np.where(began < last_ns, last_ns, heard)
    ended = np.where(ended == OPEN, to, ended)
    low = began if since_ns is None else np.maximum(began, since_ns)
    high = ended if until_ns is None else np.minimum(ended, until_ns)
    inside = (high > low) | ((began == ended) & (low == high))
    return inside, low[inside], high[inside]


def column(frame: pl.DataFrame, name: str, rows: Ints) -> pl.Series:
    """The values of a column in some rows; NULL where the row is negative."""
    known = pl.Series("row", rows, pl.Int64)
    return frame[name].gather(pl.select(pl.when(known >= 0).then(known)).to_series())


_ALWAYS, _NEVER = -(2**62), 2**62
Stay = tuple[str | None, int, int]
"""A node, and from when to when the GPU was there, ns."""


@dataclass(frozen=True)
class Moves:
    """The stays of each GPU that has moved, in order; the first one has no begin, the last one no end."""

    of: dict[Key, list[Stay]]

    @classmethod
    def read(cls, store: Store, gpus: Collection[Key] | None = None) -> Moves:
        """The moves that the table `gpus` shows, of some GPUs or of all.

        `n1` and `n1.example.org` are one node. A row without a UUID, of a GPU that has one, was found by its node.
        """
        only = "" if gpus is None else f" AND gpu IN ({listed(gpus)})"
        rows = store.sql(
            "SELECT cluster, gpu, arg_max(node, length(node)) AS node, since FROM (SELECT cluster, gpu, node, "
            f"coalesce(epoch_ns(first_seen), {_ALWAYS}) AS since FROM gpus "
            f"WHERE node IS NOT NULL AND parent IS NULL{only} "
            "QUALIFY (uuid IS NOT NULL OR max(uuid) OVER (PARTITION BY cluster, gpu) IS NULL) "
            "AND count(DISTINCT split_part(node, '.', 1)) OVER (PARTITION BY cluster, gpu) > 1) "
            "GROUP BY ALL ORDER BY since"
        )
        stays: dict[Key, list[Stay]] = {}
        for row in rows.to_pylist():
            own = stays.setdefault((row["cluster"], row["gpu"]), [])
            if not own:
                own.append((row["node"], _ALWAYS, _NEVER))
            elif _short(own[-1][0]) != _short(row["node"]):
                own[-1] = own[-1][0], own[-1][1], row["since"]
                own.append((row["node"], row["since"], _NEVER))
        return cls(stays)

    @property
    def times(self) -> list[int]:
        """When GPUs moved, ns."""
        return sorted({since for stays in self.of.values() for _, since, _ in stays[1:]})

    def stays(self, key: Key, now: str | None) -> list[Stay]:
        """Where a GPU was when; one that has not moved was always where it is now."""
        return self.of.get(key) or [(now, _ALWAYS, _NEVER)]

    def placed(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Pieces, each with the node on which its GPU was; they are cut at `times`."""
        rows = [(*key, since, node) for key, stays in self.of.items() for node, since, _ in stays]
        if not rows:
            return pieces
        schema = {"cluster": pl.String, "gpu": pl.String, "since": pl.Int64, "there": pl.String}
        stays = pl.DataFrame(rows, schema, orient="row").sort("since")
        numbered = pieces.with_row_index("=row").with_columns(pl.col("began").dt.epoch("ns").alias("since"))
        moved = numbered.join(stays.select("cluster", "gpu").unique(), on=["cluster", "gpu"], how="semi").sort("since")
        found = moved.select("=row", "cluster", "gpu", "since").join_asof(
            stays, on="since", by=["cluster", "gpu"], check_sortedness=False
        )
        told = numbered.join(found.select("=row", "there"), on="=row", how="left", maintain_order="left")
        return told.with_columns(pl.coalesce("there", "node").alias("node")).select(pieces.columns)


def _short(node: str | None) -> str:
    return (node or "").partition(".")[0]


_LONGEST_S = 300.0  # a reading speaks for the time since the one before it, at most so long


class Activities:
    """The mean activity of MIG instances, from `utilization` in the telemetry of each instance."""

    def __init__(
        self, store: Store, claims: Claims, fleet: Fleet, since_ns: int | None = None, until_ns: int | None = None
    ) -> None:
        """Reads the telemetry of the instances that have claims."""
        self._claims = claims
        self._sums: dict[Key, tuple[Times, Floats, Floats]] = {}
        wanted = sorted({gpu for (_, gpu) in fleet.parent if gpu is not None})
        claimed = set(claims.frame["claimed"].unique().drop_nulls().to_list()) if wanted else set()
        wanted = [gpu for gpu in wanted if gpu in claimed]
        if not wanted:
            return
        rows = store.scan("telemetry").filter(pl.col("gpu").is_in(wanted), pl.col("utilization").is_not_null())
        if since_ns is not None:
            rows = rows.filter(pl.col("ts") >= pl.lit(date_of_ns(since_ns)))
        if until_ns is not None:
            rows = rows.filter(pl.col("ts") <= pl.lit(date_of_ns(until_ns)))
        frame = store.collect(rows.select("cluster", "gpu", pl.col("ts").dt.epoch("ns"), "utilization"))
        for (cluster, gpu), part in frame.sort("ts").group_by("cluster", "gpu"):
            ts = part["ts"].to_numpy()
            spoken = np.minimum(np.diff(ts, prepend=ts[:1]) / 1e9, _LONGEST_S)
            active = np.cumsum(spoken * part["utilization"].to_numpy() / 100)
            self._sums[str(cluster), str(gpu)] = ts, active, np.cumsum(spoken)

    def __call__(self, claim: int, began: Times, ended: Times) -> Floats | None:
        """The mean activity of the instance of a claim in each window, 0 to 1; NaN where it has no reading."""
        if not self._sums:
            return None
        key = self._claims.frame["cluster"][claim], self._claims.frame["claimed"][claim]
        if key not in self._sums:
            return None
        ts, active, spoken = self._sums[key]

        def between(sums: Floats) -> Floats:
            found: Floats = np.interp(ended, ts, sums) - np.interp(began, ts, sums)
            return found

        lasted = between(spoken)
        known = lasted > 0
        found: Floats = np.where(known, between(active) / np.where(known, lasted, 1.0), np.nan)
        return found
