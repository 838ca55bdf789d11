"""Files that are made to take memory or time without end, and names that a terminal would obey."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.cli.output import shown
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


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_small_archive_of_very_much_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"bomb.csv.{kind}"
    much = b"a,b\n" + bytes(count(200, short=80) << 20)
    path.write_bytes(gzip.compress(much, 1) if kind == "gz" else pa.compress(much, "zstd", asbytes=True))
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        load(path)


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
    assert shown("a\tb\nc") == "a\tb\nc"
    assert shown("\x07\x9b") == "\\x07\\x9b"
