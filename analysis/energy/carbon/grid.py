"""What the settings come to at a time: grams and money of a kWh, PUE, and where each figure comes from.

Grams of the location: the hours of a file first; where they have a hole, a factor that the site states; then the
shipped table. Grams of the market: only what the site states of its contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ....store.vocabulary import Code
from .dated import EMPTY, Steps, Times, steps_of
from .factors import SOURCE, canonical, shipped
from .hours import Hours, read_hours
from .settings import Factor, Method, Settings


class Basis(Code):
    """What kind of figure the grams of a kWh are."""

    HOURS = "hours", "hour by hour, from a file"
    STATED = "stated", "as the settings state it"
    TABLE = "table", "the mean of a year, from the table that comes with whorl"


@dataclass(frozen=True)
class Source:
    """Where grams come from. `year` is NULL for hours, which have their own."""

    zone: str | None
    basis: Basis
    method: Method
    source: str
    year: int | None


class Grid:
    """The settings as steps over time. Reads the files of hours once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sources: list[Source] = []
        self._hours = _read(settings)
        self._zones: dict[str, Steps] = {}
        self._carbon: dict[str, Steps] = {}

    def carbon(self, cluster: str) -> Steps:
        """Grams of a kWh at the meter of a cluster, g CO2e; the code is a position in `sources`."""
        if cluster not in self._carbon:
            self._carbon[cluster] = self._find(cluster)
        return self._carbon[cluster]

    def of_zone(self, zone: str, cluster: str = "") -> Steps:
        """Grams of a kWh in a zone, by location."""
        name = canonical(zone)
        key = f"{name}@{cluster}"
        if key not in self._zones:
            steps = EMPTY
            for hours, source in self._hours.get(name, []):
                code = self._code(Source(name, Basis.HOURS, Method.LOCATION, source, None))
                steps = steps.or_else(Steps.of(hours.began, hours.ended, hours.g_per_kwh, code))
            steps = steps.or_else(self._stated(cluster, Method.LOCATION, name))
            known = shipped(name)
            if known is not None:
                code = self._code(Source(name, Basis.TABLE, Method.LOCATION, SOURCE, known.year))
                steps = steps.or_else(Steps.constant(known.g_per_kwh, code))
            self._zones[key] = steps
        return self._zones[key]

    def hours_of(self, zone: str) -> list[Hours]:
        """What the files say of a zone, hour by hour."""
        return [hours for hours, _ in self._hours.get(canonical(zone), [])]

    def pue(self, cluster: str) -> Steps:
        """PUE of a cluster; NaN where it is not given."""
        return steps_of(self.settings.pue, cluster)

    def price(self, cluster: str) -> Steps:
        """Price of a kWh at the meter of a cluster; NaN where it is not given."""
        return steps_of(self.settings.price, cluster)

    def zone_at(self, cluster: str, times: Times) -> list[str | None]:
        """The zone of a cluster at each time."""
        spans = self.settings.zones_of(cluster)
        return [next((zone for began, ended, zone in spans if began <= t < ended), None) for t in times.tolist()]

    def _find(self, cluster: str) -> Steps:
        if self.settings.method is Method.MARKET:
            return self._stated(cluster, Method.MARKET, None)
        found = EMPTY
        for began, ended, zone in self.settings.zones_of(cluster):
            steps = self.of_zone(zone, cluster)
            edges = np.array([began, ended], np.int64)
            inside = np.union1d(edges, steps.starts[(steps.starts > began) & (steps.starts < ended)])
            here = inside[inside < ended]
            found = _placed(found, Steps(here, steps.at(here), steps.code_at(here)), ended)
        return found

    def _stated(self, cluster: str, method: Method, zone: str | None) -> Steps:
        """Factors that the settings state; what names the cluster comes first."""
        mine = [one for one in self.settings.factors if one.method is method and one.cluster in (None, cluster)]
        if method is Method.LOCATION:
            mine = [one for one in mine if one.zone is not None and canonical(one.zone) == zone]
        steps = EMPTY
        for one in sorted(mine, key=lambda factor: factor.cluster is None):
            steps = steps.or_else(self._steps(one, method))
        return steps

    def _steps(self, one: Factor, method: Method) -> Steps:
        zone = canonical(one.zone) if one.zone else None
        code = self._code(Source(zone, Basis.STATED, method, one.source, one.year))
        return Steps.of(
            np.array([one.began], np.int64), np.array([one.ended], np.int64), np.array([one.g_per_kwh]), code
        )

    def _code(self, source: Source) -> int:
        if source not in self.sources:
            self.sources.append(source)
        return self.sources.index(source)


def _placed(found: Steps, more: Steps, ended: int) -> Steps:
    """`found` with `more` from its first time until `ended`: zones of a cluster do not overlap."""
    before, after = found.starts < more.starts[0], found.starts > ended
    at_end = np.array([ended], np.int64)
    return Steps(
        np.concatenate([found.starts[before], more.starts, at_end, found.starts[after]]),
        np.concatenate([found.values[before], more.values, found.at(at_end), found.values[after]]),
        np.concatenate([found.codes[before], more.codes, found.code_at(at_end), found.codes[after]]),
    )


def _read(settings: Settings) -> dict[str, list[tuple[Hours, str]]]:
    """By zone, the hours of each file and the name of their source. Files that come first win."""
    found: dict[str, list[tuple[Hours, str]]] = {}
    zones = {str(one.value) for one in settings.zones}
    only = zones.pop() if len(zones) == 1 else None
    for file in settings.hours:
        zone = file.time_zone or settings.time_zone
        for hours in read_hours(file.path, zone=file.zone, time_zone=zone, column=file.column, only=only):
            found.setdefault(hours.zone, []).append((hours, file.source or file.path.name))
    adapter = settings.adapter
    if adapter is not None and adapter.cache.is_file():
        for hours in read_hours(adapter.cache, zone=None, time_zone="UTC"):
            found.setdefault(hours.zone, []).append((hours, adapter.source))
    return found


@lru_cache(maxsize=8)
def _grid(settings: Settings, _files: tuple[tuple[Path, int, int], ...]) -> Grid:
    return Grid(settings)


def grid(settings: Settings) -> Grid:
    """The grid of these settings; made again when a file of hours has changed. Raises InputError."""
    paths = [*(file.path for file in settings.hours), *([settings.adapter.cache] if settings.adapter else [])]
    stats = [(path, path.stat()) for path in paths if path.is_file()]
    return _grid(settings, tuple((path, one.st_mtime_ns, one.st_size) for path, one in stats))
