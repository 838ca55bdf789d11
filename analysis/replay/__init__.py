"""Job traces replayed on a fleet of GPUs that differ: what each policy and scheduler would have done."""

from __future__ import annotations

from .engine import replay
from .failures import Failure
from .fleet import Fleet
from .job import Allocation, Job, Trace
from .options import Options
from .outcome import Metrics, Outcome, Series, Span
from .policies import POLICIES, Policy, find_policy
from .schedulers import SCHEDULERS, Scheduler, find_scheduler
from .view import View

__all__ = [
    "POLICIES",
    "SCHEDULERS",
    "Allocation",
    "Failure",
    "Fleet",
    "Job",
    "Metrics",
    "Options",
    "Outcome",
    "Policy",
    "Scheduler",
    "Series",
    "Span",
    "Trace",
    "View",
    "find_policy",
    "find_scheduler",
    "replay",
]
