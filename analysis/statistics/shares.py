"""The shares of the variance by cabinet, node, GPU and run.

Nested random effects, x = mean + cabinet + node + GPU + run, with unequal numbers at every level. Components by
the analysis of variance with exact expected sums of squares (C. R. Henderson, Biometrics 9, 1953, method 1;
S. R. Searle, G. Casella and C. E. McCulloch, Variance Components, 1992, chapter 5): for the uncorrected sum of
squares T_a of the totals of level a,

    E[T_a] = N mean² + sum over levels b of c_ab var_b + k_a var_run

where k_a is the number of groups of level a, and c_ab = N if b is a or coarser, else the sum over the groups B
of level b of n_B² / n_A(B). The system is triangular. Estimates below zero become zero, the others are rescaled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .ordering import Floats, Ints
from .repeatability import Moments

LEVELS = ("cabinet", "node", "gpu", "run")
_LEVEL_NAMES = {level: level.replace("gpu", "GPU") for level in LEVELS}


@dataclass(frozen=True)
class Shares:
    """The share of the variance at each level, 0 to 1, over the `n` runs of `gpus` GPUs whose place is known.

    A level that cannot be computed is None, with its reason in `reasons`; the others then sum to 1.
    """

    share: dict[str, float | None]
    n: int
    gpus: int
    reasons: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON: cabinet, node, gpu, run, n, gpus, and reasons where a share is null."""
        found: dict[str, Any] = {**self.share, "n": self.n, "gpus": self.gpus}
        return {**found, "reasons": self.reasons} if self.reasons else found


def shares(moments: Moments, cabinet: Ints | None, node: Ints | None) -> Shares:
    """The shares of variance. `moments`: one entry a GPU; `cabinet`, `node`: each GPU's place as a number, or
    None where the data have no such level. A node's number belongs to one cabinet only.
    """
    size, gpus = moments.size, len(moments.size)
    n = int(size.sum())
    reasons: dict[str, str] = {}
    levels: list[tuple[str, Ints]] = []  # finest first
    finer, finer_count = "run", n
    for name, group in (("gpu", np.arange(gpus)), ("node", node), ("cabinet", cabinet)):
        if group is None:
            reasons[name] = f"no {_LEVEL_NAMES[name]} is known"
            continue
        count = len(np.unique(group))
        if count < 2:
            reasons[name] = f"there is one {_LEVEL_NAMES[name]}" if count else f"no {_LEVEL_NAMES[name]} is known"
        elif count == finer_count:
            reasons[name] = f"each {_LEVEL_NAMES[name]} has one {_LEVEL_NAMES[finer]}, so the two cannot be separated"
        else:
            levels.append((name, group))
            finer, finer_count = name, count
    share: dict[str, float | None] = dict.fromkeys(LEVELS)
    if n < 2 or not levels:
        reasons["run"] = "there is no level above the run"
        return Shares(share, n, gpus, reasons)
    variances = _components(moments, [group for _, group in levels])
    kept = np.maximum(variances, 0.0)
    if not kept.sum() > 1e-24 * float(np.average(moments.mean, weights=size)) ** 2:
        return Shares(share, n, gpus, {**reasons, **dict.fromkeys(LEVELS, "every value is the same")})
    share.update(zip(("run", *(name for name, _ in levels)), (kept / kept.sum()).tolist(), strict=True))
    return Shares(share, n, gpus, reasons)


def _components(moments: Moments, groups: list[Ints]) -> Floats:
    """The variance of the run and of each level (finest first; the first may be coarser than the GPU)."""
    size = moments.size
    n = float(size.sum())
    centre = float(np.average(moments.mean, weights=size))
    total = size * (moments.mean - centre)  # of each GPU
    labels: list[npt.NDArray[np.intp]] = [np.unique(group, return_inverse=True)[1] for group in groups]
    labels.append(np.zeros(len(size), dtype=np.intp))  # the whole, coarsest
    sizes = [np.bincount(label, weights=size) for label in labels]
    sums = [float((np.bincount(label, weights=total) ** 2 / s).sum()) for label, s in zip(labels, sizes, strict=True)]
    # Levels are numbered 1.. from the finest, run is 0; row a of `c` holds E[T_a] without N mean².
    count = len(labels)
    c = np.full((count + 1, count), n)
    for a in range(1, count + 1):
        c[a, 0] = len(sizes[a - 1])
        for b in range(1, a):
            parent = np.zeros(len(sizes[b - 1]), dtype=np.intp)
            parent[labels[b - 1]] = labels[a - 1]
            c[a, b] = float((sizes[b - 1] ** 2 / sizes[a - 1][parent]).sum())
    within = float(moments.squares.sum() + (total * total / size).sum())
    t = np.array([within, *sums])
    return np.linalg.solve(c[:-1] - c[1:], t[:-1] - t[1:])
