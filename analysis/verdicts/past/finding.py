"""A finding of a history: something in the past of a GPU, or of GPUs together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ..verdict import Measured, NotJudged, State


class Shape(StrEnum):
    """What a finding says."""

    STEP = "step"
    """Many GPUs changed at one date."""
    CHANGE = "change"
    """A GPU's level changed at a date."""
    DRIFT = "drift"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class Finding:
    """Slower is positive. Times are UTC without a zone."""

    kind: Shape
    gpu: str | None
    """As in `Probed.gpus`; None where it is of a group."""
    group: str | None
    """What the GPUs share, in words: a node, a new driver, or the date."""
    gpus: tuple[str, ...]
    workload: str
    effect_pct: float
    """Of a step or change: after against before. Of a drift: from the first sitting to the last. Of an unstable GPU:
    how much slower its runs are, or how far away its sittings, when they are."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval: of the level in another sitting against the level before; of a step, of the GPUs' common effect;
    of a drift, of the drift; of an unstable GPU, of the median of how far they are away."""
    p: float
    q: float
    """The share of false findings among those of its kind that are at least as clear."""
    n: int
    """Sittings of the GPU; of a group, its GPUs."""
    at: datetime | None
    """Of a step or change: the first sitting after it. None of a drift and an unstable GPU."""
    since: datetime | None
    """Of a step or change: the last sitting before it. It happened between the two."""
    state: State
    first_seen: datetime | None
    last_seen: datetime | None
    runs: tuple[str, ...]
    """Ids of runs that show it: the newest, where there are many."""
    measured: tuple[Measured, ...]
    """The numbers that tell it: dates, sittings."""
    joined_with: tuple[Measured, ...]
    """What else changed then."""


@dataclass(frozen=True)
class Histories:
    """All that was found in a cluster's past. The clearest first."""

    steps: tuple[Finding, ...]
    """Of many GPUs at once; they were taken out before the others were looked for."""
    changes: tuple[Finding, ...]
    drifts: tuple[Finding, ...]
    unstable: tuple[Finding, ...]
    watch: tuple[Finding, ...]
    """Changes that are not sure enough for a finding: the newest sitting is slower. Measure these GPUs again. At most 2
    of 1,000 sittings of healthy GPUs are among them."""
    not_judged: tuple[NotJudged, ...]
    looks: int
    """GPUs and workloads that were compared with their own past."""
