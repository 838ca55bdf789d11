"""Whether differences repeat in the runs of a workload: by GPU, by job, and between halves of the runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..runs.columns import Runs, numbers
from ..statistics import bootstrap
from ..statistics.correlation import correlate
from ..statistics.ordering import Floats, Ints, ascending, bounds, by_group, medians
from ..statistics.repeatability import Moments, Repeatability, icc
from ..statistics.spread import Spread

JOBS_COUPLE = 0.5
"""The ICC by job from which the runs of a job are near-copies of one another."""


def icc_of(moments: Moments, values: Floats, starts: Ints, fences: Spread, by: str) -> Repeatability:
    """The ICC with its trimmed value. `values`: laid out by group."""
    found = icc(moments, by)
    if found.value is None:
        return found
    inside = (values >= fences.lower) & (values <= fences.upper)
    kept = np.add.reduceat(inside.astype(np.intp), starts[:-1])
    kept_starts = np.concatenate(([0], np.cumsum(kept[kept > 0])))
    return replace(found, trimmed=icc(Moments.of(values[inside], kept_starts), by).value)


def with_interval(found: Repeatability, interval: bootstrap.Interval | None) -> Repeatability:
    return found if interval is None or found.value is None else replace(found, low=interval[0], high=interval[1])


def by_job(runs: Runs, fences: Spread) -> tuple[Repeatability, Moments | None]:
    """The ICC by job and the jobs' moments; neither when few runs share their job with another GPU."""
    if "job_id" not in runs.frame.columns or runs.frame["job_id"].null_count() == runs.frame.height:
        return Repeatability("job", reason="no run names its job"), None
    known = runs.frame["job_id"].is_not_null().to_numpy()
    job, names = numbers(runs.frame["job_id"].drop_nulls())
    gpu, value = runs.gpu[known], runs.value[known]
    layout = by_group(job, by_group(gpu, ascending(value), len(runs.names)), len(names))
    job, gpu, value = job[layout], gpu[layout], value[layout]
    starts = bounds(job, len(names))
    # Inside a job the GPUs ascend, so a job with several has different ones first and last.
    several = gpu[starts[:-1]] != gpu[starts[1:] - 1]
    if not several.any():
        return Repeatability("job", groups=len(names), reason="no job holds several GPUs"), None
    # A chance repeat of one id among thousands would otherwise pass for a sample of jobs.
    if 2 * int(np.diff(starts)[several].sum()) < len(value):
        reason = "fewer than half of the runs share their job with another GPU"
        return Repeatability("job", groups=len(names), reason=reason), None
    moments = Moments.of(value, starts)
    return icc_of(moments, value, starts, fences, "job"), moments


def split_half(runs: Runs, order: Ints) -> dict[str, Any]:
    """The rank correlation of the medians of each GPU's even and odd runs, in the order in which they began."""
    gpus, n = len(runs.names), len(runs.value)
    sequence = np.arange(n)
    if "began" in runs.frame.columns:
        sequence = runs.frame["began"].arg_sort(nulls_last=True).to_numpy().astype(np.intp)
    layout = by_group(runs.gpu, sequence, gpus)
    starts = bounds(runs.gpu, gpus)
    odd = np.empty(n, dtype=np.intp)
    odd[layout] = (np.arange(n) - np.repeat(starts[:-1], np.diff(starts))) & 1
    half = runs.gpu * 2 + odd
    pair = medians(runs.value[by_group(half, order, 2 * gpus)], bounds(half, 2 * gpus)).reshape(gpus, 2)
    pair = pair[np.isfinite(pair).all(axis=1)]
    if len(pair) == 0:
        return {"spearman": None, "gpus": 0, "reason": "no GPU has two runs"}
    found = correlate(pair[:, 0], pair[:, 1], "half")
    result: dict[str, Any] = {"spearman": found.spearman, "gpus": len(pair)}
    return result if found.reason is None else {**result, "reason": found.reason}
