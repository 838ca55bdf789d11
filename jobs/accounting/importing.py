"""The work of `whorl jobs import`: ask `sacct` or read what it said, read tags, find the GPUs, store what is new.

Pseudonyms stand for users and accounts where they are wanted: the same name gives the same one in a store, and nobody
without its key finds it. A plain hash would not do: whoever has a list of the users hashes them all and compares. The
key is a file of the store that only its owner reads. Once a store has a key, every later import uses it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import InputError, SchedulerError, StoreError
from ...store import Store, hostlist
from ...store.importing import tags as tag_files
from ...store.importing.content import LINE, load
from ...store.importing.superseding import KEY, conformed, new_events, new_records, newest
from ...store.schema import JOBS, arrow_rows
from ...store.system import files
from ...store.vocabulary import GpuFrom, JobSource, TagState
from ..slurm import Slurm
from . import mapping, sacct, tags
from .mapping import EVERY_NODE, gpus_of

PSEUDONYM = "user-"  # begins the pseudonym of a user
_KEY_FILE = "pseudonyms.key"
_KEY_BYTES = 32
_DIGITS = 16  # hexadecimal digits: of a million names two are alike with a chance of 3 in 100 million


def pseudonym_key(root: Path, *, make: bool) -> bytes | None:
    """The store's key; if there is none, a new one where `make`, else None. Raises StoreError.

    Who makes one holds the store's lock of importers.
    """
    path = root / _KEY_FILE
    try:
        if make and not path.exists():
            _make_key(path)
        secret = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror}): users of this store have pseudonyms, so its owner imports jobs"
        ) from error
    if len(secret) != _KEY_BYTES:
        raise StoreError(f"{path} is damaged: restore it from a backup; with another key users get other pseudonyms")
    return secret


def _make_key(path: Path) -> None:
    try:
        files.put(path, os.urandom(_KEY_BYTES), 0o600)
    except OSError as error:
        raise StoreError(f"the key {path} cannot be made: {error.strerror}") from error


def pseudonymised(rows: pl.DataFrame, secret: bytes) -> pl.DataFrame:
    """The rows with pseudonyms in place of users and accounts."""
    for column in ("user", "account"):
        names = rows[column].drop_nulls().unique().to_list()
        stands_for = {name: pseudonym(secret, column, name) for name in names}
        rows = rows.with_columns(pl.col(column).replace_strict(stands_for, default=None, return_dtype=pl.String))
    return rows


def pseudonym(secret: bytes, column: str, name: str) -> str:
    """What stands for a name in a column, `user` or `account`."""
    return f"{column}-{hmac.new(secret, f'{column}:{name}'.encode(), hashlib.sha256).hexdigest()[:_DIGITS]}"


VERSION = "1"  # raise it when the same source would be read differently
_ROWS = 500_000  # stored at once
_NAMING_GPUS = [source.value for source in (JobSource.TAG, JobSource.EXPORTER, JobSource.SCONTROL, JobSource.CGROUP)]
_TAG_COLUMNS = ("job_id", "user", "account", "partition", "gpu_from", "share", "gpu", "node_gpus")
_PLACE_COLUMNS = ("gpu", "gpu_from", "share", "node_gpus", "tag", "node", "source")
_CAPACITY = re.compile(r"(?:(.+)=)?([1-9][0-9]{0,3})")
_OTHER_CLUSTER = (
    "the store knows GPUs of cluster {} and none of {}: jobs and GPUs meet only under one name, so give --cluster {}"
)


@dataclass(frozen=True)
class JobSources:
    """Where jobs are imported from, and what is known of them."""

    since: datetime | None = None  # ask sacct for jobs from this time on, up to `until` (UTC, without zone)
    until: datetime | None = None
    file: Path | None = None  # the saved output of sacct
    tag_folders: Sequence[Path] = ()  # the store's own folder of tags is always read
    cluster: str | None = None
    time_zone: str | None = None
    gpus_per_node: Sequence[str] = ()  # how many GPUs nodes have: 4, or n[01-18]=8
    anonymise: bool = False
    clear: bool = False  # remove the tags that were stored


@dataclass
class ImportReport:
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
        spool = {
            "read": self.tags,
            "stored": self.tags_stored,
            "gpus_unknown": self.tags_unknown,
            "refused": [{"reason": r, "count": len(n), "files": n[:1000]} for r, n in self.tags_refused.items()],
        }
        return {
            "schema": "whorl.jobs_import/1",
            "cluster": self.cluster or None,
            "accounting": accounting if self.source else None,
            "tags": spool,
            "notes": self.notes,
        }


def import_jobs(store: str | Path | Store, sources: JobSources) -> ImportReport:
    """Store who had which GPU: from sacct, from its saved output, and from tags.

    Raises InputError for what cannot be used and SchedulerError where accounting does not answer; then nothing is
    stored. Raises StoreError where the store cannot be written; then some may be stored, and the rest is when it is run
    again.
    """
    if sources.cluster is not None and not sources.cluster.strip():
        raise InputError("--cluster is empty: give it a name")
    spool_folder = (store.root if isinstance(store, Store) else Path(store)) / tag_files.SPOOL
    folders = [*sources.tag_folders, *([spool_folder] if spool_folder.is_dir() else [])]
    if sources.file is None and sources.since is None and not folders:
        raise InputError(
            "say what to import: --since DATE asks sacct, --log FILE reads its saved output, --tags FOLDER reads tags"
        )
    report = ImportReport()
    capacity = tag_capacity = stated_capacity(sources.gpus_per_node)
    accounts, about = _accounts(sources)
    spool = tag_files.read(folders)
    unclear = any(event.by_index and gpus_of(event.node, capacity) is None for event in spool.events)
    if sources.since is not None or unclear:
        try:
            tag_capacity = {node.name: node.gpus for node in Slurm().nodes().values() if node.gpus} | capacity
        except SchedulerError as error:
            report.notes.append(f"how many GPUs a node has is not known: {error}")
        capacity = capacity if sources.since is None else tag_capacity
    opened = store if isinstance(store, Store) else Store.create(store)
    with opened.exclusive():
        work = _Import(opened, pseudonym_key(opened.root, make=sources.anonymise), capacity, report)
        tag_rows = work.store_tags(spool, sources.cluster, tag_capacity)
        if accounts is not None:
            work.store_accounts(accounts, about)
        work.place_again(tag_rows)
    has_name = pl.col("user").is_not_null() & ~pl.col("user").str.starts_with(PSEUDONYM)
    if sources.anonymise and opened.collect(opened.scan("jobs").filter(has_name).head(1)).height:
        report.notes.append("the table `jobs` still has names in records of earlier imports: nothing stored is changed")
    if work.secret is not None and not sources.anonymise:
        report.notes.append("this store keeps pseudonyms of users and accounts (it has a key), and so does this import")
    if sources.clear:
        for path in spool.files:
            with contextlib.suppress(OSError):
                path.unlink()
    return report


def _accounts(sources: JobSources) -> tuple[sacct.Accounts | None, dict[str, object]]:
    """What sacct says or said, and what the table `imports` has of it."""
    if sources.file is not None:
        content, name, zone = load(sources.file), sources.file.name, sources.time_zone
    elif sources.since is not None:
        content, name, zone = sacct.ask(sources.since, sources.until).encode(), "sacct", None
    else:
        return None, {}
    about: dict[str, object] = {"file": name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    return sacct.read(content.decode("utf-8-sig", "replace"), name, sources.cluster, zone), about


def stated_capacity(texts: Sequence[str]) -> dict[str, int]:
    """How many GPUs nodes have, from texts such as `4` (`EVERY_NODE`) and `n[01-18]=8`. Raises InputError."""
    numbers: dict[str, int] = {}
    for text in texts:
        match = _CAPACITY.fullmatch(text)
        if match is None:
            raise InputError(f"gpus-per-node={text} is not [NODES=]NUMBER: write 4, or n[01-18]=8 for some nodes")
        numbers |= dict.fromkeys(hostlist.expand(match[1]) if match[1] else [EVERY_NODE], int(match[2]))
    return numbers


@dataclass
class _Import:
    """What an import stores, while it holds the store's lock of importers."""

    store: Store
    secret: bytes | None
    capacity: Mapping[str, int]
    report: ImportReport

    def store_accounts(self, accounts: sacct.Accounts, about: Mapping[str, object]) -> None:
        """Store what sacct says."""
        report, jobs = self.report, accounts.frame
        report.source, report.lines, report.passed = str(about["file"]), accounts.lines, accounts.passed
        report.refused, report.allocations = accounts.refused.lines, jobs.height
        report.notes += accounts.notes
        clusters = jobs["cluster"].unique().sort().to_list()
        report.cluster = ", ".join(clusters)
        backward = new_events(self.store, accounts.backward)
        if backward.height:
            name = hashlib.sha256(backward.write_csv().encode()).hexdigest()[:16]
            self.store.append({"events": backward.to_arrow()}, f"jobs-{name}")
        if not jobs.height:
            return
        gpus = self.store.collect(self.store.scan("gpus").select("cluster").unique())["cluster"].drop_nulls()
        if len(gpus) == 1 and len(clusters) == 1 and gpus[0] != clusters[0]:
            report.notes.append(_OTHER_CLUSTER.format(gpus[0], clusters[0], gpus[0]))
        counts = {"rows": accounts.lines, "refused": accounts.refused.count, "format": JobSource.SACCT.value}
        counts |= {"cluster": report.cluster, "duplicates": sum(accounts.passed.values())}
        for part in _in_parts(jobs):
            rows, unknown = self._placed(part)
            for why, number in unknown.items():
                report.unknown[why] = report.unknown.get(why, 0) + number
            report.with_gpus += part.height - rows.filter(pl.col("gpu").is_null())["allocation"].n_unique()
            rows = rows if self.secret is None else pseudonymised(conformed(rows), self.secret)
            stored, unchanged = self._append(rows, {**about, **counts})
            report.stored, report.known = report.stored + stored, report.known + unchanged

    def store_tags(self, spool: tag_files.Spool, cluster: str | None, capacity: Mapping[str, int]) -> pl.DataFrame:
        """Store what tags say; returns the rows."""
        report, events = self.report, spool.events
        report.tags, report.tags_refused = len(events), spool.refused
        if not events:
            return conformed(pl.DataFrame())
        nodes, jobs = [list({getattr(event, name) for event in events}) for name in ("node", "job")]
        without_end = pl.col("ended").is_null() | (pl.col("state") == TagState.LOST.value)
        of_these = pl.col("node").is_in(nodes) & (without_end | pl.col("raw_id").is_in(jobs))
        stored = newest(self.store, (pl.col("source") == JobSource.TAG.value) & of_these)
        joined = tags.join(events, _as_tags(stored), cluster, capacity)
        report.tags_unknown = joined.unknown
        if joined.ends_alone:
            report.notes.append(f"{joined.ends_alone} jobs have an end and no begin: they began before the tags did")
        if joined.backward:
            report.notes.append(f"{joined.backward} jobs ended before they began: the clock of their node was set back")
        rows = conformed(pl.DataFrame([row for tag in joined.tags for row in tag.as_rows()], infer_schema_length=None))
        refused = sum(map(len, spool.refused.values()))
        content = "".join(f"{event.text}{event.gpus}" for event in events).encode()
        about: dict[str, object] = {
            "file": "tags",
            "format": JobSource.TAG.value,
            "sha256": hashlib.sha256(content).hexdigest(),
            "rows": len(events) + refused,
            "refused": refused,
            "cluster": cluster,
        }
        if self.secret is not None:  # rows that were stored have pseudonyms already
            older = stored.select(KEY).unique()
            new, old = (rows.join(older, on=KEY, how=join, nulls_equal=True) for join in ("anti", "semi"))
            rows = pl.concat([pseudonymised(new, self.secret), old])
        report.tags_stored, _ = self._append(rows, about)
        return rows

    def place_again(self, tag_rows: pl.DataFrame) -> None:
        """Find the GPUs of stored jobs again, of which there are tags by now."""
        raw = tag_rows["raw_id"].unique().implode()
        rows = newest(self.store, (pl.col("source") == JobSource.SACCT.value) & pl.col("raw_id").is_in(raw))
        if not rows.height:
            return
        names = [n for n in rows.columns if n not in (*_PLACE_COLUMNS, *KEY, "recorded", "import_id")]
        jobs = rows.group_by(KEY, maintain_order=True).agg(
            *(pl.col(name).first() for name in names),
            pl.col("node").unique(maintain_order=True).alias("nodes"),
            pl.col("allocated").str.contains(sacct.SHARDS).fill_null(False).first().alias("shared"),
        )
        again, _ = self._placed(jobs.with_columns(pl.lit(0).alias(LINE)))
        self._append(again, {"file": "tags of known jobs", "format": JobSource.TAG.value, "rows": jobs.height})

    def _placed(self, jobs: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
        """Rows of jobs with the GPUs that the store's tags and inventory give; how many have none, by reason."""
        clusters = jobs["cluster"].unique().to_list()
        of_these = pl.col("cluster").is_in(clusters) & pl.col("raw_id").is_in(jobs["raw_id"].unique().implode())
        tag_rows = newest(self.store, pl.col("source").is_in(_NAMING_GPUS) & of_these)
        # What earlier imports knew: of jobs that had all GPUs of a node.
        whole_nodes = self.store.scan(JOBS.name).filter(
            (pl.col("gpu_from") == GpuFrom.WHOLE_NODE.value)
            & pl.col("cluster").is_in(clusters)
            & pl.col("node").is_in(jobs["nodes"].explode().unique().implode())
        )
        of_jobs = whole_nodes.group_by("allocation", "recorded", "node").agg(pl.col("gpu").n_unique().alias("gpus"))
        learnt = dict(self.store.collect(of_jobs.group_by("node").agg(pl.col("gpus").max())).iter_rows())
        return mapping.place(jobs, tag_rows, mapping.inventory(self.store, clusters), {**learnt, **self.capacity})

    def _append(self, rows: pl.DataFrame, about: Mapping[str, object]) -> tuple[int, int]:
        """Store what is new or other than stored, with its provenance: how many allocations, and how many were known.

        `about` goes into the table `imports`.
        """
        rows = conformed(rows)
        new_rows = new_records(self.store, rows)
        total, stored = (frame.select(KEY).unique().height for frame in (rows, new_rows))
        if stored:
            now = datetime.now(UTC).replace(tzinfo=None)
            content = json.dumps(about, sort_keys=True, default=str)
            name = hashlib.sha256(f"{content} {now.isoformat()}".encode()).hexdigest()[:16]
            row = {**about, "import_id": name, "importer": VERSION, "imported_at": now, "kept": new_rows.height}
            imports = arrow_rows("imports", {key: [value] for key, value in row.items()})
            new_rows = new_rows.with_columns(pl.lit(name).alias("import_id"))
            self.store.append({JOBS.name: new_rows.to_arrow(), "imports": imports}, f"jobs-{name}")
        return stored, total - stored


def _in_parts(jobs: pl.DataFrame) -> Collection[pl.DataFrame]:
    """Jobs in the order of their beginning, in parts that have at most some `_ROWS` rows, so that memory is enough."""
    rows = (pl.col("job_gpus").fill_null(0) + pl.col("job_nodes")).cast(pl.Int64)
    numbered = jobs.sort("began", maintain_order=True).with_columns((rows.cum_sum() // _ROWS).alias("part"))
    return numbered.partition_by("part", maintain_order=True, include_key=False)


def _as_tags(rows: pl.DataFrame) -> list[tags.Tag]:
    """Stored rows as the tags that they are of."""
    stored = []
    for _, group in rows.group_by(KEY, maintain_order=True):
        first = group.row(0, named=True)
        began_s, ended_s = group.select(pl.col("began").dt.epoch("s"), pl.col("ended").dt.epoch("s")).row(0)
        stored.append(
            tags.Tag(
                allocation=first["allocation"],
                cluster=first["cluster"],
                node=first["node"],
                job=first["raw_id"],
                restart=first["restart"],
                began_s=began_s,
                ended_s=ended_s,
                state=first["state"],
                rows=group.select(_TAG_COLUMNS).to_dicts(),
            )
        )
    return stored
