"""The job traces of PAL's artifact: what each job asks for, in iterations of a model.

A file has the columns job_id, num_gpus, submit_time (seconds), duration and model; its duration counts ITERATIONS,
whatever the column's name says, and seconds come from the model's time for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ...errors import InputError
from ...store.importing.content import read
from .artifact_files import Cell, columns
from .job import Job, Trace

COLUMNS = ("job_id", "num_gpus", "submit_time", "duration", "model")

SECONDS_PER_ITERATION = {
    "BERT": 0.179,
    "DCGAN": 0.0469266931,
    "GPT2": 3.5714,
    "PointNet": 0.28125,
    "resnet50": 0.17540429367763434,
    "vgg19": 0.300610341,
}
"""Of the models that PAL's traces hold, on a GPU of score 1, whatever the number of GPUs."""

CLASSES = ("A", "B", "C", "D")
"""From the most sensitive to the GPU to the least: compute-bound to memory-bound."""

_CLASS_OF_MODEL = {"BERT": "B", "DCGAN": "B", "GPT2": "B", "PointNet": "D", "vgg19": "C"}


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """A gang of GPUs for a number of iterations."""

    name: str
    gpus: int
    submit_s: float
    iterations: float
    model: str

    @property
    def seconds_per_iteration(self) -> float:
        return SECONDS_PER_ITERATION[self.model]

    @property
    def ideal_s(self) -> float:
        """Seconds on GPUs of score 1 within one node."""
        return self.iterations * self.seconds_per_iteration

    @property
    def workload(self) -> str:
        """The class whose scores apply; a model that PAL names no class for is in A."""
        return _CLASS_OF_MODEL.get(self.model, "A")


@dataclass(frozen=True)
class PublishedTrace:
    """The jobs of a file, by submit time."""

    name: str
    jobs: tuple[PublishedJob, ...]
    notes: tuple[str, ...] = ()

    def as_trace(self) -> Trace:
        """The trace as any replay takes it."""
        jobs = (Job(job.name, job.submit_s, job.gpus, job.ideal_s, job.workload, model=job.model) for job in self.jobs)
        return Trace(self.name, tuple(jobs), self.notes)


def published_trace(path: Path) -> PublishedTrace:
    """The trace at `path`, CSV, plain or compressed, named as the file without its suffixes.

    The arrival process takes jobs by submit time: others are sorted, ties in the file's order, and a note says so.
    Raises InputError, with the line, where a column is missing or a job cannot be run.
    """
    jobs = [_job(*row) for row in columns(path, read(path), COLUMNS)]
    _named_once(path, jobs)
    in_order = tuple(sorted(jobs, key=lambda job: job.submit_s))
    latest = accumulate((job.submit_s for job in jobs), max)
    late = sum(job.submit_s < before for job, before in zip(jobs, latest, strict=True))
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".csv")
    return PublishedTrace(name, in_order, (_sorted(path, late),) if late else ())


def _sorted(path: Path, late: int) -> str:
    what = "1 job stands behind one that was" if late == 1 else f"{late} jobs stand behind some that were"
    return f"{path.name}: {what} submitted later; the jobs were sorted by submit time"


def _job(name: Cell, gpus: Cell, submit: Cell, duration: Cell, model: Cell) -> PublishedJob:
    if gpus.whole() < 1:
        raise gpus.error("is below 1")
    if submit.number() < 0:
        raise submit.error("is negative")
    if duration.number() <= 0:
        raise duration.error("is not above 0")
    if model.text not in SECONDS_PER_ITERATION:
        known = ", ".join(sorted(SECONDS_PER_ITERATION, key=str.casefold))
        raise model.error(f"has no published time for one iteration (known are {known})")
    return PublishedJob(name.text, gpus.whole(), submit.number(), duration.number(), model.text)


def _named_once(path: Path, jobs: Sequence[PublishedJob]) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise InputError(f"{path}: two jobs have the job_id {job.name!r}; each job_id must be unique")
        seen.add(job.name)
