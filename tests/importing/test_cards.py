"""Files that number the GPUs of a node, of times before a card was exchanged or GPUs were numbered anew."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Report, import_file
from whorl.store.schema import arrow_rows

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

OLD, NEW, OTHER = (f"GPU-aaaaaaaa-0000-0000-0000-00000000000{n}" for n in range(3))


@pytest.fixture
def exchanged(store: Store) -> Store:
    """A store that knows: the card in slot 1 of n01 was exchanged on 5 November."""
    known = {"gpu": [OLD, NEW, OTHER], "uuid": [OLD, NEW, OTHER], "slot": [1, 1, 0]}
    known |= {
        "cluster": ["fleet"] * 3,
        "node": ["n01"] * 3,
        "first_seen": [dt.datetime(2026, 11, d) for d in (1, 5, 1)],
    }
    store.append({"gpus": arrow_rows("gpus", known)}, "gpus")
    return store


def read(store: Store, path: Path, lines: list[str], **options: object) -> Report:
    path.write_text("\n".join([*lines, ""]))
    return import_file(store, path, Options(**options))  # type: ignore[arg-type]


def test_runs_belong_to_the_card_that_was_there(exchanged: Store, tmp_path: Path) -> None:
    """One before the store knew the slot, one of each card, and one of a time that is not known."""
    rows = [f"n01,1,{when},{20 + n}" for n, when in enumerate(["2026-10-01 10:00:00", "2026-11-04 10:00:00",
            "2026-11-06 10:00:00", ""])]  # fmt: skip
    columns = {"host": "node", "number": "index", "when": "began", "ms": "time:ms"}
    read(exchanged, tmp_path / "gemm.csv", ["host,number,when,ms", *rows], columns=columns)
    found = exchanged.sql("select gpu, value from results where figure = 'time' order by value").to_pylist()
    assert [row["gpu"] for row in found] == [OLD, OLD, NEW, NEW]


def test_gpus_that_the_store_knows_by_number_only_are_told_of(store: Store, tmp_path: Path) -> None:
    numbers = ["timestamp,index,power.draw [W]", "2026/11/02 10:00:00,0,100", "2026/11/02 10:00:00,1,100"]
    read(store, tmp_path / "numbers.csv", numbers, node="n01")
    uuids = [
        "timestamp,index,uuid,power.draw [W]",
        f"2026/11/02 10:00:05,1,{OLD},100",
        f"2026/11/02 10:00:05,2,{NEW},9",
    ]
    (note,) = [note for note in read(store, tmp_path / "uuids.csv", uuids, node="n01").notes if "UUIDs" in note]
    assert note.startswith("the store knows n01/1 by node and number only, and this file has UUIDs there")
