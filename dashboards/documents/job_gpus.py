"""What a job collected of its own GPUs: what it used, and which of them were held, hot or slow beside the fleet."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...collectors.job_readings import GpuSummary, total
from ..document import Cell, Column, Command, Document, Part, Table, TableColumns
from ..words import MISSING, many, number, unit_of, with_interval_in_unit


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
    unit, size = unit_of([gpu.energy_j for gpu in gpus])
    names = Counter(gpu.name for gpu in gpus)  # each task of a node may count its own GPUs from 0

    columns: TableColumns = [
        ("GPU", lambda gpu: gpu.name if names[gpu.name] == 1 else f"{gpu.name} {gpu.gpu[:12]}"),
        (Column("model", drops=4), "model"),
        (Column("mean W", "number"), "power_mean_w"),
        (Column("max W", "number"), "power_max_w"),
        (Column("readings", "count", drops=2), "readings"),
        (Column(f"energy, {unit} [95 %]", "estimate"), lambda row: _energy(row, size)),
        (Column("SM MHz", "number", 0), "sm_clock_mean_mhz"),
        (Column("use %", "number", 0, drops=3), "utilization_mean_pct"),
        (Column("max °C", "number", 0), "temperature_max_c"),
        (Column("throttled", "sentence"), _throttled),
        (Column("events", drops=1), _events),
    ]
    if places is not None:
        columns += [
            (Column("in the fleet", "sentence"), lambda gpu: _standing(places.get(gpu.gpu))),
            (Column("findings", "sentence"), lambda gpu: _findings(places.get(gpu.gpu))),
        ]
    return Document("GPUs of a job", [_summary(gpus), Table.of(gpus, columns), *_remarks(gpus)])


def _summary(gpus: Sequence[GpuSummary]) -> str:
    """The energy of the job, and the GPU whose clock was held most."""
    together = total(gpus)
    energy = with_interval_in_unit(together.energy_j, together.energy_low_j, together.energy_high_j)
    energy = "" if together.energy_j is None else f" used {energy}"
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


def _throttled(gpu: GpuSummary) -> str:
    if gpu.throttled is None:
        return MISSING
    most_first = sorted(gpu.throttled.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {_share(part)}" for name, part in most_first) or "never"


def _events(gpu: GpuSummary) -> str:
    return ", ".join(f"{kind} x{n}" if n > 1 else kind for kind, n in gpu.events.items()) or "none"


def _share(part: float) -> str:
    return "<0.1 %" if part < 0.001 else f"{100 * part:.1f} %"


def _energy(gpu: GpuSummary, joules: float) -> Cell:
    """The energy with its interval, in a unit of so many joules."""
    if gpu.energy_j is None or gpu.energy_low_j is None or gpu.energy_high_j is None:
        return None
    return gpu.energy_j / joules, gpu.energy_low_j / joules, gpu.energy_high_j / joules


def _standing(place: FleetPlace | None) -> str:
    if place is None:
        return "not known there"
    if place.slower_pct is None:
        return "not compared"
    interval = f"{place.slower_low_pct:+.1f} to {place.slower_high_pct:+.1f}"
    rank = f"{place.rank} of {many(place.compared or 0, 'GPU')}"
    return f"{place.slower_pct:+.1f} % time ({interval}) in {place.basis} work, {rank}"


def _findings(place: FleetPlace | None) -> str | None:
    return None if place is None else ", ".join(place.verdicts) or "none"
