"""Placements that take any free GPUs, like a scheduler that ignores their speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..beliefs import Request
from .queue import Queued


class Drawn(Queued):
    """Free GPUs drawn without putting back, each set being as likely as any other."""

    name = "random"
    summary = "any free GPUs; jobs keep them"
    aliases: ClassVar[tuple[str, ...]] = ("random-sticky",)
    redraws = True
    blind = True

    def place(self, request: Request) -> Sequence[int]:
        return self.view.random.sample(np.flatnonzero(self.cluster.free).tolist(), request.gpus)


class DrawnAnew(Drawn):
    """`Drawn`, in every round."""

    name = "random-nonsticky"
    summary = "any free GPUs; all jobs are placed again in every round"
    aliases = ()
    sticky = False
    by_rounds = True
