"""What policies gain: paired differences seed by seed, how sure they are, and whether a policy is better.

A policy that may move jobs, or packs them in another way, can beat a baseline without any score. So each policy that
looks at scores also runs with all scores at 1, and what it gains over that is the gain by its scores.

The unit is the seed. It draws all that is not sure: the scores at which jobs run, the order of the nodes, the random
numbers of the policy, the failures and, after the first seed, the jobs of every trace. So how far the gains of the
seeds lie apart is how far the gain in another such trace may lie from their mean; more seeds tell it better, and do
not make it less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from ..statistics.ordering import quantile
from .outcome import Metrics
from .study import Replayed

JCT, ENERGY = "avg_jct_s", "energy_kwh"
FIGURES = (JCT, "p99_jct_s", "makespan_s")
CONFIDENCE = 0.9
LEAST_PCT = 0.05  # what rounds to 0.0 % is no gain: seeds may agree to the last bit of their rounding errors

ALL = "all traces"  # the name of what is found over all traces together
BETTER, WORSE, NONE = "better", "worse", "no measurable gain"
NOT_BY_SCORES = "no gain by scores"
ONE_SEED = "one seed is not evidence"
MISSING = "n/a"
ITSELF = "over itself without scores"


def without_scores(policy: str) -> str:
    """The name of a policy's control."""
    return f"{policy} without scores"


class Entrant(NamedTuple):
    """Who is compared: a policy on one trace, under a scheduler (None: it is a whole scheduler itself)."""

    trace: int
    scheduler: str | None
    policy: str
    flat: bool = False  # without scores


@dataclass(frozen=True)
class PolicyGain:
    """By how much a policy lowers a time or the energy, in % of a baseline's; negative: it raises it.

    The mean over the seeds is that of the ratios of the two (geometric). Of a comparison (`gains`) the interval
    is that of the mean, for this trace and this fleet; of a finding it is that of the gain in another such trace.
    """

    trace: str
    scheduler: str | None
    policy: str
    against: str
    figure: str
    n: int  # seeds, each a paired difference
    mean_pct: float
    lower_pct: float | None
    upper_pct: float | None  # of the 90 % interval; None for one seed
    measurable: bool  # the interval is there and does not come as near to 0 as `LEAST_PCT`
    per_seed: tuple[tuple[int, float], ...]  # (seed, gain in %)

    @property
    def of_control(self) -> bool:
        """Whether it is the gain over the policy itself without scores."""
        return self.against == without_scores(self.policy)

    @property
    def heading(self) -> str:
        """What the gain is over, as the head of a column of several policies."""
        return ITSELF if self.of_control else f"over {self.against}"

    def as_text(self) -> str:
        """The mean with its interval, to a tenth of a percent."""
        mean, lower, upper = (
            None if pct is None else round(pct, 1) + 0.0 for pct in (self.mean_pct, self.lower_pct, self.upper_pct)
        )
        if lower is None or upper is None:
            return f"{mean:+.1f} %"
        return f"{mean:+.1f} % [{lower:+.1f}, {upper:+.1f}]"

    def as_dict(self) -> dict[str, Any]:
        """As `whorl.replay/1` has it."""
        per_seed = [{"seed": seed, "gain_pct": gain} for seed, gain in self.per_seed]
        return asdict(self) | {"per_seed": per_seed}


@dataclass(frozen=True)
class PolicyFinding:
    """What a policy's gains come to, for one trace or for all."""

    trace: str  # the trace, or `ALL`
    scheduler: str | None
    policy: str
    finding: str  # "" for a baseline
    gains: tuple[PolicyGain, ...]
    """Over each other baseline and, last, over the policy without scores (not for baselines). Each interval is that of
    the gain in another such trace on this fleet."""

    def as_dict(self) -> dict[str, Any]:
        """As `whorl.replay/1` has it."""
        return asdict(self) | {"gains": [gain.as_dict() for gain in self.gains]}


@dataclass(frozen=True)
class GainTable:
    """The gains of several policies, side by side."""

    heads: list[str]  # what the gains are over, the controls last
    rows: list[tuple[PolicyFinding, list[str]]]  # a finding and its gains as texts, "" where there is none
    drawn: dict[str, list[PolicyGain]]  # by head, the gains

    @classmethod
    def of(cls, findings: Iterable[PolicyFinding]) -> GainTable:
        """The table of those that have gains."""
        with_gains = [finding for finding in findings if finding.gains]
        fullest = sorted(with_gains, key=lambda finding: -len(finding.gains))
        heads = sorted(dict.fromkeys(g.heading for finding in fullest for g in finding.gains), key=ITSELF.__eq__)
        drawn = {head: [g for finding in with_gains for g in finding.gains if g.heading == head] for head in heads}
        texts = [{gain.heading: gain.as_text() for gain in finding.gains} for finding in with_gains]
        rows = [
            (finding, [by_head.get(head, "") for head in heads])
            for finding, by_head in zip(with_gains, texts, strict=True)
        ]
        return cls(heads, rows, drawn)


# -- intervals --------------------------------------------------------------------------------------------------


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float | None, float | None]:
    """The two-sided interval of the mean by Student's t; None, None for fewer than two values."""
    return _about_mean(values, confidence, 1 / max(1, len(values)))


def foretold(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float | None, float | None]:
    """The two-sided interval in which one more value would lie; None, None for fewer than two.

    Where there are enough values (19 for 90 %), by their ranks: one more is as likely to be below the lowest as between
    any two that are neighbours, whatever their distribution. Else by Student's t. It grows no narrower with more
    values: they only tell better how far values lie apart.
    """
    tail = (1 - confidence) / 2
    if (len(values) + 1) * tail < 1 - 1e-9:
        return _about_mean(values, confidence, 1 + 1 / max(1, len(values)))
    low, high = np.quantile(values, (tail, 1 - tail), method="weibull").tolist()
    return low, high


def _about_mean(values: Sequence[float], confidence: float, share: float) -> tuple[float | None, float | None]:
    """The mean and about it what a variance of `share` times that of a value reaches."""
    n = len(values)
    if n < 2:
        return None, None
    mean = fmean(values)
    half = float(quantile((1 - confidence) / 2, n - 1)) * stdev(values) * math.sqrt(share)
    return mean - half, mean + half


# -- gains ------------------------------------------------------------------------------------------------------


class _Compared:
    """The figures of replays by entrant and seed."""

    def __init__(self, results: Iterable[Replayed]) -> None:
        self.metrics: dict[Entrant, dict[int, Metrics]] = {}
        self.names: dict[int, str] = {}  # of the traces, by place
        for result in results:
            case = result.case
            entrant = Entrant(case.trace, case.scheduler, case.policy, case.flat)
            self.metrics.setdefault(entrant, {})[case.seed] = result.metrics
            self.names.setdefault(case.trace, result.trace)
        self._first = next((entrant.scheduler for entrant in self.metrics if entrant.scheduler is not None), None)

    def baseline(self, entrant: Entrant, policy: str) -> Entrant:
        """The baseline `policy` of an entrant; that of a whole scheduler runs under the first scheduler."""
        return Entrant(entrant.trace, entrant.scheduler or self._first, policy)

    def log_ratios(self, pairs: Sequence[tuple[Entrant, Entrant]], figure: str) -> dict[int, float]:
        """By seed that all have, the mean over the pairs (traces) of log(a figure of the first / that of the second).

        Seeds that do not know the figure, or for which it is 0, are left out.
        """
        numbers = [
            [
                {
                    seed: number
                    for seed, row in self.metrics.get(entrant, {}).items()
                    if (number := getattr(row, figure))
                }
                for entrant in pair
            ]
            for pair in pairs
        ]
        seeds = sorted(set.intersection(*(set(by_seed) for pair in numbers for by_seed in pair)))
        return {seed: fmean(math.log(first[seed] / second[seed]) for first, second in numbers) for seed in seeds}


def gains(results: Sequence[Replayed], against: Sequence[str], figures: Sequence[str] = FIGURES) -> list[PolicyGain]:
    """Every policy against each other baseline that was replayed, by trace, scheduler and figure."""
    compared, gained = _Compared(results), []
    for trace, scheduler in dict.fromkeys(entrant[:2] for entrant in compared.metrics):
        members = [entrant for entrant in compared.metrics if entrant[:2] == (trace, scheduler)]
        for policy, entrant, figure in product(against, members, figures):
            baseline = compared.baseline(entrant, policy)
            if baseline in compared.metrics and entrant.policy != policy:
                logs = compared.log_ratios([(entrant, baseline)], figure)
                about = partial(PolicyGain, compared.names[trace], scheduler, entrant.policy, policy, figure)
                gained += [_gain(about, logs, interval)] if logs else []
    return gained


def findings(
    results: Sequence[Replayed], against: Sequence[str], controlled: Collection[str], figure: str = JCT
) -> list[PolicyFinding]:
    """What is found of each policy by trace and scheduler, and over all traces if there are several.

    `results`: one of each trace, policy, scheduler and seed, and those of the controls (`Case.flat`). `controlled`:
    the policies with controls of their own; the others look at no score or see no difference, and are their own.
    """
    compared = _Compared(results)
    groups = [(name, [trace]) for trace, name in compared.names.items()]
    if len(groups) > 1:
        groups.append((ALL, list(compared.names)))
    schedulers = dict.fromkeys(entrant.scheduler for entrant in compared.metrics)
    policies = dict.fromkeys(entrant.policy for entrant in compared.metrics if not entrant.flat)
    reached = []
    for (name, traces), scheduler, policy in product(groups, schedulers, policies):
        entrants = [Entrant(trace, scheduler, policy) for trace in traces]
        if compared.metrics.keys().isdisjoint(entrants):
            continue
        others = {
            baseline: [(entrant, compared.baseline(entrant, baseline)) for entrant in entrants]
            for baseline in against
            if baseline != policy and baseline in policies
        }
        if policy not in against:
            control = [(entrant, entrant._replace(flat=policy in controlled)) for entrant in entrants]
            others[without_scores(policy)] = control
        logs = {other: compared.log_ratios(pairs, figure) for other, pairs in others.items()}
        gained = tuple(
            _gain(partial(PolicyGain, name, scheduler, policy, baseline, figure), by_seed, foretold)
            for baseline, by_seed in logs.items()
            if by_seed
        )
        finding = "" if policy in against else MISSING if len(gained) < len(others) else _finding(gained)
        reached.append(PolicyFinding(name, scheduler, policy, finding, gained))
    return reached


def _finding(gains_over: Sequence[PolicyGain]) -> str:
    """What gains over all baselines and, last, over the policy without scores come to."""
    if any(gain.n < 2 for gain in gains_over):
        return ONE_SEED
    *baselines, control = gains_over
    if any(gain.measurable and gain.mean_pct < 0 for gain in baselines):
        return WORSE
    if not all(gain.measurable for gain in baselines):
        return NONE
    return BETTER if control.measurable and control.mean_pct > 0 else NOT_BY_SCORES


def _gain(
    about: Callable[..., PolicyGain],
    logs: dict[int, float],
    limits: Callable[[Sequence[float]], tuple[float | None, float | None]],
) -> PolicyGain:
    """The gain of logarithms of ratios by seed: averaged so, twice as fast and half as fast cancel.

    `about` makes it, and knows what it is a gain of and over what.
    """
    low, high = limits(list(logs.values()))
    lower, upper = (None, None) if low is None or high is None else (_percent(high), _percent(low))
    return about(
        n=len(logs),
        mean_pct=_percent(fmean(logs.values())),
        lower_pct=lower,
        upper_pct=upper,
        measurable=lower is not None and upper is not None and (lower >= LEAST_PCT or upper <= -LEAST_PCT),
        per_seed=tuple((seed, _percent(log)) for seed, log in logs.items()),
    )


def _percent(log: float) -> float:
    return -100 * math.expm1(log) + 0.0  # no minus zero
