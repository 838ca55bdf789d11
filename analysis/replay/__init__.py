"""Job traces replayed on a fleet of GPUs that differ: what each policy and scheduler would have done."""

from __future__ import annotations

from .engine import replay
from .fleet import Failure, Fleet
from .jobs import Allocation, Job, Piece, Trace
from .options import Options
from .outcome import Metrics, Outcome, Series, Span
from .policies import POLICIES, SCHEDULERS, Decision, Policy, Queued, Scheduler, find_policy, find_scheduler
from .power import Power
from .rates import Rates, Tenant
from .world import Beliefs, Progress, Request, View, World

__all__ = [
    "POLICIES",
    "SCHEDULERS",
    "Allocation",
    "Beliefs",
    "Decision",
    "Failure",
    "Fleet",
    "Job",
    "Metrics",
    "Options",
    "Outcome",
    "Piece",
    "Policy",
    "Power",
    "Progress",
    "Queued",
    "Rates",
    "Request",
    "Scheduler",
    "Series",
    "Span",
    "Tenant",
    "Trace",
    "View",
    "World",
    "find_policy",
    "find_scheduler",
    "replay",
]
