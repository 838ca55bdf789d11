"""How the models of a cluster compare: time and energy of the same work, from fingerprints of both.

The work is the same if a workload of the same name did as many operations or bytes; where sizes differ, times and
energies count per operation or byte. What is compared is a GPU of one model with a GPU of the other, not with its best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ....store.power_sensors import SensorError
from ...statistics.spread import MAD_TO_SD
from ...statistics.student import quantile
from ...verdicts.levels import REACH_95
from .excess import SITTINGS_FREEDOM
from .levels import CLASSES, LEAST, main_kinds

if TYPE_CHECKING:
    from ....store import Store

FEWEST = 3
"""Workloads that both models must have run, to say something of work that is none of them."""
_SENSOR_FREEDOM = 18
_FIGURES = ("time", "work_per_joule", "idle_power", "power")


@dataclass(frozen=True)
class Ratio:
    """How much longer (or how much more energy) one model takes than another: ln, with half a 95 % interval."""

    x: float
    half: float
    workloads: tuple[str, ...]
    gpus: int
    """Of the other model."""


def sizes(store: Store) -> pl.DataFrame:
    """The work of one repetition: cluster, workload, gpu, work (operations, else bytes; NULL where nobody says)."""
    work = ", ".join(f"nullif(conditions.{key}, 0)" for key in ("flop", "operations", "bytes"))
    query = f"select cluster, workload, gpu, median(coalesce({work})) as work from runs group by all"
    kinds = {"cluster": pl.String, "workload": pl.String, "gpu": pl.String, "work": pl.Float64}
    return store.sql(query).polars().cast(kinds)  # type: ignore[arg-type]


def medians(fingerprints: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Of each model and workload the median GPU: cluster, model, workload (plain), class, figure, level (ln, for a unit
    of work), sd (of one GPU of the model in another sitting), gpus, value (the median, not for a unit)."""
    known = pl.col("model").is_not_null() & pl.col("figure").is_in(_FIGURES) & (pl.col("value") > 0)
    rows = main_kinds(fingerprints.filter(known)).with_columns(
        pl.col("plain").alias("workload"), ((pl.col("high") / pl.col("value")).log().abs() / REACH_95).alias("sd")
    )
    rows = rows.join(work, on=["cluster", "workload", "gpu"], how="left", nulls_equal=True, maintain_order="left")
    sign = pl.when(pl.col("figure") == "work_per_joule").then(-1.0).otherwise(1.0)
    amount = pl.when(pl.col("figure").is_in(["time", "work_per_joule"])).then(pl.col("work").log()).otherwise(0.0)
    rows = rows.with_columns((sign * pl.col("value").log() - amount.fill_null(0.0)).alias("level"))
    keys = ["cluster", "model", "workload", "figure"]
    found = rows.group_by(keys, maintain_order=True).agg(
        pl.col("class").first(), pl.col("level").median(), pl.col("value").median(), pl.len().alias("gpus"),
        (pl.col("level") - pl.col("level").median()).abs().median().alias("apart"),
        pl.col("sd").pow(2).mean().sqrt(),
        pl.col("work").is_null().any().alias("unsized"),
    )  # fmt: skip
    found = found.filter(pl.col("gpus") >= LEAST)
    spread = (MAD_TO_SD * pl.col("apart")) ** 2
    return found.with_columns((spread + pl.col("sd").fill_null(0.0) ** 2).sqrt().alias("sd")).drop("apart")


def ratio(
    known: pl.DataFrame, figure: str, own: str, other: str, *, workload: str | None, use: str, sensor: SensorError
) -> Ratio | str:
    """How model `other` compares with `own` in a figure, for a job of this workload or use; or why that is not known.

    `known`: from `medians`, of one cluster.
    """
    mine, its = (known.filter((pl.col("model") == model) & (pl.col("figure") == figure)) for model in (own, other))
    both = mine.join(its, on="workload", suffix="_other", maintain_order="left").filter(
        pl.col("unsized") == pl.col("unsized_other")
    )
    exact = both.filter(pl.col("workload") == workload) if workload else both.clear()
    some = exact if exact.height else both.filter(pl.col("class").is_in(CLASSES[use]))
    if some.is_empty():
        return f"no workload like this was measured on {own} and on {other}"
    if not exact.height and some.height < FEWEST:
        names = ", ".join(sorted(some["workload"]))
        return f"only {names} was measured on {own} and on {other}; to judge other work takes {FEWEST} workloads"
    x = (some["level_other"] - some["level"]).to_numpy()
    sd = math.sqrt(float((some["sd"] ** 2 + some["sd_other"] ** 2).mean()))  # type: ignore[arg-type]
    half = float(quantile(0.025, SITTINGS_FREEDOM)) * sd
    if not exact.height:
        among = float(np.std(x, ddof=1)) * math.sqrt(1 + 1 / len(x))
        half = math.hypot(half, float(quantile(0.025, len(x) - 1)) * among)
    if figure != "time":
        half = math.hypot(half, float(quantile(0.025, _SENSOR_FREEDOM)) * _of_sensors(known, own, other, some, sensor))
    return Ratio(float(np.median(x)), half, tuple(sorted(some["workload"])), int(some["gpus_other"].min()))  # type: ignore[arg-type]


def _of_sensors(known: pl.DataFrame, own: str, other: str, some: pl.DataFrame, sensor: SensorError) -> float:
    """Standard deviation of ln of the ratio of two boards' readings: nobody held sensors of these models together."""
    power = known.filter((pl.col("figure") == "power") & pl.col("workload").is_in(some["workload"].implode()))
    squares = 0.0
    for model in (own, other):
        watts = power.filter(pl.col("model") == model)["value"].median()
        at = float(watts) if watts is not None else 100.0  # type: ignore[arg-type]
        squares += float(sensor.unknown(np.array(at), np.array(1.0))) / at**2
    return math.sqrt(squares)
