"""Where rows of telemetry go: each key once under `telemetry/`, and what takes the place of a stored row under `late/`.

A writer compares its rows with the files whose names say that they could hold the same keys. Nearly always there are
none. It holds `placing.lock` from the comparison to the rename. Who writes files anew reads them joined, the newest row
of each key, in pieces that fit into memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import file_names, journal_file, keys, parquet, replacing
from .file_names import Bounds, FileName
from .parquet import WRITTEN, DamagedError
from .schema import KEY, LATE, LATEST, TELEMETRY, Table
from .system.locks import locked

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PLACING = "placing.lock"
NewFile = tuple[Path, bytes]
"""The place of a file, and its content."""
T = TypeVar("T")

MOST_ROWS = 1_500_000  # in memory at once, and again while they are sorted: about 1 GB
_WAIT_S = 120.0


@contextlib.contextmanager
def placing(root: Path) -> Iterator[None]:
    """The lock of those who add rows of telemetry. Raises StoreError where another has it for minutes."""
    with locked(root / PLACING, "the place of new rows", wait_s=_WAIT_S):
        yield


def place(
    root: Path,
    rows: pa.Table,
    stem: str,
    *,
    dated: bool = False,
    of_journal: bool = False,
    latest: Iterable[pa.Table] = (),
) -> list[NewFile]:
    """The files that rows, which have the column `written`, make under `telemetry/`, `late/` and `latest/`.

    The caller holds the lock of places, or looks for new `candidates` as soon as it has it. `dated`: the files say of
    each row when it was written, else their names when the last was. `of_journal`: `stem` is a journal that is sealed:
    its own files do not count, and rows that an open journal could hold too are dated. `latest`: rows of that table
    which go into its new file. Raises OSError.
    """
    rows = keys.newest(rows)
    if not len(rows):
        return []
    bounds = keys.bounds_of(rows)
    stored = stored_keys(root, bounds, without=stem if of_journal else None)
    if stored is None:  # what takes the place of a row that is not there does no harm
        new, late = rows.slice(0, 0), rows
    else:
        new, late = keys.split(rows, stored)
    written_ns = int(keys.written_ns(rows).max())
    dated = dated or (of_journal and _contested(root, bounds, stem))
    parts = [(TELEMETRY, new if dated else keys.without_written(new)), (LATE, late)]
    if len(new) or len(late):
        parts.append((LATEST, keys.last_rows([*latest, rows])))
    return [file for spec, part in parts for file in files_of(root, spec, part, stem, written_ns=written_ns)]


def files_of(
    root: Path, spec: Table, rows: pa.Table, stem: str, *, written_ns: int = 0, codec: str = "fresh"
) -> list[NewFile]:
    """The files of rows of a table: one, or one for each of their days.

    `written_ns`: when the last of them was written, for telemetry and what is made of it. `codec` as in
    `parquet.encode`.
    """
    folder = root / spec.name
    if not spec.partitioned:
        stem = f"{stem}.{written_ns // 1000:x}" if spec == LATEST else stem
        gpus = keys.hashes_of(rows) if "gpu" in rows.column_names else None
        content = parquet.encode(spec, rows, codec=codec)
        return [(folder / file_names.compose(spec.name, FileName(stem, Bounds(gpus=gpus)), content), content)]
    new_files = []
    for day, part in keys.days(rows):
        content = parquet.encode(spec, part, codec=codec)
        parts = FileName(stem, keys.bounds_of(part), dated=True, written_us=written_ns // 1000)
        new_files.append((folder / day / file_names.compose(spec.name, parts, content), content))
    return new_files


def stored_keys(root: Path, bounds: Bounds, *, without: str | None = None) -> list[pa.Table] | None:
    """The keys of stored rows near the bounds, with `written`; not those in files of the stem `without`.

    None where a file of them cannot be read. Raises OSError.
    """

    def look() -> list[pa.Table | None]:
        note = replacing.newest_note(root)
        tables = [keys_in(path) for path in candidates(root, bounds, note.hidden_in(root), without=without)]
        if replacing.newest_note(root).number != note.number:
            raise FileNotFoundError
        return tables

    tables = replacing.retried(root, look)
    readable_tables = [table for table in tables if table is not None]
    return readable_tables if len(readable_tables) == len(tables) else None


def candidates(root: Path, bounds: Bounds, hidden: Container[Path], *, without: str | None = None) -> list[Path]:
    """The files of telemetry and late rows that could hold a key within the bounds, by their names. Raises OSError."""
    paths = [path for spec in (TELEMETRY, LATE) for path in parquet.paths_in(root, spec, bounds)]
    names = [(path, file_names.parse(path.name)) for path in paths if path not in hidden]
    return [path for path, name in names if name is not None and name.dated and name.stem != without]


def read(path: Path, columns: Iterable[str] | None = None, *, only: Any = None) -> pa.Table:
    """The rows of a verified file by days or of `latest`, with their key and `written`; all else as `parquet.read`."""
    file_name = file_names.parse(path.name)
    rows = parquet.read(path, columns, only=only)
    return keys.with_key(keys.with_written(rows, 1000 * file_name.written_us if file_name else 0))


def keys_in(path: Path) -> pa.Table | None:
    """The keys of a file, and when its rows were written. None if it cannot be read: one damaged file must not stop
    new rows from being stored. Raises FileNotFoundError."""
    try:
        return read(path, [*KEY, WRITTEN])
    except DamagedError as error:
        log.warning("rows are not compared with those in %s: %s", path, error.reason)
        return None


def _contested(root: Path, bounds: Bounds, stem: str) -> bool:
    """Whether another open journal could hold a key of these rows, and some rows older and some newer than they are.

    In the journals of the same kind of this process all rows were written before these, or all of them later.
    """
    journals = journal_file.journals(root)
    kinds = {journal.kind for journal in journals if journal.stem == stem}
    process = stem.rsplit("-", 2)[0]
    others = (j for j in journals if j.stem.rsplit("-", 2)[0] != process or j.kind not in kinds)
    return any(journal.may_hold(Bounds(gpus=bounds.gpus)) for journal in others)


def oldest_journal_us(root: Path) -> int:
    """When the oldest open journal of readings began (since 1970); the end of time if there is none.

    A file whose last row was written before can be contradicted by no journal in anything but newer rows: so only such
    files are joined, and what is joined counts as written at the last of its rows. Raises OSError.
    """
    return min((journal.began_us for journal in journal_file.journals(root) if journal.kind != "rows"), default=2**63)


def blocked(path: Path, oldest_us: int) -> bool:
    """Whether a journal that began at `oldest_us` or later could hold an older row of a key of this file."""
    file_name = file_names.parse(path.name)
    return file_name is None or file_name.written_us >= oldest_us


# -- writing files anew --------------------------------------------------------------------------------------


def name_of(path: Path) -> file_names.FileName:
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
        tables.setdefault(path.parent.parent.name, []).append(read(path, only=only))
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
    holding: dict[str | None, list[Path]] = {}  # a batch reads only files that hold its GPUs: a fleet has thousands
    for path in paths:
        for pair in parquet.read(path, ["gpu"])["gpu"].value_counts().to_pylist():
            counts[pair["values"]] = counts.get(pair["values"], 0) + pair["counts"]
            holding.setdefault(pair["values"], []).append(path)
    in_order = sorted(counts, key=lambda gpu: (gpu is None, (gpu or "").encode()))
    field = ds.field("gpu")
    for gpus in batches({gpu: counts[gpu] for gpu in in_order}):
        named_gpus = field.isin([gpu for gpu in gpus if gpu is not None])
        of_gpus = dict.fromkeys(path for gpu in gpus for path in holding[gpu])
        yield joined(spec, of_gpus, only=named_gpus | field.is_null() if None in gpus else named_gpus)


def batches(rows_of: Mapping[T, int]) -> list[list[T]]:
    """Neighbours together, as many as have at most `MOST_ROWS` rows; `rows_of`: how many each has."""
    together: list[list[T]] = []
    rows = 0
    for part, more_rows in rows_of.items():
        if not together or rows + more_rows > MOST_ROWS:
            together.append([])
            rows = 0
        together[-1].append(part)
        rows += more_rows
    return together
