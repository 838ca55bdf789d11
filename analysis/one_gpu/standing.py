"""Where a GPU stands among its peers, figure by figure: its fingerprint beside the quantiles of the GPUs of its model.

The rows are those of `fingerprints`: the newest that were stored. Where none were, they are computed for a cluster of
few runs; for one of many, that takes longer than a page may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ..runs.probing import probed
from ..statistics.ordering import PROBABILITIES
from ..verdicts.fingerprint import CLASSES, Alike, Neighbour, computed

if TYPE_CHECKING:
    from ...store import Store

COMPUTED_RUNS = 50_000
"""Up to so many runs of a cluster, a page that must come at once computes fingerprints that nobody stored."""
_OF = ("model", "class", "workload", "figure", "unit")
_ENDS = tuple(f"{column}_{100 * q:g}" for column in ("value", "ratio") for q in PROBABILITIES)
Five = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Standing:
    """One figure of a GPU beside its peers. None where it is unknown."""

    of: str
    """The class: compute, memory, power, latency, path or other."""
    workload: str | None
    """None: the whole class, or the GPU."""
    figure: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    """95 % interval of the value in another sitting."""
    off_pct: float | None
    """From the level of its peers; None for what has no ratio, such as a count."""
    off_low_pct: float | None
    off_high_pct: float | None
    rank: int | None
    """From the lowest value, 1."""
    peers: int | None
    """GPUs compared, itself included."""
    n: int
    """Its runs."""
    sittings: int | None
    band: Five | None
    """The 5, 25, 50, 75 and 95 % quantiles of the values of all GPUs of its model; None where it is alone."""
    band_pct: Five | None
    """The same of `off_pct`."""
    gpus: int
    """How many GPUs these are of."""
    runs: tuple[str, ...]
    """Ids of the newest runs behind it."""


@dataclass(frozen=True)
class Figures:
    """The fingerprints of a cluster, as far as every GPU's page needs them."""

    cluster: str
    made_at: datetime | None
    """When they were stored, UTC; None: they were computed now."""
    bands: pl.DataFrame
    """By model, class, workload, figure and unit: gpus, and the quantiles of value and ratio."""
    rows: pl.DataFrame | None = field(repr=False, default=None)
    """Those of all GPUs, where they were computed now; else they are read when they are needed."""


def figures(store: Store, cluster: str, most_runs: float | None = None) -> Figures | None:
    """The fingerprints of a cluster; None where none are stored, and there are no runs, or more than `most_runs`
    (`COMPUTED_RUNS` where not given)."""
    of_cluster = store.scan("fingerprints").filter(pl.col("cluster") == cluster)
    made_at: datetime | None = store.collect(of_cluster.select(pl.col("made_at").max())).item()
    if made_at is not None:
        return Figures(cluster, made_at, store.collect(_bands(_made(store, cluster, made_at))))
    count = store.collect(store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())).item()
    if not 0 < count <= (COMPUTED_RUNS if most_runs is None else most_runs):
        return None

    rows, *_ = computed(store, probed(store, cluster=cluster, every=True))
    return Figures(cluster, None, _bands(rows.lazy()).collect(), rows)


def standings(store: Store, figures_of: Figures, gpu: str) -> list[Standing]:
    """Every figure of a GPU. By class, workload (the class itself first) and figure."""
    of_gpu = store.collect(_rows(store, figures_of).filter(pl.col("gpu") == gpu))
    beside = of_gpu.join(figures_of.bands, on=list(_OF), how="left", nulls_equal=True)
    listed = [_standing(row) for row in beside.iter_rows(named=True)]
    order = {name: place for place, name in enumerate(CLASSES)}
    return sorted(
        listed, key=lambda standing: (order.get(standing.of, len(order)), standing.workload or "", standing.figure)
    )


def alike(store: Store, figures_of: Figures) -> Alike:
    """Which GPUs of a cluster are like which."""
    return Alike.of(store.collect(_rows(store, figures_of).select("gpu", "model", "workload", "figure", "ratio")))


def neighbours(fingerprints: Alike, gpu: str, names: Mapping[str, str]) -> list[Neighbour]:
    """The GPUs of its model that are most like a GPU, the nearest first."""
    return fingerprints.nearest(gpu, names)


def times(stands: Iterable[Standing]) -> list[Standing]:
    """Those of times in a workload that have peers: the one in which the GPU is slowest first."""
    listed = [standing for standing in stands if standing.figure == "time" and standing.workload is not None]
    return sorted(listed, key=lambda standing: -(standing.off_pct if standing.off_pct is not None else float("-inf")))


def _rows(store: Store, figures_of: Figures) -> pl.LazyFrame:
    if figures_of.rows is not None:
        return figures_of.rows.lazy()
    assert figures_of.made_at is not None
    return _made(store, figures_of.cluster, figures_of.made_at)


def _made(store: Store, cluster: str, made_at: datetime) -> pl.LazyFrame:
    return store.scan("fingerprints").filter((pl.col("cluster") == cluster) & (pl.col("made_at") == made_at))


def _bands(rows: pl.LazyFrame) -> pl.LazyFrame:
    quantiles = (
        pl.col(column).filter(pl.col(column).is_finite()).quantile(q, "linear").alias(f"{column}_{100 * q:g}")
        for column in ("value", "ratio")
        for q in PROBABILITIES
    )
    return rows.group_by(_OF).agg(pl.len().alias("gpus"), *quantiles)


def _standing(row: Mapping[str, Any]) -> Standing:
    ratios = ("ratio", "ratio_low", "ratio_high")
    off = [None if row[name] is None else 100 * (row[name] - 1) for name in ratios]
    value = [row[name] for name in _ENDS[:5]]
    ratio = [None if row[name] is None else 100 * (row[name] - 1) for name in _ENDS[5:]]
    alone = (row["gpus"] or 0) < 2
    return Standing(
        row["class"], row["workload"], row["figure"], row["unit"] or "", row["value"], row["low"], row["high"],
        off[0], off[1], off[2], row["rank"], row["peers"], row["n"] or 0, row["sittings"],
        None if alone else _five(value), None if alone else _five(ratio), row["gpus"] or 0,
        tuple(row["evidence"] or ()),
    )  # fmt: skip


def _five(values: Sequence[float | None]) -> Five | None:
    finite = [float(value) for value in values if value is not None]
    return (finite[0], finite[1], finite[2], finite[3], finite[4]) if len(finite) == len(PROBABILITIES) else None


_LISTED = (
    "of", "workload", "figure", "unit", "value", "low", "high", "off_pct", "off_low_pct", "off_high_pct", "rank",
    "peers", "n", "sittings",
)  # fmt: skip


def frame(stands: Sequence[Standing]) -> pl.DataFrame:
    """The figures as a table: the fields of `Standing`, with low_pct and high_pct of the bands (5 and 95 %)."""
    rows = []
    for standing in stands:
        low, *_, high = standing.band or (None, None)
        rows.append({name: getattr(standing, name) for name in _LISTED} | {"band_low": low, "band_high": high})
    texts = dict.fromkeys(("of", "workload", "figure", "unit"), pl.String())
    numbers = ("value", "low", "high", "off_pct", "off_low_pct", "off_high_pct", "band_low", "band_high")
    counts = dict.fromkeys(("rank", "peers", "n", "sittings"), pl.Int64())
    return pl.DataFrame(rows, schema={**texts, **dict.fromkeys(numbers, pl.Float64()), **counts})
