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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from . import file_names, keys, manifest, parquet
from .metrics import BOARD_POWER, UNTRUSTED_POWER
from .schema import KEY, TELEMETRY
from .snapshot import parts_of
from .system import files
from .views import FIGURES, FIND, NOTE, WINDOW, WINDOW_FIGURES

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from .snapshot import Rows, TablePart

Integers = NDArray[np.int64]

_COLUMNS = (*KEY, *BOARD_POWER, "quality", "energy_mj", "sm_clock_mhz", "temperature_c")
_LEAST_MW, _MOST_MW = 500, 5_000_000  # what a board can draw, as `analysis.energy.sensor` judges readings
_LOW, _HIGH = -(2**63), 2**63 - 1
_TENTH = 16  # bits of a tenth of a watt
_TENTHS = (1 << _TENTH) - 1
_MOST_KEYS = 1 << 22
_NO_INTEGERS: Integers = np.zeros(0, np.int64)
_REDUCED = {  # figures of a window: how those of two slices become one, and where they begin
    "n": (np.add, 0), "sum_mw": (np.add, 0), "most_mw": (np.maximum, 0),
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
            return _arrow(np.arange(self._count - len(gpu), self._count))

    def find(self, number):  # type: ignore[no-untyped-def]
        """The figures (`FIGURES`) of windows, by their numbers."""
        with self._lock:
            if self._noted:
                self._found.append(figures(self._rows, pa.concat_tables(self._noted), self._stopped))
                self._noted = []
            answers, first, n = pa.chunked_array(self._found, self._found[0].type), number[0].as_py(), len(number)
            # In a row, but where a query has several such views. `take` would load all that Arrow computes.
            in_a_row = number[n - 1].as_py() - first == n - 1
            return answers.slice(first, n) if in_a_row else answers.take(number)


def figures(rows: Rows, windows: pa.Table, stopped: threading.Event | None = None) -> pa.StructArray:
    """The figures (`FIGURES`) of each window: a record for each row of `windows`, which has the columns `WINDOW`.

    `rows` are those of telemetry. Readings count with the cluster and the GPU of their window. Power that is marked in
    `quality`, below 0.5 W or above 5 kW does not count. With t, W and E the time (s), power and counter (J) of the
    readings, and T the length of the window, joules are T (E_max - E_min) / (t(E_max) - t(E_min)) where the counter
    covers half of the window and fits the power, else T mean(W) where readings of power cover half of it. Of n readings
    the median is the (n+1)/2-th and the 95th percentile the 0.95n-th lowest. Raises OSError and pyarrow.ArrowException
    where a file cannot be read, InterruptedError when `stopped` is set.
    """
    batch = _in_one(windows)
    index = WindowIndex(batch)
    totals = _Totals(batch, index)
    for part in parts_of(TELEMETRY.name, _near(rows, index)):
        totals.begin(file_names.day_number(str(part.day)) or 0)
        for readings, complete in _batches(part, index, rows, _COLUMNS):
            if stopped is not None and stopped.is_set():
                raise InterruptedError("the query was stopped")
            totals.add(readings, index.slices(readings), complete)
        totals.end()
    return totals.figures(np.argsort(index.rows))


def readings(
    rows: Rows, windows: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, Integers, Integers]]:
    """The rows of telemetry in windows, which have the columns `WINDOW`: a batch of rows after another and, of each of
    its readings that is in a window, the window (its row in `windows`) and the row in the batch.

    A batch has the keys and the `columns` that are not all NULL in its file, and is sorted by GPU and time; batches are
    in no order. Text is dictionary-encoded. Raises as `figures`.
    """
    index = WindowIndex(_in_one(windows))
    for part in parts_of(TELEMETRY.name, _near(rows, index)):
        for batch, _ in _batches(part, index, rows, [*dict.fromkeys((*KEY, *columns))]):
            slices = index.slices(batch)
            yield batch, np.repeat(index.rows[slices.numbers], slices.counts), slices.places()


# -- reading --------------------------------------------------------------------------------------------------


class WindowIndex:
    """Windows, to be looked up by cluster, GPU and time. Their numbers are in this order of GPU, cluster and time, as
    the rows of telemetry are."""

    def __init__(self, windows: pa.RecordBatch) -> None:
        """`windows` has the columns `WINDOW`."""
        (cluster, clusters), (gpu, gpus) = (_ranks(windows[name].to_pylist()) for name in ("cluster", "gpu"))
        names = [(name or "").encode() for name in gpus]
        began, until = (_numbers(windows, name, absent) for name, absent in (("began", _HIGH), ("until", _LOW)))
        self.rows: Integers = np.lexsort((began, cluster, gpu))
        """(windows,) the row of each window in the batch, by its number."""
        gpu, cluster = gpu[self.rows], cluster[self.rows]
        self.times_us = np.stack((began, until))[:, self.rows]
        """(2, windows) when each begins and ends, by its number."""
        edges = np.flatnonzero(np.diff(gpu, prepend=-2) | np.diff(cluster, prepend=-2)).tolist()
        pieces = [slice(*ends) for ends in itertools.pairwise([*edges, len(gpu)])]
        self._of_gpu = {
            (clusters[cluster[piece.start]], gpus[gpu[piece.start]]): piece for piece in pieces
        }  # the numbers of each cluster and GPU
        latest = [np.maximum.accumulate(self.times_us[1, piece]) for piece in pieces]
        self._latest_us = np.concatenate([_NO_INTEGERS, *latest])  # the last end of a GPU's windows so far
        self._gpus = [names[gpu[first]] for first in edges]
        self._edges = [*edges, len(gpu)]
        self._first_us = self.times_us[0, edges]
        self._until_us = self._latest_us[[piece.stop - 1 for piece in pieces]]
        within = int(began.min(initial=_HIGH)), int(until.max(initial=_LOW)) - 1
        self.gpus = frozenset(gpus)
        self.bounds = file_names.Bounds(*within, file_names.gpu_hashes(gpus))
        """Between which times, and of which GPUs, readings can be in windows."""

    def before(self, gpu: bytes) -> int:
        """How many windows are of GPUs before this one (UTF-8)."""
        return self._edges[bisect.bisect_left(self._gpus, gpu)]

    def may_lie_in(self, gpus: tuple[bytes, bytes] | None, times: tuple[int, int] | None) -> bool:
        """Whether rows from one GPU to another (UTF-8), and from one time to another (us), can lie in windows; None:
        any."""
        among = slice(None)
        if gpus is not None:
            among = slice(bisect.bisect_left(self._gpus, gpus[0]), bisect.bisect_right(self._gpus, gpus[1]))
        first_us, last_us = times or (_LOW, _HIGH)
        return bool(((self._first_us[among] <= last_us) & (self._until_us[among] > first_us)).any())

    def slices(self, batch: pa.RecordBatch) -> _Slices:
        """The windows that have readings in a batch, which is sorted by GPU and time."""
        ts = batch["ts"].view("int64").to_numpy()
        (cluster, clusters), (gpu, gpus) = _codes(batch["cluster"]), _codes(batch["gpu"])
        begins = np.flatnonzero((gpu[1:] != gpu[:-1]) | (cluster[1:] != cluster[:-1])) + 1
        numbers, places = [_NO_INTEGERS], [np.zeros((2, 0), np.int64)]
        for begin, end in itertools.pairwise([0, *begins.tolist(), len(ts)]) if len(ts) else ():
            of_gpu = self._of_gpu.get((clusters[cluster[begin]], gpus[gpu[begin]]))
            if of_gpu is not None:
                ended = self._latest_us[of_gpu].searchsorted(ts[begin], "right")
                begun = self.times_us[0, of_gpu].searchsorted(ts[end - 1], "right")
                near = slice(of_gpu.start + ended, of_gpu.start + max(begun, ended))
                numbers.append(np.arange(near.start, near.stop))
                places.append(ts[begin:end].searchsorted(self.times_us[:, near]) + begin)
        number, (first, end) = np.concatenate(numbers), np.concatenate(places, axis=1)
        has_readings = first < end
        return _Slices(number[has_readings], first[has_readings], (end - first)[has_readings])


@dataclasses.dataclass(frozen=True)
class _Slices:
    """Windows that have readings in a batch, the first row of these, and how many they are."""

    numbers: Integers
    first: Integers
    counts: Integers

    @property
    def starts(self) -> Integers:
        """Of each window, how many readings those before it have."""
        return self.counts.cumsum() - self.counts

    def places(self) -> Integers:
        """The rows in the batch of the readings of one window after another."""
        return np.arange(self.counts.sum()) + np.repeat(self.first - self.starts, self.counts)


def _ranks(texts: list[str | None]) -> tuple[Integers, list[str | None]]:
    """Each text's position in the order of their bytes, and the texts in this order."""
    in_order = sorted({*texts}, key=lambda text: (text or "").encode())
    ranks = {text: rank for rank, text in enumerate(in_order)}
    return np.fromiter(map(ranks.__getitem__, texts), np.int64, len(texts)), in_order


def _codes(column: pa.Array) -> tuple[NDArray[Any], list[str | None]]:
    """The number of each row's text, and these texts; the last one is None, with the number -1."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    indices = coded.indices.fill_null(-1) if coded.null_count else coded.indices
    return indices.to_numpy(), [*coded.dictionary.to_pylist(), None]


def _near(rows: Rows, index: WindowIndex) -> Rows:
    """The rows without files that have none in windows."""

    def may_hold(path: Path) -> bool:
        return manifest.may_hold(path, index.bounds) and not index.gpus.isdisjoint(
            manifest.names_of_gpus(path.parent).get(path.name, index.gpus)
        )

    free, contested = ([path for path in paths if may_hold(path)] for paths in (rows.free, rows.contested))
    return dataclasses.replace(rows, free=free, contested=contested)


def _batches(
    part: TablePart, index: WindowIndex, rows: Rows, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of a piece of telemetry that can lie in windows, in the order of their GPUs; and up to which number
    windows have no further readings in the piece."""
    contested = {path.absolute() for path in rows.contested}
    groups, metadata = [], {}
    for path in part.files:
        with files.opened(path) as source:
            metadata[path] = file = pq.read_metadata(source)
        places = {file.schema.column(place).path: place for place in range(file.num_columns)}
        for number in range(file.num_row_groups):
            group = file.row_group(number)
            extents = (group.column(places[name]).statistics for name in ("gpu", "ts"))
            gpus, times = ((e.min_raw, e.max_raw) if e and e.has_min_max else None for e in extents)
            if index.may_lie_in(gpus, times):
                groups.append((index.before(gpus[0]) if gpus else 0, path, number))
    groups.sort()
    if part.late is not None:
        yield _in_one(keys.newest(part.late.select(list(columns)))), 0
    complete = [number for number, _, _ in groups[1:]] + [len(index.rows)] * bool(groups)
    for path, of_file in itertools.groupby(zip(groups, complete, strict=True), key=lambda group: group[0][1]):
        replaced = part.late if path in contested else None
        texts = ["cluster", "gpu", "quality"] if replaced is None else []  # as numbers, where keys are not compared
        with files.opened(path) as source:
            file = pq.ParquetFile(source, read_dictionary=texts, metadata=metadata[path])
            filled = parquet.filled_in(file)
            chosen = [*KEY, *(name for name in columns if name in filled and name not in KEY)]
            for (_, _, number), is_complete in of_file:
                table = file.read_row_group(number, columns=chosen, use_threads=False)
                yield _in_one(table if replaced is None else keys.without(table, replaced)), is_complete


def _in_one(rows: pa.Table) -> pa.RecordBatch:
    """Rows as one batch."""
    batches = rows.unify_dictionaries().combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


# -- adding up ------------------------------------------------------------------------------------------------


class _Totals:
    """What is known of each window from the readings that were added: an array for each figure."""

    def __init__(self, windows: pa.RecordBatch, index: WindowIndex) -> None:
        """`windows` has the columns `WINDOW`; figures are by the numbers of `index`."""
        self._began_us, self._until_us = index.times_us
        self._ended_us = _numbers(windows, "ended", _HIGH)[index.rows]
        starts = {name: start for name, (_, start) in _REDUCED.items()}
        starts |= {"low_mj": _HIGH, "low_us": _HIGH, "high_mj": _LOW, "high_us": _HIGH, "counted": 0}
        self._of = {name: np.full(len(windows), start) for name, start in starts.items()}
        self._median, self._p95 = (np.full(len(windows), np.nan) for _ in range(2))
        self._keys: list[Integers] = []  # window << _TENTH | tenth, of all other readings
        self._room = 0  # for so many of them
        # Of windows that go on on another day, or have too many readings: sorted keys, and how many readings have each.
        self._tenths = _NO_INTEGERS, _NO_INTEGERS

    def begin(self, day: int) -> None:
        """Readings of a piece of this day follow: all that the day has of their GPUs. Days come in their order."""
        day_us, next_us = day * file_names.DAY_US, (day + 1) * file_names.DAY_US
        self._goes_on = (self._began_us < day_us) | (self._until_us > next_us)
        keys, readings = self._tenths
        is_over = (self._until_us <= day_us)[keys >> _TENTH]
        self._set_quantiles(keys[is_over], readings[is_over].cumsum())
        self._tenths = keys[~is_over], readings[~is_over]

    def add(self, batch: pa.RecordBatch, slices: _Slices, complete: int) -> None:
        """Add the readings of a batch that are in windows. `complete`: windows below this number have no more readings
        in the piece."""
        numbers, counts, starts, places = slices.numbers, slices.counts, slices.starts, slices.places()
        if not len(numbers):
            return
        ts, mw = batch["ts"].view("int64").to_numpy(), _power_mw(batch).take(places)
        mhz, celsius = (_numbers(batch, name, _LOW).take(places) for name in ("sm_clock_mhz", "temperature_c"))
        has_mhz = mhz > _LOW

        def reduced(reduce: np.ufunc, values: NDArray[Any]) -> Integers:
            return np.asarray(reduce.reduceat(values, starts, dtype=np.int64))

        of_slices = {
            "n": counts, "sum_mw": reduced(np.add, mw), "most_mw": reduced(np.maximum, mw),
            "clocks": reduced(np.add, has_mhz), "sum_mhz": reduced(np.add, mhz * has_mhz),
            "celsius": reduced(np.maximum, celsius), "first_us": ts[slices.first],
            "last_us": ts[slices.first + counts - 1],
        }  # fmt: skip
        for name, (reduce, _) in _REDUCED.items():
            self._of[name][numbers] = reduce(self._of[name][numbers], of_slices[name])
        for name, reduce, absent in (("low", np.minimum, _HIGH), ("high", np.maximum, _LOW)):
            if "energy_mj" in batch.schema.names:
                mj = _numbers(batch, "energy_mj", absent).take(places)
                extreme = reduced(reduce, mj)
                equal = np.flatnonzero(mj == np.repeat(extreme, counts))
                first_us = ts[places[equal[equal.searchsorted(starts)]]]
                before, before_us = self._of[f"{name}_mj"][numbers], self._of[f"{name}_us"][numbers]
                is_new = (before != extreme) & (reduce(before, extreme) == extreme)
                is_new |= (before == extreme) & (first_us < before_us)
                self._of[f"{name}_mj"][numbers[is_new]] = extreme[is_new]
                self._of[f"{name}_us"][numbers[is_new]] = first_us[is_new]
        keys = (np.repeat(numbers << _TENTH, counts) | mw // 100)[mw > 0]
        keys.sort()
        self._keys.append(keys)
        if sum(map(len, self._keys)) > self._room:
            self._take_quantiles(complete)
            self._room = 2 * len(self._keys[0])  # each reading is sorted twice, about, whatever is in how many files

    def end(self) -> None:
        """The piece has no more readings."""
        self._take_quantiles(len(self._until_us))

    def _take_quantiles(self, complete: int) -> None:
        """Take those of windows below this number. Of those that go on, count the readings at each tenth of a watt."""
        keys = np.concatenate([_NO_INTEGERS, *self._keys])
        keys.sort(kind="stable")  # made for arrays that are sorted in parts
        keys, open_keys = np.split(keys, [keys.searchsorted(complete << _TENTH)])
        if len(open_keys) > _MOST_KEYS:
            self._goes_on[open_keys >> _TENTH] = True
            keys, open_keys = np.append(keys, open_keys), open_keys[:0]
        self._keys = [open_keys]
        if self._goes_on.any():
            goes_on = self._goes_on[keys >> _TENTH]
            self._count(keys[goes_on])
            keys = keys[~goes_on]
        self._set_quantiles(keys)

    def _count(self, keys: Integers) -> None:
        keys, readings = np.concatenate((self._tenths[0], keys)), np.append(self._tenths[1], np.ones_like(keys))
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        self._tenths = keys[order][starts], np.add.reduceat(readings[order], starts)

    def _set_quantiles(self, keys: Integers, below: Integers | None = None) -> None:
        """Of windows with all their readings, by sorted keys; `below`: how many readings have one of the keys so far,
        None: each has one."""
        of_keys = keys >> _TENTH
        ends = np.append(np.flatnonzero(of_keys[1:] != of_keys[:-1]) + 1, len(keys))[: len(keys)]
        windows, upto = of_keys[ends - 1], ends if below is None else below[ends - 1]
        self._of["counted"][windows] = n = np.diff(upto, prepend=0)
        for figure, part in ((self._median, 2), (self._p95, 20)):
            rank = upto - n // part
            figure[windows] = (keys[rank - 1 if below is None else below.searchsorted(rank)] & _TENTHS) / 10

    def figures(self, order: Integers) -> pa.StructArray:
        """The figures of windows by their numbers."""
        keys, readings = self._tenths
        self._set_quantiles(keys, readings.cumsum())
        totals, n, counted = self._of, self._of["n"], self._of["counted"]
        has_power, has_counter = counted > 0, totals["low_mj"] < _HIGH
        mean_w = totals["sum_mw"] / np.maximum(counted, 1) / 1e3
        ended_us = np.where(self._ended_us == _HIGH, totals["last_us"], self._ended_us)
        window_s = np.where(n > 0, ended_us - self._began_us, 0) / 1e6
        # Of how many seconds power and counter tell.
        power_s = np.where(has_power, totals["last_us"] - totals["first_us"], 0) / 1e6 * counted / np.maximum(n, 1)
        counter_s = np.where(has_counter, totals["high_us"] - totals["low_us"], 0) / 1e6
        counter_j = np.where(has_counter, totals["high_mj"] - totals["low_mj"], 0) / 1e3
        least_j = 0.3 * mean_w * (counter_s - 0.3) - 1
        fits = (counter_j >= least_j) & (counter_j <= 1.5 * totals["most_mw"] / 1e3 * (counter_s + 0.3) + 1)
        by_counter = (counter_s > 0) & (counter_s >= 0.5 * window_s) & (fits | ~has_power)
        by_power = ~by_counter & (power_s > 0) & (power_s >= 0.5 * window_s)
        joules = np.where(by_counter, counter_j / np.where(by_counter, counter_s, 1), mean_w) * window_s
        source = np.array([None, "power", "counter"], object)[2 * by_counter + by_power]
        columns = [
            _arrow(n[order]),
            *(_arrow(watts[order], has_power[order]) for watts in (mean_w, self._median, self._p95)),
            _arrow(joules[order], (by_counter | by_power)[order]),
            pa.array(source[order].tolist(), pa.string()),
            _arrow((totals["sum_mhz"] / np.maximum(totals["clocks"], 1))[order], (totals["clocks"] > 0)[order]),
            _arrow(totals["celsius"][order], (totals["celsius"] > _LOW)[order]),
        ]
        return pa.StructArray.from_arrays(columns, names=[column.name for column in FIGURES])


def _power_mw(batch: pa.RecordBatch) -> Integers:
    """Board power, mW; 0 where it does not count."""
    instant, reported = BOARD_POWER
    mw = _numbers(batch, reported, -1)
    if instant in batch.schema.names:
        instant_mw = _numbers(batch, instant, -1)
        mw = np.where(instant_mw < 0, mw, instant_mw)
    counts = (mw >= _LEAST_MW) & (mw <= _MOST_MW)
    if "quality" in batch.schema.names:
        codes, marks = _codes(batch["quality"])
        counts &= np.array([not any(name in (mark or "") for name in UNTRUSTED_POWER) for mark in marks])[codes]
    return mw * counts


def _numbers(batch: pa.RecordBatch, name: str, absent: int) -> Integers:
    """A column of numbers or times (us), with `absent` for NULL and where the batch has no such column."""
    if name not in batch.schema.names:
        return np.full(len(batch), absent)
    column = batch[name].view("int64")
    return np.asarray((column.fill_null(absent) if column.null_count else column).to_numpy())


def _arrow(values: NDArray[Any], present: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as Arrow has them. `pa.array` would load `numpy.ma` for this, which takes as long as 100,000 readings."""
    nulls = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [nulls, pa.py_buffer(np.ascontiguousarray(values))]
    )
