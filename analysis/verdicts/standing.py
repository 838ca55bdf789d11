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
    found = []
    if "gpu_no" not in rows.columns:
        rows = rows.with_columns(pl.Series("gpu_no", codes(rows["gpu"], gpus["gpu"].to_list())))
    for (workload, model), some in parted(rows, "workload", "model"):
        gpu, x = some["gpu_no"].to_numpy(), some["x"].to_numpy()
        step = step_of(x) if times else 0.0
        of = levels(gpu, some.select(days()).to_series().to_numpy(), x, gpus.height, step)
        if "runs" in some.columns:
            of = replace(of, runs=np.bincount(gpu, some["runs"].to_numpy(), minlength=gpus.height).astype(np.int64))
        found.append(
            Figure(
                "", str(workload), None if model is None else str(model), levels=of, fleet=fleet,
                floor=LEAST if least is None else least,
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.workload, one.model or ""))


_WHOLE = ("rank", "rank_low", "rank_high", "peers", "n", "sittings")
_PARTS = ("value", "low", "high", "ratio", "ratio_low", "ratio_high", "moved", "within_pct")
_COLUMNS = (
    dict.fromkeys(("workload", "model", "gpu", "figure", "unit"), pl.String())
    | dict.fromkeys(_PARTS, pl.Float64())
    | dict.fromkeys((*_WHOLE, "within_freedom"), pl.Int64())
)


def table(of: Iterable[Figure], gpus: Sequence[str], measure: Measure = TIME) -> pl.DataFrame:
    """One row a workload and GPU that have the measure: workload, model, gpu, figure, unit, value, low, high, ratio,
    ratio_low, ratio_high (all null where unknown; of a difference, `ratio` is null), rank with rank_low and rank_high
    (of a rank in another sitting, among the peers), peers, n, sittings, moved (variance of its own sittings), and
    within_pct with within_freedom (standard deviation of its runs within sittings and its degrees of freedom)."""
    return pl.concat([pl.DataFrame(schema=_COLUMNS), *(_rows(one, gpus, measure) for one in of)])


def _rows(one: Figure, gpus: Sequence[str], measure: Measure) -> pl.DataFrame:
    of = one.levels
    on = np.flatnonzero(of.known)
    x, half, off = of.level[on], one.half[on], one.effect[on]
    strayed = of.sat.value - of.steps - of.level[of.sat.series]
    moved = np.bincount(of.sat.series, strayed**2, minlength=of.sat.count) / np.maximum(of.sittings - 1, 1)
    columns: dict[str, object] = {"moved": np.where(of.sittings > 1, moved, np.nan)[on]}
    for end, side in (("", 0), ("low", -1), ("high", 1)):
        at, apart = x + side * half if side else x, off + side * half if side else off
        columns[end or "value"] = np.exp(at) if measure.ratio else at
        columns[f"ratio_{end}".rstrip("_")] = np.exp(apart) if measure.ratio else np.full(len(on), np.nan)
    columns |= {"peers": one.peers[on], "n": of.runs[on], "sittings": of.sittings[on]}
    columns |= {"within_pct": 100 * of.within[on], "within_freedom": (of.runs - of.sittings)[on]}
    columns |= zip(_WHOLE[:3], _ranks(x, half, one.centre[on]), strict=True)
    columns |= {"workload": one.workload, "model": one.model, "figure": measure.name, "unit": measure.unit}
    columns["gpu"] = [gpus[gpu] for gpu in on.tolist()]
    frame = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    return frame.select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())


def _ranks(x: Floats, half: Floats, centre: Floats) -> Floats:
    """(3, gpus) ranks with their ends: a GPU stands behind those of its peers that are faster by more than the 95 %
    interval of such a difference, in which both may be off."""
    found = np.full((3, len(x)), np.nan)
    for own in np.unique(centre):
        mine = centre == own
        its, ranked = x[mine], np.sort(x[mine])
        found[0, mine] = np.searchsorted(ranked, its) + 1
        if np.isfinite(half[mine]).all():
            reach = np.hypot(half[mine], np.median(half[mine]))
            found[1, mine] = np.searchsorted(ranked, its - reach) + 1
            found[2, mine] = np.searchsorted(ranked, its + reach, side="right")
    return found


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
    found = [pl.DataFrame(schema={**kinds, "gpus": pl.Int64(), **dict.fromkeys(QUANTILES, pl.Float64())})]
    for figure in figures:
        sat = figure.levels.sat
        sittings = pl.DataFrame({"day": np.floor(sat.at), "gpu": sat.series, "value": sat.value})
        by_day = sittings.filter(pl.col("day") > UNKNOWN).group_by("day").agg(
            pl.col("gpu").n_unique().cast(pl.Int64).alias("gpus"),
            *(pl.col("value").quantile(q, "linear").exp().alias(name) for name, q in QUANTILES.items()),
        )  # fmt: skip
        found.append(
            by_day.select(
                pl.lit(figure.workload, pl.String).alias("workload"), pl.lit(figure.model, pl.String).alias("model"),
                (_DAY_US * pl.col("day").cast(pl.Int64)).cast(pl.Datetime("us")).alias("day"), "gpus", *QUANTILES,
            )
        )  # fmt: skip
    return pl.concat(found).sort("workload", "model", "day")
