"""What a kWh emits somewhere at some time, where the figure comes from, and when a job that can wait should start.

Nodes use it too, without Polars.

The shipped table has Ember's values of a year, from the data set Yearly Electricity Data (CC BY 4.0): emissions over
the life cycle, of what is generated in the zone; imports are not in them. They are those that the package co2.js 0.16.8
carries, with the year of each. Left out are three places whose value is 0 or a rounded 1000, as their few GWh are given
to 0.01 TWh.

The grams of the hours to come are those of the site's files where these reach that far: a forecast. Else an hour is
taken to be like the same hour of the week was in the last weeks. How well that works is tried on these weeks: each
is taken out in turn, the start is chosen from the others, and what it would have saved in that week is counted. If that
does not show that waiting saves anything, the job should start now.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...store.instants import date_of_ns
from ...store.vocabulary import Code
from .settings import EnergySettings, Method, holding

TABLE = files(__package__) / "factors.csv"
SOURCE = "Ember, Yearly Electricity Data, edition of 2025"


class FactorBasis(Code):
    """What kind of figure the grams of a kWh are."""

    HOURS = "hours", "hour by hour, from a file"
    STATED = "stated", "as the settings state it"
    TABLE = "table", "the mean of a year, from the table that comes with whorl"


class NoFigure(Code):
    """Why there are no grams or no money; the meaning says what to give."""

    NO_ENERGY = "no energy", "there is no figure of the energy"
    NO_ZONE = "no zone", 'the settings name no zone for this cluster and time: write zone = "DE" in energy.toml'
    NO_FACTOR = (
        "no factor",
        "nothing says what a kWh of this zone emits: give a file with intensity, or a [[factor]], in energy.toml",
    )
    NO_CONTRACT = (
        "no contract",
        'no [[factor]] with method = "market" holds on this cluster at this time: give one in energy.toml',
    )
    NO_PRICE = "no price", "no price holds on this cluster at this time: write price = 0.20 in energy.toml"


@dataclass(frozen=True)
class ZoneFactor:
    """The grams of a kWh of a zone in a year."""

    zone: str
    """Three letters of ISO 3166-1, EU or WORLD."""
    code: str | None
    """Two letters of ISO 3166-1."""
    name: str
    g_per_kwh: float
    year: int


@dataclass(frozen=True)
class GridFactor:
    """What a kWh emits at a time, g CO2e without PUE; None with a `reason`, a code of `NoFigure`."""

    g_per_kwh: float | None
    method: Method
    zone: str | None = None
    basis: FactorBasis | None = None
    source: str | None = None
    year: int | None = None
    """None of hours, which have their own."""
    pue: float | None = None
    """None where the site does not state it: the grams are then without the building."""
    reason: NoFigure | None = None


@cache
def shipped_table() -> dict[str, ZoneFactor]:
    """The shipped factors by zone."""
    with TABLE.open(encoding="utf-8") as lines:
        return {
            row["zone"]: ZoneFactor(
                row["zone"], row["code"] or None, row["name"], float(row["g_per_kwh"]), int(row["year"])
            )
            for row in csv.DictReader(lines)
        }


def canonical(zone: str) -> str:
    """One spelling of a zone: DE, deu and Germany are DEU. A zone that the table lacks is itself, in capitals: of
    US-CAL-CISO the table knows nothing, not the factor of the USA."""
    spelling = zone.strip().casefold()
    spelling = "gb" if spelling == "uk" else spelling
    for factor in shipped_table().values():
        if spelling in (factor.zone.casefold(), (factor.code or "").casefold(), factor.name.casefold()):
            return factor.zone
    return zone.strip().upper()


def yearly_factor(settings: EnergySettings, cluster: str | None, at_ns: int) -> GridFactor:
    """What holds at a time where no file has the hour: what the site states, else the shipped table."""
    pue = number_at(settings, "pue", cluster, at_ns)
    method = settings.method
    place = None if method is Method.MARKET else holding(settings.zones, cluster, at_ns)
    zone = None if place is None else canonical(str(place.value))
    if method is Method.LOCATION and zone is None:
        return GridFactor(None, method, pue=pue, reason=NoFigure.NO_ZONE)
    factors = [
        factor
        for factor in settings.factors
        if factor.method is method and zone == (None if zone is None else canonical(factor.zone or ""))
    ]
    stated = holding(factors, cluster, at_ns)
    if stated is not None:
        zone = zone or (None if stated.zone is None else canonical(stated.zone))
        return GridFactor(float(stated.value), method, zone, FactorBasis.STATED, stated.source, int(stated.year), pue)
    mean = shipped_table().get(zone or "")
    if mean is not None:
        return GridFactor(mean.g_per_kwh, method, zone, FactorBasis.TABLE, SOURCE, mean.year, pue)
    reason = NoFigure.NO_FACTOR if method is Method.LOCATION else NoFigure.NO_CONTRACT
    return GridFactor(None, method, zone, pue=pue, reason=reason)


def number_at(settings: EnergySettings, key: str, cluster: str | None, at_ns: int) -> float | None:
    """The `pue`, `price` or `host_w` that holds on a cluster at a time; None where none does."""
    dated = holding(getattr(settings, key), cluster, at_ns)
    return None if dated is None else float(dated.value)


def changes(settings: EnergySettings, since_ns: int, until_ns: int) -> list[int]:
    """`since_ns`, and the times from there to `until_ns` at which a setting begins or ends to hold, in order."""
    ends = {end for value in settings.dated for end in (value.began_ns, value.ended_ns)}
    return sorted({since_ns, *(end for end in ends if since_ns < end < until_ns)})


def zones_between(settings: EnergySettings, since_ns: int, until_ns: int, clusters: Sequence[str | None]) -> list[str]:
    """The zones in which these clusters stood at some time between two times."""
    starts = {since_ns, *(place.began_ns for place in settings.zones if since_ns < place.began_ns < until_ns)}
    starts |= {place.ended_ns for place in settings.zones if since_ns < place.ended_ns < until_ns}
    places = (holding(settings.zones, cluster, at_ns) for cluster in clusters for at_ns in sorted(starts))
    return list(dict.fromkeys(str(place.value) for place in places if place is not None))


# -- the hours to come ------------------------------------------------------------------------------------------------


_STEP_NS = 15 * 60 * 10**9
"""Steps of the search: zones that are no whole hours from UTC begin their hours at a quarter."""
_WEEK = 7 * 24 * 4
_WEEKS = 8
"""The profile is of so many weeks, if the files have them."""
_FEWEST = 3
"""A profile of fewer weeks is not tried: with one week taken out, one alone would remain."""
_SURE = 0.95
"""Where all starts are equal, whorl says so in that share of cases, and names a later start by chance in the rest."""
_J_PER_KWH = 3.6e6

Floats = NDArray[np.float64]


class HoursFrom(Code):
    """Where the grams of the hours to come are from."""

    FORECAST = "forecast", "the hours to come, from a file"
    WEEKS = "weeks", "the same hours of the week, in the last weeks of a file"


class NoStart(Code):
    """Why no start is known to be greener than one now."""

    NO_ZONE = "no zone", 'the settings name no zone: write zone = "DE" in energy.toml'
    MARKET = "market", "grams of the contract (method market) do not depend on the hour"
    NO_HOURS = (
        "no hours",
        "no file of intensities has the hours to come, or three whole weeks before them: every start is equal",
    )
    NOT_SHOWN = "not shown", "the past weeks do not show that any later start emits less: start now"


@dataclass(frozen=True)
class Greenest:
    """The greenest start (ns UTC) of a job, and what it saves against a start now.

    The grams are of the whole job with PUE. Of a forecast, `saved_g` is what it says. Of past weeks, it is the mean of
    what the start would have saved in each of these `weeks`, chosen from the others; `low_g` to `high_g` is the 95 %
    prediction interval for one more week (Student's t). Without a figure, `reason` says why and the figures are None;
    if the past weeks do not show a saving, `start` is now. The energy is the same at every start.
    """

    start: int | None
    g: float | None
    now_g: float | None
    saved_g: float | None = None
    low_g: float | None = None
    high_g: float | None = None
    weeks: int | None = None
    outlook: HoursFrom | None = None
    zone: str | None = None
    reason: NoStart | None = None

    @property
    def start_time(self) -> datetime | None:
        """The start, in UTC."""
        return None if self.start is None else date_of_ns(self.start).replace(tzinfo=UTC)


def grams_per_kwh(settings: EnergySettings, cluster: str | None, at_ns: int, *, ahead_s: float = 0.0) -> GridFactor:
    """What a kWh emits on a cluster at a time (UTC), or on average over the `ahead_s` seconds from then on.

    A mean has the zone, source and PUE of its begin. No service is asked: of that, what it answered before counts.
    Raises InputError for a file of hours that cannot be read, or where it needs Polars and that is not installed.
    """
    until_ns = at_ns + max(1, round(ahead_s * 1e9))
    if settings.method is Method.LOCATION and (settings.hours or settings.service):
        try:
            from .grid import rates
        except ModuleNotFoundError as error:
            raise InputError(
                f"grams by hour need the package {error.name}: install whorl with all it needs, or state a [[factor]]"
            ) from error
        steps = rates(settings, at_ns, until_ns, [cluster])
        names = [field.name for field in fields(GridFactor)]
        rows = [row for row in steps.select("cluster", "from_ns", *names).to_dicts() if row["cluster"] == cluster]
        starts = [row["from_ns"] for row in rows]
        factors = [GridFactor(**{name: row[name] for name in names}) for row in rows]
    else:
        starts = changes(settings, at_ns, until_ns)
        factors = [yearly_factor(settings, cluster, start_ns) for start_ns in starts]
    values = [factor.g_per_kwh for factor in factors if factor.g_per_kwh is not None]
    if len(values) < len(factors):
        return next(factor for factor in factors if factor.g_per_kwh is None)
    return replace(factors[0], g_per_kwh=float(np.average(values, weights=np.diff([*starts, until_ns]))))


@dataclass(frozen=True)
class WaitingJob:
    """A job of `duration_s` at `watts` that may start from `now_ns` on and must end by `deadline_ns` (UTC)."""

    duration_s: float
    watts: float
    now_ns: int
    deadline_ns: int
    cluster: str = ""
    zone: str | None = None
    """None: that of the cluster."""


def greenest(settings: EnergySettings, job: WaitingJob) -> Greenest:
    """The greenest start of a job. If the settings name a service, it is asked for the last weeks.

    Raises InputError where the job does not fit, or a file of hours cannot be read; and what `services.ask_for_hours`
    raises.
    """
    if not (job.duration_s > 0 and job.watts >= 0):
        raise InputError(
            f"a job must take more than 0 s and at least 0 W, not {job.duration_s:g} s and {job.watts:g} W"
        )
    length_ns, now_ns = round(job.duration_s * 1e9), job.now_ns
    if now_ns + length_ns > job.deadline_ns:
        left_h = max(0.0, (job.deadline_ns - now_ns) / 3600e9)
        raise InputError(
            f"the job takes {job.duration_s / 3600:.3g} h and the deadline is {left_h:.3g} h away: give a later "
            "deadline"
        )
    if settings.method is Method.MARKET:
        return Greenest(None, None, None, reason=NoStart.MARKET)
    place = holding(settings.zones, job.cluster, now_ns)
    if job.zone is None and place is None:
        return Greenest(None, None, None, reason=NoStart.NO_ZONE)
    zone = canonical(job.zone or str(place.value if place else ""))
    from .grid import HOUR_NS, ask_for_hours, hourly, site_hours

    begin_ns = now_ns // HOUR_NS * HOUR_NS
    since_ns = begin_ns - _WEEKS * _WEEK * _STEP_NS
    ask_for_hours(settings, since_ns, now_ns, [zone])
    grams = hourly(site_hours(settings), zone, np.arange(since_ns, job.deadline_ns, _STEP_NS, dtype=np.int64))
    past, ahead = grams[: _WEEKS * _WEEK].reshape(_WEEKS, _WEEK), grams[_WEEKS * _WEEK :]
    past = past[~np.isnan(past).any(axis=1)]
    first_ns, latest_ns, steps = now_ns - begin_ns, job.deadline_ns - length_ns - begin_ns, len(ahead)
    holes = np.isnan(ahead)
    if holes.any() and len(past) < _FEWEST:
        return Greenest(None, None, None, zone=zone, reason=NoStart.NO_HOURS)

    def best(values: Floats) -> int:
        """The earliest of the best starts, ns since the first step.

        A sum is linear between the starts at which the job's begin or end meets a step: the least is at one of these.
        """
        edges_ns = np.arange(steps + 1, dtype=np.int64) * _STEP_NS
        starts_ns = np.unique(np.concatenate([edges_ns, edges_ns - length_ns, [first_ns, latest_ns]]))
        starts_ns = starts_ns[(starts_ns >= first_ns) & (starts_ns <= latest_ns)]
        return int(starts_ns[np.argmin(np.round(_sums(values, starts_ns, length_ns), 6))])

    values = np.where(holes, np.resize(past.mean(axis=0), steps), ahead) if holes.any() else ahead
    pue = number_at(settings, "pue", job.cluster, now_ns)
    to_g = job.watts * (1.0 if pue is None else pue) / _J_PER_KWH
    start_ns = best(values)
    now_g, g = (_sums(values, np.array([first_ns, start_ns]), length_ns) * to_g).tolist()
    if not holes.any():
        return Greenest(begin_ns + start_ns, g, now_g, now_g - g, outlook=HoursFrom.FORECAST, zone=zone)
    weeks = Greenest(now_ns, now_g, now_g, 0.0, weeks=len(past), outlook=HoursFrom.WEEKS, zone=zone)
    if start_ns == first_ns:
        return weeks
    saved_g = []  # for each past week, what the start that the other weeks choose would have saved in it
    for number, week in enumerate(past):
        chosen_ns = best(np.resize(np.delete(past, number, axis=0).mean(axis=0), steps))
        now, later = _sums(np.resize(week, steps), np.array([first_ns, chosen_ns]), length_ns)
        saved_g.append((now - later) * to_g)
    return _of_weeks(weeks, begin_ns + start_ns, np.array(saved_g))


def _sums(values: Floats, starts_ns: NDArray[np.int64], length_ns: int) -> Floats:
    """The sum of g/kWh x s from each start (ns since the first step) over a time; `values` has a step each."""
    edges_ns = np.arange(len(values) + 1, dtype=np.int64) * _STEP_NS
    until = np.append(0.0, np.cumsum(values * (_STEP_NS / 1e9)))
    sums: Floats = np.interp(starts_ns + length_ns, edges_ns, until) - np.interp(starts_ns, edges_ns, until)
    return sums


def _of_weeks(weeks: Greenest, start_ns: int, saved_g: Floats) -> Greenest:
    """The answer for a later start, which would have saved so much in each of the past weeks."""
    from ..statistics.laws import quantile

    mean, spread, n = float(saved_g.mean()), float(saved_g.std(ddof=1)), len(saved_g)
    if mean <= float(quantile(1 - _SURE, n - 1)) * spread / math.sqrt(n):
        return replace(weeks, reason=NoStart.NOT_SHOWN)
    half = float(quantile(0.025, n - 1)) * spread * math.sqrt(1 + 1 / n)
    assert weeks.now_g is not None
    return replace(
        weeks, start=start_ns, g=weeks.now_g - mean, saved_g=mean, low_g=mean - half, high_g=mean + half
    )  # fmt: skip
