"""The start of a job that can wait at which it emits least, before a deadline.

The grams of the hours to come are those of the site's files where these reach that far: a forecast. Else an hour is
taken to be like the same hour of the week was in the last weeks. How well that works is tried on these weeks: each
is taken out in turn, the start is chosen from the others, and what it would have saved in that week is counted. If that
does not show that waiting saves anything, the job should start now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from ....errors import InputError
from ....store.instants import date_of_ns
from ....store.vocabulary import Code
from ...statistics.student import quantile
from .dated import EMPTY, Floats, Steps, Times
from .factors import canonical
from .fetching import fetch
from .grid import Grid, grid
from .settings import Method, Settings

_HOUR, _SECOND = 3600 * 10**9, 10**9
_WEEK = 168 * _HOUR
_WEEKS = 8
"""The profile is of so many weeks, if the files have them."""
_FEWEST = 3
"""A profile of fewer weeks is not tried: with one week taken out, one alone would remain."""
_SURE = 0.95
"""Where all starts are equal, whorl says so in that share of cases, and names a later start by chance in the rest."""
_PARTS = 12  # of an hour, when a step is shorter
_J_PER_KWH = 3.6e6


class Outlook(Code):
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
    outlook: Outlook | None = None
    zone: str | None = None
    reason: NoStart | None = None

    @property
    def start_time(self) -> datetime | None:
        """The start, in UTC."""
        return None if self.start is None else date_of_ns(self.start).replace(tzinfo=UTC)


def greenest(
    settings: Settings,
    *,
    duration_s: float,
    watts: float,
    now: int,
    deadline: int,
    cluster: str = "",
    zone: str | None = None,
) -> Greenest:
    """The greenest start of a job of `duration_s` at `watts` that must end by `deadline` (ns UTC, as `now`).

    The zone is that of the cluster, if none is named. If the settings name a service, it is asked for the last weeks.
    Raises InputError where the job does not fit, or a file of hours cannot be read; and what `fetching.fetch` raises.
    """
    if not (duration_s > 0 and watts >= 0):
        raise InputError(f"a job must take more than 0 s and at least 0 W, not {duration_s:g} s and {watts:g} W")
    length = round(duration_s * _SECOND)
    if now + length > deadline:
        left = max(0.0, (deadline - now) / _HOUR)
        raise InputError(
            f"the job takes {duration_s / 3600:.3g} h and the deadline is {left:.3g} h away: give a later deadline"
        )
    if settings.method is Method.MARKET:
        return Greenest(None, None, None, reason=NoStart.MARKET)
    fetch(settings, now - _WEEKS * _WEEK, now, [cluster], zone)
    made = grid(settings)
    where = canonical(zone) if zone else made.zone_at(cluster, np.array([now]))[0]
    if where is None:
        return Greenest(None, None, None, reason=NoStart.NO_ZONE)
    where = canonical(where)
    known = _known(made, where)
    past = _weeks_before(known, now)
    ahead, outlook = known, Outlook.FORECAST
    if _has_hole(ahead, now, deadline):
        if len(past) < _FEWEST:
            return Greenest(None, None, None, zone=where, reason=NoStart.NO_HOURS)
        ahead, outlook = known.or_else(_repeated(past.mean(axis=0), now, deadline)), Outlook.WEEKS
    pue = float(made.pue(cluster).at(np.array([now]))[0])
    to_g = watts * (1.0 if np.isnan(pue) else pue) / _J_PER_KWH
    start, g, now_g = _best(ahead, now, deadline, length)
    g, now_g = g * to_g, now_g * to_g
    if outlook is Outlook.FORECAST:
        return Greenest(start, g, now_g, now_g - g, outlook=outlook, zone=where)
    if start == now:
        return Greenest(now, now_g, now_g, 0.0, weeks=len(past), outlook=outlook, zone=where)
    saved = _tried(past, now, deadline, length) * to_g
    mean, spread, n = float(saved.mean()), float(saved.std(ddof=1)), len(saved)
    of_mean = float(quantile(1 - _SURE, n - 1)) * spread / math.sqrt(n)
    if mean <= of_mean:
        return Greenest(now, now_g, now_g, 0.0, None, None, n, outlook, where, NoStart.NOT_SHOWN)
    of_week = float(quantile(0.025, n - 1)) * spread * math.sqrt(1 + 1 / n)
    return Greenest(start, now_g - mean, now_g, mean, mean - of_week, mean + of_week, n, outlook, where)


def _known(made: Grid, zone: str) -> Steps:
    steps = EMPTY
    for one in made.hours_of(zone):
        steps = steps.or_else(Steps.of(one.began, one.ended, one.g_per_kwh, 0))
    return steps


def _has_hole(steps: Steps, since: int, until: int) -> bool:
    inside = steps.starts[(steps.starts > since) & (steps.starts < until)]
    return bool(np.isnan(steps.at(np.append(inside, since))).any())


def _weeks_before(known: Steps, now: int) -> Floats:
    """The mean of each hour of the whole weeks before `now`, the week that ends last first: weeks x 168, g/kWh."""
    first = now // _HOUR * _HOUR
    parts = (np.arange(_PARTS) * 2 + 1) * _HOUR // (2 * _PARTS)
    found = []
    for week in range(1, _WEEKS + 1):
        hours = first - week * _WEEK + np.arange(168) * _HOUR
        values = known.at((hours[:, None] + parts).ravel()).reshape(168, _PARTS).mean(axis=1)
        if not np.isnan(values).any():
            found.append(values)
    return np.array(found).reshape(len(found), 168)


def _repeated(week: Floats, now: int, until: int) -> Steps:
    """A week of hours that begins with the hour of `now`, over and over."""
    first = now // _HOUR * _HOUR
    began: Times = np.arange(first, until, _HOUR, dtype=np.int64)
    return Steps.of(began, began + _HOUR, week[np.arange(len(began)) % 168], 0)


def _best(steps: Steps, now: int, deadline: int, length: int) -> tuple[int, float, float]:
    """The best start, and the sums of g/kWh x s from it and from now on.

    The sum is linear between the starts at which the job's begin or end meets a step: the least is at one of these.
    """
    edges = np.unique(np.append(steps.starts[(steps.starts > now) & (steps.starts < deadline)], [now, deadline]))
    sums = np.append(0.0, np.cumsum(steps.at(edges[:-1]) * (np.diff(edges) / _SECOND)))
    starts = np.unique(np.concatenate([edges, edges - length]))
    starts = starts[(starts >= now) & (starts <= deadline - length)]
    relative = edges - now  # small numbers, exact as floats
    total = np.interp(starts + length - now, relative, sums) - np.interp(starts - now, relative, sums)
    best = int(np.argmin(np.round(total, 6)))  # the earliest of equal ones
    return int(starts[best]), float(total[best]), float(total[0])


def _tried(past: Floats, now: int, deadline: int, length: int) -> Floats:
    """For each past week, what the start that the other weeks choose would have saved in it."""
    saved = []
    for out in range(len(past)):
        others = np.delete(past, out, axis=0).mean(axis=0)
        start = _best(_repeated(others, now, deadline), now, deadline, length)[0]
        real = _repeated(past[out], now, deadline)
        here = _best(real, start, start + length, length)[1]
        saved.append(_best(real, now, now + length, length)[1] - here)
    return np.array(saved)
