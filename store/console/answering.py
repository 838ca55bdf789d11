"""The process that answers: it opens the store, takes one query after another, and ends when nobody asks."""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ...errors import WhorlError
from ..readers.query import TOO_LARGE, Share, Stream
from ..readers.texts import distinct, is_number
from ..store import Store
from ..system import processes
from .cells import cells, drawable, fitting
from .terms import MOST_COLUMNS, MOST_POINTS, MOST_ROWS, Column, Failed, Question, Rested, Said, Shown, Write
from .writing import write

if TYPE_CHECKING:
    import pyarrow as pa

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
            for said in _answers(store, end.recv()):
                end.send(said)
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


def _answers(store: Store, question: Question) -> Iterator[Said]:
    """What there is to say to a question. After what is shown of a long answer comes the number of its rows."""
    try:
        if isinstance(question, Write):
            path, most = Path(question.path), question.most_bytes
            yield store.stream(question.query, lambda answer: write(answer.parts(), question.form, path, most))
            return
        shown = store.stream(question.query, _shown)
        yield shown
        if shown.total is None:
            yield store.stream(question.query, Stream.count)
    except WhorlError as error:
        yield Failed(str(error))
    except MemoryError:
        yield Failed(TOO_LARGE)
    except Exception as error:  # a kind of value that Arrow cannot take
        yield Failed(f"the answer cannot be shown ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


def _shown(answer: Stream) -> Shown:
    import pyarrow as pa

    reader = answer.parts()
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    whole = True
    for part in reader:
        if rows >= MOST_POINTS or size > _READ_BYTES:
            whole = False
            break
        parts.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
    everything = pa.Table.from_batches(parts, reader.schema)
    table = everything.select(list(range(min(everything.num_columns, MOST_COLUMNS))))
    table = table.rename_columns(distinct(table.column_names))
    made = [cells(column) for column in table.slice(0, MOST_ROWS).columns]
    fit = fitting([column for column, _ in made], _BYTES)
    points = drawable(table.slice(0, MOST_POINTS))
    points = points.slice(0, int(points.num_rows * min(1.0, _POINTS_BYTES / max(points.nbytes, 1))))
    return Shown(
        columns=tuple(
            Column(field.name, kind, is_number(field.type))
            for field, kind in zip(table.schema, answer.types, strict=False)
        ),
        all_columns=everything.num_columns,
        rows=[list(row) for row in zip(*(column[:fit] for column, _ in made), strict=True)],
        cut=sum(cut for _, cut in made),
        drawable=tuple(points.column_names),
        points=_as_bytes(points),
        drawn=points.num_rows,
        total=rows if whole else None,
    )


def _as_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())
