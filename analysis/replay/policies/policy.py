"""A policy: a small class that says which GPUs each job holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..jobs import Allocation
from ..world import View


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to change now, and when to ask again."""

    changes: Mapping[int, Allocation | None] = field(default_factory=dict)
    """By job number, what the job holds from now on; None: it is stopped, keeps its work, and waits.

    Jobs that are not named keep what they hold. GPUs that one job leaves may go to another in the same decision.
    """
    again_s: float = math.inf
    """Ask again at this moment, if nothing happens sooner; after now. By rounds: at the first edge not before it.

    `view.edge_s` is the next round.
    """


class Policy:
    """Decides which GPUs, in which roles and at which clock; the world says how fast that goes and at what power.

    It is asked after every arrival, end and change of a node (by rounds: at the first edge after it), and when it
    asked to be. A replay makes a new object; what it keeps is its own.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    note: ClassVar[str] = ""  # what the figures of this policy rest on, as a sentence beside the answer
    round_s: ClassVar[float | None] = None
    """The rounds that it is made for: those of all rows of a study, unless the user says otherwise; with `start_s`."""
    start_s: ClassVar[float] = 0.0  # what every start costs then (`Options.start_s`)
    nodes_sleep: ClassVar[bool] = False
    """It counts on nodes that sleep without jobs: in a study they do in all rows, if the power of a node is known."""
    by_rounds: bool = False
    """Decides at the edges of rounds (`Options.round_s`), unless `Options.rounds` says otherwise."""
    knowledge: str = "none"  # what it needs to know of the work of jobs: "exact" (an estimate will do), or "none"
    needs_progress: ClassVar[bool] = False
    """Before each decision the engine writes epochs, regimes and work left into `view.progress`."""
    blind: ClassVar[bool] = False
    """Looks at no scores: beside itself without scores it gains nothing, and needs no such control."""
    whole: ClassVar[bool] = True  # a whole scheduler; False for placements, which a scheduler (fifo, las, srtf) orders

    def begin(self, view: View) -> None:
        """Called once, before the first decision; there are no jobs yet."""

    def decide(self, view: View) -> Decision:
        """What is to change now."""
        raise NotImplementedError
