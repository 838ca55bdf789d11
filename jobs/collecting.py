"""Read this node's GPUs into a store until it is stopped, as `whorl collect` does.

ended = collect("fleet", duration=60, backend="simulated")
ended.counts.rows
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..store.instants import seconds_of

if TYPE_CHECKING:
    from ..collectors.collect import Collecting, Plan
    from ..collectors.recording import StoreRecorder
    from ..collectors.sampler import Aside, Counts
    from ..store import Store


@dataclass(frozen=True)
class Collected:
    """A collector that has ended."""

    counts: Counts
    """Of ticks, rows, missed ticks and events."""
    signal: int | None
    """What stopped it; None if its duration was over."""
    store: str
    collecting: Collecting | None = field(default=None, repr=False)
    """None if it was stopped before anything was read."""

    def document(self) -> dict[str, Any]:
        """What `whorl collect --json` prints."""
        stopped_by = None if self.signal is None else Signals(self.signal).name
        return {"schema": "whorl.collect/1", "store": self.store, **asdict(self.counts), "signal": stopped_by}


def collect(
    store: Store | str | Path,
    *,
    interval: float | str = 1.0,
    slow_interval: float | str = 10.0,
    duration: float | str | None = None,
    backend: str = "nvml",
    durable: float | str | None = None,
    cluster: str | None = None,
    node: str | None = None,
    hung: float | str | None = None,
    gpus: int | None = None,
    model: str | None = None,
    seed: int | None = None,
    host: str | None = None,
    socket: str | None = None,
    job: str | None = None,
    url: str | Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
    begun: Callable[[Collecting], None] | None = None,
    look: Callable[[], None] | None = None,
) -> Collected:
    """Read GPUs into a store until `duration` is over, or Ctrl-C, SIGTERM or SIGHUP.

    The arguments are the options of `whorl collect` (docs/cli.md); times are in s, or as "5min".
    `durable` is 0 for every tick. `tell` is called with a sentence if settings of a crashed process were restored,
    `begun` with the collector when it is ready, `look` after every tick.

    Raises InputError if there is no driver or GPU, or an option is not possible, and StoreError if the store cannot be
    written: acknowledged rows stay.
    """
    from ..collectors.collect import Collecting, Plan
    from ..collectors.dcgm.connection import Target
    from ..collectors.sampler import Counts
    from ..probes.restore import restore_left_over
    from ..store.names import this_cluster, this_node
    from ..store.system.signals import Noted

    urls = ((url,) if isinstance(url, str) else tuple(url)) or None
    given = {"gpus": gpus, "model": model, "seed": seed, "host": host, "socket": socket, "job": job, "url": urls}
    options = _own(backend, {name: value for name, value in given.items() if value is not None})
    if host is not None and node is None and not _is_here(Target(host).address() or host):
        raise InputError(f"--host {host} is another machine: also give --node, the name of the node with these GPUs")
    plan = Plan(
        store=str(store if isinstance(store, str | Path) else store.root),
        interval_s=seconds_of(interval),
        slow_s=seconds_of(slow_interval),
        duration_s=seconds_of(duration),
        backend=backend,
        durable_s=seconds_of(durable),
        hung_s=seconds_of(hung),
        cluster=cluster or this_cluster(),
        node=node or this_node(),
    )
    for sentence in restore_left_over() if backend == "nvml" else ():
        if tell is not None:
            tell(sentence)
    with Noted() as signals:
        try:
            collecting = Collecting.begin(
                plan, options, ended=lambda: bool(signals.came), asides=_asides(plan, options)
            )
        except InputError as error:
            if backend != "nvml":
                raise
            raise InputError(f"{error}; without GPUs, use --backend simulated") from error
        if collecting is None:
            return Collected(Counts(ticks=0, rows=0, missed=0, events=0), signals.came[0], plan.store)
        if begun is not None:
            begun(collecting)
        counts = collecting.run(ended=lambda: bool(signals.came), look=look or (lambda: None))
        return Collected(counts, signals.came[0] if signals.came else None, plan.store, collecting)


def _asides(plan: Plan, options: Mapping[str, Any]) -> Callable[[StoreRecorder], list[Aside]]:
    """What is looked at besides the GPUs of this machine: its kernel's log, its PCI bus, the jobs that it runs."""

    def make(recorder: StoreRecorder) -> list[Aside]:
        from ..collectors.expected_gpus import ExpectedGpus
        from ..collectors.job_labels import JobLabels
        from ..collectors.kernel_log import KernelLog
        from ..collectors.node_history import NodeHistory
        from ..store.system import children

        if plan.backend not in ("nvml", "dcgm") or "host" in options:
            return []
        known = {"root": plan.store, "cluster": plan.cluster, "node": plan.node, "until_ns": time.time_ns()}
        history = NodeHistory(lambda: children.run("whorl.jobs.node_memory:remember_as_child", known))
        asides: list[Aside] = [KernelLog(), ExpectedGpus(history)]
        if plan.backend == "nvml":
            asides.append(JobLabels(recorder, history, cluster=plan.cluster, node=plan.node, interval_s=plan.slow_s))
        return asides

    return make


def _own(backend: str, options: dict[str, Any]) -> dict[str, Any]:
    """These options, where the backend knows them all and has those that it needs."""
    from ..collectors.backend import BACKENDS, find_source

    source = find_source(backend)
    for name in options:
        if name not in source.options:
            knowing = " or ".join(other for other, row in BACKENDS.items() if name in row.options)
            raise InputError(f"--{name} works only with --backend {knowing}")
    for name in source.needs:
        if not options.get(name):
            raise InputError(f"--backend {backend} needs --{name}; see whorl collect --help")
    if "host" in options and "socket" in options:
        raise InputError("--host and --socket are two ways to one engine: give one of them")
    return options


def _is_here(host: str) -> bool:
    """Whether HOST or HOST:PORT is this machine."""
    from ..store.names import this_host

    named = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    name = named.strip("[]").lower()
    own = this_host().lower()
    return name in {"localhost", "::1", own, own.partition(".")[0]} or name.startswith("127.")
