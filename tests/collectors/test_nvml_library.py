"""The simulated NVML library as its clients see it: the real nvidia-ml-py, in this process and in others."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from whorl.tests.nvml_library import SOURCES, NvmlLibrary

NOW = 1_790_000_000.0  # where the tests let the library's clock stand
ALL_LINKS = 0xFFFFFFFF

VALUE_OF = {  # by NVML's value type
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
}


def fields(handle: Any, *ids: Any) -> list[int | None]:
    """Values of fields, decoded by their type; None where the status is not success."""
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(ids))
    return [None if v.nvmlReturn else getattr(v.value, VALUE_OF[v.valueType]) for v in values]


def first(gpu: int = 0) -> Any:
    """A session, and the handle of a GPU."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(gpu)


# Energy and power


@pytest.mark.parametrize("model", ["V100", "A100", "H100", "H200"])
def test_energy_is_the_integral_of_the_power(nvml: NvmlLibrary, model: str) -> None:
    spans = (f"from {NOW + 7} limit 250000", f"from {NOW + 11} until {NOW + 12} load 1 1")
    nvml.write(f"model {model}", "load 3 0.4", *spans)
    step = 0.0025  # every edge of the load lies between two of the points
    for gpu in (0, 5):
        power = sum(nvml.power_w(gpu, NOW + (i + 0.5) * step) for i in range(round(20 / step))) * step
        assert power == pytest.approx(nvml.energy_j(gpu, NOW + 20) - nvml.energy_j(gpu, NOW), abs=0.01)


def test_the_counter_is_the_sum_of_the_one_second_means(nvml: NvmlLibrary) -> None:
    nvml.write("model H100", "load 10 0.7", f"from {NOW + 6} limit 300000", f"now {NOW}")
    handle = first()
    energy, average = [], []
    for second in range(16):
        nvml.remove(f"now {NOW + max(second - 1, 0)}")
        nvml.add(f"now {NOW + second}")
        energy.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        average.append(pynvml.nvmlDeviceGetPowerUsage(handle))
        assert fields(handle, 83, 191, 185) == [energy[-1], energy[-1], average[-1]]
    assert energy[-1] - energy[0] == pytest.approx(sum(average[1:]), abs=20)  # each is rounded to 1 mW and 1 mJ
    assert min(average) < 100_000 < 290_000 < max(average)
    assert max(average[8:]) < 305_000, "the limit changed and the power did not"


def test_instant_power_is_the_mean_of_a_part_of_each_tick(nvml: NvmlLibrary) -> None:
    for model, every, window in (("V100", 0.020, 0.010), ("H100", 0.100, 0.025)):
        nvml.write(f"model {model}", f"now {NOW + 0.0437}")
        handle = first()
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [186])
        tick = value.timestamp / 1e6
        assert NOW + 0.0437 - every <= tick <= NOW + 0.0437
        mean = (nvml.energy_j(0, tick) - nvml.energy_j(0, tick - window)) / window
        assert value.value.uiVal == pytest.approx(mean * 1e3, abs=2)
        nvml.write(f"model {model}", f"now {tick + every * 0.99}")
        assert fields(handle, 186) == [value.value.uiVal], "the same between ticks"
        nvml.write(f"model {model}", f"now {tick + every * 1.01}")
        assert fields(handle, 186) != [value.value.uiVal]


def test_a_limit_lowers_power_and_clock_and_is_counted(nvml: NvmlLibrary) -> None:
    nvml.write("load 10 1", f"from {NOW - 100} limit 400000", f"now {NOW}")
    handle = first()
    before = fields(handle, 74)[0]
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == pytest.approx(400_000, abs=4_000)
    assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) < 1600
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == pynvml.nvmlClocksThrottleReasonSwPowerCap
    assert fields(handle, 190, 187, 188) == [400_000, 200_000, 700_000]
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 400_000
    nvml.write("load 10 1", f"from {NOW - 100} limit 400000", f"now {NOW + 2}")
    assert before is not None
    assert fields(handle, 74) == [pytest.approx(before + 2_000_000_000, abs=1_000)]


# Structures, types and statuses


def test_structures_have_the_sizes_of_the_binding() -> None:
    header = (SOURCES / "nvml_abi.h").read_text()
    sizes = {name: int(size) for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)", header)}
    assert sizes == {
        "PciInfo": ctypes.sizeof(pynvml.nvmlPciInfo_t),
        "Memory": ctypes.sizeof(pynvml.c_nvmlMemory_t),
        "Memory2": ctypes.sizeof(pynvml.c_nvmlMemory_v2_t),
        "FieldValue": ctypes.sizeof(pynvml.c_nvmlFieldValue_t),
        "Process": ctypes.sizeof(pynvml.c_nvmlProcessInfo_v3_t),
        "ProcessSample": ctypes.sizeof(pynvml.c_nvmlProcessUtilizationSample_t),
        "Temperature": ctypes.sizeof(pynvml.c_nvmlTemperature_v1_t),
        "Event": ctypes.sizeof(pynvml.c_nvmlEventData_t),
        "Violation": ctypes.sizeof(pynvml.c_nvmlViolationTime_t),
        "GpmMetric": ctypes.sizeof(pynvml.c_nvmlGpmMetric_t),
        "GpmMetrics": pynvml.c_nvmlGpmMetricsGet_t.metrics.offset,
        "SramErrors": ctypes.sizeof(pynvml.c_nvmlEccSramErrorStatus_v1_t),
        "Fabric": ctypes.sizeof(pynvml.c_nvmlGpuFabricInfo_v3_t),
        "Licences": ctypes.sizeof(pynvml.c_nvmlGridLicensableFeatures_v4_t),
    }


def test_field_values_have_types_and_statuses_of_their_own(nvml: NvmlLibrary) -> None:
    nvml.write("load 10 1", "gpu 0 deny 4 field:82", f"now {NOW}")
    handle = first()
    values = pynvml.nvmlDeviceGetFieldValues(handle, [83, 82, 186, (186, 1), 9999, (138, ALL_LINKS), (138, 99)])
    assert [value.nvmlReturn for value in values] == [0, 4, 0, 3, 3, 0, 2]
    assert (values[0].valueType, values[2].valueType) == (3, 1)
    assert values[2].value.ullVal != values[2].value.uiVal, "reading the wrong part of the union must show"
    assert values[0].timestamp == pytest.approx(NOW * 1e6, abs=10_000)
    one, every = fields(handle, (138, 0), (138, ALL_LINKS))
    assert one
    assert every == 18 * one


# Several processes

SNAPSHOT = """
import json, pynvml
pynvml.nvmlInit()
found = []
for index in range(pynvml.nvmlDeviceGetCount()):
    h = pynvml.nvmlDeviceGetHandleByIndex(index)
    values = pynvml.nvmlDeviceGetFieldValues(h, [83, 185, 186, 74, 82, 197, (138, 0xffffffff)])
    found.append([pynvml.nvmlDeviceGetUUID(h), pynvml.nvmlDeviceGetPowerUsage(h), pynvml.nvmlDeviceGetClockInfo(h, 1),
                  pynvml.nvmlDeviceGetTemperatureV(h, 0), pynvml.nvmlDeviceGetUtilizationRates(h).gpu,
                  [(v.nvmlReturn, v.value.ullVal, v.timestamp) for v in values]])
print(json.dumps(found))
"""


def snapshot(library: NvmlLibrary) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SNAPSHOT], env=library.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_processes_agree_on_every_value_at_an_instant(nvml_library: NvmlLibrary) -> None:
    nvml_library.write("load 7 0.6", f"from {NOW - 9} gpu 2 limit 320000", f"now {NOW}")
    one, two = snapshot(nvml_library), snapshot(nvml_library)
    assert one == two
    assert len(one) == 8
    assert len({json.dumps(gpu[1:]) for gpu in one}) == 8, "the GPUs differ"
    nvml_library.write("load 7 0.6", f"from {NOW - 9} gpu 2 limit 320000", f"now {NOW + 3}")
    assert snapshot(nvml_library) != one


# Faults


# Settings


def test_only_root_sets_and_every_process_sees_it(nvml: NvmlLibrary) -> None:
    nvml.write("root no", "load 10 1")
    handle = first(3)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: pynvml.nvmlDeviceSetPowerManagementLimit(handle, 450_000),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(handle, 345, 900),
        lambda: pynvml.nvmlDeviceResetGpuLockedClocks(handle),
        lambda: pynvml.nvmlDeviceSetPersistenceMode(handle, 0),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NoPermission):
            call()
    nvml.write("root yes", "load 10 1")
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 450_000)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 345, 900)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, 10_000)
    time.sleep(0.02)
    assert 0 <= pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before < 700_000, "the past keeps its energy"
    code = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(3)\n"
    code += "print(n.nvmlDeviceGetEnforcedPowerLimit(h), n.nvmlDeviceGetClockInfo(h, 1))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=nvml.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "450000 900\n"
    assert (os.getpid(), "nvmlDeviceSetGpuLockedClocks") in nvml.setters()
