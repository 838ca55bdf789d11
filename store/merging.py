"""Take another store, or one file of a table of one, into a store: every row once.

A reading is known by (cluster, gpu, ts), and of two the one written last counts, whichever store is taken in first.
Rows of other tables are known by the key of their table, those of one without a key by all that they say: a row with a
stored key is left out. Readings go in by pieces, each of which adds only what is not stored, so that a merge that was
interrupted can be run again; the last piece and all other tables are stored together.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from ..errors import InputError, StoreError
from . import commits, file_names, keys, parquet, replacing, snapshot, telemetry_files
from .file_names import EVER, Bounds
from .formats import other_format
from .schema import (
    DERIVED,
    KEY,
    LATE,
    LATEST,
    MINUTES,
    NODE_POWER,
    TABLES,
    TELEMETRY,
    Table,
)
from .store import Store
from .system import files

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_MINUTE_US = 60_000_000
_LARGE = (MINUTES, NODE_POWER)  # tables that are taken in by pieces, as telemetry is
_FOLLOW = (LATEST, *DERIVED)  # tables whose rows follow from those of telemetry
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
            return source.read(4) == b"PAR1" and bool(parquet.stated_in(pq.read_schema(source).metadata)[0])
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
    try:
        source.stat()
    except PermissionError:
        raise InputError(f"{source} is in a folder that you may not read: ask its owner") from None
    except OSError:
        pass  # what is not there is said where it is opened
    if source.exists() and root.exists() and source.resolve() in (root.resolve(), *root.resolve().parents):
        raise InputError(f"{source} is the store itself: name another one")
    if root.exists() and root.resolve() in source.resolve().parents:
        raise InputError(f"{source} is a part of the store itself: name another one")
    with _opened(source) as opened:
        clusters = _clusters(opened)
        if cluster is not None and len(clusters) > 1:
            raise InputError(f"{source} has clusters {', '.join(sorted(clusters))}, and --cluster names one")
        store = Store.create(into) if isinstance(into, Path) else into
        return _Merge(store, opened, str(source), cluster, progress).run()


# -- what is taken in ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Store]:
    """The store at a path, of which every file is sound. One file of a table is a store of its own for a while."""
    with contextlib.ExitStack() as stack:
        if path.exists() and not path.is_dir():
            spec, rows = _rows_of_file(path)
            store = Store.create(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whorl-"))) / "store")
            commits.commit(store.root, {spec: rows}, "file", dated=True)
        else:
            store = Store.open(path)
        store.rows([spec.name for spec in (*TABLES, LATE)])
        for damaged, reason in store.skipped.items():
            raise StoreError(f"{damaged}: {reason}; nothing of {path} was taken in")
        yield store


def _rows_of_file(path: Path) -> tuple[Table, pa.Table]:
    """The rows of a file of a table, and this table; readings with `written`. Raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    name, version = parquet.stated_in(rows.schema.metadata)
    if why := other_format(version):
        raise InputError(f"{path}: {why}")
    spec = next((spec for spec in (*TABLES, LATE) if spec.name == name and spec not in _FOLLOW), None)
    if spec is None:
        raise InputError(f"{path} has rows of {name}, which follow from those of telemetry: import those")
    rows = rows.replace_schema_metadata()
    if spec not in (TELEMETRY, LATE):
        return spec, rows
    stated = file_names.parse(path.name)
    return TELEMETRY, keys.with_key(keys.with_written(rows, 1000 * stated.written_us if stated else 0))


def _clusters(store: Store) -> set[str]:
    columns = (store.arrow(name, ["cluster"])["cluster"].unique().to_pylist() for name in _CLUSTERED)
    return {cluster for column in columns for cluster in column if cluster is not None}


def _readings(store: Store) -> Iterator[pa.Table]:
    """The readings of a store with `written`, some at a time. Of a key the newest comes first, and others may follow.

    Raises StoreError.
    """
    import pyarrow as pa

    listing = snapshot.take(store.root, [TELEMETRY.name], store.skip)
    live = snapshot.live_rows(listing, TELEMETRY.name)
    if live is not None:
        yield live
    paths = (*listing.files[LATE.name], *listing.files[TELEMETRY.name])
    try:
        for batch in telemetry_files.batches({path: parquet.rows_in(path) for path in paths}):
            yield pa.concat_tables([telemetry_files.read(path) for path in batch], promote_options="default")
    except FileNotFoundError as error:
        raise replacing.too_fast(store.root) from error


# -- taking it in --------------------------------------------------------------------------------------------------


class _Merge:
    def __init__(
        self, store: Store, source: Store, name: str, cluster: str | None, progress: Callable[[str], None]
    ) -> None:
        self._store, self._source, self._cluster, self._progress = store, source, cluster, progress
        self._done = Merged(name)

    def run(self) -> Merged:
        with self._store.exclusive():
            self._compare_places()
            stem, number = f"merged-{uuid4().hex[:16]}", 0
            last: dict[Table, pa.Table] = {}
            for spec in (TELEMETRY, *_LARGE, *(spec for spec in TABLES if spec not in (TELEMETRY, *_LARGE, *DERIVED))):
                for rows in self._new_readings() if spec == TELEMETRY else self._new_rows(spec):
                    if spec in last:
                        commits.commit(self._store.root, last, f"{stem}-{number}", dated=True)
                        last, number = {}, number + 1
                    last[spec] = rows
            if last:
                commits.commit(self._store.root, last, stem, dated=True)
        return self._done

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

    def _new_readings(self) -> Iterator[pa.Table]:
        """The readings that the store has not, or has from an earlier time."""
        import pyarrow as pa

        for rows in _readings(self._source):
            self._progress(f"{self._done.source}: {len(rows):,} readings")
            rows = keys.newest(self._in_cluster(rows))
            minutes = _stored_near(self._store, MINUTES, [*KEY, "n"], rows)
            outside = self._outside(rows, minutes, self._counted_readings)
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
                yield pa.concat_tables([new, newer])

    def _outside(
        self, rows: pa.Table, minutes: pl.DataFrame, per_minute: Callable[[int, int], pl.DataFrame]
    ) -> pa.Table:
        """The rows without those of minutes of which there are as many readings: once pruned and once not, they are the
        same. They are counted."""
        import polars as pl
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(minutes):
            return rows
        pruned = minutes.group_by(*KEY).agg(pl.col("n").sum())
        counts = pruned.join(per_minute(*_minutes_of(rows)), on=list(KEY), nulls_equal=True)
        same = counts.filter(pl.col("readings") >= pl.col("n")).select(*KEY).to_arrow()
        minute = pc.floor_temporal(rows["ts"], unit="minute").cast(pa.timestamp("us"))
        inside = keys.among(rows.select(["cluster", "gpu"]).append_column("ts", minute), same)
        self._done.pruned += int(inside.sum())
        return rows.filter(pa.array(~inside))

    def _new_rows(self, spec: Table) -> Iterator[pa.Table]:
        """The rows of a table that the store has not; of minutes also none that it has as readings."""
        stored = self._source.rows([spec.name])[spec.name]
        pieces = [stored]
        if spec in _LARGE:
            batches = telemetry_files.batches({path: parquet.rows_in(path) for path in stored.files})
            pieces = [*map(snapshot.Rows, batches), snapshot.Rows([], late=stored.late)]
        for piece in pieces:
            rows = self._in_cluster(snapshot.read_rows(spec.name, piece))
            if not len(rows):
                continue
            self._progress(f"{self._done.source}: {len(rows):,} rows of {spec.name}")
            if spec == MINUTES:
                rows = self._outside(rows, _frame(rows), partial(_per_minute, self._store))
            if len(rows := self._later(rows) if spec == LATEST else self._unknown(spec, rows)):
                yield rows

    def _later(self, rows: pa.Table) -> pa.Table:
        """The last readings that come after those of the store."""
        stored = self._store.arrow(LATEST.name)
        return keys.without(keys.last_rows([stored, rows]), stored)

    def _unknown(self, spec: Table, rows: pa.Table) -> pa.Table:
        """The rows whose key the store does not have; they are counted."""
        import pyarrow as pa

        if not len(rows):
            return rows
        names = list(spec.key or spec.names)
        stored = _stored_near(self._store, spec, names, rows).unique()
        incoming = _frame(rows.select(names)).with_row_index("row")
        if not spec.key:
            incoming = incoming.unique(names, keep="first", maintain_order=True)
        new = incoming.join(stored, on=names, how="anti", nulls_equal=True, maintain_order="left")
        self._count(spec.name, len(new), len(rows) - len(new))
        return rows.take(pa.array(new["row"].to_numpy()))

    def _counted_readings(self, first: int, last: int) -> pl.DataFrame:
        import polars as pl

        counts = _per_minute(self._source, first, last)
        return counts if self._cluster is None else counts.with_columns(cluster=pl.lit(self._cluster))

    def _compare_places(self) -> None:
        """Tell of GPUs that are elsewhere in the source, and of clusters whose places have other GPUs there."""
        import polars as pl

        sides = [_places(self._store.arrow("gpus")), _places(self._in_cluster(self._source.arrow("gpus")))]

        def in_both_stores(key: str) -> pl.DataFrame:
            here, there = (side.group_by(key, maintain_order=True).agg(pl.exclude(key)) for side in sides)
            return here.join(there, on=key, suffix="_there").sort(key)

        shared = pl.col("place").list.set_intersection("place_there")
        moved = in_both_stores("uuid").filter(shared.list.len() == 0)
        places = moved.select("uuid", here=pl.col("place").list.last(), there=pl.col("place_there").list.last())
        self._done.moved += places.to_dicts()
        same_gpus = pl.col("uuid").list.set_intersection("uuid_there").list.len()
        crowded = in_both_stores("cluster").filter(same_gpus == 0, shared.list.len() > 0)
        place = shared.list.sort().list.first()
        self._done.crowded += crowded.select("cluster", places=shared.list.len(), place=place).to_dicts()


def _places(gpus: pa.Table) -> pl.DataFrame:
    """Where each GPU was, in the order of times: cluster, uuid, and place as cluster and node/slot."""
    import polars as pl

    rows = gpus.select(["cluster", "uuid", "node", "slot", "parent", "first_seen"])
    is_whole_gpu = pl.col("uuid").is_not_null() & pl.col("slot").is_not_null() & pl.col("parent").is_null()
    with_slots = _frame(rows).filter(is_whole_gpu).sort("first_seen", maintain_order=True)
    cluster = pl.col("cluster").fill_null("")
    return with_slots.select(
        cluster, "uuid", place=pl.format("{} {}/{}", cluster, pl.col("node").fill_null(""), "slot")
    )


def _per_minute(store: Store, first: int, last: int) -> pl.DataFrame:
    """How many readings each minute of a GPU has between two times (us): cluster, gpu, ts, readings."""
    import polars as pl

    frame = _between(store, TELEMETRY, first, last).group_by("cluster", "gpu", pl.col("ts").dt.truncate("1m"))
    return store.collect(frame.agg(pl.len().cast(pl.Int64).alias("readings")))


def _stored_near(store: Store, spec: Table, names: list[str], near: pa.Table) -> pl.DataFrame:
    """The stored rows of a table; of one with times those near the times of some rows, if all of these have one."""
    has_times = "ts" in names and not near["ts"].null_count
    frame = _between(store, spec, *_minutes_of(near)) if has_times else store.scan(spec.name)
    return store.collect(frame.select(names))


def _between(store: Store, spec: Table, first: int, last: int) -> pl.LazyFrame:
    """The stored rows of a table between two times (us)."""
    import polars as pl

    within = Bounds(first, last) if spec.partitioned else EVER
    return store.scan(spec.name, within=within).filter(pl.col("ts").cast(pl.Int64).is_between(first, last))


def _frame(rows: pa.Table) -> pl.DataFrame:
    import polars as pl

    return cast("pl.DataFrame", pl.from_arrow(rows))


def _minutes_of(rows: pa.Table) -> tuple[int, int]:
    """The first and the last time of the minutes of rows, us."""
    ts = keys.times(rows)
    return int(ts.min()) // _MINUTE_US * _MINUTE_US, (int(ts.max()) // _MINUTE_US + 1) * _MINUTE_US - 1
