"""Measure every GPU of a cluster through its batch system: the functions of `whorl campaign`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...dashboards.answers.reply import Reply, RowList, folder
from ...errors import InputError
from ...jobs.campaign import driving, status
from ...jobs.campaign.asking import Asked
from ...jobs.campaign.planning import NICE, START_UP_S, How
from ...store.instants import seconds_of
from .. import campaign_report

if TYPE_CHECKING:
    from ...jobs.campaign.status import Status
    from ...store import Store


class CampaignOptions(TypedDict, total=False):
    """What a campaign measures and how its jobs are submitted; each is None or empty where it is left out."""

    suite: str | None
    campaign: str | None
    """Its name; the last one that is like this where it is left out."""
    neighbours: str | None
    """"idle": one GPU of a node after another; "busy": all at once."""
    partition: str | None
    nodes: str | None
    """Only these nodes: "n[01-16]"."""
    cluster: str | None
    fleet: str | Path | None
    """Simulated GPUs on the nodes: the file that describes them."""
    qos: str | None
    account: str | None
    nice: int | None
    setup: Sequence[str]
    """Shell lines before measuring."""
    sbatch: Sequence[str]
    """Further options of sbatch."""
    program: str | None
    """How a node calls whorl."""
    template: str | Path | None
    output: str | Path | None
    """The folder of the jobs' output."""
    start_up: float | str | None
    """What a job takes beside measuring, in s or as "5min"."""
    budget: float | str | None
    """GPU time that the campaign may be allocated, in s or as "200h"."""


class RunOptions(CampaignOptions, total=False):
    """How fast and how patiently a campaign is run, too."""

    max_pending: int
    """So many jobs wait in the queue at most; 8 where it is left out."""
    patience: float | str | None
    """Give up where Slurm does not answer for so many s."""
    settle: float | str | None
    """Wait for a job's runs for so many s after its end."""
    tries: int
    """So many jobs a node gets at most; 3 where it is left out."""
    once: bool
    """Submit what may be submitted now, and end."""
    progress: driving.Progress | None
    begins: Callable[[str], None] | None
    """Called with the campaign's name before the first job."""


def plan_campaign(store: Store | str | Path, *names: str, **options: Unpack[CampaignOptions]) -> Reply[Status]:
    """Say what a campaign would measure now and what that costs, as `whorl campaign plan` does; nothing is sent.

    `names` are probes; without some, `suite` chooses. `frame` has a row for each node that is not available. Raises
    InputError for options that cannot be used, SchedulerError where Slurm does not answer.
    """
    how = how_asked(options)
    hours = _hours(options.get("budget"))
    plan = status.plan_campaign(store, asked(names, options), how=how)
    return Reply(
        plan,
        partial(campaign_report.plan_document, plan, how, hours),
        partial(campaign_report.plan_answer, plan, how, hours, named=options.get("campaign") is not None),
        rows=RowList("unavailable"),
    )


def run_campaign(store: Store | str | Path, *names: str, **options: Unpack[RunOptions]) -> Reply[Status]:
    """Submit jobs until every node is measured, as `whorl campaign run` does; call it again to go on.

    `names` are probes; without some, `suite` chooses. `frame` has a row for each node. Raises InputError for options
    that cannot be used, StoreError where the store cannot be written, SchedulerError where Slurm refuses for too long.
    """
    patience, settle = seconds_of(options.get("patience")), seconds_of(options.get("settle"))
    limits = driving.Limits(
        max_pending=options.get("max_pending", driving.PENDING),
        budget_h=_hours(options.get("budget")),
        patience_s=driving.PATIENCE_S if patience is None else patience,
        settle_s=driving.SETTLE_S if settle is None else settle,
        tries=options.get("tries", status.TRIES),
        once=options.get("once", False),
    )
    campaign = driving.run_campaign(
        store,
        asked(names, options),
        how=how_asked(options),
        limits=limits,
        progress=options.get("progress"),
        begins=options.get("begins"),
    )
    return _status(campaign, store)


def campaign_status(store: Store | str | Path, campaign: str | None = None, *, every: bool = False) -> Reply[Status]:
    """Say which nodes are covered, which wait and which failed, as `whorl campaign status` does; nothing is sent.

    Without a name it is the last campaign. `every` shows people the covered nodes, too; `frame` has them in any case.
    """
    return _status(status.campaign_status(store, campaign), store, every=every)


def asked(names: Sequence[str], options: Mapping[str, Any]) -> Asked:
    """What the options say of a campaign's measurements and nodes."""
    fleet = options.get("fleet")
    return Asked(
        campaign=options.get("campaign"),
        suite=options.get("suite"),
        probes=tuple(names) or None,
        neighbours=options.get("neighbours"),
        partition=options.get("partition"),
        nodes=options.get("nodes"),
        fleet=None if fleet is None else str(Path(fleet).resolve()),
        cluster=options.get("cluster"),
    )


def how_asked(options: Mapping[str, Any]) -> How:
    """What the options say of how jobs are submitted."""
    nice, start_up, program = options.get("nice"), options.get("start_up"), options.get("program")
    template, output = options.get("template"), options.get("output")
    return How(
        qos=options.get("qos"),
        account=options.get("account"),
        nice=NICE if nice is None else nice,
        setup=tuple(options.get("setup") or ()),
        options=tuple(options.get("sbatch") or ()),
        program=_words(program) if program else None,
        template=None if template is None else Path(template),
        output=None if output is None else Path(output),
        start_up_s=START_UP_S if start_up is None else seconds_of(start_up),
    )


def _status(campaign: Status, store: Store | str | Path, *, every: bool = False) -> Reply[Status]:
    return Reply(
        campaign,
        partial(campaign_report.status_document, campaign),
        partial(campaign_report.status_answer, campaign, folder(store), every=every),
        rows=RowList("by_node"),
    )


def _hours(budget: float | str | None) -> float | None:
    return None if budget is None else seconds_of(budget) / 3600


def _words(program: str) -> tuple[str, ...]:
    """The words of `--program`, split as a shell does. Raises InputError for a quote without its end."""
    try:
        return tuple(shlex.split(program))
    except ValueError as error:
        raise InputError(
            f"--program {program} cannot be read as a shell reads it ({error}): put a backslash before each quote that "
            "belongs to a name"
        ) from error
