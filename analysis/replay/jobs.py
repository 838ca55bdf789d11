"""The jobs of a trace: GPUs for a time, all at once (gang scheduling); and what a policy grants them.

`assign` says which workload's scores apply to each, `resampled` draws another trace of the same kind, and `with_plan`
puts the plans of `whorl advise burst --json` into the jobs of a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...store.names import find_workload


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a job in which it behaves alike, such as the epochs that it trains with one batch size."""

    work_s: float  # seconds alone, at the job's own width, on GPUs of score 1 within one node; more than 0
    epochs: float = 1.0
    batch: int | None = None  # the batch size; None where it is not known


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace."""

    name: str  # the trace's own name of it, unique
    submit_s: float  # after the trace's first instant
    gpus: int  # its own width
    ideal_s: float  # seconds alone, at its own width, on GPUs of score 1 within one node; more than 0
    workload: str = ""  # the class whose scores apply; "" is not sensitive: every GPU has score 1 for it
    limit_s: float | None = None
    """The run time at which the job is ended, done or not, as Slurm's time limit; None: nothing ends it."""
    model: str = ""  # as the trace says it
    pieces: tuple[Piece, ...] = ()  # In order; their work adds up to `ideal_s`. (): one piece of one kind.
    widths: tuple[int, int] | None = None  # the fewest and the most GPUs that it can work on; None: its own width only
    deadline_s: float | None = None  # the instant, on the trace's clock, by which it should have ended
    stages: tuple[tuple[int, float], ...] = ()
    """Of a burst-parallel job, in order: (GPUs, share of the iteration). The first GPU works in all of them."""

    @property
    def batch(self) -> int | None:
        """The batch size that it begins with."""
        return self.pieces[0].batch if self.pieces else None


def job_type(model: str, batch: int | None) -> str:
    """What tables of measured pairs call such a job, as Gavel does: `ResNet-18 (batch size 32)`, or its model alone."""
    return model if batch is None else f"{model} (batch size {batch})"


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace by submit time; ties stand in the file's order."""

    name: str
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()  # what reading left out or assumed, in sentences


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a policy grants a job. How fast that goes is the world's to say."""

    gpus: tuple[int, ...]  # in the order of their roles; no GPU twice
    shared: bool = False  # other jobs may hold the same GPUs, if they share too
    clocks: tuple[float, ...] = ()  # of each GPU, relative to the default clock, at most 1; (): all 1
    depths: tuple[float, ...] = ()
    """Of each GPU of a job under structured partial backpropagation: the share of the layers that it goes back through.

    The largest is 1. (): all 1.
    """


INSENSITIVE = "none"  # what a model is set to whose jobs take the same time on every GPU
OTHERS = "*"
_LISTED = 12  # models named in a sentence
_STANDS_FOR = {  # what the PAL study measured for the class of each model of its traces
    "resnet50": "resnet",
    "BERT": "bert",
    "DCGAN": "bert",
    "GPT2": "bert",
    "vgg19": "bert",
    "PointNet": "pagerank",
}


def assign(traces: Sequence[Trace], workloads: Sequence[str], chosen: Mapping[str, str] | None = None) -> list[Trace]:
    """The traces with the workload of every job.

    `chosen` says workload by model, with `*` for all other models and the workload `none` for jobs that take the
    same time everywhere. Other models have the workload of their own name, case and a trailing number aside
    (resnet50 is resnet where nothing else could be meant), those of the PAL study else the workload that stands
    for their class there, and any the only workload there is. `workloads` are those that are measured; without any,
    all jobs are insensitive.

    Raises:
        InputError: a workload is not measured, a model is in no trace, or a model's workload is not known.
    """
    chosen = {model: find_workload(workload, workloads) for model, workload in (chosen or {}).items()}
    models = list(dict.fromkeys(job.model for trace in traces for job in trace.jobs))
    for model, choice in chosen.items():
        if choice not in (*workloads, INSENSITIVE):
            measured = f"there is {', '.join(workloads)}" if workloads else "without a store none is measured"
            raise InputError(f"--class {model}={choice}: no workload is called {choice!r}; {measured}, or none")
        if model not in (*models, OTHERS):
            raise InputError(f"--class {model}={choice}: no job has the model {model!r}; there is {_listed(models)}")
    if not workloads:
        return list(traces)
    workload_of: dict[str, str] = {}
    stand_ins: list[str] = []
    unknown: list[str] = []
    for model in models:
        workload = chosen.get(model, chosen.get(OTHERS, _alike(model, workloads)))
        if workload is None and len(workloads) == 1:
            workload = workloads[0]
        elif workload is None:
            workload = _alike(_STANDS_FOR.get(model, ""), workloads)
            (unknown if workload is None else stand_ins).append(model)
        workload_of[model] = "" if workload is None or workload == INSENSITIVE else workload
    if unknown:
        example = f"--class '{unknown[0] or OTHERS}={workloads[0]}'"
        raise InputError(
            f"no measured workload matches {_listed(unknown)}. Measured are: {', '.join(workloads)}. Choose one with "
            f"{example} (repeatable; `*` is all other models, `none` the same time on every GPU)"
        )
    return [_assigned(trace, workload_of, stand_ins) for trace in traces]


def _assigned(trace: Trace, workload_of: Mapping[str, str], stand_ins: Sequence[str]) -> Trace:
    jobs = tuple(replace(job, workload=workload_of[job.model]) for job in trace.jobs)
    models = list(dict.fromkeys(job.model for job in jobs))
    pairs = [f"{model or '(no model)'} like {workload_of[model] or 'nothing (insensitive)'}" for model in models]
    notes = [f"jobs run like these workloads: {_listed(pairs, '; ')}"]
    if present := [model for model in stand_ins if model in models]:
        notes.append(
            f"{_listed(present)}: no workload of that name was measured, so the one that stands for the class in the "
            "PAL study is used (change this with --class)"
        )
    return replace(trace, jobs=jobs, notes=(*trace.notes, *notes))


def _alike(model: str, workloads: Sequence[str]) -> str | None:
    """The only workload of this name, exactly or nearly."""
    for spelling in (str, str.casefold, _bare):
        fitting = [workload for workload in workloads if spelling(workload) == spelling(model)]
        if model and len(fitting) == 1:
            return fitting[0]
    return None


def _bare(name: str) -> str:
    return name.casefold().rstrip("0123456789").rstrip("-_ ") or name.casefold()


def _listed(models: Sequence[str], parted: str = ", ") -> str:
    names = parted.join(model or "(no model)" for model in models[:_LISTED])
    return f"{names} and {len(models) - _LISTED} more" if len(models) > _LISTED else names


def resampled(trace: Trace, random: np.random.Generator) -> Trace:
    """Another trace of the same kind: the jobs of one drawn again, so that a gain is not that of one order of jobs.

    As many jobs as the trace has are drawn, in blocks of the square root of their number: neighbouring jobs, each with
    the time since the one before it, from a trace whose end is joined to its begin (circular block bootstrap). So
    bursts, and the many like jobs of one user, stay together; what is longer than a block, such as day and night, does
    not.
    """
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


SCHEMA = "whorl.advise.burst/1"


@dataclass(frozen=True)
class JobPlan:
    """How a job of so many GPUs trains burst-parallel."""

    gpus: int  # the width of the jobs that the plan is for, which train data-parallel in the trace
    batch: int
    stages: tuple[tuple[int, float], ...]  # (GPUs, share of the iteration), in order
    time: float  # an iteration, beside that of data parallelism on all of the GPUs


def read_plans(path: str | Path) -> tuple[JobPlan, ...]:
    """The plans in an answer of `whorl advise burst --json`; those of data parallelism are passed over.

    Raises `InputError` for a file that is none.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        schema = document["schema"]
        plans = [_plan(row) for row in document["rows"] if row["limit"] != "data-parallel"] if schema == SCHEMA else []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(f"{path} is no answer of `whorl advise burst --json`") from error
    if not plans:
        raise InputError(f"{path} has no plan with a limit: make it with `whorl advise burst --json --limit 2`")
    return tuple(plans)


def _plan(row: Mapping[str, Any]) -> JobPlan:
    stages = tuple((int(gpus), float(share)) for gpus, share in row["stages"])
    parallel_ms = row["data_parallel_ms"]
    time = 1.0 if parallel_ms is None else float(row["time_ms"]) / float(parallel_ms)
    if not (0 < time < math.inf and math.isclose(sum(share for _, share in stages), 1.0, abs_tol=1e-6)):
        raise ValueError
    return JobPlan(int(row["gpus"]), int(row["batch"]), stages, time)


def with_plan(trace: Trace, plans: Mapping[str, Sequence[JobPlan]]) -> Trace:
    """The trace with the jobs of some models as burst-parallel ones. `plans`: model -> plans, as `read_plans` has them.

    Of the plans for a job's width, and for its batch size where the trace says it, the fastest is taken. In the trace
    the job trains data-parallel: so its work shrinks with the time of an iteration. A note says how many jobs of these
    models stay as they are, as no plan is for their width. Raises `InputError` for a model that no job has.
    """
    unknown = sorted(set(plans) - {job.model for job in trace.jobs})
    if unknown:
        models = ", ".join(sorted({job.model for job in trace.jobs if job.model})) or "none"
        raise InputError(f"{trace.name} has no job of model {unknown[0]!r}, which has a burst plan; it has {models}")
    jobs = tuple(_planned(job, plans.get(job.model, ())) for job in trace.jobs)
    left = sum(job.model in plans and job.gpus > 1 and not job.stages for job in jobs)
    note = f"{left:,} jobs of models with a burst plan stay data-parallel: no plan is for their width and batch size"
    return replace(trace, jobs=jobs, notes=(*trace.notes, note) if left else trace.notes)


def _planned(job: Job, plans: Sequence[JobPlan]) -> Job:
    fitting = [plan for plan in plans if plan.gpus == job.gpus and job.batch in (None, plan.batch)]
    plan = min(fitting, key=lambda plan: plan.time, default=None)
    width = 0 if plan is None else max(gpus for gpus, _ in plan.stages)
    if plan is None or width < 2:
        return job
    pieces = tuple(replace(piece, work_s=piece.work_s * plan.time) for piece in job.pieces)
    return replace(job, gpus=width, ideal_s=job.ideal_s * plan.time, pieces=pieces, stages=plan.stages)
