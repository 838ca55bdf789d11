"""`whorl advise`: where a job should run, what that gains, and the same in Slurm's words."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .collect import Span
from .options import json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..jobs.advising import Steering, Wanted
    from ..jobs.applying import Change
    from ..jobs.slurm import Slurm

FORMATS = ("exclude", "prefer", "nodelist", "weights", "json")
_DAY_S = 86_400.0


class Share(click.ParamType[float]):
    """A share: 5%, or 0.05."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", str(value))
        share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is no share: write it as 5% or 0.05", param, ctx)
        return share


def _store_option(command: Any) -> Any:
    """`--store`, which may also stand before `apply`."""
    return click.option(
        "--store",
        metavar="DIR",
        envvar="WHORL_STORE",
        show_envvar=True,
        help="The store: a folder of tables.",
    )(command)


_workload_option = click.option("--workload", metavar="NAME", help="The workload whose runs count.")
_cluster_option = click.option("--cluster", metavar="NAME", help="The cluster, where several have the workload.")


@click.group("advise", invoke_without_command=True, short_help="Where a job should run, and what that gains.")
@_store_option
@_workload_option
@_cluster_option
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="GPUs that the job takes.")
@click.option("--partition", metavar="NAME", envvar="SBATCH_PARTITION", help="Only nodes of this partition.")
@click.option("--max-share", type=Share(), help="Exclude no more of the nodes.  [default: 5%, or one node]")
@click.option(
    "--hard", type=click.FloatRange(1.0), default=1.1, show_default=True, help="Exclude nodes slower than this."
)
@click.option(
    "--soft", type=click.FloatRange(1.0), default=1.05, show_default=True, help="Rank down nodes slower than this."
)
@click.option("--max-age", type=Span(), default="90d", show_default=True, help="Older measurements count as stale.")
@click.option(
    "--locality-penalty",
    "locality",
    type=click.FloatRange(1.0),
    default=1.0,
    show_default=True,
    help="Factor on the time of a job that spans nodes.",
)
@click.option("--no-scheduler", is_flag=True, help="Ask no scheduler: the store's nodes, under its names.")
@click.option("--nodes", type=click.Path(dir_okay=False, allow_dash=True), help="Nodes to choose from: a file of them.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Print only this, for a scheduler or a program.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="exclude: a file for submit filters.")
@click.option("--replicates", type=click.IntRange(20, 100_000), help="Bootstrap replicates behind the intervals.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the bootstrap.")
@json_option
@click.pass_context
def advise(ctx: click.Context, /, form: str | None, output: Path | None, as_json: bool, **options: Any) -> None:
    """Say which nodes to avoid, which GPUs are best, and what that gains, with its interval.

    \b
    whorl advise --store S --workload sgemm --gpus 16
    sbatch --exclude="$(whorl advise --store S --workload W --format exclude)" JOB
    whorl advise apply JOBID --store S

    Formats: exclude, a host list, possibly empty; prefer, a feature for --prefer; nodelist, the best packed set;
    weights, `scontrol` lines for an administrator, as a difference, never applied. docs/placement.md has the method.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = options
        return
    from ..jobs.advising import steer
    from ..store import Store
    from . import advise_report as report
    from .output import print_json, show

    form = "json" if as_json else form
    if output is not None and form != "exclude":
        raise click.UsageError("--output goes with --format exclude")
    for name in ("store", "workload"):
        if not options[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
    wanted = _wanted(options)
    slurm, listed, remark = _scheduler(options, form, output is not None)
    store = Store.open(options["store"])
    if output is not None:
        if slurm is None:
            raise click.UsageError("--output needs the scheduler: it states what of the partition is left")
        options["partition"] = options["partition"] or slurm.default_partition()
    steering = steer(
        store,
        wanted,
        slurm=slurm,
        listed=listed,
        partition=options["partition"] if slurm else None,
        placing=form in (None, "nodelist", "json"),
        lenient=form in (None, "json", "exclude", "prefer") and output is None,
    )
    remarks = ([remark] if remark else []) + list(steering.remarks)
    if form in (None, "json"):
        wait = steering.wait(slurm)
        if form == "json":
            print_json(report.document(steering, wait, remarks))
        else:
            show(report.answer(steering, wait, remarks))
        return
    for line in remarks:
        click.echo(f"whorl: note: {line}", err=True)
    if output is not None and slurm is not None:
        _write(output, steering, slurm)
    else:
        _print(form, steering)


def _print(form: str, steering: Steering) -> None:
    """One of the formats on standard output, and why it is empty on standard error."""
    from ..errors import InputError
    from ..jobs.formats import node_lines
    from ..jobs.hostlist import compress

    advice = steering.advice
    if form == "exclude":
        if not steering.exclude:
            why = "The scheduler has none of these nodes." if steering.foreign else advice.finding
            said = why if why.startswith("Exclude nothing") else f"nothing is excluded. {why}"
            click.echo(f"whorl: note: {said}", err=True)
        click.echo(compress(steering.exclude))
    elif form == "prefer":
        expression, why = steering.prefer()
        if why:
            click.echo(f"whorl: note: nothing to prefer: {why}", err=True)
        click.echo(expression)
    elif form == "nodelist":
        nodes = steering.nodelist()
        if not nodes:
            # Unlike an empty --exclude, Slurm refuses an empty --nodelist.
            raise InputError(f"no nodes to name for a job of {advice.gpus}: {advice.finding}")
        click.echo(f"whorl: note: for a job that takes all of them: --nodes={len(nodes)}", err=True)
        click.echo(compress(nodes))
    else:
        if not steering.nodes:
            raise InputError("weights are a difference to what the scheduler has: run this where it can be asked")
        mine = [steering.nodes[name] for name in steering.names.names.values()]
        lines = node_lines(advice.workload, mine, steering.tiers, steering.preferred)
        if not lines:
            click.echo("whorl: note: the scheduler has these weights and features already", err=True)
        for line in lines:
            click.echo(line)


def _write(output: Path, steering: Steering, slurm: Slurm) -> None:
    """The file for the submit filters."""
    import time

    from ..errors import InputError
    from ..jobs.formats import filter_file, write_whole

    partition = steering.partition
    if partition is None:
        raise InputError("Slurm has no default partition: say which one the file is for with --partition")
    is_default = slurm.default_partition() == partition
    nodes = list(steering.nodes.values())
    write_whole(output, filter_file(steering.exclude, nodes, partition, is_default, time.time()))
    click.echo(f"{output}: {len(steering.exclude)} of {len(nodes)} nodes of partition {partition}", err=True)


@advise.command("apply", short_help="Tell a waiting job of yours which nodes to avoid.")
@click.argument("job", metavar="JOBID")
@_store_option
@_workload_option
@_cluster_option
@click.option("--dry-run", is_flag=True, help="Print the command and run nothing.")
@json_option
@click.pass_obj
def apply(
    inherited: dict[str, Any],
    /,
    job: str,
    store: str | None,
    workload: str | None,
    cluster: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Exclude slow nodes for your own job JOBID while it waits, or refresh what whorl excluded before.

    The nodes that you excluded yourself stay. JOBID may be an array (its waiting tasks) or one of its tasks. Without
    --workload, a word whorl=NAME in the job's comment names the workload. What whorl excluded stands in the comment.
    """
    import shlex

    from ..jobs import applying
    from ..jobs.advising import steer
    from ..jobs.slurm import Slurm
    from ..store import Store
    from .output import print_json

    options = dict(inherited)
    options |= {k: v for k, v in (("store", store), ("workload", workload), ("cluster", cluster)) if v is not None}
    if not options["store"]:
        raise click.UsageError("Missing option '--store'.")
    if options["no_scheduler"] or options["nodes"]:
        raise click.UsageError("apply asks the scheduler: leave out --no-scheduler and --nodes")
    slurm = Slurm()
    slurm.check()
    records = slurm.jobs(job)
    waiting = applying.pending(records, job, os.getuid())
    opened = Store.open(options["store"])
    options["workload"] = options["workload"] or applying.workload_of(waiting) or _only_workload(opened, job)
    partition = ",".join(waiting[0].partitions) or None
    steering = steer(opened, _wanted(options), slurm=slurm, partition=partition)
    everything = slurm.nodes()
    changes = [applying.change(one, steering.exclude, everything) for one in waiting]
    if not dry_run:
        _update(slurm, [change for change in changes if change.needed])
    if as_json:
        rows = [change.as_dict() for change in changes]
        print_json(
            {"schema": "whorl.advise.apply/1", "workload": options["workload"], "dry_run": dry_run, "rows": rows}
        )
        return
    for line in steering.remarks:
        click.echo(f"whorl: note: {line}", err=True)
    for change in changes:
        for note in change.notes:
            click.echo(f"whorl: note: job {change.job}: {note}", err=True)
        if dry_run:
            click.echo(shlex.join(change.command) if change.needed else f"# job {change.job}: nothing to change")
        else:
            did = "avoids" if change.needed or not change.after else "already avoids"
            click.echo(f"job {change.job} {did} {change.after or 'no nodes'}")
    if len(records) > len(waiting):
        click.echo(f"whorl: note: {len(records) - len(waiting)} tasks of {job} wait no longer: left alone", err=True)
    if not any(change.after for change in changes):
        click.echo(f"whorl: note: {steering.advice.finding}", err=True)


def _update(slurm: Slurm, changes: Sequence[Change]) -> None:
    """Make the changes; where one is refused, say which were made before."""
    from ..errors import SchedulerError

    for number, change in enumerate(changes):
        try:
            slurm.update_job(change.job, change.after, change.comment)
        except SchedulerError:
            for made in changes[:number]:
                click.echo(f"whorl: note: job {made.job} avoids {made.after or 'no nodes'}", err=True)
            raise


def _only_workload(store: Any, job: str) -> str:
    """The store's workload, where it has one only."""
    from ..analysis.placement import available
    from ..errors import InputError

    workloads = sorted({workload for _, workload in available(store)})
    if len(workloads) != 1:
        has = ", ".join(workloads) or "none"
        raise InputError(f"which workload is job {job}? Say --workload, or whorl=NAME in its comment; there is {has}")
    return workloads[0]


def _wanted(options: dict[str, Any]) -> Wanted:
    from ..errors import InputError
    from ..jobs.advising import Wanted

    for name in ("hard", "soft", "locality"):
        if not math.isfinite(options[name]):
            flag = "locality-penalty" if name == "locality" else name
            raise InputError(f"--{flag} {options[name]} is no factor: write a number such as 1.2")
    if options["soft"] > options["hard"]:
        raise InputError(f"--soft {options['soft']:g} is above --hard {options['hard']:g}")
    taken = {name: options[name] for name in ("workload", "cluster", "gpus", "hard", "soft", "max_share", "locality")}
    return Wanted(**taken, max_age=options["max_age"] / _DAY_S, replicates=options["replicates"], seed=options["seed"])


def _scheduler(
    options: dict[str, Any], form: str | None, to_file: bool
) -> tuple[Slurm | None, list[str] | None, str | None]:
    """The scheduler to ask, or the nodes listed instead of it, and what is to be said about that.

    A scheduler that does not answer is an error where what is printed is for it. Where there is none, the store's
    names do, unless what is printed rests on what a scheduler has.
    """
    from ..errors import SchedulerError
    from ..jobs.advising import read_names
    from ..jobs.slurm import Slurm

    if options["no_scheduler"] and options["nodes"]:
        raise click.UsageError("--no-scheduler and --nodes exclude each other")
    if options["nodes"]:
        return None, read_names(*_text_of(options["nodes"])), None
    if options["no_scheduler"]:
        return None, None, None
    slurm = Slurm()
    try:
        slurm.check()
    except SchedulerError as error:
        unchecked = error.absent and form in ("exclude", "nodelist") and not to_file
        if form not in (None, "json") and not unchecked:
            raise
        return None, None, f"names of nodes are not checked: {error}"
    return slurm, None, None


def _text_of(name: str) -> tuple[Path | None, str]:
    from ..errors import InputError

    if name == "-":
        return None, sys.stdin.read()
    try:
        return Path(name), Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from error
