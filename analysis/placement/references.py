"""What a GPU's score is relative to: the GPUs of its model and board variant.

The runs of a workload on several models are several kinds of it (`analysis/runs/kinds.py`), each with its own scores.
Boards of one model may differ too: where those of another VBIOS are faster or slower as a whole, which the judge says,
a GPU is compared with the boards of its own VBIOS. Otherwise all boards of the slower variant would look like faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..statistics.ordering import Floats, Ints
from ..verdicts.compare import Fleet, compare
from ..verdicts.levels import Levels
from .reading import Place


@dataclass(frozen=True)
class Reference:
    """A set of GPUs that are compared with each other."""

    model: str | None
    """None if the store does not name it."""
    vbios: str | None
    """Only where the boards of the model differ by it."""
    gpus: int
    nodes: int
    """How many of the known nodes have them."""
    usual_ms: float
    """The time of the median GPU."""

    def __str__(self) -> str:
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus:,} GPUs"
        what = [self.model or "", "" if self.vbios is None else f"VBIOS {self.vbios}"]
        board = f" ({', '.join(filter(None, what))})" if any(what) else ""
        nodes = "" if not self.nodes else " on 1 node" if self.nodes == 1 else f" on {self.nodes:,} nodes"
        return f"{gpus}{board}{nodes}"


def variants(of: Levels, places: Sequence[Place]) -> Ints:
    """(gpus,) the board variant of each GPU, from 0 for the commonest: boards whose VBIOS shifts them as a whole.

    `of`: their levels. That a VBIOS shifts its boards is the judge's to say: it needs 8 GPUs, and two nodes of each.
    """
    values = sorted({place.vbios for place in places if place.vbios is not None})
    found = np.zeros(len(places), dtype=np.intp)
    if len(values) < 2:
        return found
    hosts = sorted({place.node for place in places if place.node is not None})
    numbers = {name: number for number, name in enumerate(hosts)}
    node = np.array([-1 if place.node is None else numbers[place.node] for place in places], dtype=np.int64)
    vbios = np.array([-1 if place.vbios is None else values.index(place.vbios) for place in places], dtype=np.int64)
    compared = compare(of, Fleet(node, {"vbios": vbios}))
    shifted = [shift.value for shift in compared.shifts if shift.what == "vbios"] if compared is not None else []
    for number, value in enumerate(sorted(shifted), 1):
        found[vbios == value] = number
    return found


def references(levels: Floats, variant: Ints, places: Sequence[Place], usual_ms: float) -> tuple[Reference, ...]:
    """The reference of each variant. `levels`: (gpus,) logarithms about that of `usual_ms`; NaN where unknown."""
    models = {place.model for place in places}
    model = models.pop() if len(models) == 1 else None
    several = int(variant.max(initial=0)) > 0
    found = []
    for number in range(int(variant.max(initial=0)) + 1):
        mine = np.flatnonzero((variant == number) & np.isfinite(levels)).tolist()
        vbios = sorted({places[gpu].vbios or "unknown" for gpu in mine})
        found.append(
            Reference(
                model,
                ", ".join(vbios) if several else None,
                len(mine),
                len({places[gpu].node for gpu in mine} - {None}),
                usual_ms * float(np.exp(np.median(levels[mine]))),
            )
        )
    return tuple(found)
