"""What a search of few trials begins with: measurements of the same work on another model of GPU.

They are a file of sweeps, the log of a search, or the runs of a store. A power limit and a clock count as shares of the
highest one, any other knob by the logarithm of its value (arcsinh, which takes 0 too). A process through ln energy and
ln time then says what to expect at each setting, up to a constant.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.tuning.process import FloatArray, Process
from ..analysis.tuning.search import Knob, Prior, Trial
from ..analysis.tuning.sweep import MeasuredSweep, read_sweeps
from ..errors import InputError
from .tuning_log import SCHEMA

if TYPE_CHECKING:
    from ..store import Store

_SHARES = ("power_limit_w", "sm_clock_mhz", "memory_clock_mhz")


def prior_from(source: str, knobs: Sequence[Knob], *, probe: str | None, store: Store | str | Path | None) -> Prior:
    """The prior of a search over these knobs, from a source as the option names it.

    `source` is the log of a search; or a file of sweeps, as sweep.csv, or where it has several workloads as
    sweep.csv:network=resnet50,optimizer=adam,batch=256; else a model of GPU, or a part of its name, on which the store
    has runs of the `probe` under several settings. Raises InputError where neither is there, or what it says is of no
    use for these knobs.
    """
    name, _, labels = source.partition(":")
    path = Path(name)
    if path.is_file():
        trials = _of_log(path, None if store is None else probe)  # a command may be called in another way
        measured = _of_sweeps(path, labels, knobs) if trials is None else trials
    elif probe is None or store is None:
        raise InputError(f"warm-start={source}: there is no such file; a model of GPU needs a probe and a store")
    else:
        measured = _of_store(store, probe, source)
    return warm_start(knobs, measured)


def warm_start(knobs: Sequence[Knob], measured: Sequence[Trial]) -> Prior:
    """The prior of a search over these knobs, from measurements on another model, none of which failed.

    Knobs that these lack or do not vary change nothing. Beyond their range, its ends count. InputError where no knob
    remains.
    """
    settings = [trial.setting for trial in measured]
    axes = [
        (place, knob) for place, knob in enumerate(knobs) if len({setting.get(knob.name) for setting in settings}) > 1
    ]
    if not axes:
        searched = ", ".join(knob.name for knob in knobs)
        raise InputError(f"what warm-start names varies none of the knobs {searched}: name other measurements")
    columns = [(knob.name, np.array([setting[knob.name] for setting in settings])) for _, knob in axes]
    points = np.stack([_comparable(name, values, float(values.max())) for name, values in columns], axis=1)
    lowest, span = points.min(axis=0), np.ptp(points, axis=0)
    figures = np.log(np.array([(trial.energy_j, trial.time_s) for trial in measured], np.float64)).T
    energy, time = (Process().fit((points - lowest) / span, values) for values in figures)

    def expected(scaled: FloatArray) -> tuple[FloatArray, FloatArray]:
        coordinates = np.empty((len(scaled), len(axes)))
        for column, (place, knob) in enumerate(axes):
            values = np.interp(scaled[:, place], np.linspace(0, 1, len(knob.values)), knob.values)
            coordinates[:, column] = _comparable(knob.name, values, knob.values[-1])
        within = np.clip((coordinates - lowest) / span, 0.0, 1.0)
        return energy.predict(within)[0], time.predict(within)[0]

    return expected


def _comparable(name: str, values: FloatArray, highest: float) -> FloatArray:
    """Values of a knob in a form in which two models can be compared."""
    return np.asarray(values / highest if name in _SHARES else np.arcsinh(values))


def _of_log(path: Path, probe: str | None) -> list[Trial] | None:
    """The measurements of the log of a search, of all of its GPUs; None where the file is no such log.

    InputError where it is of another probe than the one that is named.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if SCHEMA.encode() not in head:
            return None
        label = json.loads(head).get("label")
        steps = [json.loads(line) for line in body.split(b"\n")[:-1]]  # what follows the last end of line is torn
        trials = [Trial(dict(step["setting"]), step["energy_j"], step["time_s"]) for step in steps]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a log of whorl tune ({error}): name another file") from error
    if probe is not None and label != probe:
        raise InputError(f"{path} is the log of a search for {label}, and not for {probe}: name another file")
    return [trial for trial in trials if trial.energy_j is not None and trial.time_s is not None]


def _of_sweeps(path: Path, labels: str, knobs: Sequence[Knob]) -> list[Trial]:
    """The settings of one workload of a file of sweeps: of all batch sizes where these are searched, else of one."""
    file = read_sweeps(path)
    sweeps = [sweep for sweep in file.sweeps if set(filter(None, labels.split(","))) <= _labels(sweep)]
    batch = next((knob.name for knob in knobs if file.has_batches and knob.name.startswith("batch")), None)
    if len({sweep.workload for sweep in sweeps}) != 1 or (batch is None and len(sweeps) > 1):
        example = ",".join(sorted(_labels(file.sweeps[0])))
        raise InputError(
            f"{path} has {len(sweeps)} sweeps{labels and ' with '}{labels}: choose one workload, and one batch size "
            f"where that is no knob, as warm-start={path}:{example}"
        )
    return [
        Trial({file.knob: setting} if batch is None else {file.knob: setting, batch: size}, energy_j, time_s)
        for sweep in sweeps
        for setting, size, energy_j, time_s in zip(
            *(figure.tolist() for figure in (sweep.settings, sweep.batch_sizes, sweep.energies_j, sweep.times_s)),
            strict=True,
        )
    ]


def _labels(sweep: MeasuredSweep) -> set[str]:
    """What tells a sweep from others of its file, as network=resnet50."""
    labels = {**asdict(sweep.workload), "batch": f"{sweep.batch_sizes[0]:g}"}
    return {f"{name}={value}" for name, value in labels.items() if value not in (None, "nan")}


def _of_store(store: Store | str | Path, probe: str, model: str) -> list[Trial]:
    """Runs of a probe on a model, each relative to the default of its GPU. It needs whorl with all its packages."""
    import polars as pl

    from ..analysis.power_classes import own_runs
    from ..store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    runs = own_runs(opened, workload=probe).filter(
        pl.col("workload") == probe, pl.col("model").str.to_lowercase().str.contains(model.lower(), literal=True)
    )
    figures = [pl.col(name) / pl.col(name).filter("at_default").mean().over("unit") for name in ("energy_j", "time_s")]
    runs = runs.select("limit_w", "clock_mhz", *figures).drop_nulls()
    if runs.height < 2:
        raise InputError(
            f"{model} is no file, and {opened.root} has no runs of {probe} on a model with {model} in its name, at the "
            f"default and other settings: `whorl tune {probe}` on such a GPU stores them"
        )
    return [
        Trial({"power_limit_w": limit_w, "sm_clock_mhz": clock_mhz}, energy_j, time_s)
        for limit_w, clock_mhz, energy_j, time_s in runs.rows()
    ]
