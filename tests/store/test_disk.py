"""A full disk, one that fails, stores that cannot be read or written, and how a store is made and opened."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from whorl.errors import FormatError, StoreError
from whorl.store import Store, commits
from whorl.store.schema import FORMAT
from whorl.store.system import files, processes
from whorl.tests.sizes import count, sample
from whorl.tests.store.appender import group
from whorl.tests.store.flipped_bits import BEGAN, S
from whorl.tests.store.journaler import LATER, batch, journals, leave_journal, open_journal, powers, readings, seen
from whorl.tests.stores import new_store

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65_534
WRITING: list[Callable[[Store], object]] = [
    lambda store: store.append(group("b"), "b"),
    open_journal,
    lambda store: store.compact(offline=True),
    lambda store: store.prune("1d", offline=True),
]


def append(root: Path, size: int) -> None:
    ids = [f"big-{number}" for number in range(size)]
    values = np.random.default_rng(1).normal(size=size)
    runs = {"runs": pa.table({"run_id": ids}), "results": pa.table({"run_id": ids, "value": values})}
    Store.open(root).append(runs, "big")


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """As for this process, whose other files stay short meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # it would be cut, and no later process could read it
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before[0])
        sys.dont_write_bytecode = before[1]


def content(root: Path) -> dict[str, bytes]:
    """All files but the list of those that were looked at."""
    every = (path for path in root.rglob("*") if path.is_file() and path.name != "verified.log")
    return {str(path.relative_to(root)): path.read_bytes() for path in every}


def nothing_was_stored(root: Path, size: int, before: dict[str, bytes]) -> None:
    with pytest.raises(StoreError, match="no space is left there; what was stored before stays") as raised:
        append(root, size)
    assert "\n" not in str(raised.value)
    assert content(root) == before
    store = Store.open(root)
    assert store.check() == {}
    assert sorted(store.arrow("runs")["run_id"].to_pylist()) == ["a-0", "a-1", "a-2"]


@pytest.mark.long(short=1)
@pytest.mark.parametrize("limit", [20_000, 1, 5_000])
def test_a_file_size_limit(tmp_path: Path, limit: int) -> None:
    root = tmp_path / "s"
    new_store(root).append(group("a"), "a")
    before = content(root)
    with no_file_longer_than(limit):
        nothing_was_stored(root, 50_000, before)
    append(root, 50_000)
    assert len(Store.open(root).arrow("results")) == 50_003


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.5 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1536k", "tmpfs", place], capture_output=True, text=True, check=False
    ) if shutil.which("mount") else None  # fmt: skip
    if made is None or made.returncode:
        pytest.skip(f"cannot mount a small file system: {made.stderr.strip() if made else 'there is no mount'}")
    yield place
    gc.collect()  # what an exception still refers to may hold a file open
    for _ in range(50):  # Arrow's threads close theirs when they get to it
        if not subprocess.run(["umount", place], capture_output=True, check=False).returncode:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "--lazy", place], check=True)
    pytest.fail(f"{place} is still in use")


def fill(place: Path, but: int) -> Path:
    filler = place / "filler"
    filler.write_bytes(bytes(max(0, os.statvfs(place).f_bavail * os.statvfs(place).f_frsize - but)))
    return filler


@pytest.mark.long
def test_a_full_file_system_refuses_appends_journals_seals_and_compactions(small: Path) -> None:
    root = small / "s"
    store = new_store(root)
    store.append(group("a"), "a")
    before = content(root)
    nothing_was_stored(root, 200_000, before)
    filler = fill(small, 150_000)
    nothing_was_stored(root, 20_000, before)  # the second of two files does not fit, either
    filler.unlink()
    for number in range(10):
        store.append({"telemetry": readings(range(500 * number, 500 * number + 500))}, f"x{number}")
    with open_journal(store) as journal:
        journal.append_batch(batch(["a"], 6000, 1))
        expected = seen(store)
        filler = fill(small, 4_096)

        def fill_journal() -> None:
            for _ in range(9):
                journal.append_batch(batch([f"a{number}" for number in range(200)], 6001, 1))

        for act in (
            fill_journal,
            journal.seal,
            lambda: store.compact(offline=True, now=LATER),
            lambda: store.prune("1d", offline=True, now=LATER),
        ):
            with pytest.raises(StoreError, match="no space is left there"):
                act()
        found = powers(Store.open(root))
        assert expected.items() <= found.items()
        filler.unlink()
    assert seen(store, plain=True) == found
    store.compact(offline=True, now=LATER)
    assert seen(store, plain=True) == found
    assert store.check() == {}


def test_a_moved_store_on_a_read_only_file_system_is_read_without_a_warning(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store(small / "s")
    store.append(group("a"), "a")
    leave_journal(store, batch(["a"], 1, 1))
    root = (small / "s").rename(small / "moved")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    opened = Store.open(root)
    assert (len(opened.arrow("runs")), seen(opened)) == (3, {("a", 1): 1})
    assert caplog.text == ""
    for act in WRITING:
        with pytest.raises(StoreError, match="its file system is read-only here"):
            act(opened)


@pytest.mark.long
def test_no_room_for_a_new_store(small: Path) -> None:
    filler = fill(small, 60_000)
    with pytest.raises(StoreError, match="cannot write") as raised:
        Store.create(small / "s")
    assert "\n" not in str(raised.value)
    assert list((small / "s").rglob(f"{files.TEMPORARY}*")) == []
    filler.unlink()
    Store.create(small / "s").append(group("a"), "a")
    assert len(Store.open(small / "s").arrow("runs")) == 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO])
def test_sentences(code: int) -> None:
    sentence = str(files.failed("write", Path("/s/x"), OSError(code, os.strerror(code))))
    assert sentence.startswith("cannot write /s/x: ")
    assert "Errno" not in sentence
    assert ("permission" in sentence) == (code == errno.EACCES)
    assert ("read-only" in sentence) == (code == errno.EROFS)
    assert "nothing was stored" not in sentence  # a collector that cannot seal its journal has stored its rows


# -- a disk that fails ---------------------------------------------------------------------------------------------


@pytest.mark.long(short=1)
@pytest.mark.parametrize("folder", ["journal", "telemetry", "pending", "late", "replaced"])
def test_a_disk_that_does_not_list_a_folder_is_named_and_stores_nothing(
    store: Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_journal(store, batch(["a"], 0, 1))
    store.append(group("z"), "z")
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == str(store.root / folder):
            raise OSError(5, os.strerror(5), str(path))
        return real(path)

    rows = {**group("a"), "telemetry": readings([0], "b")}
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        acts: list[Callable[[], object]] = [lambda: powers(store), lambda: store.compact(offline=True), store.check]
        acts += [lambda: store.append(rows, "a")] if folder != "journal" else []
        for act in [lambda: Store.open(store.root)] if folder == "pending" else acts:
            with pytest.raises(StoreError, match=f"cannot read .*{folder}: Input/output error"):
                act()
    assert sorted(store.arrow("imports")["import_id"].to_pylist()) == ["z"]
    store.append(rows, "a")
    assert seen(store) == {("a", 0): 1, ("b", 0): 0}


def test_a_disk_that_fails_as_a_store_is_found_is_a_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.exists

    def exists(path: Path, *words: Any) -> bool:
        if path.name == "store.toml":
            raise OSError(5, "Input/output error", str(path))
        return real(path, *words)

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(StoreError, match=r"cannot read .*store.toml: Input/output error"):
        Store.create(store.root)


@pytest.mark.parametrize("call", ["lstat", "open"])
def test_a_moment_in_which_a_file_cannot_be_read_stores_no_row_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.append({"telemetry": readings(range(3))}, "first")
    real, calls = getattr(os, call), iter(range(1))

    def failing(path: Any, *words: Any, **more: Any) -> Any:
        if not isinstance(path, int) and Path(path).name.startswith("first") and next(calls, None) is not None:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with contextlib.suppress(StoreError):
            store.append({"telemetry": readings(range(2), power_mw=[5, 5])}, "again")
    rows = store.arrow("telemetry")
    assert len(rows) == 3
    assert store.check() == {}


def test_temporary_files_of_dead_writers_are_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = time.time() + 30 * 86_400  # a host's clock: ages are by that of the file server
    monkeypatch.setattr(time, "time", lambda: ahead)
    host, namespace = processes.host(), processes.pid_namespace()
    owners = {
        "mine": (processes.owner(), 0), "dead": (f"{host}-{namespace}-999999999-0", 0),
        "elsewhere": (f"elsewhere-{namespace}-999999999-0", 0), "container": (f"{host}-00000000-9-0", 0),
        "old container": (f"{host}-00000000-9-1", 40 * 86_400),
    }  # fmt: skip
    paths = {name: store.root / "runs" / f"{files.TEMPORARY}{owner}" for name, (owner, _) in owners.items()}
    for name, path in paths.items():
        path.write_bytes(b"half")
        if owners[name][1]:
            os.utime(path, (ahead - owners[name][1],) * 2)
    store.compact(offline=True)
    assert {name for name, path in paths.items() if path.exists()} == {"mine", "elsewhere", "container"}


def test_losing_a_temporary_file_is_an_error_and_not_silence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when another host takes this process for dead."""
    real = commits._finish

    def finish(root: Path, intent: Path) -> None:
        next((root / "results").glob(f"{files.TEMPORARY}*")).unlink()
        real(root, intent)

    monkeypatch.setattr(commits, "_finish", finish)
    with pytest.raises(StoreError, match="somebody removed its temporary file"):
        store.append(group("a"), "a")


# -- what its owner may not read or write ------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own are root's alone."""
    made = Path(tempfile.mkdtemp(prefix="whorl-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def as_nobody(root: Path, *, owner: int = NOBODY) -> Iterator[None]:
    """A user without rights, who owns the store or not."""
    seen(Store.open(root))  # loads what this user may not be able to load
    Store.open(root).check()
    for path in (root, *root.rglob("*")):
        os.chown(path, owner, owner)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@as_root
@pytest.mark.long(short=2)
@pytest.mark.parametrize("name", ["journal", "pending", "replaced", "runs"])
def test_a_folder_that_its_owner_may_not_read_is_one_sentence(place: Path, name: str) -> None:
    store = new_store(place / "S")
    store.append({"runs": pa.table({"run_id": ["r"]})}, "x")
    for folder in ("journal", "pending"):
        (store.root / folder).mkdir(exist_ok=True)
    with as_nobody(store.root):
        (store.root / name).chmod(0)
        opened = Store.open(store.root)
        if name == "pending":
            assert opened.sql("select count(*) n from runs").to_pylist() == [{"n": 1}]
            with pytest.raises(StoreError, match=r"cannot write .*pending.*: this user has no write permission there"):
                opened.append({"runs": pa.table({"run_id": ["s"]})}, "y")
            return
        for act in (lambda: opened.sql("from runs, telemetry"), opened.check, lambda: opened.compact(offline=True)):
            with pytest.raises(StoreError, match=f"cannot read .*{name}.*: this user has no read permission there"):
                act()


@pytest.mark.long
@as_root
def test_a_journal_that_cannot_be_read_does_not_keep_the_rest_from_compaction(place: Path) -> None:
    store = new_store(place / "S")
    for name in ("a", "b"):
        leave_journal(store, batch([name], 0, 1), name=name)
    for number in range(20):
        store.append({"runs": pa.table({"run_id": [f"r{number}"]})}, f"r{number}")
    with as_nobody(store.root):
        (unreadable,) = (path for path in journals(store) if path.name[0] == "a")
        unreadable.chmod(0)
        opened = Store.open(store.root)
        assert opened.compact(offline=True).open_journals == [str(unreadable)]
        assert opened.append({"telemetry": readings([1])}, "beside")
        assert "it cannot be read (Permission denied)" in opened.check()[unreadable]
        assert seen(opened) == {("b", 0): 1, ("a", 1): 1}
        assert "Permission denied" in opened.skipped[unreadable]
    assert len(list((store.root / "runs").glob("compacted*.parquet"))) == 1
    assert seen(store) == {("a", 0): 1, ("b", 0): 1, ("a", 1): 1}


@as_root
def test_a_store_that_this_user_may_only_read(place: Path) -> None:
    """In its place or moved, with what a dead writer left."""
    for name in ("there", "moved"):
        store = new_store(place / f"old-{name}")
        store.append(group("a"), "a")
        leave_journal(store, batch(["a"], 1, 1))
        root = store.root.rename(place / name) if name == "moved" else store.root
        with as_nobody(root, owner=0):
            before = content(root)
            opened = Store.open(root)
            assert (len(opened.arrow("runs")), seen(opened)) == (3, {("a", 1): 1})
            for act in WRITING:
                with pytest.raises(StoreError, match="this user has no write permission there: change the"):
                    act(opened)
        assert content(root) == before


# -- store.toml --------------------------------------------------------------------------------------------------------


def test_a_damaged_store_toml_is_a_sentence(store: Store) -> None:
    for text in (
        b"", b"\xff\xfe", b"format = ", b"format = 'one'", b"format = true", b"format = 0", b"format = 1.5",
        b"format = -1", b"format = " + b"9" * 5000, b"formats = 1", b"a = " + b"[" * 5000, b"\x00" * 50,
    ):  # fmt: skip
        (store.root / "store.toml").write_bytes(text)
        with pytest.raises(StoreError, match=r"store\.toml is damaged \(.*restore it from a backup"):
            Store.open(store.root)


def test_a_place_that_no_path_can_be_is_written_anew(store: Store) -> None:
    about = store.root / "store.toml"
    about.write_text(f'format = {FORMAT}\nplace = "a\\u0000b"\n')
    Store.open(store.root)
    assert str(store.root.resolve()) in about.read_text()


def test_a_missing_or_newer_or_older_store_is_a_sentence(store: Store, tmp_path: Path) -> None:
    about = store.root / "store.toml"
    about.write_text(f'format = {FORMAT + 1}\ncreated_by = "whorl 9"\n')
    with pytest.raises(FormatError, match=r"made by whorl 9.*install a newer whorl"):
        Store.open(store.root)
    about.write_text(f"format = {FORMAT - 1}\n")
    with pytest.raises(FormatError, match=f"has format {FORMAT - 1}"):
        Store.open(store.root)
    about.unlink()
    for path, says in (
        (store.root, r"has no store\.toml|interrupted"), (tmp_path / "nowhere", "it does not exist"),
        (store.root / "whorl.duckdb", "cannot read"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=says):
            Store.open(path)
    about.mkdir()
    with pytest.raises(StoreError, match="cannot read"):
        Store.open(store.root)


def test_a_store_that_was_interrupted_while_it_was_made_is_taken_up(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "S")
    (store.root / "store.toml").unlink()
    shutil.rmtree(store.root / "events")
    with pytest.raises(StoreError, match="interrupted while it was made; run the command"):
        Store.open(store.root)
    assert Store.create(store.root).sql("select count(*) n from events").to_pylist() == [{"n": 0}]


def test_a_folder_of_other_things_is_not_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match="has other contents"):
        Store.create(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        Store.create(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# -- bad disks ---------------------------------------------------------------------------------------------------------
# Disks that turn a bit, or lost their power: a part of what two programs here try, with a seed for each day.


SEED = time.strftime("%Y%m%d")


def results(name: str, option: str, number: int) -> Any:
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), option, str(number), "--seed", SEED]
    print("python", *command[1:])  # noqa: T201 - shown where the test fails
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_no_bit_that_is_turned_gives_another_answer_without_a_word() -> None:
    answer = results("flipped_bits", "--flips", count(10_000, short=100))
    assert answer["first_wrong"] == {}, SEED
    assert min(sum(answer["totals"][case].values()) for case in ("before", "after")) > 200


@pytest.mark.long
def test_no_acknowledged_row_is_lost_or_doubled_where_power_is_lost() -> None:
    answer = results("power_loss", "--images", count(10_000, short=67))
    assert answer["wrong"] == [], SEED
    assert min(answer["operations"][name] for name in ("write", "sync", "rename", "unlink", "ack")) > 10


def test_a_bit_of_the_last_block_of_a_journal_is_no_end_that_was_never_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A block whose length grew by a bit looks like one that power cut short."""
    store = new_store(tmp_path / "store")
    journal = store.journal("n", durable_s=0, background=False, offline=True)
    lengths = []
    for second in range(4):
        journal.append(BEGAN + second * S, ["a"], {"cluster": "c", "power_mw": [second]})
        (path,) = (store.root / "journal").glob("n-*.journal")
        lengths.append(path.stat().st_size)
    content = path.read_bytes()
    for bit in sample(range(8 * lengths[-2], 8 * lengths[-1]), short=30):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            store = Store.open(store.root)
            assert len(store.arrow("telemetry")) == 3, bit
        assert path.name in caplog.text, bit
    path.write_bytes(content[:-1])
    caplog.clear()
    assert len(Store.open(store.root).arrow("telemetry")) == 3
    assert path.name not in caplog.text
