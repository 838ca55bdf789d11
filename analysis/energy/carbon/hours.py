"""Reads a file of intensities by zone and hour: CSV or Parquet, as a site exports it.

The header says the unit, as `g_per_kwh`, `gCO2e/kWh` or `kg/MWh`. A time is the begin of an hour (or of another step,
found from the times). Times without a zone are read in a given time zone; the hour that occurs twice in autumn is first
the earlier, then the later one. A cell without a value, or an hour that is not there, is a hole: nothing is made up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from ....errors import InputError, UnitError
from ....store.importing import content, values
from ....store.importing.content import LINE, Sheet
from ....store.importing.layout import Bound
from ....store.importing.meanings import Meaning
from ....store.importing.times import times
from .dated import Floats, Times
from .factors import canonical

_GRAMS = {"g": 1.0, "kg": 1e3, "t": 1e6, "lb": 453.59237, "lbs": 453.59237}
_PER_KWH = {"kwh": 1.0, "mwh": 1e3, "gwh": 1e6}
_UNIT = re.compile(
    r"(?:^|[^a-z])(g|kg|t|lbs?)[ _]*(?:co2|co₂)?[ _-]*(?:eq|e)?[ _]*(?:/|per)[ _]*(kwh|mwh|gwh)(?![a-z])", re.IGNORECASE
)
_TIMES = ("time", "datetime", "timestamp", "ts", "began", "begin", "start", "from", "hour", "date", "point_time")
_ZONES = ("zone", "zone_id", "zoneid", "region", "country_code", "country", "area")
_LIFE_CYCLE = re.compile(r"life.?cycle|\blca\b", re.IGNORECASE)
_HOUR = 3600 * 10**9
_MOST = 5_000.0  # g/kWh: no grid emits more


@dataclass(frozen=True)
class Hours:
    """The intensities of one zone: g/kWh from `began` until `ended` (ns), in order, without overlap."""

    zone: str
    began: Times
    ended: Times
    g_per_kwh: Floats


def read_hours(
    path: Path, *, zone: str | None, time_zone: str, column: str | None = None, only: str | None = None
) -> list[Hours]:
    """The intensities of each zone in a file. Raises InputError, which names the file and the line.

    `zone`: the one that is read. `only`: the one that a file without a column of zones is of, where `zone` is None.
    """
    sheet = content.read(path)
    if sheet.refused.count:
        reason, lines = next(iter(sheet.refused.lines.items()))
        raise InputError(f"{path}: line {lines[0]}: {reason}; repair it, as nothing of the file is used")
    time, per_kwh, scale, named = _columns(sheet, path, column)
    if named is None and (zone := zone or only) is None:
        raise InputError(
            f"{path} has no column of zones: name its zone beside it in the settings, as [[intensity]] with "
            f'file = "{path.name}" and zone = "DE"'
        )
    frame = _times(sheet, path, time, named, "UTC" if re.search(r"\butc\b", time, re.IGNORECASE) else time_zone)
    if named is None:
        found = pl.lit(canonical(zone or ""))
    else:
        names = frame[named].unique().to_list()
        found = pl.col(named).replace_strict(names, [canonical(name) for name in names], return_dtype=pl.String)
    frame = frame.with_columns(found.alias("zone"))
    if named is not None and zone is not None:
        frame = frame.filter(pl.col("zone") == canonical(zone))
        if frame.is_empty():
            raise InputError(f"{path} has no row of the zone {zone}")
    frame = _values(frame, path, per_kwh, scale)
    return [_hours(str(key[0]), part) for key, part in frame.group_by("zone", maintain_order=True)]


def _plain(name: str) -> str:
    """A name of a column without its unit or time zone, in lower case."""
    return re.sub(r"[\s_-]+", "_", re.sub(r"[\[(].*?[\])]", "", name).strip().lower()).strip("_")


def _first(sheet: Sheet, names: Sequence[str]) -> str | None:
    """The column that has the first of these names."""
    plain = {_plain(column): column for column in reversed(sheet.names)}
    return next((plain[name] for name in names if name in plain), None)


def _columns(sheet: Sheet, path: Path, column: str | None) -> tuple[str, str, float, str | None]:
    """The columns of times and intensities, what makes the latter g/kWh, and the column of zones if there is one."""
    time = _first(sheet, _TIMES)
    if time is None:
        raise InputError(f"{path} has no column of times: name one of its columns 'time' (there are {_list(sheet)})")
    if column is not None and column not in sheet.names:
        raise InputError(f"{path} has no column {column!r}; there are {_list(sheet)}")
    units = {name: match for name in sheet.names if name != time and (match := _UNIT.search(name))}
    if column is not None:
        units = {name: match for name, match in units.items() if name == column}
    if len(units) > 1:
        units = {name: match for name, match in units.items() if _LIFE_CYCLE.search(name)} or units
    if not units:
        what = f"the name of the column {column!r}" if column else "no name of a column"
        raise UnitError(
            f"{path}: {what} says a unit as gCO2e/kWh or kg/MWh: rename the column of intensities, for example to "
            f"g_per_kwh (there are {_list(sheet)})"
        )
    if len(units) > 1:
        raise InputError(
            f'{path}: several columns could be the intensity ({", ".join(units)}): name one with column = "..."'
        )
    ((name, match),) = units.items()
    return time, name, _GRAMS[match[1].lower()] / _PER_KWH[match[2].lower()], _first(sheet, _ZONES)


def _list(sheet: Sheet) -> str:
    return ", ".join(sheet.names[:12]) + (", ..." if len(sheet.names) > 12 else "")


def _times(sheet: Sheet, path: Path, column: str, zone: str | None, time_zone: str) -> pl.DataFrame:
    """The rows with `began`, ns UTC."""
    meaning = Meaning("time", "time stamp", "begin of an hour")
    text = pl.col(column).str.replace(r"^(\d{4}[-/]\d\d[-/]\d\d)$", "$1 00:00:00")
    text = text.str.replace(r"^(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d)(Z|[+-]\d\d:?\d\d)?$", "${1}:00$2")
    sheet.frame = sheet.frame.with_columns(text.alias(column))
    try:
        remarks = values.Remarks()
        times(sheet, Bound(meaning, column), remarks, minus_one=False, stream=False, time_zone=time_zone)
    except InputError as error:
        raise InputError(
            f"{path}: {column!r} has no times such as 2026-01-31T12:00Z, or in {time_zone}; repair it"
        ) from error
    for lines in sheet.refused.lines.values():
        raise InputError(f"{path}: line {lines[0]} has no readable time in {time_zone} ({column}); repair it")
    began = pl.col(values.parsed(meaning)).dt.epoch("ns")
    frame = sheet.frame.with_columns(began.alias("began"))
    if frame["began"].null_count():
        line = frame.filter(pl.col("began").is_null())[LINE][0]
        raise InputError(f"{path}: line {line} has no time ({column}); repair it")
    # In autumn a civil time occurs twice; the second of two equal ones in a file is the later one.
    clock = pl.col("began").cast(pl.Datetime("ns", "UTC")).dt.convert_time_zone(time_zone).dt.replace_time_zone(None)
    later = clock.dt.replace_time_zone(time_zone, ambiguous="latest", non_existent="null").dt.epoch("ns")
    zoned = pl.col(column).str.contains(r"(?:Z|UTC|[+-]\d\d:?\d\d)$|^\d+(\.\d+)?$")
    again = pl.col("began").cum_count().over(["began", zone] if zone else ["began"]) == 2
    return frame.with_columns(pl.when(again & ~zoned).then(later).otherwise("began").alias("began"))


def _values(frame: pl.DataFrame, path: Path, column: str, scale: float) -> pl.DataFrame:
    """The rows with `g_per_kwh`, one for each zone and time, without those that have no value."""
    number = pl.col(column).cast(pl.Float64, strict=False) * scale
    frame = frame.with_columns(_step().over("zone").alias("step"))
    frame = frame.filter(~values.is_placeholder(column, minus_one=False)).with_columns(number.alias("=grams"))
    good = pl.col("=grams").is_between(0, _MOST).fill_null(False)
    bad = frame.filter(~good)
    if bad.height:
        line, text = bad.select(LINE, column).row(0)
        raise InputError(
            f"{path}: line {line}: {column} is {text!r}, not a number from 0 to {_MOST / scale:,g}; repair it"
        )
    frame = frame.select(LINE, "zone", "began", "step", pl.col("=grams").alias("g_per_kwh")).sort("zone", "began", LINE)
    keys = ["zone", "began"]
    twice = frame.filter(pl.col("g_per_kwh").n_unique().over(keys) > 1)
    if twice.height:
        lines = twice[LINE].sort()
        raise InputError(
            f"{path}: lines {lines[0]} and {lines[1]} give different values for the same hour of {twice['zone'][0]}; "
            "remove the wrong one"
        )
    return frame.unique(keys, keep="first", maintain_order=True)


def _step() -> pl.Expr:
    """The time from one row of a zone to the next, also where a row has no value.

    A tenth of the gaps is not longer: so it is found even if most rows are missing, and a day of 23 hours is none.
    """
    gap = pl.col("began").sort().diff()
    return gap.filter(gap > 0).quantile(0.1, "lower").cast(pl.Int64).fill_null(_HOUR)


def _hours(zone: str, rows: pl.DataFrame) -> Hours:
    began, step = rows["began"].to_numpy(), int(rows["step"][0])
    following = np.append(began[1:], began[-1] + step)
    # A day can have 23 or 25 hours, a month 28 or 31 days; what is longer is a hole.
    ended = np.where(following - began < 1.5 * step, following, began + step)
    if step < _HOUR:
        return _by_hour(zone, began, ended, rows["g_per_kwh"].to_numpy())
    return Hours(zone, began, ended, rows["g_per_kwh"].to_numpy())


def _by_hour(zone: str, began: Times, ended: Times, grams: Floats) -> Hours:
    """The means of hours of which at least a half is known: shorter steps would cut every job into as many pieces."""
    hours, which = np.unique(began // _HOUR * _HOUR, return_inverse=True)
    lasted = np.bincount(which, (ended - began).astype(float))
    means = np.bincount(which, (ended - began) * grams) / lasted
    known = lasted >= _HOUR / 2
    return Hours(zone, hours[known], hours[known] + _HOUR, means[known])
