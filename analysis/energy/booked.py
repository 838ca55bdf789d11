"""The books of a store: its pieces of energy over a time, with what they cost where the site has stated that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...errors import InputError
from ...store.sensor_error import SENSOR_ERROR, SensorError
from .metering import Meter, meters
from .pieces import SCHEMA, Kind

if TYPE_CHECKING:
    from ...store import Store

_DAY_NS = 86_400_000_000_000


@dataclass(frozen=True)
class Booked:
    """All pieces of a time, and what they stand on."""

    pieces: pl.DataFrame
    since: datetime
    until: datetime
    sensor: SensorError
    notes: Sequence[str]
    currency: str | None = None
    """Of `cost`; None where the site states no price."""

    @property
    def priced(self) -> bool:
        """Whether any piece has grams or a cost."""
        return not (self.pieces["co2e_g"].is_null().all() and self.pieces["cost"].is_null().all())


def booked(
    store: Store,
    *,
    cluster: str | None = None,
    gpus: Collection[tuple[str, str]] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    by_day: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Booked:
    """The pieces of the store's GPUs, or of some of them, from `since` to `until` (UTC, without zone).

    With `by_day` they are cut at midnight, UTC. Raises InputError where there is no telemetry in that time.
    """
    first, last = _covered(store, cluster, since, until)
    cuts = np.arange(-(-first // _DAY_NS) * _DAY_NS, last, _DAY_NS) if by_day else np.array([], np.int64)
    found = []
    for number, meter in enumerate(meters(store, cluster=cluster, gpus=gpus, since_ns=first, until_ns=last), 1):
        if progress is not None:
            progress(f"metering GPUs: {number:,}")
        found.append(_whole(meter, cuts))
    pieces = pl.concat(found) if found else pl.DataFrame(schema=SCHEMA)
    nodes = store.sql("select cluster, gpu, node from gpus_now").polars()
    pieces = pieces.drop("node").join(nodes, on=["cluster", "gpu"], how="left", nulls_equal=True).select(SCHEMA.keys())
    pieces = pieces.with_columns(pl.lit(None, pl.Float64).alias("co2e_g"), pl.lit(None, pl.Float64).alias("cost"))
    return Booked(pieces, _time(first), _time(last), SENSOR_ERROR, [])


def _covered(store: Store, cluster: str | None, since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """The time that is looked at, ns: what was asked for, within what the telemetry covers."""
    rows = store.scan("telemetry")
    if cluster is not None:
        rows = rows.filter(pl.col("cluster") == cluster)
    spans = store.collect(rows.select(pl.col("ts").min().alias("first"), pl.col("ts").max().alias("last")))
    first, last = (spans[name].cast(pl.Int64)[0] for name in ("first", "last"))
    of = "" if cluster is None else f" of cluster {cluster}"
    if first is None:
        raise InputError(f"{store.root} has no telemetry{of}: `whorl collect` or `whorl import` adds some")
    began = first if since is None else max(first, _ns(since))
    ended = last if until is None else min(last, _ns(until))
    if ended <= began:
        raise InputError(
            f"{store.root} has no telemetry{of} in this time: it has some from {_time(first):%Y-%m-%d %H:%M} to "
            f"{_time(last):%Y-%m-%d %H:%M} UTC"
        )
    return began, ended


def _whole(meter: Meter, cuts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pl.DataFrame:
    """All energy of a GPU, cut at the cuts."""
    inside = cuts[(cuts > meter.first_ns) & (cuts < meter.last_ns)]
    edges = np.concatenate([[meter.first_ns], inside, [meter.last_ns]]).astype(np.int64)
    found = meter.over(edges[:-1], edges[1:])
    seconds = np.diff(edges) / 1e9
    columns = {
        "cluster": [meter.cluster] * len(seconds),
        "gpu": [meter.gpu] * len(seconds),
        "began": edges[:-1],
        "ended": edges[1:],
        "kind": [Kind.UNATTRIBUTED.value] * len(seconds),
        "share": np.ones(len(seconds)),
        "energy_j": found.energy_j,
        "idle_j": None if meter.idle_w is None else np.minimum(meter.idle_w * seconds, found.energy_j),
        "below_j": found.below_j,
        "above_j": found.above_j,
        "variance_j2": found.variance_j2,
        "sensed_j": found.measured_j,
        "sensed_s": found.measured_s,
        "measured_s": found.measured_s,
        "method": np.where(found.counter_s * 2 >= found.measured_s, "counter", "power"),
        "reason": [str(one) or None for one in found.reason],
    }
    frame = pl.DataFrame({name: columns.get(name, [None] * len(seconds)) for name in SCHEMA}, strict=False)
    return frame.cast(SCHEMA)  # type: ignore[arg-type]


def _ns(when: datetime) -> int:
    since = when.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since // timedelta(microseconds=1)) * 1000


def _time(at_ns: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(microseconds=at_ns // 1000)  # noqa: DTZ001
