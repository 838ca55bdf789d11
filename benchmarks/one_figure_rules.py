"""Rules that name GPUs from one level each, for `benchmarks/verdict_one_figure.py`: oracle, rival, rules of peers.

A rule takes (gpus,) deviations of log times from the fleet's median and the (gpus,) number of each GPU's node, and
returns (gpus,) whom it names.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from whorl.benchmarks.verdicts import RULES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
PEERS = ("5 % above the median", "Tukey's fence", "modified z above 3.5", "mean + 3 sd")
ORACLE_RATE, RIVAL_RATE = 0.03, 0.03
_MOST_P = 1e-3
_FROM = 2.0
"""Robust standard deviations under which the p-value is 1."""
_FREEDOM = np.array([2.5, 3, 4, 5, 7, 10, 20, 1000])
_SCALES = np.exp(np.linspace(-0.5, 0.5, 7))
_RATIOS = np.exp(np.array([-0.6, 0.0, 0.6]))
_FAULTY = np.array([0.002, 0.01, 0.03, 0.1])


def of_peers(deviations: Floats) -> dict[str, Bools]:
    """Whom the usual rules name."""
    return {name: np.asarray(RULES[name](np.exp(deviations))) for name in PEERS}


def of_oracle(deviations: Floats, healthy: Floats) -> Bools:
    """Whom an oracle names that knows the law of a healthy GPU: ascending draws `healthy`, without its node's effect.

    Beyond its cut lie 3 healthy GPUs in 100 fleets.
    """
    cut = float(healthy[int(len(healthy) * (1 - ORACLE_RATE / len(deviations)))])
    return np.asarray(deviations > cut)


def of_rival(deviations: Floats, node: Ints) -> Bools:
    """Whom a rival names that knows no law either: nodes that are far out as a whole are centred, then one Student's t
    is averaged over its degrees of freedom, two scales and a uniform share of faults; Benjamini and Hochberg's rule."""
    x = deviations - np.median(deviations)
    by_node = x.reshape(-1, np.bincount(node)[0])  # nodes are as large as each other, and in order
    middle = np.median(by_node, axis=1)
    between = 1.4826 * np.median(np.abs(middle - np.median(middle)))
    together = (np.sign(by_node) == np.sign(middle)[:, None]) & (np.abs(by_node) >= np.abs(middle)[:, None] / 2)
    shifted = together.all(axis=1) & (np.abs(middle) > 3 * between)
    x = (by_node - np.where(shifted, middle, 0.0)[:, None]).ravel()
    x -= np.median(x)
    scale = 1.4826 * float(np.median(np.abs(x)))
    unit, slow = np.abs(x) / scale, x >= 0
    anywhere = 0.5 / max(unit.max(), 20.0)
    far = unit > _FROM
    norm = np.exp(special.gammaln((_FREEDOM + 1) / 2) - special.gammaln(_FREEDOM / 2)) / np.sqrt(_FREEDOM * np.pi)
    log_weights, tails = [], []
    for ratio in _RATIOS:
        width = np.where(slow, np.sqrt(ratio), 1 / np.sqrt(ratio))
        both = np.sqrt(ratio) + 1 / np.sqrt(ratio)
        for size in _SCALES:
            at = unit[None, :] / (size * width)
            power = np.exp(np.log1p(at**2 / _FREEDOM[:, None]) * (-(_FREEDOM[:, None] + 1) / 2))
            density = norm[:, None] * power * 2 / (size * both)
            tails.append(2 * stats.t.sf(at[:, far], _FREEDOM[:, None]) * (width / both)[far])
            log_weights.append([np.log((1 - share) * density + share * anywhere).sum(axis=1) for share in _FAULTY])
    weights = special.softmax(np.array(log_weights).transpose(0, 2, 1) + np.log([0.4, 0.3, 0.2, 0.1])).sum(axis=2)
    p = np.ones(len(x))
    p[far] = np.minimum(1.0, 2 * np.einsum("gf,gfn->n", weights, np.array(tails)))
    return np.asarray((stats.false_discovery_control(p) <= RIVAL_RATE) & (p <= _MOST_P))
