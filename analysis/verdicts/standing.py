"""Where each GPU stands among its peers, figure by figure: the levels and the comparison of the judge, as tables.

`explain`, `fingerprint`, `check`, `plan` and `diff` read them, so that they say of a GPU what `verdicts` says of it.
`peer_levels` is what is stored of them with a judgement, so that one GPU can be explained without judging all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from ...store.schema import LEVELS
from ..runs.probing import parted
from ..runs.sittings import UNKNOWN, Floats, days
from ..statistics.spread import PROBABILITIES
from .compare import Fleet
from .levels import levels
from .model import Figure, Model
from .sittings import step_of
from .states import codes
from .variance import LEAST
from .verdict import PeerLevels

_DAY_US = 86_400_000_000
QUANTILES = {f"time_{100 * q:g}_ms": q for q in PROBABILITIES}
"""The columns of `day_levels` with quantiles of times, and which ones these are."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run: the column of `Probed.runs`, its name in `fingerprints`, its unit."""

    column: str
    name: str
    unit: str
    ratio: bool = True
    """Whether peers are compared by ratio; a temperature in degrees Celsius is not."""


TIME = Measure("value", "time", "ms")


def scaled(runs: pl.DataFrame, measure: Measure = TIME) -> pl.DataFrame:
    """`runs` with a measure as `x`, on the scale of the comparison; without those where it is not finite."""
    value = pl.col(measure.column).cast(pl.Float64)
    x = pl.when(value > 0).then(value.log()) if measure.ratio else value
    return runs.with_columns(x.alias("x")).filter(pl.col("x").is_finite())


def standings(
    rows: pl.DataFrame, gpus: pl.DataFrame, *, least: float | None = LEAST, times: bool = True
) -> list[Figure]:
    """By workload and model, from rows with workload, model, gpu, began, x and, where a row is of several, runs.

    `gpus`: their keys, in the order of the arrays, and what they may share. `least`: as of `compare`; without it
    (the judge has no look at such a figure), and for fewer than eight GPUs, all GPUs of a model are peers. `times`:
    whether these are times, which may come in steps.
    """
    fleet = None if least is None else Fleet.of(gpus)[0]
    figures = []
    if "gpu_no" not in rows.columns:
        rows = rows.with_columns(pl.Series("gpu_no", codes(rows["gpu"], gpus["gpu"].to_list())))
    for (workload, model), part in parted(rows, "workload", "model"):
        gpu, x = part["gpu_no"].to_numpy(), part["x"].to_numpy()
        step = step_of(x) if times else 0.0
        level_of = levels(gpu, part.select(days()).to_series().to_numpy(), x, gpus.height, step)
        if "runs" in part.columns:
            level_of = replace(
                level_of, runs=np.bincount(gpu, part["runs"].to_numpy(), minlength=gpus.height).astype(np.int64)
            )
        figures.append(
            Figure(
                "", str(workload), None if model is None else str(model), levels=level_of, fleet=fleet,
                floor=LEAST if least is None else least,
            )
        )  # fmt: skip
    return sorted(figures, key=lambda one: (one.workload, one.model or ""))


_WHOLE = ("rank", "rank_low", "rank_high", "peers", "n", "sittings")
_PARTS = ("value", "low", "high", "ratio", "ratio_low", "ratio_high", "moved", "within_pct")
_COLUMNS = (
    dict.fromkeys(("workload", "model", "gpu", "figure", "unit"), pl.String())
    | dict.fromkeys(_PARTS, pl.Float64())
    | dict.fromkeys((*_WHOLE, "within_freedom"), pl.Int64())
)


def table(figures: Iterable[Figure], gpus: Sequence[str], measure: Measure = TIME) -> pl.DataFrame:
    """One row a workload and GPU that have the measure: workload, model, gpu, figure, unit, value, low, high, ratio,
    ratio_low, ratio_high (all null where unknown; of a difference, `ratio` is null), rank with rank_low and rank_high
    (of a rank in another sitting, among the peers), peers, n, sittings, moved (variance of its own sittings), and
    within_pct with within_freedom (standard deviation of its runs within sittings and its degrees of freedom)."""
    return pl.concat([pl.DataFrame(schema=_COLUMNS), *(_rows(one, gpus, measure) for one in figures)])


def _rows(figure: Figure, gpus: Sequence[str], measure: Measure) -> pl.DataFrame:
    level_of = figure.levels
    on = np.flatnonzero(level_of.known)
    x, half, off = level_of.level[on], figure.half[on], figure.effect[on]
    strayed = level_of.sat.value - level_of.steps - level_of.level[level_of.sat.series]
    moved = np.bincount(level_of.sat.series, strayed**2, minlength=level_of.sat.count) / np.maximum(
        level_of.sittings - 1, 1
    )
    columns: dict[str, object] = {"moved": np.where(level_of.sittings > 1, moved, np.nan)[on]}
    for end, side in (("", 0), ("low", -1), ("high", 1)):
        at, apart = x + side * half if side else x, off + side * half if side else off
        columns[end or "value"] = np.exp(at) if measure.ratio else at
        columns[f"ratio_{end}".rstrip("_")] = np.exp(apart) if measure.ratio else np.full(len(on), np.nan)
    columns |= {"peers": figure.peers[on], "n": level_of.runs[on], "sittings": level_of.sittings[on]}
    columns |= {"within_pct": 100 * level_of.within[on], "within_freedom": (level_of.runs - level_of.sittings)[on]}
    columns |= zip(_WHOLE[:3], _ranks(x, half, figure.centre[on]), strict=True)
    columns |= {"workload": figure.workload, "model": figure.model, "figure": measure.name, "unit": measure.unit}
    columns["gpu"] = [gpus[gpu] for gpu in on.tolist()]
    frame = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    return frame.select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())


def _ranks(x: Floats, half: Floats, centre: Floats) -> Floats:
    """(3, gpus) ranks with their ends: a GPU stands behind those of its peers that are faster by more than the 95 %
    interval of such a difference, in which both may be off."""
    ranks = np.full((3, len(x)), np.nan)
    for level in np.unique(centre):
        beside = centre == level
        values, ranked = x[beside], np.sort(x[beside])
        ranks[0, beside] = np.searchsorted(ranked, values) + 1
        if np.isfinite(half[beside]).all():
            reach = np.hypot(half[beside], np.median(half[beside]))
            ranks[1, beside] = np.searchsorted(ranked, values - reach) + 1
            ranks[2, beside] = np.searchsorted(ranked, values + reach, side="right")
    return ranks


# -- what is stored with a judgement ------------------------------------------------------------------------------


def peer_levels(model: Model) -> PeerLevels:
    """The levels of all times, of workloads that could not be judged too."""
    return PeerLevels(_levels(model.times, model.gpus), _days(model.times))


def _levels(figures: Iterable[Figure], gpus: Sequence[str]) -> pl.DataFrame:
    rows = table(figures, gpus)
    alone = pl.col("peers") < 2
    ratios = (pl.when(~alone).then(pl.col(name)).alias(name) for name in ("ratio", "ratio_low", "ratio_high"))
    rows = rows.with_columns(*ratios, (100 * pl.col("moved").sqrt()).alias("between_pct"))
    return rows.rename({"value": "time_ms", "low": "low_ms", "high": "high_ms"}).select(LEVELS.names[3:])


def _days(figures: Iterable[Figure]) -> pl.DataFrame:
    """The quantiles of the sittings of each day."""
    kinds: dict[str, pl.DataType] = {"workload": pl.String(), "model": pl.String(), "day": pl.Datetime("us")}
    parts = [pl.DataFrame(schema={**kinds, "gpus": pl.Int64(), **dict.fromkeys(QUANTILES, pl.Float64())})]
    for figure in figures:
        sat = figure.levels.sat
        sittings = pl.DataFrame({"day": np.floor(sat.at), "gpu": sat.series, "value": sat.value})
        by_day = sittings.filter(pl.col("day") > UNKNOWN).group_by("day").agg(
            pl.col("gpu").n_unique().cast(pl.Int64).alias("gpus"),
            *(pl.col("value").quantile(q, "linear").exp().alias(name) for name, q in QUANTILES.items()),
        )  # fmt: skip
        parts.append(
            by_day.select(
                pl.lit(figure.workload, pl.String).alias("workload"), pl.lit(figure.model, pl.String).alias("model"),
                (_DAY_US * pl.col("day").cast(pl.Int64)).cast(pl.Datetime("us")).alias("day"), "gpus", *QUANTILES,
            )
        )  # fmt: skip
    return pl.concat(parts).sort("workload", "model", "day")
