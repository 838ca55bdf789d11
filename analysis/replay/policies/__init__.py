"""Placement policies: one function and one row each, a file for each family."""

from __future__ import annotations

from ....errors import InputError
from . import advised, drawn, fastest, packed
from .row import Policy

POLICIES: tuple[Policy, ...] = (
    *packed.POLICIES,
    *advised.POLICIES,
    *drawn.POLICIES,
    *fastest.POLICIES,
)
"""Every policy; a new one is a row in its family's file, and its family here."""


def find_policy(name: str) -> Policy:
    """The policy of that name or alias. Raises `InputError` for an unknown one."""
    for one in POLICIES:
        if name.lower() in (one.name, *one.aliases):
            return one
    raise InputError(f"no policy is named {name!r}; there are {', '.join(one.name for one in POLICIES)}")


__all__ = ["POLICIES", "Allocation", "Policy", "find_policy"]
