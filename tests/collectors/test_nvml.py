"""NVML as the collector reads it: the real nvidia-ml-py over our own library, in this process."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml
import pytest

from whorl.collectors import nvml as nvml_backend
from whorl.collectors.backend import Device, Reading, Status
from whorl.collectors.nvml import Nvml
from whorl.errors import InputError
from whorl.store.events import Event
from whorl.store.metrics import FAST, METRICS, ROW, Call, Field
from whorl.store.vocabulary import EventKind
from whorl.tests.checks import until
from whorl.tests.nvml_library import SOURCES, NvmlLibrary

STILL = 1_790_000_004.03  # where the library's clock stands in tests of values

# What lies in a structure or is made of several calls, as the binding gives it. All else is asked by its own row.
SPELLED: dict[str, Callable[[Any], int]] = {
    "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperatureV(h, 0),
    "utilization": lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu,
    "memory_utilization": lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).memory,
    "memory_used": lambda h: pynvml.nvmlDeviceGetMemoryInfo(h, pynvml.nvmlMemory_v2).used,
    "memory_free": lambda h: pynvml.nvmlDeviceGetMemoryInfo(h, pynvml.nvmlMemory_v2).free,
    "remapped_rows": lambda h: sum(pynvml.nvmlDeviceGetRemappedRows(h)[:2]),
    "row_remap_failed": lambda h: pynvml.nvmlDeviceGetRemappedRows(h)[3],
    "encoder_utilization": lambda h: pynvml.nvmlDeviceGetEncoderUtilization(h)[0],
    "decoder_utilization": lambda h: pynvml.nvmlDeviceGetDecoderUtilization(h)[0],
    "vgpu_licensed": lambda h: licence(h),
    "sram_errors_exceeded": lambda h: sram(h).bThresholdExceeded,
    "nvlink_crc_errors": lambda h: of_links(h, (38, 45), 163),
    "nvlink_replays": lambda h: of_links(h, (52,), 161),
    "nvlink_recoveries": lambda h: of_links(h, (59,), 162),
    "fabric_state": lambda h: fabric(h).state,
    "fabric_error": lambda h: fabric(h).status,
    "inforom_valid": lambda h: inforom(h),
}


def licence(handle: Any) -> int:
    features = pynvml.nvmlDeviceGetGridLicensableFeatures_v4(handle)
    pynvml._nvmlCheckReturn(0 if features.isGridLicenseSupported else pynvml.NVML_ERROR_NOT_SUPPORTED)
    return int(features.gridLicensableFeatures[0].featureState)


def sram(handle: Any) -> Any:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, pynvml.byref(status))
    return status


def fabric(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    pynvml._nvmlCheckReturn(0 if info.state else pynvml.NVML_ERROR_NOT_SUPPORTED)
    return info


def inforom(handle: Any) -> int:
    try:
        pynvml.nvmlDeviceValidateInforom(handle)
    except pynvml.NVMLError_CorruptedInforom:
        return 0
    return 1


def of_links(handle: Any, totals: Sequence[int], each: int) -> int:
    """A sum over all NVLinks, as a driver of the architecture has it."""
    asked = [(each, link) for link in range(18)] if pynvml.nvmlDeviceGetArchitecture(handle) >= 9 else [*totals]
    values = pynvml.nvmlDeviceGetFieldValues(handle, asked)
    assert {value.nvmlReturn for value in values} == {0}
    return sum(value.value.ullVal for value in values)


ASKED = [m for m in METRICS if isinstance(m.nvml, (Field, Call))]


METRICS_BY_FIELD = {m.nvml.ids[0]: m.name for m in METRICS if isinstance(m.nvml, Field)}


def energy_of(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def answer(handle: Any, spec: Any, *, scale: int = 1) -> int | None:
    """What the binding itself answers, one value at a time: to a function of it, a field id, or a metric's row."""
    try:
        if callable(spec):
            return int(spec(handle)) * scale
        if isinstance(spec, Call):
            return int(getattr(pynvml, spec.function)(handle, *spec.arguments)) * scale
        field, scope = (spec.ids[0], spec.scopes[0]) if isinstance(spec, Field) else (spec, 0)
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])
        pynvml._nvmlCheckReturn(value.nvmlReturn)
    except pynvml.NVMLError_NotSupported:
        return None
    plain = value.value.uiVal if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else value.value.ullVal
    return int(plain) * scale


def told(found: Sequence[Reading | Event], kind: EventKind) -> list[Event]:
    return [event for event in found if isinstance(event, Event) and event.kind == kind]


def values_of(reading: Reading | Event) -> dict[str, Any]:
    """A reading as a row: what does not count is None."""
    assert isinstance(reading, Reading)
    rows = FAST if len(reading.values) == len(FAST) else range(len(METRICS))
    return {
        METRICS[row].name: value if reading.statuses[row] == Status.OK else None
        for row, value in zip(rows, reading.values, strict=True)
    }


def sweep(backend: Nvml, devices: Sequence[Device], *, slow: bool = True) -> list[dict[str, Any]]:
    """Every device read once, as rows."""
    found = backend.read([device.gpu for device in devices], slow=slow)
    return [values_of(reading) for reading in found if isinstance(reading, Reading)]


_OPEN: list[Nvml] = []


@pytest.fixture(autouse=True)
def _ends_closed(nvml: NvmlLibrary) -> Iterator[None]:
    """Backends are closed while their driver is still there."""
    yield
    while _OPEN:
        _OPEN.pop().close()


def opened() -> tuple[Nvml, list[Device]]:
    """A backend that is closed when the test ends, and what it lists."""
    _OPEN.append(backend := Nvml())
    return backend, backend.devices()


@pytest.mark.parametrize("model", ["V100", "A100", "H100", "H200"])
def test_every_value_is_what_the_binding_answers(nvml: NvmlLibrary, model: str) -> None:
    nvml.write("gpus 3", f"model {model}", f"now {STILL}", "load 10 0.7", "gpu 1 ecc 7 2 70 20")
    nvml.add("gpu 2 limit 250000", "gpu 0 vgpu 1", "gpu 1 vgpu 0", "gpu 2 remapped 3 1 1 1", "gpu 1 links 5 3 2")
    nvml.add(
        "gpu 0 sram", "gpu 1 recovery 2", "gpu 2 inforom", "gpu 2 pcie 1 8", "gpu 0,1 fabric 3 0", "gpu 1 retired 5 2 1"
    )
    backend, devices = opened()
    rows = sweep(backend, devices)
    known = 0
    for index, row in enumerate(rows):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for metric in ASKED:
            expected = answer(handle, SPELLED.get(metric.name, metric.nvml), scale=metric.scale)
            assert row[metric.name] == expected, (index, metric.name)
            known += expected is not None
    assert known > 95
    assert [row["vgpu_licensed"] for row in rows] == [1, 0, None]
    assert [row["recovery_action"] for row in rows] == [0, 2, 0]
    assert [row["ecc_uncorrected_lifetime"] for row in rows] == [0, 20, 0]
    assert [row["inforom_valid"] for row in rows] == [1, 1, 0]
    assert [(row["pcie_generation"], row["pcie_width"]) for row in rows][1:] == [
        (rows[1]["pcie_generation_max"], 16),
        (1, 8),
    ]
    if model == "V100":
        assert [row["retired_pages_uncorrected"] for row in rows] == [0, 2, 0]
    else:
        assert [row["row_remap_failed"] for row in rows] == [row["row_remap_pending"] for row in rows] == [0, 0, 1]
        assert [row["sram_errors_exceeded"] for row in rows] == [1, 0, 0]
    if model.startswith("H"):
        assert [row["fabric_state"] for row in rows] == [3, 3, None]
        assert [row["nvlink_replays"] for row in rows] == [0, 3 * 18, 0]
    assert all(0 < row["encoder_utilization"] < row["decoder_utilization"] for row in rows)
    assert sweep(backend, devices, slow=False)[0].keys() < rows[0].keys()


def test_the_costly_look_at_the_inforom_is_made_once_in_many_slow_readings(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1")
    backend, devices = opened()
    (first,) = sweep(backend, devices)
    made = nvml.calls("nvmlDeviceValidateInforom")
    (second,) = sweep(backend, devices)
    assert (first["inforom_valid"], second["inforom_valid"]) == (1, None)
    assert nvml.calls("nvmlDeviceValidateInforom") == made
    assert second["ecc_corrected"] == 0


@pytest.mark.parametrize(("model", "window"), [("V100", 10), ("A100", 25), ("H100", 1000), ("H200", 1000)])
def test_what_the_power_reading_averages_over_goes_by_the_architecture(
    nvml: NvmlLibrary, model: str, window: int
) -> None:
    nvml.write("gpus 1", f"model {model}")
    backend, devices = opened()
    assert sweep(backend, devices)[0]["power_window_ms"] == window
    assert backend.period_ms == (20 if model == "V100" else 100)


def test_the_age_of_a_reading_is_from_the_drivers_stamp(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", "every 0.4")
    backend, devices = opened()
    ages = []
    for _ in range(30):
        ages.append(sweep(backend, devices, slow=False)[0]["power_age_us"])
        time.sleep(0.02)
    (value,) = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [186])
    old = time.time() - value.timestamp / 1e6
    assert all(0 <= age < 600_000 for age in ages)
    assert old < 0.6


def test_a_stamp_of_another_clock_is_no_age(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", f"now {STILL}")
    backend, devices = opened()
    row = sweep(backend, devices)[0]
    assert row["power_age_us"] is None
    assert row["power_instant_mw"] is not None


def test_power_of_the_module_is_taken_where_there_is_no_other_and_said(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "gpu 1 module")
    backend, devices = opened()
    found = list(backend.read([device.gpu for device in devices], slow=True))
    assert all(values_of(reading)["power_instant_mw"] for reading in found if isinstance(reading, Reading))
    assert [event.gpu for event in told(found, EventKind.MODULE_POWER)] == [devices[1].gpu]
    backend.devices()
    found = [*backend.read([devices[0].gpu], slow=False), *backend.read([devices[0].gpu], slow=False)]
    assert told(found, EventKind.MODULE_POWER) == []


def test_identities(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100")
    _, devices = opened()
    for index, device in enumerate(devices):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        row = device.row
        assert device.gpu == row["uuid"] == pynvml.nvmlDeviceGetUUID(handle)
        assert row["serial"] == pynvml.nvmlDeviceGetSerial(handle)
        assert row["pci_bus_id"] == pynvml.nvmlDeviceGetPciInfo(handle).busId
        limits_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        assert [row["power_limit_min_mw"], row["power_limit_max_mw"]] == limits_mw
        assert (row["nvml_index"], row["driver"]) == (index, pynvml.nvmlSystemGetDriverVersion())
        assert None not in (row["model"], row["vbios"], row["memory_total"], row["sm_clock_max_mhz"])
        assert row["temperature_max_operating_c"] < row["temperature_slowdown_c"] < row["temperature_shutdown_c"]


@pytest.mark.parametrize(
    ("field", "kind", "raw", "value"),
    [
        (186, 0, 0x409349999999999A, 1234.4),  # a double
        (186, 5, 0xDEADBEEF00000007, 7),  # an int: the other bytes are undefined
        (186, 6, 0xDEADBEEFDEAD0009, 9),
        (186, 0, 0xC09349999999999A, None),  # power cannot be below 0
        (186, 5, 2**32 - 7, None),
        (83, 4, 2**64 - 9, None),
        (186, 0, 0x7FF8000000000000, None),  # no number
        (83, 0, 0x7FF0000000000000, None),
        (74, 3, 2**64 - 1, None),  # all bits set: no counter has come so far
        (94, 1, 2**32 - 1, None),  # nor one of 32 bits
        (82, 5, 2**32 - 7, -7),  # a temperature may be below 0
    ],
)
def test_a_field_is_read_by_the_type_that_the_driver_names(
    nvml: NvmlLibrary, field: int, kind: int, raw: int, value: float | None
) -> None:
    nvml.write("gpus 2", "model H100", f"now {STILL}")
    backend, devices = opened()
    name = METRICS_BY_FIELD[field]
    before = sweep(backend, devices)
    nvml.add(f"gpu 0 answer {field} {kind} {raw}")
    for slow in (False, True):
        if slow or ROW[name] in FAST:
            reading, *_ = [r for r in backend.read([d.gpu for d in devices], slow=slow) if isinstance(r, Reading)]
            assert values_of(reading)[name] == (value and round(value))
            assert reading.statuses[ROW[name]] == (Status.FAILED if value is None else Status.OK)
    after = sweep(backend, devices)
    assert after[1] | {"inforom_valid": 1} == before[1]
    nvml.remove(f"gpu 0 answer {field} {kind} {raw}")
    assert sweep(backend, devices)[0][name] == before[0][name]


def test_a_return_code_that_nvml_does_not_have_yet_is_a_failure(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1")
    backend, devices = opened()
    nvml.add("deny 5000 nvmlDeviceGetPowerUsage", "deny 77 field:83", "deny 4 field:186")
    (reading,) = [r for r in backend.read([devices[0].gpu], slow=False) if isinstance(r, Reading)]
    expected = {"power_mw": Status.FAILED, "energy_mj": Status.FAILED, "power_instant_mw": Status.DENIED}
    assert {name: reading.statuses[ROW[name]] for name in expected} == expected


def test_what_a_hanging_call_fills_at_last_is_of_its_own_gpu(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 3", "model H100", "load 10 0.7", f"now {STILL}")
    backend, devices = opened()
    gpus = [device.gpu for device in devices]
    before = {gpu: next(iter(backend.read([gpu], slow=False))) for gpu in gpus}
    nvml.add("gpu 0 hang nvmlDeviceGetPowerUsage")
    calls = nvml.calls("nvmlDeviceGetPowerUsage")
    late: list[Reading | Event] = []
    thread = threading.Thread(target=lambda: late.extend(backend.read(gpus[:1], slow=False)))
    thread.start()
    until(lambda: nvml.calls("nvmlDeviceGetPowerUsage") > calls)
    meanwhile = [next(iter(backend.read([gpu], slow=False))) for gpu in gpus[1:]]
    nvml.remove("gpu 0 hang nvmlDeviceGetPowerUsage")
    thread.join()
    assert len({tuple(reading.values) for reading in before.values() if isinstance(reading, Reading)}) == 3
    assert [*late[:1], *meanwhile] == [*before.values()]


def test_reading_changes_nothing_and_never_waits_for_pcie(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 8", "gpu 3 mig 3g.40gb")
    slow = ("nvmlDeviceGetPcieThroughput", "nvmlDeviceGetComputeRunningProcesses_v3")
    before, made = [nvml.calls(name) for name in slow], nvml.calls()
    backend, devices = opened()
    for at in range(10):
        sweep(backend, devices, slow=at % 3 == 0)
        assert backend.devices() == devices
    backend.close()
    assert not nvml.setters()
    assert nvml.calls() > made + 10 * 8
    assert [nvml.calls(name) for name in slow] == before


def test_a_driver_without_a_field_or_a_new_function_is_asked_the_older_way(nvml: NvmlLibrary) -> None:
    replaced = [3, 4, 74, 75, 76, 77, 79, 83, 94]
    nvml.write("gpus 2", "model H100", f"now {STILL}", "load 10 0.7", "ecc 7 2", "limit 250000")
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    by_field = {METRICS_BY_FIELD[field]: [answer(handle, field) for handle in handles] for field in replaced}
    nvml.add(*(f"gpu 0 deny 3 field:{field}" for field in replaced))
    nvml.add("gpu 0 deny 25 nvmlDeviceGetTemperatureV nvmlDeviceGetMemoryInfo_v2")
    backend, devices = opened()
    for slow in (True, False, True):  # GPU 1 still answers for fields
        for index, row in enumerate(sweep(backend, devices, slow=slow)):
            for column, expected in by_field.items():
                assert column not in row or row[column] == expected[index], (index, column)
            assert row["temperature_c"] == pynvml.nvmlDeviceGetTemperature(handles[index], 0)
            if slow:
                structure = None if index == 0 else pynvml.nvmlMemory_v2
                memory = pynvml.nvmlDeviceGetMemoryInfo(handles[index], structure)
                assert (row["memory_used"], row["memory_free"]) == (memory.used, memory.free)


def test_a_driver_that_refuses_a_whole_call_for_one_field_still_gives_the_others(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100", f"now {STILL}", "load 10 0.7", "gpu 0 deny 2 with:186 with:271 with:143")
    nvml.add("gpu 1 deny 3 nvmlDeviceGetFieldValues")
    backend, devices = opened()
    for slow in (True, False, True):
        before = nvml.calls("nvmlDeviceGetFieldValues")
        first, second = sweep(backend, devices, slow=slow)
        assert nvml.calls("nvmlDeviceGetFieldValues") - before == 1  # what refuses is not asked again
        empty = {m.name for m in ASKED if m.name in first and first[m.name] is None}
        absent = {"remapped_rows", "remapped_rows_uncorrected", "fan_speed", "vgpu_licensed"}
        absent |= {"fabric_state", "fabric_error"} | {name for name in first if name.startswith("retired_pages")}
        missing = {"power_instant_mw", "power_brake_ns"} | (absent if slow else set())
        assert empty - {"inforom_valid"} == missing
        assert first["power_age_us"] is None
        assert second["power_average_mw"] is None
        assert first["energy_mj"] == answer(pynvml.nvmlDeviceGetHandleByIndex(0), 83)
        assert second["energy_mj"] == answer(pynvml.nvmlDeviceGetHandleByIndex(1), energy_of)


def test_a_driver_without_events_says_so_once(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "deny 3 nvmlDeviceRegisterEvents")
    backend, devices = opened()
    gpus = [device.gpu for device in devices]
    found = [event for _ in range(3) for event in told([*backend.read(gpus, slow=False)], EventKind.NOT_SUPPORTED)]
    backend.devices()
    found += told([*backend.read(gpus, slow=False)], EventKind.NOT_SUPPORTED)
    assert [event.gpu for event in found] == [None]


def test_mig_instances_have_names_and_memory_and_no_power(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100", "gpu 1 mig 3g.40gb 1g.10gb")
    backend, devices = opened()
    whole = [d for d in devices if d.parent is None]
    parts = [d for d in devices if d.parent is not None]
    assert [d.row["mig_profile"] for d in parts] == ["3g.40gb", "1g.10gb"]
    assert {d.parent for d in parts} == {d.row["parent"] for d in parts} == {whole[1].gpu}
    assert all(d.gpu.startswith("MIG-") and d.row["memory_total"] for d in parts)
    rows = dict(zip([d.gpu for d in devices], sweep(backend, devices), strict=True))
    for part in parts:
        empty = {name for name, value in rows[part.gpu].items() if value is None}
        assert "memory_used" not in empty
        assert {"power_mw", "energy_mj", "sm_clock_mhz", "temperature_c"} <= empty
    assert rows[whole[1].gpu]["power_mw"]
    assert rows[whole[1].gpu]["utilization"] is None  # as long as it is in MIG mode
    nvml.write("gpus 2", "model H100", "gpu 1 mig 2g.20gb")  # an instance is taken away, another comes
    devices = backend.devices()
    assert [d.row.get("mig_profile") for d in devices] == [None, None, "2g.20gb"]
    assert sweep(backend, devices)[2]["memory_used"] is not None
    gone = [r for r in backend.read([parts[1].gpu], slow=True) if isinstance(r, Reading)]
    assert set(gone[0].statuses) == {Status.LOST}
    nvml.write("gpus 2", "model H100")
    devices = backend.devices()
    assert [d.gpu for d in devices] == [d.gpu for d in whole]
    assert sweep(backend, devices)[1]["utilization"] is not None


def test_texts_of_the_driver_that_are_no_utf8_are_kept(nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.write("gpus 2", "model H100")

    @pynvml.convertStrBytes  # type: ignore[untyped-decorator]
    def name(_: Any) -> bytes:
        return b"NVIDIA \xff H100"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", name)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", pynvml.convertStrBytes(lambda: b"580\xfe"))
    _, devices = opened()
    assert [(d.row["model"], d.row["driver"]) for d in devices] == [
        ("NVIDIA \N{REPLACEMENT CHARACTER} H100", "580\N{REPLACEMENT CHARACTER}")
    ] * 2


# Coming and going


def test_a_gpu_that_cannot_be_identified_is_an_input_error(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", f"from {STILL} gpu 0 lost")
    with pytest.raises(InputError, match="index 0 cannot be identified"):
        Nvml().devices()


def test_a_gpu_that_only_a_new_session_shows_is_found_now_and_then(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100")
    backend, devices = opened()
    nvml.add("gpu 1 deny 15 nvmlDeviceGetMemoryInfo")
    assert len(backend.devices()) == 1
    sessions = nvml.calls("nvmlInitWithFlags")
    for _ in range(30):
        assert len(backend.devices()) == 1
    assert nvml.calls("nvmlInitWithFlags") == sessions + 1
    nvml.write("gpus 2", "model H100")
    assert backend.devices() == devices


@pytest.mark.parametrize("refusal", ["deny 16", "deny 16 nvmlDeviceGetFieldValues nvmlDeviceGetPowerUsage"])
def test_a_gpu_that_needs_a_reset_is_there_and_says_so(nvml: NvmlLibrary, refusal: str) -> None:
    nvml.write("gpus 2", "model H100")
    backend, devices = opened()
    nvml.add(f"gpu 1 {refusal}")
    for _ in range(3):
        readings = [r for r in backend.read([d.gpu for d in devices], slow=False) if isinstance(r, Reading)]
        assert Status.NEEDS_RESET not in readings[0].statuses
        assert readings[1].statuses[ROW["power_mw"]] == Status.NEEDS_RESET
        assert Status.LOST not in readings[1].statuses
        assert backend.devices() == devices
    nvml.write("gpus 2", "model H100")
    backend.devices()
    assert sweep(backend, devices)[1]["power_mw"]


# XIDs


@pytest.mark.parametrize("before_loss_s", [0.3, 0.02, 0.0, -0.02, -0.3])
@pytest.mark.parametrize("interval_s", [0.2, 1.0])
def test_an_xid_names_its_gpu_before_with_and_after_the_loss(
    nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch, before_loss_s: float, interval_s: float
) -> None:
    monkeypatch.setattr(nvml_backend, "_EVENTS_NS", 0)
    lost_s = STILL + 1.05
    control = ["gpus 16", "model H100", "load 2 0.7", f"from {lost_s} gpu 5 lost"]
    control += [f"from {lost_s - before_loss_s} gpu 5 xid 79", f"from {STILL + 0.5} gpu 3 xid 31"]
    control += [f"from {STILL + 1.5} gpu 3 xid 31"]
    nvml.write(*control, f"now {STILL}")
    backend, devices = opened()
    gpus = [device.gpu for device in devices]
    events = []
    for tick in range(round(2 / interval_s) + 1):
        nvml.write(*control, f"now {STILL + tick * interval_s}")
        found = list(backend.read(gpus, slow=False))
        events += told(found, EventKind.XID)
        if any(isinstance(r, Reading) and Status.LOST in r.statuses for r in found):
            backend.devices()
    events += told(backend.close(), EventKind.XID)
    expected = sorted([(gpus[3], 31)] * 2 + [(gpus[5], 79)])
    assert sorted((str(event.gpu), event.code or 0) for event in events) == expected
    rows = {device.gpu: device.row for device in devices}
    assert all(event.pci_bus_id == rows[str(event.gpu)]["pci_bus_id"] for event in events)


def test_an_xid_of_an_unknown_handle_is_named_by_its_pci_address(
    nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_backend, "_EVENTS_NS", 0)
    nvml.write("gpus 2", "model H100", f"now {STILL}")
    backend, devices = opened()
    # A GPU that was reset has another handle, which this process did not ask for yet.
    wait = pynvml.nvmlEventSetWait_v2
    nvml.write("gpus 2", "model H100", f"from {STILL + 1} until {STILL + 2} gpu 1 lost stale", f"now {STILL + 3}")

    def renewed(events: Any, timeout_ms: int) -> Any:
        event = wait(events, timeout_ms)
        event.device = pynvml.nvmlDeviceGetHandleByIndex(1)
        return event

    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", renewed)
    nvml.add(f"from {STILL + 2.5} gpu 1 xid 48")
    found = told(list(backend.read([devices[0].gpu], slow=False)), EventKind.XID)
    assert [(event.gpu, event.code, event.pci_bus_id) for event in found] == [
        (devices[1].gpu, 48, devices[1].row["pci_bus_id"])
    ]


def test_a_flood_of_xids_is_read_on_at_the_next_look_and_looks_are_a_second_apart(
    nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.write("gpus 1", f"now {STILL}")
    backend, devices = opened()
    flood = [f"from {STILL + 1 + at / 1000} xid {13 + at}" for at in range(100)]
    nvml.write("gpus 1", f"now {STILL + 3}", *flood)
    gpus = [devices[0].gpu]
    first = told(list(backend.read(gpus, slow=False)), EventKind.XID)
    assert told(list(backend.read(gpus, slow=False)), EventKind.XID) == []
    monkeypatch.setattr(nvml_backend, "_EVENTS_NS", 0)
    second = told(list(backend.read(gpus, slow=False)), EventKind.XID)
    assert [event.code for event in first + second] == list(range(13, 113))
    assert 0 < len(second) < len(first)


# The library of the tests


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
