"""Where each GPU stands among its peers, figure by figure, as tables: of the levels and comparisons of the model.

`peer_levels` is what is stored of them with a judgement, so that one GPU can be explained without judging all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from ...store.schema import LEVELS
from ..runs.sittings import UNKNOWN, Floats
from ..statistics.spread import PROBABILITIES
from .model import Figure, Model
from .verdict import PeerLevels

_DAY_US = 86_400_000_000
_QUANTILES = {f"time_{100 * q:g}_ms": q for q in PROBABILITIES}
"""The columns of `day_levels` with quantiles of times, and which ones these are."""
_RATIOS = ("ratio", "ratio_low", "ratio_high")
_RANKS = ("rank", "rank_low", "rank_high")
_SCHEMA = (
    dict.fromkeys(("workload", "model", "gpu", "figure", "unit"), pl.String())
    | dict.fromkeys(("value", "low", "high", *_RATIOS, "moved", "within_pct"), pl.Float64())
    | dict.fromkeys((*_RANKS, "peers", "n", "sittings", "within_freedom"), pl.Int64())
)


def table(figures: Iterable[Figure], gpus: Sequence[str]) -> pl.DataFrame:
    """One row a figure and GPU that has it: workload, model, gpu, figure, unit, value, low, high, ratio, ratio_low,
    ratio_high (all null where unknown; of a difference, `ratio` is null), rank with rank_low and rank_high (of a rank
    in another sitting, among the peers), peers, n, sittings, moved (variance of its own sittings), and within_pct with
    within_freedom (standard deviation of its runs within sittings and its degrees of freedom)."""
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *(_rows(figure, gpus) for figure in figures)])


def _rows(figure: Figure, gpus: Sequence[str]) -> pl.DataFrame:
    channel, levels = figure.channel, figure.levels
    ratio = channel is None or channel.log
    on = np.flatnonzero(levels.known)
    x, half, off = levels.level[on], figure.half[on], figure.effect[on]
    strayed = levels.sat.value - levels.steps - levels.level[levels.sat.series]
    moved = np.bincount(levels.sat.series, strayed**2, levels.sat.count) / np.maximum(levels.sittings - 1, 1)
    columns: dict[str, object] = {
        "workload": figure.workload,
        "model": figure.model,
        "gpu": [gpus[gpu] for gpu in on.tolist()],
        "figure": figure.name.replace(" ", "_"),
        "unit": "ms" if channel is None else channel.unit,
        "peers": figure.peers[on],
        "n": levels.runs[on],
        "sittings": levels.sittings[on],
        "moved": np.where(levels.sittings > 1, moved, np.nan)[on],
        "within_pct": 100 * levels.within[on],
        "within_freedom": levels.within_freedom[on],
    }
    for name, of_ratio, side in zip(("value", "low", "high"), _RATIOS, (0, -1, 1), strict=True):
        value, apart = (x + side * half, off + side * half) if side else (x, off)
        columns[name] = np.exp(value) if ratio else value
        columns[of_ratio] = np.exp(apart) if ratio else np.full(len(on), np.nan)
    columns |= zip(_RANKS, _ranks(x, half, figure.centre[on]), strict=True)
    rows = pl.DataFrame(columns).with_columns(pl.col(pl.Float64).fill_nan(None))
    if channel is not None and channel.unit == "share":  # a normal interval can reach beyond what a share can be
        rows = rows.with_columns(pl.col("low", "high").clip(0.0, 1.0))
    return rows.select(pl.col(name).cast(kind) for name, kind in _SCHEMA.items())


def _ranks(x: Floats, half: Floats, centre: Floats) -> Floats:
    """(3, gpus) ranks with their ends: a GPU stands behind those of its peers that are faster by more than the 95 %
    interval of such a difference, in which both may be off."""
    ranks = np.full((3, len(x)), np.nan)
    for level in np.unique(centre):
        peers = centre == level
        values, ranked = x[peers], np.sort(x[peers])
        ranks[0, peers] = np.searchsorted(ranked, values) + 1
        if np.isfinite(half[peers]).all():
            reach = np.hypot(half[peers], np.median(half[peers]))
            ranks[1, peers] = np.searchsorted(ranked, values - reach) + 1
            ranks[2, peers] = np.searchsorted(ranked, values + reach, side="right")
    return ranks


def with_peers(rows: pl.DataFrame, *names: str) -> pl.DataFrame:
    """Rows of `table` whose ratios, and what else is named, are null where a GPU is alone: it is like no other one."""
    alone = pl.col("peers") < 2
    return rows.with_columns(pl.when(~alone).then(pl.col(name)).alias(name) for name in (*_RATIOS, *names))


def peer_levels(model: Model) -> PeerLevels:
    """The levels of all times, of workloads that could not be judged too: what is stored with a judgement."""
    rows = with_peers(table(model.times, model.gpus)).with_columns((100 * pl.col("moved").sqrt()).alias("between_pct"))
    rows = rows.rename({"value": "time_ms", "low": "low_ms", "high": "high_ms"}).select(LEVELS.names[3:])
    return PeerLevels(rows, _days(model.times))


def _days(figures: Iterable[Figure]) -> pl.DataFrame:
    """The quantiles of the sittings of each day."""
    kinds: dict[str, pl.DataType] = {"workload": pl.String(), "model": pl.String(), "day": pl.Datetime("us")}
    by_figure = [pl.DataFrame(schema={**kinds, "gpus": pl.Int64(), **dict.fromkeys(_QUANTILES, pl.Float64())})]
    for figure in figures:
        sat = figure.levels.sat
        sittings = pl.DataFrame({"day": np.floor(sat.at), "gpu": sat.series, "value": sat.value})
        by_day = sittings.filter(pl.col("day") > UNKNOWN).group_by("day").agg(
            pl.col("gpu").n_unique().cast(pl.Int64).alias("gpus"),
            *(pl.col("value").quantile(q, "linear").exp().alias(name) for name, q in _QUANTILES.items()),
        )  # fmt: skip
        by_figure.append(
            by_day.select(
                pl.lit(figure.workload, pl.String).alias("workload"), pl.lit(figure.model, pl.String).alias("model"),
                (_DAY_US * pl.col("day").cast(pl.Int64)).cast(pl.Datetime("us")).alias("day"), "gpus", *_QUANTILES,
            )
        )  # fmt: skip
    return pl.concat(by_figure).sort("workload", "model", "day")
