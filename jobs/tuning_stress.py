"""Search the knobs of the generated kernel `stress` for most power, or for the widest spread between GPUs.

    with FleetKernels(drawn_fleet(gpus=8)) as bench:
        report = search_stress(bench, StressSearchOptions(goal="power", trials=60))

A `KernelBench` runs the kernel at a setting of its knobs. Trials stand in the trial log alone: they are no runs of the
store, so that no verdict, fingerprint or variability takes them for runs of one workload. Whoever wants the kernel that
was found as a probe runs `stress` with its knobs, which are conditions of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Knobs = Mapping[str, float]
"""Values of the knobs of `kernels.stress.KNOBS` by name."""


@dataclass(frozen=True)
class StressSearchOptions:
    """How `search_stress` searches."""

    goal: str = "power"
    """'power': the mean power of the GPUs at the highest power limit, W. 'spread': the variance between GPUs over the
    variance between runs, of the rate or of the power, whichever has more."""
    trials: int = 60
    seed: int = 0
    log: Path | None = None
    """A file that gets a line of JSON for each trial. One that is there is gone on with."""
    rivals: Sequence[str] = ()
    """Probes of the catalogue that are measured in the same way; () for those that are usual for the goal."""
    progress: Callable[[StressStep], None] = lambda _: None


@dataclass(frozen=True)
class StressStep:
    """A trial that has just ended, for a progress bar."""

    done: int
    total: int
    label: str
    """'trial', or the name of a rival."""
    value: float | None
    """Of the goal; None where it failed."""
    best: float | None


@dataclass(frozen=True)
class KernelRuns:
    """What one kernel came to on the GPUs of a bench. Lists are of the GPUs, each with a value for every run."""

    rates: Mapping[str, Sequence[float]]
    """Repetitions a second by GPU (UUID)."""
    powers_w: Mapping[str, Sequence[float]]
    failures: Mapping[str, str]
    """Why a GPU has no runs, in a sentence."""


class KernelBench(Protocol):
    """GPUs on which kernels are tried."""

    @property
    def gpus(self) -> Sequence[str]:
        """UUIDs."""

    def measure(self, probe: str, knobs: Knobs, runs: int) -> KernelRuns:
        """Run a probe so often on each GPU, with these knobs where it is `stress`; settings are as before afterwards.

        DeviceError where no GPU could run it.
        """


@dataclass(frozen=True)
class KernelFigure:
    """A figure with its 95 % interval (W, or a ratio of variances)."""

    value: float
    low: float | None
    high: float | None
    gpus: int
    runs: int
    """In all."""
    figure: str
    """'power' or 'rate': of what it is."""


@dataclass(frozen=True)
class TriedKernel:
    """A setting that was tried."""

    knobs: Knobs
    value: float | None
    """Of the goal; None where it failed."""
    failure: str | None = None


@dataclass(frozen=True)
class StressReport:
    """What the search came to."""

    goal: str
    knobs: Knobs
    """Of the best kernel, all of them."""
    best: KernelFigure
    """Measured anew after the search, with more runs."""
    rivals: Mapping[str, KernelFigure]
    """The same of probes of the catalogue, the best one first."""
    trials: Sequence[TriedKernel]
    gpus: Sequence[str]
    unfit_share: float
    """Of random settings of the knobs, that the GPU cannot run; they are never tried."""
    notes: Sequence[str] = ()


def search_stress(bench: KernelBench, options: StressSearchOptions | None = None) -> StressReport:
    """The kernel of most power or widest spread. Raises InputError where a log is of another search, DeviceError where
    no GPU runs any kernel."""
    raise NotImplementedError
