"""`whorl.duckdb`: what any DuckDB client sees, wherever the store lies and wherever the client stands."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from whorl.errors import StoreError
from whorl.store import Store, folder
from whorl.store.schema import FORMAT, TABLES
from whorl.store.views import PLAIN_VIEWS
from whorl.tests.sizes import sample
from whorl.tests.store.appender import group
from whorl.tests.stores import new_store


@pytest.fixture
def views_are_copied() -> None:
    """The views are those of each store: they are what these tests are about."""


NAMES = [spec.name for spec in TABLES] + [view.name for view in PLAIN_VIEWS]


def client(store: Path, *statements: str, cwd: Path | str = "/") -> list[list[object]]:
    """What a DuckDB client in another folder, without whorl, answers to the last statement."""
    with (
        contextlib.chdir(cwd),
        contextlib.closing(duckdb.connect(store / "whorl.duckdb", read_only=True)) as connection,
    ):
        for statement in statements[:-1]:
            connection.execute(statement).fetchall()
        return [list(row) for row in connection.execute(statements[-1]).fetchall()]


ONE = {"runs": 3, "results": 3, "imports": 1, "measurements": 3}
OTHERS = [name for name in NAMES if name not in ONE]
COUNTED = [*ONE, *sample(OTHERS, short=2)]


def counted(store: Path, *before: str, cwd: Path | str = "/", names: Sequence[str] = COUNTED) -> dict[str, object]:
    """How many rows a client sees of tables and views; those with none are left out."""
    columns = ", ".join(f"(SELECT count(*) FROM {name})" for name in names)
    found = zip(names, client(store, *before, f"SELECT {columns}", cwd=cwd)[0], strict=True)
    return {name: rows for name, rows in found if rows != 0}


def test_a_client_sees_tables_views_macros_and_what_they_mean(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s")
    assert counted(store.root) == {}
    store.append(group("a"), "a")
    assert counted(store.root, names=NAMES) == ONE
    assert client(store.root, "SELECT whorl_format(), whorl_store()") == [[FORMAT, str(tmp_path / "s")]]
    meanings = {(table, column): meaning for table, column, _, meaning in client(store.root, "FROM whorl_meanings()")}
    for spec in TABLES:
        for column in spec.columns:
            assert meanings[spec.name, column.name] == column.description
    assert all(meanings[name, None] for name in NAMES)
    views = client(store.root, "SELECT view_name FROM duckdb_views() WHERE NOT internal")
    assert sorted(str(name) for (name,) in views) == sorted(NAMES)
    types = client(
        store.root, "SELECT data_type FROM duckdb_columns() WHERE table_name = 'telemetry' ORDER BY column_index"
    )
    assert [kind for (kind,) in types] == [c.type for c in TABLES[1].columns]


def attached(query: str, *stores: Path) -> list[object]:
    """What a client answers that opened no file and attached these stores as s0, s1, ..."""
    with contextlib.closing(duckdb.connect()) as connection:
        for number, store in enumerate(stores):
            path = str(store / "whorl.duckdb").replace("'", "''")
            connection.execute(f"ATTACH '{path}' AS s{number} (READ_ONLY)")
        return list(connection.execute(query).fetchall()[0])


@pytest.mark.long
def test_a_copy_reads_its_own_rows_before_whorl_has_opened_it(tmp_path: Path) -> None:
    """A client that opens the file itself sees the copy; one that attaches it gets a sentence until whorl has run."""
    old, new, other = tmp_path / "old's", tmp_path / "new", tmp_path / "other"
    Store.create(old).append(group("a"), "a")
    Store.create(other).append(group("c"), "c")
    shutil.copytree(old, new)
    for file in (new / "runs").glob("a*"):
        file.unlink()
    assert client(new, "SELECT whorl_store(), (SELECT count(*) FROM runs)") == [[str(new), 0]]
    for name in NAMES:
        with pytest.raises(duckdb.Error, match=rf"may be a copy of .*{old.name}: run `whorl store status --store FOL"):
            attached(f"SELECT count(*) FROM s0.{name}", new)
    # Then a view cannot know which file the client opened.
    spill: dict[str, Any] = {"temp_directory": str(tmp_path / "spill")}
    with contextlib.closing(duckdb.connect(new / "whorl.duckdb", read_only=True, config=spill)) as connection:
        with pytest.raises(duckdb.Error, match=r"may be a copy .* or SET VARIABLE whorl_store = 'FOLDER'"):
            connection.execute("SELECT count(*) FROM runs").fetchall()
        connection.execute(f"SET VARIABLE whorl_store = '{new}'")
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]
    both = "SELECT (SELECT count(*) FROM s0.runs), (SELECT count(*) FROM s1.runs)"
    for stores in ((old, new), (new, old)):  # that the original is there as well must not satisfy the copy's views
        with pytest.raises(duckdb.Error, match="may be a copy"):
            attached(both, *stores)
    assert attached("SELECT count(*) FROM s0.runs", tmp_path / "new/../other") == [3]
    Store.open(new)
    assert attached(both, new, other) == [0, 3]
    assert attached(both, old, new) == [3, 0]


NAMES_OF_FOLDERS = [
    "two words, it's a \"größe-数\" {a,b} 100% semi;colon #hash $HOME a=b", "br[ab]acket", "[", "]", "st*r", "a**b",
    "qu?stion", "[!x]", "new\nline tab\tbed del\x7f", "~", "s3:",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES_OF_FOLDERS)
def test_a_store_may_lie_anywhere(tmp_path: Path, name: str) -> None:
    """All readers and plain clients; a neighbour whose name the folder's would match as a pattern stays unread."""
    neighbour = tmp_path / name.replace("*", "x").replace("?", "x").replace("[ab]", "a").replace("[!x]", "y")
    if neighbour != tmp_path / name:
        Store.create(neighbour).append(group("neighbour"), "neighbour")
    root = tmp_path / name / "s"
    store = Store.create(root)
    store.append(group("a"), "a")
    expected = ["a-0", "a-1", "a-2"]
    assert sorted(store.sql("from runs")["run_id"].to_pylist()) == expected
    assert sorted(store.arrow("runs")["run_id"].to_pylist()) == expected
    assert sorted(store.scan("runs").collect()["run_id"]) == expected
    quoted = str(root).replace("'", "''")
    one = [[3, str(root)]]
    assert client(root, "SELECT count(*), whorl_store() FROM runs") == one
    assert client(root, f"SET VARIABLE whorl_store = '{quoted}'", "SELECT count(*), whorl_store() FROM runs") == one
    assert folder.is_furnished(root, str(root))
    assert "place = " in (root / "store.toml").read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", [b"\xff", b"back\\slash"])
def test_a_path_that_duckdb_cannot_take_is_a_sentence(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(StoreError, match="choose a path in UTF-8 and without a backslash"):
        Store.create(tmp_path / os.fsdecode(name))
    moved = Store.create(tmp_path / "s").root.rename(tmp_path / os.fsdecode(name))
    with pytest.raises(StoreError, match="choose a path in UTF-8 and without a backslash"):
        Store.open(moved)


@pytest.mark.long
def test_relative_and_linked_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.create("s")
    store.append(group("a"), "a")
    (tmp_path / "link").symlink_to("s")
    assert counted(tmp_path / "link") == ONE
    for opened in (store, Store.open("link"), Store.open("./s/../s/")):
        assert opened.sql("select count(*) n from runs")["n"].to_pylist() == [3]
    lazy = store.scan("runs")
    monkeypatch.chdir("/")
    assert len(lazy.collect()) == 3


@pytest.mark.long
def test_opening_leaves_a_store_in_its_place_alone(tmp_path: Path) -> None:
    root = tmp_path / "s"
    Store.create(root).append(group("a"), "a")
    Store.open(root).sql("from measurements")  # which notes what it has found sound
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in root.rglob("*")}
    store = Store.open(root)
    store.check()
    store.sql("from measurements")
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in root.rglob("*")} == before


def test_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_store(tmp_path / "s").append(group("a"), "a")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "absent")])  # as on a full disk
    answer = Store.open(tmp_path / "s").sql("select count(*) n from (select * from results order by value)")
    assert answer.to_pylist() == [{"n": 3}]
    with pytest.raises(StoreError, match=r"temporary files .*: free some space there, or set TMPDIR"):
        Store.create(tmp_path / "t")
