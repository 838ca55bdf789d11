"""Rows for stores, journals that dead processes left, and what every reader sees."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.schema import arrow_schema
from whorl.tests.stores import plain_client

S = 10**9
DAY_S = 86_400
BEGAN = 1_700_006_400 * S  # the start of a day long ago: its hours are over, so that they are compacted
LATER = BEGAN + 20 * DAY_S * S
_POWERS = f"select gpu, (epoch_ns(ts) - {BEGAN}) // {S} as second, power_mw from telemetry"

Powers = dict[tuple[str, int], int]
"""The power of each GPU and second after `BEGAN`."""


def batch(gpus: list[str], second: int, power: int) -> pa.RecordBatch:
    return readings([second] * len(gpus), gpus, power_mw=[power] * len(gpus)).combine_chunks().to_batches()[0]


def readings(seconds: list[int] | range, gpus: str | Sequence[str | None] = "a", **columns: list[Any]) -> pa.Table:
    """Rows of telemetry; `power_mw` is the second unless it is given."""
    schema = arrow_schema("telemetry")
    names = [gpus] * len(seconds) if isinstance(gpus, str) else gpus
    times = pa.array([BEGAN + second * S for second in seconds], pa.timestamp("ns")).cast(schema.field("ts").type)
    filled = {"ts": times, "cluster": ["c"] * len(seconds), "gpu": names, "power_mw": list(seconds), **columns}
    return pa.table({name: pa.array(values, schema.field(name).type) for name, values in filled.items()})


def open_journal(store: Store, name: str = "n") -> Journal:
    return store.journal(name, background=False, offline=True)


def leave_journal(store: Store, *batches: pa.RecordBatch, name: str = "n", table: str = "telemetry") -> Path:
    """Leave the journal of a process that wrote these rows and died."""
    journal = open_journal(store, name)
    for rows in batches:
        journal.append_batch(rows, table)
    for file in journal._files.values():
        os.close(file.handle)
    journal._hold.release()
    return max(journals(store), key=lambda path: path.stat().st_mtime_ns)


def journals(store: Store) -> list[Path]:
    return sorted((store.root / "journal").glob("*.journal"))


def segments(store: Store, table: str = "telemetry") -> list[Path]:
    """The files of a table that have rows."""
    return sorted(path for path in (store.root / table).rglob("*.parquet") if path.name != "_schema.parquet")


def powers(store: Store) -> Powers:
    """What SQL says, each row once."""
    return _keyed(list(map(tuple, (row.values() for row in store.sql(_POWERS).to_pylist()))))


def seen(store: Store, *, plain: bool = False) -> Powers:
    """What every reader says, of a store that is opened anew; with `plain` another client of DuckDB as well."""
    opened = Store.open(store.root)
    answer = powers(opened)
    for rows in (opened.arrow("telemetry"), opened.collect(opened.scan("telemetry")).to_arrow()):
        ns = rows["ts"].cast("int64").to_pylist()
        columns = (rows["gpu"].to_pylist(), [(us * 1000 - BEGAN) // S for us in ns], rows["power_mw"].to_pylist())
        assert _keyed(list(zip(*columns, strict=True))) == answer
    pieces = [part.arrow(["gpu", "ts"]) for part in opened.parts("telemetry")]
    assert sum(map(len, pieces)) == len(answer)
    if plain:
        assert plain_powers(store.root) == answer
    store.skipped |= opened.skipped
    return answer


def plain_powers(root: Path) -> Powers:
    """What another client of DuckDB says."""
    with contextlib.closing(plain_client(root)) as client:
        return _keyed(client.execute(_POWERS).fetchall())


def _keyed(rows: list[tuple[Any, ...]]) -> Powers:
    keyed = {(gpu, second): power for gpu, second, power in rows}
    assert len(keyed) == len(rows), "a row is there twice"
    return keyed
