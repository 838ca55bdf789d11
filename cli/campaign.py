"""`whorl campaign`: every GPU of a cluster, through its batch system."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from ..store.configuration import configured
from .options import SUITES, OptionKey, Span, configured_option, json_option, options, settings, store_option

_SCHEDULERS = ("slurm", "pbs", "lsf", "flux")

_scheduler_option = click.option(
    "--scheduler",
    type=click.Choice(_SCHEDULERS),
    help="Whose commands send jobs.  [default: slurm, or the one that is here]",
)

_names_argument = click.argument("names", nargs=-1, metavar="[NAME]...")
_measured_options = (
    click.option("--suite", type=SUITES, help="How thoroughly; without NAMEs, also which probes."),
    click.option(
        "--neighbours",
        type=click.Choice(["idle", "busy"]),
        help="One GPU of a node after another, or all at once.  [default: busy where the probes allow it]",
    ),
    click.option("--partition", metavar="NAME", help="Only nodes of this partition. Several with commas."),
    click.option("--cluster", metavar="NAME", help="Name of the cluster.  [default: the scheduler's]"),
)
_asked_options = (
    _names_argument,
    store_option,
    _scheduler_option,
    click.option("--campaign", metavar="NAME", help="Name of the campaign.  [default: the last one that is like this]"),
    *_measured_options,
    click.option("--nodes", metavar="HOSTS", help="Only these nodes: n[01-16]."),
)
_script_options = (
    click.option("--setup", multiple=True, metavar="LINE", help="Shell line before measuring. Repeatable."),
    click.option(
        "--option",
        "sbatch",
        multiple=True,
        metavar="OPTION",
        help="An option of the scheduler, as it is: --qos=low. Repeatable.",
    ),
    click.option("--program", metavar="WORDS", help="How a node calls whorl.  [default: with this Python]"),
)
_script_keys = (
    OptionKey("template", click.STRING, "Your own job script.", metavar="FILE"),
    OptionKey("start-up", Span(), "What a job takes beside measuring.  [default: 2min]"),
)
_job_keys = (
    *_script_keys,
    OptionKey(
        "output", click.STRING, "Folder of the jobs' output.  [default: logs/CAMPAIGN in the store]", metavar="DIR"
    ),
    OptionKey("fleet", click.STRING, "Simulated GPUs on the nodes: the file that describes them.", metavar="FILE"),
)
_run_keys = (
    OptionKey("max-pending", click.IntRange(1), "So many jobs wait in the queue at most.", 8),
    OptionKey("tries", click.IntRange(1), "So many jobs a node gets at most.", 3),
    OptionKey("patience", Span(), "Give up if no answer comes for so long.  [default: 10min]"),
    OptionKey("settle", Span(), "Wait for a job's runs for so long after its end.  [default: 20s]"),
)
_budget_option = click.option(
    "--budget", type=Span(plain=False), metavar="TIME", help="GPU time that the campaign may be allocated: 200h."
)


@click.group("campaign", short_help="Measure every GPU of a cluster, through its batch system.")
def campaign() -> None:
    """Measure every GPU of a cluster through its batch system, between other jobs.

    \b
    whorl campaign doctor --store S                what a node sees, by a tiny job
    whorl campaign plan --suite quick --store S    what it costs; nothing is sent
    whorl campaign run --suite quick --store S     may be stopped and run again
    whorl campaign status --store S                covered, waiting, failed
    whorl campaign render --scheduler pbs --suite quick --store S    for others

    docs/campaigns.md explains it.
    """


@campaign.command("plan", short_help="What would be measured, and what it costs; nothing is sent.")
@options(*_asked_options, *_script_options, _budget_option, settings(*_job_keys), json_option)
def plan(names: tuple[str, ...], store: str, budget: float | None, as_json: bool, **chosen: Any) -> None:
    """Say how many nodes and GPUs a campaign would measure now, and how many GPU-hours that takes. Nothing is sent.

    \b
    whorl campaign plan --suite quick --store S
    """
    from .answers.campaign import plan_campaign
    from .output import print_reply

    print_reply(plan_campaign(store, *names, budget=budget, **chosen, account=configured("account")), as_json=as_json)


@campaign.command("run", short_help="Submit jobs until every node is measured; stop and go on as you like.")
@options(*_asked_options, *_script_options, _budget_option, settings(*_job_keys, *_run_keys))
@click.option("--once", is_flag=True, help="Submit what may be submitted now, and end: for cron.")
@json_option
def run(names: tuple[str, ...], store: str, once: bool, as_json: bool, **chosen: Any) -> None:
    """Submit one short job for each node that is not measured, a few at a time, until every node is.

    \b
    whorl campaign run --suite quick --store S
    whorl campaign run gemm-fp32 --nodes n[01-16] --option=--qos=low --store S

    One node comes first: if its job ends and stored nothing, no more are sent, and its output says why.

    You may stop it at any time (Ctrl-C), and run it again: it goes on with what is missing. What is measured stands in
    the store, what was submitted in the queue. A node gets three tries; a GPU that failed is not tried again.

    Exit status 0; 6 if a GPU or a node failed; 1 if nodes are left because they are not available or the budget is
    spent; 5 if the scheduler is not here, does not answer, or refuses.
    """
    from . import output
    from .answers.campaign import run_campaign
    from .ending import Ending, stays

    def begins(name: str) -> None:
        again = shlex.join(["whorl", "campaign", "run", "--store", store, "--campaign", name])
        stays(f"jobs that were submitted stay in the queue; to go on, run the command again, or: {again}")
        if sys.stderr.isatty():
            output.tell(f"campaign {name}")

    with output.ProgressBar() as progress, Ending():
        reply = run_campaign(
            store, *names, once=once, progress=progress, begins=begins, **chosen, account=configured("account")
        )
    output.print_reply(reply, as_json=as_json)
    if reply.has_failures:
        sys.exit(6)
    if not once and not reply.is_complete:
        sys.exit(1)


@campaign.command("status", short_help="How far a campaign is: covered, waiting, failed.")
@store_option
@_scheduler_option
@click.option("--campaign", "name", metavar="NAME", help="The campaign.  [default: the last one]")
@settings(OptionKey("all", click.BOOL, "List every node, also those that are covered.", False, name="all_nodes"))
@json_option
def status(store: str, scheduler: str | None, name: str | None, all_nodes: bool, as_json: bool) -> None:
    """Say which nodes are covered, which wait, and which failed and why. Nothing is sent.

    \b
    whorl campaign status --store S
    """
    from .answers.campaign import campaign_status
    from .output import print_reply

    print_reply(campaign_status(store, name, scheduler=scheduler, every=all_nodes), as_json=as_json)


@campaign.command("render", short_help="Print the script that measures one node, for any scheduler.")
@click.option("--scheduler", type=click.Choice([*_SCHEDULERS, "kubernetes"]), required=True, help="Whose script.")
@click.option(
    "--store",
    metavar="DIR",
    envvar="WHORL_STORE",
    show_envvar=True,
    default="fleet",
    show_default=True,
    help="The store, as the node sees it.",
)
@click.option("--campaign", metavar="NAME", help="Name of the campaign.  [default: from the suite and the day]")
@click.option("--nodes", "node", metavar="HOST", help="The node.  [default: the scheduler chooses]")
@options(_names_argument, *_measured_options, *_script_options)
@settings(
    *_script_keys,
    OptionKey("output", click.STRING, "The job's output.  [default: the scheduler's]", metavar="FILE"),
    OptionKey("gpus", click.IntRange(1), "GPUs of the node.", 4),
)
def render(store: str, scheduler: str, gpus: int, node: str | None, **chosen: Any) -> None:
    """Print the script that measures all GPUs of one node, to read, change and submit.

    \b
    whorl campaign render --scheduler pbs --suite quick --store S > job.sh

    No scheduler is asked. `whorl campaign run` sends such scripts by itself, except
    to Kubernetes.
    """
    from ..jobs.campaign import node_script
    from .answers.campaign import campaign_choice, submit_options
    from .output import tell

    if scheduler == "kubernetes" and not chosen["program"]:
        chosen["program"] = "whorl"  # this Python is not in the image
    chosen["account"] = configured("account")
    choice, submit = campaign_choice(chosen["names"], chosen), submit_options(chosen)
    script, unplaced = node_script(Path(store), choice, scheduler, options=submit, gpus=gpus, node=node)
    for name in unplaced:
        tell(f"note: the script for {scheduler} has no place for --{name}: it is left out")
    click.echo(script, nl=False)


@campaign.command("doctor", short_help="One tiny job: what does a node see (driver, GPUs, CuPy, store)?")
@store_option
@_scheduler_option
@click.option("--nodes", "node", metavar="HOST", help="The node.  [default: an idle one]")
@configured_option(
    "--partition", key="partition", metavar="NAME", help="A node of this partition. Several with commas."
)
@options(*_script_options)
@click.option("--here", is_flag=True, hidden=True, help="Send no job: look here, and print what is there as JSON.")
@settings(*_job_keys, OptionKey("wait", Span(), "Wait for the job's answer for so long.  [default: 5min]"))
@json_option
def doctor(store: str, scheduler: str | None, here: bool, as_json: bool, **chosen: Any) -> None:
    """Send one job of two minutes to one node, and say what it finds there: Python, the driver, GPUs, CuPy, the store.

    \b
    whorl campaign doctor --store S

    Do this before the first campaign. The job is like those of a campaign: give the same options.

    Exit status 6 if something is missing that measuring needs; 5 if the job did not start or gave no answer in time.
    """
    from ..jobs import node_doctor

    if here:
        click.echo(node_doctor.as_line(node_doctor.node_findings(store, chosen["fleet"])))
        return
    from . import output
    from .answers.campaign import ask_node
    from .answers.doctor import node_document, node_mapping

    report = ask_node(store, scheduler=scheduler, tell=output.tell, **chosen, account=configured("account"))
    output.print_answer(node_mapping(report), node_document(report, store, chosen["fleet"]), as_json=as_json)
    if not report.works:
        sys.exit(6)


@campaign.command("pack", short_help="An archive of what measuring needs, for nodes without whorl.")
@click.argument("file", metavar="FILE")
def pack(file: str) -> None:
    """Write FILE, a gzipped tar with whorl and the packages that measuring needs, as they are installed here.

    \b
    whorl campaign pack whorl.tgz

    Unpack it where the nodes find it. They need the same minor version of Python and the same kind of processor;
    no network and no installation. CuPy is in the archive if it is installed here.
    """
    from ..jobs import node_archive

    archive = node_archive.pack(file)
    click.echo(f"{archive.path}: {archive.bytes / 2**20:,.0f} MiB, for Python {archive.python} on {archive.machine}")
    click.echo(f"holds {', '.join(archive.packages)}")
    click.echo(
        f"next: tar -xzf {shlex.quote(str(archive.path))} -C DIR, and for campaigns: --program DIR/{archive.program}"
    )
