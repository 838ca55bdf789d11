"""What every kernel reaches, run by run, and which share that is of what it is compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from whorl.benchmarks.gpu.goals import Goal, goal_of
from whorl.benchmarks.gpu.plain import copy_gb_s, product_gflop_s
from whorl.errors import DeviceError
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.peaks import matrix_gflop_s, vector_gflop_s
from whorl.kernels.work import Kernel, Unfit, Work
from whorl.probes.conditions import Asked
from whorl.probes.probe import Probe
from whorl.probes.protocol import Unrun, measure
from whorl.probes.watch import Watch

FIGURES = ("rate", "bandwidth", "operation_rate", "latency")
"""The first of these that a probe has is what is compared."""


@dataclass
class Row:
    """One probe over all runs."""

    probe: Probe
    kernel: Kernel
    work: Work
    goal: Goal
    values: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)
    ended_by: list[str] = field(default_factory=list)
    figure: str = ""
    unit: str = ""
    wrong: int = 0
    problem: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON; shares and variation in %, None where they are not known."""
        shares = [100 * value / limit for value, limit in zip(self.values, self.limits, strict=False)]
        share = statistics.median(shares) if shares else None
        cv = None
        if len(self.times_ms) > 1:
            cv = 100 * statistics.stdev(self.times_ms) / statistics.mean(self.times_ms)
        return {
            "probe": self.probe.name,
            "version": self.probe.version,
            "figure": self.figure or None,
            "unit": self.unit or None,
            "value_median": statistics.median(self.values) if self.values else None,
            "limit": self.goal.limit,
            "limit_median": statistics.median(self.limits) if self.limits else None,
            "share_percent": share,
            "share_goal_percent": self.goal.share,
            "share_met": None if share is None or self.goal.share is None else share >= self.goal.share,
            "runs": len(self.values),
            "time_median_ms": statistics.median(self.times_ms) if self.times_ms else None,
            "cv_percent": cv,
            "cv_goal_percent": self.goal.cv,
            "cv_met": None if cv is None or self.goal.cv is None else cv <= self.goal.cv,
            "sm_clock_median_mhz": statistics.median(self.clocks_mhz) if self.clocks_mhz else None,
            "ended_by": self.ended_by,
            "wrong_elements": self.wrong,
            "problem": self.problem,
        }


def reached(
    device: CupyDevice,
    watch: Watch,
    probes: Sequence[Probe],
    find: Callable[[str], Kernel],
    asked: Asked,
    *,
    runs: int,
    plain_s: float = 2.0,
) -> list[Row]:
    """Every probe `runs` times, one after another in each round, each beside what it is compared with.

    A probe that fails keeps its reason and is left out from then on. Where the GPU is gone (`device.lost`), what was
    measured is the answer.
    """
    rows = [row for probe in probes if (row := _row(device, probe, find)) is not None]
    for _ in range(runs):
        if device.lost is not None:
            break
        copies = copy_gb_s(device, plain_s)
        for row in rows:
            if row.problem is None and device.lost is None:
                _run(row, device, watch, find, asked, copies, plain_s)
    return rows


def _row(device: CupyDevice, probe: Probe, find: Callable[[str], Kernel]) -> Row | None:
    if probe.kernel is None:
        return None
    kernel = find(probe.kernel)
    work = kernel.build(device.facts, **probe.parameters)
    if isinstance(work, Unfit):
        return None
    return Row(probe, kernel, work, goal_of(kernel, work))


def _run(
    row: Row,
    device: CupyDevice,
    watch: Watch,
    find: Callable[[str], Kernel],
    asked: Asked,
    copy: float,
    plain_s: float,
) -> None:
    try:
        measured = finish(measure(device, watch, row.probe, find, asked, first=not row.values))
        if isinstance(measured, Unrun):
            row.problem = measured.reason
            return
        found = {figure.name: figure for figure in measured.figures}
        figure = next(found[name] for name in FIGURES if name in found)
        limit = _limit(row, device, measured.window.sm_clock_mhz, copy, plain_s)
    except DeviceError as error:
        row.problem = str(error)
        return
    row.figure, row.unit = figure.name, figure.unit
    row.values.append(figure.value)
    row.times_ms.append(found["time_median"].value)
    row.ended_by.append(measured.ended_by)
    row.wrong += measured.verdict.wrong
    if limit is not None:
        row.limits.append(limit)
    if measured.window.sm_clock_mhz is not None:
        row.clocks_mhz.append(measured.window.sm_clock_mhz)


def _limit(row: Row, device: CupyDevice, clock_mhz: float | None, copy: float, plain_s: float) -> float | None:
    """What this run's value is a share of; in its unit."""
    match row.goal.limit:
        case "plain product":
            loaded = finish(device.load(row.work, seed=1))
            try:
                return product_gflop_s(device, loaded, plain_s)
            finally:
                loaded.unload()
        case "best copy":
            return copy
        case "peak of the units" if clock_mhz is not None:
            peak = matrix_gflop_s if row.kernel.name.startswith("gemm") else vector_gflop_s
            return peak(device.facts, row.work.precision, clock_mhz)
    return None


def lift_copies(rows: Sequence[Row]) -> None:
    """Make the best copy of each run the limit of all of that run's copies: ours may be the best."""
    copies = [row for row in rows if row.goal.limit == "best copy" and row.problem is None]
    for run in range(min((len(row.limits) for row in copies), default=0)):
        both = [row.values[run] for row in copies if row.kernel.name in ("stream-copy", "copy-d2d")]
        best = max([*both, *(row.limits[run] for row in copies)])
        for row in copies:
            row.limits[run] = best
