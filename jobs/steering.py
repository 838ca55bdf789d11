"""Advice on where a job should run, under the names that a scheduler has for the nodes.

steering = advise("fleet", "gemm-fp32", gpus=16, no_scheduler=True)
steering.advice.finding, steering.exclude

One pipeline: `ScoredWorkload.of` reads the store and scores its GPUs, `steer` finds the measured nodes among those of
the scheduler and takes the advice on these, `Steering` has what a scheduler can be told. `formats` and `kubernetes`
print it, `price` says what an exclusion costs, `apply` changes a waiting job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, SchedulerError
from ..store.hostlist import compress, expand
from ..store.names import find_workload, plain_workload
from . import kubernetes
from .kubernetes import KubeNode
from .price import Exclusion, PriceRequest, WaitingPrice, exclusion_gain, price_of
from .scheduler import Node, NodeNames, known, within
from .slurm import Slurm, Wait, nodes_for

if TYPE_CHECKING:
    from ..analysis.placement import Advice, AdviceOptions, Scores, WorkloadGain
    from ..store import Store

_HOST = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class AdviceRequest:
    """What advice is asked for: the job, its workload, and where that was measured."""

    workload: str
    job: AdviceOptions
    cluster: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class ScoredWorkload:
    """A workload of a store with the scores of its GPUs: a kind of runs for each model of GPU."""

    store: Store
    request: AdviceRequest
    kinds: tuple[str, ...]
    is_kind: bool  # whether the request has the name of a kind, and not that of the work
    scores: Scores

    @classmethod
    def of(
        cls,
        store: Store,
        request: AdviceRequest,
        scores: Scores | None = None,
        *,
        measured_pairs: Sequence[tuple[str, str]] | None = None,
        alone: bool = True,
    ) -> ScoredWorkload:
        """Read and score what is asked for. `scores`: those of its cluster, and `measured_pairs`: what `available` says
        of the store, where they were made before. `alone`: the scores are not for other workloads, so that only its
        runs are read. Raises InputError."""
        from ..analysis.placement import available, kinds_of

        pairs = available(store) if measured_pairs is None else measured_pairs
        in_cluster = [(cluster, kind) for cluster, kind in pairs if request.cluster in (None, cluster)]
        names = {name for _, kind in in_cluster for name in (kind, plain_workload(kind))}
        workload = find_workload(request.workload, names)
        clusters = sorted({cluster for cluster, kind in in_cluster if workload in (kind, plain_workload(kind))})
        if request.cluster is None and len(clusters) > 1:
            raise InputError(f"{workload} was measured on {', '.join(clusters)}: choose one with --cluster")
        if not clusters and len({cluster for cluster, _ in in_cluster}) > 1:
            workloads = ", ".join(sorted({plain_workload(kind) for _, kind in in_cluster}))
            raise InputError(f"{store.root} has no runs of workload {workload}; it has {workloads}")
        cluster = request.cluster or (clusters[0] if clusters else None)
        measured = {kind for at, kind in in_cluster if at in clusters}
        is_kind = workload in measured
        kinds = [workload] if is_kind else sorted(kind for kind in measured if plain_workload(kind) == workload)
        if scores is None:
            scores = _scores(store, request, cluster, kinds if alone and len(kinds) == 1 else (), known=pairs)
        chosen = kinds_of(scores, workload, kinds or [workload], request.model)
        return cls(store, request, tuple(chosen), is_kind, scores)

    @classmethod
    def gaining_most(
        cls,
        store: Store,
        request: AdviceRequest,
        scores: Scores | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
    ) -> tuple[ScoredWorkload, tuple[WorkloadGain, ...]]:
        """Of the workloads of a cluster the one in which such a job gains most, and what it gains in each, the most
        first. The workload of the request does not count; `tell` hears which workload is next. Raises InputError where
        no workload can be scored, or several clusters have some."""
        from ..analysis.placement import available
        from ..analysis.runs.probing import no_runs

        everything = available(store)
        if not everything:
            raise no_runs(store, "no timed runs")
        pairs = [pair for pair in everything if request.cluster in (None, pair[0])]
        clusters = sorted({cluster for cluster, _ in pairs or everything})
        if not pairs:
            raise InputError(f"{store.root} has no timed runs of {request.cluster}; it has {', '.join(clusters)}")
        if len(clusters) > 1:
            raise InputError(f"the store has {', '.join(clusters)}: choose a cluster with --cluster")
        by_name: dict[str, ScoredWorkload] = {}
        gains, problem = [], None
        for workload in sorted({plain_workload(kind) for _, kind in pairs}):
            try:
                of_workload = replace(request, workload=workload, cluster=clusters[0])
                scored = cls.of(store, of_workload, scores, measured_pairs=everything, alone=False)
                scores = scored.scores
                tell(f"comparing sets of {request.job.gpus:,} GPUs in {workload}")
                gains.append(scored.gain)
            except InputError as error:  # too large a job for it, or no such model: other workloads may do
                problem = problem or error
                continue
            by_name[workload] = scored
        if not gains:
            raise problem or no_runs(store, "no timed runs")
        gains.sort(key=lambda row: row.order, reverse=True)
        return by_name[gains[0].workload], tuple(gains)

    @property
    def gain(self) -> WorkloadGain:
        """What the best set gains in this workload, on all nodes."""
        from ..analysis.placement import WorkloadGain

        advice = self.everywhere
        runs = sum(int(self.scores.of[kind].runs.sum()) for kind in self.kinds)
        gpus = sum(reference.gpus for reference in advice.references)
        return WorkloadGain(
            self.request.workload, gpus, runs, None if advice.reason else advice.best_gain(), advice.reason
        )

    @property
    def nodes(self) -> set[str]:
        """The nodes with GPUs of these kinds, under the store's names."""
        return {node for kind in self.kinds for node in self._places(kind) if node is not None}

    @cached_property
    def everywhere(self) -> Advice:
        """The advice on all nodes. Raises InputError."""
        return self.advice(None)

    def advice(self, usable: Collection[str] | None) -> Advice:
        """The advice on `usable` nodes (all, where None): on each kind by itself, and together. Raises InputError."""
        from ..analysis.placement import advise as advise_kind
        from ..analysis.placement import suspects, together

        job, scores = self.request.job, self.scores
        suspected = suspects(self.store, scores, self.kinds, job.soft)
        room = {kind: sum(usable is None or node in usable for node in self._places(kind)) for kind in self.kinds}
        small = [kind for kind in self.kinds if len(self.kinds) > 1 and room[kind] < job.gpus]
        if small and len(small) == len(self.kinds):
            sizes = " and ".join(f"{room[kind]:,} of {self._model(kind)}" for kind in small)
            raise InputError(f"the job needs {job.gpus:,} GPUs of one model, but there are only {sizes}")
        too_small = " and ".join(f"{self._model(kind)} (GPUs: {room[kind]:,})" for kind in small)
        notes = (f"left out, because the job does not fit there: {too_small}",) if small else ()
        parts = []
        for kind in self.kinds:
            if kind in small:
                continue
            # Nodes that nobody measured count where all GPUs are of one kind.
            several = usable is not None and len(self.kinds) > 1
            partition = set(usable or ()).intersection(filter(None, self._places(kind))) if several else usable
            options = {**vars(job), "partition": partition}
            part = advise_kind(scores, kind, suspected=suspected.get(kind, ()), **options)
            parts.append(replace(part, notes=(*part.notes, *notes)))
        return parts[0] if self.is_kind else together(parts)

    def within(self, usable: Collection[str]) -> ScoredWorkload:
        """The same on some nodes. GPUs of unknown models are compared only with those there: others may differ."""
        kinds = tuple(kind for kind in self.kinds if not set(usable).isdisjoint(self._places(kind)))
        unknown = [kind for kind in kinds if self.scores.of[kind].references[0].model is None]
        if not any(set(self._places(kind)).difference(usable, [None]) for kind in unknown):
            return replace(self, kinds=kinds)
        scores = _scores(self.store, self.request, self.scores.cluster, nodes=set(usable))
        return replace(self, kinds=kinds, scores=scores)

    def _places(self, kind: str) -> list[str | None]:
        """The node of each GPU of a kind; None where it is not known."""
        runs = self.scores.of[kind].runs
        return [node for gpu, node in enumerate(self.scores.nodes) if runs[gpu]]

    def _model(self, kind: str) -> str:
        return self.scores.of[kind].references[0].model or kind


def _scores(
    store: Store, request: AdviceRequest, cluster: str | None, kinds: Sequence[str] = (), **bounds: Any
) -> Scores:
    from ..analysis.placement import scores

    return scores(store, kinds, cluster=cluster, seed=request.job.seed, **bounds)


@dataclass(frozen=True)
class SiteNodes:
    """The nodes to choose from: those of a scheduler, or those listed, or all that were measured."""

    slurm: Slurm | None = None
    listed: Mapping[str, Node] | None = None
    partition: str | None = None  # of the scheduler: one, or several as Slurm lists them

    @property
    def bounded(self) -> bool:
        return self.slurm is not None or self.listed is not None


@dataclass(frozen=True)
class Steering:
    """Advice, and the part of it that is meant for the scheduler."""

    advice: Advice
    placing: Advice  # the same over nodes that run jobs at this moment: its sets of GPUs are the ones to ask for
    partition: str | None
    nodes: Mapping[str, Node]  # those of the partition; empty without a scheduler
    names: NodeNames
    unusable: tuple[str, ...]  # nodes that were measured and run no jobs at this moment
    remarks: tuple[str, ...]  # sentences for people
    scheduler: Slurm | None = None  # the one that was asked
    foreign: bool = False
    """Whether a scheduler was asked that has none of the nodes: the advice is on all that were measured."""
    cluster: Mapping[str, KubeNode] | None = None  # the nodes of a Kubernetes cluster, where their state is known
    price: WaitingPrice | None = None
    """What the exclusion costs in waiting; None where nothing is excluded or the price is not known."""
    price_reason: str | None = None  # why the price is not known, a sentence; None where it is known or nobody asked
    workloads: tuple[WorkloadGain, ...] = ()
    """What such a job gains in each workload, the most first; none where a workload was named."""

    def __repr__(self) -> str:
        return f"<{self.advice.workload} on {self.advice.cluster}: {self.advice.finding}>"

    @property
    def exclude(self) -> list[str]:
        """Nodes that are slow enough to be excluded, the worst first."""
        rank = {evidence.node: place for place, evidence in enumerate(self.advice.nodes)}
        return self.names.of(sorted(self.advice.exclude, key=lambda node: rank.get(node, len(rank))))

    @property
    def worth_excluding(self) -> list[str]:
        """The same; none where their exclusion costs more waiting than it saves."""
        return [] if self.price is not None and not self.price.worth else self.exclude

    @property
    def tiers(self) -> dict[str, str]:
        """Node -> hard or soft."""
        names = self.names.names
        worst_first = [(names[row.node], row.tier) for row in self.advice.nodes if row.node in names]
        return dict(reversed(worst_first))  # of a node under two names, the worse

    @property
    def preferred(self) -> list[str]:
        """The fastest nodes."""
        return self.names.of(self.advice.prefer)

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes that the job takes, and GPUs on each."""
        return nodes_for(self.advice.gpus, list(self.nodes.values()))

    def nodelist(self) -> list[str]:
        """Nodes of the best packed set."""
        best = self.placing.packed or self.placing.spread
        return self.names.of(best.nodes) if best else []

    def wait(self) -> Wait:
        """How much later the job would start for the exclusion, as the scheduler sees it at this moment."""
        if not self.advice.exclude:
            return Wait(0.0)
        if self.scheduler is None or not self.nodes:
            return Wait(None, self.unasked)
        return self.scheduler.wait_for(*self.shape, self.partition, compress(self.exclude))

    @property
    def unasked(self) -> str:
        """Why a scheduler says nothing of these nodes."""
        return "the scheduler knows none of these nodes" if self.foreign else "no scheduler was asked"


def steer(
    scored: ScoredWorkload,
    site: SiteNodes = SiteNodes(),
    *,
    leave_out: Collection[str] = (),
    placing: bool = False,
    lenient: bool = False,
) -> Steering:
    """Advice on the measured nodes that the site has.

    `leave_out`: nodes, under the scheduler's names, on which the job does not run anyway: they do not count.
    `placing`: also advise over the nodes that run jobs at this moment, where some do not. `lenient`: a scheduler that
    has none of the nodes is no error: the advice is then on all that were measured, and none of it is for the
    scheduler. Raises InputError, SchedulerError.
    """
    measured, partition = sorted(scored.nodes), site.partition
    nodes = site.slurm.nodes() if site.slurm is not None else {}
    partitions = sorted({name for node in nodes.values() for name in node.partitions})
    if nodes and partition is not None and not set(partition.split(",")) & set(partitions):
        raise InputError(f"the scheduler has no partition {partition} with nodes; it has {', '.join(partitions)}")
    names, unknown_to = _named(measured, nodes, site)
    nodes = {name: node for name, node in nodes.items() if within(node, partition)}
    bounded, foreign = site.bounded, False
    remarks = []
    if bounded and not names.names:
        sentence = _none_there(measured, nodes, site, scored.scores.cluster, elsewhere=bool(names.elsewhere))
        if not lenient or site.listed is not None or names.elsewhere:
            raise InputError(sentence)
        remarks.append(sentence)
        bounded, foreign, partition, nodes = False, True, None, {}
    remarks += _left_out(names, unknown_to, partition)
    unusable = tuple(name for name, node in names.names.items() if node in nodes and not nodes[node].usable)
    if unusable:
        states = "; ".join(f"{names.names[name]} {nodes[names.names[name]].state}" for name in unusable[:5])
        remarks.append(
            f"{len(unusable)} of the measured nodes cannot run jobs now ({states}): the best sets do not use them"
        )
    # None: all, with GPUs whose node is not known. In a partition, nodes that nobody measured count in the share that
    # is excluded and in what remains.
    usable = set(names.names) if bounded else None
    if usable is not None and partition is not None:
        usable |= {name for name, node in nodes.items() if node.gpus}.difference(names.names.values())
    if leave_out:
        candidates = measured if usable is None else usable
        usable = {name for name in candidates if names.names.get(name, name) not in leave_out}
    if usable is not None and leave_out and usable.isdisjoint(measured):
        raise InputError(f"no node that the job can use was measured ({scored.request.workload})")
    scored = scored if usable is None else scored.within(usable)
    advice = usable_now = scored.everywhere if usable is None else scored.advice(usable)
    if placing and unusable and len(unusable) < len(names.names):
        usable_now = scored.advice((usable or set()).difference(unusable))
    return Steering(advice, usable_now, partition, nodes, names, unusable, tuple(remarks), site.slurm, foreign)


def _named(measured: Sequence[str], nodes: Mapping[str, Node], site: SiteNodes) -> tuple[NodeNames, str]:
    """The measured nodes under the names of the scheduler or the list, and how to say that some have none."""
    if site.slurm is not None:
        return known(measured, nodes, site.partition), "the scheduler does not know"
    if site.listed is not None:
        return known(measured, site.listed), "the list of nodes does not contain"
    hosts = {name: name for name in measured if _HOST.fullmatch(name)}
    return NodeNames(hosts, tuple(name for name in measured if name not in hosts), ()), "not a valid host name:"


def _left_out(names: NodeNames, unknown_to: str, partition: str | None) -> list[str]:
    """Sentences about measured nodes that get no advice."""
    unclear = {name for candidates in names.unclear.values() for name in candidates}
    unknown = [name for name in names.unknown if name not in unclear]
    remarks = []
    if unknown and names.names:
        remarks.append(f"left out: {unknown_to} {_short_list(unknown)}, which {_were(unknown)} measured")
    for node, candidates in names.unclear.items():
        several = " and ".join(candidates)
        remarks.append(f"left out: {several} were measured, and {node} can be only one of them: give it its full name")
    if names.elsewhere:
        nodes, were = _short_list(names.elsewhere), _were(names.elsewhere)
        remarks.append(f"{nodes} {were} measured but not in partition {partition}: left out")
    return remarks


def _none_there(
    measured: Sequence[str], nodes: Mapping[str, Node], site: SiteNodes, cluster: str, *, elsewhere: bool
) -> str:
    """Why there is no advice: none of the measured nodes is among those to choose from."""
    if not measured:
        return (
            f"the runs of {cluster} name no nodes, so there is no advice for a scheduler: --no-scheduler advises about "
            "GPUs"
        )
    place, holder = ("known to the scheduler", "scheduler") if site.slurm is not None else ("in the list", "list")
    if elsewhere:
        place, holder = f"in partition {site.partition}", "partition"
    stored, present = _first_names(measured), _first_names(list(site.listed or nodes))
    return f"none of the measured nodes is {place}: the store has {stored}, the {holder} {present}"


def _first_names(names: Sequence[str]) -> str:
    return (compress(names[:3]) or "none") + (", ..." if len(names) > 3 else "")


def _short_list(names: Sequence[str]) -> str:
    """Names as a host list, not more of them than a line takes."""
    hosts = compress(names)
    return hosts if len(hosts) <= 120 else f"{len(names)} nodes ({compress(names[:5])}, ...)"


def _were(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


# -- whorl.advise ----------------------------------------------------------------------------------------------------


def advise(
    store: Store | str | Path,
    workload: str | None = None,
    *,
    cluster: str | None = None,
    model: str | None = None,
    partition: str | None = None,
    no_scheduler: bool = False,
    nodes: Sequence[str] | Mapping[str, KubeNode] | None = None,
    log: str | Path | None = None,
    cluster_nodes: int | None = None,
    time: float | None = None,
    own: Sequence[str] = (),
    form: str | None = None,
    to_file: bool = False,
    **job: Any,
) -> Steering:
    """Which nodes a workload should avoid, which GPUs are best, and what that gains, in the scheduler's names.

    The arguments are the options of `whorl advise` (docs/cli.md). Without `workload` it is the one in which such a job
    gains most; what is printed for a scheduler needs its name, unless the store has only one. `time` is in seconds, and
    `nodes` are the names to choose from instead of the scheduler's, or the nodes of a Kubernetes cluster as
    `kubernetes.read` gives them. `own` are the nodes that the user excludes anyway. `form` and `to_file` say what will
    be printed. If that is for the scheduler (`exclude`, `prefer`, `nodelist`, `weights`, `kubernetes`, `taints`), one
    that does not answer is an error. `job`: gpus, max_share (of 1), hard, soft, max_age (days), locality_penalty,
    replicates and seed, as fields of `AdviceOptions`.

    Raises InputError, StoreError, SchedulerError.
    """
    from ..analysis.placement import AdviceOptions

    opened = opened_store(store)
    report = form in (None, "json")
    if not report:
        workload = workload or only_workload(opened, "which workload is meant? Give --workload")
    request = AdviceRequest(workload or "", AdviceOptions(**job), cluster, model)
    slurm: Slurm | None = None
    remarks: list[str] = []
    if nodes is None and not no_scheduler:
        if form in ("kubernetes", "taints"):
            nodes, remarks = _cluster()
        elif form != "nfd":
            slurm, remarks = _scheduler(
                needed=to_file or not (report or form in ("exclude", "nodelist")), lenient=report
            )
    kube_nodes = nodes if isinstance(nodes, Mapping) else None
    if to_file and form != "nfd":
        if slurm is None:
            raise InputError("output= needs the scheduler: the file states what is left of the partition")
        partition = partition or slurm.default_partition()
    if partition is not None and slurm is None:
        remarks.append(
            f"partition {partition} was not used: no scheduler says which nodes it has (--nodes FILE lists some)"
        )
    listed = (
        None if nodes is None else {name: kube_nodes[name].as_node if kube_nodes else Node(name, "") for name in nodes}
    )
    site = SiteNodes(slurm, listed, partition if slurm else None)
    gains: tuple[WorkloadGain, ...] = ()
    if workload:
        scored = ScoredWorkload.of(opened, request)
    else:
        scored, gains = ScoredWorkload.gaining_most(opened, request)
    lenient = (report or form in ("exclude", "prefer")) and not to_file
    steering = steer(scored, site, leave_out=own, placing=report or form == "nodelist", lenient=lenient)
    remarks += steering.remarks
    steering = replace(steering, remarks=tuple(remarks), cluster=kube_nodes, workloads=gains)
    if not report and form != "exclude":
        return steering
    ask_accounts = report or to_file  # the line of a script must not wait for them
    return priced(steering, PriceRequest(opened, log, cluster_nodes, time, ask_accounts))


def priced(steering: Steering, request: PriceRequest) -> Steering:
    """The same with what its exclusion costs in waiting on the site's own queue, or why that is not known."""
    gain = exclusion_gain(steering.advice)
    if not steering.exclude or gain is None:
        return steering
    best = steering.placing.packed
    exclusion = Exclusion(
        steering.advice.cluster,
        excluded_nodes=len(steering.exclude),
        job_nodes=steering.shape[0] if steering.nodes else max(1, len(best.nodes) if best else 1),
        gain=gain,
        partition=steering.partition,
        site_nodes=len(steering.nodes) or None,
        slurm=steering.scheduler,
    )
    price = price_of(exclusion, request)
    return replace(steering, price_reason=price) if isinstance(price, str) else replace(steering, price=price)


def only_workload(store: Store, unclear: str) -> str:
    """The store's workload, if it has only one; else the sentence `unclear` is the error."""
    from ..analysis.placement import available
    from ..analysis.runs.probing import no_runs

    workloads = sorted({plain_workload(kind) for _, kind in available(store)})
    if not workloads:
        raise no_runs(store, "no timed runs")
    if len(workloads) > 1:
        raise InputError(f"{unclear}; the store has {', '.join(workloads)}")
    return workloads[0]


def read_names(path: Path | None, text: str) -> list[str]:
    """Names of nodes from a file's text: host lists, one or several a line; what follows # is a remark."""
    names: list[str] = []
    for line in text.splitlines():
        for word in line.partition("#")[0].split():
            names += expand(word)
    if not names:
        raise InputError(f"{path or 'standard input'} names no nodes: write one per line, as n01 or n[01-32]")
    return names


def opened_store(store: Store | str | Path) -> Store:
    """The store itself, or the one in this folder. StoreError where there is none."""
    from ..store import Store

    return store if isinstance(store, Store) else Store.open(store)


def _scheduler(*, needed: bool, lenient: bool) -> tuple[Slurm | None, list[str]]:
    """The scheduler to ask, or none and a remark.

    `needed`: the output has facts that only a scheduler has. `lenient`: the output is for people, and a scheduler that
    does not answer is no error; else only one that is not installed is none. Raises SchedulerError.
    """
    slurm = Slurm()
    try:
        slurm.check()
    except SchedulerError as error:
        if not lenient and (needed or not error.absent):
            raise
        return None, [f"the names of the nodes were not checked: {error}"]
    return slurm, []


def _cluster() -> tuple[Mapping[str, KubeNode] | None, list[str]]:
    """The nodes of the Kubernetes cluster, and a remark if there is no `kubectl` to ask."""
    try:
        return kubernetes.ask(), []
    except SchedulerError as error:
        if not error.absent:
            raise
        return None, [f"what the cluster has now is not known: {error}; every measured node gets a line"]
