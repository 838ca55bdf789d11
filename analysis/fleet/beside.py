"""All GPUs of a cluster beside each other in one workload: their levels, their figures, which of them a brush holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import polars as pl

from ...store.catalog import quoted
from ..verdicts.compare import LEAST_GPUS
from .side_by_side import labels, side_by_side

if TYPE_CHECKING:
    from ...store import Store
    from ..runs.probing import Probed

_IDENTITY = ("gpu", "name", "node", "cabinet", "slot", "model", "vbios", "driver")
_OF_TIMES = ("time", "sm_clock", "power")  # figures of a fingerprint that `MEASURED` has


@dataclass(frozen=True)
class Beside:
    """The GPUs of a cluster in one workload."""

    rows: pl.DataFrame
    """One row a GPU of the cluster, by cabinet, node and slot: gpu, name, label (a short name), node, cabinet, slot,
    model, vbios, driver, and the columns of `fleet.side_by_side`; null where the GPU did not run it."""
    runs: int
    began: datetime | None
    ended: datetime | None
    """When the first and the last run began."""
    notes: tuple[str, ...]
    """What these runs cannot say, in sentences."""

    @property
    def measured(self) -> int:
        """GPUs that ran it."""
        return int((self.rows["n"] > 0).sum())


def beside(runs: Probed) -> Beside:
    """The GPUs of a cluster in one workload, from its runs of one campaign or of all (`runs_of`)."""
    found = side_by_side(runs).drop("workload", "node", "cabinet")
    gpus = runs.gpus.select(_IDENTITY).with_columns(
        pl.Series("label", list(labels(runs.gpus).values()), dtype=pl.String)
    )
    rows = gpus.join(found, on="gpu", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(pl.Float64).cast(pl.Float32), pl.col("n", "sittings").fill_null(0).cast(pl.Int32))
    first, last = runs.runs.select(pl.col("began").min().alias("a"), pl.col("began").max().alias("b")).row(0)
    return Beside(rows, runs.trusted.height, first, last, tuple(_notes(rows)))


def _notes(rows: pl.DataFrame) -> Iterable[str]:
    ran = rows.filter(pl.col("n") > 0)
    if (left := rows.height - ran.height) > 0:
        yield f"{left:,} of {rows.height:,} GPUs have no sound run of it, and are shown as n/a."
    for model, n in ran.group_by("model").len().sort("model").iter_rows():
        if n < LEAST_GPUS:
            yield f"Only {n} GPU{'' if n == 1 else 's'} of {model or 'an unknown model'}: too few to tell who differs."
    if ran["time"].is_null().all():
        yield "These runs measure no time: look at power, clock or temperature."
    elif ran["n"].max() == 1:
        yield "Each GPU ran it once, so nobody knows how far a figure repeats: there are no intervals. Measure again."
    elif ran["time_low"].is_null().all():
        yield "Too few GPUs ran it twice to know how far a figure repeats: there are no intervals."


# -- figures of the fingerprint ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """A figure of the stored fingerprints."""

    figure: str
    workload: str | None
    """None: it is of the GPU, whatever it runs."""
    unit: str


def printed(store: Store, cluster: str, workload: str) -> tuple[Printed, ...]:
    """The figures of the newest stored fingerprints, besides times, clocks and power: those of a workload, and those
    of a GPU. Of a figure that is known in other workloads only, the one that most GPUs have."""
    query = (
        f"SELECT figure, workload, unit, count(*) AS n FROM fingerprints_now WHERE cluster = {quoted(cluster)} "
        f"AND value IS NOT NULL AND figure NOT IN {_OF_TIMES} GROUP BY ALL"
    )
    known = store.sql(query).polars()
    own = (pl.col("workload") == workload).fill_null(value=False)
    first = known.sort("figure", own, "n", "workload", descending=[False, True, True, False], nulls_last=True)
    one = first.unique("figure", keep="first", maintain_order=True)
    return tuple(Printed(*row) for row in one.select("figure", "workload", "unit").iter_rows())


def of_print(store: Store, cluster: str, one: Printed) -> pl.DataFrame:
    """A figure of the stored fingerprints: gpu, and named after the figure its value, `_n` (runs), and `_apart`: how
    far it is from the median of the GPUs of the same model, in % where the figure has ratios, else in its unit. Value
    and `_apart` with `_low` and `_high`, the 95 % interval in another sitting; null where it is not known.
    """
    of = "IS NULL" if one.workload is None else f"= {quoted(one.workload)}"
    rows = store.sql(
        "SELECT gpu, model, value, low AS value_low, high AS value_high, ratio, n FROM fingerprints_now "
        f"WHERE cluster = {quoted(cluster)} AND figure = {quoted(one.figure)} AND workload {of}"
    ).polars()
    middle = pl.col("value").median().over("model")
    ratio = pl.col("ratio").is_not_null().any() & (middle > 0)

    def apart(name: str) -> pl.Expr:
        return pl.when(ratio).then(100 * (pl.col(name) / middle - 1)).otherwise(pl.col(name) - middle)

    ends = ("", "_low", "_high")
    rows = rows.with_columns(apart(f"value{end}").alias(f"apart{end}") for end in ends)
    shown = rows.select(
        "gpu",
        *(pl.col(f"value{end}").alias(f"{one.figure}{end}") for end in ends),
        *(pl.col(f"apart{end}").alias(f"{one.figure}_apart{end}") for end in ends),
        pl.col("n").alias(f"{one.figure}_n"),
    )
    return shown.with_columns(pl.col(pl.Float64).cast(pl.Float32))


def is_ratio(store: Store, cluster: str, one: Printed) -> bool:
    """Whether `apart` of `of_print` is in per cent."""
    query = (
        f"SELECT count(ratio) > 0 AS yes FROM fingerprints_now WHERE cluster = {quoted(cluster)} AND "
        f"figure = {quoted(one.figure)}"
    )
    return bool(store.sql(query).polars().item())


# -- a brush ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """The values of a column between two ends, which belong to it."""

    column: str
    low: float
    high: float


def held(rows: pl.DataFrame, ranges: Sequence[Range], places: Sequence[tuple[str, str]]) -> pl.Series:
    """Which rows a brush holds, as booleans: those within every range, and at one of the places where there are some.

    `places`: a column (cabinet or node) and its value. A row whose value is missing is in no range. What names no
    column holds nothing back.
    """
    tests = [
        pl.col(one.column).is_between(one.low, one.high).fill_null(value=False)
        for one in ranges
        if one.column in rows.columns and rows.schema[one.column].is_numeric()
    ]
    by_column: dict[str, list[str]] = {}
    for column, value in places:
        if column in ("cabinet", "node"):
            by_column.setdefault(column, []).append(value)
    if by_column:
        at = [pl.col(column).is_in(values).fill_null(value=False) for column, values in by_column.items()]
        tests.append(pl.any_horizontal(at))
    if not tests:
        return pl.repeat(value=True, n=rows.height, eager=True).alias("held")
    return rows.select(pl.all_horizontal(tests).alias("held"))["held"]
