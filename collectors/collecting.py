"""A collector: a backend, a store with the journal of this node, and the sampler between them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import re
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, StoreError
from ..store.events import Event
from ..store.system import children
from ..store.system.processes import give_back
from ..store.vocabulary import EventKind
from .backends import BACKENDS, Backend, Stream, find_backend, find_source, find_stream

if TYPE_CHECKING:
    from ..store.journal import Journal
    from .recording import StoreRecorder
    from .sampler import Sampler
    from .streaming import Streamer
    from .watching import Counts

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 86_400.0
_LEAST_HUNG_S = 0.1  # busy machines keep a call waiting for that long
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's mallopt(3)
_LARGE = 32_768  # bytes
_NICE = -10
_SLICE_NS = 100_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "ppc64le": 355}  # its number: no C library has the function
_OPENING_S = 120.0  # the first look at a GPU whose driver state is not kept takes seconds
_QUIET_S = 10.0  # after this, who waits is told


@dataclass(frozen=True)
class Plan:
    """What to collect, and how."""

    store: str
    interval_s: float = 1.0
    slow_s: float = 10.0
    duration_s: float | None = None
    backend: str = "nvml"
    durable_s: float | None = None
    hung_s: float | None = None
    cluster: str = "local"
    node: str = "local"

    def __post_init__(self) -> None:
        if self.interval_s < LEAST_INTERVAL_S:
            raise InputError(
                f"an interval of {self.interval_s:g} s is too short: no power sensor has a new value more often than "
                f"every {LEAST_INTERVAL_S:g} s; give {LEAST_INTERVAL_S:g} or more"
            )
        if self.interval_s > MOST_INTERVAL_S:
            raise InputError(f"an interval of {self.interval_s:g} s is too long; give {MOST_INTERVAL_S:g} or less")
        if not _NAME.fullmatch(self.node):
            raise InputError(f"{self.node!r} is not a valid node name: use letters, digits, '.', '_' and '-'")
        if self.hung_s is not None and self.hung_s < _LEAST_HUNG_S:
            raise InputError(f"a driver call of {self.hung_s:g} s may be normal: give --hung {_LEAST_HUNG_S:g} or more")
        if self.duration_s is not None and self.duration_s <= 0:
            raise InputError(f"a duration of {self.duration_s:g} s is not possible; give a positive number of seconds")


def stay_small(backend: str) -> None:
    """Spend a node's memory sparingly: for a process that does nothing but collect, before pyarrow is imported.

    Each thread with a heap of its own, and an allocator that keeps what was freed, cost 15 MB and bring nothing here;
    so do NumPy's threads for linear algebra, 0.4 MB for every core of the node.
    The NVML bindings leave 12 MB of freed memory behind: imported first, it is given back before anything lies on top.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with contextlib.suppress(OSError, AttributeError):  # no glibc: it is left as it is
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    if backend == "nvml":
        with contextlib.suppress(ImportError):  # opening the backend says so
            import_module("pynvml")
    give_back()


def be_prompt() -> None:
    """Read when it is time, also on a busy node: for a process that does nothing but collect, before it has threads.

    Where the system allows it (root, or CAP_SYS_NICE) the process goes before others, by nice -10: it needs 1 % of a
    core. Where the kernel (6.12) gives short slices of time to those who ask, it asks: who wants little is served
    sooner. A priority that somebody gave it stays as it is.
    """
    sys.setswitchinterval(0.0005)  # s that publishing may keep the interpreter from reading
    if platform.system() != "Linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: size, policy, flags, nice, priority, and as its runtime the slice. Older kernels ignore it.
        wanted = struct.pack("<IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, wanted, 0)


def open_backend(
    name: str, options: dict[str, Any], ended: Callable[[], bool] = lambda: False, *, patience_s: float = _OPENING_S
) -> Backend | None:
    """The backend, opened; None where `ended` came first. Raises InputError where it cannot be, or takes minutes."""
    backend = find_backend(name)(**options)
    if not _opened(name, backend, ended, patience_s):
        return None
    if not backend.devices():
        reasons = [event.detail for event in backend.happened()]
        backend.close()
        raise InputError(": ".join([f"backend {name} shows no GPU on this machine", *reasons[:1]]))
    return backend


def open_stream(
    name: str, options: dict[str, Any], ended: Callable[[], bool] = lambda: False, *, patience_s: float = _OPENING_S
) -> Stream | None:
    """The same of a stream, which itself says so where it shows no GPU."""
    stream = find_stream(name)(**options)
    return stream if _opened(name, stream, ended, patience_s) else None


def _opened(name: str, source: Backend | Stream, ended: Callable[[], bool], patience_s: float) -> bool:
    """Open it in a thread of its own: a driver or an engine that hangs must not keep anybody from giving up."""
    failure: list[BaseException] = []

    def attempt() -> None:
        try:
            source.open()
        except BaseException as error:
            failure.append(error)

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
            return False
    if thread.is_alive():
        what = "it" if BACKENDS[name].streams else "the driver"
        check = "the engine or the network" if BACKENDS[name].streams else "the driver"
        raise InputError(f"backend {name}: {what} has not answered for {patience_s:.0f} s; check {check} and try again")
    if failure:
        raise failure[0]
    return True


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


@dataclass
class Collecting:
    """A collector that is ready to run."""

    plan: Plan
    backend: Backend | Stream
    journal: Journal
    sampler: Sampler | Streamer

    @classmethod
    def begin(
        cls, plan: Plan, options: dict[str, Any], *, ended: Callable[[], bool] = lambda: False
    ) -> Collecting | None:
        """Open everything; `options` are the backend's own. None where `ended` says so before the driver answered.

        Raises InputError and StoreError.
        """
        from ..store.journal import Journal
        from .recording import StoreRecorder

        source = find_source(plan.backend)
        given = {name: getattr(plan, name) for name in source.plan} | options
        opener: Callable[..., Backend | Stream | None] = open_stream if source.streams else open_backend
        backend = opener(plan.backend, given, ended)
        if backend is None:
            return None
        try:
            root = open_store(plan.store)
            journal = Journal(root, plan.node, durable_s=plan.durable_s)
            try:
                recorder = StoreRecorder(root, journal, cluster=plan.cluster, node=plan.node)
                sampler = _loop(plan, backend, recorder, given)
            except BaseException:
                journal.close()
                raise
        except BaseException:
            backend.close()
            raise
        return cls(plan, backend, journal, sampler)

    def run(self, *, ended: Callable[[], bool], look: Callable[[], None]) -> Counts:
        """Collect until the duration is over or `ended` says so; then everything is flushed and sealed.

        Raises StoreError where the store takes no more: what it acknowledged stays.
        """
        try:
            every = self.plan.interval_s
            detail = f"{self.backend.name}, every {every:g} s"
            self.sampler.tell(Event(EventKind.COLLECT_BEGAN, None, detail, duration_ns=round(every * 1e9)))
            counts = self.sampler.run(self.plan.duration_s, ended=ended, look=look)
            if not self.sampler.waiting_for_store:
                detail = f"{counts.ticks} ticks read, {counts.missed} missed"
                self.sampler.tell(Event(EventKind.COLLECT_ENDED, None, detail, n=counts.ticks))
                self.sampler.write_events()
        except BaseException:
            self._close(failed=True)
            raise
        self._close(failed=False)
        if self.sampler.waiting_for_store:
            raise StoreError(f"the store {self.plan.store} does not answer; readings acknowledged before are stored")
        return self.sampler.counts

    def _close(self, *, failed: bool) -> None:
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


def _loop(plan: Plan, source: Any, recorder: StoreRecorder, given: dict[str, Any]) -> Sampler | Streamer:
    """The loop that reads a backend or a stream, which is open."""
    common: dict[str, Any] = {
        "interval_s": plan.interval_s,
        "hung_s": plan.hung_s,
        "cluster": plan.cluster,
        "node": plan.node,
    }
    if find_source(plan.backend).streams:
        from .streaming import Streamer

        make = find_stream(plan.backend)
        return Streamer(source, lambda: make(**given), recorder, **common)
    from .sampler import Sampler

    return Sampler(source, recorder, slow_s=plan.slow_s, **common)
