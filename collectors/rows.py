"""Readings as rows of `telemetry`: one Arrow record batch per tick, without a Python object per value."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..store.metric import Metric
from ..store.metrics import FAST, METRICS, ROW
from ..store.schema import arrow_schema
from .backends import Device, Readings, Status, Sweep

if TYPE_CHECKING:
    from ..store.writers.template import Template

_INT32 = np.iinfo(np.int32)
_NARROW = {"read_us", *(metric.name for metric in METRICS if metric.type == "INTEGER")}
_NEVER = np.iinfo(np.int64).min  # no reading has this value


class Filler:
    """Where the numbers of a tick belong in the message of a template, which was made from such a tick.

    `columns` are those of the metrics in a tick's numbers, `number` is how many devices these are of, and `present`
    says whose rows the template has.
    """

    def __init__(self, template: Template, columns: Sequence[str], number: int, present: NDArray[np.bool_]) -> None:
        self.template = template
        here = np.flatnonzero(present).tolist()
        self._here = here if len(here) < number else None
        # One call writes all numbers, and between them what is there already: it touches little memory and code.
        at = template.offsets
        places = sorted((at[name], place) for place, name in enumerate((*columns, "ts", "read_us")))
        self._begin = end = places[0][0]
        layout, self._parts = "<", list[Sequence[Any]]()
        for begin, place in places:
            name = (*columns, "ts", "read_us")[place]
            width = "q" if name == "ts" or name not in _NARROW else "i"
            layout += f"{begin - end}s{len(here)}{width}"
            self._parts += [(bytes(template.message[end:begin]),), ()]
            end = begin + struct.calcsize(f"<{len(here)}{width}")
        self._pack = struct.Struct(layout).pack_into
        self._order = itemgetter(*(place for _, place in places))
        self._absent = [(place, METRICS[ROW[name]].absent) for place, name in enumerate(columns)]
        self._absent = [(place, value) for place, value in self._absent if value is not None]

    def fill(self, numbers: Sequence[Sequence[int]], stamps: Sequence[int], read_us: Sequence[int]) -> bool:
        """Fill in the readings of a tick; False where one of them is no number for its column."""
        columns = (*numbers, stamps, read_us)
        if (here := self._here) is not None:
            columns = tuple([[column[p] for p in here] for column in columns])
        for place, absent in self._absent:
            if absent in columns[place]:
                return False
        self._parts[1::2] = self._order(columns)
        try:
            self._pack(self.template.message, self._begin, *chain.from_iterable(self._parts))
        except struct.error:  # what was filled in is filled in anew by the next tick
            return False
        return True


class Rows:
    """Makes record batches of devices, from sweeps over `metrics`."""

    def __init__(self, cluster: str, devices: Sequence[Device], metrics: Sequence[Metric] = METRICS) -> None:
        self._cluster = cluster
        self._names = [device.gpu for device in devices]
        schema = arrow_schema("telemetry")
        self._absent = np.array([_NEVER if m.absent is None else m.absent for m in metrics], np.int64)[:, None]
        self._narrow = np.array([schema.field(m.name).type == pa.int32() for m in metrics])
        # One schema for ticks of the fast tier, one for those that read slow metrics as well.
        self._tiers: list[tuple[pa.Schema, list[int], list[int]]] = []
        for tiers in (("fast",), ("fast", "slow")):
            rows = [row for row, m in enumerate(metrics) if m.tier in tiers]
            narrow = [row for row in rows if self._narrow[row]]
            wide = [row for row in rows if not self._narrow[row]]
            names = ["ts", "cluster", "gpu", *(metrics[row].name for row in narrow + wide), "read_us", "quality"]
            fields = pa.schema([schema.field(name) for name in names])
            self._tiers.append((fields, narrow, wide))
        self._labels: dict[tuple[bytes, tuple[str | None, ...]], tuple[pa.Array, pa.Array, pa.Array]] = {}

    def batch(
        self,
        sweep: Sweep,
        present: NDArray[np.bool_],
        stamps: Sequence[int] | NDArray[np.int64],
        read_us: Sequence[int] | NDArray[np.int64],
        marks: Sequence[str | None],
        *,
        slow: bool,
    ) -> pa.RecordBatch:
        """The rows of the devices `present`, shape (devices,).

        `stamps` are UTC ns, `read_us` the driver's time to answer (negative: it was not asked), `marks` the column
        `quality`; all by device. A value whose status is not OK is NULL.
        """
        here = np.flatnonzero(present)
        values, status = sweep.values, sweep.status
        if len(here) < len(present):
            values, status = values.take(here, axis=1), status.take(here, axis=1)  # C order
        took = np.array(read_us, np.int64)[here]
        labels = self._label(present, marks)
        return self._made(values, status, np.array(stamps, np.int64)[here], took, labels, slow=slow)

    def long(self, readings: Readings, marks: Sequence[str | None]) -> pa.RecordBatch:
        """The rows of readings at several times, with every metric; `marks` is the column `quality`, by row."""
        number = len(readings.ts)
        names = self._names
        labels = (
            pa.array([self._cluster] * number, pa.string()),
            pa.array([names[device] for device in readings.device.tolist()], pa.string()),
            pa.array(marks, pa.string()),
        )
        nobody = np.full(number, -1, np.int64)  # no driver was asked
        return self._made(readings.values, readings.status, readings.ts, nobody, labels, slow=True)

    def _made(
        self,
        values: NDArray[np.int64],
        status: NDArray[np.uint8],
        stamps: NDArray[np.int64],
        took: NDArray[np.int64],
        labels: tuple[pa.Array, pa.Array, pa.Array],
        *,
        slow: bool,
    ) -> pa.RecordBatch:
        schema, narrow, wide = self._tiers[slow]
        number = len(stamps)
        cluster, gpu, quality = labels
        good = (status == Status.OK) & (values != self._absent)
        # What does not fit its column is not a number that the metric can have.
        good &= ~(((values > _INT32.max) | (values < _INT32.min)) & self._narrow[:, None])
        bits = np.ascontiguousarray(np.packbits(good, axis=1, bitorder="little"))  # else in the order of the sweep
        small, large = values[narrow].astype(np.int32), values[wide]
        asked = np.packbits(took >= 0, bitorder="little")
        columns = [_array(pa.timestamp("ns"), number, None, stamps), cluster, gpu]
        columns += [_array(pa.int32(), number, bits[r], column) for r, column in zip(narrow, small, strict=True)]
        columns += [_array(pa.int64(), number, bits[r], column) for r, column in zip(wide, large, strict=True)]
        columns += [_array(pa.int32(), number, asked, took.astype(np.int32)), quality]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def filler(self, template: Template, present: NDArray[np.bool_], *, slow: bool) -> Filler:
        """How to fill in a template that was made from the batch of a fast or slow tick."""
        columns = [METRICS[row].name for row in (range(len(METRICS)) if slow else FAST)]
        return Filler(template, columns, len(self._names), present)

    def _label(self, present: NDArray[np.bool_], marks: Sequence[str | None]) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The columns of text, which hardly ever change."""
        key = (present.tobytes(), tuple(marks))
        known = self._labels.get(key)
        if known is None:
            if len(self._labels) > 64:
                self._labels.clear()
            here = np.flatnonzero(present).tolist()
            known = self._labels[key] = (
                pa.array([self._cluster] * len(here), pa.string()),
                pa.array([self._names[p] for p in here], pa.string()),
                pa.array([marks[p] for p in here], pa.string()),
            )
        return known


def _array(kind: pa.DataType, number: int, bits: NDArray[np.uint8] | None, values: NDArray[np.generic]) -> pa.Array:
    valid = None if bits is None else pa.py_buffer(bits)
    return pa.Array.from_buffers(kind, number, [valid, pa.py_buffer(values)])


def identity_table(devices: Sequence[Device], cluster: str, node: str | None, seen_ns: int) -> pa.Table:
    """Devices as rows of `gpus`; `node` is where those are whose own row names none."""
    schema = arrow_schema("gpus")
    common = {"cluster": cluster, "node": node, "first_seen": seen_ns}
    rows = [{**common, **device.row, "gpu": device.gpu} for device in devices]
    columns = [pa.array([_fitting(row.get(field.name), field.type) for row in rows], field.type) for field in schema]
    return pa.table(columns, schema=schema)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """A value for a column; None for a number that does not fit into it, as drivers say "unknown" with all bits set."""
    if not isinstance(value, int) or not pa.types.is_integer(kind):
        return value
    beyond = 1 << kind.bit_width - 1
    return value if -beyond <= value < beyond else None


def short_hash(what: object) -> str:
    """Sixteen digits that are the same for the same plain data."""
    import hashlib  # a library of its own, which a collector does without

    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
