"""Read this node's GPUs into a store until it is stopped, as `whorl collect` does.

ended = collect("fleet", CollectOptions(duration=60, backend="simulated"))
ended.counts.rows

A collector is a backend, a store with the journal of this node, and the loop between them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from signal import SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any

from ..errors import InputError, StoreError
from ..store.events import Event
from ..store.instants import seconds_of
from ..store.names import this_cluster, this_host, this_node
from ..store.system import children
from ..store.system.signals import ENDING, Noted
from ..store.vocabulary import EventKind
from .allocation import current_job
from .backend import BACKENDS, Aside, Backend, Device, find_backend, options_of
from .job_readings import GpusTakenError, JobPart, JobRecorder, document
from .sampler import Counts, Sampler, Sampling

if TYPE_CHECKING:
    from ..store import Store
    from ..store.journal import Journal
    from .allocation import CurrentJob
    from .job_readings import GpuSummary
    from .recording import StoreRecorder

log = logging.getLogger(__name__)

_NICE = -10
_OPENING_S = 120.0  # the first look at a GPU whose driver state is not kept takes seconds
_QUIET_S = 10.0  # after this, who waits is told
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

    def sampling(self) -> Sampling:
        """How to read. Raises InputError where that is not possible."""
        return Sampling(
            seconds_of(self.interval),
            self.cluster or this_cluster(),
            self.node or this_node(),
            slow_s=seconds_of(self.slow_interval),
            hung_s=seconds_of(self.hung),
        )

    def of_backend(self) -> dict[str, Any]:
        """The options of the backend that are set. Raises InputError where it does not know one or lacks one."""
        urls = ((self.url,) if isinstance(self.url, str) else tuple(self.url)) or None
        pairs = {**{name: getattr(self, name) for name in _OF_BACKENDS}, "url": urls}
        options = {name: setting for name, setting in pairs.items() if setting is not None}
        taken = options_of(self.backend)
        for name in options:
            if name not in taken:
                knowing = " or ".join(backend for backend in BACKENDS if name in options_of(backend))
                raise InputError(f"{name} works only with --backend {knowing}")
        for name, needed in taken.items():
            if needed and not options.get(name):
                raise InputError(f"--backend {self.backend} needs more: {self.backend}:{name}=...")
        if "host" in options and "socket" in options:
            raise InputError("host and socket are two ways to one engine: give one of them")
        return options


@dataclass(frozen=True)
class CollectHooks:
    """What is called meanwhile; each may be left out."""

    tell: Callable[[str], None] = lambda _: None
    """With a sentence about what is not as one may think."""
    restore: Callable[[], Sequence[str]] = lambda: ()
    """Before the GPUs of a driver are read, but for a job: puts back settings that a crashed process left, and gives
    sentences about them."""
    begun: Callable[[Collecting], None] = lambda _: None
    """With the collector when it is ready."""
    look: Callable[[], None] | None = None
    """Twice a second."""
    done: Callable[[Collected], None] = lambda _: None
    """When all is read, before it is sealed."""
    ended: Callable[[], bool] | None = None
    """Asked before each tick, in another thread, and every other second whether to end; then signals are the
    caller's."""


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
    job: CurrentJob | None = None
    """The job whose GPUs were read; None where all of the node were."""
    node: str | None = None
    gpus: Sequence[GpuSummary] = ()
    """What was read of this job's GPUs on this node."""

    def document(self) -> dict[str, Any]:
        """What `whorl collect --json` prints."""
        stopped_by = None if self.signal is None else Signals(self.signal).name
        about = {"store": self.store, **asdict(self.counts), "signal": stopped_by}
        if self.job is None:
            return {"schema": "whorl.collect/1", **about}
        allocation = {"scheduler": self.job.scheduler, "job_id": self.job.job_id, "restarts": self.job.restarts}
        return document(self.gpus, **allocation, node=self.node, **about)


def collect(
    store: Store | str | Path | None = None, options: CollectOptions | None = None, hooks: CollectHooks | None = None
) -> Collected:
    """Read GPUs into a store until the duration is over, or Ctrl-C, SIGTERM or SIGHUP.

    Raises InputError if there is no driver or GPU, or an option is not possible, and StoreError if the store cannot be
    written: acknowledged rows stay.
    """
    options, hooks = options or CollectOptions(), hooks or CollectHooks()
    batch_job = current_job() if options.for_job else None
    _check(options)
    if store is None and batch_job is None:
        raise InputError("--store is missing: give the folder of a store")
    root = batch_job.folder if store is None and batch_job is not None else store
    path = str(root if isinstance(root, str | Path) or root is None else root.root)
    node = options.sampling().node
    if options.backend == "nvml" and not options.for_job:
        for sentence in hooks.restore():
            hooks.tell(sentence)
    with contextlib.ExitStack() as stack:
        part = stack.enter_context(JobPart(node)) if options.for_job else None
        came: list[int] = []
        if hooks.ended is None:
            # What a job is warned with before its end (Slurm's --signal) would end a collector without a word.
            came = stack.enter_context(Noted((*ENDING, *_WARNINGS) if options.for_job else ENDING)).came
        collecting: Collecting | None = None

        def is_over() -> bool:
            return bool(hooks.ended and hooks.ended()) or (bool(came) and any(number in ENDING for number in came))

        def collected(counts: Counts) -> Collected:
            stopped_by = next((number for number in came if number in ENDING), None)
            gpus = () if part is None else part.summaries()
            return Collected(counts, stopped_by, path, collecting, job=batch_job, node=node, gpus=gpus)

        try:
            collecting = Collecting.begin(path, options, ended=is_over, part=part)
        except GpusTakenError as error:  # no failure: of the tasks of a node one is enough
            hooks.tell(str(error))
        except InputError as error:
            if options.backend != "nvml":
                raise
            raise InputError(f"{error}; without GPUs, use --backend simulated") from error
        if collecting is None:
            return collected(Counts(ticks=0, rows=0, missed=0, events=0))
        if part is not None and part.note is not None:
            hooks.tell(part.note)
        hooks.begun(collecting)
        counts = collecting.run(ended=is_over, look=hooks.look, done=lambda counts: hooks.done(collected(counts)))
        return collected(counts)


def _check(options: CollectOptions) -> None:
    from .dcgm.connection import engine_address

    options.of_backend()
    options.sampling()
    duration_s = seconds_of(options.duration)
    if duration_s is not None and duration_s <= 0:
        raise InputError(f"a duration of {duration_s:g} s is not possible; give a positive number of seconds")
    if options.host is not None and options.node is None and not _is_here(engine_address(options.host)):
        raise InputError(
            f"the engine at {options.host} is another machine: also give --node, the name of the node with these GPUs"
        )
    if options.for_job and options.backend == "prometheus":
        raise InputError("--for-job reads the GPUs of this node: use --backend nvml, dcgm or simulated")


def _is_here(host: str) -> bool:
    address = host.rpartition(":")[0] if host.count(":") == 1 or "]:" in host else host
    name = address.strip("[]").lower()
    here = this_host().lower()
    return name in {"localhost", "::1", here, here.partition(".")[0]} or name.startswith("127.")


# -- the collector ----------------------------------------------------------------------------------------------------


def settle() -> None:
    """Spend little of a node, and read when it is time: for a process that does nothing but collect.

    Where the system allows it (root, or CAP_SYS_NICE) the process goes before others, by nice -10: it needs 1 % of a
    core. A priority that somebody gave it stays as it is.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else NumPy, where it is used, has one for each core
    sys.setswitchinterval(0.0005)  # s that another thread may keep the interpreter from reading
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def open_backend(
    name: str, options: dict[str, Any], ended: Callable[[], bool] = lambda: False, *, patience_s: float = _OPENING_S
) -> tuple[Backend, list[Device]] | None:
    """A backend and its devices; None where `ended` came first.

    Raises InputError where it cannot be used, shows no GPU, or has not answered after `patience_s`.
    """
    backend = find_backend(name)(**options)
    devices: list[Device] = []
    failure: list[BaseException] = []

    def attempt() -> None:
        try:
            devices.extend(backend.devices())
        except BaseException as error:
            failure.append(error)

    # A thread of its own: a driver or an engine that hangs must not keep anybody from giving up.
    thread = threading.Thread(target=attempt, name="whorl-opening", daemon=True)
    thread.start()
    began = time.monotonic()
    quiet_s = _QUIET_S
    while thread.is_alive() and (waited_s := time.monotonic() - began) < patience_s:
        if waited_s > quiet_s:
            quiet_s = patience_s
            log.warning("%s has not answered for %.0f s; waiting %.0f s at most", name, waited_s, patience_s)
        thread.join(0.1)
        if ended():
            return None
    if thread.is_alive():
        raise InputError(
            f"backend {name} has not answered for {patience_s:.0f} s; check the driver, the engine or the network, "
            "and try again"
        )
    if failure:
        raise failure[0]
    if not devices:
        backend.close()
        raise InputError(f"backend {name} shows no GPU on this machine")
    return backend, devices


def open_store(path: str) -> Path:
    """The folder of the store at `path`, made where there is none. Raises StoreError.

    A child opens it: making views takes DuckDB, what replaced files takes Arrow, and this process stays small.
    """
    from ..store.folder import checked_path

    root = checked_path(path)
    try:
        children.run("whorl.collectors.recording:make_as_child", {"path": path})
    except children.StartError:  # this one opens it then, and says what else is wrong
        from .recording import make_as_child

        make_as_child(path)
    return root


def _asides(options: CollectOptions, store: str, recorder: StoreRecorder, backend: Backend) -> list[Aside]:
    """What is looked at besides the GPUs of this machine: its kernel's log, its PCI bus, its jobs, its power."""
    from .job_labels import JobLabels
    from .kernel_log import KernelLog
    from .node_memory import ExpectedGpus, NodeHistory
    from .node_power import NodePower, node_meters
    from .simulated import Simulated, SimulatedMeter

    sampling = options.sampling()
    here: dict[str, Any] = {"cluster": sampling.cluster, "node": sampling.node}
    slowly: dict[str, Any] = {**here, "interval_s": sampling.slow_s}
    if isinstance(backend, Simulated):
        return [NodePower(recorder, SimulatedMeter(backend), **slowly)] if options.node_power else []
    if options.backend not in ("nvml", "dcgm") or options.host is not None:
        return []
    memory = {"root": store, **here, "until_ns": time.time_ns()}
    history = NodeHistory(lambda: children.run("whorl.collectors.node_memory:remember_as_child", memory))
    log_of_kernel = KernelLog()
    asides: list[Aside] = [ExpectedGpus(history), *([log_of_kernel] if log_of_kernel.readable else [])]
    if options.backend == "nvml":
        asides.append(JobLabels(recorder, history, **slowly))
    if options.node_power:
        asides += [NodePower(recorder, meter, **slowly) for meter in node_meters().values() if meter.reason is None]
    return asides


@dataclass
class Collecting:
    """A collector that is ready to run. `devices` are those that its backend showed when it was opened."""

    store: str
    sampling: Sampling
    duration_s: float | None
    backend: Backend
    devices: Sequence[Device]
    journal: Journal
    sampler: Sampler
    asides: Sequence[Aside]

    @classmethod
    def begin(
        cls, store: str, options: CollectOptions, *, ended: Callable[[], bool], part: JobPart | None = None
    ) -> Collecting | None:
        """Open everything; None where `ended` says so before the driver answered. `part`: collect this part alone.

        Raises InputError and StoreError.
        """
        from ..store.journal import Journal
        from .recording import StoreRecorder

        sampling = options.sampling()
        planned = {"node": sampling.node, "interval_s": sampling.interval_s, "slow_s": sampling.slow_s}
        taken = options_of(options.backend)
        backend_options = {name: planned[name] for name in planned if name in taken} | options.of_backend()
        opened = open_backend(options.backend, backend_options, ended)
        if opened is None:
            return None
        backend, devices = opened
        with contextlib.ExitStack() as opening:
            opening.callback(backend.close)
            root = open_store(store)
            if part is not None:
                devices = part.claim(root, part.among(devices))
            journal_name = sampling.node if part is None else part.journal
            journal = Journal(root, journal_name, durable_s=seconds_of(options.durable))
            opening.callback(journal.close)
            place = {"cluster": sampling.cluster, "node": sampling.node}
            if part is None:
                recorder = StoreRecorder(root, journal, **place)
                asides = _asides(options, store, recorder, backend)
            else:
                recorder, asides = JobRecorder(part.sums, root, journal, **place), []
                sampling = replace(sampling, among=part.among)
            fresh = partial(find_backend(options.backend), **backend_options)
            sampler = Sampler(backend, recorder, sampling, devices=devices, fresh=fresh, asides=asides)
            opening.pop_all()
        return cls(store, sampling, seconds_of(options.duration), backend, devices, journal, sampler, asides)

    def run(
        self, *, ended: Callable[[], bool], look: Callable[[], None] | None, done: Callable[[Counts], None]
    ) -> Counts:
        """Collect until the duration is over or `ended` says so; then everything is flushed and sealed.

        `done` is called before it is sealed, which takes seconds.

        Raises StoreError where the store takes no more: what it acknowledged stays.
        """
        try:
            interval_s = self.sampling.interval_s
            detail = f"{self.backend.name}, every {interval_s:g} s"
            self.sampler.tell(Event(EventKind.COLLECT_BEGAN, None, detail, duration_ns=round(interval_s * 1e9)))
            counts = self.sampler.run(self.duration_s, ended=ended, look=look)
            if not self.sampler.waiting_for_store:
                detail = f"{counts.ticks} ticks read, {counts.missed} missed"
                self.sampler.tell(Event(EventKind.COLLECT_ENDED, None, detail, n=counts.ticks))
                self.sampler.write_events()
            done(self.sampler.counts)
        except BaseException:
            self._close(failed=True)
            raise
        self._close(failed=False)
        if self.sampler.waiting_for_store:
            raise StoreError(f"the store {self.store} does not answer; readings acknowledged before are stored")
        return self.sampler.counts

    def _close(self, *, failed: bool) -> None:
        for aside in self.asides:
            aside.close()
        if self.sampler.waiting_for_store:
            return  # closing would wait with it
        try:
            self.journal.close()
        except StoreError as error:
            if not failed:
                raise
            log.debug("closing after a failure: %s", error)  # the first failure is reported
        finally:
            if not self.sampler.stuck_in:  # a driver in which a call hangs may keep us for ever
                self.sampler.close()

    def leave(self, status: int) -> None:
        """End the process at once where a driver call still hangs, as the driver may not let it end otherwise."""
        if self.sampler.stuck_in:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
