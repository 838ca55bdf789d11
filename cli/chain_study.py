"""`whorl jobs chain-study`: what each way to submit the jobs of a chain would have done on a log of this site."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from .ending import stays
from .options import OptionKey, When, json_option, settings

if TYPE_CHECKING:
    from ..analysis.chains.jobs_log import JobsLog
    from ..analysis.chains.policy_rows import PolicyRow
    from .output import ProgressBar

_PATH = click.Path(path_type=Path)
_POLICIES = "reactive, lead6 (hours), average, test-only, p75, forest, known"
_DEFAULT = "reactive,average,p75,p90; as published reactive,average"


@click.command("chain-study", short_help="What each way to submit a chain of jobs would have done here.")
@click.option("--log", "log_path", type=_PATH, required=True, help="The site's jobs: saved sacct -P or --json, or CSV.")
@click.option("--cluster-nodes", type=click.IntRange(1), help="Nodes.  [default: the most that ran jobs at once]")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of each job of the chain.")
@click.option("--policy", metavar="NAMES", help=f"With commas: {_POLICIES}.  [default: {_DEFAULT}]")
@click.option(
    "--cost",
    type=click.FloatRange(0.01, 99),
    help="An hour of overlap weighs so many hours of interruption: adds the policy cost, the quantile 1/(1+COST).",
)
@click.option(
    "--test-from",
    type=When(),
    help="Test on chains from this day on, and learn from those before.  [default: the last quarter]",
)
@click.option("--as-published", type=click.Choice(["mirage"]), help="Simulate as the artifact of that study does.")
@settings(
    OptionKey("time-zone", click.STRING, "Of times in the log without one.", "UTC", metavar="ZONE"),
    OptionKey("gpus-per-node", click.IntRange(1), "To count wasted GPU-hours.", 1),
    OptionKey("samples", _PATH, "As published: also write every sample, as a CSV.", metavar="FILE"),
    OptionKey("seed", click.IntRange(0), "Of what is learnt.  [default: 0]"),
)
@json_option
def chain_study(
    log_path: Path, time_zone: str, cluster_nodes: int | None, nodes: int, as_json: bool, **options: Any
) -> None:
    """Say what each way to submit the next job of a chain would have done on a log of this site. It submits nothing.

    \b
    whorl jobs chain-study --log sacct.csv.gz --nodes 8 --cost 0.5
    whorl jobs chain-study --log sacct.csv.gz --policy reactive,lead6,lead12,p75
    whorl jobs chain-study --log ls6.csv --cluster-nodes 72 --as-published mirage

    A chain is a training in jobs of 48 h. Interruption is the time without a job between two of them, overlap the time
    in which both hold their nodes (docs/jobs.md).
    """
    from ..analysis.chains import study
    from ..analysis.chains.jobs_log import read_log
    from ..dashboards.html import refuse_unwritable
    from .documents.chain import study_document, study_mapping
    from .output import ProgressBar, print_document, print_json, tell

    stays("nothing was stored: run the command again")
    _refuse_mixed(options)
    if options["samples"] is not None:
        refuse_unwritable(options["samples"], "samples=")
    log = read_log(log_path, time_zone=time_zone)
    for note in _account(log):
        tell(note)
    size = cluster_nodes or log.most_nodes_at_once
    policies = [name.strip() for name in options["policy"].split(",")] if options["policy"] else []
    since = options["test_from"]
    since_s = None if since is None else since.replace(tzinfo=UTC).timestamp()
    samples: list[dict[str, Any]] = []
    with ProgressBar() as progress:
        if options["as_published"]:
            rows, samples = _as_published(log, policies, size, nodes, since_s=since_s or 0.0, progress=progress)
        else:
            names = tuple(policies) or study.DEFAULT_POLICIES
            learnt = {"test_from_s": since_s, "cost": options["cost"], "seed": options["seed"] or 0}
            chosen = study.StudyOptions(cluster_nodes=size, nodes=nodes, policies=names, **learnt)
            rows = study.chain_study(log, options=chosen, progress=lambda done, total: progress(done, total, "chains"))
    if options["samples"] is not None:
        with options["samples"].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(samples[0]))
            writer.writeheader()
            writer.writerows(samples)
    if as_json:
        print_json(study_mapping(log, rows, size, options))
    else:
        print_document(study_document(log, rows, size, options["gpus_per_node"]))


def _refuse_mixed(options: Mapping[str, Any]) -> None:
    for name in ("cost", "seed"):
        if options["as_published"] and options[name] is not None:
            raise InputError(f"--as-published fixes what --{name} would change; leave out one of them")
    if options["samples"] is not None and not options["as_published"]:
        raise InputError("samples= writes the samples of --as-published mirage; leave it out")


def _as_published(
    log: JobsLog, policies: Sequence[str], cluster_nodes: int, nodes: int, *, since_s: float, progress: ProgressBar
) -> tuple[list[PolicyRow], list[dict[str, Any]]]:
    from ..analysis.chains import published
    from .output import tell

    policies = policies or published.POLICIES
    others = [policy for policy in policies if policy not in published.POLICIES]
    policies = published.published_policies(policies)
    if others:
        tell(f"note: the published study has no {', '.join(others)}: leave out --as-published to see them")
    starts_s = published.published_starts(log, since_s=since_s)
    samples = published.published_samples(
        log,
        starts_s,
        cluster_nodes=cluster_nodes,
        nodes=nodes,
        progress=lambda done: progress(done, len(starts_s), "windows"),
    )
    return published.published_rows(samples, policies), [sample.as_row() for sample in samples]


def _account(log: JobsLog) -> Iterable[str]:
    """What of the log was not used, and what is not sure of its times."""
    from ..analysis.chains.jobs_log import SAVE

    for reason, lines in log.refused.items():
        listed = ", ".join(str(line) for line in sorted(lines)[:5]) + (", ..." if len(lines) > 5 else "")
        in_all = f" ({len(lines)} in all)" if len(lines) > 5 else ""
        yield f"{log.source}: left out line{'s' if len(lines) > 1 else ''} {listed}{in_all}: {reason}"
    if log.refused:
        yield f"to have all rows read, save the log with: {SAVE}"
    yield from (f"note: {note}" for note in log.notes)
