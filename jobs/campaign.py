"""A campaign: what it measures and where, chosen once; its nodes, what they cost, and the job that measures a node.

A campaign measures every GPU of a cluster once, by a job for each node. What is chosen is kept in table `campaigns`
before its first job is sent, so that it is the same whenever the campaign goes on.

    request = choose_campaign(store, CampaignChoice(suite="quick"))
    nodes = campaign_nodes(request, options, scheduler.nodes(), scheduler.partitions())
    script = scheduler.render(node_job(store.root, request, nodes[0], options))
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, StoreError
from ..store.configuration import configured
from ..store.hostlist import compress, expand
from ..store.names import by_number
from ..store.system.files import make_folder
from ..store.vocabulary import EventKind
from .batch import BatchJob, render, unused
from .scheduler import Node, Partition, Scheduler

if TYPE_CHECKING:
    from ..probes.catalogue import Probe
    from ..store import Store

PREFIX = "whorl"  # how the names of jobs and their comments begin
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it is in names of jobs and files
_STORED = ("suite", "neighbours", "named", "partition", "nodes", "fleet")  # of a request, in `campaigns.asked`
_PEER = "copy-p2p"  # this kernel uses a second GPU of the node, which must have nothing else to do


# -- what it measures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CampaignChoice:
    """What a user says of a campaign; None: nothing."""

    campaign: str | None = None
    suite: str | None = None
    probes: tuple[str, ...] | None = None
    neighbours: str | None = None
    partition: str | None = None  # one, or several with commas
    nodes: str | None = None  # a host list
    fleet: str | None = None  # the file of a simulated cluster
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class CampaignRequest:
    """What a campaign measures, and where."""

    campaign: str
    suite: str
    probes: tuple[str, ...]  # their names, in the order in which they run
    named: bool  # whether the probes were named; otherwise they are those of the suite
    neighbours: str
    partition: str | None = None
    nodes: str | None = None
    fleet: str | None = None
    cluster: str | None = None
    began_ns: int | None = None  # when it was first run, UTC; None: not yet
    has_jobs: bool = field(default=False, compare=False)  # whether the store has a job or a run of it

    @property
    def is_new(self) -> bool:
        return self.began_ns is None

    def expected_s(self) -> float:
        """How long a GPU takes at most, by the limits of its probes: as `Plan.expected_s` of the campaign on a node."""
        from ..probes.catalogue import choose
        from ..probes.effort import EFFORTS

        return EFFORTS[self.suite].together_s(choose(self.probes))


def known_campaigns(store: Store | None) -> list[CampaignRequest]:
    """The campaigns that were run on this store through a batch system, the newest first."""
    if store is None:
        return []
    stored = ", ".join(f"asked['{name}']" for name in _STORED)
    rows = select(
        store,
        f"""SELECT campaign, cluster, array_to_string(probes, chr(10)), epoch_ns(began), campaign IN
            (SELECT campaign FROM runs UNION SELECT campaign FROM events WHERE kind = '{EventKind.JOB_SUBMITTED}'),
            {stored} FROM campaigns WHERE fleet IS NULL ORDER BY began DESC""",
    )
    requests: dict[str, CampaignRequest] = {}
    for campaign, cluster, probes, began_ns, has_jobs, suite, neighbours, named, partition, nodes, fleet in rows:
        if probes and suite and neighbours:  # else it is a row of another whorl
            chosen, is_named = tuple(probes.split("\n")), named == "true"
            request = CampaignRequest(
                campaign, suite, chosen, is_named, neighbours, partition, nodes, fleet, cluster, began_ns, has_jobs
            )
            requests.setdefault(campaign, request)
    return list(requests.values())


def choose_campaign(store: Store | None, choice: CampaignChoice) -> CampaignRequest:
    """The campaign that is meant: the one of that name, else the newest one that is like this, else a new one.

    A campaign of which no job was ever taken may be begun anew with other options.
    Raises InputError where nothing says what to measure, and where the campaign was begun with other options.
    """
    if choice.campaign is not None and not _NAME.fullmatch(choice.campaign):
        raise InputError(
            f"{choice.campaign!r} cannot name a campaign of jobs: use letters, digits, and . _ - after the first, and "
            "100 of them at most"
        )
    options = {option.name: getattr(choice, option.name) for option in fields(choice)}
    options["probes"] = None if choice.probes is None else tuple(probe.name for probe in _probes(choice))
    campaigns = known_campaigns(store)
    for request in campaigns:
        if choice.campaign not in (None, request.campaign):
            continue
        differing = next((name for name, value in options.items() if _differs(request, name, value)), None)
        if differing is None:
            return request
        if choice.campaign is not None and request.has_jobs:
            option = "the probes" if differing == "probes" else f"--{differing}"
            before = ", ".join(request.probes) if differing == "probes" else getattr(request, differing)
            raise InputError(
                f"campaign {request.campaign} was begun with {option} {before or 'left out'}: leave the option out to "
                "go on, or choose another --campaign"
            )
    if choice.suite is None and choice.probes is None:
        if choice.campaign is not None and store is not None:
            raise InputError(
                f"{store.root} has no campaign {choice.campaign} of jobs yet: choose what to measure, --suite quick"
            )
        raise InputError("choose what to measure: --suite quick, standard or full, or names of probes")
    return _new_campaign(choice, {request.campaign for request in campaigns})


def _differs(request: CampaignRequest, name: str, value: object) -> bool:
    """Whether an option is not as the campaign was begun; a cluster that it does not know is no difference."""
    before = getattr(request, name)
    return value is not None and value != before and not (name == "cluster" and before is None)


def _new_campaign(choice: CampaignChoice, names: set[str]) -> CampaignRequest:
    probes = _probes(choice)
    suite = choice.suite or "standard"
    if choice.neighbours not in (None, "idle", "busy"):
        raise InputError(f"neighbours must be idle or busy, not {choice.neighbours!r}")
    fleet = choice.fleet
    if fleet is not None:
        if not Path(fleet).is_file():
            raise InputError(f"there is no file {fleet}, which fleet= names")
        fleet = str(Path(fleet).resolve())
    day = f"{suite}-{datetime.now(UTC):%Y%m%d}"
    free_names = (name for n in range(1, len(names) + 2) if (name := day if n == 1 else f"{day}-{n}") not in names)
    return CampaignRequest(
        choice.campaign or next(free_names),
        suite,
        tuple(probe.name for probe in probes),
        choice.probes is not None,
        choice.neighbours or ("idle" if any(probe.kernel == _PEER for probe in probes) else "busy"),
        choice.partition or configured("partition"),
        choice.nodes,
        fleet,
        choice.cluster,
    )


def _probes(choice: CampaignChoice) -> Sequence[Probe]:
    from ..probes import catalogue

    return catalogue.choose(choice.probes) if choice.probes else catalogue.suite(choice.suite or "standard")


def with_cluster(request: CampaignRequest, scheduler: Scheduler) -> CampaignRequest:
    """A new request with the cluster's name: as chosen, else as the file of a simulated cluster says, else as
    whorl.toml says, else as the scheduler calls it."""
    if request.cluster is not None or not request.is_new:
        return request
    stated = None
    if request.fleet is not None:
        from ..probes.simulated_node import cluster_of  # Python needs some time for the simulator

        stated = cluster_of(request.fleet)
    return replace(request, cluster=stated or configured("cluster") or scheduler.cluster_name())


def declare_campaign(store: Store, request: CampaignRequest) -> CampaignRequest:
    """Keep what a new campaign measures, in table `campaigns`; one that is kept already is returned as it is."""
    from ..store.schema import arrow_rows, texts_of

    if not request.is_new:
        return request
    began_ns = time.time_ns() // 1000 * 1000  # as the store keeps it
    before_ns = max((earlier.began_ns or 0 for earlier in known_campaigns(store)), default=0)
    began_ns = max(began_ns, before_ns + 1000)  # the newest one, also after a clock was set back
    columns = {
        "cluster": [request.cluster],
        "campaign": [request.campaign],
        "asked": [texts_of({name: getattr(request, name) for name in _STORED})],
        "probes": [request.probes],
        "began": [began_ns],
    }
    store.append({"campaigns": arrow_rows("campaigns", columns)}, f"campaign-{request.campaign}-{began_ns}")
    return replace(request, began_ns=began_ns)


def find_campaign(store: Store, name: str | None) -> CampaignRequest:
    """The campaign of that name, or the newest one. Raises InputError where there is none."""
    campaigns = known_campaigns(store)
    for request in campaigns:
        if name in (None, request.campaign):
            return request
    names = f"; it has {', '.join(request.campaign for request in campaigns[:8])}" if campaigns else ""
    raise InputError(
        f"{store.root} has no campaign{'' if name is None else f' {name}'} of jobs{names}: "
        f"`whorl campaign run --suite quick --store {store.root}` begins one"
    )


def select(store: Store, query: str) -> list[tuple[Any, ...]]:
    """The rows of an answer of numbers and texts: without loading pyarrow, which takes longer than many a query."""
    answer = store.answer(query)
    from ..store.sql import Plain

    if isinstance(answer, Plain):
        return answer.rows
    return list(zip(*(column.to_pylist() for column in answer.columns), strict=True))


# -- how its jobs are submitted, and what they cost ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How the jobs are submitted. Unlike a request, it may change whenever a campaign goes on."""

    qos: str | None = None
    account: str | None = None
    nice: int = 1000  # how much lower than usual their priority is
    setup: tuple[str, ...] = ()  # lines of shell before the command
    options: tuple[str, ...] = ()  # further options of the scheduler, as `--constraint=a100`
    program: tuple[str, ...] | None = None  # the words that call whorl on a node; None: with this Python
    template: Path | None = None
    output: Path | None = None  # the folder of the jobs' output; None: `logs/CAMPAIGN` in the store
    start_up_s: float = 120.0
    """What a job takes beside measuring: Python and CUDA start, kernels are compiled. A guess on the safe side."""

    @property
    def reserved(self) -> bool:
        """Whether the jobs go to a reservation."""
        return any(option.startswith("--reservation") for option in self.options)

    def job(self, name: str, words: Sequence[str], minutes: int, node: CampaignNode, store: Path) -> BatchJob:
        """A job that calls whorl with these words on a node. What it writes is not kept."""
        return BatchJob(
            name,
            [*(self.program or (sys.executable, "-m", "whorl")), *words],
            minutes,
            node.gpus,
            node=node.name,
            partition=node.partition,
            qos=self.qos,
            account=self.account,
            setup=self.setup,
            options=self.options,
            store=str(store.resolve()),
        )


USUAL_OPTIONS = SubmitOptions()


def job_s(request: CampaignRequest, gpus: int, options: SubmitOptions, neighbours: str | None = None) -> float:
    """How long the job of a node takes at most: its GPUs one after another, or with busy neighbours all at once."""
    rounds = gpus if (neighbours or request.neighbours) == "idle" else 1
    return request.expected_s() * rounds + options.start_up_s


def job_minutes(request: CampaignRequest, gpus: int, options: SubmitOptions) -> int:
    """The limit of the job's wall time."""
    return math.ceil(job_s(request, gpus, options) / 60)


def allocated_h(request: CampaignRequest, gpus: int, options: SubmitOptions, neighbours: str | None = None) -> float:
    """The GPU-hours that the job of one node is allocated at most."""
    return job_s(request, gpus, options, neighbours) * gpus / 3600


# -- its nodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CampaignNode:
    """A node with GPUs that the campaign covers, as the scheduler has it."""

    name: str
    gpus: int
    idle: bool = True
    partition: str | None = None  # the partition that its job is sent to
    obstacle: str | None = None  # why no job can be sent to it; None where one can


def campaign_nodes(
    request: CampaignRequest,
    options: SubmitOptions,
    nodes: Mapping[str, Node],
    partitions: Mapping[str, Partition],
    *,
    title: str = "Slurm",
) -> list[CampaignNode]:
    """The nodes with GPUs that the campaign covers, in the order of their names; `title` names the scheduler.

    Raises InputError for a partition that the scheduler does not know, for a node that it or the simulated cluster does
    not know, and where no node has GPUs. A campaign that was begun goes on without a node that the scheduler lost.
    """
    partition_names = set(filter(None, (request.partition or "").split(",")))
    for name in sorted(partition_names - partitions.keys()):
        raise InputError(f"{title} has no partition {name}; it has {', '.join(sorted(partitions))}")
    chosen = nodes.keys() if request.nodes is None else set(expand(request.nodes))
    if chosen - nodes.keys() and request.is_new:
        raise InputError(f"{title} has no node {compress(chosen - nodes.keys())}")
    if request.fleet is not None:
        from ..probes.simulated_node import nodes_of  # Python needs some time for the simulator

        simulated = set(nodes_of(request.fleet))
        if request.nodes is not None and chosen - simulated:
            raise InputError(f"{request.fleet} lists no node {compress(chosen - simulated)}")
        chosen = chosen & simulated
    covered = [
        _campaign_node(node, partitions, request, options)
        for node in nodes.values()
        if node.gpus and node.name in chosen and (not partition_names or partition_names & set(node.partitions))
    ]
    if not covered:
        scope = f"of partition {request.partition}" if request.partition else f"of {title}"
        scope = f"that {request.fleet} lists" if request.fleet else scope
        scope = f"among {request.nodes}" if request.nodes else scope
        with_gpus = sorted({name for node in nodes.values() if node.gpus for name in node.partitions})
        hint = f": the partitions with GPUs are {', '.join(with_gpus)}" if with_gpus else ""
        raise InputError(f"no node {scope} has GPUs by its Gres{hint}")
    return sorted(covered, key=lambda node: by_number(node.name))


def _campaign_node(
    node: Node, partitions: Mapping[str, Partition], request: CampaignRequest, options: SubmitOptions
) -> CampaignNode:
    partition, obstacle = _partition(node, partitions, request, job_minutes(request, node.gpus, options))
    if not node.usable:
        obstacle = node.state.lower() + (f": {node.reason}" if node.reason else "")
    elif node.reserved and not options.reserved:
        obstacle = "reserved"
    return CampaignNode(node.name, node.gpus, node.idle, partition, obstacle)


def _partition(
    node: Node, partitions: Mapping[str, Partition], request: CampaignRequest, minutes: int
) -> tuple[str | None, str | None]:
    """The partition that a job on the node is sent to, or why there is none. A scheduler may have no partitions."""
    if not partitions:
        return None, None
    names = request.partition.split(",") if request.partition else node.partitions
    members = [partitions[name] for name in names if name in node.partitions and name in partitions]
    obstacles = []
    for partition in members if request.partition else sorted(members, key=lambda partition: not partition.default):
        if not partition.up:
            obstacles.append(f"partition {partition.name} is down or closed to this user")
        elif partition.least_nodes > 1:
            obstacles.append(f"partition {partition.name} allows no jobs of fewer than {partition.least_nodes} nodes")
        elif partition.longest_min < minutes:
            limit = f"allows jobs of {partition.longest_min:g} min, and this one asks for {minutes} min"
            obstacles.append(f"partition {partition.name} {limit}")
        else:
            return partition.name, None
    return None, "; ".join(obstacles) or "it is in no partition that this user sees"


# -- the job of a node --------------------------------------------------------------------------------------------


def job_name(campaign: str, node: str, attempt: int) -> str:
    """The name by which a job is found again in the queue."""
    return f"{PREFIX}:{campaign}:{node}" + (f":{attempt}" if attempt > 1 else "")


def comment_of(store: Path) -> str | None:
    """What tells the jobs of this store's campaigns from those of campaigns of the same names in another store."""
    from ..store.folder import made_at

    created = made_at(store)
    return created and f"{PREFIX}:{created}"


def output_folder(store: Path, request: CampaignRequest, options: SubmitOptions) -> Path:
    """The folder of the jobs' output; that of a node is in the file NODE.out."""
    return (options.output or store / "logs" / request.campaign).resolve()


def make_output_folder(store: Path, request: CampaignRequest, options: SubmitOptions) -> Path:
    """The folder of the jobs' output, made if it is missing; in the store for all who may write there."""
    folder = output_folder(store, request, options)
    try:
        if store.resolve() in folder.parents:
            make_folder(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}, where the jobs write, cannot be made: {error.strerror}") from error
    return folder


def node_job(
    store: Path,
    request: CampaignRequest,
    node: CampaignNode,
    options: SubmitOptions,
    *,
    attempt: int = 1,
    gpus: Sequence[str] = (),
) -> BatchJob:
    """The job that measures a node, or only those of its GPUs that are named."""
    words = ["probe", "run", *(request.probes if request.named else ()), "--suite", request.suite]
    words += ["--store", str(store.resolve()), "--campaign", request.campaign]
    words += ["--neighbours", request.neighbours, "--set", "exclusive=yes"]
    words += ["--cluster", request.cluster] if request.cluster else []
    words += ["--backend", f"simulated:fleet={request.fleet}"] if request.fleet else []
    words += [word for gpu in gpus for word in ("--gpu", gpu)]
    name, minutes = job_name(request.campaign, node.name, attempt), job_minutes(request, node.gpus, options)
    output = output_folder(store, request, options) / f"{node.name}.out"
    job = options.job(name, words, minutes, node, store)
    return replace(job, nice=options.nice or None, output=str(output), comment=comment_of(store))


def node_script(
    store: Path, choice: CampaignChoice, scheduler: str, *, options: SubmitOptions, gpus: int, node: str | None = None
) -> tuple[str, list[str]]:
    """The script that measures a node with so many GPUs, and the names of what its template has no place for.

    `node` None: the scheduler, or who submits it, chooses one. No scheduler is asked, and no store is opened.
    `options.output` is the file of the job's output here. Raises InputError.
    """
    request = choose_campaign(None, choice)
    job = node_job(store, request, CampaignNode(node or "node", gpus, partition=request.partition), options)
    name = job.name if node else f"{PREFIX}:{request.campaign}"
    job = replace(job, name=name, node=node, output=None if options.output is None else str(options.output))
    values = {name: getattr(job, name) for name in ("partition", "qos", "account", "output", "setup")}
    values["option"] = job.options
    unplaced = unused(scheduler, [name for name, value in values.items() if value], options.template)
    return render(scheduler, job, options.template), unplaced
