"""The process that answers queries of the page SQL, and the messages between it and the process that asks.

It opens the store, answers one query, and ends. Cells are sent as text, since JSON and
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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
_WRITTEN_ROWS, _WRITTEN_BYTES = 100_000, 32_000_000  # of a part of a file

Form: TypeAlias = Literal["csv", "parquet"]
Text: TypeAlias = str | None
"""A cell of an answer; None is NULL."""


@dataclass(frozen=True)
class QueryTask:
    """A query: its first rows are shown, or with `path` its whole answer is written there, of `most_bytes` at most."""

    query: str
    path: str = ""
    form: Form = "csv"
    most_bytes: int = 0


@dataclass(frozen=True)
class AnswerColumn:
    """A column of an answer: its name, DuckDB's name of its type, and whether it holds numbers."""

    name: str
    type: str
    numeric: bool


@dataclass(frozen=True)
class FirstRows:
    """The first rows of an answer.

    `rows`: the cells, row by row; `cut` of them were longer than what is shown. `points`: `drawn` of the rows for
    figures, as the bytes of an Arrow stream with the `drawable` columns: numbers as doubles, times, and texts.
    `total`: how many rows the answer has; None where it has more than were read.
    """

    columns: tuple[AnswerColumn, ...]
    all_columns: int
    rows: list[list[Text]]
    cut: int
    drawable: tuple[str, ...]
    points: bytes
    drawn: int
    total: int | None


@dataclass(frozen=True)
class Written:
    """What was written to a file: its rows and bytes."""

    rows: int
    size: int


@dataclass(frozen=True)
class Failed:
    """Why there is no answer."""

    sentence: str


def serve(end: Connection, root: Path, share: Share) -> None:
    """Answer a question."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, which then ends this one
    Thread(target=processes.end_with_parent, daemon=True).start()
    logging.disable()  # what is wrong with files is told by the process that asks
    os.nice(_NICE)
    try:
        try:
            store = Store.open(root)
            store.share = share
            store.stream("SELECT 1 AS warm FROM runs LIMIT 1", lambda answer: answer.parts().read_all())
        except WhorlError as error:
            end.send(Failed(str(error)))
            return
        _confine(share)
        end.send(None)
        end.send(_answer(store, end.recv()))
    except (EOFError, ConnectionError):
        return


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


def _answer(store: Store, task: QueryTask) -> FirstRows | Written | Failed:
    try:
        if task.path:
            path = Path(task.path)
            return store.stream(task.query, lambda answer: _write(answer.parts(), task.form, path, task.most_bytes))
        return store.stream(task.query, _first_rows)
    except WhorlError as error:
        return Failed(str(error))
    except MemoryError:
        return Failed(TOO_LARGE)
    except Exception as error:  # a kind of value that Arrow cannot take
        return Failed(f"the answer cannot be shown ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


# -- first rows --------------------------------------------------------------------------------------------------


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
    columns, cuts = zip(*map(_short_texts, table.slice(0, MOST_ROWS).columns), strict=True)
    fitting = _fitting(columns)
    points = _drawable(table.slice(0, MOST_POINTS))
    points = points.slice(0, int(points.num_rows * min(1.0, _POINTS_BYTES / max(points.nbytes, 1))))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, points.schema) as stream:
        stream.write_table(points)
    return FirstRows(
        columns=tuple(
            AnswerColumn(field.name, kind, is_number(field.type))
            for field, kind in zip(table.schema, answer.types, strict=False)
        ),
        all_columns=everything.num_columns,
        rows=[list(row) for row in zip(*(column[:fitting] for column in columns), strict=True)],
        cut=sum(cuts),
        drawable=tuple(points.column_names),
        points=bytes(sink.getvalue()),
        drawn=points.num_rows,
        total=rows if complete else None,
    )


def _short_texts(column: Any) -> tuple[list[Text], int]:
    """The values of a column as cells, and how many of them were cut because they are long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    long: set[int] = set()
    is_text = _is_text(column.type)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    if is_text or any(is_kind(column.type) for is_kind in kinds):  # cut before they become Python's
        large = column.cast(pa.large_string() if is_text else pa.large_binary())
        length = pc.utf8_length(large) if is_text else pc.binary_length(large)
        long = set(pc.indices_nonzero(pc.fill_null(pc.greater(length, _LONGEST), False)).to_pylist())
        column = pc.utf8_slice_codeunits(large, 0, _LONGEST) if is_text else pc.binary_slice(large, 0, _LONGEST)
    cells = _texts(column)
    for place, cell in enumerate(cells):
        if cell is not None and (len(cell) > _LONGEST or place in long):
            cells[place] = f"{cell[:_LONGEST]}…"
            long.add(place)
    return cells, len(long)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _fitting(columns: Sequence[Sequence[Text]]) -> int:
    """How many rows of these columns are at most `_SHOWN_BYTES` of JSON."""
    free = _SHOWN_BYTES
    for number, row in enumerate(zip(*columns, strict=True)):
        sizes = (4 if cell is None else len(json.dumps(cell, ensure_ascii=False).encode()) for cell in row)
        free -= sum(sizes) + _NAME_BYTES * len(row)
        if free < 0:
            return number
    return len(columns[0])


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


def _drawable(table: pa.Table) -> pa.Table:
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
        elif _is_text(kind):
            columns[name] = pc.utf8_slice_codeunits(pc.cast(column, pa.large_string()), 0, _LONGEST_NAME)
    return pa.table(columns)


# -- whole answers -----------------------------------------------------------------------------------------------


def _write(parts: pa.RecordBatchReader, form: Form, path: Path, most_bytes: int) -> Written:
    """Write the rows to a file. Raises QueryError where it exceeds `most_bytes`.

    In CSV, a text that a spreadsheet would take for a formula gets an apostrophe in front. Parquet has it as it is.
    """
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    convert = _csv_column if form == "csv" else _parquet_column
    names = distinct(parts.schema.names)
    if form == "csv":
        names = _harmless(pa.array(names, pa.large_string())).to_pylist()
    kinds = [convert(pa.array([], field.type)).type for field in parts.schema]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    rows, batches, batch_bytes = 0, list[Any](), 0
    with (
        path.open("wb") as file,
        csv.CSVWriter(file, schema) if form == "csv" else pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for part in parts:
            batches.append(pa.RecordBatch.from_arrays(list(map(convert, part.columns)), schema=schema))
            rows, batch_bytes = rows + part.num_rows, batch_bytes + batches[-1].nbytes
            if batch_bytes > _WRITTEN_BYTES or sum(batch.num_rows for batch in batches) >= _WRITTEN_ROWS:
                writer.write_table(pa.Table.from_batches(batches, schema))
                _refuse_larger(file.tell(), most_bytes)
                batches, batch_bytes = [], 0
        writer.write_table(pa.Table.from_batches(batches, schema))
    size = path.stat().st_size
    _refuse_larger(size, most_bytes)
    return Written(rows, size)


def _refuse_larger(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise QueryError(f"the file would be larger than {most_bytes / 1e6:,g} MB: choose fewer rows or columns")


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
