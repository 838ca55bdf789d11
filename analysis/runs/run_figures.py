"""Runs with their figures and their GPUs, in the order of time: what `probing` reads of a store of any size.

A large fleet has millions of runs, so everything goes by numbers of runs and GPUs and not by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from ...store import Store

FIGURES = (
    "time_median", "time_low", "time_high", "rate", "operation_rate", "bandwidth", "latency", "energy", "efficiency",
    "wrong_elements", "checked_elements",
)  # fmt: skip
"""Figures of a run that become columns."""


def in_time(runs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """`runs` by `began` and `gpu`, those without a time last, with the columns of their GPU. It empties `runs`."""
    # Numbers are sorted and joined several times as fast as names.
    known = gpus.with_row_index("row").drop_nulls("gpu").sort("gpu")
    gpu = runs["gpu"].cast(pl.Enum(known["gpu"])).to_physical()
    # One whole number for both keys is sorted several times as fast as the two.
    times = runs["began"].cast(pl.Int64).rank("dense").cast(pl.Int64)
    key = times.fill_null(runs.height + 1).to_numpy() * (known.height + 1) + gpu.fill_null(known.height).to_numpy()
    order = pl.Series(np.argsort(key, kind="stable"))
    # Column by column, as a second copy of all the runs of a large fleet does not fit beside the first; and all columns
    # without a value are one in memory.
    nothing: dict[pl.DataType, pl.Series] = {}

    def placed(column: pl.Series, rows: pl.Series) -> pl.Series:
        if column.null_count() < len(column):
            return column.rechunk().gather(rows)
        if column.dtype not in nothing:
            nothing[column.dtype] = pl.repeat(None, len(rows), dtype=column.dtype, eager=True)
        return nothing[column.dtype].alias(column.name)

    place = pl.select(known["row"].alias("row")).select(pl.col("row").gather(gpu.gather(order)))["row"]
    del times, key, gpu
    of_runs = [placed(runs.drop_in_place(name), order) for name in runs.columns]
    return pl.DataFrame([*of_runs, *(placed(column, place) for column in gpus.drop("gpu"))])


def figures(
    store: Store, run_ids: pl.Series, *, gpus: Collection[str] | None = None, names: Sequence[str] = FIGURES
) -> pl.DataFrame:
    """A row for each run: the figures `names`, and of the repeats the median time and their number. `gpus`: those of
    the runs, where these are few, so that no others' rows are read."""
    results, figure = store.scan("results", gpus), pl.col("figure")
    results = results if gpus is None else results.filter(pl.col("gpu").is_in(list(gpus)))
    rows = results.select("run_id", "figure", "value")
    rows = rows if gpus is None else store.collect(rows).lazy()  # these few are read once
    single = with_run_numbers(store.collect(rows.filter(figure.is_in(list(names)))), run_ids)
    parts = single.partition_by("figure", as_dict=True)
    nothing = single.clear()
    found = [_placed(parts.get((name,), nothing), "value", len(run_ids)).alias(name) for name in names]
    times = with_run_numbers(store.collect(rows.filter(figure == "time").drop("figure")), run_ids)
    times = times.with_columns(pl.lit(1, pl.Int64).alias("repeats"))
    if times["number"].n_unique() < times.height:
        times = times.group_by("number").agg(pl.col("value").median(), pl.col("repeats").sum())
    known = single.select("number", pl.lit(0, pl.Int64).alias("none")).unique("number")
    found.append(_placed(times, "value", len(run_ids)).alias("time"))
    repeats = (_placed(times, "repeats", len(run_ids)), _placed(known, "none", len(run_ids)))
    return pl.DataFrame(found).with_columns(pl.coalesce(*repeats).alias("repeats"))


def with_run_numbers(rows: pl.DataFrame, run_ids: pl.Series) -> pl.DataFrame:
    """Rows of `results` with the number of their run in `run_ids`, without those of other runs."""
    if rows.height == len(run_ids) and (rows["run_id"] == run_ids).all():  # as an import writes them
        return rows.with_row_index("number").drop("run_id")
    numbers = pl.DataFrame({"run_id": run_ids}).with_row_index("number")
    return rows.join(numbers, on="run_id", maintain_order="left").drop("run_id")


def _placed(rows: pl.DataFrame, name: str, runs: int) -> pl.Series:
    """(runs,) a column in the order of the runs; of several rows of a run the first, null where it has none."""
    if rows.is_empty():
        return pl.repeat(None, runs, dtype=rows.schema[name], eager=True)
    numbers = rows["number"].to_numpy()
    place = np.full(runs, rows.height)
    place[numbers[::-1]] = np.arange(rows.height)[::-1]
    column = rows[name]
    return column.extend_constant(None, 1)[place]
