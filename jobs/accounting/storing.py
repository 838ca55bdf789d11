"""Append allocations that are new or other than stored, with the provenance of the import."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl

from ...store.importing.superseding import KEY, conformed, new_events, new_records
from ...store.schema import JOBS, arrow_rows
from . import pseudonyms

if TYPE_CHECKING:
    from ...store import Store

VERSION = "1"  # raise it when the same source would be read differently


def append(store: Store, rows: pl.DataFrame, about: dict[str, object], *, secret: bytes | None) -> tuple[int, int]:
    """Store what is new or other than stored; returns how many allocations were stored and how many were known.

    The caller holds the store's lock of importers. `about` goes into the table `imports`.
    """
    rows = conformed(rows)
    if secret is not None:
        rows = pseudonyms.apply(rows, secret)
    kept = new_records(store, rows)
    every, stored = (frame.select(KEY).unique().height for frame in (rows, kept))
    if not stored:
        return 0, every
    now = datetime.now(UTC).replace(tzinfo=None)
    said = json.dumps(about, sort_keys=True, default=str)
    name = hashlib.sha256(f"{said} {now.isoformat()}".encode()).hexdigest()[:16]
    kept = kept.with_columns(pl.lit(name).alias("import_id"))
    row = {**about, "import_id": name, "importer": VERSION, "imported_at": now, "kept": kept.height}
    imports = arrow_rows("imports", {key: [value] for key, value in row.items()})
    store.append({JOBS.name: kept.to_arrow(), "imports": imports}, f"jobs-{name}")
    return stored, every - stored


def append_events(store: Store, events: pl.DataFrame) -> None:
    """Store the events that the store does not have. The caller holds the store's lock of importers."""
    kept = new_events(store, events)
    if kept.height:
        name = hashlib.sha256(kept.write_csv().encode()).hexdigest()[:16]
        store.append({"events": kept.to_arrow()}, f"jobs-{name}")
