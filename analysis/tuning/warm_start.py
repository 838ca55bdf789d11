"""What to expect of a workload on one model of GPU, from measurements of the same work on another one.

A power limit and a clock count as shares of the highest one, any other knob by the logarithm of its value (arcsinh,
which takes 0 too). A process through the other model's ln energy and ln time then says what to expect at each setting,
up to a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from .process import FloatArray, Process
from .search import PRIOR_TRIALS, Knob, Prior
from .sweep import MeasuredSweep

_SHARES = ("power_limit_w", "sm_clock_mhz", "memory_clock_mhz")
NO_USE = (
    f"--warm-start is left out: it helps only a search of {PRIOR_TRIALS} trials or fewer, and with more the trials "
    "themselves say more; give --trials 6 or fewer to use it"
)


@dataclass(frozen=True)
class ModelSweep:
    """Measured settings of a workload on one model of GPU: arrays of length n."""

    settings: Mapping[str, FloatArray]
    """By name of the knob."""
    energies_j: FloatArray
    """Of a unit of work."""
    times_s: FloatArray


def sweep_of_batches(sweeps: Sequence[MeasuredSweep], knob: str, batch_knob: str | None = None) -> ModelSweep:
    """Measured sweeps of one workload as one: `knob` is what their settings are of, and `batch_knob` the name of the
    batch size, where it is searched too. InputError for several batch sizes without such a knob."""
    if batch_knob is None and len(sweeps) > 1:
        sizes = ", ".join(f"{sweep.batch_sizes[0]:g}" for sweep in sweeps)
        raise InputError(
            f"the sweep to start from has the batch sizes {sizes}: choose one, as batch={sizes.split(',')[0]}"
        )
    settings = {knob: np.concatenate([sweep.settings for sweep in sweeps])}
    if batch_knob is not None:
        settings[batch_knob] = np.concatenate([sweep.batch_sizes for sweep in sweeps])
    energies, times = ([getattr(sweep, name) for sweep in sweeps] for name in ("energies_j", "times_s"))
    return ModelSweep(settings, np.concatenate(energies), np.concatenate(times))


def warm_start(knobs: Sequence[Knob], sweep: ModelSweep) -> Prior:
    """The prior of a search over these knobs, from a sweep on another model.

    Knobs that the sweep lacks or does not vary change nothing. Beyond the range of the sweep, its ends count.
    InputError where no knob remains.
    """
    columns, axes = [], []
    for position, knob in enumerate(knobs):
        values = sweep.settings.get(knob.name)
        if values is not None and len(np.unique(values)) > 1:
            columns.append(_comparable(knob.name, values, float(values.max())))
            axes.append((position, knob))
    if not columns:
        searched, measured = (", ".join(names) for names in ([knob.name for knob in knobs], sweep.settings))
        raise InputError(f"the sweep to start from varies none of the knobs {searched}; it has {measured}")
    points = np.stack(columns, axis=1)
    lowest, span = points.min(axis=0), np.ptp(points, axis=0)
    processes = [
        Process().fit((points - lowest) / span, np.log(values)) for values in (sweep.energies_j, sweep.times_s)
    ]

    def expected(scaled: FloatArray) -> tuple[FloatArray, FloatArray]:
        coordinates = np.empty((len(scaled), len(axes)))
        for column, (position, knob) in enumerate(axes):
            places = scaled[:, position] * (len(knob.values) - 1)
            values = np.interp(places, np.arange(len(knob.values)), knob.values)
            coordinates[:, column] = _comparable(knob.name, values, knob.values[-1])
        within = np.clip((coordinates - lowest) / span, 0.0, 1.0)
        energy, time = (process.predict(within)[0] for process in processes)
        return energy, time

    return expected


def _comparable(name: str, values: FloatArray, highest: float) -> FloatArray:
    """Values of a knob in a form in which two models can be compared."""
    return np.asarray(values / highest if name in _SHARES else np.arcsinh(values))
