"""A job on its way through a replay: the work it has left, what it holds, and what it has cost."""

from __future__ import annotations

import math

from .job import Job

_NAN = math.nan


class State:
    """A job on its way. Work is in ideal seconds and is done piecewise: each allocation has its own speed."""

    __slots__ = (
        "attained_s",
        "began_s",
        "energy_j",
        "finish_s",
        "gpu_seconds",
        "gpus",
        "held_s",
        "job",
        "keeps_until_s",
        "left_s",
        "lost_node",
        "migrations",
        "number",
        "patient",
        "planned_s",
        "power_w",
        "preemptions",
        "rate",
        "restarts",
        "shared",
        "since_s",
        "speed",
        "start_s",
        "version",
        "works_from_s",
    )

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.job = job
        self.left_s = job.ideal_s
        self.attained_s = 0.0  # until since_s
        self.gpus: tuple[int, ...] = ()
        self.patient = True  # False: it has waited too long and goes first
        self.rate = 1.0
        self.shared = False
        self.speed = 0.0
        self.power_w = _NAN
        self.began_s = 0.0  # of this allocation
        self.since_s = 0.0  # up to here everything is in the sums
        self.works_from_s = 0.0  # from here on the speed holds
        self.keeps_until_s = 0.0  # until here it has not yet worked for as long as what its start or move cost
        self.planned_s = math.inf  # the end that backfill plans with
        self.version = 0  # of the allocation: a finish foretold for an older one is void
        self.lost_node = False
        self.start_s = _NAN
        self.finish_s = _NAN
        self.held_s = 0.0
        self.gpu_seconds = 0.0
        self.energy_j = 0.0
        self.preemptions = 0
        self.migrations = 0
        self.restarts = 0

    @property
    def limit_s(self) -> float:
        """The run time that backfill plans with."""
        limit = self.job.limit_s
        return self.job.ideal_s if limit is None else limit

    def left_at(self, now_s: float) -> float:
        """The work left at a moment that is not before the last change."""
        if not self.gpus or now_s <= self.works_from_s:
            return self.left_s
        return max(0.0, self.left_s - (now_s - self.works_from_s) * self.speed)

    def attained_at(self, now_s: float) -> float:
        """The wall time for which GPUs were held."""
        return self.attained_s + (now_s - self.since_s) if self.gpus else self.attained_s

    def settle(self, now_s: float) -> None:
        """Bring the sums up to a moment."""
        elapsed_s = now_s - self.since_s
        self.left_s = self.left_at(now_s)
        self.attained_s += elapsed_s
        self.held_s += elapsed_s
        self.gpu_seconds += elapsed_s * len(self.gpus)
        self.energy_j += elapsed_s * self.power_w
        self.since_s = now_s
        self.works_from_s = max(self.works_from_s, now_s)
