"""What a job would wait in the queue of this site if it was submitted at this moment, and what it pays to be early.

A policy says how long before the end of the running link of a chain its successor is submitted. Reactive: at its end.
Fixed lead: so many hours before. The others go by a predicted wait: the mean of the last waits here, the start that
`sbatch --test-only` names, or a quantile of the wait, learned from the site's accounting.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ..errors import InputError, SchedulerError
from .slurm import Slurm

if TYPE_CHECKING:
    from ..analysis.chains.jobs_log import FloatArray, JobsLog

QUANTILES = (0.5, 0.75, 0.9)
"""Quantiles of the wait that people read."""
SIMILAR = 100
"""Jobs of about this size that the mean wait and the price of a policy are taken over."""
_HISTORY = timedelta(days=120)
_LEARNED_S = 86_400.0  # so long what was learned is good
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class JobShape:
    """What decides how long a job waits."""

    nodes: int
    limit_s: float
    partition: str | None = None
    """None: the default one."""


@dataclass(frozen=True, slots=True)
class LeadPolicy:
    """When the successor of a running link is submitted."""

    name: str = "p67"
    """reactive, lead6 (hours), average, test-only, or p75: a quantile of the predicted wait."""
    quantile: float | None = 2 / 3
    lead_s: float | None = None

    @classmethod
    def parse(cls, text: str | None, cost: float) -> LeadPolicy:
        """The policy of that name; None: the quantile at which an hour of overlap weighs `cost` hours of interruption.

        The expected cost of a lead L for a wait W, E[max(0, W - L)] + cost * E[max(0, L - W)], is least where L is the
        quantile 1 / (1 + cost) of W. Raises InputError for a name that is none.
        """
        if text is None:
            quantile = 1 / (1 + cost)
            return cls(f"p{100 * quantile:.0f}", quantile)
        lead = re.fullmatch(r"lead(\d+\.?\d*)h?", text)
        share = re.fullmatch(r"p([1-9]\d?)", text)
        if lead:
            return cls(text, None, 3600.0 * float(lead[1]))
        if share:
            return cls(text, int(share[1]) / 100)
        if text in ("reactive", "average", "test-only"):
            return cls(text, None)
        raise InputError(f"there is no policy {text!r}: give reactive, lead6 (hours), average, test-only or p75")


@dataclass(frozen=True, slots=True)
class Price:
    """What leads would have cost jobs here: means over `n` jobs in hours, each with its interval of 95 %."""

    n: int
    interruption_h: tuple[float, float, float]
    """Mean, low and high; so are the next two."""
    overlap_h: tuple[float, float, float]
    reactive_h: tuple[float, float, float]
    """The interruption of a successor that is submitted when its predecessor has ended: its wait."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job would wait if it was submitted at this moment. Times are in seconds."""

    lead_s: float | None
    """How long before the end of its predecessor the policy submits it; None: afterwards."""
    basis: str
    """model, average, test-only, fixed or reactive: what `lead_s` comes from."""
    n: int = 0
    """Jobs of this site that it was learned from."""
    quantiles_s: Mapping[float, float] = field(default_factory=dict)
    """Quantile -> wait; empty where nothing was learned."""
    coverage: Mapping[float, tuple[float, int]] = field(default_factory=dict)
    """Quantile -> the share of so many jobs, which it did not learn from, that waited no longer than it said."""
    mean_s: float | None = None
    """The mean wait of the last jobs like this one."""
    planned_s: float | None = None
    """When Slurm itself would start it, from now."""
    price: Price | None = None
    notes: tuple[str, ...] = ()


def limit_seconds(text: str) -> float:
    """A time limit as sbatch takes it, in seconds: 90 (minutes), 90:00, 24:00:00, 1-12, 1-12:00; infinite: UNLIMITED.

    Raises InputError for any other text.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    match = _LIMIT.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise InputError(f"{text!r} is no time limit: write 24:00:00, 1-12:00 (days-hours:minutes) or 90 (minutes)")
    days, first, second, third = match.groups()
    if days is not None or third is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = first, second, third
    else:  # minutes[:seconds]
        hours, minutes, seconds = None, first, second
    return int(days or 0) * 86_400.0 + int(hours or 0) * 3600.0 + int(minutes or 0) * 60.0 + int(seconds or 0)


class Forecaster:
    """Answers what a job of one shape would wait. It learns from accounting once a day, and looks at the queue anew."""

    def __init__(self, slurm: Slurm, shape: JobShape, policy: LeadPolicy, options: Sequence[str] = ()) -> None:
        """`options` of sbatch are further ones with which Slurm is asked when it would start the job."""
        self._slurm, self._shape, self._policy, self._options = slurm, shape, policy, tuple(options)
        self._log: JobsLog | None = None
        self._notes: tuple[str, ...] = ()
        self._learned_s = -math.inf

    def ask(self, *, planned: bool = False) -> Forecast:
        """What the job would wait at this moment; `planned`: by Slurm's own plan, too. Raises SchedulerError."""
        if time.monotonic() - self._learned_s > _LEARNED_S:
            self._learn()
            self._learned_s = time.monotonic()
        return self._look(planned=planned)

    def _learn(self) -> None:
        """Read the site's history of this partition."""
        from ..analysis.chains.jobs_log import log_of_rows

        partition = self._shape.partition or self._slurm.default_partition()
        try:
            rows = list(self._slurm.history(datetime.now(UTC) - _HISTORY))
            self._log = log_of_rows((row for row in rows if row["Partition"] in (partition, "")), "sacct")
        except (InputError, SchedulerError) as error:
            self._log, self._notes = None, (f"nothing can be learned from accounting: {error}",)

    def _look(self, *, planned: bool) -> Forecast:
        similar = None if self._log is None else _similar(self._log, self._shape.nodes)
        mean_s = None if similar is None else float(similar.waits_s.mean())
        lead_s, basis = self._policy.lead_s, "reactive" if self._policy.lead_s is None else "fixed"
        by_plan, notes = self._policy.name == "test-only", self._notes
        planned_s = None
        if planned or by_plan:
            try:
                planned_s = self._planned_s()
            except SchedulerError as error:
                notes += (str(error),)
        if by_plan and planned_s is not None:
            lead_s, basis = planned_s, "test-only"
        elif mean_s is not None and (self._policy.name == "average" or self._policy.quantile):
            lead_s, basis = mean_s, "average"
        price = None if similar is None else price_of(similar, lead_s or 0.0)
        return Forecast(lead_s, basis, mean_s=mean_s, planned_s=planned_s, price=price, notes=notes)

    def _planned_s(self) -> float | None:
        """When Slurm would start it, from now; None where it does not say."""
        partition = [f"--partition={self._shape.partition}"] if self._shape.partition else []
        minutes = math.ceil(self._shape.limit_s / 60)
        options = (f"--nodes={self._shape.nodes}", f"--time={minutes}", *partition, *self._options)
        start = self._slurm.test_start(options)
        return None if start is None else max(0.0, (start - datetime.now(UTC)).total_seconds())


def _similar(log: JobsLog, nodes: int) -> JobsLog:
    """The last jobs of half to twice as many nodes; of all sizes where these are few."""
    similar = (log.nodes >= nodes / 2) & (log.nodes <= 2 * nodes)
    if similar.sum() < SIMILAR / 5:
        similar[:] = True
    return log.where(similar & (similar[::-1].cumsum()[::-1] <= SIMILAR))


def price_of(log: JobsLog, leads_s: FloatArray | float) -> Price:
    """What successors with these waits would have cost if they had been submitted so long before they were due.

    Intervals come from drawing days of the log again, 400 times: jobs of one day wait for the same reasons.
    """
    import numpy as np

    from ..analysis.statistics.bootstrap import percentile_interval, weights

    waits_h, leads_h = log.waits_s / 3600.0, np.broadcast_to(leads_s, len(log)) / 3600.0
    costs_h = np.stack([np.maximum(waits_h - leads_h, 0.0), np.maximum(leads_h - waits_h, 0.0), waits_h], axis=1)
    _, days = np.unique(log.submit_s // 86_400.0, return_inverse=True)
    jobs = np.bincount(days)
    sums_h = np.stack([np.bincount(days, column) for column in costs_h.T], axis=1)
    drawn = np.vstack(list(weights(0, len(jobs), 400)))
    means_h = (drawn @ sums_h) / (drawn @ jobs)[:, None]
    figures = []
    for mean_h, replicated_h in zip(costs_h.mean(axis=0), means_h.T, strict=True):
        low_h, high_h = percentile_interval(replicated_h) or (math.nan, math.nan)
        figures.append((float(mean_h), low_h, high_h))
    return Price(len(log), *figures)
