"""Readings of devices as what a journal takes, and devices as rows of `gpus`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..store.journal_file import Gpu, Ticks
from ..store.metrics import FAST, METRICS, Metric
from ..store.schema import GPUS, arrow_rows
from .backends import Device

if TYPE_CHECKING:
    import pyarrow as pa


class Columns:
    """The columns of readings of some metrics, in this order, and what their numbers may be."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._names = (*(metric.name for metric in metrics), "read_us")
        # A number with more bits than its column is no reading, nor is one from which on the driver says "unknown".
        most = [(1 << metric.bits - 1) - 1 if metric.absent is None else metric.absent - 1 for metric in metrics]
        least = [-(1 << metric.bits - 1) for metric in metrics]
        self._most = np.array([*most, 2**63 - 1], np.int64)[:, None]
        self._least = np.array([*least, 0], np.int64)[:, None]

    def ticks(
        self,
        gpus: Sequence[Gpu],
        stamps: ArrayLike,
        values: Iterable[ArrayLike],
        known: NDArray[np.bool_] | None,
        *,
        read_us: ArrayLike | None = None,
        marks: Sequence[str | None] = (),
    ) -> Ticks:
        """Readings of `gpus`, taken at `stamps` (UTC ns), one of each.

        `values` are by metric and then by GPU; `known`, of shape (metrics, gpus), says which of them count (None: all).
        `read_us` is the driver's time to answer (None, or negative: it was not asked), `marks` the column `quality`.
        """
        numbers = np.array([*values, [-1] * len(gpus) if read_us is None else read_us], np.int64)
        valid = (numbers <= self._most) & (numbers >= self._least)
        if known is not None:
            valid[:-1] &= known
        ts = np.asarray(stamps, np.int64) // 1000
        return Ticks(
            ts, tuple(gpus), self._names, numbers, None if valid.all() else valid, {"quality": marks} if marks else {}
        )


QUICK = Columns([METRICS[row] for row in FAST])
"""Of a tick that reads the fast metrics, in the order of `FAST`."""
EVERY = Columns(METRICS)


def identity_table(devices: Sequence[Device], cluster: str, node: str | None, seen_ns: int) -> pa.Table:
    """Devices as rows of `gpus`; `node` is where those are whose own row names none."""
    common = {"cluster": cluster, "node": node, "first_seen": seen_ns}
    rows = [{**common, **device.row, "gpu": device.gpu} for device in devices]
    bits = {column.name: 64 if column.unit == "B" else 32 for column in GPUS.columns if column.type == "BIGINT"}
    columns = {name: [_fitting(row.get(name), bits.get(name)) for row in rows] for name in GPUS.names}
    return arrow_rows("gpus", columns)


def _fitting(value: Any, bits: int | None) -> Any:
    """A value for a column; None for a number that has more bits, as drivers say "unknown" with all bits set."""
    if bits is None or not isinstance(value, int):
        return value
    beyond = 1 << bits - 1
    return value if -beyond <= value < beyond else None


def short_hash(what: object) -> str:
    """Sixteen digits that are the same for the same plain data."""
    import hashlib  # a library of its own, which a collector does without

    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
