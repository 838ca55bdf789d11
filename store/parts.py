"""The pieces of a table that can be worked on apart, here or on other machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import file_names, manifest
from .file_names import gpu_hash, gpu_hashes
from .keys import KEY_RECORD, days, without
from .parquet import complete, pattern
from .schema import KEY, arrow_schema, table
from .snapshot import Rows

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.dataset as ds


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
        return read(self.table, rows, columns)

    def relation(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """The rows of the piece for queries of this connection. Each query reads the columns that it needs, a few row
        groups at a time, so it takes less memory and CPU than `arrow` for many rows. Queries raise duckdb.Error."""
        spec = table(self.table)
        paths = [pattern(path.absolute()) for path in self.files]
        rows = spec.nothing  # of all columns, also those that files of an earlier whorl lack
        if paths:
            # The query names it, as it does the late rows.
            stored = connection.read_parquet(paths, hive_partitioning=False, union_by_name=True)  # noqa: F841
            rows += " UNION ALL BY NAME FROM stored"
        if self.late is not None:
            late = complete(spec, self.late)  # noqa: F841
            if paths and self.day is not None:
                rows += f" WHERE {KEY_RECORD} NOT IN (SELECT {KEY_RECORD} FROM late)"
            rows += " UNION ALL BY NAME FROM late"
        return connection.sql(rows)


def read(name: str, rows: Rows, columns: list[str] | None = None, *, only: ds.Expression | None = None) -> pa.Table:
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
        tables.append(contested if rows.late is None else without(contested, rows.late))
    if rows.late is not None:
        tables.append(rows.late if only is None else rows.late.filter(only))
    return pa.concat_tables([complete(table(name), part, chosen) for part in tables])


def parts_of(name: str, rows: Rows) -> list[TablePart]:
    """The pieces of a table: of a table by days, the files of some GPUs of a day.

    Their paths are absolute, as a worker may have another working directory.
    """
    over = complete(table(name), rows.late) if rows.late is not None and len(rows.late) else None
    paths = [path.absolute() for path in rows.files]
    if not table(name).partitioned:
        return [TablePart(name, None, tuple(paths), over)] if paths or over is not None else []
    by_day = file_names.by_day(paths)
    late = dict(days(over)) if over is not None else {}
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
            names_of.setdefault(gpu_hash(name), []).append(name)
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
        gpus.append(frozenset(late_gpus) | gpu_hashes(late_gpus))
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
