"""Take another store, or one file of a table of one, into a store: every row once.

A reading is known by (cluster, gpu, ts), and of two the one written last counts, whichever store is taken in first.
Rows of other tables are known by the key of their table, those of one without a key by all that they say: a row with a
stored key is left out. Readings go in by pieces, each of which adds only what is not stored, so that a merge that was
interrupted can be run again; the last piece and all other tables are stored together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from ..errors import InputError, StoreError
from . import commits, file_names, keys, parquet, snapshot, telemetry_files
from .keys import KEY
from .schema import LATE, LATEST, MINUTES, TABLES, TELEMETRY, Table, arrow_schema, other_format
from .store import Store
from .system import files

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_MOST_ROWS = 1_500_000  # of readings in memory at once
_MINUTE_US = 60_000_000
_CLUSTERED = ("gpus", "runs", "latest", "jobs", "campaigns")  # tables that name every cluster of a store


@dataclass
class Merged:
    """What came of one source: rows that were added and that the store had, by table.

    `replaced`: readings that took the place of ones written earlier. `pruned`: readings and minutes that were left out,
    as the store has the same time of the same GPU as minutes, or as readings.
    """

    source: str
    added: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    replaced: int = 0
    pruned: int = 0
    moved: list[dict[str, str]] = field(default_factory=list)
    """GPUs that are elsewhere in the source: `uuid`, and `here` and `there`, each as cluster and node/slot."""
    crowded: list[dict[str, Any]] = field(default_factory=list)
    """Clusters that have other GPUs in the same places in the source: `cluster`, `places` (how many), `place` (one)."""


def is_source(path: Path) -> bool:
    """Whether there is a store at `path`, or a file that whorl wrote for one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        return (path / "store.toml").exists()
    try:
        with files.opened(path) as source:
            return source.read(4) == b"PAR1" and b"whorl.table" in (pq.read_schema(source).metadata or {})
    except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException):
        return False


def merge(
    into: Store | Path, source: Path, *, cluster: str | None = None, progress: Callable[[str], None] = lambda _: None
) -> Merged:
    """Take the store or file `source` into a store, which is made if it is a path; `cluster` is what its rows get.

    Raises InputError where it cannot be taken in, FormatError where it has another format, and StoreError where
    something of it is damaged, or the store cannot be written.
    """
    root = into if isinstance(into, Path) else into.root
    if source.exists() and root.exists() and source.resolve() in (root.resolve(), *root.resolve().parents):
        raise InputError(f"{source} is the store itself: name another one")
    if root.exists() and root.resolve() in source.resolve().parents:
        raise InputError(f"{source} is a part of the store itself: name another one")
    opened: _Source = _FileSource(source) if source.exists() and not source.is_dir() else _StoreSource(source)
    if cluster is not None and len(opened.clusters()) > 1:
        raise InputError(f"{source} has clusters {', '.join(sorted(opened.clusters()))}, and --cluster names one")
    store = Store.create(into) if isinstance(into, Path) else into
    return _Merge(store, opened, cluster, progress).run()


# -- what is taken in ----------------------------------------------------------------------------------------------


class _Source:
    """Rows of tables by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, name: str) -> pa.Table:
        raise NotImplementedError

    def readings(self) -> Iterator[pa.Table]:
        """The readings with `written`, some at a time. Of a key the newest comes first, and others may follow."""
        raise NotImplementedError

    def minutes(self) -> Iterator[pa.Table]:
        """The minutes of pruned telemetry, some at a time."""
        raise NotImplementedError

    def per_minute(self, first: int, last: int) -> pl.DataFrame:
        """How many readings each minute of a GPU has between two times (us): cluster, gpu, ts, readings."""
        raise NotImplementedError

    def clusters(self) -> set[str]:
        columns = (self.rows(name)["cluster"].unique().to_pylist() for name in _CLUSTERED)
        return {cluster for column in columns for cluster in column if cluster is not None}


class _StoreSource(_Source):
    """A whole store; every file of it must be sound."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._store = Store.open(path)
        self._store.rows([spec.name for spec in (*TABLES, LATE)])
        for damaged, reason in self._store.skipped.items():
            raise StoreError(f"{damaged}: {reason}; nothing of {path} was taken in")

    def rows(self, name: str) -> pa.Table:
        return self._store.arrow(name)

    def readings(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        root = self._store.root
        listing = snapshot.take(root, [TELEMETRY.name], self._store.skip)
        live = snapshot.live_rows(listing, TELEMETRY.name)
        batch = [live] if live is not None else []
        count = 0
        try:
            for path in (*listing.files[LATE.name], *listing.files[TELEMETRY.name]):
                size = parquet.rows_in(path)
                if batch and count + size > _MOST_ROWS:
                    yield pa.concat_tables(batch, promote_options="default")
                    batch, count = [], 0
                name_parts = file_names.parse(path.name)
                assert name_parts is not None  # it was verified
                rows = parquet.read(path).replace_schema_metadata()
                batch.append(keys.with_key(keys.with_written(rows, 1000 * name_parts.written)))
                count += size
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"the files of {root} change while they are read: run the command again") from error
        if batch:
            yield pa.concat_tables(batch, promote_options="default")

    def minutes(self) -> Iterator[pa.Table]:
        for part in self._store.parts(MINUTES.name):
            yield part.arrow()

    def per_minute(self, first: int, last: int) -> pl.DataFrame:
        return _per_minute(self._store, first, last)


class _FileSource(_Source):
    """One file of a table."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(path)
        try:
            files.opened(path).close()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        if not is_source(path):
            raise InputError(f"{path} is no store and no file of one: `whorl import` reads files of other programs")
        try:
            with files.opened(path) as source:
                rows = pq.read_table(source, page_checksum_verification=True, use_threads=False)
            rows.validate(full=True)
        except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
            raise InputError(f"{path}: the Parquet file is damaged ({str(error).splitlines()[0]})") from error
        about = rows.schema.metadata or {}
        name = about.get(b"whorl.table", b"").decode("utf-8", "replace")
        if why := other_format(about.get(b"whorl.format", b"").decode("utf-8", "replace")):
            raise InputError(f"{path}: {why}")
        self._spec = next((spec for spec in (*TABLES, LATE) if spec.name == name), None)
        if self._spec is None or self._spec == LATEST:
            raise InputError(f"{path} has rows of {name}, which follow from those of telemetry: import those")
        name_parts = file_names.parse(path.name)
        rows = rows.replace_schema_metadata()
        by_time = self._spec in (TELEMETRY, LATE)
        self._rows = (
            keys.with_key(keys.with_written(rows, 1000 * name_parts.written if name_parts else 0)) if by_time else rows
        )

    def rows(self, name: str) -> pa.Table:
        return self._rows if self._spec is not None and self._spec.name == name else arrow_schema(name).empty_table()

    def readings(self) -> Iterator[pa.Table]:
        if self._spec in (TELEMETRY, LATE):
            yield self._rows

    def minutes(self) -> Iterator[pa.Table]:
        if self._spec == MINUTES:
            yield self._rows

    def per_minute(self, first: int, last: int) -> pl.DataFrame:
        import polars as pl

        frame = cast("pl.DataFrame", pl.from_arrow(self._rows.select(list(KEY))))
        return _counted(frame.lazy(), first, last).collect()

    def clusters(self) -> set[str]:
        return set(self._rows["cluster"].unique().to_pylist()) - {None}


# -- taking it in --------------------------------------------------------------------------------------------------


class _Merge:
    def __init__(self, store: Store, source: _Source, cluster: str | None, progress: Callable[[str], None]) -> None:
        self._store, self._source, self._cluster, self._progress = store, source, cluster, progress
        self._stem = f"merged-{uuid4().hex[:16]}"
        self._done = Merged(str(source.path))

    def run(self) -> Merged:
        with self._store.exclusive():
            self._compare_places()
            last: dict[str, pa.Table] = {}
            for number, piece in enumerate(chain(self._new_readings(), self._new_minutes())):
                self._commit(last, f"{self._stem}-{number}")
                last = piece
            for spec in TABLES:
                if spec not in (TELEMETRY, MINUTES) and len(rows := self._new_rows(spec)):
                    last[spec.name] = rows
            self._commit(last, self._stem)
        return self._done

    def _commit(self, rows: dict[str, pa.Table], name: str) -> None:
        if rows:
            tables = {spec: rows[spec.name] for spec in TABLES if spec.name in rows}
            commits.commit(self._store.root, tables, name, dated=True)

    def _in_cluster(self, rows: pa.Table) -> pa.Table:
        """The rows with the cluster that they get."""
        import pyarrow as pa

        if self._cluster is None or "cluster" not in rows.column_names:
            return rows
        place = rows.column_names.index("cluster")
        return rows.set_column(place, "cluster", pa.array([self._cluster] * len(rows), pa.string()))

    def _count(self, name: str, added: int, known: int) -> None:
        for counts, number in ((self._done.added, added), (self._done.known, known)):
            if number:
                counts[name] = counts.get(name, 0) + number

    def _new_readings(self) -> Iterator[dict[str, pa.Table]]:
        """The readings that the store has not, or has from an earlier time."""
        import pyarrow as pa

        for rows in self._source.readings():
            self._progress(f"{self._source.path}: {len(rows):,} readings")
            rows = keys.newest(self._in_cluster(rows))
            minutes = _parts(self._store, MINUTES, [*KEY, "n"], rows)
            outside = _outside(rows, _pruned(minutes, rows, self._counted_readings))
            self._done.pruned += len(rows) - len(outside)
            if not len(outside):
                continue
            stored = telemetry_files.stored_keys(self._store.root, keys.bounds_of(outside))
            if stored is None:
                root = self._store.root
                what = f"a file of {root} that may have the same readings cannot be read"
                raise StoreError(f"{what}: run `whorl doctor --store {root}`, which names it")
            new, newer = keys.split(outside, stored, equal=False)
            self._count(TELEMETRY.name, len(new), len(outside) - len(new) - len(newer))
            self._done.replaced += len(newer)
            if len(new) or len(newer):
                yield {TELEMETRY.name: pa.concat_tables([new, newer])}

    def _new_minutes(self) -> Iterator[dict[str, pa.Table]]:
        """The minutes that the store has neither as minutes nor as readings."""
        for piece in self._source.minutes():
            rows = self._in_cluster(piece)
            outside = _outside(rows, _pruned(rows.select([*KEY, "n"]), rows, partial(_per_minute, self._store)))
            self._done.pruned += len(rows) - len(outside)
            new = self._unknown(MINUTES, outside)
            if len(new):
                yield {MINUTES.name: new}

    def _new_rows(self, spec: Table) -> pa.Table:
        """The rows of a table that the store has not."""
        import pyarrow as pa

        rows = self._in_cluster(self._source.rows(spec.name))
        if not len(rows):
            return rows
        self._progress(f"{self._source.path}: {spec.name}")
        if spec == LATEST:
            mine = self._store.arrow(spec.name)
            last = keys.last_rows(keys.newest(pa.concat_tables([mine, rows.select(mine.column_names)])))
            return keys.without(last, mine)
        return self._unknown(spec, rows)

    def _unknown(self, spec: Table, rows: pa.Table) -> pa.Table:
        """The rows whose key the store does not have."""
        if not len(rows):
            return rows
        new = _unknown(spec, rows, self._store)
        self._count(spec.name, len(new), len(rows) - len(new))
        return new

    def _counted_readings(self, first: int, last: int) -> pl.DataFrame:
        import polars as pl

        counts = self._source.per_minute(first, last)
        return counts if self._cluster is None else counts.with_columns(cluster=pl.lit(self._cluster))

    def _compare_places(self) -> None:
        """Tell of GPUs that are elsewhere in the source, and of clusters whose places have other GPUs there."""
        here, there = _places(self._store.arrow("gpus")), _places(self._in_cluster(self._source.rows("gpus")))
        for uuid in sorted(here.keys() & there.keys()):
            if not set(here[uuid]) & set(there[uuid]):
                self._done.moved.append({"uuid": uuid, "here": here[uuid][-1], "there": there[uuid][-1]})
        for cluster in sorted(_cluster_names(here) & _cluster_names(there)):
            mine, theirs = _of_cluster(here, cluster), _of_cluster(there, cluster)
            shared = set().union(*mine.values()) & set().union(*theirs.values())
            if shared and not mine.keys() & theirs.keys():
                self._done.crowded.append({"cluster": cluster, "places": len(shared), "place": min(shared)})


_Places = dict[str, list[str]]
"""By UUID where the GPU was, in the order of times: cluster and node/slot."""


def _places(gpus: pa.Table) -> _Places:
    rows = gpus.select(["cluster", "uuid", "node", "slot", "parent", "first_seen"]).to_pylist()
    places: _Places = {}
    for row in sorted(rows, key=lambda row: str(row["first_seen"] or "")):
        if row["uuid"] is not None and row["slot"] is not None and row["parent"] is None:
            places.setdefault(row["uuid"], []).append(f"{row['cluster'] or ''} {row['node']}/{row['slot']}")
    return places


def _cluster_names(places: _Places) -> set[str]:
    return {place.rpartition(" ")[0] for several in places.values() for place in several}


def _of_cluster(places: _Places, cluster: str) -> dict[str, set[str]]:
    inside = {uuid: {p for p in several if p.rpartition(" ")[0] == cluster} for uuid, several in places.items()}
    return {uuid: several for uuid, several in inside.items() if several}


def _counted(readings: pl.LazyFrame, first: int, last: int) -> pl.LazyFrame:
    import polars as pl

    within = pl.col("ts").cast(pl.Int64).is_between(first, last)
    minute = pl.col("ts").dt.truncate("1m")
    counts = readings.filter(within).group_by("cluster", "gpu", minute)
    return counts.agg(pl.len().cast(pl.Int64).alias("readings"))


def _per_minute(store: Store, first: int, last: int) -> pl.DataFrame:
    return store.collect(_counted(store.scan(TELEMETRY.name).select(KEY), first, last))


def _parts(store: Store, spec: Table, names: list[str], near: pa.Table) -> pa.Table:
    """The stored rows of a table, of one by days only those near the times of some rows."""
    import pyarrow as pa

    since, until = (1000 * us for us in _minutes_of(near)) if spec.partitioned else (None, None)
    parts = [part.arrow(names) for part in store.parts(spec.name, since, until)]
    return pa.concat_tables(parts) if parts else arrow_schema(spec.name).empty_table().select(names)


def _minutes_of(rows: pa.Table) -> tuple[int, int]:
    """The first and the last time of the minutes of rows, us."""
    ts = keys.times(rows)
    return int(ts.min()) // _MINUTE_US * _MINUTE_US, (int(ts.max()) // _MINUTE_US + 1) * _MINUTE_US - 1


def _pruned(minutes: pa.Table, near: pa.Table, per_minute: Callable[[int, int], pl.DataFrame]) -> pa.Table | None:
    """The minutes near some rows of which there are as many readings: these are the same, once pruned and once not."""
    import polars as pl

    if not len(minutes):
        return None
    pruned = cast("pl.DataFrame", pl.from_arrow(minutes)).group_by(*KEY).agg(pl.col("n").sum())
    counts = pruned.join(per_minute(*_minutes_of(near)), on=list(KEY), nulls_equal=True)
    same = counts.filter(pl.col("readings") >= pl.col("n"))
    return same.select(*KEY).to_arrow() if same.height else None


def _outside(rows: pa.Table, minutes: pa.Table | None) -> pa.Table:
    """The rows that do not lie in these minutes of their GPUs."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if minutes is None:
        return rows
    at = pc.floor_temporal(rows["ts"], unit="minute").cast(pa.timestamp("us"))
    keys_of_minutes = rows.select(["cluster", "gpu"]).append_column("ts", at)
    return rows.filter(pa.array(~keys.among(keys_of_minutes, minutes)))


def _unknown(spec: Table, rows: pa.Table, store: Store) -> pa.Table:
    """The rows whose key the store does not have."""
    import polars as pl
    import pyarrow as pa

    names = list(spec.key or spec.names)
    stored = cast("pl.DataFrame", pl.from_arrow(_parts(store, spec, names, rows))).unique()
    incoming = cast("pl.DataFrame", pl.from_arrow(parquet.complete(spec, keys.conform(spec, rows)).select(names)))
    incoming = incoming.with_row_index("row")
    if not spec.key:
        incoming = incoming.unique(names, keep="first", maintain_order=True)
    new = incoming.join(stored, on=names, how="anti", nulls_equal=True, maintain_order="left")
    return rows.take(pa.array(new["row"].to_numpy()))
