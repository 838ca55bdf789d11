"""A full disk and a store that this user may not write: a sentence, and nothing torn."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.system import files, processes
from whorl.tests.store.appender import group
from whorl.tests.stores import new_store


@pytest.fixture
def views_are_copied() -> None:
    """A store is made as it is where the disk is full."""


def append(root: Path, size: int) -> None:
    store = Store.open(root)
    ids = [f"big-{i}" for i in range(size)]
    values = np.random.default_rng(1).normal(size=size)
    store.append({"runs": pa.table({"run_id": ids}), "results": pa.table({"run_id": ids, "value": values})}, "big")


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
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


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


def test_a_full_file_system(small: Path) -> None:
    root = small / "s"
    new_store(root).append(group("a"), "a")
    before = content(root)
    nothing_was_stored(root, 200_000, before)
    # The second of two files does not fit, either.
    filler = small / "filler"
    filler.write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize - 150_000))
    nothing_was_stored(root, 20_000, before)
    filler.unlink()
    append(root, 20_000)
    assert len(Store.open(root).arrow("results")) == 20_003


def test_a_moved_store_on_a_read_only_file_system_is_read_without_a_warning(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_store(small / "s").append(group("a"), "a")
    root = (small / "s").rename(small / "moved")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert len(Store.open(root).arrow("runs")) == 3
    assert caplog.text == ""
    with pytest.raises(StoreError, match="its file system is read-only here"):
        Store.open(root).append(group("b"), "b")


@pytest.mark.long
def test_no_room_for_a_new_store(small: Path) -> None:
    filler = small / "filler"
    filler.write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize - 60_000))
    with pytest.raises(StoreError, match="cannot write") as raised:
        Store.create(small / "s")
    assert "\n" not in str(raised.value)
    assert [p.name for p in (small / "s").rglob("*") if p.name.startswith(files.TEMPORARY)] == []
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


AS_NOBODY = """
import os, sys
import duckdb, polars, pyarrow.dataset, pyarrow.parquet, pyarrow as pa  # while this user may read them
from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.readers import query
os.setgid(65534)
os.setuid(65534)
for root in sys.argv[1:]:
    store = Store.open(root)
    assert not store.writable()
    assert len(store.arrow("runs")) == len(store.scan("runs").collect()) == 3
    assert store.sql("select count(*) n from measurements")["n"].to_pylist() == [3]
    try:
        store.append({"runs": pa.table({"run_id": ["x"]})}, "x")
    except StoreError as error:
        print(error)
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_that_this_user_may_only_read() -> None:
    """In its place or moved, tidy or with what a dead writer left."""
    place = Path(tempfile.mkdtemp(prefix="whorl-test-", dir="/tmp"))  # pytest's own folders are root's alone
    try:
        roots = []
        for name in ("tidy", "with-leftovers", "moved-tidy", "moved-with-leftovers"):
            root = place / name.replace("moved", "old")
            new_store(root).append(group("a"), "a")
            if name.endswith("with-leftovers"):
                left = f"{files.TEMPORARY}{processes.host()}-{processes.pid_namespace()}-999999999-0"
                (root / "runs" / left).write_bytes(b"half")
                (root / "pending" / "x-0.json").write_text('{"format": 3, "moves": []}')
            roots.append(root.rename(place / name))
        place.chmod(0o755)
        before = content(place)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, *roots], capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        sentences = done.stdout.splitlines()
        assert len(sentences) == len(roots)
        for root, sentence in zip(roots, sentences, strict=True):
            assert str(root) in sentence
            assert "this user has no write permission there: change the permissions" in sentence
        assert content(place) == before
    finally:
        shutil.rmtree(place)
