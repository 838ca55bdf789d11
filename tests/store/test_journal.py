"""Journals: nothing acknowledged is lost, whatever happens to the process, the disk and the file."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store, commits, journal, journal_file, replacing, sealing, telemetry_files
from whorl.store.journal import Journal
from whorl.store.schema import TABLES
from whorl.store.system import children, files
from whorl.store.system.locks import locked
from whorl.tests.checks import until
from whorl.tests.store.frozen.make import rows_of
from whorl.tests.store.journaler import (
    BEGAN,
    LATER,
    batch,
    journals,
    leave_journal,
    open_journal,
    plain_powers,
    powers,
    readings,
    seen,
    segments,
)


def test_two_collectors_of_one_name_are_refused_and_of_two_names_count_each_reading_once(store: Store) -> None:
    with open_journal(store, "one") as one, open_journal(store, "two") as two:
        with pytest.raises(StoreError, match=f"process {os.getpid()} on .* holds a journal named one"):
            open_journal(store, "one")
        one.append_batch(batch(["a"], 1, 10))
        two.append_batch(batch(["a"], 1, 20))
        one.append_batch(batch(["b"], 1, 30))
        assert seen(store) == {("a", 1): 20, ("b", 1): 30}
        one.seal()
        assert powers(store) == {("a", 1): 20, ("b", 1): 30}
        one.append_batch(batch(["a"], 1, 40))
        assert powers(store) == {("a", 1): 40, ("b", 1): 30}
        one.seal()
        two.seal()
        assert powers(store) == {("a", 1): 40, ("b", 1): 30}
    store.compact(offline=True, now=LATER)
    assert seen(store, plain=True) == {("a", 1): 40, ("b", 1): 30}


def test_a_collector_waits_while_a_compaction_seals_what_its_forerunner_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_journal(store, batch(["a"], 1, 1))
    real, sealing_now, go_on = sealing.seal, threading.Event(), threading.Event()

    def seal(*words: Any, **more: Any) -> Any:
        sealing_now.set()
        go_on.wait(30)
        return real(*words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "seal", seal)
        thread = threading.Thread(target=lambda: store.compact(offline=True))
        thread.start()
        assert sealing_now.wait(30)
        threading.Timer(0.5, go_on.set).start()
        with store.journal("n", background=False) as made:
            made.append_batch(batch(["a"], 2, 2))
        thread.join()
    assert seen(store, plain=True) == {("a", 1): 1, ("a", 2): 2}


def test_a_journal_or_a_store_that_was_removed_is_no_traceback(store: Store) -> None:
    made = open_journal(store)
    made.append_batch(batch(["a"], 0, 1))
    store.root.rename(store.root.with_name("elsewhere"))
    for act in (made.seal, lambda: made.append_batch(batch(["a"], 1, 1))):
        with contextlib.suppress(StoreError):
            act()
    assert not store.root.exists()
    assert powers(Store.open(store.root.with_name("elsewhere"))) == {("a", 0): 1}


# -- the thread -------------------------------------------------------------------------------------------------


@pytest.mark.long(short=1)
@pytest.mark.parametrize("hindrance", ["no process", "no folder"])
def test_a_child_seals_and_what_hinders_it_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hindrance: str
) -> None:
    folder, away = store.root / "telemetry", store.root / "away"
    monkeypatch.setattr(children, "has_arrow", lambda: False)
    with caplog.at_level(logging.WARNING), Journal(store.root, "n", segment_s=2.0) as made:
        with monkeypatch.context() as patch:
            if hindrance == "no process":
                patch.setattr(sys, "executable", str(store.root / "python"))
            else:
                folder.rename(away)
                folder.write_text("in the way")
            made.append_batch(batch(["a"], 0, 1))
            for _ in range(2):
                with pytest.raises(StoreError):
                    made.seal()
            until(lambda: "the rows stay in the journal" in caplog.text)
            if hindrance == "no folder":
                folder.unlink()
                away.rename(folder)
        made.append_batch(batch(["a"], 1, 1))
        until(lambda: plain_powers(store.root) == {("a", 0): 1, ("a", 1): 1})
    assert caplog.text.count("the rows stay in the journal") == 1
    assert ("cannot start another process" in caplog.text) == (hindrance == "no process")
    assert seen(store) == {("a", 0): 1, ("a", 1): 1}


def test_a_process_that_has_arrow_seals_itself_at_its_priority(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(store.root / "python"))
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with store.journal("n", offline=True) as made:
        made.append_batch(batch(["a"], 0, 1))
        made.seal()
        assert plain_powers(store.root) == {("a", 0): 1}
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority


@pytest.mark.long(short=1)
@pytest.mark.parametrize("step", ["between the files", "before the files", "before the journal goes"])
def test_a_child_that_is_killed_leaves_every_row_once(store: Store, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    place, after = {
        "before the files": ("files.rename", 0),
        "between the files": ("files.rename", 1),
        "before the journal goes": ("files.remove_inside", 0),
    }[step]
    killed = (
        "import os, signal, sys\nfrom whorl.store.system import children, files\n"
        f"real, calls = {place}, iter(range(99))\n"
        "def die(*words):\n"
        f"    next(calls) < {after} or os.kill(os.getpid(), signal.SIGKILL)\n    return real(*words)\n"
        f"{place} = die\nchildren.serve(sys.argv[1])\n"
    )
    with store.journal("n", offline=True) as made:
        made.append_batch(batch(["a", "b"], 1, 1))
        made.append_batch(pa.record_batch({"kind": ["gap"]}), "events")
        with monkeypatch.context() as patch:
            patch.setattr(children, "has_arrow", lambda: False)
            patch.setattr(children, "_PROGRAM", killed)
            with pytest.raises(StoreError, match="SIGKILL"):
                made.seal()
        assert len(journals(store)) == 2
        made.append_batch(batch(["a"], 2, 2))
        assert seen(store) == {("a", 1): 1, ("b", 1): 1, ("a", 2): 2}
    assert seen(store, plain=True) == {("a", 1): 1, ("b", 1): 1, ("a", 2): 2}
    assert store.sql("select count(*) n from events").to_pylist() == [{"n": 1}]
    assert (journals(store), store.check()) == ([], {})


def test_a_child_ends_with_its_parent_and_frees_the_name(store: Store) -> None:
    """The lock of a journal's name is the child's too: it must not keep the next collector of the node out."""
    code = (
        "import os, signal, sys, threading, time\nfrom pathlib import Path\nfrom whorl.store import Store\n"
        "from whorl.store.system import children\nfrom whorl.tests.store.journaler import batch\n"
        "children.has_arrow = bool\n"
        "children._PROGRAM = 'import sys, time\\nfrom whorl.store import sealing\\n'"
        " 'from whorl.store.system import children\\n'"
        " 'sealing.seal = lambda root, *_: [(root / \"begun\").touch(), time.sleep(600)]\\n'"
        " 'children.serve(sys.argv[1])\\n'\n"
        "journal = Store.open(sys.argv[1]).journal('n')\njournal.append_batch(batch(['a'], 1, 1))\n"
        "threading.Thread(target=journal.seal, daemon=True).start()\n"
        "while not Path(sys.argv[1], 'begun').exists(): time.sleep(0.02)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, store.root], check=False, timeout=120, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr

    def free() -> bool:
        with contextlib.suppress(StoreError):
            store.journal("n", offline=True).close()
            return True
        return False

    until(free)
    assert seen(store, plain=True) == {("a", 1): 1}


def test_many_rows_are_sealed_early(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOST_ROWS", 3)
    with Journal(store.root, "n", background=False) as made:
        for second in range(3):
            made.append_batch(batch(["a"], second, 1))
            made.maintain()
        assert len(segments(store)) == 1


@pytest.mark.long
def test_a_file_that_grows_large_is_followed_by_another(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers take none of more than two GiB for a journal."""
    monkeypatch.setattr(journal, "_MOST_BYTES", 1000)
    with open_journal(store) as made:
        for second in range(60):
            made.append_batch(batch(["a"], second, second))
        assert len(journals(store)) > 2
        assert seen(store) == {("a", second): second for second in range(60)}
    assert seen(store, plain=True) == {("a", second): second for second in range(60)}


def test_rows_that_readers_would_not_take_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "_MOST_PAYLOAD", 2000)
    with open_journal(store) as made:
        made.append_batch(batch(["a"], 0, 1))
        with pytest.raises(StoreError, match="append some at a time"):
            made.append_batch(readings(range(500)).to_batches()[0])
        with pytest.raises(StoreError, match="append some at a time"):
            made.append_batch(pa.record_batch({"kind": ["gap" * 5000]}), "events")
        made.append_batch(batch(["a"], 1, 1))
    assert seen(store) == {("a", 0): 1, ("a", 1): 1}


def test_more_gpus_than_a_file_can_number_take_two_files_or_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 + np.iinfo(np.uint16).max == journal_file.MOST_GPUS
    monkeypatch.setattr(journal_file, "MOST_GPUS", 5)
    with open_journal(store) as made:
        with pytest.raises(StoreError, match="5 GPUs at once"):
            made.append_batch(batch([*"abcdef"], 0, 1))
        for gpus in ("abcde", "f"):
            made.append_batch(batch([*gpus], 0, 1))
        assert len(journals(store)) == 2
        assert powers(store) == {(gpu, 0): 1 for gpu in "abcdef"}


# -- what is in it ----------------------------------------------------------------------------------------------


def test_columns_gpus_and_texts_that_come_and_go_are_read_as_written(store: Store) -> None:
    expected: list[dict[str, Any]] = []
    with open_journal(store) as made:
        for second in range(60):
            gpus = ["a", "b", None][: 1 + second % 3]
            rows = readings(
                [second] * len(gpus), gpus,
                power_mw=[[None, 2**40, -1, 7][(second + place) % 4] for place in range(len(gpus))],
                quality=[f"q{second % 7}" if (second + place) % 2 else None for place in range(len(gpus))],
                cluster=[["c", None][second % 2]] * len(gpus),
            )  # fmt: skip
            if second % 5 == 0:
                rows = rows.append_column("fan_speed", pa.array([second] * len(gpus), pa.int64()))
            made.append_batch(rows.combine_chunks().to_batches()[0])
            expected += [{"fan_speed": None} | row for row in rows.to_pylist()]
        columns = [*expected[0]]

        def rows_in(found: Store) -> list[str]:
            answer = found.arrow("telemetry", columns).to_pylist()
            return sorted(repr(sorted(row.items())) for row in answer)

        wanted = sorted(repr(sorted(row.items())) for row in expected)
        assert rows_in(store) == wanted
        assert rows_in(Store.open(store.root)) == wanted
    assert rows_in(Store.open(store.root)) == wanted


@pytest.mark.parametrize("name", [spec.name for spec in TABLES if not (spec.made or spec.partitioned)])
def test_rows_of_every_table_are_read_as_written(store: Store, name: str) -> None:
    rows = rows_of(name)
    with open_journal(store) as made:
        made.append_batch(rows.to_batches()[0], name)
        assert store.arrow(name).to_pylist() == rows.to_pylist()
    assert sorted(map(repr, store.arrow(name).to_pylist())) == sorted(map(repr, rows.to_pylist()))


def test_texts_without_end_are_read_as_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "_MOST_TEXTS", 5)
    with open_journal(store) as made:
        for second in range(0, 40, 4):
            rows = readings(range(second, second + 4), quality=[f"text {one}" for one in range(second, second + 4)])
            made.append_batch(rows.to_batches()[0])
        found = store.sql("select quality from telemetry order by ts")["quality"].to_pylist()
        assert found == [f"text {second}" for second in range(40)]


def test_a_clock_that_steps_back_loses_no_correction(store: Store) -> None:
    clocks = [iter([BEGAN + 1000, BEGAN + 1001, *range(BEGAN, BEGAN + 50)]), iter(range(-(10**15), 0))]
    for second, now in enumerate(clocks):
        with Journal(store.root, "n", background=False, offline=True, clock=now.__next__) as made:
            for power in range(5):
                made.append_batch(batch(["a"], second, power))
                assert powers(store)["a", second] == power
            store.compact(offline=True)  # leaves it alone: its writer lives
    assert seen(store, plain=True) == {("a", 0): 4, ("a", 1): 4}


def test_a_correction_counts_also_where_its_journal_is_another_than_that_of_its_reading(store: Store) -> None:
    """Readings of the last half hour are in one file, older ones in another, and both are open at the same time."""
    clock = [BEGAN]
    with Journal(store.root, "n", background=False, offline=True, clock=lambda: clock[0]) as made:
        for minute, second, power in ((0, 0, 1), (31, 0, 2), (32, 1900, 3)):
            clock[0] = BEGAN + minute * 60 * 10**9
            made.append_batch(batch(["a"], second, power))
        assert len(journals(store)) == 2
        assert powers(store) == {("a", 0): 2, ("a", 1900): 3}
    assert seen(store, plain=True) == {("a", 0): 2, ("a", 1900): 3}


def test_the_name_of_a_journal_says_of_which_gpus_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a query for one GPU need not open the journals of a thousand nodes."""
    for name, gpus in (("n", ["a", "b"]), ("m", ["c"]), ("large", [f"g{gpu}" for gpu in range(17)])):
        leave_journal(store, batch(gpus, 1, 1), name=name)
    opened: list[str] = []
    real = journal_file.look

    def look(path: Path) -> Any:
        opened.append(path.name)
        return real(path)

    monkeypatch.setattr(journal_file, "look", look)
    assert store.sql("select power_mw from telemetry where gpu = 'b'").num_rows == 1
    assert sorted(name.split("-")[0] for name in opened) == ["large", "n"], "of many GPUs the name says nothing"


def test_durability_may_be_chosen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files, "sync", synced.append)
    with store.journal("n", durable_s=3600, background=False) as made:
        made.append_batch(batch(["a"], 0, 1))
        assert seen(store) == {("a", 0): 1}
        assert synced == []
        made.flush()
        assert len(synced) == 1
        assert str(made.durability) == "made durable every 3600 s (as requested)"


# -- sealing -----------------------------------------------------------------------------------------------------------
# Two processes at once, and processes that die, while a journal becomes files: every row counts once.


PACE = replacing.Pace(0.0, 0.0, 60.0)
STEPS = ["stored_keys", "_contested", "files_of", "placing"]
"""What a sealing does one after another; only from the last one on must others wait."""


def seal(store: Store, path: Path) -> None:
    named = journal_file.parse(path)
    assert named is not None
    with locked(path.with_name(f"{named.writer}.lock"), "the journal"):
        sealing.seal(store.root, [named], PACE)


def once_before(monkeypatch: pytest.MonkeyPatch, step: str, act: Any) -> None:
    """Something that happens once, just before a step of the next sealing."""
    real, acts = getattr(telemetry_files, step), iter([act])

    def with_act(*arguments: Any, **options: Any) -> Any:
        for due in acts:
            due()
        return real(*arguments, **options)

    monkeypatch.setattr(telemetry_files, step, with_act)


@pytest.mark.long(short=2)
@pytest.mark.parametrize("step", STEPS[::-1])
@pytest.mark.parametrize("is_newer", [True, False])
def test_two_journals_with_the_same_key_are_sealed_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, is_newer: bool
) -> None:
    names = ("one", "two") if is_newer else ("two", "one")
    paths = {}
    for power, name in enumerate(names, start=1):
        paths[name] = leave_journal(store, batch(["a"], 1, power), batch(["a"], 1 + power, power), name=name)
    once_before(monkeypatch, step, lambda: seal(store, paths["two"]))
    seal(store, paths["one"])
    assert seen(store, plain=True) == {("a", 1): 2, ("a", 2): 1, ("a", 3): 2}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("step", STEPS[::-1])
@pytest.mark.parametrize("has_late", [True, False])
def test_files_that_are_compacted_while_a_journal_is_compared_with_them(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, has_late: bool
) -> None:
    for first in (0, 10, 20):
        store.append({"telemetry": readings(range(first, first + 10))}, f"x{first}")
    expected = {("a", second): second for second in range(30)} | {("a", 4): 99, ("a", 50): 1}
    if has_late:
        store.append({"telemetry": readings([4, 5], power_mw=[40, 50])}, "late")
        expected["a", 5] = 50
    path = leave_journal(store, batch(["a"], 4, 99), batch(["a"], 50, 1))
    once_before(monkeypatch, step, lambda: Store.open(store.root).compact(offline=True, now=LATER))
    seal(store, path)
    assert seen(store, plain=True) == expected
    Store.open(store.root).compact(offline=True, now=LATER)
    assert seen(store, plain=True) == expected


def test_a_journal_is_compared_with_what_a_killed_process_has_committed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are in place only after somebody finished the commit: the journal must not be there before them."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    path = leave_journal(store, batch(["a"], 1, 1), batch(["a"], 2, 2))
    with monkeypatch.context() as patch:
        patch.setattr(commits, "_finish", killed)
        with pytest.raises(KeyboardInterrupt):
            store.append({"telemetry": readings([1], power_mw=[7])}, "killed")
    seal(store, path)
    assert seen(store, plain=True) == {("a", 1): 7, ("a", 2): 2}
