"""The work of `whorl jobs import`: ask `sacct` or read what it said, read tags, find the GPUs, store what is new."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import InputError, SchedulerError
from ...store import Store
from ...store.importing import superseding
from ...store.importing.content import LINE, load
from ...store.vocabulary import JobSource, TagState
from . import capacity, mapping, pseudonyms, sacct, storing, tags
from .tagging import SPOOL

_ROWS = 500_000  # stored at once
_NAMING_GPUS = [source.value for source in (JobSource.TAG, JobSource.EXPORTER, JobSource.SCONTROL, JobSource.CGROUP)]
_OTHER_CLUSTER = (
    "the store knows GPUs of cluster {} and none of {}: jobs and GPUs meet only under one name, so give --cluster {}"
)


@dataclass
class Report:
    """What an import did. Every line is a stored or known allocation, or passed over, or refused."""

    cluster: str = ""
    source: str = ""
    lines: int = 0
    allocations: int = 0
    stored: int = 0
    known: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    refused: dict[str, list[int]] = field(default_factory=dict)  # reason -> lines
    with_gpus: int = 0  # allocations of which every GPU is known
    unknown: dict[str, int] = field(default_factory=dict)  # why not -> allocations
    tags: int = 0
    tags_stored: int = 0
    tags_unknown: dict[str, int] = field(default_factory=dict)
    tags_refused: dict[str, list[str]] = field(default_factory=dict)  # reason -> files
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        accounting = {
            "source": self.source,
            "lines": self.lines,
            "allocations": self.allocations,
            "stored": self.stored,
            "known": self.known,
            "passed_over": self.passed,
            "refused": [{"reason": r, "count": len(n), "lines": n[:1000]} for r, n in self.refused.items()],
            "gpus_known": self.with_gpus,
            "gpus_unknown": self.unknown,
        }
        tagged = {
            "read": self.tags,
            "stored": self.tags_stored,
            "gpus_unknown": self.tags_unknown,
            "refused": [{"reason": r, "count": len(n), "files": n[:1000]} for r, n in self.tags_refused.items()],
        }
        return {
            "schema": "whorl.jobs_import/1",
            "cluster": self.cluster or None,
            "accounting": accounting if self.source else None,
            "tags": tagged,
            "notes": self.notes,
        }


def import_jobs(
    store: str | Path | Store,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    file: Path | None = None,
    tag_folders: Sequence[Path] = (),
    cluster: str | None = None,
    time_zone: str | None = None,
    gpus_per_node: Sequence[str] = (),
    anonymise: bool = False,
    clear: bool = False,
) -> Report:
    """Store who had which GPU: from sacct (`since`, `until`: UTC), from its saved output (`file`), and from tags.

    The store's own folder of tags is always read. `clear` removes the tags that were stored. Raises InputError for what
    cannot be used and SchedulerError where accounting does not answer; then nothing is stored. Raises StoreError where
    the store cannot be written; then some may be stored, and the rest is when it is run again.
    """
    if cluster is not None and not cluster.strip():
        raise InputError("--cluster is empty: give it a name")
    own = (store.root if isinstance(store, Store) else Path(store)) / SPOOL
    folders = [*tag_folders, *([own] if own.is_dir() else [])]
    if file is None and since is None and not folders:
        raise InputError(
            "say what to import: --since DATE asks sacct, --file FILE reads its saved output, --tags FOLDER reads tags"
        )
    report = Report()
    numbers = capacity.given(gpus_per_node)
    accounts, about = None, {}
    if file is not None:
        data = load(file)
        text = data.decode("utf-8-sig", "replace")
        about = {"file": file.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        accounts = sacct.read(text, file.name, cluster, time_zone)
    elif since is not None:
        text = sacct.ask(since, until)
        about = {"file": "sacct", "sha256": hashlib.sha256(text.encode()).hexdigest(), "bytes": len(text.encode())}
        accounts = sacct.read(text, "sacct", cluster, None)
        numbers = _asked(report) | numbers
    spool = tags.read(folders)
    of_tags = numbers
    if since is None and any(one.by_index and numbers.get(one.node) is None for one in spool.events):
        of_tags = numbers if capacity.EVERY in numbers else _asked(report) | numbers
    opened = store if isinstance(store, Store) else Store.create(store)
    with opened.exclusive():
        secret = pseudonyms.key(opened.root, make=anonymise)
        tagged = _store_tags(opened, spool, cluster, secret, of_tags, report)
        if accounts is not None:
            report.source = str(about["file"])
            _store_records(opened, accounts, about, secret, numbers, report)
        _place_again(opened, tagged, numbers)
    named = pl.col("user").is_not_null() & ~pl.col("user").str.starts_with(pseudonyms.USER)
    if anonymise and opened.collect(opened.scan("jobs").filter(named).head(1)).height:
        report.notes.append("the table `jobs` still has names in records of earlier imports: nothing stored is changed")
    if secret is not None and not anonymise:
        report.notes.append("this store keeps pseudonyms of users and accounts (it has a key), and so does this import")
    if clear:
        for path in spool.files:
            with contextlib.suppress(OSError):
                path.unlink()
    return report


def _asked(report: Report) -> dict[str, int]:
    """How many GPUs Slurm says that each node has."""
    try:
        return capacity.asked()
    except SchedulerError as error:
        report.notes.append(f"how many GPUs a node has is not known: {error}")
        return {}


def _store_records(
    store: Store,
    accounts: sacct.Accounts,
    about: dict[str, object],
    secret: bytes | None,
    numbers: dict[str, int],
    report: Report,
) -> None:
    report.lines, report.passed, report.refused = accounts.lines, accounts.passed, accounts.refused.lines
    report.notes += accounts.notes
    jobs = accounts.frame
    clusters = jobs["cluster"].unique().sort().to_list()
    report.cluster = ", ".join(clusters)
    report.allocations = jobs.height
    storing.append_events(store, accounts.backward)
    if not jobs.height:
        return
    _note_other_cluster(store, clusters, report)
    counts = {"rows": accounts.lines, "refused": accounts.refused.count, "format": JobSource.SACCT.value}
    counts |= {"cluster": report.cluster, "duplicates": sum(accounts.passed.values())}
    for part in _in_parts(jobs):
        rows, unknown = _placed(store, part, numbers)
        for why, number in unknown.items():
            report.unknown[why] = report.unknown.get(why, 0) + number
        report.with_gpus += part.height - rows.filter(pl.col("gpu").is_null())["allocation"].n_unique()
        stored, known = storing.append(store, rows, {**about, **counts}, secret=secret)
        report.stored, report.known = report.stored + stored, report.known + known


def _in_parts(jobs: pl.DataFrame) -> list[pl.DataFrame]:
    """Jobs in the order of their beginning, in parts that have at most some `_ROWS` rows, so that memory is enough."""
    rows = (pl.col("job_gpus").fill_null(0) + pl.col("job_nodes")).cast(pl.Int64)
    numbered = jobs.sort("began", maintain_order=True).with_columns((rows.cum_sum() // _ROWS).alias("part"))
    return numbered.partition_by("part", maintain_order=True, include_key=False)


def _placed(store: Store, jobs: pl.DataFrame, numbers: dict[str, int]) -> tuple[pl.DataFrame, dict[str, int]]:
    """Rows of jobs with the GPUs that the store's tags and inventory give."""
    clusters = jobs["cluster"].unique().to_list()
    raw = jobs["raw_id"].unique().implode()
    of_these = pl.col("cluster").is_in(clusters) & pl.col("raw_id").is_in(raw)
    tagged = superseding.newest(store, pl.col("source").is_in(_NAMING_GPUS) & of_these)
    numbers = capacity.learnt(store, clusters, jobs["nodes"].explode()) | numbers
    return mapping.place(jobs, tagged, mapping.inventory(store, clusters), numbers)


def _note_other_cluster(store: Store, clusters: list[str], report: Report) -> None:
    """Say where jobs and GPUs have different names of one cluster, which is easily done."""
    known = store.collect(store.scan("gpus").select("cluster").unique())["cluster"].drop_nulls().sort().to_list()
    if len(known) == 1 and len(clusters) == 1 and known != clusters:
        report.notes.append(_OTHER_CLUSTER.format(known[0], clusters[0], known[0]))


def _store_tags(
    store: Store,
    spool: tags.Spool,
    cluster: str | None,
    secret: bytes | None,
    numbers: dict[str, int],
    report: Report,
) -> pl.DataFrame:
    """Store what tags say; returns the rows."""
    report.tags, report.tags_refused = len(spool.events), spool.refused
    if not spool.events:
        return superseding.conformed(pl.DataFrame())
    nodes = list({event.node for event in spool.events})
    jobs = list({event.job for event in spool.events})
    without_end = pl.col("ended").is_null() | (pl.col("state") == TagState.LOST.value)
    which = pl.col("node").is_in(nodes) & (without_end | pl.col("raw_id").is_in(jobs))
    stored = superseding.newest(store, (pl.col("source") == JobSource.TAG.value) & which)
    every = numbers.get(capacity.EVERY)
    joined = tags.join(spool.events, _as_tags(stored), cluster, lambda node: numbers.get(node, every))
    report.tags_unknown = joined.unknown
    if joined.ends_alone:
        report.notes.append(f"{joined.ends_alone} jobs have an end and no begin: they began before the tags did")
    if joined.backward:
        report.notes.append(f"{joined.backward} jobs ended before they began: the clock of their node was set back")
    rows = superseding.conformed(
        pl.DataFrame([row for tag in joined.tags for row in tag.as_rows()], infer_schema_length=None)
    )
    said = "".join(f"{event.text}{event.gpus}" for event in spool.events)
    about: dict[str, object] = {
        "file": "tags",
        "format": JobSource.TAG.value,
        "sha256": hashlib.sha256(said.encode()).hexdigest(),
        "rows": len(spool.events) + sum(map(len, spool.refused.values())),
        "refused": sum(map(len, spool.refused.values())),
        "cluster": cluster,
    }
    if secret is not None:  # rows that were stored have pseudonyms already
        old = stored.select(superseding.KEY).unique()
        rows = pl.concat(
            [
                pseudonyms.apply(rows.join(old, on=superseding.KEY, how="anti", nulls_equal=True), secret),
                rows.join(old, on=superseding.KEY, how="semi", nulls_equal=True),
            ]
        )
    report.tags_stored, _ = storing.append(store, rows, about, secret=None)
    return rows


def _as_tags(rows: pl.DataFrame) -> list[tags.Tag]:
    stored = []
    for _, group in rows.group_by(superseding.KEY, maintain_order=True):
        first = group.row(0, named=True)
        times = group.select(pl.col("began").dt.epoch("s"), pl.col("ended").dt.epoch("s")).row(0)
        names = ("job_id", "user", "account", "partition", "gpu_from", "share", "gpu", "node_gpus")
        stored.append(
            tags.Tag(
                first["allocation"],
                first["cluster"],
                first["node"],
                first["raw_id"],
                first["restart"],
                times[0],
                times[1],
                first["state"],
                group.select(names).to_dicts(),
            )
        )
    return stored


def _place_again(store: Store, tagged: pl.DataFrame, numbers: dict[str, int]) -> None:
    """Find the GPUs of stored jobs again, of which there are tags now."""
    raw = tagged["raw_id"].unique().implode()
    of_these = (pl.col("source") == JobSource.SACCT.value) & pl.col("raw_id").is_in(raw)
    rows = superseding.newest(store, of_these)
    if not rows.height:
        return
    parts = pl.col("allocated").str.contains("gres/(?:shard|mps)")
    whole = [n for n in rows.columns if n not in ("gpu", "gpu_from", "share", "node_gpus", "tag", "node", "source")]
    jobs = rows.group_by(superseding.KEY, maintain_order=True).agg(
        *(pl.col(name).first() for name in whole if name not in (*superseding.KEY, "recorded", "import_id")),
        pl.col("node").unique(maintain_order=True).alias("nodes"),
        parts.fill_null(False).first().alias("shared"),
    )
    again, _ = _placed(store, jobs.with_columns(pl.lit(0).alias(LINE)), numbers)
    about: dict[str, object] = {"file": "tags of known jobs", "format": JobSource.TAG.value, "rows": jobs.height}
    storing.append(store, again, about, secret=None)
