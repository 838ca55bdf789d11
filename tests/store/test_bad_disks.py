"""Disks that turn a bit, or lost their power: a part of what two programs here try, with a seed for each day."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whorl.store import Store
from whorl.tests.sizes import count, sample
from whorl.tests.store.flipped_bits import BEGAN, S
from whorl.tests.stores import new_store

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
