"""Which GPUs of a workload can be distinguished. If jobs couple their GPUs, only sets of GPUs can.

The GPUs of a synchronous job finish together, so that the rows of a job are copies of its slowest GPU's time: the job
is the unit that varies. The GPUs that shared jobs are then one unit, each job one run of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..runs.columns import Runs, numbers
from ..runs.sittings import UNKNOWN, days
from ..spread.repeats import JOBS_COUPLE
from ..statistics.ordering import Floats, Ints, bounds
from ..statistics.repeatability import Moments, icc
from ..verdicts.levels import Levels, levels
from .posterior import Observed
from .prior import centres
from .sittings import Sittings, sittings

_MOST = 60.0
"""Longest log time of a run, above the usual one: larger values change nothing and would overflow."""


@dataclass(frozen=True)
class Units:
    """The units that can be distinguished, with their runs."""

    observed: Observed
    unit: Ints
    """(gpus,) the unit of each GPU; -1 where none of its runs counts."""
    coupled: bool
    crossing: int
    """Runs of jobs over several nodes, which say too little about one of them: left out."""
    sittings: Sittings
    levels: Levels
    """Their levels, as the judge has them: the measured level, and how much another sitting may differ."""


def units(runs: Runs) -> Units:
    """The units of one workload; `runs.value` positive."""
    x = np.log(runs.value)
    job = _jobs(runs)
    order = _in_time(runs)
    gpus = len(runs.names)
    crossing = 0
    unit = np.arange(gpus, dtype=np.intp)
    coupled = _coupled(x, runs.gpu, job, gpus)
    owner, block = runs.gpu, job
    at = _began(runs)
    if coupled:
        crosses = _crossing(runs, job)
        crossing = int(crosses.sum())
        kept = order[~crosses[order]]
        unit = _joined(runs.gpu[kept], job[kept], gpus)
        of_job = _as_one(x[kept], _jobs_and_single_runs(job[kept]))
        first = kept[of_job[1]]
        x, owner, block = of_job[0], unit[runs.gpu[first]], np.full(len(first), -1, dtype=np.intp)
        at = at[first]
    else:
        x, owner, block, at = x[order], owner[order], block[order], at[order]
    sat, sitting = sittings(x, owner, at)
    count = int(unit.max()) + 1
    of = levels(owner, at, x, count)
    if sat.length is not None:
        x, first = _as_one(x, sitting)
        owner, block = owner[first], block[first]
    layout = np.argsort(owner, kind="stable")
    starts = bounds(owner, count)
    x, block = x[layout], block[layout]
    level = float(np.median(centres(x, starts)))
    seen = Observed(np.clip(x - level, -_MOST, _MOST), starts, block)
    return Units(seen, unit, coupled, crossing, sat, of)


def _jobs(runs: Runs) -> Ints:
    """The number of each run's job; -1 if it used one GPU or is not known."""
    found = np.full(len(runs.value), -1, dtype=np.intp)
    if "job_id" in runs.frame.columns:
        known = runs.frame["job_id"].is_not_null().to_numpy()
        if known.any():
            found[known] = numbers(runs.frame["job_id"].drop_nulls())[0]
    return found


def _in_time(runs: Runs) -> Ints:
    if "began" not in runs.frame.columns:
        return np.arange(len(runs.value))
    found: Ints = runs.frame["began"].arg_sort(nulls_last=True).to_numpy().astype(np.intp)
    return found


def _began(runs: Runs) -> Floats:
    """When each run began, in days, or `UNKNOWN`."""
    if "began" not in runs.frame.columns:
        return np.full(len(runs.value), UNKNOWN)
    return runs.frame.select(days()).to_series().to_numpy()


def _coupled(x: Floats, gpu: Ints, job: Ints, gpus: int) -> bool:
    """Whether most runs shared a job and, set against their own GPU, went with it."""
    shared = job >= 0
    if 2 * shared.sum() < len(x):
        return False
    layout = np.argsort(gpu, kind="stable")
    starts = bounds(gpu, gpus)
    strayed = x - centres(x[layout], starts)[gpu]
    several = shared & (np.diff(starts) > 1)[gpu]
    number, names = numbers(pl.Series(job[several]).cast(pl.String))
    if len(names) == 0:
        return True  # nothing is known: to be on the safe side
    order = np.argsort(number, kind="stable")
    found = icc(Moments.of(strayed[several][order], bounds(number, len(names))), "job").value
    return found is None or found >= JOBS_COUPLE


def _crossing(runs: Runs, job: Ints) -> np.typing.NDArray[np.bool_]:
    if "node" not in runs.frame.columns:
        return np.zeros(len(job), dtype=np.bool_)
    frame = pl.DataFrame({"job": job, "node": runs.frame["node"]})
    over = (pl.col("node").n_unique().over("job") > 1) & (pl.col("job") >= 0)
    found: np.typing.NDArray[np.bool_] = frame.select(over).to_series().to_numpy()
    return found


def _joined(gpu: Ints, job: Ints, gpus: int) -> Ints:
    """The unit of each GPU: GPUs that shared a job are in one; -1 for a GPU without a run."""
    leads = np.arange(gpus)

    def root(one: int) -> int:
        while leads[one] != one:
            leads[one] = leads[leads[one]]
            one = int(leads[one])
        return one

    first: dict[int, int] = {}
    for one, its in zip(gpu.tolist(), job.tolist(), strict=True):
        if its >= 0:
            leads[root(one)] = root(first.setdefault(its, one))
    present = np.unique(gpu)
    roots = np.array([root(int(one)) for one in present], dtype=np.intp)
    found = np.full(gpus, -1, dtype=np.intp)
    found[present] = np.unique(roots, return_inverse=True)[1]
    return found


def _jobs_and_single_runs(job: Ints) -> Ints:
    """A number for each job and for each run without one."""
    return np.where(job < 0, int(job.max(initial=0)) + 1 + np.arange(len(job)), job)


def _as_one(x: Floats, key: Ints) -> tuple[Floats, Ints]:
    """One run for each `key`: the median of its rows, and its first row. In the order of the first rows."""
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    median = centres(x[order], bounds(number, len(first)))
    seen = np.argsort(first, kind="stable")
    return median[seen], first[seen]
