"""How a replay is to be run: the clock, backfill, what an interruption costs, failures, other jobs, records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from .fleet import Failure, Floats
from .jobs import Job

BIN_STEP = 0.01


def alike(belief: Floats) -> Floats:
    """Scores to the nearest hundredth: GPUs that differ by less are alike to a policy, which may then pack them."""
    rounded: Floats = np.round(belief / BIN_STEP) * BIN_STEP
    return rounded


@dataclass(frozen=True)
class Options:
    """Everything about a replay that is not the trace, the world, the policy or the scheduler."""

    round_s: float = 360.0
    rounds: bool | None = None
    """Decide at the edges of rounds only. None: where the policy or the scheduler demands it."""
    quantised: bool = False
    """A job ends, and holds its GPUs, until the edge of the round in which its work is done. Needs rounds."""
    stops_in_vain: bool = False
    """True: jobs that were stopped for one that still does not fit stay stopped, as in PAL's simulator (SC'24)."""
    patience_s: float | None = None
    """A job that has waited for this long at a stretch, in whole rounds, goes before all that have not from then on.

    Among such jobs the scheduler's order holds. Needs rounds. None: jobs may starve.
    """
    backfill: str = "none"  # "none", or "easy": later jobs may start where they do not delay the first job that waits
    preemption_s: float = 0.0
    """Time without progress at the start of a job that was stopped for another.

    By rounds, placements neither stop nor move a job that has paid one of these costs before it has then worked for as
    long: a cost of a round or more would otherwise use up every round, and no job would ever end.
    """
    migration_s: float = 0.0  # time without progress after a change of GPUs without a stop
    start_s: float = 0.0
    """Time without progress at every start, that of a job that was stopped included; not at the instant 0.

    By rounds a job pays none in a round in which it ends more than 5 s before the edge. As in the simulator of Gavel
    and Shockwave (NSDI'23), where a job that did not run in the round before loses 20 s of a round of 120 s.
    """
    failures: tuple[Failure, ...] = ()
    on_failure: str = "restart"  # "restart": from no work done; "resume": from where it was
    others: Callable[[], Iterator[Job]] | None = None
    """The jobs that are submitted besides the trace's, by submit time and without end if need be. They load the fleet
    and are not measured: a replay ends when the trace's jobs have ended."""
    bins: Callable[[Floats], Floats] = alike
    """Beliefs of a class (gpus,) -> the scores that PM-First and PAL choose by (gpus,); never used for run time."""
    class_order: tuple[str, ...] | None = None
    """The order in which PM-First and PAL let classes choose. None: the class whose beliefs spread most is first."""
    record: bool = False  # keep who held which GPU when, and the queue and the busy GPUs over time

    def __post_init__(self) -> None:
        if not (math.isfinite(self.round_s) and self.round_s > 0):
            raise InputError(f"a round must be longer than 0 s, not {self.round_s:g}")
        for name in ("preemption_s", "migration_s", "start_s"):
            cost = getattr(self, name)
            if not (math.isfinite(cost) and cost >= 0):
                raise InputError(f"the cost {name} must be at least 0 s and finite, not {cost:g}")
        if self.backfill not in ("none", "easy"):
            raise InputError(f"backfill must be none or easy, not {self.backfill!r}")
        if self.on_failure not in ("restart", "resume"):
            raise InputError(f"a job that lost its node must restart or resume, not {self.on_failure!r}")
        if self.patience_s is not None and not (self.patience_s > 0 and (self.rounds or self.quantised)):
            raise InputError("the patience of jobs must be more than 0 s, and needs rounds")
        if self.quantised and self.rounds is False:
            raise InputError("jobs can end at the edges of rounds only in a replay by rounds")
