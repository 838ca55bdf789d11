"""What a job would wait in the queue of this site if it was submitted at this moment, and what it pays to be early.

A policy says how long before the end of the running link of a chain its successor is submitted. Reactive: at its end.
Fixed lead: so many hours before. The others go by a predicted wait: the mean of the last waits here, the start that
`sbatch --test-only` names, or a quantile of the wait, learned from the site's accounting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ..analysis.chains.policy import LeadPolicy
from ..errors import InputError, SchedulerError
from .slurm import Slurm

if TYPE_CHECKING:
    from ..analysis.chains.costs import WaitEstimate
    from ..analysis.chains.jobs_log import FloatArray, JobsLog
    from ..analysis.chains.waits import WaitModel

QUANTILES = (0.5, 0.75, 0.9)  # quantiles of the wait that people read
SIMILAR = 100  # jobs of about this size, the last ones, that the mean wait is of
_HISTORY = timedelta(days=120)
_CHECKED = 300  # jobs that a price is taken over
_LEARNED_S, _RETRY_S = 86_400.0, 3600.0  # until it learns again, and where the accounts did not answer


@dataclass(frozen=True, slots=True)
class JobShape:
    """What decides how long a job waits."""

    nodes: int
    limit_s: float
    partition: str | None = None  # None: the default one


@dataclass(frozen=True, slots=True)
class Price:
    """What leads would have cost jobs here: means over `n` jobs in hours."""

    n: int
    interruption_h: WaitEstimate
    overlap_h: WaitEstimate
    reactive_h: WaitEstimate  # the interruption of a successor that is submitted when its predecessor has ended


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job would wait if it was submitted at this moment. Times are in seconds."""

    lead_s: float | None  # how long before the end of its predecessor the policy submits it; None: afterwards
    basis: str  # model, average, test-only, fixed or reactive: what `lead_s` comes from
    n: int = 0  # jobs of this site that it was learned from, or that the mean is of
    quantiles_s: Mapping[float, float] = field(default_factory=dict)
    """Quantile -> wait; empty where nothing was learned."""
    coverage: Mapping[float, tuple[float, int]] = field(default_factory=dict)
    """Quantile -> the share of so many jobs, which it did not learn from, that waited no longer than it said."""
    mean_s: float | None = None  # the mean wait of the last jobs like this one
    planned_s: float | None = None  # when Slurm itself would start it, from now
    price: Price | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Experience:
    """What a site's history says of jobs of one shape."""

    similar: JobsLog | None = None  # the last jobs of about this size
    checked: JobsLog | None = None  # Such jobs of the last fifth of the history
    model: WaitModel | None = None
    price: Price | None = None  # what the leads of the model would have cost
    notes: tuple[str, ...] = ()


class Forecaster:
    """Answers what a job of one shape would wait. It learns from accounting once a day, and looks at the queue anew.

    It reads the whole history once, and then what came since. That is not saved for the next process: reading and
    sorting 18,000 jobs takes a hundredth of the time in which the model learns from them.
    """

    def __init__(self, slurm: Slurm, shape: JobShape, policy: LeadPolicy, options: Sequence[str] = ()) -> None:
        """`options` of sbatch are further ones with which Slurm is asked when it would start the job."""
        self._slurm, self._shape, self._policy, self._options = slurm, shape, policy, tuple(options)
        self._partition: str | None = None
        self._rows: list[Mapping[str, str]] = []
        self._read: datetime | None = None
        self._learn_at_s = -math.inf
        self._experience = _Experience()

    def ask(self, *, planned: bool = False) -> Forecast:
        """What the job would wait at this moment; `planned`: by Slurm's own plan, too. Raises SchedulerError."""
        if time.monotonic() > self._learn_at_s:
            self._partition = self._shape.partition or self._slurm.default_partition()
            try:
                self._experience, again_s = self._learn(), _LEARNED_S
            except (InputError, SchedulerError) as error:
                self._experience, again_s = replace(self._experience, notes=(f"no wait is learned: {error}",)), _RETRY_S
            self._learn_at_s = time.monotonic() + again_s
        learned, planned_s = self._experience, None
        notes = list(learned.notes)
        if planned or self._policy.name == "test-only":
            try:
                planned_s = self._planned_s()
            except SchedulerError as error:
                notes.append(str(error))
        mean_s = None if learned.similar is None else float(learned.similar.waits_s.mean())
        quantiles_s = {} if learned.model is None else self._predict(learned.model)
        leads_s = {
            "fixed": self._policy.lead_s,
            "test-only": planned_s if self._policy.name == "test-only" else None,
            "model": quantiles_s.get(self._policy.quantile or math.nan),
            "average": mean_s if self._policy.quantile or self._policy.name == "average" else None,
        }
        basis, lead_s = next(
            ((name, lead_s) for name, lead_s in leads_s.items() if lead_s is not None), ("reactive", None)
        )
        price = learned.price if basis == "model" else None
        if price is None and learned.checked is not None:
            price = price_of(learned.checked, lead_s or 0.0)
        return Forecast(
            lead_s,
            basis,
            n=learned.model.n if learned.model is not None else 0 if learned.similar is None else len(learned.similar),
            quantiles_s=quantiles_s,
            coverage={} if learned.model is None else learned.model.coverage,
            mean_s=mean_s,
            planned_s=planned_s,
            price=price,
            notes=tuple(notes),
        )

    def _learn(self) -> _Experience:
        """What the site's history of this partition says, with a model where there is enough of it.

        Raises InputError, SchedulerError.
        """
        from ..analysis.chains.jobs_log import log_of_rows
        from ..analysis.chains.waits import features_of, site_model

        now = datetime.now(UTC)
        names = {"", *(self._partition or "").split(",")}
        rows = [
            row
            for row in self._slurm.history(self._read or now - _HISTORY)
            if self._partition is None or row["Partition"] in names
        ]
        self._rows, self._read = [*self._rows, *rows], now  # of a job that is in both, the row with its end counts
        log = log_of_rows(self._rows, "Slurm's accounting")
        log = log.since((now - _HISTORY).timestamp())
        similar, checked = _similar(log, self._shape.nodes)
        nodes = self._slurm.queue_state(partition=self._partition).cluster_nodes
        try:
            model = site_model(log, nodes, quantiles=sorted({*QUANTILES, self._policy.quantile or QUANTILES[0]}))
        except InputError as error:
            return _Experience(similar, checked, notes=(f"{error}: the mean wait is used",))
        price = None
        if self._policy.quantile is not None:
            waits_s = model.predict(features_of(log, nodes, checked))
            price = price_of(checked, waits_s[:, model.quantiles.index(self._policy.quantile)])
        return _Experience(similar, checked, model, price)

    def _predict(self, model: WaitModel) -> dict[float, float]:
        """Quantile -> wait of the job, with the queue as it is."""
        from ..analysis.chains.waits import features

        state = self._slurm.queue_state(partition=self._partition)
        waits_s = model.predict(features(state, self._shape.nodes, self._shape.limit_s)[None])[0]
        return dict(zip(model.quantiles, waits_s.tolist(), strict=True))

    def _planned_s(self) -> float | None:
        """When Slurm would start it, from now; None where it does not say."""
        partition = [f"--partition={self._shape.partition}"] if self._shape.partition else []
        minutes = math.ceil(self._shape.limit_s / 60)
        options = (f"--nodes={self._shape.nodes}", f"--time={minutes}", *partition, *self._options)
        start = self._slurm.test_start(options)
        return None if start is None else max(0.0, (start - datetime.now(UTC)).total_seconds())


def _similar(log: JobsLog, nodes: int) -> tuple[JobsLog, JobsLog]:
    """The last jobs of half to twice as many nodes, and some of such jobs in the last fifth of the log, evenly taken.

    Of all sizes where these are few. No tree of a model has learned from a job of that fifth.
    """
    import numpy as np

    jobs = np.flatnonzero((log.nodes >= nodes / 2) & (log.nodes <= 2 * nodes))
    jobs = jobs if len(jobs) >= SIMILAR / 5 else np.arange(len(log))
    late = jobs[jobs >= 0.8 * len(log)]
    late = late if len(late) else jobs
    sampled = late[np.linspace(0, len(late) - 1, min(_CHECKED, len(late))).astype(int)]
    numbers = np.arange(len(log))
    return log.where(np.isin(numbers, jobs[-SIMILAR:])), log.where(np.isin(numbers, sampled))


def price_of(log: JobsLog, leads_s: FloatArray | float) -> Price:
    """What successors with these waits would have cost if they had been submitted so long before they were due.

    Intervals come from drawing days of the log again: jobs of one day wait for the same reasons.
    """
    import numpy as np

    from ..analysis.chains.costs import DAY_S, DrawnBlocks

    days = DrawnBlocks.of(log.submit_s, DAY_S)
    late_h = (log.waits_s - leads_s) / 3600.0
    costs_h = (np.maximum(late_h, 0.0), np.maximum(-late_h, 0.0), log.waits_s / 3600.0)
    return Price(len(log), *(days.estimate(days.means(hours)) for hours in costs_h))
