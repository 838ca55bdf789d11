"""The power profile of a workload: its spike vector and use of the GPU, from telemetry collected while it ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.metrics import BOARD_POWER, power_is_trusted
from ..runs.measurements import measurements
from ..statistics.ordering import Floats
from .spikes import SMOOTHING, distances, spike_vector

if TYPE_CHECKING:
    from ...store import Store

RUNS = 50
"""Of a workload with more runs, this many are read."""
_READINGS = 30  # of a workload, at least
LITTLE, MUCH = 30.0, 60.0
"""% of the time with memory traffic: up to the first a workload uses compute, from the second on memory."""
_WAITING = 50.0  # % of the time with a kernel


class Use(StrEnum):
    """What a workload uses most, from how long kernels ran and memory was busy: coarse, as these are shares of time."""

    COMPUTE = "compute"
    MEMORY = "memory"
    BOTH = "both"
    WAITING = "waiting"
    """No kernel ran half of the time: it waits for its input, the host or other GPUs."""


@dataclass(frozen=True)
class Profile:
    """How a workload loads the power of its GPUs; ratios are to the power limit."""

    cluster: str
    workload: str
    runs: int
    gpus: int
    readings: int
    vector: Floats | None
    """(30,) the spike vector; None with a `reason`, or where the power never reaches half of the limit."""
    mean_ratio: float | None
    p99_ratio: float | None
    utilization: float | None
    memory_utilization: float | None
    reason: str | None = None

    @property
    def use(self) -> Use | None:
        """What it uses most; None where the utilisation is not known."""
        if self.utilization is None or self.memory_utilization is None:
            return None
        if self.utilization < _WAITING:
            return Use.WAITING
        if self.memory_utilization >= MUCH:
            return Use.MEMORY
        return Use.COMPUTE if self.memory_utilization <= LITTLE else Use.BOTH

    def as_row(self) -> dict[str, Any]:
        """The figures of the row of `power_classes`. `above_limit`: share of the spike vector above the limit."""
        above = None if self.vector is None else float(self.vector[10:].sum())
        names = ("cluster", "workload", "mean_ratio", "p99_ratio", "runs", "gpus", "readings", "reason")
        return {name: getattr(self, name) for name in names} | {"use": self.use, "above_limit": above}


def power_profiles(store: Store, *, cluster: str | None = None) -> list[Profile]:
    """The profile of each workload of a store (of one cluster) from the telemetry in the windows of its runs."""
    runs = measurements(store, clusters=[cluster] if cluster else [], run_ids=True, untimed=True)
    runs = runs.select("run_id", pl.col("cluster", "workload", "gpu").cast(pl.String))
    read = runs.join(_readings(store), on="run_id", how="left", maintain_order="left")
    groups = read.group_by("cluster", "workload", maintain_order=True)
    found = [_profile(str(on), str(workload), part) for (on, workload), part in groups]
    return sorted(found, key=lambda one: (one.cluster, one.workload))


def nearest(profile: Profile, others: Sequence[Profile]) -> list[tuple[Profile, float]]:
    """The other workloads with a spike vector and their cosine distance, the nearest first."""
    known = [one for one in others if one.vector is not None and one.workload != profile.workload]
    if profile.vector is None or not known:
        return []
    apart = distances(np.array([profile.vector, *(one.vector for one in known)]))[0, 1:]
    return [(known[i], float(apart[i])) for i in np.argsort(apart, kind="stable")]


def _readings(store: Store) -> pl.DataFrame:
    """Readings of some runs of each workload: run_id, ts, watts, limit_w, utilization, memory_utilization."""
    watts = f"coalesce({', '.join(f't.{name}' for name in BOARD_POWER)})"
    query = f"""
        with numbered as (
            select run_id, cluster, gpu, began, ended, conditions.power_limit_w as limit_w,
                row_number() over (partition by cluster, workload order by hash(run_id)) as number from runs
            where began is not null and ended is not null
        )
        select r.run_id, t.ts, {watts} / 1e3 as watts, t.utilization, t.memory_utilization, coalesce(
            r.limit_w, t.power_limit_mw / 1e3, g.power_limit_mw / 1e3, g.power_limit_default_mw / 1e3) as limit_w
        from numbered r
        join telemetry t on t.cluster = r.cluster and t.gpu = r.gpu and t.ts between r.began and r.ended
        left join gpus_now g on g.cluster = r.cluster and g.gpu = r.gpu
        where r.number <= {RUNS} and {watts} is not null and {power_is_trusted("t.quality")}
    """
    numbers = pl.col("watts", "utilization", "memory_utilization", "limit_w").cast(pl.Float64)
    return store.sql(query).polars().with_columns(pl.col("run_id").cast(pl.String), numbers).sort("run_id", "ts")


def _profile(cluster: str, workload: str, readings: pl.DataFrame) -> Profile:
    runs, gpus = readings["run_id"].n_unique(), readings["gpu"].n_unique()

    def without(reason: str) -> Profile:
        return Profile(cluster, workload, runs, gpus, 0, None, None, None, None, None, reason)

    read = readings.drop_nulls("watts")
    if read.height < _READINGS:
        return without(f"fewer than {_READINGS} readings of power in the windows of its runs")
    if read["limit_w"].null_count() == read.height:
        return without("no power limit of its GPUs is known")
    busy = (pl.col("utilization").fill_null(1) > 0).cum_max().over("run_id")
    read = read.filter(busy).drop_nulls("limit_w").with_columns(ratio=pl.col("watts") / pl.col("limit_w"))
    if read.height < _READINGS:
        return without("its GPUs were idle while it ran")
    smooth = read.select(pl.col("ratio").ewm_mean(alpha=SMOOTHING, adjust=False).over("run_id"))["ratio"].to_numpy()

    def mean(name: str) -> float | None:
        found = read[name].mean()
        return None if found is None else float(found)  # type: ignore[arg-type]

    return Profile(
        cluster,
        workload,
        read["run_id"].n_unique(),
        read["gpu"].n_unique(),
        read.height,
        spike_vector(smooth),
        mean("ratio"),
        float(np.quantile(read["ratio"].to_numpy(), 0.99)),
        mean("utilization"),
        mean("memory_utilization"),
    )
