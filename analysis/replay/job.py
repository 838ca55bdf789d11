"""The jobs of a trace: GPUs for a time, all at once (gang scheduling); and what a policy grants them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a job in which it behaves alike, such as the epochs that it trains with one batch size."""

    work_s: float
    """Seconds alone, at the job's own width, on GPUs of score 1 within one node; more than 0."""
    epochs: float = 1.0
    batch: int | None = None
    """The batch size; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace."""

    name: str
    """The trace's own name of it, unique."""
    submit_s: float
    """After the trace's first instant."""
    gpus: int
    """Its own width."""
    ideal_s: float
    """Seconds alone, at its own width, on GPUs of score 1 within one node; more than 0."""
    workload: str = ""
    """The class whose scores apply; "" is not sensitive: every GPU has score 1 for it."""
    limit_s: float | None = None
    """The run time at which the job is ended, done or not, as Slurm's time limit; None: nothing ends it."""
    model: str = ""
    """As the trace says it."""
    pieces: tuple[Piece, ...] = ()
    """In order; their work adds up to `ideal_s`. (): one piece of one kind."""
    widths: tuple[int, int] | None = None
    """The fewest and the most GPUs that it can work on; None: its own width only."""
    deadline_s: float | None = None
    """The instant, on the trace's clock, by which it should have ended."""
    memory_gib: float | None = None
    """What it needs of each GPU."""
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
    notes: tuple[str, ...] = ()
    """What reading left out or assumed, in sentences."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a policy grants a job. How fast that goes is the world's to say."""

    gpus: tuple[int, ...]
    """In the order of their roles; no GPU twice."""
    shared: bool = False
    """Other jobs may hold the same GPUs, if they share too."""
    clocks: tuple[float, ...] = ()
    """Of each GPU, relative to the default clock, at most 1; (): all 1."""
    depths: tuple[float, ...] = ()
    """Of each GPU of a job under structured partial backpropagation: the share of the layers that it goes back through.

    The largest is 1. (): all 1.
    """
