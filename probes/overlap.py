"""How far copies hide behind kernels: turns of a work and copies beside them, at the same time or one after another.

    hidden = (t_k + t_c - t_b) / min(t_k, t_c)      1: all of the shorter one is hidden, 0: none, below 0: they disturb
    drag   = t_b,kernel / t_k                       how much slower the kernels run meanwhile

t_k and t_c are the kernels' and the copies' time one after another, t_b that of both at the same time. Batches of the
two take turns, each of whole laps of the work, so that clock and temperature are the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ..kernels.device import Loaded
from ..kernels.overlap import blocks_of
from ..kernels.work import Unfit, Work
from ..store.vocabulary import EndedBy
from .effort import FEWEST_REPEATS, REPEAT_S
from .figures import Figure, Interval, interval_of, of_times
from .steps import Repeats, Steps

ALIKE_SHARE = 0.1
"""So much the kernels' time may differ from the copies'."""
_TRIES = 3
"""So often the kernels' size is changed at most until they take as long as the copies."""


@dataclass(frozen=True)
class Overlap:
    """Pairs of batches: means of each batch in ms, of shape (pairs,)."""

    kernels_ms: NDArray[np.float64]
    copies_ms: NDArray[np.float64]
    both_ms: NDArray[np.float64]
    slowed_ms: NDArray[np.float64]
    """The kernels beside the copies."""

    @property
    def hidden(self) -> NDArray[np.float64]:
        return (self.kernels_ms + self.copies_ms - self.both_ms) / np.minimum(self.kernels_ms, self.copies_ms)

    @property
    def drag(self) -> NDArray[np.float64]:
        return self.slowed_ms / self.kernels_ms

    @property
    def times_ms(self) -> NDArray[np.float64]:
        """What a kernel of 1 ms and copies of 1 ms take together at the hidden share: 1 ms and what is not hidden.

        So runs compare although the size of the kernels follows from the speed of the link.
        """
        return 2 - self.hidden


async def balanced(steps: Steps, loaded: Loaded) -> Loaded:
    """The work with kernels that take as long as the copies within `ALIKE_SHARE`, as far as blocks can bring that."""
    for _ in range(_TRIES):
        turns_ms, times_ms = await steps.batch_of_both(loaded, len(loaded.work.turns), apart=True)
        ratio = float((times_ms - turns_ms).mean() / turns_ms.mean())
        steps.conditions |= {"balance": round(ratio, 3), "blocks": blocks_of(loaded.work)}
        work = steps.kernel.build(steps.device.facts, **steps.parameters, blocks=round(blocks_of(loaded.work) * ratio))
        if abs(ratio - 1) <= ALIKE_SHARE or isinstance(work, Unfit) or blocks_of(work) == blocks_of(loaded.work):
            break
        await steps.check(loaded)
        steps.works.clear()
        loaded, _ = await steps.load_and_try(work)
    return loaded


async def measured(steps: Steps, loaded: Loaded, time_s: float) -> tuple[Overlap, Repeats]:
    """Pairs of batches until the hidden share is known as well as asked, or the time is over."""
    asked, turns = steps.asked, len(loaded.work.turns)
    repetitions = turns * ceil(REPEAT_S / (time_s * turns))
    rows: list[tuple[float, ...]] = []
    began_ns = steps.device.now_ns()
    while True:
        turns_ms, times_ms = await steps.batch_of_both(loaded, repetitions, apart=True)
        slowed_ms, both_ms = await steps.batch_of_both(loaded, repetitions, apart=False)
        means = [float(values.mean()) for values in (turns_ms, times_ms - turns_ms, both_ms, slowed_ms)]
        rows.append(tuple(means))
        ended_ns = steps.device.now_ns()
        pairs = Overlap(*np.array(rows).T)
        interval = interval_of(pairs.times_ms)
        spent_s = (ended_ns - began_ns) / 1e9
        precise = (
            interval.within(asked.half_width) and len(rows) >= asked.least_repeats and spent_s >= steps.effort.least_s
        )
        over = len(rows) >= FEWEST_REPEATS and spent_s * (1 + 1 / len(rows)) > asked.limit_s
        if precise or over:
            ended_by = EndedBy.PRECISE if precise else EndedBy.TIME_LIMIT
            return pairs, Repeats(pairs.times_ms, interval, began_ns, ended_ns, repetitions, ended_by)


def figures(work: Work, pairs: Overlap, interval: Interval) -> list[Figure]:
    """The hidden share, the drag, each with its standard error, and the times behind them; of activations that are
    coded, the speed of a link below which that is worth its time."""
    rows = of_times(pairs.times_ms, interval)
    for name, unit, values in (("hidden", "%", 100 * pairs.hidden), ("drag", "", pairs.drag)):
        error = float(values.std(ddof=1)) / np.sqrt(len(values))
        rows += [Figure(name, unit, float(np.median(values))), Figure(f"{name}_error", unit, error)]
    times = {"time_kernels": pairs.kernels_ms, "time_copies": pairs.copies_ms, "time_both": pairs.both_ms}
    rows += [Figure(name, "ms", float(np.median(values))) for name, values in times.items()]
    if "raw_bytes" in work.parameters:
        rows.append(Figure("break_even", "GB/s", break_even(work, float(np.median(pairs.kernels_ms)))))
    return rows


def break_even(work: Work, kernels_ms: float) -> float:
    """The link, GB/s, on which codes take as long as what they stand for: (B - B') / (t_encode + t_decode).

    B are the bytes that would go over the link both ways, B' those of the codes. The kernels code some of the
    activations again, so that they take as long as the copies: that is not counted.
    """
    raw_bytes = float(work.parameters["raw_bytes"])
    once_ms = kernels_ms * raw_bytes / 8 / work.operations
    return (raw_bytes - work.bytes) / once_ms / 1e6
