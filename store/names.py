"""The names that people use: one for a node, one for a GPU, one for a workload, the same everywhere."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import InputError
from .configuration import configured

LISTED = 8
"""Names in an error."""
_SLURM_CONF = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_CLUSTER_NAME = re.compile(r'^[ \t]*ClusterName[ \t]*=[ \t]*"?([^\s"#]+)', re.IGNORECASE | re.MULTILINE)
PADDED = ((r"(\d+)", r"000000000000\1"), (r"\d*(\d{12})", r"\1"))
"""Patterns and what stands for them, one after the other: then the order of letters is that of numbers, too."""
UUID = ("GPU-", "MIG-")
"""How UUIDs begin: their digits count nothing."""
_ALSO = {"gemm-fp32": ("sgemm", "gemm")}
"""By workload, the other names that it has in files of other tools and in simulated loads."""
TRIAL_CAMPAIGN = "tune-"
"""How the campaign of a trial of `whorl tune` begins: a run on one GPU, and none of a fleet."""
SIMULATED = "simulated"
"""The driver of simulated GPUs, in column `driver` of `gpus`."""


def this_node() -> str:
    """The name of this node: the scheduler's inside a Slurm job, else the host's; in letters that can name files.

    Several nodes of a scheduler may share a host name, and a host's may have a domain that the scheduler leaves out.
    """
    return _as_file(os.environ.get("SLURMD_NODENAME", "")) or this_host()


def this_host() -> str:
    """The name of this host, in letters that can name files."""
    return _as_file(socket.gethostname()) or "node"


def this_cluster() -> str:
    """The name of this cluster: as whorl.toml says, else as Slurm calls it, also in its accounting, else `local`.

    Jobs have it in SLURM_CLUSTER_NAME. For others, such as services, slurm.conf says it. Slurm makes it lower case.
    """
    if name := configured("cluster"):
        return str(name)
    if name := os.environ.get("SLURM_CLUSTER_NAME"):
        return name
    slurm_conf = os.environ.get("SLURM_CONF")
    for path in [slurm_conf] if slurm_conf else _SLURM_CONF:
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if match := _CLUSTER_NAME.search(text):
            return match[1].lower()
    return "local"


def _as_file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-")


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Each name of a node as it is written most often: case makes no other node, nor does a domain that all share."""
    count = Counter(names)
    domains: dict[str, set[str]] = {}
    for name in count:
        host, _, domain = name.lower().partition(".")
        domains.setdefault(host, set()).add(domain)
    nodes: dict[str, list[str]] = {}
    for name in count:
        host = name.lower().partition(".")[0]
        one_node = len(domains[host] - {""}) <= 1
        nodes.setdefault(host if one_node else name.lower(), []).append(name)
    usual = {node: min(same, key=lambda name: (-count[name], name)) for node, same in nodes.items()}
    return {name: usual[node] for node, same in nodes.items() for name in same}


def gpu_name(gpu: str, node: str | None, slot: int | None) -> str:
    """`node/slot` if these are known, else the key `gpu`: of one GPU that is there now.

    Of the GPUs of a store, view `gpus_now` has the names: of several cards in one slot, one after another, the last
    has its name.
    """
    return gpu if node is None or slot is None else f"{node}/{slot}"


def by_number(name: str) -> tuple[str, str]:
    """The key that sorts names as people count: node-2 before node-10."""
    padded = name
    for pattern, by in () if name.startswith(UUID) else PADDED:
        padded = re.sub(pattern, by, padded)
    return padded, name


def find_gpu(text: str, names_by_gpu: Mapping[str, Iterable[str]], place: str = "here") -> str:
    """The GPU that a text means: one of its names, its key (the UUID), or a part of one that no other GPU has.

    `names_by_gpu` gives the names of each GPU by its key; an exact name wins over a part of others. Upper and lower
    case are the same. InputError, which lists the GPUs, where none fits or several do; `place` says where they are.
    """
    gpu = known_gpu(text, names_by_gpu)
    if gpu is None:
        raise no_such_gpu(text, place, _in_order(_all_names(names_by_gpu)))
    return gpu


def no_such_gpu(text: str, place: str, gpus: Sequence[tuple[str, str]], n: int | None = None) -> InputError:
    """That no GPU fits. `gpus`: name and key of the first of those that there are, `n` in all."""
    return InputError(f"there is no GPU {text!r} {place}; there is {_listed(gpus, n) or 'none'}")


def several_gpus(
    text: str, gpus: Sequence[tuple[str, str]], n: int | None = None, clusters: Sequence[str] = ()
) -> InputError:
    """That `n` GPUs fit, of which `gpus` are the first: name and key. `clusters`: of them all, where these differ."""
    choose = f"choose the cluster with --cluster: {', '.join(clusters)}" if clusters else "give more of the name"
    return InputError(f"{text!r} fits {len(gpus) if n is None else n} GPUs: {_listed(gpus, n)}; {choose}")


def known_gpu(text: str, names_by_gpu: Mapping[str, Iterable[str]]) -> str | None:
    """As `find_gpu`, but None where no GPU fits."""
    sought = text.strip().lower()
    all_names = _all_names(names_by_gpu)
    for fits in (lambda name: name.lower() == sought, lambda name: len(sought) > 1 and sought in name.lower()):
        fitting = {gpu: names for gpu, names in all_names.items() if any(map(fits, names))}
        if len(fitting) == 1:
            return next(iter(fitting))
        if fitting:
            raise several_gpus(text, _in_order(fitting))
    return None


def _all_names(names_by_gpu: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    return {gpu: tuple(dict.fromkeys([*names, gpu])) for gpu, names in names_by_gpu.items()}


def _in_order(all_names: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """The first name and the key of each GPU, as people count: a list of them says the same each time."""
    return sorted(((names[0], gpu) for gpu, names in all_names.items()), key=lambda pair: by_number(pair[0]))


def _listed(gpus: Sequence[tuple[str, str]], n: int | None) -> str:
    listed = [f"{name} ({gpu})" if name != gpu else gpu for name, gpu in gpus[:LISTED]]
    unlisted = (len(gpus) if n is None else n) - len(listed)
    return ", ".join(listed) + (f" and {unlisted:,} more" if unlisted > 0 else "")


def plain_workload(name: str) -> str:
    """The name of the work alone: `sgemm` of `sgemm [A100, 250 W]`, which is one kind of its runs."""
    return name.partition(" [")[0] if name.endswith("]") else name


def same_work(name: str) -> tuple[str, ...]:
    """All names of the work that has this one: `gemm-fp32`, `sgemm` and `gemm` are one."""
    return next(((main, *others) for main, others in _ALSO.items() if name in (main, *others)), (name,))


def find_workload(text: str, workloads: Iterable[str]) -> str:
    """The one of `workloads` that a text means: that name, else the one that another name of the same work has.

    Without any, the text itself. InputError where several other names fit: their times can be those of other sizes. It
    is raised also where the runs of that name are of several kinds (`sgemm [A100]`), of which one must be chosen.
    """
    names = set(workloads)
    if text in names:
        return text
    work = plain_workload(text)
    kind = text.removeprefix(work)
    fitting = [name + kind for name in same_work(work) if name + kind in names]
    if not fitting and not kind:
        kinds = sorted(name for name in names if plain_workload(name) in same_work(work))
        if len(kinds) > 1:
            listed = ", ".join(f'"{name}"' for name in kinds)
            raise InputError(f"the runs of {text} differ in model, power limit or clock: choose one of {listed}")
        fitting = kinds
    if len(fitting) > 1:
        raise InputError(f"there are no runs of {text}, but of {' and of '.join(fitting)}, which may differ: name one")
    return fitting[0] if fitting else text
