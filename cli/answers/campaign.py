"""Measure every GPU of a cluster through its batch system: the functions of `whorl campaign`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...dashboards.answers.reply import Reply, RowList, folder
from ...errors import InputError
from ...jobs import campaign_driver, find_scheduler
from ...jobs import campaign_status as coverage
from ...jobs.campaign import CampaignChoice, CampaignRequest, SubmitOptions
from ...jobs.scheduler import Scheduler
from ...store.instants import seconds_of
from ..documents import campaign as documents

if TYPE_CHECKING:
    from ...jobs.campaign_status import CampaignStatus
    from ...jobs.node_doctor import NodeReport
    from ...store import Store


class CampaignOptions(TypedDict, total=False):
    """What a campaign measures and how its jobs are submitted; each is None or empty where it is left out."""

    scheduler: str | None
    """"slurm", "pbs", "lsf" or "flux"; the one whose commands are here where it is left out."""
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
    """Further options of the scheduler."""
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
    """Give up where the scheduler does not answer for so many s."""
    settle: float | str | None
    """Wait for a job's runs for so many s after its end."""
    tries: int
    """So many jobs a node gets at most; 3 where it is left out."""
    once: bool
    """Submit what may be submitted now, and end."""
    progress: campaign_driver.Progress | None
    begins: Callable[[str], None] | None
    """Called with the campaign's name before the first job."""


def plan_campaign(store: Store | str | Path, *names: str, **options: Unpack[CampaignOptions]) -> Reply[CampaignStatus]:
    """Say what a campaign would measure now and what that costs, as `whorl campaign plan` does; nothing is sent.

    `names` are probes; without some, `suite` chooses. `frame` has a row for each node that is not available. Raises
    InputError for options that cannot be used, SchedulerError where the scheduler does not answer.
    """
    scheduler, submit = find_scheduler(options.get("scheduler")), submit_options(options)
    hours = _hours(options.get("budget"))
    plan = coverage.plan_campaign(store, campaign_choice(names, options), scheduler=scheduler, options=submit)
    mapping = partial(documents.plan_mapping, options=submit, budget_h=hours)
    document = partial(
        documents.plan_document, options=submit, budget_h=hours, named=options.get("campaign") is not None
    )
    return Reply(plan, mapping, document, rows=RowList("unavailable"), notes=_notes(scheduler))


def run_campaign(store: Store | str | Path, *names: str, **options: Unpack[RunOptions]) -> Reply[CampaignStatus]:
    """Submit jobs until every node is measured, as `whorl campaign run` does; call it again to go on.

    `names` are probes; without some, `suite` chooses. `frame` has a row for each node. Raises InputError for options
    that cannot be used, StoreError where the store cannot be written, SchedulerError where the scheduler refuses for
    too long.
    """
    driver = _stated(
        max_pending=options.get("max_pending"),
        budget_h=_hours(options.get("budget")),
        patience_s=seconds_of(options.get("patience")),
        settle_s=seconds_of(options.get("settle")),
        tries=options.get("tries"),
        once=options.get("once"),
        progress=options.get("progress"),
        begins=options.get("begins"),
    )
    scheduler = find_scheduler(options.get("scheduler"))
    status = campaign_driver.run_campaign(
        store,
        campaign_choice(names, options),
        scheduler=scheduler,
        options=submit_options(options),
        driver=campaign_driver.DriverOptions(**driver),
    )
    return _status(status, store, scheduler)


def campaign_status(
    store: Store | str | Path, campaign: str | None = None, *, scheduler: str | None = None, every: bool = False
) -> Reply[CampaignStatus]:
    """Say which nodes are covered, which wait and which failed, as `whorl campaign status` does; nothing is sent.

    Without a name it is the last campaign. `every` shows people the covered nodes, too; `frame` has them in any case.
    """
    asked_scheduler = find_scheduler(scheduler)
    status = coverage.campaign_status(store, campaign, scheduler=asked_scheduler)
    return _status(status, store, asked_scheduler, all_nodes=every)


def ask_node(
    store: str,
    *,
    scheduler: str | None,
    node: str | None,
    wait: float | None,
    tell: Callable[[str], None],
    **settings: Any,
) -> NodeReport:
    """Send one job to one node, and return what it found there; `tell` hears when the job is sent."""
    from ...jobs import node_doctor

    client = find_scheduler(scheduler)
    for note in _notes(client):
        tell(f"note: {note}")
    coverage.reach(client)
    scope = {"partition": settings["partition"], "nodes": node, "fleet": settings["fleet"]}
    request = CampaignRequest("doctor", "quick", (), named=False, neighbours="busy", **scope)
    wait_s = node_doctor.WAIT_S if wait is None else wait
    options = submit_options(settings)
    return node_doctor.ask_node(store, request, scheduler=client, options=options, wait_s=wait_s, tell=tell)


def campaign_choice(names: Sequence[str], options: Mapping[str, Any]) -> CampaignChoice:
    """What the options say of a campaign's measurements and nodes."""
    fleet = options.get("fleet")
    words = {name: options.get(name) for name in ("campaign", "suite", "neighbours", "partition", "nodes", "cluster")}
    return CampaignChoice(
        **words, probes=tuple(names) or None, fleet=None if fleet is None else str(Path(fleet).resolve())
    )


def submit_options(options: Mapping[str, Any]) -> SubmitOptions:
    """What the options say of how jobs are submitted."""
    program, template, output = options.get("program"), options.get("template"), options.get("output")
    stated = _stated(
        qos=options.get("qos"),
        account=options.get("account"),
        nice=options.get("nice"),
        setup=tuple(options.get("setup") or ()),
        options=tuple(options.get("sbatch") or ()),
        program=_words(program) if program else None,
        template=None if template is None else Path(template),
        output=None if output is None else Path(output),
        start_up_s=seconds_of(options.get("start_up")),
    )
    return SubmitOptions(**stated)


def _stated(**options: Any) -> dict[str, Any]:
    """The options that are not None: the others keep their defaults."""
    return {name: option for name, option in options.items() if option is not None}


def _status(
    status: CampaignStatus, store: Store | str | Path, scheduler: Scheduler, *, all_nodes: bool = False
) -> Reply[CampaignStatus]:
    document = partial(documents.status_document, store=folder(store), all_nodes=all_nodes)
    return Reply(status, documents.status_mapping, document, rows=RowList("by_node"), notes=_notes(scheduler))


def _notes(scheduler: Scheduler) -> list[str]:
    return [scheduler.caution] if scheduler.caution else []


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
