"""What lies ahead: what a kWh emits, when a job that can wait should start, what a workload would take.

Most of it needs whorl with all its packages, which are imported when they are asked for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, WhorlError
from ...store.instants import nanoseconds
from ...store.names import this_cluster

if TYPE_CHECKING:
    from ...analysis.energy.options import Quote
    from ...analysis.energy.outlook import Greenest

_HOUR_NS = 3_600_000_000_000


def emissions(
    settings: str | Path | None, store: str | Path | None, cluster: str | None
) -> Callable[[int], float | None]:
    """What a kWh that a GPU uses emits at a time (ns since 1970), g CO2e with the site's PUE; None where nobody knows.

    By the settings in a file, else by those of the store. Raises InputError where they cannot be read.
    """
    from ...analysis.energy.outlook import grams_per_kwh
    from ...analysis.energy.settings import find_settings

    site, rules = cluster or this_cluster(), find_settings(Path(store or "."), settings)

    @functools.lru_cache(maxsize=1)
    def of_hour(hour: int) -> float | None:
        factor = grams_per_kwh(rules, site, hour * _HOUR_NS)
        return None if factor.g_per_kwh is None else factor.g_per_kwh * (factor.pue or 1.0)

    of_hour(time.time_ns() // _HOUR_NS)  # what cannot be read shows here
    return lambda at_ns: of_hour(at_ns // _HOUR_NS)


def quotes(store: str | Path | None, settings: str | Path | None, workload: str, **options: Any) -> list[Quote]:
    """What a workload takes before it has run, by choice; see `Ledger.quotes`."""
    if store is None:
        raise InputError("a quote is from the runs in a store: ledger.open(store=...), or quote(..., store=...)")
    try:
        from ...analysis.energy.quote import FutureJob, quote_workloads
        from ...store import Store
    except ModuleNotFoundError as error:
        raise WhorlError(f"a quote needs the package {error.name}: install whorl with all it needs") from error
    return quote_workloads(Store.open(store), FutureJob.choices(workload, **options), settings=settings)


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

    `settings` is an `energy.toml` with the zone and a file of hours (docs/energy.md). `deadline` and `now` (if not
    given: the time now) need a time zone. The answer has `start_time` (None where nothing is known of the zone),
    `saved_g` with its interval, and `reason`. Raises InputError where the job does not fit or a file cannot be used,
    WhorlError where a service that the settings name does not answer, or a package for analysis is missing.
    """
    from ...analysis.energy.outlook import WaitingJob, greenest
    from ...analysis.energy.settings import read_settings

    began_ns, deadline_ns = _ns(now or datetime.now(UTC), "now"), _ns(deadline, "deadline")
    job = WaitingJob(hours * 3600, watts, began_ns, deadline_ns, cluster, zone)
    try:
        return greenest(read_settings(Path(settings)), job)
    except ModuleNotFoundError as error:
        raise WhorlError(
            f"the greenest start needs the package {error.name}: install whorl with all it needs"
        ) from error


def _ns(moment: datetime, name: str) -> int:
    if moment.tzinfo is None:
        raise InputError(f"{name} has no time zone: write datetime(..., tzinfo=UTC), or call .astimezone() of it")
    return nanoseconds(moment)
