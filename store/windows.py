"""What telemetry says of windows, such as the time of a run or of a job on a GPU.

The rows of a file of telemetry are sorted by GPU and time, so the readings of a window are a slice of each row group
that has some. Every figure can be joined from slices: counts, sums and extremes, and for quantiles the number of
readings at each tenth of a watt. So each row group is read once, and memory does not grow with telemetry.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from . import file_names, keys, manifest, parquet
from .metrics import BOARD_POWER, UNTRUSTED_POWER
from .parts import parts_of
from .schema import KEY, TELEMETRY
from .system import files
from .views import FIGURES, FIND, NOTE, WINDOW, WINDOW_FIGURES

if TYPE_CHECKING:
    import duckdb

    from .parts import TablePart
    from .snapshot import Rows

Integers = NDArray[np.int64]
Tenths = tuple[Integers, Integers]
"""How many readings of a window have each tenth of a watt: sorted numbers window << 16 | tenth, and the readings."""

_COLUMNS = (*KEY, *BOARD_POWER, "quality", "energy_mj", "sm_clock_mhz", "temperature_c")
_LEAST_MW, _MOST_MW = 500, 5_000_000  # what a board can draw, as `analysis.energy.sensor` judges readings
_LOW, _HIGH = -(2**63), 2**63 - 1
_TENTH = 16  # bits of a tenth of a watt
_NO_TENTHS: Tenths = np.zeros(0, np.int64), np.zeros(0, np.int64)
_REDUCED = {  # figures of a window: how those of two slices become one, and where they begin
    "n": (np.add, 0), "counted": (np.add, 0), "sum_mw": (np.add, 0), "most_mw": (np.maximum, 0),
    "clocks": (np.add, 0), "sum_mhz": (np.add, 0), "celsius": (np.maximum, _LOW),
    "first_us": (np.minimum, _HIGH), "last_us": (np.maximum, _LOW),
}  # fmt: skip


class Windows:
    """Windows that a query asks for, and their figures: telemetry is read once for all of them.

    The query calls `note` for each window, sorts by the numbers that it gives, so that no window is left, and calls
    `find` with these.
    """

    def __init__(self, rows: Rows, stopped: threading.Event) -> None:
        self._rows, self._stopped = rows, stopped
        self._noted: list[pa.Table] = []
        self._found: list[pa.StructArray] = []
        self._count = 0
        self._lock = threading.Lock()

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Give a connection the functions. They have to be removed: DuckDB complains at exit of those that are left."""
        arrow: dict[str, Any] = {"type": "arrow", "null_handling": "special", "side_effects": True}
        connection.create_function(NOTE, self.note, [*WINDOW.values()], "BIGINT", **arrow)
        connection.create_function(FIND, self.find, ["BIGINT"], WINDOW_FIGURES, **arrow)

    @staticmethod
    def remove(connection: duckdb.DuckDBPyConnection) -> None:
        connection.remove_function(NOTE)
        connection.remove_function(FIND)

    def note(self, cluster, gpu, began, ended, until):  # type: ignore[no-untyped-def]  # DuckDB reads annotations
        """Note windows by the columns of `WINDOW`; returns the number of each."""
        with self._lock:
            self._noted.append(pa.table([cluster, gpu, began, ended, until], names=[*WINDOW]))
            self._count += len(gpu)
            return pa.array(np.arange(self._count - len(gpu), self._count))

    def find(self, number):  # type: ignore[no-untyped-def]
        """The figures (`FIGURES`) of windows, by their numbers."""
        with self._lock:
            if self._noted:
                self._found.append(figures(self._rows, pa.concat_tables(self._noted), self._stopped))
                self._noted = []
            return pa.chunked_array(self._found, self._found[0].type).take(number)


def figures(rows: Rows, windows: pa.Table, stopped: threading.Event | None = None) -> pa.StructArray:
    """The figures (`FIGURES`) of each window: a record for each row of `windows`, which has the columns `WINDOW`.

    `rows` are those of telemetry. Readings count with the cluster and the GPU of their window. Power that is marked in
    `quality`, below 0.5 W or above 5 kW does not count. With t, W and E the time (s), power and counter (J) of the
    readings, and T the length of the window, joules are T (E_max - E_min) / (t(E_max) - t(E_min)) where the counter
    covers half of the window and fits the power, else T mean(W) where readings of power cover half of it. Of n readings
    the median is the (n+1)/2-th and the 95th percentile the 0.95n-th lowest. Raises OSError and pyarrow.ArrowException
    where a file cannot be read, InterruptedError when `stopped` is set.
    """
    index, totals = WindowIndex(windows), _Totals(windows)
    for part in parts_of(TELEMETRY.name, _near(rows, index)):
        for batch, numbers, places in _in_windows(part, index, rows, _COLUMNS):
            if stopped is not None and stopped.is_set():
                raise InterruptedError("the query was stopped")
            if len(places):
                totals.add(batch, numbers, places)
        totals.end((file_names.day_number(str(part.day)) or 0) + 1)
    totals.end()
    return totals.figures()


def readings(
    rows: Rows, windows: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Integers, Integers]]:
    """The rows of telemetry in windows, which have the columns `WINDOW`: a batch of rows after another and, of each of
    its readings that is in a window, the window (its row in `windows`) and the row in the batch.

    A batch has the keys and the `columns` that are not all NULL in its file, and is sorted by GPU and time; batches are
    in no order. Text is dictionary-encoded. Raises as `figures`.
    """
    if not rows.files and rows.late is None:
        return
    index = WindowIndex(windows)
    for part in parts_of(TELEMETRY.name, _near(rows, index)):
        yield from _in_windows(part, index, rows, [*dict.fromkeys((*KEY, *columns))])


# -- reading --------------------------------------------------------------------------------------------------


class WindowIndex:
    """Windows, to be looked up by cluster, GPU and time."""

    def __init__(self, windows: pa.Table) -> None:
        """`windows` has the columns `WINDOW`."""
        rows = _in_one(windows)
        began, until = (_numbers(rows, name, absent) for name, absent in (("began", _HIGH), ("until", _LOW)))
        (cluster, clusters), (gpu, gpus) = _codes(rows["cluster"]), _codes(rows["gpu"])
        order = np.lexsort((began, cluster, gpu))
        edges = np.flatnonzero(np.diff(gpu[order], prepend=-2) | np.diff(cluster[order], prepend=-2))
        pieces = [order[first:end] for first, end in itertools.pairwise([*edges.tolist(), len(order)])]
        self._of_gpu = {
            (clusters[cluster[places[0]]], gpus[gpu[places[0]]]): (places, np.append(began[places], until[places]))
            for places in pieces
        }
        """The windows of each cluster and GPU, and when they begin and end."""
        names = [(gpus[gpu[places[0]]] or "").encode() for places in pieces]
        by_name = sorted(range(len(names)), key=names.__getitem__)
        self._gpus = [names[piece] for piece in by_name]
        self._first_us = np.array([began[pieces[piece][0]] for piece in by_name], np.int64)
        self._until_us = np.array([until[pieces[piece]].max() for piece in by_name], np.int64)
        within = int(began.min(initial=_HIGH)), int(until.max(initial=_LOW)) - 1
        self.bounds = file_names.Bounds(*within, file_names.gpu_hashes(gpu for _, gpu in self._of_gpu))
        """Between which times, and of which GPUs, readings can be in windows."""

    def may_lie_in(self, gpus: tuple[bytes, bytes] | None, times: tuple[int, int] | None) -> bool:
        """Whether rows from one GPU to another (UTF-8), and from one time to another (us), can lie in windows; None:
        any."""
        among = slice(None)
        if gpus is not None:
            among = slice(bisect.bisect_left(self._gpus, gpus[0]), bisect.bisect_right(self._gpus, gpus[1]))
        first_us, last_us = times or (_LOW, _HIGH)
        return bool(((self._first_us[among] <= last_us) & (self._until_us[among] > first_us)).any())

    def places(self, batch: pa.RecordBatch) -> tuple[Integers, Integers]:
        """Of each reading in a window: the window, and its row in the batch, which is sorted by GPU and time."""
        ts = batch["ts"].view("int64").to_numpy()
        (cluster, clusters), (gpu, gpus) = _codes(batch["cluster"]), _codes(batch["gpu"])
        begins = np.flatnonzero(np.diff(gpu, prepend=-2) | np.diff(cluster, prepend=-2))
        windows, places = [np.zeros(0, np.int64)], [np.zeros((2, 0), np.int64)]
        for begin, end in itertools.pairwise([*begins.tolist(), len(ts)]):
            of_gpu = self._of_gpu.get((clusters[cluster[begin]], gpus[gpu[begin]]))
            if of_gpu is not None:
                windows.append(of_gpu[0])
                places.append((ts[begin:end].searchsorted(of_gpu[1]) + begin).reshape(2, -1))
        first, end = np.concatenate(places, axis=1)
        counts = np.maximum(end - first, 0)
        before = np.cumsum(counts) - counts
        return np.repeat(np.concatenate(windows), counts), np.arange(counts.sum()) - np.repeat(before - first, counts)


def _codes(column: pa.Array) -> tuple[NDArray[Any], list[str | None]]:
    """The number of each row's text, and these texts; the last one is None, with the number -1."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return coded.indices.fill_null(-1).to_numpy(), [*coded.dictionary.to_pylist(), None]


def _near(rows: Rows, index: WindowIndex) -> Rows:
    """The rows without files that have none in windows."""
    free, contested = (
        [path for path in paths if manifest.may_hold(path, index.bounds)] for paths in (rows.free, rows.contested)
    )
    return dataclasses.replace(rows, free=free, contested=contested)


def _in_windows(
    part: TablePart, index: WindowIndex, rows: Rows, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Integers, Integers]]:
    """The batches of a piece of telemetry that has some in windows, as `readings` gives them."""
    contested = {path.absolute() for path in rows.contested}
    for path in part.files:
        for batch in _row_groups(path, index, columns, part.late if path in contested else None):
            yield batch, *index.places(batch)
    if part.late is not None:
        batch = _in_one(keys.newest(part.late.select(list(columns))))
        yield batch, *index.places(batch)


def _row_groups(
    path: Path, index: WindowIndex, columns: Sequence[str], replaced: pa.Table | None
) -> Iterator[pa.RecordBatch]:
    """The rows of each row group of a file that can lie in a window, but for those whose key is `replaced`."""
    texts = ["cluster", "gpu", "quality"] if replaced is None else []  # as numbers, where keys are not compared
    with files.opened(path) as source, pq.ParquetFile(source, read_dictionary=texts) as file:
        filled = parquet.filled_in(file)
        chosen = [*KEY, *(name for name in columns if name in filled and name not in KEY)]
        places = {file.metadata.schema.column(place).path: place for place in range(file.metadata.num_columns)}
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            extents = (group.column(places[name]).statistics for name in ("gpu", "ts"))
            ends = [(extent.min_raw, extent.max_raw) if extent and extent.has_min_max else None for extent in extents]
            if index.may_lie_in(*ends):
                rows = file.read_row_group(number, columns=chosen, use_threads=False)
                yield _in_one(rows if replaced is None else keys.without(rows, replaced))


def _in_one(rows: pa.Table) -> pa.RecordBatch:
    """Rows as one batch."""
    batches = rows.unify_dictionaries().combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


# -- adding up ------------------------------------------------------------------------------------------------


class _Totals:
    """What is known of each window from the readings that were added: an array for each figure."""

    def __init__(self, windows: pa.Table) -> None:
        rows = _in_one(windows)
        self._began_us, self._until_us, self._ended_us = (
            _numbers(rows, name, absent) for name, absent in (("began", _HIGH), ("until", _LOW), ("ended", _HIGH))
        )
        self._of = {name: np.full(len(windows), start) for name, (_, start) in _REDUCED.items()}
        self._of |= {name: np.full(len(windows), _HIGH) for name in ("low_mj", "low_us", "less_mj", "high_us")}
        self._median, self._p95 = (np.full(len(windows), np.nan) for _ in range(2))
        self._tenths = _NO_TENTHS  # of windows that are not over
        self._new = [_NO_TENTHS]

    def add(self, batch: pa.RecordBatch, windows: Integers, places: Integers) -> None:
        """Add the readings of a batch at these places, and the window of each."""
        ts, mw = batch["ts"].view("int64").to_numpy()[places], _power_mw(batch)[places]
        mhz, celsius = (_numbers(batch, name, _LOW)[places] for name in ("sm_clock_mhz", "temperature_c"))
        counts = mw > 0
        starts = np.flatnonzero(np.diff(windows, prepend=-1))
        numbers = windows[starts]
        values = {
            "n": np.ones_like(ts), "first_us": ts, "last_us": ts, "counted": counts, "sum_mw": mw, "most_mw": mw,
            "clocks": mhz > _LOW, "sum_mhz": np.where(mhz > _LOW, mhz, 0), "celsius": celsius,
        }  # fmt: skip
        for name, (reduce, _) in _REDUCED.items():
            total = self._of[name]
            total[numbers] = reduce(total[numbers], reduce.reduceat(values[name].astype(np.int64, copy=False), starts))
        mj = _numbers(batch, "energy_mj", _HIGH)[places]
        for name, at, signed in (("low_mj", "low_us", mj), ("less_mj", "high_us", np.where(mj < _HIGH, -mj, _HIGH))):
            lowest = np.minimum.reduceat(signed, starts)
            equal = np.flatnonzero(signed == np.repeat(lowest, np.diff(starts, append=len(ts))))
            at_us = ts[equal[equal.searchsorted(starts)]]  # the first of equal ones
            before, before_us = self._of[name][numbers], self._of[at][numbers]
            is_lower = (lowest < before) | ((lowest == before) & (at_us < before_us))
            self._of[name][numbers[is_lower]], self._of[at][numbers[is_lower]] = lowest[is_lower], at_us[is_lower]
        self._new.append(np.unique(windows[counts] << _TENTH | mw[counts] // 100, return_counts=True))

    def end(self, day: int | None = None) -> None:
        """Take the quantiles of the windows with new readings that are over when a day begins; None: of all others."""
        new_keys = np.concatenate([keys for keys, _ in self._new])
        keys, readings = _joined([self._tenths, *self._new])
        over = np.zeros(len(self._until_us), bool)
        over[(keys if day is None else new_keys) >> _TENTH] = True
        over &= self._until_us <= (_HIGH if day is None else day * file_names.DAY_US)
        is_over = over[keys >> _TENTH]
        self._tenths, self._new = (keys[~is_over], readings[~is_over]), [_NO_TENTHS]
        keys, readings = keys[is_over], readings[is_over]
        starts, below = np.flatnonzero(np.diff(keys >> _TENTH, prepend=-1)), readings.cumsum()
        windows = keys[starts] >> _TENTH
        before, n = below[starts] - readings[starts], self._of["counted"][windows]
        for figure, part in ((self._median, 2), (self._p95, 20)):
            figure[windows] = (keys[below.searchsorted(before + n - n // part)] & ((1 << _TENTH) - 1)) / 10

    def figures(self) -> pa.StructArray:
        """The figures of each window."""
        of, n, counted = self._of, self._of["n"], self._of["counted"]
        has_power, has_counter = counted > 0, of["low_mj"] < _HIGH
        mean_w = of["sum_mw"] / np.maximum(counted, 1) / 1e3
        ended_us = np.where(self._ended_us == _HIGH, of["last_us"], self._ended_us)
        window_s = np.where(n > 0, ended_us - self._began_us, 0) / 1e6
        # Of how many seconds power and counter tell.
        power_s = np.where(has_power, of["last_us"] - of["first_us"], 0) / 1e6 * counted / np.maximum(n, 1)
        counter_s = np.where(has_counter, of["high_us"] - of["low_us"], 0) / 1e6
        counter_j = np.where(has_counter, -of["less_mj"] - of["low_mj"], 0) / 1e3
        least_j = 0.3 * mean_w * (counter_s - 0.3) - 1
        fits = (counter_j >= least_j) & (counter_j <= 1.5 * of["most_mw"] / 1e3 * (counter_s + 0.3) + 1)
        by_counter = (counter_s > 0) & (counter_s >= 0.5 * window_s) & (fits | ~has_power)
        by_power = ~by_counter & (power_s > 0) & (power_s >= 0.5 * window_s)
        rate_w = np.where(by_counter, counter_j / np.where(by_counter, counter_s, 1), mean_w)
        columns = [
            pa.array(n),
            *(pa.array(watts, mask=~has_power) for watts in (mean_w, self._median, self._p95)),
            pa.array(rate_w * window_s, mask=~(by_counter | by_power)),
            pa.array(np.where(by_counter, "counter", "power"), pa.string(), mask=~(by_counter | by_power)),
            pa.array(of["sum_mhz"] / np.maximum(of["clocks"], 1), mask=of["clocks"] == 0),
            pa.array(of["celsius"], mask=of["celsius"] == _LOW),
        ]
        return pa.StructArray.from_arrays(columns, names=[column.name for column in FIGURES])


def _joined(parts: Sequence[Tenths]) -> Tenths:
    keys, readings = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(readings[order], starts)


def _power_mw(batch: pa.RecordBatch) -> Integers:
    """Board power, mW; 0 where it does not count."""
    instant, reported = (_numbers(batch, name, -1) for name in BOARD_POWER)
    mw = np.where(instant < 0, reported, instant)
    counts = (mw >= _LEAST_MW) & (mw <= _MOST_MW)
    if "quality" in batch.schema.names:
        codes, marks = _codes(batch["quality"])
        counts &= np.array([not any(name in (mark or "") for name in UNTRUSTED_POWER) for mark in marks])[codes]
    return np.where(counts, mw, 0)


def _numbers(batch: pa.RecordBatch, name: str, absent: int) -> Integers:
    """A column of numbers or times (us), with `absent` for NULL and where the batch has no such column."""
    if name not in batch.schema.names:
        return np.full(len(batch), absent)
    column = batch[name].view("int64")
    return np.asarray((column.fill_null(absent) if column.null_count else column).to_numpy())
