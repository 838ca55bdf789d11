"""The setting that saves energy within a bound: the function of `whorl tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...analysis.tuning.search import PRIOR_TRIALS, TimeBound
from ...analysis.tuning.sweep import across_batches, choose, read_sweeps
from ...dashboards.answers.reply import Reply, RowList
from ...errors import InputError
from ...jobs import tuning
from ...jobs.tuning import prior_from
from ...jobs.tuning_command import TIMEOUT_S, CommandBench, command_knob
from ...jobs.tuning_probe import ProbeBenchOptions, probe_bench
from ...jobs.tuning_stress import StressReport, StressSearchOptions, kernels_in, kernels_on, search_stress
from ...probes import node
from ...probes.measurement import drawn_fleet
from ...store.instants import seconds_of
from ..documents import tuning as documents

if TYPE_CHECKING:
    from ...store import Store

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
    """Knobs as "batch=8,1,2,4": of a command the value in use today first, of a probe any order."""
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
    """"cuda" or "simulated"; simulated are so many `gpus` of this `model`, drawn with this `seed`."""
    gpus: int | None
    model: str | None
    seed: int | None
    """Also of the random trials."""
    across: str | None
    """With a sweep, "batch": choose among the batch sizes too."""
    progress: Callable[[Any], None] | None
    """Called after each measurement, with a `TuneProgress` or a `StressProgress`."""
    tell: Callable[[str], None] | None
    """Hears what was restored of a process that crashed before."""


_BOUND = {"max_slowdown", "max_latency"}
_MEASURED = {"trials", "resume", "gpu", "seed", "progress", "tell"}
_SEARCH = _BOUND | _MEASURED | {"safe", "knob", "warm_start"}
_FITS = {
    "a probe": _SEARCH | {"store", "suite", "backend", "gpus", "model"},
    "--command": _SEARCH | {"unit_of_work", "timeout"},
    "--sweep": _BOUND | {"across"},
    "--stress": _MEASURED | {"suite", "backend", "gpus", "model"},
}
"""Which options go with what is tuned."""
_NO_WARM_START = (
    f"warm-start is left out: it helps only a search of {PRIOR_TRIALS} trials or fewer, and with more the trials "
    f"themselves say more; give --trials {PRIOR_TRIALS} or fewer to use it"
)


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
    everything: dict[str, Any] = {**arguments, "store": store}
    options = {
        name: value for name, value in everything.items() if not (value is None or value is False or value == ())
    }
    for name in options.keys() - _FITS[chosen[0]]:
        raise InputError(f"--{name.replace('_', '-')} does not go with {chosen[0]}: leave it out")
    if stress is not None:
        return _stress_reply(stress, options)
    slowdown, latency = options.get("max_slowdown"), seconds_of(options.get("max_latency"))
    if (slowdown is None) == (latency is None):
        raise InputError("say either how much slower it may be, --max-slowdown 5%, or how slow, --max-latency 16ms")
    bound = TimeBound(slowdown, latency)
    if sweep is not None:
        return _sweep_reply(sweep, bound, options.get("across"))
    knobs = [command_knob(text) for text in _texts(options.get("knob"))]
    if len({knob.name for knob in knobs}) < len(knobs):
        raise InputError("two knobs have one name: give each --knob a name of its own")
    tell = options.get("tell") or ProbeBenchOptions.tell
    if command is not None:
        with CommandBench(
            command,
            knobs,
            unit_of_work=options.get("unit_of_work"),
            timeout_s=seconds_of(options.get("timeout", TIMEOUT_S)),
            gpus=_texts(options.get("gpu")),
            tell=tell,
        ) as bench:
            return _searched(bench, bound, options)
    assert probe is not None
    if store is None:
        raise InputError("a trial is a run of the probe, which is stored: give --store")
    bench_options = ProbeBenchOptions(
        **{name: options[name] for name in ("suite", "backend", "gpus", "model") if name in options},
        knobs={knob.name: knob.values for knob in knobs},
        gpu=_texts(options.get("gpu")),
        seed=options.get("seed") if options.get("backend") == "simulated" else None,
        tell=tell,
    )
    return _searched(probe_bench(store, probe, bench_options), bound, options)


def _texts(words: str | int | Sequence[str | int] | None) -> list[str]:
    """One or several words as a list."""
    return [str(word) for word in ([words] if isinstance(words, str | int) else words or ())]


def _sweep_reply(path: str | Path, bound: TimeBound, across: str | None) -> Reply[documents.SweepAnswer]:
    """The choices in the sweeps of a file."""
    file = read_sweeps(path)
    if across not in (None, "batch"):
        raise InputError(f"across={across}: a sweep goes across batch")
    if across and not file.has_batches:
        raise InputError(f"{path} has no column batch_size: leave out across, or name a column so")
    choices = choose(across_batches(file.sweeps) if across else file.sweeps, bound)
    answer = documents.SweepAnswer(file, tuple(choices), bound, across is not None)
    return Reply(answer, documents.sweep_mapping, documents.sweep_document, notes=documents.sweep_notes(answer))


def _searched(bench: tuning.TuneBench, bound: TimeBound, options: Mapping[str, Any]) -> Reply[tuning.TuneAnswer]:
    """Search, and reply."""
    trials, start = options.get("trials", tuning.TuningOptions.trials), options.get("warm_start")
    helps = start is not None and trials <= PRIOR_TRIALS
    search = tuning.TuningOptions(
        trials=trials,
        safe=bool(options.get("safe")),
        seed=options.get("seed", 0),
        log=_log(options),
        prior=prior_from(str(start), bench.knobs, probe=bench.label, store=options.get("store")) if helps else None,
        progress=options.get("progress") or tuning.TuningOptions.progress,
    )
    answer = tuning.tune(bench, bound, search)
    notes = [*documents.tune_notes(answer), *([_NO_WARM_START] if start is not None and not helps else [])]
    simulated = options.get("backend") == "simulated"
    document = partial(documents.tune_document, safe=search.safe, simulated=simulated)
    mapping = partial(documents.tune_mapping, notes=notes)
    return Reply(answer, mapping, document, rows=RowList("trials"), notes=notes)


def _stress_reply(goal: str, options: Mapping[str, Any]) -> Reply[StressReport]:
    """Search the kernel of most power, or of widest spread between GPUs."""
    simulated = options.get("backend") == "simulated"
    for name in {"gpu"} if simulated else {"gpus", "model"}:
        if name in options:
            raise InputError(f"--{name} works only {'with real GPUs' if simulated else 'with --backend simulated'}")
    if simulated:
        bench = kernels_in(drawn_fleet(options.get("gpus", STRESS_GPUS), options.get("model"), options.get("seed")))
    else:
        devices = node.local_devices(tell=options.get("tell") or ProbeBenchOptions.tell)
        bench = kernels_on(node.choose(devices, _texts(options.get("gpu"))))
    search = StressSearchOptions(
        **{name: options[name] for name in ("trials", "seed", "suite", "progress") if name in options},
        goal=goal,
        log=_log(options),
    )
    report = search_stress(bench, search)
    notes = documents.stress_notes(report)
    mapping = partial(documents.stress_mapping, notes=notes)
    document = partial(documents.stress_document, simulated=simulated)
    return Reply(report, mapping, document, rows=RowList("trials"), notes=notes)


def _log(options: Mapping[str, Any]) -> Path | None:
    return Path(options["resume"]) if "resume" in options else None
