"""The result of a replay: when each job ran, what it held, and the figures for comparing policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .fleet import Floats, Ints
from .job import Job

UNFAIR = 1.05
"""Finish-time fairness above which a job counts as treated unfairly."""

BRIEF_S = 10.0
"""Of the bounded slowdown: a shorter job counts as this long."""

Counts: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Span:
    """A job on its GPUs from one moment to another, with one allocation."""

    job: int
    """Number of the job: its place in the trace; arrivals after the trace are numbered on."""
    gpus: tuple[int, ...]
    began_s: float
    ended_s: float
    rate: float = 1.0


@dataclass(frozen=True)
class Series:
    """How the fleet's state went, as steps: each value holds from its moment to the next."""

    time_s: Floats
    queue: Counts
    """Jobs that wait."""
    busy: Counts
    """GPUs that are held; one that several jobs share counts once."""


@dataclass(frozen=True)
class Others:
    """The jobs that ran besides the trace's (`Options.arrivals`); they load the fleet and are not measured."""

    submit_s: Floats
    finish_s: Floats
    """NaN: not ended when the replay was."""
    gpus: Ints


@dataclass(frozen=True)
class Metrics:
    """The figures of one replay, over the trace's jobs. docs/replay.md defines each, with its source."""

    jobs: int
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    """Last finish − first submit."""
    queueing_p50_s: float
    """Of the jobs' times without GPUs, from submission to the end (see `Outcome.queueing_s`)."""
    queueing_p95_s: float
    queueing_p99_s: float
    bounded_slowdown: float
    """Mean over the jobs (see `Outcome.bounded_slowdown`)."""
    end_s: float
    util_held: float
    """GPU-seconds held / (GPUs of the fleet × end); a GPU that jobs share counts once."""
    fairness_worst: float
    """Finish-time fairness of the job that was treated worst (see `Outcome.fairness`)."""
    unfair_share: float
    """Share of jobs whose finish-time fairness is above 1.05."""
    shockwave_worst: float
    """The same two by the contention that Shockwave uses (see `Outcome.shockwave_fairness`)."""
    shockwave_unfair_share: float
    preemptions: int
    migrations: int
    restarts: int
    energy_j: float | None
    """While jobs held GPUs; None unless the power of every GPU that was held is known."""


@dataclass(frozen=True)
class Outcome:
    """One trace replayed on one fleet under one policy and one scheduler. Arrays are over the trace's jobs."""

    trace: str
    policy: str
    scheduler: str
    seed: int | None
    """None: the caller's own stream of random numbers."""
    jobs: tuple[Job, ...]
    start_s: Floats
    """The first time that the job held GPUs."""
    finish_s: Floats
    held_s: Floats
    """The time for which it held GPUs, over all its allocations."""
    gpu_seconds: Floats
    """GPUs × time held, over all its allocations."""
    preemptions: Counts
    """Times it was stopped for others."""
    migrations: Counts
    """Times its GPUs were changed without a stop."""
    restarts: Counts
    """Times it lost a node."""
    energy_j: Floats
    """While it held GPUs; NaN where a power is unknown or a GPU was shared."""
    gpus: int
    """Of the fleet."""
    end_s: float
    """The replay's last moment: the last finish."""
    held_gpu_seconds: float
    """By all jobs, others included, until the end; while several share a GPU, it counts once."""
    others: Others
    events: int
    """Arrivals, finishes, failures and returns."""
    decisions: int
    wall_s: float
    """What the replay took."""
    series: Series | None = None
    spans: tuple[Span, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def submit_s(self) -> Floats:
        """(jobs,) when each was submitted."""
        return np.array([job.submit_s for job in self.jobs])

    @property
    def jct_s(self) -> Floats:
        """(jobs,) finish − submit."""
        return self.finish_s - self.submit_s

    @property
    def queueing_s(self) -> Floats:
        """(jobs,) queueing delay: the time from submission to the end for which a job held no GPUs.

        That is the wait before its first start and each wait after it was stopped or had lost its node.
        """
        waited: Floats = np.maximum(self.jct_s - self.held_s, 0.0)
        return waited

    def bounded_slowdown(self) -> Floats:
        """(jobs,) max(1, JCT / max(ideal time, 10 s)).

        After Feitelson et al. (JSSPP'97), but over the ideal time and not the time that a job ran: over the latter, a
        slow GPU would make the slowdown of every job that waits smaller.
        """
        bounded: Floats = np.maximum(1.0, self.jct_s / np.maximum(self._ideal_s, BRIEF_S))
        return bounded

    @property
    def _ideal_s(self) -> Floats:
        return np.array([job.ideal_s for job in self.jobs])

    @property
    def utilisation(self) -> float:
        """GPU-seconds held / (GPUs of the fleet × end)."""
        return self.held_gpu_seconds / (self.gpus * self.end_s)

    def fairness(self) -> Floats:
        """(jobs,) finish-time fairness: JCT / (ideal time × the job's mean contention); 1 is an equal share.

        Contention at a moment is max(1, GPUs wanted by all jobs in the system / GPUs of the fleet); its mean is over
        the job's life. After Themis (NSDI'20), whose share of a job is that of one among the N in the system; here
        each has a share in proportion to the GPUs it wants, which is the same where all want one.
        """
        submit, finish = self.submit_s, self.finish_s
        width = np.array([job.gpus for job in self.jobs], dtype=np.float64)
        came = np.concatenate([submit, self.others.submit_s])
        wide = np.concatenate([width, self.others.gpus.astype(np.float64)])
        went = np.concatenate([finish, self.others.finish_s])
        gone = np.isfinite(went)
        moments = np.concatenate([came, went[gone]])
        change = np.concatenate([wide, -wide[gone]])
        order = np.argsort(moments, kind="stable")
        moments, wanted = moments[order], np.cumsum(change[order])
        contention = np.maximum(1.0, wanted / self.gpus)
        total = np.concatenate([[0.0], np.cumsum(contention[:-1] * np.diff(moments))])
        mean = (np.interp(finish, moments, total) - np.interp(submit, moments, total)) / (finish - submit)
        fair: Floats = (finish - submit) / (self._ideal_s * mean)
        return fair

    def shockwave_fairness(self) -> Floats:
        """(jobs,) finish-time fairness as Shockwave (NSDI'23) reports it: JCT / (ideal time × max(1, jobs / GPUs)).

        Its contention is of the whole trace, and counts jobs, whatever number of GPUs they want.
        """
        fair: Floats = self.jct_s / (self._ideal_s * max(1.0, len(self.jobs) / self.gpus))
        return fair

    def metrics(self, *, published: bool = False) -> Metrics:
        """The figures. `published`: p99 is the value at place int(0.99 n) of the sorted JCTs, not an interpolation."""
        jct = self.jct_s
        p99 = float(np.sort(jct)[int(0.99 * len(jct))] if published else np.quantile(jct, 0.99))
        p50, p95, queued_p99 = (float(value) for value in np.quantile(self.queueing_s, (0.5, 0.95, 0.99)))
        rho, rho_of_jobs = self.fairness(), self.shockwave_fairness()
        energy = float(self.energy_j.sum())
        return Metrics(
            jobs=len(jct),
            avg_jct_s=float(jct.mean()),
            median_jct_s=float(np.median(jct)),
            p99_jct_s=p99,
            makespan_s=float(self.finish_s.max() - self.submit_s.min()),
            queueing_p50_s=p50,
            queueing_p95_s=p95,
            queueing_p99_s=queued_p99,
            bounded_slowdown=float(self.bounded_slowdown().mean()),
            end_s=self.end_s,
            util_held=self.utilisation,
            fairness_worst=float(rho.max()),
            unfair_share=float((rho > UNFAIR).mean()),
            shockwave_worst=float(rho_of_jobs.max()),
            shockwave_unfair_share=float((rho_of_jobs > UNFAIR).mean()),
            preemptions=int(self.preemptions.sum()),
            migrations=int(self.migrations.sum()),
            restarts=int(self.restarts.sum()),
            energy_j=energy if np.isfinite(energy) else None,
        )
