"""What a workload takes on some GPUs, before any job has run: at the default power limit, and under caps.

It stands on runs of the workload in the store: those at the default limit say what a GPU draws, and its own curve
(`power_classes.curve_of_runs`) what a cap does.
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
from ...power_classes import at_default, curve_of_runs, curves, own_runs, sweep
from ...statistics.student import quantile
from ..carbon.billing import co2_and_cost, cuts
from ..carbon.dated import steps_of
from ..carbon.settings import Settings, find_settings
from .quoted import DEADLINE_S
from .quoting import CAPS, Option, Quote, Ran, as_it_ran, caps, starts, with_pareto

if TYPE_CHECKING:
    from ....store import Store

SPREAD, SPREAD_GPUS = 0.02, 4
"""How far GPUs of a model are taken to differ in power (standard deviation, as a share), beside those that were
measured: counted as so many further GPUs. Healthy GPUs of a model usually differ by 1 to 3 %."""
ONE_GPU = (
    "{workload} ran at the default limit on one GPU of {model}: others are taken to differ from it by {spread:.0f} %"
)
NO_CURVE = (
    "{workload} did not run under enough power limits on {model}, so its caps are from other workloads, if from any; "
    "`whorl tune {workload} --store {root} --max-slowdown 5%` measures it"
)


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


@dataclass(frozen=True)
class WorkloadQuoted:
    """A future job, and its quotes."""

    work: FutureJob
    ran: Ran
    """What it takes at the default limit."""
    measured: int
    """GPUs that ran the workload at the default limit."""
    quotes: Sequence[Quote]
    settings: Settings
    notes: Sequence[str]

    job = None
    ends = (None, None)


def quote_workload(
    store: Store,
    work: FutureJob,
    *,
    settings: Settings | str | Path | None = None,
    deadline_s: float = DEADLINE_S,
    now: datetime | None = None,
) -> WorkloadQuoted:
    """What a workload takes on GPUs of a model at the default power limit, under caps, and at another hour.

    Grams and money are those of a start `now` (UTC). Raises InputError where no run of the workload at the default
    limit has a time and an energy, and where the model or the cluster is not clear.
    """
    if work.gpus < 1 or not 0 < work.time_s < math.inf:
        raise InputError(f"a job has at least one GPU and takes some time, not {work.gpus} GPUs and {work.time_s:g} s")
    workload = plain_workload(work.workload)
    runs = own_runs(store, cluster=work.cluster, workload=workload).filter(pl.col("workload") == workload)
    runs = _of_one(_of_one(runs, "cluster", work.cluster, workload), "model", work.model, workload)
    defaults = runs.filter(at_default())
    if defaults.is_empty():
        raise InputError(
            f"{store.root} has no run of {workload} at the default power limit: "
            f"`whorl tune {workload} --store {store.root} --max-slowdown 5%` measures it"
        )
    stated = find_settings(store.root, settings)
    at_ns = nanoseconds(datetime.now(UTC) if now is None else now)
    ran = _at_default(replace(work, workload=workload), defaults, stated, at_ns)
    itself = curve_of_runs(runs)
    [model], measured = ran.models, defaults["gpu"].n_unique()
    named = {"workload": workload, "model": model, "root": store.root, "spread": 100 * SPREAD}
    notes = [ONE_GPU.format(**named)] if measured == 1 else []
    notes += [NO_CURVE.format(**named)] if itself is None else []
    first = replace(
        as_it_ran(ran), option=Option.DEFAULT, what=f"{ran.limit_w:.0f} W", basis=f"{workload} itself", n=measured
    )
    quotes = [first, *caps(ran, curves(sweep(store, cluster=ran.cluster)), itself, shares=work.shares)]
    quotes += starts(ran, stated, at_ns, at_ns + round(deadline_s * 1e9))
    return WorkloadQuoted(work, ran, measured, with_pareto(quotes), stated, notes)


def _of_one(runs: pl.DataFrame, column: str, name: str | None, workload: str) -> pl.DataFrame:
    """The rows of one cluster or model: of that name, of the only one with such a part in its name, or of the only one
    there is."""
    names = sorted(runs[column].drop_nulls().unique())
    if name is not None:
        fitting = [known for known in names if name.lower() in known.lower()]
        exact = [known for known in names if known == name] or fitting
        if len(exact) != 1 and names:
            having = ", ".join(names)
            raise InputError(f"{workload} ran on the {column}s {having}: --{column} {name} is not clear among these")
        names = exact
    if len(names) > 1:
        raise InputError(f"{workload} ran on several {column}s ({', '.join(names)}): choose one with --{column}")
    return runs.filter(pl.col(column).is_in(names))


def _at_default(work: FutureJob, defaults: pl.DataFrame, settings: Settings, at_ns: int) -> Ran:
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
    cluster, model = str(defaults["cluster"][0]), str(defaults["model"][0])
    grams, money, host_j = _billed(energy_j, gpu_s, work.time_s, settings, cluster=cluster, at_ns=at_ns)
    return Ran(
        cluster, (model,), work.gpus, work.time_s, gpu_s, energy_j, energy_j + float(low), energy_j + float(high),
        idle_j=0.0, busy=1.0, use="any", workload=work.workload,
        limit_w=float(defaults["default_w"].median()),  # type: ignore[arg-type]
        co2e_g=grams, cost=money, host_j=host_j,
    )  # fmt: skip


def _billed(
    energy_j: float, gpu_s: float, time_s: float, settings: Settings, *, cluster: str, at_ns: int
) -> tuple[float | None, float | None, float]:
    """Grams and money of energy that is used evenly from an instant on, and the energy of the rest of the nodes."""
    until = at_ns + round(time_s * 1e9)
    watts = float(steps_of(settings.host_w, cluster).at(np.array([at_ns]))[0])
    host_j = 0.0 if math.isnan(watts) else watts * gpu_s
    bounds = np.array([at_ns, *cuts(settings, at_ns, until, [cluster]).tolist(), until], np.int64)
    shares = np.diff(bounds) / (until - at_ns)
    kind = pl.Datetime("ns")
    pieces = pl.DataFrame(
        {
            "cluster": [cluster] * len(shares), "gpu": [None] * len(shares), "share": 1.0,
            "began": pl.Series(bounds[:-1]).cast(kind), "ended": pl.Series(bounds[1:]).cast(kind),
            "energy_j": energy_j * shares, "host_j": host_j * shares,
        },
        schema_overrides={"gpu": pl.String},
    )  # fmt: skip
    bill = co2_and_cost(pieces, settings)
    grams, money = (None if bill[name].null_count() else float(bill[name].sum()) for name in ("co2e_g", "cost"))
    return grams, money, host_j
