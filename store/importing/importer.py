"""Import a file of measurements into a store: read, recognise, parse, account for every row, append.

Importing is idempotent. A file whose content was imported before adds nothing; a row that another file
brought already is counted as a duplicate. Everything of one file is stored at once or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from . import runs, telemetry
from .content import LINE, Sheet, read
from .layout import Layout, Options, recognise
from .report import Counts, Report
from .values import Seen

if TYPE_CHECKING:
    from ..store import Store

VERSION = "1"  # grows when the same file would be read differently


def import_file(store: Store, path: Path, options: Options) -> Report:
    """Import one file and return its account.

    Raises InputError (UnitError) where the file cannot be used as a whole, and StoreError where the store
    cannot be written; nothing of the file is stored then.
    """
    sheet = read(path)
    provenance = _Provenance(sheet, options)
    before = provenance.earlier(store)
    if before is not None:
        return before
    layout = recognise(sheet, options)
    seen = Seen()
    report = Report(sheet.file, layout.name, options.cluster, sheet.sha256, Counts(rows=sheet.rows))
    owners = _owners(sheet, layout)
    tables = (_runs if layout.kind == "runs" else _telemetry)(store, sheet, layout, options, seen, report, owners)
    report.refusals, report.total.refused = sheet.refused.lines, sheet.refused.count
    report.placeholders, report.units, report.notes = seen.placeholders, seen.units, seen.notes
    report.ignored = layout.ignored(sheet)
    counts = report.total
    assert counts.rows == counts.kept + counts.duplicates + counts.refused, "a row is unaccounted for"
    if not counts.kept and not counts.duplicates:
        raise InputError(f"{path}: none of its {counts.rows} rows can be used: {_worst(report)}")
    tables["imports"] = provenance.rows(report)
    tables = {name: _with_source(name, frame, provenance.id) for name, frame in tables.items()}
    store.append({name: frame.to_arrow() for name, frame in tables.items()}, f"import-{provenance.id}")
    return report


def _worst(report: Report) -> str:
    worst = sorted(report.refusals.items(), key=lambda item: -len(item[1]))[:3]
    return "; ".join(f"{reason} ({len(lines)} rows, first line {min(lines)})" for reason, lines in worst)


def _with_source(name: str, frame: pl.DataFrame, source: str) -> pl.DataFrame:
    return frame if name == "results" else frame.with_columns(pl.lit(source).alias("import_id"))


def _owners(sheet: Sheet, layout: Layout) -> pl.DataFrame:
    """Which workload a line names, for the account of rows that are refused later."""
    if layout.kind != "runs" or "workload" not in layout.bound:
        return pl.DataFrame(schema={LINE: pl.Int64, "workload": pl.String})
    return sheet.frame.select(LINE, pl.col(layout.bound["workload"].column).alias("workload"))


def _runs(
    store: Store,
    sheet: Sheet,
    layout: Layout,
    options: Options,
    seen: Seen,
    report: Report,
    owners: pl.DataFrame,
) -> dict[str, pl.DataFrame]:
    found = runs.parse(sheet, layout, options, seen)
    known = store.scan("runs").filter(pl.col("cluster") == options.cluster).select("run_id").collect()
    repeated = found.frame["run_id"].is_in(known["run_id"].implode())
    found.duplicates.extend(found.frame.filter(repeated)[LINE].to_list())
    frame = found.frame.filter(~repeated)
    report.total.kept, report.total.duplicates = frame.height, len(found.duplicates)
    report.gpus = found.frame["gpu"].n_unique()
    if options.workload is not None or not owners.height:
        owners = owners.with_columns(pl.lit(options.workload or sheet.file.split(".")[0]).alias("workload"))
    _count_workloads(report, found.frame, frame, found.duplicates, sheet.refused.lines, owners)
    results = frame.select(
        "run_id", "cluster", "workload", "gpu", "value",
        pl.lit(0).alias("repeat"), pl.lit("time").alias("figure"), pl.lit("ms").alias("unit"),
    )  # fmt: skip
    gpus = (
        frame.group_by("cluster", "gpu", "uuid", "place", "cabinet", "node", "slot")
        .agg(pl.col("began").min().alias("first_seen"))
        .sort("cluster", "gpu", "place", nulls_last=True)
    )
    run_columns = [
        "run_id", "cluster", "workload", "gpu", "job_id", "began",
        "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "conditions",
    ]  # fmt: skip
    return {
        "runs": frame.select(run_columns).with_columns(pl.lit("ok").alias("status")),
        "results": results,
        "gpus": gpus,
    }


def _count_workloads(
    report: Report,
    found: pl.DataFrame,
    kept: pl.DataFrame,
    duplicates: list[int],
    refused: dict[str, list[int]],
    owners: pl.DataFrame,
) -> None:
    """Split the account by workload; a refused row that names none of them counts for the most frequent."""
    names = Counter(found["workload"].to_list())
    if not names:
        return
    main = names.most_common(1)[0][0]
    owner = dict(owners.iter_rows())
    per = {name: Counts() for name in names}
    for name, number in Counter(kept["workload"].to_list()).items():
        per[name].kept = number
    for line in duplicates:
        per[_known(owner.get(line), per, main)].duplicates += 1
    for lines in refused.values():
        for line in lines:
            per[_known(owner.get(line), per, main)].refused += 1
    for counts in per.values():
        counts.rows = counts.kept + counts.duplicates + counts.refused
    report.workloads = per


def _known(name: str | None, per: dict[str, Counts], main: str) -> str:
    return name if name is not None and name in per else main


def _telemetry(
    store: Store,
    sheet: Sheet,
    layout: Layout,
    options: Options,
    seen: Seen,
    report: Report,
    owners: pl.DataFrame,  # noqa: ARG001 - the same shape as `_runs`
) -> dict[str, pl.DataFrame]:
    found = telemetry.parse(sheet, layout, options, seen)
    gpus = found.frame["gpu"].unique().to_list()
    known = store.scan("telemetry").filter(pl.col("gpu").is_in(gpus)).select("gpu", "ts").collect()
    frame = found.frame.join(known, on=["gpu", "ts"], how="anti", maintain_order="left")
    again = found.frame.join(known, on=["gpu", "ts"], how="semi", maintain_order="left")
    report.total.kept, report.total.duplicates = frame.height, len(found.duplicates) + again.height
    report.gpus = len(gpus)
    seen_first = (
        frame.group_by("gpu", "uuid").agg(pl.col("ts").min().alias("first_seen")).sort("gpu")
        .with_columns(pl.lit(options.cluster).alias("cluster"))
    )  # fmt: skip
    events = found.events.filter(pl.col("gpu").is_in(frame["gpu"].unique().to_list()))
    return {"telemetry": frame.drop(LINE, "uuid"), "events": events, "gpus": seen_first}


class _Provenance:
    """Where an import came from: the content's hash and the options, which together name it."""

    def __init__(self, sheet: Sheet, options: Options) -> None:
        self.sheet, self.options = sheet, options
        self.stated = json.dumps(options.as_dict(), sort_keys=True)
        self.id = hashlib.sha256(f"{sheet.sha256} {self.stated}".encode()).hexdigest()[:16]

    def earlier(self, store: Store) -> Report | None:
        """The account of an earlier import of the same content into this cluster, or None.

        Raises InputError where it was read with other options: facts are not rewritten.
        """
        rows = (
            store.scan("imports")
            .filter((pl.col("sha256") == self.sheet.sha256) & (pl.col("cluster") == self.options.cluster))
            .collect()
        )
        if not rows.height:
            return None
        if rows.filter(pl.col("options") == self.stated).height == 0:
            raise InputError(
                f"{self.sheet.file} was imported before with other options ({rows[0, 'options']}); "
                f"stored facts are not rewritten: import it into a new store"
            )
        report = Report(
            self.sheet.file,
            rows[0, "format"],
            self.options.cluster,
            self.sheet.sha256,
            Counts(),
            already=True,
        )
        report.total.rows = report.total.duplicates = int(rows["rows"].sum())
        return report

    def rows(self, report: Report) -> pl.DataFrame:
        """The rows of `imports`: one per workload, or one for a stream."""
        whole: dict[str, Any] = {
            "file": report.file,
            "sha256": report.sha256,
            "bytes": self.sheet.size,
            "format": report.format,
            "cluster": report.cluster,
            "placeholders": sum(report.placeholders.values()),
            "units": json.dumps(report.units, sort_keys=True),
            "options": self.stated,
            "notes": json.dumps(report.notes, ensure_ascii=False),
            "importer": VERSION,
            "imported_at": datetime.now(UTC).replace(tzinfo=None),
        }
        parts: dict[str | None, Counts] = dict(report.workloads.items()) or {None: report.total}
        rows = [{**whole, "workload": name, **counts.as_dict()} for name, counts in parts.items()]
        return pl.DataFrame(rows, schema_overrides={"workload": pl.String, "imported_at": pl.Datetime("ns")})
