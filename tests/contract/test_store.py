"""The store's public surface: what each method of `whorl.Store` and of its journal takes, does and refuses."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import whorl
from whorl.errors import FormatError, InputError, StoreError
from whorl.tests.sizes import sample

S = 10**9
BEGAN = 1_700_006_400 * S
LATER = BEGAN + 20 * 86_400 * S


def telemetry(seconds: range, power: int, gpu: str = "a", cluster: str | None = "c") -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([BEGAN + second * S for second in seconds], pa.timestamp("ns")),
            "cluster": pa.array([cluster] * len(seconds), pa.string()),
            "gpu": [gpu] * len(seconds),
            "power_mw": [power] * len(seconds),
        }
    )


def powers(store: whorl.Store) -> dict[tuple[str, int], int | None]:
    rows = store.sql("select gpu, epoch_ns(ts) as ns, power_mw from telemetry").to_pylist()
    assert len({(row["gpu"], row["ns"]) for row in rows}) == len(rows)
    return {(row["gpu"], (row["ns"] - BEGAN) // S): row["power_mw"] for row in rows}


@pytest.mark.parametrize("spell", [str, Path])
def test_a_store_is_opened_by_its_path(store: whorl.Store, spell: Any) -> None:
    store.append({"runs": pa.table({"run_id": ["r"]})}, "x")
    opened = whorl.Store(spell(store.root))
    assert opened.collect(opened.scan("runs")).height == 1
    with pytest.raises(StoreError, match="absent is not a store"):
        whorl.Store(spell(store.root / "absent"))
    about = store.root / "store.toml"
    about.write_text(about.read_text().replace("format = ", "format = 9"))
    with pytest.raises(FormatError, match="install a newer whorl"):
        whorl.Store(spell(store.root))


def test_rows_of_several_tables_appear_at_once_or_not_at_all(store: whorl.Store) -> None:
    store.append({"runs": pa.table({"run_id": ["r"]}), "results": pa.table({"run_id": ["r"], "value": [1.5]})}, "x")
    assert store.sql("select value from runs join results using (run_id)").to_pylist() == [{"value": 1.5}]
    for rows in ({"runs": pa.table({"colour": [1]})}, {"latest": telemetry(range(1), 1)}):
        with pytest.raises(StoreError):
            store.append({"results": pa.table({"run_id": ["s"]}), **rows}, "y")
    assert len(store.arrow("results")) == 1
    for value in (2.5, 3.5, 3.5):
        store.append({"results": pa.table({"run_id": ["r"], "value": [value]})}, "one-name")
    assert sorted(store.arrow("results")["value"].to_pylist()) == [1.5, 2.5, 3.5]


def test_a_correction_replaces_whole_rows_and_no_row_that_is_not_there(store: whorl.Store) -> None:
    store.append({"telemetry": pa.concat_tables([telemetry(range(3), 1), telemetry(range(1), 1, cluster=None)])}, "x")
    assert store.correct(telemetry(range(1, 2), 5), "y") == 1
    assert store.correct(telemetry(range(1), 6, cluster=None), "z") == 1
    assert store.correct(telemetry(range(2, 3), 0).drop_columns(["power_mw"]), "w") == 1
    expected = [None, 1, 5, 6]
    powers = sorted((row["power_mw"] for row in store.arrow("telemetry").to_pylist()), key=lambda power: power or 0)
    assert powers == expected
    for rows, says in (
        (telemetry(range(2, 4), 7), "1 of 2 rows to correct are not stored"),
        (telemetry(range(1), 7, gpu="b"), "gpu b"),
        (telemetry(range(1), 7).drop_columns(["cluster"]), "need the columns cluster, gpu, ts"),
    ):
        with pytest.raises(StoreError, match=says):
            store.correct(rows, "v")
    assert store.correct(telemetry(range(0), 7), "v") == 0
    assert sorted(store.arrow("telemetry")["power_mw"].to_pylist(), key=lambda power: power or 0) == expected


def test_a_journal_takes_readings_with_their_times_gpus_and_columns(store: whorl.Store) -> None:
    moment = datetime.fromtimestamp(BEGAN // S, UTC)
    with store.journal("n", background=False, offline=True) as journal:
        journal.append(BEGAN, ["a", "b"], {"cluster": "c", "power_mw": [1, None]})
        journal.append(moment + timedelta(seconds=1), ["a", "b"], {"cluster": ["c", "c"], "power_mw": np.array([2, 3])})
        journal.append(np.datetime64(BEGAN + 2 * S, "ns"), ["a"], {"cluster": "c", "power_mw": np.array([np.nan])})
        journal.append([BEGAN + 3 * S, BEGAN + 4 * S], ["a", "b"], {"cluster": "c", "power_mw": 4})
        expected = {("a", 0): 1, ("b", 0): None, ("a", 1): 2, ("b", 1): 3, ("a", 2): None, ("a", 3): 4, ("b", 4): 4}
        assert powers(store) == expected
        for columns in ({"colour": 1}, {"ts": BEGAN}, {"power_mw": [1, 2, 3]}, {"power_mw": ["much", "more"]}):
            with pytest.raises(StoreError, match=f"telemetry.*{next(iter(columns))}"):
                journal.append(BEGAN, ["a", "b"], columns)
        journal.publish()
        assert powers(whorl.Store(store.root)) == expected
        journal.seal()
        assert powers(store) == expected
        journal.append(BEGAN, ["a"], {"cluster": "c", "power_mw": 9})
        assert powers(store) == expected | {("a", 0): 9}
        with pytest.raises(StoreError, match="a journal named n"):
            store.journal("n")
    with pytest.raises(StoreError, match="closed"):
        journal.append(BEGAN, ["a"], {})
    assert powers(store) == expected | {("a", 0): 9}


def test_the_last_reading_of_every_gpu(store: whorl.Store) -> None:
    assert len(store.latest()) == 0
    store.append({"telemetry": pa.concat_tables([telemetry(range(3), 1), telemetry(range(2), 2, gpu="b")])}, "x")
    assert {row["gpu"]: row["power_mw"] for row in store.latest().to_pylist()} == {"a": 1, "b": 2}
    with store.journal("n", background=False, offline=True) as journal:
        journal.append(BEGAN + 9 * S, ["b"], {"cluster": "c", "power_mw": 7})
        assert store.latest([("c", "b")])["power_mw"].to_pylist() == [7]


def test_compacting_and_pruning_say_what_they_did(store: whorl.Store) -> None:
    for number in range(3):
        store.append({"telemetry": telemetry(range(number * 20, number * 20 + 20), number)}, f"x{number}")
    store.correct(telemetry(range(1), 9), "late")
    done = store.compact(offline=True, now=LATER)
    assert (done.late_rows, done.after) == (1, 1)
    with pytest.raises(InputError, match="keep"):
        store.prune()
    with pytest.raises(InputError, match="not a time to keep"):
        store.prune("90 days")
    would = store.prune("1d", dry_run=True, now=LATER)
    assert (would.rows, would.minutes, len(powers(store))) == (60, 1, 60)
    assert store.prune("1d", offline=True, now=LATER).rows == 60
    assert powers(store) == {}
    assert store.sql("select n, power_mw_max from history").to_pylist() == [{"n": 60, "power_mw_max": 9}]


def test_a_day_waits_for_an_open_journal_that_corrects_it_and_then_counts_no_reading_twice(store: whorl.Store) -> None:
    store.append({"telemetry": telemetry(range(10), 1)}, "x")
    with store.journal("n", background=False, offline=True) as journal:
        journal.append(BEGAN, ["a"], {"cluster": "c", "power_mw": 9})
        assert store.prune("1d", dry_run=True, now=LATER).waiting == 1
        done = store.prune("1d", offline=True, now=LATER)
        assert (done.rows, done.waiting) == (0, 1)
        assert powers(store) == {("a", second): 1 if second else 9 for second in range(10)}
    done = store.prune("1d", offline=True, now=LATER)
    assert (done.rows, done.minutes, done.waiting) == (10, 1, 0)
    minutes = store.sql("select n, power_mw_max from history").to_pylist()
    assert minutes == [{"n": 10, "power_mw_max": 9}]


@pytest.mark.long
def test_a_link_to_a_store_is_followed_unless_it_is_of_a_stranger(tmp_path: Path) -> None:
    """A stranger could let it lead into any folder of this user's."""
    link, folder = tmp_path / "link", tmp_path / "folder"
    folder.mkdir()
    link.symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to("folder")
    whorl.Store.create(link).append({"runs": pa.table({"run_id": ["r"]})}, "x")
    assert len(whorl.Store(folder).arrow("runs")) == 1
    if os.geteuid() == 0:
        os.chown(tmp_path / "other", 65534, 65534, follow_symlinks=False)
        with pytest.raises(StoreError, match="link of another user"):
            whorl.Store(link).append({"runs": pa.table({"run_id": ["s"]})}, "y")
        assert len(whorl.Store(link).arrow("runs")) == 1, "it can be read"
        os.chown(folder, 65534, 65534)
        whorl.Store(link).append({"runs": pa.table({"run_id": ["s"]})}, "y")
        assert len(whorl.Store(folder).arrow("runs")) == 2


CALLS = (
    "mkdir",
    "open",
    "lstat",
    "stat",
    "chmod",
    "fchmod",
    "rename",
    "replace",
    "link",
    "unlink",
    "fsync",
    "fdatasync",
)


def exchanging(patch: pytest.MonkeyPatch, at: int, exchange: Any) -> Any:
    """Exchange folders just before call number `at` of the operating system; the answer lists all calls."""
    calls: list[str] = []

    def hooked(real: Any) -> Any:
        def call(*words: Any, **keywords: Any) -> Any:
            calls.append(f"{real.__name__} {words[0]}")
            if len(calls) == at:
                exchange()
            return real(*words, **keywords)

        return call

    for name in CALLS:
        patch.setattr(os, name, hooked(getattr(os, name)))
    return calls


@pytest.mark.long(short=1)
@pytest.mark.parametrize("folder", ["telemetry/day=2023-11-15", ".", "journal"])
def test_a_folder_that_becomes_a_link_meanwhile_lets_nothing_out_of_the_store(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where root makes a store in a folder of other users, or appends there: they may exchange what is theirs."""
    if folder == "." and os.geteuid():
        pytest.skip("only root can make a link of another user")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2777)
    root, private = tmp_path / "shared" / "store", tmp_path / "private"
    whorl.Store.create(root)
    template = Path(shutil.move(root, tmp_path / "shared" / "template"))
    points = [0]
    for at in points:
        if folder != ".":
            shutil.copytree(template, root)
        private.mkdir(0o700)
        if folder != ".":
            (private / "x.parquet").write_text("of another")
        place = root / folder

        def exchange(place: Path = place) -> None:
            place.parent.mkdir(exist_ok=True)
            if place.exists():
                place.rename(tmp_path / "shared" / "aside")
            place.symlink_to(private)
            if place == root:  # a link of this user's to the store would be followed
                os.chown(place, 65534, 65534, follow_symlinks=False)

        with monkeypatch.context() as patch:
            calls = exchanging(patch, at, exchange if at else lambda: None)
            with contextlib.suppress(StoreError, FileNotFoundError):
                store = whorl.Store.create(root)
                store.append({"runs": pa.table({"run_id": ["r"]}), "telemetry": telemetry(range(3), 1)}, "x")
                store.correct(telemetry(range(1), 2), "y")
                with store.journal("n", background=False, offline=True) as journal:
                    journal.append(BEGAN + 5 * S, ["a"], {"cluster": "c", "power_mw": 1})
                    journal.publish()
                store.compact(offline=True, now=LATER)
        if not at:
            place_call = next(
                n for n, call in enumerate(calls) if call.startswith("mkdir") and call.endswith(place.name)
            )
            points += sample([*range(place_call + 2, place_call + 12), *range(1, len(calls))], short=2)
        about = (folder, at, calls[at - 1 : at])
        assert stat.S_IMODE(private.stat().st_mode) == 0o700, about
        names = [] if folder == "." else ["x.parquet"]
        assert [path.name for path in private.iterdir()] == names, about
        assert not names or (private / "x.parquet").read_text() == "of another", about
        if root.is_symlink():
            root.unlink()
        for gone in (root, private, tmp_path / "shared" / "aside"):
            shutil.rmtree(gone, ignore_errors=True)
