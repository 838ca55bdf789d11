"""The one place where a GPU is judged: against its peers and its own past, at the levels batch, node and GPU.

`judge.judge` reads a store and gives a `Judgement`; `recording.last_judgement` gives the one that is stored.
docs/verdicts.md says what it rests on; docs/how-we-know/verdicts.md says how often it is right.
"""

from __future__ import annotations

from .verdict import NO_FINDING, TIME, Cause, Judgement, Kind, Level, NotJudged, Smallest, State, Verdict

__all__ = [
    "NO_FINDING",
    "TIME",
    "Cause",
    "Judgement",
    "Kind",
    "Level",
    "NotJudged",
    "Smallest",
    "State",
    "Verdict",
]
