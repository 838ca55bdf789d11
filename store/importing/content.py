"""A file as a sheet: its bytes without their compression, its rows cut into fields of text, each row accounted for.

One line is one row: a quoted field may hold the delimiter, never a line break. So a stray quote damages only one row,
and every refused row has a line number.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import stat
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ..events import Event
from .lines import HOST, csv_fields, tell_apart
from .meanings import METRIC_KINDS, Bound, split_label
from .options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_RATIO, _LEAST = 100, 64 << 20  # bytes
_PIECE, _PIECE_ROWS = 1 << 20, 4096  # bytes, rows that are read at once
_TAR = slice(257, 262)  # where a tar archive says that it is one
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ARCHIVES = (
    (b"PK\x03\x04", "zip file"), (b"BZh", "bzip2 file"), (b"\xfd7zXZ", "xz file"), (b"x\x01", "zlib stream"),
    (b"x\x9c", "zlib stream"), (b"x\xda", "zlib stream"), (_GZIP, "gzip file in another"),
    (_ZSTD, "zstd file in another"),
)  # fmt: skip
_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


OWN = "="  # the importer's own columns begin with this; no column of a file may
LINE = f"{OWN}line"
RECORD = f"{OWN}record"
_MOST_COLUMNS = 4096
_MOST_COMMENTS = 100  # lines
_OF_EXCEL = re.compile(r"^\s*\"?sep=.\"?\s*$", re.IGNORECASE)  # a line that tells Excel the delimiter
# A time that kubectl logs --timestamps or docker logs -t put in front of each line.
_IN_FRONT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2}) "
_OF_INFLUX = ("#group,", "#datatype,", "#default,")  # lines in front of the header of InfluxDB
_PIECE_BYTES = 1 << 25
_PIECE_LINES, _OFTEN = 1 << 18, 8  # lines that are cut at once; of which a text comes often
_VALUE = r"[0-9]{4}[-/]|[-+]?[0-9]+(?:\.[0-9]*)?(?: *(?:W|MHz|MiB|%|C))?$"  # what no column is called
_UTF16 = re.compile(
    rb"(?P<little>\xff\xfe|(?:[^\x00]\x00){8})|(?P<big>\xfe\xff|(?:\x00[^\x00]){8})"
)  # a mark of its byte order, or zeros beside the first characters
UNREADABLE = "[\x00-\x08\x0b-\x1f\x7f\ufffd]"
_INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")  # how pandas writes out the number of a row
# A line that is a sentence, such as `Failed to initialize NVML: Driver/library version mismatch`: its first field has
# several words, and the first begins with a letter.
_SENTENCE = r"^\s*[A-Za-z][^,;\t\s]*\s+[^,;\t\s]*[A-Za-z]"
_MESSAGES_TOLD = 5  # texts of messages that the report has, each with its lines
_COMMA = r"[0-9],[0-9]"

STRANGE = "it has unreadable characters (not UTF-8 text)"
_NO_ROWS = "{} has a header but no rows: nothing to import"

Rule = tuple[pl.Expr, str]  # which rows are refused, and the reason


@dataclass(slots=True)
class Content:
    """The bytes of a file without their compression, until they are cut into rows."""

    path: Path
    data: bytes
    sha256: str
    size: int

    @classmethod
    def load(cls, path: Path) -> Content:
        """The content of the file at `path`. Raises InputError where it cannot be read."""
        unpacked = load(path)
        return cls(path, unpacked, hashlib.sha256(unpacked).hexdigest(), len(unpacked))

    def take(self) -> bytes:
        """The bytes, which are not kept: of a large log, its bytes, its text and its rows need not be there at once."""
        unpacked, self.data = self.data, b""
        return unpacked

    @property
    def file(self) -> str:
        """Its name, as reports have it."""
        return shown(self.path)


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
        number = pl.coalesce([pl.when(bad).then(pl.lit(i, pl.Int16)) for i, (bad, _) in enumerate(rules)])
        broken = frame.select(number).to_series()
        if broken.null_count() == len(broken):
            return frame
        lines = pl.DataFrame({LINE: frame[LINE], "rule": broken}).drop_nulls("rule")
        for position, (_, reason) in enumerate(rules):
            self.add(reason, lines.filter(pl.col("rule") == position)[LINE].unique(maintain_order=True).to_list())
        return frame.filter(broken.is_null())


@dataclass
class Sheet:
    """A file as rows of text, what its columns mean, and the account of what becomes of the rows.

    `frame` has a column of text for each of `names`, and `LINE`, the line number. `rows` counts all data rows; those
    that could not be cut into fields are in `refused` already. Where one line may hold several rows, `LINE` and
    `refused` have keys of rows from 1 on, and `lines` says in which line each stands. Of a format (`formats.py`), the
    columns are named after meanings, `RECORD` tells equal rows apart, and `events` are about rows.
    """

    file: str
    options: Options
    names: list[str] = field(default_factory=list)
    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    rows: int = 0
    refused: Refused = field(default_factory=Refused)
    format: str = ""  # "" for a table
    kind: str = ""  # runs | telemetry | jobs | timelines | node_power
    layout: str = ""  # a name of `layout.LAYOUTS`, `mapped`, or the format
    bound: dict[str, Bound] = field(default_factory=dict)  # by the name of the meaning
    lines: Sequence[int] = ()
    notes: list[str] = field(default_factory=list)
    placeholders: dict[str, int] = field(default_factory=dict)  # column -> values turned into NULL
    units: dict[str, dict[str, str]] = field(default_factory=dict)  # column -> {unit, from}
    duplicates: list[int] = field(default_factory=list)  # keys of rows
    events: list[tuple[int, Event]] = field(default_factory=list)
    messages: list[tuple[int, str]] = field(default_factory=list)  # lines in which a tool says something
    first_xids: set[tuple[int, int]] = field(default_factory=set)  # row and XID: may have been there before the file
    used: set[str] = field(default_factory=set)  # of --at and --every, where something was read with them
    jobs: Sheet | None = None  # of telemetry: who had the GPUs, as the same file says
    source: str = ""  # of jobs: a code of `jobs.source`
    restarts: list[int] = field(default_factory=list)  # lines in which a table names its columns again
    unfinished: int = 0  # the last line, if it does not end: a value in it may be cut off

    @property
    def metrics(self) -> list[Bound]:
        """The columns of numbers that telemetry has."""
        return [b for b in self.bound.values() if b.meaning.kind in METRIC_KINDS]

    def ignored(self) -> list[str]:
        """The columns that are not stored."""
        used = {b.column for b in self.bound.values()}
        return [name for name in self.names if name not in used]

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


def read(path: Path) -> Sheet:
    """The file at `path` as a sheet: CSV or Parquet, plain or compressed. Raises InputError as `load` and `cut` do."""
    return cut(Content.load(path), Options())


def shown(path: Path) -> str:
    """The name of a file, which may not be UTF-8."""
    return path.name.encode("utf-8", "backslashreplace").decode()


def cut(loaded: Content, options: Options) -> Sheet:
    """A file as a sheet; `loaded` is empty then. `options.header` has the names of its columns where it has none.

    Raises InputError where it is not text, or has no rows.
    """
    path, content = loaded.path, loaded.take()
    sheet = Sheet(loaded.file, options)
    if content[:4] == b"PAR1":
        if options.header is not None:
            raise InputError(f"{path} is Parquet, which names its columns: leave out header=")
        _from_parquet(sheet, content, path)
    else:
        lines = _lines(content, path)
        sheet.unfinished = 0 if content.endswith((b"\n", b"\r")) else lines[LINE][-1]
        del content  # its bytes and its lines need not be there at once
        _from_text(sheet, lines, path)
    return sheet


def _from_parquet(sheet: Sheet, content: bytes, path: Path) -> None:
    columns = parquet(content, path)
    names = _columns([name for name, _ in columns], path)
    frame = pl.DataFrame([series.alias(name) for name, (_, series) in zip(names, columns, strict=True) if name])
    sheet.names, sheet.rows = frame.columns, frame.height
    if not frame.height:
        raise InputError(_NO_ROWS.format(path))
    unreadable = pl.any_horizontal(pl.all().str.contains(UNREADABLE))
    frame = frame.select(pl.int_range(1, frame.height + 1).alias(LINE), pl.all(), unreadable.alias("=unreadable"))
    sheet.frame = sheet.refused.take(frame, [(pl.col("=unreadable"), STRANGE)]).drop("=unreadable")


def _lines(content: bytes, path: Path) -> pl.DataFrame:
    """The lines that are not blank: `LINE` and `text`. Raises InputError where there is none."""
    if (wide := _UTF16.match(content)) is not None:
        order = "LE" if wide.lastgroup == "little" else "BE"
        raise InputError(f"{path} is text in UTF-16; write it in UTF-8: iconv -f UTF-16{order} -t UTF-8 {path.name}")
    size, content = len(content), content.lstrip(b"\x00").removeprefix(b"\xef\xbb\xbf")
    if not content or content.isspace():
        raise InputError(f"{path} is empty ({size} bytes): nothing to import")
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    tables, begin = [], 0
    while begin < len(content):  # in pieces, as reading takes a copy of what is read
        end = content.find(b"\n", begin + _PIECE_BYTES) + 1 or len(content)
        piece = content[begin:end].replace(b"\r\n", b"\n")
        try:
            tables.append(pl.read_lines(piece, name="text"))
        except pl.exceptions.ComputeError:  # bytes that are not UTF-8
            tables.append(pl.read_lines(piece.decode("utf-8", "replace").encode(), name="text"))
        begin = end
    table = pl.concat(tables)
    table = table.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias(LINE))
    return table.filter(pl.col("text").str.contains(r"\S"))


def _from_text(sheet: Sheet, table: pl.DataFrame, path: Path) -> None:
    option = sheet.options.header
    of_hosts = tell_apart(table, sheet.file)
    if re.search("[,;\t]", of_hosts["text"][0]):  # else it is a text with a colon behind the first word
        table = of_hosts
    hosts = table.select(LINE, pl.col(HOST).alias("node")).drop_nulls() if HOST in table.columns else None
    if re.match(f"{_IN_FRONT}[A-Za-z]", table["text"][0]):
        table = table.with_columns(pl.col("text").str.replace(_IN_FRONT, ""))
    if _OF_EXCEL.match(table["text"][0]) and table.height > 1:
        table = table.slice(1)
    table = _without_comments(table)
    front = _sentences_in_front(table)
    sheet.messages += table.select(LINE, "text").head(front).rows()
    table = table.slice(front)
    if not table.height:
        first = sheet.messages[0][1].strip()[:80]
        raise InputError(f"{path} holds messages of a tool only, such as {first!r}, and no row: nothing to import")
    header = table["text"][0]
    if re.match(r"\s*(?:\{|\[\s*(?:\{|$))", header):
        raise InputError(f"{path} is JSON of no known format; export it as CSV or Parquet")
    delimiter = max(",;\t", key=header.count)
    if header.endswith(delimiter) and table["text"].str.ends_with(delimiter).all():  # a script puts one behind each
        table = table.with_columns(pl.col("text").str.strip_suffix(delimiter))
        header = table["text"][0]
    if option is None:
        sheet.names = _columns(_split(header, delimiter, path), path)
        table = table.slice(1)
    elif not re.search("[0-9]", header):
        raise InputError(f"{path} begins with the names of its columns ({header}): leave out header=")
    else:
        sheet.names = _columns(_split(option, ",", path), path)
        header = option
    if not table.height:
        raise InputError(_NO_ROWS.format(path))
    sheet.rows = table.height + front
    text = pl.col("text")
    again = text.is_in(_headers_again(table, header, delimiter, sheet.names, path=path))
    sheet.restarts = table.filter(again)[LINE].to_list()
    table = sheet.refused.take(
        table, [(text.str.contains(UNREADABLE), STRANGE), (again, "it is the header line again")]
    )
    no_row = (text.str.count_matches(delimiter, literal=True) != len(sheet.names) - 1) & text.str.contains(_SENTENCE)
    messages = table.filter(no_row)
    sheet.messages += messages.select(LINE, "text").rows()
    _refuse_messages(sheet)
    table = table.filter(~no_row) if messages.height else table
    sheet.frame = _fields(table, delimiter, sheet, path)
    sheet.names = [name for name in sheet.names if name]
    if hosts is not None and "node" not in sheet.names:
        sheet.frame = sheet.frame.join(hosts, on=LINE, how="left", maintain_order="left")
        sheet.frame = sheet.frame.with_columns(pl.col("node").fill_null(""))
        sheet.names.append("node")


def _sentences_in_front(table: pl.DataFrame) -> int:
    """How many lines in front of the first that has a delimiter are sentences; 0 if one of them is none."""
    has_delimiter = table["text"].str.contains("[,;\t]")
    number = int(has_delimiter.arg_max() or 0) if has_delimiter.any() else table.height
    return number if table["text"].head(number).str.contains(_SENTENCE).all() else 0


def _refuse_messages(sheet: Sheet) -> None:
    """Count the lines in which a tool says something: they are no rows."""
    lines: dict[str, list[int]] = {}
    for number, text in sheet.messages:
        lines.setdefault(text.strip()[:80], []).append(number)
    for position, (text, numbers) in enumerate(lines.items()):
        reason_text = text if position < _MESSAGES_TOLD else "others"
        sheet.refused.add(f"it is no row but a message: {reason_text}", numbers)


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
    names = csv_fields(header, delimiter)
    if names is None and re.search(UNREADABLE, header):
        raise _no_text(path)
    if names is None:
        raise InputError(f"{path}: the header line has a stray quote; repair it and import again")
    return names


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
    reserved = next((name for name in names if name.startswith(OWN)), None)
    if reserved is not None:
        raise InputError(f"{path}: the name of a column may not begin with {OWN!r} ({reserved!r}); rename it")
    return names


def headless(file: str, names: Sequence[str]) -> InputError:
    """The sentence for a file whose first line has values where others have the names of columns."""
    return InputError(
        f"{file}: the first line looks like data, not like column names ({listed(names)}); "
        f"name the columns, for example --set header=timestamp,uuid,power.draw (the list behind --query-gpu)"
    )


def listed(names: Sequence[str], most: int = 160) -> str:
    """Names for a sentence: as many as have room in `most` characters."""
    text = ", ".join(names)
    return text if len(text) <= most else f"{text[:most].rpartition(', ')[0] or text[:most]}, ..."


def _headers_again(table: pl.DataFrame, header: str, delimiter: str, names: list[str], *, path: Path) -> list[str]:
    """The lines that name the columns again, with other units or blanks too.

    Raises InputError where a line names other columns, as in a log that two commands appended to.
    """
    columns = [split_label(name)[0].lower() for name in names]
    again = [header]
    words = table.filter(~table["text"].str.contains("[0-9]")).unique("text", keep="first", maintain_order=True)
    for line, text in words.select(LINE, "text").iter_rows():
        fields = [split_label(field)[0].lower() for field in text.split(delimiter)]
        if fields == columns:
            again.append(text)
        elif sum(field in columns for field in fields) * 2 > len(fields):
            raise InputError(f"{path}: line {line} is a second header, with other columns; split the file there")
    return again


def _fields(table: pl.DataFrame, delimiter: str, sheet: Sheet, path: Path) -> pl.DataFrame:
    """The lines cut into columns; lines with quotes one by one, by the CSV rules, the others all at once."""
    names, width, text = sheet.names, len(sheet.names), pl.col("text")
    quoted = table["text"].str.contains('"', literal=True)
    cut_lines = [(n, csv_fields(line, delimiter)) for n, line in table.filter(quoted).select(LINE, "text").iter_rows()]
    lists = [(n, cells) for n, cells in cut_lines if cells is not None]
    sheet.refused.add("it has a stray quote", [n for n, cells in cut_lines if cells is None])
    plain = table.filter(~quoted) if quoted.any() else table
    sizes = plain.select(LINE, text.str.count_matches(delimiter, literal=True).cast(pl.Int64).alias("size") + 1)
    sizes = sizes.vstack(pl.DataFrame([(n, len(text_field)) for n, text_field in lists], sizes.schema, orient="row"))
    ragged = sizes.filter(pl.col("size") != width)
    if ragged.height:
        if ragged.height == sizes.height:
            raise _of_other_width(plain, ragged["size"].mode().sort()[0], width, delimiter, path)
        for size, lines in ragged.group_by("size").agg(LINE).sort("size").iter_rows():
            sheet.refused.add(f"it has {size} fields, but the header names {width}", lines)
        plain = plain.filter(text.str.count_matches(delimiter, literal=True) == width - 1)
    columns = {name: f"field_{number}" for number, name in enumerate(names) if name}
    fields = text.str.split_exact(delimiter, width - 1)
    pieces = [
        piece.select(LINE, fields.alias("fields"))
        .unnest("fields")
        .select(LINE, *(pl.col(number).str.strip_chars().alias(name) for name, number in columns.items()))
        .with_columns(pl.exclude(LINE).map_batches(_each_once))
        for piece in plain.iter_slices(_PIECE_LINES)
    ]
    if lists:
        rows = [(n, *cells) for n, cells in lists if len(cells) == width]
        schema = {LINE: pl.Int64} | {name or "": pl.String for name in names}
        pieces.append(pl.DataFrame(rows, schema, orient="row").select(LINE, *columns))
        return pl.concat(pieces).sort(LINE)
    return pl.concat(pieces) if pieces else pl.DataFrame(schema={LINE: pl.Int64} | dict.fromkeys(columns, pl.String))


def _each_once(texts: pl.Series) -> pl.Series:
    """The texts, in memory once each where they come again and again, as the names of GPUs do."""
    distinct = texts.unique()
    often = len(distinct) * _OFTEN < len(texts)
    return texts.replace_strict(distinct, distinct) if often else texts


def _of_other_width(plain: pl.DataFrame, size: int, width: int, delimiter: str, path: Path) -> InputError:
    """The sentence for a file of which no row has as many fields as the header."""
    commas = delimiter == "," and size > width and plain["text"].str.contains(_COMMA).any()
    why = (
        "numbers in it seem to have a decimal comma, such as 12,5; write a decimal point (LC_ALL=C does), or part the "
        "columns with ;"
        if commas
        else "the header belongs to another file or a column was cut: nothing was imported"
    )
    return InputError(f"{path}: the header names {width} columns and the rows have {size} fields; {why}")


# -- bytes ----------------------------------------------------------------------------------------------------


def load(path: Path) -> bytes:
    """The content of the file at `path`, without its compression (gzip, zstd; told by content, not by name).

    Raises InputError where there is no such file, it may not be read, or it is torn.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(f"{path} is a device, which may never end; name a file of measurements")
        content = _unpacked(path.read_bytes(), path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name the files in it, for example {path}/*.csv") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read: this user has no permission to read it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError:
        raise InputError(f"{path} does not fit into memory; split it") from None
    if content[_TAR] == b"ustar":
        raise InputError(f"{path} is a tar archive; unpack it first, for example with tar -xf {path.name}")
    return content


def _unpacked(packed: bytes, path: Path) -> bytes:
    content = packed
    try:
        if packed.startswith(_GZIP):
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                content = _limited(stream, packed, path)
        elif packed.startswith(_ZSTD):
            import pyarrow as pa

            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                content = _limited(stream, packed, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut short ({error}); fetch it again") from error
    for magic, archive in _ARCHIVES:
        if content.startswith(magic):
            raise InputError(f"{path} is a {archive}; unpack it first (whorl reads plain, .gz and .zst files)")
    return content


def _limited(stream: Any, packed: bytes, path: Path) -> bytes:
    parts, size = [], 0
    while part := stream.read(_PIECE):
        parts.append(part)
        size += len(part)
        _check_size(size, packed, path)
    return b"".join(parts)


def _check_size(size: int, packed: bytes, path: Path) -> None:
    """Raise InputError where a small file becomes huge: files of measurements do not."""
    if size > max(_LEAST, _RATIO * len(packed)):
        raise InputError(
            f"{path} unpacks to more than {_RATIO} times its size, unlike any measurements; "
            "if the file is right, unpack it first and import the result"
        )


def parquet(content: bytes, path: Path) -> list[tuple[str, pl.Series]]:
    """The columns of a Parquet file with their names, as text; what is missing is "".

    Raises InputError where the file is damaged, or becomes too large.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:  # Arrow's reader, because a damaged file makes Polars' panic
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
            parts, size = [], 0
            for part in file.iter_batches(_PIECE_ROWS):
                # All parts of a column of codes may share what the codes mean.
                size += sum(getattr(column, "indices", column).nbytes for column in part.columns)
                _check_size(size, content, path)
                parts.append(part)
            table = pa.Table.from_batches(parts, schema=file.schema_arrow)
        table.validate(full=True)
        return [(name, _texts(column)) for name, column in zip(table.column_names, table.columns, strict=True)]
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, ValueError, OverflowError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path}: the Parquet file is damaged ({why}); fetch it again") from error


def _texts(column: pa.ChunkedArray) -> pl.Series:
    """A column as text. A time that no calendar has becomes a text that cannot be read, as Arrow writes it."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_duration(kind):
        factor = _NS[kind.unit]
        column = [None if n is None else f"{n * factor} ns" for n in column.cast(pa.int64()).to_pylist()]
    elif pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            column = [None if value is None else str(value) for value in column.to_pylist()]
        except (ValueError, OverflowError):  # a time that Python does not have
            column = ["out of range"] * len(column)
    else:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        column = column.cast(pa.string())
    return pl.Series(column, dtype=pl.String).str.strip_chars().fill_null("")
