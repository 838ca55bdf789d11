"""Turn a sheet of allocations, one GPU of one job a row, into rows of `jobs`."""

from __future__ import annotations

import polars as pl

from ..allocations import GpuFrom, JobSource
from . import identity, superseding
from .content import LINE, Sheet
from .layout import Bound, Layout, Options
from .stamps import times
from .values import Seen, is_placeholder, numbers, parsed

_BACKWARD = "it ended before it began: a clock was set back, or the columns were exchanged"


def parse(sheet: Sheet, layout: Layout, options: Options, seen: Seen) -> tuple[pl.DataFrame, list[int]]:
    """The allocations of a sheet (columns of `jobs`, and LINE) and the lines of duplicates.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = layout.bound
    duplicates = identity.drop_duplicates(sheet, identity.row_texts(sheet))
    for name in ("began", "ended", "submitted"):
        if name in bound:
            times(sheet, bound[name], seen, minus_one=False, stream=False, time_zone=options.time_zone)
    if "share" in bound:
        numbers(sheet, [bound["share"]], seen, minus_one=False)
    began, ended = pl.col("=began"), pl.col("=ended")
    sheet.refuse(
        (is_placeholder(bound["job"].column, minus_one=False), "it names no job"),
        (began.is_null(), f"{bound['began'].column} is missing"),
        ((ended < began).fill_null(False), _BACKWARD),
    )
    _gpus(sheet, bound, options)
    frame = _frame(sheet, bound, options.cluster)
    once = frame.sort(pl.col("ended").is_null(), pl.col(LINE), descending=[True, False])
    once = once.unique(superseding.KEY, keep="last")  # running and ended, in one file
    duplicates += frame.join(once, on=LINE, how="anti")[LINE].to_list()
    return once.sort(LINE), duplicates


def _gpus(sheet: Sheet, bound: dict[str, Bound], options: Options) -> None:
    """`=gpu`: the GPU of each row; NULL where the row has only a node."""
    none = pl.lit(None, pl.String).alias("=gpu")
    if "gpu" not in bound:
        sheet.refuse((is_placeholder(bound["node"].column, minus_one=False), "it names no node"))
        sheet.frame = sheet.frame.with_columns(none)
        return
    unknown = is_placeholder(bound["gpu"].column, minus_one=False)
    no_node = is_placeholder(bound["node"].column, minus_one=False) if "node" in bound else pl.lit(True)
    sheet.refuse((unknown & no_node, "it names neither a GPU nor a node"))
    without = sheet.frame.filter(unknown).with_columns(none)
    sheet.frame = sheet.frame.filter(~unknown)
    identity.of_jobs(sheet, bound["gpu"], options)
    sheet.frame = pl.concat([sheet.frame, without], how="diagonal").sort(LINE)


def _frame(sheet: Sheet, bound: dict[str, Bound], cluster: str) -> pl.DataFrame:
    texts = []
    for item in bound.values():
        if item.meaning.kind == "text":
            known = ~is_placeholder(item.column, minus_one=False)
            texts.append(pl.when(known).then(pl.col(item.column)).alias(item.meaning.column))
    given = [pl.col(parsed(bound[name].meaning)).alias(name) for name in ("submitted", "share") if name in bound]
    has_gpu = pl.col("=gpu").is_not_null()
    frame = sheet.frame.select(
        pl.lit(cluster).alias("cluster"),
        *texts,
        *given,
        pl.col("=began").alias("began"),
        pl.col("=ended").alias("ended"),
        pl.col("=gpu").alias("gpu"),
        pl.when(has_gpu).then(pl.lit(GpuFrom.FILE.value)).alias("gpu_from"),
        pl.when(has_gpu).then(pl.lit(1)).alias("node_gpus"),
        pl.lit(JobSource.CSV.value).alias("source"),
        pl.col(LINE),
    )
    where = pl.coalesce("gpu", "node") if "node" in frame.columns else pl.col("gpu")
    began = pl.col("began").dt.epoch("ms").cast(pl.String)
    return frame.with_columns(
        pl.concat_str("job_id", where, began, separator="@").alias("allocation"), pl.col("job_id").alias("raw_id")
    )
