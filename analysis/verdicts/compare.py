"""One figure of a fleet: batches, nodes and GPUs that differ from their peers, each with its chance.

What GPUs share comes first (`groups`): a batch is centred on itself, and a node whose GPUs shift together is one
finding. A GPU is named for what is left, and only if it differs from the GPUs beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from ..runs.sittings import UNKNOWN, Bools, Floats, Ints
from ..statistics.dip import quantum
from .groups import Centred, NodeEffects, Shift, node_effects
from .levels import Levels
from .null import Null, common_shapes
from .states import codes
from .variance import LEAST

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
    off = sat.value - levels.steps - centre[sat.series]
    expected = effect[sat.series]
    with np.errstate(invalid="ignore"):
        shows = (off * np.sign(expected) >= _SHOWS * np.abs(expected)) & (np.abs(expected) > 0)
    shows &= sat.at > UNKNOWN  # runs without a date may be of the same hours as others
    return np.bincount(sat.series[shows], minlength=len(effect)) >= 2
