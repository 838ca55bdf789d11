"""How long a job would wait in a queue: what the queue looks like at one moment, and models that learn from that.

`QueueState` is a queue at one moment, of a replay or of a real site; `features` are the numbers that a model sees of
it. `WaitModel` predicts quantiles of the wait by gradient boosting, and corrects them on the last part of the history;
`site_model` fits it to the real waits of a site.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ...errors import InputError
from .jobs_log import UNLIMITED_S, FloatArray, IntArray, JobsLog

RECENT_WAITS = 100  # jobs started last whose waits a `QueueState` has
QUANTILES = (0.5, 0.75, 0.9)
LEAST_WAITS = 500
"""Waits that a model learns from at least: its last tenth, which says how often it was right, then has 50."""
_MOST_WAITS = 6000  # that `site_model` learns from: the features of a wait cost half a millisecond
_CALIBRATING = 0.2
_LONGEST_H = 720.0  # a plan beyond a month is no plan: Slurm takes a job without a limit to run for a year
_HOUR_S = 3600.0
_ENDING_WITHIN_H = (2, 6, 12, 24)

FEATURES = (
    "nodes",
    "limit_h",
    "pending_jobs",
    "pending_nodes",
    "pending_node_h",
    "free_nodes",
    "running_jobs",
    "running_node_h",
    *(f"ending_nodes_{hours}h" for hours in _ENDING_WITHIN_H),
    "recent_wait_mean_h",
    "recent_wait_max_h",
    "first_pending_nodes",
    "first_pending_age_h",
    "first_fit_h",
    "hour",
    "weekday",
)
"""Names of the columns of `features`. Nodes are counts; hours and weekdays are of UTC, Monday is 0."""


@dataclass(frozen=True)
class QueueState:
    """A queue at one moment, simulated or real. Times are seconds since the epoch (UTC)."""

    now_s: float
    free_nodes: int
    cluster_nodes: int
    pending_nodes: IntArray  # (pending,) in the queue's order, as the next two
    pending_limit_s: FloatArray
    pending_since_s: FloatArray  # when they were submitted
    running_nodes: IntArray  # (running,)
    running_until_s: FloatArray  # (running,) start + limit
    recent_waits_s: FloatArray  # (at most `RECENT_WAITS`,) of the jobs that started last


def features(state: QueueState, nodes: int, limit_s: float) -> FloatArray:
    """What a model sees of a job that is submitted at this moment, shape (features,), by the names in `FEATURES`."""
    left_h = np.maximum(state.running_until_s - state.now_s, 0.0) / _HOUR_S
    now = datetime.fromtimestamp(state.now_s, UTC)
    waits_h = state.recent_waits_s if len(state.recent_waits_s) else np.zeros(1)
    waits_h = waits_h / _HOUR_S
    first_nodes, first_age_h = 0, 0.0
    if len(state.pending_nodes):
        first_nodes, first_age_h = state.pending_nodes[0], (state.now_s - state.pending_since_s[0]) / _HOUR_S
    return np.array(
        [
            nodes,
            limit_s / _HOUR_S,
            len(state.pending_nodes),
            state.pending_nodes.sum(),
            state.pending_nodes @ state.pending_limit_s / _HOUR_S,
            state.free_nodes,
            len(state.running_nodes),
            state.running_nodes @ left_h,
            *(state.running_nodes[left_h <= hours].sum() for hours in _ENDING_WITHIN_H),
            waits_h.mean(),
            waits_h.max(),
            first_nodes,
            first_age_h,
            min(first_fit_s(state, nodes, limit_s) / _HOUR_S, _LONGEST_H),
            now.hour + now.minute / 60,
            now.weekday(),
        ],
        dtype=np.float64,
    )


def first_fit_s(state: QueueState, nodes: int, limit_s: float) -> float:
    """Seconds until a job would start if every job ran until its limit and no other job came: `sbatch --test-only`.

    The pending jobs are planned in the queue's order, each at the first moment from which enough nodes are free for as
    long as its limit; the job comes last. Infinite where the nodes are never free.
    """
    begins_s, free = _free_by_limits(state)
    earliest: dict[tuple[int, float], float] = {}  # of requests that were planned: an equal one cannot start sooner
    requests = zip(state.pending_nodes.tolist(), state.pending_limit_s.tolist(), strict=True)
    place: int | None = None
    for request in (*requests, (nodes, limit_s)):
        place = _first_place(begins_s, free, *request, earliest.get(request, 0.0))
        if place is not None:
            earliest[request] = start_s = begins_s[place]
            _reserve(begins_s, free, place, *request)
    return math.inf if place is None else start_s


def free_at(running: Iterable[tuple[Sequence[str], float]]) -> dict[str, float]:
    """When each busy node is free at the latest, as an empty node: by the time limits of all jobs that run on it.

    `running` has the nodes of each job that runs, and when it reaches its limit in seconds since the epoch (UTC);
    infinite where it has none. The times are upper bounds: jobs may end before their limits. And a job that waits in
    the queue may get the node first, which no limit tells.

    On Lonestar6, of the 6,936 jobs that ran at 162 moments of February 2023, 63 % ran until within 10 minutes of their
    limit, none was later, and the mean was 5.3 h before it. The median of past jobs of such limits that had run as long
    was wrong by 5.4 h on average, so limits alone are told.
    """
    free_s: dict[str, float] = {}
    for nodes, until_s in running:
        for node in nodes:
            free_s[node] = max(free_s.get(node, until_s), until_s)
    return free_s


def _free_by_limits(state: QueueState) -> tuple[list[float], list[int]]:
    """The free nodes as steps: when each begins, in seconds from now, and how many nodes are free from then on."""
    begins_s, free = [0.0], [state.free_nodes]
    left_s = np.maximum(state.running_until_s - state.now_s, 1.0)  # what has passed its limit ends at any moment
    for place in np.argsort(left_s, kind="stable").tolist():
        returned = free[-1] + int(state.running_nodes[place])
        if left_s[place] == begins_s[-1]:
            free[-1] = returned
        else:
            begins_s.append(float(left_s[place]))
            free.append(returned)
    return begins_s, free


def _first_place(begins_s: list[float], free: list[int], nodes: int, limit_s: float, earliest_s: float) -> int | None:
    """The first step, not before `earliest_s`, from which so many nodes are free for so long."""
    place = None
    for step, begin_s in enumerate(begins_s):
        if place is not None and begin_s >= begins_s[place] + limit_s:
            return place
        if free[step] < nodes:
            place = None
        elif place is None and begin_s >= earliest_s:
            place = step
    return place


def _reserve(begins_s: list[float], free: list[int], place: int, nodes: int, limit_s: float) -> None:
    """Take these nodes for so long from the begin of a step on."""
    end_s = begins_s[place] + limit_s
    step = place
    while step < len(begins_s) and begins_s[step] < end_s:
        free[step] -= nodes
        step += 1
    if step == len(begins_s) or begins_s[step] > end_s:
        begins_s.insert(step, end_s)
        free.insert(step, free[step - 1] + nodes)


def states_of(log: JobsLog, cluster_nodes: int, times_s: Iterable[float]) -> Iterator[QueueState]:
    """The queue of a real history at these moments, as it was just before a job that is submitted then.

    Jobs that never started are not in a log, so that the queue looks shorter by them.
    """
    by_start = np.argsort(log.start_s, kind="stable")
    starts_s, waits_s = log.start_s[by_start], (log.start_s - log.submit_s)[by_start]
    for time_s in times_s:
        submitted = slice(0, int(np.searchsorted(log.submit_s, time_s, side="left")))
        start_s, limit_s, nodes = log.start_s[submitted], log.limit_s[submitted], log.nodes[submitted]
        pending = start_s > time_s
        running = ~pending & (log.end_s[submitted] > time_s)
        started = int(np.searchsorted(starts_s, time_s, side="left"))
        yield QueueState(
            now_s=float(time_s),
            free_nodes=max(0, cluster_nodes - int(nodes[running].sum())),
            cluster_nodes=cluster_nodes,
            pending_nodes=nodes[pending],
            pending_limit_s=limit_s[pending],
            pending_since_s=log.submit_s[submitted][pending],
            running_nodes=nodes[running],
            running_until_s=(start_s + limit_s)[running],
            recent_waits_s=waits_s[max(0, started - RECENT_WAITS) : started],
        )


def features_of(log: JobsLog, cluster_nodes: int, jobs: JobsLog) -> FloatArray:
    """(jobs, features) what a model sees of some `jobs` when they were submitted, in the queue of a real history."""
    states = states_of(log, cluster_nodes, jobs.submit_s)
    requests = zip(states, jobs.nodes.tolist(), jobs.limit_s.tolist(), strict=True)
    return np.array([features(*request) for request in requests])


def used_share(log: JobsLog) -> float:
    """The node-hours that ended jobs of a log used, over those that their limits had planned; above 0, at most 1."""
    counted = np.isfinite(log.end_s) & (log.limit_s < UNLIMITED_S)
    nodes = log.nodes[counted]
    planned_s = float(nodes @ log.limit_s[counted])
    return max(float(nodes @ log.run_times_s[counted]) / planned_s, 0.01) if planned_s else 1.0


@dataclass(frozen=True)
class WaitModel:
    """Quantiles of the wait of a job, by gradient boosting over `features`.

    A first guess is the wait by first fit, times the share of their limits that jobs use. The trees learn what to add
    to it, one sum of trees a quantile (pinball loss). So waits can be longer than all that were learned from. Then a
    margin is added so that each quantile was right as often as it says on the last part of the history (split
    conformal prediction: Romano, Patterson, Candes, NeurIPS 2019). Margins grow with the first guess.
    """

    quantiles: tuple[float, ...]  # ascending
    n: int  # waits that it was fitted to
    coverage: Mapping[float, tuple[float, int]]
    """Quantile -> the share of so many waits, which came after all that it had learned from, that it was at least."""
    learned_until_s: float  # the trees learned from waits that began until then
    _used_share: float
    _trees: tuple[Any, ...]
    _margins: FloatArray

    @classmethod
    def fit(
        cls,
        feature_rows: FloatArray,
        waits_s: FloatArray,
        times_s: FloatArray,
        *,
        used_share: float,
        quantiles: Sequence[float] = QUANTILES,
        seed: int = 0,
    ) -> WaitModel:
        """Fit to (n, features) `features` of moments of submission `times_s`, and the (n,) waits that followed.

        The last fifth in time is not learned from: it gives the margins. Raises InputError for too little history.
        """
        from sklearn.ensemble import GradientBoostingRegressor

        if len(waits_s) < LEAST_WAITS:
            raise InputError(f"{len(waits_s):,} waits are too little to learn from; a model needs {LEAST_WAITS}")
        order = np.argsort(times_s, kind="stable")
        feature_rows, waits_h = feature_rows[order], waits_s[order] / _HOUR_S
        learned = round((1 - _CALIBRATING) * len(waits_h))
        quantiles = tuple(sorted(quantiles))
        guess_h = used_share * feature_rows[:learned, _FIRST_FIT]
        trees = tuple(
            GradientBoostingRegressor(
                loss="quantile",
                alpha=quantile,
                learning_rate=0.05,
                max_depth=3,
                min_samples_leaf=40,
                subsample=0.5,
                random_state=seed,
            ).fit(feature_rows[:learned], waits_h[:learned] - guess_h)
            for quantile in quantiles
        )
        until_s = float(times_s[order[learned - 1]])
        fitted = cls(quantiles, len(waits_h), {}, until_s, used_share, trees, np.zeros(len(quantiles)))
        checked = (learned + len(waits_h)) // 2
        later = feature_rows[checked:], waits_h[checked:] * _HOUR_S
        before = fitted.calibrated(feature_rows[learned:checked], waits_h[learned:checked] * _HOUR_S)
        right = (later[1][:, None] <= before.predict(later[0])).mean(axis=0).tolist()
        coverage = {quantile: (share, len(later[1])) for quantile, share in zip(quantiles, right, strict=True)}
        return replace(fitted.calibrated(feature_rows[learned:], waits_h[learned:] * _HOUR_S), coverage=coverage)

    def calibrated(self, feature_rows: FloatArray, waits_s: FloatArray) -> WaitModel:
        """The same trees with margins from other waits, (n,), which came after those that the trees learned from."""
        off_h = (waits_s[:, None] / _HOUR_S - self._uncorrected_h(feature_rows)) / self._scale_h(feature_rows)[:, None]
        ascending = np.sort(off_h, axis=0)
        ranks = np.ceil((len(ascending) + 1) * np.array(self.quantiles)).astype(np.int64)
        margins = ascending[np.minimum(ranks, len(ascending)) - 1, np.arange(len(self.quantiles))]
        return replace(self, _margins=margins)

    def predict(self, feature_rows: FloatArray) -> FloatArray:
        """(m, quantiles) waits in seconds from (m, features): never negative, and a higher quantile is never less."""
        waits_h = self._uncorrected_h(feature_rows) + self._margins * self._scale_h(feature_rows)[:, None]
        quantiles_s: FloatArray = np.maximum.accumulate(np.maximum(waits_h, 0.0), axis=1) * _HOUR_S
        return quantiles_s

    def _uncorrected_h(self, feature_rows: FloatArray) -> FloatArray:
        guess_h = self._used_share * feature_rows[:, _FIRST_FIT]
        return np.stack([guess_h + trees.predict(feature_rows) for trees in self._trees], axis=1)

    def _scale_h(self, feature_rows: FloatArray) -> FloatArray:
        scale_h: FloatArray = 1.0 + self._used_share * feature_rows[:, _FIRST_FIT]
        return scale_h


_FIRST_FIT = FEATURES.index("first_fit_h")


def site_model(log: JobsLog, cluster_nodes: int, *, quantiles: Sequence[float] = QUANTILES, seed: int = 0) -> WaitModel:
    """A model of the real waits of a site. Raises InputError where the log has fewer than `LEAST_WAITS` jobs.

    A log does not have the jobs that still wait, so that of the last jobs it has only those that waited little. They
    are left out: those submitted later than 90 % of the last jobs waited before the last start.
    """
    recent_s = np.quantile(log.waits_s[-RECENT_WAITS:], 0.9) if len(log) else 0.0
    complete = int(np.searchsorted(log.submit_s, log.start_s.max(initial=0.0) - recent_s, side="right"))
    if complete < LEAST_WAITS:
        raise InputError(f"{log.source} has {len(log):,} jobs, and a model of the wait needs {LEAST_WAITS} or more")
    learned = log.where((np.arange(len(log)) < complete) & (np.arange(len(log)) >= complete - _MOST_WAITS))
    feature_rows = features_of(log, cluster_nodes, learned)
    return WaitModel.fit(
        feature_rows, learned.waits_s, learned.submit_s, used_share=used_share(log), quantiles=quantiles, seed=seed
    )
