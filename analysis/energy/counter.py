"""Which parts of an energy counter can be believed, and what it counted there.

    counter  ──┐ reset      it fell to almost nothing: the driver was loaded again
    4294 kJ  ──┐ wrap       it fell from near its 32 bits: counted across
      grows too fast        a jump: more than one and a half times what the GPU can draw
      grows too slowly      stale: less than a third of the integrated power

Between the readings at which it moved (anchors), the power says how its energy is spread over time. A single odd value
is left out. Where it cannot be believed, the integrated power stands in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .series import Flags, Floats, Groups, Ints, Note, Problem, Times, median, notes_of

_JUMP = 1.5  # times the highest power that a counter may show
_CREEP = 0.3  # of the power: a counter that grows by less stands still
_SLACK_S = 0.3  # a counter is brought up to date now and then: so much of the power may come late or early
_WRAP_J = 2.0**32 / 1000  # a counter of 32 bits, mJ
_STALE_S = 10.0  # shorter standstills are not told of


def counted(
    groups: Groups, ts: Times, counter: Floats, *, by_power: Floats, sensed: Flags, highest_w: Floats,
    notes: Sequence[list[Note]],
) -> tuple[Flags, Floats]:  # fmt: skip
    """By interval after each reading, (n,): whether the counter is believed, and what it counted, J.

    `counter` is in J, NaN where it was not read; `by_power` (n,) is the energy of the integrated power in the interval,
    `sensed` whether that was measured there; `highest_w` (g,) is what a GPU can draw. Where a counter is not believed,
    its energy is 0, and where it began anew what it shows since: a bound from below. Adds to the `notes` of each GPU.
    """
    at, anchored = _anchors(groups, counter)
    trusted, energy = np.zeros(len(ts), bool), np.zeros(len(ts))
    if not anchored.sizes.any():
        return trusted, energy
    value, anchor_ns, power = counter[at], ts[at], np.add.reduceat(by_power, at)
    # By anchor: of the time to the next of its GPU. After the last there is none.
    has_next = np.ones(len(at), bool)
    has_next[anchored.lasts[anchored.sizes > 0]] = False
    grown, lasted = np.diff(value, append=0.0), np.diff(anchor_ns, append=0) / 1e9
    grown[~has_next], lasted[~has_next] = 0.0, 1.0
    most = _JUMP * np.repeat(highest_w, anchored.sizes) * (lasted + _SLACK_S)
    following = np.append(value[1:], 0.0)
    wrapped = (grown < 0) & (following < _WRAP_J) & (value < _WRAP_J) & (value > _WRAP_J / 2)
    wrapped &= grown + _WRAP_J <= most
    grown = np.where(wrapped, grown + _WRAP_J, grown)
    fell = grown < 0
    reset = fell & (following <= most)
    jumped = grown > most + 1.0
    crept = grown < _CREEP * (power / lasted) * np.maximum(lasted - _SLACK_S, 0) - 1.0
    crept &= np.logical_and.reduceat(sensed, at) & has_next & ~fell
    good = has_next & ~(fell | jumped | crept)
    # Each reading's interval belongs to the anchors around it: its part of their energy is that of the power.
    after = slice(int(at[0]), None)
    place = np.repeat(np.arange(len(at)), np.diff(at, append=len(ts)))
    trusted[after] = good[place]
    step = groups.steps(ts)[after] / 1e9
    level = ~(power > 0)[place]
    spread = np.where(level, step / lasted[place], by_power[after] / np.where(level, 1.0, power[place]))
    energy[after] = np.where(trusted[after], grown[place] * spread, 0.0)
    next_at = np.append(at[1:], at[-1])
    energy[next_at[reset] - 1] = following[reset]
    for problem, flags in (
        (Problem.COUNTER_RESET, reset),
        (Problem.COUNTER_BACK, fell & ~reset),
        (Problem.COUNTER_WRAP, wrapped),
        (Problem.COUNTER_JUMP, jumped),
        (Problem.COUNTER_STALE, crept & (lasted > _STALE_S)),
    ):
        for gpu, rows in anchored.places(flags):
            joules = grown[rows] if problem in (Problem.COUNTER_WRAP, Problem.COUNTER_JUMP) else -grown[rows]
            joules = joules + power[rows] if problem is Problem.COUNTER_STALE else joules
            notes[gpu] += notes_of(problem, anchor_ns[rows], ts[next_at[rows]], joules)
    for gpu in np.flatnonzero(anchored.sizes).tolist():
        first, end = anchored.spans[gpu]
        final, last = int(at[end - 1]), int(groups.lasts[gpu])
        still_s, missing_j = (ts[last] - ts[final]) / 1e9, float(by_power[final:last].sum())
        usual_s = median(lasted[first : end - 1]) if end - first > 1 else 0.0  # it never moved
        is_read = end - first > 1 or not np.isnan(counter[last])
        if is_read and still_s > max(_STALE_S, 3 * usual_s) and missing_j > highest_w[gpu]:
            notes[gpu].append(Note(Problem.COUNTER_STALE, int(ts[final]), int(ts[last]), missing_j))
    return trusted, energy


def _anchors(groups: Groups, counter: Floats) -> tuple[Ints, Groups]:
    """The readings at which the counter of a GPU had moved, without values that one reading alone has; by GPU."""
    at = np.flatnonzero(~np.isnan(counter))
    anchored = Groups(np.searchsorted(at, groups.begins))
    has_anchors = anchored.sizes > 0
    if len(at) > 2:
        anchor_j = counter[at]
        before, here, after = anchor_j[:-2], anchor_j[1:-1], anchor_j[2:]
        odd = np.zeros(len(at), bool)
        odd[1:-1] = (after >= before) & ((here < before) | (here > after))
        odd[anchored.firsts[has_anchors]] = odd[anchored.lasts[has_anchors]] = False
        odd[1:] &= ~odd[:-1]
        at = at[~odd]
        anchored = Groups(np.searchsorted(at, groups.begins))
    moved = np.ones(len(at), bool)
    moved[1:] = counter[at[1:]] != counter[at[:-1]]
    moved[anchored.firsts[anchored.sizes > 0]] = True
    at = at[moved]
    return at, Groups(np.searchsorted(at, groups.begins))
