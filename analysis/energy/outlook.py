"""What a kWh emits now and in the hours to come, and the start of a job that can wait at which it emits least.

The grams of the hours to come are those of the site's files where these reach that far: a forecast. Else an hour is
taken to be like the same hour of the week was in the last weeks. How well that works is tried on these weeks: each
is taken out in turn, the start is chosen from the others, and what it would have saved in that week is counted. If that
does not show that waiting saves anything, the job should start now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...store.instants import date_of_ns
from ...store.vocabulary import Code
from .carbon import GridFactor, canonical, number_at, yearly_factor
from .settings import EnergySettings, Method, holding

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


def grams_per_kwh(settings: EnergySettings, cluster: str | None, at_ns: int) -> GridFactor:
    """What a kWh emits on a cluster at a time (ns UTC).

    No service is asked: of that, what it answered before counts. Raises InputError for a file of hours that cannot be
    read, or where it needs Polars and that is not installed.
    """
    if settings.method is Method.MARKET or not (settings.hours or settings.service):
        return yearly_factor(settings, cluster, at_ns)
    try:
        from .grid import rates
    except ModuleNotFoundError as error:
        raise InputError(
            f"grams by hour need the package {error.name}: install whorl with all it needs, or state a [[factor]]"
        ) from error
    row = rates(settings, at_ns, at_ns + 1, [cluster]).row(0, named=True)
    return GridFactor(**{field.name: row[field.name] for field in fields(GridFactor)})


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
    from ..statistics.ordering import quantile

    mean, spread, n = float(saved_g.mean()), float(saved_g.std(ddof=1)), len(saved_g)
    if mean <= float(quantile(1 - _SURE, n - 1)) * spread / math.sqrt(n):
        return replace(weeks, reason=NoStart.NOT_SHOWN)
    half = float(quantile(0.025, n - 1)) * spread * math.sqrt(1 + 1 / n)
    assert weeks.now_g is not None
    return replace(
        weeks, start=start_ns, g=weeks.now_g - mean, saved_g=mean, low_g=mean - half, high_g=mean + half
    )  # fmt: skip
