"""What a store holds at one instant: the files that readers use, and the rows that are in journals only.

Files may be replaced while a reader lists them. So the newest note is read before and after the listing, which is
repeated if it changed. A journal is read before the files are listed, and the files that carry its name are left out.
So every row is seen, and none twice. `TablePart` is a piece of a table that can be worked on apart, here or on other
machines.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import file_names, journal_file, keys, manifest, parquet, replacing, telemetry_files
from .file_names import EVER, Bounds
from .parquet import DamagedError, Verified
from .replacing import Skip, too_fast
from .schema import DERIVED, KEY, LATE, LATEST, MINUTES, TABLES, TELEMETRY, Table, arrow_schema, table
from .system import files

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.dataset as ds

_TRIES = 100
_PAUSE_S = 0.02
_SORTED_JOURNALS = 128
_BY_TIME = {spec.name for spec in (TELEMETRY, LATE, MINUTES, *DERIVED)}


@dataclass(frozen=True)
class Rows:
    """A table at one instant: the rows of `free`, those of `contested` whose key is not in `late`, and `late`.

    `late` has rows that take the place of those in files, and those that are in no file. It lacks columns that are NULL
    in all of its rows: a row with every column of telemetry takes 1 kB.
    """

    free: list[Path]
    contested: list[Path] = field(default_factory=list)
    late: pa.Table | None = None

    @property
    def files(self) -> list[Path]:
        return [*self.free, *self.contested]

    @property
    def ends_us(self) -> tuple[int, int] | None:
        """The first and the last time of rows of a table by days, as names of files state it; None of no rows."""
        named = [file_name.bounds for path in self.files if (file_name := file_names.parse(path.name)) is not None]
        bounds = [*named, *([keys.bounds_of(self.late)] if self.late is not None and len(self.late) else [])]
        return (min(each.first_us for each in bounds), max(each.last_us for each in bounds)) if bounds else None


@dataclass
class Snapshot:
    """The visible files of tables, verified or not, and what was read of journals."""

    files: dict[str, list[Path]] = field(default_factory=dict)
    journals: dict[journal_file.JournalName, journal_file.JournalContent] = field(default_factory=dict)


def take(root: Path, names: Collection[str], skip: Skip, bounds: Bounds = EVER) -> Snapshot:
    """What a store holds now, of some tables; of tables by time only what can lie within the bounds, which
    are those of telemetry, or of the only table.

    Raises StoreError where its folders cannot be read.
    """
    table_names = set(names)
    if TELEMETRY.name in table_names:
        table_names.add(LATE.name)
    gone: set[Path] = set()
    with files.readable(root):
        for _ in range(_TRIES):
            listing = Snapshot()
            note = replacing.newest_note(root, skip)
            hidden = note.hidden_in(root)
            journals = [journal for journal in journal_file.journals(root) if journal.path not in gone]
            try:
                for journal in journals:
                    if _is_wanted(journal, table_names, bounds):
                        listing.journals[journal], reason = journal_file.look(journal.path)
                        if reason is not None:
                            skip(journal.path, reason)
            except FileNotFoundError as error:
                gone.add(Path(error.filename))  # it was sealed just now
                continue
            unsealed = {journal.stem for journal in journals}
            # In the order of TABLES: a run that is seen has its results.
            for spec in (*TABLES, LATE):
                if spec.name in table_names:
                    within = bounds if spec.name in _BY_TIME or len(names) == 1 else EVER
                    listing.files[spec.name] = visible(root, spec, hidden, unsealed, within)
            if replacing.newest_note(root, skip).number == note.number:
                return listing
            time.sleep(_PAUSE_S)
    raise too_fast(root)


def visible_now(root: Path, spec: Table, bounds: Bounds = EVER) -> list[Path]:
    """The files of a table that readers use now, and that can have rows within the bounds. Raises OSError."""
    unsealed = {journal.stem for journal in journal_file.journals(root)}
    return visible(root, spec, replacing.newest_note(root).hidden_in(root), unsealed, bounds)


def visible(
    root: Path, spec: Table, hidden: Collection[Path], unsealed: Collection[str], bounds: Bounds = EVER
) -> list[Path]:
    """The files of a table that readers use: not those that a note hides, nor those of an unsealed journal.

    Of `latest` all count: a journal's file of last readings has those of the files before it, which go when it comes.
    """
    unsealed = () if spec == LATEST else unsealed
    paths = []
    for path in parquet.paths_in(root, spec, bounds):
        if hidden and path in hidden:
            continue
        if unsealed and (file_name := file_names.parse(path.name)) is not None and file_name.stem in unsealed:
            continue
        if spec.partitioned and not manifest.may_hold(path, bounds):  # asked before all of it is read to be verified
            continue
        paths.append(path)
    return paths


def _is_wanted(journal: journal_file.JournalName, table_names: set[str], bounds: Bounds) -> bool:
    """Whether a journal can have rows of these tables."""
    if journal.kind == "rows":
        return not table_names <= {*_BY_TIME, LATEST.name}
    bounds = EVER if LATEST.name in table_names else bounds
    return not table_names.isdisjoint({TELEMETRY.name, LATEST.name}) and journal.may_hold(bounds)


def live_rows(listing: Snapshot, name: str) -> pa.Table | None:
    """The rows of a table that are in journals, with `written`; None if there are none."""
    parts = [rows for content in listing.journals.values() if (rows := content.rows.get(name)) is not None]
    if not parts:
        return None
    import pyarrow as pa

    return pa.concat_tables(parts, promote_options="default").combine_chunks()


def rows_of(name: str, listing: Snapshot, verified: Verified, skip: Skip, bounds: Bounds = EVER) -> Rows:
    """A table of a snapshot. Raises FileNotFoundError where a file was replaced meanwhile."""
    spec = table(name)
    if name == LATEST.name:
        gpus = bounds.gpus if len(listing.files) == 1 else None  # the bounds are of the only table
        return Rows([], late=latest(listing, verified, skip, gpus))
    paths = sound(spec, listing.files[name], verified, skip)
    live = live_rows(listing, name)
    if name != TELEMETRY.name:
        return Rows(paths, late=None if live is None else keys.conform(spec, keys.without_written(live)))
    late = _read(LATE, listing, verified, skip)
    if live is None and not late:
        return Rows(paths)
    import pyarrow as pa

    besides: list[pa.Table] = []
    if live is not None:
        ts = keys.times(live)
        live = keys.newest(live.filter(pa.array((ts >= bounds.first_us) & (ts <= bounds.last_us))))
        if len(live):
            near = _near(live, [*paths, *listing.files[LATE.name]])
            others = [stored_keys for path in near if (stored_keys := telemetry_files.keys_in(path)) is not None]
            live, newer = keys.split(live, others)
            late += [newer] if len(newer) else []
            besides += [live] if len(live) else []
    of_late = [keys.bounds_of(rows) for rows in late]
    contested = {path for path in paths if any(file_names.may_hold(path.name, late_bounds) for late_bounds in of_late)}
    if late:
        besides.append(keys.newest(pa.concat_tables(late, promote_options="default")))
    return Rows(
        [path for path in paths if path not in contested],
        [path for path in paths if path in contested],
        keys.conform(spec, keys.without_written(pa.concat_tables(besides, promote_options="default")))
        if besides
        else None,
    )


def _near(live: pa.Table, paths: list[Path]) -> list[Path]:
    """The files that could hold a key of rows in journals, GPU by GPU: the last minutes of a fleet overlap with files
    of all other nodes."""
    of_live, by_gpu = keys.bounds_of(live), keys.bounds_by_gpu(live)
    near = []
    for path in paths:
        file_name = file_names.parse(path.name)
        gpus = None if file_name is None else file_name.bounds.gpus
        if file_name is None or gpus is None:
            shared = file_names.may_hold(path.name, of_live)
        else:
            shared = any(gpu in by_gpu and by_gpu[gpu].overlap(file_name.bounds) for gpu in gpus)
        near += [path] if shared else []
    return near


def latest(listing: Snapshot, verified: Verified, skip: Skip, gpus: Collection[int] | None = None) -> pa.Table:
    """The last reading of every GPU. `gpus` (`gpu_hash`): those of others need not be there."""
    import pyarrow as pa

    parts = _read(LATEST, listing, verified, skip)
    if gpus is not None:  # to find the last rows of a whole fleet takes longer than to read them
        of_gpus = [[file_names.gpu_hash(gpu) in gpus for gpu in rows["gpu"].to_pylist()] for rows in parts]
        parts = [rows.filter(pa.array(is_of_gpus)) for rows, is_of_gpus in zip(parts, of_gpus, strict=True)]
    live = [rows for content in listing.journals.values() if (rows := content.rows.get(TELEMETRY.name)) is not None]
    # Some journals at a time: those of a fleet have millions of rows, which would all be sorted together.
    parts += [keys.last_rows(live[at : at + _SORTED_JOURNALS]) for at in range(0, len(live), _SORTED_JOURNALS)]
    no_row = pa.table({"ts": pa.array([], pa.timestamp("us"))})
    return parquet.complete(LATEST, keys.conform(LATEST, keys.last_rows([no_row, *parts])))


def sound(spec: Table, paths: Iterable[Path], verified: Verified, skip: Skip) -> list[Path]:
    """Those files that can be read; `skip` is told of the others. Raises FileNotFoundError."""
    good = []
    for path in paths:
        reason = verified.reason(path, spec)
        if reason is None:
            good.append(path)
        else:
            skip(path, reason)
    verified.save()
    return good


def _read(spec: Table, listing: Snapshot, verified: Verified, skip: Skip) -> list[pa.Table]:
    """The rows of the few files of a table, with `written`. Raises FileNotFoundError."""
    parts = []
    for path in sound(spec, listing.files[spec.name], verified, skip):
        try:
            rows = telemetry_files.read(path)
        except DamagedError as error:
            skip(path, f"it is damaged ({error.reason}); move it out of the store")
        else:
            parts += [rows] if len(rows) else []
    return parts


# -- rows, and pieces that can be worked on apart ----------------------------------------------------------------------

_BYTES_OF_ROW = 13  # of telemetry as a collector writes it, 14 samples a row
_FEW_ROWS = 6_000_000
"""A piece of fewer rows takes in other GPUs: each costs a worker some 60 ms. So many rows of a few columns fit into
400 MB."""


@dataclass(frozen=True)
class TablePart:
    """A piece of a table: files that any engine reads, and rows that take the place of some of theirs.

    `day`: the folder of its day (`day=2026-11-28`), None for a table without days. `files`: Parquet files with every
    column of the table. `late`: rows of a key (cluster, gpu, ts) that replace the row of that key in `files`, or that
    are in no file; of a table without days, rows that are in no file. To join the answers to pieces: counts and sums
    are summed, minima and maxima compared; a mean is a sum over a count; a figure of a GPU and a day comes from one
    piece.
    """

    table: str
    day: str | None
    files: tuple[Path, ...]
    late: pa.Table | None = None

    def arrow(self, columns: list[str] | None = None) -> pa.Table:
        """The rows of the piece. Raises OSError and pyarrow.ArrowException."""
        paths = list(self.files)
        rows = Rows([], paths, self.late) if self.day is not None else Rows(paths, late=self.late)
        return read_rows(self.table, rows, columns)

    def relation(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """The rows of the piece for queries of this connection. Each query reads the columns that it needs, a few row
        groups at a time, so it takes less memory and CPU than `arrow` for many rows. Queries raise duckdb.Error."""
        spec = table(self.table)
        paths = [parquet.pattern(path.absolute()) for path in self.files]
        rows = spec.nothing  # of all columns, also those that files of an earlier whorl lack
        if paths:
            # The query names it, as it does the late rows.
            stored = connection.read_parquet(paths, hive_partitioning=False, union_by_name=True)  # noqa: F841
            rows += " UNION ALL BY NAME FROM stored"
        if self.late is not None:
            late = parquet.complete(spec, self.late)  # noqa: F841
            if paths and self.day is not None:
                rows += f" WHERE {keys.KEY_RECORD} NOT IN (SELECT {keys.KEY_RECORD} FROM late)"
            rows += " UNION ALL BY NAME FROM late"
        return connection.sql(rows)


def read_rows(
    name: str, rows: Rows, columns: list[str] | None = None, *, only: ds.Expression | None = None
) -> pa.Table:
    """Some columns of the rows of a table; `only` is a filter. Raises OSError and pyarrow.ArrowException."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    chosen = columns or table(name).names

    def rows_in(paths: list[Path], names: list[str]) -> pa.Table:
        places = [str(path.absolute()) for path in paths]
        return ds.dataset(places, schema=arrow_schema(name), format="parquet").to_table(columns=names, filter=only)

    tables = [rows_in(rows.free, chosen)]
    if rows.contested:
        contested = rows_in(rows.contested, [*chosen, *(column for column in KEY if column not in chosen)])
        tables.append(contested if rows.late is None else keys.without(contested, rows.late))
    if rows.late is not None:
        tables.append(rows.late if only is None else rows.late.filter(only))
    return pa.concat_tables([parquet.complete(table(name), part, chosen) for part in tables])


def parts_of(name: str, rows: Rows) -> list[TablePart]:
    """The pieces of a table: of a table by days, the files of some GPUs of a day.

    Their paths are absolute, as a worker may have another working directory.
    """
    over = parquet.complete(table(name), rows.late) if rows.late is not None and len(rows.late) else None
    paths = [path.absolute() for path in rows.files]
    if not table(name).partitioned:
        return [TablePart(name, None, tuple(paths), over)] if paths or over is not None else []
    by_day = file_names.by_day(paths)
    late = dict(keys.days(over)) if over is not None else {}
    return [
        TablePart(name, day, tuple(of_group), late_rows)
        for day in sorted({*by_day, *late})
        for of_group, late_rows in _groups(by_day.get(day, []), late.get(day))
    ]


def rows_by_day(paths: Iterable[Path], gpus: frozenset[int] | None) -> dict[int, int]:
    """About how many rows of some GPUs (None: of all) files of telemetry have on each day (since 1970)."""
    days: dict[int, float] = {}
    for folder, of_day in file_names.by_day(paths).items():
        day, listed = file_names.day_number(folder), manifest.read(of_day[0].parent)
        if day is None:
            continue
        known_rows = {} if listed is None else listed.rows
        for path in of_day:
            in_file = manifest.gpus_of(path) if gpus is not None else None
            share = 1.0 if gpus is None or not in_file else len(gpus & in_file) / len(in_file)
            days[day] = days.get(day, 0.0) + share * _rows_in(path, known_rows)
    return {day: round(rows) for day, rows in sorted(days.items())}


def _rows_in(path: Path, known_rows: dict[str, int]) -> float:
    """About how many rows a file of telemetry has, by its day's manifest or its size."""
    if path.name in known_rows:
        return known_rows[path.name]
    try:
        return path.stat().st_size / _BYTES_OF_ROW
    except FileNotFoundError:  # replaced by others meanwhile
        return 0.0


def _groups(paths: list[Path], late: pa.Table | None) -> Iterator[tuple[list[Path], pa.Table | None]]:
    """The files of a day in groups; those that share a GPU, directly or through others, are in one, with its late rows.

    A file shares a GPU by its name where the day's manifest has it, else by the hash of its name: of thousands of GPUs,
    some hashes are equal.
    """
    listed = manifest.names_of_gpus(paths[0].parent) if paths else {}
    names_of: dict[int, list[str | None]] = {}
    if any(path.name not in listed for path in paths):
        for name in frozenset[str | None]().union(*listed.values()):
            names_of.setdefault(file_names.gpu_hash(name), []).append(name)
    gpus: list[frozenset[str | int | None]] = []
    for path in paths:
        hashes = manifest.gpus_of(path)
        if path.name in listed:
            gpus.append(listed[path.name])
        elif hashes is not None:
            gpus.append(hashes.union(*(names_of.get(number, ()) for number in hashes)))
        else:  # it may have any
            yield paths, late
            return
    if late is not None:
        late_gpus = late["gpu"].unique().to_pylist()
        gpus.append(frozenset(late_gpus) | file_names.gpu_hashes(late_gpus))
    known_rows = day_manifest.rows if paths and (day_manifest := manifest.read(paths[0].parent)) else {}
    together: list[Path] = []
    n_rows = 0.0
    for group in _connected(gpus):
        if group[-1] == len(paths):  # the rows of other GPUs need not be compared with late rows
            yield [paths[place] for place in group[:-1]], late
            continue
        in_group = [paths[place] for place in group]
        more_rows = sum(_rows_in(path, known_rows) for path in in_group)
        if together and n_rows + more_rows > _FEW_ROWS:
            yield together, None
            together, n_rows = [], 0.0
        together, n_rows = together + in_group, n_rows + more_rows
    if together:
        yield together, None


def _connected(sets: Sequence[frozenset[Any]]) -> list[list[int]]:
    """The places of the sets in groups: two sets that share a member are in one group, in order of the first set."""
    group_of: dict[Any, list[int]] = {}
    for place, members in enumerate(sets):
        touched = {id(group_of[member]): group_of[member] for member in members if member in group_of}
        largest, *others = sorted(touched.values(), key=len, reverse=True) or [[]]
        for group in others:
            largest += group
            group_of |= {member: largest for old_place in group for member in sets[old_place]}
        largest.append(place)
        group_of |= dict.fromkeys(members, largest)
    return sorted(sorted(group) for group in {id(group): group for group in group_of.values()}.values())
