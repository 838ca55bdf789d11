"""What telemetry says of windows, such as the time of a run or of a job on a GPU.

The rows of a file of telemetry are sorted by GPU and time, so the readings of a window are a slice of each row group
that has some. Every figure can be joined from slices in any order: counts, sums and extremes, and for quantiles the
number of readings at each tenth of a watt. So each row group is read once, and memory does not grow with telemetry.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import file_names, keys, manifest, parquet
from .metrics import BOARD_POWER, UNTRUSTED_POWER
from .parts import parts_of
from .schema import KEY, TELEMETRY, Column
from .system import files
from .vocabulary import record

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from .parts import TablePart
    from .snapshot import Rows

    Integers = NDArray[np.int64]

FIGURES = (
    Column("n", "BIGINT", "", "how many readings the window has: from `began` to before `ended`; 0 if none"),
    Column("power_mean_w", "DOUBLE", "W", "mean board power; NULL where no reading of it counts"),
    Column("power_median_w", "DOUBLE", "W", "median of it, in steps of 0.1 W"),
    Column("power_p95_w", "DOUBLE", "W", "95th percentile of it, in steps of 0.1 W"),
    Column(
        "energy_j",
        "DOUBLE",
        "J",
        "energy of the whole GPU in the window; NULL where the readings are of less than half of it",
    ),
    Column(
        "energy_from",
        "VARCHAR",
        "",
        "'counter': what the energy counter grew by from its lowest to its highest reading, at this rate to both ends; "
        "'power': mean power times seconds, where the counter is missing, fell back, stood still or jumped; NULL: no "
        "energy",
    ),
    Column("sm_clock_mean_mhz", "DOUBLE", "MHz", "mean SM clock"),
    Column("temperature_max_c", "BIGINT", "degC", "highest GPU temperature"),
)
"""The figures of a window, in this order."""

NOTE, FIND = "note_window", "window_of_telemetry"
"""SQL functions, see `Windows`."""

WINDOW = {"cluster": "VARCHAR", "gpu": "VARCHAR", "began": "TIMESTAMP", "ended": "TIMESTAMP", "until": "TIMESTAMP"}
"""What names a window, with types. Its readings have began <= ts < until. It ends at `ended`, for a window that is
still open (NULL) at its last reading."""

TYPE = record({column.name: column.type for column in FIGURES})

_COLUMNS = (*KEY, *BOARD_POWER, "quality", "energy_mj", "sm_clock_mhz", "temperature_c")
_LEAST_MW, _MOST_MW = 500, 5_000_000  # what a board can draw, as `analysis.energy.sensor` judges readings
_LOW, _HIGH = -(2**63), 2**63 - 1
_TIMES = {"began": _HIGH, "until": _LOW}  # columns of a window, and what stands for NULL


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
        connection.create_function(FIND, self.find, ["BIGINT"], TYPE, **arrow)

    @staticmethod
    def remove(connection: duckdb.DuckDBPyConnection) -> None:
        connection.remove_function(NOTE)
        connection.remove_function(FIND)

    def note(self, cluster, gpu, began, ended, until):  # type: ignore[no-untyped-def]  # DuckDB reads annotations
        """Note windows by the columns of `WINDOW`; returns the number of each."""
        import numpy as np
        import pyarrow as pa

        with self._lock:
            self._noted.append(pa.table([cluster, gpu, began, ended, until], names=[*WINDOW]))
            self._count += len(gpu)
            return pa.array(np.arange(self._count - len(gpu), self._count))

    def find(self, number):  # type: ignore[no-untyped-def]
        """The figures (`FIGURES`) of windows, by their numbers."""
        import pyarrow as pa

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
    covers half of the window and fits the power, else T mean(W) where readings of power cover half of it. Raises
    OSError and pyarrow.ArrowException where a file cannot be read, InterruptedError when `stopped` is set.
    """
    index, sums = WindowIndex(windows), _Sums(windows)
    contested = {*rows.contested}
    for part in parts_of(TELEMETRY.name, _near(rows, index)):
        for chunk, slices in _in_windows(part, index, _COLUMNS, contested):
            if stopped is not None and stopped.is_set():
                raise InterruptedError("the query was stopped")
            sums.add(chunk, slices)
        if (day := file_names.day_number(str(part.day))) is not None:
            sums.end((day + 1) * file_names.DAY_US)
    sums.end(_HIGH)
    return sums.figures()


def readings(rows: Rows, windows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, Slices]]:
    """The rows of telemetry in windows, which have the columns `WINDOW`: those of one row group after another.

    Each has the keys and the `columns` that are not all NULL in its file, and is sorted by GPU and time; row groups are
    in no order. Text is dictionary-encoded. Raises as `figures`.
    """
    index, contested = WindowIndex(windows), {*rows.contested}
    for part in parts_of(TELEMETRY.name, _near(rows, index)):
        yield from _in_windows(part, index, [*dict.fromkeys((*KEY, *columns))], contested)


# -- reading --------------------------------------------------------------------------------------------------


def _near(rows: Rows, index: WindowIndex) -> Rows:
    """The rows without files that have none in windows."""
    free, contested = (list(filter(index.near, paths)) for paths in (rows.free, rows.contested))
    return dataclasses.replace(rows, free=free, contested=contested)


def _in_windows(
    part: TablePart, index: WindowIndex, columns: Sequence[str], contested: Collection[Path]
) -> Iterator[tuple[pa.RecordBatch, Slices]]:
    """The rows of each row group of a piece of telemetry that has some in windows, and which."""
    for path in part.files:
        for rows in _row_groups(path, index, columns, part.late if path in contested else None):
            yield rows, index.slices(rows)
    if part.late is not None:
        rows = _joined(keys.newest(part.late.select(list(columns))))
        yield rows, index.slices(rows)


def _row_groups(
    path: Path, index: WindowIndex, columns: Sequence[str], replaced: pa.Table | None
) -> Iterator[pa.RecordBatch]:
    """The rows of each row group of a file that can lie in a window, but for those whose key is `replaced`.

    They have the columns that are not all NULL, and are sorted by GPU and time.
    """
    import pyarrow.parquet as pq

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
                yield _joined(rows if replaced is None else keys.without(rows, replaced))


def _joined(rows: pa.Table) -> pa.RecordBatch:
    """Rows in one piece."""
    import pyarrow as pa

    batches = rows.to_batches()
    batches = rows.unify_dictionaries().combine_chunks().to_batches() if len(batches) > 1 else batches
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _numbers(column: pa.Array, absent: int) -> Integers:
    """A column with `absent` for NULL."""
    import numpy as np

    return np.asarray((column.fill_null(absent) if column.null_count else column).to_numpy())


def _codes(column: pa.Array) -> tuple[NDArray[Any], list[str | None]]:
    """The number of each row's text, and these texts; the last one is None, with the number -1."""
    import pyarrow as pa

    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    indices = coded.indices.fill_null(-1) if coded.null_count else coded.indices
    return indices.to_numpy(), [*coded.dictionary.to_pylist(), None]


# -- adding up ------------------------------------------------------------------------------------------------


class WindowIndex:
    """Windows, to be looked up by cluster, GPU and time."""

    def __init__(self, windows: pa.Table) -> None:
        """`windows` has the columns `WINDOW`."""
        import numpy as np

        rows = _joined(windows)
        began, until = (_numbers(rows[name].view("int64"), absent) for name, absent in _TIMES.items())
        (cluster, clusters), (gpu, gpus) = _codes(rows["cluster"]), _codes(rows["gpu"])
        key = gpu * len(clusters) + cluster
        order = np.lexsort((began, key))
        edges = np.append(np.flatnonzero(np.diff(key[order], prepend=-1 << 62)), len(order))
        pieces = [order[first:end] for first, end in itertools.pairwise(edges.tolist())]
        # The windows of each cluster and GPU, in their order, and when they begin and end.
        self._of_gpu = {
            (clusters[cluster[places[0]]], gpus[gpu[places[0]]]): (
                places,
                np.concatenate((began[places], until[places])),
            )
            for places in pieces
        }
        hashes = file_names.gpu_hashes(gpu for _, gpu in self._of_gpu)
        self.bounds = file_names.Bounds(int(began.min(initial=_HIGH)), int(until.max(initial=_LOW)) - 1, hashes)
        """Between which times, and of which GPUs, readings can be in windows."""
        names = np.array([(gpu or "").encode() for _, gpu in self._of_gpu], object)
        by_name = np.argsort(names, kind="stable")
        self._gpus = names[by_name].tolist()
        first_us, until_us = began[order[edges[:-1]]], np.maximum.reduceat(until[order], edges[:-1])
        self._first_us, self._until_us = first_us[by_name], until_us[by_name]

    def may_lie_in(self, gpus: tuple[bytes, bytes] | None, times: tuple[int, int] | None) -> bool:
        """Whether rows from one GPU to another (UTF-8), and from one time to another (us), can lie in windows; None:
        any."""
        among = slice(None)
        if gpus is not None:
            among = slice(bisect.bisect_left(self._gpus, gpus[0]), bisect.bisect_right(self._gpus, gpus[1]))
        first_us, last_us = times or (_LOW, _HIGH)
        return bool(((self._first_us[among] <= last_us) & (self._until_us[among] > first_us)).any())

    def near(self, path: Path) -> bool:
        """Whether a file can have rows in windows, by its name and its day's manifest."""
        stated, ends = file_names.parse(path.name), manifest.ends_of(path)
        times = None if stated is None else (stated.bounds.first_us, stated.bounds.last_us)
        gpus = None if ends is None else (ends[0].encode(), ends[1].encode())
        return manifest.may_hold(path, self.bounds) and self.may_lie_in(gpus, times)

    def slices(self, rows: pa.RecordBatch) -> Slices:
        """Those of the rows, sorted by GPU and time, that lie in windows."""
        import numpy as np

        ts = rows["ts"].view("int64").to_numpy()
        (cluster, clusters), (gpu, gpus) = _codes(rows["cluster"]), _codes(rows["gpu"])
        is_new = gpu[1:] != gpu[:-1]
        if len(clusters) > 2 or rows["cluster"].null_count:
            is_new |= cluster[1:] != cluster[:-1]
        begins = [0, *(np.flatnonzero(is_new) + 1).tolist()] if len(ts) else []
        of_gpus, places = [np.zeros(0, np.int64)], [np.zeros((2, 0), np.int64)]
        for begin, end in zip(begins, [*begins[1:], len(ts)], strict=False):
            windows_of_gpu = self._of_gpu.get((clusters[cluster[begin]], gpus[gpu[begin]]))
            if windows_of_gpu is not None:
                windows, times = windows_of_gpu
                of_gpus.append(windows)
                places.append((ts[begin:end].searchsorted(times) + begin).reshape(2, -1))
        windows, (first, last) = np.concatenate(of_gpus), np.concatenate(places, axis=1)
        inside = first < last
        return Slices(windows[inside], first[inside], last[inside])


class _Sums:
    """What is known of each window from the rows that were added."""

    def __init__(self, windows: pa.Table) -> None:
        import numpy as np

        rows, count = _joined(windows), len(windows)
        self._began, until, self._ended = (
            _numbers(rows[name].view("int64"), absent) for name, absent in (_TIMES | {"ended": _HIGH}).items()
        )
        self._power = _PowerSums(until)
        self._lowest, self._highest = _FirstLowest(count), _FirstLowest(count)  # of the counter (mJ), of its negative
        self._readings, self._clocks, self._sum_mhz = (np.zeros(count, np.int64) for _ in range(3))
        self._first_us, self._last_us, self._celsius = (np.full(count, value) for value in (_HIGH, _LOW, _LOW))

    def add(self, rows: pa.RecordBatch, slices: Slices) -> None:
        """Add rows that are sorted by GPU and time, and lie in windows as the slices say."""
        import numpy as np

        windows, names = slices.windows, rows.schema.names
        if not len(windows):
            return
        ts = rows["ts"].view("int64").to_numpy()
        self._readings[windows] += slices.count()
        self._first_us[windows] = np.minimum(self._first_us[windows], ts[slices.first])
        self._last_us[windows] = np.maximum(self._last_us[windows], ts[slices.end - 1])
        self._power.add(rows, slices)
        if "sm_clock_mhz" in names:
            clocks = rows["sm_clock_mhz"]
            self._sum_mhz[windows] += slices.reduce(np.add, _numbers(clocks, 0))
            has_clock = clocks.is_valid().to_numpy(False) if clocks.null_count else None
            self._clocks[windows] += slices.count(has_clock)
        if "temperature_c" in names:
            highest = slices.reduce(np.maximum, _numbers(rows["temperature_c"], _LOW))
            self._celsius[windows] = np.maximum(self._celsius[windows], highest)
        if "energy_mj" in names:
            self._lowest.add(_numbers(rows["energy_mj"], _HIGH), ts, slices)
            self._highest.add(-_numbers(rows["energy_mj"], -_HIGH), ts, slices)

    def end(self, before_us: int) -> None:
        """Know that all rows before a time were added."""
        self._power.end(before_us)

    def figures(self) -> pa.StructArray:
        """The figures of each window."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        power, lowest, highest = self._power, self._lowest, self._highest
        has_power, has_counter = power.counted > 0, lowest.values != _HIGH
        mean_w = power.sum_mw / np.maximum(power.counted, 1) / 1e3
        ended_us = np.where(self._ended == _HIGH, self._last_us, self._ended)
        window_s = np.where(self._readings > 0, ended_us - self._began, 0) / 1e6
        # Of how many seconds power and counter tell.
        power_s = np.where(has_power, self._last_us - self._first_us, 0) / 1e6 * power.counted
        power_s /= np.maximum(self._readings, 1)
        counter_s = np.where(has_counter, highest.at_us - lowest.at_us, 0) / 1e6
        counter_j = np.where(has_counter, -highest.values - lowest.values, 0) / 1e3
        fits = (counter_j >= 0.3 * mean_w * (counter_s - 0.3) - 1) & (
            counter_j <= 1.5 * (power.most_mw / 1e3) * (counter_s + 0.3) + 1
        )
        by_counter = (counter_s > 0) & (counter_s >= 0.5 * window_s) & (fits | ~has_power)
        by_power = ~by_counter & (power_s > 0) & (power_s >= 0.5 * window_s)
        rate_w = np.where(by_counter, counter_j / np.where(by_counter, counter_s, 1), mean_w)
        names = pa.DictionaryArray.from_arrays(np.where(by_counter, 0, 1), ["counter", "power"]).cast(pa.string())
        has_energy = by_counter | by_power
        columns = [
            pa.array(self._readings),
            *(
                pa.array(values, mask=~has_power)
                for values in (mean_w, power.median_tenths / 10, power.p95_tenths / 10)
            ),
            pa.array(rate_w * window_s, mask=~has_energy),
            pc.if_else(pa.array(has_energy), names, None),
            pa.array(self._sum_mhz / np.maximum(self._clocks, 1), mask=self._clocks == 0),
            pa.array(self._celsius, mask=self._celsius == _LOW),
        ]
        return pa.StructArray.from_arrays(columns, names=[column.name for column in FIGURES])


@dataclasses.dataclass(frozen=True)
class Slices:
    """Which rows lie in which windows: of each slice the window, the first row, and the row after its last."""

    windows: Integers
    first: Integers
    end: Integers

    @functools.cached_property
    def _edges(self) -> Integers:
        """First rows and ends in turn."""
        import numpy as np

        return np.column_stack((self.first, self.end)).ravel()

    @functools.cached_property
    def apart(self) -> bool:
        """Whether no row lies in two windows."""
        return bool((self._edges[1:] >= self._edges[:-1]).all())

    def rows(self) -> tuple[Integers, Integers]:
        """Of each reading in a window: the window, and the row."""
        import numpy as np

        counts = self.end - self.first
        before = np.cumsum(counts) - counts
        return np.repeat(self.windows, counts), np.arange(counts.sum()) - np.repeat(before - self.first, counts)

    def sort(self, values: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The values, sorted within each slice, of slices that are `apart`."""
        import numpy as np

        edges = np.concatenate(([0], self._edges, [len(values)]))
        kind = np.uint32 if len(edges) < 2**16 else np.uint64
        numbers: NDArray[Any] = np.arange(len(edges) - 1, dtype=kind)
        numbered = np.repeat(numbers << 16, edges[1:] - edges[:-1])
        numbered |= values
        numbered.sort()
        return numbered.astype(np.uint16)

    def reduce(self, ufunc: np.ufunc, values: NDArray[Any], kind: type | None = None) -> Integers:
        """The values of each slice as one, such as their sum."""
        import numpy as np

        edges = self._edges
        if not self.apart:  # reduceat takes no slice that begins at the very end
            values = np.append(values, values[-1:])
        elif edges[-1] == len(values):
            edges = edges[:-1]
        return np.asarray(ufunc.reduceat(values, edges, dtype=kind)[::2])

    def count(self, mask: NDArray[np.bool_] | None = None) -> Integers:
        """How many rows each slice has, or of those that the mask has."""
        import numpy as np

        return self.end - self.first if mask is None else self.reduce(np.add, mask, np.int64)

    def first_of(self, values: Integers, sought: Integers) -> Integers:
        """Where each slice first has the value that is sought in it: mostly at one of its ends."""
        import numpy as np

        last = self.end - 1
        before_last = np.maximum(last - 1, self.first)
        at_first = values[self.first] == sought
        at_last = (values[last] == sought) & ((values[before_last] != sought) | (before_last == last))
        places = np.where(at_first, self.first, last)
        for number in np.flatnonzero(~(at_first | at_last)).tolist():
            begin, end = self.first[number], self.end[number]
            places[number] = begin + np.argmax(values[begin:end] == sought[number])
        return places


class _FirstLowest:
    """The lowest value of each window, and the time (us) at which it was first read."""

    def __init__(self, count: int) -> None:
        import numpy as np

        self.values, self.at_us = np.full(count, _HIGH), np.full(count, _HIGH)

    def add(self, values: Integers, ts: Integers, slices: Slices) -> None:
        import numpy as np

        lowest = slices.reduce(np.minimum, values)
        at_us = ts[slices.first_of(values, lowest)]
        known, known_us = self.values[slices.windows], self.at_us[slices.windows]
        lower = (lowest < known) | ((lowest == known) & (at_us < known_us))
        self.values[slices.windows[lower]], self.at_us[slices.windows[lower]] = lowest[lower], at_us[lower]


class _PowerSums:
    """The power of each window: sum, maximum, and quantiles in tenths of a watt.

    Of n readings the median is the (n+1)/2-th and the 95th percentile the 0.95n-th lowest. The readings of a window in
    one piece are sorted; of others, how many have each tenth is counted.
    """

    def __init__(self, until_us: Integers) -> None:
        import numpy as np

        self._until_us = until_us
        count = len(until_us)
        self.counted, self.sum_mw, self.most_mw = (np.zeros(count, np.int64) for _ in range(3))
        self.median_tenths, self.p95_tenths = np.zeros(count), np.zeros(count)  # of a watt
        self._pieces = np.zeros(count, np.int64)  # slices of each window: of several, quantiles are counted
        self._tenths: list[tuple[Slices, NDArray[np.uint16]]] = []  # of the present day
        # Of each window those of the days before: the lowest, and how many readings have this, 0.1 W more, ...
        self._counts: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def add(self, rows: pa.RecordBatch, slices: Slices) -> None:
        import numpy as np

        power_mw, counts = _power(rows)
        if power_mw is None:
            return
        windows, counted = slices.windows, slices.count(counts)
        self.counted[windows] += counted
        self.sum_mw[windows] += slices.reduce(np.add, power_mw)
        self.most_mw[windows] = np.maximum(self.most_mw[windows], slices.reduce(np.maximum, power_mw))
        tenths = (power_mw // 100).astype(np.uint16)  # 0 where a reading does not count
        self._pieces[windows] += 1 if slices.apart else 2
        if slices.apart:
            tenths = slices.sort(tenths)
            last = slices.end - 1
            self.median_tenths[windows], self.p95_tenths[windows] = (
                tenths[last - counted // 2],
                tenths[last - counted // 20],
            )
        self._tenths.append((slices, tenths))

    def end(self, before_us: int) -> None:
        """Take the quantiles of windows in several pieces that end before a time, of which all rows were added; count
        those of others."""
        import numpy as np

        pieces: dict[int, list[NDArray[np.uint16]]] = {}
        for slices, tenths in self._tenths:
            several = (self._pieces[slices.windows] > 1) | (self._until_us[slices.windows] > before_us)
            places = (column[several].tolist() for column in (slices.windows, slices.first, slices.end))
            for window, begin, end in zip(*places, strict=True):
                pieces.setdefault(window, []).append(tenths[begin:end])
        self._tenths = []
        for window, of_window in pieces.items():
            counted = np.concatenate(of_window)
            if counted.any():
                counted = counted[counted > 0]
                lowest = int(counted.min())
                self._count(window, lowest, np.bincount(counted - np.uint16(lowest)))
                if self._until_us[window] <= before_us:
                    self._take_quantiles(window)
        if before_us == _HIGH:
            for window in [*self._counts]:
                self._take_quantiles(window)

    def _count(self, window: int, lowest: int, counts: NDArray[np.int64]) -> None:
        """Add counts of tenths to those of a window."""
        import numpy as np

        if window in self._counts:
            known_lowest, known = self._counts[window]
            both_lowest = min(lowest, known_lowest)
            both = np.zeros(max(lowest + len(counts), known_lowest + len(known)) - both_lowest, np.int64)
            for low, numbers in ((lowest, counts), (known_lowest, known)):
                both[low - both_lowest :][: len(numbers)] += numbers
            lowest, counts = both_lowest, both
        self._counts[window] = lowest, counts

    def _take_quantiles(self, window: int) -> None:
        lowest, counts = self._counts.pop(window)
        n = int(self.counted[window])
        ranks = max(1, n - n // 2), max(1, n - n // 20)
        self.median_tenths[window], self.p95_tenths[window] = (counts.cumsum().searchsorted(ranks) + lowest).tolist()


def _power(rows: pa.RecordBatch) -> tuple[Integers | None, NDArray[np.bool_] | None]:
    """Board power in mW, 0 where it does not count, and whether it counts (None: all of it); None if there is none."""
    import numpy as np
    import pyarrow.compute as pc

    columns = [rows[name] for name in BOARD_POWER if name in rows.schema.names]
    if not columns:
        return None, None
    power = _numbers(pc.coalesce(*columns), -1)
    has_marks = "quality" in rows.schema.names and rows["quality"].null_count < len(rows)
    if not has_marks and power.min() >= _LEAST_MW and power.max() <= _MOST_MW:
        return power, None
    counts = (power >= _LEAST_MW) & (power <= _MOST_MW)
    if has_marks:
        codes, marks = _codes(rows["quality"])
        trusted = np.array([mark is None or not any(name in mark for name in UNTRUSTED_POWER) for mark in marks])
        counts &= trusted[codes]
    return np.where(counts, power, 0), counts
