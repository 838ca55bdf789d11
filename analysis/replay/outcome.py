"""The result of a replay: when each job ran, what it held, and the figures for comparing policies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .fleet import Floats, Ints
from .jobs import Job
from .power import JOULES_PER_KWH, Energy

UNFAIR = 1.05  # finish-time fairness above which a job counts as treated unfairly

BRIEF_S = 10.0  # of the bounded slowdown: a shorter job counts as this long

Counts: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Span:
    """A job on its GPUs from one moment to another, with one allocation."""

    job: int  # number of the job: its place in the trace; arrivals after the trace are numbered on
    gpus: tuple[int, ...]
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Series:
    """How the fleet's state went, as steps: each value holds from its moment to the next."""

    time_s: Floats
    queue: Counts  # jobs that wait
    busy: Counts  # GPUs that are held; one that several jobs share counts once


@dataclass(frozen=True)
class Others:
    """The jobs that ran besides the trace's (`Options.others`); they load the fleet and are not measured."""

    submit_s: Floats
    finish_s: Floats  # NaN: not ended when the replay was
    gpus: Ints


def _figure(unit: str, definition: str) -> Any:
    return field(metadata={"unit": unit, "definition": definition})


@dataclass(frozen=True)
class Metrics:
    """The figures of one replay, over the trace's jobs; `FIGURES` has the unit and the definition of each."""

    jobs: int = _figure("", "jobs of the trace")
    avg_jct_s: float = _figure("s", "job completion time (JCT), end - submission: the mean over the jobs")
    median_jct_s: float = _figure("s", "median of the job completion times")
    p99_jct_s: float = _figure("s", "99th percentile of the job completion times")
    makespan_s: float = _figure("s", "last end - first submission")
    p50_queue_s: float = _figure(
        "s", "queueing delay, the time from submission to the end for which a job held no GPUs: the median"
    )
    p95_queue_s: float = _figure("s", "95th percentile of the queueing delays")
    p99_queue_s: float = _figure("s", "99th percentile of the queueing delays")
    bounded_slowdown: float = _figure(
        "", "the mean of max(1, JCT / max(ideal time, 10 s)); Feitelson et al. (JSSPP'97), over the ideal time"
    )
    end_s: float = _figure("s", "the last moment of the replay, on the trace's clock")
    util_held: float = _figure("", "GPU-seconds held / (GPUs x end); a GPU that jobs share counts once")
    worst_ftf: float = _figure(
        "",
        "finish-time fairness after Shockwave (NSDI'23), JCT / (ideal time x max(1, jobs of the trace / GPUs)): "
        "that of the job that fared worst",
    )
    unfair_pct: float = _figure("%", "jobs whose fairness after Shockwave is above 1.05")
    worst_ftf_themis: float = _figure(
        "",
        "finish-time fairness after Themis (NSDI'20), JCT / (ideal time x mean contention), contention being "
        "max(1, GPUs wanted by the jobs in the system / GPUs): that of the job that fared worst",
    )
    unfair_pct_themis: float = _figure("%", "jobs whose fairness after Themis is above 1.05")
    preemptions: int = _figure("", "times that jobs were stopped for others")
    migrations: int = _figure("", "times that the GPUs of a job were changed without a stop")
    restarts: int = _figure("", "times that jobs lost a node")
    late: int | None = _figure("", "jobs that ended after their deadline, or not at all; null where none has one")
    limits_hit: int | None = _figure("", "jobs that their time limit ended; null where none has one")
    wasted_gpu_h: float = _figure(
        "GPU-hours",
        "GPU time that jobs held and nothing came of: of starts and moves, and of work lost at a time limit or with a "
        "node",
    )
    node_hours: float | None = _figure("node-hours", "nodes awake, by time; null without gpu-power and the like")
    energy_j: float | None = _figure(
        "J", "energy of the jobs, with their shares of idle and node power; null where a power is not known"
    )
    energy_kwh: float | None = _figure(
        "kWh", "all energy whose power is known: jobs_kwh + idle_kwh + base_kwh; null where that of a job is not"
    )
    jobs_kwh: float | None = _figure(
        "kWh", "energy that jobs drew above the idle power of their GPUs, or all of it where that is not known"
    )
    idle_kwh: float | None = _figure("kWh", "idle power of the GPUs of nodes that were awake, held or not")
    base_kwh: float | None = _figure("kWh", "energy of the nodes without their GPUs, awake and asleep")


class ReplayFigure(NamedTuple):
    """What a figure of a replay is."""

    name: str  # in `Metrics`, and in the rows of `whorl.replay/1`
    unit: str
    definition: str


FIGURES = tuple(ReplayFigure(row.name, row.metadata["unit"], row.metadata["definition"]) for row in fields(Metrics))


@dataclass(frozen=True)
class Outcome:
    """One trace replayed on one fleet under one policy and one scheduler. Arrays are over the trace's jobs."""

    trace: str
    policy: str
    scheduler: str
    seed: int | None  # None: the caller's own stream of random numbers
    jobs: tuple[Job, ...]
    start_s: Floats  # the first time that the job held GPUs
    finish_s: Floats
    held_s: Floats  # the time for which it held GPUs, over all its allocations
    gpu_seconds: Floats  # GPUs × time held, over all its allocations
    preemptions: Counts  # times it was stopped for others
    migrations: Counts  # times its GPUs were changed without a stop
    restarts: Counts  # times it lost a node
    limit_hit: NDArray[np.bool_]  # whether its time limit ended it before its work was done
    wasted_gpu_s: Floats
    """GPU-seconds that it held and nothing came of: of starts and moves, and of work lost at limits and with nodes."""
    gpus: int  # of the fleet
    end_s: float  # the replay's last moment: the last finish
    held_gpu_seconds: float  # by all jobs, others included, until the end; while several share a GPU, it counts once
    others: Others
    events: int  # arrivals, finishes, failures and returns
    wall_s: float  # what the replay took
    series: Series | None = None
    spans: tuple[Span, ...] | None = None
    notes: tuple[str, ...] = ()
    energy: Energy | None = None  # None where no power is known

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

    @property
    def energy_j(self) -> Floats:
        """(jobs,) what each drew, with its share of idle and node power; NaN where a power is not known."""
        jobs_j = {} if self.energy is None else self.energy.jobs_j
        return np.array([jobs_j.get(number, math.nan) for number in range(len(self.jobs))])

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
        came = np.concatenate([self.submit_s, self.others.submit_s])
        went = np.concatenate([self.finish_s, self.others.finish_s])
        width = np.concatenate([[job.gpus for job in self.jobs], self.others.gpus])
        gone = np.isfinite(went)
        moments = np.concatenate([came, went[gone]])
        order = np.argsort(moments, kind="stable")
        moments, demand = moments[order], np.cumsum(np.concatenate([width, -width[gone]])[order])
        contention = np.maximum(1.0, demand / self.gpus)
        total = np.concatenate([[0.0], np.cumsum(contention[:-1] * np.diff(moments))])
        mean = (np.interp(self.finish_s, moments, total) - np.interp(self.submit_s, moments, total)) / self.jct_s
        fair: Floats = self.jct_s / (self._ideal_s * mean)
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
        p50_queue, p95_queue, p99_queue = (float(delay) for delay in np.quantile(self.queueing_s, (0.5, 0.95, 0.99)))
        shockwave, themis = self.shockwave_fairness(), self.fairness()
        due = np.array([math.inf if job.deadline_s is None else job.deadline_s for job in self.jobs])
        missed = (self.finish_s > due) | (np.isfinite(due) & self.limit_hit)
        job_energy = float(self.energy_j.sum())
        energy = self.energy or Energy({}, None, None, None, unattributed_j=0.0, awake_node_s=0.0)
        return Metrics(
            jobs=len(jct),
            avg_jct_s=float(jct.mean()),
            median_jct_s=float(np.median(jct)),
            p99_jct_s=p99,
            makespan_s=float(self.finish_s.max() - self.submit_s.min()),
            p50_queue_s=p50_queue,
            p95_queue_s=p95_queue,
            p99_queue_s=p99_queue,
            bounded_slowdown=float(self.bounded_slowdown().mean()),
            end_s=self.end_s,
            util_held=self.utilisation,
            worst_ftf=float(shockwave.max()),
            unfair_pct=100 * float((shockwave > UNFAIR).mean()),
            worst_ftf_themis=float(themis.max()),
            unfair_pct_themis=100 * float((themis > UNFAIR).mean()),
            preemptions=int(self.preemptions.sum()),
            migrations=int(self.migrations.sum()),
            restarts=int(self.restarts.sum()),
            late=int(missed.sum()) if np.isfinite(due).any() else None,
            limits_hit=None if all(job.limit_s is None for job in self.jobs) else int(self.limit_hit.sum()),
            wasted_gpu_h=float(self.wasted_gpu_s.sum()) / 3600,
            node_hours=None if self.energy is None else self.energy.awake_node_s / 3600,
            energy_j=job_energy if math.isfinite(job_energy) else None,
            energy_kwh=_kwh(energy.total_j),
            jobs_kwh=_kwh(energy.dynamic_j),
            idle_kwh=_kwh(energy.idle_j),
            base_kwh=_kwh(energy.base_j),
        )


def _kwh(joules: float | None) -> float | None:
    return None if joules is None else joules / JOULES_PER_KWH
