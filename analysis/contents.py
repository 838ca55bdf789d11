"""What a store holds, at a glance: its GPUs and runs, its campaigns, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ..store.catalog import quoted
from ..store.views import OF_ALL_RUNS
from .by_number import by_number
from .runs.probing import other_names

if TYPE_CHECKING:
    from ..store import Store

_GPUS = (
    "SELECT count(*) AS gpus, count(DISTINCT (cluster, node)) FILTER (node IS NOT NULL) AS nodes, "
    "string_agg(DISTINCT model, ', ' ORDER BY model) AS models, "
    "count(*) FILTER (uuid IS NULL OR slot IS NULL) AS unsure FROM gpus_now WHERE mig_profile IS NULL"
)
_UNSURE = (
    "SELECT cluster, gpu, uuid IS NULL AS nameless, slot IS NULL AS nowhere FROM gpus_now "
    "WHERE mig_profile IS NULL AND (uuid IS NULL OR slot IS NULL)"
)
_RUNS = (
    "SELECT count(*) AS runs, count(DISTINCT workload) AS workloads, min(began) AS first, max(began) AS last FROM runs"
)
_CAMPAIGNS = (
    "SELECT coalesce(c.cluster, r.cluster) AS cluster, coalesce(c.campaign, r.campaign) AS campaign, "
    "coalesce(c.began, r.began) AS began, coalesce(c.ended, r.ended) AS ended, c.gpus, r.runs, r.measured "
    "FROM (SELECT * FROM campaigns QUALIFY row_number() OVER (PARTITION BY cluster, campaign "
    "ORDER BY stored_to DESC) = 1) c FULL JOIN (SELECT cluster, campaign, min(began) AS began, max(ended) AS ended, "
    "count(*) AS runs, count(DISTINCT gpu) AS measured FROM runs WHERE campaign IS NOT NULL GROUP BY ALL) r "
    "ON c.cluster IS NOT DISTINCT FROM r.cluster AND c.campaign = r.campaign ORDER BY 3 DESC NULLS LAST, 1, 2"
)
_UNJUDGED = (
    "SELECT DISTINCT cluster FROM runs WHERE cluster NOT IN (SELECT cluster FROM judgements WHERE "
    f"{OF_ALL_RUNS} AND cluster IS NOT NULL) ORDER BY 1"
)
_WORKLOADS = (
    "SELECT * FROM (SELECT cluster, workload, count(DISTINCT gpu) AS gpus FROM results WHERE figure = 'time' "
    "AND cluster IS NOT NULL AND workload IS NOT NULL GROUP BY cluster, workload) LEFT JOIN (SELECT cluster, "
    "list(DISTINCT model ORDER BY model) AS models FROM gpus_now WHERE model IS NOT NULL GROUP BY cluster) "
    "USING (cluster) ORDER BY cluster, workload"
)
_NOW = (
    "WITH newest AS (SELECT l.*, g.node, l.ts > max(l.ts) OVER () - INTERVAL {fresh} SECOND AS fresh, "
    "coalesce(l.quality, '') IN ('lost', 'no_driver', 'hung', 'needs_reset') AS mute "
    "FROM latest l LEFT JOIN gpus_now g ON g.gpu = l.gpu AND g.cluster IS NOT DISTINCT FROM l.cluster) "
    "SELECT max(ts) AS newest, count(*) FILTER (fresh) AS gpus, count(*) FILTER (fresh AND mute) AS mute, "
    "{readings}, (SELECT list(node ORDER BY node) FROM (SELECT node FROM newest WHERE node IS NOT NULL GROUP BY node "
    "HAVING NOT bool_or(fresh) AND max(ts) > (SELECT max(ts) FROM newest) - INTERVAL 30 DAY)) AS silent_nodes "
    "FROM newest"
)
_OF_READINGS = (
    "quantile_cont({name}, 0.5) FILTER (fresh) AS {name}_median, min({name}) FILTER (fresh) AS {name}_low, "
    "max({name}) FILTER (fresh) AS {name}_high, count({name}) FILTER (fresh) AS {name}_n"
)
_RUNNING = (
    "SELECT count(DISTINCT (cluster, allocation)) AS jobs, sum(coalesce(node_gpus, 1))::BIGINT AS gpus, "
    "max(recorded) AS recorded FROM jobs_now WHERE ended IS NULL AND state = 'RUNNING'"
)
FRESH_S = 600
"""A reading counts as new if it is at most so much older than the newest one of the store."""
NOW_METRICS = ("utilization", "power_mw", "temperature_c", "memory_used")
"""Metrics whose newest readings are shown, of the table `telemetry`."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Held:
    """What a store holds: numbers of things, and when (UTC) runs began."""

    gpus: int
    maybe_twice: bool
    """Whether some are known by their UUID alone and others by their place alone, which may be the same."""
    nodes: int
    models: str | None
    runs: int
    workloads: int
    first: datetime | None
    last: datetime | None


def held(store: Store) -> Held:
    """What a store holds. MIG instances are not counted beside their GPU, nor a GPU twice that has two names."""
    gpus, runs = (store.sql(query).polars().row(0, named=True) for query in (_GPUS, _RUNS))
    twice, maybe = 0, False
    unsure = store.sql(_UNSURE).polars().group_by("cluster") if gpus.pop("unsure") else ()
    for (cluster,), alone in unsure:
        also = other_names(store, str(cluster)) if alone["nameless"].any() else {}
        left = alone.filter(~pl.col("gpu").is_in([*also, *also.values()]), pl.col("nameless") != pl.col("nowhere"))
        twice, maybe = twice + len(also), maybe or left["nameless"].n_unique() > 1
    return Held(**(gpus | {"gpus": gpus["gpus"] - twice}), maybe_twice=maybe, **runs)


def newest_campaigns(store: Store, most: int) -> Rows:
    """The campaigns that began last: cluster, campaign, began, ended, gpus (that it was to measure), runs, measured.

    A campaign that only its runs name, as imported ones do, has no `gpus`.
    """
    return store.sql(f"{_CAMPAIGNS} LIMIT {int(most)}").polars().to_dicts()


def not_judged(store: Store) -> list[str]:
    """The clusters that have runs and were never judged."""
    return [str(one) for one in store.sql(_UNJUDGED).polars()["cluster"]]


def clusters(store: Store) -> tuple[str, ...]:
    """The clusters of the GPUs and jobs of a store."""
    query = "SELECT cluster FROM gpus_now UNION SELECT cluster FROM jobs_now ORDER BY 1"
    return tuple(one for one in store.sql(query).polars()["cluster"].cast(str) if one is not None)


def has_rows(store: Store, table: str) -> bool:
    """Whether a table or view has any."""
    return bool(store.sql(f"SELECT 1 AS there FROM {table} LIMIT 1").num_rows)


def timed_workloads(store: Store) -> Rows:
    """The workloads of each cluster that have times: cluster, workload, gpus (how many), models (of the cluster)."""
    return store.sql(_WORKLOADS).polars().to_dicts()


@dataclass(frozen=True)
class MetricNow:
    """The newest readings of a metric: their median, the lowest and the highest, in its unit, of `n` GPUs."""

    metric: str
    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class FleetNow:
    """The newest readings of all GPUs, and what does not answer."""

    newest: datetime
    """When the newest reading was taken (UTC). What is older by more than `FRESH_S` does not count."""
    gpus: int
    """GPUs with a reading that counts."""
    mute: int
    """GPUs of these that do not answer: lost, hung, without a driver, or to be reset."""
    metrics: tuple[MetricNow, ...]
    silent_nodes: tuple[str, ...]
    """Nodes that had readings in the 30 days before, and have none that counts."""
    jobs: int | None
    """Jobs that run, as they were recorded last; None where the store has no jobs."""
    job_gpus: int | None
    """The GPUs of these jobs."""


def fleet_now(store: Store) -> FleetNow | None:
    """The newest readings of the store; None where it has no telemetry."""
    readings = ", ".join(_OF_READINGS.format(name=name) for name in NOW_METRICS)
    row = store.sql(_NOW.format(fresh=FRESH_S, readings=readings)).polars().row(0, named=True)
    if row["newest"] is None:
        return None
    metrics = []
    for name in NOW_METRICS:
        if n := row[f"{name}_n"]:
            median, low, high = (float(row[f"{name}_{end}"]) for end in ("median", "low", "high"))
            metrics.append(MetricNow(name, median, low, high, n))
    running = store.sql(_RUNNING).polars().row(0, named=True) if has_rows(store, "jobs") else None
    return FleetNow(
        row["newest"],
        row["gpus"],
        row["mute"],
        tuple(metrics),
        tuple(row["silent_nodes"] or ()),
        None if running is None else running["jobs"],
        None if running is None else running["gpus"],
    )


def places(store: Store, cluster: str) -> pl.DataFrame:
    """The GPUs of a cluster, in the order of places: gpu, name, node, cabinet, slot, uuid. No MIG instances.

    A GPU that one file calls by its UUID and another by its place, where a third says both, is one row.
    """
    query = (
        "SELECT gpu, name, node, cabinet, slot, uuid FROM gpus_now "
        f"WHERE cluster = {quoted(cluster)} AND mig_profile IS NULL AND parent IS NULL"
    )
    rows = store.sql(query).polars()
    if rows["uuid"].null_count():
        rows = rows.filter(~pl.col("gpu").is_in(list(other_names(store, cluster))))
    return rows.sort(*by_number("cabinet", "node"), "slot", *by_number("gpu"), nulls_last=True)


def judged_gpus(store: Store, cluster: str) -> frozenset[str]:
    """The keys of the GPUs that the newest judgement of a cluster compared; of all runs, not of one campaign."""
    query = (
        f"SELECT DISTINCT gpu FROM levels WHERE judgement = (SELECT arg_max(judgement, judged_at) FROM judgements "
        f"WHERE cluster = {quoted(cluster)} AND {OF_ALL_RUNS})"
    )
    return frozenset(map(str, store.sql(query).polars()["gpu"]))
