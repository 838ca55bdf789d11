"""Policies: a small class each. Placements, which a scheduler orders, and whole schedulers."""

from __future__ import annotations

import sys
from importlib import import_module

from ....errors import InputError
from ..checking import described
from .eaco import EaCO
from .filling import Burst, PartialBackpropagation
from .placements import (
    AdviceExclude,
    AdviceWeights,
    Clocks,
    DrainOutliers,
    Drawn,
    DrawnAnew,
    Packed,
    PackedAnew,
    Pal,
    PalSticky,
    PmFirst,
    PmFirstSticky,
    Weights,
)
from .policy import Decision, Policy
from .queue import SCHEDULERS, Queued, Scheduler, find_scheduler
from .shares import FinishTimeFair, FirstCome, LeastAttained, LongestLeft, ShortestLeft, Tiresias
from .shockwave import Shockwave

POLICIES: tuple[type[Policy], ...] = (
    Packed,
    PackedAnew,
    Weights,
    DrainOutliers,
    AdviceExclude,
    AdviceWeights,
    Drawn,
    DrawnAnew,
    PmFirst,
    Pal,
    PmFirstSticky,
    PalSticky,
    Shockwave,
    LeastAttained,
    ShortestLeft,
    FirstCome,
    LongestLeft,
    FinishTimeFair,
    Burst,
    PartialBackpropagation,
    Tiresias,
    EaCO,
    Clocks,
)
"""Every policy; a new one is a class in its family's file, and its row here."""


def find_policy(name: str) -> type[Policy]:
    """The policy of that name or alias; `module:Class` is a user's own, from the folder at hand or the Python path.

    Raises `InputError` for an unknown one.
    """
    if ":" in name:
        return _own_policy(name)
    for row in POLICIES:
        if name.lower() in (row.name, *row.aliases):
            return row
    raise InputError(
        f"no policy is named {name!r}; there are {', '.join(row.name for row in POLICIES)}, and module:Class for "
        "your own"
    )


def made(policy: str | type[Policy] | Policy, scheduler: str | Scheduler = "fifo") -> Policy:
    """A new object of a policy; `scheduler` orders placements, and does not matter to whole schedulers."""
    row = find_policy(policy) if isinstance(policy, str) else policy
    if isinstance(row, Policy):
        return row
    try:
        return row(scheduler) if issubclass(row, Queued) else row()
    except (Exception, SystemExit) as error:  # a user's class may raise anything
        raise InputError(f"the policy {row.name} cannot be made without arguments: {described(error)}") from error


def _own_policy(name: str) -> type[Policy]:
    module, _, attribute = name.partition(":")
    try:
        sys.path.insert(0, "")
        found = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(f"the policy {name} cannot be loaded: {described(error)}") from error
    finally:
        sys.path.remove("")
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise InputError(f"the policy {name} is no class derived from whorl.analysis.replay.Policy")
    if "name" not in vars(found):
        found.name = attribute
    return found


__all__ = [
    "POLICIES",
    "SCHEDULERS",
    "Decision",
    "Policy",
    "Queued",
    "Scheduler",
    "find_policy",
    "find_scheduler",
    "made",
]
