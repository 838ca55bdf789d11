"""What every kernel reaches, run by run, and which share that is of what it is compared with."""

from __future__ import annotations

import math
import statistics
import sys
import time
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
    limit_problem: str | None = None
    """Why nothing is known that it could be compared with."""
    out_of_time: bool = False
    took_s: float = 0.0

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
            "values": self.values,
            "limits": self.limits,
            "times_ms": self.times_ms,
            "ended_by": self.ended_by,
            "wrong_elements": self.wrong,
            "problem": self.problem,
            "limit_problem": self.limit_problem,
        }


class Rounds:
    """Every probe once in a round, each beside what it is compared with.

    A probe that fails keeps its reason and is left out from then on, and so is one for which the time is too short.
    Where the GPU is gone (`device.lost`), what was measured is the answer.
    """

    def __init__(
        self,
        device: CupyDevice,
        watch: Watch,
        probes: Sequence[Probe],
        find: Callable[[str], Kernel],
        asked: Asked,
        *,
        brief: Asked | None = None,
        plain_s: float = 1.0,
        deadline: float = math.inf,
        told: Callable[[list[Row]], None] | None = None,
    ) -> None:
        """`brief` is for probes without goals, `deadline` by `time.monotonic`; `told` hears of each run that ended."""
        self.rows = [row for probe in probes if (row := _row(device, probe, find)) is not None]
        self.done = 0
        """Rounds."""
        self._device, self._watch, self._find = device, watch, find
        self._asked, self._brief = asked, brief or asked
        self._plain_s, self._deadline, self._told = plain_s, deadline, told
        self._cold = True

    def run(self) -> bool:
        """One more round: first the probes with goals, except in the first one. Whether anything was run."""
        order = self.rows if self.done == 0 else sorted(self.rows, key=lambda row: row.goal.limit == "none")
        before = sum(len(row.values) for row in self.rows)
        self.done += 1
        copies: float | None = None
        for row in order:
            if row.problem is not None or row.out_of_time or self._device.lost is not None:
                continue
            if time.monotonic() + self._longest_s(row) > self._deadline:
                row.out_of_time = True
                continue
            if copies is None and row.goal.limit == "best copy":
                copies = self._copies(row)
            if row.problem is None:
                self._one(row, copies)
        return sum(len(row.values) for row in self.rows) > before

    def _one(self, row: Row, copies: float | None) -> None:
        began = time.monotonic()
        asked = self._brief if row.goal.limit == "none" else self._asked
        _run(row, self._device, self._watch, self._find, asked, copies, self._plain_s, first=self._cold)
        self._cold = False
        row.took_s = max(row.took_s, time.monotonic() - began)
        says = row.problem or f"{row.values[-1]:.6g} {row.unit}"
        print(f"round {self.done}, {row.probe.name}: {says}, {row.took_s:.1f} s", file=sys.stderr)
        if self._told:
            self._told(self.rows)

    def _longest_s(self, row: Row) -> float:
        """How long a run of a probe may take: a quarter more than its longest, before that by the protocol's limits."""
        if row.took_s:
            return 1.25 * row.took_s
        effort = (self._brief if row.goal.limit == "none" else self._asked).effort
        return effort.expected_s(row.probe) + 5 * self._plain_s

    def _copies(self, row: Row) -> float | None:
        try:
            return copy_gb_s(self._device, self._plain_s)
        except DeviceError as error:
            row.problem = str(error)
            return None


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
    copy: float | None,
    plain_s: float,
    *,
    first: bool,
) -> None:
    try:
        measured = finish(measure(device, watch, row.probe, find, asked, first=first))
        if isinstance(measured, Unrun):
            row.problem = measured.reason
            return
        found = {figure.name: figure for figure in measured.figures}
        figure = next(found[name] for name in FIGURES if name in found)
        limit = None
        if row.limit_problem is None:
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


def _limit(row: Row, device: CupyDevice, clock_mhz: float | None, copy: float | None, plain_s: float) -> float | None:
    """What this run's value is a share of; in its unit."""
    match row.goal.limit:
        case "plain product":
            loaded = finish(device.load(row.work, seed=1))
            try:
                return product_gflop_s(device, loaded, plain_s)
            except (ImportError, RuntimeError) as error:  # CuPy's binding, not our own
                row.limit_problem = f"the plain product failed: {error}"
            finally:
                loaded.unload()
        case "best copy":
            return copy
        case "peak of the units" if clock_mhz is not None:
            peak = matrix_gflop_s if row.kernel.name.startswith("gemm") else vector_gflop_s
            return peak(device.facts, row.work.precision, clock_mhz)
    return None


def lift_copies(rows: Sequence[Row]) -> None:
    """Make the best copy of each round the limit of all of that round's copies: ours may be the best."""
    copies = [row for row in rows if row.goal.limit == "best copy" and row.problem is None]
    for run in range(max((len(row.limits) for row in copies), default=0)):
        there = [row for row in copies if len(row.limits) > run]
        ours = [row.values[run] for row in there if row.kernel.name in ("stream-copy", "copy-d2d")]
        best = max([*ours, *(row.limits[run] for row in there)])
        for row in there:
            row.limits[run] = best
