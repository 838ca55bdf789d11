"""How GPUs and models compare in the same work: time, energy, and power without work. All from fingerprints.

A level is ln(GPU / median GPU of its model). What a job does is often not known, so beside the level in each workload
there is one for each use of the GPU (`Use`): a job is then taken for one more workload of that use, and how far
workloads of one GPU differ widens the interval.

A GPU that seems to need more energy may only have a sensor that reads high. Sensors of a model differ at most as far
as the fleet's readings in the same work do. That does not hold at the power limit, because the limit is held by the
same sensor. Where nothing else was measured, the sensors are taken to differ as measured boards do, by their model
(`store.power_sensors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.names import plain_workload
from ...store.power_sensors import SENSOR_ERROR, SensorError
from ..power_classes import Use
from ..runs.probing import campaigns, probed
from ..statistics.ordering import MAD_TO_SD, quantile
from ..verdicts.fingerprint import fingerprint
from ..verdicts.levels import REACH_95
from ..verdicts.model import Model

if TYPE_CHECKING:
    from ...store import Store

LEAST = 3
"""GPUs of a model that must be measured in the same work: of two nobody knows which one is usual."""
SENSOR_GPUS = 8
"""GPUs from which their readings say how far sensors differ."""
BELOW_LIMIT = 0.9
"""Share of the power limit below which the limit does not hold the power."""
SITTINGS_FREEDOM = 5
"""Degrees of freedom of Student's t that levels of sittings have (`verdicts.levels.REACH_95`)."""
SENSOR_FREEDOM = 18
"""At most so many that the spread of sensors has: their tails are heavier than the normal distribution's."""
FEWEST_WORKLOADS = 3
"""Workloads that two models must both have run, to say something of work that is none of them."""
ANY = "any"
"""The use of a job of which nobody knows what it uses: the mean over the classes of workloads."""
CLASSES: Mapping[str, Sequence[str]] = {
    Use.COMPUTE: ("compute",),
    Use.MEMORY: ("memory",),
    Use.BOTH: ("compute", "memory"),
    ANY: ("compute", "memory", "other"),
}
"""The classes of workloads that stand for a use."""
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
STANDS = {
    "cluster": pl.String,
    "gpu": pl.String,
    "basis": pl.String,  # the workload or use in which it is compared
    "slower_pct": pl.Float64,  # than the median GPU of its model
    "slower_low_pct": pl.Float64,
    "slower_high_pct": pl.Float64,
    "rank": pl.Int64,  # from the fastest, 1
    "compared": pl.Int64,  # GPUs, itself included
    "runs": pl.Int64,
    "sittings": pl.Int64,
}


class Measure(StrEnum):
    """What is compared."""

    TIME = "time"
    ENERGY = "energy"
    IDLE = "idle"


_MEASURES = {"time": Measure.TIME, "work_per_joule": Measure.ENERGY, "idle_power": Measure.IDLE}
_POWER = "power"
_MEDIAN = 1.2533  # the standard error of a median over that of a mean
_PRIOR = 4.0  # weight of what is usual in the fleet beside the workloads of a GPU itself
_FINGERPRINT = ("cluster", "gpu", "model", "class", "workload", "figure", "value", "high", "n", "sittings")


def fingerprints(store: Store, cluster: str | None) -> tuple[pl.DataFrame, list[str]]:
    """The newest stored fingerprints, of clusters that have none those of their runs; and notes for people."""
    rows = store.sql(f"select {', '.join(_FINGERPRINT)}, made_at from fingerprints_now order by all").polars()
    rows = rows.with_columns(pl.col("cluster", "gpu", "model", "class", "workload", "figure").cast(pl.String))
    clusters = campaigns(store)["cluster"].unique().sort().to_list()
    if cluster is not None:
        rows, clusters = rows.filter(pl.col("cluster") == cluster), [name for name in clusters if name == cluster]
    notes = []
    for (name,), part in rows.group_by("cluster", maintain_order=True):
        newest = part["made_at"].max()
        assert isinstance(newest, datetime)
        notes.append(
            f"GPUs of {name} are compared by the fingerprint of {newest:%Y-%m-%d}: "
            "`whorl verdicts fingerprint` makes a new one"
        )
    without = [name for name in clusters if name not in set(rows["cluster"])]
    computed = [fingerprint(Model(probed(store, cluster=name, every=True))) for name in without]
    parts = [frame.select(_FINGERPRINT) for frame in (rows, *computed)]
    return pl.concat(parts, how="vertical_relaxed"), notes


def identities(store: Store) -> pl.DataFrame:
    """Each GPU by its newest row: cluster, gpu, name, node, model, limit_w."""
    query = (
        "select cluster, gpu, name, node, model, coalesce(power_limit_mw, power_limit_default_mw) / 1e3 as limit_w "
        "from gpus_now order by cluster, gpu"
    )
    texts = pl.col("cluster", "gpu", "name", "node", "model").cast(pl.String)
    return store.sql(query).polars().with_columns(texts, pl.col("limit_w").cast(pl.Float64))


def main_kinds(rows: pl.DataFrame) -> pl.DataFrame:
    """The figures of workloads without those under other power limits or locked clocks, with `plain` (the workload's
    name), `level` (ln, more for a GPU that needs more) and `sd` (of it, from sitting to sitting).

    Of the kinds of a workload on a model (`analysis.runs.measurements`), the one with most runs is what jobs are like.
    """
    figures = pl.col("figure").is_in([*_MEASURES, _POWER])
    rows = rows.filter(pl.col("workload").is_not_null() & figures & (pl.col("value") > 0))
    names = {name: plain_workload(name) for name in rows["workload"].unique()}
    sign = pl.when(pl.col("figure") == "work_per_joule").then(-1.0).otherwise(1.0)
    rows = rows.with_columns(
        pl.col("workload").replace(names).alias("plain"), (sign * pl.col("value").log()).alias("level"),
        ((pl.col("high") / pl.col("value")).log().abs() / REACH_95).alias("sd"),
    )  # fmt: skip
    keys = ["cluster", "model", "plain"]
    counted = rows.group_by(*keys, "workload").agg(pl.col("n").sum().alias("most"))
    first = counted.sort("most", "workload", descending=[True, False]).unique(keys, keep="first", maintain_order=True)
    return rows.join(first.select(*keys, "workload"), on=[*keys, "workload"], how="semi", nulls_equal=True)


# -- the GPUs of a model ------------------------------------------------------------------------------------------


def levels(rows: pl.DataFrame, limits: pl.DataFrame, *, sensor: SensorError = SENSOR_ERROR) -> pl.DataFrame:
    """The levels of all GPUs, columns as `COLUMNS`.

    `rows`: of `fingerprints`. `limits`: cluster, gpu, limit_w. A GPU has no level where fewer than `LEAST` GPUs of its
    model were measured in the work, or where nobody can say what repeats (no GPU was measured twice).
    """
    parts = [pl.DataFrame(schema=COLUMNS)]
    for (cluster, model), part in _compared(rows).group_by("cluster", "model", maintain_order=True):
        assert model is None or isinstance(model, str)
        sensors = _Sensors.of(part, limits.filter(pl.col("cluster") == cluster), sensor.of_board(model))
        for measure in Measure:
            figures = part.filter(pl.col("measure") == measure)
            keys = {"cluster": cluster, "model": model, "measure": measure.value}
            parts += [
                frame.select(
                    (pl.col(name) if name in frame.columns else pl.lit(keys.get(name))).cast(kind).alias(name)
                    for name, kind in COLUMNS.items()
                )
                for frame in (*_by_workload(figures, sensors), *_by_use(figures, sensors))
            ]
    return pl.concat(parts).filter(pl.col("x").is_finite() & pl.col("sd").is_finite())


def _compared(rows: pl.DataFrame) -> pl.DataFrame:
    """A row a GPU, workload and figure: x, sd, reference (sd of the median GPU), spread, gpus, middle (the median)."""
    rows = main_kinds(rows).with_columns(pl.col("figure").replace_strict(_MEASURES, default=None).alias("measure"))
    keys = ["cluster", "model", "workload", "figure"]
    # After one sitting nothing says how well the work per joule repeats; times and powers do, run by run.
    of_gpu = ["cluster", "gpu", "workload"]
    apart = rows.filter(pl.col("figure").is_in(["time", _POWER])).group_by(of_gpu).agg(
        pl.when(pl.col("sd").count() == 2).then(pl.col("sd").pow(2).sum().sqrt()).alias("of_both")
    )  # fmt: skip
    rows = rows.join(apart, on=of_gpu, how="left", maintain_order="left").with_columns(
        pl.when(pl.col("measure") == Measure.ENERGY).then(pl.coalesce("sd", "of_both")).otherwise("sd").alias("sd"),
        pl.col("level").median().over(keys).alias("middle"),
        pl.len().over(keys).alias("gpus"),
    )
    rows = rows.filter(pl.col("gpus") >= LEAST).with_columns((pl.col("level") - pl.col("middle")).alias("x"))
    rows = rows.with_columns((MAD_TO_SD * pl.col("x").abs().median()).over(keys).alias("spread"))
    return rows.with_columns(reference=_MEDIAN * pl.col("spread") / pl.col("gpus").sqrt()).sort(*keys, "gpu")


@dataclass(frozen=True)
class _Sensors:
    """How far the sensors of the boards of one model differ."""

    free: Sequence[tuple[float, float, int]]
    """Of workloads that no limit holds: watts, spread of the readings (ln), GPUs."""
    watts: Mapping[str, float]
    """By workload."""
    error: SensorError

    @classmethod
    def of(cls, rows: pl.DataFrame, limits: pl.DataFrame, error: SensorError) -> _Sensors:
        power = rows.filter((pl.col("figure") == _POWER) & (pl.col("gpus") >= SENSOR_GPUS))
        held = power.join(limits.select("gpu", "limit_w"), on="gpu", how="left")
        works = held.group_by("workload").agg(pl.col("middle", "spread", "gpus").first(), pl.col("limit_w").min())
        free = works.filter(pl.col("middle").exp() < BELOW_LIMIT * pl.col("limit_w"))
        return cls(
            [(math.exp(middle), spread, gpus) for _, middle, spread, gpus, _ in free.iter_rows()],
            {str(name): math.exp(middle) for name, middle in power.select("workload", "middle").unique().iter_rows()},
            error,
        )

    def spread(self, rows: pl.DataFrame) -> tuple[float, int]:
        """The standard deviation of ln of the readings of one measure, and its degrees of freedom."""
        if rows["measure"][0] == Measure.TIME:
            return 0.0, 1
        if rows["measure"][0] == Measure.IDLE:  # no limit holds a GPU without work
            middle, spread, gpus = rows.select("middle", "spread", "gpus").row(0)
            watts, free = math.exp(middle), [(spread, gpus)] if gpus >= SENSOR_GPUS else []
        else:
            drawn_w = [self.watts[name] for name in rows["workload"].unique().sort().to_list() if name in self.watts]
            watts, free = float(np.mean(drawn_w)) if drawn_w else 100.0, []
        # An offset weighs more where the power is low: work that draws more says nothing about it.
        free += [(spread, gpus) for power_w, spread, gpus in self.free if power_w <= 1.2 * watts]
        if free:
            spread, gpus = min(free)
            return max(spread, 1e-4), min(gpus - 1, SENSOR_FREEDOM)
        boards = self.error.boards
        of_board = self.error.variance(np.array(watts), np.array(1.0))
        return math.sqrt(float(of_board)) / watts, boards - 1 if boards else SENSOR_FREEDOM


def _by_workload(rows: pl.DataFrame, sensors: _Sensors) -> Iterator[pl.DataFrame]:
    """The level in each workload, by its plain name."""
    for (workload,), part in rows.group_by("plain", maintain_order=True):
        sd, freedom = sensors.spread(part)
        yield part.select(
            "gpu", "x", (pl.col("sd") ** 2 + pl.col("reference") ** 2).sqrt().alias("sd"), "reference", "gpus",
            pl.col("n").alias("runs"), "sittings", pl.lit(str(workload)).alias("workload"),
            pl.lit(sd).alias("sensor_sd"), pl.lit(freedom).alias("freedom"), pl.lit(1).alias("workloads"),
        )  # fmt: skip


def _by_use(rows: pl.DataFrame, sensors: _Sensors) -> Iterator[pl.DataFrame]:
    """The level in each use that has workloads."""
    if rows.is_empty() or rows["measure"][0] == Measure.IDLE:
        return
    usual = _wander(rows.filter(pl.col("class").is_in(CLASSES[ANY])))[0]
    for use, classes in CLASSES.items():
        part = rows.filter(pl.col("class").is_in(classes))
        if part.height and (use != Use.BOTH or part["class"].n_unique() == 2):
            sd, freedom = sensors.spread(part)
            fixed = pl.lit(use).alias("use"), pl.lit(sd).alias("sensor_sd"), pl.lit(freedom).alias("freedom")
            yield _of_use(part, usual).with_columns(fixed)


def _of_use(part: pl.DataFrame, usual: float) -> pl.DataFrame:
    pooled, of_gpus = _wander(part)
    if not np.isfinite(pooled):
        pooled = usual if np.isfinite(usual) else 0.0
    by_class = part.group_by("gpu", "class", maintain_order=True).agg(
        pl.col("x").median(), pl.col("sd", "reference").pow(2).mean(), pl.col("gpus").min(), pl.col("n").sum(),
        pl.col("sittings").max(), pl.len().alias("workloads"),
    )  # fmt: skip
    by_gpu = by_class.group_by("gpu", maintain_order=True).agg(
        pl.col("x").mean(), pl.col("sd", "reference").mean(), pl.col("gpus").min(), pl.col("n").sum().alias("runs"),
        pl.col("sittings").max(), pl.col("workloads").sum(), pl.col("class").n_unique().alias("classes"),
    ).join(of_gpus, on="gpu", how="left").sort("gpu")  # fmt: skip
    # A GPU without some class is not at the mean over all of them.
    by_gpu = by_gpu.filter(pl.col("classes") == pl.col("classes").max())
    free = pl.col("workloads") - 1
    wander = (_PRIOR * pooled**2 + free * pl.col("wander").fill_null(0.0)) / (_PRIOR + free)
    wander = wander * (1 + 1 / pl.col("workloads"))  # of one more workload about the mean of these
    sd = (pl.col("sd") + pl.col("reference") + wander).sqrt()
    return by_gpu.select(
        "gpu", "x", sd.alias("sd"), pl.col("reference").sqrt(), "gpus", "runs", "sittings", "workloads"
    )


def _wander(part: pl.DataFrame) -> tuple[float, pl.DataFrame]:
    """How far the levels of one GPU in several workloads differ: the fleet's usual sd (NaN: nobody has two), and the
    variance of each GPU: gpu, wander."""
    n = pl.len().over("gpu")
    several = part.filter(n > 1).with_columns((pl.col("x") - pl.col("x").mean().over("gpu")).alias("off"))
    of_gpus = several.group_by("gpu").agg(((pl.col("off") ** 2).sum() / (pl.len() - 1)).alias("wander"))
    scaled = several.select((pl.col("off") * (n / (n - 1)).sqrt()).abs().median()).item()
    return (math.nan if scaled is None else MAD_TO_SD * float(scaled)), of_gpus


def stands(rows: pl.DataFrame) -> pl.DataFrame:
    """Where each GPU stands in each work or use that it was compared in: `STANDS`. `rows`: of `levels`."""
    time = rows.filter(pl.col("measure") == Measure.TIME).with_columns(pl.coalesce("workload", "use").alias("basis"))
    time = time.group_by("cluster", "gpu", "basis", "model").agg(
        pl.col("x", "sd").mean(), pl.col("gpus").first().alias("compared"), pl.col("runs", "sittings").first()
    )
    half = float(quantile(0.025, SITTINGS_FREEDOM)) * pl.col("sd")
    ends = {"slower_pct": pl.lit(0.0), "slower_low_pct": -half, "slower_high_pct": half}
    time = time.with_columns(
        *(((pl.col("x") + end).exp() * 100 - 100).alias(name) for name, end in ends.items()),
        pl.col("x").rank("min").over("cluster", "model", "basis").alias("rank"),
    )
    return time.select(pl.col(name).cast(kind) for name, kind in STANDS.items())


# -- models ---------------------------------------------------------------------------------------------------------


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


def medians(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Of each model and workload the median GPU: cluster, model, workload (plain), class, figure, level (ln, for a unit
    of work), sd (of one GPU of the model in another sitting), gpus, value (the median, not for a unit), unsized.

    `rows`: of `fingerprints`; `work`: of `sizes`. The work is the same if workloads of one name did as many operations
    or bytes; where sizes differ, times and energies count per operation or byte.
    """
    rows = main_kinds(rows.filter(pl.col("model").is_not_null())).with_columns(pl.col("plain").alias("workload"))
    rows = rows.join(work, on=["cluster", "workload", "gpu"], how="left", nulls_equal=True, maintain_order="left")
    amount = pl.when(pl.col("figure").is_in(["time", "work_per_joule"])).then(pl.col("work").log()).otherwise(0.0)
    rows = rows.with_columns(pl.col("level") - amount.fill_null(0.0))
    apart = MAD_TO_SD * (pl.col("level") - pl.col("level").median()).abs().median()
    return rows.group_by("cluster", "model", "workload", "figure", maintain_order=True).agg(
        pl.col("class").first(), pl.col("level").median(), pl.col("value").median(), pl.len().alias("gpus"),
        (apart**2 + pl.col("sd").pow(2).mean().fill_null(0.0)).sqrt().alias("sd"),
        pl.col("work").is_null().any().alias("unsized"),
    ).filter(pl.col("gpus") >= LEAST)  # fmt: skip


def ratio(
    by_model: pl.DataFrame, figure: str, models: tuple[str, str], *, workload: str | None, use: str, sensor: SensorError
) -> Ratio | str:
    """How the second of two models compares with the first in a figure, for a job of this workload or use; or why that
    is not known. `by_model`: from `medians`, of one cluster."""
    first, second = (by_model.filter((pl.col("model") == model) & (pl.col("figure") == figure)) for model in models)
    pairs = first.join(second, on="workload", suffix="_other", maintain_order="left").filter(
        pl.col("unsized") == pl.col("unsized_other")
    )
    exact = pairs.filter(pl.col("workload") == (workload or ""))
    similar = exact if exact.height else pairs.filter(pl.col("class").is_in(CLASSES[use]))
    if similar.is_empty():
        return f"no workload like this was measured on {models[0]} and on {models[1]}"
    if not exact.height and similar.height < FEWEST_WORKLOADS:
        names = ", ".join(sorted(similar["workload"]))
        return (
            f"only {names} was measured on {models[0]} and on {models[1]}; to judge other work takes "
            f"{FEWEST_WORKLOADS} workloads"
        )
    x = (similar["level_other"] - similar["level"]).to_numpy()
    sd = math.sqrt(float((similar["sd"] ** 2 + similar["sd_other"] ** 2).mean()))  # type: ignore[arg-type]
    half = float(quantile(0.025, SITTINGS_FREEDOM)) * sd
    if not exact.height:
        among = float(np.std(x, ddof=1)) * math.sqrt(1 + 1 / len(x))
        half = math.hypot(half, float(quantile(0.025, len(x) - 1)) * among)
    if figure != "time":  # nobody held the sensors of two models together
        power = by_model.filter((pl.col("figure") == _POWER) & pl.col("workload").is_in(similar["workload"].implode()))
        middles = [power.filter(pl.col("model") == model)["value"].median() for model in models]
        watts = np.array([[100.0 if middle is None else float(middle)] for middle in middles])  # type: ignore[arg-type]
        unknown_j2 = [sensor.of_board(model).unknown(w, np.ones(1)) for model, w in zip(models, watts, strict=True)]
        apart = float(np.sqrt((unknown_j2 / watts**2).sum()))
        half = math.hypot(half, float(quantile(0.025, SENSOR_FREEDOM)) * apart)
    return Ratio(float(np.median(x)), half, tuple(sorted(similar["workload"])), int(similar["gpus_other"].min()))  # type: ignore[arg-type]
