"""What an exclusion costs in waiting, beside what it saves: a site's own jobs, replayed with fewer nodes.

The gain is a share of a job's time (`analysis.placement`), the price is how much longer jobs of the same size wait on
average (`analysis.chains.costs`). Compared are what a run of the usual length, the median, saves, and how much
longer a job waits on average: both in hours of a job. The history of the queue is a file that the user names, else the
table `jobs` of the store, else Slurm's accounting. The price is that of an exclusion that all jobs make, so it is more
than a single careful user pays.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, WhorlError

if TYPE_CHECKING:
    from ..analysis.chains.costs import ExclusionPrice, WaitEstimate
    from ..analysis.chains.jobs_log import FloatArray, JobsLog
    from ..analysis.placement import Advice, Gain
    from ..store import Store
    from .slurm import Slurm

LEAST_JOBS = 100
LEAST_DAYS = 14.0
HISTORY = dt.timedelta(days=90)  # how far back the store's jobs and Slurm's accounting are read
MOST_JOBS = 50_000  # of a history, the newest that are replayed, twice; both replays of as many take seconds
MOST_LEFT_OUT = 0.05
"""The share of a history that may be left out, and by how much its jobs may exceed the nodes that there are."""
_DAY_S = 86_400.0
_STORED = f"""
    select cluster, any_value(partition) as "Partition", job_id as "JobID", epoch(began)::bigint as "Start",
        epoch(any_value(coalesce(eligible, submitted)))::bigint as "Submit", epoch(any_value(ended))::bigint as "End",
        coalesce((any_value(time_limit_s) / 60)::varchar, 'UNLIMITED') as "TimelimitRaw",
        any_value(job_nodes) as "NNodes"
    from jobs_now
    where began > (select max(began) from jobs_now) - interval {HISTORY.days} day
        and coalesce(eligible, submitted) <= began and job_nodes > 0
    group by cluster, job_id, began
"""
"""The jobs of a store that began lately, with the names of sacct."""


@dataclass(frozen=True)
class PriceRequest:
    """Where the price is taken from; what is not named is found out."""

    store: Store
    log: str | Path | None = None  # a saved history of the queue, as `read_log` reads it
    cluster_nodes: int | None = None
    run_time_s: float | None = None  # how long such jobs run
    ask_accounts: bool = True
    """Whether to ask Slurm's accounting, which may take long, where the store has too few jobs."""


@dataclass(frozen=True)
class Exclusion:
    """An exclusion whose price is asked for."""

    cluster: str
    excluded_nodes: int
    job_nodes: int  # nodes of the job that the advice is for
    gain: Gain
    partition: str | None = None  # one, or several as Slurm lists them
    site_nodes: int | None = None  # nodes of the partition, or of the cluster, where a scheduler says so
    slurm: Slurm | None = None


@dataclass(frozen=True)
class WaitingPrice:
    """What an exclusion saves and costs, in hours of a job; intervals of the gain are 90 %, those of waiting 95 %."""

    source: str
    last_day: dt.date  # on which a job of the history was submitted, UTC
    waits: ExclusionPrice
    run_time_h: float  # the run of which a share is saved
    run_time_from: str  # `median`, of the jobs that count, or `option`, where the user said it
    gain_share: float  # what the exclusion saves of a run, of 1
    saved: WaitEstimate  # the same of that run, in hours
    run_times_h: FloatArray  # (jobs,) of the jobs that count

    @property
    def worth(self) -> bool:
        """Whether the exclusion saves something, and at least what it costs; both as expected."""
        return self.saved.value > 0 and self.saved.value >= self.waits.mean_wait.added.value

    @property
    def certain(self) -> bool:
        """Whether the intervals of what it saves and costs do not overlap."""
        saved, added = self.saved, self.waits.mean_wait.added
        if saved.low is None or saved.high is None or added.low is None or added.high is None:
            return False
        return saved.low >= max(0.0, added.high) if self.worth else saved.high <= added.low

    @property
    def pays_from_h(self) -> float | None:
        """The run time from which on the exclusion pays; None where it saves nothing."""
        return max(0.0, self.waits.mean_wait.added.value / self.gain_share) if self.gain_share > 0 else None

    @property
    def longer_jobs_pct(self) -> float:
        """How many of these jobs ran so long that the exclusion would have paid."""
        return 0.0 if self.pays_from_h is None else float(100 * (self.run_times_h > self.pays_from_h).mean())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        waits = self.waits
        counts = ("cluster_nodes", "excluded_nodes", "job_nodes", "jobs", "weeks")
        figures = {"gain": self.saved, "added_wait": waits.mean_wait.added, "added_p95_wait": waits.p95_wait.added}
        stated = ("run_time_h", "run_time_from", "longer_jobs_pct", "pays_from_h", "worth")
        return {
            "source": self.source,
            **{name: getattr(waits, name) for name in counts},
            "gain_pct": 100 * self.gain_share,
            **{f"{name}_h": figure.value for name, figure in figures.items()},
            **{f"{name}_low_h": figure.low for name, figure in figures.items()},
            **{f"{name}_high_h": figure.high for name, figure in figures.items()},
            **{name: getattr(self, name) for name in stated},
        }


def exclusion_gain(advice: Advice) -> Gain | None:
    """What excluding its nodes saves a job that is placed at random; of several models the least. None: not known."""
    parts = [part for part in advice.kinds or (advice,) if part.exclude]
    gains = [gain for part in parts for gain in part.gains if (gain.choice, gain.against) == ("exclude", "random")]
    return min(gains, key=lambda gain: gain.median, default=None)


def price_of(exclusion: Exclusion, request: PriceRequest) -> WaitingPrice | str:
    """The price of an exclusion, or a sentence that says why it is not known and what to do.

    Raises InputError for a log that cannot be read.
    """
    from ..analysis.chains.jobs_log import read_log

    saved_log = None if request.log is None else read_log(request.log)
    try:
        return _priced(_history(exclusion, request, saved_log), exclusion, request)
    except WhorlError as error:
        return f"not known, because {error}; --set log=FILE reads a saved history of the queue"


def _priced(log: JobsLog, exclusion: Exclusion, request: PriceRequest) -> WaitingPrice:
    """The price by the jobs of the queue. Raises InputError where they do not tell it."""
    from ..analysis.chains.costs import WaitEstimate, price_of_exclusion

    at_once, site_nodes = log.most_nodes_at_once, (exclusion.site_nodes or 0) if request.log is None else 0
    if request.cluster_nodes is None and 0 < (1 + MOST_LEFT_OUT) * site_nodes < at_once:
        raise InputError(
            f"the jobs of {log.source} had {at_once:,} nodes at once, and there are {site_nodes:,}: they share nodes, "
            f"or there were more (--set cluster-nodes={at_once} takes them so)"
        )
    nodes = request.cluster_nodes or max(at_once, site_nodes)
    counted = log.nodes == exclusion.job_nodes
    enough = int(counted.sum()) >= LEAST_JOBS and exclusion.job_nodes <= nodes - exclusion.excluded_nodes
    waits = price_of_exclusion(
        log,
        cluster_nodes=nodes,
        excluded_nodes=exclusion.excluded_nodes,
        job_nodes=exclusion.job_nodes if enough else None,
    )
    node_s = log.nodes * log.run_times_s
    too_wide = log.nodes > nodes - exclusion.excluded_nodes
    if node_s[too_wide].sum() > MOST_LEFT_OUT * node_s.sum():
        raise InputError(
            f"{waits.too_wide_jobs:,} of {len(log):,} jobs of {log.source}, which take "
            f"{node_s[too_wide].sum() / node_s.sum():.0%} of its node hours, need more nodes than would be left"
        )
    run_times_h = log.run_times_s[counted if enough else ~too_wide] / 3600
    run_time_h = float(np.median(run_times_h)) if request.run_time_s is None else request.run_time_s / 3600
    gain = exclusion.gain
    return WaitingPrice(
        log.source,
        dt.datetime.fromtimestamp(log.submit_s[-1], dt.UTC).date(),
        waits,
        run_time_h=run_time_h,
        run_time_from="median" if request.run_time_s is None else "option",
        gain_share=gain.median,
        saved=WaitEstimate(*(share * run_time_h for share in (gain.median, gain.lower, gain.upper))),
        run_times_h=run_times_h,
    )


def _history(exclusion: Exclusion, request: PriceRequest, saved_log: JobsLog | None) -> JobsLog:
    """The jobs of a saved log, else those that the store has, else accounting. Raises WhorlError: what is missing."""
    import polars as pl

    if saved_log is not None:
        return _newest(saved_log)
    names = exclusion.partition.split(",") if exclusion.partition else []
    try:
        jobs = request.store.sql(_STORED).polars().filter(pl.col("cluster") == exclusion.cluster)
        jobs = jobs.cast(pl.String).fill_null("")
        return _of_rows(jobs.to_dicts(), names, f"the table jobs of {request.store.root}")
    except WhorlError as error:
        if exclusion.slurm is None or not request.ask_accounts:
            raise
        too_little = error
    try:
        accounted = exclusion.slurm.history(dt.datetime.now(dt.UTC) - HISTORY)
        return _of_rows(accounted, names, "Slurm's accounting")
    except WhorlError as error:
        raise InputError(f"{too_little}, and {error}") from error


def _of_rows(rows: Iterable[Mapping[str, str]], partitions: Collection[str], source: str) -> JobsLog:
    from ..analysis.chains.jobs_log import log_of_rows

    listed = [row for row in rows if not partitions or row["Partition"] in partitions]
    if not listed:
        raise InputError(f"{source} has no jobs")
    return _newest(log_of_rows(listed, source))


def _newest(log: JobsLog) -> JobsLog:
    """The newest jobs of a history. Raises InputError where they are too few, or too many cannot be read."""
    days = float(np.ptp(log.submit_s)) / _DAY_S
    if len(log) < LEAST_JOBS or days < LEAST_DAYS:
        has = f"{log.source} has {len(log):,} jobs of {days:.0f} days"
        raise InputError(f"{has}, and {LEAST_JOBS} of {LEAST_DAYS:g} days are needed")
    refused = sum(map(len, log.refused.values()))
    if refused > MOST_LEFT_OUT * (refused + len(log)):
        reason = max(log.refused, key=lambda reason: len(log.refused[reason]))
        raise InputError(f"{refused:,} of {refused + len(log):,} jobs of {log.source} cannot be replayed: {reason}")
    return log.since(log.submit_s[-MOST_JOBS]) if len(log) > MOST_JOBS else log
