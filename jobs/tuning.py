"""Tuning: the setting of the GPUs of one model on this node that needs the least energy within a bound on time.

    answer = tune(bench, Bound(max_slowdown=0.05), TuneOptions(trials=14))
    answer.setting, answer.saved.pct, answer.slower.pct

A `Bench` measures a setting on a GPU: a probe (`tuning_probe`) or a command of the user (`tuning_command`). The loop is
the same for all of them:

1. The default is measured once on each GPU. The GPU at the 90 % quantile of the times, the slow end, is tuned.
2. `Search` suggests settings, and they are measured on that GPU.
3. The default and the answer are measured again in turn, three times: saving and slowdown, with intervals. An answer
   whose mean time is over the bound is given up for the next best one.
4. The answer is measured once on each other GPU: which of them are over the bound is an answer too.

Energy is that of one unit of work, time is what the bound is on. The bench sets and restores every setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..analysis.tuning.search import Bound, Knob, Prior, Setting, Trial

REPEATS = 3
"""How often default and answer are measured again."""
LEAST_NOISE = 0.005
"""The noise of a trial is taken for at least so much: a few trials alone cannot show that it is less."""


@dataclass(frozen=True)
class UnsetKnob:
    """A knob that is not searched, because it cannot be set here."""

    name: str
    """As of a `Knob`."""
    reason: str
    """A sentence."""
    commands: tuple[str, ...]
    """With which an administrator sets it, one for each GPU; the value stands there as W, MHZ or MIN,MAX."""
    values: tuple[float, ...] = ()
    """The values that the GPU has, where they are known."""


class Bench(Protocol):
    """What is tuned, on the GPUs of one model of this node."""

    @property
    def label(self) -> str:
        """The probe's name, or the command."""

    @property
    def gpus(self) -> Sequence[str]:
        """UUIDs of the GPUs, at least one."""

    @property
    def knobs(self) -> Sequence[Knob]:
        """What is searched; without one there is no search."""

    @property
    def unset(self) -> Sequence[UnsetKnob]:
        """What cannot be set here."""

    def measure(self, setting: Setting, gpu: str, *, stop_over_s: float | None = None) -> Trial:
        """Energy and time at a setting on a GPU, which is as it was afterwards.

        With `stop_over_s` a trial whose first tenth takes longer (s, of what the bound is on) ends there. A setting
        with which the work cannot run is a trial without energy and time. Raises InputError where a setting is
        refused, DeviceError where the GPU fails.
        """

    def commands(self, setting: Setting) -> Sequence[str]:
        """With which an administrator sets it on every GPU; empty for the default."""


@dataclass(frozen=True)
class TuneOptions:
    """How `tune` searches."""

    trials: int = 14
    """Settings measured in the search, the default among them."""
    safe: bool = False
    """Begin near the default, take only settings that are probably within the bound, end trials over it early."""
    seed: int = 0
    log: Path | None = None
    """A file that gets a line of JSON for each measurement. One that is there is gone on with: what it holds is not
    measured again."""
    prior: Prior | None = None
    """What another model's sweep of the same work says; for few trials."""
    progress: Callable[[TuneStep], None] = lambda _: None


@dataclass(frozen=True)
class TuneStep:
    """A measurement that has just ended, for a progress bar."""

    done: int
    total: int
    """How many there will be, about."""
    stage: str
    """'class', 'trial', 'default', 'answer' or 'check'."""
    gpu: str
    setting: Setting
    energy_j: float | None
    time_s: float | None


@dataclass(frozen=True)
class Share:
    """By how many % something differs, with its 95 % interval (Student's t on paired ln ratios)."""

    pct: float
    low_pct: float | None
    """None, as `high_pct`, where it was not measured or only once."""
    high_pct: float | None
    n: int
    """Pairs of default and answer; 0 where the default is the answer."""


@dataclass(frozen=True)
class TuneTrial:
    """A setting as it was measured in the search."""

    setting: Setting
    energy_j: float | None
    """None, as `time_s`, where the work could not run."""
    time_s: float | None
    over: bool
    """Whether the time is over the bound."""
    ended_early: bool


@dataclass(frozen=True)
class TunedGpu:
    """A GPU of the class: the default and the answer on it, one run each (the tuned one: means of several)."""

    gpu: str
    tuned: bool
    """Whether the search ran on it."""
    default_time_s: float | None = None
    default_energy_j: float | None = None
    time_s: float | None = None
    energy_j: float | None = None
    slower_pct: float | None = None
    saved_pct: float | None = None
    over: bool | None = None
    """Whether it is over its bound by more than the noise of its two runs; None where it was not measured."""
    failure: str | None = None
    """Why it was left out, in a sentence."""


@dataclass(frozen=True)
class TuneAnswer:
    """What tuning came to."""

    label: str
    bound: Bound
    bound_s: float | None
    """On the tuned GPU, s; None without a search."""
    default: Setting
    setting: Setting
    """The answer: the default where nothing better holds the bound."""
    is_default: bool
    saved: Share
    slower: Share
    noise: float
    """Relative standard deviation of a trial's time and energy, as the search took it."""
    noise_n: int
    """Degrees of freedom of what was measured of it."""
    trials: tuple[TuneTrial, ...] = ()
    gpus: tuple[TunedGpu, ...] = ()
    unset: tuple[UnsetKnob, ...] = ()
    commands: tuple[str, ...] = ()
    """For the administrator: they set the answer."""
    notes: tuple[str, ...] = field(default=())
    """What somebody should know, in sentences: a torn line of the log, answers that were given up."""

    @property
    def searched(self) -> bool:
        """Whether there was a knob to search; else this is a plan for an administrator (`unset`)."""
        return bool(self.trials)


def tune(bench: Bench, bound: Bound, options: TuneOptions | None = None) -> TuneAnswer:
    """The setting of least energy within the bound, among those that the bench can set.

    A GPU that fails is left out. Raises InputError where a log is of another search, where a setting is refused half
    way, or where all GPUs fail.
    """
    raise NotImplementedError
