"""Rows of runs, one a run: sheets become `runs`, `results` and `gpus`."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import polars as pl

from . import identity, timeunit
from .content import LINE, Sheet
from .layout import Bound, Layout, Options
from .meanings import CONDITIONS
from .values import Seen, is_placeholder, numbers, parsed, times

_WORKLOAD = r"^[A-Za-z][A-Za-z0-9_.+/ -]{0,63}$"
_TRAINING = ("resnet", "bert", "vgg", "gpt", "llama", "train", "dcgan", "pointnet", "transformer")
# A duration a thousand times its workload's median is a damaged number, not a slow GPU (the worst published is 3.6).
_BELIEVABLE = 1000.0


@dataclass
class Runs:
    """The parsed runs: `frame` has the columns of `runs`, `gpus` and the value; counts by workload."""

    frame: pl.DataFrame
    duplicates: list[int]  # line numbers


def parse(sheet: Sheet, layout: Layout, options: Options, seen: Seen) -> Runs:
    """The runs of a sheet. Rows that cannot be believed are refused in the sheet. Raises InputError."""
    bound = layout.bound
    duplicates = identity.drop_duplicates(sheet)
    if options.gpu is not None and ("gpu" in bound or "slot" in bound):
        seen.notes.append("the file names its GPUs itself: --gpu is not used")
    _workload(sheet, bound, options)
    identity.of_runs(sheet, bound, seen, given=options.gpu, mapped=layout.name == "mapped")
    for key, item in bound.items():
        if item.meaning.kind == "number":
            numbers(sheet, item, seen, minus_one=True, required=key == "time")
            _within_own_limits(sheet, item)
    if "began" in bound:
        times(sheet, bound["began"], seen, minus_one=True, required=False, time_zone=options.time_zone)
    sheet.refuse(pl.col("=time") <= 0, f"{bound['time'].column} is not above 0")
    training = sheet.frame["=workload"].str.to_lowercase().str.contains_any(list(_TRAINING))
    timeunit.decide(sheet, bound["time"], seen, training=bool(training.all()))
    if sheet.frame.height:
        ratio = pl.col("=time") / pl.col("=time").median().over("=workload")
        sheet.refuse(
            (ratio > _BELIEVABLE) | (ratio < 1 / _BELIEVABLE),
            f"{bound['time'].column} is {_BELIEVABLE:g} times off the median: a damaged number",
        )
    _note_mixed_sizes(sheet, bound, seen)
    return Runs(_frame(sheet, layout, options), duplicates)


def _workload(sheet: Sheet, bound: dict[str, Bound], options: Options) -> None:
    if "workload" not in bound:
        name = options.workload or sheet.file.split(".")[0]
        sheet.frame = sheet.frame.with_columns(pl.lit(name).alias("=workload"))
        return
    column = bound["workload"].column
    text = pl.col(column)
    bad = ~text.str.contains(_WORKLOAD) | text.str.contains("^(?:GPU|MIG)-")
    identity.refuse_strange(sheet, column, bad, "name of a workload")
    sheet.frame = sheet.frame.with_columns(pl.lit(options.workload).fill_null(text).alias("=workload"))


def _within_own_limits(sheet: Sheet, bound: Bound) -> None:
    """A median lies between its own minimum and maximum, where the file gives them: else the row is damaged."""
    name = bound.column.removeprefix("median_")
    if bound.meaning.name == "time":
        low, high = "min_iter_dur", "max_iter_dur"
    else:
        low, high = f"min_{name}", f"max_{name}"
    if low not in sheet.names or high not in sheet.names or not sheet.frame.height:
        return
    value = pl.col(bound.column).cast(pl.Float64, strict=False)
    least, most = (pl.col(c).cast(pl.Float64, strict=False) for c in (low, high))
    # The limits of a duration may be in another unit than the duration (s beside ms, say).
    ratio = sheet.frame.select((value / pl.when(least > 0).then(least)).median()).item()
    if not ratio or ratio <= 0:
        return
    factor = 1000.0 ** round(math.log10(ratio) / 3)
    bad = (value < least * factor * (1 - 1e-6)) | (value > most * factor * (1 + 1e-6))
    if sheet.frame.filter(bad).height * 2 <= sheet.frame.height:
        sheet.refuse(bad, f"{bound.column} is outside the row's own {low} to {high}")


def _note_mixed_sizes(sheet: Sheet, bound: dict[str, Bound], seen: Seen) -> None:
    if "input_size" in bound and sheet.frame.height:
        sizes = sheet.frame[bound["input_size"].column].unique()
        if len(sizes) > 1:
            seen.notes.append(f"{len(sizes)} different input sizes under one workload: their times are not comparable")


def _frame(sheet: Sheet, layout: Layout, options: Options) -> pl.DataFrame:
    bound, frame = layout.bound, sheet.frame
    columns = [
        pl.lit(options.cluster).alias("cluster"),
        pl.col("=workload").alias("workload"),
        *(pl.col(f"={key}").alias(key) for key in ("gpu", "uuid", "place", "cabinet", "node")),
        pl.col("=slot").cast(pl.Int32).alias("slot"),
        pl.col("=time").alias("value"),
        _optional(bound, "began", "began", pl.Datetime("ns")),
        *(
            _optional(bound, key, column, pl.Float64)
            for key, column in (
                ("sm_clock", "sm_clock_mhz"),
                ("mem_clock", "mem_clock_mhz"),
                ("temperature", "temperature_c"),
                ("power", "power_w"),
            )
        ),
        _job(bound),
        _conditions(bound),
        pl.col(LINE),
    ]
    out = frame.select(columns)
    return out.with_columns(pl.Series("run_id", _run_ids(sheet, options), dtype=pl.String))


def _optional(bound: dict[str, Bound], key: str, column: str, kind: pl.DataType | type[pl.DataType]) -> pl.Expr:
    if key not in bound:
        return pl.lit(None, dtype=kind).alias(column)
    return pl.col(parsed(bound[key].meaning)).alias(column)


def _job(bound: dict[str, Bound]) -> pl.Expr:
    if "job" not in bound:
        return pl.lit(None, pl.String).alias("job_id")
    column = bound["job"].column
    return pl.when(~is_placeholder(column, minus_one=True)).then(pl.col(column)).alias("job_id")


def _conditions(bound: dict[str, Bound]) -> pl.Expr:
    """The stated conditions as a JSON object."""
    stated = {key: bound[key].column for key in CONDITIONS if key in bound}
    if not stated:
        return pl.lit(None, pl.String).alias("conditions")
    fields = [pl.col(column).alias(key) for key, column in stated.items()]
    return pl.struct(fields).struct.json_encode().alias("conditions")


def _run_ids(sheet: Sheet, options: Options) -> list[str]:
    """An identity made of the row's own text, so that the same row of another copy of the file is the same run."""
    frame = sheet.frame
    text = frame.select(pl.concat_str([pl.col(name) for name in sheet.names], separator="\x1f")).to_series()
    prefix = "\x1f".join([options.cluster, *sheet.names, ""]).encode()
    start = hashlib.blake2b(prefix, digest_size=12)
    ids = []
    for row, workload in zip(text.to_list(), frame["=workload"].to_list(), strict=True):
        digest = start.copy()
        digest.update(f"{workload}\x1f{row}".encode())
        ids.append(digest.hexdigest())
    return ids
