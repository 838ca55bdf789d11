"""The jobs of a trace: GPUs for a time, all at once (gang scheduling)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace: a number of GPUs, all at once, for a time."""

    name: str
    """The trace's own name of it, unique."""
    submit_s: float
    """After the trace's first instant."""
    gpus: int
    ideal_s: float
    """Seconds on GPUs of score 1 within one node; more than 0."""
    workload: str = ""
    """The class whose scores apply; "" is not sensitive: every GPU has score 1 for it."""
    limit_s: float | None = None
    """The time limit asked for. Backfill plans with it and nothing ends a job at it; None: `ideal_s` is used."""
    model: str = ""
    """As the trace says it."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace by submit time; ties stand in the file's order."""

    name: str
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()
    """What reading left out or assumed, in sentences."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a policy grants a job: which GPUs, and at what rate it works on them."""

    gpus: tuple[int, ...]
    rate: float = 1.0
    """Work done a second on GPUs of score 1 within one node, where the job's own gang at its own size is 1."""
    shared: bool = False
    """Other jobs may hold the same GPUs, if they share too."""
