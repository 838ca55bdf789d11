"""What a file is before its columns are looked at: packed, torn, huge, of any delimiter."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.dashboards.words import printable
from whorl.errors import InputError
from whorl.store.importing import Parsed, content
from whorl.store.importing.content import load, read

Parse = Callable[..., Parsed]
Refusal = Callable[..., str]

NAMES = "exp,uuid,ts,perf_ms,temp"
UUIDS = [f"GPU-0a1b2c3d-0000-1111-2222-3333444455{i:02d}" for i in range(30)]
ROWS = [f"sgemm,{UUIDS[i]},{1_590_000_000 + i},{2400 + i}.5,{50 + i}" for i in range(30)]
PLAIN = "\n".join([NAMES, *ROWS, ""]).encode()


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


def values(found: Parsed) -> list[float]:
    listed: list[float] = found.frame["value"].to_list()
    return listed


EXPECTED = [2400.5 + i for i in range(30)]


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.csv", gzip.compress), ("a.csv.gz", bytes), ("a.csv.zst", zstd), ("a", zstd), ("a.parquet", bytes)],
)
def test_the_content_counts_and_not_the_name(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path, parse: Parse
) -> None:
    path = tmp_path / name
    path.write_bytes(pack(PLAIN))
    found = parse(path)
    assert values(found) == EXPECTED


def tarred(data: bytes) -> bytes:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = len(data)
        archive.addfile(member, BytesIO(data))
    return packed.getvalue()


def zipped(data: bytes) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.csv", data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty (0 bytes)"),
        (b" \n\r\n ", "is empty (5 bytes)"),
        (b"\xef\xbb\xbf", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty (0 bytes)"),
        (NAMES.encode(), "has a header but no rows"),
        (NAMES.encode() + b"\r\n\r\n", "has a header but no rows"),
        (bytes(range(256)) * 40, "unreadable characters"),
        (b"\x7fELF" + bytes(4000), "unreadable characters"),
        (PLAIN.decode().encode("utf-16"), "iconv -f UTF-16LE"),
        (PLAIN.decode().encode("utf-16-le"), "iconv -f UTF-16LE"),
        ("température,perf_ms\n1,2\n".encode("latin-1"), "header line has unreadable"),
        (zipped(PLAIN), "is a zip file"),
        (bz2.compress(PLAIN), "is a bzip2 file"),
        (lzma.compress(PLAIN), "is a xz file"),
        (tarred(PLAIN), "is a tar archive; unpack it first, for example with tar -xf thing.csv"),
        (gzip.compress(tarred(PLAIN), mtime=0), "is a tar archive"),
        (b"PAR1" + PLAIN, "Parquet file is damaged"),
        (b"PAR1", "Parquet file is damaged"),
        (b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
        (b"2026/11/20 10:00:00.000, GPU-1, 61.20, 0, 0\n", "looks like data, not like column names (2026/11/20"),
        (b"2026/11/20 10:00:00.000, GPU-1, 61.20, , 7\n", "name the columns, for example --set header="),
        (b"0, 61, 33, 0 %, 0 %\n", "looks like data"),
        (b"a,,b\n1,2,3\n", "column 2 of the header has no name"),
        (b'a,"b,c\n1,2,3\n', "stray quote"),
        (b"a\rb,\xff\n1,2\n", "header line has unreadable"),
        (b'{"uuid": "a", "perf_ms": 1}\n{"uuid": "b", "perf_ms": 2}\n', "is JSON of no known format"),
        (b'[\n {"uuid": "a"},\n {"uuid": "b"}\n]\n', "is JSON of no known format"),
        (b"=time,b\n1,2\n", "may not begin with '='"),
        (b"a,b\n1,2,3\n1,2,3\n", "the rows have 3 fields"),
        (b"hello\nworld\n", "no known format has the columns hello"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # compressed bytes may hold the time
)
def test_what_is_no_table_is_refused_in_one_sentence(
    content: bytes, what: str, tmp_path: Path, refusal: Refusal
) -> None:
    path = tmp_path / "thing.csv"
    path.write_bytes(content)
    sentence = refusal(path)
    assert what in sentence
    assert "thing.csv" in sentence


def test_what_is_no_file_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    assert "there is no such file" in refusal(tmp_path / "none.csv")
    (tmp_path / "noise.parquet").write_bytes(b"a\rb,\xff\n1,2\n")
    assert "noise.parquet is neither Parquet" in refusal(tmp_path / "noise.parquet")
    assert "is a folder" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / ("x" * 300))
    for folder in (".", "/"):  # they have no name
        done = CliRunner().invoke(cli, ["import", "--store", str(tmp_path / "store"), folder])
        assert f"{folder} is a folder" in done.output
        assert done.exit_code == 2


@pytest.mark.long(short=8)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n", " \r\n", "\n   \n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", ", ", " ; "])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_and_delimiters(end: str, delimiter: str, last: bool, tmp_path: Path, parse: Parse) -> None:
    lines = [line.replace(",", delimiter) for line in (NAMES, *ROWS)]
    path = tmp_path / "a.csv"
    path.write_bytes((end.join(lines) + (end if last else "")).encode("utf-8-sig"))
    found = parse(path)
    assert values(found) == EXPECTED
    assert found.report.total.rows == 30


def test_quotes(tmp_path: Path, parse: Parse) -> None:
    lines = [NAMES + ",kern", *(row + ",k" for row in ROWS)]
    lines[3] = lines[3].removesuffix("k") + '"void gemm<128, 64>(float*, int)"'
    lines[4] = lines[4].removesuffix("k") + '"stray'
    lines[5] = lines[5].removesuffix("k") + ' "one ""quoted"" name"'
    path = tmp_path / "a.csv"
    path.write_text('"' + '","'.join(lines[0].split(",")) + '"\n' + "\n".join(lines[1:]))
    found = parse(path)
    assert found.report.refusals == {"it has a stray quote": [5]}
    kernels = found.frame["conditions"].to_list()
    assert kernels[2] == {"kernel": "void gemm<128, 64>(float*, int)"}
    assert kernels[3] == {"kernel": 'one "quoted" name'}


def test_every_line_is_accounted_for_by_its_number(tmp_path: Path, parse: Parse) -> None:
    lines = [NAMES, *ROWS]
    lines[2] += ",more"
    lines[3] = lines[3].rsplit(",", 1)[0]
    lines[5] = NAMES
    lines[7] = lines[6]
    lines[9] = lines[9].replace("sgemm", "sg\x00mm")
    data = "\n".join([*lines[:11], "", *lines[11:]]).encode().replace(b"2411.5", b"24\xff11.5")
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    found = parse(path)
    assert found.report.refusals == {
        "it has 6 fields, but the header names 5": [3],
        "it has 4 fields, but the header names 5": [4],
        "it is the header line again": [6],
        "it has unreadable characters (not UTF-8 text)": [10, 14],
    }
    assert found.sheet.duplicates == [8]
    assert found.report.total.as_dict() == {"rows": 30, "kept": 24, "duplicates": 1, "refused": 5}


def test_comments_in_front_of_the_header_are_no_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("# measured in May, by hand\n#\n\nuuid;perf_ms;temp\na;1;2\nb;3;4\n")
    found = content.read(path)
    assert (found.names, found.rows, found.frame["perf_ms"].to_list()) == (["uuid", "perf_ms", "temp"], 2, ["1", "3"])
    path.write_text("#group,false,true\n#datatype,string,double\n#default,_result,\n,uuid,perf_ms\n,a,1\n")
    assert content.read(path).names == ["uuid", "perf_ms"]
    path.write_text("#uuid;perf_ms\na;1\n")
    assert content.read(path).names == ["#uuid", "perf_ms"]
    path.write_text("sep=;\r\nuuid;perf_ms\r\na;1\r\n")  # for Excel
    found = content.read(path)
    assert (found.names, found.rows, found.frame["=line"].to_list()) == (["uuid", "perf_ms"], 1, [3])


def test_a_header_of_very_many_columns_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"c{i}" for i in range(64_000)) + "\n1\n")
    began = time.process_time()
    with pytest.raises(InputError, match=r"wide\.csv has 64000 columns, but at most 4096 can be read"):
        read(path)
    assert time.process_time() - began < 10  # minutes, where every name was counted among all others


@pytest.mark.long(short=1)
@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_small_archive_of_very_much_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"bomb.csv.{kind}"
    much = b"a,b\n" + bytes(70 << 20)
    path.write_bytes(gzip.compress(much, 1) if kind == "gz" else pa.compress(much, "zstd", asbytes=True))
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        load(path)


def test_what_is_too_large_or_never_ends_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "huge.csv").touch()
    os.truncate(tmp_path / "huge.csv", 1 << 43)
    with pytest.raises(InputError, match=r"huge\.csv does not fit into memory"):
        load(tmp_path / "huge.csv")
    with pytest.raises(InputError, match="/dev/zero is a device"):
        load(Path("/dev/zero"))


@pytest.mark.usefixtures("stores_are_copied")
def test_a_name_that_is_no_utf8_or_steers_a_terminal_is_shown_as_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\x1b[31mred\xff.csv")
    path.write_text("a,b\n1,2\n")
    for arguments in (["import", "--store", str(tmp_path / "S"), str(path)], ["sql", "--store", str(path), "select 1"]):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code in (2, 3), done.output
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "\x1b" not in done.output
        assert "\\x1b[31mred" in done.output
    assert printable("a\tb\nc") == "a\tb\\nc"
    assert printable("\x07\x9b") == "\\x07\\x9b"
