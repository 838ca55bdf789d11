"""What a job collected of its own GPUs: what it used, and which of them were held, hot or slow beside the fleet."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...collectors.job_readings import GpuSummary, JobTotal, total
from ..document import Cell, Column, Command, Document, Part, Table
from ..words import MISSING, in_unit, many, number, unit_of


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


def job_document(gpus: Sequence[GpuSummary], places: Mapping[str, FleetPlace] | None = None) -> Document:
    """The GPUs of a job, the energy of all and what stood out; `places`: by GPU, where it stands in a fleet."""
    if not gpus:
        return Document("GPUs of a job", ["No GPU was read."])
    together = total(gpus)
    unit, size = unit_of([gpu.energy_j for gpu in gpus])
    columns: list[Column | str] = [
        "GPU", Column("model", drops=4), Column("mean W", "number"), Column("max W", "number"),
        Column("readings", "count", drops=2), Column(f"energy, {unit} [95 %]", "estimate"),
        Column("SM MHz", "number", 0), Column("use %", "number", 0, drops=3), Column("max °C", "number", 0),
        Column("throttled", "sentence"), Column("events", drops=1),
        *([] if places is None else [Column("in the fleet", "sentence"), Column("findings", "sentence")]),
    ]  # fmt: skip
    names = Counter(gpu.name for gpu in gpus)  # each task of a node may count its own GPUs from 0
    rows = []
    for gpu in gpus:
        name = gpu.name if names[gpu.name] == 1 else f"{gpu.name} {gpu.gpu[:12]}"
        standing = [] if places is None else _standing(places.get(gpu.gpu))
        rows.append([name, *_cells(gpu, size), *standing])
    if len(gpus) > 1:
        sums = [f"all {len(gpus)}", "", together.power_mean_w, "", "", _energy(together, size)]
        rows.append(sums + [""] * (len(columns) - len(sums)))
    return Document("GPUs of a job", [_summary(gpus, together), Table(columns, rows), *_remarks(gpus)])


def _summary(gpus: Sequence[GpuSummary], together: JobTotal) -> str:
    """The energy of the job, and the GPU whose clock was held most."""
    energy = "" if together.energy_j is None else f" used {in_unit(together.energy_j)}"
    power = "" if together.power_mean_w is None else f", {number(together.power_mean_w)} W on average"
    held = [gpu for gpu in gpus if gpu.throttled]
    worst = max(held, key=lambda gpu: sum((gpu.throttled or {}).values()), default=None)
    throttled = "; no clock was held"
    if worst is not None:
        throttled = f"; the clock of {many(len(held), 'GPU')} was held, most of all of {worst.name}"
    elif all(gpu.throttled is None for gpu in gpus):
        throttled = ""
    return f"{many(len(gpus), 'GPU')}{energy or ' were read'}{power}{throttled}."


def _remarks(gpus: Sequence[GpuSummary]) -> Iterator[Part]:
    if any(gpu.shared for gpu in gpus):
        shared = ", ".join(gpu.name for gpu in gpus if gpu.shared)
        yield f"In MIG mode: {shared}. Power and energy are those of the whole GPU, also of other jobs on it."
    if any(gpu.energy_from == "power" for gpu in gpus):
        yield "Energy without a counter is the integral of the power that was read."


def fleet_command(store: str) -> Command:
    """The command that compares a job's GPUs with those of a fleet."""
    return Command(f"whorl jobs show --store {shlex.quote(store)} --fleet FLEET")


def _cells(gpu: GpuSummary, joules: float) -> list[Cell]:
    throttled = MISSING if gpu.throttled is None else ", ".join(f"{name} {_share(part)}" for name, part in _most(gpu))
    return [
        gpu.model,
        gpu.power_mean_w,
        gpu.power_max_w,
        gpu.readings,
        _energy(gpu, joules),
        gpu.sm_clock_mean_mhz,
        gpu.utilization_mean_pct,
        gpu.temperature_max_c,
        throttled or "never",
        ", ".join(f"{kind} x{n}" if n > 1 else kind for kind, n in gpu.events.items()) or "none",
    ]


def _most(gpu: GpuSummary) -> list[tuple[str, float]]:
    return sorted((gpu.throttled or {}).items(), key=lambda pair: -pair[1])


def _share(part: float) -> str:
    return "<0.1 %" if part < 0.001 else f"{100 * part:.1f} %"


def _energy(gpus: GpuSummary | JobTotal, joules: float) -> Cell:
    """The energy with its interval, in a unit of so many joules."""
    if gpus.energy_j is None or gpus.energy_low_j is None or gpus.energy_high_j is None:
        return None
    return gpus.energy_j / joules, gpus.energy_low_j / joules, gpus.energy_high_j / joules


def _standing(place: FleetPlace | None) -> list[Cell]:
    if place is None:
        return ["not known there", None]
    findings = ", ".join(place.verdicts) or "none"
    if place.slower_pct is None:
        return ["not compared", findings]
    interval = f"{place.slower_low_pct:+.1f} to {place.slower_high_pct:+.1f}"
    rank = f"{place.rank} of {many(place.compared or 0, 'GPU')}"
    return [f"{place.slower_pct:+.1f} % time ({interval}) in {place.basis} work, {rank}", findings]
