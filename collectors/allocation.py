"""What a batch job knows of itself on a node: its number, its folder, and which of the node's GPUs it has."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from .backend import Device

_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Where the GPUs of a job stand; the first that is set counts."""


@dataclass(frozen=True)
class SchedulerVariables:
    """The variables in which a scheduler tells a job of itself."""

    name: str
    job_id: str
    submit_folder: str | None = None
    array_job_id: str | None = None
    """The number of the array, where `job_id` is that of one task."""
    array_task: str | None = None
    restarts: str | None = None


# Flux stands first, as it often runs within a job of another scheduler.
SCHEDULERS = (
    SchedulerVariables("flux", "FLUX_JOB_ID"),
    SchedulerVariables(
        "slurm", "SLURM_JOB_ID", "SLURM_SUBMIT_DIR", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"
    ),
    SchedulerVariables("pbs", "PBS_JOBID", "PBS_O_WORKDIR"),
    SchedulerVariables("lsf", "LSB_JOBID", "LS_SUBCWD", array_task="LSB_JOBINDEX"),
)


@dataclass(frozen=True)
class CurrentJob:
    """A job of a scheduler; `scheduler` and `job_id` are None where this process is in none."""

    scheduler: str | None
    job_id: str | None
    """As the scheduler's commands take it: 4242, of an array 4242_7."""
    restarts: int
    """How often the job was requeued before."""
    folder: Path
    """Where its readings are stored if nobody names a folder."""


def current_job(environment: Mapping[str, str] = os.environ) -> CurrentJob:
    """The job in which this process runs, by the variables of its scheduler."""
    scheduler = next((row for row in SCHEDULERS if environment.get(row.job_id)), None)
    if scheduler is None:
        return CurrentJob(None, None, 0, Path(time.strftime("whorl-job-%Y%m%dT%H%M%SZ", time.gmtime())))
    job_id = environment.get(scheduler.array_job_id or "") or environment[scheduler.job_id]
    task = environment.get(scheduler.array_task or "", "")
    if task not in ("", "0") or (task and scheduler.array_job_id):  # LSF calls 0 what is no array
        job_id += f"_{task}"
    job_id = re.sub(r"\[(\d+)\].*|\..*", lambda match: f"_{match[1]}" if match[1] else "", job_id)  # 7[3].server of PBS
    job_id = job_id.replace("ƒ", "f")  # of Flux, which writes either, by the locale
    restarts = environment.get(scheduler.restarts or "", "")
    submit_folder = Path(environment.get(scheduler.submit_folder or "") or ".")
    file_name = re.sub(r"[^\w+-]", "_", job_id)
    return CurrentJob(
        scheduler.name, job_id, int(restarts) if restarts.isdecimal() else 0, submit_folder / f"whorl-job-{file_name}"
    )


def job_gpus(devices: Sequence[Device], environment: Mapping[str, str] = os.environ) -> tuple[list[Device], str | None]:
    """Those of a node's devices that this job has, and a sentence about what is not as it says; None: all is.

    Of a MIG instance its GPU is among them too, and of a GPU its instances. Raises InputError as `visible_gpus`.
    """
    gpus, note = visible_gpus(devices, environment)
    parents = {device.parent for device in devices if device.gpu in gpus}
    return [device for device in devices if device.gpu in gpus | parents or device.parent in gpus], note


def visible_gpus(
    devices: Sequence[Device], environment: Mapping[str, str] = os.environ, variables: Sequence[str] = _GPU_VARIABLES
) -> tuple[set[str], str | None]:
    """The keys of the devices that the first of these variables names (all, where none is set), and a sentence about
    those that it names and the driver does not show.

    A variable names them by UUID or by number. CUDA's numbers count the GPUs that a process can reach, in the order of
    their PCI addresses: where the scheduler hides the other GPUs of the node, as Slurm does with cgroups, the driver
    lists the job's alone, and CUDA's number 0 is the first of these. Slurm's own numbers may then still count all GPUs
    of the node: as many numbers as the driver lists GPUs mean all of them. Raises InputError where there is no GPU, or
    nobody can tell which.
    """
    boards = [device for device in devices if device.parent is None]
    boards.sort(key=lambda device: device.row.get("nvml_index") or 0)
    variable = next((name for name in variables if name in environment), None)
    if variable is None:
        return {device.gpu for device in boards}, None
    text = environment[variable]
    names = [name.strip() for name in text.split(",") if name.strip()]
    stated = f"{variable} is {text!r}"
    if "-1" in names and variable == "CUDA_VISIBLE_DEVICES":
        names = names[: names.index("-1")]  # CUDA shows no GPU that stands after it
    if not names or names[0] == "NoDevFiles":
        raise InputError(f"no GPU is chosen ({stated}): ask the scheduler for one, or unset the variable")
    gpus: set[str] = set()
    missing: list[str] = []
    numbers = {int(name) for name in names if name.isdecimal()}
    for name in names:
        if len(numbers) == len(boards):
            matching = [device.gpu for device in boards]
        elif name.isdecimal():
            _check_order(boards, stated, environment)
            matching = [device.gpu for device in boards[int(name) :][:1]]
        else:
            matching = [device.gpu for device in devices if device.gpu.lower().startswith(name.lower())]
            matching = matching if len(matching) == 1 else []
        gpus.update(matching)
        missing += [] if matching else [name]
    if not gpus:
        shown_gpus = ", ".join(device.gpu for device in devices) or "none"
        raise InputError(f"{stated}, and the driver shows no such GPU; it shows {shown_gpus}")
    return gpus, f"{stated}; the driver does not show {', '.join(missing)}, which is not read" if missing else None


def _check_order(boards: Sequence[Device], stated: str, environment: Mapping[str, str]) -> None:
    """Raise InputError where the numbers may count the GPUs in CUDA's own order, the fastest first."""
    models = {device.row.get("model") for device in boards}
    if len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise InputError(
            f"{stated}, and the GPUs of this node are of several models, which CUDA numbers in its own order: set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"
        )
