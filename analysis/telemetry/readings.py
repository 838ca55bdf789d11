"""Readings of some GPUs as arrays: rows of telemetry, and minutes where these were pruned; how metrics are shown."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import QueryError
from ...store.catalog import quoted
from ...store.instants import in_sql
from ...store.metrics import METRICS, ROW, Metric

if TYPE_CHECKING:
    import pyarrow as pa

    from ...store import Store

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
Bools = NDArray[np.bool_]
Columns = dict[str, NDArray[Any]]
Key = tuple[str | None, str]
"""Cluster and GPU."""
Which = Sequence[Key] | str | None
"""Some GPUs, all of a cluster, or all."""

MINUTE_NS = 60_000_000_000
_FULL_MINUTE = 0.9  # of the rows of the minute after it
_ALONE_NS = 1_000_000_000  # a single reading is shown as so long
_NOTHING, _NO_TIMES = np.zeros(0), np.zeros(0, np.int64)
MOST_ROWS = 40_000_000
"""So many readings are looked through at most: some seconds."""
_AT_ONCE = 4_000_000  # rows in memory
_BLOCK = 32  # intervals that tell what is usual
_NEXT = 8  # intervals after or before a long one that tell whether it is usual from or up to there
LONGEST, SHORTEST_S = 3.0, 1.0
"""Usual steps: a longer pause is a gap, if it is longer than so many s, too."""
_LONGEST_OVER_NULL = 1.5  # usual steps: a shorter pause is a gap if there is a NULL in it

_GAUGES = {
    "mW": ("W", 1e-3),
    "degC": ("°C", 1.0),
    "B": ("GB", 1e-9),
    "B/s": ("GB/s", 1e-9),
    "ppm": ("%", 1e-4),
}
_RATES = {"mJ": ("W", 1e-3), "ns": ("% of the time", 1e-7), "B": ("GB/s", 1e-9), "": ("1/s", 1.0)}
"""Of counters: what a second brings."""
_UNITS = ("_mw", "_mj", "_mhz", "_c", "_ns", "_ms", "_us", "_ppm", "_bytes_per_s", "_bytes")
_SPELLED = {
    "sm": "SM", "mem": "memory", "pcie": "PCIe", "nvlink": "NVLink", "ecc": "ECC", "tx": "sent", "rx": "received",
    "dram": "DRAM", "fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "gr": "graphics", "vgpu": "vGPU",
    "pstate": "P-state",
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """The known readings of one metric of one GPU in order of time, arrays (n,), in the unit of its column."""

    ts: Times
    value: Floats
    near: Bools
    """(n - 1,) whether a reading and the next one follow each other without a gap."""
    readings: int
    """How many readings of the GPU these are: a minute of pruned telemetry stands for many."""

    @property
    def step_ns(self) -> int | None:
        """How far readings usually are apart."""
        steps = np.diff(self.ts)
        steps = steps[self.near & (steps > 0)]
        return int(np.median(steps)) if len(steps) else None


@dataclass(frozen=True)
class Read:
    """What was read of one GPU: a series by metric, and marks of its sensors."""

    key: Key
    series: dict[str, Series]
    quality: tuple[tuple[int, int, str], ...]
    """From when to when (ns) which mark stood in `telemetry.quality`."""
    pruned_ns: int | None
    """The end of the last minute of pruned telemetry; None where there is none."""


def read(
    store: Store, keys: Sequence[Key], metrics: Sequence[str], since: int, until: int, *, margin_ns: int = 0
) -> Iterator[Read]:
    """The readings of these GPUs from `since` to before `until` (ns since 1970), a GPU at a time, in their order.

    Those of `margin_ns` before and after are there too, and not counted. Raises QueryError where there are more than
    `MOST_ROWS`.
    """
    rows_left, inside = MOST_ROWS, (since, until)
    since, until = since - margin_ns, until + margin_ns
    for cluster in dict.fromkeys(cluster for cluster, _ in keys):
        gpus = [gpu for of_cluster, gpu in keys if of_cluster == cluster]
        parts = [gpus]
        while parts:
            part = parts.pop(0)
            most = _AT_ONCE if len(part) > 1 else rows_left
            rows = _rows(store, "telemetry", cluster, part, metrics, since, until, most)
            if rows is None and len(part) > 1:
                parts[:0] = [[gpu] for gpu in part]
                continue
            if rows is None:
                raise QueryError(
                    f"these GPUs have more than {MOST_ROWS // 1_000_000} million readings in this time: choose fewer "
                    "GPUs or a shorter time"
                )
            rows_left -= rows.num_rows
            minutes = None
            if store.files("telemetry_minutes"):
                minutes = _rows(store, "telemetry_minutes", cluster, part, metrics, since, until, rows_left)
            of_rows, of_minutes = _split(rows), _split(minutes)
            for gpu in part:
                yield _of_gpu((cluster, gpu), metrics, of_rows.get(gpu, {}), of_minutes.get(gpu, {}), inside)


def these(cluster: str | None, gpus: Sequence[str]) -> str:
    """SQL: whether a row is of these GPUs of a cluster."""
    return f"cluster IS NOT DISTINCT FROM {quoted(cluster)} AND gpu IN ({', '.join(map(quoted, gpus))})"


def of(keys: Which) -> str:
    """SQL: whether a row is of these GPUs."""
    if keys is None or isinstance(keys, str):
        return "true" if keys is None else f"cluster = {quoted(keys)}"
    gpus_of: dict[str | None, list[str]] = {}
    for cluster, gpu in keys:
        gpus_of.setdefault(cluster, []).append(gpu)
    return " OR ".join(f"({these(cluster, gpus)})" for cluster, gpus in gpus_of.items()) or "false"


def _rows(
    store: Store, table: str, cluster: str | None, gpus: Sequence[str], metrics: Sequence[str], since: int, until: int,
    most: int,
) -> pa.Table | None:  # fmt: skip
    """Rows of some GPUs; None where there are more than `most`."""
    columns = ["gpu", "ts", "quality"]
    for name in metrics:
        columns += [name] if table == "telemetry" else _parts(name)
    if table != "telemetry":
        columns.append("n")
        since -= MINUTE_NS
    rows = store.sql(
        f"SELECT {', '.join(dict.fromkeys(columns))} FROM {table} WHERE {these(cluster, gpus)} "
        f"AND ts >= {in_sql(since)} AND ts < {in_sql(until)} LIMIT {most + 1}"
    ).table
    return rows if rows.num_rows <= most else None


def _parts(name: str) -> list[str]:
    """The columns of a minute that tell of a metric."""
    match METRICS[ROW[name]].kind:
        case "gauge":
            return [f"{name}_min", f"{name}_mean", f"{name}_max"]
        case "counter":
            return [f"{name}_first", f"{name}_last"]
    return [name]


def _split(rows: pa.Table | None) -> dict[str, Columns]:
    """The rows of each GPU in order of time, by column; a NULL is NaN, or None of a text."""
    if rows is None or not rows.num_rows:
        return {}
    names = rows["gpu"].combine_chunks().dictionary_encode()
    code = names.indices.to_numpy()
    columns: Columns = {
        name: rows[name].to_numpy(zero_copy_only=False) for name in rows.column_names if name not in ("gpu", "ts")
    }
    columns["ts"] = rows["ts"].to_numpy(zero_copy_only=False).astype("datetime64[ns]").view(np.int64)
    later = np.diff(columns["ts"]) >= 0
    if not (later | (np.diff(code) > 0)).all() or (np.diff(code) < 0).any():
        order = np.lexsort((columns["ts"], code))
        code = code[order]
        columns = {name: values[order] for name, values in columns.items()}
    edges = [0, *(np.flatnonzero(np.diff(code)) + 1).tolist(), len(code)]
    return {
        names.dictionary[int(code[began])].as_py(): {name: values[began:ended] for name, values in columns.items()}
        for began, ended in itertools.pairwise(edges)
    }


def _of_gpu(key: Key, metrics: Sequence[str], rows: Columns, minutes: Columns, inside: tuple[int, int]) -> Read:
    series = {name: _series(name, rows, minutes, inside) for name in metrics}
    pruned = int(minutes["ts"][-1]) + MINUTE_NS if minutes else None
    return Read(key, series, (*_marks(minutes, MINUTE_NS), *_marks(rows, None)), pruned)


def _series(name: str, rows: Columns, minutes: Columns, inside: tuple[int, int]) -> Series:
    """One metric of one GPU; readings are counted `inside` a range."""
    kind = METRICS[ROW[name]].kind
    ts = rows["ts"] if rows else _NO_TIMES
    value = rows[name].astype(np.float64) if rows else _NOTHING
    n = int(np.count_nonzero(~np.isnan(value) & _within(ts, inside)))
    if kind == "counter":
        ts, value = _rates(ts, value)
    low = high = value
    if minutes:
        means, least, most = _of_minutes(name, kind, minutes)
        n += int(minutes["n"][~np.isnan(means) & _within(minutes["ts"], inside)].sum())
        at = minutes["ts"] + (0 if kind == "mask" else MINUTE_NS // 2)
        ts = np.concatenate([at, ts])
        value, low, high = (np.concatenate(pair) for pair in ((means, value), (least, low), (most, high)))
        if (np.diff(ts) < 0).any():
            order = np.argsort(ts, kind="stable")
            ts, value, low, high = ts[order], value[order], low[order], high[order]
    is_known = ~np.isnan(value)
    at_known = np.flatnonzero(is_known)
    ts, value, low, high = ts[is_known], value[is_known], low[is_known], high[is_known]
    over_null = np.diff(at_known) > 1
    longest = np.where(over_null, _LONGEST_OVER_NULL, LONGEST)
    together = near((ts - ts[:1]) / 1e9, np.ones(len(ts), bool), longest=longest, shortest_s=0.0)
    if kind == "counter":
        together &= ~over_null  # between two rates is an interval that has none
    return _with_extremes(Series(ts, value, together, n), low, high)


def _within(ts: Times, inside: tuple[int, int]) -> Bools:
    within: Bools = (ts >= inside[0]) & (ts < inside[1])
    return within


def _rates(ts: Times, value: Floats) -> tuple[Times, Floats]:
    """The rate per second of a counter at each of its readings, since the one before; NaN after a gap.

    It is NaN too where the counter fell: it began anew, or wrapped, and nobody knows what it counted meanwhile.
    """
    at_known = np.flatnonzero(~np.isnan(value))
    ts, value = ts[at_known], value[at_known]
    rate = np.full(len(ts), np.nan)
    if len(ts) > 1:
        seconds, grown = np.diff(ts) / 1e9, np.diff(value)
        longest = np.where(np.diff(at_known) > 1, _LONGEST_OVER_NULL, LONGEST)
        sound = near((ts - ts[0]) / 1e9, np.ones(len(ts), bool), longest=longest, shortest_s=0.0)
        sound &= (grown >= 0) & (seconds > 0)
        rate[1:][sound] = grown[sound] / seconds[sound]
    return ts, rate


def _of_minutes(name: str, kind: str, minutes: Columns) -> tuple[Floats, Floats, Floats]:
    """Mean, lowest and highest of each minute of pruned telemetry; NaN where not known."""
    if kind == "gauge":
        mean, low, high = (minutes[f"{name}_{part}"].astype(np.float64) for part in ("mean", "min", "max"))
        return mean, low, high
    if kind == "mask":
        value = minutes[name].astype(np.float64)
        return value, value, value
    # From the first reading of a minute to the first of the next one: a minute, but where readings began within it.
    first, last = (minutes[f"{name}_{part}"].astype(np.float64) for part in ("first", "last"))
    rate = np.full(len(first), np.nan)
    follows = np.diff(minutes["ts"]) == MINUTE_NS
    is_full = minutes["n"][:-1] >= _FULL_MINUTE * minutes["n"][1:]
    grown = np.diff(first)
    sound = follows & is_full & (grown >= 0) & (last[:-1] >= first[:-1])
    rate[:-1][sound] = grown[sound] / (MINUTE_NS / 1e9)
    return rate, rate, rate


def _with_extremes(mean: Series, low: Floats, high: Floats) -> Series:
    """A minute as four readings at its middle: mean, highest, lowest, mean. So a line joins means, and shows both."""
    wide = low < high
    if not wide.any():
        return mean
    times = np.where(wide, 4, 1)
    ends = np.cumsum(times)
    value = np.repeat(mean.value, times)
    value[ends[wide] - 3], value[ends[wide] - 2] = high[wide], low[wide]
    together = np.ones(len(value) - 1, bool)
    together[ends[:-1] - 1] = mean.near
    return Series(np.repeat(mean.ts, times), value, together, mean.readings)


def _marks(rows: Columns, lasts_ns: int | None) -> list[tuple[int, int, str]]:
    """From when to when the same mark stood; a reading counts up to the next one, or for `lasts_ns`."""
    if not rows:
        return []
    marked = np.flatnonzero(rows["quality"] != None)  # noqa: E711 - by element
    if not len(marked):
        return []
    ts = rows["ts"]
    usual = lasts_ns or (int(np.median(np.diff(ts))) if len(ts) > 1 else _ALONE_NS)
    marks: list[tuple[int, int, str]] = []
    for place in marked.tolist():
        began, text = int(ts[place]), str(rows["quality"][place])
        follows = place + 1 < len(ts) and ts[place + 1] - began <= LONGEST * usual
        ended = int(ts[place + 1]) if follows and lasts_ns is None else began + usual
        if marks and marks[-1][2] == text and marks[-1][1] >= began:
            marks[-1] = marks[-1][0], ended, text
        else:
            marks.append((began, ended, text))
    return marks


def near(
    times: Floats, known: NDArray[np.bool_], *, longest: float | Floats = LONGEST, shortest_s: float = SHORTEST_S
) -> NDArray[np.bool_]:
    """By interval (n - 1,), whether the known readings around it are no gap apart. `times` (n,), s, increase.

    A gap is longer than `longest` usual intervals there (a number, or one by interval), and than `shortest_s`. What is
    usual is the median of the intervals around it, so that readings may come more often at one time than at another.
    """
    n = len(times)
    if n < 2:
        return np.ones(max(n - 1, 0), bool)
    if known.all():
        apart = np.diff(times)
    else:
        at = np.where(known, np.arange(n), -1)
        before = np.maximum.accumulate(at)[:-1]
        after = np.minimum.accumulate(np.where(known, np.arange(n), n)[::-1])[::-1][1:]
        apart = np.where((before < 0) | (after >= n), np.inf, times[np.minimum(after, n - 1)] - times[before])
    size = min(_BLOCK, len(apart))
    starts = np.minimum(np.arange(0, len(apart), size), len(apart) - size)
    around = np.sort(np.diff(times)[starts[:, None] + np.arange(size)], axis=1)
    usual = (around[:, (size - 1) // 2] + around[:, size // 2]) / 2  # the medians
    usual = np.repeat(usual, size)[: len(apart)]
    is_near: NDArray[np.bool_] = apart <= np.maximum(longest * usual, shortest_s)
    far = np.flatnonzero(~is_near)
    if len(far) and len(apart) >= _NEXT:  # where readings begin to come more rarely, or end to
        step = np.diff(times)
        most = np.broadcast_to(longest, len(apart))[far]
        for reach in (np.arange(_NEXT), -np.arange(_NEXT)):
            around_there = np.median(step[np.clip(far[:, None] + reach, 0, len(step) - 1)], axis=1)
            is_near[far] |= apart[far] <= most * around_there
    return is_near


# -- how metrics are shown ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """A metric as people see it. A value of its column, or of a counter the rate per second, times `factor` is in
    `unit`."""

    name: str
    title: str
    unit: str
    factor: float
    kind: str
    says: str
    """What it is, in a sentence; of a counter, that its rate is shown."""

    @property
    def label(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@functools.cache
def shown(name: str) -> Shown:
    """How a metric is shown. Raises QueryError for a name that is no metric."""
    if name not in ROW:
        raise QueryError(f"there is no metric {name[:60]!r}: choose one of the list, as power_mw")
    metric = METRICS[ROW[name]]
    counter = metric.kind == "counter"
    unit, factor = (_RATES if counter else _GAUGES).get(metric.unit, (metric.unit, 1.0))
    says = f"{metric.description}: the rate between readings" if counter else metric.description
    return Shown(name, _title(metric), unit, factor, metric.kind, says)


def _title(metric: Metric) -> str:
    if metric.name == "energy_mj":
        return "Power by the energy counter"
    short = next((metric.name.removesuffix(end) for end in _UNITS if metric.name.endswith(end)), metric.name)
    words = " ".join(_SPELLED.get(word, word) for word in short.split("_"))
    if metric.name.endswith("_bytes_per_s"):
        words += ", by profiling"
    return words[0].upper() + words[1:]
