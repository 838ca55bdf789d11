"""A placement policy: one function, and the row that describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from ..job import Allocation, Job

if TYPE_CHECKING:
    import numpy as np

    from ..fleet import Fleet, Ints
    from ..view import View


Place = Callable[["View", "Job"], Sequence[int] | None]
Decide = Callable[["View"], Mapping[int, Allocation]]
Arrange = Callable[["View", Sequence[int]], Sequence[int]]


@dataclass(frozen=True)
class Policy:
    """A placement policy. It has `place` or `decide`, one of the two.

    `place(view, job)` picks the free GPUs of one job, or None to let it wait; the replay keeps the queue, asks for
    one job after another and stops at the first that must wait. `decide(view)` says at once what every job holds
    from now on, by job number: it may change the GPUs, their count or the rate of a job that runs, or let jobs share;
    a job that it leaves out waits.
    """

    name: str
    summary: str
    place: Place | None = None
    decide: Decide | None = None
    sticky: bool = True
    """A job that runs keeps its GPUs. Otherwise all jobs are placed again at every decision."""
    by_rounds: bool = False
    """Decides at the edges of rounds; the others at every arrival, finish and failure."""
    redraws: bool = False
    """`place` looks at more than the free GPUs and the job, such as random numbers: no earlier answer stands in."""
    arrange: Arrange | None = None
    """The order in which the jobs about to run may choose; the first of the queue that fit, together, are given."""
    avoids: Callable[[Fleet, Set[str], int], NDArray[np.bool_]] | None = None
    """`avoids(fleet, classes of the trace, width of its widest job)`: (gpus,) GPUs that no job is given."""
    bars: Callable[[View, Job], NDArray[np.bool_] | None] | None = None
    """`bars(view, job)`: (nodes,) nodes that `place` never gives this job; None: it may be given all."""
    ranks: Callable[[Fleet, Set[str]], Ints] | None = None
    """`ranks(fleet, classes of the trace)`: (nodes,) the order in which nodes are taken, where the policy has one."""
    blind: bool = False
    """Looks at no scores: beside itself without scores it gains nothing, and needs no such control."""
    aliases: tuple[str, ...] = ()
