"""Where a job should run: scores of GPUs that allow for noise, and advice with the expected gain.

`scores` reads a store; `advise` takes scores and gives plain frozen rows with `as_dict()`, and reads and writes
nothing. docs/placement.md has the definitions and how well they hold.
"""

from __future__ import annotations

from .advice import Advice, Cost, Staleness, advise
from .asking import kinds_of
from .once import Suspect, suspects
from .reading import Place, available
from .references import Reference
from .scores import Scores, scores
from .tiers import NodeEvidence
from .together import together
from .workload_scores import WorkloadScores
from .worth import Gain, PlacedSet

__all__ = [
    "Advice",
    "Cost",
    "Gain",
    "NodeEvidence",
    "Place",
    "PlacedSet",
    "Reference",
    "Scores",
    "Staleness",
    "Suspect",
    "WorkloadScores",
    "advise",
    "available",
    "kinds_of",
    "scores",
    "suspects",
    "together",
]
