"""How energy is said everywhere: units, intervals, what a row is of, and why there is no figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from ..analysis.energy.answers import By
from ..analysis.energy.attribute import JobReason, Kind
from ..analysis.energy.carbon import TABLE, NoFigure
from ..analysis.energy.idle import IdleSource
from ..analysis.energy.series import Reason
from .table import MISSING, many, number

ENERGIES = (("kWh", 3.6e6), ("Wh", 3.6e3), ("J", 1.0))
"""Units of energy, as `unit_of` takes them."""
TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
"""Units of time."""
MASSES = (("t", 1e6), ("kg", 1e3), ("g", 1.0))
"""Units of CO2e."""
_MOST_AS = 0.1
"""The largest energy of a column has at least this much of its unit."""
_WIDE = 0.1
"""An idle share that is known so well needs no interval."""

REASONS: Mapping[str, str] = {reason.value: reason.meaning for reason in (*Reason, *JobReason)}
"""What the codes of `reason` mean."""

Row = Mapping[str, Any]


def lacking(code: str, zones: Sequence[str] = ()) -> str:
    """What the settings lack, in words; `zones` are those without a factor."""
    meaning = NoFigure(code).meaning
    if code != NoFigure.NO_FACTOR or not zones:
        return meaning
    zone_names = f"zone {zones[0]}" if len(zones) == 1 else f"the zones {', '.join(zones)}"
    return f"{meaning.replace('this zone', zone_names)}. The zones of the shipped table are listed in {TABLE}"


def unit_of(values: Iterable[float | None], units: Sequence[tuple[str, float]] = ENERGIES) -> tuple[str, float]:
    """The unit of a column: its name, and how many of the stored unit (J, s, g) it has.

    The largest value is at least 1 in it; an energy, a tenth.
    """
    least = _MOST_AS if units is ENERGIES else 1.0
    most = max((abs(one) for one in values if one is not None and math.isfinite(one)), default=0.0)
    return next((unit for unit in units if most >= least * unit[1]), units[-1])


def with_interval(row: Row, joules: float) -> tuple[str, str]:
    """An energy and its 95 % interval, in a unit that has so many joules; of a group of which too little is known, the
    known part and of how many of its jobs that is."""
    if row["energy_j"] is None:
        if row.get("jobs_known") and row["known_j"]:
            return number(
                row["known_j"] / joules
            ), f"{MISSING} (only {row['jobs_known']:,} of {many(row['jobs'], 'job')})"
        return MISSING, MISSING
    low, high = (number(row[name] / joules) for name in ("low_j", "high_j"))
    return number(row["energy_j"] / joules), f"[{low}, {high}]"


def idle_share(row: Row) -> str:
    """What the GPUs of a row would have drawn without work, in % of its energy; with its interval where that is wide.

    `at most 65` where nothing but bounds is known.
    """
    share, low, high = (row[f"idle_share{end}"] for end in ("", "_low", "_high"))
    if share is None:
        return MISSING if high is None or high >= 1 else f"at most {100 * high:.0f}"
    if high is None or high - low < _WIDE:
        return f"{100 * share:.0f}"
    return f"{100 * share:.0f} [{100 * low:.0f}, {100 * high:.0f}]"


def idle_sources(rows: Iterable[Row]) -> Iterable[str]:
    """How the idle share of jobs is known, where that is not by readings of GPUs without work."""
    sources = Counter(row["idle_source"] for row in rows if row["kind"] == Kind.JOB and row["energy_j"] is not None)
    for source in (IdleSource.COUNTER, IdleSource.EXTENDED, IdleSource.BOUNDED):
        if sources[source]:
            yield f"idle % of {many(sources[source], 'row')}: {source.meaning}"


def name_of(by: By, row: Row) -> str:
    """What a row is of."""
    if by.of_people:
        if row["kind"] != Kind.JOB:
            return f"({row['kind']})"
        name = row[{By.JOB: "job_id", By.USER: "user", By.ACCOUNT: "account"}[by]]
        return name or (MISSING if by is By.JOB else f"(no {by.value} known)")
    if by is By.GPU:
        return str(row["name"] or row["gpu"])
    if by is By.NODE:
        return row["node"] or "(node not known)"
    day = row["day"]
    return f"{day:%Y-%m-%d}" if isinstance(day, date) else MISSING
