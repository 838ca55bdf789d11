"""Which job had which GPU, by the cgroups of the processes that NVML shows on it: rows of the table `jobs`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pynvml as nv

from ..store.events import Event
from ..store.vocabulary import GpuFrom, JobSource, TagState
from .backend import Aside
from .clock import Clock, SystemClock
from .kernel_log import text_in

if TYPE_CHECKING:
    from .backend import Device
    from .node_memory import NodeHistory

# Where Slurm has a folder for each job of the node, in cgroup v2 and v1: only root can make one there.
_FOLDERS = ("*.slice/*slurmstepd.scope/job_*", "*/slurm*/uid_*/job_*")
_JOB = re.compile(
    r"^[0-9]+:[^:\n]*:/(?:[^/\n]+\.slice/[^/\n]*slurmstepd\.scope|slurm[^/\n]*/uid_[0-9]+)/job_([0-9]{1,18})(?:/|$)",
    re.MULTILINE,
)
_START_TIME = 19  # the field `starttime` of /proc/PID/stat, counted from the one behind the name
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class RowRecorder(Protocol):
    """Where rows of tables go."""

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None: ...


@dataclass
class _TimeOnGpu:
    """A job on a GPU: whether others were there at the same time, and the busy time of it and of all then, any unit."""

    share: float | None = 1.0
    shared: bool = False
    busy: float = 0.0
    total: float = 0.0

    def add(self, busy: float, total: float) -> None:
        self.shared = True
        self.busy, self.total = self.busy + busy, self.total + total
        self.share = self.busy / self.total if self.total > 0 else None


@dataclass
class _LiveJob:
    allocation: str
    began_ns: int
    seen_ns: int
    uses: dict[str, _TimeOnGpu] = field(default_factory=dict)  # by GPU


class JobLabels(Aside):
    """Looks every `interval_s` seconds which Slurm jobs have processes on the GPUs.

    An allocation is a job on this node, from the start of its first process on a GPU to the last look at which it had a
    process there or a cgroup. It is recorded when it is first seen, when it has one GPU more, when another job comes to
    its GPU, and when it is over; at the end those that run are left running: the next collector of this node goes on.
    `proc` and `cgroups` are where these file systems are.
    """

    def __init__(
        self,
        recorder: RowRecorder,
        history: NodeHistory,
        *,
        cluster: str,
        node: str,
        interval_s: float = 10.0,
        proc: str = "/proc",
        cgroups: str = "/sys/fs/cgroup",
        clock: Clock | None = None,
    ) -> None:
        self._recorder, self._history = recorder, history
        self._cluster, self._node = cluster, node
        self.interval_s = interval_s
        self._proc, self._cgroups = Path(proc), Path(cgroups)
        self._clock = clock or SystemClock()
        self._sampled_us: dict[str, int] = {}  # by GPU: until when the driver's samples of busy time were read
        self._jobs: dict[str, _LiveJob] | None = None  # by job id; None: not known yet what ran before
        self._recorded_ns = 0

    def look(self, devices: Sequence[Device]) -> list[Event]:
        """Record what is there. There are no events."""
        if self._jobs is None:
            self._jobs = self._remembered()
        jobs, now_ns, parents = self._jobs, self._clock.wall(), {device.parent for device in devices}
        present = {path.name.removeprefix("job_") for folder in _FOLDERS for path in self._cgroups.glob(folder)}
        on_gpus = {device.gpu: self._processes(device.gpu) for device in devices if device.gpu not in parents}
        job_of = {process: self._job_of(process) for processes in on_gpus.values() for process in processes}
        changed: set[str] = set()
        for gpu, processes in on_gpus.items():
            busy = Counter[str]()
            for process, busy_time in processes.items():
                busy[job_of[process]] += busy_time
            present.update(busy)
            for job_id in filter(None, busy):
                if job_id not in jobs:
                    starts = [self._start_of(process) for process, job in job_of.items() if job == job_id]
                    began_ns = min([now_ns, *(start for start in starts if start is not None)])
                    jobs[job_id] = _LiveJob(f"{job_id}@{self._node}@{began_ns // 10**9}", began_ns, now_ns)
                uses, alone = jobs[job_id].uses, len(busy) == 1
                if gpu not in uses or not (alone or uses[gpu].shared):
                    changed.add(job_id)
                use = uses.setdefault(gpu, _TimeOnGpu())
                if not alone:
                    use.add(busy[job_id], sum(busy.values()))
        for job_id in list(jobs):
            if job_id not in present:
                self._record(job_id, jobs.pop(job_id), ended=True)
                continue
            jobs[job_id].seen_ns = max(jobs[job_id].seen_ns, now_ns)
            if job_id in changed:
                self._record(job_id, jobs[job_id], ended=False)
        return []

    def _processes(self, gpu: str) -> dict[int, int]:
        """The processes on a GPU, and how busy each kept it since the last look, where the driver says that."""
        busy: dict[int, int] = {}
        try:
            handle = nv.nvmlDeviceGetHandleByUUID(gpu)
        except nv.NVMLError:
            return busy
        for function in _LISTS:
            try:
                busy |= {int(process.pid): 0 for process in getattr(nv, function)(handle)}
            except (nv.NVMLError, AttributeError):
                continue
        try:
            since_us = self._sampled_us.get(gpu, 0)
            samples = nv.nvmlDeviceGetProcessUtilization(handle, since_us) if len(busy) > 1 else []
        except nv.NVMLError:
            return busy
        for sample in samples:
            if sample.pid in busy and since_us < sample.timeStamp:
                busy[sample.pid] += int(sample.smUtil)
            self._sampled_us[gpu] = max(self._sampled_us.get(gpu, 0), sample.timeStamp)
        return busy

    def _job_of(self, process: int) -> str:
        """The Slurm job of a process; "" for none, or where this user may not see it."""
        match = _JOB.search(text_in(self._proc / str(process) / "cgroup"))
        return match[1] if match else ""

    def _start_of(self, process: int) -> int | None:
        text = text_in(self._proc / str(process) / "stat")
        try:
            ticks = int(text.rpartition(")")[2].split()[_START_TIME])
        except (ValueError, IndexError):
            return None
        age_ns = self._clock.boot() - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
        return self._clock.wall() - max(age_ns, 0)

    def _remembered(self) -> dict[str, _LiveJob]:
        """The jobs that were running by the last record; those from before this boot are over."""
        booted_ns = self._clock.wall() - self._clock.boot()
        jobs = {}
        for row in self._history.of("running") or ():
            uses = {gpu: _TimeOnGpu(share, shared=share != 1.0) for gpu, share in row["shares"].items()}
            job = _LiveJob(row["allocation"], row["began_ns"], row["seen_ns"], uses)
            if job.began_ns < booted_ns:
                self._record(row["job_id"], job, ended=True)
            else:
                jobs[row["job_id"]] = job
        return jobs

    def _record(self, number: str, job: _LiveJob, *, ended: bool) -> None:
        """Store all GPUs of an allocation: of several records the newest counts."""
        self._recorded_ns = max(self._clock.wall(), self._recorded_ns + 1000)
        ended_ns = max(job.seen_ns, job.began_ns) if ended else None
        constant: dict[str, Any] = {
            "cluster": self._cluster,
            "allocation": job.allocation,
            "job_id": number,
            "raw_id": number,
            "state": (TagState.ENDED if ended else TagState.RUNNING).value,
            "began": job.began_ns,
            "ended": ended_ns,
            "node": self._node,
            "gpu_from": GpuFrom.PROCESS.value,
            "node_gpus": 1,
            "source": JobSource.CGROUP.value,
            "recorded": self._recorded_ns,
        }
        columns = {name: [value] * len(job.uses) for name, value in constant.items()}
        columns |= {"gpu": list(job.uses), "share": [use.share for use in job.uses.values()]}
        self._recorder.append_rows(columns, "jobs")
