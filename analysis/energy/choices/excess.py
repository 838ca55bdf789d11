"""What the place of jobs cost: energy and time beyond what the median GPU of the model would have needed.

A GPU that takes e^t times as long for the same work, and e^x times the energy, spent 1 - e^-t of its busy time and
1 - e^-x of its busy energy in excess. What it draws while it waits is compared with that of GPUs without work. Times
that the GPU waited for something else are not in excess: another GPU would have waited too.

Figures are signed: a good GPU has a negative excess, so that chance alone adds up to about 0. A GPU is *shown* to
cost only if its lower end stays above 0 for the largest of so many GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ....store.power_sensors import SENSOR_ERROR, SensorError
from ....store.vocabulary import Code
from ...power_classes import Use
from ...power_classes.profiles import LITTLE, MUCH
from ...statistics.ordering import Floats
from ...statistics.student import quantile
from ..attribute import Kind
from ..books import add_up
from ..calibration import BoardErrors
from .levels import ANY, Measure

YEAR_S = 365.25 * 86_400
FALSE = 0.05
"""The chance that any of a fleet's GPUs is shown to cost and does not."""
SITTINGS_FREEDOM = 5
"""Degrees of freedom of Student's t that levels of sittings have (`verdicts.levels.REACH_95`)."""
BUSY = {
    "cluster": pl.String,
    "gpu": pl.String,
    "allocation": pl.String,
    "busy": pl.Float64,  # share of the time with a kernel; NULL where unknown
    "memory": pl.Float64,  # share of the time with memory traffic
    "workload": pl.String,  # what the job ran, where its runs say so; its plain name
}
_KEYS = ["cluster", "gpu", "node", "kind", "allocation"]


class Unknown(Code):
    """Why there is no excess."""

    NO_LEVEL = "no fingerprint", "the GPU was not compared with others of its model: measure it (`whorl campaign`)"
    NO_USE = "no utilisation", "nobody knows how long the GPU was busy: collect `utilization`"
    NO_ENERGY = "no energy", "there is no honest figure of the energy"


@dataclass(frozen=True)
class Part:
    """The ends of the excess of each row: arrays (rows,), NaN where unknown."""

    best: Floats
    low: Floats
    high: Floats
    least: Floats
    """Lower end for the largest of all GPUs."""
    common: Floats
    """Of the half width, what all GPUs of a model share: where the median GPU is."""


def excess(
    pieces: pl.DataFrame,
    levels: pl.DataFrame,
    busy: pl.DataFrame,
    *,
    sensor: SensorError = SENSOR_ERROR,
    compared: int | None = None,
) -> pl.DataFrame:
    """A row for each allocation and GPU, and for each GPU without a job; `add` adds them up.

    `pieces`: as `pieces.SCHEMA`, with cost, co2e_g and host_j where known. `levels`: from `levels.levels`. `busy`: as
    `BUSY`. `compared`: how many GPUs have levels, where `levels` has only some of them.
    Columns: those of `add_up` by cluster, gpu, node, kind and allocation, and for `excess_j` and `excess_s` (of GPU
    time) the best figure, `_low`, `_high` (95 %), `_least`, `_common`, `_reason`; `basis` (what the level is from).
    """
    also = [name for name in ("cost", "co2e_g") if name in pieces.columns]
    used = pieces.filter(pl.col("kind") != Kind.UNATTRIBUTED)
    hosts = [name for name in ("host_j",) if name in pieces.columns]
    rows = add_up(used, _KEYS, errors=BoardErrors.alike(sensor), also=[*also, *hosts])
    rows = rows.join(busy, on=["cluster", "gpu", "allocation"], how="left", maintain_order="left")
    rows = rows.with_columns(_use().alias("use"))
    gpus = max(1, compared or levels.select("cluster", "gpu").unique().height)
    time, energy, idle = (_with_level(rows, levels, measure) for measure in Measure)
    is_job = (rows["kind"] == Kind.JOB).to_numpy()
    seconds, joules, resting = (rows[name].cast(pl.Float64).to_numpy() for name in ("gpu_s", "energy_j", "idle_j"))
    share = rows["busy"].to_numpy()
    of_time = _excess(seconds * share, seconds * share, time, gpus)
    least, most = busy_energy(joules, resting, share)
    of_work = _excess(least, most, energy, gpus)
    waiting = np.where(is_job, joules - (least + most) / 2, joules)
    of_rest = _excess(waiting, waiting, idle, gpus)
    total = [_both(is_job, one, other) for one, other in zip(_ends(of_work), _ends(of_rest), strict=True)]
    width = (rows["high_j"] - rows["low_j"]).to_numpy() / 2 / np.where(joules > 0, joules, np.nan)
    of_energy = _wider(Part(*total), np.nan_to_num(width))
    of_time = Part(*(np.where(is_job, one, np.nan) for one in _ends(of_time)))
    reason = (
        pl.when(pl.col("energy_j").is_null()).then(pl.coalesce("reason", pl.lit(Unknown.NO_ENERGY.value)))
        .when(pl.col("excess_j").is_null() & pl.col("x").is_null()).then(pl.lit(Unknown.NO_LEVEL.value))
        .when(pl.col("excess_j").is_null()).then(pl.lit(Unknown.NO_USE.value))
    )  # fmt: skip
    reason_s = (
        pl.when(pl.col("kind") != Kind.JOB).then(None)
        .when(pl.col("busy").is_null()).then(pl.lit(Unknown.NO_USE.value))
        .when(pl.col("excess_s").is_null()).then(pl.lit(Unknown.NO_LEVEL.value))
    )  # fmt: skip
    level = pl.when(pl.col("kind") == Kind.JOB).then(energy["x"]).otherwise(idle["x"]).alias("x")
    basis = (
        pl.when(pl.col("kind") == Kind.IDLE)
        .then(pl.lit("idle power"))
        .otherwise(pl.coalesce(time["basis"], energy["basis"]))
    )
    rows = rows.with_columns(
        *_columns("excess_j", of_energy), *_columns("excess_s", of_time), level, basis.alias("basis")
    )
    rows = rows.with_columns(
        reason.alias("excess_j_reason"), reason_s.alias("excess_s_reason"),
        pl.coalesce(time["runs"], energy["runs"], idle["runs"]).alias("runs"),
        pl.coalesce(time["sittings"], energy["sittings"], idle["sittings"]).alias("sittings"),
        pl.coalesce(time["gpus"], energy["gpus"], idle["gpus"]).alias("compared"),
        time["x"].exp().alias("time_ratio"), energy["x"].exp().alias("energy_ratio"),
    )  # fmt: skip
    models = levels.select("cluster", "gpu", "model").unique(["cluster", "gpu"], keep="any")
    rows = rows.join(models, on=["cluster", "gpu"], how="left", maintain_order="left")
    # Grams and money are of the rest of the node too, which the excess of a GPU is not.
    part = pl.col("excess_j") / pl.sum_horizontal("energy_j", *hosts)
    return rows.with_columns((pl.col(name) * part).alias(f"excess_{name}") for name in also).drop("x")


def _use() -> pl.Expr:
    """What a job uses while the GPU is busy."""
    traffic = 100 * pl.col("memory") / pl.col("busy")
    return (
        pl.when(traffic.is_null() | ~traffic.is_finite()).then(pl.lit(ANY))
        .when(traffic >= MUCH).then(pl.lit(Use.MEMORY.value))
        .when(traffic <= LITTLE).then(pl.lit(Use.COMPUTE.value))
        .otherwise(pl.lit(Use.BOTH.value))
    )  # fmt: skip


def use_of(busy: float | None, memory: float | None) -> str:
    """What a job uses that has kernels and memory traffic for these shares of the time."""
    shares = pl.DataFrame({"busy": [busy], "memory": [memory]}, schema={"busy": pl.Float64, "memory": pl.Float64})
    return str(shares.select(_use()).item())


_LEVEL = ("x", "sd", "reference", "sensor_sd", "freedom", "runs", "sittings", "gpus", "basis")


def _with_level(rows: pl.DataFrame, levels: pl.DataFrame, measure: Measure) -> pl.DataFrame:
    """Of each row the level of its GPU in its workload, else in its use, else in any: columns `_LEVEL`."""
    of = levels.filter(pl.col("measure") == measure).with_columns(pl.coalesce("workload", "use").alias("basis"))
    keys = ["cluster", "gpu"]
    own = of.drop_nulls("workload").group_by(*keys, "workload", maintain_order=True).agg(
        pl.col(*_LEVEL[:4]).mean(), pl.col(*_LEVEL[4:]).first()
    )  # fmt: skip
    if measure is Measure.IDLE:
        parts = [rows.select(keys).join(own.unique(keys, keep="first"), on=keys, how="left", maintain_order="left")]
    else:
        by_use = of.drop_nulls("use")
        some = by_use.filter(pl.col("use") == ANY).drop("use")
        parts = [
            rows.select(*keys, "workload").join(own, on=[*keys, "workload"], how="left", maintain_order="left"),
            rows.select(*keys, "use").join(
                by_use.drop("workload"), on=[*keys, "use"], how="left", maintain_order="left"
            ),
            rows.select(keys).join(some, on=keys, how="left", maintain_order="left"),
        ]
    frames = [part.select(_LEVEL) for part in parts]
    known = [part["x"].is_not_null() for part in frames]
    found = frames[-1]
    for part, mask in zip(reversed(frames[:-1]), reversed(known[:-1]), strict=True):
        found = found.with_columns(pl.when(mask).then(part[name]).otherwise(found[name]).alias(name) for name in _LEVEL)
    return found


def busy_energy(joules: Floats, resting: Floats, share: Floats) -> tuple[Floats, Floats]:
    """The least and the most energy of the busy time: between what is above the idle power, and all."""
    above = np.clip(joules - np.nan_to_num(resting), 0.0, None)
    known = np.isfinite(share)
    least = np.where(np.isfinite(resting), above, joules * np.where(known, share, 0.0))
    most = joules.copy()
    exact = known & np.isfinite(resting)
    of_time = np.clip(joules - resting * (1 - share), 0.0, None)
    return np.where(exact, of_time, least), np.where(exact, of_time, most)


def _excess(least: Floats, most: Floats, level: pl.DataFrame, gpus: int) -> Part:
    """The excess of an amount between `least` and `most` at a level."""
    x, sd, sensor, common = (level[name].to_numpy() for name in ("x", "sd", "sensor_sd", "reference"))
    freedom = level["freedom"].cast(pl.Float64).fill_null(1.0).to_numpy()

    kinds, kind = np.unique(np.maximum(freedom, 1.0), return_inverse=True)

    def reach(tail: float) -> Floats:
        of_sensor: Floats = quantile(np.full(len(kinds), tail), kinds)[kind] * sensor
        return np.hypot(float(quantile(tail, SITTINGS_FREEDOM)) * sd, of_sensor)

    def at(level_: Floats, side: int) -> Floats:
        share = -np.expm1(-level_)
        end = np.minimum if side < 0 else np.maximum
        return end(least * share, most * share)

    middle = (least + most) / 2
    usual = reach(0.025)
    return Part(
        middle * -np.expm1(-x), at(x - usual, -1), at(x + usual, 1), at(x - reach(FALSE / gpus), -1),
        middle * np.exp(-x) * 1.96 * common,
    )  # fmt: skip


def _ends(part: Part) -> tuple[Floats, ...]:
    return part.best, part.low, part.high, part.least, part.common


def _both(is_job: np.ndarray, work: Floats, rest: Floats) -> Floats:
    """Of a job the excess of its work, with that of its waiting where known; of an idle GPU that of its rest."""
    return np.where(is_job, work + np.nan_to_num(rest), rest)


def _wider(part: Part, share: Floats) -> Part:
    """With the error of the energy itself, a share of it."""
    own = np.abs(part.best) * share
    low = part.best - np.hypot(part.best - part.low, own)
    high = part.best + np.hypot(part.high - part.best, own)
    return Part(part.best, low, high, part.least, part.common)


def _columns(name: str, part: Part) -> list[pl.Series]:
    ends = zip(("", "_low", "_high", "_least", "_common"), _ends(part), strict=True)
    return [pl.Series(f"{name}{end}", values, pl.Float64).fill_nan(None) for end, values in ends]


# -- added up ---------------------------------------------------------------------------------------------------------

_MEASURES = ("excess_j", "excess_s")
_ENDS = {f"{name}_{end}": f"excess_{end}_{name[-1]}" for name in _MEASURES for end in ("low", "high")}


def add(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The excess added up by the columns `by`, which begin with cluster: `gpus`, `jobs`, `gpu_s`, `energy_j` of the
    rows with an excess, and of `excess_j` and `excess_s` the figure, its 95 % interval (`excess_low_j` to
    `excess_high_j`), and `_of_s` (GPU time that the figure is from).

    The errors of a GPU's jobs are one error; GPUs err apart, but for the median that all are compared with. `shown`:
    only where one GPU is a row.
    """
    by = list(by)
    also = [name for name in ("excess_cost", "excess_co2e_g") if name in rows.columns]
    kept = [
        name for name in _MEASURES for name in (name, *(f"{name}_{end}" for end in ("low", "high", "least", "common")))
    ]
    boards = rows.group_by([*by, *(name for name in ("gpu", "model") if name not in by)], maintain_order=True).agg(
        *(pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in (*kept, *also)),
        *(pl.col("gpu_s").filter(pl.col(name).is_not_null()).sum().alias(f"{name}_of_s") for name in _MEASURES),
        pl.col("energy_j").filter(pl.col("excess_j").is_not_null()).sum(),
        pl.col("gpu_s").sum(), pl.col("allocation").drop_nulls().n_unique().alias("jobs"),
        pl.col("runs", "sittings", "compared").max(),
        *(pl.col(f"{name}_reason").drop_nulls().mode().sort().first() for name in _MEASURES),
    )  # fmt: skip
    return _over_gpus(boards, rows, by, also)


def _over_gpus(boards: pl.DataFrame, rows: pl.DataFrame, by: list[str], also: Sequence[str]) -> pl.DataFrame:
    own = []
    for name in _MEASURES:
        for end, sign in (("low", -1), ("high", 1)):
            away = sign * (pl.col(f"{name}_{end}") - pl.col(name))
            own.append((away**2 - pl.col(f"{name}_common") ** 2).clip(lower_bound=0.0).alias(f"{name}_{end}"))
    models = boards.with_columns(own).group_by([*by, *(() if "model" in by else ("model",))], maintain_order=True).agg(
        *(_known(name) for name in (*_MEASURES, *also)),
        *(pl.col(f"{name}_{end}").sum() for name in _MEASURES for end in ("low", "high", "of_s")),
        *(pl.col(f"{name}_common").sum() ** 2 for name in _MEASURES),
        pl.col("energy_j", "gpu_s").sum(), pl.col("gpu").count().alias("gpus"),
        *(pl.col(f"{name}_least").first() for name in _MEASURES),
        *(pl.col(name).first() for name in ("runs", "sittings", "compared")),
        *(pl.col(f"{name}_reason").drop_nulls().first() for name in _MEASURES),
    )  # fmt: skip
    found = models.group_by(by, maintain_order=True).agg(
        *(_known(name) for name in (*_MEASURES, *also)),
        *(pl.col(f"{name}_{end}").sum() for name in _MEASURES for end in ("low", "high", "of_s", "common")),
        pl.col("energy_j", "gpu_s").sum(), pl.col("gpus").sum().replace({0: None}),
        *(pl.col(f"{name}_least").first() for name in _MEASURES),
        *(pl.col(name).first() for name in ("runs", "sittings", "compared")),
        *(pl.col(f"{name}_reason").drop_nulls().first() for name in _MEASURES),
    )  # fmt: skip
    ends = [
        (pl.col(name) + sign * (pl.col(f"{name}_{end}") + pl.col(f"{name}_common")).sqrt()).alias(f"{name}_{end}")
        for name in _MEASURES for end, sign in (("low", -1), ("high", 1))
    ]  # fmt: skip
    jobs = rows.group_by(by).agg(pl.col("allocation").drop_nulls().n_unique().alias("jobs"))
    one = pl.col("gpus") == 1
    shown = [pl.when(one).then(pl.col(f"{name}_least") > 0).alias(f"{name}_shown") for name in _MEASURES]
    reasons = [pl.when(pl.col(name).is_null()).then(f"{name}_reason").alias(f"{name}_reason") for name in _MEASURES]
    found = found.with_columns(*ends, *shown, *reasons).join(jobs, on=by, how="left", nulls_equal=True)
    return found.drop(f"{name}_{end}" for name in _MEASURES for end in ("least", "common")).rename(_ENDS)


def _known(name: str) -> pl.Expr:
    """The sum of what is known; NULL where nothing is."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)
