"""Workloads of a store that were run under several power limits or locked clocks, and what a cap would do to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from ...store.names import plain_workload
from ...store.vocabulary import stated
from ..runs.measurements import measurements
from ..tuning.curve import SAME_LEVEL, CapEffect, CappedRuns, OwnCurve, own_curve
from .caps import Prediction, curves, predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store import Store

Capped = Literal["power", "clock"]
_SIZES = ("flop", "bytes", "operations", "input")
"""Conditions in which runs of one workload have other energies and times, whatever their power limit."""
_AT_LIMIT = 0.95
"""A steady work that draws a smaller share of its power limit is not held by it."""


def sweep(store: Store, *, cluster: str | None = None, capped: Capped = "power") -> pl.DataFrame:
    """The runs of workloads under caps, for `curves`: family, setting, cap (W or MHz), time (ms), power_w.

    For clocks also limit_w, the power limit. A run without a stated cap counts as one under the GPU's own limit or
    highest clock, where that is known. The setting is cluster, model, input size, and the clock or limit that is not
    the cap. The power is the run's median.
    """
    every = runs_with_limits(store, cluster)
    limit_w, mhz = pl.coalesce("set_w", "own_w"), pl.coalesce("set_mhz", "own_mhz")
    same, cap = (mhz, limit_w) if capped == "power" else (limit_w, mhz)
    parts = [pl.col(name).fill_null("") for name in ("cluster", "model", "input_size")]
    return every.select(
        "family",
        pl.concat_str(*parts, same.cast(pl.String).fill_null(""), separator="|").alias("setting"),
        cap.alias("cap"),
        pl.col("value").alias("time"),
        "power_w",
        *([limit_w.alias("limit_w")] if capped == "clock" else []),
    ).filter(pl.col("cap").is_not_null())


def own_runs(store: Store, *, cluster: str | None = None, workload: str | None = None) -> pl.DataFrame:
    """The runs of workloads under power limits and locked clocks, for `curve_of_runs`: a row for each with its energy.

    Columns: cluster, model, workload, gpu, unit (the GPU and the size of its work), level (as in `CappedRuns`), drawn
    (the power, as a share of the default limit, of runs of probes: their load is steady; else NULL), default_w (the
    GPU's default limit), limit_w and clock_mhz (what was set, else the default limit and the highest clock), energy_j
    and time_s of a repetition. A run whose limit, default limit, energy, or power under a locked clock is not known is
    left out.
    """
    every = runs_with_limits(store, cluster, [workload] if workload else [])
    energy = store.scan("results").filter(pl.col("figure") == "energy").group_by("run_id").agg(pl.col("value").median())
    every = every.join(store.collect(energy.rename({"value": "joules"})), on="run_id", how="left")
    seconds = pl.col("value") / 1e3
    limit_w = pl.coalesce("set_w", "own_w")
    locked_w = pl.when(pl.col("power_w").is_not_null()).then(pl.min_horizontal(limit_w, "power_w"))
    level_w = pl.when(pl.col("set_mhz").is_null()).then(limit_w).otherwise(locked_w)
    sizes = (pl.col(name).cast(pl.String).fill_null("") for name in ("gpu", "input_size", *_SIZES))
    return every.select(
        "cluster", "model", pl.col("family").alias("workload"), "gpu",
        pl.concat_str(*sizes, separator="|").alias("unit"),
        (level_w / pl.col("own_w")).alias("level"),
        pl.when(pl.col("probe_version").is_not_null()).then(pl.col("power_w") / pl.col("own_w")).alias("drawn"),
        pl.col("own_w").alias("default_w"), limit_w.alias("limit_w"),
        pl.coalesce("set_mhz", "own_mhz").alias("clock_mhz"),
        pl.coalesce("joules", pl.col("power_w") * seconds).alias("energy_j"),
        seconds.alias("time_s"),
    ).filter(pl.all_horizontal(pl.col("level", "energy_j", "time_s") > 0))  # fmt: skip


@dataclass(frozen=True)
class WorkloadCurve:
    """What caps do to one workload on one model, from its own runs."""

    workload: str
    curve: OwnCurve
    default_w: float
    """The default power limit."""

    def effect(self, cap_w: float, since_w: float) -> CapEffect | None:
        """What a cap does to work that ran under the limit `since_w`, W; None below what was measured."""
        return self.curve.effect(cap_w / self.default_w, since_w / self.default_w)


def curve_of_runs(runs: pl.DataFrame) -> WorkloadCurve | None:
    """The curve of some rows of `own_runs`, of one workload on one model; None where they are too few."""
    if runs.is_empty():
        return None
    unit, level, energy_j, time_s = (runs[name].to_numpy() for name in ("unit", "level", "energy_j", "time_s"))
    drawn = pl.col("drawn").filter(at_default()).median().over("unit")
    highest = runs.select(pl.when(drawn < _AT_LIMIT).then(drawn).otherwise(1.0)).to_series().to_numpy()
    curve = own_curve(CappedRuns(unit.astype(np.str_), level, energy_j, time_s, highest))
    default_w = float(runs["default_w"].median())  # type: ignore[arg-type]
    return None if curve is None else WorkloadCurve(str(runs["workload"][0]), curve, default_w)


def at_default() -> pl.Expr:
    """Of rows of `own_runs`: whether the run was under the default limit."""
    return (pl.col("level") - 1).abs() < SAME_LEVEL


def runs_with_limits(store: Store, cluster: str | None, workloads: Sequence[str] = ()) -> pl.DataFrame:
    """Sound runs with what they ran under: run_id, cluster, gpu, model, family, value (time, ms), power_w, set_w and
    set_mhz (stated limit and locked clock), own_w and own_mhz (default limit and highest clock),
    input_size and what else tells sizes of the work apart."""
    runs = measurements(store, clusters=[cluster] if cluster else [], workloads=workloads, run_ids=True)
    runs = runs.select("run_id", pl.col("cluster", "gpu").cast(pl.String), "value", "power_w")
    limit = pl.coalesce(stated("asked_power_limit_w"), stated("power_limit_w"))
    conditions = store.scan("runs").select(
        "run_id",
        pl.col("workload").cast(pl.String).alias("family"),
        limit.alias("set_w"),
        stated("locked_clock_mhz").alias("set_mhz"),
        stated("input_size").alias("input_size"),
        *map(stated, _SIZES),
        "probe_version",
    )
    now = store.sql(
        "select cluster, gpu, model, coalesce(power_limit_default_mw, power_limit_mw) / 1e3 as own_w, "
        "sm_clock_max_mhz as own_mhz from gpus_now"
    ).polars()
    now = now.cast(
        {"cluster": pl.String, "gpu": pl.String, "model": pl.String, "own_w": pl.Float64, "own_mhz": pl.Float64}
    )
    return runs.join(store.collect(conditions), on="run_id").join(
        now, on=["cluster", "gpu"], how="left", nulls_equal=True
    )


def cap_effect(
    store: Store, workload: str, cap: float, *, cluster: str | None = None, capped: Capped = "power"
) -> Prediction:
    """What a cap (W or MHz) would do to a workload of the store, from the other workloads that were run under caps.

    The load is the median power of its runs under the highest cap it was run under.
    """
    runs = sweep(store, cluster=cluster, capped=capped)
    work = plain_workload(workload)
    own = runs.filter(pl.col("family") == work, pl.col("power_w") > 0)
    if own.is_empty():
        what = "power limit" if capped == "power" else "highest clock"
        return _without(f"no run of {workload} has a time, its power and a {what}")
    highest = float(own.select(pl.col("cap").max()).item())
    top = own.filter(pl.col("cap") == highest)
    load = (top["power_w"] / top["cap" if capped == "power" else "limit_w"]).median()
    if load is None:
        return _without(f"no power limit of the GPUs that ran {workload} is known")
    if not 0 < cap <= highest:
        return _without(f"the cap must be above 0 and at most {highest:g}, the highest that {workload} was run under")
    return predict(curves(runs), float(load), cap / highest, without=work)  # type: ignore[arg-type]


def _without(reason: str) -> Prediction:
    return Prediction(None, None, None, None, None, 0, (), reason)
