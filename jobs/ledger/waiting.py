"""When a job that can wait should start, so that its electricity emits least."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError, WhorlError
from ...store.instants import nanoseconds

if TYPE_CHECKING:
    from ...analysis.energy.outlook import Greenest


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
