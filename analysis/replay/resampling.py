"""Another trace of the same kind: the jobs of one drawn again, so that a gain is not that of one order of jobs alone.

Drawn are blocks of neighbouring jobs, each job with the time since the one before it, from a trace whose end is joined
to its begin (circular block bootstrap). So bursts, and the many like jobs of one user, stay together; what is longer
than a block, such as day and night, does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .job import Trace


def resampled(trace: Trace, random: np.random.Generator) -> Trace:
    """As many jobs as the trace has, in blocks of the square root of their number."""
    jobs = trace.jobs
    n = len(jobs)
    block = math.ceil(math.sqrt(n))
    begins = random.integers(n, size=-(-n // block))
    places = ((begins[:, None] + np.arange(block)) % n).ravel()[:n].tolist()
    submit = np.array([job.submit_s for job in jobs])
    gaps = np.diff(submit, prepend=submit[0])
    gaps[0] = (submit[-1] - submit[0]) / max(1, n - 1)  # of the joint: nothing came before the first job
    since = gaps[places]
    since[0] = submit[0]
    times = np.cumsum(since)
    drawn = []
    for number, (place, time) in enumerate(zip(places, times.tolist(), strict=True), 1):
        job = jobs[place]
        deadline_s = None if job.deadline_s is None else job.deadline_s - job.submit_s + time
        name = f"{job.name}, draw {number}"  # a job may be drawn twice, and no two may have one name
        drawn.append(replace(job, name=name, submit_s=time, deadline_s=deadline_s))
    return replace(trace, jobs=tuple(drawn))
