"""Store allocations: those that the store does not have yet, or has otherwise. Nothing stored is changed.

An allocation that changed gets the rows of a new record, and `jobs_now` shows the newest. A record that knows less, of
a job that has ended by now, is left out.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl

from ...store.allocations import JOBS
from ...store.schema import arrow_schema
from . import pseudonyms

if TYPE_CHECKING:
    from ...store import Store

VERSION = "1"  # raise it when the same source would be read differently
KEY = ["cluster", "allocation"]
_CONTENT = [name for name in JOBS.names if name not in ("recorded", "import_id")]


def newest(store: Store, which: pl.Expr) -> pl.DataFrame:
    """The rows of the newest record of each allocation that has a row of this kind."""
    rows = store.scan(JOBS.name)
    keys = rows.filter(which).select(KEY).unique()
    found = store.collect(rows.join(keys, on=KEY, how="semi", nulls_equal=True))
    return found.filter(pl.col("recorded") == pl.col("recorded").max().over(KEY))


def conformed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with every column of `jobs` that says something of the allocation, in its type."""
    empty = pl.from_arrow(arrow_schema(JOBS.name).empty_table())
    assert isinstance(empty, pl.DataFrame)
    types = {name: empty.schema[name] for name in _CONTENT}
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name) for name, kind in types.items()
    )


def append(store: Store, rows: pl.DataFrame, about: dict[str, object], *, secret: bytes | None) -> tuple[int, int]:
    """Store what is new or other than stored; returns how many allocations were stored and how many were known.

    The caller holds the store's lock of importers. `about` goes into the table `imports`.
    """
    rows = conformed(rows)
    if secret is not None:
        rows = pseudonyms.apply(rows, secret)
    every = rows.select(KEY).unique()
    stored = store.collect(store.scan(JOBS.name).join(every.lazy(), on=KEY, how="semi", nulls_equal=True))
    stored = stored.filter(pl.col("recorded") == pl.col("recorded").max().over(KEY))
    changed = _changed(rows, stored)
    kept = rows.join(changed, on=KEY, how="semi", nulls_equal=True)
    if not kept.height:
        return 0, every.height
    now = datetime.now(UTC).replace(tzinfo=None)
    last = stored["recorded"].max()
    if isinstance(last, datetime) and last >= now:  # another machine's clock is ahead
        now = last + timedelta(microseconds=1)
    said = json.dumps(about, sort_keys=True, default=str)
    name = hashlib.sha256(f"{said} {now.isoformat()}".encode()).hexdigest()[:16]
    kept = kept.with_columns(pl.lit(now).cast(pl.Datetime("ns")).alias("recorded"), pl.lit(name).alias("import_id"))
    row = {**about, "import_id": name, "importer": VERSION, "imported_at": now, "kept": kept.height}
    imports = pl.DataFrame([row], schema_overrides={"imported_at": pl.Datetime("ns")})
    store.append({JOBS.name: kept.to_arrow(), "imports": imports.to_arrow()}, f"jobs-{name}")
    return changed.height, every.height - changed.height


def _changed(rows: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """The allocations whose rows are not those that are stored."""
    had = conformed(stored)
    new = rows.join(had, on=_CONTENT, how="anti", nulls_equal=True).select(KEY).unique()
    count = rows.group_by(KEY).len("n").join(had.group_by(KEY).len("m"), on=KEY, nulls_equal=True)
    fewer = count.filter(pl.col("n") != pl.col("m")).select(KEY)
    over = had.filter(pl.col("ended").is_not_null()).select(KEY).unique()
    running = rows.filter(pl.col("ended").is_null()).select(KEY).unique()
    stale = running.join(over, on=KEY, how="semi", nulls_equal=True)
    return pl.concat([new, fewer]).unique().join(stale, on=KEY, how="anti", nulls_equal=True)
