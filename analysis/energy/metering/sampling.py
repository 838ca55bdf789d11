"""What a sensor cannot have seen: how far the mean of the readings may be from the mean of the power.

Many sensors see a part of the time only (25 of 100 ms), and are read now and then. Two things follow.

Readings vary: their mean has a variance. Readings of a load with a period near the sensor's are like one another over
a beat, so what counts is the variance of long means (the long-run variance), not of single readings.

Readings do not vary though the load does: a load whose period is a multiple of the sensor's shows the same part of it
every time. Utilisation tells that something may hide there: where a kernel ran for the share u of the time, power was
that of work for u of the time, and what it is without work is known. A load is taken to stay locked like this for
`LOCKED_S` at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .readings import Floats

LOCKED_S = 60.0
"""How long a load is taken to stay locked to the sensor; after that its place in the sensor's period is another one."""
_BLOCK = 64  # readings whose variance is taken together
_SCALES_S = (0.4, 4.0)  # lengths of means whose differences are looked at
_CHI_MEDIAN = 0.4549  # median of a squared normal draw
_TWO_SIGMA = 1.96
_FULL = 0.99  # utilisation from which a load cannot hide work


@dataclass(frozen=True)
class Sensor:
    """What a power sensor sees: a new value every `period_s`, a mean over `window_s`."""

    window_s: float
    period_s: float


@dataclass(frozen=True)
class Unseen:
    """By interval between two readings, (n - 1,)."""

    rate_w2s: Floats
    """Variance of the energy per second."""
    locked_w: Floats
    """Standard deviation of the power while a load is locked to the sensor."""


def unseen(
    times_s: Floats, power_w: Floats, utilization: Floats, sensor: Sensor, *, floor_w: float, full_w: float
) -> Unseen:
    """What the sensor did not see of n readings at strictly increasing times; no value is missing but of utilisation.

    `floor_w` is what the GPU draws without work, `full_w` the most that work draws, as far as is known.
    """
    step = np.diff(times_s)
    usual = max(float(np.median(step)), sensor.period_s)
    if usual > 1.3 * float(np.median(step)):  # read more often than there are new values
        grid = np.arange(times_s[0], times_s[-1] + usual, usual)
        at = np.minimum(np.searchsorted(times_s, grid, "right") - 1, len(times_s) - 1)
        power_w, utilization = power_w[at], utilization[at]
        block_of = np.minimum(((times_s[:-1] - times_s[0]) / usual).astype(np.intp), len(at) - 1) // _BLOCK
    else:
        block_of = np.arange(len(step)) // _BLOCK
    long_run, level, spread2, share = _blocks(power_w, utilization, usual)
    blocks = len(level) - 1
    block_of = np.minimum(block_of, blocks)
    not_seen = np.clip(1.0 - sensor.window_s / np.maximum(step, usual), 0.0, 1.0)
    locked = _locked(level, spread2, share, floor_w, full_w)
    return Unseen(long_run[block_of] * np.maximum(step / usual, 1.0) * not_seen, locked[block_of] * np.sqrt(not_seen))


def _blocks(power: Floats, utilization: Floats, usual: float) -> tuple[Floats, Floats, Floats, Floats]:
    """By block of readings: long-run variance, W^2 s; mean and variance of the readings; mean utilisation."""
    n = len(power)
    size = min(_BLOCK, n)
    starts = np.minimum(np.arange(0, n, size), n - size)  # the last block overlaps the one before
    at = starts[:, None] + np.arange(size)
    inside = power[at]
    level, spread2 = inside.mean(axis=1), inside.var(axis=1)
    known = ~np.isnan(utilization[at])
    share = np.where(
        known.any(axis=1), np.where(known, utilization[at], 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1), np.nan
    )
    bend = np.diff(inside, 2, axis=1) if size > 2 else np.zeros((len(starts), 1))
    found = usual * (bend**2).mean(axis=1) / 6
    if size <= 2:
        found += usual * spread2
    upto = np.concatenate([np.zeros((len(starts), 1)), np.cumsum(inside, axis=1)], axis=1)
    for seconds in _SCALES_S:
        scale = min(round(seconds / usual), size // 3)
        if scale >= 2:
            means = (upto[:, scale:] - upto[:, :-scale]) / scale
            apart = means[:, scale:] - means[:, :-scale]
            found = np.maximum(found, scale * usual * np.median(apart**2, axis=1) / _CHI_MEDIAN / 2)
    return found * (1 + 4 / size), level, spread2, share


def _locked(level: Floats, spread2: Floats, share: Floats, floor_w: float, full_w: float) -> Floats:
    """By block, the standard deviation of what may hide, W."""
    share = np.where(np.isnan(share), 0.5, share)  # nothing tells how busy it was
    above = np.maximum(level - floor_w, 0.0)
    less = (1 - share) * above  # all that was seen is work
    more = np.maximum(share * (full_w - floor_w) - above, 0.0)  # all that was seen is the pause
    hidden = np.maximum(less, more) / _TWO_SIGMA
    hidden[(share <= 0) | (share >= _FULL)] = 0.0
    found: Floats = np.sqrt(np.maximum(hidden**2 - spread2, 0.0))
    return found
