"""Schedulers, which order the queue: one key function and one row each. Ties go in order of arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InputError
from .job import Job


@dataclass(frozen=True)
class Scheduler:
    """An order of the queue: the job with the least key is served first."""

    name: str
    summary: str
    key: Callable[[Job, float], float]
    """`key(job, attained_s)`; attained is the wall time for which the job has held GPUs."""
    preempts: bool = False
    """A job may be stopped for one that is served before it."""
    by_rounds: bool = False
    """The order changes while nothing happens, so decisions need rounds."""


def _submitted(job: Job, attained_s: float) -> float:  # noqa: ARG001 (every key has the same arguments)
    return job.submit_s


def _attained(job: Job, attained_s: float) -> float:  # noqa: ARG001 (the same)
    return attained_s


def _remaining(job: Job, attained_s: float) -> float:
    """A slowed job looks closer to its end than it is, as in PAL's simulator."""
    return job.ideal_s - attained_s


SCHEDULERS = (
    Scheduler("fifo", "first come, first served", _submitted),
    Scheduler("las", "least attained service first, in wall time", _attained, preempts=True, by_rounds=True),
    Scheduler("srtf", "shortest remaining time first", _remaining, preempts=True),
)


def find_scheduler(name: str) -> Scheduler:
    """The scheduler of that name. Raises `InputError` for an unknown one."""
    for one in SCHEDULERS:
        if one.name == name.lower():
            return one
    raise InputError(f"no scheduler is named {name!r}; there are {', '.join(one.name for one in SCHEDULERS)}")
