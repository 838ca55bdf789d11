"""`whorl probe`: work of known size on every GPU, with its telemetry, its repeats and a check of its result."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from .collect import Span
from .ending import Ending
from .options import json_option, store_option
from .probe_list import list_probes

if TYPE_CHECKING:
    from ..kernels.device import Device
    from ..probes.campaign import Plan, Progress, Report
    from ..probes.conditions import Asked
    from ..probes.probe import Probe
    from ..simulation.fleet import Fleet
    from ..store import Store

_SUITES = ("quick", "standard", "full")
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0  # between stored readings of a simulated fleet


@click.group("probe", short_help="Measure GPUs by work of known size: what there is, and running it.")
def probe() -> None:
    """Measure GPUs by work of known size, under stated conditions, with telemetry and a check of every result.

    docs/probes.md says how is measured, docs/kernels.md what runs.
    """


probe.add_command(list_probes)


@probe.command("run", short_help="Run probes on every GPU here, or on a simulated fleet, into a store.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@store_option
@click.option("--suite", type=click.Choice(_SUITES), help="How thoroughly; without NAMEs, also which probes.")
@click.option(
    "--backend",
    type=click.Choice(["cuda", "simulated", "auto"]),
    default="cuda",
    show_default=True,
    help="Where the probes run; auto: on the GPUs here, else simulated.",
)
@click.option("--gpu", "chosen", multiple=True, metavar="INDEX|UUID", help="Only this GPU. Repeatable.")
@click.option(
    "--neighbours",
    type=click.Choice(["idle", "busy"]),
    default="idle",
    show_default=True,
    help="One GPU of a node after another, or all of them at once.",
)
@click.option("--period", type=Span(), help="power-square: from one load to the next.  [default: 0.2]")
@click.option("--duty", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="Its share of load.")
@click.option("--input", "distribution", metavar="NAME", help="Distribution of the input data, where there is one.")
@click.option("--input-seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the input data.")
@click.option(
    "--precision",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Half width of the median's 95 % interval.  [default: by suite]",
)
@click.option("--repeats", type=click.IntRange(3, 10_000), help="Measure at least so often.  [default: by suite]")
@click.option("--time-limit", type=Span(), help="Measure each probe for at most this time.  [default: by suite]")
@click.option("--start-temperature", type=float, metavar="DEGC", help="Cool down to it before each probe.")
@click.option("--cool-down", type=Span(), default="120s", show_default=True, help="But for at most this time.")
@click.option("--lock-clock", type=float, metavar="MHZ", help="Lock the SM clock, and unlock it afterwards.")
@click.option("--power-limit", type=float, metavar="W", help="Set the power limit, and restore it afterwards.")
@click.option("--exclusive", is_flag=True, help="Refuse a GPU that another process uses.")
@click.option("--campaign", metavar="NAME", help="Name of the campaign; what it has stored already is not run again.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: $SLURM_CLUSTER_NAME, else local]")
@click.option("--gpus", type=click.IntRange(1, 999 * 32), help="Simulated: how many GPUs.  [default: 4]")
@click.option("--model", metavar="NAME", help="Simulated: which model.  [default: V100]")
@click.option("--seed", type=click.IntRange(0), help="Simulated: the fleet's seed.  [default: 1]")
@click.option("--faults", type=click.IntRange(0), help="Simulated: how many GPUs are faulty.  [default: 0]")
@click.option("--fault", "kinds", multiple=True, metavar="KIND", help="Simulated: plant this kind. Repeatable.")
@click.option("--interval", type=Span(), help="Simulated: time between stored readings.  [default: 1s]")
@json_option
def run(names: tuple[str, ...], store: str, backend: str, as_json: bool, **given: Any) -> None:
    """Run the probes NAMEd, or those of a suite, on every GPU of this node or of a simulated fleet.

    What is measured is stored as it comes. Nothing of a GPU's settings is changed but by --lock-clock and
    --power-limit, and then it is restored, also after a crash.

    Exit status 0; 1 where a result was wrong, and 6 where a GPU failed: the others were measured all the same.
    """
    from ..dashboards.printed.probes import answer, document
    from ..probes.here import here
    from ..store import Store
    from . import output
    from .output import print_json, show

    options = _Options(**given)
    plan = _plan(names, options)
    _refuse_mixed(backend, options)
    devices, notes = _devices(backend, options)
    fleet = None if devices else _fleet(options)
    opened = Store.create(store)  # not before all else is known to be sound
    with output.Progress() as progress, Ending():
        if fleet is None:
            report = here(
                opened,
                devices,
                plan,
                cluster=options.cluster,
                exclusive=options.exclusive,
                lock_clock_mhz=options.lock_clock,
                power_limit_w=options.power_limit,
                progress=progress,
            )
        else:
            report = _simulated(opened, fleet, plan, options, progress)
    report.notes = [*notes, *report.notes]
    if as_json:
        print_json(document(report, plan, backend="cuda" if devices else "simulated"))
    else:
        show(answer(report, plan, store))
    if report.failures:
        sys.exit(6)
    if report.wrong:
        sys.exit(1)


@dataclass(frozen=True)
class _Options:
    """The options of `whorl probe run` as they were given."""

    suite: str | None
    chosen: tuple[str, ...]
    neighbours: str
    period: float | None
    duty: float | None
    distribution: str | None
    input_seed: int
    precision: float | None
    repeats: int | None
    time_limit: float | None
    start_temperature: float | None
    cool_down: float
    lock_clock: float | None
    power_limit: float | None
    exclusive: bool
    campaign: str | None
    cluster: str | None
    gpus: int | None
    model: str | None
    seed: int | None
    faults: int | None
    kinds: tuple[str, ...]
    interval: float | None


def _plan(names: tuple[str, ...], options: _Options) -> Plan:
    """What is asked for; InputError where it cannot be done."""
    from datetime import UTC, datetime

    from ..errors import InputError
    from ..probes import catalogue
    from ..probes.campaign import Plan
    from ..probes.conditions import DUTY, PERIOD_S, Asked
    from ..probes.effort import EFFORTS

    if not names and options.suite is None:
        raise InputError("say what to run: names of probes (`whorl probe list`), or --suite quick, standard or full")
    suite = options.suite or "standard"
    probes = catalogue.choose(names) if names else catalogue.suite(suite)
    period_s = PERIOD_S if options.period is None else options.period
    if not 0.04 <= period_s <= 60:
        raise InputError(f"the period of a square wave is from 0.04 to 60 s, not {period_s:g} s")
    _refuse_no_numbers(options)
    if options.start_temperature is not None and not 0 <= options.start_temperature <= 100:
        raise InputError(f"a GPU cools down to 0 to 100 degrees Celsius, not to {options.start_temperature:g}")
    if options.interval is not None and not _SHORTEST_S <= options.interval <= _LONGEST_S:
        raise InputError(
            f"readings are stored every {_SHORTEST_S:g} s at most and every {_LONGEST_S:g} s at least, not every "
            f"{options.interval:g} s"
        )
    if options.time_limit is not None and options.time_limit <= 0:
        raise InputError("the time limit must be longer than 0 s")
    for flag, name in (("--campaign", options.campaign), ("--cluster", options.cluster)):
        if name is not None and not name.strip():  # a variable of a script that is not set: nothing could be resumed
            raise InputError(f"{flag} is empty: give a name, or leave the option out")
    asked = Asked(
        EFFORTS[suite],
        seed=options.input_seed,
        precision=None if options.precision is None else options.precision / 100,
        repeats=options.repeats,
        time_limit_s=options.time_limit,
        start_temperature_c=options.start_temperature,
        cool_down_s=options.cool_down,
        period_s=period_s,
        duty=DUTY if options.duty is None else options.duty,
        input=options.distribution,
    )
    _refuse_unused(probes, options, asked)
    # To the microsecond: what runs in the same second on another node must not pass for this campaign.
    campaign = options.campaign or f"probe-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    return Plan(probes, asked, campaign, options.neighbours)


def _refuse_no_numbers(options: _Options) -> None:
    """InputError for an option that is not a number, or endless: a range alone lets nan pass."""
    from ..errors import InputError

    for name in ("duty", "precision", "start_temperature", "lock_clock", "power_limit"):
        value = getattr(options, name)
        if value is not None and not isfinite(value):
            raise InputError(f"--{name.replace('_', '-')} is a finite number, not {value:g}")


def _refuse_unused(probes: tuple[Probe, ...], options: _Options, asked: Asked) -> None:
    """InputError for an option that none of the probes has a use for."""
    from ..errors import InputError
    from ..kernels.catalogue import find_kernel
    from ..kernels.inputs import DISTRIBUTIONS
    from ..probes.protocol import takes_input

    for name, value in (("--period", options.period), ("--duty", options.duty)):
        if value is not None and not any(one.kind == "square" for one in probes):
            raise InputError(f"{name} is for power-square, which is not among the probes chosen")
    if asked.input is None:
        return
    if asked.input not in DISTRIBUTIONS:
        raise InputError(f"there is no distribution {asked.input!r} of inputs; there are {', '.join(DISTRIBUTIONS)}")
    if not any(takes_input(find_kernel(one.kernel)) for one in probes):
        raise InputError("--input is for probes whose input data can be chosen, as gemm-fp32; none of these is one")


_SIMULATED_ONLY = ("gpus", "model", "seed", "faults", "kinds", "interval")


def _refuse_mixed(backend: str, options: _Options) -> None:
    """UsageError for options of the one backend with the other."""
    if backend == "cuda":
        for name in _SIMULATED_ONLY:
            if getattr(options, name) not in (None, ()):
                flag = "fault" if name == "kinds" else name
                raise click.UsageError(f"--{flag} is for --backend simulated")
    if backend == "simulated" and (options.chosen or options.exclusive):
        raise click.UsageError(f"--{'gpu' if options.chosen else 'exclusive'} is for real GPUs")


def _devices(backend: str, options: _Options) -> tuple[list[Device], list[str]]:
    """The GPUs of this node that were chosen, none for simulated ones, and what there is to say about that."""
    from ..errors import DeviceError, InputError
    from ..probes.here import choose, local_devices

    if backend == "simulated":
        return [], []
    try:
        found = local_devices(tell=_tell)
    except (InputError, DeviceError) as error:
        if backend == "auto" and not (options.chosen or options.exclusive):
            return [], [f"{error}: the fleet is simulated"]
        raise type(error)(f"{error}; without a GPU: --backend simulated") from error
    return choose(found, options.chosen), []


def _fleet(options: _Options) -> Fleet:
    """The simulated fleet that is asked for. InputError where there is none such, or it takes no such cap or lock."""
    from ..simulation.fleet import Fleet
    from ..simulation.models import find_model

    fleet = Fleet.draw(
        find_model(options.model or "V100"),
        options.gpus or 4,
        1 if options.seed is None else options.seed,
        faults=options.faults if options.faults is not None or options.kinds else 0,
        kinds=options.kinds,
    )
    fleet.limits(options.power_limit, options.lock_clock)
    return fleet


def _simulated(store: Store, fleet: Fleet, plan: Plan, options: _Options, progress: Progress) -> Report:
    from ..probes.running import run_simulated
    from .probe_fleet import claim

    record, bench = claim(
        store, fleet, plan, cluster=options.cluster, cap_w=options.power_limit, lock_mhz=options.lock_clock
    )
    interval_s = 1.0 if options.interval is None else options.interval
    report = run_simulated(record, bench, plan, telemetry_s=interval_s, progress=progress)
    report.notes += [f"planted {one.kind}: {one.uuid} at {one.place}" for one in record.planted]
    return report


def _tell(sentence: str) -> None:
    click.echo(f"whorl: {sentence}", err=True)
