"""Which kinds of a workload's runs are meant: those of each model of GPU, or those of the one asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import InputError
from ...store.names import find_workload
from .scores import Scores


def kinds_of(scores: Scores, work: str, kinds: Sequence[str], model: str | None = None) -> list[str]:
    """Of the `kinds` of `work` those with scores and, where `model` is given, of that model: its name or a part of it.

    Raises `InputError` for a model that no GPU has, and for kinds that share GPUs (they differ in power limit or
    clock): of those one must be chosen.
    """
    there = [kind for kind in kinds if kind in scores.of]
    if not there:
        scores.one(kinds[0])
    if model is not None:
        there = _of_model(scores, work, there, model)
    measured = np.array([scores.of[kind].runs > 0 for kind in there])
    if (measured.sum(axis=0) > 1).any():
        find_workload(work, there)
    return there


def _of_model(scores: Scores, work: str, kinds: Sequence[str], model: str) -> list[str]:
    models = {kind: scores.of[kind].references[0].model for kind in kinds}
    named = sorted({name for name in models.values() if name is not None})
    if not named:
        raise InputError(
            f"the store does not name the model of any GPU that was measured in {work}: leave out --model, or import "
            "the models (`whorl import --map COLUMN=model`)"
        )
    said = model.strip().lower()
    exact = [name for name in named if name.lower() == said]
    fits = exact or [name for name in named if said and said in name.lower()]
    if not fits:
        raise InputError(f"no GPU of model {model!r} was measured in {work}; there are {', '.join(named)}")
    return [kind for kind in kinds if models[kind] in fits]
