"""What the GPUs of a node have in common in one figure: nodes that are shifted, and what nodes usually share.

The deviation of a GPU is what its node has plus what the GPU has. What GPUs of one node differ by says how far the mean
of a healthy node may lie from 0 without any effect of the node (drawn from these differences); what is left of the
spread of nodes is what nodes usually share. A node beyond both is shifted: it is taken out, and the rest is estimated
again, until nothing changes. So shifted nodes hide neither each other nor single GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..runs.sittings import Bools, Floats, Ints
from ..statistics.student import upper_tail
from .null import SLOW_SHARE

LEAST_NODES = 8
"""Nodes without which no node is said to be shifted."""
TOGETHER = 1 / 3
"""Every GPU of a shifted node lies at least this share of the node's effect from the fleet, on its side."""
_TAKEN_OUT_P = 5e-3
"""A node with a smaller p-value is taken out before GPUs are compared, whether it is named or not."""
_FREEDOM = 12.0
"""Degrees of freedom of the healthy effects of nodes: a mean of GPUs has lighter tails than one GPU."""
_FREEDOM_OF_NODES = 0.6
"""... but no more than this share of the number of nodes, from which their spread is known."""
_FAR = 4.0
"""Robust standard deviations from the middle of its node from which a GPU does not speak for the node."""
_DRAWS = 2000
_TURNS = 8
_HUBER = 1.5


@dataclass(frozen=True)
class NodeEffects:
    """Effects as deviations are: logarithms for times."""

    effect: Floats
    """(nodes,) what the GPUs of a node have in common; NaN for a node of one GPU."""
    p: Floats
    """(nodes,) the p-value of an effect that a healthy node may have; 1 where the GPUs do not lie together."""
    shifted: Bools
    """(nodes,) whether it is taken out before GPUs are compared."""
    has: Bools
    """(gpus,) whether a GPU has others on its node."""
    others: Floats
    """(gpus,) the effect of its node as the other GPUs show it; 0 without others."""
    expected: Floats
    """(gpus,) the part of it that is expected of the GPU: all where the node is shifted."""


def node_effects(deviations: Floats, node: Ints, floor: float, *, worse: int = 1) -> NodeEffects:
    """The effects of nodes from (gpus,) deviations from the fleet's centre. `node`: numbers, -1 where unknown.

    `floor`: no deviation is known better. `worse`: 1 where a higher deviation is worse, -1 where a lower one is.
    """
    count = int(node.max(initial=-1)) + 1
    members = _members(node, count)
    there = members >= 0
    sizes = there.sum(axis=1)
    several = sizes > 1
    effect, p, taken_out = np.full(count, np.nan), np.ones(count), np.zeros(count, dtype=bool)
    others, expected, has = np.zeros(len(deviations)), np.zeros(len(deviations)), np.zeros(len(deviations), dtype=bool)
    if not several.any():
        return NodeEffects(effect, p, taken_out, has, others, expected)
    has[members[several][there[several]]] = True
    values = np.where(there, deviations[members], np.nan)[several]
    sizes, members, there = sizes[several], members[several], there[several]
    shifted = np.zeros(len(values), dtype=bool)
    for _ in range(_TURNS):
        within, spread = _within(values)
        spread = max(spread, floor)
        near = np.abs(values - _row_medians(values)[:, None]) <= _FAR * spread
        near |= ~near.any(axis=1)[:, None]  # two GPUs far from each other: neither is left out
        speaking = np.where(near, values, np.nan)
        estimate = _huber_means(speaking, spread)
        alone = _error_of_mean(within, spread, int(np.median(sizes)))  # of a node without an effect of its own
        of_healthy = estimate[~shifted] if (~shifted).sum() > 1 else estimate
        variance = max(_robust_variance(of_healthy) - alone**2, 0.0)
        error = np.sqrt(alone**2 * np.median(sizes) / sizes + variance)
        freedom = min(_FREEDOM, max(2.0, _FREEDOM_OF_NODES * len(values)))
        together = np.all(
            np.isnan(values) | (values * np.sign(estimate)[:, None] >= TOGETHER * np.abs(estimate)[:, None]), axis=1
        )
        share = np.where(worse * estimate >= 0, SLOW_SHARE, 1 - SLOW_SHARE)
        p_values = np.where(together, np.minimum(upper_tail(np.abs(estimate) / error, freedom) / share, 1.0), 1.0)
        if len(values) < LEAST_NODES:
            p_values = np.ones(len(values))
        before, shifted = shifted, p_values <= _TAKEN_OUT_P
        if (before == shifted).all():
            break
    of_others = np.where(shifted, 1.0, variance / (variance + alone**2 * np.median(sizes) / np.maximum(sizes - 1, 1)))
    for place in range(values.shape[1]):
        rows = np.flatnonzero(there[:, place])
        theirs = _huber_means(np.delete(speaking, place, axis=1)[rows], spread)
        theirs = np.nan_to_num(theirs)
        others[members[rows, place]] = theirs
        expected[members[rows, place]] = of_others[rows] * theirs
    rows = np.flatnonzero(several)
    effect[rows], p[rows], taken_out[rows] = estimate, p_values, shifted
    return NodeEffects(effect, p, taken_out, has, others, expected)


def _members(node: Ints, count: int) -> Ints:
    """(nodes, most GPUs of a node) the numbers of the GPUs of each node, -1 behind the last."""
    order = np.argsort(node, kind="stable")
    order = order[node[order] >= 0]
    sizes = np.bincount(node[order], minlength=count)
    first = np.cumsum(sizes) - sizes
    columns = np.arange(int(sizes.max(initial=0)))
    there = columns < sizes[:, None]
    found = np.full(there.shape, -1, dtype=np.int64)
    found[there] = order[(first[:, None] + columns)[there]]
    return found


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
    found: Floats = (
        ranked[rows, np.maximum(sizes - 1, 0) // 2] + ranked[rows, np.minimum(sizes // 2, values.shape[1] - 1)]
    ) / 2
    return found


def _huber_means(values: Floats, spread: float) -> Floats:
    """(rows,) Huber's robust mean of each row (P. J. Huber, Ann. Math. Statist. 35, 1964); NaN of a row without any."""
    there = np.isfinite(values)
    filled = np.where(there, values, 0.0)
    with np.errstate(invalid="ignore"):
        middle = _row_medians(values)
        any_there = there.any(axis=1)
        for _ in range(8):
            far = np.abs(values - middle[:, None])
            weight = np.where(there, np.minimum(1.0, _HUBER * spread / np.maximum(far, 1e-300)), 0.0)
            middle = np.where(any_there, (weight * filled).sum(axis=1) / np.maximum(weight.sum(axis=1), 1e-300), np.nan)
    found: Floats = middle
    return found
