"""The scores of a fleet's GPUs in one workload, and what they are relative to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints
from .posterior import Posterior
from .references import Reference

OF_UNITS = ("later",)
"""Fields of `WorkloadScores` that are arrays over sets of GPUs, and not over GPUs."""


@dataclass(frozen=True)
class WorkloadScores:
    """One workload over the GPUs of a fleet: arrays of one length, NaN (NaT, 0 runs) for a GPU not measured in it.

    A score is a time over that of the fleet's median GPU: 1 is usual, higher is slower. Whether a GPU is slow is said
    by its score over that of its `reference`: see `slow`.
    """

    workload: str
    runs: Ints
    """How many runs a score rests on; of coupled GPUs, how many jobs; where runs of a day are alike, how many days."""
    raw: Floats
    """The measured level of the GPU, as the judge has it, over that of the fleet's median GPU."""
    belief: Floats
    """The posterior mean of the score; exactly 1 for GPUs that cannot be distinguished."""
    lower: Floats
    upper: Floats
    """A 90 % interval of the score in another sitting, at another time; NaN if it is not known which differences
    repeat."""
    standing_out: npt.NDArray[np.bool_]
    """GPUs that stand out: they differ by more than chance gives the largest of all GPUs."""
    newest: npt.NDArray[np.datetime64]
    sm_clock_mhz: Floats
    power_w: Floats
    temperature_c: Floats
    """Medians over the GPU's runs."""
    repeatable: bool
    """Whether the test showed that differences between GPUs repeat, at the 5 % level."""
    reason: str | None
    """Why not."""
    p: float | None
    """Of the permutation test."""
    coupled: bool
    """Whether jobs couple the GPUs, so that all GPUs of a set have one score."""
    references: tuple[Reference, ...]
    """What the GPUs are compared with: one set, or one for each board variant."""
    reference: Ints
    """(gpus,) the number of each GPU's reference; -1 for a GPU not measured."""
    unit: Ints
    """(gpus,) the set of GPUs that a GPU is scored with; -1 for a GPU not measured."""
    posterior: Posterior
    later: Floats
    """(units,) the scale of Student's t with `freedom` degrees by which another sitting differs from the score in the
    long run, as a logarithm; NaN where it is not known."""
    freedom: float
    usual_ms: float
    """The time of the fleet's median GPU."""
    run_ids: Mapping[str, tuple[str, ...]]
    """The runs of each GPU, in the order of time."""
    notes: tuple[str, ...] = ()
    """What was left out or assumed in this workload, sentences."""

    def draw(self, rng: np.random.Generator) -> Floats:
        """(gpus,) what the scores may be, one draw of all together."""
        drawn = self.posterior.draw(rng)
        return np.where(self.unit >= 0, drawn[self.unit], np.nan) * self.usual

    def draw_sitting(self, rng: np.random.Generator) -> Floats:
        """(gpus,) the same in another sitting, at another time."""
        moved = np.nan_to_num(self.later) * rng.standard_t(self.freedom, len(self.later))
        return self.draw(rng) * np.exp(np.where(self.unit >= 0, moved[self.unit], np.nan))

    @cached_property
    def usual(self) -> Floats:
        """(gpus,) the score of the median GPU of each GPU's reference: 1 where there is one reference."""
        if len(self.references) == 1:
            return np.ones(len(self.reference))
        times = np.array([one.usual_ms for one in self.references])
        return np.where(self.reference >= 0, times[self.reference] / self.usual_ms, np.nan)

    def slow(self, scores: Floats) -> Floats:
        """(gpus,) `scores` over those of the references: above 1 a GPU is slower than its like."""
        return scores / self.usual
