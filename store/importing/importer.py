"""Import a file of measurements into a store: read, recognise and parse it, count every row, append.

Importing is idempotent. A file whose content was imported before adds nothing. A row that came from another file before
is counted as a duplicate. Everything of one file is stored at once or not at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from .. import views
from ..names import by_number
from ..vocabulary import EventKind, JobSource
from . import allocations, formats, node_power, runs, superseding, tags, telemetry, timelines
from .content import LINE, Content, Sheet
from .layout import recognise
from .meanings import BOARD, LIMITS
from .options import FLEET, Options
from .provenance import Counts, Provenance, Report

if TYPE_CHECKING:
    from ..store import Store

_RUN_COLUMNS = [
    "run_id", "cluster", "workload", "gpu", "job_id", "began", "sm_clock_mhz", "mem_clock_mhz", "temperature_c",
    "power_w", "conditions", "status", "status_detail",
]  # fmt: skip
# What is asked of the store: its GPUs, their XIDs, and the cards of slots in which several were, one after another.
_QUERIES = (
    f"SELECT cluster, {', '.join(FLEET)} FROM gpus_now WHERE name IS NOT NULL",
    f"SELECT cluster, gpu, ts, code FROM events WHERE kind = '{EventKind.XID.value}'",
    f"SELECT cluster, name, gpu AS card, since FROM (SELECT * FROM ({views.cards('gpus')}) "
    "QUALIFY count(DISTINCT gpu) OVER (PARTITION BY cluster, name) > 1) WHERE since < until",
)


@dataclass
class Parsed:
    """What a file holds, before anything is stored: rows of runs, telemetry, jobs or timelines, and the report on
    them."""

    sheet: Sheet
    frame: pl.DataFrame  # the columns of the tables, and `LINE`
    events: pl.DataFrame
    workloads: pl.DataFrame  # LINE, workload: the workload of each row, also of refused rows
    report: Report


def read_file(path: Path, options: Options) -> Parsed:
    """Read and parse one file; nothing is stored. Raises InputError (UnitError) if it cannot be used."""
    return _parse(Content.load(path), timelines.with_layout(path, options))


def import_file(into: Store | Path, path: Path, options: Options) -> Report:
    """Import one file and return the report. `into`: a store, or where one is made if the file can be used.

    Raises InputError (UnitError) where the file cannot be used as a whole, and StoreError where the store
    cannot be written; nothing of the file is stored then.
    """
    from ..store import Store

    loaded = Content.load(path)
    options = timelines.with_layout(path, options)
    provenance = Provenance(loaded, options)
    if not isinstance(into, Path):
        if (before := provenance.earlier(into)) is not None:
            return before  # before a large file is cut into rows, which takes long
        fleet, xids, cards = (cache(partial(_of_cluster, into, query, options.cluster)) for query in _QUERIES)
        order = tags.slurm_order(into.root / tags.SPOOL, options.cluster)
        options = replace(options, fleet=fleet, xids=xids, cards=cards, slurm_order=order)
    parsed = _parse(loaded, options)
    store = Store.create(into) if isinstance(into, Path) else into
    with store.exclusive():  # no other import may store the same rows between the check and the append
        if (before := provenance.earlier(store)) is not None:
            return before
        tables = _TABLES[parsed.sheet.kind](store, parsed)
        parsed.frame = parsed.frame.clear()  # each copy of the rows is large
        if parsed.sheet.jobs is not None:
            tables["jobs"] = allocations.beside_telemetry(store, parsed.sheet.jobs, parsed.report)
        tables["imports"] = provenance.rows(parsed.report)
        source = pl.lit(provenance.id).cast(pl.Categorical).alias("import_id")
        tables = {name: rows if name == "results" else rows.with_columns(source) for name, rows in tables.items()}
        store.append({name: tables.pop(name).to_arrow() for name in list(tables)}, f"import-{provenance.id}")
    return parsed.report


def _of_cluster(store: Store, query: str, cluster: str) -> pl.DataFrame:
    """What the store knows of a cluster; texts are no categories."""
    rows = store.sql(query).polars().filter(pl.col("cluster") == cluster).drop("cluster")
    return rows.with_columns(pl.selectors.by_dtype(pl.Categorical).cast(pl.String))


def _parse(loaded: Content, options: Options) -> Parsed:
    sheet = formats.read(loaded, options)
    recognise(sheet)
    if sheet.kind != "timelines":
        timelines.check_none(sheet)
    if options.model is not None and "model" in sheet.bound:
        sheet.notes.append("the file names the model of its GPUs, so --model is not used")
    workloads = _workloads(sheet)
    frame, events = _PARSERS[sheet.kind](sheet)
    if options.at is not None and "at" not in sheet.used:
        sheet.notes.append("the file has its own times, so --at is not used")
    if options.every is not None and "every" not in sheet.used:
        sheet.notes.append("no times of the file are counted, so --every is not used")
    counts = Counts(sheet.rows, frame[LINE].n_unique(), len(sheet.duplicates), sheet.refused.count)
    assert counts.rows == counts.kept + counts.duplicates + counts.refused, "the rows do not add up"
    report = Report.of(sheet, loaded.sha256, counts)
    distinct = {name: frame[name].drop_nulls().n_unique() for name in ("gpu", "node", "rank") if name in frame.columns}
    report.gpus = distinct.get("gpu", 0)
    report.nodes = distinct["node"] if sheet.kind == "node_power" else 0
    report.ranks = distinct["rank"] if sheet.kind == "timelines" else 0
    if not counts.kept and (not events.height or sheet.kind == "jobs"):
        worst = sorted(report.refusals.items(), key=lambda reason: -len(reason[1]))[:3]
        reasons = "; ".join(f"{reason[:80]} ({len(lines)} rows, first line {min(lines)})" for reason, lines in worst)
        raise InputError(f"{sheet.file}: none of its {counts.rows} rows can be used: {reasons}")
    sheet.frame = sheet.frame.clear()
    return Parsed(sheet, frame, events, workloads, report)


def _workloads(sheet: Sheet) -> pl.DataFrame:
    """Which workload each line names, to count rows that are refused later."""
    name: pl.Expr = pl.lit(None, pl.String)
    if sheet.kind == "runs" and sheet.options.workload is None and "workload" in sheet.bound:
        name = pl.col(sheet.bound["workload"].column)
    return sheet.frame.select(LINE, name.alias("workload"))


def _runs(store: Store, parsed: Parsed) -> dict[str, pl.DataFrame]:
    """The rows of each table. Runs that the store already has are counted as duplicates."""
    stored = store.collect(
        store.scan("runs").filter(pl.col("cluster") == parsed.sheet.options.cluster).select("run_id", "gpu")
    )
    again = parsed.frame["run_id"].is_in(stored["run_id"].implode())
    frame = parsed.frame.filter(~again)
    duplicates = [*parsed.sheet.duplicates, *parsed.frame.filter(again)[LINE]]
    report = parsed.report
    _tell_of_namesakes(parsed, frame, stored["gpu"].unique())
    report.total.kept, report.total.duplicates = frame.height, len(duplicates)
    report.workloads = _by_workload(parsed, frame, duplicates)
    board = [column for column in BOARD if column in frame.columns]
    gpus = (
        frame.group_by("cluster", "gpu", "uuid", "place", "cabinet", "node", "slot", *board)
        .agg(pl.col("began").min().alias("first_seen"))
        .sort("cluster", "gpu", "place", *board, nulls_last=True)
    )
    events = parsed.events.join(frame, on=LINE, how="semi").drop(LINE)
    return {
        "runs": frame.unique("run_id", keep="first", maintain_order=True).select(_RUN_COLUMNS),
        "results": runs.results(frame),
        "gpus": gpus,
        "events": superseding.new_events(store, events, parsed.sheet.options.cluster),
    }


def _by_workload(parsed: Parsed, kept: pl.DataFrame, duplicates: list[int]) -> dict[str, Counts]:
    """The counts by workload. A refused row that names none of them counts for the most frequent workload."""
    main, *_ = names = parsed.frame["workload"].value_counts(sort=True)["workload"].to_list()
    workload_of = dict(parsed.workloads.filter(pl.col("workload").is_in(names)).iter_rows())
    refused = [key for keys in parsed.sheet.refused.lines.values() for key in keys]
    parts = [Counter(workload_of.get(key, main) for key in keys) for keys in (kept[LINE], duplicates, refused)]
    return {name: Counts(sum(part[name] for part in parts), *(part[name] for part in parts)) for name in names}


def _telemetry(store: Store, parsed: Parsed) -> dict[str, pl.DataFrame]:
    """The rows of each table. Readings that the store already has are counted as duplicates."""
    gpu, ts, frame = pl.col("gpu"), pl.col("ts"), parsed.frame
    of_these = gpu.is_in(frame["gpu"].unique().implode()) & (pl.col("cluster") == parsed.sheet.options.cluster)
    in_store = store.scan("telemetry").filter(of_these)
    _tell_of_namesakes(parsed, frame, store.collect(in_store.select("gpu").unique())["gpu"])
    if len(numbered := _known_by_number(store, frame, parsed.sheet.options.cluster)):
        parsed.report.notes.append(
            f"the store knows {', '.join(numbered[:3])}{', ...' if len(numbered) > 3 else ''} without a UUID, and this "
            "file has UUIDs there: each counts as two GPUs, and so does its energy; import files with UUIDs into a new "
            "store first, and files with numbers or serials find their GPUs"
        )
    stored = store.collect(in_store.filter(ts.is_between(frame["ts"].min(), frame["ts"].max())))
    if parsed.sheet.options.gpu is None:
        _check_another_file(parsed, stored)
    frame = _unseen(parsed, stored)
    cluster = pl.lit(parsed.sheet.options.cluster).alias("cluster")
    of_gpus = ["uuid", "node", "slot", *(c for c in (*BOARD, "parent", *LIMITS) if c in frame.columns)]
    gpus = frame.group_by("gpu", *of_gpus).agg(ts.min().alias("first_seen"))
    gpus = gpus.sort("gpu", *of_gpus, nulls_last=True).with_columns(cluster)
    readings = frame.drop(LINE, *of_gpus).sort("gpu", "ts").with_columns(cluster)  # as the store sorts them
    readings = readings.with_columns(pl.col("gpu", "cluster").cast(pl.Categorical))  # a text on each row takes memory
    events = superseding.new_events(store, parsed.events, parsed.sheet.options.cluster)
    return {"telemetry": readings, "events": events, "gpus": gpus}


def _after_the_file(sheet: Sheet) -> pl.Expr:
    """Whether a row's GPU is named after its file, as nothing else names it."""
    stem, gpu = sheet.file.split(".")[0], pl.col("gpu")
    return pl.col("uuid").is_null() & pl.col("node").is_null() & ((gpu == stem) | gpu.str.starts_with(f"{stem}:"))


def _tell_of_namesakes(parsed: Parsed, frame: pl.DataFrame, stored_gpus: pl.Series) -> None:
    """Tell of GPUs that the store has, which are named after another file of the same name."""
    namesakes = frame.filter(_after_the_file(parsed.sheet) & pl.col("gpu").is_in(stored_gpus.implode()))
    names = namesakes["gpu"].unique().sort()
    if parsed.sheet.options.gpu is None and len(names):
        parsed.report.notes.append(
            f"the store has {parsed.sheet.kind} of {', '.join(names[:3])} already, from another file of this name: if "
            "those are of another node, import both into a new store with --node NAME"
        )


def _check_another_file(parsed: Parsed, stored: pl.DataFrame) -> None:
    """Refuse readings between those of another GPU whose file has the same name, such as n1/gpu.csv and n2/gpu.csv."""
    for (name,), rows in parsed.frame.filter(_after_the_file(parsed.sheet)).group_by("gpu", maintain_order=True):
        stored_times = stored.filter(pl.col("gpu") == name)["ts"]
        within = rows.filter(pl.col("ts").is_between(stored_times.min(), stored_times.max()))["ts"]
        if min((~within.is_in(stored_times.implode())).sum(), (~stored_times.is_in(rows["ts"].implode())).sum()) > 1:
            raise InputError(
                f"{parsed.sheet.file}: the store has other readings of {name} of the same time, from another file of "
                "this name: they are of another GPU; give this one a name of its own (--node NAME, --gpu NAME, or uuid)"
            )


def _known_by_number(store: Store, frame: pl.DataFrame, cluster: str) -> list[str]:
    """The names of GPUs of which the store has no UUID, and these rows have one."""
    with_uuids = frame.filter(pl.col("uuid").str.starts_with("GPU-"))
    if with_uuids.is_empty():
        return []
    names = with_uuids.select(pl.format("{}/{}", "node", "slot")).unique().to_series()
    serials = with_uuids["serial"].unique() if "serial" in frame.columns else pl.Series(dtype=pl.String)
    bare = "uuid is null and parent is null and (name <> gpu or gpu = serial)"
    known = store.sql(f"select cluster, name, serial from gpus_now where {bare}").polars()
    known = known.filter(
        pl.col("cluster") == cluster,
        pl.col("name").is_in(names.implode()) | pl.col("serial").is_in(serials.implode()).fill_null(False),
    )
    return sorted(known["name"], key=by_number)


def _unseen(parsed: Parsed, stored: pl.DataFrame) -> pl.DataFrame:
    """The readings that the store does not have: at a new instant, or with new metrics at a stored instant.

    A reading whose metrics the store has is a duplicate. A reading that contradicts a stored metric is refused. A
    reading that adds metrics to a stored instant gets the stored metrics, too, because it replaces the stored row.
    """
    frame, report = parsed.frame, parsed.report
    if not stored.height:
        return frame
    contents = [c for c in stored.columns if c not in ("ts", "cluster", "gpu", "import_id")]
    metrics = [c for c in frame.columns if c in contents and c not in ("quality", "power_window_ms")]
    joined = frame.join(
        stored.select("gpu", "ts", *contents).with_columns(in_store=True),
        on=["gpu", "ts"], how="left", suffix=" stored", maintain_order="left",
    )  # fmt: skip
    new = pl.any_horizontal(pl.col(m).is_not_null() & pl.col(f"{m} stored").is_null() for m in metrics)
    differs = pl.any_horizontal((pl.col(m) != pl.col(f"{m} stored")).fill_null(False) for m in metrics)
    in_store = pl.col("in_store").fill_null(False)
    contradicting = joined.filter(in_store & differs)[LINE].to_list()
    as_stored = {c: f"{c} stored" if c in frame.columns else c for c in contents}
    filled = [pl.coalesce(c, name).alias(c) if c in frame.columns else pl.col(name) for c, name in as_stored.items()]
    kept = joined.filter(~in_store | (new & ~differs)).with_columns(filled)
    kept = kept.select(*frame.columns, *(c for c in contents if c not in frame.columns))
    if contradicting:
        parsed.sheet.refused.add("the store has another reading of this GPU at this time", contradicting)
        report.refusals = parsed.sheet.refusals()
        report.total.refused += len(contradicting)
    report.total.duplicates += frame.height - kept.height - len(contradicting)
    report.total.kept = kept.height
    return kept


def _jobs(store: Store, parsed: Parsed) -> dict[str, pl.DataFrame]:
    of_exporter = parsed.sheet.source == JobSource.EXPORTER
    frame = allocations.going_on(store, parsed.frame) if of_exporter else parsed.frame
    kept = superseding.new_records(store, superseding.conformed(frame))
    report = parsed.report
    lines = frame.join(kept, on=superseding.KEY, how="semi", nulls_equal=True)[LINE].n_unique()
    report.total.duplicates += frame[LINE].n_unique() - lines
    report.total.kept = lines
    return {"jobs": kept, "events": superseding.new_events(store, parsed.events, parsed.sheet.options.cluster)}


def _timelines(store: Store, parsed: Parsed) -> dict[str, pl.DataFrame]:
    new, gpus = timelines.unseen(store, parsed.frame, parsed.sheet.options)
    return {"operations": _counted(parsed, new), "gpus": gpus}


def _node_power(store: Store, parsed: Parsed) -> dict[str, pl.DataFrame]:
    return {"node_power": _counted(parsed, node_power.unseen(store, parsed.frame))}


def _counted(parsed: Parsed, new: pl.DataFrame) -> pl.DataFrame:
    """The new ones among the rows; the report counts the rest as duplicates."""
    parsed.report.total.duplicates += parsed.frame.height - new.height
    parsed.report.total.kept = new.height
    return new.drop(LINE)


_PARSERS = {
    "runs": runs.parse, "jobs": allocations.parse, "telemetry": telemetry.parse, "timelines": timelines.parse,
    "node_power": node_power.parse,
}  # fmt: skip
_TABLES = {
    "runs": _runs, "telemetry": _telemetry, "jobs": _jobs, "timelines": _timelines, "node_power": _node_power,
}  # fmt: skip
