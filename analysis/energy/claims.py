"""Claims: which allocation had which physical GPU, or how much of it, from when to when; and what is wrong with them.

Claims are read from `jobs_now`. Beside them stands what the store knows of the GPUs: their power limits, on which nodes
they were when (boards are exchanged to see whether a fault goes with them), and how active MIG instances were.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.catalog import quoted
from ...store.file_names import Bounds
from ...store.instants import date_of_ns, in_sql, times_of_ns
from ...store.vocabulary import Code, EventKind, GpuFrom
from .readings import GpuRange
from .sensor import Flags, Floats, Ints, Problem, Times

if TYPE_CHECKING:
    from ...store import Store

Key = tuple[str | None, str | None]
"""Cluster and GPU."""

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


CLAIMS: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),  # the physical one; NULL where nobody knows it
    "node": pl.String(),
    "claimed": pl.String(),  # the GPU as the job names it
    "allocation": pl.String(),
    "job_id": pl.String(),
    "node_gpus": pl.Float64(),  # how many it had on the node
    "in_store": pl.Boolean(),  # whether the store knows the GPU
    "gpu_node": pl.String(),  # the node of the GPU and its power limit
    "limit_w": pl.Float64(),
    "began": pl.Int64(),  # ns UTC
    "ended": pl.Int64(),  # RUNS where it is not known
    "heard": pl.Int64(),  # when the batch system last told of the job
    "share": pl.Float64(),  # of the physical GPU; NaN where unknown
    "busy": pl.Float64(),  # of a job that is known by its processes: its part of the busy time of a GPU that it shared;
}  # NaN elsewhere
"""The columns of `Claims.jobs`."""
STAYS: dict[str, pl.DataType] = {
    "cluster": pl.String(), "gpu": pl.String(), "place": pl.String(), "since": pl.Int64(), "until": pl.Int64(),
}  # fmt: skip
"""The columns of `Claims.moves`: a node, and from when to when a GPU was there, ns."""


@dataclass(frozen=True)
class Claims:
    """All claims, one a row, with those of one GPU side by side, in order of their begin."""

    jobs: pl.DataFrame
    """(n,) columns of `CLAIMS`; a claim is told by the number of its row."""
    nodes: pl.DataFrame
    """The node of each GPU that the store knows: cluster, gpu, node."""
    moves: pl.DataFrame
    """Of GPUs that were on several nodes, their stays: `STAYS`. The first has no begin, the last one no end."""
    activity: Mapping[Key, tuple[Times, Floats, Floats]]
    """Of MIG instances with readings: when, and up to then the seconds active and the seconds read. `with_activity`
    has it."""
    of_some_gpus: bool = False
    """Only the claims of some GPUs are there, and those whose GPU nobody knows."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        """(n,) a column of `jobs`."""
        return self.jobs[name].to_numpy()

    @cached_property
    def on_gpus(self) -> pl.DataFrame:
        """The claims whose GPU is known: claim, cluster, gpu, node."""
        return self._numbered.filter(pl.col("gpu").is_not_null())

    @cached_property
    def on_nodes(self) -> pl.DataFrame:
        """Those whose GPU nobody knows: claim, cluster, node; without a node where the job names none either."""
        return self._numbered.filter(pl.col("gpu").is_null()).drop("gpu")

    @property
    def _numbered(self) -> pl.DataFrame:
        return self.jobs.select(pl.int_range(pl.len()).alias("claim"), *_KEYS, "node")

    def within(
        self, rows: Ints, since_ns: int | Times | None, until_ns: int | Times | None, last_ns: Times | int = RUNS
    ) -> tuple[Flags, Times, Times]:
        """Which claims have a part of the time that is asked for and do not end before they begin, and that part of
        each.

        A job that runs has the GPU to `last_ns`, its last reading; where it has none, to when it was last heard of.
        """
        began, ended = self["began"][rows], self["ended"][rows]
        ended = np.where(ended == RUNS, np.where(began < last_ns, last_ns, self["heard"][rows]), ended)
        low = began if since_ns is None else np.maximum(began, since_ns)
        high = ended if until_ns is None else np.minimum(ended, until_ns)
        inside = (high > low) | ((began == ended) & (low == high))
        return inside, low[inside], high[inside]

    def of_gpus(self, names: GpuRange) -> Claims:
        """Those of GPUs with names in a range, and those of which nobody knows the GPU."""
        jobs = self.jobs.filter(pl.col("gpu").is_null() | names.holds)
        return replace(self, jobs=jobs, nodes=self.nodes.filter(names.holds))

    def touching(self, since_ns: int, until_ns: int) -> Claims:
        """Those that have a part of a time, or an end of it."""
        ends = (pl.col("ended") == RUNS) | (pl.col("ended") >= since_ns)
        return replace(self, jobs=self.jobs.filter(pl.col("began") <= until_ns, ends))

    @cached_property
    def edges(self) -> pl.DataFrame:
        """When claims of a GPU, or of a node that it was on, begin and end: cluster, gpu, at (ns)."""
        times = self.jobs.select(pl.int_range(pl.len()).alias("claim"), at=pl.concat_list("began", "ended"))
        gpus = pl.concat([self.nodes.select(_KEYS), self.on_gpus.select(_KEYS)]).unique()
        beside = self.stays(gpus.join(self.nodes, on=_KEYS, how="left", nulls_equal=True)).join(
            self.on_nodes, left_on=["cluster", "place"], right_on=["cluster", "node"], nulls_equal=True
        )
        claims = pl.concat([self.on_gpus.select("claim", *_KEYS), beside.select("claim", *_KEYS)])
        rows = claims.join(times, on="claim").explode("at").filter(pl.col("at") != RUNS)
        return rows.select(*_KEYS, "at").unique()

    @cached_property
    def move_times(self) -> Times:
        """When GPUs moved, ns."""
        return self.moves["since"].filter(self.moves["since"] != ALWAYS).unique().sort().to_numpy()

    def stays(self, gpus: pl.DataFrame) -> pl.DataFrame:
        """Where GPUs (cluster, gpu, node) were when: place, since and until. One that has not moved was always on its
        node."""
        rows = gpus.join(self.moves, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
        stayed = pl.when(pl.col("since").is_null()).then("node").otherwise("place")
        return rows.with_columns(
            stayed.alias("place"), pl.col("since").fill_null(ALWAYS), pl.col("until").fill_null(NEVER)
        )

    def placed(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Pieces, each with the node on which its GPU was; they are cut where GPUs moved."""
        if self.moves.is_empty():
            return pieces
        dated = pieces.with_row_index("_row").with_columns(pl.col("began").dt.epoch("ns").alias("since")).sort("since")
        dated = dated.join_asof(self.moves.sort("since"), on="since", by=_KEYS, check_sortedness=False).sort("_row")
        return dated.with_columns(pl.coalesce("place", "node").alias("node")).select(pieces.columns)

    def active(self, rows: Ints, began: Times, ended: Times) -> Floats:
        """How active the GPU or MIG instance of each claim was from `began` to `ended`, 0 to 1; NaN where nobody knows.

        `rows` may have a claim several times.
        """
        active: Floats = self["busy"][rows]
        for row in np.unique(rows).tolist() if self.activity else ():
            read = self.activity.get(self.jobs.select("cluster", "claimed").row(row))
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
    moves: pl.DataFrame | None = None,
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
    )
    share, limit_w = (pl.when(pl.col(name) > 0).then(name).alias(name) for name in ("share", "limit_w"))
    of_boards = boards.select(*_KEYS, pl.col("node").alias("gpu_node"), limit_w, pl.lit(True).alias("in_store"))
    jobs = jobs.join(of_boards, on=_KEYS, how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.col("began", "ended").dt.epoch("ns").fill_null(RUNS), pl.col("in_store").fill_null(False),
        pl.max_horizontal("began", "recorded").dt.epoch("ns").alias("heard"),
        share.cast(pl.Float64).fill_null(np.nan), pl.col("busy").cast(pl.Float64).fill_null(np.nan),
    )  # fmt: skip
    return Claims(
        jobs.select(pl.col(name).cast(kind) for name, kind in CLAIMS.items()), boards.select(*_KEYS, "node"),
        pl.DataFrame(schema=STAYS) if moves is None else moves, activity or {},
    )  # fmt: skip


def profile_share(profile: str | None, model: str | None) -> float | None:
    """Which part of a GPU a MIG profile is, by its compute slices: 3/7 of 3g.20gb. None where it cannot be read."""
    match = _PROFILE.search(profile or "")
    if match is None:
        return None
    slices = next((n for word, n in _SLICES.items() if word in (model or "").split()), _SLICES_ELSE)
    return min(int(match[1]) / slices, 1.0)


def _moves(store: Store, names: str | None) -> pl.DataFrame:
    """The stays of GPUs that the table `gpus` shows on several nodes (`STAYS`); of some GPUs (in SQL) or of all.

    `n1` and `n1.example.org` are one node. A row without a UUID, of a GPU that has one, was found by its node.
    """
    rows = store.sql(
        "SELECT cluster, gpu, arg_max(node, length(node)) AS place, since FROM (SELECT cluster, gpu, node, "
        f"coalesce(epoch_ns(first_seen), {ALWAYS}) AS since FROM gpus WHERE node IS NOT NULL AND parent IS NULL"
        f"{'' if names is None else f' AND gpu IN ({names})'} "
        "QUALIFY (uuid IS NOT NULL OR max(uuid) OVER (PARTITION BY cluster, gpu) IS NULL) "
        "AND count(DISTINCT split_part(node, '.', 1)) OVER (PARTITION BY cluster, gpu) > 1) GROUP BY ALL ORDER BY since"
    ).polars()
    host = pl.col("place").str.split(".").list.first()
    rows = rows.filter(host.ne_missing(host.shift(1).over(_KEYS)))
    first = pl.int_range(pl.len()).over(_KEYS) == 0
    rows = rows.with_columns(
        pl.when(first).then(ALWAYS).otherwise("since").alias("since"),
        pl.col("since").shift(-1).over(_KEYS).fill_null(NEVER).alias("until"),
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in STAYS.items())


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


# -- what is wrong ----------------------------------------------------------------------------------------------------


class JobProblem(Code):
    """What is wrong with an allocation, and what was done about it."""

    BACKWARD = "ends before it begins", "the job ends before it begins: it has no energy"
    REFUSED = "refused at import", "the import did not store an allocation of the job: it is not in these books"
    OVERLAP = "overlap", "jobs hold more than the whole GPU at the same time: its energy was split by their shares"
    OVERLAP_NO_SHARES = (
        "overlap, shares not known",
        "both jobs had the GPU, and nobody knows their shares: it was split into equal parts",
    )
    UNKNOWN_GPU = "unknown GPU", "the job names a GPU that the store does not know: it has no energy"
    NO_TELEMETRY = "no telemetry of the GPU", "nobody read the GPU in this time: the energy is bounded by its limit"
    GPU_NOT_KNOWN = "GPU not known", "nobody knows which GPUs the job had: its energy is in the unattributed energy"
    SHARE_NOT_KNOWN = (
        "share not known",
        "nobody knows which part of the GPU the first job had beside others: it got what they left",
    )
    RELOAD = "spans a driver reload", "the driver was loaded again while the job had the GPU"


PROBLEMS: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "problem": pl.String(),  # a code of `JobProblem` or of the meters' `Problem`
    "allocation": pl.String(),  # of jobs_now; NULL where it concerns no job
    "job_id": pl.String(),
    "other_allocation": pl.String(),  # of an overlap: the other job
    "other_job_id": pl.String(),
    "began": pl.Datetime("us"),
    "ended": pl.Datetime("us"),
    "joules": pl.Float64(),  # the energy that it concerns
    "percent": pl.Float64(),  # of a disagreement: how much more the counter has than integrated power
    "n": pl.Int64(),  # how many findings of this kind the row stands for
    "detail": pl.String(),  # of a job that the import refused: why, and in which line of which file
}
"""The columns of a frame of problems."""
ORDER = ("cluster", "gpu", "began", "problem", "allocation", "other_allocation", "ended")
"""The columns by which problems are sorted."""

OVER = 1e-9
"""By so much more than 1 shares may add up without being an overlap."""
_MOSTLY = 0.9
_HELD_NS = 60 * 10**9  # a job may end shortly after the last reading


def as_problems(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with times in ns as rows of `PROBLEMS`, of which they have some columns."""
    rows = rows.with_columns(times_of_ns(pl.col("began", "ended")))
    missing = (pl.lit(None).alias(name) for name in PROBLEMS if name not in rows.columns)
    return rows.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in PROBLEMS.items())


def of_claims(problem: JobProblem, claims: Claims, times: pl.DataFrame) -> pl.DataFrame:
    """A problem of some claims, as rows of `PROBLEMS`. `times`: claim, began and ended (ns), n."""
    jobs = claims.jobs[times["claim"]].select(*_KEYS, "node", "allocation", "job_id")
    rows = jobs.hstack(times.select("began", "ended", "n"))
    return as_problems(rows.with_columns(pl.lit(problem.value).alias("problem")))


def of_crowds(holders: pl.DataFrame, spans: pl.DataFrame, claims: Claims) -> pl.DataFrame:
    """The claims that do not fit together: a row of `PROBLEMS` for each beside the first of its span.

    `holders`: a row for each claim and span, with span, claim, stated and active (NaN: unknown), holders (of the span)
    and asked (what these state together). `spans`: began, ended, energy_j.
    """
    crowd = holders.filter(pl.col("holders") > 1).with_columns(
        (pl.col("stated").is_nan() & pl.col("active").is_nan()).alias("missing")
    )
    unknown = pl.col("missing").sum().over("span")
    crowd = crowd.with_columns(
        pl.when(unknown == pl.col("holders")).then(pl.lit(JobProblem.OVERLAP_NO_SHARES.value))
        .when(pl.col("asked") > 1 + OVER).then(pl.lit(JobProblem.OVERLAP.value))
        .when(unknown > 0).then(pl.lit(JobProblem.SHARE_NOT_KNOWN.value)).alias("problem")
    ).drop_nulls("problem")  # fmt: skip
    partly = pl.col("problem") == JobProblem.SHARE_NOT_KNOWN.value
    first = pl.col("claim").filter(~partly | ~pl.col("missing")).min().over("span").alias("first")
    crowd = crowd.hstack(spans[crowd["span"]].select("began", "ended", "energy_j")).with_columns(first)
    pairs = crowd.filter(pl.col("claim") != pl.col("first"), ~partly | pl.col("missing"))
    pairs = pairs.group_by("problem", "first", "claim", maintain_order=True).agg(
        pl.col("began").min(), pl.col("ended").max(), pl.col("energy_j").sum().alias("joules"), pl.lit(1).alias("n")
    )
    # The job of which nobody knows the share comes first.
    jobs = claims.jobs[pairs.select(pl.when(partly).then("claim").otherwise("first")).to_series()]
    others = claims.jobs[pairs.select(pl.when(partly).then("first").otherwise("claim")).to_series()]
    return as_problems(
        pairs.hstack(jobs.select(*_KEYS, "node", "allocation", "job_id")).hstack(
            others.select(other_allocation="allocation", other_job_id="job_id")
        )
    )


def joined_crowds(crowds: pl.DataFrame) -> pl.DataFrame:
    """The rows of `of_crowds` of several times and GPUs: two jobs that do not fit on several days are one problem."""
    same = ["problem", *_KEYS, "node", "allocation", "job_id", "other_allocation", "other_job_id"]
    return crowds.group_by(same, maintain_order=True).agg(
        pl.col("began").min(), pl.col("ended").max(), pl.col("joules").sum(), pl.col("percent", "n", "detail").first()
    ).select(*PROBLEMS)  # fmt: skip


def of_notes(notes: pl.DataFrame, metered: pl.DataFrame, claims: Claims) -> Sequence[pl.DataFrame]:
    """What the meters found, and the jobs that had a GPU while its driver was loaded again; rows of `PROBLEMS`.

    `notes`: `meter.NOTES`, and the node of each GPU. A time in which nobody read the node, and in which no job had the
    GPU, is no problem of the GPU: nor is what a counter did meanwhile.
    """
    notes = notes.unique(maintain_order=True)
    jobs = claims.jobs.select(
        pl.int_range(pl.len()).alias("claim"), *_KEYS, "began",
        pl.when(pl.col("ended") == RUNS).then(NEVER).otherwise("ended").alias("ended"),
    )  # fmt: skip
    of_gpus = dict(jobs.join(notes, on=_KEYS, how="semi", nulls_equal=True).group_by(_KEYS))
    parts, reloads = [notes.clear().with_columns(held=pl.lit(None, pl.Boolean))], [pl.DataFrame(schema=_TIMES)]
    for key, noted in notes.group_by(_KEYS, maintain_order=True):
        of_gpu = of_gpus.get(key, jobs.clear())
        claim, since, until = (of_gpu[name].to_numpy() for name in ("claim", "began", "ended"))
        held = []
        for problem, began, ended in noted.select("problem", "began", "ended").iter_rows():
            overlap = np.minimum(until, ended) - np.maximum(since, began)
            held.append(bool(np.maximum(overlap, 0).sum() > min(_HELD_NS, 0.1 * (ended - began))))
            if problem == Problem.DRIVER_RELOAD:
                touched = claim[(since < max(ended, began + 1)) & (until > began)]
                reloads.append(pl.DataFrame({"claim": touched, "began": began, "ended": ended}, _TIMES))
        parts.append(noted.with_columns(held=pl.Series(held)))
    reloaded = of_claims(JobProblem.RELOAD, claims, pl.concat(reloads).with_columns(n=1))
    return [reloaded, as_problems(_without_pauses(pl.concat(parts), metered))]


_TIMES = dict.fromkeys(("claim", "began", "ended"), pl.Int64)


def _without_pauses(notes: pl.DataFrame, metered: pl.DataFrame) -> pl.DataFrame:
    """The notes but for gaps in which no GPU of the node was read and no job had the GPU."""
    place = pl.coalesce("node", "gpu").alias("place")  # where the node is not known, each GPU is alone
    of_gap = ["cluster", "place", "gpu", "began", "ended"]
    notes = notes.with_columns(place)
    dark = notes.filter(pl.col("problem") == Problem.GAP.value, ~pl.col("has_rows"))
    gaps = dark.filter(pl.col("n") == 1, ~pl.col("held")).select(of_gap)
    read = metered.select("cluster", place, "gpu", pl.col("first", "last").dt.epoch("ns"))
    dark = dark.select("cluster", "place", "gpu", pl.col("began").alias("first"), pl.col("ended").alias("last"))
    for name, times in (("read", read), ("dark", dark)):  # how many GPUs of the node have such a time over most of it
        beside = gaps.select(of_gap).join(times, on=["cluster", "place"], nulls_equal=True)
        overlap = pl.min_horizontal("ended", "last") - pl.max_horizontal("began", "first")
        beside = beside.filter(overlap >= _MOSTLY * (pl.col("ended") - pl.col("began")))
        counts = beside.group_by(of_gap).agg(pl.col("gpu_right").n_unique().cast(pl.Int64).alias(name))
        gaps = gaps.join(counts, on=of_gap, how="left", nulls_equal=True).with_columns(pl.col(name).fill_null(0))
    pauses = gaps.filter(pl.col("read") <= pl.col("dark"))
    meanwhile = pl.col("problem").is_in([Problem.GAP.value, Problem.COUNTER_RESET.value])
    notable = notes.filter(meanwhile).join(pauses, on=of_gap, how="anti", nulls_equal=True)
    return pl.concat([notable, notes.filter(~meanwhile)]).drop("place")


def of_store(store: Store, metered: pl.DataFrame, *, cluster: str | None, since_ns: int, until_ns: int) -> pl.DataFrame:
    """What else is wrong: allocations that an import did not store, and GPUs that are counted twice (rows of one name
    that were read at the same time, of which one has no UUID). Columns of `PROBLEMS`. Raises StoreError."""
    refused = store.scan("events").filter(pl.col("kind") == EventKind.JOB_REFUSED.value)
    if cluster is not None:
        refused = refused.filter(pl.col("cluster") == cluster)
    began = pl.col("ts").dt.epoch("ns")
    backward = pl.col("duration_ns").fill_null(0) < 0
    rows = store.collect(
        refused.select(
            *_KEYS, "node", "job_id", "detail", began.alias("began"), (began + pl.col("duration_ns")).alias("ended"),
            pl.when(backward).then(pl.lit(JobProblem.BACKWARD.value)).otherwise(pl.lit(JobProblem.REFUSED.value)).alias("problem"),
        ).filter(pl.col("began") >= since_ns, pl.col("began") < until_ns)
    )  # fmt: skip
    names = store.sql(
        "SELECT cluster, gpu, name, uuid IS NULL AS bare FROM gpus_now WHERE parent IS NULL AND name <> gpu "
        "QUALIFY count(*) OVER (PARTITION BY cluster, name) > 1"
    ).polars()
    read = metered.join(names, on=_KEYS, nulls_equal=True)
    pairs = read.filter("bare").join(read.filter(~pl.col("bare")), on=["cluster", "name"], nulls_equal=True)
    twice = pairs.select(
        *_KEYS, "node", pl.lit(Problem.TWICE.value).alias("problem"),
        pl.max_horizontal("first", "first_right").dt.epoch("ns").alias("began"),
        pl.min_horizontal("last", "last_right").dt.epoch("ns").alias("ended"),
    ).filter(pl.col("ended") > pl.col("began"))  # fmt: skip
    return pl.concat([as_problems(rows.with_columns(n=1)), as_problems(twice.with_columns(n=1))])
