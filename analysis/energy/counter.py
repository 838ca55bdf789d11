"""Where the energy counters of GPUs can be trusted, and what they are where they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .series import Flags, Floats, Groups, Ints, Note, Problem, Times, median

_JUMP = 1.5  # times the highest power that a counter may show
_CREEP = 0.3  # of the power: a counter that grows by less stands still
_SLACK_S = 0.3  # a counter is brought up to date now and then: so much of the power may come late or early
_WRAP_J = 2.0**32 / 1000  # a counter of 32 bits, mJ
_STALE_S = 10.0  # shorter standstills are not told of
_NOTES = 100  # of one kind and GPU at most; the rest is added up in the last one


@dataclass(frozen=True)
class Counted:
    """By reading: of the interval from it to the next of its GPU, (n,); after the last there is none."""

    trusted: Flags
    energy_j: Floats
    """By the counter where that is trusted; where it began anew, what it shows since (a bound from below); else 0."""


def counted(
    groups: Groups, ts: Times, counter: Floats, by_power: Floats, sensed: Flags, highest_w: Floats,
    notes: Sequence[list[Note]],
) -> Counted:  # fmt: skip
    """Judge the counters (n,), J, NaN where they were not read; adds to the `notes` of each GPU.

    `by_power` (n,) is the energy of the integrated power of the interval after each reading, `sensed` whether that was
    measured there; `highest_w` is by GPU.
    """
    at, own = _anchors(groups, counter)
    if not (own.sizes > 1).any():
        return Counted(np.zeros(len(ts), bool), np.zeros(len(ts)))
    every = len(at) == len(ts)
    value, when = (counter, ts) if every else (counter[at], ts[at])
    power = by_power if every else np.add.reduceat(by_power, at)
    whole = sensed if every else np.logical_and.reduceat(sensed, at)
    # By anchor: of the time to the next of its GPU. After the last there is none.
    there = np.ones(len(at), bool)
    there[own.lasts] = False
    grown, lasted = own.steps(value), own.steps(when) / 1e9
    lasted[~there] = 1.0
    most = _JUMP * own.each(highest_w) * (lasted + _SLACK_S)
    fell = grown < 0
    wrapped = reset = np.zeros(len(at), bool)
    if fell.any():
        to = np.append(value[1:], 0.0)
        wrapped = fell & (to < _WRAP_J) & (value < _WRAP_J) & (value > _WRAP_J / 2) & (grown + _WRAP_J <= most)
        grown = np.where(wrapped, grown + _WRAP_J, grown)
        fell = grown < 0
        reset = fell & (to <= most)
    jumped = grown > most + 1.0
    crept = grown < _CREEP * (power / lasted) * np.maximum(lasted - _SLACK_S, 0) - 1.0
    crept &= whole & there & ~fell
    good = there & ~(fell | jumped | crept)
    # Each reading's interval belongs to the anchors around it.
    trusted, energy = good, grown
    if not every:
        trusted, energy = np.zeros(len(ts), bool), np.zeros(len(ts))
        after = slice(int(at[0]), None)
        place = np.repeat(np.arange(len(at)), np.diff(at, append=len(ts)))
        trusted[after] = good[place]
        factor = grown / np.where(power > 0, power, 1.0)
        energy[after] = by_power[after] * factor[place]
        level = ~(power > 0)
        if level.any():
            times = groups.steps(ts)[after] / 1e9
            energy[after] = np.where(level[place], grown[place] * times / lasted[place], energy[after])
    if not good.all():
        energy = np.where(trusted, energy, 0.0)
    following = np.append(at[1:], at[-1])
    if reset.any():
        energy[following[reset] - 1] = value[1:][reset[:-1]]
    stale = crept & (lasted > _STALE_S)
    for problem, which in (
        (Problem.COUNTER_RESET, reset),
        (Problem.COUNTER_BACK, fell & ~reset),
        (Problem.COUNTER_WRAP, wrapped),
        (Problem.COUNTER_JUMP, jumped),
        (Problem.COUNTER_STALE, stale),
    ):
        for gpu, found in own.found(which):
            joules = grown[found] if problem in (Problem.COUNTER_WRAP, Problem.COUNTER_JUMP) else -grown[found]
            joules = joules + power[found] if problem is Problem.COUNTER_STALE else joules
            notes[gpu] += some_notes(problem, when[found], ts[following[found]], joules)
    some = np.flatnonzero(own.sizes > 1)
    final = at[own.lasts[some]]
    still = ts[groups.lasts[some]] - ts[final]  # it does not move any more
    for one in np.flatnonzero(still > _STALE_S * 1e9).tolist():
        gpu, last = int(some[one]), int(final[one])
        (began, ended), end = own.spans[gpu], int(groups.lasts[gpu])
        missed, usual = float(by_power[last:end].sum()), median(lasted[began : ended - 1])
        if still[one] > 3 * usual * 1e9 and missed > highest_w[gpu] * 1.0:
            notes[gpu].append(Note(Problem.COUNTER_STALE, int(ts[last]), int(ts[end]), missed))
    return Counted(trusted, energy)


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


def _anchors(groups: Groups, counter: Floats) -> tuple[Ints, Groups]:
    """The readings at which the counter of a GPU had moved, without values that one reading alone has; by GPU."""
    at = np.flatnonzero(~np.isnan(counter))
    own = Groups(np.searchsorted(at, groups.begins))
    value = counter[at]
    if len(at) > 2:
        before, here, after = value[:-2], value[1:-1], value[2:]
        odd = np.zeros(len(at), bool)
        odd[1:-1] = (after >= before) & ((here < before) | (here > after))
        odd[own.some_firsts] = odd[own.lasts] = False
        odd[1:] &= ~odd[:-1]
        if odd.any():
            at = at[~odd]
            own, value = Groups(np.searchsorted(at, groups.begins)), counter[at]
    moved = np.ones(len(at), bool)
    np.not_equal(value[1:], value[:-1], out=moved[1:])
    moved[own.some_firsts] = True
    if not moved.all():
        at = at[moved]
        own = Groups(np.searchsorted(at, groups.begins))
    return at, own
