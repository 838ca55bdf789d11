"""What a check of this machine has found: a row of `whorl doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

EVERYTHING = "everything"  # the purpose of packages that whorl always needs


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: whether it works, and what it is, or why it does not work."""

    what: str
    works: bool
    detail: str
    needed_for: str = ""
    vital: bool = False
    """Whether whorl always needs it."""
    number: int | None = None
    """How many GPUs it is about."""


def package(name: str, use: str) -> Finding:
    """Whether a package is installed."""
    vital = use == EVERYTHING
    try:
        return Finding(name, True, metadata.version(name), use, vital)
    except metadata.PackageNotFoundError:
        return Finding(name, False, f"not installed: pip install {name}", use, vital)
