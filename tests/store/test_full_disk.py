"""A full disk and a store that this user may not write: a sentence, and nothing torn."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whorl.errors import StoreError
from whorl.store import Store, files, processes
from whorl.tests.store.appender import group

WHORL = [sys.executable, "-m", "whorl"]

APPEND = """
import resource, signal, sys
import numpy, pyarrow as pa
from whorl.errors import WhorlError
from whorl.store import Store
size, limit = int(sys.argv[2]), int(sys.argv[3])
store = Store.open(sys.argv[1])
ids = [f"big-{i}" for i in range(size)]
values = numpy.random.default_rng(1).normal(size=size)
rows = {"runs": pa.table({"run_id": ids}), "results": pa.table({"run_id": ids, "value": values})}
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    store.append(rows, "big")
except WhorlError as error:
    sys.exit(str(error))
"""


def append(store: Path, size: int, limit: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", APPEND, store, str(size), str(limit)], capture_output=True, text=True, check=False
    )


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def nothing_was_stored(done: subprocess.CompletedProcess[str], root: Path, before: dict[str, bytes]) -> None:
    assert done.returncode == 1
    assert "no space is left there; nothing was stored" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert content(root) == before
    store = Store.open(root)
    assert store.check() == {}
    assert sorted(store.arrow("runs")["run_id"].to_pylist()) == ["a-0", "a-1", "a-2"]


@pytest.mark.parametrize("limit", [1, 100, 5_000, 20_000])
def test_a_file_size_limit(tmp_path: Path, limit: int) -> None:
    root = tmp_path / "s"
    Store.create(root).append(group("a"), "a")
    before = content(root)
    nothing_was_stored(append(root, 50_000, limit), root, before)
    assert append(root, 50_000).returncode == 0
    assert len(Store.open(root).arrow("results")) == 50_003


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, text=True, check=False
    ) if shutil.which("mount") else None  # fmt: skip
    if made is None or made.returncode:
        pytest.skip(f"cannot mount a small file system: {made.stderr.strip() if made else 'there is no mount'}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_file_system(small: Path) -> None:
    root = small / "s"
    Store.create(root).append(group("a"), "a")
    before = content(root)
    nothing_was_stored(append(root, 200_000), root, before)
    # The second of two files does not fit, either.
    filler = small / "filler"
    filler.write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize - 150_000))
    nothing_was_stored(append(root, 20_000), root, before)
    filler.unlink()
    assert append(root, 20_000).returncode == 0
    assert len(Store.open(root).arrow("results")) == 20_003


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


AS_NOBODY = """
import os, sys
import duckdb, polars, pyarrow.dataset, pyarrow.parquet, pyarrow as pa  # while this user may read them
from whorl.errors import StoreError
from whorl.store import Store, query
os.setgid(65534)
os.setuid(65534)
store = Store.open(sys.argv[1])
assert not store.writable()
assert len(store.arrow("runs")) == len(store.scan("runs").collect()) == 3
assert store.sql("select count(*) n from measurements")["n"].to_pylist() == [3]
try:
    store.append({"runs": pa.table({"run_id": ["x"]})}, "x")
except StoreError as error:
    sys.exit(str(error))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("left", [False, True], ids=["tidy", "with-leftovers"])
@pytest.mark.parametrize("moved", [False, True], ids=["in-place", "moved"])
def test_a_store_that_this_user_may_only_read(tmp_path: Path, left: bool, moved: bool) -> None:
    place = Path("/tmp", f"whorl-test-{os.getpid()}-{left}-{moved}")  # pytest's own folders are root's alone
    root = place / "s"
    try:
        made = Store.create(root)
        made.append(group("a"), "a")
        place.chmod(0o755)
        if left:
            dead = f"{processes.host()}-{processes.pid_namespace()}-999999999-0"
            (root / "runs" / f"{files.TEMPORARY}{dead}").write_bytes(b"half")
            (root / "pending" / "x-0.json").write_text('{"format": 1, "moves": []}')
        if moved:
            root.rename(place / "t")
            root = place / "t"
        before = content(root)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, root], capture_output=True, text=True, check=False, cwd="/"
        )
        assert "this user may not write there: change the folder's permissions" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert done.returncode == 1
        assert content(root) == before
    finally:
        shutil.rmtree(place)
