"""The job traces of PAL's artifact: what each job asks for, in iterations of a model, and the class of its scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .job import Trace
from .traces import Reading, read_trace

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
    trace = read_trace(path, "csv", Reading("iterations"))
    jobs = tuple(replace(job, workload=class_of(job.model)) for job in trace.jobs)
    return replace(trace, jobs=jobs, notes=tuple(note for note in trace.notes if "sorted" in note))
