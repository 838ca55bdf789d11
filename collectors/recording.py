"""What a collector stores: readings and events in this node's journal, identities of GPUs in files of their own."""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store.journal_file import Gpu, TickColumns, Ticks
from ..store.metrics import FAST, METRICS, ROW
from ..store.schema import GPUS, arrow_rows
from ..store.system import children
from .backend import Device
from .quality import READ

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store import Store
    from ..store.journal import Journal

_JUDGED = tuple(ROW[name] for name in READ)


class Columns(TickColumns):
    """The columns of readings of some metrics (their rows in METRICS), in this order, and `read_us`.

    A reading without numbers is packed as `zeros`, with `nothing` in `Ticks.nulls`; `read_us_missing` is the bit of
    `read_us` there.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        metrics = [METRICS[row] for row in rows]
        self.rows = tuple(rows)
        super().__init__([*(metric.name for metric in metrics), "read_us"])
        self.zeros = self.pack(*[0] * len(self.names))
        self.read_us_missing = 1 << len(metrics)
        self.nothing = (1 << len(self.names)) - 1
        self.judged = itemgetter(*(self.rows.index(row) for row in _JUDGED))
        """Gives of a reading's values those that `Quality` judges by."""
        self._absent = tuple((at, metric.absent) for at, metric in enumerate(metrics) if metric.absent is not None)
        self._bounds = [
            (-(1 << metric.bits - 1), (1 << metric.bits - 1) if metric.absent is None else metric.absent)
            for metric in metrics
        ] + [(0, 1 << 31)]

    def fitting(self, numbers: Sequence[int], nulls: int) -> tuple[Sequence[int], bytes, int]:
        """A reading's numbers, packed too, and `nulls`; a number that its metric cannot have is missing.

        A number with more bits than its column is no reading, nor is one from which on the driver says "unknown".
        """
        try:
            packed = self.pack(*numbers)
        except struct.error:
            return self._without_unfit(numbers, nulls)
        if self._absent and any(numbers[place] >= absent for place, absent in self._absent):
            return self._without_unfit(numbers, nulls)
        return numbers, packed, nulls

    def _without_unfit(self, numbers: Sequence[int], nulls: int) -> tuple[Sequence[int], bytes, int]:
        fit = [least <= number < end for number, (least, end) in zip(numbers, self._bounds, strict=True)]
        fitting = [number if fits else 0 for number, fits in zip(numbers, fit, strict=True)]
        return fitting, self.pack(*fitting), nulls | sum(1 << place for place, fits in enumerate(fit) if not fits)


QUICK = Columns(FAST)
"""Of a tick that reads the fast metrics."""
EVERY = Columns(range(len(METRICS)))


@functools.lru_cache(maxsize=256)  # devices that are alike share theirs
def nulls_of(statuses: bytes) -> Mapping[Columns, int]:
    """By the columns of a reading, of `Ticks.nulls`: a bit for each metric whose status is not OK."""
    return {
        columns: sum(1 << place for place, row in enumerate(columns.rows) if statuses[row])
        for columns in (QUICK, EVERY)
    }


def judged_of(statuses: bytes) -> int:
    """A bit for each metric of `quality.READ` whose status is OK."""
    return sum(1 << place for place, row in enumerate(_JUDGED) if not statuses[row])


Row = tuple[int, Gpu, bytes, int, str | None]
"""A reading as it is recorded: its time (UTC, us), its GPU, its numbers, packed in the order of some `Columns`, what is
missing of them (as `Ticks.nulls`), and its mark."""


def ticks_of(columns: Columns, rows: Sequence[Row]) -> Ticks:
    """Readings with the same columns, at least one, for a journal."""
    times, gpus, packed, nulls, marks = zip(*rows, strict=True)
    texts = {"quality": marks} if any(marks) else {}
    return Ticks(times, gpus, columns, packed, nulls=nulls, texts=texts)


class StoreRecorder:
    """The `Recorder` of the store at `root`. Identities take Arrow: a child process stores them."""

    def __init__(self, root: Path, journal: Journal, *, cluster: str, node: str) -> None:
        self._root, self._journal = root, journal
        self._cluster, self._node = cluster, node

    def append(self, ticks: Ticks) -> None:
        self._journal.append_ticks(ticks)

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        self._journal.append_columns(columns, table)

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None:
        """Store who the devices are: see `identify`."""
        told = {
            "root": str(self._root),
            "cluster": self._cluster,
            "node": self._node,
            "seen_ns": seen_ns,
            "rows": [(device.gpu, device.row) for device in devices],
        }
        children.run(f"{__name__}:identify_as_child", told)


def make_as_child(path: str) -> None:
    """Make the store at `path` where there is none, or put in order what dead processes left. Raises StoreError."""
    from ..store import Store

    Store.create(path)


def identify_as_child(
    root: str, rows: Sequence[tuple[str, dict[str, Any]]], *, cluster: str, node: str, seen_ns: int
) -> None:
    """What the child of `StoreRecorder.identify` does. Raises StoreError."""
    from ..store import Store

    identify(Store.open(root), [Device(gpu, row) for gpu, row in rows], cluster, node, seen_ns)


def identify(store: Store, devices: Sequence[Device], cluster: str, node: str | None, seen_ns: int) -> int:
    """Store who devices are, and return the rows stored: none where the store was last told the same of each.

    `node` is where those are whose own row names none.
    """
    if not devices:
        return 0
    rows = identity_table(devices, cluster, node, seen_ns)
    last = _last_told(store, cluster, [device.gpu for device in devices])
    new = [
        row
        for row in rows.drop_columns(["first_seen"]).to_pylist()
        if any(value is not None and last.get(row["gpu"], {}).get(name) != value for name, value in row.items())
    ]
    if not new:
        return 0
    # A checksum names the content as well as needed here: a cryptographic hash brings its whole library.
    content = zlib.crc32(json.dumps(new, sort_keys=True, default=str).encode())
    store.append({"gpus": rows}, f"identity-{seen_ns % 2**64:x}-{content:08x}")
    return len(devices)


def _last_told(store: Store, cluster: str, gpus: Sequence[str]) -> dict[str, dict[str, object]]:
    """By GPU: the last value of each column that the store was told."""
    last: dict[str, dict[str, object]] = {}
    rows = store.arrow("gpus", gpus=[(cluster, gpu) for gpu in gpus]).sort_by("first_seen")
    for row in rows.to_pylist():
        if row["cluster"] == cluster:
            last.setdefault(row["gpu"], {}).update((name, value) for name, value in row.items() if value is not None)
    return last


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
