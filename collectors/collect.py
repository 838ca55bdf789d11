"""A collector: a backend, a store with the journal of this node, and the loop between them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError, StoreError
from ..store.events import Event
from ..store.system import children
from ..store.vocabulary import EventKind
from .backend import Backend, Device, find_backend, find_source
from .sampler import Aside, Counts, Recorder, Sampler, Sampling

if TYPE_CHECKING:
    from ..store.journal import Journal
    from .recording import StoreRecorder

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 86_400.0
_LEAST_HUNG_S = 0.1  # busy machines keep a call waiting for that long
_NICE = -10
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
            raise InputError(f"a driver call of {self.hung_s:g} s may be normal: give hung={_LEAST_HUNG_S:g} or more")
        if self.duration_s is not None and self.duration_s <= 0:
            raise InputError(f"a duration of {self.duration_s:g} s is not possible; give a positive number of seconds")


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


class NodePart(Protocol):
    """A part of a node that is collected by itself: which devices, under which name, and who else hears of them."""

    def choose(self, backend: Backend) -> Backend:
        """What a backend shows of the part."""
        ...

    def claim(self, root: Path, devices: Sequence[Device]) -> list[Device]:
        """Those of the devices that nobody else collects into this store."""
        ...

    @property
    def journal(self) -> str:
        """The name of the journal for what was claimed."""
        ...

    def recorder(self, recorder: Recorder) -> Recorder:
        """What records the part, by means of another recorder."""
        ...


def _make(name: str, options: dict[str, Any], part: NodePart | None) -> Backend:
    backend = find_backend(name)(**options)
    return backend if part is None else part.choose(backend)


def open_backend(
    name: str,
    options: dict[str, Any],
    ended: Callable[[], bool] = lambda: False,
    *,
    patience_s: float = _OPENING_S,
    part: NodePart | None = None,
) -> tuple[Backend, list[Device]] | None:
    """A backend and its devices, or a part of them; None where `ended` came first.

    Raises InputError where it cannot be used, shows no GPU, or has not answered after `patience_s`.
    """
    backend = _make(name, options, part)
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


@dataclass
class Collecting:
    """A collector that is ready to run. `devices` are those that its backend showed when it was opened."""

    plan: Plan
    backend: Backend
    devices: Sequence[Device]
    journal: Journal
    sampler: Sampler
    asides: Sequence[Aside] = ()

    @classmethod
    def begin(
        cls,
        plan: Plan,
        options: dict[str, Any],
        *,
        ended: Callable[[], bool] = lambda: False,
        asides: Callable[[StoreRecorder, Backend], Sequence[Aside]] = lambda *_: (),
        part: NodePart | None = None,
    ) -> Collecting | None:
        """Open everything; `options` are the backend's own. None where `ended` says so before the driver answered.

        `asides` makes what is looked at besides the GPUs. `part`: collect this part of the node alone.

        Raises InputError and StoreError.
        """
        from ..store.journal import Journal
        from .recording import StoreRecorder

        given = {name: getattr(plan, name) for name in find_source(plan.backend).plan} | options
        opened = open_backend(plan.backend, given, ended, part=part)
        if opened is None:
            return None
        backend, devices = opened
        sampling = Sampling(plan.interval_s, plan.cluster, plan.node, slow_s=plan.slow_s, hung_s=plan.hung_s)
        with contextlib.ExitStack() as opening:
            opening.callback(backend.close)
            root = open_store(plan.store)
            if part is not None:
                devices = part.claim(root, devices)
            journal = Journal(root, plan.node if part is None else part.journal, durable_s=plan.durable_s)
            opening.callback(journal.close)
            stored = StoreRecorder(root, journal, cluster=plan.cluster, node=plan.node)
            recorder: Recorder = stored if part is None else part.recorder(stored)
            fresh = partial(_make, plan.backend, given, part)
            beside = asides(stored, backend)
            sampler = Sampler(backend, recorder, sampling, devices=devices, fresh=fresh, asides=beside)
            opening.pop_all()
        return cls(plan, backend, devices, journal, sampler, beside)

    def run(
        self,
        *,
        ended: Callable[[], bool],
        look: Callable[[], None],
        done: Callable[[Counts], None] = lambda _: None,
    ) -> Counts:
        """Collect until the duration is over or `ended` says so; then everything is flushed and sealed.

        `done` is called before it is sealed, which takes seconds.

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
            done(self.sampler.counts)
        except BaseException:
            self._close(failed=True)
            raise
        self._close(failed=False)
        if self.sampler.waiting_for_store:
            raise StoreError(f"the store {self.plan.store} does not answer; readings acknowledged before are stored")
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
