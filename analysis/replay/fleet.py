"""The GPUs of a replay and the nodes that they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Fleet:
    """GPUs in nodes: arrays over GPUs in the order node, slot."""

    node: Ints
    """(gpus,) number of the node, ascending from 0 without gaps."""
    node_names: tuple[str, ...]
    gpu_names: tuple[str, ...]

    def __post_init__(self) -> None:
        gpus = len(self.node)
        if not gpus:
            raise InputError("the fleet has no GPUs")
        steps = np.diff(self.node)
        if self.node[0] != 0 or ((steps != 0) & (steps != 1)).any() or self.node[-1] + 1 != len(self.node_names):
            raise InputError("the nodes of a fleet must be numbered 0, 1, ... in the order of its GPUs")
        if len(self.gpu_names) != gpus:
            raise InputError(f"the fleet has {gpus} GPUs and {len(self.gpu_names)} names of GPUs")
        _distinct("GPUs", self.gpu_names)
        _distinct("nodes", self.node_names)

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def regular(cls, nodes: int, gpus_per_node: int) -> Fleet:
        """Nodes of equal size."""
        if nodes < 1 or gpus_per_node < 1:
            raise InputError(f"a fleet must have at least one node of one GPU, not {nodes} nodes of {gpus_per_node}")
        return cls(
            np.repeat(np.arange(nodes, dtype=np.int32), gpus_per_node),
            tuple(f"n{node}" for node in range(nodes)),
            tuple(f"n{node}/{slot}" for node in range(nodes) for slot in range(gpus_per_node)),
        )


def _distinct(kind: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two {kind} of the fleet are named {name}")
        seen.add(name)
