"""Where the energy counter of a GPU can be trusted, and what it is where it cannot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .findings import Note, Problem
from .readings import Floats, Times, median

_JUMP = 1.5  # times the highest power that a counter may show
_CREEP = 0.3  # of the power: a counter that grows by less stands still
_SLACK_S = 0.3  # a counter is brought up to date now and then: so much of the power may come late or early
_WRAP_J = 2.0**32 / 1000  # a counter of 32 bits, mJ
_STALE_S = 10.0  # shorter standstills are not told of
_NOTES = 100  # of one kind and GPU at most; the rest is added up in the last one


@dataclass(frozen=True)
class Counted:
    """By interval between two readings, (n - 1,)."""

    trusted: NDArray[np.bool_]
    energy_j: Floats
    """By the counter where that is trusted; where it began anew, what it shows since (a bound from below); else 0."""


def counted(ts: Times, counter: Floats, by_power: Floats, sensed: NDArray[np.bool_], highest_w: float) -> tuple[
    Counted, list[Note]
]:  # fmt: skip
    """Judge a counter (n,), J, NaN where it was not read.

    `by_power` (n - 1,) is the energy of the integrated power, `sensed` whether that was measured there.
    """
    none = Counted(np.zeros(len(by_power), bool), np.zeros(len(by_power)))
    at = _anchors(counter)
    if len(at) < 2:
        return none, []
    value, when = counter[at], ts[at]
    grown, lasted = np.diff(value), np.diff(when) / 1e9
    upto = np.concatenate([[0.0], np.cumsum(by_power)])
    power = upto[at[1:]] - upto[at[:-1]]
    seen = np.concatenate([[0], np.cumsum(sensed)])
    whole = seen[at[1:]] - seen[at[:-1]] == at[1:] - at[:-1]
    wrapped = (grown < 0) & (value[1:] < _WRAP_J) & (value[:-1] < _WRAP_J) & (value[:-1] > _WRAP_J / 2)
    wrapped &= grown + _WRAP_J <= _JUMP * highest_w * (lasted + _SLACK_S)
    grown = np.where(wrapped, grown + _WRAP_J, grown)
    jumped = grown > _JUMP * highest_w * (lasted + _SLACK_S) + 1.0
    mean = np.divide(power, lasted)
    crept = (grown >= 0) & whole & (grown < _CREEP * mean * np.maximum(lasted - _SLACK_S, 0) - 1.0)
    good = (grown >= 0) & ~jumped & ~crept
    # Each reading's interval belongs to the anchors around it.
    anchor = np.zeros(len(ts), bool)
    anchor[at] = True
    inside = np.cumsum(anchor[:-1]) - 1
    between = (inside >= 0) & (inside < len(grown))
    place = np.minimum(np.maximum(inside, 0), len(grown) - 1)
    trusted = between & good[place]
    factor = np.divide(grown, power, out=np.zeros(len(grown)), where=power > 0)
    times = np.diff(ts) / 1e9
    energy = np.where(power[place] > 0, by_power * factor[place], grown[place] * times / lasted[place])
    since = np.zeros(len(by_power))
    reset = (grown < 0) & (value[1:] <= _JUMP * highest_w * (lasted + _SLACK_S))
    since[at[1:][reset] - 1] = value[1:][reset]
    notes: list[Note] = []
    stale = crept & (lasted > _STALE_S)
    for problem, which, joules in (
        (Problem.COUNTER_RESET, reset, -grown),
        (Problem.COUNTER_BACK, (grown < 0) & ~reset, -grown),
        (Problem.COUNTER_WRAP, wrapped, grown),
        (Problem.COUNTER_JUMP, jumped, grown),
        (Problem.COUNTER_STALE, stale, power - grown),
    ):
        if which.any():
            notes += some_notes(problem, when[:-1][which], when[1:][which], joules[which])
    still = int(ts[-1] - when[-1])  # it does not move any more
    if still > max(_STALE_S * 1e9, 3 * median(lasted) * 1e9) and by_power[at[-1] :].sum() > highest_w * 1.0:
        notes.append(Note(Problem.COUNTER_STALE, int(when[-1]), int(ts[-1]), float(by_power[at[-1] :].sum())))
    return Counted(trusted, np.where(trusted, energy, since)), notes


def some_notes(problem: Problem, began: Times, ended: Times, joules: Floats) -> list[Note]:
    """One note each, but not more than `_NOTES`: the last stands for all others."""
    notes = [
        Note(problem, int(a), int(b), float(j))
        for a, b, j in zip(began[:_NOTES], ended[:_NOTES], joules[:_NOTES], strict=True)
    ]
    if len(began) > _NOTES:
        rest = float(joules[_NOTES - 1 :].sum())
        notes[-1] = Note(problem, int(began[_NOTES - 1]), int(ended[-1]), rest, n=len(began) - _NOTES + 1)
    return notes


def _anchors(counter: Floats) -> NDArray[np.intp]:
    """The readings at which the counter had moved, without values that one reading alone has."""
    at = np.flatnonzero(~np.isnan(counter))
    if len(at) < 2:
        return at
    value = counter[at]
    if len(at) > 2:
        before, here, after = value[:-2], value[1:-1], value[2:]
        odd = (after >= before) & ((here < before) | (here > after))
        odd[1:] &= ~odd[:-1]
        at = at[np.concatenate([[True], ~odd, [True]])]
        value = counter[at]
    moved: NDArray[np.intp] = at[np.concatenate([[True], np.diff(value) != 0])]
    return moved
