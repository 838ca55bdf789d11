"""Two hosts that share a store on a file system without locks, or one that lists folders from memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from whorl.errors import StoreError
from whorl.store import Store, compaction
from whorl.store.journal import Journal
from whorl.store.readers import reading
from whorl.store.rows import replacing
from whorl.store.system import durability, files, processes
from whorl.tests.store.journaler import BEGAN, S, batch
from whorl.tests.stores import new_store

COUNT = "select count(*) n, count(distinct (cluster, gpu, ts)) keys from telemetry"


def counted(root: Path) -> dict[str, int]:
    (row,) = Store.open(root).sql(COUNT).to_pylist()
    return dict(row)


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """A store with three segments of an hour that is over, and the journal of a collector that died."""
    root = tmp_path / "S"
    store = new_store(root)
    for number in range(3):
        with store.journal(f"n{number}", background=False, offline=True) as journal:
            journal.append_batch(batch([f"g{number}"], 1, 1))
    with store.journal("dead", background=False, offline=True) as journal:
        journal.append_batch(batch(["a", "b"], 2, 1))
        journal.publish()
        left = {path: path.read_bytes() for path in root.rglob("dead-*")}
    for path in root.rglob("dead-*"):
        path.unlink()
    for path, content in left.items():
        path.write_bytes(content)
    return root


def test_a_compaction_that_comes_second_doubles_nothing(segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = replacing.replace

    def second(root: Path, old: list[Path], moves: dict[Path, Path], pace: replacing.Pace, **more: Any) -> None:
        if any(path.name.startswith("compacted-") for path in moves.values()):
            monkeypatch.setattr(replacing, "replace", real)
            made = old[0].with_name(".tmp-other")
            shutil.copy(old[0], made)
            real(root, old[:1], {made: old[0].with_name("other.parquet")}, replacing.Pace(0, 60))
        real(root, old, moves, pace, **more)

    monkeypatch.setattr(replacing, "replace", second)
    compaction.compact(segments, pace=replacing.Pace(0.05, 0))
    assert replacing.replace is real
    assert counted(segments) == {"n": 5, "keys": 5}


def test_a_file_is_claimed_by_one_replacement_only(segments: Path) -> None:
    old = sorted((segments / "telemetry").rglob("n*.parquet"))
    one, two = (old[0].with_name(f"{name}.parquet") for name in ("one", "two"))
    made = [old[0].with_name(f".tmp-{name}") for name in "ab"]
    for path in made:
        shutil.copy(old[0], path)
    replacing.replace(segments, old[:1], {made[0]: one}, replacing.Pace(0, 60))
    with pytest.raises(replacing.TakenError, match="another process has replaced"):
        replacing.replace(segments, old[:1], {made[1]: two}, replacing.Pace(0, 60))
    assert not two.exists()
    assert not made[1].exists()
    assert counted(segments)["n"] == 5
    replacing.recover(segments, 0)
    assert list((segments / "replaced").glob("*.claim")) == []
    shutil.copy(one, made[1])
    with pytest.raises(replacing.TakenError):  # it was listed before it went
        replacing.replace(segments, old[:1], {made[1]: two}, replacing.Pace(0, 60))
    assert list((segments / "replaced").glob("*.claim")) == []


def test_a_file_that_was_replaced_twice_and_removed_keeps_no_reader_waiting(
    segments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second replacement is over but for its note; the first one's note still names it as new."""
    (old, *_) = sorted((segments / "telemetry").rglob("n*.parquet"))
    one, two, made = (old.with_name(name) for name in ("one.parquet", "two.parquet", ".tmp-a"))
    for before, after in ((old, one), (one, two)):
        shutil.copy(before, made)
        replacing.replace(segments, [before], {made: after}, replacing.Pace(0, 60))
    one.unlink()
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert counted(segments) == {"n": 5, "keys": 5}
    assert len(waits) <= 1  # a second listing shows that it is gone for good


@pytest.mark.long(short=1)
@pytest.mark.parametrize("days", [-1000, 1000])
def test_a_clock_that_was_wrong_keeps_no_replacement_waiting(segments: Path, days: int) -> None:
    (old, *_) = sorted((segments / "telemetry").rglob("n*.parquet"))
    made = old.with_name(".tmp-a")
    shutil.copy(old, made)
    replacing.replace(segments, [old], {made: old.with_name("new.parquet")}, replacing.Pace(0, 60))
    then = time.time() + days * 86_400
    for note in (segments / "replaced").iterdir():
        os.utime(note, (then, then))
    for _ in range(2):  # the files first, then the note
        replacing.recover(segments)
    assert not old.exists()
    assert [path.name for path in (segments / "replaced").iterdir()] == ["_schema.parquet"]
    assert counted(segments)["n"] == 5


def test_a_container_that_starts_again_ends_what_its_predecessor_began(
    segments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first process has the same number, and often the same name of the host and of the namespace."""
    (old, *_) = sorted((segments / "telemetry").rglob("n*.parquet"))
    made, new = old.with_name(".tmp-a"), old.with_name("new.parquet")
    shutil.copy(old, made)
    one = f"{processes.host()}-{processes.pid_namespace()}-{os.getpid()}-0badcafe"
    with monkeypatch.context() as patch:
        patch.setattr(processes, "owner", lambda: one)
        left = files.temporary_name(old)
        patch.setattr(replacing, "_undo", lambda _: True)  # as if it was killed while it waited
        with pytest.raises(StoreError, match="killed"):
            replacing.replace(segments, [old], {made: new}, replacing.Pace(0, 60), inside=killed)
    left.touch()
    for note in (segments / "replaced").iterdir():
        os.utime(note, (time.time() - 60, time.time() - 60))
    Store.open(segments)
    assert not left.exists()
    replacing.recover(segments, 0)
    assert not old.exists()
    assert [path.name for path in (segments / "replaced").iterdir()] == ["_schema.parquet"]
    assert counted(segments)["n"] == 5


def killed() -> None:
    raise StoreError("killed")


def test_a_claim_of_a_dead_process_does_not_stay(segments: Path) -> None:
    (old, *_) = sorted((segments / "telemetry").rglob("n*.parquet"))
    said = segments / "replaced" / "said"
    said.write_text(f"{processes.host()}-{processes.pid_namespace()}-999999999-0")
    claim = replacing._claim(segments, old, said)
    said.unlink()
    made = old.with_name(".tmp-a")
    shutil.copy(old, made)
    replacing.replace(segments, [old], {made: old.with_name("new.parquet")}, replacing.OFFLINE)
    assert not claim.exists()
    assert counted(segments)["n"] == 5


def test_a_listing_from_memory_hides_nothing_that_changed_places(
    segments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes of a replacement are seen, and the folder with the new file is listed as it was before."""
    before = {name: reading.names_in(segments, name) for name in ("telemetry", "late", "latest")}
    compaction.compact(segments, pace=replacing.Pace(0, 60), now=BEGAN + 40 * 86_400 * S)
    real = reading.names_in
    monkeypatch.setattr(reading, "names_in", lambda root, name: before.get(name) or real(root, name))
    assert len(Store.open(segments).arrow("telemetry")) == 5


@pytest.fixture
def networked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store on NFS."""
    monkeypatch.setattr(durability, "_magic", lambda _: 0x6969)
    return new_store(tmp_path / "N")


def by_clients(store: Store) -> dict[str, int]:
    with duckdb.connect(str(store.root / "whorl.duckdb"), read_only=True) as connection:
        return dict(zip(("n", "keys"), connection.execute(COUNT).fetchall()[0], strict=True))


def test_a_collector_that_ends_on_nfs_neither_waits_nor_replaces_files(
    networked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host may list the store's folders from memory for a minute."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with networked.journal("n", background=False) as journal:
        journal.append_batch(batch(["a"], 1, 1))
        journal.publish()
        journal.append_batch(batch(["a"], 2, 2))
    assert not waits
    assert replacing.notes(networked.root) == {}
    assert counted(networked.root) == by_clients(networked) == {"n": 2, "keys": 2}
    networked.compact(offline=True, now=0)
    assert not list((networked.root / "journal").glob("*.arrow"))
    assert counted(networked.root) == by_clients(networked) == {"n": 2, "keys": 2}


def test_a_collector_that_ends_on_nfs_while_it_seals_does_not_wait_for_that(
    networked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next of its name seals what it left, and stores its own rows meanwhile."""
    monkeypatch.setattr(replacing, "_NETWORK", replacing.Pace(3600, 3600, 3600))
    with Journal(networked.root, "n", segment_s=0.2) as journal:
        journal.append_batch(batch(["a"], 1, 1))
        journal.publish()
        assert in_time(lambda: bool(replacing.notes(networked.root)))
        journal.append_batch(batch(["a"], 2, 2))
    assert replacing.notes(networked.root) == {}
    assert counted(networked.root) == by_clients(networked) == {"n": 2, "keys": 2}
    monkeypatch.setattr(replacing, "_NETWORK", replacing.Pace(0.01, 0.0, 0.01))
    left = {path.name for path in (networked.root / "journal").glob("*.arrow")}
    assert len(left) == 2
    with Journal(networked.root, "n", publish_s=0.1) as journal:
        journal.append_batch(batch(["a"], 3, 3))
        assert in_time(lambda: not left & {path.name for path in (networked.root / "journal").glob("*.arrow")})
    assert counted(networked.root) == by_clients(networked) == {"n": 3, "keys": 3}


def in_time(happened: Callable[[], bool]) -> bool:
    last = time.monotonic() + 30
    while not happened() and time.monotonic() < last:
        time.sleep(0.02)
    return happened()


def test_ages_are_by_the_clock_of_the_file_system(segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose clock is a day ahead does not take what others have just begun for left over."""
    (old, *_) = sorted((segments / "telemetry").rglob("n*.parquet"))
    one = "elsewhere-00000000-1-0"
    new = old.with_name("new.parquet")
    shutil.copy(old, new)
    replacing._write(segments, one, 1, [("old", old), ("new", new)])
    monkeypatch.setattr("time.time", lambda: old.stat().st_mtime + 2 * 86_400)
    replacing.recover(segments)
    assert replacing.notes(segments)[one].step == 1
