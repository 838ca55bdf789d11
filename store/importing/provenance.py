"""What an import did, every row accounted for; and its source, as the table `imports` keeps it: the content's hash and
the options name an import."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ..schema import arrow_rows, texts_of
from .content import Content, Sheet
from .options import Options

if TYPE_CHECKING:
    from ..store import Store

VERSION = "10"  # raise it when the same file would be read differently
_SHOWN_LINES = 1000  # line numbers kept per reason; the count is always whole
_OF_ALL = ("timestamp", "began", "node")  # meanings of columns that all GPUs of a table may share


@dataclass
class Counts:
    """What became of the rows of one workload (or of a telemetry stream)."""

    rows: int = 0
    kept: int = 0
    duplicates: int = 0
    refused: int = 0

    def as_dict(self) -> dict[str, int]:
        return {"rows": self.rows, "kept": self.kept, "duplicates": self.duplicates, "refused": self.refused}


@dataclass
class Report:
    """The report on one imported file. Always rows == kept + duplicates + refused."""

    file: str
    format: str
    cluster: str
    sha256: str
    total: Counts
    kind: str = ""  # runs | telemetry | jobs | timelines | node_power
    workloads: dict[str, Counts] = field(default_factory=dict)
    gpus: int = 0
    ranks: int = 0  # of a timeline
    nodes: int = 0  # of the power of nodes
    refusals: dict[str, list[int]] = field(default_factory=dict)  # reason -> lines
    placeholders: dict[str, int] = field(default_factory=dict)  # column -> values turned into NULL
    units: dict[str, dict[str, str]] = field(default_factory=dict)  # column -> {unit, from}
    ignored: list[str] = field(default_factory=list)  # columns that are not stored
    notes: list[str] = field(default_factory=list)
    already: bool = False  # the file had been imported before; nothing was added

    @classmethod
    def of(cls, sheet: Sheet, sha256: str, total: Counts) -> Report:
        """The report on a sheet that was parsed."""
        report = cls(sheet.file, sheet.layout, sheet.options.cluster, sha256, total, sheet.kind)
        report.refusals, report.ignored, report.notes = sheet.refusals(), sheet.ignored(), sheet.notes
        report.placeholders, report.units = sheet.placeholders, sheet.units
        return report

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "format": self.format,
            "cluster": self.cluster,
            "sha256": self.sha256,
            "already_imported": self.already,
            **self.total.as_dict(),
            "gpus": self.gpus,
            "workloads": {name: counts.as_dict() for name, counts in self.workloads.items()},
            "refusals": [
                {"reason": reason, "count": len(lines), "lines": sorted(lines)[:_SHOWN_LINES]}
                for reason, lines in self.refusals.items()
            ],
            "placeholders": self.placeholders,
            "units": self.units,
            "ignored_columns": self.ignored,
            "notes": self.notes,
            **({"ranks": self.ranks} if self.kind == "timelines" else {}),
            **({"nodes": self.nodes} if self.kind == "node_power" else {}),
        }


class Provenance:
    """A file's content and the options with which it is read."""

    def __init__(self, loaded: Content, options: Options) -> None:
        self.loaded, self.options = loaded, options
        self.stated = texts_of(options.as_dict())
        name = f"{loaded.sha256} {json.dumps(options.as_dict(), sort_keys=True)}"
        self.id = hashlib.sha256(name.encode()).hexdigest()[:16]

    def earlier(self, store: Store) -> Report | None:
        """The report of an earlier import of the same content into this cluster, or None.

        Raises InputError if it was read with other options, and not as another GPU or node: stored rows are not
        changed.
        """
        of_this = (pl.col("sha256") == self.loaded.sha256) & (pl.col("cluster") == self.options.cluster)
        imports = store.collect(store.scan("imports").filter(of_this))
        same = imports.filter(pl.Series([stated == self.stated for stated in imports["options"]], dtype=pl.Boolean))
        if same.height:
            loaded, cluster = self.loaded, self.options.cluster
            report = Report(loaded.file, same[0, "format"], cluster, loaded.sha256, Counts(), already=True)
            report.total.rows = report.total.duplicates = int(same["rows"].sum())
            return report
        for stated, workload in imports.select("options", "workload").iter_rows():
            if not self._of_others(stated or {}, of_runs=workload is not None):
                raise InputError(
                    f"{self.loaded.file} was imported before, {self._differing(stated or {})}; stored rows are not "
                    "changed: leave this file out, or import it into a new store"
                )
        return None

    def rows(self, report: Report) -> pl.DataFrame:
        """The rows of `imports`: one per workload, or one for a stream."""
        shared: dict[str, Any] = {
            "file": report.file,
            "sha256": report.sha256,
            "bytes": self.loaded.size,
            "format": report.format,
            "cluster": report.cluster,
            "placeholders": sum(report.placeholders.values()),
            "units": [
                {"column_name": column, "unit": unit["unit"], "taken_from": unit["from"]}
                for column, unit in sorted(report.units.items())
            ],
            "options": self.stated,
            "notes": report.notes,
            "importer": VERSION,
            "imported_at": datetime.now(UTC).replace(tzinfo=None),
        }
        parts: dict[str | None, Counts] = dict(report.workloads.items()) or {None: report.total}
        rows = [{**shared, "workload": name, **counts.as_dict()} for name, counts in parts.items()]
        return pl.DataFrame(arrow_rows("imports", {name: [row[name] for row in rows] for name in rows[0]}))

    def _differing(self, earlier: Mapping[str, str | None]) -> str:
        """How earlier options differ: `with --unit power=W and without --at`."""
        phrases = []
        for key in {**self.stated, **earlier}:
            if self.stated.get(key) != (text := earlier.get(key)):
                option, _, column = key.partition(".")
                flag = f"--{option.replace('_', '-')}"
                phrases.append(f"without {flag}" if text is None else f"with {flag} {column}{'=' * bool(column)}{text}")
        return " and ".join(phrases)

    def _of_others(self, earlier: Mapping[str, str | None], *, of_runs: bool) -> bool:
        """Whether earlier options are of another node, as nodes that do nothing may write the same; of runs, of another
        GPU or workload; of readings, of another GPU and of other columns, in a table with a column for each."""
        differing = {key for key in {**earlier, **self.stated} if earlier.get(key) != self.stated.get(key)}
        both_name = {key for key in ("node", "gpu") if earlier.get(key) and self.stated.get(key)}
        if differing <= ({"gpu", "workload"} if of_runs else set()) | ({"node"} & both_name):
            return True
        before, columns = (
            {key for key, text in stated.items() if key.startswith("map.") and str(text).split(":")[0] not in _OF_ALL}
            for stated in (earlier, self.stated)
        )
        return "gpu" in differing & both_name and bool(columns) and not columns & before
