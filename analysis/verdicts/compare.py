"""One figure of a fleet: batches, nodes and GPUs that differ from their peers, each with its chance.

Each group that differs is one finding and is taken out before single GPUs are compared. A batch, recorded or seen as a
mode, is centred on itself. The deviation of a GPU is then what its node has plus what the GPU has. What GPUs of one
node differ by says how far the mean of a healthy node may lie from 0 without any effect of the node; what is left of
the spread of nodes is what nodes usually share. A node beyond both is shifted: it is taken out, and the rest is
estimated again, until nothing changes. So shifted nodes hide neither each other nor single GPUs. A GPU is named for
what is left, and only if it differs from the GPUs beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from ..runs.measurements import codes
from ..runs.sittings import UNKNOWN, Bools, Floats, Ints, groups_median
from ..statistics.modes import CHANCE, modes, quantum
from ..statistics.ordering import upper_tail
from .levels import LEAST, Levels
from .null import SLOW_SHARE, Null, common_shapes

# -- nodes
_LEAST_NODES = 8
"""Nodes without which no node is said to be shifted."""
_TOGETHER = 1 / 3
"""Every GPU of a shifted node lies at least this share of the node's effect from the fleet, on its side."""
_TAKEN_OUT_P = 5e-3
"""A node with a smaller p-value is taken out before GPUs are compared, whether it is named or not."""
_SHIFT_P = 0.05
"""A node with a smaller p-value is a shift that the judge looks at."""
_FREEDOM = 12.0
"""Degrees of freedom of the healthy effects of nodes: a mean of GPUs has lighter tails than one GPU."""
_FREEDOM_OF_NODES = 0.6
"""... but no more than this share of the number of nodes, from which their spread is known."""
_FAR = 4.0
"""Robust standard deviations from the middle of its node from which a GPU does not speak for the node."""
_DRAWS = 2000
_TURNS = 8
_HUBER = 1.5

# -- recorded batches
_LEAST_BATCH = 4
_BATCH_P = 0.001

# -- modes
_FEW_NODES = 1 / 8
"""Share of the nodes up to which shifted nodes are findings of their own; more may be a batch that nobody recorded."""
_WHOLE = 0.8
"""Share of the nodes, or of their GPUs, that lie in one mode as a whole, from which modes are made of nodes."""
_SINGLE_SLOW = math.log(1.05)
"""Effect from which scattered GPUs in a slow mode are taken for single GPUs, not for a batch: boards of one model that
differ in revision differ by less."""
_MINOR = 0.25
"""Share of the GPUs up to which they are."""
_SCATTERED = 0.5
"""Share of the nodes of a mode that lie in it as a whole, under which its GPUs are scattered."""


@dataclass(frozen=True)
class Shift:
    """A node or a batch that differs; effects are logarithms."""

    what: str
    """"node", "mode", or the name of what is shared."""
    value: int
    """The number of the node, of the value or of the mode."""
    gpus: Ints
    effect: float
    error: float
    """Standard error of the effect in another sitting."""
    p: float
    n: int
    """Nodes that were compared; GPUs for a mode, and where no node is known."""


@dataclass(frozen=True)
class NodeEffects:
    """Effects as deviations are: logarithms for times."""

    effect: Floats
    """(nodes,) what the GPUs of a node have in common; NaN for a node of one GPU."""
    p: Floats
    """(nodes,) the p-value of an effect that a healthy node may have; 1 where the GPUs do not lie together."""
    shifted: Bools
    """(nodes,) whether it is taken out before GPUs are compared."""
    has_mates: Bools
    """(gpus,) whether a GPU has others on its node."""
    of_mates: Floats
    """(gpus,) the effect of its node as the other GPUs show it; 0 without others."""
    expected: Floats
    """(gpus,) the part of it that is expected of the GPU: all where the node is shifted."""

    def few_shifted(self) -> Bools:
        """(nodes,) which nodes are shifted, if they are few; else none."""
        few = self.shifted.sum() <= _FEW_NODES * np.isfinite(self.effect).sum()
        return self.shifted if few else np.zeros(len(self.shifted), dtype=bool)


@dataclass
class Centred:
    """GPUs that are compared, and the level that each is compared with as far as groups are known: arrays (gpus,)."""

    gpus: Ints
    """Their numbers in the fleet."""
    level: Floats
    node: Ints
    """-1 where unknown."""
    error: Floats
    """Of a level in another sitting."""
    centre: Floats
    shifts: list[Shift] = field(default_factory=list)

    @property
    def deviation(self) -> Floats:
        return self.level - self.centre

    def without_recorded(self, name: str, value: Ints) -> None:
        """Centres every value of what is shared on itself, where it differs from the commonest one.

        `value`: (gpus,) numbers of the values of `name`, -1 where unknown.
        """
        numbers, counts = np.unique(value[value >= 0], return_counts=True)
        if len(numbers) < 2:
            return
        commonest = numbers[np.argmax(counts)]
        base = self.deviation
        usual = _medians_of_nodes(base[value == commonest], self.node[value == commonest])
        floor = max(float(np.median(self.error)) / 2, LEAST)
        null = Null(usual, floor, slow_share=0.5) if len(usual) >= _LEAST_NODES else None
        for number in numbers[numbers != commonest]:
            members = value == number
            batch = _medians_of_nodes(base[members], self.node[members])
            if members.sum() < _LEAST_BATCH or len(batch) < 2 or len(usual) < 2:
                continue
            effect, error = _difference(batch, usual)
            units = min(len(batch), len(usual))
            p = 2 * float(upper_tail(abs(effect / error), 0.7 * units)) if abs(effect) >= 3 * error else 1.0
            p = p if null is None else min(p, _all_beyond(batch, null))
            p = min(1.0, 2 * (len(numbers) - 1) * p)
            if p < _BATCH_P:
                self.centre[members] += effect
                again, compared = self._again(error, units), len(batch) + len(usual)
                self.shifts.append(Shift(name, int(number), self.gpus[members], effect, again, p, compared))

    def without_modes(self, nodes: NodeEffects, step: float) -> Bools:
        """Centres every mode that nobody recorded on itself. Few shifted nodes are no mode.

        (gpus,) those that stay where they are: scattered GPUs far on the slow side, which they are. `step`: between
        readings.
        """
        few = np.append(nodes.few_shifted(), False)[self.node] & (self.node >= 0)
        off = self.deviation - np.where(few, np.append(nodes.effect, 0.0)[self.node], 0.0)
        mode = _mode_of_each(off, self.node, np.where(nodes.few_shifted(), 0.0, nodes.effect), step)
        stays = np.zeros(len(off), dtype=bool)
        if not mode.any():
            return stays
        main = mode == np.argmax(np.bincount(mode))
        middle = float(np.median(off[main]))
        self.centre += middle
        for number in np.unique(mode[~main]):
            members = mode == number
            effect = float(np.median(off[members])) - middle
            if effect >= _SINGLE_SLOW and members.mean() <= _MINOR and self._scattered(members):
                stays |= members
                continue
            self.centre[members] += effect
            _, error = _difference(off[members], off[main])
            again = self._again(error, int(members.sum()))
            self.shifts.append(Shift("mode", int(number), self.gpus[members], effect, again, 1 / CHANCE, len(off)))
        return stays

    def add_nodes(self, nodes: NodeEffects) -> None:
        """Adds nodes whose GPUs all lie on one side, far from where nodes lie."""
        compared = int(np.isfinite(nodes.effect).sum())
        for number in np.flatnonzero(nodes.p < _SHIFT_P):
            members = self.node == number
            error = float(np.median(self.error[members]))
            effect, p = float(nodes.effect[number]), float(nodes.p[number])
            self.shifts.append(Shift("node", int(number), self.gpus[members], effect, error, p, compared))

    def _scattered(self, members: Bools) -> bool:
        """Whether few of the nodes of these GPUs have no other GPU."""
        complete = [bool(members[self.node == number].all()) for number in np.unique(self.node[members]) if number >= 0]
        return not complete or float(np.mean(complete)) < _SCATTERED

    def _again(self, error: float, units: int) -> float:
        """The standard error of the effect of so many nodes or GPUs in another sitting."""
        return math.hypot(error, float(np.median(self.error)) / math.sqrt(units))


# -- nodes ------------------------------------------------------------------------------------------------------------


def node_effects(deviations: Floats, node: Ints, floor: float, *, worse: int = 1) -> NodeEffects:
    """The effects of nodes from (gpus,) deviations from the fleet's centre. `node`: numbers, -1 where unknown.

    `floor`: no deviation is known better. `worse`: 1 where a higher deviation is worse, -1 where a lower one is.
    """
    count = int(node.max(initial=-1)) + 1
    members = _members(node, count)
    several = (members >= 0).sum(axis=1) > 1
    effect, p, taken_out = np.full(count, np.nan), np.ones(count), np.zeros(count, dtype=bool)
    of_mates, expected = np.zeros(len(deviations)), np.zeros(len(deviations))
    has_mates = np.zeros(len(deviations), dtype=bool)
    if not several.any():
        return NodeEffects(effect, p, taken_out, has_mates, of_mates, expected)
    members = members[several]
    present = members >= 0
    has_mates[members[present]] = True
    values, sizes = np.where(present, deviations[members], np.nan), present.sum(axis=1)
    usual_size = float(np.median(sizes))
    freedom = min(_FREEDOM, max(2.0, _FREEDOM_OF_NODES * len(values)))
    shifted = np.zeros(len(values), dtype=bool)
    for _ in range(_TURNS):
        within, spread = _within(values)
        spread = max(spread, floor)
        near = np.asarray(np.abs(values - _row_medians(values)[:, None]) <= _FAR * spread)
        near |= ~np.any(near, axis=1, keepdims=True)  # two GPUs far from each other: neither is left out
        speaking = np.where(near, values, np.nan)
        estimate = _huber_means(speaking, spread)
        error_without = _error_of_mean(within, spread, int(usual_size))  # of a node without an effect of its own
        healthy = estimate[~shifted] if (~shifted).sum() > 1 else estimate
        variance = max(_robust_variance(healthy) - error_without**2, 0.0)
        error = np.sqrt(error_without**2 * usual_size / sizes + variance)
        on_its_side = values * np.sign(estimate)[:, None] >= _TOGETHER * np.abs(estimate)[:, None]
        together: Bools = np.all(np.isnan(values) | on_its_side, axis=1)
        share = np.where(worse * estimate >= 0, SLOW_SHARE, 1 - SLOW_SHARE)
        p_values = np.where(together, np.minimum(upper_tail(np.abs(estimate) / error, freedom) / share, 1.0), 1.0)
        if len(values) < _LEAST_NODES:
            p_values = np.ones(len(values))
        previous, shifted = shifted, p_values <= _TAKEN_OUT_P
        if np.array_equal(previous, shifted):
            break
    shared = variance / (variance + error_without**2 * usual_size / np.maximum(sizes - 1, 1))
    shared = np.where(shifted, 1.0, shared)
    for place in range(values.shape[1]):
        rows = np.flatnonzero(present[:, place])
        mates = np.nan_to_num(_huber_means(np.delete(speaking, place, axis=1)[rows], spread))
        of_mates[members[rows, place]] = mates
        expected[members[rows, place]] = shared[rows] * mates
    effect[several], p[several], taken_out[several] = estimate, p_values, shifted
    return NodeEffects(effect, p, taken_out, has_mates, of_mates, expected)


def _members(node: Ints, count: int) -> Ints:
    """(nodes, most GPUs of a node) the numbers of the GPUs of each node, -1 behind the last."""
    order = np.argsort(node, kind="stable")
    order = order[node[order] >= 0]
    sizes = np.bincount(node[order], minlength=count)
    first = np.cumsum(sizes) - sizes
    columns = np.arange(int(sizes.max(initial=0)))
    present = columns < sizes[:, None]
    members = np.full(present.shape, -1, dtype=np.int64)
    members[present] = order[(first[:, None] + columns)[present]]
    return members


def _within(values: Floats) -> tuple[Floats, float]:
    """Deviations of GPUs from the middle of their nodes, as far as GPUs without a node's effect lie from 0, and their
    robust standard deviation. `values`: (nodes, GPUs), NaN where there is none."""
    sizes = np.isfinite(values).sum(axis=1)
    off = (values - _row_medians(values)[:, None]) * np.sqrt(sizes / np.maximum(sizes - 1, 1))[:, None]
    off = off[np.isfinite(off)]
    return off, 1.4826 * float(np.median(np.abs(off)))


def _error_of_mean(within: Floats, spread: float, size: int) -> float:
    """The standard error of a node's effect, of nodes of this size, from draws of GPUs."""
    draws = np.random.default_rng(1).choice(np.clip(within, -_FAR * spread, _FAR * spread), (_DRAWS, size))
    return max(float(np.std(_huber_means(draws, spread))), spread / math.sqrt(2 * size))


def _robust_variance(values: Floats) -> float:
    spread = 1.4826 * float(np.median(np.abs(values - np.median(values))))
    return spread * spread


def _row_medians(values: Floats) -> Floats:
    """(rows,) the median of each row without its NaN; NaN of a row of nothing else."""
    ranked = np.sort(values, axis=1)  # NaN comes last
    sizes = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(values))
    low, high = np.maximum(sizes - 1, 0) // 2, np.minimum(sizes // 2, values.shape[1] - 1)
    return np.asarray((ranked[rows, low] + ranked[rows, high]) / 2)


def _huber_means(values: Floats, spread: float) -> Floats:
    """(rows,) Huber's robust mean of each row (P. J. Huber, Ann. Math. Statist. 35, 1964); NaN of a row without any."""
    present = np.isfinite(values)
    filled = np.where(present, values, 0.0)
    any_present = present.any(axis=1)
    with np.errstate(invalid="ignore"):
        middle = _row_medians(values)
        for _ in range(8):
            distance = np.abs(values - middle[:, None])
            weight = np.where(present, np.minimum(1.0, _HUBER * spread / np.maximum(distance, 1e-300)), 0.0)
            mean = (weight * filled).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-300)
            middle = np.where(any_present, mean, np.nan)
    return middle


# -- recorded batches -------------------------------------------------------------------------------------------------


def _medians_of_nodes(values: Floats, node: Ints) -> Floats:
    """Medians by node; of GPUs of no known node, each its own."""
    on = node >= 0
    by_node = groups_median(values[on], node[on], int(node.max(initial=-1)) + 1)
    return np.concatenate((by_node[np.isfinite(by_node)], values[~on]))


def _difference(values: Floats, others: Floats) -> tuple[float, float]:
    """How far the medians of two samples lie apart, and the standard error of that."""
    variance = 0.0
    for sample in (values, others):
        spread = math.sqrt(_robust_variance(sample)) if len(sample) > 2 else float(np.ptp(sample))
        variance += (1.2533 * max(spread, LEAST)) ** 2 / len(sample)
    return float(np.median(values) - np.median(others)), math.sqrt(variance)


def _all_beyond(batch: Floats, null: Null) -> float:
    """The chance that so many nodes lie so far out on one side: two nodes alike say more than their median does."""
    sign = np.sign(np.median(batch - null.centre))
    off = np.sort(sign * (batch - null.centre))
    n = len(off)
    chances = [1.0]
    for share in (1.0, 0.75):  # all of them, or most
        number = max(2, math.ceil(share * n))
        nearest = float(off[n - number])
        if nearest > 0:
            chances.append(math.comb(n, number) * float(null.p(np.array([sign * nearest]))[0]) ** number)
    return min(1.0, 2 * min(chances))


# -- modes ------------------------------------------------------------------------------------------------------------


def _mode_of_each(off: Floats, node: Ints, effect: Floats, step: float) -> Ints:
    """(gpus,) the mode of each GPU; 0 where there is one mode. `effect`: (nodes,) as in `NodeEffects`.

    Where nodes have modes, a GPU is of its node's: a slow GPU on a fast node is no GPU of the slow mode.
    """
    several = np.isfinite(effect)
    on_node = np.append(several, False)[node]
    mode_of_nodes = modes(effect[several], step)
    if mode_of_nodes.any():
        middles = [np.median(effect[several][mode_of_nodes == number]) for number in np.unique(mode_of_nodes)]
        nearest = np.argmin(np.abs(off[:, None] - np.array(middles)), axis=1)
        by_node = np.zeros(len(effect), dtype=np.int64)
        by_node[several] = mode_of_nodes
        of_gpus = np.where(on_node, by_node[node], nearest)
        minor = of_gpus != np.argmax(np.bincount(of_gpus))
        if (nearest == of_gpus)[minor].mean() >= _WHOLE:  # not nodes of which half of the GPUs are slow
            return of_gpus
    mode = modes(off, step)
    if mode.any() and on_node.any():
        sizes, sums, squares = (
            np.bincount(node[on_node], weights, minlength=len(effect))[several]
            for weights in (None, mode[on_node], mode[on_node] ** 2)
        )
        if (squares * sizes == sums**2).mean() >= _WHOLE:  # nodes are what modes are made of, and they have none
            return np.zeros(len(off), dtype=np.int64)
    return mode


LEAST_GPUS = 8
"""Of one kind, to judge any: with fewer there is no population to differ from."""
_SHARED = ("vbios", "driver", "cabinet")
_FROM_MATES = 0.5
"""A GPU differs from its node by at least this share of what it differs from the fleet."""
_IN_MODE = 3.0
"""That many GPUs lie there together says as much as three times the distance's chance: a mode of its own is clear."""
_SHOWS = 0.5
"""A sitting shows an effect if it has this share of it."""


@dataclass(frozen=True)
class Fleet:
    """What is known of the GPUs that are compared: arrays of shape (gpus,)."""

    node: Ints
    """-1 where unknown."""
    shared: Mapping[str, Ints] = field(default_factory=dict)
    """What GPUs may share, by name (VBIOS, driver, cabinet): a number for each value, -1 where unknown."""

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def of(cls, gpus: pl.DataFrame) -> tuple[Fleet, dict[str, list[str]]]:
        """Of the rows of `gpus`, and the values that the numbers stand for."""
        columns = {name: gpus[name].cast(pl.String) for name in ("node", *_SHARED)}
        values = {name: column.drop_nulls().unique().sort().to_list() for name, column in columns.items()}
        numbers = {name: codes(column, values[name]) for name, column in columns.items()}
        return cls(numbers["node"], {name: numbers[name] for name in _SHARED}), values


@dataclass(frozen=True)
class Chances:
    """What the chances of GPUs are made of: arrays of those that are compared."""

    null: Null
    gpus: Ints
    """Their numbers in the fleet."""
    distance: Floats
    """From the centre of the null: what the sittings that lie nearest to it say; above 0 it is worse."""
    poorer: Floats
    """Standard deviation of what a GPU's level is known worse than the usual one."""
    alone: Bools
    """Whether the GPU differs from those beside it."""
    in_slow_mode: Bools
    nearer: float
    """By how much the sitting that lies nearest to the fleet is nearer than a GPU's level, in the median."""

    def of_the_middle(self, effects: Floats) -> Floats:
        """The chances of a GPU in the middle whose sittings are all slower by each of `effects`."""
        distance = np.maximum(effects - self.nearer - self.null.centre, 0.0)
        return self.null.p(distance, float(np.median(self.poorer)))

    def p(self, count: int) -> Floats:
        """(count,) the p-values of all GPUs of the fleet."""
        p_values = np.ones(count)
        p_alone = np.where(self.alone, self.null.p(self.distance, self.poorer), 1.0)
        p_values[self.gpus] = np.where(self.in_slow_mode, p_alone / _IN_MODE, p_alone)
        return p_values


@dataclass(frozen=True)
class Compared:
    """What came of it: arrays of shape (gpus,); effects are logarithms, NaN where a GPU has no level."""

    effect: Floats
    """From the centre of the GPU's batch."""
    low: Floats
    high: Floats
    """95 % interval of the effect of the GPU's level in another sitting."""
    chances: Chances
    confirmed: Bools
    """Whether two sittings or more show it."""
    single: Bools
    """Whether all rests on one run."""
    peers: Ints
    """GPUs of the same batch, itself included."""
    shifts: tuple[Shift, ...]
    centre: Floats
    """The level that each GPU was compared with."""

    @cached_property
    def p(self) -> Floats:
        """The chance that a healthy GPU lies so far out; 1 where the GPU is not judged or does not stand alone."""
        return self.chances.p(len(self.effect))


def compare(levels: Levels, fleet: Fleet, least: float = LEAST, *, worse: int = 1) -> Compared | None:
    """The comparison of the GPUs' levels; None with fewer than `LEAST_GPUS`.

    `least`: no level is known better. `worse`: 1 where a higher figure is worse, -1 where a lower one is.
    """
    gpus = np.flatnonzero(levels.known)
    if len(gpus) < LEAST_GPUS:
        return None
    level = levels.level[gpus]
    error = np.nan_to_num(np.hypot(levels.pooled, levels.again)[gpus], nan=LEAST)
    floor = max(float(np.median(error)), least)
    centred = Centred(gpus, level, fleet.node[gpus], error, np.full(len(gpus), float(np.median(level))))
    for name, value in fleet.shared.items():
        centred.without_recorded(name, value[gpus])
    centre = centred.centre.copy()
    nodes = node_effects(centred.deviation, centred.node, floor, worse=worse)
    in_slow_mode = centred.without_modes(nodes, max(quantum(np.sort(level)), np.sqrt(12) * levels.sat.rounding))
    if (centred.centre != centre).any():
        nodes = node_effects(centred.deviation, centred.node, floor, worse=worse)
    centred.add_nodes(nodes)
    half = levels.half()[gpus]
    deviation = centred.deviation
    _, batch, sizes = np.unique(centred.centre, return_inverse=True, return_counts=True)
    peers = np.zeros(len(fleet), dtype=np.int64)
    peers[gpus] = sizes[batch]
    effect, low, high, centre = (
        _of_fleet(values, gpus, len(fleet))
        for values in (deviation, deviation - half, deviation + half, centred.centre)
    )
    return Compared(
        effect=effect, low=low, high=high, centre=centre, peers=peers, confirmed=_confirmed(levels, centre, effect),
        single=levels.runs == 1, shifts=tuple(centred.shifts),
        chances=_chances(levels, centred, nodes, in_slow_mode, floor=floor, worse=worse),
    )  # fmt: skip


def share_tails(figures: Sequence[Compared]) -> None:
    """Lets all figures of a fleet tell each other how heavy its tails are; before any `p` is read."""
    if figures:
        common = common_shapes(np.array([figure.chances.null.evidence for figure in figures]))
        for figure in figures:
            figure.chances.null.tell(common)


def seen_twice(levels: Levels, compared: Compared, shift: Shift) -> Bools:
    """(gpus,) whether two sittings or more show a node's or batch's shift."""
    if shift.what == "node":  # its GPUs are not centred on it
        return compared.confirmed
    return _confirmed(levels, compared.centre - shift.effect, np.full(len(compared.effect), shift.effect))


def _chances(
    levels: Levels, centred: Centred, nodes: NodeEffects, in_slow_mode: Bools, *, floor: float, worse: int
) -> Chances:  # fmt: skip
    """What is left of GPUs when the effects of their nodes are taken out: all of it where the node is shifted."""
    gpus, deviation = centred.gpus, centred.deviation
    remainder = deviation - nodes.expected
    null = Null(worse * remainder[~in_slow_mode], floor)
    # A GPU with fewer sittings than most is known less well. That its own sittings differ is no excuse: of these the
    # ones nearest to the fleet count.
    error = levels.pooled[gpus]
    poorer = np.sqrt(np.maximum(error**2 - float(np.median(error)) ** 2, 0.0))
    middle = centred.centre + nodes.expected + worse * null.centre
    slow, fast = levels.slow_side[gpus] - middle, levels.fast_side[gpus] - middle
    distance = np.where(remainder >= 0, np.maximum(slow, 0.0), np.minimum(fast, 0.0))
    from_mates = deviation - nodes.of_mates
    alone = (np.sign(from_mates) == np.sign(deviation)) & (np.abs(from_mates) >= _FROM_MATES * np.abs(deviation))
    alone |= ~nodes.has_mates
    alone |= in_slow_mode & np.isin(centred.node, centred.node[~in_slow_mode])  # several on one node, but not all of it
    alone &= np.sign(distance) == np.sign(deviation)
    nearer = float(np.median(centred.level - levels.slow_side[gpus]))
    return Chances(null, gpus, worse * distance, poorer, alone, in_slow_mode, nearer)


def _of_fleet(values: Floats, gpus: Ints, count: int) -> Floats:
    """(count,) the values at the numbers of their GPUs, NaN elsewhere."""
    spread_out = np.full(count, np.nan)
    spread_out[gpus] = values
    return spread_out


def _confirmed(levels: Levels, centre: Floats, effect: Floats) -> Bools:
    """(gpus,) whether two dated sittings or more have most of the effect."""
    sat = levels.sat
    off = sat.value - centre[sat.series]
    expected = effect[sat.series]
    with np.errstate(invalid="ignore"):
        shows = (off * np.sign(expected) >= _SHOWS * np.abs(expected)) & (np.abs(expected) > 0)
    shows &= sat.at > UNKNOWN  # runs without a date may be of the same hours as others
    return np.bincount(sat.series[shows], minlength=len(effect)) >= 2
