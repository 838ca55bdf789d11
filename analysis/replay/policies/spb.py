"""Structured partial backpropagation, after JigSaw: jobs of several GPUs go back less deep on slower GPUs.

The mechanism is inferred from the abstract of its paper. What it does to the quality of training is not simulated.
"""

from __future__ import annotations

from typing import ClassVar

from ...training.gang import depths_of
from ..beliefs import Request
from ..job import Allocation
from .burst import Filling


class PartialBackpropagation(Filling):
    name = "spb"
    summary = "JigSaw: jobs of several GPUs go back deepest on the fastest; other jobs have the slack"
    note: ClassVar[str] = (
        f"{Filling.note}; what partial backpropagation does to the quality of training is not simulated"
    )

    def leads(self, request: Request) -> bool:
        return request.gpus > 1

    def granted(self, gpus: tuple[int, ...]) -> Allocation:
        return Allocation(gpus, shared=True, depths=tuple(depths_of(len(gpus)).tolist()))
