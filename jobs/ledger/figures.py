"""What a span used, as a figure with an interval, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...store.aliasing import variance_j2
from ...store.power_sensors import SENSOR_ERROR
from ...store.vocabulary import Code
from .curve import (
    ABOVE,
    ALIAS_J2,
    BELOW,
    COUNTER_S,
    DOUBT,
    ENERGY,
    SENSED_J,
    SENSED_S,
    VARIANCE,
    WIDTH,
)

if TYPE_CHECKING:
    from .spans import Span

Floats = NDArray[np.float64]


class Why(Code):
    """Why a span has no energy."""

    OPEN = "open", "it has not ended yet, or a span inside it has not"
    SILENT = "no answer", "the driver has not answered since it ended"
    NO_GPU = "no gpu", "no GPU could be read; `problem()` says why"
    NO_SENSOR = "no sensor", "a GPU of the ledger tells neither energy nor power, as MIG instances do not"
    GAPS = "mostly gaps", "for half of its time or more the GPUs did not answer"
    SHORT = "too short", "it cannot be told from nothing: the sensor is too slow for it; several of them add up"


@dataclass(frozen=True)
class Figure:
    """Energy with its 95 % interval, J; `energy_j` is None where it has a `reason` (a code of `Why`).

    Where the span was too short, the interval is there and holds; where it is mostly gaps too. `method` is "counter"
    or "power": what most of it was read from. `measured` is the share of its time with readings.

    `edge_j`: by how much at most the energy is wrong because a span does not begin and end with a new value of the
    sensor. It is the same for a short span and a long one, so that it tells how long a span must be for a figure of
    some accuracy. The error of the sensor itself, which is in the interval too, is the same in all spans of a GPU.
    """

    energy_j: float | None
    low_j: float | None
    high_j: float | None
    method: str | None
    measured: float | None
    reason: Why | None
    edge_j: float | None = None


def missing(reason: Why) -> Figure:
    """A figure that is not there."""
    return Figure(None, None, None, None, None, reason)


def figure(used: Floats, most_w: Floats) -> Figure:
    """The figure of what `splitting` counted, for GPUs that draw `most_w` at most."""
    by_gpu = used[:-1].reshape(-1, WIDTH)
    total = [float(one) for one in by_gpu.sum(axis=0)]
    seconds = float(used[-1])
    if not len(by_gpu) or seconds <= 0:
        return missing(Why.NO_GPU if not len(by_gpu) else Why.SHORT)
    below, above = total[BELOW] + total[DOUBT], total[ABOVE] + total[DOUBT]
    boards = SENSOR_ERROR.variance(by_gpu[:, SENSED_J], by_gpu[:, SENSED_S]).sum()
    sensed = np.array(total[SENSED_J]), np.array(total[SENSED_S])
    variance = variance_j2(total[VARIANCE : ALIAS_J2 + 1], seconds)
    lower, upper = (float(one) for one in SENSOR_ERROR.ends(*sensed, boards, np.maximum(variance, 0.0)))
    energy = max(total[ENERGY], 0.0)
    most = float(most_w.sum()) * seconds
    low = min(max(energy + min(lower, 0.0) - below, 0.0), energy)
    high = max(min(energy + max(upper, 0.0) + above, most), energy)
    measured = min(total[SENSED_S] / (len(by_gpu) * seconds), 1.0)
    reason = Why.GAPS if measured <= 0.5 else Why.SHORT if total[DOUBT] >= energy else None
    method = None if not total[SENSED_S] else "counter" if 2 * total[COUNTER_S] >= total[SENSED_S] else "power"
    return Figure(None if reason else energy, low, high, method, measured, reason, total[DOUBT])


def figure_of(span: Span, *, own: bool) -> Figure:
    """What a finished span used, with the spans inside it or without."""
    book = span.book
    assert book is not None
    if book.why is not None:
        return missing(book.why)
    if span.used is None:
        return missing(Why.OPEN)
    used = span.used
    if own and span.used_inside is not None:
        used = used - span.used_inside
        used[DOUBT:-1:WIDTH] += 2 * span.used_inside[DOUBT:-1:WIDTH]
    return figure(used, book.most_w)
