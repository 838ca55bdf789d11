"""Burst-parallel jobs of a trace: the plans of `whorl advise burst --json` put into the jobs of a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from .job import Job, Trace

SCHEMA = "whorl.advise.burst/1"


@dataclass(frozen=True)
class JobPlan:
    """How a job of so many GPUs trains burst-parallel."""

    gpus: int
    """The width of the jobs that the plan is for, which train data-parallel in the trace."""
    batch: int
    stages: tuple[tuple[int, float], ...]
    """(GPUs, share of the iteration), in order."""
    time: float
    """An iteration, beside that of data parallelism on all of the GPUs."""


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
