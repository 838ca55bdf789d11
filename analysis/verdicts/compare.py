"""One figure of a fleet: batches, nodes and GPUs that differ from their peers, each with its chance.

What GPUs share comes first: a batch (recorded, or seen as a mode of its own) is centred on itself, and a node whose
GPUs shift together is one finding. A GPU is named for what is left, and only if it differs from the GPUs beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from ..runs.sittings import UNKNOWN, Bools, Floats, Ints
from ..statistics.dip import quantum
from ..statistics.student import upper_tail
from .groups import CHANCE, modes
from .levels import Levels
from .nodes import NodeEffects, node_effects
from .null import Null, common_shapes
from .sittings import groups_median
from .states import codes
from .variance import LEAST

LEAST_GPUS = 8
"""Of one kind, to judge any: with fewer there is no population to differ from."""
_SHARED = ("vbios", "driver", "cabinet")
_MATES = 0.5
"""A GPU differs from its node by at least this share of what it differs from the fleet."""
_SHIFT_P = 0.05
"""A node with a smaller p-value is a shift that the judge looks at."""
_FEW_NODES = 1 / 8
"""Share of the nodes up to which shifted nodes are findings of their own; more may be a batch that nobody recorded."""
_BATCH_P = 0.001
_SINGLE_SLOW = 5.0
"""% from which scattered GPUs in a slow mode of their own are taken for single GPUs, not for a batch: boards of one
model that differ in revision differ by less."""
_MINOR = 0.25
_WHOLE = 0.8
"""Share of the nodes, or of their GPUs, that lie in one mode as a whole, from which modes are made of nodes."""
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
        known = {name: gpus[name].cast(pl.String) for name in ("node", *_SHARED)}
        values = {name: column.drop_nulls().unique().sort().to_list() for name, column in known.items()}
        numbers = {name: codes(column, values[name]) for name, column in known.items()}
        return cls(numbers["node"], {name: numbers[name] for name in _SHARED}), values


@dataclass(frozen=True)
class Shift:
    """A node or a batch that differs; effects are logarithms."""

    what: str
    """"node", "mode", or the name of what is shared."""
    value: int
    """The number of the node or of the value; of a mode 0."""
    gpus: Ints
    effect: float
    error: float
    """Standard error of the effect in another sitting."""
    p: float
    n: int
    """Nodes that were compared; GPUs for a mode, and where no node is known."""


@dataclass(frozen=True)
class Compared:
    """What came of it: arrays of shape (gpus,); effects are logarithms, NaN where a GPU has no level."""

    effect: Floats
    """From the centre of the GPU's batch."""
    low: Floats
    high: Floats
    """95 % interval of the effect of the GPU's level in another sitting."""
    chances: _Chances
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


def share_tails(of: Sequence[Compared]) -> None:
    """Lets all figures of a fleet tell each other how heavy its tails are; before any `p` is read."""
    if of:
        common = common_shapes(np.array([one.chances.null.evidence for one in of]))
        for one in of:
            one.chances.null.tell(common)


@dataclass(frozen=True)
class _Chances:
    """What the chances of GPUs are made of."""

    null: Null
    known: Ints
    """The GPUs; the other arrays are of theirs."""
    seen: Floats
    """From the centre of the null: what the sittings that lie nearest to it say; above 0 it is worse."""
    more: Floats
    alone: Bools
    stray: Bools
    nearer: float
    """By how much the sitting that lies nearest to the fleet is nearer than a GPU's level, in the median."""

    def of_the_middle(self, effects: Floats) -> Floats:
        """The chances of a GPU in the middle whose sittings are all slower by each of `effects`."""
        seen = np.maximum(effects - self.nearer - self.null.centre, 0.0)
        return self.null.p(seen, float(np.median(self.more)))

    def p(self, gpus: int) -> Floats:
        found = np.ones(gpus)
        p = np.where(self.alone, self.null.p(self.seen, self.more), 1.0)
        found[self.known] = np.where(self.stray, p / _IN_MODE, p)
        return found


def compare(of: Levels, fleet: Fleet, least: float = LEAST, *, worse: int = 1) -> Compared | None:
    """The comparison of the GPUs' levels; None with fewer than `LEAST_GPUS`.

    `least`: no level is known better. `worse`: 1 where a higher figure is worse, -1 where a lower one is.
    """
    known = np.flatnonzero(of.known)
    if len(known) < LEAST_GPUS:
        return None
    level = of.level[known]
    node = fleet.node[known]
    centre = np.full(len(known), float(np.median(level)))
    shifts: list[Shift] = []
    error = np.nan_to_num(np.hypot(of.pooled, of.again)[known], nan=LEAST)
    for name, value in fleet.shared.items():
        _recorded(name, value[known], level, centre, node, error, shifts, known)
    floor = max(float(np.median(error)), least)
    # A few shifted nodes are no mode of the fleet.
    before_modes = level - centre
    nodes = node_effects(before_modes, node, floor, worse=worse)
    few = _few_shifted(nodes)
    of_nodes = np.where(node >= 0, np.append(np.where(few, nodes.effect, 0.0), 0.0)[node], 0.0)
    step = max(quantum(np.sort(level - of_nodes)), np.sqrt(12) * of.sat.rounding)
    mode = _mode_of_each(before_modes - of_nodes, node, np.where(few, 0.0, nodes.effect), step)
    stray = _modes(level - of_nodes, centre, node, mode, error, shifts, known)
    off = level - centre
    if (off != before_modes).any():
        nodes = node_effects(off, node, floor, worse=worse)
    _shifted_nodes(nodes, node, error, shifts, known)
    # What is left when the node's effect is taken out: all of it where the node is shifted.
    rest = off - nodes.expected
    null = Null(worse * rest[~stray], floor)
    # A GPU with fewer sittings than most is known less well. That its own sittings differ is no excuse: of these the
    # ones nearest to the fleet count.
    doubt = of.pooled[known]
    more = np.sqrt(np.maximum(doubt**2 - float(np.median(doubt)) ** 2, 0.0))
    slow = of.slow_side[known] - centre - nodes.expected
    fast = of.fast_side[known] - centre - nodes.expected
    centre_of_null = worse * null.centre
    seen = np.where(rest >= 0, np.maximum(slow - centre_of_null, 0.0), np.minimum(fast - centre_of_null, 0.0))
    apart = off - nodes.others
    alone = (np.sign(apart) == np.sign(off)) & (np.abs(apart) >= _MATES * np.abs(off)) | ~nodes.has
    alone |= stray & ~np.isin(node, node[~stray], invert=True)  # several on one node, but not all of it
    alone &= np.sign(seen) == np.sign(off)
    half = of.half()[known]
    found = {name: np.full(len(fleet), np.nan) for name in ("effect", "low", "high", "centre")}
    for name, values in (("effect", off), ("low", off - half), ("high", off + half), ("centre", centre)):
        found[name][known] = values
    peers = np.zeros(len(fleet), dtype=np.int64)
    _, which, many = np.unique(centre, return_inverse=True, return_counts=True)
    peers[known] = many[which]
    return Compared(
        **found, confirmed=_confirmed(of, found["centre"], found["effect"]), single=of.runs == 1, peers=peers,
        shifts=tuple(shifts),
        chances=_Chances(null, known, worse * seen, more, alone, stray, float(np.median(level - of.slow_side[known]))),
    )  # fmt: skip


def _confirmed(of: Levels, centre: Floats, effect: Floats) -> Bools:
    sat = of.sat
    off = sat.value - of.steps - centre[sat.series]
    whole = effect[sat.series]
    with np.errstate(invalid="ignore"):
        shows = (off * np.sign(whole) >= _SHOWS * np.abs(whole)) & (np.abs(whole) > 0)
    shows &= sat.at > UNKNOWN  # runs without a date may be of the same hours as others
    return np.bincount(sat.series[shows], minlength=len(effect)) >= 2


def seen_twice(of: Levels, found: Compared, shift: Shift) -> Bools:
    """(gpus,) whether two sittings or more show a node's or batch's shift."""
    if shift.what == "node":  # its GPUs are not centred on it
        return found.confirmed
    return _confirmed(of, found.centre - shift.effect, np.full(len(found.effect), shift.effect))


def _units(values: Floats, node: Ints) -> Floats:
    """Medians by node; of GPUs of no known node, each its own."""
    on = node >= 0
    by_node = groups_median(values[on], node[on], int(node.max(initial=-1)) + 1)
    return np.concatenate((by_node[np.isfinite(by_node)], values[~on]))


def _apart(one: Floats, other: Floats) -> tuple[float, float]:
    """How far the medians of two samples lie apart, and the standard error of that."""
    shift = float(np.median(one) - np.median(other))
    variance = 0.0
    for part in (one, other):
        spread = 1.4826 * float(np.median(np.abs(part - np.median(part)))) if len(part) > 2 else float(np.ptp(part))
        variance += (1.2533 * max(spread, LEAST)) ** 2 / len(part)
    return shift, float(np.sqrt(variance))


def _recorded(
    name: str, value: Ints, level: Floats, centre: Floats, node: Ints, error: Floats, shifts: list[Shift], known: Ints
) -> None:
    """Centres every value of what is shared on itself, where it differs from the commonest one."""
    values, many = np.unique(value[value >= 0], return_counts=True)
    if len(values) < 2:
        return
    main = values[np.argmax(many)]
    others = [one for one in values if one != main]
    base = level - centre
    ours = _units(base[value == main], node[value == main])
    for one in others:
        mine = value == one
        theirs = _units(base[mine], node[mine])
        if mine.sum() < LEAST_GPUS // 2 or len(theirs) < 2 or len(ours) < 2:
            continue
        shift, doubt = _apart(theirs, ours)
        units = min(len(theirs), len(ours))
        far = float(upper_tail(abs(shift / doubt), 0.7 * units)) if abs(shift) >= 3 * doubt else 0.5
        p = min(2 * far, _all_beyond(theirs, ours, float(np.median(error))))
        p = min(1.0, 2 * len(others) * p)
        if p < _BATCH_P:
            centre[mine] += shift
            again = float(np.hypot(doubt, np.median(error) / np.sqrt(units)))
            shifts.append(Shift(name, int(one), known[mine], shift, again, p, len(theirs) + len(ours)))


def _all_beyond(theirs: Floats, ours: Floats, floor: float) -> float:
    """The chance that so many nodes lie so far out on one side: two nodes alike say more than their median does."""
    if len(ours) < LEAST_GPUS:
        return 1.0
    null = Null(ours, max(floor / 2, LEAST), slow_share=0.5)
    off = theirs - null.centre
    off *= np.sign(np.median(off))
    k = len(off)
    chances = []
    for share in (1.0, 0.75):  # all of them, or most
        j = max(2, int(np.ceil(share * k)))
        nearest = float(np.sort(off)[k - j])
        if nearest > 0:
            chances.append(
                math.comb(k, j) * float(null.p(np.array([nearest]) * np.sign(np.median(theirs - null.centre)))[0]) ** j
            )
    return min(1.0, 2 * min(chances, default=1.0))


def _mode_of_each(off: Floats, node: Ints, effect: Floats, step: float) -> Ints:
    """(gpus,) the mode of each GPU; 0 where there is one mode. `effect`: (nodes,) as in `NodeEffects`; `step`: between
    readings.

    Where nodes have modes, a GPU is of its node's: a slow GPU on a fast node is no GPU of the slow mode.
    """
    several = np.isfinite(effect)
    on_node = np.append(several, False)[node]
    mode_of_nodes = modes(effect[several], step)
    if mode_of_nodes.any():
        middles = [np.median(effect[several][mode_of_nodes == number]) for number in np.unique(mode_of_nodes)]
        nearest = np.argmin(np.abs(off[:, None] - np.array(middles)), axis=1)
        of_node = np.zeros(len(effect), dtype=np.int64)
        of_node[several] = mode_of_nodes
        of_gpu = np.where(on_node, of_node[node], nearest)
        minor = of_gpu != np.argmax(np.bincount(of_gpu))
        if (nearest == of_gpu)[minor].mean() >= _WHOLE:  # not nodes of which half of the GPUs are slow
            return of_gpu
    mode = modes(off, step)
    if mode.any() and on_node.any():
        sizes, sums, squares = (
            np.bincount(node[on_node], weights, minlength=len(effect))[several]
            for weights in (None, mode[on_node], mode[on_node] ** 2)
        )
        if (squares * sizes == sums**2).mean() >= _WHOLE:  # nodes are what modes are made of, and they have none
            return np.zeros(len(off), dtype=np.int64)
    return mode


def _modes(
    level: Floats, centre: Floats, node: Ints, mode: Ints, error: Floats, shifts: list[Shift], known: Ints
) -> Bools:  # fmt: skip
    """Centres every mode on itself. Scattered GPUs far on the slow side stay where they are: which they are."""
    off = level - centre
    stray = np.zeros(len(level), dtype=bool)
    if not mode.any():
        return stray
    many = np.bincount(mode)
    main = int(np.argmax(many))
    middle = float(np.median(off[mode == main]))
    for one in np.flatnonzero(many):
        mine = mode == one
        shift = float(np.median(off[mine])) - middle
        if one == main:
            centre[mine] += middle
            continue
        whole = [np.all(mode[node == its] == one) for its in np.unique(node[mine]) if its >= 0]
        scattered = not whole or np.mean(whole) < _MATES
        if scattered and 100 * np.expm1(shift) >= _SINGLE_SLOW and mine.mean() <= _MINOR:
            centre[mine] += middle
            stray |= mine
            continue
        _, doubt = _apart(off[mine], off[mode == main])
        centre[mine] += middle + shift
        again = float(np.hypot(doubt, np.median(error) / np.sqrt(mine.sum())))
        shifts.append(Shift("mode", int(one), known[mine], shift, again, 1 / CHANCE, len(level)))
    return stray


def _few_shifted(nodes: NodeEffects) -> Bools:
    """(nodes,) which nodes are shifted, if they are few; else none."""
    compared = int(np.isfinite(nodes.effect).sum())
    return np.asarray(nodes.shifted & (nodes.shifted.sum() <= _FEW_NODES * compared))


def _shifted_nodes(nodes: NodeEffects, node: Ints, error: Floats, shifts: list[Shift], known: Ints) -> None:
    """Nodes whose GPUs all lie on one side, far from where nodes lie."""
    compared = int(np.isfinite(nodes.effect).sum())
    for number in np.flatnonzero(nodes.p < _SHIFT_P):
        mine = node == number
        again = float(np.median(error[mine]))
        effect, p = float(nodes.effect[number]), float(nodes.p[number])
        shifts.append(Shift("node", int(number), known[mine], effect, again, p, compared))
