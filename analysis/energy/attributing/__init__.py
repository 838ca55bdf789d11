"""Whose the energy was: pieces of jobs, of nobody (idle) and of somebody unknown (unattributed), which balance.

`Booking` makes the pieces of a store, some GPUs at a time. Beside them stands what was metered, so that attributed +
idle + unattributed can be held against it, and what is wrong (`problems`).
"""

from __future__ import annotations

from .booking import Booking
from .problems import JobProblem, JobReason

__all__ = ["Booking", "JobProblem", "JobReason"]
