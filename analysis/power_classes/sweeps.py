"""Workloads of a store that were run under several power limits or locked clocks, and what a cap would do to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from ...store.names import plain_workload
from ...store.vocabulary import stated
from ..runs.measurements import measurements
from ..tuning.curve import SAME_LEVEL, CappedRuns, OwnCurve, own_curve
from .caps import Prediction, curves, predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store import Store

Capped = Literal["power", "clock"]
_SIZES = ("flop", "bytes", "operations", "input")
"""Conditions in which runs of one workload have other energies and times, whatever their power limit."""


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
    """The runs of workloads under power limits and locked clocks: a row for each with its energy.

    Columns: cluster, model, workload, gpu; unit, cap_w, uncapped_w, energy_j and time_s as in `CappedRuns`; at_default
    (whether it ran under the default limit without a locked clock), default_w (that limit), limit_w and clock_mhz (what
    was set, else the default limit and the highest clock). Only probes are known to be steady, so what they draw
    without a cap is known. A run whose cap or energy is not known is left out.
    """
    every = runs_with_limits(store, cluster, [workload] if workload else [])
    energy = store.scan("results").filter(pl.col("figure") == "energy").group_by("run_id").agg(pl.col("value").median())
    every = every.join(store.collect(energy.rename({"value": "joules"})), on="run_id", how="left")
    limit_w, seconds, unlocked = pl.coalesce("set_w", "own_w"), pl.col("value") / 1e3, pl.col("set_mhz").is_null()
    sizes = (pl.col(name).cast(pl.String).fill_null("") for name in ("gpu", "input_size", *_SIZES))
    drawn_w = pl.col("power_w").filter("at_default", pl.col("probe_version").is_not_null()).median().over("unit")
    runs = every.with_columns(
        pl.concat_str(*sizes, separator="|").alias("unit"),
        (unlocked & ((limit_w / pl.col("own_w") - 1).abs() < SAME_LEVEL)).alias("at_default"),
    ).select(
        "cluster", "model", pl.col("family").alias("workload"), "gpu", "unit", "at_default",
        pl.when(unlocked | (pl.col("power_w") > limit_w)).then(limit_w).otherwise("power_w").alias("cap_w"),
        pl.min_horizontal("own_w", drawn_w).alias("uncapped_w"),
        pl.col("own_w").alias("default_w"), limit_w.alias("limit_w"),
        pl.coalesce("set_mhz", "own_mhz").alias("clock_mhz"),
        pl.coalesce("joules", pl.col("power_w") * seconds).alias("energy_j"), seconds.alias("time_s"),
    )  # fmt: skip
    return runs.filter(pl.all_horizontal(pl.col("cap_w", "uncapped_w", "energy_j", "time_s") > 0))


def curve_of_runs(runs: pl.DataFrame) -> OwnCurve | None:
    """The curve of some rows of `own_runs`, of one workload on one model; None where they are too few."""
    names = ("unit", "cap_w", "energy_j", "time_s", "uncapped_w")
    return own_curve(CappedRuns(*(runs[name].to_numpy() for name in names)))


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
