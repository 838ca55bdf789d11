"""What a reader of advice must know of the GPUs that were compared: sentences beside the finding."""

from __future__ import annotations

import numpy as np

from ..statistics.ordering import Ints
from .scores import Scores
from .tiers import tier
from .workload_scores import WorkloadScores

_SEVERAL = 0.15
"""Between the 5th and 95th percentile, as logarithms: GPUs of one model differ less."""


def say_compared(scores: Scores, one: WorkloadScores, bounded: bool, notes: list[str]) -> None:
    """Note what cannot be told by comparing these GPUs."""
    for number, reference in enumerate(one.references):
        if reference.nodes == 1 and reference.gpus > 1:
            host = {scores.nodes[gpu] for gpu in np.flatnonzero(one.reference == number)} - {None}
            notes.append(
                f"{reference} are compared only with each other: whether {host.pop()} is slow as a whole cannot be told"
            )
    level = np.log(one.raw[np.isfinite(one.raw)])
    if not bounded and one.references[0].model is None and np.ptp(np.quantile(level, (0.05, 0.95))) > _SEVERAL:
        notes.append(
            "the store does not name the model of these GPUs, and their times differ as those of several models may: "
            "then choose a partition (--partition), or import the models (`whorl import --map COLUMN=model`)"
        )


def say_homeless(scores: Scores, one: WorkloadScores, hard: float, soft: float, notes: list[str]) -> None:
    for gpu in np.flatnonzero(np.isfinite(one.belief) & np.array([node is None for node in scores.nodes])):
        found = tier(one, [int(gpu)], hard, soft)
        if found is not None and found[0] == "hard":
            takes = one.slow(one.belief)[gpu]
            notes.append(
                f"{scores.name(int(gpu))} is certainly slow ({takes:.2f} times the usual time), but its node "
                "is not known: find it"
            )


def say_doubtful(scores: Scores, one: WorkloadScores, usable: Ints, hard: float, soft: float, notes: list[str]) -> None:
    """Note the GPUs that may be hard and may be usual."""
    if not one.repeatable:
        return
    homeless = [gpu for gpu, node in enumerate(scores.nodes) if node is None]
    lower, upper = one.slow(one.lower), one.slow(one.upper)
    doubtful = (upper > hard) & (lower <= soft) & (one.runs > 1)
    may = [int(gpu) for gpu in np.union1d(usable, np.array(homeless, dtype=np.intp)) if doubtful[gpu]]
    may.sort(key=lambda gpu: -one.belief[gpu])
    if may:
        gpu = may[0]
        known = scores.nodes[gpu] is not None and scores.places[gpu].slot is None
        where = f" on {scores.nodes[gpu]}" if known else ""
        others = len(may) - 1
        more = f"; {others:,} other{' is' if others == 1 else 's are'} like it" if others else ""
        notes.append(
            f"the runs of {scores.name(gpu)}{where} disagree: it takes between {lower[gpu]:.2f} and "
            f"{upper[gpu]:.2f} times the usual time{more}; measure again"
        )
