"""How active MIG instances were, where the store has readings of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ....store.instants import date_of_ns
from ..series import Floats, Times
from .claims import Claims, Fleet, Key

if TYPE_CHECKING:
    from ....store import Store

_LONGEST_S = 300.0  # a reading speaks for the time since the one before it, at most so long


class Activities:
    """The mean activity of MIG instances, from `utilization` in the telemetry of each instance."""

    def __init__(
        self, store: Store, claims: Claims, fleet: Fleet, since_ns: int | None = None, until_ns: int | None = None
    ) -> None:
        """Reads the telemetry of the instances that have claims."""
        self._claims = claims
        self._sums: dict[Key, tuple[Times, Floats, Floats]] = {}
        wanted = sorted({gpu for (_, gpu) in fleet.parent if gpu is not None})
        claimed = set(claims.frame["claimed"].unique().drop_nulls().to_list()) if wanted else set()
        wanted = [gpu for gpu in wanted if gpu in claimed]
        if not wanted:
            return
        rows = store.scan("telemetry").filter(pl.col("gpu").is_in(wanted), pl.col("utilization").is_not_null())
        if since_ns is not None:
            rows = rows.filter(pl.col("ts") >= pl.lit(date_of_ns(since_ns)))
        if until_ns is not None:
            rows = rows.filter(pl.col("ts") <= pl.lit(date_of_ns(until_ns)))
        frame = store.collect(rows.select("cluster", "gpu", pl.col("ts").dt.epoch("ns"), "utilization"))
        for (cluster, gpu), part in frame.sort("ts").group_by("cluster", "gpu"):
            ts = part["ts"].to_numpy()
            spoken = np.minimum(np.diff(ts, prepend=ts[:1]) / 1e9, _LONGEST_S)
            active = np.cumsum(spoken * part["utilization"].to_numpy() / 100)
            self._sums[str(cluster), str(gpu)] = ts, active, np.cumsum(spoken)

    def __call__(self, claim: int, began: Times, ended: Times) -> Floats | None:
        """The mean activity of the instance of a claim in each window, 0 to 1; NaN where it has no reading."""
        if not self._sums:
            return None
        key = self._claims.frame["cluster"][claim], self._claims.frame["claimed"][claim]
        if key not in self._sums:
            return None
        ts, active, spoken = self._sums[key]

        def between(sums: Floats) -> Floats:
            found: Floats = np.interp(ended, ts, sums) - np.interp(began, ts, sums)
            return found

        lasted = between(spoken)
        known = lasted > 0
        found: Floats = np.where(known, between(active) / np.where(known, lasted, 1.0), np.nan)
        return found
