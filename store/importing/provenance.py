"""The source of an import, as the table `imports` keeps it: the content's hash and the options name an import."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ..schema import arrow_rows, texts_of
from .formats import Content
from .options import Options
from .report import Counts, Report

if TYPE_CHECKING:
    from ..store import Store

VERSION = "6"  # raise it when the same file would be read differently
_OF_ALL = ("timestamp", "began", "node")  # meanings of columns that all GPUs of a table may share


class Provenance:
    """A file's content and the options with which it is read."""

    def __init__(self, loaded: Content, options: Options) -> None:
        self.loaded, self.options = loaded, options
        self.stated = texts_of(options.as_dict())
        name = f"{loaded.sha256} {json.dumps(options.as_dict(), sort_keys=True)}"
        self.id = hashlib.sha256(name.encode()).hexdigest()[:16]

    def same(self, store: Store) -> Report | None:
        """The report of an earlier import of the same content with the same options, or None."""
        imports = self._imports(store)
        same = imports.filter(pl.Series([stated == self.stated for stated in imports["options"]], dtype=pl.Boolean))
        if not same.height:
            return None
        loaded, cluster = self.loaded, self.options.cluster
        report = Report(loaded.file, same[0, "format"], cluster, loaded.sha256, Counts(), already=True)
        report.total.rows = report.total.duplicates = int(same["rows"].sum())
        return report

    def earlier(self, store: Store) -> Report | None:
        """The report of an earlier import of the same content into this cluster, or None.

        Raises InputError if it was read with other options: stored rows are not changed.
        """
        if (same := self.same(store)) is not None:
            return same
        before = [
            (_unfolded(stated or {}), workload)
            for stated, workload in self._imports(store).select("options", "workload").iter_rows()
        ]
        of_others = all(self._of_another_gpu(options) or self._of_another_node(options) for options, _ in before)
        if not of_others and not any(self._reads_alike(*options) for options in before):
            raise InputError(
                f"{self.loaded.file} was imported before, {self._differing(before[0][0])}; stored rows are not "
                "changed: leave this file out, or import it into a new store"
            )
        return None  # at most names differ: rows that are the same runs are found by their ids

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

    def _imports(self, store: Store) -> pl.DataFrame:
        of_this = (pl.col("sha256") == self.loaded.sha256) & (pl.col("cluster") == self.options.cluster)
        return store.collect(store.scan("imports").filter(of_this))

    def _differing(self, earlier: Mapping[str, Any]) -> str:
        """How earlier options differ: `with --unit power=W and without --at`."""
        now = _unfolded(self.stated)
        phrases = []
        for key in {**self.options.as_dict(), **earlier}:
            if now.get(key) != earlier.get(key):
                flag = f"--{key.replace('_', '-')}"
                phrases.append(f"with {flag} {_as_given(earlier[key])}" if earlier.get(key) else f"without {flag}")
        return " and ".join(phrases)

    def _reads_alike(self, earlier: Mapping[str, Any], workload: str | None) -> bool:
        """Whether earlier options give the same rows. Of runs, --gpu and --workload change only names; a reading under
        another --gpu would be there twice."""
        names = ("workload",) if workload is None else ("gpu", "workload")
        return all(earlier.get(key) == value for key, value in _unfolded(self.stated).items() if key not in names)

    def _of_another_node(self, earlier: Mapping[str, Any]) -> bool:
        """Whether only --node differs: nodes that do nothing may write the same."""
        now = _unfolded(self.stated)
        return bool(earlier.get("node") and now.get("node")) and {**earlier, "node": now["node"]} == now

    def _of_another_gpu(self, earlier: Mapping[str, Any]) -> bool:
        """Whether the earlier options are of another GPU and of other columns, in a table with a column for each."""
        now = _unfolded(self.stated)
        before, columns = (
            {column for column, meaning in options["map"].items() if meaning.partition(":")[0] not in _OF_ALL}
            for options in (earlier, now)
        )
        of_other_name = bool(earlier["gpu"] and now["gpu"] and earlier["gpu"] != now["gpu"])
        return of_other_name and bool(columns) and not columns & before and earlier["time_zone"] == now["time_zone"]


def _as_given(option: object) -> str:
    """An option's value, as on the command line."""
    pairs = option.items() if isinstance(option, dict) else [("", option)]
    return ",".join(f"{key}={value}" if key else str(value) for key, value in pairs)


def _unfolded(stated: Mapping[str, str | None]) -> dict[str, Any]:
    """The options as `Options.as_dict` has them, of those that a row of `imports` states."""
    columns = {option: dict[str, str | None]() for option in ("map", "unit")}
    single: dict[str, Any] = {}
    for name, value in stated.items():
        option, of_column, column = name.partition(".")
        if of_column:
            columns[option][column] = value
        else:
            single[name] = value
    return single | columns
