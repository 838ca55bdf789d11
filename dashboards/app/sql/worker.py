"""The process that answers queries of the SQL page, and what it and the process that asks say to each other.

It opens the store, takes one query after another, and ends when nobody asks.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from ....errors import WhorlError
from ....store import Store
from ....store.sql import TOO_LARGE, Share, Stream
from ....store.system import processes
from ...answers.texts import distinct, is_number
from .cells import Cell, cells, drawable, fitting
from .writing import Form, write

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS, MOST_COLUMNS = 1000, 200
"""So many rows and columns of an answer are shown."""
MOST_POINTS = 10_000
"""So many rows of an answer can be drawn."""


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

    `rows`: the cells, row by row, each as text, since JSON and doubles would change some numbers; None is NULL. `cut`
    of them were longer than what is shown. `points`: `drawn` of the rows for figures, as the bytes of an Arrow stream
    with the `drawable` columns: numbers as doubles, times, and texts. `total`: how many rows the answer has;
    None where counting them took too long.
    """

    columns: tuple[AnswerColumn, ...]
    all_columns: int
    rows: list[list[Cell]]
    cut: int
    drawable: tuple[str, ...]
    points: bytes
    drawn: int
    total: int | None


@dataclass(frozen=True)
class Written:
    """What was written to a file."""

    rows: int
    size: int


@dataclass(frozen=True)
class Failed:
    """Why there is no answer."""

    sentence: str


@dataclass(frozen=True)
class Rested:
    """All is said, and the process can answer another question; not `fit` if it holds much memory."""

    fit: bool


Reply: TypeAlias = FirstRows | Written | Failed | Rested | int
"""An answer, then of a long one how many rows it has; Rested ends it. The first reply, 0, says that all is ready."""

_BYTES = 700_000  # of the cells that are shown, as JSON
_READ_BYTES = 64_000_000  # of the rows of an answer that may be drawn
_POINTS_BYTES = 4_000_000
_GROWN = 200_000_000  # bytes that a process keeps of what it used, before a new one is better
_NICE = 5
_BESIDE_MB = 512  # for what DuckDB does not count: texts that functions make, rows on their way out


def serve(end: Connection, root: Path, share: Share) -> None:
    """Answer questions until nobody asks."""
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
        most = (_data_bytes() or 0) + _GROWN
        end.send(0)
        while True:
            for reply in _replies(store, end.recv()):
                end.send(reply)
            end.send(Rested((_data_bytes() or 0) < most))
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


def _replies(store: Store, question: QueryTask) -> Iterator[Reply]:
    """What there is to say to a question."""
    try:
        if question.path:
            path, most = Path(question.path), question.most_bytes
            rows, size = store.stream(question.query, lambda answer: write(answer.parts(), question.form, path, most))
            yield Written(rows, size)
            return
        first_rows = store.stream(question.query, _shown)
        yield first_rows
        if first_rows.total is None:
            yield store.stream(question.query, Stream.count)
    except WhorlError as error:
        yield Failed(str(error))
    except MemoryError:
        yield Failed(TOO_LARGE)
    except Exception as error:  # a kind of value that Arrow cannot take
        yield Failed(f"the answer cannot be shown ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


def _shown(answer: Stream) -> FirstRows:
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
    shortened = [cells(column) for column in table.slice(0, MOST_ROWS).columns]
    fit = fitting([column for column, _ in shortened], _BYTES)
    points = drawable(table.slice(0, MOST_POINTS))
    points = points.slice(0, int(points.num_rows * min(1.0, _POINTS_BYTES / max(points.nbytes, 1))))
    return FirstRows(
        columns=tuple(
            AnswerColumn(field.name, kind, is_number(field.type))
            for field, kind in zip(table.schema, answer.types, strict=False)
        ),
        all_columns=everything.num_columns,
        rows=[list(row) for row in zip(*(column[:fit] for column, _ in shortened), strict=True)],
        cut=sum(cut for _, cut in shortened),
        drawable=tuple(points.column_names),
        points=_as_bytes(points),
        drawn=points.num_rows,
        total=rows if complete else None,
    )


def _as_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
