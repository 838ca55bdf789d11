"""A store that a group shares: what one user makes there, the others can read, and they can write beside it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.store import Store
from whorl.store.system import files
from whorl.tests.store.journaler import open_journal

ROWS = pa.table({"run_id": ["a"], "gpu": ["g"], "cluster": ["c"]})


@pytest.fixture
def views_are_copied() -> None:
    """A copied store has the permissions of its template."""


@pytest.fixture(autouse=True)
def closed_umask() -> Iterator[None]:
    """A user whose files nobody else may read by default."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def filled(root: Path) -> Store:
    store = Store.create(root)
    readings = pa.table({"ts": pa.array([1], pa.timestamp("ns")), "gpu": ["g"], "cluster": ["c"], "power_mw": [7]})
    store.append({"runs": ROWS, "telemetry": readings}, "one")
    with open_journal(store, "n01.runs") as journal:
        journal.append_batch(ROWS.to_batches()[0], "runs")
        path = next(store.root.glob("journal/*.journal"))
        assert mode(path) & 0o040 == store.root.stat().st_mode & 0o040
        journal.seal()
        store.compact(offline=True)
    return store


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.long
def test_in_a_folder_of_a_group_a_store_is_the_groups(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    store = filled(tmp_path / "S")
    assert list(store.root.glob("replaced/0*.parquet"))
    (store.root / "verified.log").unlink()  # nobody believes what another user has found sound
    for path in (store.root, *store.root.rglob("*")):
        wanted = 0o070 if path.is_dir() else 0o060 if path.suffix == ".lock" else 0o040
        assert mode(path) & 0o077 == wanted, path
        assert not path.is_dir() or mode(path) & stat.S_ISGID, path


@pytest.mark.long
@pytest.mark.parametrize("above", [0o755, 0o770, 0o1777, 0o2750])
def test_in_any_other_folder_it_is_the_users_own(tmp_path: Path, above: int) -> None:
    tmp_path.chmod(above)
    store = filled(tmp_path / "S")
    assert [path for path in (store.root, *store.root.rglob("*")) if mode(path) & 0o077] == []


@pytest.mark.long
def test_a_store_in_a_folder_that_anybody_may_write_to_is_not_for_anybody(tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)
    store = filled(tmp_path / "S")
    assert [path for path in (store.root, *store.root.rglob("*")) if mode(path) & 0o007] == []


@pytest.mark.long
def test_a_store_that_was_there_keeps_its_permissions(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    (tmp_path / "S").mkdir(mode=0o700)
    (tmp_path / "S").chmod(0o700)
    assert mode(filled(tmp_path / "S").root) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_folder_that_another_user_has_just_made_is_waited_for_until_it_is_shared() -> None:
    place = Path(tempfile.mkdtemp(prefix="whorl-test-", dir="/tmp"))  # pytest's own are root's alone
    place.chmod(0o777)
    (place / "runs").mkdir(mode=0o700)
    maker = os.fork()
    if not maker:
        time.sleep(0.1)
        (place / "runs").chmod(0o777)
        os._exit(0)
    os.seteuid(65534)
    try:
        files.make_folder(place / "runs")
        assert os.access(place / "runs", os.W_OK, effective_ids=True)
    finally:
        os.seteuid(0)
        os.waitpid(maker, 0)
        shutil.rmtree(place)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="Linux only")
def test_a_folder_that_cannot_be_made_is_named_where_the_system_calls_it_missing() -> None:
    with pytest.raises(FileNotFoundError, match="whorl"):
        files.make_folder(Path("/proc/whorl/runs"))


def test_the_folder_of_this_process_becomes_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert filled(Path()).sql("select power_mw from telemetry").to_pylist() == [{"power_mw": 7}]
