"""The tuning loop over a bench whose energy and time are known, and over simulated GPUs with a store."""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whorl
from tests.stores import new_store
from whorl.analysis.tuning.search import Knob, Search, Setting, TimeBound, Trial
from whorl.analysis.tuning.stress import RunFigure, mean_of_runs, spread_over_runs
from whorl.cli.answers.measuring import measure
from whorl.errors import DeviceError, InputError
from whorl.jobs.tuning import TuneAnswer, TuneLog, TuneProgress, TuneStep, TuningOptions, prior_from, tune
from whorl.jobs.tuning_knobs import CLOCK, MEMORY, POWER, UnsetKnob, knobs_of_gpus, power_values
from whorl.jobs.tuning_probe import ProbeBenchOptions, probe_bench
from whorl.jobs.tuning_stress import (
    KernelBench,
    StressSearchOptions,
    kernels_in,
    kernels_on,
    search_stress,
)
from whorl.kernels.stress import DEFAULTS
from whorl.probes.campaign import Plan, Report
from whorl.probes.effort import EFFORTS
from whorl.probes.measurement import drawn_fleet
from whorl.probes.settings import restore_left_over
from whorl.store import Store
from whorl.store.vocabulary import Outcome
from whorl.tests.checks import not_none
from whorl.tests.jobs.tuned_device import BOUND, SHORT, ClockedDevice, bench, clocked, tuned
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import BUSY, PATIENCE_S, clock_mhz, limit_w, notes, uuids
from whorl.tests.probes.hand_device import FACTS
from whorl.tests.sizes import count, is_long, sample

FIVE = TimeBound(max_slowdown=0.05)
LIMIT = Knob(POWER, power_values(200, 700), 700.0)


def truth(setting: Setting) -> tuple[float, float]:
    """Energy (J) and time (s): with less power it needs less energy, and below 600 W it becomes slower."""
    watt = setting[POWER]
    return 2.0 + watt / 100, 0.010 * (1 + max(0.0, 600 - watt) / 1000)


@dataclass
class HandBench:
    """Two more GPUs than the tuned one; `slowness` is how much slower each is, `noise` of a trial."""

    slowness: Mapping[str, float] = field(default_factory=lambda: {"GPU-a": 1.0, "GPU-b": 1.02, "GPU-c": 1.01})
    noise: float = 0.0
    fails: Callable[[Setting, str], DeviceError | InputError | None] = lambda setting, gpu: None
    surface: Callable[[Setting], tuple[float, float]] = truth
    knobs: Sequence[Knob] = (LIMIT,)
    unset: Sequence[UnsetKnob] = ()
    label: str = "hand"
    measured: list[tuple[str, Setting, float | None]] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @property
    def gpus(self) -> list[str]:
        return list(self.slowness)

    def measure(self, setting: Setting, gpu: str, *, stop_over_s: float | None = None) -> Trial:
        self.measured.append((gpu, dict(setting), stop_over_s))
        if error := self.fails(setting, gpu):
            raise error
        energy_j, time_s = (true * exp(self.noise * self.random.standard_normal()) for true in self.surface(setting))
        time_s *= self.slowness[gpu]
        return Trial(setting, energy_j, time_s, ended_early=stop_over_s is not None and time_s > stop_over_s)

    def commands(self, setting: Setting) -> list[str]:
        return [f"set {name} {value:g}" for name, value in setting.items() if value != LIMIT.default]


def test_the_answer_saves_within_the_bound_and_is_checked_on_every_gpu() -> None:
    bench, progress = HandBench(noise=0.001), list[TuneProgress]()
    answer = tune(bench, FIVE, TuningOptions(trials=12, progress=progress.append))
    best, slowest = truth({POWER: 575.0}), truth({POWER: 550.0})
    assert answer.setting == {POWER: 575.0}, "550 W is at the bound itself, and no answer keeps its margin there"
    assert slowest[1] == pytest.approx(1.05 * truth({POWER: 700.0})[1])
    assert [gpu.gpu for gpu in answer.gpus if gpu.tuned] == ["GPU-b"], "the slow end of the class"
    true_saved = 100 * (1 - best[0] / truth({POWER: 700.0})[0])
    assert not_none(answer.saved.low_pct) < answer.saved.pct < not_none(answer.saved.high_pct)
    assert not_none(answer.saved.low_pct) < true_saved < not_none(answer.saved.high_pct)
    assert answer.slower.pct == pytest.approx(2.5, abs=0.3)
    assert answer.saved.n == answer.slower.n == 3
    assert answer.within
    assert answer.noise == 0.005
    assert answer.margin == pytest.approx(2 * np.hypot(0.005, 0.005 / np.sqrt(2))), "of a trial over two defaults"
    assert answer.run_noise == pytest.approx(0.001, rel=0.8)
    assert answer.run_noise_n == 6, "five runs of the default and three of the answer"
    assert all(gpu.over is False and gpu.saved_pct == pytest.approx(true_saved, abs=1) for gpu in answer.gpus)
    assert answer.commands == ("set power_limit_w 575",)
    assert len(answer.trials) == 12
    assert answer.trials[0].setting == answer.default == {POWER: 700.0}
    assert any(answer.is_over(trial) for trial in answer.trials)
    # 3 of the class, the default again, 11 trials, 3 pairs, and 2 checks.
    assert [step.done for step in progress] == list(range(1, len(bench.measured) + 1))
    assert progress[-1].done == 3 + 1 + 11 + 6 + 2
    assert {step.step.stage for step in progress} == {"class", "trial", "default", "answer", "check"}


def test_what_fails_is_left_out() -> None:
    def fails(setting: Setting, gpu: str) -> DeviceError | None:
        if gpu == "GPU-a":
            return DeviceError("GPU-a: it fell off the bus", gone=True)
        return DeviceError("it does not fit") if 400 < setting[POWER] < 500 else None

    answer = tune(HandBench(fails=fails), FIVE, TuningOptions(trials=21))
    lost = next(gpu for gpu in answer.gpus if gpu.gpu == "GPU-a")
    assert (lost.failure, lost.over, lost.time_s) == ("GPU-a: it fell off the bus", None, None)
    assert answer.setting == {POWER: 575.0}
    failed = {trial.setting[POWER]: trial.failure for trial in answer.trials if trial.failure}
    assert failed
    assert all(400 < watt < 500 and failure == "it does not fit" for watt, failure in failed.items())

    def refuses(setting: Setting, gpu: str) -> InputError | None:
        return InputError("GPU-c: busy") if gpu == "GPU-c" and setting[POWER] < 700 else None

    checked = next(gpu for gpu in tune(HandBench(fails=refuses), FIVE).gpus if gpu.gpu == "GPU-c")
    assert (checked.failure, checked.over) == ("GPU-c: busy", None)
    assert checked.default_time_s == pytest.approx(0.0101)

    def none_works(setting: Setting, gpu: str) -> DeviceError:
        return DeviceError(f"{gpu}: broken", gone=True)

    with pytest.raises(DeviceError, match="GPU-a: broken"):
        tune(HandBench(fails=none_works), FIVE)


def test_an_answer_that_is_over_when_measured_again_is_given_up() -> None:
    calls = dict[float, int]()

    def moody(setting: Setting) -> tuple[float, float]:
        energy_j, time_s = truth(setting)
        calls[setting[POWER]] = calls.get(setting[POWER], 0) + 1
        slow = setting[POWER] == 575 and calls[575.0] > 1
        return energy_j, time_s * (1.1 if slow else 1)

    answer = tune(HandBench(surface=moody, slowness={"GPU-a": 1.0}), FIVE, TuningOptions(trials=16))
    assert answer.given_up == ({POWER: 575.0},)
    assert answer.setting == {POWER: 600.0}
    assert answer.within


def test_safe_ends_trials_that_are_over_the_bound() -> None:
    bench = HandBench()
    answer = tune(bench, FIVE, TuningOptions(safe=True, trials=12))
    stops = [stop for gpu, setting, stop in bench.measured if stop is not None]
    assert len(stops) == len(answer.trials) - 1 >= 5, "each trial but the default; it ends where it hopes for no more"
    assert stops == pytest.approx([0.0102 * 1.05 * 1.01] * len(stops))
    assert answer.setting == {POWER: 575.0}
    early = [trial for trial in answer.trials if trial.ended_early]
    assert all(answer.is_over(trial) for trial in early)
    assert len(early) < len(stops) / 2


# -- the log ----------------------------------------------------------------------------------------------------------


def interrupted(bench: HandBench, log: Path, after: int) -> None:
    """Tune until so many measurements are done, and then stop by Ctrl-C."""

    def stop(progress: TuneProgress) -> None:
        if progress.done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(bench, FIVE, TuningOptions(log=log, progress=stop))


@pytest.mark.parametrize("after", [2, 9, 19])
def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path, after: int) -> None:
    log = tmp_path / "log"
    entire = HandBench()
    expected = tune(entire, FIVE)
    interrupted(HandBench(), log, after)
    resumed = HandBench()
    answer = tune(resumed, FIVE, TuningOptions(log=log))
    assert answer == expected
    assert len(resumed.measured) == len(entire.measured) - after
    again = HandBench()
    assert tune(again, FIVE, TuningOptions(log=log)) == expected
    assert not again.measured


@pytest.mark.parametrize(
    ("second_bench", "bound", "sentence"),
    [
        (HandBench(label="stream-triad"), FIVE, 'its label: "hand", and not "stream-triad"'),
        (HandBench(), TimeBound(max_time_s=1.0), "its bound"),
        (HandBench(knobs=(Knob(POWER, (300.0, 700.0), 700.0),)), FIVE, "its knobs: .{1,100}, and not .{1,100}: choose"),
    ],
)
def test_a_log_of_another_search_is_refused(
    tmp_path: Path, second_bench: HandBench, bound: TimeBound, sentence: str
) -> None:
    log = tmp_path / "log"
    interrupted(HandBench(), log, 5)
    before = log.read_bytes()
    with pytest.raises(InputError, match=f"log of another search.*{sentence}"):
        tune(second_bench, bound, TuningOptions(log=log))
    assert log.read_bytes() == before
    assert not second_bench.measured


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("gpu,power\n1,2\n", "line 1 is no trial"),
        ('{"schema": "other/1"}\n', "no log of whorl tune"),
        ("a note without an end of line", "no log of whorl tune"),
    ],
)
def test_another_file_is_no_log(tmp_path: Path, content: str, sentence: str) -> None:
    log = tmp_path / "log"
    log.write_text(content)
    with pytest.raises(InputError, match=sentence):
        tune(HandBench(), FIVE, TuningOptions(log=log))
    assert log.read_text() == content
    with pytest.raises(InputError, match="cannot be written"):
        tune(HandBench(), FIVE, TuningOptions(log=tmp_path / "no" / "log"))
    with pytest.raises(InputError, match="must be a file"):
        tune(HandBench(), FIVE, TuningOptions(log=Path("/dev/full")))


def test_a_disk_that_becomes_full_is_named_and_the_run_goes_on_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
        with pytest.raises(InputError, match=r"log: the log of the trials cannot be written \(File too large\)"):
            tune(HandBench(), FIVE, TuningOptions(log=log))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    answer = tune(HandBench(), FIVE, TuningOptions(log=log))
    assert replace(answer, torn_line=None) == tune(HandBench(), FIVE)


@pytest.mark.parametrize(
    "change",
    [{"setting": 5}, {"setting": {"batch": "x"}}, {"time_s": "1 s"}, {"time_s": None}, {"energy_j": -1}, {"colour": 1}],
)
def test_a_line_that_somebody_changed_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    log = tmp_path / "log"
    interrupted(HandBench(), log, 5)
    head, first, *later = log.read_text().splitlines()
    log.write_text("\n".join([head, json.dumps(json.loads(first) | change), *later]) + "\n")
    with pytest.raises(InputError, match="line 2 is no trial"):
        tune(HandBench(), FIVE, TuningOptions(log=log))


def after_eight(
    bench: HandBench, error: DeviceError | InputError
) -> Callable[[Setting, str], DeviceError | InputError | None]:
    return lambda setting, gpu: error if len(bench.measured) > 8 else None


def test_a_gpu_that_is_gone_or_refuses_ends_it_and_keeps_the_log(tmp_path: Path) -> None:
    for error in (DeviceError("GPU-b: gone", gone=True), InputError("GPU-b: setting the power limit needs root")):
        log = tmp_path / type(error).__name__
        bench = HandBench()
        bench.fails = after_eight(bench, error)
        with pytest.raises(type(error), match="GPU-b"):
            tune(bench, FIVE, TuningOptions(log=log))
        assert len(log.read_text().splitlines()) == 9
        assert tune(HandBench(), FIVE, TuningOptions(log=log)).setting == {POWER: 575.0}


# -- simulated GPUs ---------------------------------------------------------------------------------------------------


def simulated(store: Store, *, trials: int, probe: str = "gemm-fp16", **options: object) -> TuneAnswer:
    chosen = ProbeBenchOptions(backend="simulated", model="H100", gpus=3, suite="quick", **options)  # type: ignore[arg-type]
    return tune(probe_bench(store, probe, chosen), FIVE, TuningOptions(trials=trials))


def test_trials_are_runs_of_the_store_under_their_conditions(store: Store) -> None:
    answer = simulated(store, trials=5)
    rows = store.sql(
        "select gpu, conditions.asked_power_limit_w as watt, conditions.locked_clock_mhz as mhz, status, campaign "
        "from runs where workload = 'gemm-fp16' order by began"
    ).to_pylist()
    tuned = next(gpu.gpu for gpu in answer.gpus if gpu.tuned)
    assert len({row["campaign"] for row in rows}) == len(rows)
    assert {row["status"] for row in rows} == {"ok"}
    assert [(row["watt"], row["mhz"]) for row in rows[:4]] == [(None, None)] * 4
    trials = [(row["watt"] or 700.0, row["mhz"] or 1980.0) for row in rows[4:8]]
    assert trials == [(trial.setting[POWER], trial.setting[CLOCK]) for trial in answer.trials[1:]]
    assert {row["gpu"] for row in rows[3:8]} == {tuned}
    times = store.sql("select min(began) as low, max(ended) as high from runs").to_pylist()[0]
    assert (times["high"] - times["low"]).total_seconds() < 3600, "all of it follows each other, on one day"


@pytest.mark.long
def test_what_is_known_of_the_gpus_does_not_change_with_the_trials(store: Store) -> None:
    """The usual runs keep the workload's name, advice is about them, and no GPU is judged by its trials."""
    options: dict[str, Any] = {"backend": "simulated", "model": "H100", "gpus": 8, "suite": "quick"}
    options |= {"faults": 1, "fault": ["brake"]}
    for _ in range(3):
        whorl.measure(store, "gemm-fp16", **options)
    before = [(row["name"], row["kind"]) for row in whorl.verdicts(store.root).json()["rows"]]
    advised = whorl.advise(store.root, workload="gemm-fp16").json()["exclude"]
    tune(probe_bench(store, "gemm-fp16", ProbeBenchOptions(**options)), FIVE, TuningOptions(trials=6))
    assert store.sql("select count(*) as n from runs where conditions.asked_power_limit_w is not null").to_pylist()[0][
        "n"
    ]
    after = whorl.verdicts(store.root).json()["rows"]
    assert [(row["name"], row["kind"]) for row in after] == before
    assert before
    assert all("gemm-fp16" in row["workloads"] for row in after)
    assert whorl.advise(store.root, workload="gemm-fp16").json()["exclude"] == advised
    usual = next(row for row in whorl.variability(store.root).json()["rows"] if row["workload"] == "gemm-fp16")
    assert usual["gpus"] == 8
    reported = str(whorl.report(store.root, store.root.parent / "report.html")).splitlines()[0]
    assert " in campaign probe-" in reported, "the last campaign, and not a trial"


def test_a_trial_over_the_bound_ends_after_a_tenth_of_its_time(store: Store) -> None:
    bench = probe_bench(store, "gemm-fp16", ProbeBenchOptions(backend="simulated", model="H100", gpus=1, suite="quick"))
    usual = {knob.name: knob.default for knob in bench.knobs}
    default = bench.measure(usual, bench.gpus[0])
    assert default.time_s is not None
    slow = bench.measure(usual | {POWER: 300.0}, bench.gpus[0], stop_over_s=1.05 * default.time_s)
    assert slow.ended_early
    assert not_none(slow.time_s) > 1.05 * default.time_s
    full = bench.measure(usual | {POWER: 675.0}, bench.gpus[0], stop_over_s=1.05 * default.time_s)
    assert not full.ended_early
    limits = store.sql("select conditions.time_limit_s as s from runs order by began").to_pylist()
    assert [row["s"] for row in limits] == pytest.approx([2.0, 0.2, 0.2, 2.0])


def test_knobs_of_the_kernel_are_works_of_their_own(store: Store) -> None:
    bench = probe_bench(
        store,
        "transformer",
        ProbeBenchOptions(backend="simulated", model="H100", gpus=1, suite="quick", knobs={"sequences": [8, 16]}),
    )
    sequences = next(knob for knob in bench.knobs if knob.name == "sequences")
    assert sequences.values[:2] == (8.0, 16.0)
    default = {knob.name: knob.default for knob in bench.knobs}
    usual = bench.measure(default, bench.gpus[0])
    small = bench.measure(default | {"sequences": 8.0}, bench.gpus[0])
    workloads = [row["workload"] for row in store.sql("select workload from runs order by began").to_pylist()]
    assert workloads == ["transformer", "transformer sequences=8"]
    ratio = 8 / sequences.default
    assert small.time_s == pytest.approx(not_none(usual.time_s) * ratio, rel=0.3), "of a repetition, which is smaller"
    assert small.energy_j == pytest.approx(usual.energy_j, rel=0.3), "of the same work"
    gemm = ProbeBenchOptions(backend="simulated", model="H100", gpus=1, knobs={"n": [1e12]})
    huge = probe_bench(store, "gemm-fp16", gemm)
    with pytest.raises(DeviceError, match="no GPU holds gemm-fp16 of this size"):
        huge.measure({knob.name: knob.default for knob in huge.knobs} | {"n": 1e12}, huge.gpus[0])
    for knobs, sentence in (
        ({"batch": [1]}, "transformer has no knob 'batch': it takes width, tokens, sequences, depth"),
        ({"sequences": []}, "the values of the knob sequences are whole numbers"),
    ):
        options = ProbeBenchOptions(backend="simulated", knobs=knobs)
        with pytest.raises(InputError, match=sentence):
            probe_bench(store, "transformer", options)


@pytest.mark.parametrize(
    ("probe", "options", "sentence"),
    [
        ("nothing", {}, "there is no probe 'nothing'"),
        ("power-square", {"backend": "simulated"}, "power-square is no steady work"),
        ("launch", {"backend": "auto"}, "there is no backend 'auto' for tuning"),
        ("launch", {"gpus": 3}, "--gpus works only with --backend simulated"),
        ("launch", {"backend": "simulated", "gpu": ["0"]}, "--gpu works only with real GPUs"),
        ("launch", {"backend": "simulated", "suite": "none"}, "there is no suite 'none'"),
    ],
)
def test_what_cannot_be_tuned_is_refused(store: Store, probe: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        probe_bench(store, probe, ProbeBenchOptions(**options))  # type: ignore[arg-type]


# -- tuning warm start -------------------------------------------------------------------------------------------------
# What a search begins with: another model's runs of the same probe, or a file of a sweep.


LIMITS = Knob("power_limit_w", tuple(np.arange(100.0, 301.0, 25.0).tolist()), 300.0)
BATCH = Knob("batch", (8.0, 16.0, 32.0, 64.0), 16.0)


def time_s(share: float, batch: float) -> float:
    """Of a made workload under a limit, as a share of the highest."""
    return (1 + max(0.0, 0.7 - share)) * (2 + batch) / 100


def energy_j(share: float, batch: float) -> float:
    return time_s(share, batch) * min(share, 0.7) * 250 / batch


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two networks on a GPU with limits from 100 to 250 W, each with three batch sizes."""
    lines = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for network, factor in (("resnet", 1.0), ("bert", 3.0)):
        for batch in (8, 16, 32):
            for limit in range(100, 251, 25):
                seconds, joules = time_s(limit / 250, batch) * factor, energy_j(limit / 250, batch) * factor
                lines.append(f"images,{network},{batch},adam,{limit},{seconds},{joules / seconds}")
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_prior_is_the_other_models_surface_by_shares_of_the_limit(sweep: Path) -> None:
    prior = prior_from(f"{sweep}:network=resnet", [LIMITS, BATCH], probe=None, store=None)
    places = np.array([(1.0, 1 / 3), (0.5, 1 / 3), (0.25, 0.0), (1.0, 1.0)])  # batch 64 was not measured: as 32
    settings = [(300.0, 16.0), (200.0, 16.0), (150.0, 8.0), (300.0, 32.0)]
    energy, time = prior(places)
    for figure, truth in ((energy, energy_j), (time, time_s)):
        expected = np.log([truth(limit / 300, batch) for limit, batch in settings])
        assert figure - figure[0] == pytest.approx(expected - expected[0], abs=0.03)


def test_a_search_with_a_prior_of_the_truth_needs_four_trials(sweep: Path) -> None:
    prior = prior_from(f"{sweep}:network=resnet,batch=16", [LIMITS], probe=None, store=None)
    search = Search([LIMITS], TimeBound(max_slowdown=0.2), prior=prior)
    for _ in range(4):
        setting = search.suggest()
        share = not_none(setting)["power_limit_w"] / 300
        search.tell(not_none(setting), energy_j(share, 16), time_s(share, 16))
    within = [limit for limit in LIMITS.values if time_s(limit / 300, 16) <= 0.98 * 1.2 * time_s(1.0, 16)]
    least = min(within, key=lambda limit: energy_j(limit / 300, 16))
    assert search.answer() == {"power_limit_w": least}


def test_runs_of_a_store_on_another_model_are_a_prior(tmp_path: Path) -> None:
    for power_limit in (None, 200, 150):
        measure(tmp_path / "s", "gemm-fp32", backend="simulated", suite="quick", gpus=1, power_limit=power_limit)
    prior = prior_from("v100", [LIMITS], probe="gemm-fp32", store=tmp_path / "s")
    energy, time = prior(np.array([[1.0], [0.75], [0.5]]))  # 300, 250 and 200 W; 250, 208 and 167 W of a V100
    assert energy[0] > energy[1] > energy[2]
    assert time[0] < time[1] < time[2]
    assert time[0] == pytest.approx(0.0, abs=0.01)  # relative to the default of each GPU
    assert math.exp(float(time[2])) < 1.5


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{sweep}", "has 6 sweeps: choose one workload"),
        ("{sweep}:network=resnet", "warm-start={sweep}:batch=8,dataset=images,network=resnet,optimizer=adam"),
        ("{sweep}:network=vgg", "has 0 sweeps with network=vgg"),
        ("{log}", "cannot be read as a log of whorl tune"),
        ("{other}", "is the log of a search for stream-triad, and not for gemm-fp32"),
        ("H100", "H100 is no file, and {store} has no runs of gemm-fp32 on a model with H100 in its name"),
    ],
)
def test_a_source_of_no_use_is_refused_with_a_sentence(sweep: Path, tmp_path: Path, source: str, sentence: str) -> None:
    log = tmp_path / "trials.jsonl"
    log.write_text('{"schema": "whorl.tune.log/1"}\n{"stage": "trial"}\n')
    second_log, store = tmp_path / "other.jsonl", tmp_path / "s"
    second_log.write_text('{"schema": "whorl.tune.log/1", "label": "stream-triad"}\n')
    source = source.format(sweep=sweep, log=log, other=second_log)
    with pytest.raises(InputError) as refused:
        prior_from(source, [LIMITS], probe="gemm-fp32", store=new_store(store))
    assert sentence.format(sweep=sweep, store=store) in str(refused.value)


def test_the_log_of_a_search_is_a_prior_without_what_failed_or_was_torn(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    with TuneLog(log, {}) as writer:
        for limit_w in (300.0, 250.0, 200.0, 150.0):
            share = limit_w / 300
            figures = (energy_j(share, 16), time_s(share, 16))
            writer.append(TuneStep({"power_limit_w": limit_w}, *figures, stage="trial", gpu="g"))
        writer.append(TuneStep({"power_limit_w": 100.0}, stage="trial", gpu="g", failure="it could not run"))
    with log.open("a") as file:
        file.write('{"stage": "tri')
    energy, time = prior_from(str(log), [LIMITS], probe=None, store=None)(np.array([[1.0], [0.25]]))  # 300 and 150 W
    assert energy[1] - energy[0] == pytest.approx(math.log(energy_j(0.5, 16) / energy_j(1.0, 16)), abs=0.03)
    assert time[1] - time[0] == pytest.approx(math.log(time_s(0.5, 16) / time_s(1.0, 16)), abs=0.03)


def test_a_model_needs_a_probe_and_a_store_and_knobs_must_be_those_of_the_sweep(sweep: Path) -> None:
    with pytest.raises(InputError, match="needs a probe and a store"):
        prior_from("H100", [LIMITS], probe=None, store=None)
    threads = Knob("threads", (1.0, 2.0), 1.0)
    with pytest.raises(InputError, match="varies none of the knobs threads"):
        prior_from(f"{sweep}:network=resnet,batch=8", [threads], probe=None, store=None)


# -- tuning settings ---------------------------------------------------------------------------------------------------
# Tuning through the driver: knobs that can be set and that cannot, and settings that come back however it ends.


ONE = ("model H100", "root yes", "gpus 1", "load 10 1")


def test_knobs_are_what_the_driver_has(nvml: NvmlLibrary, state: Path) -> None:
    nvml.write(*BUSY, "gpu 0 limit 650500")
    gpus = uuids()
    knobs = knobs_of_gpus(gpus[:2])
    power, clock = knobs.knobs
    assert (power.name, clock.name) == (POWER, CLOCK)
    assert power.default == 650.5, "how it is set"
    assert power.values[:2] == (200, 225)
    assert power.values[-4:] == (625, 650.5, 675, 700), "no two within a watt"
    assert clock.default == clock.values[-1] == 1980
    assert clock.values[-2] == 1950, "every second clock"
    assert limit_w(gpus[0]) == 650.5
    assert clock_mhz(gpus[0]) > 1200
    assert not notes(state)
    assert knobs.limits({POWER: 650.5, CLOCK: 1980.0}) == {"power_limit_w": None, "lock_clock_mhz": None}
    assert knobs.limits({POWER: 500.0, CLOCK: 1200.0}) == {"power_limit_w": 500.0, "lock_clock_mhz": 1200.0}
    assert knobs.commands({POWER: 500.0, CLOCK: 1200.0}) == [
        "nvidia-smi -i 0 -pl 500", "nvidia-smi -i 0 -lgc 1200,1200",
        "nvidia-smi -i 1 -pl 500", "nvidia-smi -i 1 -lgc 1200,1200",
    ]  # fmt: skip
    assert {knob.name for knob in knobs.unset} <= {MEMORY}


@pytest.mark.parametrize(
    ("statement", "unset", "reason"),
    [
        ("root no", {POWER, CLOCK}, "needs root"),
        ("gpu 0 deny 3 nvmlDeviceSetGpuLockedClocks", {CLOCK}, "locking the clock is not possible"),
        ("gpu 0 deny 3 nvmlDeviceGetPowerManagementLimitConstraints", {POWER}, "the power limit is not possible"),
        ("gpu 0 deaf", {POWER}, "the driver took a power limit of 675 W and shows 700 W"),
    ],
)
def test_a_knob_that_cannot_be_set_is_named_with_the_command(
    nvml: NvmlLibrary, state: Path, statement: str, unset: set[str], reason: str
) -> None:
    nvml.write(*BUSY, statement)
    gpus = uuids()
    knobs = knobs_of_gpus(gpus[:1])
    assert {knob.name for knob in knobs.unset} - {MEMORY} == unset
    assert {knob.name for knob in knobs.knobs} == {POWER, CLOCK} - unset
    commands = {POWER: ("nvidia-smi -i 0 -pl W",), CLOCK: ("nvidia-smi -i 0 -lgc MIN,MAX",)}
    for knob in knobs.unset:
        if knob.name != MEMORY:
            assert knob.commands == commands[knob.name]
            assert reason in knob.reason
    assert not notes(state)
    assert limit_w(gpus[0]) == 700


def test_a_driver_that_refuses_half_way_leaves_all_as_it_was(
    nvml: NvmlLibrary, state: Path, store: Store, tmp_path: Path
) -> None:
    nvml.write(*ONE)
    gpus = uuids()

    def refuse(progress: TuneProgress) -> None:
        if progress.done == 3:
            nvml.add("gpu 0 deny 4 nvmlDeviceSetPowerManagementLimit nvmlDeviceSetGpuLockedClocks")

    options = TuningOptions(trials=5, log=tmp_path / "log", progress=refuse)
    with pytest.raises(InputError, match=f"{gpus[0]}: (setting|locking) .* needs root"):
        tune(bench(store, clocked(gpus)), BOUND, options)
    assert limit_w(gpus[0]) == 700
    assert clock_mhz(gpus[0]) > 1200
    assert not notes(state)
    assert len((tmp_path / "log").read_text().splitlines()) == 1 + 3


@contextmanager
def tuning(nvml: NvmlLibrary, folder: Path, gpu: str) -> Iterator[subprocess.Popen[str]]:
    """A process that tunes, and is in the middle of its third trial."""
    command = [sys.executable, "-m", "whorl.tests.jobs.tuned_device", str(folder), "4", gpu]
    process = subprocess.Popen(
        command, env=nvml.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert not_none(process.stdout).readline() == "held\n", process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_ends_a_tuning_run_leaves_its_log_and_no_setting(
    nvml: NvmlLibrary, state: Path, tmp_path: Path, number: signal.Signals
) -> None:
    nvml.write(*ONE)
    (gpu,) = uuids()
    with tuning(nvml, tmp_path, gpu) as process:
        assert notes(state)
        process.send_signal(number)
        (tmp_path / "go").touch()
        process.wait(PATIENCE_S)
    if number == signal.SIGKILL:
        assert notes(state), "nobody was there to restore"
        assert any("again" in sentence for sentence in restore_left_over())
    assert not notes(state)
    assert limit_w(gpu) == 700
    assert clock_mhz(gpu) > 1200
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 5, "what is tuned, the default twice, and two trials"
    answer = tuned(tmp_path, [gpu], trials=4)
    assert (tmp_path / "log").read_text().splitlines()[:5] == lines
    assert len(answer.trials) == 4
    assert limit_w(gpu) == 700
    counted = Store.create(tmp_path / "store").sql("select count(*) as n from runs").to_pylist()[0]["n"]
    assert counted >= 4 + 1


# -- stress ------------------------------------------------------------------------------------------------------------
# The search for the hardest kernel: on simulated GPUs beside the catalogue, with its log, its failures and its end.


FEW = ("power-mix", "gemm-fp32")
QUICK = StressSearchOptions(trials=4, rivals=("launch",))


@dataclass
class Counted:
    """A bench of simulated GPUs that counts its runs; `spoil` makes of a run's report another one, or raises."""

    gpus: int = 2
    spoil: Callable[[int, Plan, Report], Report] = lambda number, plan, report: report
    limits: list[Mapping[str, float | None]] = field(default_factory=list)

    @property
    def bench(self) -> KernelBench:
        inner = kernels_in(drawn_fleet(self.gpus, "H100", 3))

        def run(plan: Plan, limits: Mapping[str, float | None], number: int) -> Report:
            self.limits.append(limits)
            return self.spoil(len(self.limits), plan, inner.run(plan, limits, number))

        return replace(inner, run=run)


def knobs(plan: Plan) -> Mapping[str, object]:
    return plan.probes[0].parameters


# -- what it finds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", sample(["H100", "V100", "A100", "H200"], short=1))
def test_sixty_trials_or_fewer_draw_95_percent_of_the_power_of_the_best_probe_and_more(model: str) -> None:
    report = search_stress(
        kernels_in(drawn_fleet(2, model, 1)), StressSearchOptions(trials=count(60, short=12), rivals=FEW)
    )
    assert not_none(report.winner.value) >= 0.95 * not_none(not_none(report.best_probe).value)
    first = report.trials[0]
    assert {name: first.setting[name] for name in ("fp32", "rounds")} == {"fp32": 2, "rounds": 4}
    assert not_none(report.winner.value) > not_none(first.value), "the default is no answer already"
    assert (not_none(report.winner.score).gpus, not_none(report.winner.score).runs) == (2, 3)
    assert all(tried.failure is None for tried in report.trials)


@pytest.mark.long
@pytest.mark.parametrize(("model", "seed"), sample([("V100", 4), ("V100", 0), ("H100", 2), ("H100", 3)], short=1))
def test_a_search_for_spread_finds_a_kernel_that_tells_gpus_apart_about_as_well_as_any_probe(
    model: str, seed: int
) -> None:
    """By eight fresh runs of each on eight GPUs. Its 95 % interval goes from 0.4 to 4.3 times the value, so that on
    H100, where the best probe comes close, a tenth below it counts as equal."""
    bench = kernels_in(drawn_fleet(8, model, 1 + seed))
    rivals = None if is_long() else ("launch",)
    options = StressSearchOptions(goal="spread", trials=count(60, short=26), seed=seed, rivals=rivals)
    report = search_stress(bench, options)
    best = not_none(report.best_probe).value
    assert not_none(report.winner.value) >= (0.9 if model == "H100" else 1.0) * not_none(best)
    assert (not_none(report.winner.score).gpus, not_none(report.winner.score).runs) == (8, 8)
    assert {POWER, CLOCK} < set(report.winner.setting)
    assert report.winner.figure in ("power", "rate")
    assert len(report.rivals) > 5 or not is_long()


# -- its statistics ---------------------------------------------------------------------------------------------------


def test_intervals_hold_what_is_true_nineteen_times_in_twenty() -> None:
    draw = np.random.default_rng(2)
    held = {"mean": 0, "ratio": 0}
    number = count(1000, short=300)
    for _ in range(number):
        gpus = 100 * np.exp(0.02 * draw.standard_normal((8, 1)))
        runs = gpus * np.exp(0.004 * draw.standard_normal((8, 3)))
        mean, spread = mean_of_runs(runs), spread_over_runs(runs)
        for name, figure, truth in (("mean", mean, gpus.mean()), ("ratio", not_none(spread), (0.02 / 0.004) ** 2)):
            held[name] += not_none(figure.low) <= truth <= not_none(figure.high)
    for name, times in held.items():
        assert 0.92 < times / number < 0.98, name


def test_figures_that_are_not_known_are_none() -> None:
    assert mean_of_runs([[3.0], [5.0]]) == RunFigure(4.0, None, None, 2, 1)
    assert spread_over_runs([[3.0, 3.1]]) is None
    assert spread_over_runs([[3.0], [5.0]]) is None
    assert spread_over_runs([[3.0, 3.0], [5.0, 5.0]]) is None
    equal_runs = spread_over_runs([[3.0, 3.3], [3.3, 3.0]])
    assert (not_none(equal_runs).value, not_none(equal_runs).low) == (0.0, 0.0)


# -- how it runs ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_search_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    uninterrupted = search_stress(Counted().bench, QUICK)

    def stops(number: int, plan: Plan, report: Report) -> Report:
        if number == 4:
            raise KeyboardInterrupt
        return report

    log = tmp_path / "trials"
    logged, first = replace(QUICK, log=log), Counted(spoil=stops)
    with pytest.raises(KeyboardInterrupt):
        search_stress(first.bench, logged)
    lines = log.read_text().splitlines()
    assert len(lines) == 1 + 3 * 2, "a head, and a line for each run of a GPU"
    assert json.loads(lines[0])["stress"] == "power"
    with log.open("a") as file:
        file.write('{"stage": "tri')
    second = Counted()
    report = search_stress(second.bench, logged)
    assert report == replace(uninterrupted, torn_line=8)
    again = Counted()
    assert search_stress(again.bench, logged) == uninterrupted
    assert len(again.limits) == 0
    assert len(first.limits) - 1 + len(second.limits) == 5 + 2 * 4 + 2 + 3 + 3
    for changed in (replace(logged, goal="spread"), replace(logged, seed=1)):
        with pytest.raises(InputError, match="the log of another search"):
            search_stress(Counted().bench, changed)


def test_a_kernel_or_a_gpu_that_fails_is_left_out_and_the_search_goes_on() -> None:
    def fails(number: int, plan: Plan, report: Report) -> Report:
        if knobs(plan).get("fp32") == DEFAULTS["fp32"]:
            wrong = [
                replace(run, status=Outcome.WRONG_RESULT, status_detail="3 elements are wrong") for run in report.runs
            ]
            return replace(report, runs=wrong)
        if number == 3:
            return replace(report, runs=report.runs[1:])
        if plan.probes[0].name == "launch":
            return replace(report, runs=[], failures={run.gpu: f"{run.gpu}: no memory left" for run in report.runs})
        return report

    report = search_stress(Counted(spoil=fails).bench, replace(QUICK, trials=8))
    failed = [tried for tried in report.trials if tried.score is None]
    assert failed[0] is report.trials[0]
    assert [tried.score.gpus for tried in report.trials[1:3] if tried.score is not None] == [1, 2]
    assert {tried.failure for tried in failed} == {"3 elements are wrong"}
    assert report.best_probe is None
    assert "no memory left" in not_none(report.rivals[0].failure)
    assert report.winner.value is not None


@pytest.mark.parametrize(
    ("options", "gpus", "sentence"),
    [
        ({"goal": "heat"}, 2, "no goal 'heat'"),
        ({"trials": 1}, 2, "--trials is 2 or more"),
        ({"suite": "slow"}, 2, "no suite 'slow'"),
        ({"goal": "spread"}, 1, "needs two GPUs"),
        ({"rivals": ("idle",)}, 2, "idle is no steady work"),
        ({"rivals": ("gem",)}, 2, "there is no probe 'gem'"),
    ],
)
def test_what_cannot_be_searched_is_said(options: dict[str, object], gpus: int, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        search_stress(Counted(gpus).bench, replace(QUICK, **options))  # type: ignore[arg-type]


@pytest.mark.long
def test_on_this_node_the_limit_is_the_highest_one_and_all_is_as_before_after_ctrl_c(
    nvml: NvmlLibrary, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.write("model H100", "root yes", "gpus 1", "load 10 1", "gpu 0 limit 500000")
    (gpu,) = uuids()
    noticed: list[float] = []
    monkeypatch.setitem(EFFORTS, "quick", SHORT)
    bench = kernels_on([ClockedDevice(facts=replace(FACTS, gpu=gpu))])

    def run(plan: Plan, limits: Mapping[str, float | None], number: int) -> Report:
        assert limits == {"power_limit_w": 700, "lock_clock_mhz": None}
        report = bench.run(plan, limits, number)
        assert [run.status for run in report.runs] == [Outcome.OK]
        noticed.append(limit_w(gpu))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_stress(replace(bench, run=run), StressSearchOptions(trials=2, rivals=(), log=tmp_path / "log"))
    assert noticed == [500]
    assert not notes(state)


@pytest.mark.long
def test_what_was_found_can_be_run_as_a_probe_of_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    setting = {**DEFAULTS, "threads": 512, "sm_clock_mhz": 1980.0}
    file.write_text(json.dumps({"schema": "whorl.tune.stress/1", "setting": setting}))
    report = measure(
        tmp_path / "S", "stress", "launch", backend="simulated", model="H100", gpus=1, suite="quick", knobs=file
    )
    names = {run.probe for run in report.report.runs}
    assert {name.partition("-")[0] for name in names} == {"stress", "launch"}
    assert "stress" not in names
    assert report.report.wrong == []
    (conditions,) = {
        tuple(sorted(dict(row["conditions"]["parameters"]).items()))
        for row in Store.open(tmp_path / "S").arrow("runs").to_pylist()
        if row["workload"] in names - {"launch"}
    }
    assert dict(conditions)["threads"] == 512


@pytest.mark.parametrize(
    ("content", "probe", "sentence"),
    [
        ('{"fp32": 5}', "stress", "the knob fp32 of stress is one of"),
        ("[1]", "stress", "it has no knobs of a kernel"),
        ("{", "stress", "this is no JSON"),
        ("{}", "launch", "knobs works only with stress"),
    ],
)
def test_a_file_without_knobs_is_said(tmp_path: Path, content: str, probe: str, sentence: str) -> None:
    file = tmp_path / "found.json"
    file.write_text(content)
    with pytest.raises(InputError, match=sentence):
        measure(tmp_path / "S", probe, backend="simulated", knobs=file)
    assert not (tmp_path / "S").exists()
