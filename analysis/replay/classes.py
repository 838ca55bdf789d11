"""Which workload's scores apply to which jobs: by the options, else by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...errors import InputError
from ...store.names import find_workload
from .job import Trace

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
