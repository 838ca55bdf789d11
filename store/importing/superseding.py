"""Rows of the table `jobs`, and events: those that the store does not have yet, or has otherwise.

Nothing stored is changed: an allocation that is other than stored gets the rows of a new record, and `jobs_now` shows
the newest. A record that knows less, of a job that has ended by now, is left out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import polars as pl

from ..schema import JOBS, arrow_schema

if TYPE_CHECKING:
    from ..store import Store

KEY = ["cluster", "allocation"]
_CONTENT = [name for name in JOBS.names if name not in ("recorded", "import_id")]


def newest(store: Store, which: pl.Expr) -> pl.DataFrame:
    """The rows of the newest record of each allocation that has a row of this kind."""
    allocations = store.scan(JOBS.name).filter(which).select(*KEY, "began").unique()
    return _newest(store, store.collect(allocations))


def _newest(store: Store, allocations: pl.DataFrame) -> pl.DataFrame:
    """The newest rows of the allocations of these rows. All rows of an allocation began at one time: few are read."""
    span = pl.col("began").is_between(allocations["began"].min(), allocations["began"].max())
    keys = allocations.select(KEY).unique().lazy()
    rows = store.collect(store.scan(JOBS.name).filter(span).join(keys, on=KEY, how="semi", nulls_equal=True))
    return rows.filter(pl.col("recorded") == pl.col("recorded").max().over(KEY))


def conformed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with every column of `jobs` that says something of the allocation, in its type."""
    empty = pl.from_arrow(arrow_schema(JOBS.name).empty_table())
    assert isinstance(empty, pl.DataFrame)
    types = {name: empty.schema[name] for name in _CONTENT}
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name) for name, kind in types.items()
    )


def new_records(store: Store, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of allocations that are new or other than stored, with `recorded`: what is to be appended.

    `rows` are `conformed`. The caller holds the store's lock of importers.
    """
    stored = _newest(store, rows)
    new_rows = rows.join(_changed(rows, stored), on=KEY, how="semi", nulls_equal=True)
    now, last = datetime.now(UTC).replace(tzinfo=None), stored["recorded"].max()
    if isinstance(last, datetime) and last >= now:  # the clock of another machine is ahead
        now = last + timedelta(microseconds=1)
    return new_rows.with_columns(pl.lit(now).alias("recorded"))


def _changed(rows: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    had = conformed(stored)
    new = rows.join(had, on=_CONTENT, how="anti", nulls_equal=True).select(KEY).unique()
    count = rows.group_by(KEY).len("n").join(had.group_by(KEY).len("m"), on=KEY, nulls_equal=True)
    fewer = count.filter(pl.col("n") != pl.col("m")).select(KEY)
    over = had.filter(pl.col("ended").is_not_null()).select(KEY).unique()
    running = rows.filter(pl.col("ended").is_null()).select(KEY).unique()
    stale = running.join(over, on=KEY, how="semi", nulls_equal=True)
    return pl.concat([new, fewer]).unique().join(stale, on=KEY, how="anti", nulls_equal=True)


def new_events(store: Store, events: pl.DataFrame, cluster: str | None = None) -> pl.DataFrame:
    """The events that the store does not have: the rows of a longer file are refused again."""
    if cluster is not None:
        events = events.with_columns(pl.lit(cluster).alias("cluster"))
    if not events.height:
        return events
    same = [c for c in events.columns if c != "detail"]
    of_these = pl.col("kind").is_in(events["kind"].unique().implode())
    stored = store.collect(store.scan("events").filter(of_these).select(same))
    return events.join(stored, on=same, how="anti", nulls_equal=True)
