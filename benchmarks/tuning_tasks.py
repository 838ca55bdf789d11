"""Tasks of tuning whose truth is known: energy and time at every setting of a simulated GPU or of a public sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from whorl.analysis.tuning.search import FloatArray, Knob, Setting, TimeBound
from whorl.analysis.tuning.sweep import MeasuredSweep, across_batches, read_sweeps
from whorl.simulation import models
from whorl.simulation.fleet import CAP_SETTLES_AT, Fleet
from whorl.simulation.load import Workload
from whorl.simulation.physics import relative_time, settle

BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class TuningTask:
    """Knobs, a bound, and the true energy (J) and time (s) of every setting, by the positions of its values.

    NaN where a sweep has no measurement: there a trial fails.
    """

    name: str
    knobs: tuple[Knob, ...]
    bound: TimeBound
    energy_j: FloatArray
    time_s: FloatArray

    def index(self, setting: Setting) -> tuple[int, ...]:
        """The position of a setting in the arrays."""
        return tuple(knob.values.index(setting[knob.name]) for knob in self.knobs)

    @cached_property
    def bound_s(self) -> float:
        """The true bound: the stated one, or the share of the default's true time."""
        if self.bound.max_time_s is not None:
            return self.bound.max_time_s
        default = self.index({knob.name: knob.default for knob in self.knobs})
        assert self.bound.max_slowdown is not None
        return float(self.time_s[default]) * (1 + self.bound.max_slowdown)

    @cached_property
    def least_j(self) -> float:
        """The least true energy within the true bound."""
        return float(np.nanmin(np.where(self.time_s <= self.bound_s, self.energy_j, np.nan)))


def simulated(
    model: models.GpuModel, *, bound_s: float, latency_ms: tuple[float, float], clock_every: int = 1, gpu: int = 7
) -> TuningTask:
    """A service on one GPU of a simulated fleet: knobs clock, limit and batch; the bound is a latency.

    A batch of b takes (first + second * b) ms of `latency_ms` at the highest clock.
    """
    silicon = Fleet.draw(model, 64, seed=3, faults=0).silicon
    steps = np.arange(model.min_power_limit_w, model.power_limit_w + 1, 25)
    clocks = model.clocks_mhz
    locks = clocks[::-clock_every][::-1]
    at_clocks = silicon.take(np.full(len(clocks), gpu))
    energy = np.empty((len(locks), len(steps), len(BATCHES)))
    time = np.empty_like(energy)
    for number, batch in enumerate(BATCHES):
        work = Workload(
            f"batch {batch:g}",
            activity=0.95 * batch / (batch + 5),
            compute_share=0.9 * batch / (batch + 4),
            bandwidth_share=0.55 - 0.25 * batch / (batch + 4),
            noise=0.0,
        )
        power, temperature = settle(model, at_clocks, work, clocks)
        latency_s = (latency_ms[0] + latency_ms[1] * batch) / 1000 * relative_time(model, at_clocks, work, clocks)
        for column, limit in enumerate(steps):
            fits = (power * at_clocks.sensor <= CAP_SETTLES_AT * limit) & (temperature <= model.slowdown_c)
            highest = int(np.flatnonzero(fits)[-1]) if fits.any() else 0
            reached = np.minimum(np.searchsorted(clocks, locks), highest)
            time[:, column, number] = latency_s[reached]
            energy[:, column, number] = power[reached] * latency_s[reached] / batch
    knobs = (
        Knob("sm_clock_mhz", tuple(locks.tolist()), float(locks[-1])),
        Knob("power_limit_w", tuple(steps.tolist()), float(steps[-1])),
        Knob("batch", BATCHES, 8.0),
    )
    return TuningTask(f"{model.name} gpu {gpu}", knobs, TimeBound(max_time_s=bound_s), energy, time)


def services() -> list[TuningTask]:
    """The three simulated tasks that the acceptance is stated on."""
    return [
        simulated(models.H200, bound_s=0.016, latency_ms=(3, 0.35)),
        simulated(models.H100, bound_s=0.016, latency_ms=(3, 0.35)),
        simulated(models.V100, bound_s=0.040, latency_ms=(5, 1.0), clock_every=2),
    ]


def sweeps(files: Sequence[Path], *, max_slowdown: float = 0.10) -> list[TuningTask]:
    """The tasks of sweeps that were measured: one for each workload of each file, with the knobs batch and limit.

    The default is the highest limit of the middle batch.
    """
    tasks = []
    for path in files:
        swept = read_sweeps(path)
        for sweep in across_batches(swept.sweeps):
            parts = [getattr(sweep.workload, name) for name in ("dataset", "network", "optimizer")]
            name = " ".join([sweep.workload.gpu or path.name.split(".")[0], *filter(None, parts)])
            tasks.append(_sweep_task(name, swept.knob, sweep, max_slowdown))
    return tasks


def _sweep_task(name: str, knob: str, sweep: MeasuredSweep, max_slowdown: float) -> TuningTask:
    sizes = np.nan_to_num(sweep.batch_sizes)  # NaN: a sweep without batches
    batches, rows = np.unique(sizes, return_inverse=True)
    settings, columns = np.unique(sweep.settings, return_inverse=True)
    energy, time = np.full((2, len(batches), len(settings)), np.nan)
    energy[rows, columns], time[rows, columns] = sweep.energies_j, sweep.times_s
    knobs = (
        Knob("batch", tuple(batches.tolist()), float(sizes[sweep.default])),
        Knob(knob, tuple(settings.tolist()), float(sweep.settings[sweep.default])),
    )
    return TuningTask(name, knobs, TimeBound(max_slowdown=max_slowdown), energy, time)
