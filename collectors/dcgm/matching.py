"""Which sample belongs to which row: those of one cycle of the engine, field by field, for one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...store.metrics import METRICS, ROW, Stamp
from ..backends import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .reading import Samples

_NUMBER = len(METRICS)
# A reading with the sensor's own time: it stands until there is a new one, which may be several rows.
_SENSOR = ROW["power_instant_mw"]
_SENSOR_US = 250_000  # at most so long
_POWER = (_SENSOR, ROW["power_mw"])
_AGE = ROW["power_age_us"]
assert isinstance(METRICS[_AGE].nvml, Stamp)
_SLOW = np.array([metric.tier == "slow" for metric in METRICS])
_SLOW_REACH_US = 1_500_000
# Means over the time since the sample before: several in one row are averaged.
_MEANS = np.array([m.dcgm is not None and m.dcgm.profiling for m in METRICS])


class Offsets:
    """How far from the stamp of a row each field of a GPU usually is, us.

    An engine that asks slowly samples some fields at the other end of its cycle, half an interval away and more. By
    the nearest stamp alone they would fall now into one row, now into the next.
    """

    def __init__(self) -> None:
        self._us: NDArray[np.int64] = np.zeros(_NUMBER, np.int64)

    def removed(self, own: Samples) -> NDArray[np.int64]:
        """The times of samples without it."""
        return own.ts - self._us[own.row]

    def learn(self, rows: NDArray[np.intp], off_us: NDArray[np.int64]) -> None:
        """Take in by how much samples of these rows of METRICS were off nevertheless."""
        count = np.bincount(rows, minlength=_NUMBER)
        mean = np.bincount(rows, off_us.astype(np.float64), minlength=_NUMBER) / np.maximum(count, 1)
        mean[_SLOW] = mean[_SENSOR] = 0
        self._us += np.rint(mean / 2).astype(np.int64)


def reach(own: Samples, interval_us: int) -> NDArray[np.int64]:
    """How far from its row each sample may lie; what is sampled slowly may come with the next poll only."""
    return np.where(_SLOW[own.row], max(interval_us, _SLOW_REACH_US), interval_us)


def cells(
    own: Samples, ts: NDArray[np.int64], anchors: NDArray[np.int64], interval_us: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The row to which each sample belongs, the nearest one; and whether it is near enough to belong to any.

    `ts` are the times of the samples in the engine's cycle: see `Offsets`.
    """
    right = np.minimum(np.searchsorted(anchors, ts), len(anchors) - 1)
    left = np.maximum(right - 1, 0)
    cell = np.where(ts - anchors[left] <= anchors[right] - ts, left, right)
    used = np.abs(ts - anchors[cell]) <= reach(own, interval_us)
    # What is nearer to a row that is still to come waits for it.
    used &= ts <= anchors[-1] + max(interval_us, int(np.diff(anchors[-2:]).sum())) // 2
    _move_over(own, cell, used, len(anchors))
    return cell, used


def _move_over(own: Samples, cell: NDArray[np.intp], used: NDArray[np.bool_], number: int) -> None:
    """Where two samples of a field are nearest to one row, and the row beside has none, it gets one of them."""
    key = own.row * number + cell
    twice = np.flatnonzero(used[1:] & used[:-1] & (key[1:] == key[:-1]) & ~_MEANS[own.row[1:]])
    if not len(twice) or len(twice) > number:  # sampled far faster than the rows
        return
    taken = set(key[used].tolist())
    for first in twice.tolist():
        row, at = int(own.row[first]) * number, int(cell[first])
        if at > 0 and row + at - 1 not in taken:
            cell[first] = at - 1
            taken.add(row + at - 1)
        elif at + 1 < number and row + at + 1 not in taken:
            cell[first + 1] = at + 1
            taken.add(row + at + 1)


def chosen(
    own: Samples,
    ts: NDArray[np.int64],
    cell: NDArray[np.intp],
    mine: NDArray[np.bool_],
    anchors: NDArray[np.int64],
    *,
    nearest: bool,
) -> NDArray[np.intp]:
    """One sample of each field in each row, one with a value if there is one; positions.

    Of several it is the nearest. In the last row, unless `nearest`, it is the first: what follows may be of a row that
    is not there yet. Of means it is the last, as all of them count.
    """
    at = np.flatnonzero(mine)
    key = own.row[at] * len(anchors) + cell[at]
    if len(key) < 2 or (key[1:] != key[:-1]).all():
        return at
    order_in_row = np.abs(ts[at] - anchors[cell[at]])
    if not nearest:
        order_in_row = np.where(cell[at] == len(anchors) - 1, ts[at], order_in_row)
    order_in_row = np.where(_MEANS[own.row[at]], -ts[at], order_in_row)
    order = np.lexsort((order_in_row, own.status[at] != Status.OK, key))
    at, key = at[order], key[order]
    first = np.ones(len(at), bool)
    first[1:] = key[1:] != key[:-1]
    return at[first]


def further_rows(own: Samples, interval_us: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Rows of samples that belong to none: an engine that was held up may sample twice for one row.

    Their times (us), values and statuses.
    """
    order = np.argsort(own.ts, kind="stable").tolist()
    groups: list[list[int]] = []
    for at in order:
        group = groups[-1] if groups else []
        rows = {int(own.row[one]) for one in group}
        if not group or int(own.row[at]) in rows or own.ts[at] - own.ts[group[0]] > interval_us // 4:
            group = []
            groups.append(group)
        group.append(at)
    values = np.zeros((_NUMBER, len(groups)), np.int64)
    status = np.full((_NUMBER, len(groups)), Status.UNREAD, np.uint8)
    for number, group in enumerate(groups):
        values[own.row[group], number], status[own.row[group], number] = own.value[group], own.status[group]
    return np.array([own.ts[group[0]] for group in groups], np.int64), values, status


def average(
    own: Samples,
    cell: NDArray[np.intp],
    mine: NDArray[np.bool_],
    values: NDArray[np.int64],
) -> None:
    """Means over the engine's interval, where it is shorter than ours, as a mean of them."""
    which = np.flatnonzero(mine & _MEANS[own.row] & (own.status == Status.OK))
    if not len(which):
        return
    number = values.shape[1]
    key = own.row[which] * number + cell[which]
    count = np.bincount(key, minlength=_NUMBER * number)
    several = np.flatnonzero(count > 1)
    if len(several):
        total = np.bincount(key, own.value[which].astype(np.float64), minlength=_NUMBER * number)
        mean = np.rint(total[several] / count[several]).astype(np.int64)
        values[several // number, several % number] = mean


def add_age(
    own: Samples,
    at: NDArray[np.intp],
    cell: NDArray[np.intp],
    anchors: NDArray[np.int64],
    values: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> None:
    """How much older than `ts` the power reading of each row is: the instantaneous one's, if there is one."""
    for row in reversed(_POWER):
        which = at[(own.row[at] == row) & (own.status[at] == Status.OK)]
        values[_AGE, cell[which]] = anchors[cell[which]] - own.ts[which]
        status[_AGE, cell[which]] = Status.OK


def carry_on(
    own: Samples,
    mine: NDArray[np.bool_],
    before: tuple[int, int],
    anchors: NDArray[np.int64],
    values: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> tuple[int, int]:
    """Let the reading of the power sensor stand in the rows in which it had no new one; returns the last one."""
    of_sensor = (own.row == _SENSOR) & (own.status == Status.OK)
    ts, value = np.append(before[0], own.ts[of_sensor]), np.append(before[1], own.value[of_sensor])
    last = np.searchsorted(ts, anchors, side="right") - 1
    stands = (status[_SENSOR] == Status.UNREAD) & (last >= 0) & (anchors - ts[last] <= _SENSOR_US)
    values[_SENSOR, stands], status[_SENSOR, stands] = value[last[stands]], Status.OK
    values[_AGE, stands] = (anchors - ts[last])[stands]
    status[_AGE, stands] = Status.OK
    newest = int(np.argmax(np.where((ts <= anchors[-1]) | np.append(True, mine[of_sensor]), ts, -1)))
    return int(ts[newest]), int(value[newest])
