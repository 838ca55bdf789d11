"""Tuning: the setting of the GPUs of one model on this node that needs the least energy within a bound on time.

    answer = tune(bench, TimeBound(max_slowdown=0.05), TuningOptions(trials=14))
    answer.setting, answer.saved.pct, answer.slower.pct

A `TuneBench` measures a setting on a GPU: a probe (`tuning_probe`) or a command of the user (`tuning_command`). The
loop is the same for all of them:

1. The default is measured once on each GPU. The GPU at the 90 % quantile of the times, the slow end, is tuned.
2. The default is measured there once more, and then what `Search` suggests.
3. The default and the answer are measured again in turn, three times: saving and slowdown, with intervals. An answer
   whose mean time is not below the bound by its standard error, or that saves nothing, is given up for the next best.
4. The answer is measured once on each other GPU: which of them are over the bound is an answer too.

Energy is that of one unit of work, time is what the bound is on. The bench sets and restores every setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Protocol

from ..analysis.tuning.search import MARGIN, Knob, Prior, Search, Setting, TimeBound, Trial
from ..errors import DeviceError, InputError
from .tuning_knobs import UnsetKnob
from .tuning_log import TuneLog, TuneStep

REPEATS = 3
"""How often default and answer are measured again."""
LEAST_NOISE, LEAST_UNSTATED_NOISE = 0.002, 0.005
"""The noise of a trial is taken for at least so much, as a few runs cannot show that it is less: where each trial
states its own, and where two runs of the default are all there is."""
SLOW_END = 0.9
"""The quantile of the default's times whose GPU is tuned."""
Pair = tuple[Trial, Trial]
"""Default and answer, measured one after the other."""
_GIVEN_UP = 3  # answers, before the default is the answer
_STUDENT = {1: 12.706, 2: 4.303}
"""The 97.5 % quantile of Student's t, by degrees of freedom."""


class TuneBench(Protocol):
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

        With `stop_over_s` (s) a trial whose first tenth shows a longer time ends there. Raises DeviceError where the
        work cannot run or its result is wrong, and with `gone` where the GPU does not answer any more; InputError where
        a setting is refused.
        """

    def commands(self, setting: Setting) -> Sequence[str]:
        """With which an administrator sets it on every GPU; empty for the default."""


@dataclass(frozen=True)
class TuneProgress:
    """How far tuning is."""

    step: TuneStep
    """What has just ended."""
    done: int
    total: int
    """Of how many measurements in all, about, so many are done."""


@dataclass(frozen=True)
class TuningOptions:
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
    progress: Callable[[TuneProgress], None] = lambda _: None


@dataclass(frozen=True)
class TuneShare:
    """By how many % the answer differs from the default, with its 95 % interval (Student's t on paired ln ratios)."""

    pct: float
    low_pct: float | None = None
    """None, as `high_pct`, where it was measured once or not at all."""
    high_pct: float | None = None
    n: int = 0
    """Pairs of default and answer; 0 where the default is the answer."""


@dataclass(frozen=True)
class TunedGpu:
    """A GPU of the class, with the default and the answer on it: one run each, on the tuned one the means of several.

    None where it was not measured.
    """

    gpu: str
    tuned: bool = False
    """Whether the search ran on it."""
    default_energy_j: float | None = None
    default_time_s: float | None = None
    energy_j: float | None = None
    time_s: float | None = None
    saved_pct: float | None = None
    slower_pct: float | None = None
    over: bool | None = None
    """Whether it is over its bound by more than the noise of its runs."""
    failure: str | None = None
    """Why it was left out, in a sentence."""


@dataclass(frozen=True)
class TuneAnswer:
    """What tuning came to."""

    label: str
    bound: TimeBound
    bound_s: float
    """On the tuned GPU, s."""
    default: Setting
    setting: Setting
    """The answer: the default where nothing better holds the bound."""
    within: bool
    """Whether the answer holds the bound: a default may be over a time that was stated."""
    saved: TuneShare
    slower: TuneShare
    noise: float
    """Relative standard deviation of a trial, as the search took it."""
    margin: float
    """Share of the bound that a trial must keep below it to be the answer: twice the noise, of the trial over the
    default where the bound is relative to that."""
    run_noise: float | None
    """The noise of the time, as the repeated runs show it; None without repeated runs."""
    run_noise_n: int
    """Its degrees of freedom."""
    trials: tuple[Trial, ...]
    """The default first. None where there was no knob to search: then this is a plan for an administrator (`unset`)."""
    gpus: tuple[TunedGpu, ...]
    unset: tuple[UnsetKnob, ...]
    commands: tuple[str, ...]
    """For the administrator: they set the answer."""
    given_up: tuple[Setting, ...]
    """Answers of the search that were too near the bound, or saved nothing, when they were measured again."""
    torn_line: int | None
    """The line of the log that was dropped because it had no end."""

    @property
    def is_default(self) -> bool:
        """Whether the default is the answer."""
        return self.setting == self.default

    def is_over(self, trial: Trial) -> bool:
        """Whether the time of a trial is over the bound."""
        return trial.time_s is not None and trial.time_s > self.bound_s


def tune(bench: TuneBench, bound: TimeBound, options: TuningOptions | None = None) -> TuneAnswer:
    """The setting of least energy within the bound, among those that the bench can set.

    A GPU that fails is left out, and so is a setting with which the work cannot run. Raises InputError where a log is
    of another search and where a setting is refused half way, DeviceError where all GPUs fail or the tuned one is gone.
    """
    options = options or TuningOptions()
    if options.trials < 3:
        raise InputError(f"--trials is 3 or more, as the default is one of them, not {options.trials}")
    knobs = {knob.name: {"default": knob.default, "values": list(knob.values)} for knob in bench.knobs}
    limit = {"max_slowdown": bound.max_slowdown, "max_time_s": bound.max_time_s}
    with TuneLog(options.log, {"label": bench.label, "bound": limit, "knobs": knobs}) as steps:
        return _Tuning(bench, bound, options, steps).run()


class _Tuning:
    """One call of `tune`."""

    def __init__(self, bench: TuneBench, bound: TimeBound, options: TuningOptions, trial_log: TuneLog) -> None:
        self._bench, self._bound, self._options, self._log = bench, bound, options, trial_log
        self._default: Setting = {knob.name: knob.default for knob in bench.knobs}
        self._done, self._total = 0, 2 * len(bench.gpus) + options.trials - 1 + 2 * REPEATS
        self._noise = LEAST_UNSTATED_NOISE
        self._noisy_runs = 1 if bound.max_slowdown is None else 2
        """How many runs a time beside its bound is of: the default's too where the bound is relative to that."""
        self._before: list[Trial] = []
        """The default on the tuned GPU, before the search."""
        self._given_up: list[Setting] = []

    def run(self) -> TuneAnswer:
        firsts = {gpu: self._step("class", gpu, self._default) for gpu in self._bench.gpus}
        usable = sorted((first.time_s, gpu) for gpu, first in firsts.items() if first.time_s is not None)
        if not usable:
            raise DeviceError(next(str(first.failure) for first in firsts.values()))
        tuned = usable[round(SLOW_END * (len(usable) - 1))][1]
        self._before = [firsts[tuned]]
        trials: list[Trial] = []
        setting, pairs = self._default, list[Pair]()
        if self._bench.knobs:
            trials = self._search(tuned)
            setting, pairs = self._confirmed(tuned, trials)
        defaults, answers = [*self._before, *(pair[0] for pair in pairs)], [pair[1] for pair in pairs]
        run_noise, run_noise_n = _noise([defaults, answers])
        default = _mean(defaults)
        answer = _mean(answers) if answers else default
        bound_s = self._bound.longest_s(_time(default))
        of_default = (self._noisy_runs - 1) / len(self._before)
        return TuneAnswer(
            label=self._bench.label,
            bound=self._bound,
            bound_s=bound_s,
            default=self._default,
            setting=setting,
            within=_time(answer) <= bound_s,
            saved=_share(pairs, "energy_j", sign=-1),
            slower=_share(pairs, "time_s"),
            noise=self._noise,
            margin=MARGIN * self._noise * sqrt(1 + of_default),
            run_noise=run_noise,
            run_noise_n=run_noise_n,
            trials=tuple(trials),
            gpus=tuple(
                self._checked(gpu, (default, answer) if gpu == tuned else (first, None), setting, run_noise)
                for gpu, first in firsts.items()
            ),
            unset=tuple(self._bench.unset),
            commands=tuple(self._bench.commands(setting)),
            given_up=tuple(self._given_up),
            torn_line=self._log.torn_line,
        )

    def _step(self, stage: str, gpu: str, setting: Setting, *, stop_over_s: float | None = None) -> Trial:
        """Measure a setting, or take it from the log."""
        step = self._log.take(stage, gpu, setting)
        if step is None:
            try:
                trial = self._bench.measure(setting, gpu, stop_over_s=stop_over_s)
            except (DeviceError, InputError) as error:
                # One GPU of the class may be gone, or refuse the answer. Without the tuned one there is no search.
                if stage != "check" and (isinstance(error, InputError) or (error.gone and stage != "class")):
                    raise
                trial = Trial(setting, failure=str(error))
            step = TuneStep(**vars(trial), stage=stage, gpu=gpu)
            if step.failure is None or stage == "trial":  # a GPU that failed may be back when the run goes on
                self._log.append(step)
        self._done += 1
        self._options.progress(TuneProgress(step, self._done, max(self._done, self._total)))
        return step

    def _search(self, tuned: str) -> list[Trial]:
        """The trials, the default first. Those of the log come before others."""
        repeated = self._step("default", tuned, self._default)
        self._before += [repeated] if repeated.failure is None else []
        stated = [trial.noise for trial in self._before if trial.noise is not None]
        least = LEAST_NOISE if len(stated) == len(self._before) else LEAST_UNSTATED_NOISE
        self._noise = max(least, *stated, _noise([self._before])[0] or 0.0)
        trials, stored = [_mean(self._before)], self._log.settings("trial", tuned)
        longest_s = self._bound.longest_s(_time(trials[0])) * (1 + 2 * self._noise)
        while len(trials) < self._options.trials:
            setting = stored.pop(0) if stored else self._told(trials[1:]).suggest()
            if setting is None:  # all are measured, or a safe search hopes for none
                break
            trials.append(self._step("trial", tuned, setting, stop_over_s=longest_s if self._options.safe else None))
        return trials

    def _confirmed(self, tuned: str, trials: Sequence[Trial]) -> tuple[Setting, list[Pair]]:
        """The answer, and default and answer measured in turn; without pairs the default, as nothing better holds."""
        while len(self._given_up) < _GIVEN_UP:
            setting = self._told([trial for trial in trials[1:] if trial.setting not in self._given_up]).answer()
            if setting == self._default:
                break
            pairs = [
                (self._step("default", tuned, self._default), self._step("answer", tuned, setting))
                for _ in range(REPEATS)
            ]
            pairs = [pair for pair in pairs if pair[0].failure is None and pair[1].failure is None]
            if pairs and self._holds(pairs):
                return setting, pairs
            self._given_up.append(setting)
        return self._default, []

    def _told(self, trials: Sequence[Trial]) -> Search:
        """A search that knows the default and these trials."""
        options, noise = self._options, self._noise
        search = Search(
            self._bench.knobs, self._bound, noise=noise, safe=options.safe, seed=options.seed, prior=options.prior
        )
        for trial in (*self._before, *trials):
            search.tell(trial.setting, trial.energy_j, trial.time_s, noise=max(noise, trial.noise or 0.0))
        return search

    def _holds(self, pairs: Sequence[Pair]) -> bool:
        """Whether an answer that was measured again saves energy, and is a standard error or more below the bound."""
        default, answer = (_mean([pair[side] for pair in pairs]) for side in (0, 1))
        room = 1 - self._noise * sqrt(self._noisy_runs / len(pairs))
        longest_s = self._bound.longest_s(_time(default))
        return _ratio((default, answer), "energy_j") < 1 and _time(answer) <= room * longest_s

    def _checked(
        self, gpu: str, measured: tuple[Trial, Trial | None], setting: Setting, run_noise: float | None
    ) -> TunedGpu:
        """A GPU of the class, with its default and, where it is the tuned one, the answer."""
        default, answer = measured
        about = TunedGpu(gpu, answer is not None, default.energy_j, default.time_s, failure=default.failure)
        if default.failure is not None:
            return about
        if answer is None:
            answer = default if setting == self._default else self._step("check", gpu, setting)
        if answer.failure is not None:
            return replace(about, failure=answer.failure)
        room = 1 + 2 * sqrt(self._noisy_runs) * (self._noise if run_noise is None else run_noise)
        return replace(
            about,
            energy_j=answer.energy_j,
            time_s=answer.time_s,
            saved_pct=100 * (1 - _ratio((default, answer), "energy_j")),
            slower_pct=100 * (_ratio((default, answer), "time_s") - 1),
            over=_time(answer) > room * self._bound.longest_s(_time(default)),
        )


def _time(trial: Trial) -> float:
    assert trial.time_s is not None, "a trial that failed is left out before"
    return trial.time_s


def _ratio(pair: Pair, name: str) -> float:
    """Answer over default, of energy or time."""
    default, answer = (float(getattr(trial, name)) for trial in pair)
    return answer / default


def _mean(trials: Sequence[Trial]) -> Trial:
    """Trials of one setting as one, with the geometric means of energy and time."""
    energy_j, time_s = (exp(fmean(log(getattr(trial, name)) for trial in trials)) for name in ("energy_j", "time_s"))
    return replace(trials[0], energy_j=energy_j, time_s=time_s)


def _noise(groups: Sequence[Sequence[Trial]]) -> tuple[float | None, int]:
    """The pooled standard deviation of ln time within groups of one setting each, and its degrees of freedom."""
    times = [[log(_time(trial)) for trial in trials] for trials in groups if len(trials) > 1]
    freedom = sum(len(logs) - 1 for logs in times)
    if not freedom:
        return None, 0
    return sqrt(sum((len(logs) - 1) * stdev(logs) ** 2 for logs in times) / freedom), freedom


def _share(pairs: Sequence[Pair], name: str, *, sign: int = 1) -> TuneShare:
    """By how many % the answer has more energy or time than the default; with `sign` -1, less."""
    logs = [log(_ratio(pair, name)) for pair in pairs]
    if not logs:
        return TuneShare(0.0)
    half = _STUDENT[len(logs) - 1] * stdev(logs) / sqrt(len(logs)) if len(logs) > 1 else 0.0
    low, pct, high = (sign * 100 * (exp(fmean(logs) + side * half) - 1) for side in (-sign, 0, sign))
    return TuneShare(pct, low, high, len(logs)) if len(logs) > 1 else TuneShare(pct, n=1)
