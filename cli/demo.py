"""`whorl demo`: the whole product in one command, on real GPUs if there are any, else on a simulated fleet."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .ending import Ending
from .options import json_option

if TYPE_CHECKING:
    from ..analysis.planted import Planted
    from ..collectors.simulated_rows import Planted as PlantedFault
    from ..dashboards.store_report import Looked
    from ..errors import StoreError
    from ..kernels.device import Device
    from ..probes.campaign import Plan, Progress, Report
    from ..simulation.fleet import Fleet
    from ..store import Store

_STORE, _REPORT = "store", "report.html"  # in the demo's folder
_HEALTHY = 16  # GPUs a fault, unless asked for: among too few peers nobody stands out
_LARGE = 2000  # GPUs from which telemetry is stored less often


@click.command("demo", short_help="Measure, compare, report: all of it at once, without a GPU too.")
@click.option("--out", metavar="DIR", default="demo", show_default=True, help="Folder of the store and the report.")
@click.option(
    "--suite",
    type=click.Choice(["quick", "standard", "full"]),
    default="quick",
    show_default=True,
    help="Which probes.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cuda", "simulated"]),
    help="Where the probes run; auto: on the GPUs here, else simulated.  [default: auto]",
)
@click.option("--gpus", type=click.IntRange(1, 999 * 32), help="Simulated: how many GPUs.  [default: 64]")
@click.option("--model", metavar="NAME", help="Simulated: which model.  [default: V100]")
@click.option("--seed", type=click.IntRange(0), help="Simulated: the fleet's seed.  [default: 1]")
@click.option(
    "--faults", type=click.IntRange(0), help="Simulated: how many GPUs are faulty.  [default: 1 in 16, 3 at most]"
)
@click.option("--fault", "kinds", multiple=True, metavar="KIND", help="Simulated: plant this kind. Repeatable.")
@json_option
def demo(
    out: str,
    suite: str,
    backend: str | None,
    gpus: int | None,
    model: str | None,
    seed: int | None,
    faults: int | None,
    kinds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a suite of probes on every GPU, with telemetry, and say how much the GPUs differ and which stand out.

    Ends with one HTML report that needs no network. Without a GPU, or where an option of the simulated fleet is
    given, a simulated fleet with planted faults is measured, and what was found is compared with what was planted.

    Exit status 0; of real GPUs 1 where a result was wrong, and 6 where one failed: the report is there all the same.
    """
    from ..analysis.planted import compared
    from ..dashboards.printed import demo as printed
    from ..dashboards.store_report import look
    from ..store import Store
    from .output import Progress, print_json, show

    simulated = {"--gpus": gpus, "--model": model, "--seed": seed, "--faults": faults, "--fault": kinds or None}
    asked = [name for name, value in simulated.items() if value is not None]
    if backend == "cuda" and asked:
        raise click.UsageError(f"{asked[0]} is for the simulated fleet, and --backend cuda for real GPUs")
    folder = Path(out)
    _refuse(folder)
    began = time.perf_counter()
    devices, why = ([], "") if asked or backend == "simulated" else _devices(backend or "auto")
    fleet = None
    if not devices:
        fleet = _fleet(64 if gpus is None else gpus, model or "V100", 1 if seed is None else seed, faults, kinds)
    plan = _plan(suite)
    store = Store.create(folder / _STORE)
    with Progress() as progress, Ending():
        if fleet is None:
            report, planted = _real(store, devices, plan, progress), None
        else:
            report, planted = _simulated(store, fleet, plan, progress)
        if why:
            report.notes.insert(0, f"the fleet is simulated, as no GPU can be measured here: {why}")
        progress.say("comparing the GPUs")
        looked = look(store, report.campaign, report.cluster, progress=progress.say)
        caught = None if planted is None else compared(planted, looked.judged, looked.campaign, report.ended_ns)
        progress.say("writing the report")
        unwritten = _write(folder, looked, caught, printed.left_out(looked, report))
    taken_s = time.perf_counter() - began
    page = None if unwritten else folder / _REPORT
    if as_json:
        seed_of = None if fleet is None else fleet.seed
        print_json(
            printed.document(
                looked, report, caught, suite=suite, seed=seed_of, store=folder / _STORE, page=page, taken_s=taken_s
            )
        )
    else:
        show(printed.answer(looked, report, caught, suite=suite, store=folder / _STORE, page=page, taken_s=taken_s))
    if unwritten:
        raise unwritten
    if fleet is None:  # a simulated GPU fails because that was planted: to find it is what the demo is for
        _leave(report)


def _write(folder: Path, looked: Looked, caught: Sequence[Planted] | None, notes: Sequence[str]) -> StoreError | None:
    """Write the page. Where that fails, the error to end with: what was found can be said all the same."""
    from ..errors import InputError, StoreError

    try:
        looked.write(folder / _REPORT, planted=caught, notes=notes)
    except InputError as error:
        return StoreError(f"{error}; all that was measured is in {folder / _STORE}")
    return None


def _leave(report: Report) -> None:
    """End as `whorl probe run` does where a GPU failed or computed wrong results."""
    if report.failures:
        sys.exit(6)
    if report.wrong:
        sys.exit(1)


def _refuse(folder: Path) -> None:
    """InputError for a folder that is another's: one that holds things and no demo."""
    from ..errors import InputError

    try:
        for one in (folder, *folder.parents):
            if one.exists():
                if not one.is_dir():
                    raise InputError(f"{one} is a file; --out names a folder: choose another path")
                break
            if one.is_symlink():
                raise InputError(f"{one} is a link to nothing: remove it, or choose another folder for --out")
        if folder.is_dir() and not (folder / _STORE).is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} holds other things and no demo: choose an empty or a new folder for --out")
    except OSError as error:
        raise InputError(f"{folder} cannot be used ({error.strerror}): choose another folder for --out") from error


def _devices(backend: str) -> tuple[list[Device], str]:
    """The GPUs of this node; where there is none and that is fine, why not."""
    from ..errors import DeviceError, InputError
    from ..probes.here import local_devices

    try:
        return local_devices(tell=lambda sentence: click.echo(f"whorl: {sentence}", err=True)), ""
    except (InputError, DeviceError) as error:
        if backend == "cuda":
            raise
        return [], _no_driver() or str(error)


def _no_driver() -> str:
    """Why NVML shows no GPU; '' where it shows one. Where there is none, that CuPy is missing is not the reason."""
    from ..collectors.collecting import open_backend
    from ..errors import InputError

    try:
        backend = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return str(error).removeprefix("NVML: ")
    if backend is not None:
        backend.close()
    return ""


def _fleet(gpus: int, model: str, seed: int, faults: int | None, kinds: tuple[str, ...]) -> Fleet:
    from ..simulation.fleet import Fleet
    from ..simulation.models import find_model

    if faults is None and not kinds:
        faults = min(3, gpus // _HEALTHY)
    return Fleet.draw(find_model(model), gpus, seed, faults=faults, kinds=kinds)


def _plan(suite: str) -> Plan:
    from datetime import UTC, datetime

    from ..probes import catalogue
    from ..probes.campaign import Plan
    from ..probes.conditions import Asked
    from ..probes.effort import EFFORTS

    name = f"demo-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    return Plan(catalogue.suite(suite), Asked(EFFORTS[suite]), name, "busy")


def _simulated(store: Store, fleet: Fleet, plan: Plan, progress: Progress) -> tuple[Report, tuple[PlantedFault, ...]]:
    from ..probes.running import run_simulated
    from .probe_fleet import claim

    # GPUs of one seed have one name, whatever is planted in them: each choice of faults is a cluster of its own.
    faults = "-".join(f"{kind}@{gpu}" for gpu, kind in sorted(fleet.planted.items()))
    name = f"simulated-{fleet.model.name.split('-', maxsplit=1)[0]}-{len(fleet)}-{fleet.seed}"
    record, bench = claim(store, fleet, plan, cluster=name + (f"-{_short(faults)}" if faults else ""))
    interval_s = 0.5 if len(fleet) <= _LARGE else 2.0
    return run_simulated(record, bench, plan, telemetry_s=interval_s, progress=progress), record.planted


def _short(text: str) -> str:
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:6]


def _real(store: Store, devices: list[Device], plan: Plan, progress: Progress) -> Report:
    from ..probes.here import here

    return here(store, devices, plan, progress=progress)
