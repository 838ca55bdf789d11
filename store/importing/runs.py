"""Turn a sheet of runs, one run a row, into rows of `runs`, `results` and `gpus`."""

from __future__ import annotations

import hashlib
import math

import polars as pl

from ...errors import InputError
from ..instants import date_of_ns
from ..vocabulary import ClockSetting, Outcome
from . import cards, happened, identity, swapped, timeunit
from .content import LINE, RECORD, Rule, Sheet
from .figures import named, unit
from .layout import Bound, Layout
from .meanings import CONDITIONS
from .options import Options
from .stamps import instant, times
from .values import Seen, further_numbers, is_placeholder, numbers, parsed

FIGURE = "figure "  # the columns of further telemetry begin with this, then comes the figure's name
_WORKLOAD = r"^[0-9]{0,4}[A-Za-z][A-Za-z0-9_.+/ -]{0,199}$"
_TRAINING = ["resnet", "bert", "vgg", "gpt", "llama", "train", "dcgan", "pointnet", "transformer"]
# A duration hundreds of times its workload's median is a damaged number, not a slow GPU (the worst published is 3.6).
# Half of 1000: one in s among ms is 1000 times its own GPU's, and so less or more than 1000 times the median.
_BELIEVABLE = 500.0
_DAMAGED = 0.01  # share of the rows; if more are that far off, it is not damage


def parse(sheet: Sheet, layout: Layout, options: Options, seen: Seen) -> tuple[pl.DataFrame, pl.DataFrame, list[int]]:
    """The runs of a sheet (columns of `runs` and `gpus`, value, `FIGURE`..., LINE), events, the lines of duplicates.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound, time = layout.bound, layout.bound["time"]
    duplicates = identity.drop_duplicates(sheet)
    if duplicates and not any(key in bound for key in ("began", "run", "reps", "job")):
        seen.notes.append("no column distinguishes the runs of a GPU (time, run number, job), so equal rows count once")
    _workload(sheet, bound, options, seen)
    _check_texts(sheet, layout)
    identity.of_runs(sheet, bound, seen, options)
    identity.of_one_cluster(sheet, seen, options)
    events = happened.of_rows(sheet, options, seen)
    _status(sheet, bound)
    measured = [item for item in bound.values() if item.meaning.kind == "number" and not item.lenient]
    numbers(sheet, measured, seen, minus_one=True, required="time", unless=pl.col("=status") != Outcome.OK.value)
    for lost in further_numbers(sheet, [item for item in bound.values() if item.lenient], seen):
        del bound[lost.meaning.name]
    _within_own_limits(sheet, bound)
    swapped.check(sheet, bound)
    if "began" in bound:
        times(sheet, bound["began"], seen, minus_one=True, stream=False, time_zone=options.time_zone)
    elif options.at is not None:
        sheet.used.add("at")
        at = pl.lit(date_of_ns(instant(options.at, options.time_zone, "--at")))
        sheet.frame = sheet.frame.with_columns(at.alias("=began"))
    if "=began" in sheet.frame.columns:
        cards.of_the_time(sheet, "=began", seen, options)
        whose = sheet.frame.select(LINE, pl.col("=gpu").alias("gpu"))
        events = events.drop("gpu").join(whose, on=LINE, how="left", maintain_order="left")
    sheet.refuse((pl.col("=time") <= 0, f"{time.column} is not above 0"))
    training = sheet.frame["=workload"].str.to_lowercase().str.contains_any(_TRAINING).all()
    timeunit.decide(sheet, time, seen, training=training, by_size=not time.mapped)
    alike = ["=workload", *(bound[key].column for key in ("input_size", "warmup") if key in bound)]
    ratio = pl.col("=time") / pl.col("=time").median().over(alike)
    far = (ratio > _BELIEVABLE) | (ratio < 1 / _BELIEVABLE)
    (number,) = sheet.counts(far)
    if number > max(1, _DAMAGED * sheet.frame.height):
        seen.notes.append(
            f"{number} rows are {_BELIEVABLE:g} times above or below the median (first line "
            f"{sheet.line(sheet.frame.filter(far)[LINE][0])}): too many to be damaged numbers; if they are in another "
            "unit, import them into a new store as a file of their own, with --unit"
        )
    else:
        sheet.refuse((far, f"{time.column} is {_BELIEVABLE:g} times above or below the median: a damaged number"))
    _note_mixed_sizes(sheet, bound, seen)
    return _frame(sheet, layout, options), events, duplicates


def _workload(sheet: Sheet, bound: dict[str, Bound], options: Options, seen: Seen) -> None:
    if "workload" not in bound:
        name = options.workload or sheet.file.split(".")[0]
        if options.workload is None:
            seen.notes.append(f"no column names the workload: it is named {name} after the file (--workload NAME)")
        sheet.frame = sheet.frame.with_columns(pl.lit(name).alias("=workload"))
        return
    column = bound["workload"].column
    text = pl.col(column)
    if options.workload is not None:
        if sheet.format and (several := sheet.frame[column].n_unique()) > 1:
            raise InputError(f"{sheet.file} has {several} workloads, which must not be mixed: leave out --workload")
        sheet.frame = sheet.frame.with_columns(pl.lit(options.workload).alias("=workload"))
        return
    bad = ~text.str.contains(_WORKLOAD) | text.str.starts_with("GPU-") | text.str.starts_with("MIG-")
    identity.refuse_strange(sheet, (column, bad, "name of a workload"))
    sheet.frame = sheet.frame.with_columns(text.alias("=workload"))


def _status(sheet: Sheet, bound: dict[str, Bound]) -> None:
    """`=status` and `=status_detail`: 'ok' where nothing else is said. A run that failed needs no duration."""
    said = [
        pl.col(bound[key].column).replace("", None) if key in bound else pl.lit(None, pl.String)
        for key in ("status", "status_detail")
    ]
    sheet.frame = sheet.frame.with_columns(
        said[0].fill_null(Outcome.OK.value).alias("=status"), said[1].alias("=status_detail")
    )


def _check_texts(sheet: Sheet, layout: Layout) -> None:
    """Conditions are stored as they are.

    A value that is impossible for its column shows that the columns are shifted.
    """
    rules = []
    for item in layout.bound.values():
        name, pattern = item.column, item.meaning.pattern
        if pattern and not item.mapped:
            strange = ~is_placeholder(name, minus_one=True) & ~pl.col(name).str.contains(pattern)
            rules.append((name, strange, item.meaning.description.removeprefix("condition: ")))
    identity.refuse_strange(sheet, *rules)


def _within_own_limits(sheet: Sheet, bound: dict[str, Bound]) -> None:
    """If the file gives a minimum and a maximum, the row's median must lie between them, else the row is damaged."""
    limits: dict[str, tuple[str, str]] = {}
    value: dict[str, pl.Expr] = {}
    for key in ("sm_clock", "mem_clock", "temperature", "power"):
        three = [bound.get(name) for name in (key, f"{key}_min", f"{key}_max")]
        if None not in three:
            column, low, high = (item.column for item in three if item is not None)
            limits[column] = low, high
            value |= {item.column: pl.col(parsed(item.meaning)) for item in three if item is not None}
    scale: dict[str, float] = {}
    own = ("min_iter_dur", "max_iter_dur")
    if set(own) <= set(sheet.names):
        column = bound["time"].column
        limits[column] = own
        value |= {name: _number(name) for name in (column, *own)}
        # The limits may have another unit than the duration (s and ms, for example).
        ratio = value[column] / pl.when(value[own[0]] > 0).then(value[own[0]])
        median = sheet.frame.select(ratio.filter(ratio.is_finite()).median()).item()
        scale[column] = 1000.0 ** round(math.log10(median) / 3) if median is not None and median > 0 else 1.0
    rules: list[Rule] = []
    for column, (low, high) in limits.items():
        factor = scale.get(column, 1.0)
        bad = value[column] < value[low] * factor * (1 - 1e-6)
        bad |= value[column] > value[high] * factor * (1 + 1e-6)
        rules.append((bad, f"{column} is outside the row's own {low} to {high}"))
    for number, (column, (low, high)) in zip(sheet.counts(*(bad for bad, _ in rules)), limits.items(), strict=True):
        if number * 2 > sheet.frame.height:
            raise InputError(
                f"{sheet.file}: {column!r} is outside {low!r} to {high!r} on most rows: the columns look shifted or "
                f"renamed; if they are not, take {low!r} out of the file"
            )
    sheet.refuse(*rules)


def _number(name: str) -> pl.Expr:
    """A text as a number; null where it is none or means "unknown"."""
    return pl.when(~is_placeholder(name, minus_one=True)).then(pl.col(name).cast(pl.Float64, strict=False))


def _note_mixed_sizes(sheet: Sheet, bound: dict[str, Bound], seen: Seen) -> None:
    if "input_size" in bound:
        sizes = sheet.frame.group_by("=workload").agg(pl.col(bound["input_size"].column).n_unique().alias("n"))
        most = sizes["n"].max()
        if isinstance(most, int) and most > 1:
            seen.notes.append(f"{most} different input sizes under one workload: their times are not comparable")


def _frame(sheet: Sheet, layout: Layout, options: Options) -> pl.DataFrame:
    bound, frame = layout.bound, sheet.frame
    columns = [
        pl.lit(options.cluster).alias("cluster"),
        pl.col("=workload").alias("workload"),
        *(pl.col(f"={key}").alias(key) for key in ("gpu", "uuid", "place", "cabinet", "node")),
        pl.col("=slot").cast(pl.Int64).alias("slot"),
        pl.col("=time").alias("value"),
        _began(bound, options),
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
        _conditions(sheet, bound),
        *(
            pl.col(parsed(one.meaning)).alias(f"{FIGURE}{one.meaning.name}")
            for one in bound.values()
            if one.meaning.kind == "number" and not one.meaning.column
        ),
        *identity.of_board(bound, options),
        _repeat(bound).alias("repeat"),
        pl.col("=status").alias("status"),
        pl.col("=status_detail").alias("status_detail"),
        pl.col(LINE),
    ]
    out = frame.select(columns)
    return out.with_columns(pl.Series("run_id", _run_ids(sheet, bound, options), dtype=pl.String))


def results(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of `results` for runs: the time of each, then its further telemetry. Rows of one run are its repeats."""
    keys = ["run_id", "cluster", "workload", "gpu", "repeat"]
    parts = [frame.select(*keys, "value", pl.lit("time").alias("figure"), pl.lit("ms").alias("unit"))]
    parts[0] = parts[0].drop_nulls("value")
    for name in frame.columns:
        meaning = named(name.removeprefix(FIGURE)) if name.startswith(FIGURE) else None
        if meaning is not None:
            stated = frame.select(*keys, pl.col(name).alias("value")).drop_nulls("value")
            parts.append(stated.with_columns(figure=pl.lit(meaning.name), unit=pl.lit(unit(meaning))))
    return pl.concat(parts)


def _repeat(bound: dict[str, Bound]) -> pl.Expr:
    return pl.col("=repeat").cast(pl.Int64) if "repeat" in bound else pl.lit(0, pl.Int64)


def _began(bound: dict[str, Bound], options: Options) -> pl.Expr:
    known = "began" in bound or options.at is not None
    return pl.col("=began").alias("began") if known else pl.lit(None, pl.Datetime("us")).alias("began")


def _optional(bound: dict[str, Bound], key: str, column: str, kind: pl.DataType | type[pl.DataType]) -> pl.Expr:
    if key not in bound:
        return pl.lit(None, dtype=kind).alias(column)
    return pl.col(parsed(bound[key].meaning)).alias(column)


def _job(bound: dict[str, Bound]) -> pl.Expr:
    if "job" not in bound:
        return pl.lit(None, pl.String).alias("job_id")
    column = bound["job"].column
    return pl.when(~is_placeholder(column, minus_one=True)).then(pl.col(column)).alias("job_id")


def _conditions(sheet: Sheet, bound: dict[str, Bound]) -> pl.Expr:
    """The stated conditions: some of the fields `CONDITIONS` of `store/vocabulary.py`.

    If a row states no locked clock and other rows of the file do, its clock was free.
    """
    stated = [bound[key] for key in CONDITIONS if key in bound]
    if not stated:
        return pl.lit(None).alias("conditions")
    fields = [
        pl.col(parsed(one.meaning)).alias(one.meaning.column)
        if one.meaning.kind == "number"
        else (pl.col(one.column).replace("", None) if sheet.format else pl.col(one.column)).alias(one.meaning.name)
        for one in stated
    ]
    if "locked_clock" in bound:
        locked = pl.col(parsed(bound["locked_clock"].meaning)).is_not_null()
        clock = pl.when(locked).then(pl.lit(ClockSetting.LOCKED.value)).otherwise(pl.lit(ClockSetting.FREE.value))
        fields.append(clock.alias("clock"))
    return pl.struct(fields).alias("conditions")


def _run_ids(sheet: Sheet, bound: dict[str, Bound], options: Options) -> list[str]:
    """An identity made of the row's own text, so that the same row of another copy of the file is the same run.

    Rows of one record that are repeats of one run have the identity of the record.
    """
    prefix = "\x1f".join([options.cluster, *sheet.names, ""]).encode()
    start = hashlib.blake2b(prefix, digest_size=12)
    ids = []
    named = sheet.frame.select("=workload", "=gpu").iter_rows()
    texts = sheet.frame[RECORD] if "repeat" in bound else identity.row_texts(sheet)
    for row, (workload, gpu) in zip(texts, named, strict=True):
        digest = start.copy()
        digest.update(f"{workload}\x1f{gpu}\x1f{row}".encode())
        ids.append(digest.hexdigest())
    return ids
