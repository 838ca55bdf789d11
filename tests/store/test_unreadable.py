"""Parts of a store that their owner may not read: each is named, and the rest goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store, compaction
from whorl.store.rows import soundness
from whorl.tests.store.journaler import batch
from whorl.tests.stores import new_store

NOBODY = 65_534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own are root's alone."""
    made = Path(tempfile.mkdtemp(prefix="whorl-test-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@contextlib.contextmanager
def as_nobody(root: Path) -> Iterator[None]:
    """A user without rights, who owns the store."""
    Store.open(root).check()  # loads what this user may not be able to load
    Store.open(root).sql("from runs")
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.long(short=2)
@pytest.mark.parametrize("name", ["journal", "replaced", "runs", "pending"])
def test_a_folder_that_its_owner_may_not_read_is_one_sentence(
    place: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
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
        for act in (lambda: opened.sql("from runs"), opened.check, lambda: compaction.compact(store.root)):
            with pytest.raises(StoreError, match=f"cannot read .*{name}: this user has no read permission there"):
                act()
    if name == "replaced":
        with as_nobody(store.root):
            store.journal("n", background=False)._hold.release()
        assert "rows of an earlier collector stay in its journal" in caplog.text


def test_a_journal_that_cannot_be_read_does_not_keep_the_rest_from_compaction(place: Path) -> None:
    store = new_store(place / "S")
    for name in ("a", "b"):
        journal = store.journal(name, background=False)
        journal.append_batch(batch([name], 0, 1))
        journal._hold.release()  # as if its process had died
    store.append({"telemetry": pa.table(batch(["a"], 2, 1).to_pydict())}, "before")
    for number in range(20):
        store.append({"runs": pa.table({"run_id": [f"r{number}"]})}, f"r{number}")
    with as_nobody(store.root):
        (unreadable,) = (store.root / "journal").glob("a-*.arrow")
        unreadable.chmod(0)
        with pytest.raises(StoreError, match=rf"{unreadable.name}: this user has no"):
            store.compact(offline=True)
        readings = pa.table(batch(["a"], 1, 1).to_pydict())
        assert store.append({"telemetry": readings}, "beside")
        assert "it cannot be read (Permission denied)" in store.check()[unreadable]
    assert sorted(path.name[:9] for path in (store.root / "runs").glob("*.parquet")) == ["_schema.p", "compacted"]
    assert [path.name[0] for path in (store.root / "journal").glob("*.arrow")] == ["a"]


def test_files_below_a_folder_that_was_closed_are_forgotten(place: Path) -> None:
    store = new_store(place / "store")
    store.append({"runs": pa.table({"run_id": ["a"], "cluster": ["c"]})}, "r")
    with as_nobody(store.root):
        (store.root / "runs").chmod(0)
        soundness.forget_gone()
        with pytest.raises(StoreError, match=r"cannot read .*runs"):
            store.sql("from runs")
        (store.root / "runs").chmod(0o755)
        assert store.sql("from runs").num_rows == 1
