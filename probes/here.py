"""Probes on the GPUs of this node: the list of GPUs, and a campaign over them with telemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..kernels.cupy_device import Unusable
    from ..kernels.device import Device
    from ..store import Store
    from ..store.journal_file import Ticks
    from .campaign import Plan, Progress, Report
    from .watch import Recent


class Local(list["Device"]):
    """GPUs of this node, and those among them that are shown and cannot be used."""

    def __init__(self, usable: Iterable[Device], unusable: Iterable[Unusable] = ()) -> None:
        super().__init__(usable)
        self.unusable = list(unusable)


def local_devices(*, tell: Callable[[str], None] | None = None) -> Local:
    """The GPUs that CUDA shows here. InputError or DeviceError where there is none that can be used.

    Settings that a crashed process left behind are restored first; `tell` hears of each.
    """
    from ..kernels.cupy_device import cupy_devices
    from .restore import restore_left_over

    for sentence in restore_left_over():
        if tell is not None:
            tell(sentence)
    unusable: list[Unusable] = []
    return Local(cupy_devices(None, unusable), unusable)


def choose(devices: Sequence[Device], names: Sequence[str]) -> Local:
    """The devices of these names (see `find_gpu`) or indices, all where none is named.

    InputError for one that is not there or that fits several, DeviceError where none of those named can be used.
    """
    from ..errors import DeviceError
    from ..store.names import find_gpu, gpu_name

    if not names:
        return devices if isinstance(devices, Local) else Local(devices)
    picked = Local(())
    good = {one.facts.gpu: one for one in devices}
    bad = {one.gpu or f"index {one.ordinal}": one for one in _unusable(devices)}
    known = {gpu: (gpu_name(gpu, one.facts.node, one.facts.index), str(one.facts.index)) for gpu, one in good.items()}
    known |= {gpu: (gpu, str(one.ordinal)) for gpu, one in bad.items() if gpu not in good}
    for name in names:
        gpu = find_gpu(name, known)
        if gpu in good:
            picked += [good[gpu]] if good[gpu] not in picked else []
        elif bad[gpu] not in picked.unusable:
            picked.unusable.append(bad[gpu])
    if not picked:
        raise DeviceError(picked.unusable[0].says)
    return picked


def _unusable(devices: Sequence[Device]) -> list[Unusable]:
    return devices.unusable if isinstance(devices, Local) else []


def here(
    store: Store,
    devices: Sequence[Device],
    plan: Plan,
    *,
    cluster: str | None = None,
    exclusive: bool = False,
    lock_clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a plan on these GPUs of this node; of those that cannot be used (`Local`) the report says why.

    DeviceError where `exclusive` and another process is on one of them, InputError for a clock or limit that cannot
    be set, StoreError where the store takes no more.
    """
    from ..collectors.nvml_settings import settings_of
    from ..collectors.recording import identify
    from ..errors import InputError
    from ..store.events import Event
    from ..store.names import this_cluster
    from ..store.vocabulary import EventKind
    from .conditions import Setting
    from .node import NodeWatch, free_name, refuse_shared
    from .recording import Recorder, identity_of
    from .running import FAST_S, INTERVAL_S, Through, recent, run_here
    from .settings import Settings

    cluster = cluster or this_cluster()
    if exclusive:
        refuse_shared(devices)
    gpus = [device.facts.gpu for device in devices]
    nodes = {device.facts.gpu: device.facts.node for device in devices}
    node = devices[0].facts.node
    memory: list[Recent] = []
    notes: list[str] = []
    watch: NodeWatch | None = None

    def feed(ticks: Ticks) -> None:
        for one in memory:
            one.feed(ticks)

    def pace(fast: bool) -> None:
        if watch is not None:
            watch.pace(FAST_S if fast else INTERVAL_S)

    def tell(event: Event) -> None:
        recorder.event(replace(event, ts_ns=devices[0].now_ns(), node=nodes.get(event.gpu or "", node)))

    unusable = {one.gpu or f"CUDA device {one.ordinal}": one for one in _unusable(devices)}
    with ExitStack() as stack:
        # One file of runs for the whole job: until it ends they are in a journal, from which every reader takes them.
        journal = stack.enter_context(store.journal(free_name(store, f"{node}.runs"), background=False))
        recorder = Recorder(store, cluster=cluster, campaign=plan.campaign, journal=journal)
        stack.callback(recorder.flush)  # that the settings were restored is an event as well
        for one in unusable.values():
            tell(Event(EventKind.PROBE_FAILED, one.gpu, one.says))
        names: dict[str, str | None] = dict.fromkeys(gpus)
        # The watch comes first: the identities that it stores hold the limits as they were before.
        try:
            watch = stack.enter_context(NodeWatch(feed, store, node=node, cluster=cluster, interval_s=INTERVAL_S))
            names = {gpu: watch.telemetry_of(gpu) for gpu in gpus}
            notes += watch.notes
        except InputError as error:
            notes.append(f"{error}: the probes ran without telemetry")
            identities = [identity_of(device.facts) for device in devices]
            identify(store, identities, cluster, node, devices[0].now_ns())
        changed = stack.enter_context(
            Settings(gpus, lock_clock_mhz=lock_clock_mhz, power_limit_w=power_limit_w, tell=tell)
        )
        settings = {
            gpu: Setting(plan.neighbours, changed.locked_clock_mhz(gpu), power_limit_w, settings_of(gpu))
            for gpu in gpus
        }
        known = recent(plan, list(dict.fromkeys(name for name in names.values() if name)), FAST_S, pace)
        memory.append(known)
        report = run_here(
            store,
            devices,
            Through(known, names),
            plan,
            cluster=cluster,
            settings=settings,
            progress=progress,
            recorder=recorder,
        )
    report.notes += notes
    report.failures |= {name: one.says for name, one in unusable.items()}
    return report
