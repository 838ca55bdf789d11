"""A job that collects its own GPUs: what it knows of itself, which GPUs it has, and the summary at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.collectors.backend import Device
from whorl.errors import InputError
from whorl.jobs.allocation import job_gpus, this_allocation
from whorl.jobs.job_summary import GpuSums, total


def node(*models: str) -> list[Device]:
    """GPUs of a node, in the driver's order."""
    return [Device(f"GPU-{index}a{index}", {"nvml_index": index, "model": model}) for index, model in enumerate(models)]


FOUR = node(*["H100"] * 4)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": "/home/a"}, ("slurm", "7", 0, "/home/a/whorl-job-7")),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, ("slurm", "7", 2, "whorl-job-7")),
        (
            {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"},
            ("slurm", "7_0", 0, "whorl-job-7_0"),
        ),
        ({"PBS_JOBID": "7[3].pbs01", "PBS_O_WORKDIR": "/w"}, ("pbs", "7_3", 0, "/w/whorl-job-7_3")),
        ({"PBS_JOBID": "7.pbs01.site"}, ("pbs", "7", 0, "whorl-job-7")),
        ({"LSB_JOBID": "7", "LSB_JOBINDEX": "0"}, ("lsf", "7", 0, "whorl-job-7")),
        ({"LSB_JOBID": "7", "LSB_JOBINDEX": "4", "LS_SUBCWD": "/w"}, ("lsf", "7_4", 0, "/w/whorl-job-7_4")),
        ({"FLUX_JOB_ID": "ƒA/ƒB", "SLURM_JOB_ID": "7"}, ("flux", "ƒA/ƒB", 0, "whorl-job-ƒA_ƒB")),
    ],
)
def test_what_a_scheduler_says_of_a_job(environment: dict[str, str], expected: tuple[str, str, int, str]) -> None:
    allocation = this_allocation(environment)
    assert (allocation.scheduler, allocation.job_id, allocation.restarts, str(allocation.folder)) == expected


def test_without_a_scheduler_the_folder_is_named_after_the_time() -> None:
    allocation = this_allocation({})
    assert (allocation.scheduler, allocation.job_id) == (None, None)
    assert allocation.folder.parent == Path()
    assert allocation.folder.name.startswith("whorl-job-2")


@pytest.mark.parametrize(
    ("environment", "devices", "expected"),
    [
        ({}, FOUR, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, FOUR, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,-1,3"}, FOUR, [2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a1, gpu-3A"}, FOUR, [1, 3]),
        ({"SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "2,3"}, FOUR, [3]),
        ({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0"}, FOUR, [0]),
        # The scheduler hides the other GPUs: the driver lists two, which CUDA counts from 0 and Slurm does not.
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, FOUR[:2], [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, FOUR[2:], [3]),
        ({"SLURM_STEP_GPUS": "6,7"}, FOUR[:2], [0, 1]),
        # CUDA's own order does not matter where the job has all, or was told to count as the driver does.
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, node("H100", "A100"), [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, node("H100", "A100"), [1]),
    ],
)
def test_which_gpus_a_job_has(environment: dict[str, str], devices: list[Device], expected: list[int]) -> None:
    chosen, note = job_gpus(devices, environment)
    assert ([device.row["nvml_index"] for device in chosen], note) == (expected, None)


def test_a_gpu_that_the_driver_does_not_show_is_told() -> None:
    chosen, note = job_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-0a0,GPU-77"})
    assert [device.gpu for device in chosen] == ["GPU-0a0"]
    assert note is not None
    assert "GPU-77" in note


@pytest.mark.parametrize(
    ("environment", "devices", "fragment"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, FOUR, "this job has no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, FOUR, "this job has no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, FOUR, "shows no such GPU"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, node("H100", "A100"), "CUDA_DEVICE_ORDER"),
    ],
)
def test_a_job_without_a_gpu_that_is_certain(environment: dict[str, str], devices: list[Device], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        job_gpus(devices, environment)


def test_a_mig_instance_comes_with_its_gpu_and_a_gpu_with_its_instances() -> None:
    instances = [Device(f"MIG-{number}", {}, parent="GPU-1a1") for number in range(2)]
    devices = [*FOUR, *instances]
    for name, expected in (("MIG-1", ["GPU-1a1", "MIG-1"]), ("1", ["GPU-1a1", "MIG-0", "MIG-1"])):
        chosen, _ = job_gpus(devices, {"CUDA_VISIBLE_DEVICES": name})
        assert [device.gpu for device in chosen] == expected


def test_the_summary_of_a_gpu() -> None:
    sums = GpuSums("NVIDIA H100 80GB HBM3")
    counter = [0, 300_000, 600_000, 100_000, 400_000]  # mJ; it began anew at the third step
    for second, energy in enumerate(counter):
        mask = 0x4 if second < 2 else 0x1
        sums.add(float(second), [None, 300_000 + second, energy, 1500 + second, 60 + second, 90, mask])
    sums.pause()
    sums.add(1000.0, [400_000, 1, 1_000_000, None, None, None, None])  # the next run; the instantaneous power counts
    sums.events["xid"] += 1
    summary = sums.summary("GPU-1", name="n1/0", node="n1", shared=False)
    assert (summary.readings, summary.power_max_w) == (6, 400.0)
    assert summary.power_mean_w == pytest.approx((5 * 300.002 + 400) / 6)
    assert (summary.sm_clock_mean_mhz, summary.temperature_max_c, summary.utilization_mean_pct) == (1502.0, 64.0, 90.0)
    assert summary.throttled == {"power_cap": 0.4}
    assert (summary.energy_j, summary.energy_s, summary.energy_from) == (900.0, 3.0, "counter")
    assert summary.energy_low_j is not None
    assert summary.energy_high_j is not None
    assert summary.energy_low_j < 900 < summary.energy_high_j
    assert summary.events == {"xid": 1}


def test_a_summary_of_nothing_is_not_zero() -> None:
    summary = GpuSums().summary("GPU-1", name="n1/0", node="n1", shared=False)
    figures = (summary.power_mean_w, summary.power_max_w, summary.energy_j, summary.energy_low_j, summary.throttled)
    assert (figures, summary.readings) == ((None,) * 5, 0)
    assert total([summary]).energy_j is None


@pytest.mark.parametrize(
    ("model", "counter", "expected"),
    [("NVIDIA H100", 1_000_000, (1000.0, "counter")), ("NVIDIA GH200 480GB", 1_000_000, (600.0, "power")),
     ("NVIDIA H100", None, (600.0, "power"))],
)  # fmt: skip
def test_energy_is_of_the_gpu_alone(model: str, counter: int | None, expected: tuple[float, str]) -> None:
    sums = GpuSums(model)
    sums.add(0.0, [None, 300_000, counter and 0, None, None, None, None])
    sums.add(2.0, [None, 300_000, counter, None, None, None, None])
    summary = sums.summary("GPU-1", name="n1/0", node="n1", shared=False)
    assert (summary.energy_j, summary.energy_from) == expected
