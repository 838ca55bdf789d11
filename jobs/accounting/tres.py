"""Slurm's trackable resources, as in AllocTRES: billing=8,cpu=8,gres/gpu:v100=4,gres/gpu=4,node=1."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GPU = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d+)(?=,|$)")
MOST_GPUS = 10_000_000
"""Of a job; a count of so many or more stands for them: no cluster has them, and the tables could not hold more."""
_PART = re.compile(r"(?:^|,)gres/(?:shard|mps)(?::[^=,]+)?=[1-9]")


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a job: how many, of which type (NULL: several, or not said), and whether parts of GPUs."""

    count: int | None = None
    type: str | None = None
    shared: bool = False


def gpus(text: str | None) -> Gpus:
    """The GPUs in a list of resources. An untyped count is the sum of the typed ones and not one more."""
    found = _GPU.findall(text or "")
    shared = _PART.search(text or "") is not None
    whole = [int(number) for kind, number in found if not kind]
    typed = {kind: int(number) for kind, number in found if kind}
    count = whole[0] if whole else sum(typed.values())
    only = next(iter(typed)) if len(typed) == 1 and sum(typed.values()) == count else None
    return Gpus(min(count, MOST_GPUS) or None, only, shared)
