"""Workloads of a store that were run under several power limits or locked clocks: their curves of time and power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.vocabulary import stated
from ..runs.measurements import measurements
from ..statistics.ordering import Floats
from ..tuning.curve import SAME_LEVEL, CappedRuns, OwnCurve, own_curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store import Store

_SIZES = ("flop", "bytes", "operations", "input")
"""Conditions in which runs of one workload have other energies and times, whatever their power limit."""


@dataclass(frozen=True)
class Curve:
    """A workload in one setting (batch size, model of GPU, ...) under several caps."""

    family: str
    """The workload: its settings are left out together."""
    setting: str
    load: float
    """Power under the highest cap, as a share of the power limit."""
    share: Floats
    """(caps,) the cap as a share of the highest, rising to 1."""
    time: Floats
    """(caps,) the time, as a multiple of that under the highest cap."""
    power: Floats
    """(caps,) the power, likewise."""


def curves(runs: pl.DataFrame) -> list[Curve]:
    """The curves of runs under power limits: columns family, setting, cap (W), time, power_w.

    A setting with one cap, or without time or power under its highest, gives none.
    """
    medians = runs.filter(*(pl.col(name) > 0 for name in ("cap", "time", "power_w")))
    medians = medians.group_by("family", "setting", "cap").agg(pl.col("time", "power_w").median())
    by_setting = []
    for (family, setting), part in medians.sort("family", "setting", "cap").group_by(
        "family", "setting", maintain_order=True
    ):
        cap, time, power = (part[name].to_numpy().astype(np.float64) for name in ("cap", "time", "power_w"))
        if len(cap) > 1:
            load = float(power[-1] / cap[-1])
            by_setting.append(Curve(str(family), str(setting), load, cap / cap[-1], time / time[-1], power / power[-1]))
    return by_setting


def sweep(store: Store, *, cluster: str | None = None) -> pl.DataFrame:
    """The runs of workloads under power limits, for `curves`: family, setting, cap (W), time (ms), power_w.

    A run without a stated limit counts as one under the GPU's own limit, where that is known. The setting is cluster,
    model, input size and clock. The power is the run's median.
    """
    clock = pl.coalesce("set_mhz", "own_mhz").cast(pl.String)
    parts = [pl.col(name).fill_null("") for name in ("cluster", "model", "input_size")]
    return runs_with_limits(store, cluster).select(
        "family", pl.concat_str(*parts, clock.fill_null(""), separator="|").alias("setting"),
        pl.coalesce("set_w", "own_w").alias("cap"), pl.col("value").alias("time"), "power_w",
    ).filter(pl.col("cap").is_not_null())  # fmt: skip


def own_runs(store: Store, *, cluster: str | None = None, workload: str | None = None) -> pl.DataFrame:
    """The runs of workloads under power limits and locked clocks: a row for each with its energy.

    Columns: cluster, model, workload, gpu; unit, cap_w, uncapped_w, energy_j and time_s as in `CappedRuns`; at_default
    (whether it ran under the default limit without a locked clock), default_w (that limit), limit_w and clock_mhz (what
    was set, else the default limit and the highest clock). Only probes are known to be steady, so what they draw
    without a cap is known. A run whose cap or energy is not known is left out.
    """
    limited = runs_with_limits(store, cluster, [workload] if workload else [])
    energy = store.scan("results").filter(pl.col("figure") == "energy").group_by("run_id").agg(pl.col("value").median())
    limited = limited.join(store.collect(energy.rename({"value": "joules"})), on="run_id", how="left")
    limit_w, seconds, unlocked = pl.coalesce("set_w", "own_w"), pl.col("value") / 1e3, pl.col("set_mhz").is_null()
    sizes = (pl.col(name).cast(pl.String).fill_null("") for name in ("gpu", "input_size", *_SIZES))
    drawn_w = pl.col("power_w").filter("at_default", pl.col("probe_version").is_not_null()).median().over("unit")
    runs = limited.with_columns(
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
