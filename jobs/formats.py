"""Advice as lines for a scheduler: host lists, features and weights, the file of the submit filters, Kubernetes.

Features are `whorl_WORKLOAD_prefer` and `whorl_WORKLOAD_avoid`. A node whose weight was changed also has
`whorl_weight_N`, the weight of the site: so the lines can be made again, and taken back, however often they were
applied.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import InputError
from ..store.hostlist import compress
from ..store.system import files
from . import kubernetes
from .kubernetes import KubeNode
from .scheduler import Node, known
from .steering import Steering

HARD, SOFT = "hard", "soft"
WEIGHT = {HARD: 2, SOFT: 1}  # what is added to the weight of a node: jobs get the nodes of the lowest weight first
_SITE_WEIGHT = re.compile(r"whorl_weight_(\d+)")


def lines_for(
    form: str, steering: Steering, excluded: Sequence[str] = (), file_node: str | None = None
) -> tuple[list[str], str | None]:
    """The lines of one of the formats, and a note for standard error.

    `excluded`: nodes that the user excludes anyway; `exclude` prints them, too. `file_node`: the node of the file
    `nfd`. Raises InputError if the format cannot be given.
    """
    advice = steering.advice
    if form == "exclude":
        unknown = sorted(set(excluded) - set(steering.nodes)) if steering.nodes and not steering.partition else []
        refused = f"Slurm knows no node {compress(unknown)} (and=), and refuses such a job" if unknown else None
        notes = [note for note in (refused, _why_no_exclusion(steering)) if note]
        return [compress([*excluded, *steering.worth_excluding])], "; ".join(notes) or None
    if form == "nfd":
        return _feature_file(steering, file_node or "")
    if form == "prefer":
        expression, reason = preference_of(steering)
        return [expression], f"nothing to prefer: {reason}" if reason else None
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
    measured = [steering.nodes[name] for name in steering.names.names.values()]
    lines = node_lines(advice.workload, measured, steering.tiers, steering.preferred)
    return lines, None if lines else "the scheduler already has these weights and features"


def _why_no_exclusion(steering: Steering) -> str | None:
    advice = steering.advice
    if steering.exclude:
        return None
    if steering.foreign:
        return "nothing is excluded. The scheduler knows none of these nodes."
    return advice.finding if advice.leaves_all else f"nothing is excluded. {advice.finding}"


# -- Slurm -----------------------------------------------------------------------------------------------------------


def feature(workload: str, purpose: str) -> str:
    """The feature of nodes to `prefer` or to `avoid` for a workload, with what features may not hold replaced."""
    return f"whorl_{re.sub(r'[^A-Za-z0-9]+', '_', workload).strip('_').lower()}_{purpose}"


def preference_of(steering: Steering) -> tuple[str, str]:
    """The expression for --prefer, or "" and why there is none."""
    if not steering.nodes:
        return "", steering.unasked
    nodes = steering.nodes.values()
    return preference(steering.advice.workload, nodes, steering.tiers, steering.shape[0])


def preference(workload: str, nodes: Iterable[Node], avoided: Collection[str], needed: int) -> tuple[str, str]:
    """The same for a job that needs this number of nodes, `avoided` ones not among them.

    Slurm refuses a job that prefers a feature which fewer nodes have than the job takes.
    """
    label = feature(workload, "prefer")
    labelled = [node for node in nodes if label in node.active]
    stale = sorted(node.name for node in labelled if node.name in avoided)
    usable = [node for node in labelled if node.usable]
    if stale:
        return "", f"{compress(stale)} should be avoided now but still has the feature {label}: apply --format weights"
    if not labelled:
        return "", f"no node has the feature {label}: --format weights prints the commands that set it"
    if len(usable) < needed:
        few = f"only {len(usable)} of the nodes with the feature {label} can be used"
        return "", f"{few}, but the job needs {needed}: Slurm would refuse it"
    return label, ""


def node_lines(workload: str, nodes: Iterable[Node], tiers: Mapping[str, str], preferred: Collection[str]) -> list[str]:
    """`scontrol` lines for what differs between the advice and what the scheduler has; none where nothing does.

    `tiers`: node -> hard or soft. Features are given in full, as `scontrol` replaces the whole list; those of others
    stay. The remarks say what was before.
    """
    alike_nodes: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        tier = tiers.get(node.name)
        purpose = "avoid" if tier else "prefer" if node.name in preferred else None
        before = f"Weight={node.weight} Features={','.join(node.active)}"
        settings = _settings(workload, node, purpose, WEIGHT.get(tier or "", 0))
        if settings:
            alike_nodes.setdefault((purpose or "neither", before, *settings), []).append(node.name)
    lines = []
    for (purpose, before, *settings), names in sorted(alike_nodes.items()):
        hosts = compress(names)
        lines.append(f"# {hosts}: {purpose} for {workload!r}; before: {before}")
        lines.append(shlex.join(["scontrol", "update", f"NodeName={hosts}", *settings]))
    return lines


def _settings(workload: str, node: Node, purpose: str | None, added_weight: int) -> list[str]:
    """What `scontrol update` has to set on a node."""
    settings = []
    site_weight = weight_of_site(node)
    weight = None if site_weight is None else site_weight + added_weight
    if weight != node.weight:
        settings.append(f"Weight={weight}")
    labels = [feature(workload, purpose)] if purpose else []
    labels += [f"whorl_weight_{site_weight}"] if site_weight is not None and weight != site_weight else []
    available, active = (_relabelled(features, workload, labels) for features in (node.available, node.active))
    if set(available) != set(node.available) or set(active) != set(node.active):
        settings += [f"AvailableFeatures={','.join(available)}", f"ActiveFeatures={','.join(active)}"]
    return settings


def weight_of_site(node: Node) -> int | None:
    """The weight that a node had before whorl's lines changed it."""
    noted = [int(match[1]) for match in map(_SITE_WEIGHT.fullmatch, node.available) if match]
    return noted[0] if noted else node.weight


def _relabelled(features: Sequence[str], workload: str, labels: Sequence[str]) -> list[str]:
    replaced = {feature(workload, "prefer"), feature(workload, "avoid")}
    return [name for name in features if name not in replaced and not _SITE_WEIGHT.fullmatch(name)] + list(labels)


# -- The submit filters of Slurm -------------------------------------------------------------------------------------


def write_filter(output: Path, steering: Steering) -> str:
    """Write the file for the submit filters. Returns a sentence about its content. Raises InputError."""
    if steering.partition is None or steering.scheduler is None:
        raise InputError("Slurm has no default partition: choose the partition of the file with --partition")
    partition = steering.scheduler.partitions().get(steering.partition)
    if partition is None:
        name = steering.partition
        raise InputError(f"the file for the submit filters is about one partition, not {name}: choose one")
    excluded, nodes = steering.worth_excluding, list(steering.nodes.values())
    sizes = largest_jobs(excluded, nodes, steering.scheduler.together())
    lists = {hosts: size for hosts, size in sizes.items() if size >= max(partition.least_nodes, 1)}
    write_whole(output, filter_file(excluded, lists, partition.name, is_default=partition.default))
    sentence = f"{output}: {len(excluded)} of {len(nodes)} nodes of partition {partition.name}"
    return sentence if excluded or not steering.exclude else f"{sentence}; {_why_no_exclusion(steering)}"


def filter_file(excluded: Sequence[str], largest: Mapping[str, int], partition: str, *, is_default: bool) -> str:
    """The file for the submit filters: the exclude list, and what they need to leave a job alone.

    The first line is the list. Then there is a line for each kind of node that may lose some (`largest_jobs`): how many
    nodes a job may need so that it can start without these, and their list. The last line says when the file was
    written, the length of what stands before (a torn or edited file is not believed), and the partition.
    """
    text = "\n".join([compress(excluded), *(f"# {size} {hosts}" for hosts, size in largest.items())])
    facts = {"written": int(time.time()), "length": len(text), "partition": partition, "default": int(is_default)}
    return f"{text}\n# whorl {' '.join(f'{key}={value}' for key, value in facts.items())}\n"


def largest_jobs(
    excluded: Sequence[str], nodes: Sequence[Node], together: Iterable[Collection[str]] = ()
) -> dict[str, int]:
    """The excluded nodes by kind -> the most nodes that a job may need to start without those, if it can with them.

    Two nodes are of one kind if their hardware is and each set of `together` (`Slurm.together`) has both or neither:
    the one can then stand in for the other in any job that does not choose nodes by name or feature. So as many as the
    job may need must remain that run jobs. A tenth of these, at least one, is a reserve, for nodes that go out of use
    before the advice is made again.
    """
    sets = list(together)
    kinds = {node.name: (node.kind, tuple(node.name in nodes_of for nodes_of in sets)) for node in nodes}
    remaining = Counter(kinds[node.name] for node in nodes if node.usable and node.name not in excluded)
    by_kind: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for name in excluded:
        if name in kinds:
            by_kind.setdefault(kinds[name], []).append(name)
    return {compress(names): remaining[kind] - math.ceil(remaining[kind] / 10) for kind, names in by_kind.items()}


def write_whole(path: Path, text: str) -> None:
    """Put a file in place as a whole: a reader sees the one before or this one. Raises InputError."""
    try:
        files.put(path, text.encode(), 0o644)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def _kubectl_lines(form: str, steering: Steering) -> tuple[list[str], str | None]:
    """`kubectl` lines for all nodes of the cluster or, where its state is not known, for all that were measured."""
    measured = list(dict.fromkeys(steering.names.names.values()))
    impossible = [name for name in measured if not kubernetes.is_name(name)]
    nodes = steering.cluster or {name: KubeNode(name) for name in measured if name not in impossible}
    lines = kubernetes.lines(form, steering.advice.workload, nodes.values(), _values(steering))
    if impossible and steering.cluster is None:
        return lines, f"left out, as Kubernetes has no nodes of such names: {compress(impossible)}"
    return lines, None if lines else f"the cluster already has these {'labels' if form == 'kubernetes' else 'taints'}"


def _values(steering: Steering) -> dict[str, str]:
    """Node -> its label, of nodes that have one."""
    preferred, slow = dict.fromkeys(steering.preferred, kubernetes.PREFER), steering.tiers
    labels = preferred | dict.fromkeys(slow, kubernetes.AVOID) | dict.fromkeys(steering.exclude, kubernetes.EXCLUDE)
    return {name: labels[name] for name in steering.names.names.values() if name in labels}


def _feature_file(steering: Steering, node: str) -> tuple[list[str], str | None]:
    """The file for Node Feature Discovery on `node`, and a note where it has no label."""
    if not kubernetes.is_name(node):
        raise InputError(f"node={node} cannot be the name of a node of Kubernetes: see `kubectl get nodes`")
    names = list(known(steering.names.names.values(), {node: Node(node, "")}).names)
    label = _values(steering).get(names[0]) if len(names) == 1 else None
    workload = steering.advice.workload
    text = kubernetes.feature_file(workload, node, label, dt.datetime.now(dt.UTC))
    missing = "it is neither slow nor one of the fastest" if names else f"{workload} was not measured on it"
    return text.splitlines(), None if label else f"{node} gets no label: {missing}"
