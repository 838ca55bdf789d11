"""What an exclusion costs in waiting, beside what it saves: a site's own jobs, replayed with fewer nodes.

The gain is a share of a job's time (`analysis.placement`), the price is how much longer jobs of the same size wait on
average (`analysis.chains.exclusion`); both in hours of a job, over the same jobs. The history of the queue is a file
that the user names, else the table `jobs` of the store, else Slurm's accounting. The price is that of an exclusion that
all jobs make, so it is more than a single careful user pays.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, SchedulerError, WhorlError

if TYPE_CHECKING:
    from ..analysis.chains.jobs_log import JobsLog
    from ..analysis.placement import Advice, Gain
    from ..store import Store
    from .slurm import Slurm

LEAST_JOBS = 100
LEAST_DAYS = 14.0
HISTORY = dt.timedelta(days=90)
"""How far back the store's jobs and Slurm's accounting are read."""
MOST_JOBS = 50_000
"""Of these, the newest that are replayed, twice; both replays of as many take seconds."""
_DAY_S = 86_400.0
_STORED = """
    select cluster, any_value(partition) as partition, job_id as "JobID", epoch(began)::bigint as "Start",
        epoch(any_value(coalesce(eligible, submitted)))::bigint as "Submit", epoch(any_value(ended))::bigint as "End",
        any_value(time_limit_s) / 60 as "TimelimitRaw", any_value(job_nodes) as "NNodes"
    from jobs_now
    where began is not null and coalesce(eligible, submitted) <= began and time_limit_s > 0 and job_nodes > 0
    group by cluster, job_id, began
"""
"""The jobs of a store that began, with the names of sacct."""


@dataclass(frozen=True)
class PriceRequest:
    """Where the price is taken from; what is not named is found out."""

    store: Store
    log: str | Path | None = None
    """A saved history of the queue, as `read_log` reads it."""
    cluster_nodes: int | None = None
    run_time_s: float | None = None
    """How long such jobs run."""
    ask_accounts: bool = True
    """Whether to ask Slurm's accounting, which may take long, where the store has too few jobs."""


@dataclass(frozen=True)
class Exclusion:
    """An exclusion whose price is asked for."""

    cluster: str
    excluded_nodes: int
    job_nodes: int
    """Nodes of the job that the advice is for."""
    gain: Gain
    partition: str | None = None
    site_nodes: int | None = None
    """Nodes of the partition, or of the cluster, where a scheduler says so."""
    slurm: Slurm | None = None


@dataclass(frozen=True)
class WaitingPrice:
    """What an exclusion saves and costs, in hours of a job; intervals of the gain are 90 %, those of waiting 95 %."""

    source: str
    cluster_nodes: int
    excluded_nodes: int
    job_nodes: int | None
    """The jobs that count have this number of nodes; None: the history has too few such jobs, so all count."""
    jobs: int
    weeks: int
    """Weeks of the history from which the intervals are drawn."""
    run_time_h: float
    run_time_from: str
    """`median`, of these jobs, or `option`, where the user said it."""
    gain_pct: float
    """The share of a run's time that the exclusion saves."""
    gain_h: float
    gain_low_h: float
    gain_high_h: float
    added_wait_h: float
    """How much longer these jobs wait on average."""
    added_wait_low_h: float | None
    added_wait_high_h: float | None
    added_p95_wait_h: float
    """How much longer the wait is that 95 % of the jobs do not exceed."""
    added_p95_wait_low_h: float | None
    added_p95_wait_high_h: float | None
    longer_jobs_pct: float
    """How many of these jobs ran so long that the exclusion would have paid."""

    @property
    def worth(self) -> bool:
        """Whether the exclusion saves at least what it costs; both as expected."""
        return self.gain_h >= self.added_wait_h

    @property
    def pays_from_h(self) -> float | None:
        """The run time from which on the exclusion pays; None where it saves nothing."""
        return max(0.0, 100 * self.added_wait_h / self.gain_pct) if self.gain_pct > 0 else None

    @property
    def verdict(self) -> str:
        """A sentence for people: whether the exclusion pays, and for which jobs."""
        interval = ""
        if self.added_wait_low_h is not None and self.added_wait_high_h is not None:
            interval = f" [{_hours(self.added_wait_low_h)}, {_hours(self.added_wait_high_h)}]"
        saves = f"it saves {_hours(self.gain_h)} h [{_hours(self.gain_low_h)}, {_hours(self.gain_high_h)}] of a job"
        costs = f"costs {_hours(self.added_wait_h)} h{interval} of waiting"
        text = f"Excluding pays: {saves} and {costs}." if self.worth else f"Do not exclude: {saves}, but {costs}."
        if self.pays_from_h is None:
            return text
        hint = " (--time says how long yours runs)" if self.run_time_from == "median" else ""
        longer = f"longer than {_hours(self.pays_from_h)} h, as {self.longer_jobs_pct:.0f} % of these do{hint}"
        return f"{text} It pays for jobs that run {longer}."

    @property
    def evidence(self) -> str:
        """How the figures were made, a sentence for people."""
        size = "" if self.job_nodes is None else f" of {self.job_nodes} node{'' if self.job_nodes == 1 else 's'}"
        origin = "their median" if self.run_time_from == "median" else "as you said"
        return (
            f"Price: {self.jobs:,} jobs{size} in {self.weeks} weeks of {self.source}, replayed with "
            f"{self.cluster_nodes:,} nodes and with {self.excluded_nodes:,} fewer for all jobs; the saving is of a run "
            f"of {_hours(self.run_time_h)} h, {origin}. The wait that 95 % of them do not exceed grows by "
            f"{_hours(self.added_p95_wait_h)} h."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "pays_from_h": self.pays_from_h, "worth": self.worth}


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if abs(hours) >= 10 else f"{hours:.2g}"


def exclusion_gain(advice: Advice) -> Gain | None:
    """What excluding its nodes saves a job that is placed at random; of several models the least. None: not known."""
    parts = [part for part in advice.kinds or (advice,) if part.exclude]
    gains = [gain for part in parts for gain in part.gains if (gain.choice, gain.against) == ("exclude", "random")]
    return min(gains, key=lambda gain: gain.median, default=None)


def price_of(exclusion: Exclusion, request: PriceRequest) -> WaitingPrice | str:
    """The price of an exclusion, or a sentence that says why it is not known and what to do.

    Raises InputError for a log that cannot be read.
    """
    from ..analysis.chains.exclusion import price_of_exclusion

    log = _history(exclusion, request)
    if isinstance(log, str):
        return f"not known, because {log}; --log FILE reads a saved history of the queue"
    nodes = request.cluster_nodes or max(log.most_nodes_at_once, 0 if request.log else exclusion.site_nodes or 0)
    alike_jobs = log.nodes == exclusion.job_nodes
    enough = int(alike_jobs.sum()) >= LEAST_JOBS and exclusion.job_nodes <= nodes - exclusion.excluded_nodes
    job_nodes = exclusion.job_nodes if enough else None
    try:
        price = price_of_exclusion(
            log, cluster_nodes=nodes, excluded_nodes=exclusion.excluded_nodes, job_nodes=job_nodes
        )
    except InputError as error:
        return f"not known: {error}"
    run_times_s = log.run_times_s[alike_jobs] if enough else log.run_times_s
    run_time_h = (request.run_time_s or float(np.median(run_times_s))) / 3600
    gain, mean, p95 = exclusion.gain, price.mean_wait.added, price.p95_wait.added
    waiting_price = WaitingPrice(
        source=log.source,
        cluster_nodes=nodes,
        excluded_nodes=exclusion.excluded_nodes,
        job_nodes=job_nodes,
        jobs=price.jobs,
        weeks=price.weeks,
        run_time_h=run_time_h,
        run_time_from="option" if request.run_time_s else "median",
        gain_pct=100 * gain.median,
        gain_h=gain.median * run_time_h,
        gain_low_h=gain.lower * run_time_h,
        gain_high_h=gain.upper * run_time_h,
        added_wait_h=mean.hours,
        added_wait_low_h=mean.low_h,
        added_wait_high_h=mean.high_h,
        added_p95_wait_h=p95.hours,
        added_p95_wait_low_h=p95.low_h,
        added_p95_wait_high_h=p95.high_h,
        longer_jobs_pct=0.0,
    )
    if waiting_price.pays_from_h is None:
        return waiting_price
    return replace(waiting_price, longer_jobs_pct=float(100 * (run_times_s > 3600 * waiting_price.pays_from_h).mean()))


def _history(exclusion: Exclusion, request: PriceRequest) -> JobsLog | str:
    """The jobs of the queue, or a clause that says why there are too few. A file that is named is taken as it is."""
    from ..analysis.chains.jobs_log import read_log

    if request.log is not None:
        return read_log(request.log)
    log = _stored_jobs(request.store, exclusion)
    if isinstance(log, str) and exclusion.slurm is not None and request.ask_accounts:
        accounted = _accounted_jobs(exclusion.slurm, exclusion.partition)
        return accounted if not isinstance(accounted, str) else f"{log}, and {accounted}"
    return log


def _stored_jobs(store: Store, exclusion: Exclusion) -> JobsLog | str:
    """The jobs of the cluster that the store has."""
    import polars as pl

    jobs = store.sql(_STORED).polars().filter(pl.col("cluster") == exclusion.cluster)
    if exclusion.partition is not None:
        jobs = jobs.filter(pl.col("partition").is_in(exclusion.partition.split(",")))
    recent = jobs.filter(pl.col("Start") > pl.col("Start").max() - HISTORY.total_seconds())
    rows = recent.drop("cluster", "partition").cast(pl.String).fill_null("").to_dicts()
    return _enough(rows, f"the table jobs of {store.root}")


def _accounted_jobs(slurm: Slurm, partition: str | None) -> JobsLog | str:
    """The jobs that Slurm's accounting has."""
    try:
        rows = list(slurm.history(dt.datetime.now(dt.UTC) - HISTORY))
    except SchedulerError as error:
        return str(error)
    partitions = partition.split(",") if partition else []
    return _enough([row for row in rows if not partitions or row["Partition"] in partitions], "Slurm's accounting")


def _enough(rows: list[Any], source: str) -> JobsLog | str:
    from ..analysis.chains.jobs_log import log_of_rows

    try:
        log = log_of_rows(rows, source) if rows else None
    except WhorlError as error:
        return str(error)
    if log is None:
        return f"{source} has no jobs"
    days = float(np.ptp(log.submit_s)) / _DAY_S
    if len(log) < LEAST_JOBS or days < LEAST_DAYS:
        return f"{source} has {len(log):,} jobs of {days:.0f} days, and {LEAST_JOBS} of {LEAST_DAYS:g} days are needed"
    return log.since(log.submit_s[-MOST_JOBS]) if len(log) > MOST_JOBS else log
