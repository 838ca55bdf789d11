"""Following a store gives the newest value of each metric, wherever its row lies, and reads no file twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store, parquet
from whorl.store.metrics import ROW
from whorl.store.newest import Following, Newest
from whorl.tests.exported.rows import SECOND, ago, batch, journal_of
from whorl.tests.sizes import count, sample

NOW = 1_800_000_000 * SECOND
AGE_S = 60.0


def value(newest: Newest, name: str, gpu: str = "g1", cluster: str = "c") -> int | None:
    place = newest.gpus.index((cluster, gpu))
    return int(newest.values[ROW[name], place]) if newest.known[ROW[name], place] else None


@pytest.mark.parametrize("sealed", [False, True])
def test_what_a_wrong_clock_wrote_ahead_hides_no_reading(store: Store, sealed: bool) -> None:
    following = Following(store, AGE_S)
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW + 3600 * SECOND, "gpu": "g1", "power_mw": 5}]))
        if sealed:
            journal.seal()
        following.catch_up(NOW)
        ahead = following.now(NOW)
        assert not ahead.gpus or value(ahead, "power_mw") is None
        journal.append_batch(batch([{"ts": NOW + SECOND, "gpu": "g1", "power_mw": 6}]))
        newest = following.now(NOW + 2 * SECOND)
    assert value(newest, "power_mw") == 6
    assert newest.seen.tolist() == [NOW + SECOND]


def test_readings_end_where_the_gpu_does_not_answer_and_begin_again(store: Store) -> None:
    following = Following(store, AGE_S)
    with journal_of(store) as journal:
        for at, power, quality in ((0, 7, "power_stuck"), (1, None, "lost"), (2, 8, None)):
            row = {"ts": NOW + at * SECOND, "gpu": "g1", "power_mw": power, "quality": quality}
            journal.append_batch(batch([row]))
            newest = following.now(NOW + (at + 1) * SECOND)
            assert value(newest, "power_mw") == power
            assert (newest.answers.tolist(), newest.quality) == ([quality != "lost"], [quality])


def test_gpus_of_one_name_in_two_clusters_are_two(store: Store) -> None:
    following = Following(store, AGE_S)
    rows = [{"ts": NOW, "cluster": name, "gpu": "g1", "power_mw": power} for name, power in (("a", 1), ("b", 2))]
    with journal_of(store) as journal:
        journal.append_batch(batch(rows))
        newest = following.now(NOW)
    assert [value(newest, "power_mw", cluster=name) for name in "ab"] == [1, 2]


def test_a_look_reads_no_file_and_no_row_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost does not grow with the store: only what journals have gained since the last look is read."""
    following = Following(store, AGE_S)
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": NOW, "gpu": "g1", "power_mw": 1}]))
        journal.publish()
        journal.append_batch(batch([{"ts": NOW + SECOND, "gpu": "g1", "power_mw": 2}]))
        following.catch_up(NOW)
        following.now(NOW)
        appended: list[int] = []
        take = Following._take

        def counted(self: Following, rows: pa.Table, since: int) -> None:
            appended.append(len(rows))
            take(self, rows, since)

        monkeypatch.setattr(Following, "_take", counted)
        with monkeypatch.context() as patch:
            patch.setattr(parquet, "read", lambda *_, **__: pytest.fail("a file was read"))
            for at in (2, 3):
                journal.append_batch(batch([{"ts": NOW + at * SECOND, "gpu": "g1", "power_mw": at}]))
                assert value(following.now(NOW + at * SECOND), "power_mw") == at
            following.now(NOW)
        journal.seal()
        for _ in range(2):
            following.now(NOW)
    assert appended == [1, 1, 3], "a new file is read once"


def test_old_files_are_not_opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for days in range(4):
        rows = batch([{"ts": NOW - days * 86_400 * SECOND, "gpu": "g1", "power_mw": 9 - days}])
        store.append({"telemetry": pa.Table.from_batches([rows])}, f"old-{days}")
    opened: list[str] = []
    read = parquet.read

    def noted(path: Path, *words: Any, **options: Any) -> Any:
        opened.append(path.name)
        return read(path, *words, **options)

    monkeypatch.setattr(parquet, "read", noted)
    following = Following(store, AGE_S)
    following.catch_up(NOW)
    assert value(following.now(NOW), "power_mw") == 9
    assert len(opened) == 1


def expected(store: Store, names: Sequence[str], now: int) -> dict[str, dict[str, int | None]]:
    """By GPU, each newest value that is not NULL, not too old, and not from before the GPU fell silent; by SQL."""
    since = f"greatest(epoch_ns(ts) - s.at, 0) > 0 and epoch_ns(ts) >= {now - int(AGE_S * SECOND)}"
    columns = (f"arg_max({name}, ts) filter ({name} is not null and {since}) as {name}" for name in names)
    silent = "select gpu, coalesce(max(epoch_ns(ts)) filter (quality = 'lost'), 0) as at from telemetry group by gpu"
    query = f"select gpu, {', '.join(columns)} from telemetry join ({silent}) s using (gpu) group by gpu"
    return {row.pop("gpu"): row for row in store.sql(query).to_pylist()}


@pytest.mark.parametrize("seed", sample(range(12), short=1)[:2])
def test_in_any_order_of_writing_sealing_and_looking_it_says_what_sql_says(store: Store, seed: int) -> None:
    """Two collectors, files appended between them, and looks: one follower sees all of it, one is new at the end."""
    rng = random.Random(seed)
    following = Following(store, AGE_S)
    following.catch_up(NOW)
    now, names = NOW, ("power_mw", "fan_speed", "energy_mj")

    def row(gpu: str) -> dict[str, Any]:
        values = {name: rng.randrange(1000) if rng.random() < 0.6 else None for name in names}
        lost = rng.random() < 0.1
        return {
            "ts": now,
            "gpu": gpu,
            **(dict.fromkeys(names) if lost else values),
            "quality": "lost" if lost else None,
        }

    with journal_of(store, "n1") as entry, journal_of(store, "n2") as two:
        for turn in range(count(60, short=20)):
            now += rng.choice((1, 1, 5, 20)) * SECOND
            match rng.choice(("write", "write", "write", "publish", "seal", "append", "look", "catch up")):
                case "write":
                    entry.append_batch(batch([row("g1"), row("g2")]))
                    two.append_batch(batch([row("g3")]))
                case "publish":
                    rng.choice((entry, two)).publish()
                case "seal":
                    rng.choice((entry, two)).seal()
                case "append":
                    store.append({"telemetry": pa.Table.from_batches([batch([row("g4")])])}, f"file-{turn}")
                    following.catch_up(now)
                case "look":
                    following.now(now)
                case "catch up":
                    following.catch_up(now)
        fresh = Following(store, AGE_S)
        fresh.catch_up(now)
        values = expected(store, names, now)
        for follower in (following, fresh):
            newest = follower.now(now)
            for _, gpu in newest.gpus:
                assert {name: value(newest, name, str(gpu)) for name in names} == values[str(gpu)], gpu


@pytest.mark.long
def test_looks_and_catching_up_at_the_same_time_lose_nothing(store: Store) -> None:
    following, ended = Following(store, AGE_S), threading.Event()
    wrong: list[BaseException] = []

    def catching_up() -> None:
        try:
            while not ended.is_set():
                following.catch_up(NOW)
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=catching_up)
    thread.start()
    with journal_of(store) as journal:
        for turn in range(15):
            gpus = [f"g{turn}-{n}" for n in range(40)]  # many new ones, so that what is kept of them grows
            journal.append_batch(batch([{"ts": NOW + turn, "gpu": gpu, "power_mw": turn} for gpu in gpus]))
            if turn % 5 == 4:
                journal.publish()
            newest = following.now(NOW)
            assert [value(newest, "power_mw", gpu) for gpu in gpus] == [turn] * len(gpus)
    ended.set()
    thread.join()
    assert not wrong


def test_a_store_that_is_gone_is_told_in_a_sentence(store: Store) -> None:
    following = Following(store, AGE_S)
    with journal_of(store) as journal:
        journal.append_batch(batch([{"ts": ago(1), "gpu": "g1", "power_mw": 1}]))
        assert value(following.now(), "power_mw") == 1
    journals = store.root / "journal"
    for path in journals.iterdir():
        path.unlink()
    journals.rmdir()
    journals.write_text("no folder")
    with pytest.raises(StoreError, match="cannot read"):
        following.now()
