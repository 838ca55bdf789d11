"""What lies ahead: what a kWh emits, when a job that can wait should start, what a workload would take.

These need whorl with all its packages, which are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, WhorlError
from ...store.instants import nanoseconds
from ...store.names import this_cluster

if TYPE_CHECKING:
    from ...analysis.energy.carbon.greenest import Greenest


def _analysis(module: str) -> Any:
    """A module of the analysis of energy. Raises WhorlError where a package that it needs is missing."""
    try:
        return import_module(f"...analysis.energy.{module}", __package__)
    except ModuleNotFoundError as error:
        raise WhorlError(f"this needs the package {error.name}: install whorl with all it needs") from error


def emissions(
    settings: str | Path | None, store: str | Path | None, cluster: str | None
) -> Callable[[int], float | None]:
    """What a kWh that a GPU uses emits at a time (ns since 1970), g CO2e with the site's PUE; None where nobody knows.

    By the settings in a file, else by those of the store. Raises InputError where they cannot be read, WhorlError
    where a package is missing.
    """
    grid = _analysis("carbon.grid").grid(_analysis("carbon.settings").find_settings(Path(store or "."), settings))
    site = cluster or this_cluster()
    grams, pue = grid.carbon(site), grid.pue(site)

    def at(at_ns: int) -> float | None:
        import numpy as np

        instant = np.array([at_ns])
        factor, overhead = float(grams.at(instant)[0]), float(pue.at(instant)[0])
        return None if np.isnan(factor) else factor * (1.0 if np.isnan(overhead) else overhead)

    return at


def greenest_start(
    settings: str | Path,
    *,
    hours: float,
    watts: float,
    deadline: datetime,
    now: datetime | None = None,
    cluster: str = "",
    zone: str | None = None,
) -> Greenest:
    """The greenest start of a job of so many `hours` at so many `watts` that must end by `deadline`.

    `settings` is an `energy.toml` with the zone and a file of hours (docs/carbon.md). `deadline` and `now` (if not
    given: the time now) need a time zone. The answer has `start_time` (None where nothing is known of the zone),
    `saved_g` with its interval, and `reason`. Raises InputError where the job does not fit or a file cannot be used,
    WhorlError where a service that the settings name does not answer, or a package for analysis is missing.
    """
    greenest, read = _analysis("carbon.greenest"), _analysis("carbon.settings")
    start: Greenest = greenest.greenest(
        read.read_settings(Path(settings)),
        duration_s=hours * 3600,
        watts=watts,
        now=_ns(now or datetime.now(UTC), "now"),
        deadline=_ns(deadline, "deadline"),
        cluster=cluster,
        zone=zone,
    )
    return start


def _ns(when: datetime, name: str) -> int:
    if when.tzinfo is None:
        raise InputError(f"{name} has no time zone: write datetime(..., tzinfo=UTC), or call .astimezone() of it")
    return nanoseconds(when)
