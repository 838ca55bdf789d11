"""Intensities by hour: of the site's files and of a service on the network; and all that changes with time, in steps.

Files are CSV or Parquet, as a site exports them. The header says the unit, as `g_per_kwh`, `gCO2e/kWh` or `kg/MWh`. A
time is the begin of an hour (or of another step, found from the times). A cell without a value, or an hour that is not
there, is a hole: nothing is made up.

A service is Electricity Maps or WattTime, where the settings name one: it is asked for hours that no file has. Its
answers are kept in a file of hours beside the settings, and what is in it is not asked again; an hour that the service
does not know stands there without a value. Keys are read from the environment, and a redirection is refused, as it
would give the key to another host.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError, StoreError, UnitError, WhorlError
from ...store.importing import content
from ...store.importing.content import LINE, Sheet
from ...store.importing.meanings import Bound, Meaning
from ...store.importing.options import Options
from ...store.importing.times import times
from ...store.importing.values import is_placeholder, parsed
from ...store.instants import iso, nanoseconds
from ...store.system.files import put
from ...store.system.network import TooLarge
from ...store.system.network import fetch as fetch_url
from .carbon import FactorBasis, canonical, changes, number_at, shipped_table, yearly_factor
from .settings import MOST_G_PER_KWH, EnergySettings, HoursFile, Method, Service, ServiceAccess

HOUR_NS = 3600 * 10**9
HOURS: dict[str, pl.DataType] = {
    "zone": pl.String(), "from_ns": pl.Int64(), "until_ns": pl.Int64(), "g_per_kwh": pl.Float64(),
    "source": pl.String(),
}  # fmt: skip
"""Columns of intensities: what a kWh of a zone emits from `from_ns` until `until_ns`, and what says so."""
RATES: dict[str, pl.DataType] = {
    "cluster": pl.String(), "from_ns": pl.Int64(), "g_per_kwh": pl.Float64(), "method": pl.String(),
    "zone": pl.String(), "basis": pl.String(), "source": pl.String(), "year": pl.Int64(), "pue": pl.Float64(),
    "reason": pl.String(), "price": pl.Float64(), "host_w": pl.Float64(),
}  # fmt: skip
"""Columns of `rates`: those of `carbon.GridFactor`, the price of a kWh and the W of the host; NULL is not stated."""

_GRAMS = {"g": 1.0, "kg": 1e3, "t": 1e6, "lb": 453.59237, "lbs": 453.59237}
_PER_KWH = {"kwh": 1.0, "mwh": 1e3, "gwh": 1e6}
_UNIT = re.compile(
    r"(?:^|[^a-z])(g|kg|t|lbs?)[ _]*(?:co2|co₂)?[ _-]*(?:eq|e)?[ _]*(?:/|per)[ _]*(kwh|mwh|gwh)(?![a-z])", re.IGNORECASE
)
_TIMES = ("time", "datetime", "timestamp", "ts", "began", "begin", "start", "from", "hour", "date", "point_time")
_ZONES = ("zone", "zone_id", "zoneid", "region", "country_code", "country", "area")
_LIFE_CYCLE = re.compile(r"life.?cycle|\blca\b", re.IGNORECASE)

_OF_HOUR = ("g_per_kwh", "source", "basis", "year", "reason")
"""What a file of hours decides of a rate."""

Times = NDArray[np.int64]
Floats = NDArray[np.float64]


def rates(settings: EnergySettings, since_ns: int, until_ns: int, clusters: Sequence[str | None]) -> pl.DataFrame:
    """What holds on each cluster, and on one without a name, between two times: columns of `RATES`, in order.

    A row holds from its `from_ns` until that of the next row of the cluster; the first begins at `since_ns`. A file's
    hour comes first, then what the site states, then the shipped table. Raises InputError as `site_hours`.
    """
    hours = [] if settings.method is Method.MARKET else site_hours(settings)
    frames = []
    for cluster in dict.fromkeys([*clusters, None]):
        rows = [
            {
                **asdict(yearly_factor(settings, cluster, from_ns)),
                "cluster": cluster,
                "from_ns": from_ns,
                **{key: number_at(settings, key, cluster, from_ns) for key in ("price", "host_w")},
            }
            for from_ns in changes(settings, since_ns, until_ns)
        ]
        steps = pl.DataFrame(rows, schema=RATES)
        zoned = [part.filter(pl.col("zone").is_in(steps["zone"].unique().implode())) for part in hours]
        edges = [part[end] for part in zoned for end in ("from_ns", "until_ns")]
        starts = pl.concat([steps["from_ns"], *edges]).unique().sort().rename("from_ns")
        starts = starts.filter(starts.is_between(since_ns, until_ns, closed="left"))
        steps = starts.to_frame().join_asof(steps, on="from_ns")
        for part in reversed(zoned):  # what the first file knows counts
            steps = _with_hours(steps, part)
        frames.append(steps.select(*RATES).filter(pl.struct(pl.exclude("from_ns")).rle_id().diff().fill_null(1) > 0))
    return pl.concat(frames)


def _with_hours(steps: pl.DataFrame, hours: pl.DataFrame) -> pl.DataFrame:
    """The steps with what a file says where it knows the hour."""
    joined = steps.join_asof(
        hours.sort("from_ns"), on="from_ns", by="zone", suffix="_hour", check_sortedness=False
    ).with_columns((pl.col("from_ns") < pl.col("until_ns")).fill_null(False).alias("inside"))
    of_hour = (pl.col("g_per_kwh_hour"), pl.col("source_hour"), pl.lit(FactorBasis.HOURS.value), None, None)
    return joined.with_columns(
        pl.when("inside").then(value).otherwise(name).alias(name) for name, value in zip(_OF_HOUR, of_hour, strict=True)
    ).select(steps.columns)


def site_hours(settings: EnergySettings) -> list[pl.DataFrame]:
    """The intensities of each of the site's files, and of what a service answered: frames of `HOURS`.

    Where two frames know the same hour, the first one counts. Raises InputError, which names the file and the line.
    """
    zones = {str(place.value) for place in settings.zones}
    only = zones.pop() if len(zones) == 1 else None
    hours = [read_hours(file, settings.time_zone, only=only) for file in settings.hours]
    service = settings.service
    if service is not None and service.answers.is_file():
        hours.append(read_hours(HoursFile(service.answers, source=service.source), "UTC"))
    return hours


def hourly(hours: Sequence[pl.DataFrame], zone: str, times_ns: Times) -> Floats:
    """What a kWh of a zone emits at each of these times (in order), g; NaN where no file says it."""
    steps = pl.DataFrame({"from_ns": times_ns, "zone": canonical(zone)}).cast({"from_ns": pl.Int64})
    steps = steps.with_columns(pl.lit(None, kind).alias(name) for name, kind in RATES.items() if name in _OF_HOUR)
    for part in reversed(hours):
        steps = _with_hours(steps, part)
    return steps["g_per_kwh"].fill_null(float("nan")).to_numpy()


def read_hours(file: HoursFile, time_zone: str, *, only: str | None = None) -> pl.DataFrame:
    """The intensities in a file: columns of `HOURS`, in order of zone and time.

    `time_zone`: of times that state none. `only`: the zone of a file that has no column of
    zones and of which `file` names none. Raises InputError, which names the file and the line.
    """
    path = file.path
    sheet = content.read(path)
    for reason, lines in sheet.refused.lines.items():
        raise InputError(f"{path}: line {lines[0]}: {reason}; repair it, as nothing of the file is used")
    time = _column(sheet, _TIMES)
    if time is None:
        raise InputError(f"{path} has no column of times: name one of its columns 'time' (there are {_list(sheet)})")
    grams, scale = _intensity(sheet, path, [name for name in sheet.names if name != time], file.column)
    by, zone = _column(sheet, _ZONES), file.zone
    if by is None and (zone := zone or only) is None:
        raise InputError(
            f"{path} has no column of zones: name its zone beside it in the settings, as [[intensity]] with "
            f'file = "{path.name}" and zone = "DE"'
        )
    if by is None:
        zones = pl.lit(canonical(zone or ""))
    else:
        names = sheet.frame[by].unique().drop_nulls()
        zones = pl.col(by).replace_strict(names, [canonical(name) for name in names], return_dtype=pl.String)
    sheet.frame = sheet.frame.with_columns(zones.alias("zone"))
    frame = _with_begin(sheet, path, time, "UTC" if re.search(r"\butc\b", time, re.IGNORECASE) else time_zone)
    if by is not None and zone is not None:
        frame = frame.filter(pl.col("zone") == canonical(zone))
        if frame.is_empty():
            raise InputError(f"{path} has no row of the zone {zone}")
    frame = _with_grams(frame, path, grams, scale)
    if frame.is_empty():
        return pl.DataFrame(schema=HOURS)
    steps = pl.concat([_steps(rows) for rows in frame.partition_by("zone", maintain_order=True)])
    return steps.with_columns(pl.lit(file.source or path.name).alias("source")).select(*HOURS)


def _column(sheet: Sheet, names: Sequence[str]) -> str | None:
    """The column that has the first of these names, but for units, time zones and capitals."""
    plain = {
        re.sub(r"[\s_-]+", "_", re.sub(r"[\[(].*?[\])]", "", column).strip().lower()).strip("_"): column
        for column in reversed(sheet.names)
    }
    return next((plain[name] for name in names if name in plain), None)


def _intensity(sheet: Sheet, path: Path, columns: Sequence[str], chosen: str | None) -> tuple[str, float]:
    """The column of intensities, and what makes its values g/kWh."""
    if chosen is not None and chosen not in sheet.names:
        raise InputError(f"{path} has no column {chosen!r}; there are {_list(sheet)}")
    units = {name: match for name in columns if chosen in (None, name) and (match := _UNIT.search(name))}
    if len(units) > 1:
        units = {name: match for name, match in units.items() if _LIFE_CYCLE.search(name)} or units
    if not units:
        what = f"the name of the column {chosen!r}" if chosen else "no name of a column"
        raise UnitError(
            f"{path}: {what} says a unit as gCO2e/kWh or kg/MWh: rename the column of intensities, for example to "
            f"g_per_kwh (there are {_list(sheet)})"
        )
    if len(units) > 1:
        raise InputError(
            f'{path}: several columns could be the intensity ({", ".join(units)}): name one with column = "..."'
        )
    ((name, match),) = units.items()
    return name, _GRAMS[match[1].lower()] / _PER_KWH[match[2].lower()]


def _list(sheet: Sheet) -> str:
    return ", ".join(sheet.names[:12]) + (", ..." if len(sheet.names) > 12 else "")


def _with_begin(sheet: Sheet, path: Path, column: str, time_zone: str) -> pl.DataFrame:
    """The rows with `from_ns`, UTC."""
    meaning = Meaning("time", "time stamp", "begin of an hour")
    text = pl.col(column).str.replace(r"^(\d{4}[-/]\d\d[-/]\d\d)$", "$1 00:00:00")
    text = text.str.replace(r"^(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d)(Z|[+-]\d\d:?\d\d)?$", "${1}:00$2")
    sheet.frame, sheet.options = sheet.frame.with_columns(text.alias(column)), Options(time_zone=time_zone)
    try:
        times(sheet, Bound(meaning, column), minus_one=False, stream=False)
    except InputError as error:
        raise InputError(
            f"{path}: {column!r} has no times such as 2026-01-31T12:00Z, or in {time_zone}; repair it"
        ) from error
    for lines in sheet.refused.lines.values():
        raise InputError(f"{path}: line {lines[0]} has no readable time in {time_zone} ({column}); repair it")
    frame = sheet.frame.with_columns(pl.col(parsed(meaning)).dt.epoch("ns").alias("from_ns"))
    for line in frame.filter(pl.col("from_ns").is_null())[LINE]:
        raise InputError(f"{path}: line {line} has no time ({column}); repair it")
    # In autumn a civil time occurs twice; the second of two equal ones in a file is the later one.
    clock = pl.col("from_ns").cast(pl.Datetime("ns", "UTC")).dt.convert_time_zone(time_zone).dt.replace_time_zone(None)
    later = clock.dt.replace_time_zone(time_zone, ambiguous="latest", non_existent="null").dt.epoch("ns")
    zoned = pl.col(column).str.contains(r"(?:Z|UTC|[+-]\d\d:?\d\d)$|^\d+(\.\d+)?$")
    again = pl.col("from_ns").cum_count().over("from_ns", "zone") == 2
    return frame.with_columns(pl.when(again & ~zoned).then(later).otherwise("from_ns").alias("from_ns"))


def _with_grams(frame: pl.DataFrame, path: Path, column: str, scale: float) -> pl.DataFrame:
    """Rows of LINE, zone, from_ns, step_ns and g_per_kwh: one for each zone and time, without those of no value."""
    # The usual distance is found from all rows: a tenth of the gaps is not longer, even if most rows are missing.
    gap = pl.col("from_ns").sort().diff()
    step_ns = gap.filter(gap > 0).quantile(0.1, "lower").cast(pl.Int64).fill_null(HOUR_NS).over("zone")
    grams = pl.col(column).cast(pl.Float64, strict=False) * scale
    frame = frame.select(
        LINE, "zone", "from_ns", pl.col(column).alias("text"), step_ns.alias("step_ns"), grams.alias("g_per_kwh"),
        is_placeholder(column, minus_one=False).alias("empty"),
    ).filter(~pl.col("empty"))  # fmt: skip
    for line, text in (
        frame.filter(~pl.col("g_per_kwh").is_between(0, MOST_G_PER_KWH).fill_null(False)).select(LINE, "text").rows()
    ):
        most = f"{MOST_G_PER_KWH / scale:,g}"
        raise InputError(f"{path}: line {line}: {column} is {text!r}, not a number from 0 to {most}; repair it")
    keys = ["zone", "from_ns"]
    frame = frame.sort(*keys, LINE)
    twice = frame.filter(pl.col("g_per_kwh").n_unique().over(keys) > 1)
    if twice.height:
        lines = twice[LINE].sort()
        raise InputError(
            f"{path}: lines {lines[0]} and {lines[1]} give different values for the same hour of {twice['zone'][0]}; "
            "remove the wrong one"
        )
    return frame.unique(keys, keep="first", maintain_order=True)


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of one zone with `until_ns`; steps shorter than an hour become the means of hours.

    A day can have 23 or 25 hours and a month 28 or 31 days; what is longer is a hole. Of an hour, a half must be known:
    shorter steps would cut every job into as many pieces.
    """
    step_ns = int(rows["step_ns"][0])
    following = pl.col("from_ns").shift(-1).fill_null(pl.col("from_ns").max() + step_ns)
    near = following - pl.col("from_ns") < 1.5 * step_ns
    steps = rows.with_columns(pl.when(near).then(following).otherwise(pl.col("from_ns") + step_ns).alias("until_ns"))
    if step_ns >= HOUR_NS:
        return steps
    lasted = pl.col("until_ns") - pl.col("from_ns")
    hours = steps.group_by("zone", pl.col("from_ns") // HOUR_NS * HOUR_NS, maintain_order=True).agg(
        ((pl.col("g_per_kwh") * lasted).sum() / lasted.sum()).alias("g_per_kwh"), lasted.sum().alias("lasted")
    )
    return hours.filter(pl.col("lasted") >= HOUR_NS / 2).with_columns((pl.col("from_ns") + HOUR_NS).alias("until_ns"))


# -- services on the network ------------------------------------------------------------------------------------------


_SETTLED_NS = 48 * HOUR_NS
"""After that time, an hour that a service does not know is taken as one that it never will."""
_MOST_HOURS = 400 * 24
"""Hours of a zone that are asked for at once: a year and a month."""
_LARGEST = 64 << 20  # bytes
_LB_PER_MWH = 0.45359237  # g/kWh
_DAYS = {Service.ELECTRICITY_MAPS: 10, Service.WATTTIME: 31}
"""What one question may cover, as the services state it."""
_FORM: dict[str, pl.DataType] = {"zone": pl.String(), "time": pl.String(), "g_per_kwh": pl.Float64()}


def ask_for_hours(settings: EnergySettings, since_ns: int, until_ns: int, zones: Sequence[str]) -> None:
    """Ask for the hours of zones between two times that no file has, and keep the answers.

    Nothing is asked without a service in the settings, or with settings that are `offline`. Raises InputError where a
    key is missing or refused, WhorlError where the service does not answer as it should, StoreError where the answers
    cannot be kept.
    """
    access = settings.service
    if access is None or settings.offline or settings.method is Method.MARKET:
        return
    now_ns = time.time_ns()
    ended_ns = min(until_ns, now_ns // HOUR_NS * HOUR_NS)
    hours_ns = np.arange(since_ns // HOUR_NS * HOUR_NS, ended_ns, HOUR_NS, dtype=np.int64)
    answers = _read(access)
    for zone in dict.fromkeys(canonical(name) for name in zones):
        answered = set(answers.filter(pl.col("zone") == zone)["time"])
        without = hours_ns[np.isnan(hourly(site_hours(settings), zone, hours_ns))].tolist()
        missing = [at_ns for at_ns in without if iso(at_ns) not in answered]
        if not missing:
            continue
        hours = (missing[-1] - missing[0]) // HOUR_NS + 1
        if hours > _MOST_HOURS:
            raise InputError(
                f"{access.service.meaning} would be asked for {hours // 24:,} days of {zone}: ask for a shorter time, "
                "or give a file with intensity in the settings"
            )
        grams = _ask(access, zone, missing[0], missing[-1] + HOUR_NS)
        settled = [at_ns for at_ns in missing if at_ns in grams or at_ns < now_ns - _SETTLED_NS]
        rows = pl.DataFrame([(zone, iso(at_ns), grams.get(at_ns)) for at_ns in settled], schema=_FORM, orient="row")
        answers = pl.concat([answers, rows]).sort("zone", "time")
        try:
            put(access.answers, answers.write_csv().encode())
        except OSError as error:
            raise StoreError(
                f"cannot write {access.answers}: {error.strerror}; copy the settings to a folder of yours, and name "
                "them with --settings"
            ) from error


def _read(access: ServiceAccess) -> pl.DataFrame:
    """What was answered before: columns of `_FORM`. Raises InputError where the file is not as whorl writes it."""
    if not access.answers.exists():
        return pl.DataFrame(schema=_FORM)
    try:
        answers = pl.read_csv(access.answers, schema_overrides=_FORM).select(*_FORM)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{access.answers} is not as whorl wrote it, with the columns zone, time and g_per_kwh: repair it, or move "
            "it away to ask the service again"
        ) from error
    return answers.with_columns(pl.col("zone").map_elements(canonical, pl.String))


def _ask(access: ServiceAccess, zone: str, since_ns: int, until_ns: int) -> dict[int, float]:
    """What the service knows: g/kWh by the begin of the hour. Of shorter steps, the mean of those that begin in it."""
    factor = shipped_table().get(zone)
    usual = zone if factor is None or factor.code is None else factor.code  # two letters for a country
    place = next((place for name, place in access.zones if canonical(name) == zone), usual)
    keys = [_key(variable, access) for variable in access.service.fills]
    if access.service is Service.WATTTIME:
        path, names = "/v3/historical", ("point_time", "value")
        question = {"region": place, "signal_type": str(access.signal)}
        login = _get(access, "/login", {}, {"Authorization": f"Basic {b64encode(':'.join(keys).encode()).decode()}"})
        headers = {"Authorization": f"Bearer {login.get('token')}"}
    else:
        path, names = "/carbon-intensity/past-range", ("datetime", "carbonIntensity")
        question, headers = {"zone": place}, {"auth-token": keys[0]}
    longest_ns = _DAYS[access.service] * 24 * HOUR_NS
    hours: dict[int, list[float]] = {}
    for first_ns in range(since_ns, until_ns, longest_ns):
        last_ns = min(until_ns, first_ns + longest_ns)
        answer = _get(access, path, {**question, "start": iso(first_ns), "end": iso(last_ns)}, headers)
        for at_ns, grams in _rows(access, answer, *names):
            if first_ns <= at_ns < last_ns:
                hours.setdefault(at_ns // HOUR_NS * HOUR_NS, []).append(grams)
    return {at_ns: float(f"{np.mean(grams):.6g}") for at_ns, grams in hours.items()}


def _key(variable: str, access: ServiceAccess) -> str:
    value = os.environ.get(variable, "").strip()
    if not value or not value.isascii() or not value.isprintable():
        raise InputError(
            f"{access.service.meaning} needs a key: set the environment variable {variable} to one, in plain letters, "
            f"or remove [{access.service}] from the settings"
        )
    return value


def _rows(access: ServiceAccess, answer: dict[str, Any], begin: str, grams: str) -> list[tuple[int, float]]:
    """The rows of an answer with a value: ns since 1970, and g/kWh."""
    watttime = access.service is Service.WATTTIME
    scale = _LB_PER_MWH if watttime else 1.0
    try:
        unit = answer["meta"]["units"] if watttime else None
        values = [(datetime.fromisoformat(row[begin]), row[grams]) for row in answer["data"]]
        rows = [(moment, value * scale) for moment, value in values if value is not None]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _failed(access, f"does not answer as it should: {error!r}") from error
    faults = [f"{moment} has no time zone" for moment, _ in rows if moment.tzinfo is None]
    faults += [f"{value:g} g/kWh is no intensity" for _, value in rows if not 0 <= value <= MOST_G_PER_KWH]
    faults += [f"its unit is {unit!r}, not 'lbs_co2_per_mwh'"] if watttime and unit != "lbs_co2_per_mwh" else []
    if faults:
        raise _failed(access, f"does not answer as it should: {faults[0]}")
    return [(nanoseconds(moment), value) for moment, value in rows]


def _get(access: ServiceAccess, path: str, question: dict[str, str], headers: dict[str, str]) -> dict[str, Any]:
    """The JSON object that the service answers."""
    url = f"{access.url}{path}" + (f"?{urllib.parse.urlencode(question)}" if question else "")
    request = urllib.request.Request(url, headers={"Accept": "application/json", **headers})  # noqa: S310 - see settings
    try:
        answer = fetch_url(request, timeout_s=access.timeout_s, most_bytes=_LARGEST)
    except TimeoutError:
        raise _failed(access, f"does not answer within {access.timeout_s:g} s") from None
    except (OSError, HTTPException, ValueError, TooLarge) as error:  # names that do not resolve, torn answers
        reason = error if isinstance(error, OSError) else type(error).__name__
        raise _failed(access, f"cannot be reached: {reason}") from None
    if answer.status in (401, 403):
        raise InputError(
            f"{access.service.meaning} refuses the key or this zone (HTTP {answer.status}): check "
            f"{' and '.join(access.service.fills)} and the contract with the service"
        )
    if not 200 <= answer.status < 300:
        raise _failed(access, f"answers HTTP {answer.status}")
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _failed(access, "does not answer as it should: its answer is not a JSON object")
    return document


def _failed(access: ServiceAccess, fault: str) -> WhorlError:
    host = urllib.parse.urlsplit(access.url).netloc
    return WhorlError(
        f"{access.service.meaning} ({host}) {fault}; try again later, or remove [{access.service}] from the settings "
        "to use files and the yearly table"
    )
