"""What `whorl tune --warm-start` begins with: a sweep or a search of the same work on another model, or runs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.tuning.search import Knob, Prior
from ..analysis.tuning.sweep import MeasuredSweep, read_sweeps
from ..analysis.tuning.warm_start import ModelSweep, sweep_of_batches, warm_start
from ..errors import InputError
from .tuning_log import SCHEMA

if TYPE_CHECKING:
    from ..store import Store

_LABELS = ("dataset", "network", "optimizer", "gpu", "batch")


def prior_from(source: str, knobs: Sequence[Knob], *, probe: str | None, store: Store | str | Path | None) -> Prior:
    """The prior of a search over these knobs, from a source as the option names it.

    `source` is the log of a search; or a file of sweeps, as sweep.csv, or where it has several as
    sweep.csv:network=resnet50,optimizer=adam,batch=256; else a model of GPU, or a part of its name, on which the store
    has runs of the `probe` under several settings. Raises InputError where neither is there, or what it says is of no
    use for these knobs.
    """
    path, _, labels = source.partition(":")
    if Path(path).is_file() and _is_log(Path(path)):
        return warm_start(knobs, _sweep_of_log(Path(path)))
    if Path(path).is_file():
        return warm_start(knobs, _sweep_of_file(path, _parsed(labels), knobs))
    if probe is None or store is None:
        raise InputError(f"--warm-start {source}: there is no such file; a model of GPU needs a probe and a store")
    return warm_start(knobs, _sweep_of_store(store, probe, source))


def _is_log(path: Path) -> bool:
    try:
        return SCHEMA.encode() in path.read_bytes()[:100]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _sweep_of_log(path: Path) -> ModelSweep:
    """The measurements of the log of a search, of all of its GPUs. InputError where there is none."""
    whole, _, _ = path.read_text().rpartition("\n")
    try:
        rows = [json.loads(line) for line in whole.split("\n")[1:]]
        rows = [row for row in rows if row["time_s"] is not None and row["energy_j"] is not None]
        settings = {name: np.array([row["setting"][name] for row in rows]) for name in rows[0]["setting"]}
        return ModelSweep(settings, *(np.array([row[name] for row in rows]) for name in ("energy_j", "time_s")))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path} has no measurements to start from: name another file with --warm-start") from error


def _parsed(labels: str) -> dict[str, str]:
    chosen = {}
    for word in filter(None, labels.split(",")):
        name, equals, value = word.partition("=")
        if not equals or name not in _LABELS:
            raise InputError(f"--warm-start FILE:{word}: choose with {', '.join(_LABELS)}, as network=resnet50")
        chosen[name] = value
    return chosen


def _sweep_of_file(path: str, chosen: Mapping[str, str], knobs: Sequence[Knob]) -> ModelSweep:
    file = read_sweeps(path)
    sweeps = [sweep for sweep in file.sweeps if _fits(sweep, chosen)]
    if not sweeps:
        raise InputError(f"{path} has no sweep with {', '.join(f'{name}={value}' for name, value in chosen.items())}")
    several = [
        name for name in _LABELS[:-1] if len({getattr(sweep.workload, name) for sweep in sweeps}) > 1
    ]  # fmt: skip
    if several:
        values = sorted({str(getattr(sweep.workload, several[0])) for sweep in sweeps})
        raise InputError(
            f"{path} has sweeps of several workloads: choose one, as --warm-start {path}:{several[0]}={values[0]} "
            f"({several[0]}: {', '.join(values)})"
        )
    batch_knob = next((knob.name for knob in knobs if knob.name.startswith("batch")), None)
    return sweep_of_batches(sweeps, file.knob, batch_knob if file.has_batches else None)


def _fits(sweep: MeasuredSweep, chosen: Mapping[str, str]) -> bool:
    labels = {name: getattr(sweep.workload, name) for name in _LABELS[:-1]}
    labels["batch"] = f"{sweep.batch_sizes[0]:g}"
    return all(labels[name] == value for name, value in chosen.items())


def _sweep_of_store(store: Store | str | Path, probe: str, model: str) -> ModelSweep:
    """Runs of a probe on a model, each relative to the default of its GPU. It needs whorl with all its packages."""
    import polars as pl

    from ..analysis.power_classes import at_default, own_runs
    from ..store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    runs = own_runs(opened, workload=probe).filter(
        pl.col("workload") == probe, pl.col("model").str.to_lowercase().str.contains(model.lower(), literal=True)
    )
    runs = runs.with_columns(
        (pl.col(name) / pl.col(name).filter(at_default()).mean().over("unit")).alias(name)
        for name in ("energy_j", "time_s")
    ).drop_nulls(["energy_j", "time_s", "limit_w", "clock_mhz"])
    if runs.height < 2:
        raise InputError(
            f"{opened.root} has no runs of {probe} on a model with {model} in its name, at the default and other "
            f"settings: `whorl tune {probe}` on such a GPU stores them"
        )
    columns = {
        name: runs[name].to_numpy().astype(np.float64) for name in ("limit_w", "clock_mhz", "energy_j", "time_s")
    }
    settings = {"power_limit_w": columns["limit_w"], "sm_clock_mhz": columns["clock_mhz"]}
    return ModelSweep(settings, columns["energy_j"], columns["time_s"])
