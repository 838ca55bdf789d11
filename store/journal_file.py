"""The file format of a journal: an Arrow IPC stream with one record batch per append.

Beside the table's columns a journal carries two of its own, at the end:

* `written`: when the row was written, ns since 1970 by the writer's clock and never twice the same in one journal:
  it says which of two rows of one instant was written last;
* `check`: in its first four bytes, the CRC-32 of the whole message before it. A batch that a crash cut short or a
  power failure left full of zeros does not pass, and ends the journal.

Any Arrow reader reads the file. Its schema's metadata name the table, the format and the writer.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import light
from .schema import FORMAT, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "journal"
WRITTEN = "written"
CHECK = "check"

_LIVE = re.compile(r"(?P<generation>.+)\.live(?P<number>\d+)\.parquet")
_GENERATION = re.compile(r"(?P<name>.+)-\d+-[0-9a-f]+-\d+")
_NAME = re.compile(r"(?P<generation>.+)\.(?P<table>[a-z_]+)\.(?P<part>\d+)\.arrow")


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes a journal: its name, and the process, where a process number means something."""

    name: str
    host: str
    pid_namespace: str
    pid: int
    began: int  # ns since 1970


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a journal: a generation has one or more per table."""

    path: Path
    generation: str
    table: str
    number: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a journal's file holds from some byte on: whole batches, and up to which byte they reach."""

    table: pa.Table
    upto: int
    torn: int  # bytes after the last whole batch


class TornHeaderError(ValueError):
    """A journal whose header is cut short: no row of it was ever acknowledged."""


def named(path: Path) -> Part | None:
    """What a file's name says, or None where it is no journal's."""
    found = _NAME.fullmatch(path.name)
    return Part(path, found["generation"], found["table"], int(found["part"])) if found else None


def live_of(path: Path) -> tuple[str, int] | None:
    """The generation and number of a published file, or None for any other."""
    found = _LIVE.fullmatch(path.name)
    return (found["generation"], int(found["number"])) if found else None


def name_in(generation: str) -> str:
    """The name of the journal that a generation belongs to."""
    found = _GENERATION.fullmatch(generation)
    return found["name"] if found else generation


def parts(root: Path) -> list[Part]:
    """The journal files of a store, by generation, table and number. Raises OSError."""
    try:
        found = [part for path in (root / FOLDER).iterdir() if (part := named(path))]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda part: (part.generation, part.table, part.number))


def schema_of(table: str, columns: list[str], writer: Writer, gpus: str) -> pa.Schema:
    """The schema of a journal of some of a table's columns and of GPUs, given as hashes in a row."""
    import pyarrow as pa

    full = arrow_schema(table)
    fields = [full.field(name) for name in full.names if name in columns]
    fields += [pa.field(WRITTEN, pa.int64()), pa.field(CHECK, pa.int32())]
    who = {name: getattr(writer, name) for name in ("name", "host", "pid_namespace", "pid", "began")}
    metadata = {"whorl.table": table, "whorl.format": str(FORMAT), "whorl.writer": json.dumps(who), "whorl.gpus": gpus}
    return pa.schema(fields, metadata)


def encode(columns: list[pa.Array], schema: pa.Schema, written: int) -> bytearray:
    """One batch as bytes: the columns of `schema` without its own two, which are made here."""
    import numpy as np
    import pyarrow as pa

    rows = len(columns[0])
    own = [light.integers(np.full(rows, written)), light.integers(np.zeros(rows, np.int32))]
    message = bytearray(memoryview(pa.RecordBatch.from_arrays(columns + own, schema=schema).serialize()))
    place = len(message) - _check_bytes(rows)
    message[place : place + 4] = zlib.crc32(memoryview(message)[:place]).to_bytes(4, "little")
    return message


def _check_bytes(rows: int) -> int:
    return (4 * rows + 7) // 8 * 8  # the last buffer of the message, padded to eight bytes


def header(content: Any) -> pa.Schema:
    """The schema at the start of a journal. Raises ValueError where it is torn or not whorl's."""
    import pyarrow as pa

    try:
        schema = pa.ipc.read_schema(pa.BufferReader(content))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError("it is torn before its first row or no journal") from error
    if schema.metadata is None or schema.names[-2:] != [WRITTEN, CHECK]:
        raise ValueError("whorl did not write it")
    return schema


def head(path: Path) -> pa.Schema:
    """The schema of a journal's file. Raises OSError, TornHeaderError, and ValueError where it is not whorl's."""
    with path.open("rb") as file:
        first = file.read(8)
        size = int.from_bytes(first[4:8], "little")
        rest = file.read(size)
    if len(first) < 8 or (first[:4] == b"\xff" * 4 and len(rest) < size):
        raise TornHeaderError("it is torn before its first row or no journal")
    return header(first + rest)


def gpus_in(path: Path) -> frozenset[int] | None:
    """The hashes of the GPUs that a journal's file may hold; None where it cannot be told."""
    try:
        return _gpus_in(path, path.stat().st_ino)
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError):
        return None


@functools.lru_cache(maxsize=65536)
def _gpus_in(path: Path, inode: int) -> frozenset[int]:  # noqa: ARG001 - part of the key
    text = head(path).metadata[b"whorl.gpus"].decode()
    return frozenset(int(text[i : i + 8], 16) for i in range(0, len(text), 8))


def writer_of(schema: pa.Schema) -> Writer:
    """Who wrote a journal. Raises ValueError where it does not say."""
    try:
        return Writer(**json.loads(schema.metadata[b"whorl.writer"]))
    except (KeyError, TypeError) as error:
        raise ValueError("it does not say who wrote it") from error


def reason_to_skip(schema: pa.Schema, table: str) -> str | None:
    """Why a journal cannot be read as part of a table, or None where it can."""
    found = schema.metadata.get(b"whorl.table", b"").decode("utf-8", "replace")
    if found != table:
        return f"it belongs to table {found!r}; move it out of the store"
    version = schema.metadata.get(b"whorl.format", b"").decode("utf-8", "replace")
    if not version.isdigit() or int(version) > FORMAT:
        return f"it has format {version or '?'} and this whorl reads up to {FORMAT}; install a newer whorl"
    for field in arrow_schema(table):
        if field.name in schema.names and schema.field(field.name).type != field.type:
            return f"its column {field.name} is {schema.field(field.name).type} and not {field.type}"
    return None


def read(path: Path, start: int = 0) -> Content:
    """The whole batches from byte `start` on (0: from the first). A torn tail is left out.

    Raises OSError, and ValueError where the file is no journal. The answer has the columns of the file, less `check`.
    """
    import pyarrow as pa

    schema = head(path)
    with path.open("rb") as file:
        start = max(start, 8 + int.from_bytes(file.read(8)[4:8], "little"))
        file.seek(start)
        content = file.read()
    view, here, batches = memoryview(content), 0, []
    source = pa.BufferReader(content)
    while True:
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
        except (pa.ArrowException, OSError, EOFError):
            break
        end = source.tell()
        place = end - _check_bytes(len(batch))
        if len(batch) == 0 or place <= here or view[place : place + 4] != _crc(view[here:place]):
            break
        batches.append(batch)
        here = end
    table = pa.Table.from_batches(batches, schema=schema).drop_columns([CHECK]).combine_chunks()
    return Content(table, start + here, len(content) - here)


def whole(name: str, data: pa.Table) -> pa.Table:
    """A journal's rows with every column of their table, and when they were written."""
    import pyarrow as pa

    schema = arrow_schema(name)
    columns = [
        data[field.name] if field.name in data.column_names else pa.nulls(len(data), field.type) for field in schema
        if field.name != WRITTEN
    ]  # fmt: skip
    fields = [field for field in schema if field.name != WRITTEN]
    written = data[WRITTEN] if WRITTEN in data.column_names else pa.nulls(len(data), pa.int64())
    return pa.table([*columns, written], schema=pa.schema([*fields, pa.field(WRITTEN, pa.int64())], schema.metadata))


def damage(part: Part) -> str | None:
    """What is wrong with a journal's file; None where nothing is. Raises OSError."""
    try:
        return reason_to_skip(head(part.path), part.table)
    except TornHeaderError:
        return None  # a writer died while it made the file
    except ValueError as error:
        return f"{error}; move it out of the store"


def _crc(content: memoryview) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
