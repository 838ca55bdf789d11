"""What is opened for a question, and the pieces that a table can be worked on in."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from whorl.benchmarks import scale
from whorl.store import Store
from whorl.store.file_names import gpu_hash
from whorl.store.newest import Following
from whorl.store.schema import KEY
from whorl.tests.store.journaler import (
    BEGAN,
    DAY_S,
    LATER,
    Powers,
    S,
    batch,
    leave_journal,
    open_journal,
    powers,
    readings,
    seen,
    segments,
)

GPUS = [f"g{number}" for number in range(40)]  # more than a file's name tells


@pytest.fixture
def days(store: Store) -> Store:
    """Five days of two GPUs: a file of each GPU and day."""
    for day in range(5):
        for gpu in "ab":
            store.append({"telemetry": readings([day * DAY_S, day * DAY_S + 1], gpu)}, f"{gpu}{day}")
    return store


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that this process opens."""
    paths: list[str] = []
    real = os.open

    def note(path: Any, *words: Any, **more: Any) -> int:
        paths.append(os.fspath(path) if not isinstance(path, int) else "")
        return real(path, *words, **more)

    monkeypatch.setattr(os, "open", note)
    return paths


@pytest.mark.parametrize("compacted", [False, True])
def test_a_question_about_one_gpus_day_opens_the_files_of_it(days: Store, opened: list[str], compacted: bool) -> None:
    if compacted:
        days.compact(offline=True, now=LATER)
        (days.root / "verified.log").unlink()
    for path in segments(days):
        if f"day=2023-11-{15 + 2}" not in str(path) or not (compacted or path.name.startswith("b")):
            path.write_bytes(b"not to be opened")
    store = Store.open(days.root)
    opened.clear()
    day = "ts between '2023-11-17' and '2023-11-17 23:59:59'"
    query = f"select count(*) n, max(power_mw) p from telemetry where gpu = 'b' and {day}"
    assert store.sql(query).to_pylist() == [{"n": 2, "p": 2 * DAY_S + 1}]
    looked_at = {path for path in opened if "/telemetry/" in path and path.endswith(".parquet")}
    assert len(looked_at) == 1
    assert store.skipped == {}
    assert len(store.parts("telemetry", BEGAN + 2 * DAY_S * S, BEGAN + 3 * DAY_S * S - 1)) == 1


def test_a_manifest_tells_the_gpus_of_files_of_many(
    store: Store, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.store.telemetry_files.MOST_ROWS", 80)
    for first in (0, 20):
        gpus = GPUS[first : first + 20] * 4
        store.append({"telemetry": readings([second // 20 for second in range(80)], gpus)}, f"x{first}")
    store.compact(offline=True, now=LATER)
    assert len(segments(store)) == 2
    (store.root / "verified.log").unlink()
    opened.clear()
    assert Store.open(store.root).sql("select count(*) n from telemetry where gpu = 'g39'").to_pylist() == [{"n": 4}]
    assert len({path for path in opened if "/telemetry/day=" in path and path.endswith(".parquet")}) == 1


def test_gpus_that_share_a_hash_are_not_taken_for_each_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.store.file_names.gpu_hash", lambda _: 7)
    for gpu in "ab":
        store.append({"telemetry": readings(range(3), gpu)}, gpu)
    assert store.sql("select count(*) n from telemetry where gpu = 'b'").to_pylist() == [{"n": 3}]
    assert len(store.latest([("c", "b")])) == 1
    assert len(store.parts("telemetry")) == 1
    assert len(seen(store)) == 6


def test_a_large_fleet_is_in_many_parts_although_some_gpus_share_a_hash(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.store.telemetry_files.MOST_ROWS", 80)
    monkeypatch.setattr("whorl.store.snapshot._FEW_ROWS", 80)
    first_with: dict[int, str] = {}
    pairs = []
    for number in range(5000):
        gpu = f"node{number}/0"
        if first_with.setdefault(gpu_hash(gpu), gpu) != gpu:
            pairs.append((first_with[gpu_hash(gpu)], gpu))
    for name, gpus in zip(("some", "others"), zip(*pairs[:20], strict=True), strict=True):
        store.append({"telemetry": readings([second // 20 for second in range(80)], gpus * 4)}, name)
    store.compact(offline=True, now=LATER)

    def gpus_of_parts() -> list[set[str]]:
        return [set(part.arrow()["gpu"].to_pylist()) for part in store.parts("telemetry")]

    in_parts = gpus_of_parts()
    assert len(in_parts) == 2
    assert not set.intersection(*in_parts)
    shared = next((a, b) for a, b in pairs if a in in_parts[0] and b in in_parts[1])
    store.append({"telemetry": readings([10], "new")}, "new")
    assert sorted(map(len, gpus_of_parts())) == [1, *sorted(map(len, in_parts))]
    store.append({"telemetry": readings([11], shared[0])}, "late")  # the name of its file tells a hash that two have
    assert sorted(map(len, gpus_of_parts())) == [1, 40]
    assert of_parts(store)[0] == seen(store)
    monkeypatch.undo()
    assert list(map(len, gpus_of_parts())) == [41]  # few rows are one piece


# -- parts ------------------------------------------------------------------------------------------------------


def of_parts(store: Store, **bounds: int) -> tuple[Powers, Counter[tuple[str | None, str]]]:
    """The rows of all pieces, each once, and in how many pieces a GPU of a day is."""
    found: Powers = {}
    pieces: Counter[tuple[str | None, str]] = Counter()
    for part in store.parts("telemetry", *bounds.values()):
        rows = part.arrow(["gpu", "ts", "power_mw"])
        with duckdb.connect() as connection:
            related = part.relation(connection)
            assert sorted(related.columns) == sorted(part.arrow().column_names)
            in_order = related.order("cluster, gpu, ts").to_arrow_table().select(part.arrow().column_names)
        assert in_order.to_pylist() == part.arrow().sort_by([(key, "ascending") for key in KEY]).to_pylist()
        seconds = [us // 10**6 - BEGAN // S for us in rows["ts"].cast("int64").to_pylist()]
        here = dict(zip(zip(rows["gpu"].to_pylist(), seconds, strict=True), rows["power_mw"].to_pylist(), strict=True))
        assert len(here) == len(rows)
        assert not here.keys() & found.keys()
        found |= here
        pieces.update({(part.day, gpu) for gpu, _ in here})
    return found, pieces


def test_each_row_is_in_one_piece_and_each_gpu_of_a_day_too(days: Store) -> None:
    days.append({"telemetry": readings([0, DAY_S], power_mw=[70, 71])}, "late")
    leave_journal(days, batch(["a"], 1, 72), batch(["b"], 5, 73), batch(["n"], 3 * DAY_S, 74), name="m")
    days.append({"telemetry": readings([4 * DAY_S + 9] * 2, ["a", "b"])}, "both")
    for _ in range(2):
        found, pieces = of_parts(days)
        assert found == seen(days)
        assert set(pieces.values()) == {1}
        assert found["a", 0] == 70
        assert found["a", 1] == 72
        days.compact(offline=True, now=LATER)
    assert len(pieces) == 11
    assert days.parts("events") == []
    days.append({"events": pa.table({"kind": ["gap"]})}, "e")
    assert [len(part.arrow()) for part in days.parts("events")] == [1]


def test_pieces_of_a_time_have_every_row_of_it_and_no_file_of_another_day(days: Store) -> None:
    days.append({"telemetry": readings([DAY_S], power_mw=[70])}, "late")
    found, _ = of_parts(days, since=BEGAN + DAY_S * S, until=BEGAN + 2 * DAY_S * S - 1)
    assert found == {key: power for key, power in powers(days).items() if DAY_S <= key[1] < 2 * DAY_S}
    assert of_parts(days, since=LATER, until=LATER + S)[0] == {}


# -- the newest readings ------------------------------------------------------------------------------------------


def newest(following: Following, now: int) -> dict[str | None, int]:
    found = following.now(now)
    row = [name for name in range(len(found.values)) if found.known[name].any()]
    return {
        gpu: int(found.values[row[0], place])
        for place, (_, gpu) in enumerate(found.gpus)
        if row and found.known[row[0], place]
    }


def test_who_follows_sees_files_first_and_then_what_journals_gain(store: Store) -> None:
    store.append({"telemetry": readings([0, 5], ["silent", "a"], power_mw=[3, 5])}, "x")
    following = Following(store, age_s=100)
    now = BEGAN + 20 * S
    following.catch_up(now)
    assert newest(following, now) == {"silent": 3, "a": 5}
    with open_journal(store) as journal:
        for second in (10, 12):
            journal.append_batch(batch(["a"], second, second))
            assert newest(following, now) == {"silent": 3, "a": second}
        journal.append_batch(batch(["a"], 11, 1))
        assert newest(following, now)["a"] == 12, "an older one came later"
        journal.seal()
        journal.append_batch(batch(["b"], 13, 13))
    following.catch_up(now)
    assert newest(following, now) == {"silent": 3, "a": 12, "b": 13}
    assert newest(following, now + 90 * S) == {"a": 12, "b": 13}, "what is too old is left out"


def test_pieces_of_a_store_that_is_named_without_its_folder_are_read_from_elsewhere(
    days: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(days.root.parent)
    pieces = [piece for table in ("telemetry", "gpus") for piece in Store(days.root.name).parts(table)]
    monkeypatch.chdir("/")
    assert sum(len(piece.arrow()) for piece in pieces) == 20


# -- scale -------------------------------------------------------------------------------------------------------------
# The simulated fleet of `benchmarks.scale`, very small.


@pytest.mark.long
def test_what_the_collectors_of_a_fleet_wrote_is_counted_once_and_asked_alike_of_each_engine(tmp_path: Path) -> None:
    shape = replace(scale.SUMMIT, nodes=range(3), seconds=24 * 60)
    rows_there = len(shape.gpus) * shape.ticks
    store = Store.create(tmp_path / "store")
    cost = scale.written(store.root, shape)
    assert cost.rows == rows_there
    assert cost.seals == 3 + 4 + 4  # every ten minutes, at a minute of their own, and at the end
    store.compact(offline=True, now=shape.began_ns + 3 * 3600 * 10**9)
    assert store.sql("select count(*) as n from telemetry").to_pylist() == [{"n": rows_there}]
    root = str(store.root)
    for question, rows in (("hourly", 1), ("p95", 18)):
        answers = [ask(root, question)() for ask in (scale.by_whorl, scale.by_duckdb, scale.by_polars)]
        assert {answer["rows"] for answer in answers} == {rows}
        assert all(answer["sum"] == pytest.approx(answers[0]["sum"], rel=1e-9) for answer in answers)
    assert scale.by_whorl(root, "latest")()["rows"] == 18
    by_user = scale.by_duckdb(root, "energy")()["sum"]
    assert scale.by_whorl(root, "energy")()["sum"] == pytest.approx(by_user, rel=0.02)
