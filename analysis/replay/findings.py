"""Whether a policy is better: what it gains over the baselines, and over itself without scores.

A policy that may move jobs, or packs them in another way, can beat a baseline without any score. So each policy that
looks at scores also runs with all scores at 1, and what it gains over that is the gain by its scores.

The unit is the seed. It draws all that is not sure: the scores at which jobs run, the order of the nodes, the random
numbers of the policy, the failures and, after the first seed, the jobs of every trace. So how far the gains of the
seeds lie apart is how far the gain in another such trace may lie from their mean; more seeds tell it better, and do
not make it less.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

from .comparison import Gain, foretold, summary
from .study import Replayed

ALL = "all traces"
"""The name of what is found over all traces together."""
FIGURE = "avg_jct_s"
BETTER, WORSE, NONE = "better", "worse", "no measurable gain"
NOT_BY_SCORES = "no gain by scores"
ONE_SEED = "one seed is not evidence"
MISSING = "n/a"


def without_scores(policy: str) -> str:
    """The name of a policy's control."""
    return f"{policy} without scores"


@dataclass(frozen=True)
class Finding:
    """What a policy's gains come to, for one trace or for all."""

    trace: str
    """The trace, or `ALL`."""
    scheduler: str
    policy: str
    finding: str
    """"" for a baseline."""
    gains: tuple[Gain, ...]
    """Over each other baseline and, last, over the policy without scores (not for baselines). Each interval is that of
    the gain in another such trace on this fleet."""

    def as_dict(self) -> dict[str, Any]:
        about = {"trace": self.trace, "scheduler": self.scheduler, "policy": self.policy, "finding": self.finding}
        return about | {"gains": [gain.as_dict() for gain in self.gains]}


ITSELF = "over itself without scores"


def of_control(gain: Gain) -> bool:
    """Whether a gain is over the policy without scores."""
    return gain.against == without_scores(gain.policy)


def heading(gain: Gain) -> str:
    """What a gain is over, as the head of a column of several policies."""
    return ITSELF if of_control(gain) else f"over {gain.against}"


def columns(found: Sequence[Finding]) -> list[str]:
    """The heads of the columns of these findings, as the policy with most gains has them: the controls last."""
    fullest = sorted(found, key=lambda one: -len(one.gains))
    heads = list(dict.fromkeys(heading(gain) for one in fullest for gain in one.gains))
    return sorted(heads, key=ITSELF.__eq__)


def findings(results: Sequence[Replayed], against: Sequence[str], controlled: Collection[str]) -> list[Finding]:
    """What is found of each policy by trace and scheduler, and over all traces if there are several.

    `results`: one of each trace, policy, scheduler and seed, and those of the controls (`Case.flat`). `controlled`:
    the policies with controls of their own; the others look at no score or see no difference, and are their own.
    """
    times: Times = {}
    for result in results:
        case = result.case
        its = times.setdefault((case.trace, case.scheduler, case.policy, case.flat), {})
        its[case.seed] = getattr(result.metrics, FIGURE)
    names = {result.case.trace: result.trace for result in results}
    groups = [(name, [trace]) for trace, name in names.items()]
    if len(groups) > 1:
        groups.append((ALL, list(names)))
    policies = list(dict.fromkeys(one.case.policy for one in results if not one.case.flat))
    schedulers = list(dict.fromkeys(result.case.scheduler for result in results))
    found = []
    for (name, traces), scheduler, policy in product(groups, schedulers, policies):
        if not any((trace, scheduler, policy, False) in times for trace in traces):
            continue
        others = [(one, (one, False)) for one in against if one != policy and one in policies]
        if policy not in against:
            others.append((without_scores(policy), (policy, policy in controlled)))
        over = [
            summary(name, scheduler, policy, said, FIGURE, pairs, foretold) if pairs else None
            for said, other in others
            for pairs in [_paired(times, traces, scheduler, (policy, False), other)]
        ]
        said = "" if policy in against else finding(over)
        found.append(Finding(name, scheduler, policy, said, tuple(one for one in over if one)))
    return found


Times = dict[tuple[int, str, str, bool], dict[int, float]]
"""(trace, scheduler, policy, flat) -> seed -> average JCT."""


def _paired(
    times: Times, traces: Sequence[int], scheduler: str, own: tuple[str, bool], other: tuple[str, bool]
) -> tuple[tuple[int, float], ...]:
    """(seed, gain in %) of the seeds that both have for every trace; the gains of several traces are averaged."""
    pairs = [[times.get((trace, scheduler, *one), {}) for one in (own, other)] for trace in traces]
    seeds = sorted(set.intersection(*(set(one) for pair in pairs for one in pair)))
    logs = [fmean(math.log(a[seed] / b[seed]) for a, b in pairs) for seed in seeds]
    return tuple((seed, -100 * math.expm1(log) + 0.0) for seed, log in zip(seeds, logs, strict=True))


def finding(over: Sequence[Gain | None]) -> str:
    """What gains over all baselines and, last, over the policy without scores come to; None: it is not known."""
    known = [gain for gain in over if gain is not None]
    if len(known) < len(over):
        return MISSING
    if any(gain.n < 2 for gain in known):
        return ONE_SEED
    baselines, control = known[:-1], known[-1]
    if any(gain.measurable and gain.mean_pct < 0 for gain in baselines):
        return WORSE
    if not all(gain.measurable for gain in baselines):
        return NONE
    return BETTER if control.measurable and control.mean_pct > 0 else NOT_BY_SCORES
