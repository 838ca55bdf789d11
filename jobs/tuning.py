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

The log of a run has a line of JSON for each measurement, so that one that was interrupted can go on. Its first line
says what is tuned, each other one holds a `TuneStep`. A line counts when it ends: what a killed process left half
written is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from textwrap import shorten
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..analysis.tuning.search import MARGIN, FloatArray, Knob, Prior, Process, Search, Setting, TimeBound, Trial
from ..analysis.tuning.sweep import MeasuredSweep, read_sweeps
from ..errors import DeviceError, InputError
from .tuning_knobs import UnsetKnob

if TYPE_CHECKING:
    from ..store import Store

SCHEMA = "whorl.tune.log/1"


@dataclass(frozen=True)
class TuneStep(Trial):
    """A trial that has ended, with what it was for."""

    stage: str = field(kw_only=True)  # 'class', 'trial', 'default', 'answer' or 'check'
    gpu: str = field(kw_only=True)


class TuneLog:
    """The measurements of a tuning run; a context manager. Without a path it keeps and writes nothing.

    `head` says what is tuned. Raises InputError where the file cannot be written, is no such log, or has another head.
    """

    def __init__(self, path: Path | None, head: Mapping[str, Any]) -> None:
        self.path = path
        self.torn_line: int | None = None  # the number of the line that was dropped because it had no end
        self._steps: list[TuneStep] = []
        self._file: FileIO | None = None
        if path is not None:
            try:
                self._open(path, json.loads(json.dumps({"schema": SCHEMA, **head})))
            except OSError as error:
                raise self._unwritable(error) from error

    def _open(self, path: Path, head: dict[str, Any]) -> None:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: the log of the trials must be a file, and this is none: choose another path")
        content = path.read_bytes() if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        lines = complete.splitlines()
        if content and not lines:
            raise _no_log(path)
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if number > 1:
                    self._steps.append(_step(row))
            except (ValueError, TypeError) as error:
                raise InputError(f"{path}: line {number} is no trial ({error}): choose another file") from error
            if number == 1:
                _refuse_other(path, row, head)
        self._file = path.open("ab", buffering=0)  # what could not be written is not tried again when it is closed
        if complete != content:
            self.torn_line = len(lines) + 1
            self._file.truncate(len(complete))
        if not lines:
            self._write(head)

    def take(self, stage: str, gpu: str, setting: Setting) -> TuneStep | None:
        """A measurement of the file that is this one, each once; None where it is to be made."""
        for place, step in enumerate(self._steps):
            if (step.stage, step.gpu, dict(step.setting)) == (stage, gpu, dict(setting)):
                return self._steps.pop(place)
        return None

    def settings(self, stage: str, gpu: str) -> list[Setting]:
        """What the file holds of a stage on a GPU and nobody has taken, in its order."""
        return [step.setting for step in self._steps if (step.stage, step.gpu) == (stage, gpu)]

    def append(self, step: TuneStep) -> None:
        """Write a measurement down. Raises InputError where that is not possible."""
        try:
            self._write(asdict(step))
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            line = f"{json.dumps(row)}\n".encode()
            while line:  # a disk that is nearly full takes a part, and refuses the next one
                line = line[self._file.write(line) :]

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: the log of the trials cannot be written ({error.strerror})")

    def __enter__(self) -> TuneLog:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def _step(row: dict[str, Any]) -> TuneStep:
    """A line of a log. Raises TypeError where a person has changed it into something else."""
    step = TuneStep(**row)
    if not isinstance(step.setting, dict):
        raise TypeError("its setting is no object")
    numbers = (*step.setting.values(), step.energy_j, step.time_s, step.noise)
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        raise TypeError("its setting, energy, time and noise must be numbers")
    if not all(number is None or 0 < number < inf for number in (step.energy_j, step.time_s)):
        raise TypeError("its energy and time must be above 0")
    if step.time_s is None and step.failure is None:
        raise TypeError("it has neither a time nor a failure")
    return step


def _no_log(path: Path) -> InputError:
    return InputError(f"{path}: this is no log of whorl tune: choose another file")


def _refuse_other(path: Path, row: Any, head: Mapping[str, Any]) -> None:
    """Raises InputError where the first line of a log is of something else than what is tuned."""
    if not isinstance(row, dict) or row.get("schema") != SCHEMA:
        raise _no_log(path)
    for name, value in head.items():
        if row.get(name) != value:
            logged, present = (shorten(json.dumps(text), 100, placeholder=" ...") for text in (row.get(name), value))
            raise InputError(
                f"{path}: it is the log of another search (its {name}: {logged}, and not {present}): choose another "
                "file"
            )


# -- the loop ----------------------------------------------------------------------------------------------------------

REPEATS = 3  # how often default and answer are measured again
LEAST_NOISE, LEAST_UNSTATED_NOISE = 0.002, 0.005
"""The noise of a trial is taken for at least so much, as a few runs cannot show that it is less: where each trial
states its own, and where two runs of the default are all there is."""
SLOW_END = 0.9  # the quantile of the default's times whose GPU is tuned
Pair = tuple[Trial, Trial]  # default and answer, measured one after the other
_GIVEN_UP = 3  # answers, before the default is the answer
_STUDENT = {1: 12.706, 2: 4.303}  # the 97.5 % quantile of Student's t, by degrees of freedom


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

    step: TuneStep  # what has just ended
    done: int
    total: int  # of about so many measurements in all


@dataclass(frozen=True)
class TuningOptions:
    """How `tune` searches."""

    trials: int = 14  # settings measured in the search, the default among them
    safe: bool = False
    """Begin near the default, take only settings that are probably within the bound, end trials over it early."""
    seed: int = 0
    log: Path | None = None
    """A file that gets a line of JSON for each measurement. One that is there is gone on with: what it holds is not
    measured again."""
    prior: Prior | None = None  # what another model's sweep of the same work says; for few trials
    progress: Callable[[TuneProgress], None] = lambda _: None


@dataclass(frozen=True)
class TuneShare:
    """By how many % the answer differs from the default, with its 95 % interval (Student's t on paired ln ratios)."""

    pct: float
    low_pct: float | None = None  # None, as `high_pct`, where it was measured once or not at all
    high_pct: float | None = None
    n: int = 0  # pairs of default and answer; 0 where the default is the answer


@dataclass(frozen=True)
class TunedGpu:
    """A GPU of the class, with the default and the answer on it: one run each, on the tuned one the means of several.

    None where it was not measured.
    """

    gpu: str
    tuned: bool = False  # whether the search ran on it
    default_energy_j: float | None = None
    default_time_s: float | None = None
    energy_j: float | None = None
    time_s: float | None = None
    saved_pct: float | None = None
    slower_pct: float | None = None
    over: bool | None = None  # whether it is over its bound by more than the noise of its runs
    failure: str | None = None  # why it was left out, in a sentence


@dataclass(frozen=True)
class TuneAnswer:
    """What tuning came to."""

    label: str
    bound: TimeBound
    bound_s: float  # on the tuned GPU, s
    default: Setting
    setting: Setting  # the answer: the default where nothing better holds the bound
    within: bool  # whether the answer holds the bound: a default may be over a time that was stated
    saved: TuneShare
    slower: TuneShare
    noise: float  # relative standard deviation of a trial, as the search took it
    margin: float
    """Share of the bound that a trial must keep below it to be the answer: twice the noise, of the trial over the
    default where the bound is relative to that."""
    run_noise: float | None  # the noise of the time, as the repeated runs show it; None without repeated runs
    run_noise_n: int  # its degrees of freedom
    trials: tuple[Trial, ...]
    """The default first. None where there was no knob to search: then this is a plan for an administrator (`unset`)."""
    gpus: tuple[TunedGpu, ...]
    unset: tuple[UnsetKnob, ...]
    commands: tuple[str, ...]  # for the administrator: they set the answer
    given_up: tuple[Setting, ...]
    """Answers of the search that were too near the bound, or saved nothing, when they were measured again."""
    torn_line: int | None  # the line of the log that was dropped because it had no end

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
        self._before: list[Trial] = []  # the default on the tuned GPU, before the search
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


# -- what a search of few trials begins with ---------------------------------------------------------------------------

_SHARES = ("power_limit_w", "sm_clock_mhz", "memory_clock_mhz")


def prior_from(source: str, knobs: Sequence[Knob], *, probe: str | None, store: Store | str | Path | None) -> Prior:
    """The prior of a search over these knobs: measurements of the same work on another model, as the option names them.

    `source` is the log of a search; or a file of sweeps, as sweep.csv, or where it has several workloads as
    sweep.csv:network=resnet50,optimizer=adam,batch=256; else a model of GPU, or a part of its name, on which the store
    has runs of the `probe` under several settings. Raises InputError where neither is there, or what it says is of no
    use for these knobs.
    """
    name, _, labels = source.partition(":")
    path = Path(name)
    if path.is_file():
        trials = _of_log(path, None if store is None else probe)  # a command may be called in another way
        measured = _of_sweeps(path, labels, knobs) if trials is None else trials
    elif probe is None or store is None:
        raise InputError(f"warm-start={source}: there is no such file; a model of GPU needs a probe and a store")
    else:
        measured = _of_store(store, probe, source)
    return warm_start(knobs, measured)


def warm_start(knobs: Sequence[Knob], measured: Sequence[Trial]) -> Prior:
    """The prior of a search over these knobs, from measurements on another model, none of which failed.

    A power limit and a clock count as shares of the highest one, any other knob by the logarithm of its value (arcsinh,
    which takes 0 too). A process through ln energy and ln time says what to expect at each setting, up to a constant.
    Knobs that these lack or do not vary change nothing. Beyond their range, its ends count. InputError where no knob
    remains.
    """
    settings = [trial.setting for trial in measured]
    axes = [
        (place, knob) for place, knob in enumerate(knobs) if len({setting.get(knob.name) for setting in settings}) > 1
    ]
    if not axes:
        searched = ", ".join(knob.name for knob in knobs)
        raise InputError(f"what warm-start names varies none of the knobs {searched}: name other measurements")
    columns = [(knob.name, np.array([setting[knob.name] for setting in settings])) for _, knob in axes]
    points = np.stack([_comparable(name, values, float(values.max())) for name, values in columns], axis=1)
    lowest, span = points.min(axis=0), np.ptp(points, axis=0)
    figures = np.log(np.array([(trial.energy_j, trial.time_s) for trial in measured], np.float64)).T
    energy, time = (Process().fit((points - lowest) / span, values) for values in figures)

    def expected(scaled: FloatArray) -> tuple[FloatArray, FloatArray]:
        coordinates = np.empty((len(scaled), len(axes)))
        for column, (place, knob) in enumerate(axes):
            values = np.interp(scaled[:, place], np.linspace(0, 1, len(knob.values)), knob.values)
            coordinates[:, column] = _comparable(knob.name, values, knob.values[-1])
        within = np.clip((coordinates - lowest) / span, 0.0, 1.0)
        return energy.predict(within)[0], time.predict(within)[0]

    return expected


def _comparable(name: str, values: FloatArray, highest: float) -> FloatArray:
    """Values of a knob in a form in which two models can be compared."""
    return np.asarray(values / highest if name in _SHARES else np.arcsinh(values))


def _of_log(path: Path, probe: str | None) -> list[Trial] | None:
    """The measurements of the log of a search, of all of its GPUs; None where the file is no such log.

    InputError where it is of another probe than the one that is named.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if SCHEMA.encode() not in head:
            return None
        label = json.loads(head).get("label")
        steps = [json.loads(line) for line in body.split(b"\n")[:-1]]  # what follows the last end of line is torn
        trials = [Trial(dict(step["setting"]), step["energy_j"], step["time_s"]) for step in steps]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a log of whorl tune ({error}): name another file") from error
    if probe is not None and label != probe:
        raise InputError(f"{path} is the log of a search for {label}, and not for {probe}: name another file")
    return [trial for trial in trials if trial.energy_j is not None and trial.time_s is not None]


def _of_sweeps(path: Path, labels: str, knobs: Sequence[Knob]) -> list[Trial]:
    """The settings of one workload of a file of sweeps: of all batch sizes where these are searched, else of one."""
    file = read_sweeps(path)
    sweeps = [sweep for sweep in file.sweeps if set(filter(None, labels.split(","))) <= _labels(sweep)]
    batch = next((knob.name for knob in knobs if file.has_batches and knob.name.startswith("batch")), None)
    if len({sweep.workload for sweep in sweeps}) != 1 or (batch is None and len(sweeps) > 1):
        example = ",".join(sorted(_labels(file.sweeps[0])))
        raise InputError(
            f"{path} has {len(sweeps)} sweeps{labels and ' with '}{labels}: choose one workload, and one batch size "
            f"where that is no knob, as warm-start={path}:{example}"
        )
    return [
        Trial({file.knob: setting} if batch is None else {file.knob: setting, batch: size}, energy_j, time_s)
        for sweep in sweeps
        for setting, size, energy_j, time_s in zip(
            *(figure.tolist() for figure in (sweep.settings, sweep.batch_sizes, sweep.energies_j, sweep.times_s)),
            strict=True,
        )
    ]


def _labels(sweep: MeasuredSweep) -> set[str]:
    """What tells a sweep from others of its file, as network=resnet50."""
    labels = {**asdict(sweep.workload), "batch": f"{sweep.batch_sizes[0]:g}"}
    return {f"{name}={value}" for name, value in labels.items() if value not in (None, "nan")}


def _of_store(store: Store | str | Path, probe: str, model: str) -> list[Trial]:
    """Runs of a probe on a model, each relative to the default of its GPU. It needs whorl with all its packages."""
    import polars as pl

    from ..analysis.power_classes import own_runs
    from ..store import Store as Opened

    opened = store if isinstance(store, Opened) else Opened.open(store)
    runs = own_runs(opened, workload=probe).filter(
        pl.col("workload") == probe, pl.col("model").str.to_lowercase().str.contains(model.lower(), literal=True)
    )
    figures = [pl.col(name) / pl.col(name).filter("at_default").mean().over("unit") for name in ("energy_j", "time_s")]
    runs = runs.select("limit_w", "clock_mhz", *figures).drop_nulls()
    if runs.height < 2:
        raise InputError(
            f"{model} is no file, and {opened.root} has no runs of {probe} on a model with {model} in its name, at the "
            f"default and other settings: `whorl tune {probe}` on such a GPU stores them"
        )
    return [
        Trial({"power_limit_w": limit_w, "sm_clock_mhz": clock_mhz}, energy_j, time_s)
        for limit_w, clock_mhz, energy_j, time_s in runs.rows()
    ]
