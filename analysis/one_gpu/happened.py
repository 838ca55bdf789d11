"""What happened to one GPU: changes of its driver, firmware, place and power limit, and its events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from ...store.vocabulary import OUT_OF_USE, EventKind

if TYPE_CHECKING:
    from ...store import Store

_EVENTS = 500  # the newest ones
_SAID = {"driver": "driver", "vbios": "VBIOS", "power_limit_w": "power limit, W"}
_PLACE = ("node", "slot")
_MARKED = (
    *OUT_OF_USE, EventKind.XID, EventKind.RETURNED, EventKind.WRONG_RESULT, EventKind.MIG, EventKind.HEALTH,
    EventKind.SETTINGS_CHANGED, EventKind.STUCK_SENSOR, EventKind.PROBE_FAILED,
)  # fmt: skip
"""Events that may explain a change of a GPU."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A date that may explain a change."""

    at: datetime
    what: str
    """A code: driver, vbios, place, power_limit_w, or the kind of an event."""
    says: str
    n: int = 1
    """How many of its kind were on that day."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event."""

    ts: datetime | None
    kind: str
    detail: str | None
    meaning: str
    """What the kind means; "" for one that this whorl does not know."""


def marks(store: Store, cluster: str, keys: Collection[str], node: str | None = None) -> list[Mark]:
    """When driver, VBIOS, place and power limit became others, and when an event may have changed it. By time."""
    of_gpu = (pl.col("cluster") == cluster) & pl.col("gpu").is_in(list(keys))
    identities = store.scan("gpus").filter(of_gpu & pl.col("first_seen").is_not_null())
    limit = (pl.col("power_limit_mw") / 1000).alias("power_limit_w")
    rows = store.collect(identities.select(_us("first_seen").alias("at"), "driver", "vbios", limit, *_PLACE))
    happened = store.collect(
        store.scan("events")
        .filter(_of(cluster, keys, node) & pl.col("ts").is_not_null())
        .select(_us("ts").alias("at"), "kind", "version", "detail")
    )
    reloaded = happened.filter((pl.col("kind") == EventKind.DRIVER_RELOADED.value) & pl.col("version").is_not_null())
    rows = pl.concat([rows, reloaded.select("at", driver="version")], how="diagonal_relaxed").sort(
        "at", maintain_order=True
    )
    listed = [
        Mark(at, column, f"{word} {_shown(old)} to {_shown(new)}")
        for column, word in _SAID.items()
        for (_, old), (at, new) in pairwise(rows.select("at", column).drop_nulls(column).iter_rows())
        if old != new
    ]
    listed += _moves(rows)
    marked = happened.filter(pl.col("kind").is_in([kind_of_event.value for kind_of_event in _MARKED])).sort("at")
    by_day = marked.group_by(pl.col("at").dt.date().alias("day"), "kind", maintain_order=True)
    for at, kind, detail, n in (
        by_day.agg(pl.col("at").first(), pl.col("detail").first(), pl.len())
        .select("at", "kind", "detail", "len")
        .iter_rows()
    ):
        says = detail or EventKind(kind).meaning
        listed.append(Mark(at, kind, says if n == 1 else f"{n:,} on this day; the first: {says}", n))
    return sorted(listed, key=lambda kind_of_event: kind_of_event.at)


def _moves(rows: pl.DataFrame) -> list[Mark]:
    """When it was in another place. Where a row does not know the slot, it is the one before."""
    listed, had = [], None
    for at, node, slot in rows.select("at", *_PLACE).drop_nulls("node").iter_rows():
        now = (node, slot if slot is not None or had is None or had[0] != node else had[1])
        if had is not None and (now[0] != had[0] or None not in (now[1], had[1])) and now != had:
            names = (spot[0] if spot[1] is None else f"{spot[0]}/{spot[1]}" for spot in (had, now))
            listed.append(Mark(at, "place", "moved from {} to {}".format(*names)))
        had = now
    return listed


def events(store: Store, cluster: str, keys: Collection[str], node: str | None = None) -> list[Happened]:
    """Its events, and those of its node that name no GPU: the newest 500, the newest first."""
    rows = store.scan("events").filter(_of(cluster, keys, node)).select(_us("ts"), "kind", "detail")
    newest = store.collect(rows.sort("ts", descending=True, nulls_last=True).head(_EVENTS))
    meanings = {kind_of_event.value: kind_of_event.meaning for kind_of_event in EventKind}
    return [Happened(ts, kind, detail, meanings.get(kind, "")) for ts, kind, detail in newest.iter_rows()]


def lost_since(listed: Sequence[Happened]) -> datetime | None:
    """When a GPU was lost that did not come back, of its events."""
    for event in listed:
        if event.kind in (EventKind.RETURNED, EventKind.APPEARED):
            return None
        if event.kind in OUT_OF_USE:
            return event.ts
    return None


def _of(cluster: str, keys: Collection[str], node: str | None) -> pl.Expr:
    of_node = pl.col("gpu").is_null() & (pl.col("node") == node) if node is not None else pl.lit(value=False)
    return (pl.col("cluster") == cluster) & (pl.col("gpu").is_in(list(keys)) | of_node)


def _us(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Datetime("us"))


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
