"""The content of a file: decompressed, decoded, cut into rows of fields; every row is accounted for.

One line is one row: a quoted field may hold the delimiter, never a line break. So a stray quote damages one
row and not the rest of the file, and every refusal has a line number.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from ...errors import InputError, WhorlError
from ..files import failed

LINE = "_line"
_UNREADABLE = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f�]"


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


@dataclass
class Sheet:
    """A file as rows of text: `frame` has a column of text per name, and `LINE`, the line number.

    `rows` counts all data rows; those that could not be cut into fields are in `refused` already.
    """

    file: str
    sha256: str
    size: int
    names: list[str]
    frame: pl.DataFrame
    rows: int
    refused: Refused
    has_index: bool = False  # the first column was a written-out row index without a name

    def refuse(self, bad: pl.Expr, reason: str) -> None:
        """Take the rows where `bad` is true out of the frame and account for them."""
        lines = self.frame.filter(bad.fill_null(False))[LINE].to_list()
        if lines:
            self.refused.add(reason, lines)
            self.frame = self.frame.filter(~bad.fill_null(False))


def read(path: Path) -> Sheet:
    """The file at `path` as a sheet: CSV (plain, gzip, zstd; by content, not by name) or Parquet.

    Raises InputError where there is no such file, it is torn, it is not text, or it has no rows.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name the files in it, for example {path}/*.csv") from None
    except OSError as error:
        raise WhorlError(str(failed("read", path, error))) from error
    data = _decompress(raw, path)
    digest = hashlib.sha256(data).hexdigest()
    if data[:4] == b"PAR1":
        return _parquet(data, path, digest)
    return _text(data, path, digest)


def _decompress(raw: bytes, path: Path) -> bytes:
    try:
        if raw[:2] == b"\x1f\x8b":
            return gzip.decompress(raw)
        if raw[:4] == b"\x28\xb5\x2f\xfd":
            return _zstd(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut short ({error}); fetch it again") from error
    for magic, what in ((b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")):
        if raw.startswith(magic):
            raise InputError(f"{path} is a {what} file; whorl reads plain, .gz and .zst files: unpack it first")
    return raw


def _zstd(raw: bytes) -> bytes:
    """Decompress zstd frames. Raises OSError for a damaged and EOFError for a truncated file."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(raw), "zstd") as stream:
        return bytes(stream.read())


def _parquet(data: bytes, path: Path, digest: str) -> Sheet:
    try:
        frame = pl.read_parquet(data)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise InputError(f"{path}: the Parquet file is damaged ({str(error).splitlines()[0]})") from error
    nested = [name for name, kind in frame.schema.items() if kind.is_nested() or kind == pl.Binary]
    frame = frame.drop(nested)
    if not frame.width:
        raise InputError(f"{path} has no column of numbers, text or times")
    if not frame.height:
        raise InputError(f"{path} has a header and no rows: nothing to import")
    frame = frame.select(pl.all().cast(pl.String).fill_null(""))
    frame = frame.with_row_index(LINE, offset=1).with_columns(pl.col(LINE).cast(pl.Int64))
    names = [name for name in frame.columns if name != LINE]
    return Sheet(path.name, digest, len(data), names, frame, frame.height, Refused())


def _text(data: bytes, path: Path, digest: str) -> Sheet:
    if not data.strip():
        raise InputError(f"{path} is empty ({len(data)} bytes): nothing to import")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in data[:4096]:
        raise InputError(f"{path} is not a text file in UTF-8 (it holds zero bytes); export it as CSV in UTF-8")
    text = data.decode("utf-8-sig", "replace")
    lines = text.split("\n") if "\n" in text else text.split("\r")
    table = pl.DataFrame({"text": lines}).with_row_index(LINE, offset=1)
    table = table.with_columns(pl.col(LINE).cast(pl.Int64), pl.col("text").str.strip_chars_end("\r"))
    table = table.filter(pl.col("text").str.strip_chars() != "")
    header_text = table["text"][0]
    delimiter = max(",;\t", key=header_text.count)
    names, has_index = _header(header_text, delimiter, path)
    table = table.slice(1)
    if not table.height:
        raise InputError(f"{path} has a header and no rows: nothing to import")
    rows, refused = table.height, Refused()

    unreadable = table["text"].str.contains(_UNREADABLE)
    refused.add("unreadable characters (not UTF-8 text)", table.filter(unreadable)[LINE].to_list())
    table = table.filter(~unreadable)
    repeated = table["text"].str.strip_chars() == header_text.strip()
    refused.add("the header line again", table.filter(repeated)[LINE].to_list())
    table = table.filter(~repeated)

    fields = _fields(table, delimiter, refused)
    counts = fields["fields"].list.len()
    _refuse_ragged(fields, counts, len(names), refused, path)
    fields = fields.filter(counts == len(names))
    columns = [pl.col("fields").list.get(i).str.strip_chars().alias(name) for i, name in enumerate(names) if name]
    frame = fields.select(pl.col(LINE), *columns)
    kept = [name for name in names if name]
    return Sheet(path.name, digest, len(data), kept, frame, rows, refused, has_index)


def _header(text: str, delimiter: str, path: Path) -> tuple[list[str], bool]:
    """The names of the columns, and whether the first is a row index (its name becomes "")."""
    if "�" in text:
        raise InputError(f"{path}: the header line holds unreadable characters (not UTF-8 text)")
    try:
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter, strict=True))]
    except csv.Error as error:
        raise InputError(f"{path}: the header line has a stray quote ({error})") from error
    has_index = len(names) > 1 and names[0] in ("", "Unnamed: 0")
    if has_index:
        names[0] = ""
    for position, name in enumerate(names[1:], start=2):
        if not name:
            raise InputError(f"{path}: column {position} of the header has no name; name it and import again")
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}; it cannot be told which is meant")
    if LINE in names:
        raise InputError(f"{path}: a column may not be named {LINE!r}")
    return names, has_index


def _fields(table: pl.DataFrame, delimiter: str, refused: Refused) -> pl.DataFrame:
    """Each line cut into fields; lines with quotes one by one, by the CSV rules, the others all at once."""
    quoted = table["text"].str.contains('"', literal=True)
    plain = table.filter(~quoted).select(LINE, pl.col("text").str.split(delimiter).alias("fields"))
    if not quoted.any():
        return plain
    lines, cut, bad = [], [], []
    for line, text in table.filter(quoted).select(LINE, "text").iter_rows():
        try:
            cut.append(next(csv.reader([text], delimiter=delimiter, strict=True)))
            lines.append(line)
        except csv.Error:
            bad.append(line)
    refused.add("a stray quote", bad)
    more = pl.DataFrame({LINE: lines, "fields": cut}, schema={LINE: pl.Int64, "fields": pl.List(pl.String)})
    return pl.concat([plain, more]).sort(LINE)


def _refuse_ragged(fields: pl.DataFrame, counts: pl.Series, width: int, refused: Refused, path: Path) -> None:
    """Refuse rows with too few or too many fields; the whole file where that is most rows."""
    wrong = counts != width
    number = int(wrong.sum())
    if number and number * 2 > fields.height:
        seen = counts.filter(wrong).mode().sort()[0]
        raise InputError(
            f"{path}: the header names {width} columns and most rows have {seen} fields; "
            f"the header belongs to another file or a column was cut: nothing was imported"
        )
    for count in sorted(counts.filter(wrong).unique().to_list()):
        refused.add(f"{count} fields where the header names {width}", fields.filter(counts == count)[LINE].to_list())
