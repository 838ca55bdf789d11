"""Straggler-matched clocks: the fast GPUs of a synchronous job run no faster than its slowest.

All GPUs of such a job wait in each step for the slowest one. If a GPU of score s works as fast as one of the largest
score m at the clock x with x ** gain = s / m, the step takes as long as before and the GPU draws less. The gain is
that of the believed rates: 1 for work that is bound by the clock, near 0 for work that is bound by memory; 1 where it
is not known, which is safe: a GPU whose work depends less on the clock is then faster than it needs to be.

What a lower clock saves is the world's to say (`Power.clock_exponent`, 2 by default: what a GPU draws above idle goes
with the square of the clock). That is cautious. In the published sweeps of Zeus (NSDI'23) over power limits, the power
of a whole board goes with the speed to the power of 3.1 on a V100 (median of 51 sweeps within 15 % of the highest
speed; half of them between 2.6 and 3.6), and of 3.2 on an RTX 6000 (41 sweeps; 2.5 to 3.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..beliefs import Beliefs, Request, View
from .packed import Packed
from .policy import Decision

LOWEST = 0.5
"""Of the default clock. Voltage is flat below 0.45 to 0.6 of it (`simulation/models.py`): less saves little there."""


def matched(beliefs: Beliefs, request: Request, gpus: Sequence[int]) -> tuple[float, ...]:
    """(gpus,) the clock of each, relative to the default, at which all are believed to be as fast as the slowest.

    () if none can go slower: believed scores are equal, or the job has stages, in which GPUs wait for other reasons.
    """
    score = beliefs.rates.score(request.workload)[list(gpus)]
    behind = score / score.max()
    if request.stages or behind.min() == 1:
        return ()
    gain = beliefs.rates.clock_gain.get(request.workload, 1.0)
    clocks = behind ** (1 / gain) if gain > 0 else np.where(behind < 1, 0.0, 1.0)
    return tuple(np.maximum(clocks, LOWEST).tolist())


class Clocks(Packed):
    """Packed, first come first served; jobs keep their GPUs, and fast GPUs are slowed to the slowest of their job."""

    name = "clocks"
    summary = "packed; the fast GPUs of a job are clocked down to its slowest, which saves energy and no time"
    aliases = ()
    blind = False
    whole = True

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        changes = {
            number: allocation
            and replace(allocation, clocks=matched(view.beliefs, view.requests[number], allocation.gpus))
            for number, allocation in decision.changes.items()
        }
        return replace(decision, changes=changes)
