"""What a waiting job asks for, from a line of `scontrol -o show job`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from . import shown
from .scheduler import utc_time

_UNIT = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_TIMES = {"": 1, "K": 1024, "M": 1024**2}
# Demands that say how tasks, CPUs, memory and GPUs lie on a node: with one of them a node may hold fewer tasks.
_LAYOUT = ("TresPerSocket", "CpusPerTres", "CpusPerTRES", "MemPerTres", "MemPerTRES", "NtasksPerTRES")


@dataclass(frozen=True, slots=True)
class Devices:
    """A number of devices: gpu:v100:4."""

    name: str
    type: str  # "": any
    count: int

    def of(self, wanted: Devices) -> int:
        """How many of these are what is wanted."""
        return self.count if self.name == wanted.name and wanted.type in ("", self.type) else 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or the tasks of an array that are alike, as the scheduler has them."""

    id: str  # as `scontrol update jobid=` takes it: 12, 12_3, 12_[3-5]
    state: str
    user: str
    uid: int | None
    partitions: tuple[str, ...]
    nodes: int  # at least
    most_nodes: int | None = None  # None: no limit
    tasks: int = 1
    cpus_per_task: int = 1
    tasks_per_node: int = 0  # at most; 0: no limit
    cpus_per_node: int = 1  # at least
    memory_per_node: float = 0.0  # MiB
    memory_per_cpu: float = 0.0
    disk_per_node: float = 0.0
    per_job: tuple[Devices, ...] = ()
    per_task: tuple[Devices, ...] = ()
    per_node: tuple[Devices, ...] = ()
    countable: bool = True  # whether the tasks that a node can hold follow from the numbers above
    required: str = ""  # host list
    excluded: str = ""  # host list
    features: str = ""
    preferred: str = ""  # features
    reservations: tuple[str, ...] = ()
    strict: str = ""  # what it asks of its nodes together, which cannot be counted: a clause for people
    comment: str = ""
    admin_comment: str = ""
    reason: str = ""
    """Why it waits."""
    start: datetime | None = None
    """When it started, or Slurm expects that it does: UTC."""

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        by_job, by_task, by_node = (
            sum(one.count for one in asked if one.name == "gpu")
            for asked in (self.per_job, self.per_task, self.per_node)
        )
        return max(by_job, by_task * self.tasks, by_node * self.nodes)


def record(line: str) -> Job | None:
    """A line of `scontrol -o show job`; None where it is no job."""
    # A job's name may hold what looks like further fields.
    line = re.sub(r"(?<=\sJobName=).*?(?=\sUserId=\S+\(\d+\) GroupId=)", "", line, count=1)
    fields = shown.fields(line)
    if not fields.get("JobId"):
        return None
    user, _, uid = fields.get("UserId", "").partition("(")
    number = fields["JobId"]
    task = fields.get("ArrayTaskId", "").partition("%")[0]
    if not shown.is_none(task):
        number = f"{fields.get('ArrayJobId', number)}_{task if task.isdigit() else f'[{task}]'}"
    least, _, most = fields.get("NumNodes", "").partition("-")
    return Job(
        id=number,
        state=fields.get("JobState", "UNKNOWN"),
        user=user,
        uid=int(uid.rstrip(")")) if uid.rstrip(")").isdigit() else None,
        partitions=shown.names(fields.get("Partition", "")),
        nodes=_number(least),
        most_nodes=_number(most) if most else None,
        tasks=max(_number(fields.get("NumTasks", "")), 1),
        cpus_per_task=_number(fields.get("CPUs/Task", "")),
        tasks_per_node=_number(fields.get("NtasksPerN:B:S:C", "").partition(":")[0], 0),
        cpus_per_node=_number(fields.get("MinCPUsNode", "")),
        memory_per_node=_mebibytes(fields.get("MinMemoryNode", "")),
        memory_per_cpu=_mebibytes(fields.get("MinMemoryCPU", "")),
        disk_per_node=_mebibytes(fields.get("MinTmpDiskNode", "")),
        per_job=devices(fields.get("TresPerJob", "")),
        per_task=devices(fields.get("TresPerTask", "")),
        per_node=devices(fields.get("TresPerNode", "")),
        countable=_countable(fields),
        required=shown.said(fields.get("ReqNodeList", "")),
        excluded=shown.said(fields.get("ExcNodeList", "")),
        features=shown.said(fields.get("Features", "")),
        preferred=shown.said(fields.get("Prefer", "")),
        reservations=shown.names(fields.get("Reservation", "")),
        strict=_strict(fields),
        comment=shown.said(fields.get("Comment", "")),
        admin_comment=shown.said(fields.get("AdminComment", "")),
        reason=shown.said(fields.get("Reason", "")),
        start=utc_time(fields.get("StartTime")),
    )


def devices(tres: str) -> tuple[Devices, ...]:
    """Devices that a job asks for, or that a node has: gres:gpu:v100:2, gres/gpu=2, gpu:a100:4(S:0-1),nvme:1."""
    found = []
    for part in shown.names(re.sub(r"\([^)]*\)", "", tres)):
        name, *more = re.split("[:=]", re.sub(r"^gres[:/]", "", part))
        count = int(more.pop()) if more and more[-1].isdigit() else 1
        if name != "cpu":  # newer versions count a task's CPUs here too
            found.append(Devices(name, ":".join(more), count))
    return tuple(found)


def _strict(fields: dict[str, str]) -> str:
    """What a job asks of its nodes together, so that no node can stand for another."""
    if any(shown.is_none(fields.get(key, "")) for key in ("NumNodes", "NumTasks", "Partition")):
        return "Slurm does not say how large it is"
    if fields.get("HetJobId"):
        return "it has several parts (a heterogeneous job)"
    if fields.get("Contiguous", "0") != "0":
        return "it asks for neighbouring nodes (--contiguous)"
    if not shown.is_none(fields.get("Switches", "")):
        return "it limits its switches (--switches)"
    if fields.get("OverSubscribe") in ("MCS", "TOPO"):
        return "it keeps other jobs away from more than its nodes (--exclusive=mcs or topo)"
    if not shown.is_none(fields.get("Deadline", "")):
        return "it has a deadline, and may have to wait longer"
    if fields.get("SegmentSize", "0") not in ("", "0"):
        return "it asks for segments (--segment)"
    return ""


def _countable(fields: dict[str, str]) -> bool:
    """Whether a job says nothing of sockets, cores and threads, nor of CPUs and memory for each GPU."""
    layout = [fields.get(key, "") for key in _LAYOUT]
    each = fields.get("NtasksPerN:B:S:C", "").partition(":")[2] + fields.get("ReqB:S:C:T", "")
    special = fields.get("Socks/Node", "*") + fields.get("CoreSpec", "*") + fields.get("ThreadSpec", "*")
    bound = fields.get("GresEnforceBind", "")  # 22.05 writes the next field behind it without a space
    return all(map(shown.is_none, layout)) and not bound.startswith("Yes") and not re.search(r"[1-9]", each + special)


def _number(number: str, missing: int = 1) -> int:
    """A number as Slurm prints it: 12, or 2K for 2048."""
    match = re.fullmatch(r"(\d+)([KM]?)", number)
    return int(match[1]) * _TIMES[match[2]] if match else missing


def _mebibytes(size: str) -> float:
    """A size such as 4000M or 1.50G in MiB; 0 where there is none."""
    match = re.fullmatch(r"([\d.]+)([KMGT]?)", size)
    return float(match[1]) * _UNIT[match[2]] if match else 0.0
