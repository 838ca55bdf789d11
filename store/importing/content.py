"""The content of a file: decompressed, decoded, cut into rows of fields; every row is accounted for.

One line is one row: a quoted field may hold the delimiter, never a line break. So a stray quote damages only one row,
and every refused row has a line number.
"""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import InputError
from ..events import Event
from . import parquet, unpacking

OWN = "="  # the importer's own columns begin with this; no column of a file may
LINE = f"{OWN}line"
RECORD = f"{OWN}record"
_MOST_COLUMNS = 4096
_MOST_COMMENTS = 100  # lines
_OF_EXCEL = re.compile(r"^\s*\"?sep=.\"?\s*$", re.IGNORECASE)  # a line that tells Excel the delimiter
_OF_INFLUX = ("#group,", "#datatype,", "#default,")  # lines in front of the header of InfluxDB
_PIECE = 1 << 20  # bytes
_VALUE = r"[0-9]{4}[-/]|[-+]?[0-9]+(?:\.[0-9]*)?(?: *(?:W|MHz|MiB|%|C))?$"  # what no column is called
_TAR = slice(257, 262)  # where a tar archive says that it is one
_LINES = re.compile("^.*$", re.MULTILINE)
UNREADABLE = "[\x00-\x08\x0b-\x1f\x7f\ufffd]"
_INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")  # how pandas writes out the number of a row

STRANGE = "it has unreadable characters (not UTF-8 text)"
_NO_ROWS = "{} has a header but no rows: nothing to import"

Rule = tuple[pl.Expr, str]  # which rows are refused, and the reason


@dataclass
class Refused:
    """Rows that are not stored: reason -> line numbers."""

    lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, reason: str, lines: Sequence[int]) -> None:
        if lines:
            self.lines.setdefault(reason, []).extend(lines)

    @property
    def count(self) -> int:
        return sum(len(lines) for lines in self.lines.values())

    def take(self, frame: pl.DataFrame, rules: Sequence[Rule]) -> pl.DataFrame:
        """The frame without the rows that break a rule. A row is refused once, for the first rule that it breaks."""
        broken = pl.coalesce([pl.when(bad).then(pl.lit(i)) for i, (bad, _) in enumerate(rules)])
        found = frame.select(broken).to_series()
        if found.null_count() == len(found):
            return frame
        lines = pl.DataFrame({LINE: frame[LINE], "rule": found})
        for number, (_, reason) in enumerate(rules):
            self.add(reason, lines.filter(pl.col("rule") == number)[LINE].unique(maintain_order=True).to_list())
        return frame.filter(found.is_null())


@dataclass
class Sheet:
    """A file as rows of text: `frame` has a column of text for each name, and `LINE`, the line number.

    `rows` counts all data rows; those that could not be cut into fields are in `refused` already. Where one line may
    hold several rows, `LINE` and `refused` have keys of rows from 1 on, and `lines` says in which line each stands. Of
    a format (`formats.py`), the columns are named after meanings, `RECORD` tells equal rows apart, and `events` are
    about rows. `used` are the options --at and --every where something was read with them.
    """

    file: str
    sha256: str
    size: int
    names: list[str]
    frame: pl.DataFrame
    rows: int
    refused: Refused
    format: str = ""  # "" for a table
    kind: str = ""  # of a format: runs | telemetry
    lines: Sequence[int] = ()
    notes: list[str] = field(default_factory=list)
    events: list[tuple[int, Event]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    jobs: Sheet | None = None  # of telemetry: who had the GPUs, as the same file says
    source: str = ""  # of jobs: a code of `jobs.source`

    def line(self, key: int) -> int:
        """The line in which the row of this key stands."""
        return self.lines[key - 1] if self.lines else key

    def refusals(self) -> dict[str, list[int]]:
        """The lines of the refused rows by reason."""
        return {reason: [self.line(key) for key in keys] for reason, keys in self.refused.lines.items()}

    def refuse(self, *rules: Rule) -> None:
        """Remove the rows that break a rule from the frame and count them as refused."""
        if rules:
            self.frame = self.refused.take(self.frame, rules)

    def counts(self, *flags: pl.Expr) -> list[int]:
        """On how many rows each of the flags is true."""
        if not flags:
            return []
        sums = self.frame.select(flag.fill_null(False).sum().alias(str(i)) for i, flag in enumerate(flags))
        return [int(n) for n in sums.row(0)]


def load(path: Path) -> bytes:
    """The content of the file at `path`, without its compression (gzip, zstd; told by content, not by name).

    Raises InputError where there is no such file, it may not be read, or it is torn.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(f"{path} is a device, which may never end; name a file of measurements")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name the files in it, for example {path}/*.csv") from None
    except OSError as error:
        why = "this user has no permission to read it" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        raise InputError(f"{path} cannot be read: {why}") from error
    except MemoryError:
        raise InputError(f"{path} does not fit into memory; split it") from None
    try:
        data = _decompress(raw, path)
    except MemoryError:
        raise InputError(f"{path} does not fit into memory when it is unpacked; split it") from None
    if data[_TAR] == b"ustar":
        raise InputError(f"{path} is a tar archive; unpack it first, for example with tar -xf {path.name}")
    return data


def read(path: Path) -> Sheet:
    """The file at `path` as a sheet: CSV or Parquet, plain or compressed.

    Raises InputError as `load` does, and where it is not text, or has no rows.
    """
    return cut(path, load(path), None)


def written(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, each with its number. They are cut one by one: a text may be large."""
    for number, line in enumerate(_LINES.finditer(text), start=1):
        if (content := line[0]).strip():
            yield number, content


def shown(path: Path) -> str:
    """The name of a file, which may not be UTF-8."""
    return path.name.encode("utf-8", "backslashreplace").decode()


def cut(path: Path, data: bytes, header: str | None) -> Sheet:
    """The content of the file at `path` as a sheet. `header` has the names of its columns where it has none."""
    sheet = Sheet(shown(path), hashlib.sha256(data).hexdigest(), len(data), [], pl.DataFrame(), 0, Refused())
    if data[:4] == b"PAR1":
        if header is not None:
            raise InputError(f"{path} is Parquet, which names its columns: leave out --header")
        _from_parquet(sheet, data, path)
    else:
        _from_text(sheet, data, path, header)
    return sheet


def _decompress(raw: bytes, path: Path) -> bytes:
    try:
        if raw[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
                return _unpacked(stream, raw, path)
        if raw[:4] == b"\x28\xb5\x2f\xfd":
            return _zstd(raw, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut short ({error}); fetch it again") from error
    for magic, what in ((b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")):
        if raw.startswith(magic):
            raise InputError(f"{path} is a {what} file; unpack it first (whorl reads plain, .gz and .zst files)")
    return raw


def _zstd(raw: bytes, path: Path) -> bytes:
    """Decompress zstd frames. Raises OSError for a damaged or truncated file."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(raw), "zstd") as stream:
        return _unpacked(stream, raw, path)


def _unpacked(stream: Any, raw: bytes, path: Path) -> bytes:
    """What a compressed file holds. Raises InputError if a small file becomes huge: files of measurements do not."""
    most = unpacking.most(len(raw))
    parts, size = [], 0
    while part := stream.read(_PIECE):
        parts.append(part)
        size += len(part)
        if size > most:
            raise unpacking.too_much(path)
    return b"".join(parts)


def _from_parquet(sheet: Sheet, data: bytes, path: Path) -> None:
    sheet.names = _columns(parquet.names(data, path), path)
    frame = parquet.as_text(data, path)
    if not frame.height:
        raise InputError(_NO_ROWS.format(path))
    sheet.rows = frame.height
    frame = frame.select(pl.int_range(1, frame.height + 1).alias(LINE), *filter(None, sheet.names))
    unreadable = pl.any_horizontal(pl.exclude(LINE).str.contains(UNREADABLE))
    sheet.frame = sheet.refused.take(frame, [(unreadable, STRANGE)])
    sheet.names = [name for name in sheet.names if name]


def _from_text(sheet: Sheet, data: bytes, path: Path, given: str | None) -> None:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or data.count(b"\x00") * 20 > len(data) > 0:
        raise InputError(f"{path} is not text in UTF-8 (it holds zero bytes); export it as CSV in UTF-8")
    whole = pl.Series("text", [data.decode("utf-8-sig", "replace")])
    lines = whole.str.split("\n" if b"\n" in data else "\r").explode()
    table = pl.DataFrame(lines.str.strip_chars_end("\r"))
    table = table.with_columns(pl.int_range(1, pl.len() + 1).alias(LINE))
    table = table.filter(pl.col("text").str.strip_chars() != "")
    if not table.height:
        raise InputError(f"{path} is empty ({len(data)} bytes): nothing to import")
    if _OF_EXCEL.match(table["text"][0]) and table.height > 1:
        table = table.slice(1)
    table = _without_comments(table)
    header = table["text"][0]
    if re.match(r"\s*(?:\{|\[\s*(?:\{|$))", header):
        raise InputError(f"{path} is JSON of no known format; export it as CSV or Parquet")
    delimiter = max(",;\t", key=header.count)
    if given is None:
        sheet.names = _columns(_split(header, delimiter, path), path)
        table = table.slice(1)
    elif not re.search("[0-9]", header):
        raise InputError(f"{path} begins with the names of its columns ({header}): leave out --header")
    else:
        sheet.names = _columns(_split(given, ",", path), path)
        header = given
    if not table.height:
        raise InputError(_NO_ROWS.format(path))
    sheet.rows = table.height
    again = pl.col("text").str.strip_chars() == header.strip()
    table = sheet.refused.take(
        table, [(pl.col("text").str.contains(UNREADABLE), STRANGE), (again, "it is the header line again")]
    )
    _one_header(table, delimiter, sheet.names, path)
    fields = _fields(table, delimiter, sheet.refused)
    fields = _even(fields, len(sheet.names), sheet.refused, path)
    columns = [pl.col("fields").list.get(i).str.strip_chars().alias(name) for i, name in enumerate(sheet.names) if name]
    sheet.frame = fields.select(LINE, *columns)
    sheet.names = [name for name in sheet.names if name]


def _without_comments(table: pl.DataFrame) -> pl.DataFrame:
    """The lines without comments in front of the header: they begin with #, and have not as many fields as it has."""
    lines = table["text"].head(_MOST_COMMENTS).to_list()
    first = next((number for number, line in enumerate(lines) if not line.lstrip().startswith("#")), 0)
    delimiter = max(",;\t", key=lines[first].count)
    front = [line for line in lines[:first] if not line.startswith(_OF_INFLUX)]
    fields = lines[first].count(delimiter)
    return table if any(line.count(delimiter) == fields for line in front) else table.slice(first)


def _no_text(path: Path) -> InputError:
    if path.suffix == ".parquet":
        return InputError(f"{path} is neither Parquet, as its name says, nor text: fetch it again")
    return InputError(f"{path}: the header line has unreadable characters; export the file as CSV in UTF-8")


def _split(header: str, delimiter: str, path: Path) -> list[str]:
    try:
        names = next(csv.reader([header], delimiter=delimiter, strict=True, skipinitialspace=True))
    except csv.Error as error:
        if re.search(UNREADABLE, header):
            raise _no_text(path) from error
        raise InputError(f"{path}: the header line has a stray quote; repair it and import again") from error
    return [name.strip() for name in names]


def _columns(names: list[str], path: Path) -> list[str]:
    """The names of the columns, checked; that of a written-out row index becomes ""."""
    if len(names) > _MOST_COLUMNS:
        raise InputError(
            f"{path} has {len(names)} columns, but at most {_MOST_COLUMNS} can be read: keep only those that you need"
        )
    if any(re.search(UNREADABLE, name) for name in names):
        raise _no_text(path)
    if len(names) > 1 and names[0] in _INDEX_NAMES:
        names = ["", *names[1:]]
    twice = sorted(name for name, times in Counter(names).items() if name and times > 1)
    if any(re.match(_VALUE, name) for name in (twice if "" not in names[1:] else names)):
        raise headless(shown(path), names)
    for position, name in enumerate(names[1:], start=2):
        if not name:
            raise InputError(f"{path}: column {position} of the header has no name; name it and import again")
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one of them")
    own = next((name for name in names if name.startswith(OWN)), None)
    if own is not None:
        raise InputError(f"{path}: the name of a column may not begin with {OWN!r} ({own!r}); rename it")
    return names


def headless(file: str, names: Sequence[str]) -> InputError:
    """The sentence for a file whose first line has values where others have the names of columns."""
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return InputError(
        f"{file}: the first line looks like data, not like column names ({shown}); "
        f"name the columns, for example --header timestamp,uuid,power.draw (the list behind --query-gpu)"
    )


def _one_header(table: pl.DataFrame, delimiter: str, names: list[str], path: Path) -> None:
    """Refuse a file whose columns change part way through, such as a log that two commands appended to."""
    for line, text in table.filter(~pl.col("text").str.contains("[0-9]")).select(LINE, "text").iter_rows():
        fields = [field.strip() for field in text.split(delimiter)]
        if sum(field in names for field in fields) * 2 > len(fields):
            raise InputError(f"{path}: line {line} is a second header, with other columns; split the file there")


def _fields(table: pl.DataFrame, delimiter: str, refused: Refused) -> pl.DataFrame:
    """Each line cut into fields; lines with quotes one by one, by the CSV rules, the others all at once."""
    quoted = table["text"].str.contains('"', literal=True)
    if not quoted.any():
        return table.select(LINE, pl.col("text").str.split(delimiter).alias("fields"))
    plain = table.filter(~quoted).select(LINE, pl.col("text").str.split(delimiter).alias("fields"))
    lines, cut, bad = [], [], []
    for line, text in table.filter(quoted).select(LINE, "text").iter_rows():
        try:
            cut.append(next(csv.reader([text], delimiter=delimiter, strict=True, skipinitialspace=True)))
            lines.append(line)
        except csv.Error:
            bad.append(line)
    refused.add("it has a stray quote", bad)
    more = pl.DataFrame({LINE: lines, "fields": cut}, schema={LINE: pl.Int64, "fields": pl.List(pl.String)})
    return pl.concat([plain, more]).sort(LINE)


def _even(fields: pl.DataFrame, width: int, refused: Refused, path: Path) -> pl.DataFrame:
    """Refuse rows with too few or too many fields, and the whole file if most rows are so."""
    counts = fields["fields"].list.len()
    wrong = counts != width
    number = int(wrong.sum())
    if not number:
        return fields
    if number * 2 > fields.height:
        seen = counts.filter(wrong).mode().sort()[0]
        raise InputError(
            f"{path}: the header names {width} columns and most rows have {seen} fields; "
            f"the header belongs to another file or a column was cut: nothing was imported"
        )
    several = sorted(counts.filter(wrong).unique().to_list())
    size = pl.col("fields").list.len()
    return refused.take(fields, [(size == n, f"it has {n} fields, but the header names {width}") for n in several])
