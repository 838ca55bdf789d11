"""Turn `nvidia-smi` streams and mapped files, one reading a row, into rows of `telemetry`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ...errors import InputError
from ..power_sensors import sensor_of_model
from . import cards, happened, identity
from .content import LINE, Sheet
from .layout import METRIC_KINDS, Bound, Layout
from .marks import marked, set_back
from .options import Options
from .stamps import times
from .values import Seen, further_numbers, is_placeholder, numbers, parsed

_SHARED = 8  # if one reading in this many repeats an instant, two GPUs are in one stream
_PAUSE = 3  # a gap this many times as long as the one before or after it parts two groups of readings
_OF_METRIC = {"metric", "metric_name", "field", "_field", "measurement", "_measurement"}  # what a `value` is of
_GROUPS = 5  # so many groups of equal size are no chance


def parse(sheet: Sheet, layout: Layout, options: Options, seen: Seen) -> tuple[pl.DataFrame, pl.DataFrame, list[int]]:
    """The readings of a sheet in the columns of `telemetry` (and LINE), events in them, the lines of duplicates.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = layout.bound
    duplicates = identity.drop_duplicates(sheet)
    if layout.name == "mapped":
        _of_one_metric(sheet, layout)
    clusters = [name for name in sheet.names if name.lower() in identity.CLUSTER]
    sheet.frame = sheet.frame.select(LINE, *dict.fromkeys([*(b.column for b in bound.values()), *clusters]))
    source = identity.of_telemetry(sheet, bound, seen, options)
    identity.of_one_cluster(sheet, seen, options)
    seen.notes.append(f"the GPU is taken from {source}")
    times(sheet, bound["timestamp"], seen, minus_one=False, stream=True, time_zone=options.time_zone)
    cards.of_the_time(sheet, "=timestamp", seen, options)
    said = happened.of_rows(sheet, options, seen)
    metrics = [b for b in bound.values() if b.meaning.kind in METRIC_KINDS]
    numbers(sheet, metrics, seen, minus_one=False)
    limits = [b for b in bound.values() if b.meaning.kind == "limit"]
    lost = further_numbers(sheet, limits, seen)
    lines = pl.Series(LINE, [sheet.line(key) for key in sheet.frame[LINE]], pl.Int64)
    went_back = set_back(sheet.frame.select(lines, pl.col("=gpu").alias("gpu"), pl.col("=timestamp").alias("ts")))
    first = pl.struct("=gpu", "=timestamp").is_first_distinct()
    (again,) = sheet.counts(~first)
    if again * _SHARED > sheet.frame.height and not {"gpu", "index"} & bound.keys():
        raise InputError(
            f"{sheet.file}: {again} of {sheet.frame.height} readings have the time stamp of an earlier one and nothing "
            f"says which GPU they are of; query uuid as well, or say which column does with --map COLUMN=gpu"
        )
    if not {"gpu", "index"} & bound.keys():
        _told_apart(sheet, bound, seen, options)
    if again:
        sheet.refuse((~first, "it is a second reading of the same GPU at the same time"))
    columns = [
        pl.col("=timestamp").alias("ts"),
        pl.col("=gpu").alias("gpu"),
        *(pl.col(f"={name}").alias(name) for name in ("uuid", "node", "slot")),
        *identity.of_board(bound, options),
        *(pl.col("=parent").alias("parent") for _ in range("=parent" in sheet.frame.columns)),
        *(_whole(b) for b in metrics),
        *(_whole(b) for b in limits if b not in lost),
        pl.col(LINE),
    ]
    frame = sheet.frame.select(columns)
    sheet.frame = sheet.frame.clear()  # the texts are large, and no longer needed
    if "power_mw" in frame.columns:
        frame = _with_window(frame, options.models())
        unknown = pl.col("power_window_ms").is_null() & pl.col("power_mw").is_not_null()
        if frame.filter(unknown)["model"].is_null().any():
            seen.notes.append("the GPU's model is not known: --model NAME says it, and so what its power sensor sees")
    frame, events = marked(frame, went_back, seen)
    return frame, pl.concat([events, said.drop(LINE)], how="diagonal"), duplicates


def _of_one_metric(sheet: Sheet, layout: Layout) -> None:
    """Refuse a long table, in which a row is one value of one metric, where it has rows of several metrics."""
    metrics = [b.column for b in layout.bound.values() if b.meaning.kind in METRIC_KINDS]
    for name in layout.ignored(sheet):
        if len(metrics) == 1 and name.lower() in _OF_METRIC and len(said := sheet.frame[name].unique().sort()) > 1:
            raise InputError(
                f"{sheet.file}: column {name!r} has {said[0]!r} and {said[1]!r}, so column {metrics[0]!r} holds "
                "several metrics; write the rows of each metric to a file of its own and import that"
            )


def _told_apart(sheet: Sheet, bound: dict[str, Bound], seen: Seen, options: Options) -> None:
    """Refuse readings of several GPUs of which nothing says which is whose: a tool that reads a node's GPUs reads them
    within milliseconds, and then pauses. With --gpu, somebody says that they are of one GPU; a note tells of it."""
    boards = [bound[key].column for key in ("serial", "pci_bus_id") if key in bound]
    if any(sheet.counts(*(~is_placeholder(name, minus_one=False) for name in boards))):
        return
    nodes = sheet.frame["=node"].drop_nulls().unique(maintain_order=True)
    if len(nodes) > 1:
        raise InputError(
            f"{sheet.file} has readings of node {nodes[0]} and of node {nodes[1]}, and nothing says which GPU they are "
            "of; say which column does with --map COLUMN=gpu, or COLUMN=index if it numbers the GPUs of a node"
        )
    if "model" in bound:
        models = sheet.frame.filter(~is_placeholder(bound["model"].column, minus_one=False))[bound["model"].column]
        if (models != models.shift()).sum() > 1:  # once may be a new driver, which calls the card otherwise
            names = models.unique(maintain_order=True)
            raise InputError(
                f"{sheet.file} has readings of {names[0]} and of {names[1]} in turn, and nothing says which GPU they "
                "are of; query uuid as well, or say which column does with --map COLUMN=gpu"
            )
    size = _together(sheet.frame["=timestamp"])
    if size < 2:
        return
    what = f"the readings come in groups of {size}, as if {size} GPUs were read in turn"
    if options.gpu is None:
        raise InputError(
            f"{sheet.file}: {what}, and nothing says which GPU they are of; query uuid as well, or say which column "
            "does with --map COLUMN=gpu; if they are all of one GPU, say --gpu NAME"
        )
    seen.notes.append(f"{what}; --gpu says that they are all of one")


def _together(times: pl.Series) -> int:
    """How many readings follow each other before each pause, where that is always the same number; else 1."""
    gaps = times.diff().drop_nulls().dt.total_microseconds().to_numpy()
    if len(gaps) < 2 * _GROUPS:
        return 1
    padded = np.concatenate([gaps[1:2], gaps, gaps[-2:-1]])
    pauses = np.flatnonzero(gaps > _PAUSE * np.minimum(padded[:-2], padded[2:]))
    sizes = np.diff(pauses)
    if len(sizes) < _GROUPS:
        return 1
    size = int(np.median(sizes))
    even = (sizes == size).mean() > 0.9 and pauses[0] < 2 * size and len(gaps) - pauses[-1] < 2 * size
    return size if even else 1


def _with_window(frame: pl.DataFrame, models: Mapping[str, str]) -> pl.DataFrame:
    """With `power_window_ms` where the model is known, from the file or the store, and its sensor has been measured."""
    said = frame.select("gpu", "model").unique()
    known = {(gpu, model): sensor_of_model(model or models.get(gpu)) for gpu, model in said.iter_rows()}
    windows = [(*key, sensor.draw_ms) for key, sensor in known.items() if sensor is not None]
    schema = {"gpu": pl.String, "model": pl.String, "power_window_ms": pl.Int64}
    table = pl.DataFrame(windows, schema, orient="row")
    return frame.join(table, on=["gpu", "model"], how="left", nulls_equal=True, maintain_order="left")


def _whole(bound: Bound) -> pl.Expr:
    """The parsed numbers of a column as whole numbers."""
    return pl.col(parsed(bound.meaning)).round().cast(pl.Int64).alias(bound.meaning.column)
