"""The smallest effect that could have been named, from the comparisons that the judge made.

A GPU is imagined that lies in the middle of its peers, but for one workload in which all its sittings are slower. It
gets the chances that the judge would have given it, joined by the judge's rule over its looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..runs.sittings import Bools, Floats
from .compare import Compared
from .model import Look
from .verdict import Gap, Smallest

_GRID = np.linspace(np.log(0.001), np.log(1.5), 400)
"""Of the logarithm of an effect."""


def smallest(of: Sequence[Look], known: Bools, rate: float, most_p: float) -> Iterator[Smallest]:
    """One for each workload with times. `known`: (looks, gpus) which GPUs have which look; `rate`: the joined chance at
    which a GPU is named; `most_p`: the largest chance of one look that names."""
    times = {(one.model, one.workload): place for place, one in enumerate(of) if one.what == "time"}
    at_clock = {(one.model, one.workload): place for place, one in enumerate(of) if one.timed and one.what != "time"}
    for key, place in times.items():
        one, other = of[place], at_clock.get(key)
        here = known[place]
        looks = float(np.median(known[:, here].sum(axis=0)))
        sittings = int(np.median(one.levels.sittings[here]))
        alone = one.compared.single[here]
        why = Gap.ALONE if np.mean(alone) > 0.5 else None
        by_time = _chances(one.compared)
        either = by_time if other is None else np.minimum(by_time, _chances(of[other].compared))
        both = np.minimum(either, np.maximum(by_time, either) / 2)

        def least(p: Floats, joined: Floats, looks: float = looks, relevant: float = one.relevant) -> float | None:
            named = (joined * looks <= rate) & (p <= most_p) & (np.exp(_GRID) >= relevant)
            return 100 * float(np.expm1(np.exp(_GRID[np.argmax(named)]))) if named.any() else None

        pct = None if why else least(either, both)
        if pct is None:
            why = why or Gap.TOO_FEW_TO_NAME
        whatever = None if why else least(by_time, by_time)
        yield Smallest(one.workload, one.model, pct, whatever, int(here.sum()), sittings, why)


def _chances(of: Compared) -> Floats:
    """The chance at each effect of the grid."""
    return of.chances.of_the_middle(np.exp(_GRID))
