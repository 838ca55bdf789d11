"""Files that are made to take memory or time without end, and names that a terminal would obey."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.dashboards.words import printable
from whorl.errors import InputError
from whorl.store.importing.content import load, read
from whorl.tests.sizes import count


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


def parquet(path: Path, columns: dict[str, Any], times: int = 1) -> Path:
    table = pa.table(columns)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(times):
            writer.write_table(table)
    return path


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    "columns",
    [{"ms": pa.nulls(1_000_000, pa.int64()).fill_null(0)}, {"text": ["x" * 1_000_000] * 20}],
    ids=["rows", "texts"],
)
def test_a_small_parquet_file_of_very_much_is_one_sentence(tmp_path: Path, columns: dict[str, Any]) -> None:
    path = parquet(tmp_path / "bomb.parquet", columns, times=count(40, short=10))
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        read(path)


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
