"""Files that the kernel makes durable while the process goes on, and journals that use it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from whorl.errors import StoreError
from whorl.store import journal
from whorl.store.system import background, files
from whorl.store.system.background import open_background
from whorl.tests.store.journaler import batch
from whorl.tests.stores import new_store

ROWS = "select gpu, power_mw from telemetry order by all"


@pytest.fixture
def handle(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)


def test_files_are_made_durable_and_may_be_closed_meanwhile(handle: int, tmp_path: Path) -> None:
    kernel = open_background(handle)
    if kernel is None:
        pytest.skip("this kernel makes nothing durable in the background")
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    os.write(other, b"x")
    kernel.begin([handle, other])
    os.close(handle)
    os.close(other)
    assert kernel.under_way == 2
    assert kernel.ended(wait=True)
    assert kernel.under_way == 0
    assert kernel.ended()
    kernel.close()
    kernel.close()


def test_several_flushes_are_under_way_and_no_more_than_a_few(handle: int) -> None:
    kernel = open_background(handle)
    if kernel is None:
        pytest.skip("this kernel makes nothing durable in the background")
    begun = most = 0
    while begun < 50:
        os.write(handle, b"x")
        if kernel.ready():
            kernel.begin([handle])
            begun += 1
        most = max(most, kernel.under_way)
    assert 1 < most <= 4
    assert kernel.ended(wait=True)
    assert kernel.ready()
    kernel.close()


def test_what_cannot_be_made_durable_is_an_error(handle: int) -> None:
    kernel = open_background(handle)
    if kernel is None:
        pytest.skip("this kernel makes nothing durable in the background")
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        kernel.begin([10_000])
    reading, writing = os.pipe()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):  # a pipe cannot be
        kernel.begin([writing])
    os.close(reading)
    os.close(writing)
    kernel.close()
    assert open_background(10_000) is None


@pytest.mark.long
@pytest.mark.parametrize("able", [True, False], ids=["in the background", "at once"])
def test_a_journal_is_made_durable_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    store = new_store(tmp_path / "store")
    if not able:
        monkeypatch.setattr(background, "_NUMBERS", {})
    with store.journal("n", durable_s=0, background=False, offline=True) as one:
        one.append_batch(batch(["a"], 0, 1), sync=False)
        synced: list[int] = []
        monkeypatch.setattr(files, "sync", synced.append)
        one.flush_soon()
        assert bool(synced) != able
        assert store.sql(ROWS).to_pylist() == [{"gpu": "a", "power_mw": 1}]
        template = one.template(batch(["a"], 1, 2))
        for second in range(5):
            where = template.offsets["ts"]
            template.message[where : where + 8] = (second * 10**9).to_bytes(8, "little")
            assert one.append_template(template, sync=False)
            one.flush_soon()
        monkeypatch.undo()
    assert len(store.sql(ROWS).to_pylist()) == 6


def test_a_disk_that_fails_in_the_background_is_told_at_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def begin(self, handles: list[int]) -> None:
            assert handles

        def ready(self) -> bool:
            raise OSError(errno.EIO, "the disk failed")

        def ended(self, *, wait: bool) -> bool:
            assert wait
            return True

        def close(self) -> None:
            pass

    store = new_store(tmp_path / "store")
    monkeypatch.setattr(journal, "open_background", lambda _handle: Failing())
    with store.journal("n", durable_s=0, background=False, offline=True) as one:
        one.append_batch(batch(["a"], 0, 1), sync=False)
        with pytest.raises(StoreError, match="the disk failed"):
            one.flush_soon()


KILLED = """
import os, signal, sys
from whorl.store import Store
from whorl.tests.store.journaler import batch
journal = Store.open(sys.argv[1]).journal("n", durable_s=0, background=False)
for second in range(50):
    journal.append_batch(batch(["a"], second, second), sync=False)
    journal.flush_soon()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_loses_nothing_that_was_appended(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    done = subprocess.run([sys.executable, "-c", KILLED, store.root], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [row["power_mw"] for row in store.sql(ROWS).to_pylist()] == list(range(50))
