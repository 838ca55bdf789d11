"""Measure with probes, as `whorl probe run` does: check the options, choose the GPUs, run the probes, store the runs.

found = measure("fleet", "gemm-fp32", backend="simulated", gpus=16)
found.report.runs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InputError
from ..store.instants import seconds_of

if TYPE_CHECKING:
    from ..probes.campaign import Plan, Progress, Report
    from ..probes.conditions import Asked
    from ..probes.node import Local
    from ..probes.probe import Probe
    from ..simulation.fleet import Fleet
    from ..store import Store

BACKENDS = ("cuda", "simulated", "auto")
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0  # between stored readings of a simulated fleet


@dataclass(frozen=True)
class Measured:
    """A campaign that was run: its options, its report, and its backend ("cuda" or "simulated")."""

    plan: Plan
    report: Report
    backend: str

    def __repr__(self) -> str:
        report = self.report
        named = [f"{len(report.failures)} GPUs failed"] if report.failures else []
        named += [f"{len(report.wrong)} results wrong"] if report.wrong else []
        return (
            f"<{report.campaign}: {len(report.runs):,} runs on {report.gpus:,} GPUs{''.join(f', {n}' for n in named)}>"
        )


def measure(
    store: Store | str | Path,
    *names: str,
    suite: str | None = None,
    backend: str = "cuda",
    gpu: str | int | Sequence[str | int] = (),
    neighbours: str = "idle",
    period: float | str | None = None,
    duty: float | None = None,
    input: str | None = None,  # noqa: A002 - as the option is called
    input_seed: int = 1,
    precision: float | None = None,
    repeats: int | None = None,
    time_limit: float | str | None = None,
    until_wrong: bool = False,
    knobs: str | Path | None = None,
    start_temperature: float | None = None,
    cool_down: float | str = 120.0,
    lock_clock: float | None = None,
    power_limit: float | None = None,
    exclusive: bool = False,
    campaign: str | None = None,
    cluster: str | None = None,
    gpus: int | None = None,
    model: str | None = None,
    seed: int | None = None,
    faults: int | None = None,
    fault: str | Sequence[str] = (),
    population: str | None = None,
    interval: float | str | None = None,
    fleet: str | Path | None = None,
    node: str | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
    begins: Callable[[str], None] | None = None,
) -> Measured:
    """Run probes, by name or those of a suite, on every GPU of this node or of a simulated fleet, into a store.

    The arguments are the options of `whorl probe run` (docs/cli.md); times are in s, or as "5min"; `precision` in %,
    `lock_clock` in MHz, `power_limit` in W, `start_temperature` in degrees Celsius. The store is made if there is none.
    With `fleet`, a file that describes a simulated cluster, the GPUs of one `node` are measured: of the node of this
    Slurm job, if none is named. `progress` is called with the number of probes that are done, `tell` with a sentence if
    settings of a crashed process were restored, `begins` with the campaign's name when everything is checked.

    Raises InputError if an option is not possible, DeviceError if no GPU can be used, StoreError if the store cannot be
    written. A GPU that fails is left out, and the report says so.
    """
    from ..probes.node import run_plan
    from ..probes.simulated import run_simulated
    from ..probes.simulated_node import run_node
    from ..store import Store
    from .fleet_file import choose_node

    gpu = (gpu,) if isinstance(gpu, str | int) else gpu
    fault = (fault,) if isinstance(fault, str) else fault
    interval = seconds_of(interval)
    plan = _plan(
        names,
        suite=suite,
        neighbours=neighbours,
        period=seconds_of(period),
        duty=duty,
        distribution=input,
        input_seed=input_seed,
        precision=precision,
        repeats=repeats,
        time_limit=seconds_of(time_limit),
        until_wrong=until_wrong,
        start_temperature=start_temperature,
        cool_down=seconds_of(cool_down),
        campaign=campaign,
    )
    if knobs is not None:
        plan = _with_knobs(plan, knobs)
    _refuse_no_numbers(lock_clock=lock_clock, power_limit=power_limit)
    _refuse_empty(cluster=cluster)
    if interval is not None and not _SHORTEST_S <= interval <= _LONGEST_S:
        raise InputError(
            f"readings are stored every {_SHORTEST_S:g} s at most and every {_LONGEST_S:g} s at least, not every "
            f"{interval:g} s"
        )
    simulated = {
        "gpus": gpus,
        "model": model,
        "seed": seed,
        "faults": faults,
        "fault": fault,
        "population": population,
        "interval": interval,
        "fleet": fleet,
        "node": node,
    }
    _refuse_mixed(backend, simulated, gpu, exclusive=exclusive)
    begun = begins or (lambda _: None)
    place = None if fleet is None else choose_node(fleet, node, gpu)
    devices, notes = (None, []) if place else _devices(backend, gpu, exclusive=exclusive, tell=tell)
    drawn = None if place or devices is not None else drawn_fleet(gpus, model, seed, faults, fault, population)
    for one in (place[0].cluster.drawn if place else None, drawn):
        if one is not None:
            one.limits(power_limit, lock_clock)
    opened = store if isinstance(store, Store) else Store.create(store)  # only after everything else was checked
    begun(plan.campaign)
    telemetry_s = 1.0 if interval is None else interval
    if devices is not None:
        report = run_plan(
            opened,
            devices,
            plan,
            cluster=cluster,
            exclusive=exclusive,
            lock_clock_mhz=lock_clock,
            power_limit_w=power_limit,
            progress=progress,
        )
    else:
        options: dict[str, Any] = {
            "cluster": cluster,
            "cap_w": power_limit,
            "lock_mhz": lock_clock,
            "telemetry_s": telemetry_s,
            "progress": progress,
        }
        if place:
            report = run_node(opened, place[0], plan, chosen=place[1], **options)
        else:
            assert drawn is not None
            report = run_simulated(opened, drawn, plan, **options)
        report.notes += [f"planted {one.label}: {one.name} ({one.uuid})" for one in report.planted]
    report.notes = [*notes, *report.notes]
    return Measured(plan, report, "simulated" if devices is None else "cuda")


def _plan(
    names: Sequence[str],
    *,
    suite: str | None,
    neighbours: str,
    period: float | None,
    duty: float | None,
    distribution: str | None,
    input_seed: int,
    precision: float | None,
    repeats: int | None,
    time_limit: float | None,
    until_wrong: bool,
    start_temperature: float | None,
    cool_down: float,
    campaign: str | None,
) -> Plan:
    """The plan that the options ask for. Raises InputError if it cannot be done."""
    from ..probes import catalogue
    from ..probes.campaign import Plan
    from ..probes.conditions import DUTY, PERIOD_S, Asked
    from ..probes.effort import EFFORTS

    if not names and suite is None:
        raise InputError("choose what to run: names of probes (`whorl probe list`), or --suite quick, standard or full")
    suite = suite or "standard"
    if suite not in EFFORTS:
        raise InputError(f"there is no suite {suite!r}; there are {', '.join(EFFORTS)}")
    probes = catalogue.choose(tuple(names)) if names else catalogue.suite(suite)
    period_s = PERIOD_S if period is None else period
    if not 0.04 <= period_s <= 60:
        raise InputError(f"the period of load and rest must be from 0.04 to 60 s, not {period_s:g} s")
    _refuse_no_numbers(duty=duty, precision=precision, start_temperature=start_temperature)
    if not 0 < (1.0 if precision is None else precision) <= 100:
        raise InputError(f"--precision is a percentage above 0 and up to 100, not {precision:g}")
    if not 3 <= (3 if repeats is None else repeats) <= 10_000:
        raise InputError(f"--repeats is from 3 to 10,000, not {repeats}")
    if not 0 < (0.5 if duty is None else duty) < 1:
        raise InputError(f"--duty is a share between 0 and 1, not {duty:g}")
    if start_temperature is not None and not 0 <= start_temperature <= 100:
        raise InputError(f"--start-temperature must be from 0 to 100 degrees Celsius, not {start_temperature:g}")
    if time_limit is not None and time_limit <= 0:
        raise InputError("the time limit must be longer than 0 s")
    _refuse_empty(campaign=campaign)
    asked = Asked(
        EFFORTS[suite],
        seed=input_seed,
        precision=None if precision is None else precision / 100,
        repeats=repeats,
        time_limit_s=time_limit,
        until_wrong=until_wrong,
        start_temperature_c=start_temperature,
        cool_down_s=cool_down,
        period_s=period_s,
        duty=DUTY if duty is None else duty,
        input=distribution,
    )
    _refuse_unused(probes, asked, period=period, duty=duty)
    if until_wrong and not any(probe.kind == "soak" for probe in probes):
        raise InputError("--until-wrong works only with soak, which is not among the chosen probes")
    # To the microsecond: a campaign that starts in the same second on another node must have another name.
    return Plan(probes, asked, campaign or f"probe-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}", neighbours)


def _with_knobs(plan: Plan, knobs: str | Path) -> Plan:
    """The plan whose kernel `stress` has the knobs of a file. Raises InputError if there is none in it."""
    from .tuning_stress import KERNEL, setting_in, stress_probe

    if not any(probe.name == KERNEL for probe in plan.probes):
        raise InputError("--knobs works only with stress, which is not among the chosen probes")
    hardest = stress_probe(setting_in(knobs))
    return replace(plan, probes=tuple(hardest if probe.name == KERNEL else probe for probe in plan.probes))


def _refuse_no_numbers(**given: float | None) -> None:
    """Raises InputError for an option that is not a finite number: a check of the range alone lets nan pass."""
    for name, value in given.items():
        if value is not None and not isfinite(value):
            raise InputError(f"--{name.replace('_', '-')} must be a finite number, not {value:g}")


def _refuse_empty(**given: str | None) -> None:
    """Raises InputError for an empty name, as from an unset variable of a script: it could not be resumed."""
    for name, value in given.items():
        if value is not None and not value.strip():
            raise InputError(f"--{name} is empty: give a name, or leave the option out")


def _refuse_unused(probes: Sequence[Probe], asked: Asked, **wave: float | None) -> None:
    """Raises InputError for an option that none of the probes uses."""
    from ..kernels.catalogue import find_kernel
    from ..kernels.inputs import DISTRIBUTIONS
    from ..probes.protocol import takes_input

    for name, value in wave.items():
        if value is not None and not any(one.kind in ("square", "soak") for one in probes):
            raise InputError(f"--{name} works only with power-square and soak, which are not among the chosen probes")
    if asked.input is None:
        return
    if asked.input not in DISTRIBUTIONS:
        raise InputError(f"there is no distribution {asked.input!r} of inputs; there are {', '.join(DISTRIBUTIONS)}")
    if not any(takes_input(find_kernel(one.kernel)) for one in probes):
        raise InputError(
            "--input works only with probes whose input data can be chosen, such as gemm-fp32; none of these is one"
        )


def _refuse_mixed(
    backend: str, simulated: Mapping[str, object], chosen: Sequence[str | int], *, exclusive: bool
) -> None:
    """Raises InputError for options of another backend."""
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if backend == "cuda":
        for name, value in simulated.items():
            if value is not None and value != () and value != []:
                raise InputError(f"--{name} works only with --backend simulated")
    if simulated["fleet"] is None:
        if simulated["node"] is not None:
            raise InputError("--node works only with --fleet")
        if backend == "simulated" and (chosen or exclusive):
            raise InputError(f"--{'gpu' if chosen else 'exclusive'} works only with real GPUs, or with --fleet")
        return
    if backend != "simulated":
        raise InputError("--fleet works only with --backend simulated")
    for name in ("gpus", "model", "seed", "faults", "fault", "population"):
        if simulated[name] is not None and not (name == "fault" and not simulated[name]):
            raise InputError(f"--{name} cannot be used with --fleet: the file describes the GPUs")


def _devices(
    backend: str, chosen: Sequence[str | int], *, exclusive: bool, tell: Callable[[str], None] | None
) -> tuple[Local | None, list[str]]:
    """The chosen GPUs of this node (None: simulated ones), and notes about the choice."""
    from ..probes import node

    if backend == "simulated":
        return None, []
    try:
        found = node.local_devices(tell=tell)
    except (InputError, DeviceError) as error:
        if backend == "auto" and not (chosen or exclusive):
            return None, [f"{error}; a simulated fleet is used instead"]
        raise type(error)(f"{error}; without a GPU, use --backend simulated") from error
    return node.choose(found, [str(one) for one in chosen]), []


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
