"""Importing again, in other copies, beside other files, and after being killed: nothing twice, nothing torn."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Report, import_file
from whorl.tests.stores import new_store

UUIDS = [f"GPU-0a1b2c3d-0000-1111-2222-3333444455{i:02d}" for i in range(40)]
LINES = ["exp,uuid,ts,perf_ms", *(f"sgemm,{UUIDS[i]},{1_590_000_000 + i},{2400 + i}" for i in range(40))]
TEXT = "\n".join(LINES).encode()
STREAM = "\n".join(
    ["timestamp, uuid, temperature.gpu", *(f"2023/07/14 10:12:{i:02d}, {UUIDS[0]}, {40 + i % 9}" for i in range(40))]
).encode()


def add(store: Store, content: bytes, name: str = "a.csv", **options: object) -> Report:
    path = store.root.parent / name
    path.write_bytes(content)
    return import_file(store, path, Options(**options))  # type: ignore[arg-type]


def count(store: Store, table: str) -> int:
    return len(store.arrow(table))


@pytest.mark.parametrize(("content", "table"), [(TEXT, "runs"), (STREAM, "telemetry")])
def test_the_same_content_adds_nothing(content: bytes, table: str, store: Store) -> None:
    assert not add(store, content).already
    before = {path: path.read_bytes() for path in store.root.rglob("*.parquet")}
    packed = pa.compress(content, codec="zstd", asbytes=True)
    for again, name in ((content, "a.csv"), (content, "b.csv"), (gzip.compress(content), "a.gz"), (packed, "a.zst")):
        report = add(store, again, name)
        assert report.already
        assert report.total.as_dict() == {"rows": 40, "kept": 0, "duplicates": 40, "refused": 0}
    assert {path: path.read_bytes() for path in store.root.rglob("*.parquet")} == before
    assert count(store, table) == 40


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("content", "more", "table"),
    [
        (TEXT, f"\nsgemm,{UUIDS[0]},1590009999,2500".encode(), "runs"),
        (STREAM, f"\n2023/07/14 11:00:00, {UUIDS[0]}, 44".encode(), "telemetry"),
    ],
)
def test_a_file_that_grew_or_has_other_line_ends_adds_what_is_new(
    content: bytes, more: bytes, table: str, store: Store
) -> None:
    add(store, content)
    report = add(store, content.replace(b"\n", b"\r\n"), "crlf.csv")
    assert report.total.as_dict() == {"rows": 40, "kept": 0, "duplicates": 40, "refused": 0}
    assert (count(store, table), count(store, "imports")) == (40, 2)
    report = add(store, content + more, "grown.csv")
    assert report.total.as_dict() == {"rows": 41, "kept": 1, "duplicates": 40, "refused": 0}
    assert count(store, table) == 41


def test_two_clusters_keep_their_own(store: Store) -> None:
    add(store, TEXT, cluster="one")
    assert add(store, TEXT, cluster="two").total.kept == 40
    runs = store.scan("runs").collect()
    assert runs["run_id"].n_unique() == runs.height == 80


def test_other_options_are_refused(store: Store) -> None:
    add(store, TEXT)
    with pytest.raises(InputError, match=r"^a\.csv was imported before, without --at and without --unit; ") as caught:
        add(store, TEXT, units={"": "s"}, at="2026-11-20 10:00:00")
    assert str(caught.value).endswith("leave this file out, or import it into a new store")
    add(store, TEXT, cluster="other", units={"perf_ms": "ms"})
    with pytest.raises(InputError, match="imported before, with --unit perf_ms=ms;"):
        add(store, TEXT, cluster="other")
    assert count(store, "runs") == 80


def test_a_refused_file_leaves_nothing(store: Store) -> None:
    with pytest.raises(InputError):
        add(store, TEXT.replace(b",perf_ms", b",pref"))
    assert [count(store, table) for table in ("runs", "results", "gpus", "imports")] == [0, 0, 0, 0]


def test_provenance(store: Store) -> None:
    report = add(store, gzip.compress(TEXT), "x.csv.gz", cluster="c")
    (row,) = store.arrow("imports").to_pylist()
    assert (row["file"], row["sha256"], row["bytes"]) == ("x.csv.gz", report.sha256, len(TEXT))
    assert row["units"] == [{"column_name": "perf_ms", "unit": "ms", "taken_from": "the column's name 'perf_ms'"}]
    assert set(store.scan("runs").collect()["import_id"]) == {row["import_id"]}


DYING = """
import os, signal, sys
from pathlib import Path
from whorl.store import Store
from whorl.store.importing import Options, import_file
moves, dies_at = 0, int(sys.argv[3])
def counted(move):
    def moved(*places, **options):
        global moves
        moves += 1
        if moves == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return move(*places, **options)
    return moved
store = Store.open(sys.argv[1])
os.replace, os.rename = counted(os.replace), counted(os.rename)
import_file(store, Path(sys.argv[2]), Options())
print(moves)
"""
"""Imports a file, and is killed where it would move the Nth file into its place; prints how many it moves."""


@pytest.mark.long
def test_killed_at_any_move_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(TEXT)

    def run(name: str, dies_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", DYING, str(new_store(tmp_path / name).root), str(path), str(dies_at)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    moves = int(whole.stdout)
    assert moves >= 4
    for dies_at in {1, moves // 3, 2 * moves // 3, moves}:
        assert run(f"killed{dies_at}", dies_at).returncode == -signal.SIGKILL
        store = Store.open(tmp_path / f"killed{dies_at}")
        stored = [count(store, table) for table in ("runs", "results", "gpus", "imports")]
        assert stored in ([0, 0, 0, 0], [40, 40, 40, 1])
        assert store.skipped == {}
        assert import_file(store, path, Options()).already == (stored[0] > 0)
        assert count(store, "runs") == count(store, "results") == 40
        left = (file.name for file in store.root.rglob("*") if file.is_file())
        assert not [name for name in left if name.startswith(".tmp-") or name.endswith(".json")]
