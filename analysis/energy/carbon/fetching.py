"""Fetches hours that no file has from the service that the settings name, and keeps them in its file.

Without a service in the settings nothing here opens a connection. What is in the file is never asked again; hours that
the service does not know stand there without a value.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ....errors import InputError, StoreError
from ....store.system.files import put
from .adapters import Adapter
from .dated import Times
from .factors import canonical, table
from .grid import Basis, grid
from .services import ask
from .settings import Method, Settings

_HOUR = 3600 * 10**9
_SETTLED = 48 * _HOUR
"""After that time, an hour that a service does not know is taken as one that it never will."""

_MOST = 400 * 24
"""Hours of a zone that are asked for at once: a year and a month."""

Kept = dict[tuple[str, int], tuple[str, str]]
"""By zone and hour: g/kWh and time as the file has them."""


def fetch(settings: Settings, since: int, until: int, clusters: Sequence[str], zone: str | None = None) -> None:
    """Ask for the hours between two times (ns) that no file has, for the zones where the clusters stood, or for one.

    Nothing is asked with settings that are `offline`.
    Raises InputError and WhorlError as `services.ask`, StoreError where the answers cannot be kept.
    """
    adapter = settings.adapter
    if adapter is None or settings.offline or settings.method is Method.MARKET:
        return
    until = min(until, time.time_ns() // _HOUR * _HOUR)
    since = since // _HOUR * _HOUR
    wanted: dict[str, list[Times]] = {}
    spans = [(since, until, zone)] if zone else [span for cluster in clusters for span in settings.zones_of(cluster)]
    for began, ended, name in spans:
        hours = np.arange(max(began // _HOUR * _HOUR, since), min(ended, until), _HOUR, dtype=np.int64)
        wanted.setdefault(canonical(name), []).append(hours)
    kept = _read(adapter.cache)
    for name, parts in wanted.items():
        missing = _missing(settings, name, np.unique(np.concatenate(parts)), kept)
        if len(missing) > _MOST:
            raise InputError(
                f"{adapter.service.meaning} would be asked for {len(missing) // 24:,} days of {name}: ask for a "
                "shorter time, or give a file with intensity in the settings"
            )
        if len(missing):
            _ask(adapter, name, missing, kept)
            if kept:
                _write(adapter.cache, kept)


def _missing(settings: Settings, zone: str, hours: Times, kept: Kept) -> Times:
    made = grid(settings)
    steps = made.of_zone(zone)
    codes = [code for code, source in enumerate(made.sources) if source.basis is Basis.HOURS]
    unknown = ~np.isin(steps.code_at(hours), codes)
    asked = np.array([(zone, int(hour)) in kept for hour in hours], bool)
    missing: Times = hours[unknown & ~asked]
    return missing


def _ask(adapter: Adapter, zone: str, missing: Times, kept: Kept) -> None:
    """Ask for each run of missing hours, and put the answers and the hours without one into `kept`."""
    breaks = np.flatnonzero(np.diff(missing) > 24 * _HOUR) + 1  # a shorter gap is asked for with the rest
    named = dict(adapter.zones)
    theirs = next((named[one] for one in named if canonical(one) == zone), None)
    for run in np.split(missing, breaks):
        began, ended = int(run[0]), int(run[-1]) + _HOUR
        there = theirs or _theirs(zone)
        rows = [row for row in ask(adapter, there, _when(began), _when(ended)) if began <= row[0] < ended]
        for at, grams in rows:
            kept[zone, at] = (f"{grams:.6g}", _stamp(at))
        for hour in run.tolist():
            if (zone, hour) not in kept and hour < time.time_ns() - _SETTLED:
                kept[zone, hour] = ("", _stamp(hour))


def _theirs(zone: str) -> str:
    """A zone as services spell it: two letters for a country."""
    known = table().get(zone)
    return known.code if known is not None and known.code else zone


def _when(at: int) -> datetime:
    return datetime.fromtimestamp(at // 10**9, UTC)


def _stamp(at: int) -> str:
    return _when(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(path: Path) -> Kept:
    """What the file has. Raises InputError where it is not as whorl writes it."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [(row["zone"], row["time"], row["g_per_kwh"]) for row in csv.DictReader(lines)]
        return {(canonical(zone), _at(at)): (grams, at) for zone, at, grams in rows}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"{path} is not as whorl wrote it, with the columns zone, time and g_per_kwh: repair it, or move it away "
            "to ask the service again"
        ) from error


def _at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 10**9


def _lines(kept: Kept) -> Iterable[tuple[str, str, str]]:
    yield "zone", "time", "g_per_kwh"
    for (zone, _), (grams, stamp) in sorted(kept.items()):
        yield zone, stamp, grams


def _write(path: Path, kept: Kept) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_lines(kept))
    try:
        put(path, text.getvalue().encode())
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; copy the settings to a folder of yours, and name them with "
            "--settings"
        ) from error
