"""The setting that saves energy within a bound: the function of `whorl tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...analysis.tuning.search import TimeBound
from ...dashboards.answers.reply import Reply, RowList
from ...errors import InputError
from ...store.instants import seconds_of
from .. import tune_report

if TYPE_CHECKING:
    from ...dashboards.printed.tuning import SweepAnswer
    from ...jobs.tuning import TuneAnswer, TuneBench
    from ...jobs.tuning_stress import StressReport
    from ...store import Store

TRIALS = 14
STRESS_GPUS = 8
"""Simulated GPUs of a stress search."""


class TuneArguments(TypedDict, total=False):
    """The options of `whorl tune`; each is None where it is left out."""

    max_slowdown: float | None
    """A share: 0.05 is at most 5 % slower than the default."""
    max_latency: float | str | None
    """The most that a unit of work may take, in s, or as "16ms"."""
    trials: int | None
    """Settings that are measured, the default among them; 14, with `stress` 60."""
    safe: bool | None
    """Begin near the default, try only what is probably within the bound, and end trials over it early."""
    knob: str | Sequence[str] | None
    """Knobs of the command or of the probe's kernel, as "batch=8,1,2,4": the value in use today first."""
    unit_of_work: float | None
    """Units of work that the command does in a run."""
    timeout: float | str | None
    """The longest that a run of the command may take, in s, or as "5min"."""
    resume: str | Path | None
    """A log of the trials. One that is there is gone on with."""
    warm_start: str | Path | None
    """A sweep of the same work on another model, or the log of a search there: for 6 trials or fewer."""
    suite: str | None
    """How thoroughly each trial of a probe or a stress kernel is measured."""
    gpu: str | int | Sequence[str | int] | None
    """Only these GPUs of this node."""
    backend: str | None
    """"cuda" or "simulated"."""
    gpus: int | None
    """Simulated: how many GPUs, of which `model`, drawn with which `seed`."""
    model: str | None
    seed: int | None
    """Also of the random trials."""
    across: str | None
    """With a sweep, "batch": choose among the batch sizes too."""
    map: Mapping[str, str] | None
    """With a sweep: what columns mean, by their names, as {"watts": "power_limit_w"}."""
    progress: Callable[[Any], None] | None
    """Called after each measurement, with a `TuneProgress` or a `StressProgress`."""
    tell: Callable[[str], None] | None
    """Hears what was restored of a process that crashed before."""


_BOUND = {"max_slowdown", "max_latency"}
_SEARCH = _BOUND | {"trials", "safe", "knob", "resume", "warm_start", "gpu", "seed", "progress", "tell"}
_FITS = {
    "a probe": _SEARCH | {"store", "suite", "backend", "gpus", "model"},
    "--command": _SEARCH | {"unit_of_work", "timeout"},
    "--sweep": _BOUND | {"across", "map"},
    "--stress": {"trials", "resume", "suite", "gpu", "backend", "gpus", "model", "seed", "progress", "tell"},
}
"""Which options go with what is tuned."""


def tune(
    probe: str | None = None,
    *,
    store: Store | str | Path | None = None,
    command: str | None = None,
    sweep: str | Path | None = None,
    stress: str | None = None,
    **arguments: Unpack[TuneArguments],
) -> Reply[Any]:
    """The setting of least energy within a bound on time, as `whorl tune` says it.

    What is tuned is one of: a `probe`, whose runs go into the `store`; a `command`, with {name} for each knob; a
    `sweep`, a file of settings that were measured already; the `stress` kernel, for the most "power" or the widest
    "spread" between GPUs. `frame` has a row for each trial; of a sweep, for each workload and batch size. Settings are
    restored in every case. Raises InputError for options that do not go together and for what cannot be used,
    DeviceError where no GPU can be used.
    """
    subjects = {"a probe": probe, "--command": command, "--sweep": sweep, "--stress": stress}
    chosen = [subject for subject, value in subjects.items() if value is not None]
    if len(chosen) != 1:
        several = f", not {' and '.join(chosen)}" if chosen else ""
        raise InputError(f"say what to tune: a probe, --command, --sweep or --stress{several}")
    _refuse_misfits(chosen[0], {**arguments, "store": store})
    if sweep is not None:
        return _sweep_reply(sweep, arguments)
    if stress is not None:
        return _stress_reply(stress, arguments)
    bound = _bound(arguments)
    if bound is None:
        raise InputError("say how much slower it may be: --max-slowdown 5%, or how slow: --max-latency 16ms")
    if command is not None:
        return _command_reply(command, bound, arguments)
    assert probe is not None
    if store is None:
        raise InputError("a trial is a run of the probe, which is stored: give --store")
    return _probe_reply(store, probe, bound, arguments)


def _refuse_misfits(subject: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in _FITS[subject] and value not in (None, False, (), {}):
            raise InputError(f"--{name.replace('_', '-')} does not go with {subject}: leave it out")


def _bound(arguments: TuneArguments) -> TimeBound | None:
    slowdown, latency = arguments.get("max_slowdown"), seconds_of(arguments.get("max_latency"))
    if slowdown is None and latency is None:
        return None
    if slowdown is not None and latency is not None:
        raise InputError("--max-slowdown and --max-latency are two bounds: give one of them")
    return TimeBound(slowdown, latency)


def _texts(words: str | int | Sequence[str | int] | None) -> list[str]:
    """One or several words as a list."""
    if words is None:
        return []
    return [str(words)] if isinstance(words, str | int) else [str(word) for word in words]


# -- from a sweep ----------------------------------------------------------------------------------------------------


def _sweep_reply(path: str | Path, arguments: TuneArguments) -> Reply[SweepAnswer]:
    """The choices in the sweeps of a file."""
    from ...analysis.tuning.sweep import across_batches, choose, read_sweeps
    from ...dashboards.printed import tuning as printed

    bound, across = _bound(arguments), arguments.get("across")
    if across not in (None, "batch"):
        raise InputError(f"--across {across}: a sweep goes across batch")
    file = read_sweeps(path, arguments.get("map"))
    sweeps = file.sweeps
    if across:
        if not file.has_batches:
            raise InputError(f"{path} has no column batch_size: leave out --across, or say which it is with --map")
        sweeps = tuple(across_batches(sweeps))
    answer = printed.SweepAnswer(file, tuple(choose(sweeps, bound)), bound, across is not None)
    return Reply(
        answer,
        partial(printed.sweep_document, answer),
        partial(printed.sweep_answer, answer),
        notes=printed.sweep_notes(answer),
    )


# -- by a search -----------------------------------------------------------------------------------------------------


def _probe_reply(
    store: Store | str | Path, probe: str, bound: TimeBound, arguments: TuneArguments
) -> Reply[TuneAnswer]:
    """Tune a probe on the GPUs of this node, or on simulated ones."""
    from ...jobs.tuning_probe import ProbeBenchOptions, probe_bench

    backend, seed = arguments.get("backend") or "cuda", arguments.get("seed")
    options = ProbeBenchOptions(
        backend=backend,
        suite=arguments.get("suite") or ProbeBenchOptions.suite,
        knobs=_kernel_knobs(arguments),
        gpu=_texts(arguments.get("gpu")),
        gpus=arguments.get("gpus"),
        model=arguments.get("model"),
        seed=seed if backend == "simulated" else None,
        tell=arguments.get("tell") or ProbeBenchOptions.tell,
    )
    return _searched(probe_bench(store, probe, options), bound, arguments, store=store)


def _kernel_knobs(arguments: TuneArguments) -> dict[str, list[float]]:
    """The values to try of each parameter of a probe's kernel."""
    knobs: dict[str, list[float]] = {}
    for text in _texts(arguments.get("knob")):
        name, _, values = text.partition("=")
        try:
            numbers = [float(value) for value in values.split(",")]
        except ValueError:
            raise InputError(f"--knob {text}: write its name and numbers, as n=1024,2048,4096") from None
        if name in knobs:
            raise InputError(f"--knob {name} is given twice")
        knobs[name] = numbers
    return knobs


def _command_reply(command: str, bound: TimeBound, arguments: TuneArguments) -> Reply[TuneAnswer]:
    """Tune a command on the GPUs of this node."""
    from ...jobs.tuning_command import TIMEOUT_S, CommandBench, command_knob

    tell = arguments.get("tell") or (lambda _: None)
    timeout_s = seconds_of(arguments.get("timeout"))
    with CommandBench(
        command,
        [command_knob(text) for text in _texts(arguments.get("knob"))],
        unit_of_work=arguments.get("unit_of_work"),
        timeout_s=TIMEOUT_S if timeout_s is None else timeout_s,
        gpus=_texts(arguments.get("gpu")),
        tell=lambda event: tell(event.detail),
    ) as bench:
        return _searched(bench, bound, arguments)


def _searched(
    bench: TuneBench, bound: TimeBound, arguments: TuneArguments, *, store: Store | str | Path | None = None
) -> Reply[TuneAnswer]:
    """`store`: of a probe, where runs on other models may be."""
    from ...analysis.tuning.search import PRIOR_TRIALS
    from ...analysis.tuning.warm_start import NO_USE
    from ...jobs.tuning import TuningOptions, tune
    from ...jobs.tuning_warm_start import prior_from

    safe, log, start = bool(arguments.get("safe")), arguments.get("resume"), arguments.get("warm_start")
    trials = arguments.get("trials") or TRIALS
    helps = start is not None and trials <= PRIOR_TRIALS
    options = TuningOptions(
        trials=trials,
        safe=safe,
        seed=arguments.get("seed") or 0,
        log=None if log is None else Path(log),
        prior=prior_from(str(start), bench.knobs, probe=bench.label, store=store) if helps else None,
        progress=arguments.get("progress") or TuningOptions.progress,
    )
    answer = tune(bench, bound, options)
    notes = (*tune_report.tune_notes(answer), *((NO_USE,) if start is not None and not helps else ()))
    simulated = arguments.get("backend") == "simulated"
    return Reply(
        answer,
        partial(tune_report.tune_document, answer, notes),
        partial(tune_report.tune_answer, answer, safe=safe, simulated=simulated),
        rows=RowList("trials"),
        notes=notes,
    )


def _stress_reply(goal: str, arguments: TuneArguments) -> Reply[StressReport]:
    """Search the kernel of most power, or of widest spread between GPUs."""
    from ...jobs.tuning_stress import StressSearchOptions, kernels_in, kernels_on, search_stress
    from .. import tune_stress_report as stress_report

    simulated = arguments.get("backend") == "simulated"
    fleet = {name: arguments.get(name) for name in ("gpus", "model")}
    seed, trials, log = arguments.get("seed"), arguments.get("trials"), arguments.get("resume")
    if simulated:
        from ...jobs.measuring import drawn_fleet

        if arguments.get("gpu"):
            raise InputError("--gpu works only with real GPUs")
        bench = kernels_in(drawn_fleet(arguments.get("gpus") or STRESS_GPUS, arguments.get("model"), seed))
    else:
        from ...probes import node

        for name, value in fleet.items():
            if value is not None:
                raise InputError(f"--{name} works only with --backend simulated")
        tell = arguments.get("tell") or (lambda _: None)
        bench = kernels_on(node.choose(node.local_devices(tell=tell), _texts(arguments.get("gpu"))))
    options = StressSearchOptions(
        goal=goal,
        trials=StressSearchOptions.trials if trials is None else trials,
        seed=seed or 0,
        suite=arguments.get("suite") or StressSearchOptions.suite,
        log=None if log is None else Path(log),
        progress=arguments.get("progress") or StressSearchOptions.progress,
    )
    report = search_stress(bench, options)
    notes = stress_report.stress_notes(report)
    return Reply(
        report,
        partial(stress_report.stress_document, report, notes),
        partial(stress_report.stress_answer, report, simulated=simulated),
        rows=RowList("trials"),
        notes=notes,
    )
