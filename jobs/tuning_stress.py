"""Search the knobs of the generated kernel `stress` for most power, or for the widest spread between GPUs.

    report = search_stress(kernels_in(drawn_fleet(gpus=8)), StressSearchOptions(goal="spread", trials=60))

The first trials are the default, and settings like kernels of the catalogue. Each trial runs the kernel on every GPU of
the bench, as `whorl probe run` does: checked, with its settings restored. The probes of the catalogue are measured in
the same way, so that the report says what the search was worth. Trials are in no store of the user's, because they are
no runs of one workload. The kernel that was found is a probe with `whorl probe run stress --set knobs=FILE`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.tuning.stress import RunFigure, StressKnob, StressSearch, mean_of_runs, spread_over_runs
from ..collectors.recording import short_hash
from ..errors import DeviceError, InputError
from ..kernels import stress
from ..kernels.work import Facts
from ..probes.campaign import Plan, Report
from ..probes.catalogue import Kind, Probe, find_probe, suite
from ..probes.conditions import Asked
from ..probes.effort import EFFORTS
from ..store.vocabulary import Outcome
from .tuning import TuneLog, TuneStep
from .tuning_knobs import CLOCK, POWER, GpuKnobs, UnsetKnob, knobs_of_gpus, knobs_of_model
from .tuning_probe import facts_of_devices, facts_of_fleet

if TYPE_CHECKING:
    from ..kernels.device import Device
    from ..simulation.fleet import Fleet

KernelSetting = Mapping[str, float]
"""Knobs of `kernels.stress.KNOBS` by name, `sm_clock_mhz`, and for a spread `power_limit_w`."""
KERNEL = "stress"
FINALISTS = 8  # kernels, and probes, that are measured again before the best one is chosen
_RUNS = {"power": (1, 2, 3), "spread": (4, 6, 8)}
"""By goal, of each GPU: in a trial, of a finalist, and of the winner, all of them fresh."""
_LEAST = 1e-3  # a score below it is taken for it: its logarithm is what is searched


@dataclass(frozen=True)
class KernelBench:
    """GPUs of one model on which kernels are tried."""

    facts: Mapping[str, Facts]  # by UUID
    gpu_knobs: GpuKnobs
    run: Callable[[Plan, Mapping[str, float | None], int], Report]
    """Runs a plan on all of them, under `power_limit_w` and `lock_clock_mhz`; the number of the run, from 1 on."""


@dataclass(frozen=True)
class StressSearchOptions:
    """How `search_stress` searches."""

    goal: str = "power"
    """'power': the mean power of the GPUs at the highest power limit, W. 'spread': the variance between GPUs over the
    variance between runs, of the rate or of the power, whichever has more."""
    trials: int = 60
    seed: int = 0
    suite: str = "quick"  # how thoroughly a trial is measured
    log: Path | None = None  # a file that gets a line of JSON for each run of a GPU. One that is there is gone on with.
    rivals: Sequence[str] | None = None  # probes to compare with; None for all steady ones of the suite 'standard'
    progress: Callable[[StressProgress], None] = lambda _: None


@dataclass(frozen=True)
class KernelScore:
    """What a kernel came to."""

    label: str  # 'stress', or the probe's name
    setting: KernelSetting  # of the kernel `stress`, all of it; of a probe nothing
    score: RunFigure | None  # W, or a ratio of variances. None where it failed.
    figure: str = "power"  # 'power' or 'rate': of what it is
    failure: str | None = None  # why there is no score, in a sentence

    @property
    def value(self) -> float | None:
        """The score alone."""
        return None if self.score is None else self.score.value


@dataclass(frozen=True)
class StressProgress:
    """A kernel that was tried, for a progress bar."""

    done: int
    total: int
    stage: str  # 'rival', 'trial', 'finalist' or 'check'
    tried: KernelScore
    best: float | None  # of the trials so far


@dataclass(frozen=True)
class StressReport:
    """What the search came to."""

    goal: str
    winner: KernelScore  # by runs that had no part in the choice
    best_probe: KernelScore | None  # the same of the best probe of the catalogue; None where none ran
    trials: Sequence[KernelScore]
    rivals: Sequence[KernelScore]  # the probes, each by as many runs as a trial has
    gpus: Sequence[str]  # UUIDs
    unset: Sequence[UnsetKnob]  # knobs of the GPU that cannot be set here, and were not searched
    torn_line: int | None = None  # the line of the log that was dropped because it had no end


def search_stress(bench: KernelBench, options: StressSearchOptions | None = None) -> StressReport:
    """The kernel of most power, or of widest spread between GPUs, beside the probes of the catalogue.

    Raises InputError for a goal or number of trials that there is not, for a spread on fewer than two GPUs, and where a
    log is of another search; DeviceError where no GPU runs any kernel.
    """
    options = options or StressSearchOptions()
    if options.goal not in _RUNS:
        raise InputError(f"there is no goal {options.goal!r} of a stress search; there are {' and '.join(_RUNS)}")
    if options.trials < 2:
        raise InputError(f"--trials is 2 or more, as the default is one of them, not {options.trials}")
    if options.suite not in EFFORTS:
        raise InputError(f"there is no suite {options.suite!r}; there are {', '.join(EFFORTS)}")
    if options.goal == "spread" and len(bench.facts) < 2:
        raise InputError("a spread between GPUs needs two GPUs at least: choose more, or --stress power")
    head = {"stress": options.goal, "gpus": list(bench.facts), "seed": options.seed, "suite": options.suite}
    with TuneLog(options.log, head) as trial_log:
        return _StressTuning(bench, options, trial_log).run()


class _StressTuning:
    """One call of `search_stress`."""

    def __init__(self, bench: KernelBench, options: StressSearchOptions, trial_log: TuneLog) -> None:
        self._bench, self._options, self._log = bench, options, trial_log
        self._facts = next(iter(bench.facts.values()))
        searched = (CLOCK, POWER) if options.goal == "spread" else (CLOCK,)
        self._of_gpu = [knob for knob in bench.gpu_knobs.knobs if knob.name in searched]
        self._probes = _rivals(options.rivals)
        self._done, self._total = 0, len(self._probes) + options.trials + 2 * FINALISTS + 2
        self._best: float | None = None
        self._number = 0

    def run(self) -> StressReport:
        runs, again, last = _RUNS[self._options.goal]
        rivals = [self._measure("rival", probe.name, {}, runs) for probe in self._probes]
        search = self._search()
        default = search.suggest()
        first = [default, *(default | knobs for knobs in stress.LIKE_CATALOGUE if search.fits(default | knobs))]
        trials: list[KernelScore] = []
        while len(trials) < self._options.trials:
            trials.append(self._measure("trial", KERNEL, first.pop(0) if first else search.suggest(), runs))
            value = trials[-1].value
            search.tell(trials[-1].setting, None if value is None else log(max(value, _LEAST)))
        checked: list[KernelScore] = []
        for scores in (trials, rivals):
            finals = [self._measure("finalist", tried.label, tried.setting, again) for tried in _best(scores)]
            checked += [self._measure("check", tried.label, tried.setting, last) for tried in _best(finals)[:1]]
        if not checked or checked[0].label != KERNEL:
            raise DeviceError(next(str(tried.failure) for tried in trials))
        return StressReport(
            goal=self._options.goal,
            winner=checked[0],
            best_probe=checked[1] if len(checked) > 1 else None,
            trials=trials,
            rivals=rivals,
            gpus=list(self._bench.facts),
            unset=self._bench.gpu_knobs.unset,
            torn_line=self._log.torn_line,
        )

    def _search(self) -> StressSearch:
        """Over the knobs of the kernel that the GPU has, and those of the GPU."""
        knobs = [
            StressKnob(
                knob.name, tuple(map(float, knob.values)), float(knob.default), 0.0 if 0 in knob.values else None
            )
            for knob in stress.knobs_of(self._facts)
        ]
        knobs += [StressKnob(knob.name, knob.values, knob.default, knob.default) for knob in self._of_gpu]

        def fits(setting: KernelSetting) -> bool:
            return stress.fits(self._facts, _of_kernel(setting)) is None

        return StressSearch(knobs, fits=fits, seed=self._options.seed)

    def _measure(self, stage: str, name: str, setting: KernelSetting, runs: int) -> KernelScore:
        """Run a kernel so often on all GPUs, or take its runs from the log."""
        rows = [self._runs(stage, name, setting) for _ in range(runs)]
        failures = [step.failure for row in rows for step in row.values() if step.failure is not None]
        unharmed = [gpu for gpu in self._bench.facts if all(row[gpu].failure is None for row in rows)]
        steps = [[row[gpu] for row in rows] for gpu in unharmed]
        times_s = np.array([[step.time_s for step in row] for row in steps], np.float64)
        powers_w = np.array([[step.energy_j for step in row] for row in steps], np.float64) / times_s
        score, figure = None, "power"
        if steps and self._options.goal == "power":
            score = mean_of_runs(powers_w)
        elif steps:
            spreads = {"power": spread_over_runs(powers_w), "rate": spread_over_runs(1 / times_s)}
            ratios = {name: spread.value for name, spread in spreads.items() if spread is not None}
            figure = max(ratios, key=lambda name: ratios[name], default="power")
            score = spreads[figure]
        if score is None and not failures:
            failures = ["its runs do not differ, or on one GPU alone"]
        tried = KernelScore(name, setting, score, figure, failures[0] if failures else None)
        self._done += 1
        if stage == "trial" and score is not None:
            self._best = max(self._best or 0.0, score.value)
        self._options.progress(StressProgress(self._done, self._total, stage, tried, self._best))
        return tried

    def _runs(self, stage: str, name: str, setting: KernelSetting) -> dict[str, TuneStep]:
        """One run on each GPU: time and energy of the unit of the kernel's work (FLOP, else bytes, else operations)."""
        self._number += 1
        label = f"{stage} {name}"
        logged = {gpu: self._log.take(label, gpu, setting) for gpu in self._bench.facts}
        steps = {gpu: step for gpu, step in logged.items() if step is not None}
        if len(steps) == len(logged):
            return steps
        probe = stress_probe(setting) if name == KERNEL else find_probe(name)
        plan = Plan((probe,), Asked(EFFORTS[self._options.suite]), f"stress-{self._number:05d}", "busy")
        report = self._bench.run(plan, self._limits(setting), self._number)
        reasons = {gpu: reason for gpu, _, reason in report.unrun} | report.failures
        steps = {
            gpu: TuneStep(setting, failure=reasons.get(gpu, f"{gpu}: {name} was not run"), stage=label, gpu=gpu)
            for gpu in self._bench.facts
        }
        for run in report.runs:
            failure, time_s, energy_j = None, None, None
            if run.status not in (Outcome.OK, Outcome.HEALTH_CHANGED):
                failure = run.status_detail or f"{run.gpu}: {name} failed"
            elif run.median_ms is None or run.size is None or not run.power_w:
                failure = f"{run.gpu}: nothing tells its power or its time"
            else:
                time_s = run.median_ms / 1000 / run.size
                energy_j = time_s * run.power_w
            steps[run.gpu] = TuneStep(setting, energy_j, time_s, failure=failure, stage=label, gpu=run.gpu)
        for step in steps.values():
            self._log.append(step)
        return steps

    def _limits(self, setting: KernelSetting) -> dict[str, float | None]:
        """What the setting says; for most power the limit is the highest one."""
        highest = {knob.name: knob.values[-1] for knob in self._bench.gpu_knobs.knobs if knob.name == POWER}
        usual = {knob.name: knob.default for knob in self._bench.gpu_knobs.knobs}
        return self._bench.gpu_knobs.limits(usual | (highest if self._options.goal == "power" else {}) | dict(setting))


def _of_kernel(setting: KernelSetting) -> KernelSetting:
    return {name: value for name, value in setting.items() if name in stress.DEFAULTS}


def _best(scores: Sequence[KernelScore]) -> list[KernelScore]:
    """The finalists among them, the largest score first."""
    scored = [tried for tried in scores if tried.score is not None]
    return sorted(scored, key=lambda tried: -(tried.value or 0.0))[:FINALISTS]


def _rivals(names: Sequence[str] | None) -> list[Probe]:
    """The probes of these names, or all steady ones of the suite 'standard'. InputError for one that is not steady."""
    if names is None:
        return [probe for probe in suite("standard") if probe.kind is Kind.STEADY]
    probes = [find_probe(name) for name in names]
    for probe in probes:
        if probe.kind is not Kind.STEADY:
            raise InputError(f"{probe.name} is no steady work, so it cannot be compared with a kernel: leave it out")
    return probes


def stress_probe(setting: KernelSetting) -> Probe:
    """The generated kernel with these knobs as a probe, named by them: `stress-` and six digits. InputError for a knob
    or value that there is not."""
    knobs = stress.settled(_of_kernel(setting))
    name = f"{KERNEL}-{short_hash(knobs)[:6]}"
    return replace(find_probe(KERNEL), name=name, parameters=knobs)


def setting_in(path: str | Path) -> dict[str, float]:
    """The knobs in a file: what `whorl tune --stress --json` printed, or an object of values by name. InputError where
    it has none."""
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: this is no JSON with the knobs of a kernel ({error})") from error
    setting = document.get("setting", document) if isinstance(document, dict) else None
    if not isinstance(setting, dict) or not all(isinstance(value, int | float) for value in setting.values()):
        raise InputError(f"{path}: it has no knobs of a kernel: give it what `whorl tune --stress --json` printed")
    return {knob: value for knob, value in setting.items() if knob not in (CLOCK, POWER)}


def kernels_on(devices: Sequence[Device]) -> KernelBench:
    """These GPUs of this node, all at once. Raises InputError for GPUs of several models."""
    from ..probes.node import run_plan
    from ..store import Store

    facts = facts_of_devices(devices)

    def run(plan: Plan, limits: Mapping[str, float | None], number: int) -> Report:  # noqa: ARG001
        cap_w, lock_mhz = limits["power_limit_w"], limits["lock_clock_mhz"]
        with tempfile.TemporaryDirectory(prefix="whorl-stress-") as folder:
            store = Store.create(Path(folder) / "trial")
            return run_plan(store, devices, plan, lock_clock_mhz=lock_mhz, power_limit_w=cap_w)

    return KernelBench(facts, knobs_of_gpus(list(facts)), run)


def kernels_in(fleet: Fleet) -> KernelBench:
    """The GPUs of a simulated fleet; each run is on a day of its own, so that it differs from others as days do."""
    from ..probes.simulated import run_unstored
    from ..simulation.bench import DAY_NS

    def run(plan: Plan, limits: Mapping[str, float | None], number: int) -> Report:
        cap_w, lock_mhz = limits["power_limit_w"], limits["lock_clock_mhz"]
        return run_unstored(fleet, plan, began_ns=number * DAY_NS, cap_w=cap_w, lock_mhz=lock_mhz)

    return KernelBench(facts_of_fleet(fleet), knobs_of_model(fleet.model, len(fleet)), run)
