"""What can be compared in a store, and the runs of one workload: as `probed` reads a cluster, but only what is needed.

A page reads one workload of a large fleet in the time in which `probed` reads one column of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from ...store.names import plain_workload
from ..runs.kinds import APART, told_apart
from ..runs.probing import Probed, gpus_of, other_names
from ..runs.run_figures import with_run_numbers
from ..verdicts.states import codes

if TYPE_CHECKING:
    from ...store import Store

_RUNS = (
    "run_id", "cluster", "workload", "gpu", "campaign", "began", "sm_clock_mhz", "temperature_c", "power_w", "status",
)  # fmt: skip
_TIMES = ("time_median", "time")
_KNOWN = "FROM runs WHERE cluster IS NOT NULL AND workload IS NOT NULL AND gpu IS NOT NULL"
_STATED = "{" + ", ".join(f"'{name}': conditions.{name}" for name in (*APART, "locked_clock_mhz")) + "}"
_FIELDS = (*APART, "locked_clock_mhz", "simulated")
_ANY_FIELD = f"coalesce({', '.join(f'conditions.{name}::VARCHAR' for name in _FIELDS)}) IS NOT NULL"
_PACKED = ", ".join(f"{name} := conditions.{name}" for name in _FIELDS)
_CONDITIONS = f"CASE WHEN {_ANY_FIELD} THEN struct_pack({_PACKED}) END"
_WORKS = (  # the first and the last run of each: another card may stand in the place now
    f"SELECT cluster, workload, gpu, {_STATED} AS conditions, "
    "unnest([arg_min(run_id, began), arg_max(run_id, began)]) AS run_id "
    f"{_KNOWN} GROUP BY cluster, workload, gpu, {_STATED}"
)
_CAMPAIGNS = f"SELECT cluster, campaign, min(began) AS began {_KNOWN} GROUP BY ALL"


@dataclass(frozen=True)
class Work:
    """A workload of a cluster, and how many GPUs ran it."""

    name: str
    gpus: int


@dataclass(frozen=True)
class Campaign:
    """A campaign of a cluster; when it began (UTC) is None where no run says it."""

    name: str
    began: datetime | None


@dataclass(frozen=True)
class Comparable:
    """A cluster with runs."""

    cluster: str
    works: tuple[Work, ...]
    """By name."""
    campaigns: tuple[Campaign, ...]
    """The newest first."""


def comparable(store: Store) -> tuple[Comparable, ...]:
    """The clusters that have runs, the one with the newest campaign first."""
    done = told_apart(store, store.sql(_WORKS).polars()).with_columns(pl.col("workload").cast(pl.String))
    works = done.group_by("cluster", "workload").agg(pl.col("gpu").n_unique().alias("gpus"))
    campaigns = store.sql(_CAMPAIGNS).polars()
    clusters = campaigns.group_by("cluster").agg(pl.col("began").max())
    clusters = clusters.sort("began", "cluster", descending=[True, False], nulls_last=True)
    named = campaigns.drop_nulls("campaign").sort("began", "campaign", descending=True, nulls_last=True)
    return tuple(
        Comparable(
            cluster,
            tuple(Work(*row) for row in _of(works, cluster).sort("workload").iter_rows()),
            tuple(Campaign(*row) for row in _of(named, cluster).iter_rows()),
        )
        for cluster in clusters["cluster"]
    )


def _of(rows: pl.DataFrame, cluster: str) -> pl.DataFrame:
    return rows.filter(pl.col("cluster") == cluster).drop("cluster")


@dataclass(frozen=True)
class Known:
    """The GPUs of a cluster: `gpus` as in `Probed`, and the other names of some (see `probing.other_names`)."""

    gpus: pl.DataFrame
    names: dict[str, str]


def gpus_on(store: Store, cluster: str) -> Known:
    """All GPUs that the store knows on a cluster."""
    every = store.collect(store.scan("gpus").filter(pl.col("cluster") == cluster).select(pl.col("gpu").unique()))["gpu"]
    names = other_names(store, cluster)
    return Known(gpus_of(store, cluster, every, names), names)


def runs_of(
    store: Store, cluster: str, workload: str, campaign: str | None = None, known: Known | None = None
) -> Probed:
    """The runs of a workload on a cluster, of a campaign or all; without events, with the columns that are compared,
    and with `gpu_no`, the place of the GPU in `gpus`.

    `workload`: as `comparable` names it. The GPUs are all that the store knows on that cluster: `known`, or read anew.
    InputError where there are no such runs.
    """
    of = (pl.col("cluster") == cluster) & (pl.col("workload") == plain_workload(workload))
    where = f"cluster = {quoted(cluster)} AND workload = {quoted(plain_workload(workload))} AND gpu IS NOT NULL"
    # By SQL: Polars would read all conditions of all runs.
    runs = store.sql(f"SELECT {', '.join(_RUNS)}, {_CONDITIONS} AS conditions FROM runs WHERE {where}").polars()
    times = store.scan("results").filter(of & pl.col("figure").is_in(_TIMES))
    found = store.collect(times.select("run_id", "figure", "value"))
    value = pl.Series("value", [None] * runs.height, dtype=pl.Float64)
    for figure in reversed(_TIMES):  # what comes last counts
        rows = found.filter(pl.col("figure") == figure).drop("figure")
        if rows.height:
            own = with_run_numbers(rows, runs["run_id"])
            if own["number"].n_unique() < own.height:
                own = own.group_by("number").agg(pl.col("value").median())
            placed = pl.DataFrame({"number": pl.Series(range(runs.height), dtype=own["number"].dtype)})
            placed = placed.join(own, on="number", how="left", maintain_order="left")
            value = placed["value"].fill_null(value).alias("value")
    runs = told_apart(store, runs.with_columns(value)).with_columns(pl.col("workload").cast(pl.String))
    wanted = pl.col("workload") == workload
    if campaign is not None:
        wanted &= pl.col("campaign") == campaign
    runs = runs.filter(wanted).drop("cluster", "run_id")
    if runs.is_empty():
        of_campaign = "" if campaign is None else f" of campaign {campaign!r}"
        raise InputError(f"{store.root} holds no runs of {workload!r} on cluster {cluster!r}{of_campaign}")
    known = known or gpus_on(store, cluster)
    gpus, names = known.gpus, known.names if campaign is None else {}
    if names:
        runs = runs.with_columns(pl.col("gpu").replace(names))
    number = codes(runs["gpu"], gpus["gpu"].to_list())
    if (number < 0).any():  # runs of GPUs of which nothing else is known, or by a name that the campaign gave them
        every = pl.concat([gpus["gpu"], runs["gpu"].unique(), pl.Series(known.names.keys(), dtype=pl.String)])
        gpus = gpus_of(store, cluster, every.unique(), names)
        number = codes(runs["gpu"], gpus["gpu"].to_list())
    said = gpus.select("model", "node", "cabinet")[number]
    runs = runs.with_columns(*said, pl.Series("gpu_no", number))
    return Probed(cluster, campaign or "", gpus, runs, pl.DataFrame())
