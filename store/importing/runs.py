"""Turn a sheet of runs, one run a row, into rows of `runs`, `results` and `gpus`."""

from __future__ import annotations

import hashlib

import polars as pl

from ...errors import InputError
from ..events import Event
from ..instants import date_of_ns
from ..vocabulary import ClockSetting, EventKind, Outcome
from . import happened, identity
from .content import LINE, RECORD, Sheet
from .meanings import CONDITIONS, figure_named, figure_unit
from .times import instant, times
from .values import further_numbers, is_placeholder, numbers, parsed, prove_unit, stated

FIGURE = "figure "  # the columns of further telemetry begin with this, then comes the figure's name
_WORKLOAD = r"^[0-9]{0,4}[A-Za-z][A-Za-z0-9_.+/ -]{0,199}$"
_DURATIONS_MS = (1e-6, 3.2e11)
_FAR = 500.0  # times its workload's median: a damaged number or another unit; the slowest published run is 3.6
_MEDIANS = {
    "sm_clock": "sm_clock_mhz",
    "mem_clock": "mem_clock_mhz",
    "temperature": "temperature_c",
    "power": "power_w",
}
_TOLD = 8  # unclear verdicts with a reason each
# What a benchmark's verdict may be called, in lower case, besides the codes of `runs.status`.
_VERDICTS = {
    **dict.fromkeys(("pass", "passed", "success", "successful", "good", "healthy"), Outcome.OK),
    **dict.fromkeys(("faulty", "wrong", "incorrect", "mismatch", "corrupt", "corrupted"), Outcome.WRONG_RESULT),
    **dict.fromkeys(("fail", "failed", "failure", "error", "bad", "unhealthy", "timeout", "aborted",
                     "crashed"), Outcome.FAILED),
}  # fmt: skip
_EVENTS = {
    Outcome.WRONG_RESULT: (EventKind.WRONG_RESULT, "wrong results"),
    Outcome.FAILED: (EventKind.PROBE_FAILED, "it failed"),
    Outcome.LOST: (EventKind.LOST, "the GPU was lost"),
    Outcome.HUNG: (EventKind.PROBE_FAILED, "it did not end in time"),
}


def parse(sheet: Sheet) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The runs of a sheet (columns of `runs` and `gpus`, value, `FIGURE`..., LINE), and events.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound, time = sheet.bound, sheet.bound.get("time")
    identity.drop_duplicates(sheet)
    if sheet.duplicates and not any(key in bound for key in ("began", "run", "reps", "job")):
        sheet.notes.append(
            "no column distinguishes the runs of a GPU (time, run number, job), so equal rows count once"
        )
    _workload(sheet)
    identity.of_runs(sheet)
    identity.of_one_cluster(sheet)
    _status(sheet)
    measured = [column for column in bound.values() if column.meaning.kind == "number" and not column.lenient]
    numbers(sheet, measured, minus_one=True, required="time", unless=pl.col("=status") != Outcome.OK.value)
    further_numbers(sheet, [column for column in bound.values() if column.lenient])
    if "began" in bound:
        times(sheet, bound["began"], minus_one=True, stream=False)
    elif sheet.options.at is not None:
        sheet.used.add("at")
        at = date_of_ns(instant(sheet.options.at, sheet.options.time_zone, "--at"))
        sheet.frame = sheet.frame.with_columns(pl.lit(at, pl.Datetime("us")).alias("=began"))
    else:
        sheet.frame = sheet.frame.with_columns(pl.lit(None, pl.Datetime("us")).alias("=began"))
    identity.of_the_time(sheet, "=began")
    events = happened.of_rows(sheet, "=began")
    if time is None:  # a table of verdicts
        sheet.frame = sheet.frame.with_columns(pl.lit(None, pl.Float64).alias("=time"))
    else:
        if sheet.frame["=time"].count():
            prove_unit(sheet, time)
        possible = pl.col("=time").is_between(*_DURATIONS_MS).fill_null(True)
        sheet.refuse((~possible, f"{time.column} is not between 1 ns and 10 years"))
    _note_doubts(sheet)
    return _frame(sheet), events


def _workload(sheet: Sheet) -> None:
    name = sheet.options.workload
    if "workload" not in sheet.bound:
        if name is None:
            name = sheet.file.split(".")[0]
            sheet.notes.append(f"no column names the workload: it is named {name} after the file (--workload NAME)")
        sheet.frame = sheet.frame.with_columns(pl.lit(name).alias("=workload"))
        return
    column, text = sheet.bound["workload"].column, pl.col(sheet.bound["workload"].column)
    if name is not None and sheet.format and (several := sheet.frame[column].n_unique()) > 1:
        raise InputError(f"{sheet.file} has {several} workloads, which must not be mixed: leave out --workload")
    if name is None and not sheet.bound["workload"].mapped:
        bad = ~text.str.contains(_WORKLOAD) | text.str.starts_with("GPU-") | text.str.starts_with("MIG-")
        identity.refuse_strange(sheet, (column, bad, "name of a workload"))
    elif name is None:
        sheet.refuse((is_placeholder(column, minus_one=True), f"{column} names no workload"))
    sheet.frame = sheet.frame.with_columns((text if name is None else pl.lit(name)).alias("=workload"))


def _status(sheet: Sheet) -> None:
    """`=status` and `=status_detail`: 'ok' where nothing else is said. A run that failed needs no duration.

    In a table, a verdict that is not good is an event, too; a reader of a format makes its own.
    """
    detail = (
        pl.col(sheet.bound["status_detail"].column).replace("", None)
        if "status_detail" in sheet.bound
        else pl.lit(None)
    )
    if "status" not in sheet.bound:
        status = pl.lit(Outcome.OK.value)
    else:
        column = sheet.bound["status"].column
        words = {outcome.value: outcome.value for outcome in Outcome}
        words |= {word: outcome.value for word, outcome in _VERDICTS.items()}
        verdict = pl.col(column).str.strip_chars().str.to_lowercase()
        unclear = ~is_placeholder(column, minus_one=False) & ~verdict.is_in(list(words))
        (number,) = sheet.counts(unclear)
        if number:
            texts = sheet.frame.filter(unclear)[column].unique(maintain_order=True).head(_TOLD)
            advice = "{} is {!r}, which is no verdict that whorl reads: write ok, failed or wrong_result".format
            if number == sheet.frame.height:
                raise InputError(f"{sheet.file}: {advice(column, texts[0][:40])}")
            sheet.refuse(*((unclear & (pl.col(column) == text), advice(column, text[:40])) for text in texts))
            sheet.refuse((unclear, f"{column} is no verdict that whorl reads: write ok, failed or wrong_result"))
        status = verdict.replace_strict(words, default=Outcome.OK.value, return_dtype=pl.String)
    sheet.frame = sheet.frame.with_columns(status.alias("=status"), detail.cast(pl.String).alias("=status_detail"))
    if sheet.format or "status" not in sheet.bound:
        return
    failed = sheet.frame.filter(pl.col("=status") != Outcome.OK.value)
    for key, workload, outcome, verdict_text in failed.select(LINE, "=workload", "=status", column).iter_rows():
        kind, sentence = _EVENTS[Outcome(outcome)]
        sheet.events.append((key, Event(kind, None, f"{workload}: {sentence} ({verdict_text})", workload=workload)))


def _note_doubts(sheet: Sheet) -> None:
    """Tell of durations far from the median: they are stored as the file has them."""
    group = ["=workload", *(sheet.bound[key].column for key in ("input_size", "warmup") if key in sheet.bound)]
    ratio = pl.col("=time") / pl.col("=time").median().over(group)
    far = sheet.frame.filter((ratio > _FAR) | (ratio < 1 / _FAR))[LINE]
    if len(far):
        sheet.notes.append(
            f"{len(far)} {'row is' if len(far) == 1 else 'rows are'} {_FAR:g} times above or below the median of the "
            f"workload (first line {sheet.line(far[0])}): a damaged number or another unit; if so, mend the file and "
            "import it into a new store"
        )


def _frame(sheet: Sheet) -> pl.DataFrame:
    bound = sheet.bound

    def number(key: str) -> pl.Expr:
        return pl.col(parsed(bound[key].meaning)) if key in bound else pl.lit(None, pl.Float64)

    job = bound["job"].column if "job" in bound else None
    columns = [
        pl.lit(sheet.options.cluster).alias("cluster"),
        pl.col("=workload").alias("workload"),
        *(pl.col(f"={key}").alias(key) for key in ("gpu", "uuid", "place", "cabinet", "node")),
        pl.col("=slot").cast(pl.Int64).alias("slot"),
        pl.col("=time").alias("value"),
        pl.col("=began").alias("began"),
        *(number(key).alias(column) for key, column in _MEDIANS.items()),
        (pl.lit(None, pl.String) if job is None else stated(job, minus_one=True)).alias("job_id"),
        _conditions(sheet),
        *(
            pl.col(parsed(column.meaning)).alias(f"{FIGURE}{column.meaning.name}")
            for column in bound.values()
            if column.meaning.kind == "number" and not column.meaning.column
        ),
        *identity.of_board(sheet),
        (pl.col("=repeat").cast(pl.Int64) if "repeat" in bound else pl.lit(0, pl.Int64)).alias("repeat"),
        pl.col("=status").alias("status"),
        pl.col("=status_detail").alias("status_detail"),
        pl.col(LINE),
    ]
    frame = sheet.frame.select(columns)
    return frame.with_columns(pl.Series("run_id", _run_ids(sheet), dtype=pl.String))


def results(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of `results` for runs: the time of each, then its further telemetry. Rows of one run are its repeats."""
    keys = ["run_id", "cluster", "workload", "gpu", "repeat"]
    parts = [frame.select(*keys, "value", figure=pl.lit("time"), unit=pl.lit("ms")).drop_nulls("value")]
    for name in frame.columns:
        meaning = figure_named(name.removeprefix(FIGURE)) if name.startswith(FIGURE) else None
        if meaning is not None:
            stated = frame.select(*keys, pl.col(name).alias("value")).drop_nulls("value")
            parts.append(stated.with_columns(figure=pl.lit(meaning.name), unit=pl.lit(figure_unit(meaning))))
    return pl.concat(parts)


def _conditions(sheet: Sheet) -> pl.Expr:
    """The stated conditions: some of the fields `CONDITIONS` of `store/vocabulary.py`.

    If a row states no locked clock and other rows of the file do, its clock was free.
    """
    stated = [sheet.bound[key] for key in CONDITIONS if key in sheet.bound]
    if not stated:
        return pl.lit(None).alias("conditions")
    fields = [
        pl.col(parsed(column.meaning)).alias(column.meaning.column)
        if column.meaning.kind == "number"
        else (pl.col(column.column).replace("", None) if sheet.format else pl.col(column.column)).alias(
            column.meaning.name
        )
        for column in stated
    ]
    if "locked_clock" in sheet.bound:
        locked = pl.col(parsed(sheet.bound["locked_clock"].meaning)).is_not_null()
        clock = pl.when(locked).then(pl.lit(ClockSetting.LOCKED.value)).otherwise(pl.lit(ClockSetting.FREE.value))
        fields.append(clock.alias("clock"))
    return pl.struct(fields).alias("conditions")


def _run_ids(sheet: Sheet) -> list[str]:
    """An identity made of the row's own text, so that the same row of another copy of the file is the same run.

    Rows of one record that are repeats of one run have the identity of the record.
    """
    prefix = "\x1f".join([sheet.options.cluster, *sheet.names, ""]).encode()
    start = hashlib.blake2b(prefix, digest_size=12)
    ids = []
    keys = sheet.frame.select("=workload", "=gpu").iter_rows()
    texts = sheet.frame[RECORD] if "repeat" in sheet.bound else identity.row_texts(sheet)
    for row, (workload, gpu) in zip(texts, keys, strict=True):
        digest = start.copy()
        digest.update(f"{workload}\x1f{gpu}\x1f{row}".encode())
        ids.append(digest.hexdigest())
    return ids
