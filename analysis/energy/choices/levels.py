"""How each GPU compares with the median GPU of its model: in time, in energy, and in power without work.

All from fingerprints. A level is ln(GPU / median GPU) for the same work. What a job does is often not known, so beside
the level in each workload there is one for each use of the GPU (`Use`): a job is then taken for one more workload of
that use, and how far workloads of one GPU differ widens the interval.

A GPU that seems to need more energy may only have a sensor that reads high. Sensors of a model differ at most as far
as the fleet's readings in the same work do. That does not hold at the power limit, because the limit is held by the
same sensor. Where nothing else was measured, the sensors are taken to differ as measured boards do
(`store.sensor_error`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import numpy as np
import polars as pl

from ....store.names import plain_workload
from ....store.power_sensors import SENSOR_ERROR, SensorError
from ...power_classes import Use
from ...statistics.ordering import Floats
from ...statistics.spread import MAD_TO_SD
from ...verdicts.levels import REACH_95

LEAST = 3
"""GPUs of a model that must be measured in the same work: of two nobody knows which one is usual."""
SENSOR_GPUS = 8
"""GPUs from which their readings say how far sensors differ."""
BELOW_LIMIT = 0.9
"""Share of the power limit below which the limit does not hold the power."""
ANY = "any"
"""The use of a job of which nobody knows what it uses: the mean over the classes of workloads."""
COLUMNS = {
    "cluster": pl.String,
    "gpu": pl.String,
    "model": pl.String,
    "measure": pl.String,
    "workload": pl.String,  # NULL: of a use
    "use": pl.String,  # NULL: of a workload
    "x": pl.Float64,  # ln(GPU / median GPU)
    "sd": pl.Float64,  # of x in another sitting, with `reference` and, of a use, how far workloads differ
    "reference": pl.Float64,  # sd of the median GPU, an error that all GPUs of the model share
    "sensor_sd": pl.Float64,  # of x, from sensors; 0 of a time
    "freedom": pl.Int64,  # degrees of freedom of sensor_sd
    "gpus": pl.Int64,  # compared, itself included
    "runs": pl.Int64,
    "sittings": pl.Int64,
    "workloads": pl.Int64,  # that it is from
}


class Measure(StrEnum):
    """What is compared."""

    TIME = "time"
    ENERGY = "energy"
    IDLE = "idle"


_FIGURES = {"time": Measure.TIME, "work_per_joule": Measure.ENERGY, "idle_power": Measure.IDLE}
_POWER = "power"
_MEDIAN = 1.2533  # the standard error of a median over that of a mean
_MOST_FREEDOM = 18  # of Student's t of sensors: their tails are heavier than the normal distribution's
_PRIOR = 4.0  # weight of what is usual in the fleet beside a GPU's own workloads
CLASSES: Mapping[str, Sequence[str]] = {
    Use.COMPUTE: ("compute",),
    Use.MEMORY: ("memory",),
    Use.BOTH: ("compute", "memory"),
    ANY: ("compute", "memory", "other"),
}
"""The classes of workloads that stand for a use."""


def levels(fingerprints: pl.DataFrame, limits: pl.DataFrame, *, sensor: SensorError = SENSOR_ERROR) -> pl.DataFrame:
    """The levels of all GPUs, columns as `COLUMNS`.

    `fingerprints`: rows of `fingerprints_now`. `limits`: cluster, gpu, limit_w. A GPU has no level where fewer than
    `LEAST` GPUs of its model were measured in the work, or where nobody can say what repeats (no GPU was measured
    twice).
    """
    rows = _compared(fingerprints)
    parts = [pl.DataFrame(schema=COLUMNS)]
    for (cluster, model), part in rows.group_by("cluster", "model", maintain_order=True):
        of_sensors = _Sensors(part, limits.filter(pl.col("cluster") == cluster), sensor)
        for measure in Measure:
            own = part.filter(pl.col("measure") == measure)
            if own.height:
                told = [*_of_workloads(own, of_sensors), *_of_uses(own, of_sensors)]
                keys = {"cluster": cluster, "model": model, "measure": measure.value}
                parts += [_named(one, keys) for one in told]
    return pl.concat(parts).filter(pl.col("x").is_finite() & pl.col("sd").is_finite())


def _named(found: pl.DataFrame, keys: Mapping[str, object]) -> pl.DataFrame:
    found = found.with_columns(pl.lit(value, pl.String).alias(key) for key, value in keys.items())
    return found.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())


def main_kinds(fingerprints: pl.DataFrame) -> pl.DataFrame:
    """The rows of workloads without those under other power limits or locked clocks, with `plain`, the workload's name.

    Of the kinds of a workload on a model (`analysis.kinds`), the one with most runs is what jobs are like.
    """
    told = fingerprints.filter(pl.col("workload").is_not_null())
    names = {name: plain_workload(name) for name in told["workload"].unique()}
    told = told.with_columns(pl.col("workload").replace(names).alias("plain"))
    keys = ["cluster", "model", "plain"]
    counted = told.group_by(*keys, "workload").agg(pl.col("n").sum().alias("most"))
    first = counted.sort("most", "workload", descending=[True, False]).unique(keys, keep="first", maintain_order=True)
    return told.join(first.select(*keys, "workload"), on=[*keys, "workload"], how="semi", nulls_equal=True)


def _compared(fingerprints: pl.DataFrame) -> pl.DataFrame:
    """A row a GPU, workload and figure: x, sd, reference (sd of the median GPU), spread, gpus, level (the median)."""
    named = main_kinds(fingerprints.filter(pl.col("figure").is_in([*_FIGURES, _POWER]) & (pl.col("value") > 0)))
    sign = pl.when(pl.col("figure") == "work_per_joule").then(-1.0).otherwise(1.0)
    keys = ["cluster", "model", "workload", "figure"]
    named = named.with_columns(
        (sign * pl.col("value").log()).alias("level"),
        ((pl.col("high") / pl.col("value")).log().abs() / REACH_95).alias("sd"),
        pl.col("figure").replace_strict(_FIGURES, default=None).alias("measure"),
    )
    # After one sitting nothing says how well the work per joule repeats; times and powers do, run by run.
    own = ["cluster", "gpu", "workload"]
    apart = named.filter(pl.col("figure").is_in(["time", _POWER])).group_by(own).agg(
        pl.when(pl.col("sd").count() == 2).then(pl.col("sd").pow(2).sum().sqrt()).alias("of_both")
    )  # fmt: skip
    named = named.join(apart, on=own, how="left", maintain_order="left").with_columns(
        pl.when(pl.col("measure") == Measure.ENERGY).then(pl.coalesce("sd", "of_both")).otherwise("sd").alias("sd"),
        pl.col("level").median().over(keys).alias("middle"),
        pl.len().over(keys).alias("gpus"),
    )
    named = named.with_columns((pl.col("level") - pl.col("middle")).alias("x"))
    spread = (MAD_TO_SD * pl.col("x").abs().median()).over(keys)
    return (
        named.with_columns(spread.alias("spread"))
        .with_columns((_MEDIAN * pl.col("spread") / pl.col("gpus").sqrt()).alias("reference"))
        .filter(pl.col("gpus") >= LEAST)
        .sort(*keys, "gpu")
    )


class _Sensors:
    """How far the sensors of the boards of one model differ."""

    def __init__(self, rows: pl.DataFrame, limits: pl.DataFrame, sensor: SensorError) -> None:
        self._sensor = sensor
        power = rows.filter((pl.col("figure") == _POWER) & (pl.col("gpus") >= SENSOR_GPUS))
        held = power.join(limits.select("gpu", "limit_w"), on="gpu", how="left")
        of = held.group_by("workload").agg(pl.col("middle", "spread", "gpus").first(), pl.col("limit_w").min())
        free = of.filter(pl.col("middle").exp() < BELOW_LIMIT * pl.col("limit_w"))
        self._seen = [(math.exp(middle), spread, gpus) for _, middle, spread, gpus, _ in free.iter_rows()]
        watts = power.select("workload", "middle").unique()
        self.watts = {str(workload): math.exp(middle) for workload, middle in watts.iter_rows()}

    def spread(self, watts: float, own: tuple[float, int] | None = None) -> tuple[float, int]:
        """The standard deviation of ln of readings about `watts`, and its degrees of freedom. `own`: a spread of
        readings there that no limit holds, and of how many GPUs."""
        boards = self._sensor.boards
        # An offset weighs more where the power is low: work that draws more says nothing about it.
        seen = [(spread, gpus) for at, spread, gpus in self._seen if at <= 1.2 * watts]
        if own is not None and own[1] >= SENSOR_GPUS:
            seen.append(own)
        if seen:
            spread, gpus = min(seen)
            return max(spread, 1e-4), min(gpus - 1, _MOST_FREEDOM)
        known = math.sqrt(float(self._sensor.variance(np.array(watts), np.array(1.0)))) / watts
        return known, boards - 1 if boards else _MOST_FREEDOM


def _of_workloads(own: pl.DataFrame, sensors: _Sensors) -> Iterator[pl.DataFrame]:
    """The level in each workload, by its plain name."""
    for (workload,), part in own.group_by("plain", maintain_order=True):
        sd, freedom = _sensor_of(part, sensors)
        yield part.select(
            "gpu", "x", (pl.col("sd") ** 2 + pl.col("reference") ** 2).sqrt().alias("sd"), "reference", "gpus",
            pl.col("n").alias("runs"), "sittings", pl.lit(str(workload)).alias("workload"),
            pl.lit(None, pl.String).alias("use"), pl.lit(sd).alias("sensor_sd"), pl.lit(freedom).alias("freedom"),
            pl.lit(1).alias("workloads"),
        )  # fmt: skip


def _sensor_of(part: pl.DataFrame, sensors: _Sensors) -> tuple[float, int]:
    """Of the rows of one measure in some workloads."""
    if part["measure"][0] == Measure.TIME:
        return 0.0, 1
    if part["measure"][0] == Measure.IDLE:
        middle, spread, gpus = part.select("middle", "spread", "gpus").row(0)
        return sensors.spread(math.exp(middle), (spread, gpus))
    watts = [sensors.watts[name] for name in part["workload"].unique().sort().to_list() if name in sensors.watts]
    return sensors.spread(float(np.mean(watts)) if watts else 100.0)


def _of_uses(own: pl.DataFrame, sensors: _Sensors) -> Iterator[pl.DataFrame]:
    """The level in each use that has workloads."""
    if own["measure"][0] == Measure.IDLE:
        return
    usual = _wander(own.filter(pl.col("class").is_in(CLASSES[ANY])))[0]
    for use, classes in CLASSES.items():
        part = own.filter(pl.col("class").is_in(classes))
        if use == Use.BOTH and part["class"].n_unique() < 2:
            continue
        if part.height:
            yield _of_use(part, use, usual, _sensor_of(part, sensors))


def _of_use(part: pl.DataFrame, use: str, usual: float, sensor: tuple[float, int]) -> pl.DataFrame:
    pooled, own = _wander(part)
    if not np.isfinite(pooled):
        pooled = usual if np.isfinite(usual) else 0.0
    by_class = part.group_by("gpu", "class", maintain_order=True).agg(
        pl.col("x").median(), pl.col("sd", "reference").pow(2).mean(), pl.col("gpus").min(), pl.col("n").sum(),
        pl.col("sittings").max(), pl.len().alias("workloads"),
    )  # fmt: skip
    found = by_class.group_by("gpu", maintain_order=True).agg(
        pl.col("x").mean(), pl.col("sd", "reference").mean(), pl.col("gpus").min(), pl.col("n").sum().alias("runs"),
        pl.col("sittings").max(), pl.col("workloads").sum(), pl.col("class").n_unique().alias("classes"),
    ).join(own, on="gpu", how="left").sort("gpu")  # fmt: skip
    # A GPU without some class is not at the mean over all of them.
    found = found.filter(pl.col("classes") == pl.col("classes").max())
    free = pl.col("workloads") - 1
    wander = (_PRIOR * pooled**2 + free * pl.col("own").fill_null(0.0)) / (_PRIOR + free)
    wander = wander * (1 + 1 / pl.col("workloads"))  # of one more workload about the mean of these
    return found.select(
        "gpu", "x", (pl.col("sd") + pl.col("reference") + wander).sqrt().alias("sd"),
        pl.col("reference").sqrt(), "gpus", "runs", "sittings", "workloads",
        pl.lit(None, pl.String).alias("workload"), pl.lit(use).alias("use"),
        pl.lit(sensor[0]).alias("sensor_sd"), pl.lit(sensor[1]).alias("freedom"),
    )  # fmt: skip


def _wander(part: pl.DataFrame) -> tuple[float, pl.DataFrame]:
    """How far the levels of one GPU in several workloads differ: the fleet's usual sd (NaN: nobody has two), and the
    variance of each GPU: gpu, own."""
    several = part.filter(pl.len().over("gpu") > 1).with_columns(
        (pl.col("x") - pl.col("x").mean().over("gpu")).alias("off"), pl.len().over("gpu").alias("many")
    )
    own = several.group_by("gpu").agg(((pl.col("off") ** 2).sum() / (pl.len() - 1)).alias("own"))
    if several.is_empty():
        return math.nan, own
    scaled: Floats = (
        several.select(pl.col("off") * (pl.col("many") / (pl.col("many") - 1)).sqrt()).to_series().to_numpy()
    )
    return MAD_TO_SD * float(np.median(np.abs(scaled))), own
