"""Where each GPU stands among its peers, figure by figure, with the interval of its level in another sitting.

A sitting is the runs of one GPU without a pause of 6 hours or more, of 24 hours at most. Its runs share what the day
brought, so the level of a GPU is the median of its sittings' medians, and how far a level moves from one sitting to
the next is learnt from all GPUs of the same model and workload that have two sittings or more. Where none has, there
is no interval: one sitting does not tell what the next one brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

PAUSE_S, LONGEST_S = 6 * 3600, 24 * 3600
"""The pause that ends a sitting, and how long it lasts at most."""
_US = 1_000_000
_EMPIRICAL, _FEWEST = 20, 3
"""Degrees of freedom from which the spread between sittings is read off as a quantile; below the second, unknown."""
_PRIOR = 4.0
"""How many degrees of freedom the fleet's spread counts when a GPU's own spread is larger."""
_PEERS = ["workload", "model"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run: the column of `Probed.runs`, its name in `fingerprints`, its unit."""

    column: str
    name: str
    unit: str
    ratio: bool = True
    """Whether peers are compared by ratio; a temperature in degrees Celsius is not."""


TIME = Measure("value", "time", "ms")


def _coded(frame: pl.DataFrame, names: Sequence[str], code: str) -> pl.DataFrame:
    """With a whole number for each combination of these columns: to group by it takes a third of the time."""
    found = pl.lit(0, pl.UInt64)
    for name in names:
        number = frame[name].cast(pl.Categorical).to_physical()
        values = int(number.max() or 0) + 2  # type: ignore[arg-type]
        found = found * values + pl.Series(number.cast(pl.UInt64) + 1).fill_null(0)
    return frame.with_columns(found.alias(code))


def in_sittings(runs: pl.DataFrame) -> pl.DataFrame:
    """`runs` (columns gpu and began) by GPU and time, with a number for each sitting as `sitting`.

    Runs of a GPU at unknown times are one sitting.
    """
    at = pl.col("began").cast(pl.Datetime("us")).dt.epoch("us")
    ordered = runs.sort("gpu", "began", nulls_last=True).with_columns(at.alias("_at"))
    other = pl.col("gpu").ne_missing(pl.col("gpu").shift())
    untimed = pl.col("_at").is_null() != pl.col("_at").is_null().shift()
    paused = (pl.col("_at") - pl.col("_at").shift()) >= PAUSE_S * _US
    begins = other | untimed.fill_null(value=False) | paused.fill_null(value=False)
    ordered = ordered.with_columns(begins.cum_sum().alias("_chain"))
    day = (pl.col("_at") - pl.col("_at").first().over("_chain")) // (LONGEST_S * _US)
    ordered = ordered.with_columns(day.fill_null(0).alias("_day"))
    new = (pl.col("_chain") != pl.col("_chain").shift()) | (pl.col("_day") != pl.col("_day").shift())
    return ordered.with_columns(new.fill_null(value=True).cum_sum().alias("sitting")).drop("_at", "_chain", "_day")


def by_sitting(runs: pl.DataFrame, measures: Sequence[Measure] = (TIME,)) -> pl.DataFrame:
    """One row a workload, GPU and sitting: workload, model, gpu, sitting, began, n, and each measure's median.

    A measure that is compared by ratio is its logarithm; what is not finite, or not above 0 there, is left out.
    """
    known = [
        (pl.when(pl.col(one.column) > 0).then(pl.col(one.column)).log() if one.ratio else pl.col(one.column))
        .cast(pl.Float64)
        .alias(one.name)
        for one in measures
    ]
    names = [one.name for one in measures]
    read = in_sittings(runs.select(*_PEERS, "gpu", "began", *known))
    read = read.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in names)
    read = _coded(read, _PEERS, "_peers").with_columns(
        (pl.col("_peers") * (read.height + 2) + pl.col("sitting")).alias("_of")
    )
    return (
        read.group_by("_of")
        .agg(
            pl.col(*_PEERS, "gpu", "sitting").first(),
            pl.col("began").min(),
            pl.len().alias("n"),
            *(pl.col(name).median() for name in names),
        )
        .drop("_of")
    )


def standing(sat: pl.DataFrame, measure: Measure = TIME) -> pl.DataFrame:
    """One row a workload and GPU that have the measure, from `by_sitting`.

    workload, model, gpu, figure, unit, value, low, high, ratio, ratio_low, ratio_high (all null where unknown; of a
    difference, `ratio` is null), rank with rank_low and rank_high (of a rank in another sitting), peers, n, sittings,
    and on the scale of the comparison (log for a ratio): x, centre, half (of the interval), spread (from sitting to
    sitting, as a standard deviation).
    """
    each = sat.filter(pl.col(measure.name).is_not_null())
    each = _coded(_coded(each, _PEERS, "_peers"), [*_PEERS, "gpu"], "_gpu")
    each = each.select(*_PEERS, "gpu", "_peers", "_gpu", "n", pl.col(measure.name).alias("x"))
    own = each.group_by("_gpu").agg(
        pl.col(*_PEERS, "gpu", "_peers").first(),
        pl.col("x").median(),
        pl.col("n").sum(),
        pl.len().alias("sittings"),
    )
    several = each.join(own.filter(pl.col("sittings") > 1).select("_gpu", "sittings", middle="x"), on="_gpu")
    k = pl.col("sittings")
    several = several.select("_peers", "_gpu", strayed=(pl.col("x") - pl.col("middle")) * (k / (k - 1)).sqrt())
    strayed = pl.col("strayed")
    pooled = several.group_by("_peers").agg(
        (pl.len() - pl.col("_gpu").n_unique()).cast(pl.Float64).alias("dof"),
        strayed.abs().quantile(0.95).alias("far"),
        (strayed.abs().median() * 1.4826).alias("usual"),
        (strayed**2).mean().sqrt().alias("rms"),
    )
    own = own.join(several.group_by("_gpu").agg((strayed**2).mean().alias("ms")), on="_gpu", how="left")
    own = own.join(pooled, on="_peers", how="left")
    dof, spread = pl.col("dof"), pl.when(pl.col("usual") > 0).then(pl.col("usual")).otherwise(pl.col("rms"))
    t = 1.96 + 2.37 / dof + 2.82 / dof**2  # the 97.5th percentile of Student's t, to a hundredth from 3 on
    reach = (
        pl.when(dof >= _EMPIRICAL)
        .then(pl.max_horizontal("far", 1.96 * spread))
        .when(dof >= _FEWEST)
        .then(t * pl.col("rms"))
    )
    # Who moves more than the fleet has the wider interval.
    free = pl.col("sittings") - 1
    stirred = (_PRIOR + free * (pl.col("ms") / pl.col("rms") ** 2).fill_null(0)) / (_PRIOR + free)
    stretch = pl.when(pl.col("rms") > 0).then(pl.max_horizontal(1.0, stirred.sqrt())).otherwise(1.0)
    own = own.with_columns(
        pl.col("x").median().over("_peers").alias("centre"),
        pl.len().over("_peers").alias("peers"),
        pl.col("x").rank("min").over("_peers").cast(pl.Int64).alias("rank"),
        (reach * stretch * (1 + 1 / pl.col("sittings")).sqrt()).alias("half"),
        pl.when(dof >= _FEWEST).then(spread).alias("spread"),
    )
    own = _ranked(own)
    ends = {"value": pl.col("x"), "low": pl.col("x") - pl.col("half"), "high": pl.col("x") + pl.col("half")}
    if measure.ratio:
        shown = {name: end.exp() for name, end in ends.items()}
        ratios = {f"ratio{name.replace('value', '')}": (end - pl.col("centre")).exp() for name, end in ends.items()}
        ratios = {name if name == "ratio" else f"ratio_{name[5:]}": value for name, value in ratios.items()}
    else:
        shown = ends
        ratios = {name: pl.lit(None, pl.Float64) for name in ("ratio", "ratio_low", "ratio_high")}
    return own.select(
        *_PEERS,
        "gpu",
        pl.lit(measure.name).alias("figure"),
        pl.lit(measure.unit).alias("unit"),
        *(value.alias(name) for name, value in (shown | ratios).items()),
        *("rank", "rank_low", "rank_high", "peers", "n", "sittings", "x", "centre", "half", "spread"),
    )


def _ranked(own: pl.DataFrame) -> pl.DataFrame:
    """With rank_low and rank_high: a GPU stands behind those whose interval ends before its own begins.

    Counted among the ends of all intervals of the peers, in the order of the scale.
    """
    low, high = pl.col("x") - pl.col("half"), pl.col("x") + pl.col("half")
    ends = pl.concat(
        [
            own.select("_peers", "_gpu", at=low, begins=pl.lit(value=True)),
            own.select("_peers", "_gpu", at=high, begins=pl.lit(value=False)),
        ]
    ).drop_nulls("at")
    ends = ends.sort("at", pl.col("begins").not_(), maintain_order=True).with_columns(
        (~pl.col("begins")).cum_sum().over("_peers").alias("ended"),
        pl.col("begins").cum_sum().over("_peers").alias("begun"),
    )
    first = ends.filter("begins").select("_gpu", (pl.col("ended") + 1).alias("rank_low"))
    last = ends.filter(~pl.col("begins")).select("_gpu", pl.col("begun").alias("rank_high"))
    for part in (first, last):
        own = own.join(part, on="_gpu", how="left")
    return own.with_columns(pl.col("rank_low", "rank_high").cast(pl.Int64))
