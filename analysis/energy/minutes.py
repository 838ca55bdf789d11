"""Joules per GPU and minute, made once of the telemetry of a day that is over: meters that cost little to read.

`write_minutes` reads the days that have none, or of which readings came later, and stores what their meters show at
every full minute, wherever a job began or ended, and at both ends of long times without readings. `meters_by_day` gives
meters made of these rows, of other days those of the readings. At these times both show the same energy (the rounding
of a sum apart) and the same bounds and variances (as 32-bit numbers have them). Between them the energy of a minute is
taken as even, and the doubt of a window that ends there says how far it may not be; a GPU of which a job became known
later is read anew on that day instead, as long as its readings are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from ...errors import StoreError
from ...store import parquet
from ...store.derived import Origin
from ...store.file_names import Bounds, day_number
from ...store.instants import date_of_ns, nanoseconds
from ...store.schema import ENERGY_DAYS, ENERGY_MINUTES, MINUTES, TELEMETRY, arrow_schema
from .claims import Key, read_claims
from .idle import IDLE_SOURCES
from .meter import ENDS, PARTS, Meters
from .readings import meters_of_many
from .sensor import PowerSource
from .series import Flags, Floats, Groups, Ints, Note, Problem, Reason, Times

if TYPE_CHECKING:
    from ...store import Store

VERSION = 1
"""Of the meter: one more where the same readings give other joules, so that days are made again."""
_S, _MINUTE_NS, _DAY_NS = 10**9, 60 * 10**9, 86_400 * 10**9
_DAY_US = _DAY_NS // 1000
_AROUND_NS = 3600 * _S  # what is read of the days beside
_LONG_S = 60.0  # a longer time without readings is one row
_SPAN_NS = 4 * _DAY_NS  # more than the times of a day and its sides
_ROWS_OF_FILE = 500_000  # at least, but for the last file of a day
_KNOTS_AT_ONCE = 100_000  # of GPUs that are given together: so many stay in a cache
_NOTHING = 1e-6  # s and J: less is the rounding of a sum
_SUMMED = [name for name in PARTS if name not in ("measured_j", "measured_s")]
_FIGURES = ["energy_j", "filled_j", "unread_s", *_SUMMED, *ENDS, "swing_w"]

Progress = Callable[[str], None]
TimesOf = Callable[[Key], Times]
"""When jobs come to a GPU and leave it, in no order, ns UTC: `Claims.edges`."""


def meters_by_day(
    store: Store, *, cluster: str | None = None, gpus: Collection[tuple[str, str]] | None = None, since_ns: int,
    until_ns: int, times_of: TimesOf | None = None, progress: Progress | None = None,
) -> Iterator[Meters]:  # fmt: skip
    """The meters of GPUs from `since_ns` to `until_ns` (UTC), those of one day after another, some GPUs at a time.

    `gpus` keeps only these: cluster and GPU of each. `times_of` a GPU are when else than at full minutes its energy
    will be asked for (ns UTC); None: when jobs come and leave. Raises StoreError.
    """
    stored, asked = _Stored(store, since_ns, until_ns), None
    days = sorted(stored.states)
    for number, day in enumerate(days):
        if progress is not None:
            progress(f"metering GPUs: day {number + 1:,} of {len(days):,}")
        window = max(since_ns, day * _DAY_NS), min(until_ns, (day + 1) * _DAY_NS)
        if not stored.is_fresh(day):
            yield from _of_readings(store, window, cluster, gpus)
            continue
        if asked is None:
            times_of = (
                times_of or read_claims(store, since_ns=since_ns, until_ns=until_ns, cluster=cluster, gpus=gpus).edges
            )
            asked = _Asked(times_of, (since_ns, until_ns))
        anew = set[tuple[str, str]]()
        for some in stored.meters(day, cluster, gpus):
            lacking = np.zeros(len(some), bool) if stored.is_pruned(day) else asked.lacking(some)
            anew |= {some.gpus[number] for number in np.flatnonzero(lacking).tolist()}
            part = some.only(np.flatnonzero(~lacking)).between(*window)
            if len(part):
                yield part
        if anew:
            yield from _of_readings(store, window, cluster, anew)


def write_minutes(store: Store, *, offline: bool = False, now_ns: int, progress: Progress | None = None) -> int:
    """Make the rows of the days that are over and have none, or other ones than their readings give; returns how many.

    `offline`: nobody else uses the store. Raises StoreError, also where another process replaces files of the store.
    """
    stored = _Stored(store, None, (now_ns - _AROUND_NS) // _DAY_NS * _DAY_NS)
    over = {day: state for day, state in stored.states.items() if state is not None}
    stale = {day for day in over if not stored.is_of_readings(day)}
    near = {day for other in stale for day in (other - 1, other + 1) if stored.is_of_readings(day)}
    stale |= {day for day in near if stored.origin(day).beside != _rows_beside(store, day)}
    days = {*stale, *_with_late_jobs(store, stored)}
    if not days:
        return 0
    asked = _Asked(read_claims(store, since_ns=min(days) * _DAY_NS, until_ns=(max(days) + 1) * _DAY_NS).edges)
    for day in days - stale:
        if any(asked.lacking(some).any() for some in stored.meters(day, None, None)):
            stale.add(day)
    with store.derive(offline=offline) as derivation:
        for number, day in enumerate(sorted(stale)):
            if progress is not None:
                progress(f"energy per minute: day {number + 1:,} of {len(stale):,}")
            origin = Origin(VERSION, over[day], _rows_beside(store, day))
            derivation.replace(day, origin, _pieces(store, day, stored, asked))
    return len(stale)


def _of_readings(
    store: Store, window: tuple[int, int], cluster: str | None = None, gpus: Collection[tuple[str, str]] | None = None
) -> Iterator[Meters]:
    """The meters of a day, or of a part of it, of the readings: with an hour on either side."""
    began, ended = window
    for some in meters_of_many(
        store, cluster=cluster, gpus=gpus, since_ns=began - _AROUND_NS, until_ns=ended + _AROUND_NS
    ):
        part = some.between(began, ended)
        lasts = part.first_ns < part.last_ns
        unread = np.array([reason is not None for reason in part.empty], bool) & (part.first_ns < ended)
        part = part.only(np.flatnonzero(lasts | unread))
        if len(part):
            yield part


# -- writing --------------------------------------------------------------------------------------------------


def _with_late_jobs(store: Store, stored: _Stored) -> list[int]:
    """The days whose rows are as their readings, on which jobs began or ended that were stored later, or hardly
    earlier."""
    last = store.sql(
        "SELECT epoch_us(edge) // 86400000000 AS day, max(epoch_us(recorded)) AS recorded_us "
        "FROM (SELECT began AS edge, recorded FROM jobs UNION ALL SELECT ended, recorded FROM jobs) "
        "WHERE recorded IS NOT NULL AND edge IS NOT NULL GROUP BY day"
    )
    return [
        row["day"]
        for row in last.to_pylist()
        if stored.is_of_readings(row["day"])
        and not stored.is_pruned(row["day"])
        and row["recorded_us"] > stored.origin(row["day"]).stored_us - _AROUND_NS // 1000
    ]


def _rows_beside(store: Store, day: int) -> int:
    """How many readings there are in the hours before and after a day."""
    sides = [(day * _DAY_NS - _AROUND_NS, day * _DAY_NS), ((day + 1) * _DAY_NS, (day + 1) * _DAY_NS + _AROUND_NS)]
    near = pl.any_horizontal(
        pl.col("ts").is_between(pl.lit(date_of_ns(began)), pl.lit(date_of_ns(ended)), closed="left")
        for began, ended in sides
    )
    counts = [
        store.collect(store.scan(name).filter(near).select(rows)).item() or 0
        for name, rows in ((TELEMETRY.name, pl.len()), (MINUTES.name, pl.col("n").sum()))
    ]
    return int(sum(counts))


def _pieces(store: Store, day: int, stored: _Stored, asked: _Asked) -> Iterator[dict[str, pa.Table]]:
    """The rows of a day by table, some GPUs at a time.

    Of a day whose readings were pruned only GPUs with later ones are metered anew: pruned minutes say less than rows
    that were made before.
    """
    window = day * _DAY_NS, (day + 1) * _DAY_NS
    gpus: list[tuple[str, str]] | None = None
    if stored.is_pruned(day) and day in stored.files:
        began, ended = (pl.lit(date_of_ns(end)) for end in window)
        of_day = pl.col("ts").is_between(began, ended, closed="left")
        rows = store.scan(TELEMETRY.name).filter(of_day).select("cluster", "gpu").unique()
        gpus = store.collect(rows).rows()
        yield from stored.without(day, gpus)
    waiting: list[dict[str, pa.Table]] = []
    for some in _of_readings(store, window, None, gpus) if gpus != [] else ():
        waiting.append(_rows(some, asked, window[0]))
        if sum(len(tables[ENERGY_MINUTES.name]) for tables in waiting) > _ROWS_OF_FILE:
            yield _together(waiting)
            waiting = []
    if waiting:
        yield _together(waiting)


def _together(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}


def _rows(meters: Meters, asked: _Asked, day_ns: int) -> dict[str, pa.Table]:
    """What meters show, as rows of both tables."""
    of, when = _knots(meters, asked)
    seconds, shown = meters.at(of, when)
    figures = dict(zip(("energy_j", *PARTS, *ENDS), shown, strict=True))
    last = np.append(of[1:] != of[:-1], True)
    row = np.flatnonzero(~last)
    step_s = seconds[row + 1] - seconds[row]
    grown = {name: values[row + 1] - values[row] for name, values in figures.items() if name not in ENDS}
    filled, unread = grown["energy_j"] - grown["measured_j"], step_s - grown["measured_s"]
    columns: dict[str, Any] = {
        "energy_j": grown["energy_j"],
        "filled_j": np.where(np.abs(filled) < _NOTHING, 0.0, filled),
        "unread_s": np.where(unread < _NOTHING, 0.0, unread),
        **{name: np.where(grown[name] < _NOTHING**2, 0.0, grown[name]) for name in _SUMMED},
        **{name: figures[name][row] for name in ENDS},
        "swing_w": _swing(meters, of[row], when[row], when[row + 1]),
    }
    names = {"cluster": [cluster for cluster, _ in meters.gpus], "gpu": [gpu for _, gpu in meters.gpus]}
    codes = pa.array(of[row].astype(np.int32))
    for name, values in names.items():
        columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array(values, pa.string())).cast(pa.string())
    columns["ts"] = pa.array(when[row] // 1000, pa.timestamp("us"))
    days = {
        **names,
        "ts": pa.array(np.full(len(meters), day_ns // 1000), pa.timestamp("us")),
        "minutes": np.bincount(of[row], minlength=len(meters)),
        "began": pa.array(when[np.append(True, last[:-1])] // 1000, pa.timestamp("us")),
        "ended": pa.array(when[last] // 1000, pa.timestamp("us")),
        **{f"end_{name}": figures[name][last] for name in ENDS},
        **{
            name: pa.array(getattr(meters, name), from_pandas=True)
            for name in ("idle_w", "idle_low_w", "idle_high_w", "limit_w", "lowest_w", "highest_w")
        },
        "idle_source": [IDLE_SOURCES[number] for number in meters.idle_source.tolist()],
        "power_source": list(map(str, meters.power_source)),
        "reason": pa.array([None if reason is None else str(reason) for reason in meters.empty], pa.string()),
        "notes": pa.array(
            [[_as_record(note) for note in notes] for notes in meters.notes],
            arrow_schema(ENERGY_DAYS.name).field("notes").type,
        ),
    }
    return {
        ENERGY_MINUTES.name: pa.table(columns),
        ENERGY_DAYS.name: pa.table(days),
    }


def _knots(meters: Meters, asked: _Asked) -> tuple[Ints, Times]:
    """When the meters are asked: the number of the GPU, and when, in order; of each GPU twice or more."""
    first, last = meters.first_ns // 1000 * 1000, meters.last_ns // 1000 * 1000
    number = np.maximum((last - 1) // _MINUTE_NS - first // _MINUTE_NS, 0)
    of_mark = np.repeat(np.arange(len(meters)), number)
    mark = np.arange(len(of_mark)) - np.repeat(np.cumsum(number) - number, number) + 1
    mark = (first[of_mark] // _MINUTE_NS + mark) * _MINUTE_NS
    zero = int(first.min()) - _DAY_NS
    of_gap, gap = meters.gaps(_LONG_S)
    gap = np.clip(gap // 1000 * 1000, first[of_gap], last[of_gap])
    begins, ends = (np.sort(of_gap[side::2] * _SPAN_NS + gap[side::2] - zero) for side in (0, 1))
    place = of_mark * _SPAN_NS + mark - zero
    free = np.searchsorted(begins, place, "right") == np.searchsorted(ends, place, "right")
    of_edge, edge = asked.within(meters)
    edge = np.clip(edge // 1000 * 1000, first[of_edge], last[of_edge])
    numbers = np.arange(len(meters))
    of = np.concatenate([numbers, numbers, of_mark[free], of_gap, of_edge])
    when = np.concatenate([first, last, mark[free], gap, edge])
    place = np.unique(of * _SPAN_NS + when - zero)
    of, when = place // _SPAN_NS, place % _SPAN_NS + zero
    alone = np.flatnonzero(first == last)  # of one reading: it began and ended at one time
    at = np.searchsorted(of, alone)
    return np.insert(of, at, alone), np.insert(when, at, first[alone])


def _swing(meters: Meters, of: Ints, began: Times, ended: Times) -> Floats:
    """How far apart the powers within each time may be, W."""
    step = np.diff(meters.knots_s, append=meters.knots_s[-1:])
    watts = np.where(step > 0, (meters.slope_j + meters.bend_j) / np.where(step > 0, step, 1.0), 0.0)
    zero = meters.knots_ns[meters.begins[of]] - meters.origin_ns[of]
    first = np.searchsorted(meters.knots_ns, began + zero, "right") - 1
    after = np.maximum(np.searchsorted(meters.knots_ns, ended + zero), first + 1)
    first = np.clip(first, meters.begins[of], meters.ends[of] - 2)
    after = np.clip(after, first + 1, meters.ends[of] - 1)
    bounds = np.stack([first, after]).T.ravel()
    high, low, edge = (
        of_all.reduceat(np.append(values, 0.0), bounds)[::2]
        for of_all, values in ((np.maximum, watts), (np.minimum, watts), (np.maximum, meters.edge_w))
    )
    # Within one segment of the meter this is exact: a part of a parabola is a flatter one.
    lasted = np.maximum((ended - began) / 1e9, 1e-9)
    share = lasted / np.where(step[first] > 0, step[first], lasted)
    within = meters.edge_w[first] * share + np.abs(meters.bend_j[first]) * share**2 / lasted
    return np.where(after == first + 1, within, high - low + edge)


def _as_record(note: Note) -> dict[str, Any]:
    return {
        "problem": str(note.problem), "began": note.began_ns // 1000, "ended": note.ended_ns // 1000,
        "joules": note.joules, "percent": note.percent, "seconds": note.seconds, "n": note.n,
        "has_rows": note.has_rows,
    }  # fmt: skip


# -- reading --------------------------------------------------------------------------------------------------


class _Stored:
    """The rows that are stored of the days between two times (ns; None: of all before)."""

    def __init__(self, store: Store, since_ns: int | None, until_ns: int) -> None:
        since_ns = -(2**62) if since_ns is None else since_ns
        self.states = store.states_of_days(since_ns, until_ns - 1)
        """What each day has of telemetry; None of one that is not over."""
        within = Bounds((since_ns // _DAY_NS - 1) * _DAY_US, ((until_ns - 1) // _DAY_NS + 2) * _DAY_US - 1)
        listing = store.rows([ENERGY_DAYS.name, ENERGY_MINUTES.name], within)
        self.files: dict[int, dict[int, dict[str, Path]]] = {}
        """By day and number of the piece, the file of each table."""
        self._origins: dict[int, Origin] = {}
        for name, rows in listing.items():
            for path in rows.files:
                known = Origin.of(path)
                day = day_number(path.parent.name)
                if known is not None and day is not None:
                    self._origins[day], number = known
                    self.files.setdefault(day, {}).setdefault(number, {})[name] = path

    def origin(self, day: int) -> Origin:
        """What the rows of a day were made of."""
        return self._origins[day]

    def is_fresh(self, day: int) -> bool:
        """Whether a day and those beside it have the readings of which its rows were made."""
        return self.is_of_readings(day) and all(
            near not in self.files or near not in self.states or self.is_of_readings(near)
            for near in (day - 1, day + 1)
        )

    def is_of_readings(self, day: int) -> bool:
        """Whether a day has rows, and the readings that these were made of; those of the days beside may be others."""
        if day not in self.files or any(len(tables) < 2 for tables in self.files[day].values()):
            return False
        origin, state = self._origins[day], self.states.get(day)
        return state == origin.state and (origin.version == VERSION or self.is_pruned(day))

    def is_pruned(self, day: int) -> bool:
        """Whether readings of a day are there as pruned minutes only."""
        state = self.states.get(day)
        return state is not None and state.pruned

    def without(self, day: int, gpus: Collection[tuple[str, str]]) -> Iterator[dict[str, pa.Table]]:
        """The rows of a day but for some GPUs, by table."""
        for tables in self.files[day].values():
            days, minutes = (_read(tables[spec.name], spec.names) for spec in (ENERGY_DAYS, ENERGY_MINUTES))
            rest = np.array([key not in gpus for key in _keys(days)], bool)
            if rest.any():
                of_minutes = np.repeat(rest, days["minutes"].to_numpy())
                yield {
                    ENERGY_DAYS.name: days.filter(pa.array(rest)),
                    ENERGY_MINUTES.name: minutes.filter(pa.array(of_minutes)),
                }

    def meters(self, day: int, cluster: str | None, gpus: Collection[tuple[str, str]] | None) -> Iterator[Meters]:
        """The meters of a day, some GPUs at a time."""
        for tables in self.files[day].values():
            days = _read(tables[ENERGY_DAYS.name], ENERGY_DAYS.names)
            keys = _keys(days)
            chosen = np.array([cluster in (None, key[0]) and (gpus is None or key in gpus) for key in keys], bool)
            if not chosen.any():
                continue
            counts = days["minutes"].to_numpy()
            after = np.cumsum(counts)
            minutes = _read(tables[ENERGY_MINUTES.name], ["ts", *_FIGURES])
            figures = {name: minutes[name].combine_chunks().to_numpy() for name in minutes.column_names[1:]}
            figures = {name: values for name, values in figures.items() if values.any()}
            ts_ns = minutes["ts"].cast(pa.int64()).combine_chunks().to_numpy() * 1000
            part = np.cumsum(np.where(chosen, counts, 0)) // _KNOTS_AT_ONCE
            for number in np.unique(part[chosen]).tolist():
                own = np.flatnonzero(chosen & (part == number))
                which: Any = slice(int(after[own[0]] - counts[own[0]]), int(after[own[-1]]))
                if own[-1] - own[0] >= len(own):
                    which = np.flatnonzero(np.repeat(np.isin(np.arange(len(keys)), own), counts))
                yield _built(days.take(own), ts_ns[which], {name: values[which] for name, values in figures.items()})


def _read(path: Path, columns: list[str]) -> pa.Table:
    try:
        return parquet.read(path, columns)
    except FileNotFoundError as error:
        raise StoreError(f"{path} was replaced while it was read: run the command again") from error


def _keys(days: pa.Table) -> list[tuple[str, str]]:
    return list(zip(days["cluster"].to_pylist(), days["gpu"].to_pylist(), strict=True))


def _built(days: pa.Table, ts_ns: Times, figures: dict[str, Floats]) -> Meters:
    """The meters of some rows of `energy_days`, and of their rows of `energy_minutes`: times, and what is not 0."""
    counts = days["minutes"].to_numpy()
    groups = Groups.of_sizes(counts + 1)
    n, knots = len(counts), int(groups.begins[-1])
    row = np.arange(len(ts_ns)) + np.repeat(np.arange(n), counts)  # the knot that a row begins at
    began, ended = (days[name].cast(pa.int64()).to_numpy() * 1000 for name in ("began", "ended"))
    when = np.empty(knots, np.int64)
    when[row], when[groups.lasts] = ts_ns, ended
    since = when - np.repeat(began, groups.sizes)
    lasted = ended - began
    offset = np.cumsum(lasted) - lasted + np.arange(n)

    def at_row(name: str, last: Floats | float = 0.0) -> Floats:
        values = np.zeros(knots)
        if name in figures:
            values[row] = figures[name]
        values[groups.lasts] = last
        return values

    def upto(name: str, steps: Floats) -> Floats:
        values = np.zeros(knots)
        values[row + 1] = steps
        if not name.startswith(("energy", "measured")):  # of others only differences are asked for, to 7 digits
            return np.cumsum(values, out=values)
        groups.cumulate(values)
        return values

    energy, seconds = at_row("energy_j"), since / 1e9
    energy_j = upto("energy_j", energy[row])
    parts = np.zeros((len(PARTS), knots))
    sums = {"measured_j": energy_j, "measured_s": seconds}
    if "unread_s" in figures:
        step = seconds[row + 1] - seconds[row]
        read = figures["unread_s"] < step * (1 - _NOTHING)
        figures["measured_j"] = np.where(read, energy[row] - figures.get("filled_j", 0.0), 0.0)
        figures["measured_s"] = np.where(read, step - figures["unread_s"], 0.0)
    sums |= {name: upto(name, figures[name]) for name in PARTS if name in figures}
    for place, name in enumerate(PARTS):
        if name in sums:
            parts[place] = sums[name]
    watts = {
        name: days[name].to_numpy().astype(np.float64)
        for name in ("idle_w", "idle_low_w", "idle_high_w", "limit_w", "lowest_w", "highest_w")
    }
    return Meters(
        gpus=_keys(days), first_ns=began, last_ns=ended, origin_ns=began,
        idle_source=np.array([IDLE_SOURCES.index(source) for source in days["idle_source"].to_pylist()]),
        power_source=[PowerSource(source) for source in days["power_source"].to_pylist()],
        **watts,
        notes=tuple(tuple(map(_as_note, notes)) for notes in days["notes"].to_pylist()),
        empty=[None if reason is None else Reason(reason) for reason in days["reason"].to_pylist()],
        begins=groups.firsts, ends=groups.begins[1:],
        knots_ns=since + np.repeat(offset, groups.sizes), knots_s=seconds, energy_j=energy_j,
        slope_j=energy, bend_j=np.zeros(knots), edge_w=at_row("swing_w"),
        parts=parts, ends_j=np.stack([at_row(name, days[f"end_{name}"].to_numpy()) for name in ENDS]),
    )  # fmt: skip


def _as_note(record: Mapping[str, Any]) -> Note:
    began, ended = (nanoseconds(record[name]) for name in ("began", "ended"))
    return Note(
        Problem(record["problem"]), began, ended, record["joules"], record["percent"], record["seconds"], record["n"],
        record["has_rows"],
    )  # fmt: skip


class _Asked:
    """When each GPU will be asked for its energy, in order, of many days."""

    def __init__(self, times_of: TimesOf, ends: Sequence[int] = ()) -> None:
        """`ends` are asked of all GPUs."""
        self._times_of, self._ends = times_of, np.array(ends, np.int64)
        self._known: dict[Key, Times] = {}

    def within(self, meters: Meters) -> tuple[Ints, Times]:
        """The times at which GPUs are metered: the number of the GPU, and when (ns UTC)."""
        parts = []
        for key, first, last in zip(meters.gpus, meters.first_ns.tolist(), meters.last_ns.tolist(), strict=True):
            if key not in self._known:
                self._known[key] = np.sort(np.concatenate([self._times_of(key), self._ends]))
            times = self._known[key]
            began, ended = times.searchsorted(first), times.searchsorted(last, "right")
            parts.append(times[began:ended])
        of = np.repeat(np.arange(len(meters)), [len(times) for times in parts])
        return of, np.concatenate([np.zeros(0, np.int64), *parts])

    def lacking(self, meters: Meters) -> Flags:
        """(g,) whether a time of the GPU is none of its knots."""
        of, when = self.within(meters)
        place = when - meters.origin_ns[of] + meters.knots_ns[meters.begins[of]]
        at = np.minimum(np.searchsorted(meters.knots_ns, place), len(meters.knots_ns) - 1)
        return np.bincount(of[meters.knots_ns[at] != place], minlength=len(meters)) > 0
