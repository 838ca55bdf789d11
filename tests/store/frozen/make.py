"""Makes the frozen store of format 4 and its answers: `python -m whorl.tests.store.frozen.make`.

It was run once, at the end of the work on this format. Every later whorl reads what it made: make it anew only while
the format is not released. `whorl.duckdb` is left out, as whorl writes the views of a copy anew.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from whorl.store import Store
from whorl.store.schema import CATALOG, TABLES, TELEMETRY, arrow_schema
from whorl.tests.store.frozen.answers import ANSWERS, FROZEN, answers

GPUS = [f"GPU-0000000{n}-aaaa-bbbb-cccc-000000000000" for n in range(4)]
FIRST_DAY = 1_767_225_600_000_000  # us: 2026-01-01
DAY = 86_400_000_000
READINGS = 12  # of a GPU and a day


def value(kind: pa.DataType, row: int, name: str) -> Any:
    """A value of a type, other in each row."""
    if pa.types.is_map(kind):
        return [
            (f"key {row}", value(kind.item_type, row, name)),
            ("zwei, 'drei'", value(kind.item_type, row + 1, name)),
        ]
    if pa.types.is_list(kind):
        return [value(kind.value_type, row + n, name) for n in range(row % 3)]
    if pa.types.is_struct(kind):
        return {one.name: value(one.type, row + n, name) for n, one in enumerate(kind)}
    if pa.types.is_timestamp(kind):
        return FIRST_DAY + 1_000_000 * row
    if pa.types.is_boolean(kind):
        return row % 2 == 0
    if pa.types.is_integer(kind):
        return 7 * row + len(name)
    return 0.125 * row + len(name) if pa.types.is_floating(kind) else f"{name} {row} µ"


def rows_of(name: str) -> pa.Table:
    """Four rows of a table: the last has NULL wherever a key does not need a value."""
    columns = {}
    for one in arrow_schema(name):
        values = [value(one.type, row, one.name) for row in range(3)]
        fixed = {"cluster": "frozen", "gpu": GPUS[3], "run_id": "run_id 3"}.get(one.name)
        if one.name in ("gpu", "uuid"):
            values = GPUS[:3]
        if one.name == "cluster":
            values = ["frozen"] * 3
        columns[one.name] = pa.array([*values, fixed], one.type)
    return pa.table(columns)


def readings(day: int, first: int = 0, count: int = READINGS, more: int = 0) -> pa.Table:
    """Readings of all GPUs of a day, 20 s apart; `more` is added to each number."""
    columns: dict[str, Any] = {}
    pairs = [(gpu, number) for gpu in range(len(GPUS)) for number in range(first, first + count)]
    for place, one in enumerate(arrow_schema(TELEMETRY.name)):
        values: list[Any] = [
            None if (gpu + number + place) % 7 == 0 else 1000 * place + 10 * gpu + number + more
            for gpu, number in pairs
        ]
        if one.name == "ts":
            values = [FIRST_DAY + day * DAY + 20_000_000 * number for _, number in pairs]
        elif pa.types.is_string(one.type):
            values = [None if text is None else f"mark {text}" for text in values]
        columns[one.name] = pa.array(values, one.type)
    columns["cluster"] = pa.array(["frozen"] * len(pairs))
    columns["gpu"] = pa.array([GPUS[gpu] for gpu, _ in pairs])
    columns["import_id"] = pa.nulls(len(pairs), pa.string())
    return pa.table(columns)


def make(root: Path) -> None:
    """Make the store. Its journals are those of a process that ends without a word."""
    store = Store.create(root)
    store.append({spec.name: rows_of(spec.name) for spec in TABLES if not spec.made and spec != TELEMETRY}, "some")
    for day in range(3):
        for part in range(3):
            store.append({"telemetry": readings(day, 4 * part, 4)}, f"part-{day}-{part}")
    store.append({"telemetry": readings(1, 5, 2, more=1)}, "late")
    now = 1000 * (FIRST_DAY + 3 * DAY) + 10**12
    store.compact(offline=True, now=now)
    store.prune("2d", offline=True, now=now)
    store.append({"telemetry": readings(2, 7, 2, more=2)}, "later")
    store.correct(readings(1, 1, 1, more=3), "corrected")
    with store.journal("sealed", background=False, offline=True) as journal:
        journal.append(1000 * (FIRST_DAY + 3 * DAY), GPUS[:2], {"cluster": "frozen", "power_mw": [1, 2]})
    child = os.fork()
    if not child:
        journal = store.journal("open", background=False, offline=True)
        for tick in range(3):
            columns = {"cluster": "frozen", "power_mw": [100 + tick, None], "read_us": 5, "quality": [None, "stuck"]}
            journal.append(time.time_ns(), GPUS[2:], columns)
            journal.append(1000 * (FIRST_DAY + 2 * DAY) + 10**10 * tick, GPUS[2:], {"cluster": "frozen", "read_us": 9})
        journal.append_batch(rows_of("events").to_batches()[0], "events")
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        make(root)
        ANSWERS.write_text(json.dumps(answers(Store(root)), indent=1, sort_keys=True) + "\n")
        (root / CATALOG).unlink()
        (root / "verified.log").unlink(missing_ok=True)
        about = root / "store.toml"
        about.write_text(re.sub('(?m)^place = ".*?"', 'place = ""', about.read_text()))
        with tarfile.open(FROZEN, "w:xz", preset=9) as archive:
            archive.add(root, "store", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without who and when."""
    if member.name.endswith(".lock"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
