"""The posterior of the GPUs' scores, from the runs of one workload.

It is not the judge's level (`verdicts/levels.py`) but what placement should expect: a GPU measured slow is, on average,
less slow next time, so its level is shrunk towards the fleet, and GPUs that cannot be told apart are equal. How much
another sitting differs, and the measured level (`raw`), are the judge's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints, bounds
from . import prior
from .noise import Singles, core_scale, noises
from .repeatable import permutation_test

TAIL = 0.05
"""Below and above the interval."""
_OF_MEDIAN = 1.2533
"""The standard error of a median over that of a mean, of normal values."""
_WILD = 4.0
"""Times the usual standard error from which a GPU's runs disagree."""
_GPUS = 128
"""Taken at a time: they stay in the cache of a core."""
_LOOKS = 3
"""Looks without those that stand out: a GPU of 1.25 beside one of 1.4 and one of 2."""


@dataclass(frozen=True)
class Observed:
    """The runs of one workload: log times about the fleet's median GPU, by GPU and in the order of time.

    Where jobs couple the GPUs that they hold, "GPU" is such a set of GPUs, and a run is a job.
    """

    x: Floats
    starts: Ints
    block: Ints
    """(runs,) the job of a run, -1 for a run of its own."""

    def without(self, usual: Floats) -> Observed:
        """The same about what is usual for each GPU, (gpus,), instead of about the fleet."""
        if not usual.any():
            return self
        x = self.x - np.repeat(usual, np.diff(self.starts))
        return replace(self, x=x - float(np.median(prior.centres(x, self.starts))))


@dataclass(frozen=True)
class Posterior:
    """The scores of the GPUs as they may be: mean, 90 % interval and draws; 1 is the fleet's median GPU."""

    belief: Floats
    lower: Floats
    upper: Floats
    repeatable: bool
    """Whether the test showed that differences between GPUs repeat; if not, every score is exactly 1."""
    reason: str | None
    """Why the GPUs cannot be distinguished."""
    p: float | None
    standing_out: npt.NDArray[np.bool_]
    """(gpus,) that differ from the fleet even for the largest of so many."""
    table: npt.NDArray[np.float32]
    """(replicates, rows, probabilities) quantile functions, in scores."""
    row: Ints
    """(gpus,) the row of a GPU in `table`; GPUs that cannot be distinguished share one."""

    def draw(self, rng: np.random.Generator) -> Floats:
        """(gpus,) scores as they may be, all of one replicate of the prior."""
        table = self.table[rng.integers(len(self.table))]
        u = rng.random(len(self.row))
        at = np.interp(u, prior.PROBABILITIES, np.arange(len(prior.PROBABILITIES)))
        below = np.minimum(at.astype(np.intp), len(prior.PROBABILITIES) - 2)
        low = table[self.row, below].astype(np.float64)
        found: Floats = low + (at - below) * (table[self.row, below + 1] - low)
        return found


def posterior(seen: Observed, rng: np.random.Generator, replicates: int) -> Posterior:
    """The scores of the GPUs of `seen`; `replicates`: refits of the prior, each to a bootstrap sample of the GPUs."""
    gpus = len(seen.starts) - 1
    scale = core_scale(seen.x, seen.starts)
    test = permutation_test(seen.x, seen.starts, seen.block, rng)
    if scale is None or test is None:
        return _untold(gpus)
    standing_out = np.zeros(gpus, dtype=np.bool_)
    alike = np.zeros(gpus, dtype=np.bool_) if test.repeatable else np.ones(gpus, dtype=np.bool_)
    if test.repeatable and test.standing_out.any():
        standing_out, alike = _looked_again(seen, test.standing_out, rng)
    on, likelihood = _likelihood(seen, scale)
    fits = prior.fit(likelihood, on, replicates, rng)
    distinct = np.flatnonzero(~alike)
    table, row = _table(likelihood, fits, on, alike)
    belief = np.ones(gpus)
    belief[distinct] = table[:, row[distinct], :].mean(axis=0) @ prior.MASS
    lower, upper = _interval(likelihood, fits, on, table, row, alike)
    lower, upper = _as_wide_as_its_runs(seen, on, alike, np.minimum(lower, belief), np.maximum(upper, belief))
    return Posterior(
        belief,
        lower,
        upper,
        repeatable=test.repeatable,
        reason=None if test.repeatable else f"the differences between GPUs do not repeat (p = {test.p:.2f})",
        p=test.p,
        standing_out=standing_out,
        table=table,
        row=row,
    )


def _looked_again(
    seen: Observed, standing_out: npt.NDArray[np.bool_], rng: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Who stands out, and which GPUs are alike, after looks without those that stand out already.

    These say nothing about whether the others differ, and they hide slow GPUs that are less slow than they are.
    """
    standing_out = standing_out.copy()
    alike = np.zeros(len(standing_out), dtype=np.bool_)
    size = np.diff(seen.starts)
    further = rng.spawn(1)[0]
    for look in range(_LOOKS):
        rest = ~standing_out
        kept = np.repeat(rest, size)
        starts = bounds(np.repeat(np.arange(int(rest.sum())), size[rest]), int(rest.sum()))
        again = permutation_test(seen.x[kept], starts, seen.block[kept], further if look else rng)
        if again is None or not again.repeatable:
            # Later looks leave out GPUs that differ only as much as others do: the rest is not alike for that.
            return standing_out, alike if look else rest
        if not again.standing_out.any():
            break
        standing_out[np.flatnonzero(rest)[again.standing_out]] = True
    return standing_out, alike


def _untold(gpus: int) -> Posterior:
    if gpus == 1:
        reason = "only one GPU was measured, so there is nothing to compare"
    else:
        reason = (
            "fewer than two GPUs were measured twice, so it is not known which differences repeat: measure again on "
            "another day"
        )
    unknown = np.full(gpus, np.nan)
    table = np.ones((1, 1, len(prior.PROBABILITIES)), dtype=np.float32)
    nobody = np.zeros(gpus, dtype=np.bool_)
    row = np.zeros(gpus, dtype=np.intp)
    return Posterior(np.ones(gpus), unknown, unknown.copy(), False, reason, None, nobody, table, row)


def _likelihood(seen: Observed, scale: float) -> tuple[prior.Atoms, Singles]:
    """The atoms and each GPU's likelihood at each."""
    centre = prior.centres(seen.x, seen.starts)
    size = np.diff(seen.starts)
    strayed = np.add.reduceat((seen.x - np.repeat(centre, size)) ** 2, seen.starts[:-1])
    own = np.sqrt(strayed / np.maximum(size - 1, 1) / size)
    on = prior.atoms(centre, scale / float(np.sqrt(np.median(size))), own)
    span = float(max(on.at[-1], seen.x.max()) - min(on.at[0], seen.x.min()))
    return on, prior.likelihoods(seen.x, seen.starts, on.at, noises(seen.x, seen.starts, scale, span))


def _table(
    likelihood: Singles, fits: list[Floats], on: prior.Atoms, alike: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float32], Ints]:
    """Quantile functions in scores: a row for each GPU that can be distinguished, and the last row for all others."""
    distinct = np.flatnonzero(~alike)
    pooled = np.flatnonzero(alike)
    row = np.full(len(alike), len(distinct), dtype=np.intp)
    row[distinct] = np.arange(len(distinct))
    table = np.empty((len(fits), len(distinct) + (len(pooled) > 0), len(prior.PROBABILITIES)), dtype=np.float32)
    for some in _together(likelihood, distinct):
        its = likelihood[some]
        for number, weights in enumerate(fits):
            curves = prior.quantiles(prior.posteriors(its, weights), on, prior.PROBABILITIES)
            table[number, row[some]] = np.exp(curves)
    for number, weights in enumerate(fits if len(pooled) else ()):
        # GPUs that cannot be distinguished share one posterior: the mean of theirs.
        among = prior.posteriors(likelihood[pooled], weights).mean(axis=0, keepdims=True)
        curve = prior.quantiles(among, on, prior.PROBABILITIES)[0]
        table[number, -1] = np.exp(curve - curve[len(curve) // 2])
    return table, row


def _together(likelihood: Singles, gpus: Ints) -> Iterator[Ints]:
    """The numbers of `gpus`, some at a time: those that are about as fast, whose quantiles are found quickest."""
    order = gpus[np.argsort(likelihood[gpus].argmax(axis=1), kind="stable")]
    for first in range(0, len(order), _GPUS):
        yield order[first : first + _GPUS]


def _interval(
    likelihood: Singles,
    fits: list[Floats],
    on: prior.Atoms,
    table: npt.NDArray[np.float32],
    row: Ints,
    alike: npt.NDArray[np.bool_],
) -> tuple[Floats, Floats]:
    both = np.empty((len(alike), 2))
    distinct = np.flatnonzero(~alike)
    ends = np.array([TAIL, 1.0 - TAIL])
    for some in _together(likelihood, distinct):
        both[some] = np.exp(prior.quantiles(prior.mixed(likelihood[some], fits), on, ends))
    if alike.any():
        pooled = table[:, row[np.flatnonzero(alike)[0]], :].mean(axis=0)
        both[alike] = np.interp(ends, prior.PROBABILITIES, pooled)
    return both[:, 0].copy(), both[:, 1].copy()


def _as_wide_as_its_runs(
    seen: Observed, on: prior.Atoms, alike: npt.NDArray[np.bool_], lower: Floats, upper: Floats
) -> tuple[Floats, Floats]:
    """The intervals, wider for GPUs whose own runs disagree far more than usual: a prior knows few like them."""
    centre = prior.centres(seen.x, seen.starts)
    size = np.diff(seen.starts)
    away = np.abs(seen.x - np.repeat(centre, size))
    error = 1.4826 * prior.centres(away, seen.starts) * _OF_MEDIAN / np.sqrt(size)
    wild = ~alike & (size > 1) & (error > _WILD * on.error)
    reach = np.where(wild, 2.0 * error, 0.0)
    low, high = np.exp(centre - reach), np.exp(centre + reach)
    return np.where(wild, np.minimum(lower, low), lower), np.where(wild, np.maximum(upper, high), upper)
