"""Whether a trace can be replayed on a fleet: one sentence for each thing that is wrong."""

from __future__ import annotations

import math
from itertools import pairwise

from ...errors import InputError
from .fleet import Fleet
from .job import Job, Trace


def check_trace(trace: Trace, fleet: Fleet) -> None:
    """Raise `InputError` for a trace without jobs, out of order, with a name twice, or with a job that cannot be."""
    if not trace.jobs:
        raise InputError(f"the trace {trace.name} has no jobs")
    for one, then in pairwise(trace.jobs):
        if then.submit_s < one.submit_s:
            raise InputError(f"job {then.name} comes after {one.name} in the trace but was submitted before it")
    seen: set[str] = set()
    for job in trace.jobs:
        if job.name in seen:
            raise InputError(f"two jobs of the trace are named {job.name}")
        seen.add(job.name)
        check_job(job, fleet)


def check_job(job: Job, fleet: Fleet) -> None:
    """Raise `InputError` for a job that cannot run on the fleet at all."""
    if job.gpus < 1:
        raise InputError(f"job {job.name} wants {job.gpus} GPUs: it must want at least one")
    if job.gpus > len(fleet):
        raise InputError(f"job {job.name} wants {job.gpus} GPUs; the fleet has {len(fleet)}")
    if not (math.isfinite(job.ideal_s) and job.ideal_s > 0):
        raise InputError(f"job {job.name} runs for {job.ideal_s:g} s: it must run for more than 0 s")
    if not (math.isfinite(job.submit_s) and job.submit_s >= 0):
        raise InputError(f"job {job.name} was submitted at {job.submit_s:g} s: the time must be at least 0")
    if job.limit_s is not None and not job.limit_s > 0:
        raise InputError(f"job {job.name} has a limit of {job.limit_s:g} s: it must be more than 0 s")
    if job.workload and job.workload not in fleet.actual:
        known = ", ".join(sorted(fleet.actual)) or "none"
        raise InputError(f"job {job.name} is of class {job.workload!r}; the fleet has scores of: {known}")
