"""The pieces of a table that can be worked on apart, here or on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .keys import KEY, bounds_of, days
from .manifest import gpus_of
from .schema import table
from .snapshot import Rows

if TYPE_CHECKING:
    import pyarrow as pa


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
        import pyarrow as pa
        import pyarrow.dataset as ds

        from .keys import without
        from .schema import arrow_schema

        chosen_columns = columns or table(self.table).names
        key = (
            [name for name in KEY if name not in chosen_columns]
            if self.late is not None and self.day is not None
            else []
        )
        read = ds.dataset(
            [str(path.absolute()) for path in self.files], schema=arrow_schema(self.table), format="parquet"
        )
        rows = read.to_table(columns=[*chosen_columns, *key])
        if self.late is None:
            return rows
        other_rows = without(rows, self.late) if self.day is not None else rows  # other tables have no such key
        return pa.concat_tables([other_rows.select(chosen_columns), self.late.select(chosen_columns)])


def parts_of(name: str, rows: Rows) -> list[TablePart]:
    """The pieces of a table: of a table by days, the files of a day whose GPUs have to do with each other."""
    import pyarrow as pa

    beside = [part for part in (rows.late, rows.live) if part is not None and len(part)]
    over = pa.concat_tables(beside) if beside else None
    if not table(name).partitioned:
        return [TablePart(name, None, tuple(rows.files), over)] if rows.files or over is not None else []
    by_day: dict[str, list[Path]] = {}
    for path in rows.files:
        by_day.setdefault(path.parent.name, []).append(path)
    late = dict(days(over)) if over is not None else {}
    return [part for day in sorted({*by_day, *late}) for part in _of_day(name, day, by_day.get(day, []), late.get(day))]


def _of_day(name: str, day: str, paths: list[Path], late: pa.Table | None) -> list[TablePart]:
    """Groups of files of a day that share GPUs, directly or through others; late rows go with theirs."""
    groups: list[tuple[set[int] | None, list[Path], pa.Table | None]] = []
    chosen_columns = [(gpus_of(path), [path], None) for path in paths]
    if late is not None:
        chosen_columns.append((bounds_of(late).gpus, [], late))
    for gpus, several, rows in chosen_columns:
        joined: tuple[set[int] | None, list[Path], pa.Table | None] = (
            set(gpus) if gpus is not None else None,
            several,
            rows,
        )
        apart = []
        for group in groups:
            if joined[0] is None or group[0] is None or not joined[0].isdisjoint(group[0]):
                joint_gpus = None if joined[0] is None or group[0] is None else joined[0] | group[0]
                joined = joint_gpus, [*group[1], *joined[1]], joined[2] if joined[2] is not None else group[2]
            else:
                apart.append(group)
        groups = [*apart, joined]
    return [TablePart(name, day, tuple(several), rows) for _, several, rows in groups]
