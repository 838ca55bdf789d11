"""Measure with probes, as `whorl probe run` does: check the options, choose the GPUs, run the probes, store the runs.

found = measure("fleet", ["gemm-fp32"], MeasureOptions(backend="simulated", gpus=16))
found.report.runs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InputError
from ..store.instants import seconds_of

if TYPE_CHECKING:
    from ..simulation.cluster import SimulatedNode
    from ..simulation.fleet import Fleet
    from ..store import Store
    from .campaign import Plan, Progress, Report
    from .catalogue import Probe
    from .conditions import Asked
    from .node import Local

BACKENDS = ("cuda", "simulated", "auto")
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0  # between stored readings of a simulated fleet
_OF_FLEET = ("gpus", "model", "seed", "faults", "fault", "population")
_SIMULATED = (*_OF_FLEET, "interval", "fleet", "node")


@dataclass(frozen=True)
class MeasureOptions:
    """The options of `whorl probe run` (docs/cli.md); times are in s, or as "5min"."""

    suite: str | None = None
    backend: str = "cuda"
    gpu: str | int | Sequence[str | int] = ()
    """Only these GPUs, by name, UUID or index."""
    neighbours: str = "idle"
    period: float | str | None = None
    duty: float | None = None
    input: str | None = None
    input_seed: int = 1
    precision: float | None = None
    """Relative half width of the interval, %."""
    repeats: int | None = None
    time_limit: float | str | None = None
    until_wrong: bool = False
    stress: Callable[[], Probe] | None = None
    """Gives the probe that stands in for `stress`, with knobs of its own."""
    start_temperature: float | None = None
    """Degrees Celsius."""
    cool_down: float | str = 120.0
    lock_clock: float | None = None
    """MHz."""
    power_limit: float | None = None
    """W."""
    exclusive: bool = False
    campaign: str | None = None
    cluster: str | None = None
    gpus: int | None = None
    model: str | None = None
    seed: int | None = None
    faults: int | None = None
    fault: str | Sequence[str] = ()
    population: str | None = None
    interval: float | str | None = None
    fleet: str | Path | None = None
    """A file that describes a simulated cluster: the GPUs of one `node` are measured, of the node of this Slurm job if
    none is named."""
    node: str | None = None
    progress: Progress | None = None
    """Called with the number of probes that are done."""
    tell: Callable[[str], None] | None = None
    """Called with a sentence if settings of a crashed process were restored."""
    begins: Callable[[str], None] | None = None
    """Called with the campaign's name when everything is checked."""

    @property
    def chosen_gpus(self) -> tuple[str | int, ...]:
        return (self.gpu,) if isinstance(self.gpu, str | int) else tuple(self.gpu)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the faults to plant."""
        return (self.fault,) if isinstance(self.fault, str) else tuple(self.fault)

    @property
    def interval_s(self) -> float:
        """Between stored readings of a simulated fleet. Raises InputError for one that cannot be."""
        interval_s = 1.0 if self.interval is None else seconds_of(self.interval)
        if not _SHORTEST_S <= interval_s <= _LONGEST_S:
            raise InputError(
                f"readings are stored every {_SHORTEST_S:g} s at most and every {_LONGEST_S:g} s at least, not every "
                f"{interval_s:g} s"
            )
        return interval_s

    def of_simulation(self, names: Sequence[str] = _SIMULATED) -> list[str]:
        """Those of the options of simulated GPUs that are set."""
        return [name for name in names if getattr(self, name) not in (None, (), [])]


@dataclass(frozen=True)
class MeasuredCampaign:
    """A campaign that was run: its options, its report, and its backend ("cuda" or "simulated")."""

    plan: Plan
    report: Report
    backend: str

    def __repr__(self) -> str:
        report = self.report
        wrong = [f"{len(report.failures)} GPUs failed"] if report.failures else []
        wrong += [f"{len(report.wrong)} results wrong"] if report.wrong else []
        runs = f"{len(report.runs):,} runs on {report.gpus:,} GPUs"
        return f"<{report.campaign}: {', '.join([runs, *wrong])}>"


def measure(store: Store | str | Path, names: Sequence[str], options: MeasureOptions | None = None) -> MeasuredCampaign:
    """Run probes, by name or those of a suite, on every GPU of this node or of a simulated fleet, into a store.

    The store is made if there is none. Raises InputError if an option is not possible, DeviceError if no GPU can be
    used, StoreError if the store cannot be written. A GPU that fails is left out, and the report says so.
    """
    from ..store import Store
    from .node import run_plan
    from .simulated import run_simulated
    from .simulated_node import choose_node, run_node

    options = options or MeasureOptions()
    plan = _plan(names, options)
    _refuse_no_numbers(lock_clock=options.lock_clock, power_limit=options.power_limit)
    _refuse_empty(cluster=options.cluster)
    interval_s = options.interval_s
    _refuse_mixed(options)
    place: tuple[SimulatedNode, list[int]] | None = None
    devices, notes, drawn = None, list[str](), None
    if options.fleet is not None:
        place = choose_node(options.fleet, options.node, options.chosen_gpus)
    else:
        devices, notes = _devices(options)
        if devices is None:
            kinds = options.kinds
            drawn = drawn_fleet(options.gpus, options.model, options.seed, options.faults, kinds, options.population)
    simulated = place[0].cluster.drawn if place else drawn
    if simulated is not None:
        simulated.limits(options.power_limit, options.lock_clock)
    opened = store if isinstance(store, Store) else Store.create(store)  # only after everything else was checked
    if options.begins is not None:
        options.begins(plan.campaign)
    if devices is not None:
        report = run_plan(
            opened,
            devices,
            plan,
            cluster=options.cluster,
            exclusive=options.exclusive,
            lock_clock_mhz=options.lock_clock,
            power_limit_w=options.power_limit,
            progress=options.progress,
        )
    else:
        settings: dict[str, Any] = {
            "cluster": options.cluster,
            "cap_w": options.power_limit,
            "lock_mhz": options.lock_clock,
            "telemetry_s": interval_s,
            "progress": options.progress,
        }
        if place:
            report = run_node(opened, place[0], plan, chosen=place[1], **settings)
        else:
            assert drawn is not None
            report = run_simulated(opened, drawn, plan, **settings)
        report.notes += [f"planted {fault.label}: {fault.name} ({fault.uuid})" for fault in report.planted]
    report.notes = [*notes, *report.notes]
    return MeasuredCampaign(plan, report, "simulated" if devices is None else "cuda")


def _plan(names: Sequence[str], options: MeasureOptions) -> Plan:
    from . import catalogue
    from .campaign import Plan
    from .conditions import DUTY, PERIOD_S, Asked
    from .effort import EFFORTS

    if not names and options.suite is None:
        raise InputError("choose what to run: names of probes (`whorl probe list`), or --suite quick, standard or full")
    suite = options.suite or "standard"
    if suite not in EFFORTS:
        raise InputError(f"there is no suite {suite!r}; there are {', '.join(EFFORTS)}")
    probes = catalogue.choose(tuple(names)) if names else catalogue.suite(suite)
    period, time_limit_s = seconds_of(options.period), seconds_of(options.time_limit)
    period_s = PERIOD_S if period is None else period
    precision, repeats, duty = options.precision, options.repeats, options.duty
    _refuse_no_numbers(duty=duty, precision=precision, start_temperature=options.start_temperature)
    for possible, sentence in (
        (0.04 <= period_s <= 60, f"the period of load and rest must be from 0.04 to 60 s, not {period_s:g} s"),
        (precision is None or 0 < precision <= 100,
         f"precision is a percentage above 0 and up to 100, not {precision or 0:g}"),
        (repeats is None or 3 <= repeats <= 10_000, f"repeats is from 3 to 10,000, not {repeats}"),
        (duty is None or 0 < duty < 1, f"duty is a share between 0 and 1, not {duty or 0:g}"),
        (options.start_temperature is None or 0 <= options.start_temperature <= 100,
         f"start-temperature must be from 0 to 100 degrees Celsius, not {options.start_temperature or 0:g}"),
        (time_limit_s is None or time_limit_s > 0, "the time limit must be longer than 0 s"),
    ):  # fmt: skip
        if not possible:
            raise InputError(sentence)
    _refuse_empty(campaign=options.campaign)
    wishes = Asked(
        EFFORTS[suite],
        seed=options.input_seed,
        precision=None if precision is None else precision / 100,
        repeats=repeats,
        time_limit_s=time_limit_s,
        until_wrong=options.until_wrong,
        start_temperature_c=options.start_temperature,
        cool_down_s=seconds_of(options.cool_down),
        period_s=period_s,
        duty=DUTY if duty is None else duty,
        input=options.input,
    )
    _refuse_unused(probes, wishes, period=period, duty=duty)
    if options.until_wrong and not any(probe.kind == "soak" for probe in probes):
        raise InputError("until-wrong works only with soak, which is not among the chosen probes")
    if options.stress is not None:
        probes = _with_stress(probes, options.stress)
    # To the microsecond: a campaign that starts in the same second on another node must have another name.
    campaign = options.campaign or f"probe-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    return Plan(probes, wishes, campaign, options.neighbours)


def _with_stress(probes: Sequence[Probe], stress: Callable[[], Probe]) -> tuple[Probe, ...]:
    """The probes with another one in place of `stress`. Raises InputError if that is not among them."""
    if not any(probe.name == "stress" for probe in probes):
        raise InputError("knobs works only with stress, which is not among the chosen probes")
    hardest = stress()
    return tuple(hardest if probe.name == "stress" else probe for probe in probes)


def _refuse_no_numbers(**options: float | None) -> None:
    """Raises InputError for an option that is not a finite number: a check of the range alone lets nan pass."""
    for name, value in options.items():
        if value is not None and not isfinite(value):
            raise InputError(f"{name.replace('_', '-')} must be a finite number, not {value:g}")


def _refuse_empty(**options: str | None) -> None:
    """Raises InputError for an empty name, as from an unset variable of a script: it could not be resumed."""
    for name, text in options.items():
        if text is not None and not text.strip():
            raise InputError(f"--{name} is empty: give a name, or leave the option out")


def _refuse_unused(probes: Sequence[Probe], wishes: Asked, **wave: float | None) -> None:
    """Raises InputError for an option that none of the probes uses."""
    from ..kernels.catalogue import find_kernel
    from ..kernels.inputs import DISTRIBUTIONS
    from .protocol import takes_input

    for name, value in wave.items():
        if value is not None and not any(probe.kind in ("square", "soak") for probe in probes):
            raise InputError(f"{name} works only with power-square and soak, which are not among the chosen probes")
    if wishes.input is None:
        return
    if wishes.input not in DISTRIBUTIONS:
        raise InputError(f"there is no distribution {wishes.input!r} of inputs; there are {', '.join(DISTRIBUTIONS)}")
    if not any(takes_input(find_kernel(probe.kernel)) for probe in probes):
        raise InputError(
            "input works only with probes whose input data can be chosen, such as gemm-fp32; none of these is one"
        )


def _refuse_mixed(options: MeasureOptions) -> None:
    backend, simulated = options.backend, options.of_simulation()
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if backend == "cuda" and simulated:
        raise InputError(f"{simulated[0]} works only with --backend simulated")
    if options.fleet is None:
        if options.node is not None:
            raise InputError("node works only with fleet")
        if backend == "simulated" and (options.chosen_gpus or options.exclusive):
            name = "gpu" if options.chosen_gpus else "exclusive"
            raise InputError(f"{name} works only with real GPUs, or with the file of a fleet")
        return
    if backend != "simulated":
        raise InputError("fleet works only with --backend simulated")
    for name in options.of_simulation(_OF_FLEET):
        raise InputError(f"{name} cannot be used with fleet: the file describes the GPUs")


def _devices(options: MeasureOptions) -> tuple[Local | None, list[str]]:
    """The chosen GPUs of this node (None: simulated ones), and notes about the choice."""
    from . import node

    if options.backend == "simulated":
        return None, []
    names = [str(name) for name in options.chosen_gpus]
    try:
        local = node.local_devices(tell=options.tell)
    except (InputError, DeviceError) as error:
        if options.backend == "auto" and not (names or options.exclusive):
            return None, [f"{error}; a simulated fleet is used instead"]
        raise type(error)(f"{error}; without a GPU, use --backend simulated") from error
    return node.choose(local, names), []


def drawn_fleet(
    gpus: int | None = None,
    model: str | None = None,
    seed: int | None = None,
    faults: int | None = None,
    fault: Sequence[str] = (),
    population: str | None = None,
) -> Fleet:
    """The simulated fleet that the options ask for. Raises InputError if there is no such fleet."""
    from ..simulation.fleet import Fleet
    from ..simulation.models import find_model
    from ..simulation.spread import USUAL, find_population

    return Fleet.draw(
        find_model(model or "V100"),
        4 if gpus is None else gpus,
        1 if seed is None else seed,
        find_population(USUAL if population is None else population),
        faults=faults if faults is not None or fault else 0,
        kinds=tuple(fault),
    )
