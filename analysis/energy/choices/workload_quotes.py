"""What a workload takes on some GPUs, before any job has run: at the default power limit, and under caps.

It stands on runs of the workload in the store: those at the default limit say what a GPU draws, and the rest is quoted
as of a job that ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ....errors import InputError
from ....store.instants import nanoseconds
from ....store.names import plain_workload
from ....store.power_sensors import NORMAL_95
from ...power_classes import curve_of_runs, curves, own_runs, sweep
from ...statistics.student import quantile
from ..billing import cuts, priced, rates_between
from ..carbon import number_at
from ..settings import EnergySettings, find_settings
from .quoted import DEADLINE_S, Quoted
from .quoting import CAPS, Option, Ran, as_it_ran, caps, starts, with_pareto

if TYPE_CHECKING:
    from ....store import Store

SPREAD, SPREAD_GPUS = 0.02, 4
"""How far GPUs of a model are taken to differ in power (standard deviation, as a share), beside those that were
measured: counted as so many further GPUs. Healthy GPUs of a model usually differ by 1 to 3 %."""

_LONGEST_S = 30 * 365.25 * 86_400


@dataclass(frozen=True)
class FutureJob:
    """Work that has not run."""

    workload: str
    gpus: int = 1
    time_s: float = 3600.0
    """How long it takes at the default power limit; it is busy all of that time."""
    model: str | None = None
    """A model of GPU, or a part of its name; not needed where the workload ran on one."""
    cluster: str | None = None
    shares: Sequence[float] = CAPS
    """Power caps, as shares of the default limit."""


def quote_workload(
    store: Store,
    work: FutureJob,
    *,
    settings: EnergySettings | str | Path | None = None,
    deadline_s: float = DEADLINE_S,
    now: datetime | None = None,
) -> Quoted:
    """What a workload takes on GPUs of a model at the default power limit, under caps, and at another hour.

    Grams and money are those of a start `now` (UTC). Raises InputError where no run of the workload at the default
    limit has a time and an energy, and where it is not clear on which model or cluster.
    """
    if work.gpus < 1 or not 0 < work.time_s < _LONGEST_S:
        raise InputError(
            f"a job has at least one GPU and takes some time below 30 years, not {work.gpus} GPUs and {work.time_s:g} s"
        )
    workload = plain_workload(work.workload)
    runs = _runs_of_one_model(store, replace(work, workload=workload))
    defaults = runs.filter("at_default")
    tuned = f"`whorl tune {workload} --store {store.root} --max-slowdown 5%` measures it"
    if defaults.is_empty():
        on_model = "" if work.model is None else f" on {work.model}"
        raise InputError(f"{store.root} has no run of {workload} at the default power limit{on_model}: {tuned}")
    stated = find_settings(store.root, settings)
    at_ns = nanoseconds(datetime.now(UTC) if now is None else now)
    ran, itself = _at_default(work, defaults, stated, at_ns), curve_of_runs(runs)
    model, measured, notes = ran.models[0], defaults["gpu"].n_unique(), []
    if measured == 1:
        spread = f"others are taken to differ from it by {100 * SPREAD:.0f} %"
        notes.append(f"{workload} ran at the default limit on one GPU of {model}: {spread}")
    if itself is None:
        notes.append(
            f"{workload} did not run under enough power limits on {model}, so its caps are from other workloads, if "
            f"from any; {tuned}"
        )
    default = replace(
        as_it_ran(ran), option=Option.DEFAULT, what=f"{ran.limit_w:.0f} W", basis=f"{workload} itself", n=measured
    )
    quotes = [default, *caps(ran, curves(sweep(store, cluster=ran.cluster)), itself, shares=work.shares)]
    quotes += starts(ran, stated, at_ns, at_ns + round(deadline_s * 1e9))
    return Quoted(None, ran, with_pareto(quotes), stated, notes)


def _runs_of_one_model(store: Store, work: FutureJob) -> pl.DataFrame:
    """The runs of the workload on the model, of that name or else with it in its name; InputError for several."""
    runs = own_runs(store, cluster=work.cluster, workload=work.workload).filter(pl.col("workload") == work.workload)
    name, model = (work.model or "").lower(), pl.col("model").str.to_lowercase()
    named = runs.filter(model == name)
    runs = runs.filter(model.str.contains(name, literal=True)) if named.is_empty() else named
    ran_on = sorted(runs.select("model", "cluster").unique().rows())
    if len(ran_on) > 1:
        places = ", ".join(f"{known} in {cluster}" for known, cluster in ran_on)
        raise InputError(f"{work.workload} ran on {places}: choose one with --model and --cluster")
    return runs


def _at_default(work: FutureJob, defaults: pl.DataFrame, settings: EnergySettings, at_ns: int) -> Ran:
    """The job at the default limit, from runs at it. Its interval: how far GPUs differ, and the error of sensors."""
    by_gpu = defaults.group_by("gpu").agg((pl.col("energy_j") / pl.col("time_s")).mean().alias("power_w"))
    watts = by_gpu["power_w"].to_numpy()
    gpu_s = work.gpus * work.time_s
    energy_j = float(watts.mean()) * gpu_s
    freedom = len(watts) - 1 + SPREAD_GPUS
    squares = float(((watts / watts.mean() - 1) ** 2).sum()) + SPREAD_GPUS * SPREAD**2
    sampling = float(quantile(0.025, freedom)) * math.sqrt(squares / freedom * (1 / work.gpus + 1 / len(watts)))
    # The sensors are those of the GPUs that were measured.
    of_board = float(settings.sensor.variance(np.array(energy_j), np.array(gpu_s)))
    over_boards, sampling_j2 = np.array(of_board / len(watts)), (sampling * energy_j / NORMAL_95) ** 2
    low, high = settings.sensor.ends(np.array(energy_j), np.array(gpu_s), over_boards, sampling_j2)
    cluster, workload, model, limit_w = defaults.select("cluster", "workload", "model", "default_w").row(0)
    host_j = (number_at(settings, "host_w", cluster, at_ns) or 0.0) * gpu_s
    until = at_ns + round(work.time_s * 1e9)
    rates = rates_between(settings, at_ns, until, [cluster])
    bounds = np.array([at_ns, *cuts(rates), until], "datetime64[ns]")
    shares = np.diff(bounds).astype(np.float64) / (work.time_s * 1e9)
    hours = pl.DataFrame({"began": bounds[:-1], "ended": bounds[1:], "energy_j": energy_j * shares,
                          "measured_host_j": host_j * shares})  # fmt: skip
    hours = hours.with_columns(cluster=pl.lit(cluster), gpu=pl.lit(None, pl.String), share=pl.lit(1.0))
    bill = priced(hours, rates, settings)
    grams, money = (None if bill[name].null_count() else float(bill[name].sum()) for name in ("co2e_g", "cost"))
    return Ran(
        cluster, (model,), work.gpus, work.time_s, gpu_s, energy_j, energy_j + float(low), energy_j + float(high),
        idle_j=0.0, busy=1.0, use="any", workload=workload, limit_w=limit_w, co2e_g=grams, cost=money, host_j=host_j,
    )  # fmt: skip
