"""Probes on the GPUs of this node: the list of GPUs, and a campaign over them in real time, with telemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING

from ..collectors.nvml_settings import settings_of
from ..collectors.recording import identify, short_hash
from ..errors import DeviceError, InputError
from ..kernels import cupy_device
from ..kernels.catalogue import find_kernel
from ..kernels.cupy_device import CupyDevice, Unusable
from ..kernels.device import Device, finish
from ..kernels.peers import open_peers
from ..kernels.work import Facts
from ..store.events import Event
from ..store.names import find_gpu, gpu_name, this_cluster
from ..store.vocabulary import EventKind
from .campaign import Campaign, Gpu, Plan, Progress, Report
from .catalogue import Kind, Probe
from .conditions import Setting, process_conditions
from .gpu_process import GpuProcess
from .meeting import Meeting
from .node_watch import NodeWatch, free_name, refuse_shared
from .recording import Recorder, identity_of, past_of
from .settings import Settings, restore_left_over
from .watch import FAST_S, INTERVAL_S, Recent, Watch, recent

if TYPE_CHECKING:
    from ..store import Store
    from ..store.journal_file import Ticks

_LOOK_S = 0.2  # between two looks whether the GPUs are done
_STAGES = {Kind.IDLE: 0, Kind.EXCHANGE: 2}  # while the GPUs are cool, and when each has done its part; else 1


class Local(list[Device]):
    """GPUs of this node, and those among them that are shown and cannot be used."""

    def __init__(self, usable: Iterable[Device], unusable: Iterable[Unusable] = ()) -> None:
        super().__init__(usable)
        self.unusable = list(unusable)


def local_devices(*, tell: Callable[[str], None] | None = None) -> Local:
    """The GPUs that CUDA shows here. InputError or DeviceError where there is none that can be used.

    Settings that a crashed process left behind are restored first; `tell` hears of each.
    """
    for sentence in restore_left_over():
        if tell is not None:
            tell(sentence)
    unusable: list[Unusable] = []
    return Local(cupy_device.cupy_devices(None, unusable), unusable)


def choose(devices: Sequence[Device], names: Sequence[str]) -> Local:
    """The devices of these names (see `find_gpu`) or indices, all where none is named.

    InputError for one that is not there or that fits several, DeviceError where none of those named can be used.
    """
    if not names:
        return devices if isinstance(devices, Local) else Local(devices)
    picked = Local(())
    good = {device.facts.gpu: device for device in devices}
    bad = {gpu.gpu or f"index {gpu.ordinal}": gpu for gpu in _unusable(devices)}
    names_of = {
        gpu: (gpu_name(gpu, device.facts.node, device.facts.index), str(device.facts.index))
        for gpu, device in good.items()
    }
    names_of |= {name: (name, str(gpu.ordinal)) for name, gpu in bad.items() if name not in good}
    for name in names:
        gpu = find_gpu(name, names_of)
        if gpu in good:
            picked += [good[gpu]] if good[gpu] not in picked else []
        elif bad[gpu] not in picked.unusable:
            picked.unusable.append(bad[gpu])
    if not picked:
        raise DeviceError(picked.unusable[0].says)
    return picked


def _unusable(devices: Sequence[Device]) -> list[Unusable]:
    return devices.unusable if isinstance(devices, Local) else []


def open_gpu(ordinal: int, gpu: str) -> CupyDevice:
    """The GPU with a number of CUDA's, in another process than the one that listed it. DeviceError where it differs."""
    (device,) = cupy_device.cupy_devices([ordinal])
    if device.facts.gpu != gpu:
        raise DeviceError(f"{gpu}: CUDA device {ordinal} is {device.facts.gpu} in its process", gone=True)
    return device


def run_plan(
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

    Each GPU has a process of its own; telemetry, settings and the store are here. The probes run in an order that
    follows from the campaign's name, idle ones first. DeviceError where `exclusive` and another process is on one of
    the GPUs, InputError for a clock or limit that cannot be set, StoreError where the store takes no more.
    """
    cluster = cluster or this_cluster()
    if exclusive:
        refuse_shared(devices)
    plan = replace(plan, probes=shuffled(plan.probes, plan.campaign))
    gpus = [device.facts.gpu for device in devices]
    nodes = {device.facts.gpu: device.facts.node for device in devices}
    node = devices[0].facts.node
    memory: list[Recent] = []
    notes: list[str] = []
    reader: NodeWatch | None = None

    def feed(ticks: Ticks) -> None:
        for watch in memory:
            watch.feed(ticks)

    def pace(fast: bool) -> None:
        if reader is not None:
            reader.pace(FAST_S if fast else INTERVAL_S)

    def tell(event: Event) -> None:
        recorder.event(replace(event, ts_ns=devices[0].now_ns(), node=nodes.get(event.gpu or "", node)))

    unusable = {gpu.gpu or f"CUDA device {gpu.ordinal}": gpu for gpu in _unusable(devices)}
    with ExitStack() as stack:
        # One file of runs for the whole job: until it ends they are in a journal, from which every reader takes them.
        journal = stack.enter_context(store.journal(free_name(store, f"{node}.runs"), background=False))
        recorder = Recorder(store, cluster=cluster, campaign=plan.campaign, journal=journal)
        stack.callback(recorder.flush)  # that the settings were restored is an event as well
        for gpu in unusable.values():
            tell(Event(EventKind.PROBE_FAILED, gpu.gpu, gpu.says))
        names: dict[str, str | None] = dict.fromkeys(gpus)
        # The watch comes first: the identities that it stores hold the limits as they were before.
        try:
            reader = stack.enter_context(NodeWatch(feed, store, node=node, cluster=cluster, interval_s=INTERVAL_S))
            names = {gpu: reader.telemetry_of(gpu) for gpu in gpus}
            notes += reader.notes
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
        watched = list(dict.fromkeys(name for name in names.values() if name))
        memory.append(recent(plan.probes, plan.asked, watched, interval_s=FAST_S, pace=pace, names=names))
        stored = past_of(store, cluster, gpus).runs_of(plan.campaign)
        campaign = Campaign(plan, recorder, find_kernel, stored, len(devices), progress=progress)
        processes = [
            GpuProcess(device.facts, (open_gpu, (device.ordinal, device.facts.gpu)))
            if isinstance(device, CupyDevice)
            else device
            for device in devices
        ]
        ordinals = {device.facts.gpu: device.ordinal for device in devices if isinstance(device, CupyDevice)}

        def together(gpus: Sequence[Facts]) -> GpuProcess:
            opener = (open_peers, ([ordinals[facts.gpu] for facts in gpus],))
            return GpuProcess(gpus[0], opener, name=f"the GPUs of {node} together")

        report = run_gpus(campaign, processes, memory[0], settings, together=together if ordinals else None)
    report.notes += [*notes, *sharing_notes(process_conditions(), settings)]
    report.failures |= {name: gpu.says for name, gpu in unusable.items()}
    return report


def sharing_notes(process: Mapping[str, object], settings: Mapping[str, Setting]) -> list[str]:
    """What people should know of how GPUs are shared and set: MPS, MIG, and variables that change results."""
    notes = []
    if process["mps"]:
        share = process["mps_share_pct"]
        part = "" if share is None else f", with {share:g} % of the threads of a GPU"
        notes.append(f"the probes ran through the MPS daemon of this node{part}: its other clients may share the GPUs")
    split = [gpu for gpu, setting in settings.items() if setting.more.get("mig")]
    if split:
        notes.append(f"in MIG mode, so that figures are those of a part of a GPU: {', '.join(split)}")
    if isinstance(variables := process["environment"], Mapping):
        notes.append(f"set in the environment, and may change results: {', '.join(variables)}")
    return notes


def shuffled(probes: Sequence[Probe], campaign: str) -> tuple[Probe, ...]:
    """The probes in an order that follows from the campaign's name, idle ones first, while the GPUs are cool, and those
    that all GPUs run together last.

    What a probe leaves behind (heat, a high clock) is then not always found by the same one; a campaign that goes on
    has the same order.
    """
    return tuple(sorted(probes, key=lambda probe: (_STAGES.get(probe.kind, 1), short_hash([campaign, probe.name]))))


def run_gpus(
    campaign: Campaign,
    gpus: Sequence[Gpu],
    watch: Watch,
    settings: Mapping[str, Setting],
    *,
    together: Callable[[Sequence[Facts]], GpuProcess] | None = None,
) -> Report:
    """Run a campaign on GPUs of this node, one after another or all at once, each from a thread of its own.

    `settings` are the conditions by GPU; `together` gives the process of several GPUs, for probes that need it.
    StoreError where the store takes no more, KeyboardInterrupt where somebody wants to stop: the GPUs end what they are
    at, and what is complete is stored.
    """
    recorder, report = campaign.recorder, campaign.report
    busy = campaign.plan.neighbours == "busy"
    meeting = Meeting([gpu.facts.gpu for gpu in gpus]) if busy else None
    errors: list[BaseException] = []

    def alone(gpu: Gpu) -> None:
        with attempt(), closing(gpu):
            finish(campaign.on(gpu, watch, settings[gpu.facts.gpu], meeting))

    def exchange() -> None:
        present = [gpu.facts for gpu in gpus if gpu.facts.gpu not in campaign.left_out]
        if together and present:
            with attempt(), closing(together(present)) as process:
                campaign.exchange(process, present, watch, settings)

    @contextmanager
    def attempt() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            errors.append(error)
            campaign.stop.set()

    def wait(threads: Sequence[Thread]) -> None:
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(_LOOK_S / len(threads))
            if recorder.due and not campaign.stop.is_set():
                recorder.flush()

    threads = [Thread(target=alone, args=(gpu,), daemon=True) for gpu in gpus]
    rounds = [threads] if busy else [[thread] for thread in threads]
    rounds.append([Thread(target=exchange, daemon=True)])
    report.began_ns = min(gpu.now_ns() for gpu in gpus)
    try:
        for at_once in rounds:
            if campaign.stop.is_set():
                break
            for thread in at_once:
                thread.start()
            wait(at_once)
    finally:
        campaign.stop.set()
        wait([thread for at_once in rounds for thread in at_once if thread.ident is not None])
        for gpu in gpus:
            gpu.close()
        report.ended_ns = max(gpu.now_ns() for gpu in gpus)
        recorder.flush()
        report.rows = recorder.rows
    if errors:
        raise errors[0]
    return report
