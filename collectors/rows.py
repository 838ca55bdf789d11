"""Readings of GPUs as what a journal takes, and devices as rows of `gpus`."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..store.metrics import FAST, METRICS, ROW
from ..store.schema import GPUS, arrow_rows
from .backend import Device
from .quality import READ

if TYPE_CHECKING:
    import pyarrow as pa


class Columns:
    """The columns of readings of some metrics (their rows in METRICS), in this order, and `read_us`.

    `nothing` is the number in `Ticks.nulls` of a reading without numbers, `read_us_missing` the bit of `read_us` there.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        metrics = [METRICS[row] for row in rows]
        self.rows = tuple(rows)
        self.names = (*(metric.name for metric in metrics), "read_us")
        self.read_us_missing = 1 << len(metrics)
        self.nothing = (1 << len(self.names)) - 1
        self.no_values = (0,) * len(metrics)
        self.judged = itemgetter(*(self.rows.index(ROW[name]) for name in READ))
        """Gives of a reading's values those that `Quality` judges by."""
        self._most = [(1 << metric.bits - 1) - 1 if metric.absent is None else metric.absent - 1 for metric in metrics]
        self._least = [-(1 << metric.bits - 1) for metric in metrics]
        self.pack = struct.Struct("<" + "".join("i" if metric.bits == 32 else "q" for metric in metrics)).pack
        """Raises struct.error for values of which a metric cannot have one."""
        self.absent = tuple((at, metric.absent) for at, metric in enumerate(metrics) if metric.absent is not None)
        """The places of metrics of which a driver may say by a number that it is unknown, and that number."""

    def without_unfit(self, values: Sequence[int], nulls: int) -> tuple[list[int], int]:
        """The values and `nulls`, where a number that its metric cannot have is missing.

        A number with more bits than its column is no reading, nor is one from which on the driver says "unknown".
        """
        fitting = [least <= value <= most for value, least, most in zip(values, self._least, self._most, strict=True)]
        nulls |= sum(1 << place for place, fit in enumerate(fitting) if not fit)
        return [value if fit else 0 for value, fit in zip(values, fitting, strict=True)], nulls


QUICK = Columns(FAST)
"""Of a tick that reads the fast metrics."""
EVERY = Columns(range(len(METRICS)))
BY_LENGTH = {len(columns.rows): columns for columns in (QUICK, EVERY)}
"""The columns of a reading, by the number of its values."""


@lru_cache(4096)
def nulls_of(columns: Columns, statuses: bytes) -> int:
    """Of `Ticks.nulls`: a bit for each metric whose status is not OK."""
    return sum(1 << place for place, row in enumerate(columns.rows) if statuses[row])


@lru_cache(4096)
def judged_of(statuses: bytes) -> int:
    """A bit for each metric of `quality.READ` whose status is OK."""
    return sum(1 << place for place, name in enumerate(READ) if not statuses[ROW[name]])


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
