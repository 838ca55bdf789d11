"""`whorl advise`: where a job should run, what that gains, and the same as Slurm options."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    OptionKey,
    Share,
    Span,
    any_store_option,
    cluster_option,
    configured_option,
    json_option,
    options,
    refuse_before,
    require_store,
    settings,
    store_option,
)

if TYPE_CHECKING:
    from ..jobs.kubernetes import KubeNode

FORMATS = ("exclude", "prefer", "nodelist", "weights", "kubernetes", "taints", "nfd", "json")
_DAY_S = 86_400.0


_workload_option = click.option(
    "--workload", metavar="NAME", help="The workload whose runs are used.  [default: the store's only one]"
)
_draws = (
    OptionKey("replicates", click.IntRange(20, 100_000), "Draws behind the intervals.", 400),
    OptionKey("seed", click.IntRange(0), "Seed of the draws.", 2022),
)
_limits = (
    OptionKey("max-share", Share(), "Exclude at most this share of the nodes.  [default: 5%, or one node]"),
    OptionKey("hard", click.FloatRange(1.0), "Exclude nodes that are certainly slower than this factor.", 1.1),
    OptionKey("soft", click.FloatRange(1.0), "Rank down nodes slower than this factor.", 1.05),
    OptionKey("max-age", Span(), "Older measurements count as stale.", "90d"),
    OptionKey("locality-penalty", click.FloatRange(1.0), "Factor on the time of a job that spans nodes.", 1.0),
    *_draws,
)
_job = options(
    any_store_option,
    _workload_option,
    cluster_option,
    click.option("--model", metavar="NAME", help="Only GPUs of this model: its name, or a part of it, as a100."),
    click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="How many GPUs the job uses."),
)


@click.group("advise", invoke_without_command=True, short_help="Where a job should run, and what that gains.")
@_job
@configured_option(
    "--partition", key="partition", metavar="NAME", envvar="SBATCH_PARTITION", help="Only nodes of this partition."
)
@click.option("--no-scheduler", is_flag=True, help="Do not ask the scheduler; use the store's nodes and names.")
@click.option(
    "--nodes",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Only nodes in this file: host lists, or the output of `kubectl get nodes -o json`.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Print only this, for a scheduler or a program.")
@settings(
    OptionKey("and", click.STRING, "Of exclude: further nodes to print.", metavar="HOSTLIST", name="own"),
    OptionKey(
        "node",
        click.STRING,
        "Of nfd: the node that the file is for.  [default: $NODE_NAME]",
        metavar="NAME",
        name="file_node",
    ),
    OptionKey(
        "output",
        click.Path(dir_okay=False, path_type=Path),
        "Of exclude: a file for the submit filters. Of nfd: the node's file.",
        metavar="FILE",
    ),
    *_limits,
    OptionKey(
        "log",
        click.Path(dir_okay=False),
        "The history of the queue, for the price: sacct -P, a CSV, .gz, .zst.  [default: the store's, or sacct]",
        metavar="FILE",
    ),
    OptionKey("cluster-nodes", click.IntRange(1), "Nodes of the queue.  [default: the scheduler's]"),
    OptionKey("time", Span(), "How long such jobs run, as 12h.  [default: the median of the history]"),
)
@json_option
@click.pass_context
def advise(ctx: click.Context, /, **options: Any) -> None:
    """Say which nodes to avoid, which GPUs are best, and what that gains, with its interval.

    \b
    whorl advise --store S --workload gemm-fp32 --gpus 16
    whorl advise apply JOBID --store S --workload W   # your own waiting job
    salloc --gpus=16 --exclude="$(
      whorl advise --store S --workload W --gpus 16 --format exclude)"

    \b
    --format
    exclude     a host list for sbatch --exclude; empty where it does not pay
    prefer      a feature for sbatch --prefer; may be empty
    nodelist    the nodes of the best packed set
    weights     scontrol lines for an administrator: what differs
    kubernetes  kubectl lines that label nodes: what differs
    taints      kubectl lines that taint nodes: what differs
    nfd         the file of one node for Node Feature Discovery

    It prints lines and applies none. Excluding nodes costs waiting: it says what on
    this site's own queue, where it knows the history. docs/advise.md has the method.
    """
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx)
        return
    from ..jobs.formats import lines_for, write_filter, write_whole
    from .answers.advice import advise
    from .documents.advice import price_verdict
    from .output import print_reply, tell

    form, as_json, output, file_node, own = map(options.pop, ("form", "as_json", "output", "file_node", "own"))
    form, file_node = "json" if as_json else form, file_node or os.environ.get("NODE_NAME")
    if output is not None and form not in ("exclude", "nfd"):
        raise click.UsageError("output= works only with --format exclude or nfd")
    if own is not None and (form != "exclude" or output is not None):
        raise click.UsageError("and= works only with --format exclude, without output=")
    if form == "nfd" and not file_node:
        raise click.UsageError("--format nfd needs --set node=NAME: the file is for one node")
    store = require_store(options.pop("store"))
    if options["no_scheduler"] and options["nodes"]:
        raise click.UsageError("--no-scheduler and --nodes cannot be used together")
    listed = _names(options.pop("nodes"))
    options["max_age"] /= _DAY_S
    excluded = _excluded(own)
    to_file = output is not None
    with _printed_anyway(excluded):
        reply = advise(store, **options, nodes=listed, own=excluded, form=form, to_file=to_file)
        steering = reply.result
        lines, note = ([], None) if form in (None, "json") else lines_for(form, steering, excluded, file_node)
        if form == "exclude" and steering.price is not None and not steering.price.worth:
            note = "; ".join([*([note] if note else []), price_verdict(steering.price)])
    if form in (None, "json"):
        print_reply(reply, as_json=form == "json")
        return
    for line in steering.remarks:
        tell(f"note: {line}")
    if output is not None and form == "exclude":
        click.echo(write_filter(output, steering), err=True)
        return
    if output is not None:
        write_whole(output, "".join(f"{line}\n" for line in lines))
    if note:
        tell(f"note: {note}")
    for line in lines if output is None else ():
        click.echo(line)


def _excluded(listed: str | None) -> list[str]:
    """The nodes of `and`: a host list, or as for Slurm's own option the path of a file, which has a slash."""
    from ..jobs.steering import read_names
    from ..store.hostlist import expand

    if listed is None:
        return []
    return read_names(*_text_of(listed)) if "/" in listed else expand(listed)


@contextlib.contextmanager
def _printed_anyway(excluded: Sequence[str]) -> Iterator[None]:
    """Print the user's own nodes also where there is no advice, for whatever reason: the job must not lose them."""
    from ..store.hostlist import compress

    try:
        yield
    except BaseException:
        if excluded:
            click.echo(compress(excluded))
        raise


def _names(path: str | None) -> Sequence[str] | Mapping[str, KubeNode] | None:
    """The nodes that a file or standard input lists; None where none is named."""
    from ..jobs import kubernetes
    from ..jobs.steering import read_names

    if path is None:
        return None
    file, text = _text_of(path)
    if text.lstrip()[:1] == "{":
        return kubernetes.read(text, str(file or "standard input"))
    return read_names(file, text)


def _text_of(name: str) -> tuple[Path | None, str]:
    from ..errors import InputError

    if name == "-":
        return None, sys.stdin.read()
    try:
        return Path(name), Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from error


@advise.command("apply", short_help="Change the excluded nodes of your own waiting job.")
@click.argument("job", metavar="JOBID")
@_job
@click.option("--undo", is_flag=True, help="Give the job the nodes back that whorl excluded.")
@click.option("--dry-run", is_flag=True, help="Print the command and run nothing.")
@settings(
    OptionKey("release", click.BOOL, "Release the job, which you hold.", False),
    OptionKey(
        "max-delay",
        Span(),
        "How much later the job may start.  [default: what the exclusion saves of its time limit, a minute at least]",
    ),
    OptionKey("wait", Span(), "How long to wait for Slurm.  [default: four times its bf_interval]"),
    *_limits,
)
@json_option
def apply(job: str, **options: Any) -> None:
    """Exclude slow nodes for your own waiting job JOBID, or refresh what whorl excluded before.

    \b
    whorl advise apply 4242 --store S --workload gemm-fp32 --dry-run

    Slurm is asked when it expects to start the job, before and after. Where it is later than the exclusion saves, or
    never, the job is as you wrote it. The nodes that you excluded yourself stay. JOBID may be an array (its waiting
    tasks) or one of its tasks. Without --workload, a word whorl=NAME in the job's comment names the workload. The
    comment has what was excluded; --undo takes it back.
    """
    from ..jobs import apply as advised_job
    from .output import print_json, tell

    undo, as_json, dry_run = options.pop("undo"), options.pop("as_json"), options["dry_run"]
    trial = advised_job.ApplyOptions(*(options.pop(name) for name in ("dry_run", "release", "max_delay", "wait")))
    if undo:
        changes = advised_job.undo(job)
        if as_json:
            print_json({"schema": "whorl.advise.apply/1", "rows": [change.as_dict() for change in changes]})
        for change in () if as_json else changes:
            click.echo(f"job {change.job} avoids {change.after.excluded or 'no nodes'}, as you wrote it")
        return
    store = require_store(options.pop("store"))
    options["max_age"] /= _DAY_S
    applied = advised_job.apply(store, job, options=trial, tell=lambda sentence: tell(f"note: {sentence}"), **options)
    if as_json:
        rows = [change.as_dict() for change in applied.changes]
        print_json({"schema": "whorl.advise.apply/1", "workload": applied.workload, "dry_run": dry_run, "rows": rows})
        return
    for remark in applied.steering.remarks:
        tell(f"note: {remark}")
    for change in applied.changes:
        for note in change.notes:
            tell(f"note: job {change.job}: {note}")
        if dry_run:
            click.echo(shlex.join(change.command) if change.needed else f"# job {change.job}: nothing to change")
        else:
            already = "already " if change.outcome == "unchanged" and change.after.excluded else ""
            click.echo(f"job {change.job} {already}avoids {change.after.excluded or 'no nodes'}")
    if applied.not_waiting:
        tell(f"note: {applied.not_waiting} tasks of {job} no longer wait and were not changed")
    if not any(change.after.excluded or change.notes for change in applied.changes):
        tell(f"note: {applied.steering.advice.finding}")


_scope = options(
    _workload_option,
    cluster_option,
    click.option("--hosts", metavar="HOSTLIST", help="Only GPUs of these nodes, as n[01-02]."),
)
_file = click.Path(dir_okay=False, path_type=Path)


@advise.command("burst", short_help="DeepPool: on how many GPUs each layer trains.")
@click.option("--profile", type=_file, required=True, help="CSV of layer times: plain, or .gz.")
@click.option("--network", type=_file, required=True, help="JSON of the chain of layers.")
@click.option("--model", metavar="NAME", help="The profile's model.  [default: its only one]")
@click.option("--batch", metavar="N,...", default="32", show_default=True, help="Samples in an iteration.")
@click.option("--gpus", metavar="N,...", default="8", show_default=True, help="GPUs at most: powers of two.")
@click.option(
    "--limit",
    metavar="X,...",
    default="2",
    show_default=True,
    help="GPU time at most, as a multiple of one GPU's; or data-parallel.",
)
@click.option("--store", metavar="DIR", help="A store: name the GPUs.")
@_scope
@settings(
    OptionKey(
        "rules",
        click.Choice(["exact", "published"]),
        "exact: the fastest plan within the limit. published: as DeepPool's planner.",
        "exact",
    ),
    OptionKey(
        "conv-traffic",
        click.Choice(["right", "published"]),
        "How gradients of convolutions count.  [default: as the rules]",
    ),
    OptionKey("bandwidth", click.FloatRange(0, min_open=True), "Bytes per us between GPUs.  [default: 2.66e5]"),
    *_draws,
)
@json_option
def burst(profile: Path, network: Path, as_json: bool, **chosen: Any) -> None:
    """Plan a burst-parallel job: on how many GPUs each layer trains, the time, and which share of the GPUs is idle.

    \b
    whorl advise burst --profile layer_times.csv --network vgg16.json
      --model vgg16 --batch 32 --gpus 8,16 --limit 2 --store S

    --batch, --gpus and --limit take several values, with commas. docs/advise.md has the method.
    """
    from ..dashboards.answers.training import advise_burst
    from .output import print_reply

    print_reply(advise_burst(profile, network, **chosen), as_json=as_json)


@advise.command("spb", short_help="JigSaw: how deep each GPU goes back.")
@store_option
@click.option("--gpus", type=click.IntRange(1), help="How many GPUs the job has: the best.  [default: all of --hosts]")
@click.option(
    "--backward",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The share of a step that is backward.  [default: 2/3]",
)
@_scope
@settings(
    OptionKey("layers", click.IntRange(1, 1_000_000), "Layers of the network: depths in layers, traffic of each."),
    *_draws,
)
@json_option
def spb(store: str, as_json: bool, **chosen: Any) -> None:
    """Say how deep each GPU of a job goes back under structured partial backpropagation, and what that gains.

    \b
    whorl advise spb --store S --hosts n[01-02] --backward 0.67

    The deepest share is on the fastest GPU. docs/advise.md has the method.
    """
    from ..dashboards.answers.training import advise_spb
    from .output import print_reply

    print_reply(advise_spb(store, **chosen), as_json=as_json)


@advise.command("power-plan", short_help="Power limits for a job that waits for its slowest GPU.")
@store_option
@click.option("--hosts", metavar="HOSTLIST", required=True, help="The job has all GPUs of these nodes, as n[01-02].")
@click.option("--workload", metavar="NAME", required=True, help="The workload whose runs are used.")
@click.option("--budget", metavar="POWER", help="The GPUs may report this together: 4.2kW or 4200W.")
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    metavar="W",
    help="The present limit.  [default: that of each GPU in the store]",
)
@cluster_option
@json_option
def power_plan(store: str, as_json: bool, **chosen: Any) -> None:
    """Set limits so that no GPU of a synchronous job runs faster than the slowest, which all wait for.

    \b
    whorl advise power-plan --store S --hosts n[12-13] --workload gemm-fp32
    whorl advise power-plan ... --budget 4.2kW   # the fastest within a power

    It needs a run of each GPU at its present limit, and three GPUs of the model under several limits; it says how to
    measure what is missing. It prints `nvidia-smi` lines and runs none. Jobs that do not wait for each other gain
    nothing by limits of their own (0.00 to 0.04 %). docs/tune.md has the method.
    """
    from ..dashboards.answers.training import advise_power_plan
    from .output import print_reply

    print_reply(advise_power_plan(store, **chosen), as_json=as_json)
