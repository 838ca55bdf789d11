"""Advice as `whorl advise` gives it: for a workload of a store, with or without a scheduler, and for a waiting job.

steering = advise("fleet", "gemm-fp32", gpus=16, no_scheduler=True)
steering.advice.finding, steering.exclude
"""

from __future__ import annotations

import datetime as dt
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, SchedulerError
from ..store.hostlist import compress
from ..store.names import plain_workload
from . import kubernetes
from .advising import Steering, steer
from .applying import Change, change, pending, workload_of
from .asked import Wanted
from .counting import Site
from .formats import filter_file, node_lines, write_whole
from .kubernetes import KubeNode
from .naming import known
from .scheduler import Node
from .slurm import Slurm

if TYPE_CHECKING:
    from ..store import Store

MAX_AGE_D = 90.0


def advise(
    store: Store | str | Path,
    workload: str | None = None,
    *,
    cluster: str | None = None,
    model: str | None = None,
    gpus: int = 1,
    partition: str | None = None,
    max_share: float | None = None,
    hard: float = 1.1,
    soft: float = 1.05,
    max_age: float = MAX_AGE_D,
    locality_penalty: float = 1.0,
    no_scheduler: bool = False,
    nodes: Sequence[str] | Mapping[str, KubeNode] | None = None,
    replicates: int | None = None,
    seed: int | None = None,
    own: Sequence[str] = (),
    form: str | None = None,
    to_file: bool = False,
) -> Steering:
    """Which nodes a workload should avoid, which GPUs are best, and what that gains, in the scheduler's names.

    The arguments are the options of `whorl advise` (docs/cli.md). Without `workload` it is the only one of the
    store. `max_share` is a share of 1, `max_age` is in days, and `nodes` are the names to choose from instead of
    the scheduler's, or the nodes of a Kubernetes cluster as `kubernetes.read` gives them. `own` are the nodes that
    the user excludes anyway. `form` and `to_file` say what will be printed. If that is for the scheduler
    (`exclude`, `prefer`, `nodelist`, `weights`, `kubernetes`, `taints`), one that does not answer is an error.

    Raises InputError, StoreError, SchedulerError.
    """
    opened = _opened(store)
    wanted = wishes(
        workload or _only_workload(opened, "which workload is meant? Give --workload"),
        cluster=cluster,
        model=model,
        gpus=gpus,
        max_share=max_share,
        hard=hard,
        soft=soft,
        max_age=max_age,
        locality_penalty=locality_penalty,
        replicates=replicates,
        seed=seed,
    )
    slurm, remark = None, None
    if nodes is None and not no_scheduler:
        if form in ("kubernetes", "taints"):
            nodes, remark = _cluster()
        elif form != "nfd":
            slurm, remark = _scheduler(form, to_file=to_file)
    cluster_nodes = nodes if isinstance(nodes, Mapping) else None
    listed = {name: Node(name, "") for name in nodes} if nodes is not None else None
    if cluster_nodes is not None:
        listed = {name: node.listed for name, node in cluster_nodes.items()}
    if to_file and form != "nfd":
        if slurm is None:
            raise InputError("--output needs the scheduler: the file states what is left of the partition")
        partition = partition or slurm.default_partition()
    steering = steer(
        opened,
        wanted,
        slurm=slurm,
        listed=listed,
        partition=partition if slurm else None,
        leave_out=own,
        placing=form in (None, "nodelist", "json"),
        lenient=form in (None, "json", "exclude", "prefer") and not to_file,
    )
    first = [remark] if remark else []
    if partition is not None and slurm is None:
        first.append(
            f"partition {partition} was not used: no scheduler says which nodes it has (--nodes FILE lists some)"
        )
    return replace(steering, remarks=(*first, *steering.remarks), cluster=cluster_nodes)


def wishes(
    workload: str,
    *,
    cluster: str | None = None,
    model: str | None = None,
    gpus: int = 1,
    max_share: float | None = None,
    hard: float = 1.1,
    soft: float = 1.05,
    max_age: float = MAX_AGE_D,
    locality_penalty: float = 1.0,
    replicates: int | None = None,
    seed: int | None = None,
) -> Wanted:
    """The options of the advice, checked. Raises InputError."""
    for name, value in (("hard", hard), ("soft", soft), ("locality-penalty", locality_penalty)):
        if not math.isfinite(value) or value < 1:
            raise InputError(f"--{name} {value} is not a factor: write a number such as 1.2")
    if soft > hard:
        raise InputError(f"--soft {soft:g} is above --hard {hard:g}")
    return Wanted(workload, cluster, model, gpus, hard, soft, max_share, max_age, locality_penalty, replicates, seed)


def _opened(store: Store | str | Path) -> Store:
    from ..store import Store

    return store if isinstance(store, Store) else Store.open(store)


def _scheduler(form: str | None, *, to_file: bool) -> tuple[Slurm | None, str | None]:
    """The scheduler to ask, and a note if there is none.

    A scheduler that does not answer is an error if the output is for the scheduler. If there is no scheduler, the
    store's names are used, unless the output needs facts that only a scheduler has.
    """
    slurm = Slurm()
    try:
        slurm.check()
    except SchedulerError as error:
        unchecked = error.absent and form in ("exclude", "nodelist") and not to_file
        if form not in (None, "json") and not unchecked:
            raise
        return None, f"the names of the nodes were not checked: {error}"
    return slurm, None


def _cluster() -> tuple[Mapping[str, KubeNode] | None, str | None]:
    """The nodes of the Kubernetes cluster, and a note if there is no `kubectl` to ask."""
    try:
        return kubernetes.ask(), None
    except SchedulerError as error:
        if not error.absent:
            raise
        return None, f"what the cluster has now is not known: {error}; every measured node gets a line"


def lines_for(form: str, steering: Steering, own: Sequence[str] = ()) -> tuple[list[str], str | None]:
    """The lines of one of the formats, and a note for standard error. `own` nodes are excluded, too.

    Raises InputError if the format cannot be given.
    """
    advice = steering.advice
    if form == "exclude":
        why = "The scheduler knows none of these nodes." if steering.foreign else advice.finding
        note = why if advice.leaves_all and not steering.foreign else f"nothing is excluded. {why}"
        return [compress([*own, *steering.exclude])], None if steering.exclude else note
    if form == "prefer":
        expression, why = steering.prefer()
        return [expression], f"nothing to prefer: {why}" if why else None
    if form == "nodelist":
        nodes = steering.nodelist()
        if not nodes:
            # Unlike an empty --exclude, Slurm refuses an empty --nodelist.
            raise InputError(f"there is no node list for a job of {advice.gpus} GPUs: {advice.finding}")
        return [compress(nodes)], f"for a job that takes all of them: --nodes={len(nodes)}"
    if form in kubernetes.FORMATS:
        return _kubectl_lines(form, steering)
    if not steering.nodes:
        raise InputError("weights are changes to the scheduler's state: run this where the scheduler answers")
    mine = [steering.nodes[name] for name in steering.names.names.values()]
    lines = node_lines(advice.workload, mine, steering.tiers, steering.preferred)
    return lines, None if lines else "the scheduler already has these weights and features"


def _kubectl_lines(form: str, steering: Steering) -> tuple[list[str], str | None]:
    """`kubectl` lines for all nodes of the cluster or, where its state is not known, for all that were measured."""
    measured = list(dict.fromkeys(steering.names.names.values()))
    wrong = [name for name in measured if not kubernetes.is_name(name)]
    nodes = steering.cluster or {name: KubeNode(name) for name in measured if name not in wrong}
    values = _values(steering)
    make = kubernetes.label_lines if form == "kubernetes" else kubernetes.taint_lines
    lines = make(steering.advice.workload, nodes.values(), values)
    if wrong and steering.cluster is None:
        return lines, f"left out, as Kubernetes has no nodes of such names: {compress(wrong)}"
    return lines, None if lines else f"the cluster already has these {'labels' if form == 'kubernetes' else 'taints'}"


def _values(steering: Steering) -> dict[str, str]:
    """The label of each node that has one."""
    names = dict.fromkeys(steering.names.names.values())
    found = {n: kubernetes.value_of(n, steering.exclude, steering.tiers, steering.preferred) for n in names}
    return {name: value for name, value in found.items() if value is not None}


def feature_file(steering: Steering, node: str) -> tuple[str, str | None]:
    """The file for Node Feature Discovery on `node`, and a note where it has no label.

    Raises InputError where Kubernetes has no nodes of such a name.
    """
    if not kubernetes.is_name(node):
        raise InputError(f"--node {node!r} cannot be the name of a node of Kubernetes: see `kubectl get nodes`")
    own = list(known(steering.names.names.values(), {node: Node(node, "")}).names)
    value = _values(steering).get(own[0]) if len(own) == 1 else None
    text = kubernetes.feature_file(steering.advice.workload, node, value, dt.datetime.now(dt.UTC))
    if not own:
        return text, f"{node} gets no label: {steering.advice.workload} was not measured on it"
    return text, None if value else f"{node} gets no label: it is neither slow nor one of the fastest"


def write_filter(output: Path, steering: Steering) -> str:
    """Write the file for the submit filters. Returns a sentence about its content. Raises InputError."""
    partition = steering.partition
    if partition is None or steering.scheduler is None:
        raise InputError("Slurm has no default partition: choose the partition of the file with --partition")
    scheduler, nodes = steering.scheduler, list(steering.nodes.values())
    found = scheduler.partitions().get(partition)
    if found is None:
        raise InputError(f"the file for the submit filters is about one partition, not {partition}: choose one")
    write_whole(
        output,
        filter_file(
            steering.exclude, nodes, partition, found.default, time.time(), scheduler.together(), found.least_nodes
        ),
    )
    return f"{output}: {len(steering.exclude)} of {len(nodes)} nodes of partition {partition}"


@dataclass(frozen=True)
class Applied:
    """Advice on a waiting job, and what it changed or would change."""

    steering: Steering
    workload: str
    changes: Sequence[Change]
    left_alone: int
    """Tasks of the job that wait no longer."""


def apply(
    store: Store | str | Path,
    job: str,
    *,
    workload: str | None = None,
    cluster: str | None = None,
    dry_run: bool = False,
    made: Callable[[Change], None] | None = None,
    **limits: Any,
) -> Applied:
    """Exclude slow nodes for the caller's own job while it waits, as `whorl advise apply` does.

    `limits` are arguments of `wishes`. If a change is refused, `made` is called with each change that was made before.
    Raises InputError, StoreError, SchedulerError.
    """
    slurm = Slurm()
    slurm.check()
    records = slurm.jobs(job)
    waiting = pending(records, job, os.getuid())
    opened = _opened(store)
    unknown = f"the workload of job {job} is not known: give --workload, or whorl=NAME in its comment"
    workload = workload or workload_of(waiting) or _only_workload(opened, unknown)
    partition = ",".join(waiting[0].partitions) or None
    site = Site.of(slurm)
    useless = {name for name, node in site.nodes.items() if not any(site.fits(one, node) for one in waiting)}
    wanted = wishes(workload, cluster=cluster, **limits)
    steering = steer(opened, wanted, slurm=slurm, partition=partition, leave_out=useless)
    changes = [change(one, steering.exclude, site) for one in waiting]
    if not dry_run:
        _update(slurm, [one for one in changes if one.needed], made)
    return Applied(steering, workload, changes, len(records) - len(waiting))


def _update(slurm: Slurm, changes: Sequence[Change], made: Callable[[Change], None] | None) -> None:
    """Make the changes. If one is refused, `made` is called with each change that was made before."""
    for number, one in enumerate(changes):
        try:
            slurm.update_job(one.job, one.after, one.comment)
        except SchedulerError:
            if made is not None:
                for before in changes[:number]:
                    made(before)
            raise


def _only_workload(store: Store, unknown: str) -> str:
    """The store's workload, if it has only one; else the sentence `unknown` is the error."""
    from ..analysis.placement import available
    from ..analysis.runs.probing import no_runs

    workloads = sorted({plain_workload(workload) for _, workload in available(store)})
    if not workloads:
        raise no_runs(store, "no timed runs")
    if len(workloads) > 1:
        raise InputError(f"{unknown}; the store has {', '.join(workloads)}")
    return workloads[0]
