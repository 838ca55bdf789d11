"""The file format of a journal: blocks of fixed-width records, one block a tick, each with a check sum.

    block = frame, payload
    frame = mark "wJ", kind (1 byte), layout (u32), length of the payload (u32), written (i64, ns), CRC-32 (u32)

The CRC is that of the frame before it and of the payload. All numbers are little-endian. Kinds of blocks:

* L, a layout, as JSON: who writes, the columns with their types and units, the GPUs and the texts. It has a number and
  is repeated now and then, so that one damaged layout does not cost the rows of the whole file. The first block of a
  file is a layout, and names every GPU of the file.
* T, a tick: records of the layout of that number. A record is `ts` (i64, us), the number of its GPU (u16), one bit for
  each column that is NULL, and the columns, each at its own width; a text is the number of it in the layout (u16).
* C, rows of any other table: its columns in JSON, `ts` and other times in ns; or
* R, the same as an Arrow stream, in journals that another whorl wrote.

`written` says which of two rows of one key was written last; it is never twice the same in one journal. A block that a
crash cut short, or in which a bit changed, does not pass its check: readers go on at the next mark.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import StoreError
from .file_names import Bounds, gpu_hashes, hash_text, parse_hashes
from .formats import other_format, upgrades
from .metrics import METRICS
from .parquet import WRITTEN
from .schema import FORMAT, KEY, TABLES, TELEMETRY, arrow_rows, arrow_schema
from .system import files, processes

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FOLDER = "journal"
ENDING = ".journal"
DAMAGED = ".damaged"
"""Ends the name of a journal of which some bytes changed, when its other rows are in a segment."""

_FRAME = struct.Struct("<2scIIqI")
_MARK = b"wJ"
_CRC_BYTES = 4
_MOST_PAYLOAD = 1 << 28
MOST_BYTES = 1 << 31
"""A file that is larger is no journal: a sparse one would fill the memory of who reads it."""
_SECTOR = 512
_NAME = re.compile(
    r"(?P<stem>(?P<writer>[A-Za-z0-9][A-Za-z0-9._-]*)-\d+-(?P<began>[0-9a-f]+)-\d+)(\.g(?P<gpus>(?:[0-9a-f]{4})+))?"
    r"(\.(?P<kind>any|rows))?\.journal"
)
NEAR_US = 3_600_000_000
"""Of a journal of kind "now", `ts` of every row lies so near to the time at which it was written."""
MOST_GPUS = 1 << 16
"""So many GPUs can have a number in a file."""
_TEXT = "<u2"
_PACKED = {"<i4": "i", "<i8": "q"}  # numpy's codes, as `struct` calls them
_BITS = {metric.name: metric.bits for metric in METRICS} | {"read_us": 32}
_MOST_TEXTS = 60_000
_LAYOUT_EVERY = 512  # ticks

Gpu = tuple[str | None, str | None]
"""Cluster and key of a GPU."""


class JournalName(NamedTuple):
    """The parts of the name of a journal's file.

    `stem` is unique among all journals. `began_us` is since 1970. `kind`: "now" has readings of its own time, see
    `NEAR_US`; "any" has readings of any time; "rows" has rows of other tables. `gpus` (`gpu_hash`): all that it may
    hold; None where the name does not say.
    """

    path: Path
    stem: str
    writer: str
    began_us: int
    kind: str
    gpus: frozenset[int] | None = None

    def may_hold(self, bounds: Bounds) -> bool:
        """Whether it can have readings within the bounds."""
        if self.kind == "rows" or (self.kind == "now" and bounds.last_us < self.began_us - NEAR_US):
            return False
        return Bounds(gpus=self.gpus).overlap(bounds)


class Writer(NamedTuple):
    """Who writes a journal: its name and process, and the machine on which the process number is valid."""

    name: str
    host: str
    pid_namespace: str
    pid: int


def parse(path: Path) -> JournalName | None:
    """What the name of a journal's file says; None for any other file."""
    decoded = _NAME.fullmatch(path.name)
    if decoded is None:
        return None
    stem, writer, began, kind = decoded["stem"], decoded["writer"], decoded["began"], decoded["kind"]
    return JournalName(path, stem, writer, int(began, 16), kind or "now", parse_hashes(decoded["gpus"] or ""))


def compose(stem: str, kind: str, gpus: Iterable[Gpu]) -> str:
    """The name of a journal's file; up to 16 GPUs that it may hold are in it, so that nobody must look into it."""
    hashes = hash_text(gpu_hashes(gpu for _, gpu in gpus))
    return f"{stem}{hashes and f'.g{hashes}'}{'' if kind == 'now' else f'.{kind}'}{ENDING}"


def _listed(root: Path) -> list[tuple[str, bool]]:
    """What has the name of a journal, and whether it is a regular file. Raises OSError."""
    try:
        with os.scandir(root / FOLDER) as entries:
            return sorted((e.name, e.is_file(follow_symlinks=False)) for e in entries if e.name.endswith(ENDING))
    except FileNotFoundError:
        return []


def journals(root: Path) -> list[JournalName]:
    """The journals of a store, in the order of their names. Raises OSError."""
    folder = root / FOLDER
    names = (parse(folder / name) for name, is_file in _listed(root) if is_file)
    return [journal_name for journal_name in names if journal_name is not None]


def strange(root: Path) -> list[Path]:
    """What has the name of a journal but is a link or a pipe. Raises OSError."""
    return [root / FOLDER / name for name, is_file in _listed(root) if not is_file]


# -- layouts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordLayout:
    """How the records of a tick lie: the columns with numpy's codes of their types, the GPUs and the texts.

    `record` has a field for the time, the GPU and the bits of NULL, and one for each row of columns of one type.
    """

    number: int
    columns: tuple[tuple[str, str], ...]
    gpus: tuple[Gpu, ...]
    texts: tuple[str, ...]
    writer: Writer
    format: str = str(FORMAT)

    @cached_property
    def record(self) -> np.dtype[Any]:
        """The type of a record, for numpy. Raises ValueError where two columns have one name."""
        import numpy as np

        fields: list[Any] = [("ts", "<i8"), ("gpu", "<u2"), ("null", "u1", ((len(self.columns) + 7) // 8,))]
        for code, columns in groupby(code for _, code in self.columns):
            fields.append((f"columns {len(fields)}", code, (len(list(columns)),)))
        return np.dtype(fields)

    @property
    def groups(self) -> tuple[str, ...]:
        """The fields of `record` that hold columns."""
        return (self.record.names or ())[3:]

    def payload(self) -> bytes:
        units = {column.name: column.unit for column in TELEMETRY.columns}
        return json.dumps(
            {
                "format": self.format,
                "table": TELEMETRY.name,
                "number": self.number,
                "writer": [self.writer.name, self.writer.host, self.writer.pid_namespace, self.writer.pid],
                "columns": [[name, code, units[name]] for name, code in self.columns],
                "gpus": self.gpus,
                "texts": self.texts,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def parse(cls, payload: bytes) -> RecordLayout:
        """Raises ValueError for what is no layout of this format, nor of one that can be upgraded."""
        try:
            header_fields = files.parse_json(payload)
            version = str(header_fields["format"])
            if why := other_format(version, older=True):
                raise ValueError(why)
            columns = tuple((str(name), str(code)) for name, code, _ in header_fields["columns"])
            names = [*KEY, *(name for name, _ in columns)]
            fits = version != str(FORMAT) or all(_fits(name, code) for name, code in columns)
            if header_fields["table"] != TELEMETRY.name or not fits or len({*names}) < len(names):
                raise ValueError("it has columns that telemetry has not")
            name, host, namespace, pid = header_fields["writer"]
            gpus = tuple((cluster, gpu) for cluster, gpu in header_fields["gpus"])
            texts = tuple(header_fields["texts"])
            for text in (name, host, namespace, *texts, *(part for gpu in gpus for part in gpu if part is not None)):
                text.encode()  # raises AttributeError for what is no text
            writer = Writer(name, host, namespace, int(pid))
            layout = cls(int(header_fields["number"]), columns, gpus, texts, writer, version)
            _ = layout.record  # raises ValueError where two columns have one name
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError("its header is damaged") from error
        return layout


def _fits(name: str, code: str) -> bool:
    """Whether a column of telemetry can have this code of its type in a record."""
    kinds = {column.name: column.type for column in TELEMETRY.columns if column.name not in ("ts", "cluster", "gpu")}
    return code in {"VARCHAR": (_TEXT,), "BIGINT": ("<i4", "<i8")}.get(kinds.get(name, ""), ())


class TickColumns:
    """The columns of the numbers of a reading, each of its metric's width, or all of 64 bits if `wide`."""

    def __init__(self, names: Sequence[str], *, wide: bool = False) -> None:
        self.names, self.wide = tuple(names), wide
        self.codes = tuple("<i4" if _BITS.get(name) == 32 and not wide else "<i8" for name in names)
        packing = struct.Struct("<" + "".join(_PACKED[code] for code in self.codes))
        self.pack, self.unpack = packing.pack, packing.unpack
        """`pack` raises struct.error for a number that has more bits."""


@dataclass(slots=True)
class Ticks:
    """Readings, one after the other: when each was taken (us since 1970), its GPU, and its numbers, packed.

    Bit k of a reading's number in `nulls` says that its k-th number is missing (without `nulls` none is). `texts` are
    by column.
    """

    ts: Sequence[int]
    gpus: Sequence[Gpu]
    columns: TickColumns
    packed: Sequence[bytes]
    nulls: Sequence[int] = ()
    texts: Mapping[str, Sequence[str | None]] = field(default_factory=dict)

    def by_name(self) -> dict[str, list[int | None]]:
        """The numbers of each column, None for those that are missing."""
        nulls = self.nulls or [0] * len(self.ts)
        readings = list(zip(map(self.columns.unpack, self.packed), nulls, strict=True))
        return {
            name: [None if null >> place & 1 else numbers[place] for numbers, null in readings]
            for place, name in enumerate(self.columns.names)
        }


def pack_readings(names: Sequence[str], readings: Iterable[Sequence[int]]) -> tuple[TickColumns, list[bytes]]:
    """The columns of these names in which readings fit, and the readings as bytes."""
    columns = TickColumns(names)
    try:
        return columns, [columns.pack(*numbers) for numbers in readings]
    except struct.error:  # a number that has more bits than its metric is said to have
        columns = TickColumns(names, wide=True)
        return columns, [columns.pack(*numbers) for numbers in readings]


@dataclass(slots=True)
class _Shape:
    """How readings with the same columns become records."""

    layout: RecordLayout
    pack: Callable[..., bytes]
    """Of what comes before the numbers."""
    null_bytes: int
    ticks: int = 0
    """How many were written."""


class Encoder:
    """Makes the blocks of one file. `gpus` are those that it may ever name, see `takes`."""

    def __init__(self, writer: Writer, gpus: Sequence[Gpu]) -> None:
        self._writer = writer
        self._gpus = {gpu: number for number, gpu in enumerate(dict.fromkeys(gpus))}
        self._texts: dict[str, int] = {}
        self._shapes: dict[tuple[object, ...], _Shape] = {}  # by the columns, and whether they are wide
        self._layouts = 0

    @property
    def gpus(self) -> list[Gpu]:
        return list(self._gpus)

    def takes(self, gpus: Sequence[Gpu]) -> bool:
        """Whether the file names these GPUs."""
        return all(map(self._gpus.__contains__, gpus))

    def header(self, written_ns: int) -> bytes:
        """The first block of a file."""
        layout = RecordLayout(self._layouts, (), tuple(self._gpus), (), self._writer)
        return block(b"L", layout.number, written_ns, layout.payload())

    def tick(self, ticks: Ticks, written_ns: int) -> bytes:
        """The blocks of one tick, with a layout before it where readers need one."""
        columns, packed = ticks.columns, ticks.packed
        nulls: Iterable[int] = ticks.nulls or repeat(0)
        if ticks.texts:
            if len(self._texts) > _MOST_TEXTS:
                self._texts.clear()
                self._shapes.clear()
            for place, texts in enumerate(ticks.texts.values(), len(columns.names)):
                nulls = [null | (text is None) << place for null, text in zip(nulls, texts, strict=False)]
                codes = self._numbers_of(texts)
                packed = [numbers + code.to_bytes(2, "little") for numbers, code in zip(packed, codes, strict=True)]
        key = (columns.names, columns.wide, *ticks.texts)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shape_of(columns, tuple(ticks.texts))
        gpus, width, pack = self._gpus, shape.null_bytes, shape.pack
        records = [
            pack(ts, gpus[gpu], null.to_bytes(width, "little")) + numbers
            for ts, gpu, null, numbers in zip(ticks.ts, ticks.gpus, nulls, packed, strict=False)
        ]
        content = block(b"T", shape.layout.number, written_ns, b"".join(records))
        if shape.ticks % _LAYOUT_EVERY == 0:
            content = block(b"L", shape.layout.number, written_ns, shape.layout.payload()) + content
        shape.ticks += 1
        return content

    def _numbers_of(self, texts: Sequence[str | None]) -> list[int]:
        """The number of each text, of which the layouts name all; 0 for none."""
        for text in texts:
            if text is not None and text not in self._texts:
                self._texts[text] = len(self._texts)
                self._shapes.clear()
        return [0 if text is None else self._texts[text] for text in texts]

    def _shape_of(self, columns: TickColumns, texts: tuple[str, ...]) -> _Shape:
        """A new shape of readings, with columns of numbers and then of texts."""
        self._layouts += 1
        coded = tuple(zip((*columns.names, *texts), (*columns.codes, *[_TEXT] * len(texts)), strict=True))
        layout = RecordLayout(self._layouts, coded, tuple(self._gpus), tuple(self._texts), self._writer)
        null_bytes = (len(coded) + 7) // 8
        return _Shape(layout, struct.Struct(f"<qH{null_bytes}s").pack, null_bytes)


def block(kind: bytes, layout: int, written_ns: int, payload: bytes) -> bytes:
    """One block of a journal. Raises StoreError where it is larger than readers take it for."""
    if len(payload) > _MOST_PAYLOAD:
        raise StoreError(f"these rows take {len(payload):,} bytes, more than an append may have: append some at a time")
    frame = _FRAME.pack(_MARK, kind, layout, len(payload), written_ns, 0)[:-_CRC_BYTES]
    return frame + zlib.crc32(payload, zlib.crc32(frame)).to_bytes(_CRC_BYTES, "little") + payload


def rows_block(table: str, columns: Mapping[str, Sequence[Any]], written_ns: int) -> bytes:
    """A block of rows of a table, in columns of what JSON can say; times in ns since 1970, in records in us."""
    content = {"table": table, "columns": columns}
    return block(b"C", 0, written_ns, json.dumps(content, default=_us).encode())


def _us(time: datetime) -> int:
    return round(time.replace(tzinfo=UTC).timestamp() * 1e6)


# -- reading --------------------------------------------------------------------------------------------------


@dataclass
class JournalContent:
    """The sound blocks of a journal from some byte on, and the byte at which they end.

    `rows`: those of each table, with `written`, and the columns that any of them has.
    """

    rows: dict[str, pa.Table] = field(default_factory=dict)
    upto: int = 0
    torn: int = 0
    """Bytes at the end, of a block whose writing did not end."""
    lost: int = 0
    """Bytes that changed since they were written."""
    layouts: dict[int, RecordLayout] = field(default_factory=dict)

    @property
    def writer(self) -> Writer | None:
        return next((layout.writer for layout in self.layouts.values()), None)

    @property
    def format(self) -> str:
        return next((layout.format for layout in self.layouts.values()), str(FORMAT))


class _Block(NamedTuple):
    """A block that passes its check, and the byte at which it ends."""

    end: int
    kind: bytes
    layout: int
    written_ns: int
    payload: memoryview


def read(path: Path, start: int = 0, layouts: Mapping[int, RecordLayout] | None = None) -> JournalContent:
    """The sound blocks of a journal from byte `start` on, which follows a block; `layouts` are those read before.

    Rows of an older format come as those of the present one. A journal whose first block is cut short has no rows: none
    was ever acknowledged. Raises OSError, and ValueError where it is no journal.
    """
    with files.opened(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise ValueError("it is larger than a journal can be")
        file.seek(start)
        content = file.read()
    view = memoryview(content)
    decoded = JournalContent(layouts=dict(layouts or {}))
    ticks: dict[int, list[_Block]] = {}
    tables: dict[str, list[pa.Table]] = {}
    here = 0
    while here < len(content):
        block = _block_at(view, here)
        if block is None:
            after = _next_block(content, here)
            if after == len(content) and _cut_short(content, here):
                decoded.torn = after - here
                break
            if here == start == 0 and after == len(content) and content[:2] != _MARK:
                raise ValueError("whorl did not write it")
            decoded.lost += after - here
            here = after
            continue
        here = block.end
        if block.kind == b"L":
            layout = RecordLayout.parse(bytes(block.payload))
            decoded.layouts[layout.number] = layout
        elif block.kind == b"T":
            ticks.setdefault(block.layout, []).append(block)
        elif block.kind in (b"R", b"C"):
            table, rows = _rows(block, decoded.format)
            if rows is None:
                decoded.lost += len(block.payload)
            else:
                tables.setdefault(table, []).append(rows)
    decoded.upto = start + here
    for number, blocks in ticks.items():
        readings = _readings(decoded.layouts.get(number), blocks)
        if readings is None:
            decoded.lost += sum(len(block.payload) for block in blocks)
        else:
            tables.setdefault(TELEMETRY.name, []).append(readings)
    if tables:
        import pyarrow as pa

        decoded.rows = {name: pa.concat_tables(rows, promote_options="default") for name, rows in tables.items()}
    return decoded


def _block_at(view: memoryview, here: int) -> _Block | None:
    """The block at a place; None if there is none that passes its check."""
    begin = here + _FRAME.size
    if begin > len(view):
        return None
    mark, kind, layout, length, written_ns, crc = _FRAME.unpack_from(view, here)
    end = begin + length
    if mark != _MARK or length > _MOST_PAYLOAD or end > len(view):
        return None
    payload = view[begin:end]
    if zlib.crc32(payload, zlib.crc32(view[here : begin - _CRC_BYTES])) != crc:
        return None
    return _Block(end, kind, layout, written_ns, payload)


def _next_block(content: bytes, here: int) -> int:
    """Where the next sound block after a damaged place begins; the end where there is none."""
    budget = 8 * len(content) + (1 << 20)  # bytes to look at: data that looks like frames must not take for ever
    place, view = here, memoryview(content)
    while budget > 0 and (place := content.find(_MARK, place + 1)) >= 0:
        if _block_at(view, place) is not None:
            return place
        budget -= 64 + (_FRAME.unpack_from(content, place)[3] if place + _FRAME.size <= len(content) else 0)
    return len(content)


def _cut_short(content: bytes, here: int) -> bool:
    """Whether the last block of a file was never written whole, nor acknowledged as stored."""
    tail = memoryview(content)[here:]
    if not any(tail):  # a power failure leaves zeros
        return True
    if len(tail) < _FRAME.size:
        return tail[:2] == _MARK[: len(tail)]
    mark, kind, layout, length, written_ns, crc = _FRAME.unpack_from(tail)
    missing = _FRAME.size + length - len(tail)
    if mark != _MARK or length > _MOST_PAYLOAD or missing < 0:
        return False
    if missing == 0:
        sector = (len(content) - 1) // _SECTOR * _SECTOR
        return not any(tail[max(0, sector - here) :])
    whole_frame = _FRAME.pack(mark, kind, layout, length - missing, written_ns, crc)[:-_CRC_BYTES]
    # Else it was written whole, and a bit of its length changed since.
    return bool(zlib.crc32(tail[_FRAME.size :], zlib.crc32(whole_frame)) != crc)


def _readings(layout: RecordLayout | None, blocks: list[_Block]) -> pa.Table | None:
    """The records of one layout; None where there is no such layout, or they name what it does not have."""
    import numpy as np
    import pyarrow as pa

    if layout is None or any(len(block.payload) % layout.record.itemsize for block in blocks):
        return None
    schema = arrow_schema(TELEMETRY.name)
    records = np.frombuffer(b"".join(block.payload for block in blocks), layout.record)
    if len(records) and records["gpu"].max() >= len(layout.gpus):
        return None
    codes = pa.array(records["gpu"].astype(np.int32))
    columns: dict[str, pa.Array] = {"ts": pa.array(records["ts"].copy(), schema.field("ts").type)}
    for place, name in enumerate(("cluster", "gpu")):
        columns[name] = pa.array([gpu[place] for gpu in layout.gpus], pa.string()).take(codes)
    null = np.unpackbits(records["null"], axis=1, bitorder="little").astype(bool)
    arrays = [np.ascontiguousarray(row) for group in layout.groups for row in records[group].T]
    for (name, code), values, absent in zip(layout.columns, arrays, null.T, strict=False):
        if code == _TEXT:
            if len(values) and values[~absent].max(initial=0) >= max(1, len(layout.texts)):
                return None
            columns[name] = pa.array(layout.texts, pa.string()).take(pa.array(values.astype(np.int32), mask=absent))
        else:
            kind = schema.field(name).type if name in schema.names else pa.int64()
            columns[name] = pa.array(values, mask=absent).cast(kind)
    sizes = [len(block.payload) // layout.record.itemsize for block in blocks]
    columns[WRITTEN] = pa.array(np.repeat(np.array([block.written_ns for block in blocks], np.int64), sizes))
    return _upgraded(TELEMETRY.name, pa.table(columns), layout.format)


def _rows(block: _Block, version: str) -> tuple[str, pa.Table | None]:
    """A table's name and the rows of it in a block of this format; None where they are not those of a table."""
    import numpy as np
    import pyarrow as pa

    try:
        if block.kind == b"C":
            fields = files.parse_json(bytes(block.payload))
            name = fields["table"]
            rows = arrow_rows(name, fields["columns"])
        else:
            with pa.ipc.open_stream(pa.py_buffer(block.payload)) as stream:
                rows = stream.read_all()
            rows.validate(full=True)
            name = (rows.schema.metadata or {}).get(b"whorl.table", b"").decode()
    except (pa.ArrowException, AttributeError, LookupError, OSError, OverflowError, TypeError, ValueError, StoreError):
        return "", None
    if name not in {spec.name for spec in TABLES if not (spec.made or spec.partitioned)}:
        return name, None
    if len(set(rows.column_names)) < len(rows.column_names):
        return name, None
    written = pa.array(np.full(len(rows), block.written_ns, np.int64))
    return name, _upgraded(name, rows.replace_schema_metadata().append_column(WRITTEN, written), version)


def _upgraded(table: str, rows: pa.Table, version: str) -> pa.Table | None:
    """Rows of a format, with `written`, as those of the present one; None where they do not fit the table."""
    import pyarrow as pa

    for step in upgrades(version):
        rows = step.rows(table, rows)
    return rows if set(rows.schema) <= {*arrow_schema(table), pa.field(WRITTEN, pa.int64())} else None


def this_writer(name: str) -> Writer:
    return Writer(name, processes.host(), processes.pid_namespace(), os.getpid())


def unread(lost: int) -> str:
    """The sentence for bytes that changed."""
    return f"{lost} bytes of it changed on the disk; the readings in them cannot be read, the others are"


def look(path: Path) -> tuple[JournalContent, str | None]:
    """What can be read of a journal, and what is wrong with it, if anything is. Raises FileNotFoundError."""
    try:
        content = read(path)
    except FileNotFoundError:
        raise
    except ValueError as error:
        return JournalContent(), f"{error}; move it out of the store"
    except OSError as error:
        return JournalContent(), files.unreadable(error)
    return content, unread(content.lost) if content.lost else None
