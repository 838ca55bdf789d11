"""`whorl demo`: everything in one command, on real GPUs if there are any; or a simulated fleet, or files to import."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError, StoreError
from .ending import Ending, stays
from .options import (
    SUITES,
    OptionKey,
    Span,
    When,
    any_store_option,
    fault_option,
    json_option,
    model_option,
    refuse_before,
    require_store,
    seed_option,
    settings,
)
from .probe import leave

if TYPE_CHECKING:
    from ..analysis.verdicts.verdict import Planted
    from ..dashboards.report import Looked

_LATEST_NS = 5_995_814_400 * 10**9  # 2160
_REPORT = "report.html"  # in the demo's folder


@click.group(
    "demo", invoke_without_command=True, short_help="Measure, compare and report in one command; needs no GPU."
)
@click.option("--out", metavar="DIR", default="demo", show_default=True, help="Folder of the store and the report.")
@click.option("--suite", type=SUITES, default="quick", show_default=True, help="How many probes, and how thoroughly.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "cuda", "simulated"]),
    help="Where the probes run; auto: on the GPUs here, else simulated.  [default: auto]",
)
@click.option("--gpus", type=click.IntRange(1, 999 * 32), help="Simulated: how many GPUs.  [default: 64]")
@model_option
@seed_option
@fault_option("Simulated: how many GPUs are faulty, or a fault to plant as hot=20%", "1 in 16, 3 at most")
@click.option("--force", is_flag=True, help="Measure it although DIR holds another fleet.")
@json_option
@click.pass_context
def demo(ctx: click.Context, /, out: str, kinds: tuple[str, ...], force: bool, as_json: bool, **chosen: Any) -> None:
    """Run a suite of probes on every GPU, with telemetry, and say how much the GPUs differ and which stand out.

    \b
    whorl demo                                 # then open demo/report.html
    whorl demo sample DIR                      files that `whorl import` reads
    whorl demo sim --store S --gpus 64         a campaign of a simulated fleet

    Ends with one HTML report that needs no network. Without a GPU, or where an option of the simulated fleet is
    given, a simulated fleet with planted faults is measured, and what was found is compared with what was planted.

    Exit status 0; of real GPUs 1 where a result was wrong, and 6 where one failed: the report is there all the same.
    """
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx)
        return
    from ..analysis.verdicts.judgements import record
    from ..analysis.verdicts.verdict import planted_faults
    from ..dashboards.answers import demo as answers
    from ..dashboards.report import look
    from .answers.demo import STORE, DemoOptions, measure_demo
    from .output import ProgressBar, print_answer, tell

    folder, began = Path(out), time.perf_counter()
    with ProgressBar() as progress, Ending():
        options = DemoOptions(**chosen, fault=kinds, another_fleet=force, progress=progress, tell=tell)
        measured = measure_demo(folder, options)
        report = measured.report
        later = ["whorl", "report", "--store", str(folder / STORE), "--out", str(folder / _REPORT)]
        stays(f"everything that was measured is stored; to write the report, run: {shlex.join(later)}")
        looked = look(measured.store, report.campaign, report.cluster, every=True, progress=progress.say)
        for note in record(measured.store, [looked.judged], datetime.now(UTC).replace(tzinfo=None)):
            tell(f"note: {note}")
        caught = (
            None if measured.planted is None else planted_faults(measured.planted, looked.judged, looked.campaign.gpus)
        )
        progress.say("writing the report")
        unwritten = _write(folder, looked, caught, answers.left_out(looked, report))
    page = None if unwritten else folder / _REPORT
    seconds = time.perf_counter() - began
    result = answers.DemoResult(
        looked, report, measured.sittings, caught, options.suite, measured.seed, folder / STORE, page, taken_s=seconds
    )
    print_answer(answers.demo_json(result), answers.demo_document(result), as_json=as_json)
    if unwritten:
        raise unwritten
    if measured.planted is None:  # a simulated GPU fails because a fault was planted: the demo is there to find it
        leave(report)


def _write(folder: Path, looked: Looked, caught: Sequence[Planted] | None, notes: Sequence[str]) -> StoreError | None:
    """Write the page. If that fails, return the error to end with, because the findings can still be printed."""
    from .answers.demo import STORE

    try:
        looked.write(folder / _REPORT, planted=caught, notes=notes)
    except InputError as error:
        return StoreError(f"{error}; everything that was measured is in {folder / STORE}")
    return None


@demo.command("sim", short_help="A campaign over a simulated fleet, or what is simulated.")
@any_store_option
@click.option("--describe", is_flag=True, help="Only show parameters, faults and loads.")
@click.option("--gpus", type=click.IntRange(1, 999 * 32), default=96, show_default=True, help="How many GPUs.")
@click.option("--model", default="V100", show_default=True, help="V100, A100, H100 or H200.")
@click.option(
    "--load",
    "load_name",
    default="gemm-fp32",
    show_default=True,
    help="What runs on the GPUs, and when; see `whorl demo sim --describe`.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The fleet's seed.")
@fault_option("How many GPUs are faulty, or a fault to plant as slow_memory=3%", "as in a public cluster")
@settings(
    OptionKey("hours", click.FLOAT, "How long the campaign lasts, with telemetry.  [default: 1]"),
    OptionKey("interval", click.FLOAT, "Seconds between two readings.  [default: 1]", metavar="S"),
    OptionKey("runs", click.IntRange(1), "Without telemetry: runs of the steady state on every GPU."),
    OptionKey("every", Span(), "With runs: from one to the next, as 6h or 7d.  [default: 24h]"),
    OptionKey("began", When(), "When it begins, UTC.  [default: after the fleet's last one]", metavar="ISO"),
    OptionKey("population", click.STRING, "How healthy GPUs differ.  [default: normal]", metavar="NAME"),
    OptionKey("cluster", click.STRING, "Name of the cluster.  [default: by model and seed]", metavar="NAME"),
    says="What the campaign is like",
)
@json_option
def sim(
    store: str | None, describe: bool, load_name: str, kinds: tuple[str, ...], as_json: bool, **chosen: Any
) -> None:
    """Run a campaign over a simulated fleet and store it like a real one: process variation, heat, caps, faults.

    \b
    whorl demo sim --store S --gpus 64 --set runs=3 --set every=7d
    whorl demo sim --describe --model H100     parameters, faults, loads

    --describe says of every number where it comes from; docs/how-we-know/simulation.md has the sources.

    With runs= only runs and results at the steady state are stored. The table `truth` gets the planted faults. The
    same arguments give the same campaign: if it was interrupted, run it again to go on.
    """
    from ..probes.loads import refuse_steady, refuse_time, run_load, run_steady
    from ..simulation.fleet import Fleet
    from ..simulation.load import find_load
    from ..simulation.models import find_model
    from ..simulation.spread import USUAL, find_population
    from ..store import Store
    from ..store.instants import nanoseconds
    from .documents import simulation as documents
    from .output import ProgressBar, print_answer

    gpu_model = find_model(chosen.pop("model"))
    if describe:
        print_answer(documents.describe_mapping(gpu_model), documents.describe_document(gpu_model), as_json=as_json)
        return
    store = require_store(store)
    stated = {name: choice for name, choice in chosen.items() if choice is not None}
    steady = "runs" in stated
    if wrong := [name for name in (("hours", "interval") if steady else ("every",)) if name in stated]:
        raise click.UsageError(f"{wrong[0]} " + ("cannot be used with runs" if steady else "needs runs"))
    spread, faults = find_population(stated.get("population", USUAL)), stated.get("faults")
    fleet = Fleet.draw(gpu_model, stated["gpus"], stated["seed"], spread, faults=faults, kinds=kinds)
    load = find_load(load_name)
    began_ns = nanoseconds(stated["began"].replace(tzinfo=UTC)) if "began" in stated else None
    if began_ns is not None and not 0 <= began_ns < _LATEST_NS:
        raise InputError(f"{stated['began']} cannot be the start: choose a time from 1970 to 2159")
    runs, every_s = stated.get("runs", 1), stated.get("every", 86_400.0)
    hours, interval_s = stated.get("hours", 1.0), stated.get("interval", 1.0)
    if steady:
        refuse_steady(fleet.model, load, runs, every_s)
    else:
        refuse_time(hours, interval_s)
    opened = Store.create(store)  # only after everything else was checked
    where: dict[str, Any] = {"cluster": stated.get("cluster"), "began_ns": began_ns}
    with ProgressBar() as progress_bar:
        where["progress"] = lambda share: progress_bar.say(f"simulating: {100 * share:.0f} %")
        if steady:
            stored = run_steady(opened, fleet, load, runs=runs, every_s=every_s, **where)
        else:
            stored = run_load(opened, fleet, load, hours=hours, interval_s=interval_s, **where)
    document = documents.sim_document(stored, fleet, load, load_name.strip().lower(), store=store)
    print_answer(documents.sim_mapping(stored, fleet, load), document, as_json=as_json)


@demo.command("sample", short_help="Write the files of a small generated fleet.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--gpus", type=int, help="How many GPUs the fleet has: a multiple of 4.  [default: 96]")
@click.option("--seed", type=int, help="The fleet's seed; one seed, one fleet.  [default: 47]")
@click.option("--force", is_flag=True, help="Replace existing files of the same names.")
def sample(folder: Path, gpus: int | None, seed: int | None, force: bool) -> None:
    """Write the measurements of a small simulated fleet into DIR, with faults planted in three GPUs.

    \b
    whorl demo sample files
    whorl import --store S --cluster sample files/*

    The data are generated, not measured. The files look like those of real tools.
    """
    from ..simulation.sample import FILES, GPUS, SEED, write_sample

    if not force and (there := [name for name in FILES if os.path.lexists(folder / name)]):
        raise InputError(f"{folder} already has {', '.join(there)}: choose another folder, or give --force")
    written = write_sample(folder, gpus=GPUS if gpus is None else gpus, seed=SEED if seed is None else seed)
    click.echo(f"generated {written.gpus} simulated V100 GPUs with seed {written.seed}")
    for path in written.files:
        click.echo(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")
    for gpu in written.planted:
        click.echo(f"planted {gpu.kind}: {gpu.name} ({gpu.uuid})")
    click.echo(f"next: whorl import --store S --cluster sample {shlex.quote(str(folder))}/*")
    click.echo("      whorl verdicts variability --store S")
    click.echo("      whorl energy --store S")
