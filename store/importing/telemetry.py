"""Turn `nvidia-smi` streams and mapped files, one reading a row, into rows of `telemetry`."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from ...errors import InputError
from ..instants import times_of_ns
from ..power_sensors import sensor_of_model
from . import happened, identity
from .content import LINE, Sheet
from .meanings import REASON_BITS, TELEMETRY_MEANINGS, Bound
from .options import Options
from .times import instant, times
from .values import further_numbers, is_placeholder, numbers, parsed

_SHARED = 8  # if one reading in this many repeats an instant, two GPUs are in one stream
_PAUSE = 3  # a gap this many times as long as the one before or after it parts two groups of readings
_OF_METRIC = {"metric", "metric_name", "field", "_field", "measurement", "_measurement"}  # what a `value` is of
_REASON = re.compile(rf"clocks_(?:event|throttle)_reasons\.({'|'.join(REASON_BITS)})")
_LOG = 3  # readings of a GPU that are a log; a loop may write a header for each
_GROUPS = 5  # so many groups of equal size are no chance


def parse(sheet: Sheet) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The readings of a sheet in the columns of `telemetry` (and LINE), and events in them.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = sheet.bound
    # Of readings without times, equal ones follow each other.
    repeated = identity.drop_duplicates(sheet, stamps=bound["timestamp"].column) if "timestamp" in bound else None
    if sheet.layout == "mapped":
        _of_one_metric(sheet)
    _join_reasons(sheet)
    metrics = sheet.metrics
    clusters = [name for name in sheet.names if name.lower() in identity.CLUSTER]
    sheet.frame = sheet.frame.select(LINE, *dict.fromkeys([*(b.column for b in bound.values()), *clusters]))
    happened.mark_lost(sheet, metrics, [b for b in bound.values() if b.meaning.kind in ("identity", "text")])
    source = identity.of_telemetry(sheet)
    identity.of_one_cluster(sheet)
    sheet.notes.append(f"the GPU is taken from {source}")
    spent = [b.column for b in bound.values() if b.meaning.kind == "identity"]
    sheet.frame = sheet.frame.drop(*spent, *clusters, "=place", "=cabinet", strict=False)  # texts take much memory
    if "timestamp" in bound:
        _time_of_lost(sheet, bound["timestamp"].column)
        times(sheet, bound["timestamp"], minus_one=False, stream=True)
        sheet.frame = sheet.frame.drop(bound["timestamp"].column)
        if repeated is not None:
            _drop_copies(sheet, repeated)
    else:
        _count_times(sheet)
    if sheet.restarts and {"gpu", "serial"}.isdisjoint(bound):
        _check_one_log(sheet)
    identity.of_the_time(sheet, "=timestamp")
    events = [happened.of_rows(sheet, "=timestamp")]
    events.append(happened.of_lost_gpus(sheet))
    sheet.refuse((pl.col("=gpu").is_null(), "nothing says which GPU it is of"))
    for item in metrics:
        numbers(sheet, [item], minus_one=False)
        sheet.frame = sheet.frame.drop(item.column)
    limits = [b for b in bound.values() if b.meaning.kind == "limit"]
    further_numbers(sheet, limits)
    lines = pl.Series(LINE, [sheet.line(key) for key in sheet.frame[LINE]], pl.Int64) if sheet.lines else LINE
    went_back = happened.set_back(
        sheet.frame.select(lines, pl.col("=gpu").alias("gpu"), pl.col("=timestamp").alias("ts"))
    )
    _refuse_second_readings(sheet)
    columns = [
        pl.col("=timestamp").alias("ts"),
        pl.col("=gpu").alias("gpu"),
        *(pl.col(f"={name}").alias(name) for name in ("uuid", "node", "slot")),
        *identity.of_board(sheet),
        *(pl.col("=parent").alias("parent") for _ in range("=parent" in sheet.frame.columns)),
        *(
            pl.col(parsed(b.meaning)).round().cast(pl.Int64).alias(b.meaning.column)
            for b in (*metrics, *limits)
            if b.meaning.name in sheet.bound
        ),
        pl.col(LINE),
    ]
    frame = sheet.frame.select(columns)
    sheet.frame = sheet.frame.clear()  # the texts are large, and no longer needed
    if "power_mw" in frame.columns:
        frame = _with_window(frame, sheet.options)
        unknown = pl.col("power_window_ms").is_null() & pl.col("power_mw").is_not_null()
        if frame.filter(unknown)["model"].is_null().any():
            sheet.notes.append("the GPU's model is not known: --model NAME says it, and so what its power sensor sees")
    frame, of_sensors = happened.marked(frame, went_back, sheet.notes)
    return frame, pl.concat([of_sensors, *(table.drop(LINE) for table in events)], how="diagonal")


def _time_of_lost(sheet: Sheet, column: str) -> None:
    """A row in which even the time says that the GPU is lost has that of the row before."""
    stamp = pl.when(~is_placeholder(column, minus_one=False)).then(column)
    if sheet.frame["=lost"].count():
        text = pl.when(pl.col("=lost").is_not_null()).then(stamp.forward_fill()).otherwise(column)
        sheet.frame = sheet.frame.with_columns(text.fill_null("").alias(column))


def _drop_copies(sheet: Sheet, repeated: pl.Series) -> None:
    """Drop those of the rows `repeated` (LINE) that have the time of an earlier reading of their GPU: duplicates."""
    is_first = pl.col("=timestamp").is_first_distinct().over("=gpu")
    copies = sheet.frame.filter(~is_first & pl.col(LINE).is_in(repeated.implode()))[LINE]
    sheet.duplicates += copies.to_list()
    sheet.frame = sheet.frame.filter(~pl.col(LINE).is_in(copies.implode()))


def _check_one_log(sheet: Sheet) -> None:
    """Refuse logs behind each other, each with its header, that are of the same time: their GPUs of the same number
    are of several hosts."""
    begin, end, ts = pl.col("begin"), pl.col("end"), pl.col("=timestamp")
    part = pl.Series("part", np.searchsorted(sheet.restarts, sheet.frame[LINE].to_numpy()))
    spans = pl.len().alias("n"), pl.col(LINE).min(), ts.min().alias("begin"), ts.max().alias("end")
    logs = sheet.frame.drop_nulls("=gpu").with_columns(part).group_by("=gpu", "part").agg(spans)
    logs = logs.filter(pl.col("n") >= _LOG).sort("=gpu", "begin", LINE)
    earlier_begin, earlier_end = begin.shift().over("=gpu"), end.shift().over("=gpu")
    overlap = (earlier_end - begin) * 2 > pl.min_horizontal(end - begin, earlier_end - earlier_begin)
    mixed = logs.with_columns(pl.col(LINE).shift().over("=gpu").alias("before")).filter(overlap & (earlier_end > begin))
    for gpu, first, second in mixed.head(1).select("=gpu", "before", LINE).iter_rows():
        raise InputError(
            f"{sheet.file}: the logs from line {min(first, second)} and from line {max(first, second)} on are of the "
            f"same time, and both have a GPU {gpu}: they are of several hosts; split the file there and give each part "
            "its --node; or summer time ended between them (--set time-zone=ZONE says where)"
        )


def _count_times(sheet: Sheet) -> None:
    """`=timestamp` of readings without times: --at, and for each further one of a GPU --every later."""
    assert sheet.options.at is not None
    position = pl.int_range(pl.len()).over("=gpu")
    (further,) = sheet.counts(position > 0)
    if further and sheet.options.every is None:
        raise InputError(f"{sheet.file} has no times: say how many seconds lie between two readings, as --every 1")
    sheet.used.update(("at", "every") if further else ("at",))
    began, step = (
        instant(sheet.options.at, sheet.options.time_zone, "--at"),
        round((sheet.options.every or 0.0) * 10**9),
    )
    sheet.frame = sheet.frame.with_columns(times_of_ns(began + position * step).alias("=timestamp"))
    sheet.notes.append(
        "its times are counted from --at in steps of --every: a pause of the tool shifts all that follow"
    )


def _of_one_metric(sheet: Sheet) -> None:
    """Refuse a long table, in which a row is one value of one metric, where it has rows of several metrics."""
    metrics = [b.column for b in sheet.metrics]
    for name in sheet.ignored():
        if len(metrics) == 1 and name.lower() in _OF_METRIC and len(texts := sheet.frame[name].unique().sort()) > 1:
            raise InputError(
                f"{sheet.file}: column {name!r} has {texts[0]!r} and {texts[1]!r}, so column {metrics[0]!r} holds "
                "several metrics; write the rows of each metric to a file of its own and import that"
            )


def _join_reasons(sheet: Sheet) -> None:
    """Bind columns of single reasons for the clock (Active, Not Active), where no column has all of them as bits."""
    reasons = {name: match[1] for name in sheet.names if (match := _REASON.fullmatch(name.lower())) is not None}
    if sheet.format or not reasons or "clock_event_reasons" in sheet.bound:
        return
    texts = {name: pl.col(name).str.to_lowercase() for name in reasons}
    known = pl.any_horizontal(text.is_in(["active", "not active"]) for text in texts.values())
    bits = pl.sum_horizontal(
        pl.when(text == "active").then(REASON_BITS[reasons[name]]).otherwise(0) for name, text in texts.items()
    )
    column = next(iter(reasons))
    sheet.frame = sheet.frame.with_columns(
        pl.when(known).then(bits.cast(pl.String)).otherwise(pl.lit("")).alias(column)
    )
    sheet.names = [name for name in sheet.names if name not in reasons or name == column]
    meaning = next(meaning for meaning in TELEMETRY_MEANINGS if meaning.name == "clock_event_reasons")
    sheet.bound[meaning.name] = Bound(meaning, column)


def _refuse_second_readings(sheet: Sheet) -> None:
    """Refuse readings of an instant that the GPU has already, and a file in which they show that GPUs are mixed."""
    first = sheet.frame.select(pl.col("=timestamp").is_first_distinct().over("=gpu")).to_series()
    again = len(first) - int(first.sum())
    if not {"gpu", "index"} & sheet.bound.keys():
        if again * _SHARED > sheet.frame.height:
            raise InputError(
                f"{sheet.file}: {again} of {sheet.frame.height} readings have the time stamp of an earlier one and "
                "nothing says which GPU they are of; query uuid as well, or say which column does with "
                "--map COLUMN=gpu"
            )
        _check_one_gpu(sheet)
    if again:
        sheet.refuse((pl.lit(~first), "it is a second reading of the same GPU at the same time"))


def _check_one_gpu(sheet: Sheet) -> None:
    """Refuse readings of several GPUs of which nothing says which is whose: a tool that reads a node's GPUs reads them
    within milliseconds, and then pauses. With --gpu, somebody says that they are of one GPU; a note tells of it."""
    if {"serial", "pci_bus_id"} & sheet.bound.keys():
        return
    if "model" in sheet.bound:
        models = sheet.frame.filter(~is_placeholder(sheet.bound["model"].column, minus_one=False))[
            sheet.bound["model"].column
        ]
        changes = (models != models.shift()).sum()
        if changes > max(1, len(models) // _SHARED):  # once may be a new driver; a few are torn lines
            names = models.unique(maintain_order=True)
            raise InputError(
                f"{sheet.file} has readings of {names[0]} and of {names[1]} in turn, and nothing says which GPU they "
                "are of; query uuid as well, or say which column does with --map COLUMN=gpu"
            )
    size = _together(sheet.frame["=timestamp"])
    if size < 2:
        return
    groups = f"the readings come in groups of {size}, as if {size} GPUs were read in turn"
    if sheet.options.gpu is None:
        raise InputError(
            f"{sheet.file}: {groups}, and nothing says which GPU they are of; query uuid as well, or say which column "
            "does with --map COLUMN=gpu; if they are all of one GPU, say --gpu NAME"
        )
    sheet.notes.append(f"{groups}; --gpu says that they are all of one")


def _together(stamps: pl.Series) -> int:
    """How many readings follow each other before each pause, where that is always the same number; else 1."""
    gaps = stamps.diff().drop_nulls().dt.total_microseconds().to_numpy()
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


def _with_window(frame: pl.DataFrame, options: Options) -> pl.DataFrame:
    """With `power_window_ms` where the model is known, from the file or the store, and its sensor has been measured."""
    models = dict(options.fleet().select("gpu", "model").iter_rows())
    sensors = {
        (gpu, model): sensor_of_model(model or models.get(gpu))
        for gpu, model in frame.select("gpu", "model").unique().iter_rows()
    }
    windows = [(*key, sensor.draw_ms) for key, sensor in sensors.items() if sensor is not None]
    schema = {"gpu": pl.String, "model": pl.String, "power_window_ms": pl.Int64}
    table = pl.DataFrame(windows, schema, orient="row")
    return frame.join(table, on=["gpu", "model"], how="left", nulls_equal=True, maintain_order="left")
