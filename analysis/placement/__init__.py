"""Where a job should run: scores of GPUs that allow for noise, and advice with the expected gain.

Read in this order: `units` (the runs of a store, by what can be told apart), `posterior` (what they say of each GPU),
`scores` (the score of each GPU in each workload), `sets` (the best GPUs for a job, and what they save), `evidence`
(which nodes are slow, and how sure that is), `advice` (what to do). `notes` has the sentences about what is left out.
docs/how-we-know/advice.md has the definitions and how well they hold.
"""

from __future__ import annotations

from .advice import Advice, Cost, WorkloadGain, advise, node_rows, together
from .evidence import AdviceOptions, NodeEvidence, Staleness, Suspect, suspects
from .scores import Reference, Scores, WorkloadScores, gpu_rows, kinds_of, scores
from .sets import Gain, PlacedSet
from .units import available

__all__ = [
    "Advice",
    "AdviceOptions",
    "Cost",
    "Gain",
    "NodeEvidence",
    "PlacedSet",
    "Reference",
    "Scores",
    "Staleness",
    "Suspect",
    "WorkloadGain",
    "WorkloadScores",
    "advise",
    "available",
    "gpu_rows",
    "kinds_of",
    "node_rows",
    "scores",
    "suspects",
    "together",
]
