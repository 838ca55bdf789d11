"""Joules per GPU and minute, made once of the telemetry of a day that is over: meters that cost little to read.

`write_minutes` reads the days that have none, or of which readings came later, and stores what their meters show at
every full minute, wherever a job began or ended, and at both ends of long times without readings. A `MeterPart` has
meters made of these rows, of other days those of the readings. At these times both show the same energy (the rounding
of a sum apart) and the same bounds and variances (as 32-bit numbers have them). Between them the energy of a minute is
taken as even, and the doubt of a window that ends there says how far it may not be; a GPU of which a job became known
later is read anew on that day instead, as long as its readings are there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from ...errors import StoreError
from ...store import keys, parquet
from ...store.derived import Origin
from ...store.file_names import Bounds, day_number
from ...store.instants import date_of_ns, in_sql
from ...store.replacing import TakenError
from ...store.schema import ENERGY_DAYS, ENERGY_MINUTES, MINUTES, TELEMETRY, arrow_schema
from ..engines import HERE, Engine, PartFailure, opened
from .claims import Claims, read_claims
from .meter import BOARD, ENDS, NOTES, PARTS, Meters
from .readings import ALL_GPUS, GpuRange, meters_of_many
from .sensor import Flags, Floats, Ints, Times

if TYPE_CHECKING:
    from ...store import Store

log = logging.getLogger(__name__)

ROWS_OF_PART = 1_500_000
"""Readings that a part has, about; of rows that are stored, `_QUICKER` times as many."""
_QUICKER = 3
VERSION = 2
"""Of the meter: one more where the same readings give other joules, so that days are made again."""
_S, _MINUTE_NS, _DAY_NS = 10**9, 60 * 10**9, 86_400 * 10**9
_AROUND_NS = 3600 * _S  # what is read of the days beside
_THIN = 600  # readings of a GPU on a day: with fewer, hardly any may be without work, and they are soon read again
_BLOCK_ROWS = 2_000_000  # of thin days that are metered together at most
_LONG_S = 60.0  # a longer time without readings is one row
_KEYS = ["cluster", "gpu"]
_SPAN_NS = 4 * _DAY_NS  # more than the times of a day and its sides
_MINUTES = 1440  # of a day
_ROWS_MADE = 100_000  # of energy_minutes, by a part, about: each takes ten times its bytes while it is made
_ROWS_OF_FILE = 500_000  # at least, but for the last file of a day
_KNOTS_AT_ONCE = 125_000  # of GPUs that are given together
_NOTHING = 1e-6  # s and J: less is the rounding of a sum
_READINGS = {TELEMETRY.name: "count(*)", MINUTES.name: "sum(n)"}
_WATTS = ("idle_w", "idle_low_w", "idle_high_w", "limit_w", "lowest_w", "highest_w")
_OF_NOTE = ("joules", "percent", "seconds", "n", "has_rows")
_NOTES = arrow_schema(ENERGY_DAYS.name).field("notes").type
_SUMMED = [name for name in PARTS if name not in ("measured_j", "measured_s")]

Progress = Callable[[str], None]
Gpus = Collection[tuple[str, str]]
"""Cluster and GPU of each."""
DayTables = dict[str, pa.Table]
"""Rows of `energy_days` and `energy_minutes`, by table."""


@dataclass(frozen=True)
class DayBlock:
    """A day that is metered apart from others, or thin days that follow each other; days since 1970."""

    first: int
    last: int
    stored: bool = False
    """Whether the day has rows that say what its readings do."""
    pruned: bool = False
    """Whether readings of the day are there as pruned minutes only."""

    @property
    def ends(self) -> tuple[int, int]:
        """From when to when, ns UTC."""
        return self.first * _DAY_NS, (self.last + 1) * _DAY_NS


@dataclass(frozen=True)
class MeterPart:
    """Some GPUs and some days: what is metered apart from all else."""

    root: str
    window: tuple[int, int]
    """From when to when, ns UTC."""
    blocks: tuple[DayBlock, ...]
    names: GpuRange
    cluster: str | None = None
    gpus: frozenset[tuple[str, str]] | None = None
    """Only these of the range; None: all of it."""

    @property
    def label(self) -> str:
        """The days and the GPUs, for people."""
        days = dict.fromkeys(date_of_ns(at).date() for at in (self.window[0], self.window[1] - 1))
        ends = [name for name in (self.names.first, self.names.end) if name is not None]
        return " to ".join(map(str, days)) + (f", GPUs about {' to '.join(ends)}" if ends else "")

    def meters(self, claims: Claims) -> Iterator[Meters]:
        """The meters of its GPUs, some at a time. Where claims begin and end their energy will be asked for. Raises
        StoreError."""
        return filter(len, self._meters(claims))

    def _meters(self, claims: Claims) -> Iterator[Meters]:
        store, edges = opened(self.root), _Edges(claims, self.window)
        stored = any(block.stored for block in self.blocks)
        pieces = _stored(store, self.blocks[0].first, self.blocks[-1].last)[0] if stored else {}
        for block in self.blocks:
            window = max(self.window[0], block.ends[0]), min(self.window[1], block.ends[1])
            if not block.stored or block.first not in pieces:
                # A few GPUs are read for whole days: what they draw without work is then that of their days.
                whole = window if self.gpus is None else block.ends
                for meters in _of_readings(store, whole, self.cluster, self.gpus, self.names):
                    yield meters.between(*window)
                continue
            late: list[tuple[str, str]] = []
            for meters in _of_rows(pieces[block.first], self.has):
                lacking = np.zeros(len(meters), bool) if block.pruned else edges.lacking(meters)
                late += meters.boards.filter(lacking).select(_KEYS).rows()
                yield meters.only(np.flatnonzero(~lacking)).between(*window)
            if late:
                yield from _of_readings(store, window, self.cluster, late)

    def left_out(self) -> str | None:
        """Which files of readings cannot be read, and why, as far as this is known after `meters`; None: none."""
        store = opened(self.root)
        if not store.skipped:
            return None
        first_us, last_us = (end // 1000 for end in self.window)
        sound = {path for rows in store.rows(_READINGS, Bounds(first_us, last_us)).values() for path in rows.files}
        days = {day for block in self.blocks if not block.stored for day in range(block.first, block.last + 1)}
        reasons = [
            f"{path}: {reason}" for path, reason in store.skipped.items()
            if path not in sound and path.parts[-3] in _READINGS and day_number(path.parent.name) in days
        ]  # fmt: skip
        return "; ".join(reasons) or None

    def has(self, key: tuple[str, str]) -> bool:
        """Whether it is about a GPU."""
        cluster, gpu = key
        return self.cluster in (None, cluster) and gpu in self.names and (self.gpus is None or key in self.gpus)


def meter_parts(
    store: Store, *, cluster: str | None = None, gpus: Gpus | None = None, since_ns: int, until_ns: int
) -> list[MeterPart]:
    """The parts of what is metered from `since_ns` to `until_ns` (UTC), in the order of their days. `gpus` keeps only
    these. Raises StoreError."""
    stored = _StoredDays(store, since_ns, until_ns)
    groups, rows = list[list[DayBlock]](), list[float]()
    for block in stored.blocks():
        began, ended = max(stored.ends[0], block.ends[0]), min(stored.ends[1], block.ends[1])
        share = max(min(until_ns, ended) - max(since_ns, began), 0) / max(ended - began, 1)
        of_block = stored.rows_of(block) * share * stored.share(gpus)
        if groups and rows[-1] + of_block <= ROWS_OF_PART:
            groups[-1].append(block)
            rows[-1] += of_block
        else:
            groups.append([block])
            rows.append(of_block)
    root, chosen = str(store.root.absolute()), None if gpus is None else frozenset(gpus)
    return [
        MeterPart(
            root, (max(since_ns, blocks[0].ends[0]), min(until_ns, blocks[-1].ends[1])), tuple(blocks), names, cluster,
            chosen,
        )
        for blocks, of_blocks in zip(groups, rows, strict=True)
        for names in stored.ranges(of_blocks / ROWS_OF_PART, gpus)
    ]  # fmt: skip


def _of_readings(
    store: Store,
    window: tuple[int, int],
    cluster: str | None = None,
    gpus: Gpus | None = None,
    names: GpuRange = ALL_GPUS,
) -> Iterator[Meters]:
    """The meters of a day, or of a part of it, of the readings: with an hour on either side."""
    began, ended = window
    since_ns, until_ns = began - _AROUND_NS, ended + _AROUND_NS
    for meters in meters_of_many(store, cluster=cluster, gpus=gpus, since_ns=since_ns, until_ns=until_ns, names=names):
        meters = meters.between(began, ended)
        first, empty = meters["first_ns"], meters.boards["empty"].is_not_null().to_numpy()
        yield meters.only(np.flatnonzero((first < meters["last_ns"]) | (empty & (first < ended))))


class _Edges:
    """When the energy of GPUs is asked for besides full minutes."""

    def __init__(self, claims: Claims, ends: Sequence[int] = ()) -> None:
        """`ends` are asked of all GPUs."""
        self._of_gpus = claims.edges
        self._of_all = pl.DataFrame({"at": np.concatenate([claims.move_times, np.array(ends, np.int64)])})

    def within(self, meters: Meters) -> tuple[Ints, Times]:
        """The times at which GPUs are metered: the number of the GPU, and when (ns UTC), in no order."""
        boards = meters.boards.select(*_KEYS, "first_ns", "last_ns", number=pl.int_range(pl.len()))
        of_gpus = boards.join(self._of_gpus, on=_KEYS, nulls_equal=True)
        rows = pl.concat([of_gpus, boards.join(self._of_all, how="cross")])
        rows = rows.filter(pl.col("at").is_between("first_ns", "last_ns"))
        return rows["number"].to_numpy(), rows["at"].to_numpy()

    def lacking(self, meters: Meters) -> Flags:
        """(g,) whether a time of the GPU is none of its knots."""
        gpu, times = self.within(meters)
        knots = meters.knots["ns"]
        place = times - meters["origin_ns"][gpu] + knots[meters["begins"][gpu]]
        at = np.minimum(np.searchsorted(knots, place), len(knots) - 1)
        lacking: Flags = np.bincount(gpu[knots[at] != place], minlength=len(meters)) > 0
        return lacking


# -- which days are stored -------------------------------------------------------------------------------------

_DayFiles = dict[int, dict[str, Path]]
"""By the number of the piece of a day, the file of each table."""


def _stored(store: Store, first_day: int, last_day: int) -> tuple[dict[int, _DayFiles], dict[int, Origin]]:
    """The pieces of days that have rows, and what these were made of."""
    within = Bounds(first_day * _DAY_NS // 1000, (last_day + 1) * _DAY_NS // 1000 - 1)
    pieces: dict[int, _DayFiles] = {}
    origins: dict[int, Origin] = {}
    for name, rows in store.rows([ENERGY_DAYS.name, ENERGY_MINUTES.name], within).items():
        for path in rows.files:
            stated, day = Origin.of(path), day_number(path.parent.name)
            if stated is not None and day is not None:
                origins[day], number = stated
                pieces.setdefault(day, {}).setdefault(number, {})[name] = path
    return pieces, origins


class _StoredDays:
    """The rows that are stored of the days between two times (ns; None: of all before), and of the days beside."""

    def __init__(self, store: Store, since_ns: int | None, until_ns: int) -> None:
        last = (until_ns - 1) // _DAY_NS
        first = -(2**40) if since_ns is None else since_ns // _DAY_NS
        self._store = store
        self.states = store.states_of_days((first - 1) * _DAY_NS, (last + 2) * _DAY_NS - 1)
        """What each day has of telemetry; None of one that is not over."""
        self.days = [day for day in sorted(self.states) if first <= day <= last]
        """Those between the times with telemetry, in order."""
        self.files, self.origins = _stored(store, first - 1, last + 1)

    def blocks(self) -> list[DayBlock]:
        """What is metered together: a day, or thin days that follow each other."""
        blocks: list[DayBlock] = []
        rows = _BLOCK_ROWS
        for day in self.days:
            state, fresh = self.states[day], self.is_fresh(day)
            alone = state is None or fresh or not self.is_thin(day)
            rows += _BLOCK_ROWS if state is None else state.rows
            if not alone and rows <= _BLOCK_ROWS:
                blocks[-1] = DayBlock(blocks[-1].first, day)
                continue
            blocks.append(DayBlock(day, day, stored=fresh, pruned=alone and self.is_pruned(day)))
            rows = _BLOCK_ROWS if alone or state is None else state.rows
        return blocks

    @cached_property
    def gpus(self) -> list[str]:
        """The names of all GPUs, in order."""
        return sorted(self._store.sql("SELECT gpu FROM gpus_now WHERE parent IS NULL").polars()["gpu"])

    def rows_of(self, block: DayBlock) -> int:
        """How many readings are worth what is read of these days, about. A day that is not over has no more than
        others."""
        if block.stored:
            return len(self.gpus) * _MINUTES // _QUICKER
        usual = max((state.rows for state in self.states.values() if state is not None), default=0)
        states = (self.states[day] for day in self.days if block.first <= day <= block.last)
        return sum(usual if state is None else state.rows for state in states)

    @cached_property
    def ends(self) -> tuple[int, int]:
        """From when to when there may be readings, ns UTC, by what files say; first and last day may be short."""
        first_us, last_us = self.days[0] * _DAY_NS // 1000, (self.days[-1] + 1) * _DAY_NS // 1000 - 1
        by_table = self._store.rows([*_READINGS], Bounds(first_us, last_us)).values()
        stated = [rows.ends_us for rows in by_table if rows.ends_us is not None] or [(first_us, last_us)]
        return 1000 * min(first for first, _ in stated), 1000 * max(last for _, last in stated) + _S

    def share(self, gpus: Gpus | None) -> float:
        """Which part of all GPUs these are."""
        return 1.0 if gpus is None else min(len(gpus) / max(len(self.gpus), 1), 1.0)

    def ranges(self, parts: float, gpus: Gpus | None) -> list[GpuRange]:
        """GPUs (None: all) in so many parts, by ranges of their names."""
        names = self.gpus if gpus is None else sorted({gpu for _, gpu in gpus})
        count = max(1, min(math.ceil(parts), len(names)))
        bounds = [None, *(names[number * len(names) // count] for number in range(1, count)), None]
        return [GpuRange(*ends) for ends in pairwise(bounds)]

    def is_thin(self, day: int) -> bool:
        """Whether a day has hardly any readings of a GPU, as one of a campaign has that took minutes."""
        state = self.states.get(day)
        return state is not None and state.rows < _THIN * len(self.gpus)

    def is_fresh(self, day: int) -> bool:
        """Whether a day and those beside it have the readings of which its rows were made."""
        beside = (near for near in (day - 1, day + 1) if near in self.files and near in self.states)
        return self.is_of_readings(day) and all(map(self.is_of_readings, beside))

    def is_of_readings(self, day: int) -> bool:
        """Whether a day has rows, and the readings that these were made of; those of the days beside may be others."""
        if day not in self.files or any(len(tables) < 2 for tables in self.files[day].values()):
            return False
        origin = self.origins[day]
        return self.states.get(day) == origin.state and (origin.version == VERSION or self.is_pruned(day))

    def is_pruned(self, day: int) -> bool:
        """Whether readings of a day are there as pruned minutes only."""
        state = self.states.get(day)
        return state is not None and state.pruned


# -- writing ---------------------------------------------------------------------------------------------------


_MinutesPart = tuple[MeterPart, Claims]
"""A part of which rows are made, and the jobs of its GPUs."""


def write_minutes(
    store: Store, *, offline: bool = False, now_ns: int, progress: Progress | None = None, engine: Engine = HERE
) -> int:
    """Make the rows of the days that are over and have none, or other ones than their readings give; returns how many.

    `engine`: where the rows are made; this process writes them, those of a day at once. `offline`: nobody else uses the
    store. Raises StoreError, also where another process replaces files of the store.
    """
    stored = _StoredDays(store, None, (now_ns - _AROUND_NS) // _DAY_NS * _DAY_NS)
    over = {day: state for day, state in stored.states.items() if state is not None}
    stale = {day for day in stored.days if day in over and not (stored.is_of_readings(day) or stored.is_thin(day))}
    beside = {day + step for day in stale for step in (-1, 1) if stored.is_of_readings(day + step)}
    stale |= {day for day in beside if stored.origins[day].beside != _rows_beside(store, day)}
    days = {*stale, *_with_late_jobs(store, stored)}
    if not days:
        return 0
    claims = read_claims(store, since_ns=min(days) * _DAY_NS, until_ns=(max(days) + 1) * _DAY_NS)
    for day in days - stale:
        edges = _Edges(claims.touching(*DayBlock(day, day).ends))
        if any(edges.lacking(meters).any() for meters in _of_rows(stored.files[day])):
            stale.add(day)
    engine.require(store)
    parts = {day: _parts_to_write(store, day, stored, claims) for day in sorted(stale)}
    origins = {day: Origin(VERSION, over[day], _rows_beside(store, day)) for day in parts}  # before readings are read
    written = 0
    with store.derive(offline=offline) as derivation:
        made = engine.map(_rows_of_part, [*chain(*parts.values())], name=lambda part: part[0].label)
        for number, (day, of_day) in enumerate(parts.items()):
            if progress is not None:
                progress(f"energy per minute: day {number + 1:,} of {len(stale):,}")
            results = list(islice(made, len(of_day)))
            try:
                derivation.replace(day, origins[day], _pieces(day, stored, of_day, results))
                written += 1
            except TakenError:
                raise
            except StoreError as error:  # of a damaged file: the other days are written
                date = date_of_ns(day * _DAY_NS).date()
                log.warning("the energy per minute of day %s is not written: %s", date, error)
    return written


def _with_late_jobs(store: Store, stored: _StoredDays) -> list[int]:
    """The days with rows as their readings, on which jobs began or ended that were stored later, or hardly earlier."""
    last = store.sql(
        "SELECT epoch_us(edge) // 86400000000 AS day, max(epoch_us(recorded)) AS recorded_us "
        "FROM (SELECT began AS edge, recorded FROM jobs UNION ALL SELECT ended, recorded FROM jobs) "
        "WHERE recorded IS NOT NULL AND edge IS NOT NULL GROUP BY day"
    )
    recorded = {row["day"]: row["recorded_us"] for row in last.to_pylist() if stored.is_of_readings(row["day"])}
    return [
        day
        for day, recorded_us in recorded.items()
        if not stored.is_pruned(day) and recorded_us > stored.origins[day].stored_us - _AROUND_NS // 1000
    ]


def _rows_beside(store: Store, day: int) -> int:
    """How many readings there are in the hours before and after a day."""
    began, ended, day_us = (day * _DAY_NS - _AROUND_NS), ((day + 1) * _DAY_NS + _AROUND_NS), _DAY_NS // 1000
    beside = f"ts >= {in_sql(began)} AND ts < {in_sql(ended)} AND epoch_us(ts) // {day_us} <> {day}"
    counts = (f"SELECT {rows} AS n FROM {table} WHERE {beside}" for table, rows in _READINGS.items())
    return int(store.sql(f"SELECT coalesce(sum(n), 0) AS n FROM ({' UNION ALL '.join(counts)})").to_pylist()[0]["n"])


def _parts_to_write(store: Store, day: int, stored: _StoredDays, claims: Claims) -> list[_MinutesPart]:
    """The parts of the rows of a day.

    Of a day whose readings were pruned only GPUs with later ones are metered anew: pruned minutes say less than rows
    that were made before.
    """
    window = day * _DAY_NS, (day + 1) * _DAY_NS
    gpus: frozenset[tuple[str, str]] | None = None
    if stored.is_pruned(day) and day in stored.files:
        of_day = f"ts >= {in_sql(window[0])} AND ts < {in_sql(window[1])}"
        gpus = frozenset(
            store.sql(f"SELECT DISTINCT cluster, gpu FROM {TELEMETRY.name} WHERE {of_day}").polars().rows()
        )
    parts = max(stored.rows_of(DayBlock(day, day)) / ROWS_OF_PART, len(stored.gpus) * _MINUTES / _ROWS_MADE)
    root = str(store.root.absolute())
    return [
        (MeterPart(root, window, (DayBlock(day, day),), names, gpus=gpus), claims.of_gpus(names).touching(*window))
        for names in stored.ranges(parts * stored.share(gpus), gpus)
    ]


def _rows_of_part(part: _MinutesPart) -> DayTables:
    """The rows of a part; none of a part without readings. Raises StoreError, also for files that are left out: rows
    would lack them for ever."""
    time, claims = part
    edges = _Edges(claims)
    pieces = [_rows(meters, edges, time.window[0]) for meters in time.meters(claims)]
    if (left_out := time.left_out()) is not None:
        raise StoreError(left_out)
    return _together(pieces) if pieces else {}


def _pieces(
    day: int, stored: _StoredDays, parts: Sequence[_MinutesPart], results: Sequence[DayTables | PartFailure]
) -> Iterator[DayTables]:
    """The rows of a day, some GPUs at a time: of its parts, and earlier ones of all other GPUs where only some are
    metered anew. Raises StoreError where a part could not be made."""
    if stored.is_pruned(day) and day in stored.files:
        anew = frozenset[tuple[str, str]]().union(*(time.gpus or () for time, _ in parts))
        for tables in stored.files[day].values():
            days, minutes = (_read(tables[spec.name], spec.names) for spec in (ENERGY_DAYS, ENERGY_MINUTES))
            stays = np.array([key not in anew for key in zip(*(days[name].to_pylist() for name in _KEYS), strict=True)])
            if stays.any():
                stay = np.repeat(stays, days["minutes"].to_numpy())
                yield {ENERGY_DAYS.name: days.filter(pa.array(stays)), ENERGY_MINUTES.name: minutes.filter(stay)}
    waiting: list[DayTables] = []
    for result in results:
        if isinstance(result, PartFailure):
            raise StoreError(result.reason)
        waiting += [result] if result else []
        if sum(len(tables[ENERGY_MINUTES.name]) for tables in waiting) > _ROWS_OF_FILE:
            yield _together(waiting)
            waiting = []
    if waiting:
        yield _together(waiting)


def _together(pieces: Sequence[DayTables]) -> DayTables:
    return {name: pa.concat_tables([tables[name] for tables in pieces]) for name in pieces[0]}


def _rows(meters: Meters, edges: _Edges, day_ns: int) -> DayTables:
    """What meters show, as rows of both tables."""
    gpu, times = _knots(meters, edges)
    figures = meters.at(gpu, times)
    last = np.append(gpu[1:] != gpu[:-1], True)
    row = np.flatnonzero(~last)
    grown = {name: values[row + 1] - values[row] for name, values in figures.items() if name not in ENDS}
    filled, unread = grown["energy_j"] - grown["measured_j"], grown["s"] - grown["measured_s"]
    codes = pa.array(gpu[row].astype(np.int32))
    names = {name: meters.boards[name].to_arrow().cast(pa.string()) for name in _KEYS}
    minutes = {
        "ts": _stamps(times[row]),
        **{name: pa.DictionaryArray.from_arrays(codes, texts) for name, texts in names.items()},
        "energy_j": grown["energy_j"],
        "filled_j": np.where(np.abs(filled) < _NOTHING, 0.0, filled),
        "unread_s": np.where(unread < _NOTHING, 0.0, unread),
        **{name: np.where(grown[name] < _NOTHING**2, 0.0, grown[name]) for name in _SUMMED},
        **{name: figures[name][row] for name in ENDS},
        "swing_w": _swing(meters, gpu[row], times[row], times[row + 1]),
    }
    days = {
        **names,
        "ts": _stamps(np.full(len(meters), day_ns)),
        "minutes": np.bincount(gpu[row], minlength=len(meters)),
        "began": _stamps(times[np.append(True, last[:-1])]),
        "ended": _stamps(times[last]),
        **{f"end_{name}": figures[name][last] for name in ENDS},
        **{name: pa.array(meters[name], from_pandas=True) for name in _WATTS},
        **{name: meters.boards[name].to_arrow() for name in ("idle_source", "power_source")},
        "reason": meters.boards["empty"].to_arrow(),
        "notes": _lists_of_notes(meters).cast(_NOTES),
    }
    tables = ((ENERGY_MINUTES, minutes), (ENERGY_DAYS, days))
    return {spec.name: keys.conform(spec, pa.table(columns)) for spec, columns in tables}


def _stamps(times_ns: Times) -> pa.Array:
    return pa.array(times_ns // 1000, pa.timestamp("us"))


def _knots(meters: Meters, edges: _Edges) -> tuple[Ints, Times]:
    """When the meters are asked: the number of the GPU, and when, in order; of each GPU twice or more."""
    first, last = meters["first_ns"] // 1000 * 1000, meters["last_ns"] // 1000 * 1000
    counts = np.maximum((last - 1) // _MINUTE_NS - first // _MINUTE_NS, 0)
    gpu, every_gpu = np.repeat(np.arange(len(meters)), counts), np.arange(len(meters))
    nth = np.arange(len(gpu)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    minutes = (first[gpu] // _MINUTE_NS + nth) * _MINUTE_NS
    zero = int(first.min()) - _DAY_NS
    gap_gpu, gaps = meters.gaps(_LONG_S)
    gaps = np.clip(gaps // 1000 * 1000, first[gap_gpu], last[gap_gpu])
    begins, ends = (np.sort(gap_gpu[side::2] * _SPAN_NS + gaps[side::2] - zero) for side in (0, 1))
    place = gpu * _SPAN_NS + minutes - zero
    read = np.searchsorted(begins, place, "right") == np.searchsorted(ends, place, "right")
    edge_gpu, edge = edges.within(meters)
    edge = np.clip(edge // 1000 * 1000, first[edge_gpu], last[edge_gpu])
    gpu = np.concatenate([every_gpu, every_gpu, gpu[read], gap_gpu, edge_gpu])
    place = np.unique(gpu * _SPAN_NS + np.concatenate([first, last, minutes[read], gaps, edge]) - zero)
    gpu, times = place // _SPAN_NS, place % _SPAN_NS + zero
    alone = np.flatnonzero(first == last)  # of one reading: it began and ended at one time
    at = np.searchsorted(gpu, alone)
    return np.insert(gpu, at, alone), np.insert(times, at, first[alone])


def _swing(meters: Meters, gpu: Ints, began: Times, ended: Times) -> Floats:
    """How far apart the powers within each time may be, W."""
    knots, (knots_ns, edge_w) = meters.knots, (meters.knots[name] for name in ("ns", "edge_w"))
    step = np.diff(knots["s"], append=knots["s"][-1:])
    watts = np.where(step > 0, (knots["slope_j"] + knots["bend_j"]) / np.where(step > 0, step, 1.0), 0.0)
    begins, ends = meters["begins"][gpu], meters["ends"][gpu]
    zero = knots_ns[begins] - meters["origin_ns"][gpu]
    first = np.clip(np.searchsorted(knots_ns, began + zero, "right") - 1, begins, ends - 2)
    after = np.clip(np.searchsorted(knots_ns, ended + zero), first + 1, ends - 1)
    bounds = np.stack([first, after]).T.ravel()
    high, low, edge = (
        extreme.reduceat(np.append(values, 0.0), bounds)[::2]
        for extreme, values in ((np.maximum, watts), (np.minimum, watts), (np.maximum, edge_w))
    )
    # Within one segment of the meter this is exact: a part of a parabola is a flatter one.
    lasted = np.maximum((ended - began) / 1e9, 1e-9)
    share = lasted / np.where(step[first] > 0, step[first], lasted)
    within = edge_w[first] * share + np.abs(knots["bend_j"][first]) * share**2 / lasted
    return np.where(after == first + 1, within, high - low + edge)


def _lists_of_notes(meters: Meters) -> pa.Array:
    """By GPU, its notes as `energy_days` has them."""
    fields = pl.struct("problem", pl.col("began", "ended") // 1000, *_OF_NOTE).alias("notes")
    lists = meters.notes.group_by(_KEYS, maintain_order=True).agg(fields)
    rows = meters.boards.select(_KEYS).join(lists, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    return rows["notes"].fill_null([]).to_arrow()


# -- reading ---------------------------------------------------------------------------------------------------


def _of_rows(pieces: _DayFiles, has: Callable[[tuple[str, str]], bool] = lambda _: True) -> Iterator[Meters]:
    """The meters of the rows of a day, some GPUs at a time; `has`: whether a GPU is of interest."""
    for tables in pieces.values():
        days = _frame(tables[ENERGY_DAYS.name], ENERGY_DAYS.names)
        chosen = np.array([has(key) for key in days.select(_KEYS).rows()], bool)
        if not chosen.any():
            continue
        counts, path = days["minutes"].to_numpy(), tables[ENERGY_MINUTES.name]
        firsts = np.flatnonzero(np.diff(np.cumsum(counts) // _KNOTS_AT_ONCE, prepend=-1))  # GPUs
        with _replaced_named(path):
            groups = parquet.read_in_turn(path, [name for name in ENERGY_MINUTES.names if name not in _KEYS])
            minutes = next(groups)
            for first, after in pairwise([*firsts.tolist(), len(counts)]):
                here, rows = chosen[first:after], int(counts[first:after].sum())
                while len(minutes) < rows:
                    minutes = pa.concat_tables([minutes, next(groups)])
                of_gpus, minutes = minutes[:rows], minutes[rows:]
                if not here.all():
                    of_gpus = of_gpus.filter(pa.array(np.repeat(here, counts[first:after])))
                if here.any():
                    yield _built(days[first:after].filter(here), of_gpus)


@contextmanager
def _replaced_named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{path} was replaced while it was read: run the command again") from error


def _read(path: Path, columns: list[str]) -> pa.Table:
    with _replaced_named(path):
        return parquet.read(path, columns)


def _frame(path: Path, columns: list[str]) -> pl.DataFrame:
    return cast("pl.DataFrame", pl.from_arrow(_read(path, columns)))


def _built(days: pl.DataFrame, minutes: pa.Table) -> Meters:
    """The meters of some rows of `energy_days`, and of their rows of `energy_minutes`."""
    counts = days["minutes"].to_numpy()
    ends = np.cumsum(counts + 1)  # each row is a knot, and the end of the last row of a GPU
    begins, lasts = ends - counts - 1, ends - 1
    has_row = np.ones(int(ends[-1]), bool)
    has_row[lasts] = False
    figures = {name: minutes[name].to_numpy() for name in minutes.column_names}
    began, ended = (days[name].dt.epoch("ns").to_numpy() for name in ("began", "ended"))

    def knots(rows: Floats | Times, last: Floats | Times | float = 0) -> Any:
        """The values of rows at their knots, and those of the last knots."""
        values = np.zeros(len(has_row), np.int64 if rows.dtype == np.int64 else np.float64)
        values[has_row], values[lasts] = rows, last
        return values

    def upto(rows: Floats) -> Floats:
        """Up to each knot the sum of the rows before it; only differences within a GPU are asked for."""
        sums = np.zeros(len(has_row))
        sums[1:][has_row[:-1]] = rows
        return np.cumsum(sums, out=sums)

    since, lasted = (
        knots(figures["ts"].astype("datetime64[ns]").astype(np.int64), ended) - np.repeat(began, counts + 1),
        ended - began,
    )
    offset = np.cumsum(lasted) - lasted + np.arange(len(counts))
    seconds = since / 1e9
    step = np.diff(seconds)[has_row[:-1]]
    read = figures["unread_s"] < step * (1 - _NOTHING)
    figures["measured_j"] = np.where(read, figures["energy_j"] - figures["filled_j"], 0.0)
    figures["measured_s"] = np.where(read, step - figures["unread_s"], 0.0)
    boards = days.select(
        *_KEYS, *_WATTS, "idle_source", "power_source", pl.col("reason").alias("empty"),
        first_ns=pl.Series(began), last_ns=pl.Series(ended), origin_ns=pl.Series(began),
        begins=pl.Series(begins), ends=pl.Series(ends),
    )  # fmt: skip
    boards = boards.select(pl.col(name).cast(kind) for name, kind in BOARD.items())
    notes = days.select(*_KEYS, "notes").explode("notes").drop_nulls("notes").unnest("notes")
    of_knots = {
        "ns": since + np.repeat(offset, counts + 1), "s": seconds, "energy_j": upto(figures["energy_j"]),
        "slope_j": knots(figures["energy_j"]), "bend_j": np.zeros(len(seconds)), "edge_w": knots(figures["swing_w"]),
        **{name: upto(figures[name]) for name in PARTS if figures[name].any()},
        **{name: knots(figures[name], days[f"end_{name}"].to_numpy()) for name in ENDS},
    }  # fmt: skip
    return Meters(
        boards.with_columns(pl.col(_WATTS).fill_null(float("nan"))), of_knots,
        notes.with_columns(pl.col("began", "ended").dt.epoch("ns")).select(
            pl.col(name).cast(kind) for name, kind in NOTES.items()
        ),
    )  # fmt: skip
