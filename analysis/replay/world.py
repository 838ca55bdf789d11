"""A fleet as it is, and as it is believed to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .beliefs import Beliefs
from .fleet import Fleet, Floats
from .power import Power
from .rates import Rates


@dataclass(frozen=True)
class World:
    """What jobs run at (`rates`), and what policies are shown (`beliefs`): the latter does not lead to the former."""

    rates: Rates
    beliefs: Beliefs

    @property
    def fleet(self) -> Fleet:
        """The GPUs and their nodes."""
        return self.rates.fleet

    def flat(self) -> World:
        """The same, of which policies are shown no difference between GPUs."""
        return replace(self, beliefs=self.beliefs.flat())

    @classmethod
    def regular(
        cls,
        nodes: int,
        gpus_per_node: int,
        scores: Mapping[str, Sequence[float] | Floats] | None = None,
        *,
        believed: Mapping[str, Sequence[float] | Floats] | None = None,
        locality: float = 1.0,
        power: Power | None = None,
    ) -> World:
        """Nodes of equal size. Without `believed`, policies see what jobs run at; without both, all scores are 1."""
        rates = Rates(Fleet.regular(nodes, gpus_per_node), _arrays(scores or {}), locality, power=power)
        return cls(rates, Beliefs(rates if believed is None else replace(rates, scores=_arrays(believed))))


def _arrays(scores: Mapping[str, Sequence[float] | Floats]) -> dict[str, Floats]:
    return {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
