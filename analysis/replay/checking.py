"""Whether a trace can be replayed on a fleet, and what a policy answers be done: one sentence for each fault."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from numbers import Real
from operator import index
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from ...errors import InputError
from .fleet import Fleet
from .job import Allocation, Job, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .state import State


@contextmanager
def naming(trace: Trace) -> Iterator[None]:
    """An `InputError` inside begins with the name of the trace, without which the name of a job tells little."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{trace.name}: {error}") from error


def check_trace(trace: Trace, fleet: Fleet) -> None:
    """Raise `InputError` for a trace without jobs, out of order, with a name twice, or with a job that cannot be."""
    if not trace.jobs:
        raise InputError("the trace has no jobs")
    check_job(max(trace.jobs, key=lambda job: job.gpus), fleet)  # the widest first: it says how large a fleet must be
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
        raise InputError(
            f"job {job.name} asks for {job.gpus:,} GPUs and the fleet has {len(fleet):,}; replay it on a larger fleet "
            "(--nodes, --gpus-per-node), or leave the job out"
        )
    if not (math.isfinite(job.ideal_s) and job.ideal_s > 0):
        raise InputError(f"job {job.name} runs for {job.ideal_s:g} s: it must run for more than 0 s")
    if not (math.isfinite(job.submit_s) and job.submit_s >= 0):
        raise InputError(f"job {job.name} was submitted at {job.submit_s:g} s: the time must be at least 0")
    if job.limit_s is not None and not job.limit_s > 0:
        raise InputError(f"job {job.name} has a limit of {job.limit_s:g} s: it must be more than 0 s")
    if job.workload and job.workload not in fleet.actual:
        known = ", ".join(sorted(fleet.actual)) or "none"
        raise InputError(f"job {job.name} is of class {job.workload!r}; the fleet has scores of: {known}")


# What policies answer


def placed(policy: str, job: Job, given: object, count: int) -> tuple[int, ...]:
    """The GPUs that `place` gave a job, ascending, on a fleet of `count` GPUs; whether they are free is not looked at.

    Raises `InputError` for anything but as many numbers of GPUs as the job wants.
    """
    gpus = tuple(sorted(_numbers(policy, job, given)))
    if len(gpus) != job.gpus:
        raise InputError(f"the policy {policy} gives job {job.name} {len(gpus)} GPUs; it wants {job.gpus}")
    if gpus[0] < 0 or gpus[-1] >= count:
        other = gpus[0] if gpus[0] < 0 else gpus[-1]
        raise InputError(f"the policy {policy} gives job {job.name} the GPU {other}; the fleet has 0 to {count - 1}")
    return gpus


def not_free(policy: str, job: Job, gpus: Sequence[int], free: NDArray[np.bool_], available: NDArray[np.bool_]) -> str:
    """What is wrong with the GPUs that `place` gave a job, one of which is not free or stands twice."""
    of = f"the policy {policy} gives job {job.name} the GPU"
    for one, then in pairwise(gpus):
        if one == then:
            return f"{of} {one} twice"
    taken = next(gpu for gpu in gpus if not free[gpu])
    return f"{of} {taken}, which " + ("another job holds" if available[taken] else "is not available")


def arranged(policy: str, given: object, asked: Sequence[int]) -> list[int]:
    """The order in which `arrange` lets jobs choose. Raises `InputError` if these are not the jobs it was asked for."""
    order = list(given) if isinstance(given, Sequence) else []
    if sorted(order) != sorted(asked):
        raise InputError(
            f"the policy {policy} arranges jobs number {shortened(given)}; it was asked for {shortened(list(asked))}"
        )
    return order


def granted(
    policy: str, decided: object, states: Mapping[int, State], available: NDArray[np.bool_]
) -> dict[int, Allocation]:
    """What `decide` grants each job, by number. Raises `InputError` where that cannot be."""
    if not isinstance(decided, Mapping):
        raise InputError(
            f"the policy {policy} decides {shortened(decided)}; it must give a dict of job numbers and allocations"
        )
    found: dict[int, Allocation] = {}
    holders: dict[int, tuple[int, bool]] = {}
    for number, allocation in decided.items():
        if number not in states:
            raise InputError(f"the policy {policy} gives GPUs to job number {number}, which is not in the system")
        job = states[number].job
        of = f"the policy {policy} gives job {job.name}"
        if not isinstance(allocation, Allocation):
            raise InputError(f"{of} {shortened(allocation)}, which is no Allocation")
        gpus = _numbers(policy, job, allocation.gpus)
        if not gpus or any(one >= then for one, then in pairwise(gpus)):
            raise InputError(f"{of} no GPUs, or not in ascending order")
        rate = allocation.rate
        if not (isinstance(rate, Real) and 0 < rate < math.inf):
            raise InputError(f"{of} the rate {rate}: it must be a number > 0")
        for gpu in gpus:
            if not (0 <= gpu < len(available) and available[gpu]):
                raise InputError(f"{of} the GPU {gpu}, which is not available")
            if gpu in holders and not (allocation.shared and holders[gpu][1]):
                other = states[holders[gpu][0]].job.name
                raise InputError(f"the policy {policy} gives GPU {gpu} to jobs {other} and {job.name}")
            holders[gpu] = (number, allocation.shared)
        found[number] = Allocation(gpus, rate, allocation.shared)
    return found


def _numbers(policy: str, job: Job, given: object) -> tuple[int, ...]:
    if isinstance(given, range):
        return tuple(given)
    try:
        return tuple(map(index, given))  # type: ignore[call-overload]
    except TypeError:
        raise InputError(
            f"the policy {policy} gives job {job.name} {shortened(given)}, which is no list of GPU numbers"
        ) from None
