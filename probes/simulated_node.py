"""Probes on one node of a simulated cluster, as a job on it runs them: many jobs write into one store at once.

    report = run_node(store, read_fleet("tiny.toml").node("n01"), plan)

The simulated clock begins at the time of day, or where the last runs on these GPUs ended, if that is later: then it has
run ahead. It goes on as fast as it can. As on real GPUs, runs that the campaign has stored are not made again.

The file that describes a simulated cluster, for `whorl probe run --backend simulated:fleet=FILE`: keys in TOML.

    nodes = "n[01-06]"
    seed = 3

docs/how-we-know/simulation.md explains every key.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute

from ..collectors.claim import DAY_NS, introduce, planted_in
from ..collectors.simulated import devices_of, telemetry_of
from ..errors import DeviceError, InputError
from ..kernels.catalogue import find_kernel
from ..simulation.bench import Bench
from ..simulation.cluster import Cluster, SimulatedNode
from ..simulation.fleet import GPUS_PER_NODE, Fleet
from ..simulation.models import find_model
from ..simulation.spread import USUAL, find_population
from ..simulation.stepping import Happening, Readings
from ..store import Store
from ..store.hostlist import expand
from ..store.names import find_gpu, this_cluster
from .campaign import Campaign, Plan, Progress, Report
from .recording import Recorder, past_of
from .simulated import Keeping, built_once, nearest_clock, run_on

_MOST_GPUS = 1_000_000
_KEYS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "cluster": (str, "a name"),
    "nodes": (str, "a list of hosts, as n[01-06]"),
    "gpus_per_node": (int, "a whole number"),
    "model": (str, "a name"),
    "seed": (int, "a whole number"),
    "population": (str, "a name"),
    "faults": (int, "a whole number"),
    "fault": (list, 'a list of kinds, as ["hot=20%"]'),
    "planted": (dict, 'a table of kinds by GPU, as {"n03/1" = "lost"}'),
    "gpus": (dict, "a table of numbers by node, as {n02 = 3}"),
    "seconds_per_job": ((int, float), "a number of seconds"),
}


def read_fleet(path: str | Path) -> Cluster:
    """The simulated cluster that a file describes. InputError, which names the file and the key, for a wrong one."""
    table = _read(path)
    try:
        return _cluster(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def nodes_of(path: str | Path) -> list[str]:
    """The names of the nodes that a file lists; their GPUs are not drawn. InputError as for `read_fleet`."""
    return expand(_read(path)["nodes"])


def cluster_of(path: str | Path) -> str | None:
    """The name of the cluster that a file states. InputError as for `read_fleet`."""
    return _stated(_read(path))


def _stated(table: Mapping[str, Any]) -> str | None:
    return table["cluster"].strip() if "cluster" in table else None


def _read(path: str | Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    try:
        return _checked(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _checked(table: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, value in table.items():
        if key not in _KEYS:
            raise InputError(f"there is no key {key!r}; there are {', '.join(_KEYS)}")
        kind, says = _KEYS[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{key} must be {says}, not {value!r}")
    if not table.get("nodes", "").strip():
        raise InputError("nodes must be given")
    if not table.get("cluster", "a name").strip():
        raise InputError("cluster is empty: write a name, or leave the line out")
    return table


def _cluster(table: Mapping[str, Any]) -> Cluster:
    nodes = expand(table["nodes"])
    twice = sorted({name for name in nodes if nodes.count(name) > 1}) if len(set(nodes)) < len(nodes) else []
    if twice:
        raise InputError(f"nodes names {twice[0]} twice")
    per_node = table.get("gpus_per_node", GPUS_PER_NODE)
    if not nodes or not 1 <= per_node * len(nodes) <= _MOST_GPUS:
        raise InputError(f"a cluster has from 1 to {_MOST_GPUS:,} GPUs, not {per_node * len(nodes):,}")
    present = {}
    for name, gpus in table.get("gpus", {}).items():
        if name not in nodes:
            raise InputError(f"gpus names {name!r}, which is not among the nodes")
        if not isinstance(gpus, int) or not 0 <= gpus <= per_node:
            raise InputError(f"gpus of {name} must be from 0 to {per_node}, not {gpus!r}")
        present[name] = gpus
    seconds = float(table.get("seconds_per_job", 0))
    if not 0 <= seconds <= 86_400:
        raise InputError(f"seconds_per_job must be from 0 to 86400, not {seconds:g}")
    kinds = table.get("fault", [])
    fleet = Fleet.draw(
        find_model(table.get("model", "V100")),
        per_node * len(nodes),
        table.get("seed", 1),
        find_population(table.get("population", USUAL)),
        faults=table.get("faults", 0 if not kinds else None),
        kinds=tuple(map(str, kinds)),
        at=_planted(table.get("planted", {}), nodes, per_node),
        per_node=per_node,
    )
    return Cluster(_stated(table) or this_cluster(), tuple(nodes), fleet, present, seconds)


def _planted(table: Mapping[str, Any], nodes: list[str], per_node: int) -> dict[int, str]:
    """By position in the fleet: the kind of the fault that a GPU is to have."""
    positions = {}
    for name, kind in table.items():
        node, _, slot = name.rpartition("/")
        if node not in nodes or not slot.isdecimal() or int(slot) >= per_node:
            raise InputError(f'planted names {name!r}, which is no GPU of this cluster: write it as "{nodes[0]}/0"')
        positions[nodes.index(node) * per_node + int(slot)] = str(kind)
    return positions


def choose_node(path: str | Path, node: str | None, names: Sequence[str | int] = ()) -> tuple[SimulatedNode, list[int]]:
    """The node that a job on it stands on, and the positions of its GPUs of these names or indices (none: of all).

    Without `node` it is the node of the Slurm job that this process is in. InputError where there is no such node or
    GPU, DeviceError where the node has none.
    """
    name = node or os.environ.get("SLURMD_NODENAME")
    if not name:
        raise InputError("this runs in no Slurm job (SLURMD_NODENAME is not set): name the node: node=NAME")
    described = read_fleet(path).node(name)
    if not described.who:
        raise DeviceError(f"node {name} of the simulated cluster {described.cluster.name} has no GPU")
    uuids = {identity.uuid: (identity.name, str(identity.device)) for identity in described.who}
    chosen = {find_gpu(str(gpu), uuids, f"on {name}") for gpu in names} or set(uuids)
    return described, [position for position, identity in enumerate(described.who) if identity.uuid in chosen]


_SECOND_NS = 1_000_000_000


def run_node(
    store: Store,
    node: SimulatedNode,
    plan: Plan,
    *,
    chosen: Sequence[int] | None = None,
    cluster: str | None = None,
    cap_w: float | None = None,
    lock_mhz: float | None = None,
    telemetry_s: float = 1.0,
    progress: Progress | None = None,
) -> Report:
    """Run a plan on the GPUs of a simulated node, or on those at the positions `chosen`, and store what it finds.

    Faults that begin at some time begin while the plan runs. InputError for a cap (W) or lock (MHz) that the model
    cannot hold. StoreError if the store cannot be written: what was stored stays.
    """
    cluster = cluster or node.cluster.name
    chosen = range(len(node.who)) if chosen is None else sorted(chosen)
    chosen_gpus = [node.who[position].uuid for position in chosen]
    lock_mhz = nearest_clock(node.cluster.drawn, cap_w, lock_mhz)
    past = past_of(store, cluster, chosen_gpus)
    now_ns = -(-max(time.time_ns(), past.ended_ns or 0) // _SECOND_NS) * _SECOND_NS
    fleet = node.fleet(now_ns // DAY_NS)
    turns = len(chosen) if plan.neighbours == "idle" else 1
    span_s = turns * plan.expected_s()
    bench = Bench(
        fleet,
        began_ns=now_ns,
        cap_w=cap_w,
        lock_mhz=lock_mhz,
        span_s=span_s,
        age_days=0.0 if past.began_ns is None else (now_ns - past.began_ns) / DAY_NS,
        who=node.who,
    )
    recorder = Recorder(store, cluster=cluster, campaign=plan.campaign)
    campaign = Campaign(
        plan, recorder, built_once(find_kernel), past.runs_of(plan.campaign), len(chosen), progress=progress
    )
    planted = planted_in(fleet, node.who, now_ns, span_s)
    stored = introduce(store, cluster, node.fleet(), node.who, planted, node.cluster.drawn.seed)
    recorder.rows |= {name: rows for name, rows in stored.items() if rows}
    campaign.report.planted = tuple(fault for fault in planted if fault.uuid in chosen_gpus)
    pace = _Pace(node.cluster.seconds_per_job, now_ns, span_s)
    keeping = _OnNode(node, chosen_gpus, pace, recorder, telemetry_s=telemetry_s)
    return run_on(bench, chosen, campaign, keeping)


@dataclass(frozen=True)
class _Pace:
    """Holds a job back, so that it lasts at least so long, s of real time."""

    seconds: float
    began_ns: int
    span_s: float
    """How long the plan takes at most, simulated s."""
    since: float = field(default_factory=lambda: time.monotonic())

    def wait(self, now_ns: int | None = None) -> None:
        """Wait until as much of that time has passed as of the plan's; until all of it has, without `now_ns`."""
        share = 1.0 if now_ns is None else min(1.0, (now_ns - self.began_ns) / (1e9 * self.span_s))
        time.sleep(max(0.0, self.since + share * self.seconds - time.monotonic()))


class _OnNode(Keeping):
    """Records the GPUs of a node. Readings are stored up to the end of the last run, so that the next job, which begins
    there, stores no instant again."""

    def __init__(
        self, node: SimulatedNode, chosen_gpus: Sequence[str], pace: _Pace, recorder: Recorder, *, telemetry_s: float
    ) -> None:
        super().__init__(node.who, pace.began_ns, recorder, telemetry_s=telemetry_s)
        self._devices = devices_of(node.cluster.drawn.model, node.who)
        self._chosen_gpus, self._pace = chosen_gpus, pace

    def run(self, bench: Bench, work: Sequence[Any], *, every_s: float) -> None:
        super().run(bench, work, every_s=every_s)
        if self.recorder.rows.get("runs"):
            self._pace.wait()

    def _tick(self, readings: Readings, happened: list[Happening]) -> None:
        super()._tick(
            readings, [happening for happening in happened if self.who[happening.gpu].uuid in self._chosen_gpus]
        )
        self._pace.wait(readings.ts_ns)
        if self._enough or self.recorder.due:
            self._store(readings.ts_ns)

    def _store(self, to_ns: int, *, complete: bool = False) -> None:  # noqa: ARG002 - what has ended is complete
        to_ns = min(to_ns, self.recorder.ended_ns)
        chunk = [readings for readings in self._chunk if readings.ts_ns <= to_ns]
        self._chunk = self._chunk[len(chunk) :]
        if chunk:
            rows = pa.Table.from_batches([telemetry_of(self.recorder.cluster, self._devices, chunk)])
            self.recorder.take("telemetry", rows.filter(compute.is_in(rows["gpu"], pa.array(self._chosen_gpus))))
        self._take_nodes(to_ns)
        self.recorder.flush()
