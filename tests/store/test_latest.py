"""The table `latest`, read while collectors publish: every GPU, and no more files than needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.readers import last
from whorl.store.rows import placing
from whorl.store.system import light
from whorl.tests.stores import new_store


def batch(gpus: dict[str, int], second: int) -> pa.RecordBatch:
    ts = pa.array([second * 10**9] * len(gpus), pa.timestamp("ns"))
    powers = pa.array(list(gpus.values()), pa.int32())
    return pa.record_batch({"ts": ts, "cluster": ["c"] * len(gpus), "gpu": list(gpus), "power_mw": powers})


def told(store: Store) -> dict[str, int]:
    return {row["gpu"]: row["power_mw"] for row in store.sql("select gpu, power_mw from latest").to_pylist()}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The files that `latest` reads."""
    found: list[Path] = []

    def note(path: Path, columns: list[str] | None = None) -> object:
        found.append(path)
        return light.read(path, columns)

    last._last_of.cache_clear()
    last._noted.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(last, "light", type("Light", (), {"read": staticmethod(note)}))
        yield found


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[tuple[Store, list[Journal]]]:
    store = new_store(tmp_path / "s")
    with ExitStack() as stack:
        one = [store.journal(f"n{number}", background=False, offline=True) for number in range(3)]
        yield store, [stack.enter_context(journal) for journal in one]


@pytest.mark.long
def test_a_gpu_that_fell_silent_keeps_its_last_reading(journals: tuple[Store, list[Journal]]) -> None:
    store, (one, two, _) = journals
    one.append_batch(batch({"a": 1, "silent": 2}, 1))
    one.publish()
    for second in (2, 3):
        one.append_batch(batch({"a": second}, second))
        one.publish()
    two.append_batch(batch({"b": 5}, 2))
    assert told(store) == {"a": 3, "silent": 2, "b": 5}
    one.append_batch(batch({"a": 9}, 9))
    assert told(store) == {"a": 9, "silent": 2, "b": 5}
    one.seal()
    assert told(store) == {"a": 9, "silent": 2, "b": 5}
    one.append_batch(batch({"a": 10}, 10))
    assert told(store) == {"a": 10, "silent": 2, "b": 5}
    assert told(Store.open(store.root)) == {"a": 10, "silent": 2, "b": 5}


def test_a_late_row_is_no_last_reading_but_a_corrected_one_is(journals: tuple[Store, list[Journal]]) -> None:
    store, (one, *_) = journals
    one.append_batch(batch({"a": 1}, 5))
    one.publish()
    one.append_batch(batch({"a": 2}, 3))
    one.publish()
    assert told(store) == {"a": 1}
    one.append_batch(batch({"a": 3}, 5))
    assert told(store) == {"a": 3}
    one.publish()
    assert told(store) == {"a": 3}


def test_a_reading_of_a_clock_that_was_years_ahead_is_last_only_of_a_gpu_that_has_no_other(
    journals: tuple[Store, list[Journal]],
) -> None:
    store, (one, *_) = journals
    ahead = int(time.time()) + 10 * 366 * 86_400
    one.append_batch(batch({"a": 1}, 5))
    one.publish()
    one.append_batch(batch({"a": 99, "b": 7}, ahead))
    assert told(store) == {"a": 1, "b": 7}
    one.publish()
    assert told(store) == {"a": 1, "b": 7}
    one.seal()
    assert told(Store.open(store.root)) == {"a": 1, "b": 7}
    one.append_batch(batch({"a": 2}, 6))
    assert told(store) == {"a": 2, "b": 7}


def test_what_a_clock_that_was_years_ahead_noted_is_replaced(
    journals: tuple[Store, list[Journal]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, (one, *_) = journals
    years = 10 * 366 * 86_400
    with monkeypatch.context() as patch:
        patch.setattr(placing, "ahead", lambda: (int(time.time()) + 2 * years) * 10**9)
        one.append_batch(batch({"a": 99}, int(time.time()) + years))
        one.seal()
    assert told(store) == {"a": 99}
    one.append_batch(batch({"a": 1}, 5))
    one.publish()
    assert told(store) == {"a": 1}
    one.seal()
    assert [file["power_mw"].to_pylist() for path in store.files("latest") if len(file := light.read(path))] == [[1]]


@pytest.mark.long
def test_published_files_that_newer_rows_supersede_are_not_read(
    journals: tuple[Store, list[Journal]], read: list[Path]
) -> None:
    store, every = journals
    for second in range(6):
        for number, one in enumerate(every):
            one.append_batch(batch({f"a{number}": second, f"b{number}": second}, second))
            one.publish()
    assert set(told(store).values()) == {5}
    assert sorted(path.name.partition("-")[0] for path in read if "live" in path.name) == ["n0", "n1", "n2"]
    read.clear()
    every[1].append_batch(batch({"a1": 9, "b1": 9}, 9))
    every[1].publish()
    assert told(store) == {f"{gpu}{number}": 9 if number == 1 else 5 for gpu in "ab" for number in range(3)}
    assert [path.name.partition("-")[0] for path in read] == ["n1"]


@pytest.mark.long
def test_nothing_is_read_of_a_collector_whose_journal_goes_on(
    journals: tuple[Store, list[Journal]], read: list[Path]
) -> None:
    store, every = journals
    for number, one in enumerate(every):
        one.append_batch(batch({f"a{number}": 1}, 1))
        one.seal()
        one.append_batch(batch({f"a{number}": 2}, 2))
        one.publish()
        one.append_batch(batch({f"a{number}": 3}, 3))
    assert set(told(store).values()) == {3}
    assert [path for path in read if path.name != "_schema.parquet"] == []


def test_gpus_that_share_a_hash_are_not_taken_for_each_other(
    journals: tuple[Store, list[Journal]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zlib.crc32", lambda *_: 7)
    store, (one, two, _) = journals
    one.append_batch(batch({"silent": 1}, 1))
    one.publish()
    two.append_batch(batch({"a": 2}, 2))
    assert told(store) == {"a": 2, "silent": 1}
