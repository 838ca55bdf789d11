"""The job traces of PAL's artifact: what each job asks for, in iterations of a model, and the class of its scores."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from .job import Job, Trace
from .traces import philly, trace_name
from .traces.table import Reading, text_of

CLASSES = ("A", "B", "C", "D")
"""From the most sensitive to the GPU to the least: compute-bound to memory-bound."""

_CLASS_OF_MODEL = {"BERT": "B", "DCGAN": "B", "GPT2": "B", "PointNet": "D", "vgg19": "C"}


def class_of(model: str) -> str:
    """The class whose scores apply to a model; one that PAL names no class for is in A."""
    return _CLASS_OF_MODEL.get(model, "A")


def published_trace(path: Path) -> Trace:
    """The trace at `path`, CSV, plain or compressed. Its `duration` counts iterations, whatever the column's name says.

    The arrival process takes jobs by submit time: others are sorted, ties in the file's order, and a note says so.
    Raises InputError, with the line, if a column is missing or a job cannot be run.
    """
    _, frame = philly.read(path, text_of(path), Reading("iterations"))
    rows = frame.select("name", "submit_s", "gpus", "ideal_s", "model").iter_rows()
    jobs = [Job(name, submit, gpus, ideal, class_of(model), model=model) for name, submit, gpus, ideal, model in rows]
    latest = accumulate((job.submit_s for job in jobs), max)
    late = sum(job.submit_s < before for job, before in zip(jobs, latest, strict=True))
    what = "1 job stands behind one that was" if late == 1 else f"{late} jobs stand behind some that were"
    note = f"{path.name}: {what} submitted later; the jobs were sorted by submit time"
    return Trace(trace_name(path), tuple(sorted(jobs, key=lambda job: job.submit_s)), (note,) if late else ())
