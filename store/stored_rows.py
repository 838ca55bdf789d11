"""The rows of files that are to be written anew: joined, the newest of each key, in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import file_names, journal_file, keys, parquet, replacing, snapshot, telemetry_files
from .file_names import EVER, Bounds
from .parquet import DamagedError
from .schema import LATE, TELEMETRY, Table

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS = 1_500_000  # in memory at once, and again while they are sorted: about 1 GB


def visible(root: Path, spec: Table, bounds: Bounds = EVER) -> list[Path]:
    """The files of a table that readers use now, and that can have rows within the bounds. Raises OSError."""
    unsealed = {journal.stem for journal in journal_file.journals(root)}
    return snapshot.visible(root, spec, replacing.newest(root).hidden, unsealed, bounds)


def named(path: Path) -> file_names.FileName:
    """What the name of a file of a table by days says. Raises DamagedError."""
    file_name = file_names.parse(path.name)
    if file_name is None:
        raise DamagedError(path, "its name is not one that whorl gives")
    return file_name


def joined(spec: Table, paths: Iterable[Path], *, only: Any = None) -> pa.Table:
    """The rows of files of a table by days, sorted by GPU and time. Raises FileNotFoundError and DamagedError.

    Late rows of telemetry take the place of others, whenever those were written; minutes of one key are several rows.
    """
    import pyarrow as pa

    tables: dict[str, list[pa.Table]] = {}
    for path in paths:
        tables.setdefault(path.parent.parent.name, []).append(telemetry_files.read(path, only=only))
    by_table = {name: pa.concat_tables(rows, promote_options="default") for name, rows in tables.items()}
    if spec != TELEMETRY:
        return keys.without_written(by_table[spec.name]).sort_by([("gpu", "ascending"), ("ts", "ascending")])
    late = by_table.get(LATE.name)
    rows = by_table.get(TELEMETRY.name, late)
    assert rows is not None
    if late is not None:
        rows = pa.concat_tables([keys.without(rows, late), late], promote_options="default")
    return keys.without_written(keys.newest(rows))


def pieces(spec: Table, paths: Iterable[Path]) -> Iterator[pa.Table]:
    """The rows of files as `joined` gives them, in pieces of whole GPUs in their order. Raises as `joined`."""
    import pyarrow.dataset as ds

    paths = list(paths)
    if sum(map(parquet.rows_in, paths)) <= MOST_ROWS:
        yield joined(spec, paths)
        return
    counts: dict[str | None, int] = {}
    for path in paths:
        for pair in parquet.read(path, ["gpu"])["gpu"].value_counts().to_pylist():
            counts[pair["values"]] = counts.get(pair["values"], 0) + pair["counts"]
    together: list[list[str | None]] = [[]]
    rows = 0
    for gpu in sorted(counts, key=lambda gpu: (gpu is None, (gpu or "").encode())):
        if together[-1] and rows + counts[gpu] > MOST_ROWS:
            together.append([])
            rows = 0
        together[-1].append(gpu)
        rows += counts[gpu]
    field = ds.field("gpu")
    for gpus in together:
        named_gpus = field.isin([gpu for gpu in gpus if gpu is not None])
        yield joined(spec, paths, only=named_gpus | field.is_null() if None in gpus else named_gpus)
