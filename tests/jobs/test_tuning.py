"""The tuning loop over a bench whose energy and time are known, and over simulated GPUs with a store."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whorl
from whorl.analysis.tuning.search import Knob, Setting, TimeBound, Trial
from whorl.errors import DeviceError, InputError
from whorl.jobs.tuning import TuneAnswer, TuneProgress, TuningOptions, tune
from whorl.jobs.tuning_knobs import CLOCK, POWER, UnsetKnob, power_values
from whorl.jobs.tuning_probe import ProbeBenchOptions, probe_bench
from whorl.store import Store

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
    bench, told = HandBench(noise=0.001), list[TuneProgress]()
    answer = tune(bench, FIVE, TuningOptions(trials=12, progress=told.append))
    best, slowest = truth({POWER: 575.0}), truth({POWER: 550.0})
    assert answer.setting == {POWER: 575.0}, "550 W is at the bound itself, and no answer keeps its margin there"
    assert slowest[1] == pytest.approx(1.05 * truth({POWER: 700.0})[1])
    assert [gpu.gpu for gpu in answer.gpus if gpu.tuned] == ["GPU-b"], "the slow end of the class"
    true_saved = 100 * (1 - best[0] / truth({POWER: 700.0})[0])
    assert answer.saved.low_pct is not None
    assert answer.saved.high_pct is not None
    assert answer.saved.low_pct < answer.saved.pct < answer.saved.high_pct
    assert answer.saved.low_pct < true_saved < answer.saved.high_pct
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
    assert [step.done for step in told] == list(range(1, len(bench.measured) + 1))
    assert told[-1].done == 3 + 1 + 11 + 6 + 2
    assert {step.step.stage for step in told} == {"class", "trial", "default", "answer", "check"}


def test_who_is_over_the_bound_is_named() -> None:
    bench = HandBench()
    bench.measure = with_a_slow_sibling(bench)  # type: ignore[method-assign]
    answer = tune(bench, FIVE)
    assert [gpu.gpu for gpu in answer.gpus if gpu.over] == ["GPU-c"]
    assert next(gpu.slower_pct for gpu in answer.gpus if gpu.gpu == "GPU-c") == pytest.approx(7, abs=1)


def with_a_slow_sibling(bench: HandBench) -> Callable[..., Trial]:
    """GPU-c loses 5 % more under any lower limit."""
    plain = bench.measure

    def measure(setting: Setting, gpu: str, *, stop_over_s: float | None = None) -> Trial:
        trial = plain(setting, gpu, stop_over_s=stop_over_s)
        assert trial.time_s is not None
        braked = gpu == "GPU-c" and setting[POWER] < 700
        return replace(trial, time_s=trial.time_s * (1.05 if braked else 1))

    return measure


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


def test_without_a_knob_there_is_a_plan() -> None:
    unset = UnsetKnob(POWER, "setting the power limit needs root", ("nvidia-smi -i 0 -pl W",), LIMIT.values)
    bench = HandBench(knobs=(), unset=(unset,), surface=lambda setting: truth({POWER: 700.0}))
    answer = tune(bench, FIVE)
    assert answer.trials == ()
    assert answer.unset == (unset,)
    assert answer.is_default
    assert (answer.saved.n, answer.saved.low_pct) == (0, None)
    assert [gpu.default_time_s for gpu in answer.gpus] == pytest.approx([0.010, 0.0102, 0.0101])
    assert len(bench.measured) == 3, "the default on each GPU"


def test_a_bound_that_nothing_meets_leaves_the_default() -> None:
    answer = tune(HandBench(), TimeBound(max_time_s=0.005))
    assert answer.is_default
    assert not answer.within
    assert answer.commands == ()
    assert all(gpu.over for gpu in answer.gpus)
    assert tune(HandBench(), TimeBound(max_slowdown=0.0)).setting[POWER] in (600, 625, 650, 675, 700)


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
    ("other", "bound", "named"),
    [
        (HandBench(label="stream-triad"), FIVE, 'its label: "hand", and not "stream-triad"'),
        (HandBench(), TimeBound(max_time_s=1.0), "its bound"),
        (HandBench(knobs=(Knob(POWER, (300.0, 700.0), 700.0),)), FIVE, "its knobs: .{1,100}, and not .{1,100}: choose"),
    ],
)
def test_a_log_of_another_search_is_refused(tmp_path: Path, other: HandBench, bound: TimeBound, named: str) -> None:
    log = tmp_path / "log"
    interrupted(HandBench(), log, 5)
    before = log.read_bytes()
    with pytest.raises(InputError, match=f"log of another search.*{named}"):
        tune(other, bound, TuningOptions(log=log))
    assert log.read_bytes() == before
    assert not other.measured


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
    head, first, *rest = log.read_text().splitlines()
    log.write_text("\n".join([head, json.dumps(json.loads(first) | change), *rest]) + "\n")
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
    asked: dict[str, Any] = {"backend": "simulated", "model": "H100", "gpus": 8, "suite": "quick"}
    asked |= {"faults": 1, "fault": ["brake"]}
    for _ in range(3):
        whorl.measure(store, "gemm-fp16", **asked)
    before = [(row["name"], row["kind"]) for row in whorl.verdicts(store.root).json()["rows"]]
    advised = whorl.advise(store.root, workload="gemm-fp16").json()["exclude"]
    tune(probe_bench(store, "gemm-fp16", ProbeBenchOptions(**asked)), FIVE, TuningOptions(trials=6))
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
    assert slow.time_s is not None
    assert slow.time_s > 1.05 * default.time_s
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
    assert usual.time_s is not None
    ratio = 8 / sequences.default
    assert small.time_s == pytest.approx(usual.time_s * ratio, rel=0.3), "of a repetition, which is smaller"
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
