"""`whorl demo`: everything in one command, on real GPUs if there are any, else on a simulated fleet."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .ending import Ending, stays
from .options import fault_option, json_option, model_option, seed_option, suite_option
from .probe import leave

if TYPE_CHECKING:
    from ..analysis.verdicts.planted import Planted
    from ..dashboards.store_report import Looked
    from ..errors import StoreError

_REPORT = "report.html"  # in the demo's folder


@click.command("demo", short_help="Measure, compare and report in one command; needs no GPU.")
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
@click.option(
    "--faults", type=click.IntRange(0), help="Simulated: how many GPUs are faulty.  [default: 1 in 16, 3 at most]"
)
@fault_option
@click.option("--another-fleet", is_flag=True, help="Measure this fleet although the store of DIR holds another one.")
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
    another_fleet: bool,
    as_json: bool,
) -> None:
    """Run a suite of probes on every GPU, with telemetry, and say how much the GPUs differ and which stand out.

    Ends with one HTML report that needs no network. Without a GPU, or where an option of the simulated fleet is
    given, a simulated fleet with planted faults is measured, and what was found is compared with what was planted.

    Exit status 0; of real GPUs 1 where a result was wrong, and 6 where one failed: the report is there all the same.
    """
    from ..analysis.verdicts.judgements import record
    from ..analysis.verdicts.planted import compared
    from ..dashboards.printed import demo as printed
    from ..dashboards.store_report import look
    from .answers.demo import STORE, DemoOptions, measure_demo
    from .output import ProgressBar, print_json, show, tell

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
            another_fleet=another_fleet,
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
            None
            if measured.planted is None
            else compared(measured.planted, looked.judged, looked.campaign, report.ended_ns)
        )
        progress.say("writing the report")
        unwritten = _write(folder, looked, caught, printed.left_out(looked, report))
    page = None if unwritten else folder / _REPORT
    result = printed.DemoResult(
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
        print_json(printed.document(result))
    else:
        show(printed.answer(result))
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
