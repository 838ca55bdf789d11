"""`whorl probe`: work of known size on every GPU: what there is, running it, and a short look before a job."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..dashboards.documents import probes as documents
from .ending import Ending, stays
from .options import (
    FAULT_ROW,
    SUITES,
    OptionKey,
    Span,
    any_store_option,
    backend_option,
    json_option,
    settings,
    simulated_rows,
    store_option,
)
from .output import print_answer, print_json

if TYPE_CHECKING:
    from ..probes.campaign import Report
    from ..probes.prolog import Fitness

_SIMULATED = (
    *simulated_rows(999 * 32),
    OptionKey("faults", click.IntRange(0), "How many GPUs are faulty.  [default: 0]"),
    FAULT_ROW,
    OptionKey("population", click.STRING, "How healthy GPUs differ; see `whorl demo sim --describe`."),
    OptionKey("interval", Span(), "Time between stored readings.  [default: 1s]"),
    OptionKey("fleet", click.STRING, "The file of a cluster, of which one node is measured.", metavar="FILE"),
    OptionKey("node", click.STRING, "With fleet: which node.  [default: $SLURMD_NODENAME]", metavar="NAME"),
)
"""What a simulated fleet is like."""


@click.group("probe", short_help="Measure GPUs with work of known size: list the probes, run them.")
def probe() -> None:
    """Measure GPUs by work of known size, under stated conditions, with telemetry and a check of every result.

    \b
    whorl probe list
    whorl probe run --suite quick --store S
    whorl probe prolog

    docs/campaigns.md explains the method, docs/how-we-know/kernels.md what runs.
    """


@probe.command("run", short_help="Run probes on the GPUs here or on a simulated fleet.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@store_option
@click.option("--suite", type=SUITES, help="How thoroughly to measure; without NAMEs, also which probes.")
@backend_option(
    "cuda",
    "simulated",
    "auto",
    default="cuda",
    says="Where the probes run; auto: on the GPUs here, else simulated.",
    simulated=_SIMULATED,
    auto=_SIMULATED,
)
@click.option(
    "--gpu",
    "chosen",
    multiple=True,
    metavar="GPU",
    help="Only this GPU: node/slot, UUID, a part, or index. Repeatable.",
)
@click.option(
    "--neighbours",
    type=click.Choice(["idle", "busy"]),
    default="idle",
    show_default=True,
    help="One GPU of a node after another, or all of them at once.",
)
@click.option("--time-limit", type=Span(), help="Measure each probe for at most this time.  [default: by suite]")
@click.option("--lock-clock", type=float, metavar="MHZ", help="Lock the SM clock, and unlock it afterwards.")
@click.option("--power-limit", type=float, metavar="W", help="Set the power limit, and restore it afterwards.")
@click.option("--campaign", metavar="NAME", help="Name of the campaign: what it has stored is not repeated.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: as Slurm calls it, else local]")
@settings(
    OptionKey("period", Span(), "power-square, soak: time from one load to the next.  [default: 0.2s]"),
    OptionKey(
        "duty",
        click.FloatRange(0, 1, min_open=True, max_open=True),
        "power-square, soak: share of that time under load.  [default: 0.5]",
    ),
    OptionKey("input", click.STRING, "Distribution of the input data, for kernels with a choice.", metavar="NAME"),
    OptionKey("input-seed", click.IntRange(0, 2**32 - 1), "Seed of the input data.", 1),
    OptionKey(
        "precision",
        click.FloatRange(0, 100, min_open=True),
        "Stop when the median's 95 % interval is at most +/- this.  [default: by suite]",
        metavar="PERCENT",
    ),
    OptionKey("repeats", click.IntRange(3, 10_000), "Measure at least this many repeats.  [default: by suite]"),
    OptionKey("until-wrong", click.BOOL, "soak: end at the first wrong result.", False),
    OptionKey(
        "knobs", click.STRING, "stress: its knobs, as `whorl tune --stress --json` printed them.", metavar="FILE"
    ),
    OptionKey("start-temperature", click.FLOAT, "Cool down to this before each probe.", metavar="DEGC"),
    OptionKey("exclusive", click.BOOL, "Refuse a GPU that another process uses.", False),
    OptionKey("cool-down", Span(), "Cool down for at most this time.", "120s"),
    says="What a run is like",
)
@json_option
def run(names: tuple[str, ...], store: str, backend: str, as_json: bool, **given: Any) -> None:
    """Run the probes NAMEd, or those of a suite, on every GPU of this node or of a simulated fleet.

    \b
    whorl probe run --suite quick --store S
    whorl probe run gemm-fp32 --backend simulated:gpus=4,model=H100 --store S

    Runs are stored while others are measured. Only --lock-clock and --power-limit change settings of a GPU; these are
    restored afterwards, also after a crash.

    Exit status 0; 1 if a result was wrong; 6 if a GPU failed (the others were still measured).
    """
    from . import output
    from .answers.measuring import measure

    campaign = given["campaign"]

    def begins(name: str) -> None:
        again = ["whorl", *sys.argv[1:], *(() if campaign else ("--campaign", name))]
        stays(f"what was stored stays; to go on with campaign {name}, run: {shlex.join(again)}")
        if sys.stderr.isatty():
            output.tell(f"campaign {name}")

    given["gpu"] = given.pop("chosen")
    with output.ProgressBar() as progress, Ending():
        reply = measure(store, *names, backend=backend, progress=progress, tell=output.tell, begins=begins, **given)
    output.print_reply(reply, as_json=as_json)
    leave(reply.report)


def leave(report: Report) -> None:
    """End with the status of a campaign of which a GPU failed or a result was wrong."""
    if report.failures:
        sys.exit(6)
    if report.wrong:
        sys.exit(1)


@probe.command("list", short_help="List the probes: what they stress, their work, their time.")
@backend_option(
    "cuda",
    "simulated",
    says="Whose sizes; cuda: of the GPU here, else of a simulated V100.",
    simulated=(OptionKey("model", click.STRING, "V100, A100, H100 or H200.  [default: V100]", metavar="NAME"),),
)
@any_store_option
@click.option("--keep-rule", is_flag=True, help="Of the runs in the store: which probes add a column of their own.")
@json_option
def list_probes(backend: str | None, model: str | None, store: str | None, keep_rule: bool, as_json: bool) -> None:
    """List the probes of each suite: what each one stresses, its work, its time, and what it needs.

    \b
    whorl probe list --backend simulated:model=H100
    whorl probe list --keep-rule --store S

    A larger suite also runs the probes of the smaller ones. The size is that of one repetition, on the first GPU here
    or of a simulated model. The time is the longest that a probe takes on a warm GPU, without its preparation.

    --keep-rule asks the runs of --store instead: a probe stays if its ICC over sittings is at least 0.5, and if the
    probes before it leave more than 30 % of its variance between GPUs unexplained.
    """
    if keep_rule:
        _print_keep_rule(store, as_json=as_json)
        return
    from ..probes.catalogue import SUITES
    from ..probes.listing import listing

    name, rows = listing(model or ("V100" if backend == "simulated" else None))
    mapping = {"schema": "whorl.probe.list/1", "model": name, "probes": rows}
    print_answer(mapping, documents.list_document(name, rows, SUITES), as_json=as_json)


def _print_keep_rule(store: str | None, *, as_json: bool) -> None:
    """Which probes add a column of their own, by the runs of a store."""
    from ..analysis.spread.repeats import LEAST_ICC, LEAST_UNEXPLAINED, MORE_GPUS, keep_rule
    from ..probes.catalogue import PROBES
    from ..store import Store

    rows = keep_rule(Store.open(store), list(PROBES)) if store else []
    limits = (LEAST_ICC, LEAST_UNEXPLAINED, MORE_GPUS)
    mapping = {"schema": "whorl.probe.keep-rule/1", "probes": [row.as_dict() for row in rows]}
    print_answer(mapping, documents.keep_document(rows, limits, has_store=store is not None), as_json=as_json)


@probe.command("prolog", short_help="Are the GPUs here fit for a job? In 5 s and one line, for Slurm.")
@click.option("--timeout", type=Span(), default="5s", show_default=True, help="Answer after this time at the latest.")
@click.option("--store", metavar="DIR", help="Store why a GPU is unfit, as an event.")
@backend_option(
    "cuda",
    "simulated",
    default="cuda",
    says="cuda: the GPUs of this node; simulated: GPUs that are not there.",
    simulated=(*simulated_rows(64), FAULT_ROW),
)
@json_option
def prolog(timeout: float, store: str | None, backend: str, as_json: bool, **simulated: object) -> None:
    """Look at each GPU of this node for a few seconds, before a job begins: is it fit?

    \b
    whorl probe prolog --store S

    What its driver says of its health; whether a context opens; a product, patterns over a part of its memory and on
    each multiprocessor, all checked. With CUDA_VISIBLE_DEVICES, only at the GPUs that it names. The line that it prints
    is made for the reason of a drained node.

    \b
    Exit status:
    0  every GPU is fit
    1  a GPU is unfit
    3  not known: there was not enough time, no driver, or no CuPy
    """
    from ..errors import WhorlError

    try:
        looked = _look(timeout, backend, {name: value for name, value in simulated.items() if value not in (None, ())})
        reasons = [gpu.reason for gpu in looked if gpu.reason]
    except WhorlError as error:
        if backend == "simulated":  # of its options, not of a node
            raise
        looked, reasons = [], [str(error)]
    unfit = [gpu for gpu in looked if gpu.fit is False]
    status = 1 if unfit else 3 if reasons or not looked else 0
    if unfit:
        reasons.sort(key=lambda reason: reason not in {gpu.reason for gpu in unfit})
    others = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    reason = f"{reasons[0]}{others}" if reasons else "" if looked else "there is no GPU"
    if unfit and store is not None:
        from ..probes.prolog import store_unfit
        from .output import tell

        try:
            store_unfit(store, unfit)
        except WhorlError as error:  # what was found stays true
            tell(str(error))
    if as_json:
        gpus = [asdict(gpu) for gpu in looked]
        print_json({"schema": "whorl.probe.prolog/1", "exit_status": status, "reason": reason or None, "gpus": gpus})
    else:
        click.echo(f"whorl: {reason}" if reason else f"whorl: {len(looked)} GPU{'s' * (len(looked) != 1)} fit")
    sys.exit(status)


def _look(timeout: float, backend: str, simulated: dict[str, object]) -> list[Fitness]:
    from ..probes import prolog

    if backend == "cuda":
        return prolog.look(timeout)
    from ..probes.measurement import drawn_fleet

    return prolog.look_simulated(drawn_fleet(**simulated))  # type: ignore[arg-type]
