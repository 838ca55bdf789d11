"""Read this node's GPUs into a store until it is stopped, as `whorl collect` does.

ended = collect("fleet", CollectOptions(duration=60, backend="simulated"))
ended.counts.rows
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..store.instants import seconds_of
from ..store.names import this_cluster, this_host, this_node
from ..store.system.signals import ENDING, Noted
from .allocation import current_job
from .job_readings import GpusTakenError, JobPart, document
from .sampler import Counts

if TYPE_CHECKING:
    from ..store import Store
    from .allocation import CurrentJob
    from .backend import Backend
    from .collect import Collecting, Plan
    from .job_readings import GpuSummary
    from .recording import StoreRecorder
    from .sampler import Aside

_WARNINGS = (SIGUSR1, SIGUSR2)
_OF_BACKENDS = ("gpus", "model", "seed", "host", "socket", "url")


@dataclass(frozen=True)
class CollectOptions:
    """The options of `whorl collect` (docs/cli.md); times are in s, or as "5min"."""

    for_job: bool = False
    """Only the GPUs of the job in which this process runs, without a store into a folder of the job's own."""
    interval: float | str = 1.0
    slow_interval: float | str = 10.0
    duration: float | str | None = None
    backend: str = "nvml"
    durable: float | str | None = None
    """0 for every tick."""
    cluster: str | None = None
    node: str | None = None
    hung: float | str | None = None
    node_power: bool = True
    """Also the power of the node, where a meter shows it."""
    gpus: int | None = None
    model: str | None = None
    seed: int | None = None
    host: str | None = None
    socket: str | None = None
    url: str | Sequence[str] = ()

    def of_backend(self) -> dict[str, Any]:
        """The options of the backend that are set. Raises InputError where it does not know one or lacks one."""
        from .backend import BACKENDS, find_source

        urls = ((self.url,) if isinstance(self.url, str) else tuple(self.url)) or None
        pairs = {**{name: getattr(self, name) for name in _OF_BACKENDS}, "url": urls}
        options = {name: setting for name, setting in pairs.items() if setting is not None}
        source = find_source(self.backend)
        for name in options:
            if name not in source.options:
                knowing = " or ".join(backend for backend, row in BACKENDS.items() if name in row.options)
                raise InputError(f"{name} works only with --backend {knowing}")
        for name in source.needs:
            if not options.get(name):
                raise InputError(f"--backend {self.backend} needs more: {self.backend}:{name}=...")
        if "host" in options and "socket" in options:
            raise InputError("host and socket are two ways to one engine: give one of them")
        return options


@dataclass(frozen=True)
class CollectHooks:
    """What is called meanwhile; each may be left out."""

    tell: Callable[[str], None] | None = None
    """With a sentence about what is not as one may think."""
    restore: Callable[[], Sequence[str]] | None = None
    """Before the GPUs of a driver are read, but for a job: puts back settings that a crashed process left, and gives
    sentences about them."""
    begun: Callable[[Collecting], None] | None = None
    """With the collector when it is ready."""
    look: Callable[[], None] | None = None
    """After every tick."""
    done: Callable[[Collected], None] | None = None
    """When all is read, before it is sealed."""
    ended: Callable[[], bool] | None = None
    """Asked twice a second whether to end; then signals are the caller's."""

    def say(self, sentence: str | None) -> None:
        """Tell a sentence, if there is one."""
        if self.tell is not None and sentence is not None:
            self.tell(sentence)


@dataclass(frozen=True)
class CollectedJob:
    """What was read of this job's GPUs on this node."""

    batch_job: CurrentJob
    node: str
    gpus: Sequence[GpuSummary]

    @property
    def about(self) -> dict[str, Any]:
        """The job, for programs."""
        job = self.batch_job
        return {"scheduler": job.scheduler, "job_id": job.job_id, "restarts": job.restarts, "node": self.node}


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
    job: CollectedJob | None = None
    """The job whose GPUs were read; None where all of the node were."""

    def document(self) -> dict[str, Any]:
        """What `whorl collect --json` prints."""
        stopped_by = None if self.signal is None else Signals(self.signal).name
        if self.job is not None:
            about = {**self.job.about, "store": self.store, **asdict(self.counts), "signal": stopped_by}
            return document(self.job.gpus, **about)
        return {"schema": "whorl.collect/1", "store": self.store, **asdict(self.counts), "signal": stopped_by}


def collect(
    store: Store | str | Path | None = None,
    options: CollectOptions | None = None,
    hooks: CollectHooks | None = None,
) -> Collected:
    """Read GPUs into a store until the duration is over, or Ctrl-C, SIGTERM or SIGHUP.

    Raises InputError if there is no driver or GPU, or an option is not possible, and StoreError if the store cannot be
    written: acknowledged rows stay.
    """
    from .collect import Collecting

    options, hooks = options or CollectOptions(), hooks or CollectHooks()
    of_backend = options.of_backend()
    batch_job = current_job() if options.for_job else None
    plan = _plan(store, options, batch_job)
    if hooks.restore is not None and options.backend == "nvml" and not options.for_job:
        for sentence in hooks.restore():
            hooks.say(sentence)
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(JobPart(plan.node)) if options.for_job else None
        came: list[int] = []
        if hooks.ended is None:
            # What a job is warned with before its end (Slurm's --signal) would end a collector without a word.
            came = stack.enter_context(Noted((*ENDING, *_WARNINGS) if options.for_job else ENDING)).came

        def is_over() -> bool:
            return bool(hooks.ended and hooks.ended()) or any(number in ENDING for number in came)

        def collected(counts: Counts) -> Collected:
            stopped_by = next((number for number in came if number in ENDING), None)
            job = None
            if part is not None and batch_job is not None:
                job = CollectedJob(batch_job, plan.node, part.summaries())
            return Collected(counts, stopped_by, plan.store, collecting, job)

        def finish(counts: Counts) -> None:
            if hooks.done is not None:
                hooks.done(collected(counts))

        try:
            asides = _asides(plan, of_backend, options) if part is None else lambda *_: []
            collecting = Collecting.begin(plan, of_backend, ended=is_over, asides=asides, part=part)
        except GpusTakenError as error:  # no failure: of the tasks of a node one is enough
            collecting = None
            hooks.say(str(error))
        except InputError as error:
            if options.backend != "nvml":
                raise
            raise InputError(f"{error}; without GPUs, use --backend simulated") from error
        if collecting is None:
            return collected(Counts(ticks=0, rows=0, missed=0, events=0))
        hooks.say(part.note if part is not None else None)
        if hooks.begun is not None:
            hooks.begun(collecting)
        return collected(collecting.run(ended=is_over, look=hooks.look or (lambda: None), done=finish))


def _plan(store: Store | str | Path | None, options: CollectOptions, batch_job: CurrentJob | None) -> Plan:
    """What to read into which store. Raises InputError where options do not go together."""
    from .collect import Plan
    from .dcgm.connection import engine_address

    host = options.host
    if host is not None and options.node is None and not _is_here(engine_address(host)):
        raise InputError(
            f"the engine at {host} is another machine: also give --node, the name of the node with these GPUs"
        )
    if store is None:
        if batch_job is None:
            raise InputError("--store is missing: give the folder of a store")
        store = batch_job.folder
    if options.for_job and options.backend == "prometheus":
        raise InputError("--for-job reads the GPUs of this node: use --backend nvml, dcgm or simulated")
    return Plan(
        store=str(store if isinstance(store, str | Path) else store.root),
        interval_s=seconds_of(options.interval),
        slow_s=seconds_of(options.slow_interval),
        duration_s=seconds_of(options.duration),
        backend=options.backend,
        durable_s=seconds_of(options.durable),
        hung_s=seconds_of(options.hung),
        cluster=options.cluster or this_cluster(),
        node=options.node or this_node(),
    )


def _asides(
    plan: Plan, of_backend: Mapping[str, Any], options: CollectOptions
) -> Callable[[StoreRecorder, Backend], list[Aside]]:
    """What is looked at besides the GPUs of this machine: its kernel's log, its PCI bus, its jobs, its power."""

    def make(recorder: StoreRecorder, backend: Backend) -> list[Aside]:
        from ..store.system import children
        from .expected_gpus import ExpectedGpus
        from .job_labels import JobLabels
        from .kernel_log import KernelLog
        from .node_history import NodeHistory
        from .node_power import NodePower, node_meters
        from .simulated import Simulated, SimulatedMeter

        here: dict[str, Any] = {"cluster": plan.cluster, "node": plan.node, "interval_s": plan.slow_s}
        if isinstance(backend, Simulated):
            return [NodePower(recorder, [SimulatedMeter(backend)], **here)] if options.node_power else []
        if plan.backend not in ("nvml", "dcgm") or "host" in of_backend:
            return []
        node = {"root": plan.store, "cluster": plan.cluster, "node": plan.node, "until_ns": time.time_ns()}
        history = NodeHistory(lambda: children.run("whorl.collectors.node_memory:remember_as_child", node))
        asides: list[Aside] = [KernelLog(), ExpectedGpus(history)]
        if plan.backend == "nvml":
            asides.append(JobLabels(recorder, history, **here))
        if options.node_power:
            asides.append(NodePower(recorder, list(node_meters().values()), **here))
        return asides

    return make


def _is_here(host: str) -> bool:
    """Whether HOST or HOST:PORT is this machine."""
    address = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    name = address.strip("[]").lower()
    here = this_host().lower()
    return name in {"localhost", "::1", here, here.partition(".")[0]} or name.startswith("127.")
