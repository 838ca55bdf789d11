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

from .ending import Ending, stays
from .options import (
    OptionKey,
    Span,
    any_store_option,
    fault_option,
    json_option,
    model_option,
    refuse_before,
    require_store,
    seed_option,
    settings,
    suite_option,
)
from .probe import leave

if TYPE_CHECKING:
    from ..analysis.verdicts.verdict import Planted
    from ..dashboards.report import Looked
    from ..errors import StoreError

_REPORT = "report.html"  # in the demo's folder
_MOST_LISTED = 12  # planted faults that are printed


@click.group(
    "demo", invoke_without_command=True, short_help="Measure, compare and report in one command; needs no GPU."
)
@click.option("--out", metavar="DIR", default="demo", show_default=True, help="Folder of the store and the report.")
@suite_option("How many probes, and how thoroughly.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "cuda", "simulated"]),
    help="Where the probes run; auto: on the GPUs here, else simulated.  [default: auto]",
)
@click.option("--gpus", type=click.IntRange(1, 999 * 32), help="Simulated: how many GPUs.  [default: 64]")
@model_option
@seed_option
@fault_option("Simulated: how many GPUs are faulty, or a fault to plant as hot=20%", "1 in 16, 3 at most")
@click.option("--force", is_flag=True, help="Measure this fleet although the store of DIR holds another one.")
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    /,
    out: str,
    suite: str,
    backend: str | None,
    gpus: int | None,
    model: str | None,
    seed: int | None,
    faults: int | None,
    kinds: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
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
    from .output import ProgressBar, print_document, print_json, tell

    folder, began = Path(out), time.perf_counter()
    with ProgressBar() as progress, Ending():
        options = DemoOptions(
            suite=suite,
            backend=backend or "auto",
            gpus=gpus,
            model=model,
            seed=seed,
            faults=faults,
            fault=kinds,
            another_fleet=force,
            progress=progress,
            tell=tell,
        )
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
    result = answers.DemoResult(
        looked,
        report,
        measured.sittings,
        caught,
        suite,
        measured.seed,
        folder / STORE,
        page,
        taken_s=time.perf_counter() - began,
    )
    if as_json:
        print_json(answers.demo_json(result))
    else:
        print_document(answers.demo_document(result))
    if unwritten:
        raise unwritten
    if measured.planted is None:  # a simulated GPU fails because a fault was planted: the demo is there to find it
        leave(report)


def _write(folder: Path, looked: Looked, caught: Sequence[Planted] | None, notes: Sequence[str]) -> StoreError | None:
    """Write the page. If that fails, return the error to end with, because the findings can still be printed."""
    from ..errors import InputError, StoreError
    from .answers.demo import STORE

    try:
        looked.write(folder / _REPORT, planted=caught, notes=notes)
    except InputError as error:
        return StoreError(f"{error}; everything that was measured is in {folder / STORE}")
    return None


@demo.command("sim", short_help="A campaign over a simulated fleet, or what is simulated.")
@any_store_option
@click.option("--describe", is_flag=True, help="Only show how the model is simulated, and what may be planted.")
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
    OptionKey("began", click.STRING, "When it begins, UTC.  [default: after the fleet's last one]", metavar="ISO"),
    OptionKey("population", click.STRING, "How healthy GPUs differ.  [default: normal]", metavar="NAME"),
    OptionKey("cluster", click.STRING, "Name of the cluster.  [default: by model and seed]", metavar="NAME"),
    says="What the campaign is like",
)
@json_option
def sim(
    store: str | None,
    describe: bool,
    gpus: int,
    model: str,
    load_name: str,
    seed: int,
    faults: int | None,
    kinds: tuple[str, ...],
    population: str | None,
    hours: float | None,
    interval: float | None,
    runs: int | None,
    every: float | None,
    began: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Run a campaign over a simulated fleet and store it like a real one: process variation, heat, caps, faults.

    \b
    whorl demo sim --store S --gpus 64 --set runs=3 --set every=7d
    whorl demo sim --describe --model H100     parameters, faults, loads

    --describe says of every number where it comes from; docs/how-we-know/simulation.md has the sources.

    With runs= only runs and results at the steady state are stored. The table `truth` gets the planted faults. The
    same arguments give the same campaign: if it was interrupted, run it again to go on.
    """
    if describe:
        _describe(model, as_json=as_json)
        return
    store = require_store(store)
    from math import inf

    from ..probes.loads import refuse_steady, refuse_time, run_load, run_steady
    from ..simulation.fleet import Fleet
    from ..simulation.load import find_load
    from ..simulation.models import find_model
    from ..simulation.spread import USUAL, find_population
    from ..store import Store
    from ..store.instants import iso
    from .output import ProgressBar, print_json

    steady = runs is not None
    _refuse_mixed(steady=steady, timed={"hours": hours, "interval": interval}, repeated={"every": every})
    spread = find_population(USUAL if population is None else population)
    fleet = Fleet.draw(find_model(model), gpus, seed, spread, faults=faults, kinds=kinds)
    load = find_load(load_name)
    began_ns = None if began is None else _nanoseconds(began)
    every_s = 86_400.0 if every is None else every
    if steady:
        refuse_steady(fleet.model, load, runs or 1, every_s)
    else:
        refuse_time(1.0 if hours is None else hours, 1.0 if interval is None else interval)
    opened = Store.create(store)  # only after everything else was checked
    where: dict[str, Any] = {"cluster": cluster, "began_ns": began_ns}
    with ProgressBar() as shown:

        def progress(share: float) -> None:
            shown.say(f"simulating: {100 * share:.0f} %")

        if steady:
            stored = run_steady(opened, fleet, load, runs=runs or 1, every_s=every_s, progress=progress, **where)
        else:
            hours, interval = 1.0 if hours is None else hours, 1.0 if interval is None else interval
            stored = run_load(opened, fleet, load, hours=hours, interval_s=interval, progress=progress, **where)
    if as_json:
        print_json(
            {
                "schema": "whorl.sim.run/1",
                "campaign": stored.campaign,
                "cluster": stored.cluster,
                "model": fleet.model.name,
                "gpus": stored.gpus,
                "seed": seed,
                "load": load.name,
                "began": iso(stored.began_ns),
                "ended": iso(stored.ended_ns),
                "rows": stored.rows,
                "stored_before": stored.before,
                "planted": [
                    {
                        "gpu": one.uuid,
                        "place": one.place,
                        "kind": one.kind,
                        "size_pct": one.size_pct,
                        "began": None if one.began_ns is None else iso(one.began_ns),
                        "ended": None if one.ended_ns is None else iso(one.ended_ns),
                    }
                    for one in stored.planted
                ],
            }
        )
        return
    spoken = load_name.strip().lower()  # one of the names of the load
    click.echo(
        f"simulated {stored.gpus:,} {fleet.model.name} GPUs of seed {seed} under load {spoken}, "
        f"{iso(stored.began_ns)} to {iso(stored.ended_ns)}: campaign {stored.campaign}"
    )
    listed = stored.planted[:_MOST_LISTED]
    for one in listed:
        when = "" if one.began_ns is None else f", from {iso(one.began_ns)}"
        when += "" if one.ended_ns is None else f" to {iso(one.ended_ns)}"
        click.echo(f"planted {one.label}: {one.name} ({one.uuid}){when}")
    if len(stored.planted) > len(listed):
        click.echo(f"planted {len(stored.planted) - len(listed):,} more: they are in the table `truth`")
    if not stored.planted:
        click.echo("planted nothing: every GPU is healthy")
    written = ", ".join(f"{rows:,} rows of {table}" for table, rows in sorted(stored.rows.items()))
    if written:
        click.echo(f"stored in {store}: {written}" + ("; the rest was there before" if stored.before else ""))
    else:
        click.echo(f"all of it was in {store} before; nothing was stored")
    if not stored.measured:
        ends_s = load.first_run_ends_s
        why = f"the first one would end after {ends_s:g} s" if ends_s < inf else "no turn is measured"
        click.echo(f"no runs: under load {spoken} {why}")
    verb = "verdicts variability" if stored.measured else "sql"
    query = ' "select gpu, avg(power_mw) / 1e3 as w from telemetry group by gpu order by w desc limit 5"'
    click.echo(f"next: whorl {verb} --store {shlex.quote(store)}{query if verb == 'sql' else ''}")


def _refuse_mixed(*, steady: bool, timed: dict[str, object], repeated: dict[str, object]) -> None:
    wrong = [name for name, value in (timed if steady else repeated).items() if value is not None]
    if wrong:
        raise click.UsageError(f"{wrong[0]} " + ("cannot be used with runs" if steady else "needs runs"))


def _nanoseconds(text: str) -> int:
    """A time in ISO 8601, UTC where it names no zone, in ns. InputError where it is none."""
    from datetime import UTC, datetime

    from ..errors import InputError
    from ..store.instants import nanoseconds

    try:
        at = nanoseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise InputError(f"{text!r} is not a time: write it as 2026-01-05T08:00:00") from None
    if not 0 <= at < nanoseconds(datetime(2160, 1, 1, tzinfo=UTC)):
        raise InputError(f"{text} cannot be the start: choose a time from 1970 to 2159")
    return at


def _describe(model: str, *, as_json: bool) -> None:
    """Print how a GPU model is simulated: parameters, sensors, steady state, faults, populations, loads."""
    from ..dashboards.document import Column, Table
    from ..dashboards.words import number
    from ..simulation import describe as about
    from ..simulation.faults import FAULTS
    from ..simulation.load import LOADS
    from ..simulation.models import PARAMETERS, find_model
    from ..simulation.spread import POPULATION_SAYS
    from .output import print_json, say, show

    gpu_model = find_model(model)
    rows, point = about.parameters(gpu_model), about.steady_point(gpu_model)
    if as_json:
        print_json(
            {
                "schema": "whorl.sim.describe/1",
                "model": gpu_model.name,
                "version": PARAMETERS,
                "parameters": [vars(row) for row in rows],
                "sensors": about.sensors(gpu_model),
                "sgemm": point,
                "faults": [
                    {"kind": row.kind, "share": row.share, "says": row.says, **about.sizes(row)} for row in FAULTS
                ],
                "populations": [{"name": name, "says": says} for name, says in POPULATION_SAYS.items()],
                "loads": [{"name": load.name, "says": load.says} for load in LOADS.values()],
            }
        )
        return
    click.echo(f"{gpu_model.name}, simulated (parameter set {PARAMETERS}): no number here is a measurement\n")
    head: list[Column | str] = ["parameter", Column("value", "number"), "unit", "basis", Column("meaning", "sentence")]
    cells = [(row.name, f"{row.value:g}", row.unit, row.basis, row.meaning) for row in rows]
    show([Table(head, cells)])
    click.echo("\nsensors")
    for sentence in about.sensors(gpu_model):
        say(sentence, "  ", "    ")
    click.echo()
    say(
        f"sgemm at steady state: {number(point['sm_clock_mhz'])} MHz (sd {number(point['sm_clock_sd_mhz'], 3)}), "
        f"{number(point['power_w'])} W, {number(point['temperature_c'], 3)} degC; "
        f"time spread (fence) {number(point['time_fence_pct'], 2)} %; idle {number(point['idle_power_w'], 3)} W"
    )
    click.echo("\nfaults that can be planted")
    for fault in FAULTS:
        say(fault.says, f"  {fault.kind:<14} ", " " * 17)
        if fault.size is not None:
            usual = f"usual {100 * fault.size:.3g} %, from {100 * fault.least:g} to {100 * fault.most:g} %"
            say(f"size: {fault.size_says}; {usual}", " " * 17, " " * 17)
    click.echo("\npopulations of healthy GPUs")
    for name, says in POPULATION_SAYS.items():
        say(says, f"  {name:<16} ", " " * 19)
    click.echo("\nloads (gemm-fp32 and gemm mean sgemm)")
    for load in LOADS.values():
        say(load.says, f"  {load.name:<14} ", " " * 17)


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
    from ..errors import InputError
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
