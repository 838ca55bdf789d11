"""Import a file of measurements into a store: read, recognise and parse it, count every row, append.

Importing is idempotent. A file whose content was imported before adds nothing. A row that came from another file before
is counted as a duplicate. Everything of one file is stored at once or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from .. import views
from ..names import by_number
from ..schema import arrow_rows, texts_of
from ..vocabulary import JobSource
from . import allocations, formats, runs, superseding, telemetry
from .content import LINE, Sheet
from .layout import Layout, recognise
from .meanings import BOARD, LIMITS
from .options import Options
from .report import Counts, Report
from .values import Seen

if TYPE_CHECKING:
    from ..store import Store

VERSION = "5"  # raise it when the same file would be read differently


@dataclass
class Parsed:
    """What a file holds, before anything is stored: rows of runs, telemetry or jobs, and the report on them."""

    sheet: Sheet
    kind: str  # runs | telemetry | jobs
    frame: pl.DataFrame  # the columns of the tables, and `LINE`
    events: pl.DataFrame
    duplicates: list[int]  # line numbers
    workloads: pl.DataFrame  # LINE, workload: the workload of each row, also of refused rows
    report: Report


def read_file(path: Path, options: Options) -> Parsed:
    """Read and parse one file; nothing is stored. Raises InputError (UnitError) if it cannot be used."""
    return _parse(formats.read(formats.load(path), options), options)


def import_file(into: Store | Path, path: Path, options: Options) -> Report:
    """Import one file and return the report. `into`: a store, or where one is made if the file can be used.

    Raises InputError (UnitError) where the file cannot be used as a whole, and StoreError where the store
    cannot be written; nothing of the file is stored then.
    """
    from ..store import Store

    loaded = formats.load(path)
    provenance = _Provenance(loaded, options)
    store = None if isinstance(into, Path) else into
    if store is not None and (before := provenance.same(store)) is not None:
        return before  # before a large file is cut into rows, which takes long
    sheet = formats.read(loaded, options)
    if store is not None:
        if (before := provenance.earlier(store)) is not None:
            return before
        known, models, addresses = (
            partial(_known, store, options.cluster, column) for column in ("name", "model", "node || ' ' || pci_bus_id")
        )
        cards = partial(_cards, store, options.cluster)
        options = replace(options, known=known, models=models, addresses=addresses, cards=cards)
    found = _parse(sheet, options)
    store = Store.create(into) if isinstance(into, Path) else into
    with store.exclusive():  # no other import may store the same rows between the check and the append
        before = provenance.earlier(store)
        if before is not None:
            return before
        tables = _TABLES[found.kind](store, found, options)
        if sheet.jobs is not None:
            tables["jobs"] = allocations.beside_telemetry(store, sheet.jobs, options, found.report)
        tables["imports"] = provenance.rows(found.report)
        source = pl.lit(provenance.id).alias("import_id")
        tables = {n: frame if n == "results" else frame.with_columns(source) for n, frame in tables.items()}
        found.frame = found.frame.clear()  # each copy of the rows is large
        store.append({name: tables.pop(name).to_arrow() for name in list(tables)}, f"import-{provenance.id}")
    return found.report


def _known(store: Store, cluster: str, column: str) -> dict[str, str]:
    """The GPUs of a cluster: key -> what an expression of columns gives."""
    rows = store.sql(f"select cluster, gpu, {column} as it from gpus_now where {column} is not null").to_pylist()
    return {row["gpu"]: row["it"] for row in rows if row["cluster"] == cluster}


def _cards(store: Store, cluster: str) -> pl.DataFrame:
    """The slots of a cluster in which several cards were, one after another: name, card, since."""
    several = f"SELECT * FROM ({views.cards('gpus')}) QUALIFY count(DISTINCT gpu) OVER (PARTITION BY cluster, name) > 1"
    found = store.sql(f"SELECT cluster, name, gpu AS card, since FROM ({several}) WHERE since < until").polars()
    return found.filter(pl.col("cluster") == cluster).drop("cluster")


def _parse(sheet: Sheet, options: Options) -> Parsed:
    layout = recognise(sheet, options)
    seen = Seen(notes=layout.notes)
    if options.model is not None and "model" in layout.bound:
        seen.notes.append("the file names the model of its GPUs, so --model is not used")
    workloads = _workloads(sheet, layout, options)
    if layout.kind == "runs":
        frame, events, duplicates = runs.parse(sheet, layout, options, seen)
    elif layout.kind == "jobs":
        frame, events, duplicates = allocations.parse(sheet, layout, options, seen)
    else:
        frame, events, duplicates = telemetry.parse(sheet, layout, options, seen)
    if options.at is not None and "at" not in sheet.used:
        seen.notes.append("the file has its own times, so --at is not used")
    if options.every is not None and "every" not in sheet.used:
        seen.notes.append("no times of the file are counted, so --every is not used")
    counts = Counts(sheet.rows, frame[LINE].n_unique())
    report = Report(sheet.file, layout.name, options.cluster, sheet.sha256, counts, layout.kind)
    report.total.duplicates, report.total.refused = len(duplicates), sheet.refused.count
    report.gpus = frame["gpu"].drop_nulls().n_unique()
    report.refusals = sheet.refusals()
    report.placeholders, report.units, report.notes = seen.placeholders, seen.units, seen.notes
    report.ignored = layout.ignored(sheet)
    assert counts.rows == counts.kept + counts.duplicates + counts.refused, "the rows do not add up"
    if not counts.kept:
        raise InputError(f"{sheet.file}: none of its {counts.rows} rows can be used: {_worst(report)}")
    sheet.frame = sheet.frame.clear()
    return Parsed(sheet, layout.kind, frame, events, duplicates, workloads, report)


def _worst(report: Report) -> str:
    worst = sorted(report.refusals.items(), key=lambda item: -len(item[1]))[:3]
    return "; ".join(f"{reason} ({len(lines)} rows, first line {min(lines)})" for reason, lines in worst)


def _as_given(option: object) -> str:
    """An option's value, as on the command line."""
    pairs = option.items() if isinstance(option, dict) else [("", option)]
    return ",".join(f"{key}={value}" if key else str(value) for key, value in pairs)


def _unfolded(stated: Mapping[str, str | None]) -> dict[str, Any]:
    """The options as `Options.as_dict` has them, of those that a row of `imports` states."""
    columns = {option: dict[str, str | None]() for option in ("map", "unit")}
    whole: dict[str, Any] = {}
    for name, value in stated.items():
        option, of_column, column = name.partition(".")
        if of_column:
            columns[option][column] = value
        else:
            whole[name] = value
    return whole | columns


def _workloads(sheet: Sheet, layout: Layout, options: Options) -> pl.DataFrame:
    """Which workload each line names, to count rows that are refused later."""
    name: pl.Expr = pl.lit(None, pl.String)
    if layout.kind == "runs" and options.workload is None and "workload" in layout.bound:
        name = pl.col(layout.bound["workload"].column)
    return sheet.frame.select(LINE, name.alias("workload"))


def _runs(store: Store, found: Parsed, options: Options) -> dict[str, pl.DataFrame]:
    """The rows of each table. Runs that the store already has are counted as duplicates."""
    known = store.collect(store.scan("runs").filter(pl.col("cluster") == options.cluster).select("run_id", "gpu"))
    again = found.frame["run_id"].is_in(known["run_id"].implode())
    frame = found.frame.filter(~again)
    duplicates = [*found.duplicates, *found.frame.filter(again)[LINE]]
    report = found.report
    if options.gpu is None:
        earlier = frame.filter(_after_the_file(found.sheet))["gpu"].unique().sort()
        earlier = earlier.filter(earlier.is_in(known["gpu"].unique().implode()))
        if len(earlier):
            report.notes.append(
                f"the store has runs of {', '.join(earlier[:3])} already, from another file of this name: if those are "
                "of another node, import both into a new store with --node NAME"
            )
    report.total.kept, report.total.duplicates = frame.height, len(duplicates)
    report.workloads = _by_workload(found, frame, duplicates)
    gpus = (
        frame.group_by("cluster", "gpu", "uuid", "place", "cabinet", "node", "slot", *BOARD)
        .agg(pl.col("began").min().alias("first_seen"))
        .sort("cluster", "gpu", "place", *BOARD, nulls_last=True)
    )
    run_columns = [
        "run_id", "cluster", "workload", "gpu", "job_id", "began",
        "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "conditions", "status", "status_detail",
    ]  # fmt: skip
    return {
        "runs": frame.unique("run_id", keep="first", maintain_order=True).select(run_columns),
        "results": runs.results(frame),
        "gpus": gpus,
        "events": superseding.new_events(
            store, found.events.join(frame, on=LINE, how="semi").drop(LINE), options.cluster
        ),
    }


def _by_workload(found: Parsed, kept: pl.DataFrame, duplicates: list[int]) -> dict[str, Counts]:
    """The counts by workload. A refused row that names none of them counts for the most frequent workload."""
    main, *_ = names = found.frame["workload"].value_counts(sort=True)["workload"].to_list()
    refused = [key for keys in found.sheet.refused.lines.values() for key in keys]
    per = {name: Counts() for name in names}
    for field, lines in (("kept", kept[LINE].to_list()), ("duplicates", duplicates), ("refused", refused)):
        owner = pl.DataFrame({LINE: lines}, schema={LINE: pl.Int64}).join(found.workloads, on=LINE, how="left")
        name = pl.when(pl.col("workload").is_in(names)).then(pl.col("workload")).otherwise(pl.lit(main))
        for workload, number in owner.group_by(name.alias("workload")).len().iter_rows():
            setattr(per[workload], field, number)
    for counts in per.values():
        counts.rows = counts.kept + counts.duplicates + counts.refused
    return per


def _telemetry(store: Store, found: Parsed, options: Options) -> dict[str, pl.DataFrame]:
    """The rows of each table. Readings that the store already has are counted as duplicates."""
    gpu, ts = pl.col("gpu"), pl.col("ts")
    of_these = gpu.is_in(found.frame["gpu"].unique().implode()) & (pl.col("cluster") == options.cluster)
    known = store.scan("telemetry").filter(of_these)
    unnamed = found.frame.filter(pl.col("uuid").is_null())["gpu"].unique()
    earlier = store.collect(known.filter(gpu.is_in(unnamed.implode())).select("gpu").unique())["gpu"].sort()
    if len(earlier):
        found.report.notes.append(
            f"the store has readings of {', '.join(earlier[:3])} already: if that is another GPU of the same name, "
            f"give each a name of its own (--gpu NAME, or query uuid)"
        )
    if len(numbered := _known_by_number(store, found.frame, options.cluster)):
        found.report.notes.append(
            f"the store knows {', '.join(numbered[:3])}{', ...' if len(numbered) > 3 else ''} by node and number only, "
            "and this file has UUIDs there: each counts as two GPUs, and so does its energy; import files with UUIDs "
            "into a new store first, and files with numbers find their GPUs"
        )
    span = ts.is_between(found.frame["ts"].min(), found.frame["ts"].max())
    stored = store.collect(known.filter(span))
    if options.gpu is None:
        _of_another_file(found, stored)
    frame = _unseen(found, stored)
    cluster = pl.lit(options.cluster).alias("cluster")
    of_gpus = ["uuid", "node", "slot", *BOARD, *(c for c in ("parent", *LIMITS) if c in found.frame.columns)]
    named = ["gpu", *of_gpus]
    gpus = frame.group_by(named).agg(ts.min().alias("first_seen")).sort(named, nulls_last=True).with_columns(cluster)
    events = found.events.filter(gpu.is_in(frame["gpu"].unique().implode()))
    readings = frame.drop(LINE, *of_gpus).with_columns(cluster)
    return {"telemetry": readings, "events": superseding.new_events(store, events, options.cluster), "gpus": gpus}


def _after_the_file(sheet: Sheet) -> pl.Expr:
    """Whether a row's GPU is named after its file, as nothing else names it."""
    stem, gpu = sheet.file.split(".")[0], pl.col("gpu")
    return pl.col("uuid").is_null() & pl.col("node").is_null() & ((gpu == stem) | gpu.str.starts_with(f"{stem}:"))


def _of_another_file(found: Parsed, stored: pl.DataFrame) -> None:
    """Refuse readings between those of another GPU whose file has the same name, such as n1/gpu.csv and n2/gpu.csv."""
    for (name,), rows in found.frame.filter(_after_the_file(found.sheet)).group_by("gpu", maintain_order=True):
        theirs = stored.filter(pl.col("gpu") == name)["ts"]
        within = rows.filter(pl.col("ts").is_between(theirs.min(), theirs.max()))["ts"]
        if min((~within.is_in(theirs.implode())).sum(), (~theirs.is_in(rows["ts"].implode())).sum()) > 1:
            raise InputError(
                f"{found.sheet.file}: the store has other readings of {name} of the same time, from another file of "
                "this name: they are of another GPU; give this one a name of its own (--node NAME, --gpu NAME, or uuid)"
            )


def _known_by_number(store: Store, frame: pl.DataFrame, cluster: str) -> list[str]:
    """The names of GPUs of which the store has no UUID, and these rows have one."""
    placed = frame.filter(pl.col("uuid").str.starts_with("GPU-") & pl.col("slot").is_not_null())
    names = placed.select(pl.format("{}/{}", "node", "slot").alias("name")).unique().drop_nulls()["name"]
    if not len(names):
        return []
    bare = store.sql("select cluster, name, gpu from gpus_now where uuid is null and parent is null and name <> gpu")
    known = {row["name"] for row in bare.to_pylist() if row["cluster"] == cluster}
    return sorted(known & set(names), key=by_number)


def _unseen(found: Parsed, stored: pl.DataFrame) -> pl.DataFrame:
    """The readings that the store does not have: at a new instant, or with new metrics at a stored instant.

    A reading whose metrics the store has is a duplicate. A reading that contradicts a stored metric is refused. A
    reading that adds metrics to a stored instant gets the stored metrics, too, because it replaces the stored row.
    """
    frame, report = found.frame, found.report
    contents = [c for c in stored.columns if c not in ("ts", "cluster", "gpu", "import_id")]
    metrics = [c for c in frame.columns if c in contents and c not in ("quality", "power_window_ms")]
    known = stored.select("gpu", "ts", *contents)
    both = frame.join(
        known.with_columns(seen=True), on=["gpu", "ts"], how="left", suffix=" stored", maintain_order="left"
    )
    new = pl.any_horizontal(pl.col(m).is_not_null() & pl.col(f"{m} stored").is_null() for m in metrics)
    other = pl.any_horizontal((pl.col(m) != pl.col(f"{m} stored")).fill_null(False) for m in metrics)
    seen = pl.col("seen").fill_null(False)
    contradicting = both.filter(seen & other)[LINE].to_list()
    as_stored = {c: f"{c} stored" if c in frame.columns else c for c in contents}
    filled = [pl.coalesce(c, name).alias(c) if c in frame.columns else pl.col(name) for c, name in as_stored.items()]
    kept = both.filter(~seen | (new & ~other)).with_columns(filled)
    kept = kept.select(*frame.columns, *(c for c in contents if c not in frame.columns))
    if contradicting:
        found.sheet.refused.add("the store has another reading of this GPU at this time", contradicting)
        report.refusals = found.sheet.refusals()
        report.total.refused += len(contradicting)
    report.total.duplicates += frame.height - kept.height - len(contradicting)
    report.total.kept = kept.height
    return kept


def _jobs(store: Store, found: Parsed, options: Options) -> dict[str, pl.DataFrame]:
    """The rows of `jobs`. Rows whose allocations the store has just so are counted as duplicates."""
    frame = allocations.going_on(store, found.frame) if found.sheet.source == JobSource.EXPORTER else found.frame
    kept = superseding.new_records(store, superseding.conformed(frame))
    report = found.report
    lines = frame.join(kept, on=superseding.KEY, how="semi", nulls_equal=True)[LINE].n_unique()
    report.total.duplicates += found.frame[LINE].n_unique() - lines
    report.total.kept = lines
    return {"jobs": kept, "events": superseding.new_events(store, found.events, options.cluster)}


_OF_ALL = ("timestamp", "began", "node")  # meanings of columns that all GPUs of a table may share
_TABLES = {"runs": _runs, "telemetry": _telemetry, "jobs": _jobs}


class _Provenance:
    """The source of an import: the content's hash and the options. Together they name the import."""

    def __init__(self, loaded: formats.Content, options: Options) -> None:
        self.loaded, self.options = loaded, options
        self.stated = texts_of(options.as_dict())
        said = json.dumps(options.as_dict(), sort_keys=True)
        self.id = hashlib.sha256(f"{loaded.sha256} {said}".encode()).hexdigest()[:16]

    def earlier(self, store: Store) -> Report | None:
        """The report of an earlier import of the same content into this cluster, or None.

        Raises InputError if it was read with other options: stored rows are not changed.
        """
        if (same := self.same(store)) is not None:
            return same
        rows = self._imports(store)
        known = [
            (_unfolded(stated or {}), workload) for stated, workload in rows.select("options", "workload").iter_rows()
        ]
        of_others = all(self._of_another_gpu(options) for options, _ in known)
        if not of_others and not any(self._reads_alike(*row) for row in known):
            raise InputError(
                f"{self.loaded.file} was imported before, {self._differing(known[0][0])}; stored rows are not "
                "changed: leave this file out, or import it into a new store"
            )
        return None  # at most names differ: rows that are the same runs are found by their ids

    def same(self, store: Store) -> Report | None:
        """The report of an earlier import of the same content with the same options, or None."""
        imports = self._imports(store)
        same = imports.filter(pl.Series([stated == self.stated for stated in imports["options"]], dtype=pl.Boolean))
        if not same.height:
            return None
        of, cluster = self.loaded, self.options.cluster
        report = Report(of.file, same[0, "format"], cluster, of.sha256, Counts(), already=True)
        report.total.rows = report.total.duplicates = int(same["rows"].sum())
        return report

    def _imports(self, store: Store) -> pl.DataFrame:
        of_this = (pl.col("sha256") == self.loaded.sha256) & (pl.col("cluster") == self.options.cluster)
        return store.collect(store.scan("imports").filter(of_this))

    def _differing(self, earlier: Mapping[str, Any]) -> str:
        """How earlier options differ: `with --unit power=W and without --at`."""
        now = _unfolded(self.stated)
        keys = [key for key in {**self.options.as_dict(), **earlier} if now.get(key) != earlier.get(key)]
        told = []
        for key in keys:
            flag = f"--{key.replace('_', '-')}"
            told.append(f"with {flag} {_as_given(earlier[key])}" if earlier.get(key) else f"without {flag}")
        return " and ".join(told)

    def _reads_alike(self, earlier: Mapping[str, Any], workload: str | None) -> bool:
        """Whether earlier options give the same rows. Of runs, --gpu and --workload change only names; a reading under
        another --gpu would be there twice."""
        now = _unfolded(self.stated)
        names = ("workload",) if workload is None else ("gpu", "workload")
        return all(earlier.get(key) == value for key, value in now.items() if key not in names)

    def _of_another_gpu(self, earlier: Mapping[str, Any]) -> bool:
        """Whether the earlier options are of another GPU and of other columns, in a table with a column for each."""
        now = _unfolded(self.stated)
        known, asked = (
            {column for column, meaning in said["map"].items() if meaning.partition(":")[0] not in _OF_ALL}
            for said in (earlier, now)
        )
        named = bool(earlier["gpu"] and now["gpu"] and earlier["gpu"] != now["gpu"])
        return named and bool(asked) and not asked & known and earlier["time_zone"] == now["time_zone"]

    def rows(self, report: Report) -> pl.DataFrame:
        """The rows of `imports`: one per workload, or one for a stream."""
        whole: dict[str, Any] = {
            "file": report.file,
            "sha256": report.sha256,
            "bytes": self.loaded.size,
            "format": report.format,
            "cluster": report.cluster,
            "placeholders": sum(report.placeholders.values()),
            "units": [
                {"column_name": column, "unit": known["unit"], "taken_from": known["from"]}
                for column, known in sorted(report.units.items())
            ],
            "options": self.stated,
            "notes": report.notes,
            "importer": VERSION,
            "imported_at": datetime.now(UTC).replace(tzinfo=None),
        }
        parts: dict[str | None, Counts] = dict(report.workloads.items()) or {None: report.total}
        rows = [{**whole, "workload": name, **counts.as_dict()} for name, counts in parts.items()]
        return pl.DataFrame(arrow_rows("imports", {name: [row[name] for row in rows] for name in rows[0]}))
