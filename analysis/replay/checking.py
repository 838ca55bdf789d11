"""Whether a trace can be replayed in a world, and what a policy answers be done: one sentence for each fault."""

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
from .jobs import Allocation, Job, Trace

if TYPE_CHECKING:
    from .world import World


@contextmanager
def naming(trace: Trace) -> Iterator[None]:
    """An `InputError` inside begins with the name of the trace, without which the name of a job tells little."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{trace.name}: {error}") from error


def check_trace(trace: Trace, world: World) -> None:
    """Raise `InputError` for a trace without jobs, out of order, with a name twice, or with a job that cannot be."""
    if not trace.jobs:
        raise InputError("the trace has no jobs")
    check_job(max(trace.jobs, key=lambda job: job.gpus), world)  # the widest: it says how large a fleet must be
    for earlier, later in pairwise(trace.jobs):
        if later.submit_s < earlier.submit_s:
            raise InputError(f"job {later.name} comes after {earlier.name} in the trace but was submitted before it")
    names: set[str] = set()
    for job in trace.jobs:
        if job.name in names:
            raise InputError(f"two jobs of the trace are named {job.name}")
        names.add(job.name)
        check_job(job, world)


def check_job(job: Job, world: World) -> None:
    """Raise `InputError` for a job that cannot run in the world at all."""
    gpus = len(world.fleet)
    if job.gpus < 1:
        raise InputError(f"job {job.name} wants {job.gpus} GPUs: it must want at least one")
    fewest = job.widths[0] if job.widths else job.gpus
    if fewest > gpus:
        raise InputError(
            f"job {job.name} asks for {fewest:,} GPUs and the fleet has {gpus:,}; replay it on a larger fleet "
            "(--nodes, --gpus-per-node), or leave the job out"
        )
    if not (math.isfinite(job.ideal_s) and job.ideal_s > 0):
        raise InputError(f"job {job.name} runs for {job.ideal_s:g} s: it must run for more than 0 s")
    if not (math.isfinite(job.submit_s) and job.submit_s >= 0):
        raise InputError(f"job {job.name} was submitted at {job.submit_s:g} s: the time must be at least 0")
    if job.limit_s is not None and not job.limit_s > 0:
        raise InputError(f"job {job.name} has a limit of {job.limit_s:g} s: it must be more than 0 s")
    if job.workload and job.workload not in world.rates.scores:
        classes = ", ".join(sorted(world.rates.scores)) or "none"
        raise InputError(f"job {job.name} is of class {job.workload!r}; the fleet has scores of: {classes}")
    if job.widths is not None and not 1 <= job.widths[0] <= job.gpus <= job.widths[1]:
        raise InputError(
            f"job {job.name} can work on {job.widths[0]} to {job.widths[1]} GPUs and asks for {job.gpus}: its own "
            "width must be one of these"
        )
    work_s = math.fsum(piece.work_s for piece in job.pieces)
    for piece in job.pieces:
        if not (0 < piece.work_s < math.inf and 0 < piece.epochs < math.inf):
            raise InputError(
                f"job {job.name} has a piece of {piece.epochs:g} epochs in {piece.work_s:g} s: both must be more than 0"
            )
    if job.pieces and not math.isclose(work_s, job.ideal_s, rel_tol=1e-6):
        raise InputError(f"the pieces of job {job.name} add up to {work_s:g} s and it runs for {job.ideal_s:g} s")
    if job.stages:
        shares, widest = math.fsum(share for _, share in job.stages), max(width for width, _ in job.stages)
        if not math.isclose(shares, 1.0, abs_tol=1e-6) or widest != job.gpus:
            raise InputError(
                f"the stages of job {job.name} have shares that add up to {shares:g} and at most {widest} GPUs; they "
                f"must add up to 1, and the widest has its {job.gpus} GPUs"
            )


@contextmanager
def failing(policy: str, now_s: float) -> Iterator[None]:
    """Whatever a policy raises inside, even an exit of the program, is an `InputError` that names it and the time."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"the policy {policy} fails at {now_s:g} s: {described(error)}") from error


def described(error: BaseException) -> str:
    """The type of an error, and its text if it has any."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# What policies answer. `grant` begins each sentence: who gives what to which job.


def gpu_numbers(grant: str, gpus: object, count: int) -> tuple[int, ...]:
    """What a policy gives as GPUs, as plain numbers. Raises `InputError` for anything but numbers of the fleet's."""
    try:
        numbers = tuple(map(index, gpus))  # type: ignore[call-overload]
    except TypeError:
        raise InputError(f"{grant} {shortened(gpus)}, which is no list of GPU numbers") from None
    if not numbers:
        raise InputError(f"{grant} no GPUs; leave it out, or stop it by None")
    if min(numbers) < 0 or max(numbers) >= count:
        outside = next(gpu for gpu in numbers if not 0 <= gpu < count)
        raise InputError(f"{grant} the GPU {outside}; the fleet has 0 to {count - 1}")
    if len(set(numbers)) < len(numbers):
        twice = next(gpu for gpu in numbers if numbers.count(gpu) > 1)
        raise InputError(f"{grant} the GPU {twice} twice")
    return numbers


def checked_allocation(grant: str, job: Job, allocation: object, count: int) -> Allocation:
    """What a policy gives a job, on a fleet of `count` GPUs; whether the GPUs are free is not looked at.

    Raises `InputError` for a wrong type, a width that the job does not have, and clocks and depths that cannot be.
    """
    if not isinstance(allocation, Allocation):
        raise InputError(f"{grant} {shortened(allocation)}, which is neither an Allocation nor None")
    gpus = gpu_numbers(grant, allocation.gpus, count)
    fewest, most = job.widths or (job.gpus, job.gpus)
    if not fewest <= len(gpus) <= most:
        widths = f"{fewest} to {most}" if job.widths else f"{job.gpus}"
        raise InputError(f"{grant} {len(gpus)} GPUs; it wants {widths}")
    for name, values in (("clock", allocation.clocks), ("depth", allocation.depths)):
        if not isinstance(values, Sequence) or len(values) not in (0, len(gpus)):
            raise InputError(f"{grant} the {name}s {shortened(values)}; there must be one for each of its GPUs")
        for value in values:
            if not (isinstance(value, Real) and 0 < float(value) <= 1):
                raise InputError(f"{grant} the {name} {value}: it must be a number > 0 and <= 1")
    if allocation.depths and max(allocation.depths) != 1:
        raise InputError(f"{grant} depths of at most {max(allocation.depths):g}: the deepest must be 1")
    return Allocation(gpus, bool(allocation.shared), tuple(allocation.clocks), tuple(allocation.depths))


def checked_answers(policy: str, now_s: float, changes: object, again_s: object) -> tuple[Mapping[int, object], float]:
    """The parts of a decision. Raises `InputError` for changes that are no mapping, and a time that is not to come."""
    if not isinstance(changes, Mapping):
        raise InputError(
            f"the policy {policy} decides {shortened(changes)} at {now_s:g} s; changes must be a dict of job numbers "
            "and allocations"
        )
    if not isinstance(again_s, Real) or not float(again_s) > now_s:
        raise InputError(
            f"the policy {policy} asks at {now_s:g} s to be woken up at {shortened(again_s)}: it must be a later time"
        )
    return changes, float(again_s)
