"""Tuning a probe: each trial is an ordinary run of it, under a power limit and a locked clock, stored with these.

    bench = probe_bench("fleet", "gemm-fp16", ProbeBenchOptions(backend="simulated", model="H100", gpus=8))
    answer = tune(bench, TimeBound(max_slowdown=0.05))

Runs under a stated limit or clock are kinds of their own (`runs.measurements`), and no verdict compares them with
others; a trial at the default is a run like any other. With knobs of the kernel the workload has their values in its
name, as `gemm-fp16 n=4096`. Settings are made and restored by the probe's run, each time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..analysis.tuning.search import Knob, Setting, Trial
from ..errors import DeviceError, InputError
from ..kernels.catalogue import find_kernel
from ..kernels.work import Facts, Unfit, Work
from ..probes.campaign import Plan, Report, size_of
from ..probes.catalogue import Kind, Probe, find_probe
from ..probes.conditions import Asked
from ..probes.effort import EFFORTS, Effort
from ..store.names import TRIAL_CAMPAIGN
from ..store.vocabulary import Outcome
from .tuning_knobs import GpuKnobs, knobs_of_gpus, knobs_of_model

if TYPE_CHECKING:
    from ..kernels.device import Device
    from ..simulation.fleet import Fleet
    from ..store import Store

Limits = Mapping[str, float | None]  # `power_limit_w` and `lock_clock_mhz`, each None where it is not set
Runner = Callable[[str, Plan, Limits], Report]  # runs a plan on a GPU under limits
_SECOND_NS = 1_000_000_000
_TIMES = ("least_s", "limit_s", "warm_up_s", "first_warm_up_s")
_FIRST_PART = 0.1  # of a trial: after so much of its time it may be ended


@dataclass(frozen=True)
class ProbeBenchOptions:
    """What `probe_bench` measures, and where."""

    backend: str = "cuda"  # 'cuda' or 'simulated'
    suite: str = "standard"  # how thoroughly a trial is measured
    knobs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Parameters of the probe's kernel by name, with the values to try."""
    gpu: Sequence[str] = ()  # GPUs of this node, by name or index; all where none is named
    gpus: int | None = None  # simulated: how many, of which model and seed
    model: str | None = None
    seed: int | None = None
    faults: int | None = None
    fault: Sequence[str] = ()  # simulated: how many GPUs are faulty, and how
    tell: Callable[[str], None] = lambda _: None  # hears what was restored of a process that crashed before


class ProbeBench:
    """A probe on GPUs of one model, as a `TuneBench`.

    The time is that of a repetition. With knobs of the kernel the energy is that of as much work (FLOP, else bytes) as
    the default's repetition does: per element of a batch, where the knob is the number of elements.
    """

    def __init__(
        self, probe: Probe, facts: Mapping[str, Facts], gpu_knobs: GpuKnobs, run: Runner, options: ProbeBenchOptions
    ) -> None:
        """`facts` by GPU. Raises InputError for a probe that is not steady, and for a knob that its kernel lacks."""
        if probe.kind is not Kind.STEADY:
            raise InputError(
                f"{probe.name} is no steady work, so it has no energy of a repetition: choose another probe"
            )
        if options.suite not in EFFORTS:
            raise InputError(f"there is no suite {options.suite!r}; there are {', '.join(EFFORTS)}")
        self._probe, self._facts, self._run, self._gpu_knobs = probe, facts, run, gpu_knobs
        self._effort = EFFORTS[options.suite]
        self._kernel = find_kernel(probe.kernel)
        self._began, self._number = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}", 0
        self.label, self.gpus = probe.name, list(facts)
        self._default = self._built({}, self.gpus[0])
        self._own = tuple(self._knob(name, values) for name, values in options.knobs.items())
        self.knobs = (*gpu_knobs.knobs, *self._own)
        self.unset, self.commands = gpu_knobs.unset, gpu_knobs.commands

    def measure(self, setting: Setting, gpu: str, *, stop_over_s: float | None = None) -> Trial:
        """As `TuneBench.measure`; its first tenth is a short run by itself, and stored as well."""
        if stop_over_s is not None:
            part = {name: getattr(self._effort, name) * _FIRST_PART for name in _TIMES}
            first = self._trial(setting, gpu, replace(self._effort, **part))
            if first.time_s is not None and first.time_s > stop_over_s:
                return replace(first, ended_early=True)
        trial = self._trial(setting, gpu, self._effort)
        if trial.energy_j is None:
            raise DeviceError(f"{gpu}: nothing tells its power while {self.label} runs, so there is no energy to save")
        return trial

    def _trial(self, setting: Setting, gpu: str, effort: Effort) -> Trial:
        chosen = {knob.name: int(setting[knob.name]) for knob in self._own if setting[knob.name] != knob.default}
        name = " ".join([self._probe.name, *(f"{knob}={value:g}" for knob, value in chosen.items())])
        probe = replace(self._probe, name=name, parameters={**self._probe.parameters, **chosen})
        default, work = (size_of(vars(self._built(parameters, gpu))) or 1.0 for parameters in ({}, chosen))
        self._number += 1
        plan = Plan((probe,), Asked(effort), f"{TRIAL_CAMPAIGN}{self._began}-{self._number:03d}")
        report = self._run(gpu, plan, self._gpu_knobs.limits(setting))
        if not report.runs:
            reasons = [*report.failures.values(), *(reason for _, _, reason in report.unrun)]
            raise DeviceError(reasons[0] if reasons else f"{gpu}: {name} was not run")
        run = report.runs[0]
        if run.median_ms is None or run.size is None or run.status not in (Outcome.OK, Outcome.HEALTH_CHANGED):
            gone = run.status in (Outcome.LOST, Outcome.HUNG)
            raise DeviceError(run.status_detail or f"{gpu}: {name} has no time", gone=gone, outcome=run.status)
        # A kernel that is far slower than meant is built smaller by the protocol: everything is for the same work.
        energy_j = None if run.energy_j is None else run.energy_j * default / run.size
        time_s = run.median_ms / 1000 * work / run.size
        noise = None if run.low_ms is None or run.high_ms is None else (run.high_ms - run.low_ms) / run.median_ms / 3.92
        return Trial(setting, energy_j, time_s, noise)

    def _built(self, parameters: Mapping[str, float], gpu: str) -> Work:
        """The work of a repetition as it is meant. Raises DeviceError where it does not fit the GPU."""
        try:
            work = self._kernel.build(self._facts[gpu], **{**self._probe.parameters, **parameters})
        except OverflowError:  # of a size that no integer of a kernel holds
            raise DeviceError(f"{gpu}: no GPU holds {self.label} of this size") from None
        if isinstance(work, Unfit):
            raise DeviceError(f"{gpu}: {work.reason}")
        return work

    def _knob(self, name: str, values: Sequence[float]) -> Knob:
        """A parameter of the kernel as a knob. Its default, what the kernel chooses by itself, is one of the values."""
        defaults = {
            word: self._default.parameters[word]
            for word in inspect.signature(self._kernel.build).parameters
            if isinstance(self._default.parameters.get(word), int | float)
        }
        if name not in defaults:
            raise InputError(f"{self.label} has no knob {name!r}: it takes {', '.join(defaults) or 'none'}")
        default = float(defaults[name])
        if not values or not all(float(value).is_integer() for value in values):
            raise InputError(f"the values of the knob {name} are whole numbers, as --knob {name}=1,2,4")
        return Knob(name, tuple(sorted({*map(float, values), default})), default)


def probe_bench(store: Store | str | Path, probe: str, options: ProbeBenchOptions) -> ProbeBench:
    """A probe on the GPUs of this node, or on simulated ones; the store is made if there is none.

    Raises InputError for a probe, knob or GPU that there is not, and for GPUs of several models; DeviceError where no
    GPU can be used.
    """
    from ..probes import node
    from ..store import Store

    row = find_probe(probe)
    if options.backend not in ("cuda", "simulated"):
        raise InputError(f"there is no backend {options.backend!r} for tuning; there are cuda and simulated")
    if options.backend == "simulated":
        from ..probes.measurement import drawn_fleet

        if options.gpu:
            raise InputError("--gpu works only with real GPUs")
        fleet = drawn_fleet(options.gpus, options.model, options.seed, options.faults, options.fault)
        return bench_in(store if isinstance(store, Store) else Store.create(store), row, fleet, options)
    for name in ("gpus", "model", "seed", "faults", "fault"):
        if getattr(options, name) not in (None, ()):
            raise InputError(f"--{name} works only with --backend simulated")
    devices = node.choose(node.local_devices(tell=options.tell), list(options.gpu))
    opened = store if isinstance(store, Store) else Store.create(store)
    return bench_on(opened, row, devices, options)


def bench_on(store: Store, probe: Probe, devices: Sequence[Device], options: ProbeBenchOptions) -> ProbeBench:
    """A probe on these devices of this node."""
    from ..probes.node import run_plan

    by_gpu = {device.facts.gpu: device for device in devices}

    def run(gpu: str, plan: Plan, limits: Limits) -> Report:
        return run_plan(
            store, [by_gpu[gpu]], plan, lock_clock_mhz=limits["lock_clock_mhz"], power_limit_w=limits["power_limit_w"]
        )

    return ProbeBench(probe, facts_of_devices(devices), knobs_of_gpus(list(by_gpu), tell=options.tell), run, options)


def bench_in(store: Store, probe: Probe, fleet: Fleet, options: ProbeBenchOptions) -> ProbeBench:
    """A probe on the GPUs of a simulated fleet. The first trial is on its next free day, each other one follows it."""
    from ..probes.simulated import run_simulated

    facts = facts_of_fleet(fleet)
    places = {gpu: place for place, gpu in enumerate(facts)}
    ended_ns: list[int] = []

    def run(gpu: str, plan: Plan, limits: Limits) -> Report:
        report = run_simulated(
            store,
            fleet,
            plan,
            cap_w=limits["power_limit_w"],
            lock_mhz=limits["lock_clock_mhz"],
            chosen=[places[gpu]],
            began_ns=-(-ended_ns[-1] // _SECOND_NS) * _SECOND_NS if ended_ns else None,
        )
        if report.ended_ns is not None:
            ended_ns.append(report.ended_ns)
        return report

    return ProbeBench(probe, facts, knobs_of_model(fleet.model, len(fleet)), run, options)


def facts_of_devices(devices: Sequence[Device]) -> dict[str, Facts]:
    """By UUID. Raises InputError for GPUs of several models."""
    models = {device.facts.model for device in devices}
    if len(models) > 1:
        raise InputError(f"the GPUs here are of several models ({', '.join(sorted(models))}): choose some by --gpu")
    return {device.facts.gpu: device.facts for device in devices}


def facts_of_fleet(fleet: Fleet) -> dict[str, Facts]:
    """By UUID."""
    from ..kernels.simulated_device import facts_of
    from ..simulation.cluster import identities

    boards = identities(fleet.seed, len(fleet), fleet.model.name)
    return {gpu.uuid: facts_of(fleet.model, gpu=gpu.uuid, node=gpu.host, index=gpu.device) for gpu in boards}
