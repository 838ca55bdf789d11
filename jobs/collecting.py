"""Read this node's GPUs into a store until it is stopped, as `whorl collect` does.

ended = collect("fleet", duration=60, backend="simulated")
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
from .job_summary import document

if TYPE_CHECKING:
    from ..collectors.collect import Collecting, Plan
    from ..collectors.recording import StoreRecorder
    from ..collectors.sampler import Aside, Counts
    from ..store import Store
    from .allocation import CurrentJob
    from .job_summary import GpuSummary

_WARNINGS = (SIGUSR1, SIGUSR2)


@dataclass(frozen=True)
class CollectedJob:
    """What was read of this job's GPUs on this node."""

    batch_job: CurrentJob
    node: str
    gpus: Sequence[GpuSummary]

    @property
    def about(self) -> dict[str, Any]:
        """The job, for programs."""
        return {
            "scheduler": self.batch_job.scheduler,
            "job_id": self.batch_job.job_id,
            "restarts": self.batch_job.restarts,
            "node": self.node,
        }


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
    *,
    for_job: bool = False,
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
    done: Callable[[Collected], None] | None = None,
    ended: Callable[[], bool] | None = None,
) -> Collected:
    """Read GPUs into a store until `duration` is over, or Ctrl-C, SIGTERM or SIGHUP.

    The arguments are the options of `whorl collect` (docs/cli.md); times are in s, or as "5min".
    `durable` is 0 for every tick. `tell` is called with a sentence if settings of a crashed process were restored,
    `begun` with the collector when it is ready, `look` after every tick, `done` when all is read, before it is sealed.

    With `for_job` only the GPUs of the job in which this process runs are read, without `store` into a folder of the
    job's own; no settings are restored. With `ended`, which is asked twice a second, signals are the caller's.

    Raises InputError if there is no driver or GPU, or an option is not possible, and StoreError if the store cannot be
    written: acknowledged rows stay.
    """
    from ..collectors.collect import Collecting, Plan
    from ..collectors.dcgm.connection import engine_address
    from ..collectors.sampler import Counts
    from ..probes.restore import restore_left_over
    from ..store.names import this_cluster, this_node
    from ..store.system.signals import ENDING, Noted
    from .allocation import current_job
    from .job_part import GpusTakenError, JobPart

    urls = ((url,) if isinstance(url, str) else tuple(url)) or None
    given = {"gpus": gpus, "model": model, "seed": seed, "host": host, "socket": socket, "job": job, "url": urls}
    options = _own(backend, {name: value for name, value in given.items() if value is not None})
    if host is not None and node is None and not _is_here(engine_address(host)):
        raise InputError(f"--host {host} is another machine: also give --node, the name of the node with these GPUs")
    batch_job = current_job() if for_job else None
    if store is None:
        if batch_job is None:
            raise InputError("--store is missing: give the folder of a store")
        store = batch_job.folder
    if for_job and backend == "prometheus":
        raise InputError("--for-job reads the GPUs of this node: use --backend nvml, dcgm or simulated")
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
    for sentence in restore_left_over() if backend == "nvml" and not for_job else ():
        if tell is not None:
            tell(sentence)
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(JobPart(plan.node)) if for_job else None
        came: list[int] = []
        if ended is None:
            # What a job is warned with before its end (Slurm's --signal) would end a collector without a word.
            came = stack.enter_context(Noted((*ENDING, *_WARNINGS) if for_job else ENDING)).came

        def is_over() -> bool:
            return bool(ended and ended()) or any(number in ENDING for number in came)

        try:
            asides = _asides(plan, options) if part is None else lambda _: []
            collecting = Collecting.begin(plan, options, ended=is_over, asides=asides, part=part)
        except GpusTakenError as error:  # no failure: of the tasks of a node one is enough
            collecting = None
            if tell is not None:
                tell(str(error))
        except InputError as error:
            if backend != "nvml":
                raise
            raise InputError(f"{error}; without GPUs, use --backend simulated") from error

        def collected(counts: Counts) -> Collected:
            stopped_by = next((number for number in came if number in ENDING), None)
            own = None
            if part is not None and batch_job is not None:
                own = CollectedJob(batch_job, plan.node, part.summaries())
            return Collected(counts, stopped_by, plan.store, collecting, own)

        if collecting is None:
            return collected(Counts(ticks=0, rows=0, missed=0, events=0))
        if part is not None and part.note is not None and tell is not None:
            tell(part.note)
        if begun is not None:
            begun(collecting)
        counts = collecting.run(
            ended=is_over,
            look=look or (lambda: None),
            done=(lambda counts: done(collected(counts))) if done is not None else (lambda _: None),
        )
        return collected(counts)


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
