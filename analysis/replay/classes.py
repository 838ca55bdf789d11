"""Which workload's scores apply to which jobs: by the options, else by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...errors import InputError
from ...store.names import find_workload
from .job import Trace

INSENSITIVE = "none"  # what a model is set to whose jobs take the same time on every GPU
OTHERS = "*"
_LISTED = 12  # models named in an error
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
    for model, workload in chosen.items():
        if workload not in (*workloads, INSENSITIVE):
            known = f"there is {', '.join(workloads)}" if workloads else "without a store none is measured"
            raise InputError(f"--class {model}={workload}: no workload is called {workload!r}; {known}, or none")
        if model not in (*models, OTHERS):
            raise InputError(f"--class {model}={workload}: no job has the model {model!r}; there is {_named(models)}")
    if not workloads:
        return list(traces)
    found = {model: _workload(model, workloads, chosen) for model in models}
    unknown = [model for model, workload in found.items() if workload is None]
    if unknown:
        example = f"--class '{unknown[0] or OTHERS}={workloads[0]}'"
        raise InputError(
            f"no measured workload matches {_named(unknown)}. Measured are: {', '.join(workloads)}. Choose one with "
            f"{example} (repeatable; `*` is all other models, `none` the same time on every GPU)"
        )
    return [_assigned(trace, {model: of or "" for model, of in found.items()}, workloads, chosen) for trace in traces]


def _assigned(trace: Trace, workload: Mapping[str, str], workloads: Sequence[str], chosen: Mapping[str, str]) -> Trace:
    jobs = tuple(replace(job, workload=workload[job.model]) for job in trace.jobs)
    models = dict.fromkeys(job.model for job in jobs)
    spoken = [f"{model or '(no model)'} like {workload[model] or 'nothing (insensitive)'}" for model in models]
    more = f"; and {len(spoken) - _LISTED} more" if len(spoken) > _LISTED else ""
    notes = [f"jobs run like these workloads: {'; '.join(spoken[:_LISTED])}{more}"]
    stand_in = [model for model in models if _named_workload(model, workloads, chosen) is None and len(workloads) > 1]
    if stand_in:
        notes.append(
            f"{_named(stand_in)}: no workload of that name was measured, so the one that stands for the class in the "
            "PAL study is used (change this with --class)"
        )
    return replace(trace, jobs=jobs, notes=(*trace.notes, *notes))


def _workload(model: str, workloads: Sequence[str], chosen: Mapping[str, str]) -> str | None:
    """The workload of a model, "" for none, or None if it is not known."""
    named = _named_workload(model, workloads, chosen)
    if named is not None:
        return named
    return _same_name(_STANDS_FOR.get(model, ""), workloads) or (workloads[0] if len(workloads) == 1 else None)


def _named_workload(model: str, workloads: Sequence[str], chosen: Mapping[str, str]) -> str | None:
    """The workload that a person or the model's own name tells."""
    choice = chosen.get(model, chosen.get(OTHERS))
    if choice is not None:
        return "" if choice == INSENSITIVE else choice
    return _same_name(model, workloads)


def _same_name(model: str, workloads: Sequence[str]) -> str | None:
    """The one workload of this name, exactly or nearly."""
    for alike in (str, str.casefold, _bare):
        fitting = [workload for workload in workloads if alike(workload) == alike(model)]
        if model and len(fitting) == 1:
            return fitting[0]
    return None


def _bare(name: str) -> str:
    return name.casefold().rstrip("0123456789").rstrip("-_ ") or name.casefold()


def _named(models: Sequence[str]) -> str:
    shown = ", ".join(model or "(no model)" for model in models[:_LISTED])
    return f"{shown} and {len(models) - _LISTED} more" if len(models) > _LISTED else shown
