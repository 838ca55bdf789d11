"""The process that answers a query of the page SQL.

It opens the store, does one piece of work (`first_rows` or `write`), and ends. Cells are sent as text, since JSON and
doubles would change some numbers; a whole answer is written to a file, part by part.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import polars as pl

from ...errors import QueryError, WhorlError
from ...store import Store
from ...store.sql import TOO_LARGE, Share, Stream
from ...store.system import processes
from ..answers.texts import FORMULA, NUMBER, distinct, is_number, values_of

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS, MOST_COLUMNS = 1000, 200
"""So many rows and columns of an answer are shown."""
MOST_POINTS = 10_000
"""So many rows of an answer can be drawn."""
_SHOWN_BYTES = 700_000  # of the cells that are shown, as JSON
_READ_BYTES = 64_000_000  # of the rows of an answer that may be drawn
_POINTS_BYTES = 4_000_000
_BESIDE_MB = 512  # for what DuckDB does not count: texts that functions make, rows on their way out
_NICE = 5
_LONGEST = 400  # characters of a cell
_LONGEST_NAME = 40  # characters of a text in a figure
_NAME_BYTES = 8  # of the name that goes with each cell

Form: TypeAlias = Literal["csv", "parquet"]
Text: TypeAlias = str | None
"""A cell of an answer; None is NULL."""


@dataclass(frozen=True)
class AnswerColumn:
    """A column of an answer: its name, DuckDB's name of its type, and whether it holds numbers."""

    name: str
    type: str
    numeric: bool


@dataclass(frozen=True)
class FirstRows:
    """The first rows of an answer.

    `rows`: the cells, row by row; `cut` of them were longer than what is shown. `points`: the rows for figures, with
    the columns that can be drawn: numbers as doubles, times, and texts. `total`: how many rows the answer has; None
    where it has more than were read.
    """

    columns: tuple[AnswerColumn, ...]
    all_columns: int
    rows: list[list[Text]]
    cut: int
    points: pl.DataFrame
    total: int | None


def serve(end: Connection, root: Path, share: Share) -> None:
    """Say None when the store is open, do the work that comes then (a function of the store and its arguments), and
    send what it gives, or the WhorlError that it raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then ends this one
    Thread(target=processes.end_with_parent, daemon=True).start()
    logging.disable()  # what is wrong with files is told by the process that asks
    os.nice(_NICE)
    try:
        store = Store.open(root)
        store.share = share
        store.stream("SELECT 1 AS warm FROM runs LIMIT 1", lambda answer: answer.parts().read_all())
        _confine(share)
        end.send(None)
        function, *arguments = end.recv()
        end.send(function(store, *arguments))
    except (EOFError, ConnectionError):
        return
    except WhorlError as error:
        end.send(error)
    except MemoryError:
        end.send(QueryError(TOO_LARGE))
    except Exception as error:  # a kind of value that Arrow cannot take
        why = " ".join(str(error).split())[:200]
        end.send(QueryError(f"the answer cannot be shown ({type(error).__name__}: {why})"))


def _confine(share: Share) -> None:
    """Let the system refuse memory beyond the limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = _data_bytes()
    if used is not None:
        most = used + (share.memory_mb + _BESIDE_MB) * 1_000_000
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _data_bytes() -> int | None:
    """What RLIMIT_DATA counts of this process; None where the system does not say or does not limit it so."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


# -- first rows --------------------------------------------------------------------------------------------------


def first_rows(store: Store, query: str) -> FirstRows:
    """The first rows of the answer to a query. Raises QueryError."""
    return store.stream(query, _first_rows)


def _first_rows(answer: Stream) -> FirstRows:
    import pyarrow as pa

    reader = answer.parts()
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    complete = True
    for part in reader:
        if rows >= MOST_POINTS or size > _READ_BYTES:
            complete = False
            break
        parts.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
    everything = pa.Table.from_batches(parts, reader.schema)
    table = everything.select(list(range(min(everything.num_columns, MOST_COLUMNS))))
    table = table.rename_columns(distinct(table.column_names))
    cells = list(zip(*map(_texts, table.slice(0, MOST_ROWS).columns), strict=True))
    return FirstRows(
        columns=tuple(
            AnswerColumn(field.name, kind, is_number(field.type))
            for field, kind in zip(table.schema, answer.types, strict=False)
        ),
        all_columns=everything.num_columns,
        rows=_fitting([[_short(cell) for cell in row] for row in cells]),
        cut=sum(cell is not None and len(cell) > _LONGEST for row in cells for cell in row),
        points=_points(table.slice(0, MOST_POINTS)),
        total=rows if complete else None,
    )


def _short(cell: Text) -> Text:
    return cell if cell is None or len(cell) <= _LONGEST else f"{cell[:_LONGEST]}…"


def _fitting(rows: Sequence[list[Text]]) -> list[list[Text]]:
    """The first of these rows, at most `_SHOWN_BYTES` of JSON."""
    free = _SHOWN_BYTES
    for number, row in enumerate(rows):
        free -= len(json.dumps(row, ensure_ascii=False).encode()) + _NAME_BYTES * len(row)
        if free < 0:
            return list(rows[:number])
    return list(rows)


def _texts(column: Any) -> list[Text]:
    """The values of a column in text, exactly and whole."""
    import pyarrow as pa

    kind, values = column.type, values_of(column)
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        narrow = kind.to_pandas_dtype()  # whose own text is short: 0.1, and not 0.10000000149011612
        values = [float(str(narrow(x))) if x is not None and math.isfinite(x) else x for x in values]
    return [None if value is None else _text(value) for value in values]


def _text(value: Any) -> str:
    """A value in text, exactly: a list or a record as JSON would be, if JSON had all numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_part(str(name))}: {_part(part)}' for name, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_part, value))}]"
    return str(value)


def _part(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    return _text(value)


def _points(table: pa.Table) -> pl.DataFrame:
    """The columns of a table that a figure can have: numbers as doubles, times in microseconds, short texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        kind = column.type
        if is_number(kind):
            columns[name] = pc.cast(column, pa.float64(), safe=False)
        elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            columns[name] = pc.cast(column, pa.timestamp("us"), safe=False)
        elif pa.types.is_boolean(kind):
            columns[name] = pc.cast(column, pa.string())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            columns[name] = pc.utf8_slice_codeunits(pc.cast(column, pa.large_string()), 0, _LONGEST_NAME)
    points = cast("pl.DataFrame", pl.from_arrow(pa.table(columns)))
    return points.head(int(points.height * min(1.0, _POINTS_BYTES / max(points.estimated_size(), 1))))


# -- whole answers -----------------------------------------------------------------------------------------------


def write(store: Store, query: str, path: Path, form: Form, most_bytes: int) -> int:
    """Write the whole answer to a query to a file, and say how many rows it has. Raises QueryError, also where the file
    exceeds `most_bytes`.

    In CSV, a text that a spreadsheet would take for a formula gets an apostrophe in front. Parquet has it as it is.
    """
    return store.stream(query, lambda answer: _write(answer.parts(), form, path, most_bytes))


def _write(parts: pa.RecordBatchReader, form: Form, path: Path, most_bytes: int) -> int:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    convert = _csv_column if form == "csv" else _parquet_column
    names = distinct(parts.schema.names)
    if form == "csv":
        names = _harmless(pa.array(names, pa.large_string())).to_pylist()
    kinds = [convert(pa.array([], field.type)).type for field in parts.schema]
    schema, rows = pa.schema(list(zip(names, kinds, strict=True))), 0
    with (
        path.open("wb") as file,
        csv.CSVWriter(file, schema) if form == "csv" else pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for part in parts:
            rows += part.num_rows
            writer.write_batch(pa.RecordBatch.from_arrays(list(map(convert, part.columns)), schema=schema))
            if file.tell() > most_bytes:
                raise QueryError(
                    f"the file would be larger than {most_bytes / 1e6:,g} MB: choose fewer rows or columns"
                )
    return rows


def _csv_column(column: Any) -> Any:
    """A column as CSV has it: numbers as they are, all else as harmless text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_number(column.type):
        return column
    plain = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return _harmless(pc.cast(column, pa.large_string()) if plain else pa.array(_texts(column), pa.large_string()))


def _parquet_column(column: Any) -> Any:
    """A column as Parquet has it: as it is, or as text where Parquet has no such type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.table({"x": pa.array([], column.type)}), pa.BufferOutputStream())
    except pa.ArrowException:
        return pa.array(_texts(column), pa.large_string())
    return column


def _harmless(column: Any) -> Any:
    """Texts of which a spreadsheet takes none for a formula."""
    import pyarrow as pa
    import pyarrow.compute as pc

    quote, nothing = pa.scalar("'", pa.large_string()), pa.scalar("", pa.large_string())
    formula = pc.and_not(pc.match_substring_regex(column, FORMULA), pc.match_substring_regex(column, NUMBER))
    return pc.if_else(formula, pc.binary_join_element_wise(quote, column, nothing), column)
