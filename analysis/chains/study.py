"""Chains of two jobs on a log that is replayed without a break: when each policy submits the second, and what follows.

Every four hours a chain begins: a first job is submitted, and runs for its limit of 48 h. From its start on, a policy
is asked every hour whether to submit the second job, which is alike. It does so as soon as the wait that it predicts is
as long as what is left of the first. Each wait is that of a copy of the queue in which the second job is submitted at
that hour. The gap is the start of the second minus the end of the first: an interruption, or an overlap if negative.

Models learn from chains of which the waits were known: before the test part, and in it anew each week, as a site does.
Between, their margins follow from day to day the waits that are known by then. The forest, a baseline, learns once,
before the test part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .costs import PolicyRow, policy_row
from .jobs_log import FloatArray, JobsLog
from .policy import LeadPolicy
from .queue import Queue
from .waits import FEATURES, LEAST_WAITS, WaitModel, features, used_share

ProgressReport = Callable[[int, int], None]  # `progress(chains done, chains)`

DEFAULT_POLICIES = ("reactive", "average", "p75", "p90")
LINK_S = 48 * 3600.0  # run time and limit of both jobs of a chain
_HOUR_S, _DAY_S = 3600.0, 86400.0
_EVERY_S = 4 * _HOUR_S
_ASKED = 1 + round(LINK_S / _HOUR_S)  # hours from the start of the first job to its end, both included
_LEARNED_EVERY = 8  # hours between the moments of a chain that a model learns from
_LEARNED_ANEW = 7  # days until it does again
_ROOM_S = 5 * _DAY_S  # a chain begins so long before the log ends, as in the Mirage study
_RECENT_S = 14 * _DAY_S  # margins come from waits of so long
_FEWEST_RECENT = 50


@dataclass(frozen=True)
class StudyOptions:
    """What is studied."""

    cluster_nodes: int
    nodes: int = 1  # of each job of a chain
    policies: tuple[str, ...] = DEFAULT_POLICIES
    """reactive, lead6 (hours), average, test-only, p75 (a quantile of the predicted wait), forest or known."""
    test_from_s: float | None = None
    """Chains are tested that begin at this time, seconds since 1970, or later. None: in the last quarter of the log."""
    cost: float | None = None
    """Hours of interruption that an hour of overlap weighs: adds the policy `cost`. None: without it."""
    seed: int = 0


@dataclass(frozen=True)
class Chains:
    """Chains at the hours at which a policy is asked. Times are seconds since 1970 (UTC)."""

    begins_s: FloatArray  # (chains,) when the first job was submitted
    ends_s: FloatArray  # (chains,) when the first job ended
    moments_s: FloatArray  # (chains, hours)
    feature_rows: FloatArray  # (chains, hours, features) of the second job, were it submitted then
    waits_s: FloatArray  # (chains, hours) how long it would have waited
    known_gaps_s: FloatArray
    """(chains,) the gap of who knows all waits: of the latest hour at which the second job starts in time."""


def chain_study(log: JobsLog, *, options: StudyOptions, progress: ProgressReport | None = None) -> list[PolicyRow]:
    """What each policy came to over the chains of the test part, in the order of `options.policies`.

    Raises:
        InputError: a policy is unknown, a job is wider than the cluster, the test part has no chain, or the part before
            it is too short to learn from.
    """
    policies = [LeadPolicy.parse(name, further=("forest", "known")) for name in options.policies]
    policies += [] if options.cost is None else [LeadPolicy.of_cost(options.cost, "cost")]
    quantiles = {policy.name: policy.quantile for policy in policies if policy.quantile is not None}
    learns = bool(quantiles) or "forest" in options.policies
    begins_s, test_from_s = _begins(log, options.test_from_s)
    tested = begins_s >= test_from_s
    learned_s = begins_s[~tested] if learns else begins_s[:0]
    done, chains = count(1), len(learned_s) + int(tested.sum())
    advance = (lambda: None) if progress is None else (lambda: progress(next(done), chains))
    test = _chains(log, options, begins_s[tested], step_h=1, advance=advance)
    predicted_s = {
        "average": test.feature_rows[..., FEATURES.index("recent_wait_mean_h")] * _HOUR_S,
        "test-only": test.feature_rows[..., FEATURES.index("first_fit_h")] * _HOUR_S,
    }
    if learns:
        learned = _chains(log, options, learned_s, step_h=_LEARNED_EVERY, advance=advance)
        history = _History.of(learned, test)
        is_known = history.known_at(test_from_s)
        if is_known.sum() < LEAST_WAITS:
            raise InputError(
                f"{log.source}: before {_date(test_from_s)} it has {int(is_known.sum()):,} waits of chains, and a "
                f"model needs {LEAST_WAITS}; choose a later --test-from, or policies that learn nothing"
            )
        if quantiles:
            levels = sorted(set(quantiles.values()))

            def learn(now_s: float) -> WaitModel:
                past, share = history.where(history.known_at(now_s)), used_share(log.where(log.end_s < now_s))
                columns = past.feature_rows, past.waits_s, past.moments_s
                return WaitModel.fit(*columns, used_share=share, quantiles=levels, seed=options.seed)

            waits_s = _predicted_by_day(learn, history, test, test_from_s)
            predicted_s |= {policy: waits_s[..., levels.index(level)] for policy, level in quantiles.items()}
        if "forest" in options.policies:
            predicted_s["forest"] = _forest(history.where(is_known), test.feature_rows, options.seed)
    return [_row(policy, options.nodes, test, predicted_s) for policy in policies]


def _begins(log: JobsLog, test_from_s: float | None) -> tuple[FloatArray, float]:
    """When chains begin, ascending, and from when on they are tested. Raises InputError where none is."""
    # A log since some time has of the jobs before it only those that still ran then: the first that ended tells it.
    first_s = math.ceil(min(float(log.end_s.min()), log.submit_s[-1]) / _DAY_S) * _DAY_S
    last_s = float(log.submit_s[-1]) - _ROOM_S
    if test_from_s is None:
        test_from_s = math.floor((first_s + 3 * last_s) / 4 / _DAY_S) * _DAY_S
    begins_s = np.arange(first_s, last_s, _EVERY_S)
    if not len(begins_s):
        raise InputError(
            f"{log.source} is too short: chains begin on the day after the first end of a job, {_date(first_s)}, until "
            f"five days before the last job was submitted, {_date(log.submit_s[-1])}"
        )
    if not (begins_s >= test_from_s).any():
        raise InputError(
            f"{log.source}: no chain begins on {_date(test_from_s)} or later and five days before the last job, which "
            f"was submitted on {_date(log.submit_s[-1])}; choose an earlier --test-from"
        )
    return begins_s, test_from_s


def _date(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d}"


def _chains(
    log: JobsLog, options: StudyOptions, begins_s: FloatArray, *, step_h: int, advance: Callable[[], None]
) -> Chains:
    """The chains that begin at these times, ascending, at every so many hours."""
    hours = _HOUR_S * np.arange(0, _ASKED, step_h)
    queue = Queue(log, options.cluster_nodes)
    nodes, shape = options.nodes, (len(begins_s), len(hours))
    starts_s, known_gaps_s = np.empty(len(begins_s)), np.empty(len(begins_s))
    waits_s, feature_rows = np.empty(shape), np.empty((*shape, len(FEATURES)))
    for chain, begin_s in enumerate(begins_s.tolist()):
        queue.advance(begin_s)
        submitted = queue.copy()
        first = submitted.submit(nodes, LINK_S)
        running = submitted.copy()
        start_s = starts_s[chain] = running.run_until_started(first) if first not in submitted.starts_s else begin_s
        for hour, after_s in enumerate(hours.tolist()):
            running.advance(start_s + after_s)
            feature_rows[chain, hour] = features(running.state(), nodes, LINK_S)
            waits_s[chain, hour] = _wait_s(running, nodes)
        gaps_s = hours + waits_s[chain] - LINK_S
        if gaps_s[0] > 0:  # submitted when the first job starts, the second is late: it must be submitted before
            gaps_s = _early_gaps_s(submitted, start_s, nodes)
        known_gaps_s[chain] = gaps_s[gaps_s <= 0][-1] if (gaps_s <= 0).any() else gaps_s.min()
        advance()
    return Chains(begins_s, starts_s + LINK_S, starts_s[:, None] + hours, feature_rows, waits_s, known_gaps_s)


def _wait_s(queue: Queue, nodes: int) -> float:
    """The wait of a job of a chain that is submitted at this moment."""
    copied = queue.copy()
    return copied.run_until_started(copied.submit(nodes, LINK_S)) - queue.now_s


def _early_gaps_s(submitted: Queue, start_s: float, nodes: int) -> FloatArray:
    """The gaps of second jobs submitted hourly from the submission of the first until it starts."""
    gaps_s = []
    for submit_s in np.arange(submitted.now_s, start_s, _HOUR_S).tolist():
        submitted.advance(submit_s)
        gaps_s.append(submit_s + _wait_s(submitted, nodes) - start_s - LINK_S)
    return np.array(gaps_s)


@dataclass(frozen=True)
class _History:
    """Waits of chains to learn from, shape (waits,), and what was seen before them, (waits, features)."""

    moments_s: FloatArray
    feature_rows: FloatArray
    waits_s: FloatArray

    @classmethod
    def of(cls, *parts: Chains) -> _History:
        """The moments of these chains that a model learns from."""
        columns: list[tuple[FloatArray, ...]] = []
        for chains in parts:
            step_h = _LEARNED_EVERY if chains.moments_s.shape[1] == _ASKED else 1
            waits_s, feature_rows = chains.waits_s[:, ::step_h].ravel(), chains.feature_rows[:, ::step_h]
            columns.append((chains.moments_s[:, ::step_h].ravel(), feature_rows.reshape(-1, len(FEATURES)), waits_s))
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def where(self, waits: NDArray[np.bool_]) -> _History:
        """Some of the waits: those where `waits`, of shape (waits,), is true."""
        return _History(self.moments_s[waits], self.feature_rows[waits], self.waits_s[waits])

    def known_at(self, now_s: float) -> NDArray[np.bool_]:
        """(waits,) those that had ended by then.

        Of jobs submitted after the first that still waited, only short waits have ended: they are left out.
        """
        is_begun = self.moments_s < now_s
        waiting = is_begun & (self.moments_s + self.waits_s > now_s)
        complete_s = self.moments_s[waiting].min() if waiting.any() else now_s
        is_known: NDArray[np.bool_] = is_begun & (self.moments_s < complete_s)
        return is_known


def _predicted_by_day(
    learn: Callable[[float], WaitModel], history: _History, test: Chains, test_from_s: float
) -> FloatArray:
    """(chains, hours, quantiles) waits in seconds, each by what was known on the day on which it was predicted.

    `learn` makes a model of the waits that were known at a time.
    """
    model, learn_on = learn(test_from_s), test_from_s // _DAY_S + _LEARNED_ANEW
    days, predicted_s = test.moments_s // _DAY_S, np.empty((*test.waits_s.shape, len(model.quantiles)))
    for day in np.unique(days).tolist():
        now_s = max(day * _DAY_S, test_from_s)
        if day >= learn_on:
            model, learn_on = learn(now_s), day + _LEARNED_ANEW
        is_known = history.known_at(now_s) & (history.moments_s > model.learned_until_s)
        newest_s = history.moments_s[is_known].max(initial=0.0)
        recent = history.where(is_known & (history.moments_s > newest_s - _RECENT_S))
        daily = model
        if len(recent.waits_s) >= _FEWEST_RECENT:
            daily = model.calibrated(recent.feature_rows, recent.waits_s)
        predicted_s[days == day] = daily.predict(test.feature_rows[days == day])
    return predicted_s


def _forest(past: _History, feature_rows: FloatArray, seed: int) -> FloatArray:
    """(chains, hours) the mean wait by a random forest, as strong a baseline as published provisioners are."""
    from sklearn.ensemble import RandomForestRegressor

    forest: Any = RandomForestRegressor(n_estimators=50, min_samples_leaf=5, random_state=seed)
    forest.fit(past.feature_rows, past.waits_s)
    predicted_s: FloatArray = forest.predict(feature_rows.reshape(-1, len(FEATURES))).reshape(feature_rows.shape[:-1])
    return predicted_s


def _row(policy: LeadPolicy, nodes: int, test: Chains, predicted_s: dict[str, FloatArray]) -> PolicyRow:
    """What a policy came to. Its coverage is of the predictions by which it submitted."""
    if policy.name == "known":
        return policy_row(policy.name, nodes, times_s=test.begins_s, gaps_s=test.known_gaps_s)
    lead_s = 0.0 if policy.name == "reactive" else policy.lead_s
    waits_s = predicted_s[policy.name] if lead_s is None else np.full(test.waits_s.shape, lead_s)
    left_s = test.ends_s[:, None] - test.moments_s
    hour = np.argmax(waits_s >= left_s, axis=1)  # at the end of the first job every prediction is enough
    at_hour = np.arange(len(hour)), hour
    gaps_s = test.waits_s[at_hour] - left_s[at_hour]
    covered = test.waits_s[at_hour] <= waits_s[at_hour]
    coverage_pct = 100 * float(covered.mean()) if lead_s is None else None
    return policy_row(policy.name, nodes, times_s=test.begins_s, gaps_s=gaps_s, coverage_pct=coverage_pct)
