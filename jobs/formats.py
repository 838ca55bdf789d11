"""Advice for Slurm: features, weights as `scontrol` lines, and the file that the submit filters read.

Features are `whorl_WORKLOAD_prefer` and `whorl_WORKLOAD_avoid`. A node whose weight was changed also has
`whorl_weight_N`, its own weight: so the lines can be made again, and taken back, however often they were applied.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import InputError
from ..store.hostlist import compress
from ..store.system import files
from .scheduler import Node

HARD, SOFT = "hard", "soft"
WEIGHT = {HARD: 2, SOFT: 1}  # added to a node's own weight: jobs get the nodes of the lowest weight first
_OWN_WEIGHT = re.compile(r"whorl_weight_(\d+)")


def feature(workload: str, what: str) -> str:
    """The feature of nodes to `prefer` or to `avoid` for a workload, with what features may not hold replaced."""
    return f"whorl_{re.sub(r'[^A-Za-z0-9]+', '_', workload).strip('_').lower()}_{what}"


def preference(workload: str, nodes: Iterable[Node], avoided: Collection[str], wanted: int) -> tuple[str, str]:
    """The expression for --prefer, or "" and why there is none.

    Slurm refuses a job that prefers a feature which fewer nodes have than the job takes.
    """
    label = feature(workload, "prefer")
    having = [node for node in nodes if label in node.active]
    wrong = sorted(node.name for node in having if node.name in avoided)
    if wrong:
        return "", f"{compress(wrong)} should be avoided now but still has the feature {label}: apply --format weights"
    usable = [node for node in having if node.usable]
    if not having:
        return "", f"no node has the feature {label}: --format weights prints the commands that set it"
    if len(usable) < wanted:
        have = f"only {len(usable)} of the nodes with the feature {label} can be used"
        return "", f"{have}, but the job needs {wanted}: Slurm would refuse it"
    return label, ""


def node_lines(workload: str, nodes: Iterable[Node], tiers: Mapping[str, str], preferred: Collection[str]) -> list[str]:
    """`scontrol` lines for what differs between the advice and what the scheduler has; none where nothing does.

    `tiers`: node -> hard or soft. Features are given in full, as `scontrol` replaces the whole list; those that are
    not whorl's stay. The remarks say what was before.
    """
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for node in nodes:
        tier = tiers.get(node.name)
        own = own_weight(node)
        settings = []
        weight = None if own is None else own + WEIGHT.get(tier or "", 0)
        if weight != node.weight:
            settings.append(f"Weight={weight}")
        label = "avoid" if tier else "prefer" if node.name in preferred else None
        wanted = [feature(workload, label)] if label else []
        wanted += [f"whorl_weight_{own}"] if own is not None and weight != own else []
        available, active = (_relabelled(f, workload, wanted) for f in (node.available, node.active))
        if set(available) != set(node.available) or set(active) != set(node.active):
            settings += [f"AvailableFeatures={','.join(available)}", f"ActiveFeatures={','.join(active)}"]
        if settings:
            before = f"Weight={node.weight} Features={','.join(node.active)}"
            alike.setdefault((label or "neither", before, *settings), []).append((node.name, before))
    lines = []
    for (label, before, *settings), members in sorted(alike.items()):
        names = compress(name for name, _ in members)
        lines.append(f"# {names}: {label} for {workload!r}; before: {before}")
        lines.append(shlex.join(["scontrol", "update", f"NodeName={names}", *settings]))
    return lines


def own_weight(node: Node) -> int | None:
    """The weight that a node had before whorl's lines changed it."""
    kept = [int(match[1]) for match in map(_OWN_WEIGHT.fullmatch, node.available) if match]
    return kept[0] if kept else node.weight


def _relabelled(features: Sequence[str], workload: str, wanted: Sequence[str]) -> list[str]:
    ours = {feature(workload, "prefer"), feature(workload, "avoid")}
    kept = [f for f in features if f not in ours and not _OWN_WEIGHT.fullmatch(f)]
    return kept + list(wanted)


def filter_file(
    excluded: Sequence[str],
    nodes: Sequence[Node],
    partition: str,
    is_default: bool,
    now: float,
    together: Iterable[Collection[str]] = (),
    least: int = 1,
) -> str:
    """The file for the submit filters: the exclude list, and what they need to leave a job alone.

    `nodes` are those of `partition`; `together` as from Slurm.together; `least` nodes has any job of the partition.
    The first line is the list. Then there is a line for each kind of node that may lose some: how many nodes a job may
    need so that it can start without these, and their list. The last line says when the file was written, the length
    of what stands before (a torn or edited file is not believed), and the partition.
    """
    lists = [
        f"# {most} {compress(names)}"
        for names, most in largest_jobs(excluded, nodes, together)
        if most >= max(least, 1)
    ]
    text = "\n".join([compress(excluded), *lists])
    facts = {"written": int(now), "length": len(text), "partition": partition, "default": int(is_default)}
    return f"{text}\n# whorl {' '.join(f'{key}={value}' for key, value in facts.items())}\n"


def largest_jobs(
    excluded: Sequence[str], nodes: Sequence[Node], together: Iterable[Collection[str]] = ()
) -> list[tuple[list[str], int]]:
    """The excluded nodes by kind, and the most nodes that a job may need to start without those, if it can with them.

    Two nodes are of one kind if their hardware is and each set of `together` has both or neither: one can then stand
    in for the other in any job that does not choose nodes by name or feature. So as many as the job may need must be
    left that run jobs. A tenth of these, at least one, is kept in reserve, for nodes that go out of use before the
    advice is made again.
    """
    sets = list(together)
    kinds = {node.name: (node.kind, tuple(node.name in one for one in sets)) for node in nodes}
    avoided = set(excluded)
    left = Counter(kinds[node.name] for node in nodes if node.usable and node.name not in avoided)
    found: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for name in excluded:
        if name in kinds:
            found.setdefault(kinds[name], []).append(name)
    return [(names, left[kind] - math.ceil(left[kind] / 10)) for kind, names in found.items()]


def write_whole(path: Path, text: str) -> None:
    """Put a file in place as a whole: a reader sees the one before or this one. Raises InputError."""
    try:
        files.put(path, text.encode(), 0o644)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
