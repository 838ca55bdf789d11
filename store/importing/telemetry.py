"""Turn `nvidia-smi` streams and mapped files, one reading a row, into rows of `telemetry`."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ...errors import InputError
from ..events import EventKind
from ..power_sensors import sensor_of_model
from ..schema import TELEMETRY
from . import identity
from .content import LINE, Sheet
from .layout import METRIC_KINDS, Layout, Options
from .stamps import times
from .values import Seen, numbers, parsed

_SHARED = 8  # if one reading in this many repeats an instant, two GPUs are in one stream

# A power sensor is called stuck where its reading never moves over this many readings and seconds while
# temperature or utilisation moves this much. (A sensor period is at most about 0.1 s.)
_STUCK = "power_stuck"  # the mark in `telemetry.quality`
_STUCK_READINGS, _STUCK_SECONDS, _MOVED_KELVIN, _MOVED_PERCENT = 100, 10, 3, 20


def parse(sheet: Sheet, layout: Layout, options: Options, seen: Seen) -> tuple[pl.DataFrame, pl.DataFrame, list[int]]:
    """The readings of a sheet in the columns of `telemetry` (and LINE), events in them, the lines of duplicates.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = layout.bound
    duplicates = identity.drop_duplicates(sheet, identity.row_texts(sheet))
    source = identity.of_telemetry(sheet, bound, seen, options)
    seen.notes.append(f"the GPU is taken from {source}")
    times(sheet, bound["timestamp"], seen, minus_one=False, stream=True, time_zone=options.time_zone)
    metrics = [b for b in bound.values() if b.meaning.kind in METRIC_KINDS]
    numbers(sheet, metrics, seen, minus_one=False)
    first = pl.struct("=gpu", "=timestamp").is_first_distinct()
    (again,) = sheet.counts(~first)
    if again * _SHARED > sheet.frame.height and not {"gpu", "index"} & bound.keys():
        raise InputError(
            f"{sheet.file}: {again} of {sheet.frame.height} readings have the time stamp of an earlier one and nothing "
            f"says which GPU they are of; query uuid as well, or say which column does with --map COLUMN=gpu"
        )
    if again:
        sheet.refuse((~first, "it is a second reading of the same GPU at the same time"))
    columns = [
        pl.col("=timestamp").alias("ts"),
        pl.col("=gpu").alias("gpu"),
        pl.col("=uuid").alias("uuid"),
        *identity.of_board(bound, options),
        *(pl.col(parsed(b.meaning)).round().cast(_kind(b.meaning.column)).alias(b.meaning.column) for b in metrics),
        pl.col(LINE),
    ]
    frame = sheet.frame.select(columns)
    if "power_mw" in frame.columns:
        frame = _with_window(frame, options.models())
        if frame.filter(pl.col("power_window_ms").is_null())["model"].is_null().any():
            seen.notes.append("the GPU's model is not known: --model NAME says it, and so what its power sensor sees")
    frame, events = _stuck(frame, seen)
    return frame, events, duplicates


def _with_window(frame: pl.DataFrame, models: Mapping[str, str]) -> pl.DataFrame:
    """With `power_window_ms` where the model is known, from the file or the store, and its sensor has been measured."""
    said = frame.select("gpu", "model").unique()
    known = {(gpu, model): sensor_of_model(model or models.get(gpu)) for gpu, model in said.iter_rows()}
    windows = [(*key, sensor.draw_ms) for key, sensor in known.items() if sensor is not None]
    schema = {"gpu": pl.String, "model": pl.String, "power_window_ms": pl.Int32}
    table = pl.DataFrame(windows, schema, orient="row")
    return frame.join(table, on=["gpu", "model"], how="left", nulls_equal=True, maintain_order="left")


def _kind(column: str) -> type[pl.Int32] | type[pl.Int64]:
    types = {c.name: c.type for c in TELEMETRY.columns}
    return pl.Int64 if types[column] == "BIGINT" else pl.Int32


def _stuck(frame: pl.DataFrame, seen: Seen) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Mark the rows of GPUs whose power reading is stuck; their power must not be counted as energy."""
    none = pl.DataFrame(schema={"ts": pl.Datetime("ns"), "gpu": pl.String, "kind": pl.String, "detail": pl.String})
    frame = frame.with_columns(pl.lit(None, pl.String).alias("quality"))
    if "power_mw" not in frame.columns or not frame.height:
        return frame, none
    moved = [
        (pl.col(c).max() - pl.col(c).min() >= least).fill_null(False)
        for c, least in (("temperature_c", _MOVED_KELVIN), ("utilization", _MOVED_PERCENT))
        if c in frame.columns
    ]
    if not moved:
        return frame, none
    by_gpu = frame.group_by("gpu").agg(
        pl.col("ts").min().alias("ts"),
        pl.col("power_mw").n_unique().alias("values"),
        pl.col("power_mw").first().alias("power"),
        pl.col("power_mw").count().alias("readings"),
        (pl.col("ts").max() - pl.col("ts").min()).dt.total_seconds().alias("seconds"),
        pl.any_horizontal(moved).alias("moved"),
    )
    stuck = by_gpu.filter(
        (pl.col("values") == 1)
        & (pl.col("readings") >= _STUCK_READINGS)
        & (pl.col("seconds") >= _STUCK_SECONDS)
        & pl.col("moved")
    )
    if not stuck.height:
        return frame, none
    detail = pl.format(
        "all {} power readings over {} s are {} W while temperature or utilisation changed: do not use them for energy",
        "readings",
        "seconds",
        pl.col("power") / 1000,
    )
    events = stuck.select(
        "ts",
        "gpu",
        pl.lit(EventKind.STUCK_SENSOR.value).alias("kind"),
        pl.lit(_STUCK).alias("quality"),
        pl.col("power").cast(pl.Float64).alias("value"),
        (pl.col("seconds") * 10**9).alias("duration_ns"),
        detail.alias("detail"),
    )
    seen.notes.extend(f"{gpu}: power sensor stuck: {text}" for gpu, text in events.select("gpu", "detail").iter_rows())
    mark = pl.when(pl.col("gpu").is_in(stuck["gpu"].to_list())).then(pl.lit(_STUCK))
    return frame.with_columns(mark.alias("quality")), events
