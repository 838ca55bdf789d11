"""The posterior of the GPUs' scores from the runs of one workload, read from top to bottom.

1. `permutation_test`: do the differences between GPUs repeat, and which GPUs stand out of all?
2. `core_scale`, `run_noises`: how far a run lies from its GPU's time, pooled over the fleet.
3. `likelihoods`, `fit_prior`: what the runs of each GPU say, and how the scores of the fleet are distributed.
4. `posterior`: both together, as mean, interval and draws. GPUs that cannot be told apart share one posterior.

It is not the judge's level (`verdicts/levels.py`), which is what was measured, but what placement should expect: a GPU
measured slow is, on average, less slow next time. The judge needs the spread of a level alone, a posterior the density
of a single run. docs/how-we-know/advice.md has the definitions and how often they were right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..runs.measurements import gpu_medians
from ..statistics.ordering import Floats, Ints, bounds, log_density
from .notes import note

Singles = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

REFITS, LEAST_REFITS, REFITTED_GPUS = 20, 4, 100_000
"""Of the prior, each to a bootstrap sample of the GPUs; fewer where these are more GPUs in all, which know it well."""
TAIL = 0.05
"""Below and above the interval."""
PROBABILITIES: Floats = np.concatenate(([0.002], np.arange(1, 40) / 40.0, [0.998]))
"""Where the quantile function of a posterior is kept. It is linear between them and level outside."""
_BETWEEN = np.diff(PROBABILITIES)
MASS: Floats = np.concatenate((_BETWEEN, [0.0])) / 2.0 + np.concatenate(([0.0], _BETWEEN)) / 2.0
MASS[[0, -1]] += PROBABILITIES[0], 1.0 - PROBABILITIES[-1]
"""The weight of each in the mean of the quantile function."""
_GPUS = 512
"""GPUs taken at a time, so that what is made of all their runs and atoms stays small."""


@dataclass(frozen=True)
class LogTimes:
    """The runs of one workload: log times about the fleet's median GPU, by GPU and in the order of time.

    Where jobs couple the GPUs that they hold, "GPU" is such a set of GPUs, and a run is a job.
    """

    x: Floats
    starts: Ints  # (gpus + 1,) where the runs of each GPU begin
    job: Ints  # (runs,) the job of a run, -1 for a run of its own

    @classmethod
    def of(cls, x: Floats, owner: Ints, count: int, job: Ints) -> LogTimes:
        """Runs in the order of time, each of the GPU number `owner` of `count`."""
        order = np.argsort(owner, kind="stable")
        return cls(x[order], bounds(owner, count), job[order])

    @cached_property
    def sizes(self) -> Ints:
        """(gpus,) the runs of each GPU."""
        return np.diff(self.starts)

    @cached_property
    def owner(self) -> Ints:
        """(runs,) the GPU of each run."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def centres(self) -> Floats:
        """(gpus,) the median of each GPU's runs."""
        return gpu_medians(self.x, self.owner, len(self.sizes))

    def about(self, usual: Floats) -> LogTimes:
        """The same about what is usual for each GPU, (gpus,), instead of about the fleet."""
        x = self.x - usual[self.owner]
        return LogTimes(x - float(np.median(self.centres - usual)), self.starts, self.job)

    def only(self, gpus: Mask) -> LogTimes:
        """The runs of some GPUs."""
        runs = gpus[self.owner]
        return LogTimes(self.x[runs], np.concatenate(([0], np.cumsum(self.sizes[gpus]))), self.job[runs])


@dataclass(frozen=True)
class Posterior:
    """The scores of the GPUs as they may be: mean, 90 % interval and draws; 1 is the fleet's median GPU."""

    belief: Floats
    lower: Floats
    upper: Floats
    repeatable: bool  # whether the test showed that differences between GPUs repeat; if not, every score is exactly 1
    reason: str | None  # why the GPUs cannot be distinguished
    p: float | None
    standing_out: Mask  # (gpus,) that differ from the fleet even for the largest of so many
    table: Singles  # (refits, rows, probabilities) quantile functions, in scores
    row: Ints  # (gpus,) the row of a GPU in `table`; GPUs that cannot be distinguished share one

    def draw(self, rng: np.random.Generator) -> Floats:
        """(gpus,) scores as they may be, all of one refit of the prior."""
        table = self.table[rng.integers(len(self.table))]
        last = len(PROBABILITIES) - 1
        even = last * rng.random(len(self.row))
        # Between PROBABILITIES lie equal steps, but for the first and the last, which are shorter.
        outside = np.minimum(even - 1.0, 0.0) + np.maximum(even - last + 1.0, 0.0)
        place = np.clip(even + outside * (1.0 / (last * _BETWEEN[0]) - 1.0), 0.0, last)
        below = np.minimum(place.astype(np.intp), last - 1)
        at, values = self.row * table.shape[1] + below, table.ravel()
        low = values[at].astype(np.float64)
        drawn: Floats = low + (place - below) * (values[at + 1] - low)
        return drawn


def posterior(runs: LogTimes, rng: np.random.Generator) -> Posterior:
    """The scores of the GPUs of `runs`."""
    gpus = len(runs.sizes)
    refits = max(LEAST_REFITS, min(REFITS, REFITTED_GPUS // gpus))
    scale = core_scale(runs)
    test = permutation_test(runs, rng)
    if scale is None or test is None:
        return _unknown(gpus)
    standing_out, alike = np.zeros(gpus, dtype=np.bool_), np.full(gpus, not test.repeatable)
    if test.repeatable and test.standing_out.any():
        standing_out, alike = _look_again(runs, test.standing_out, rng)
    atoms = atoms_of(runs, scale)
    likelihood = likelihoods(runs, atoms, run_noises(runs, scale, atoms.span(runs)))
    priors = fit_prior(likelihood, atoms, refits, rng)
    table, row, ends = _quantile_tables(likelihood, priors, atoms, alike)
    belief = np.where(alike, 1.0, (table.mean(axis=0) @ MASS)[row])
    lower, upper = np.minimum(ends[:, 0], belief), np.maximum(ends[:, 1], belief)
    lower, upper = _as_wide_as_its_runs(runs, atoms, alike, lower, upper)
    reason = None if test.repeatable else note("no_repeat", p=test.p)
    return Posterior(belief, lower, upper, test.repeatable, reason, test.p, standing_out, table, row)


def _unknown(gpus: int) -> Posterior:
    reason = note("single_gpu" if gpus == 1 else "measured_once")
    unknown, zeros = np.full(gpus, np.nan), np.zeros(gpus, dtype=np.intp)
    table = np.ones((1, 1, len(PROBABILITIES)), dtype=np.float32)
    return Posterior(np.ones(gpus), unknown, unknown.copy(), False, reason, None, zeros.astype(np.bool_), table, zeros)


# -- do the differences repeat? --------------------------------------------------------------------------------------

LEVEL = 0.05
"""How often a fleet without any difference is said to have one."""
STANDING_OUT = 0.05
"""How often chance makes some GPU of a fleet stand out.

Two slow runs out of 64 are those of one GPU once in 63 deals: at 1 % two runs of each of 32 GPUs would never tell."""
_MANY_RUNS = 50_000
_DEALS, _DEALS_OF_MANY = 199, 59
"""How often runs are dealt at random; of very many runs a deal takes long, and there a few say as much."""
_TEST_ATOMS, _TEST_ATOMS_OF_MANY = 48, 24
_HOPELESS_AFTER, _HOPELESS = 40, 0.25
"""After so many deals no more are made if both p-values are above that."""
_LOOKS, _LOOKS_AT_MANY = 3, 1
"""Looks without those that stand out: a GPU of 1.25 beside one of 1.4 and one of 2. Many runs hide none."""


@dataclass(frozen=True)
class PermutationTest:
    """The answer of the permutation test over the GPUs with two runs or more."""

    p: float
    standing_out: Mask  # (gpus,) whose ratio passes what chance gives the largest of all GPUs, but once in twenty times

    @property
    def repeatable(self) -> bool:
        """Whether differences between GPUs repeat."""
        return self.p <= LEVEL


def permutation_test(runs: LogTimes, rng: np.random.Generator) -> PermutationTest | None:
    """Whether differences between GPUs repeat: runs are dealt to the GPUs at random.

    If no GPU differs, a run might as well have been another GPU's, whatever its distribution. Two statistics, so that
    neither many small differences nor one large one is missed: the sum over the GPUs of the log likelihood ratio of a
    time of the GPU's own against the fleet's, and the largest of them. Runs of one job move together, since they share
    what the job met. None where fewer than two GPUs have two runs.

    The judge asks by the ICC whether differences are large enough to name a GPU; placement asks whether there are any:
    a small difference that repeats is worth choosing by.
    """
    counted = runs.sizes > 1
    if counted.sum() < 2:
        return None
    dealt_runs = runs.only(counted)
    densities, cell = _test_densities(dealt_runs.x)
    fleet_atom = int(np.argmax(np.bincount(cell) @ densities.astype(np.float64)))
    measured = _ratios(densities, cell, dealt_runs, fleet_atom)
    total, largest = float(measured.sum(dtype=np.float64)), float(measured.max())
    totals_dealt: list[float] = []
    largest_dealt: list[float] = []
    groups = _exchangeable(dealt_runs.job)
    for number in range(_DEALS if len(dealt_runs.x) <= _MANY_RUNS else _DEALS_OF_MANY):
        ratios = _ratios(densities, cell[_deal(groups, len(cell), rng)], dealt_runs, fleet_atom)
        largest_dealt.append(float(ratios.max()))
        totals_dealt.append(float(ratios.sum(dtype=np.float64)))
        p = min(_p_value(largest, largest_dealt), _p_value(total, totals_dealt))
        if number + 1 == _HOPELESS_AFTER and p > _HOPELESS:
            break
    standing_out = np.zeros(len(runs.sizes), dtype=np.bool_)
    standing_out[counted] = measured > float(np.quantile(largest_dealt, 1.0 - STANDING_OUT))
    return PermutationTest(min(1.0, 2.0 * p), standing_out)


def _p_value(measured: float, dealt: list[float]) -> float:
    return (1 + sum(value >= measured for value in dealt)) / (1 + len(dealt))


def _test_densities(x: Floats) -> tuple[Singles, Ints]:
    """(cells, atoms) the log density of runs about some times, under a scale that is not that of any GPU; and the cell
    of each run."""
    middle = float(np.median(x))
    scale = max(1.4826 * float(np.median(np.abs(x - middle))), LEAST_SCALE)
    count = (_TEST_ATOMS if len(x) <= _MANY_RUNS else _TEST_ATOMS_OF_MANY) // 2
    inside = np.quantile(x, np.linspace(0.0, 1.0, count))
    even = np.linspace(float(x.min()), float(x.max()), count)
    atoms = np.unique(np.concatenate((inside, even, [middle])))
    noise = RunNoise.of(scale, np.empty(0), 0.0, float(np.ptp(x)))
    return noise.by_cell(x, atoms)


def _ratios(densities: Singles, cell: Ints, runs: LogTimes, fleet_atom: int) -> Singles:
    """(gpus,) the log likelihood of the best atom of each GPU over that of the fleet's, of runs in these cells."""
    ratios = np.empty(len(runs.sizes), dtype=np.float32)
    for gpus, total in _totals(densities, cell, runs):
        ratios[gpus] = total.max(axis=1) - total[:, fleet_atom]
    return ratios


def _totals(densities: Singles, cell: Ints, runs: LogTimes) -> Iterator[tuple[Ints, Singles]]:
    """Some GPUs at a time, and the sums of `densities` (cells, atoms) over the runs of each, (gpus, atoms).

    `cell`: (runs,) that of each run.
    """
    most_runs_first = np.argsort(-runs.sizes, kind="stable")
    for begin in range(0, len(most_runs_first), _GPUS):
        gpus = most_runs_first[begin : begin + _GPUS]
        sizes, first = runs.sizes[gpus], runs.starts[gpus]
        total = densities.take(cell[first], axis=0)
        for turn in range(1, int(sizes[0])):
            having = np.count_nonzero(sizes > turn)
            total[:having] += densities.take(cell[first[:having] + turn], axis=0)
        yield gpus, total


def _exchangeable(job: Ints) -> list[Ints]:
    """Places of runs that may be exchanged: single runs, (runs,), and jobs of equal size, (jobs, runs of each)."""
    single = np.flatnonzero(job < 0)
    runs = np.flatnonzero(job >= 0)
    runs = runs[np.argsort(job[runs], kind="stable")]
    by_size: dict[int, list[Ints]] = {}
    for first, last in pairwise(np.flatnonzero(np.diff(job[runs], prepend=-1, append=-1))):
        by_size.setdefault(int(last - first), []).append(runs[first:last])
    groups = [single] if len(single) else []
    return groups + [np.array(jobs) for _, jobs in sorted(by_size.items())]


def _deal(groups: list[Ints], runs: int, rng: np.random.Generator) -> Ints:
    """(runs,) the run that is put in each place: jobs exchanged with jobs, and the runs inside a job."""
    dealt = np.empty(runs, dtype=np.intp)
    for places in groups:
        jobs = places[rng.permutation(len(places))]
        dealt[places] = rng.permuted(jobs, axis=1) if places.ndim > 1 and places.shape[1] > 1 else jobs
    return dealt


def _look_again(runs: LogTimes, standing_out: Mask, rng: np.random.Generator) -> tuple[Mask, Mask]:
    """Which GPUs stand out, and which are alike, after looks without those that stand out already.

    These say nothing about whether the others differ, and they hide slow GPUs that are less slow than they are.
    """
    standing_out = standing_out.copy()
    nobody = np.zeros(len(standing_out), dtype=np.bool_)
    further = rng.spawn(1)[0]
    for look in range(_LOOKS if len(runs.x) <= _MANY_RUNS else _LOOKS_AT_MANY):
        others = ~standing_out
        test = permutation_test(runs.only(others), further if look else rng)
        if test is None or not test.repeatable:
            # Later looks leave out GPUs that differ only as much as others do: the others are not alike for that.
            return standing_out, nobody if look else others
        if not test.standing_out.any():
            break
        standing_out[np.flatnonzero(others)[test.standing_out]] = True
    return standing_out, nobody


# -- how far a run lies from its GPU's time --------------------------------------------------------------------------

FREEDOM = 4.0
"""Degrees of freedom of the core: the information of normal runs is kept to 93 %, one far run has bounded weight."""
LEAST_SCALE = 5e-4
"""Below a twentieth of a percent nobody places a job by it, and readings come in steps."""
FAR = 6.0
"""Scales from its GPU from which a run belongs to no core."""
WIDER = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""How much wider than usual the core of a GPU may be: some GPUs throttle now and then."""
_MEDIAN_DIFFERENCE = 1.0475
"""Of normal noise with standard deviation 1, the median of |a - b| (0.9539) over the scale of a core with the same
quartiles (0.9106)."""
_PAIRS = 8
"""A GPU with more pairs of runs has no more say in the scale."""
_STEPS = 8
"""Of the table in one scale."""
_KERNEL = 20
"""Scales to which the core of a far run is tabulated."""


@dataclass(frozen=True)
class RunNoise:
    """The density of a run's log time about its GPU's, as a table of its logarithm.

    A core, Student's t with few degrees of freedom; and the runs far from their GPU, as they were seen: a fleet in
    which every tenth run is half as long again must not believe three such runs in a row to be a slow GPU.
    """

    table: Singles
    step: float

    @classmethod
    def of(cls, scale: float, far: Floats, far_share: float, span: float) -> RunNoise:
        """The noise with a core of this scale and, of all runs, a share that lies `far` off; tabulated to `span`."""
        step = scale / _STEPS
        reach = math.ceil(span / step) + 1
        density = (1.0 - far_share) * _core(np.arange(-reach, reach + 1, dtype=np.float64) * step, scale)
        if len(far):
            cells = np.clip(np.rint(far / step).astype(np.intp) + reach, 0, 2 * reach)
            kernel = _core(np.arange(-_KERNEL * _STEPS, _KERNEL * _STEPS + 1, dtype=np.float64) * step, scale)
            counts = np.bincount(cells, minlength=2 * reach + 1) / len(far)
            spread = np.convolve(counts, kernel / (kernel.sum() * step), mode="full")
            density += far_share * spread[_KERNEL * _STEPS : _KERNEL * _STEPS + 2 * reach + 1]
        return cls(np.log(density).astype(np.float32), step)

    def log_density(self, deviation: Floats) -> Singles:
        """The log density at each of `deviation`, to the nearest eighth of a scale."""
        cell = np.rint(deviation * (1.0 / self.step)).astype(np.intp) + len(self.table) // 2
        density: Singles = self.table.take(cell, mode="clip")
        return density

    def by_cell(self, x: Floats, atoms: Floats) -> tuple[Singles, Ints]:
        """(cells, atoms) the log density of runs about `atoms`, and (runs,) the cell of each run: a sixteenth of a
        scale wide, since a fleet has many runs that are as long."""
        width = self.step / 2.0
        cells, cell = np.unique(np.rint(x / width), return_inverse=True)
        return self.log_density(cells[:, None] * width - atoms), cell


def _core(deviation: Floats, scale: float) -> Floats:
    return np.exp(log_density(deviation / scale, FREEDOM)) / scale


def core_scale(runs: LogTimes) -> float | None:
    """The scale of the core; None where no GPU has two runs.

    Each run is compared with the one half of the GPU's runs later, so that a slow drift counts as noise; a difference
    needs no correction for the few runs of a GPU, as a deviation from its median would.
    """
    size = runs.sizes[runs.owner]
    half = size // 2
    place = np.arange(len(runs.x)) - runs.starts[:-1][runs.owner]
    first = np.flatnonzero((place < size - half) & (size > 1))
    if len(first) == 0:
        return None
    difference = np.abs(runs.x[first] - runs.x[first + half[first]])
    pairs = (size - half)[first]
    order = np.argsort(difference, kind="stable")
    reach = np.cumsum((np.minimum(pairs, _PAIRS) / pairs)[order])
    median = float(difference[order[np.searchsorted(reach, 0.5 * reach[-1])]])
    return max(median / _MEDIAN_DIFFERENCE, LEAST_SCALE)


def run_noises(runs: LogTimes, scale: float, span: float) -> list[RunNoise]:
    """The noise of these runs for each width of WIDER, up to deviations of `span`."""
    far = _far(runs, scale)
    return [RunNoise.of(scale * wider, far, len(far) / max(1, len(runs.x)), span) for wider in WIDER]


def _far(runs: LogTimes, scale: float) -> Floats:
    """The deviations of the runs far from their GPU's usual ones, which are those near its lower quartile.

    Runs stray to the slow side: of two that differ much, the slow one did.
    """
    ordered = runs.x[np.lexsort((runs.x, runs.owner))]
    low = ordered[runs.starts[:-1] + (runs.sizes - 1) // 4][runs.owner]
    near = np.abs(runs.x - low) <= FAR * scale
    near_runs = np.add.reduceat(near.astype(np.float64), runs.starts[:-1])
    usual = np.add.reduceat(np.where(near, runs.x, 0.0), runs.starts[:-1]) / near_runs
    # A GPU with more of them than its share would have changes its mind: that is it, not the fleet's noise.
    far_runs = runs.sizes - near_runs
    fair = runs.sizes * (far_runs.sum() / runs.sizes.sum())
    usual_share = (far_runs <= fair + 3.0 * np.sqrt(fair) + 1.0)[runs.owner]
    deviations: Floats = (runs.x - usual[runs.owner])[~near & usual_share]
    return deviations


# -- the distribution of the scores of the fleet ---------------------------------------------------------------------

_MOST_ATOMS, _MOST_OWN_ATOMS = 256, 64
_REACH = 3.0
"""How far from a GPU's median its score may lie, in standard errors."""
_DISAGREE = 4.0
"""Times the usual standard error from which the runs of a GPU disagree."""
_OF_MEDIAN = 1.2533
"""The standard error of a median over that of a mean, of normal values."""
_COARSE = 8
"""Steps between the atoms of a GPU whose runs disagree."""
_ITERATIONS, _REFIT_ITERATIONS, _WIDTH_ITERATIONS, _SETTLED = 300, 30, 30, 1e-4
"""Of EM, of a refit (which starts from the fit) and of the widths; and the change from which a fit is settled."""
_LEAST_SMOOTHING, _MOST_SMOOTHING = 0.25, 4.0
"""In standard errors of a GPU."""
_CELLS = 1 << 18
"""Cells of a product of matrices, small enough for one thread: threads that wait for each other cost more."""


@dataclass(frozen=True)
class Atoms:
    """Log scores that a GPU may have: points of a lattice, ascending, each the middle of a cell as wide as a step."""

    at: Floats
    step: float
    error: float  # the usual standard error of a GPU's median

    def span(self, runs: LogTimes) -> float:
        """The largest distance of a run from an atom."""
        return float(max(self.at[-1], runs.x.max()) - min(self.at[0], runs.x.min()))


def atoms_of(runs: LogTimes, scale: float) -> Atoms:
    """The atoms near which some GPU's median lies; for a GPU whose runs disagree, also all over the range of them."""
    error = scale / float(np.sqrt(np.median(runs.sizes)))
    squares = np.add.reduceat((runs.x - runs.centres[runs.owner]) ** 2, runs.starts[:-1])
    errors = np.sqrt(squares / np.maximum(runs.sizes - 1, 1) / runs.sizes)
    wild = errors > _DISAGREE * error
    range_of_wild = runs.centres[wild, None] + errors[wild, None] * np.linspace(-_REACH, _REACH, 13)
    step = error / 2.0
    while True:
        reach = max(1, math.ceil(_REACH * error / step))
        cells = np.unique(np.rint(runs.centres / step).astype(np.int64))
        near = cells[:, None] + np.arange(-reach, reach + 1)
        coarse = np.unique(np.rint(range_of_wild / (_COARSE * step)).astype(np.int64)) * _COARSE
        coarse = coarse[:: max(1, math.ceil(len(coarse) / _MOST_OWN_ATOMS))]
        lattice = np.unique(np.concatenate((near.ravel(), [0], coarse)))
        if len(lattice) <= _MOST_ATOMS:
            return Atoms(lattice * step, step, error)
        step *= 1.25


def likelihoods(runs: LogTimes, atoms: Atoms, noises: list[RunNoise]) -> Singles:
    """The likelihood of each GPU's runs at each atom, (gpus, atoms), each GPU's largest 1.

    Which of `noises` a GPU has is not known: each counts by how usual it is in the fleet and how well it fits.
    """
    gpus = len(runs.sizes)
    logs = np.empty((len(noises), gpus, len(atoms.at)), dtype=np.float32)
    for number, noise in enumerate(noises):
        for some, sums in _totals(*noise.by_cell(runs.x, atoms.at), runs):
            logs[number, some] = sums
    logs -= logs.max(axis=(0, 2))[None, :, None]
    by_noise = np.exp(logs, out=logs)
    fits = by_noise.sum(axis=2, dtype=np.float64)
    usual = np.full(len(noises), 1.0 / len(noises))
    for _ in range(_WIDTH_ITERATIONS):
        usual = (usual[:, None] * fits / (usual @ fits)).mean(axis=1)
    likelihood = np.tensordot(usual.astype(np.float32), by_noise, axes=1)
    likelihood /= likelihood.max(axis=1, keepdims=True)
    return likelihood


def fit_prior(likelihood: Singles, atoms: Atoms, refits: int, rng: np.random.Generator) -> list[Floats]:
    """The prior of GPUs with this `likelihood` (gpus, atoms): weights of the atoms, of each of `refits`.

    The non-parametric maximum likelihood estimate (J. Kiefer and J. Wolfowitz, Annals of Mathematical Statistics 27,
    1956) on fixed atoms, by EM (N. Laird, Journal of the American Statistical Association 73, 1978): no shape is
    assumed, so that a bulk shrinks towards itself and a GPU far from it, whose runs agree, stays where it is.

    Such an estimate is a few spikes, with which every interval would be too narrow: it is smoothed as a density of as
    many points as GPUs would be (B. W. Silverman's rule, 1986, on the estimate itself, so that a fleet without
    differences stays one). The refits are to samples of the Bayesian bootstrap (D. B. Rubin, Annals of Statistics 9,
    1981), in which each GPU keeps some weight: without it a prior would deny the one slow GPU of a fleet that is the
    evidence for it.
    """
    gpus, width = likelihood.shape
    sharp = _em(likelihood, np.full(width, 1.0 / width), np.ones((1, gpus)), _ITERATIONS)[0]
    smoothing = _smoothing(sharp, atoms, gpus)
    drawn = rng.exponential(size=(refits, gpus))
    return [smoothing @ fit for fit in _em(likelihood, 0.9 * sharp + 0.1 / width, drawn, _REFIT_ITERATIONS)]


def _em(likelihood: Singles, start: Floats, drawn: Floats, iterations: int) -> Floats:
    """(fits, atoms) the weights after EM from `start`, for each row of `drawn` (fits, gpus): how often a GPU counts."""
    weights = np.repeat(start.astype(np.float32)[:, None], len(drawn), axis=1)
    counts = np.ascontiguousarray((drawn / drawn.sum(axis=1, keepdims=True)).astype(np.float32).T)
    going = np.arange(len(drawn))
    for _ in range(iterations):
        before, counted = weights[:, going], counts[:, going]
        share = np.zeros_like(before)
        gpus = max(1, _CELLS // before.size)
        for first in range(0, len(likelihood), gpus):
            part = likelihood[first : first + gpus]
            share += part.T @ (counted[first : first + gpus] / (part @ before))
        moved = before * share
        moved /= moved.sum(axis=0)
        weights[:, going] = moved
        going = going[np.abs(moved - before).sum(axis=0) >= _SETTLED]
        if not len(going):
            break
    fits: Floats = weights.T.astype(np.float64)
    fits /= fits.sum(axis=1, keepdims=True)
    return fits


def _smoothing(weights: Floats, atoms: Atoms, gpus: int) -> Floats:
    """(atoms, atoms): how the weight of each atom is spread over those around it."""
    low, high = quantiles(weights[None, :], atoms, np.array([0.25, 0.75]))[0]
    sd = math.sqrt(float(weights @ (atoms.at - float(weights @ atoms.at)) ** 2))
    apart = np.abs(atoms.at[:, None] - atoms.at)
    # Where few GPUs are, their own runs say nearly all that is known.
    near = gpus * ((apart <= 2.0 * atoms.error) @ weights)
    width = np.maximum(0.9 * min(sd, (high - low) / 1.34) * gpus**-0.2, 2.0 * atoms.error / np.sqrt(near + 1e-3))
    width = np.clip(width, _LEAST_SMOOTHING * atoms.error, _MOST_SMOOTHING * atoms.error)
    kernel: Floats = np.exp(-0.5 * (apart / width) ** 2)
    kernel /= kernel.sum(axis=0)
    return kernel


# -- both together ---------------------------------------------------------------------------------------------------


def quantiles(weights: Floats, atoms: Atoms, probabilities: Floats) -> Floats:
    """Quantiles in log score, (gpus, probabilities), of posterior `weights` (gpus, atoms), level within a cell."""
    gpus, width = weights.shape
    reach = np.cumsum(weights, axis=1, dtype=np.float64)
    reach /= reach[:, -1:]
    # All rows are searched at once: row number n runs from n to n + 1.
    number = np.arange(gpus)[:, None]
    line = (reach + number).ravel()
    line[width - 1 :: width] = np.arange(1, gpus + 1)  # rounding must not lead into the next row
    cell = np.searchsorted(line, (probabilities + number).ravel(), side="left").reshape(gpus, -1) - number * width
    cell = np.clip(cell, 0, width - 1)
    before = np.where(cell > 0, np.take_along_axis(reach, np.maximum(cell - 1, 0), axis=1), 0.0)
    inside = (probabilities - before) / np.maximum(np.take_along_axis(reach, cell, axis=1) - before, 1e-300)
    ends: Floats = atoms.at[cell] + atoms.step * (np.clip(inside, 0.0, 1.0) - 0.5)
    return ends


def _posteriors(likelihood: Singles, prior: Floats) -> Floats:
    """(gpus, atoms) each GPU's posterior weights of the atoms."""
    weights: Floats = likelihood * prior
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def _quantile_tables(
    likelihood: Singles, priors: list[Floats], atoms: Atoms, alike: Mask
) -> tuple[Singles, Ints, Floats]:
    """Quantile functions in scores: a row for each GPU that can be distinguished, and the last row for all others; the
    row of each GPU; and its central 90 %, (gpus, 2), the mean over refits of the prior.

    GPUs that cannot be distinguished share one posterior: the mean of theirs.
    """
    distinct, pooled = np.flatnonzero(~alike), np.flatnonzero(alike)
    row = np.full(len(alike), len(distinct), dtype=np.intp)
    row[distinct] = np.arange(len(distinct))
    table = np.empty((len(priors), len(distinct) + (len(pooled) > 0), len(PROBABILITIES)), dtype=np.float32)
    tails, ends = np.array([TAIL, 1.0 - TAIL]), np.empty((len(alike), 2))
    for first in range(0, len(distinct), _GPUS):
        gpus = distinct[first : first + _GPUS]
        mixed = np.zeros((len(gpus), len(atoms.at)))
        for number, prior in enumerate(priors):
            weights = _posteriors(likelihood[gpus], prior)
            table[number, row[gpus]] = np.exp(quantiles(weights, atoms, PROBABILITIES))
            mixed += weights / len(priors)
        ends[gpus] = np.exp(quantiles(mixed, atoms, tails))
    if len(pooled):
        for number, prior in enumerate(priors):
            weights = _posteriors(likelihood[pooled], prior).mean(axis=0, keepdims=True)
            curve = quantiles(weights, atoms, PROBABILITIES)[0]
            table[number, -1] = np.exp(curve - curve[len(curve) // 2])
        ends[pooled] = np.interp(tails, PROBABILITIES, table[:, -1].mean(axis=0))
    return table, row, ends


def _as_wide_as_its_runs(
    runs: LogTimes, atoms: Atoms, alike: Mask, lower: Floats, upper: Floats
) -> tuple[Floats, Floats]:
    """The intervals, wider for GPUs whose own runs disagree far more than usual: a prior knows few like them."""
    away = gpu_medians(np.abs(runs.x - runs.centres[runs.owner]), runs.owner, len(runs.sizes))
    error = 1.4826 * away * _OF_MEDIAN / np.sqrt(runs.sizes)
    wild = ~alike & (runs.sizes > 1) & (error > _DISAGREE * atoms.error)
    low, high = np.exp(runs.centres - 2.0 * error), np.exp(runs.centres + 2.0 * error)
    return np.where(wild, np.minimum(lower, low), lower), np.where(wild, np.maximum(upper, high), upper)
