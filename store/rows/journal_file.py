"""The file format of a journal: an Arrow IPC stream with one record batch per append.

Beside the table's columns a journal carries two of its own, at the end:

* `written`: when the row was written, ns since 1970 by the writer's clock and never twice the same in one journal:
  it says which of two rows of one instant was written last;
* `check`: in its first four bytes, the CRC-32 of the whole message before it. A batch that a crash cut short or a
  power failure left full of zeros does not pass, nor does one in which a bit changed: readers go on at the next.

Any Arrow reader reads the file. Its schema's metadata name the table, the format and the writer.
"""

from __future__ import annotations

import functools
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..schema import FORMAT, TABLES, arrow_schema, other_format
from ..system import files, light
from .footers import footer
from .journal_runs import run_from

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "journal"
WRITTEN = "written"
CHECK = "check"
DAMAGED = ".damaged"  # ends the name of a file of which some bytes changed, when its other rows are in a segment

_MARK = b"\xff" * 4  # at the beginning of every message of an Arrow stream
_TOGETHER = 64  # batches
_MOST_DESCRIPTION = 1 << 20  # bytes: more columns than any table has
_LIVE = re.compile(r"(?P<generation>.+)\.live(?P<number>\d+)\.parquet")
_GENERATION = re.compile(r"(?P<name>.+)-\d+-[0-9a-f]+-\d+")
_NAME = re.compile(r"(?P<generation>.+)\.(?P<table>[a-z_]+)\.(?P<part>\d+)\.arrow")
_GPUS = re.compile(rb"gpus=((?:[0-9a-f]{8})*);([0-9a-f]{8});")
_MOST_HEADER = 1 << 14  # bytes; a header of all columns and 200 GPUs has fewer


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes a journal: its name and process, and the machine on which the process number is valid."""

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
class Header:
    """The schema of a journal's file, the byte at which its batches begin, and the description of the first one."""

    schema: pa.Schema
    first: int
    usual: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """The whole batches that a journal's file holds from some byte on, and the byte at which they end."""

    table: pa.Table
    upto: int
    torn: int  # bytes at the end, of a batch whose writing did not end
    lost: int = 0  # bytes that changed since they were written
    more: bool = False  # whether there is more to read
    header: Header | None = None


class TornHeaderError(ValueError):
    """The header of a journal is cut short. None of its rows was ever acknowledged."""


def named(path: Path) -> Part | None:
    """What the name of a journal's file says; None for any other file."""
    found = _NAME.fullmatch(path.name)
    return Part(path, found["generation"], found["table"], int(found["part"])) if found else None


def live_of(path: Path) -> tuple[str, int] | None:
    """The generation and number of a published file, or None for any other."""
    found = _LIVE.fullmatch(path.name)
    return (found["generation"], int(found["number"])) if found else None


def name_in(generation: str) -> str:
    """The name of a generation's journal."""
    found = _GENERATION.fullmatch(generation)
    return found["name"] if found else generation


@dataclass(frozen=True, slots=True)
class Published:
    """What a published file says of itself: how many files appeared at once, and the byte they reach in each part."""

    files: int
    upto: dict[str, int]


def published(about: Mapping[bytes, bytes]) -> Published | None:
    """The `Published` in the metadata of a Parquet file; None if there is none that is valid."""
    try:
        found = files.parse_json(about[b"whorl.live"])
        upto = {str(name): int(size) for name, size in found["upto"].items()}
        return Published(int(found["of"]), upto) if all(named(Path(name)) for name in upto) else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def with_written(data: pa.Table) -> pa.Table:
    """Rows with the column `written`; NULL if the time of writing is not known."""
    import pyarrow as pa

    return data if WRITTEN in data.column_names else data.append_column(WRITTEN, pa.nulls(len(data), pa.int64()))


def told(path: Path) -> Published | None:
    """What a published file says of itself; None if it is torn or gone."""
    import pyarrow as pa

    try:
        return published(footer(path).about)
    except (OSError, ValueError, pa.ArrowException):
        return None


def parts(root: Path, generation: str = "") -> list[Part]:
    """The journal files of a store, or of one generation, by generation, table and number. Raises OSError."""
    found = [part for part in _entries(root, generation, regular=True) if generation in ("", part.generation)]
    return sorted(found, key=lambda part: (part.generation, part.table, part.number))


def strange(root: Path) -> list[Path]:
    """What has the name of a journal's file but is a link or a pipe. Raises OSError."""
    return [part.path for part in _entries(root, regular=False)]


def _entries(root: Path, begins: str = "", *, regular: bool) -> list[Part]:
    try:
        with os.scandir(root / FOLDER) as entries:
            named_so = [(entry, part) for entry in entries if (part := _part(entry.path)) is not None]
            return [
                part
                for entry, part in named_so
                if entry.name.startswith(begins) and entry.is_file(follow_symlinks=False) == regular
            ]
    except FileNotFoundError:
        return []


@functools.lru_cache(maxsize=16_384)  # to make a path takes longer than to list a file
def _part(path: str) -> Part | None:
    return named(Path(path))


def schema_of(table: str, columns: list[str], writer: Writer, gpus: str) -> pa.Schema:
    """The schema of a journal of some of a table's columns and of GPUs, given as hashes in a row."""
    import pyarrow as pa

    full = arrow_schema(table)
    fields = [full.field(name) for name in full.names if name in columns]
    fields += [pa.field(WRITTEN, pa.int64()), pa.field(CHECK, pa.int32())]
    who = {name: getattr(writer, name) for name in ("name", "host", "pid_namespace", "pid", "began")}
    metadata = {"whorl.table": table, "whorl.format": str(FORMAT), "whorl.writer": json.dumps(who), "whorl.gpus": gpus}
    metadata["whorl.found"] = f"gpus={gpus};{zlib.crc32(gpus.encode()):08x};"  # for `gpus_in`
    schema = pa.schema(fields, metadata)
    return schema.with_metadata({**metadata, "whorl.check": _check_of(schema).decode()})


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


def head(path: Path) -> pa.Schema:
    """The schema of a journal's file. Raises OSError, TornHeaderError, and ValueError where it is not whorl's."""
    with os.fdopen(files.open_regular(path), "rb") as file:
        return _header(file)


def _header(file: IO[bytes]) -> pa.Schema:
    import pyarrow as pa

    first = file.read(8)
    size = int.from_bytes(first[4:8], "little")
    rest = file.read(size)
    if len(first) < 8 or (first[:4] == _MARK and len(rest) < size and _MARK not in rest):
        raise TornHeaderError("it is cut off before its first row, or not a journal")
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(first + rest))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError("its header is damaged, or it is no journal") from error
    if schema.metadata is None or schema.names[-2:] != [WRITTEN, CHECK]:
        raise ValueError("whorl did not write it")
    stated = schema.metadata.get(b"whorl.check")
    if stated is not None and stated != _check_of(schema):
        raise ValueError("its header is damaged")
    return schema


def _check_of(schema: pa.Schema) -> bytes:
    """The CRC-32 of a header's metadata, without the checksum itself."""
    metadata = sorted((key, value) for key, value in (schema.metadata or {}).items() if key != b"whorl.check")
    fields = [(field.name, str(field.type)) for field in schema]
    return b"%08x" % zlib.crc32(repr((fields, metadata)).encode())


def gpus_in(path: str) -> frozenset[int] | None:
    """The hashes of the GPUs that a journal's file may hold; None if the file does not say.

    A collector that begins in a large store asks a thousand journals, so this looks for the text, which has a checksum
    of its own, in the header's bytes. Arrow takes five times as long to open one.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = _GPUS.search(os.read(handle, _MOST_HEADER))
        finally:
            os.close(handle)
        if found is not None and zlib.crc32(found[1]) == int(found[2], 16):
            text = found[1].decode()
        else:
            text = head(Path(path)).metadata[b"whorl.gpus"].decode()
        return frozenset(int(text[i : i + 8], 16) for i in range(0, len(text), 8))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError):
        return None


def writer_of(schema: pa.Schema) -> Writer:
    """Who wrote a journal. Raises ValueError if it does not say."""
    try:
        return Writer(**files.parse_json(schema.metadata[b"whorl.writer"]))
    except (KeyError, TypeError) as error:
        raise ValueError("it does not name its writer") from error


def reason_to_skip(schema: pa.Schema, table: str | None = None) -> str | None:
    """Why a journal cannot be read as part of a table (None: of any table); None if it can."""
    found = schema.metadata.get(b"whorl.table", b"").decode("utf-8", "replace")
    if found != (table or found) or found not in {spec.name for spec in TABLES}:
        return f"it belongs to table {found!r}; move it out of the store"
    version = schema.metadata.get(b"whorl.format", b"").decode("utf-8", "replace")
    if why := other_format(version):
        return why
    known = _types(found)
    for field in schema:
        kind = known.get(field.name, "none of the table's")
        if str(field.type) != kind:
            return f"its column {field.name} is {field.type} and not {kind}"
    return None


@functools.cache
def _types(name: str) -> dict[str, str]:
    """The columns that a journal of a table may have, with their types."""
    return {field.name: str(field.type) for field in arrow_schema(name)} | {WRITTEN: "int64", CHECK: "int32"}


def read(
    path: Path,
    start: int = 0,
    end: int | None = None,
    table: str | None = None,
    *,
    most: int | None = None,
    header: Header | None = None,
) -> Content:
    """The whole batches from byte `start` (0: from the first) up to byte `end`; with `most`, about so many bytes.

    A batch that does not pass its check is left out, and reading goes on at the next batch that does. A torn tail is
    left out, too. The answer has the columns of the file, less `check`. With the `header` of an earlier answer, that is
    not read again. Raises OSError, and ValueError where the file is no journal of the table.
    """
    import pyarrow as pa

    with os.fdopen(files.open_regular(path), "rb") as file:
        header = header or _whole_header(file, table)
        schema, usual = header.schema, header.usual
        start = max(start, header.first)
        file.seek(start)
        content = file.read(most) if end is None else file.read(max(0, end - start))
        more = most is not None and bool(file.read(1))
    lost = 0
    joined: list[pa.Table] = []
    rows_of = schema.remove(len(schema) - 1)  # without the checksum
    batches: list[pa.RecordBatch] = []
    here = 0
    left = 8 * len(content) + (1 << 20)  # bytes to look at: damaged data that looks like batches must not take for ever
    while here < len(content):
        place = here
        batch, after = _batch(content, here, schema)
        if batch is None:
            while batch is None and left > 0 and (place := content.find(_MARK, place + 1)) >= 0:
                batch, after = _batch(content, place, schema)
                left -= 64 if batch is not None else max(64, after - place)
            if batch is None:
                break
            lost += place - here
        if after < len(content):
            batch, here = run_from(content, place, after - place, batch, _check_bytes(len(batch)))
        else:
            batch, here = batch.drop_columns([CHECK]), after
        batches.append(batch)
        if len(batches) == _TOGETHER:  # a batch takes 20 kB beside its few rows
            joined.append(pa.Table.from_batches(batches, schema=rows_of).combine_chunks())
            batches.clear()
    if more and not here:  # one batch that is larger, or damage: look at all of it
        return read(path, start, end, table)
    tail = b"" if more else content[here:]
    torn = _cut_short(tail, usual, schema)
    joined.append(pa.Table.from_batches(batches, schema=rows_of))
    table = pa.concat_tables(joined).combine_chunks()
    return Content(table, start + here, len(tail) if torn else 0, lost if torn else lost + len(tail), more, header)


def _whole_header(file: IO[bytes], table: str | None) -> Header:
    """The header of an open journal. Raises ValueError where it is none of the table."""
    schema = _header(file)
    if (reason := reason_to_skip(schema, table)) is not None:
        raise ValueError(reason)
    first, begin = file.tell(), file.read(8)
    description = begin + file.read(min(int.from_bytes(begin[4:], "little"), _MOST_DESCRIPTION))
    return Header(schema, first, _description(description))


def _batch(content: bytes, here: int, schema: pa.Schema) -> tuple[pa.RecordBatch | None, int]:
    """The batch at a place, and where it ends. If no batch there passes its check: None, and how far was looked."""
    import pyarrow as pa

    source = pa.BufferReader(pa.py_buffer(content).slice(here))
    size = int.from_bytes(content[here + 4 : here + 8], "little")
    if content[here : here + 4] != _MARK or not 0 < size <= _MOST_DESCRIPTION or here + 8 + size > len(content):
        return None, here
    try:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
        after = here + source.tell()
        place = after - _check_bytes(len(batch))
        if len(batch) == 0 or place <= here:
            return None, here
        if content[place : place + 4] != zlib.crc32(memoryview(content)[here:place]).to_bytes(4, "little"):
            return None, after
        batch.validate(full=True)  # any bytes can have a valid check, and a wrong offset in them crashes the process
    except (pa.ArrowException, OSError, EOFError, MemoryError, OverflowError):
        return None, here
    return batch, after


def _description(content: bytes) -> bytes:
    """The first bytes of a batch, which say how long it is; b"" if they are not whole."""
    size = int.from_bytes(content[4:8], "little")
    return content[: 8 + size] if content[:4] == _MARK and 0 < size <= len(content) - 8 else b""


def _cut_short(tail: bytes, usual: bytes, schema: pa.Schema) -> bool:
    """Whether the bytes after the last batch are a batch that was never written whole, nor acknowledged as stored.

    `usual` is the description of the file's first batch. All descriptions in a file have the same length.
    """
    import pyarrow as pa

    if len(tail) < 8 or not tail.strip(b"\0"):  # a power failure leaves zeros
        return True
    size = int.from_bytes(tail[4:8], "little")
    if tail[:4] != _MARK or not 0 < size <= _MOST_DESCRIPTION or (usual and size != len(usual) - 8):
        return False
    mine = _description(tail)
    if not mine:
        return True
    if len(mine) == len(usual) and (int.from_bytes(mine) ^ int.from_bytes(usual)).bit_count() == 1:
        return False  # one bit of the length changed
    end = len(mine) + _body_bytes(mine)
    if end > len(tail):
        return True
    try:
        rows = len(pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(tail)), schema))
    except (pa.ArrowException, OSError, EOFError, MemoryError):
        return not tail[len(mine) : end].strip(b"\0")
    place = end - _check_bytes(rows)
    return place <= 0 or not any(tail[place : place + 4])  # its check was never written


def _body_bytes(description: bytes) -> int:
    """How many bytes follow the description of a batch: `bodyLength` of Arrow's table Message; 0 if it is missing."""
    table = 8 + int.from_bytes(description[8:12], "little")
    offsets = table - int.from_bytes(description[table : table + 4], "little", signed=True)
    where = int.from_bytes(description[offsets + 10 : offsets + 12], "little") if offsets >= 0 else 0
    return int.from_bytes(description[table + where : table + where + 8], "little") if where else 0


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
    """What is wrong with a journal's file, after reading all of it; None where nothing is. Raises OSError."""
    try:
        reason = reason_to_skip(head(part.path), part.table)
        if reason is not None:
            return reason
        lost = read(part.path).lost
    except TornHeaderError:
        return None  # a writer died while it made the file
    except ValueError as error:
        return f"{error}; move it out of the store"
    return unread(lost) if lost else None


def unread(lost: int) -> str:
    """The sentence for bytes that changed."""
    return f"{lost} bytes of it changed on the disk; the readings in them cannot be read, the others are"
