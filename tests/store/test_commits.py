"""Commits: a group of rows appears whole or not at all, whatever happens to the process that writes it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store import status as state
from whorl.store.system import files, processes
from whorl.store.writers import commits
from whorl.tests.sizes import count
from whorl.tests.store.appender import group

APPENDER = Path(__file__).with_name("appender.py")


def names(store: Store) -> Counter[str]:
    """Groups in the store; fails unless every one is there once and whole in all of its tables."""
    runs = Counter(store.arrow("runs")["run_id"].to_pylist())
    results = Counter(store.arrow("results")["run_id"].to_pylist())
    assert runs == results
    assert set(runs.values()) <= {1}
    whole = Counter(run.rpartition("-")[0] for run in runs)
    assert set(whole.values()) <= {3}
    imports = Counter(store.arrow("imports")["import_id"].to_pylist())
    assert imports == Counter(dict.fromkeys(whole, 1))
    assert store.skipped == {}
    return imports


def temporaries(store: Store) -> list[Path]:
    return [p for p in store.root.rglob("*") if p.name.startswith(files.TEMPORARY)]


def test_failure_after_the_intent_says_that_the_rows_are_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(_root: Path, _source: str, _target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commits, "rename_inside", rename)
    with pytest.raises(StoreError, match="stored, but not yet in place") as raised:
        store.append(group("a"), "a")
    assert "run the command again" not in str(raised.value)
    assert names(store) == Counter()
    monkeypatch.undo()
    assert names(Store.open(store.root)) == Counter(["a"])


def test_two_commits_under_one_name_do_not_lose_each_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one runs whole between the intent of the first and its renames."""
    real = commits._finish

    def finish(root: Path, intent: Path) -> None:
        monkeypatch.setattr(commits, "_finish", real)
        store.append(group("a"), "a")
        real(root, intent)

    monkeypatch.setattr(commits, "_finish", finish)
    store.append(group("a"), "a")
    assert temporaries(store) == []
    assert list((store.root / "pending").iterdir()) == []
    assert names(store) == Counter(["a"])


@pytest.mark.long
def test_writers_at_once(tmp_path: Path) -> None:
    """Processes make one store and append to it, two of them under the same names, while it is read."""
    root = tmp_path / "store"
    who, many = ["c", "c", "a", "b"][: count(4, short=3)], count(20, short=3)
    writers = [
        subprocess.Popen([sys.executable, APPENDER, root, one, str(many)], stderr=subprocess.PIPE) for one in who
    ]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        if not (root / "store.toml").exists():
            time.sleep(0.01)
            continue
        reader = Store.open(root)
        answer = reader.sql(
            "select (select count(*) from runs), (select count(distinct run_id) from runs), "
            "(select count(*) from measurements)"
        )
        runs, distinct, measured = (column.to_pylist()[0] for column in answer.columns)
        assert seen <= runs == distinct == measured, "a run is lost, doubled, or without its result"
        assert reader.skipped == {}
        seen = runs
    assert [writer.communicate()[1] for writer in writers] == [b""] * len(who)
    assert [writer.returncode for writer in writers] == [0] * len(who)
    assert names(Store.open(root)) == Counter(f"{one}-{i}" for one in set(who) for i in range(many))


def test_a_second_commit_under_a_name_replaces_the_first(store: Store) -> None:
    store.append(group("a"), "a")
    store.append(group("a"), "a")
    assert names(store) == Counter(["a"])


def test_names_that_would_reach_elsewhere_are_refused(store: Store) -> None:
    before = sorted(store.root.rglob("*"))
    for name in ("", "../a", "a/b", ".tmp-x", "_schema", "a\nb", "-"):
        with pytest.raises(StoreError, match="is not a valid name"):
            store.append(group("a"), name)
    assert sorted(store.root.rglob("*")) == before


def test_nothing_to_append(store: Store) -> None:
    before = sorted(store.root.rglob("*"))
    assert store.append({"runs": pa.table({"run_id": pa.array([], pa.string())})}, "a") == []
    assert sorted(store.root.rglob("*")) == before


def test_rows_without_a_time_are_refused_and_not_dropped(store: Store) -> None:
    rows = pa.table({"ts": pa.array([1, None], pa.timestamp("ns")), "gpu": ["a", "b"]})
    with pytest.raises(StoreError, match="1 rows of table telemetry have no ts"):
        store.append({"telemetry": rows, **group("a")}, "a")
    assert names(store) == Counter()
    assert temporaries(store) == []


def test_rows_of_two_days_lie_in_two_folders(store: Store) -> None:
    day = 86_400 * 10**9
    rows = pa.table({"ts": pa.array([day - 1, day, 2 * day - 1], pa.timestamp("ns")), "gpu": ["a", "b", "a"]})
    paths = store.append({"telemetry": rows}, "a")
    assert sorted(p.parent.name for p in paths) == ["day=1970-01-01", "day=1970-01-02"]
    assert sorted(store.arrow("telemetry")["ts"].cast(pa.int64()).to_pylist()) == [day - 1, day, 2 * day - 1]


def test_values_that_do_not_fit_are_a_sentence(store: Store) -> None:
    with pytest.raises(StoreError, match="table results, column repeat"):
        store.append({"results": pa.table({"repeat": [2**40]})}, "a")
    with pytest.raises(StoreError, match="no column colour"):
        store.append({"results": pa.table({"colour": ["red"]})}, "a")


# -- what dead writers leave behind ---------------------------------------------------------------------------


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        return child.pid


def test_only_files_of_dead_writers_are_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = time.time() + 30 * 86_400  # a host's clock: ages are by that of the file server
    monkeypatch.setattr(time, "time", lambda: ahead)
    host, namespace, dead = processes.host(), processes.pid_namespace(), dead_process()
    folder = store.root / "runs"
    mine = folder / f"{files.TEMPORARY}{processes.owner()}-0"
    gone = folder / f"{files.TEMPORARY}{host}-{namespace}-{dead}-0"
    elsewhere = folder / f"{files.TEMPORARY}elsewhere-{namespace}-{dead}-0"
    container = folder / f"{files.TEMPORARY}{host}-00000000-{dead}-0"
    old_container = folder / f"{files.TEMPORARY}{host}-00000000-{dead}-1"
    for path in (mine, gone, elsewhere, container, old_container):
        path.write_bytes(b"half")
    for path in (elsewhere, old_container):
        os.utime(path, (ahead - 40 * 86_400,) * 2)
    opened = Store.open(store.root)
    assert temporaries(opened) == sorted([mine, elsewhere, container], key=temporaries(opened).index)
    assert names(opened) == Counter()


def pending(store: Store, text: str) -> Path:
    folder = store.root / "pending"
    folder.mkdir(exist_ok=True)
    path = folder / "x-0.json"
    path.write_text(text)
    return path


def torn_intents() -> list[Any]:
    whole = json.dumps({"format": 3, "moves": [["runs/.tmp-h-s-1-0", "runs/a.parquet"]]})
    moves: list[Any] = [
        [["runs/.tmp-h-s-1-0", "../../elsewhere.parquet"]],
        [["/etc/passwd", "runs/a.parquet"]],
        [["runs/a.parquet", "runs/b.parquet"]],
        [["runs/.tmp-h-s-1-0", "runs/../../a.parquet"]],
        [["runs/.tmp-h-s-1-0", "store.toml"]],
        [["runs/.tmp-h-s-1-0"]],
        [["runs/.tmp-h-s-1-0", 7]],
        "runs",
        None,
    ]
    texts = [whole[:cut] for cut in (0, 1, 20, len(whole) - 1)] + ["[]", "\x00" * 100, "\\xff", "null"]
    texts += [json.dumps({"format": 3, "moves": move}) for move in moves]
    return [*texts, json.dumps({"format": 99, "moves": []}), json.dumps({"moves": []})]


def test_a_damaged_intent_is_named_and_moves_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.append(group("a"), "a")
    (store.root / "runs" / ".tmp-h-s-1-0").write_bytes(b"half")
    for text in torn_intents():
        intent = pending(store, text)
        before = {p: p.read_bytes() for p in store.root.parent.rglob("*") if p.is_file()}
        caplog.clear()
        with caplog.at_level(logging.WARNING, "whorl"):
            opened = Store.open(store.root)
        assert str(intent) in caplog.text, text
        assert "damaged" in caplog.text, text
        assert {p: p.read_bytes() for p in store.root.parent.rglob("*") if p.is_file()} == before, text
        assert names(opened) == Counter(["a"]), text
    opened.append(group("b"), "b")


def test_an_intent_whose_files_are_gone_is_named_and_ends(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    intent = pending(store, json.dumps({"format": 3, "moves": [["runs/.tmp-h-s-1-0", "runs/a.parquet"]]}))
    with caplog.at_level(logging.WARNING, "whorl"):
        opened = Store.open(store.root)
    assert "runs/a.parquet, which is lost" in caplog.text
    assert not intent.exists()
    assert names(opened) == Counter()


def test_losing_a_temporary_file_is_an_error_and_not_silence(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when another host takes this process for dead."""
    real = commits._finish

    def finish(root: Path, intent: Path) -> None:
        next((root / "results").glob(f"{files.TEMPORARY}*")).unlink()
        real(root, intent)

    monkeypatch.setattr(commits, "_finish", finish)
    with pytest.raises(StoreError, match="somebody removed its temporary file"):
        store.append(group("a"), "a")


def test_a_disk_that_does_not_list_the_commits_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(group("a"), "a")
    real, errors = os.scandir, [5, 13]  # a disk that fails; a folder that this user may not read

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == str(store.root / "pending"):
            raise OSError(errors[0], os.strerror(errors[0]), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StoreError, match=r"cannot read .*pending: Input/output error"):
        Store.open(store.root)
    del errors[0]
    assert names(Store.open(store.root)) == Counter(["a"])


@pytest.mark.parametrize("folder", ["journal", "late", "telemetry"])
def test_a_disk_that_does_not_list_stored_rows_is_named(
    store: Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == str(store.root / folder):
            raise OSError(5, os.strerror(5), str(path))
        return real(path)

    rows = pa.table({"ts": pa.array([0], pa.timestamp("ns")), "gpu": ["a"], "power_mw": pa.array([1], pa.int32())})
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(StoreError, match=f"cannot read .*{folder}: Input/output error"):
            store.append({**group("a"), "telemetry": rows}, "a")
    assert names(store) == Counter()
    store.append({**group("a"), "telemetry": rows}, "a")
    assert names(store) == Counter(["a"])


def test_a_disk_that_fails_while_the_state_is_read_is_a_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error", str(store.root / "replaced"))

    monkeypatch.setattr(state, "_replacements", fail)
    with pytest.raises(StoreError, match=r"cannot read .*replaced: Input/output error"):
        state.status(store)


def test_a_disk_that_fails_as_a_store_is_made_or_found_is_a_sentence(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.exists

    def exists(path: Path, *args: Any) -> bool:
        if path.name == "store.toml":
            raise OSError(5, "Input/output error", str(path))
        return real(path, *args)

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(StoreError, match=r"cannot read .*store.toml: Input/output error"):
        Store.create(store.root)
