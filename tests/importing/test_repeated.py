"""Imports after each other: the same content, longer files, other options, deaths, cards that were exchanged."""

from __future__ import annotations

import datetime as dt
import gzip
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, Report, import_file
from whorl.store.schema import arrow_rows
from whorl.tests.stores import new_store

# ruff: noqa: DTZ001 - the store's times are UTC without a zone


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
        store.compact()
        assert count(store, "runs") == count(store, "results") == 40
        left = (file.name for file in store.root.rglob("*") if file.is_file())
        assert not [name for name in left if name.startswith(".tmp-") or name.endswith(".json")]


Write = Callable[..., Path]
Parse = Callable[..., Parsed]


def add_file(store: Store, path: Path, **options: object) -> Report:
    return import_file(store, path, Options(**options))  # type: ignore[arg-type]


def test_equal_rows_of_two_gpus_are_two_runs(store: Store, write: Write) -> None:
    for name, gpu in (("a.csv", "A"), ("b.csv", "B"), ("a.csv", "B")):
        add_file(
            store, write("perf_ms", [[10.1], [10.2], [10.3 + (name == "b.csv")]], name=name), gpu=gpu, workload="x"
        )
    rows = store.sql("select gpu, list(value order by value) v from measurements group by 1 order by 1").to_pylist()
    assert rows == [{"gpu": "A", "v": [10.1, 10.2, 10.3]}, {"gpu": "B", "v": [10.1, 10.2, 10.3, 11.3]}]


@pytest.mark.parametrize("column", ["pci.bus_id", "serial"])
def test_a_stream_whose_gpus_another_column_tells_apart(column: str, write: Write, parse: Parse) -> None:
    rows = "\n".join(f"2023/07/14 10:12:{s:02d}.{g}03, 0000{g}:00.0, {100 + g} W" for s in range(9) for g in range(4))
    found = parse(write(f"timestamp, {column}, power.draw [W]", rows, name="n1.csv"))
    assert found.report.gpus == 4
    assert found.frame.group_by("gpu").agg(found.frame["power_mw"].n_unique()).height == 4


@pytest.mark.long
def test_further_metrics_of_the_same_instants_are_kept(store: Store, write: Write) -> None:
    def stream(header: str, values: list[str], name: str) -> Path:
        return write(
            f"timestamp, uuid, {header}",
            "\n".join(f"2023/07/14 10:12:0{i}, {UUID}, {v}" for i, v in enumerate(values)),
            name=name,
        )

    watts = [f"{250 + i} W" for i in range(5)]
    assert add_file(store, stream("power.draw [W]", watts, "p.csv")).total.kept == 5
    assert add_file(store, stream("clocks.sm [MHz]", ["1400 MHz"] * 5, "c.csv")).total.kept == 5
    again = add_file(store, stream("power.draw [W], clocks.sm [MHz]", [f"{w}, 1400 MHz" for w in watts], "both.csv"))
    assert (again.total.kept, again.total.duplicates) == (0, 5)
    other = add_file(store, stream("power.draw [W]", ["250 W", "99 W"], "other.csv"))
    assert (other.total.kept, other.total.duplicates, other.total.refused) == (0, 1, 1)
    assert other.refusals == {"the store has another reading of this GPU at this time": [3]}
    counted = store.sql("select count(power_mw) p, count(sm_clock_mhz) c, count(*) n from telemetry").to_pylist()
    assert counted == [{"p": 5, "c": 5, "n": 5}]


UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        ("GPU-8AF705259683161c", "GPU-8af705259683161c"),
        ("0xABCDEF0123456789", "0xabcdef0123456789"),
        ("c197-001-00", "c197-1-0"),
        (UUID.upper().replace("GPU-", ""), UUID),
    ],
)
def test_identities_of_real_systems(identity: str, key: str, write: Write, parse: Parse) -> None:
    found = parse(
        write("exp,uuid,ts,perf", [["2mm", identity, 1_600_000_000 + i, 5] for i in range(3)]), units={"": "s"}
    )
    assert found.frame["gpu"].unique().to_list() == [key]
    assert found.frame["workload"].unique().to_list() == ["2mm"]


def test_map_that_contradicts_the_name_is_refused_and_unit_decides(write: Write, parse: Parse) -> None:
    path = write("board,elapsed_ms", [["g1", 2400], ["g2", 2500]])
    columns = {"board": "gpu", "elapsed_ms": "time:s"}
    with pytest.raises(InputError, match="--unit elapsed_ms=s"):
        parse(path, columns=columns)
    found = parse(path, columns=columns | {"elapsed_ms": "time"}, units={"elapsed_ms": "s"})
    assert found.frame["value"].to_list() == [2_400_000, 2_500_000]


def test_an_option_that_is_empty_is_said() -> None:
    with pytest.raises(InputError, match="--cluster is empty"):
        Options(cluster=" ")


OLD, NEW, OTHER = (f"GPU-aaaaaaaa-0000-0000-0000-00000000000{n}" for n in range(3))


@pytest.fixture
def exchanged(store: Store) -> Store:
    """A store that knows: the card in slot 1 of n01 was exchanged on 5 November."""
    known = {"gpu": [OLD, NEW, OTHER], "uuid": [OLD, NEW, OTHER], "slot": [1, 1, 0]}
    known |= {
        "cluster": ["fleet"] * 3,
        "node": ["n01"] * 3,
        "first_seen": [dt.datetime(2026, 11, d) for d in (1, 5, 1)],
    }
    store.append({"gpus": arrow_rows("gpus", known)}, "gpus")
    return store


def read(store: Store, path: Path, lines: list[str], **options: object) -> Report:
    path.write_text("\n".join([*lines, ""]))
    return add_file(store, path, **options)


def test_runs_belong_to_the_card_that_was_there(exchanged: Store, tmp_path: Path) -> None:
    """One before the store knew the slot, one of each card, and one of a time that is not known."""
    rows = [f"n01,1,{when},{20 + n}" for n, when in enumerate(["2026-10-01 10:00:00", "2026-11-04 10:00:00",
            "2026-11-06 10:00:00", ""])]  # fmt: skip
    columns = {"host": "node", "number": "index", "when": "began", "ms": "time:ms"}
    read(exchanged, tmp_path / "gemm.csv", ["host,number,when,ms", *rows], columns=columns)
    found = exchanged.sql("select gpu, value from results where figure = 'time' order by value").to_pylist()
    assert [row["gpu"] for row in found] == [OLD, OLD, NEW, NEW]


def test_gpus_that_the_store_knows_by_number_only_are_told_of(store: Store, tmp_path: Path) -> None:
    numbers = ["timestamp,index,power.draw [W]", "2026/11/02 10:00:00,0,100", "2026/11/02 10:00:00,1,100"]
    read(store, tmp_path / "numbers.csv", numbers, node="n01")
    uuids = [
        "timestamp,index,uuid,power.draw [W]",
        f"2026/11/02 10:00:05,1,{OLD},100",
        f"2026/11/02 10:00:05,2,{NEW},9",
    ]
    (note,) = [note for note in read(store, tmp_path / "uuids.csv", uuids, node="n01").notes if "UUIDs" in note]
    assert note.startswith("the store knows n01/1 without a UUID, and this file has UUIDs there")
