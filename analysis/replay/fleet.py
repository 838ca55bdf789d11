"""The GPUs of a replay: their nodes, their scores, and the scores that policies see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

if TYPE_CHECKING:
    from .advised import Advised

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Fleet:
    """GPUs in nodes, with what each costs in time: arrays over GPUs in the order node, slot.

    A score is a relative time: 1 is the fleet's median GPU, higher is slower. Classes are names of workloads; the
    class "" is known to every fleet and is 1 everywhere.
    """

    node: Ints
    """(gpus,) number of the node, ascending from 0 without gaps."""
    node_names: tuple[str, ...]
    gpu_names: tuple[str, ...]
    actual: Mapping[str, Floats]
    """Class -> (gpus,) the score jobs run at."""
    belief: Mapping[str, Floats]
    """Class -> (gpus,) the score that policies see."""
    locality: float = 1.0
    """Factor on the run time of a job that spans nodes."""
    power_w: Mapping[str, Floats] | None = None
    """Class -> (gpus,) power while the class runs; NaN where unknown."""
    advised: Advised | None = None
    """What `whorl advise` says of its nodes; None where nothing was measured."""
    usual: Mapping[str, Floats] | None = None
    """Class -> (gpus,) the believed score of the median GPU of the same board variant; None: 1 of all."""

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
        if not np.isfinite(self.locality) or self.locality < 1:
            raise InputError(f"the locality penalty must be at least 1, not {self.locality:g}")
        missing = sorted(set(self.actual) ^ set(self.belief))
        if missing:
            raise InputError(f"the class {missing[0]!r} needs both scores for jobs and scores for policies")
        for kind, scores in (("score", self.actual), ("believed score", self.belief)):
            for name, values in scores.items():
                if values.shape != (gpus,):
                    raise InputError(f"the class {name!r} has {len(values)} scores for {gpus} GPUs")
                bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
                if len(bad):
                    gpu = self.gpu_names[bad[0]]
                    raise InputError(f"GPU {gpu} has the {kind} {values[bad[0]]:g} in class {name!r}: it must be > 0")
        for name, values in (self.power_w or {}).items():
            if values.shape != (gpus,):
                raise InputError(f"the class {name!r} has {len(values)} powers for {gpus} GPUs")

    def __len__(self) -> int:
        return len(self.node)

    def flat(self) -> Fleet:
        """The same fleet, of which policies are shown no difference: every score is 1, and nothing is advised."""
        return replace(self, belief={name: np.ones(len(self)) for name in self.belief}, advised=None, usual=None)

    @classmethod
    def regular(
        cls,
        nodes: int,
        gpus_per_node: int,
        actual: Mapping[str, Sequence[float] | Floats] | None = None,
        belief: Mapping[str, Sequence[float] | Floats] | None = None,
        locality: float = 1.0,
        power_w: Mapping[str, Sequence[float] | Floats] | None = None,
    ) -> Fleet:
        """Nodes of equal size. Without `belief`, policies see what jobs run at; without both, all scores are 1."""
        if nodes < 1 or gpus_per_node < 1:
            raise InputError(f"a fleet must have at least one node of one GPU, not {nodes} nodes of {gpus_per_node}")
        runs_at = _arrays(actual or {})
        return cls(
            np.repeat(np.arange(nodes, dtype=np.int32), gpus_per_node),
            tuple(f"n{node}" for node in range(nodes)),
            tuple(f"n{node}/{slot}" for node in range(nodes) for slot in range(gpus_per_node)),
            runs_at,
            runs_at if belief is None else _arrays(belief),
            locality,
            None if power_w is None else _arrays(power_w),
        )


def _arrays(scores: Mapping[str, Sequence[float] | Floats]) -> dict[str, Floats]:
    return {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}


def _distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"two {what} of the fleet are named {twice}")
