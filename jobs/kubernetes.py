"""Advice for Kubernetes: labels and taints as `kubectl` lines, and a file for Node Feature Discovery.

A node has the label `whorl.io/WORKLOAD` with one of three values, or none: `exclude` (certainly slow, and within the
share of nodes that may be excluded), `avoid` (slow, but not excluded: use it last) or `prefer` (one of the fastest). A
taint has the same key and value and the effect PreferNoSchedule: other nodes are used first, and no pod is kept off or
moved. What others labelled or tainted is not touched.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import InputError, SchedulerError
from ..store.names import by_number
from .batch import plain_name
from .scheduler import TIMEOUT_S, Node

FORMATS = ("kubernetes", "taints", "nfd")
EXCLUDE, AVOID, PREFER = "exclude", "avoid", "prefer"
EFFECT = "PreferNoSchedule"
DOMAIN = "whorl.io"
LASTS = dt.timedelta(days=7)  # a file for Node Feature Discovery; the same as the file for Slurm's submit filters
_TOGETHER = 50  # nodes in one command
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node as the cluster has it, as far as advice is about it."""

    name: str
    host: str = ""  # the label kubernetes.io/hostname
    labels: Mapping[str, str] | None = None  # None where the state is not known
    taints: Mapping[str, str] | None = None  # those of EFFECT: key -> value

    @property
    def as_node(self) -> Node:
        """The same for what finds a store's nodes among a scheduler's."""
        return Node(self.name, "", host=self.host)


def key(workload: str) -> str:
    """The key of the label of a workload: what a key may not hold is replaced."""
    return f"{DOMAIN}/{plain_name(workload, r'[^a-z0-9._-]+')}"


def is_name(name: str) -> bool:
    """Whether Kubernetes takes this as the name of a node."""
    return len(name) <= 253 and _NAME.fullmatch(name) is not None


def read(text: str, source: str) -> dict[str, KubeNode]:
    """The nodes in the output of `kubectl get nodes -o json`, by name. Raises InputError."""
    wrong = f"{source} is not the output of `kubectl get nodes -o json`"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{wrong}: {error if isinstance(error, ValueError) else 'it is nested too deeply'}") from error
    items = document.get("items", [document]) if isinstance(document, dict) else None
    if not isinstance(items, list):
        raise InputError(f"{wrong}: it has no list of items")
    nodes: dict[str, KubeNode] = {}
    for number, entry in enumerate(items, 1):
        try:
            node = _node(entry)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{wrong}: item {number} is no node") from error
        if not is_name(node.name):
            raise InputError(f"{wrong}: {node.name!r} of item {number} cannot be the name of a node")
        nodes[node.name] = node
    if not nodes:
        raise InputError(f"{source} has no nodes")
    return nodes


def _node(entry: dict[str, object]) -> KubeNode:
    match entry:
        case {"kind": "Node", "metadata": {"name": str(name), **metadata}}:
            pass
        case _:
            raise TypeError
    labels = metadata.get("labels") or {}
    spec = entry.get("spec") or {}
    if not isinstance(labels, dict) or not isinstance(spec, dict):
        raise TypeError
    taints = {t["key"]: t.get("value") or "" for t in spec.get("taints") or () if t["effect"] == EFFECT}
    return KubeNode(name, str(labels.get("kubernetes.io/hostname", "")), labels, taints)


def ask(timeout_s: float = TIMEOUT_S) -> dict[str, KubeNode]:
    """The nodes of the cluster that `kubectl` is set up for.

    Raises SchedulerError: `absent` where there is no `kubectl`.
    """
    else_do = "give its nodes with --nodes FILE, or leave the cluster out with --no-scheduler"
    command = ["kubectl", "get", "nodes", "--output=json", f"--request-timeout={timeout_s:g}s"]
    try:
        done = subprocess.run(  # noqa: S603  arguments as a list
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=dict(os.environ) | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError as error:
        raise SchedulerError("there is no `kubectl` here", absent=True) from error
    except OSError as error:
        raise SchedulerError(f"`kubectl` cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"the cluster did not answer `kubectl` within {timeout_s:g} s: {else_do}") from error
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1].strip()[:300]
        raise SchedulerError(f"`kubectl get nodes` failed: {message.rstrip('.?')}; {else_do}")
    return read(done.stdout, "what `kubectl` printed")


def lines(form: str, workload: str, nodes: Iterable[KubeNode], values: Mapping[str, str]) -> list[str]:
    """`kubectl label` or `kubectl taint` lines for what differs between the advice and what the cluster has.

    `form`: kubernetes (labels) or taints. `values`: node -> label; a node that is only preferred has no taint. Where
    the state of a node is not known, it gets a line in any case.
    """
    name, taints = key(workload), form == "taints"
    alike_nodes: dict[tuple[str | None, str | None], list[str]] = {}
    for node in nodes:
        state = node.taints if taints else node.labels
        value = values.get(node.name)
        value = None if taints and value == PREFER else value
        if state is None or value != state.get(name):
            before = None if state is None else state[name] or "empty" if name in state else "none"
            alike_nodes.setdefault((value, before), []).append(node.name)
    order = [EXCLUDE, AVOID, PREFER, None]  # slow nodes first, nodes that lose what they had last
    changes = sorted(alike_nodes.items(), key=lambda change: (order.index(change[0][0]), change[0][1] or ""))
    return [line for change, names in changes for line in _commands(names, workload, *change, taints=taints)]


def _commands(names: list[str], workload: str, value: str | None, before: str | None, *, taints: bool) -> list[str]:
    """A remark, and the commands that give these nodes the value, or take it from them where it is None."""
    verb, effect = ("taint", f":{EFFECT}") if taints else ("label", "")
    change = f"{key(workload)}={value}{effect}" if value else f"{key(workload)}{effect}-"
    remark = f"# {value or f'no {verb}'} for {workload!r}; before: {before or 'not known'}".replace("\n", " ")
    together, ending = _TOGETHER, ""
    if taints and value is None and before is None:
        # kubectl refuses to remove what is not there, and then changes none of the nodes that it was given.
        remark = f"# {len(names)} nodes: no taint for {workload!r}; an error is no harm, as it may not be there"
        together, ending = 1, " || true"
    ordered = sorted(names, key=by_number)
    parts = [ordered[first : first + together] for first in range(0, len(ordered), together)]
    return [remark, *(shlex.join(["kubectl", verb, "--overwrite", "node", *part, change]) + ending for part in parts)]


def feature_file(workload: str, node: str, value: str | None, now: dt.datetime) -> str:
    """The file for Node Feature Discovery on one node: a label, which ends by itself if nobody writes the file again.

    A value of None makes a file without a label, by which Node Feature Discovery removes it.
    """
    text = f"# whorl: {workload!r} on {node}: {value or 'no label'}; written {now:%Y-%m-%dT%H:%M:%SZ}\n"
    if value:
        text += f"# +expiry-time={now + LASTS:%Y-%m-%dT%H:%M:%SZ}\n{key(workload)}={value}\n"
    return text
