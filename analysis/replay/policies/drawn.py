"""Policies that take any free GPUs, like a scheduler that ignores their speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..job import Job
from .row import Policy

if TYPE_CHECKING:
    from ..view import View


def draw(view: View, job: Job) -> Sequence[int] | None:
    """Free GPUs drawn without putting back, each set being as likely as any other."""
    if job.gpus > view.free_count:
        return None
    return view.random.sample(view.free_gpus(), job.gpus)


POLICIES = (
    Policy(
        "random",
        "any free GPUs; jobs keep them",
        place=draw,
        redraws=True,
        blind=True,
        aliases=("random-sticky",),
    ),
    Policy(
        "random-nonsticky",
        "any free GPUs; all jobs are placed again in every round",
        place=draw,
        sticky=False,
        by_rounds=True,
        redraws=True,
        blind=True,
    ),
)
