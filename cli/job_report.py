"""What is printed of a job's own readings: a table of its GPUs, for `whorl collect --for-job` and `whorl jobs show`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..collectors.job_readings import GpuSummary, JobTotal, total
from ..dashboards.table import MISSING, Line, Table, many, number

_LEAVES = ("model", "use %", "readings", "events")
"""Columns for which a narrow terminal has no room, the first of them first."""


@dataclass(frozen=True)
class FleetPlace:
    """Where a GPU stands in the fleet, in the work `basis`: how much slower it is than the median GPU of its model, %
    with the 95 % interval of another sitting, its rank among `compared` GPUs (1 is the fastest), and what was found
    about it."""

    basis: str | None
    slower_pct: float | None
    slower_low_pct: float | None
    slower_high_pct: float | None
    rank: int | None
    compared: int | None
    verdicts: tuple[str, ...]


def report(gpus: Sequence[GpuSummary], places: Mapping[str, FleetPlace] | None = None) -> Iterator[str | Table]:
    """The table of a job's GPUs, and sentences about it; `places`: by GPU, where it stands in a fleet."""
    if not gpus:
        yield "No GPU was read."
        return
    header = ["GPU", "model", "mean W", "max W", "readings", "energy, kJ (95 %)", "SM MHz", "use %", "max degC"]
    header += ["throttled", "events", *(() if places is None else ("in the fleet", "findings"))]
    names = Counter(gpu.name for gpu in gpus)  # each task of a node may count its own GPUs from 0
    rows = []
    for gpu in gpus:
        name = gpu.name if names[gpu.name] == 1 else f"{gpu.name} {gpu.gpu[:12]}"
        standing = [] if places is None else _standing(places.get(gpu.gpu))
        rows.append([name, *_cells(gpu), *standing])
    if len(gpus) > 1:
        together = total(gpus)
        sums = [f"all {len(gpus)}", "", number(together.power_mean_w), "", "", _energy(together)]
        rows.append(sums + [""] * (len(header) - len(sums)))
    leaves = [header.index(name) for name in _LEAVES]
    yield Table(header, rows, right=(2, 3, 4, 5, 6, 7, 8), leaves=leaves, wrapped=[header.index("throttled")])
    if any(gpu.shared for gpu in gpus):
        shared = ", ".join(gpu.name for gpu in gpus if gpu.shared)
        yield f"In MIG mode: {shared}. Power and energy are those of the whole GPU, also of other jobs on it."
    if any(gpu.energy_from == "power" for gpu in gpus):
        yield "Energy without a counter is the integral of the power that was read."


def hint(store: str) -> Line:
    """The command that compares a job's GPUs with those of a fleet."""
    return Line(f"whorl jobs show --store {shlex.quote(store)} --fleet FLEET")


def _cells(gpu: GpuSummary) -> list[str]:
    throttled = MISSING if gpu.throttled is None else ", ".join(f"{name} {_share(part)}" for name, part in _most(gpu))
    return [
        gpu.model or MISSING,
        number(gpu.power_mean_w),
        number(gpu.power_max_w),
        f"{gpu.readings:,}",
        _energy(gpu),
        number(gpu.sm_clock_mean_mhz),
        number(gpu.utilization_mean_pct, 3),
        number(gpu.temperature_max_c, 3),
        throttled or "never",
        ", ".join(f"{kind} x{n}" if n > 1 else kind for kind, n in gpu.events.items()) or "none",
    ]


def _most(gpu: GpuSummary) -> list[tuple[str, float]]:
    return sorted((gpu.throttled or {}).items(), key=lambda pair: -pair[1])


def _share(part: float) -> str:
    return "<0.1 %" if part < 0.001 else f"{100 * part:.1f} %"


def _energy(gpus: GpuSummary | JobTotal) -> str:
    if gpus.energy_j is None or gpus.energy_low_j is None or gpus.energy_high_j is None:
        return MISSING
    ends = f"{number(gpus.energy_low_j / 1e3)} to {number(gpus.energy_high_j / 1e3)}"
    return f"{number(gpus.energy_j / 1e3)} ({ends})"


def _standing(place: FleetPlace | None) -> list[str]:
    if place is None:
        return ["not known there", MISSING]
    findings = ", ".join(place.verdicts) or "none"
    if place.slower_pct is None:
        return ["not compared", findings]
    interval = f"{place.slower_low_pct:+.1f} to {place.slower_high_pct:+.1f}"
    rank = f"{place.rank} of {many(place.compared or 0, 'GPU')}"
    return [f"{place.slower_pct:+.1f} % time ({interval}) in {place.basis} work, {rank}", findings]
