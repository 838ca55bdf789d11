"""What a sensor cannot have seen: how far the mean of the readings may be from the mean of the power.

See `store.unseen`. Readings of a load with a period near the sensor's are like one another over a beat, so what counts
is the variance of long means (the long-run variance), not of single readings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....store.unseen import Sensor, beats, hidden_w2, partly
from .readings import Flags, Floats, Groups, Ints

_BLOCK = 64  # readings whose variance is taken together
_AROUND = 16  # readings before and after that tell whether readings vary
_LIKE = 4  # of them at least
_OF_RANGE = 1 / 8  # variance over range squared: between that of two levels (1/4) and of an even spread (1/12)
_TELLS_S = 1.0  # utilisation tells of up to so much time before it was read
_HARDLY = 0.03  # utilisation up to which hardly anything runs: a driver that is read causes some


def unseen(
    groups: Groups,
    times_s: Floats,
    step_s: Floats,
    read_every: Floats,
    power_w: Floats,
    utilization: Floats,
    sensors: Sequence[Sensor],
    floor_w: Floats,
    full_w: Floats,
    spread_w: Floats | None = None,
    every_s: Floats | None = None,
) -> list[Floats | None]:
    """The `SUMS` in the interval after each reading, (n,); None where all are 0. No value is missing but of
    utilisation.

    `times_s` is from the first reading of each GPU, `read_every` its median step. `spread_w` and `every_s` are of
    means: the range of what they are of, and how far apart it was read. `floor_w` is what a GPU draws without work,
    `full_w` the most that work draws, as far as is known. What is no array of readings is by GPU.
    """
    period, window = (np.array([getattr(one, name) for one in sensors]) for name in ("period_s", "window_s"))
    usual = np.maximum(read_every, period)
    locked = _locked(groups, power_w, utilization, floor_w, full_w, np.rint(_AROUND * usual / read_every))
    inside = None
    if spread_w is not None and every_s is not None:
        within = np.nan_to_num(spread_w) ** 2 * _OF_RANGE
        inside = np.zeros(len(step_s))
        inside[:-1] = (within * np.nan_to_num(every_s))[1:]
        locked = None if locked is None else np.maximum(locked - within, 0.0)
    quiet = _quiet(groups, utilization, read_every)
    asleep = quiet & (step_s <= _TELLS_S)
    asleep[:-1] &= quiet[1:]
    seen, values, still = groups, power_w, quiet
    often = np.flatnonzero(usual > 1.3 * read_every)
    if len(often):  # read more often than there are new values
        at = [np.arange(began, ended) for began, ended in groups.spans]
        for gpu in often.tolist():
            began, ended = groups.spans[gpu]
            own = times_s[began:ended]
            grid = np.arange(own[0], own[-1] + usual[gpu], usual[gpu])
            at[gpu] = began + np.minimum(np.searchsorted(own, grid, "right") - 1, len(own) - 1)
        seen, shown = Groups.of_sizes(np.array([len(one) for one in at])), np.concatenate(at)
        values, still = power_w[shown], quiet[shown]
    numbers = -(-seen.sizes // _BLOCK)
    rate, beat, ahead = _in_blocks(groups, numbers, _blocks(seen, numbers, values, usual), usual, often, times_s)
    number, calm = _calm(seen, values, still)
    if (number >= _LIKE).any():  # readings beside work say nothing of the time without it
        asleep &= groups.each(number >= _LIKE)
        rate = np.where(asleep, groups.each(usual * calm / 6), rate)
        beat, ahead = (None if one is None else np.where(asleep, 0.0, one) for one in (beat, ahead))
    every = groups.each(usual)
    longest = np.maximum(step_s, every)
    rate *= longest / every
    if inside is not None:
        rate = np.maximum(rate, inside)
    if locked is not None:
        locked[:-1] += locked[1:]
        locked /= 2
    not_seen = np.clip(1.0 - groups.each(window) / longest, 0.0, 1.0) * step_s
    return [None if one is None else one * not_seen for one in (rate, beat, ahead, locked)]


def _in_blocks(
    groups: Groups, numbers: Ints, rates: Sequence[Floats], usual: Floats, often: Ints, times_s: Floats
) -> tuple[Floats, Floats | None, Floats | None]:
    """By interval, the values of the block that it is in; None where all are 0.

    A block is of `_BLOCK` readings, and where a GPU is read more `often` than its sensor has values, of as many values.
    """
    before = np.cumsum(numbers) - numbers
    lengths = np.full(int(numbers.sum()), _BLOCK)
    lengths[before + numbers - 1] = groups.sizes - _BLOCK * (numbers - 1)
    for gpu in often.tolist():
        began, ended = groups.spans[gpu]
        own = times_s[began:ended]
        block = np.minimum(((own - own[0]) / usual[gpu]).astype(np.int64) // _BLOCK, numbers[gpu] - 1)
        lengths[before[gpu] : before[gpu] + numbers[gpu]] = np.bincount(block, minlength=numbers[gpu])
    rate, beat, ahead = (np.repeat(one, lengths) if one.any() else None for one in rates)
    return np.zeros(len(times_s)) if rate is None else rate, beat, ahead


def _quiet(groups: Groups, utilization: Floats, read_every: Floats) -> Flags:
    """By reading, whether hardly any kernel ran then, shortly before and after."""
    around = np.maximum(1, np.ceil(_TELLS_S / np.maximum(read_every, 1e-3))).astype(np.int64)
    busy = ~(utilization <= _HARDLY)
    before, after = np.zeros(len(busy), bool), np.zeros(len(busy), bool)
    before[1:], after[:-1] = busy[:-1], busy[1:]
    before[groups.firsts] = after[groups.lasts] = False
    first, last = np.flatnonzero(busy & ~before), np.flatnonzero(busy & ~after)
    of = np.searchsorted(groups.begins, first, "right") - 1
    began = np.maximum(first - around[of], groups.begins[of])
    ended = np.minimum(last + 1 + around[of], groups.begins[of + 1])
    n = len(busy) + 1
    near = np.cumsum(np.bincount(began, minlength=n) - np.bincount(ended, minlength=n))
    found: Flags = near[:-1] == 0
    return found


def _blocks(groups: Groups, numbers: Ints, power: Floats, usual: Floats) -> tuple[Floats, Floats, Floats]:
    """By block of readings: variance of the energy per second; variance of power and of energy of beats.

    `numbers` says how many blocks each GPU has.
    """
    of = np.repeat(np.arange(len(groups)), numbers)
    sizes = np.minimum(_BLOCK, groups.sizes)[of]
    within = np.arange(len(of)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    # The last block of a GPU overlaps the one before.
    starts = groups.firsts[of] + np.minimum(within * sizes, groups.sizes[of] - sizes)
    rate, spread2, crossings = np.empty(len(of)), np.empty(len(of)), np.empty(len(of), np.int64)
    for size in np.unique(sizes).tolist():
        mine = np.flatnonzero(sizes == size)
        inside = power[starts[mine, None] + np.arange(size)]
        apart = inside - inside.mean(axis=1)[:, None]
        spread2[mine] = np.einsum("ij,ij->i", apart, apart) / size
        above = apart > 0
        crossings[mine] = np.count_nonzero(above[:, 1:] != above[:, :-1], axis=1)
        if size > 2:
            bend = np.diff(inside, 2, axis=1)
            rate[mine] = usual[of[mine]] * np.einsum("ij,ij->i", bend, bend) / (size - 2) / 6
        else:
            rate[mine] = usual[of[mine]] * spread2[mine]
    return rate * (1 + 4 / sizes), *beats(spread2, crossings, sizes * usual[of])


def _calm(groups: Groups, power: Floats, quiet: Flags) -> tuple[Ints, Floats]:
    """By GPU: how many readings are quiet as those beside them are, and the mean square of how power bends there."""
    still = np.zeros(len(power), bool)
    still[1:-1] = quiet[2:] & quiet[1:-1] & quiet[:-2]
    still[groups.firsts] = still[groups.lasts] = False
    at = np.flatnonzero(still)
    bend = (power[at + 1] - power[at]) - (power[at] - power[at - 1])
    of = np.searchsorted(groups.begins, at, "right") - 1
    number = np.bincount(of, minlength=len(groups))
    found: Floats = np.bincount(of, bend**2, minlength=len(groups)) / np.maximum(number, 1)
    return number, found


def _locked(
    groups: Groups, power: Floats, utilization: Floats, floor_w: Floats, full_w: Floats, around: Floats
) -> Floats | None:
    """By reading, the variance of what may hide, W^2; None where nothing may.

    `around` readings before and after tell whether readings like this one vary: then nothing is locked.
    """
    share = np.where(np.isnan(utilization), 0.5, utilization)  # nothing tells how busy it was
    partial = partly(share)
    if not partial.any():
        return None
    one = partial.astype(np.float64)
    floor, reach = groups.each(floor_w), np.repeat(around.astype(np.int64), groups.sizes)
    here = np.arange(len(power))
    first = np.maximum(here - reach, np.repeat(groups.firsts, groups.sizes))
    last = np.minimum(here + reach, np.repeat(groups.lasts, groups.sizes))
    above = np.maximum(power - floor, 0.0)
    n, total, square = (_between(groups, of, first, last) for of in (one, one * above, one * above**2))
    n = np.maximum(n, 1)
    spread2 = np.where(n >= _LIKE, square / n - (total / n) ** 2, 0.0)
    found: Floats = np.maximum(hidden_w2(power, share, floor, groups.each(full_w)) - np.maximum(spread2, 0.0), 0.0)
    return found


def _between(groups: Groups, values: Floats, first: Ints, last: Ints) -> Floats:
    """The sums of the values from `first` to `last` of a GPU, both included."""
    upto = values.copy()
    groups.cumulate(upto)
    return upto[last] - upto[first] + values[first]
