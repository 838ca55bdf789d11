"""NVML as the collector reads it: the real nvidia-ml-py over our own library, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pynvml
import pytest

from whorl.collectors.backends import Status
from whorl.collectors.nvml import Nvml, function
from whorl.collectors.nvml_reader import Reader, meaning
from whorl.collectors.rows import EVERY, QUICK
from whorl.store.metrics import FAST, METRICS, Call, Field
from whorl.store.vocabulary import EventKind
from whorl.tests.collectors.sampling import as_rows, sampling
from whorl.tests.nvml_library import NvmlLibrary

STILL = 1_790_000_004.03  # where the library's clock stands in tests of values

# nvmlFieldValue_t
FIELD_VALUE = [("id", "<u4"), ("scope", "<u4"), ("stamp", "<i8"), ("latency", "<i8"), ("type", "<u4"), ("ret", "<u4")]
FIELD_VALUE += [("v", "<u8")]

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
}


def licence(handle: Any) -> int:
    features = pynvml.nvmlDeviceGetGridLicensableFeatures_v4(handle)
    pynvml._nvmlCheckReturn(0 if features.isGridLicenseSupported else pynvml.NVML_ERROR_NOT_SUPPORTED)
    return int(features.gridLicensableFeatures[0].featureState)


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


def index_of(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetIndex(handle))


def one_sweep(backend: Nvml, *, slow: bool = True) -> list[dict[str, Any]]:
    """Every device read once, as rows."""
    number = len(backend.devices())
    stamps = [time.time_ns()] * number
    for device in range(number):
        backend.read(device, slow=slow)
    sweep = backend.sweep(stamps)
    gpus = [("c", device.gpu) for device in backend.devices()]
    columns, rows = (EVERY, list(range(len(METRICS)))) if slow else (QUICK, list(FAST))
    return as_rows(columns.ticks(gpus, stamps, sweep.values[rows], sweep.status[rows] == Status.OK).rows())


@pytest.mark.parametrize("model", ["V100", "A100", "H100", "H200"])
def test_every_value_is_what_the_binding_answers(nvml: NvmlLibrary, model: str) -> None:
    nvml.write("gpus 3", f"model {model}", f"now {STILL}", "load 10 0.7", "gpu 1 ecc 7 2", "gpu 2 remapped 3 1 1")
    nvml.add("gpu 2 limit 250000", "gpu 0 vgpu 1", "gpu 1 vgpu 0")
    backend = Nvml()
    backend.open()
    rows = one_sweep(backend)
    known = 0
    for index, row in enumerate(rows):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for metric in ASKED:
            expected = answer(handle, SPELLED.get(metric.name, metric.nvml), scale=metric.scale)
            assert row[metric.name] == expected, (index, metric.name)
            known += expected is not None
    assert known > 60
    assert [row["vgpu_licensed"] for row in rows] == [1, 0, None]
    if model != "V100":
        assert [row["row_remap_failed"] for row in rows] == [0, 0, 1]
    assert all(0 < row["encoder_utilization"] < row["decoder_utilization"] for row in rows)
    assert one_sweep(backend, slow=False)[0].keys() < rows[0].keys()
    backend.close()


@pytest.mark.parametrize(("model", "window"), [("V100", 10), ("A100", 25), ("H100", 1000), ("H200", 1000)])
def test_what_the_power_reading_averages_over_goes_by_the_architecture(
    nvml: NvmlLibrary, model: str, window: int
) -> None:
    nvml.write("gpus 1", f"model {model}")
    backend = Nvml()
    backend.open()
    assert one_sweep(backend)[0]["power_window_ms"] == window
    assert backend.period_ms == (20 if model == "V100" else 100)
    backend.close()


def test_the_age_of_a_reading_is_from_the_drivers_stamp(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", "every 0.4")
    backend = Nvml()
    backend.open()
    ages = []
    for _ in range(30):
        ages.append(one_sweep(backend, slow=False)[0]["power_age_us"])
        time.sleep(0.02)
    (value,) = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), [186])
    old = time.time() - value.timestamp / 1e6
    assert all(0 <= age < 600_000 for age in ages)
    assert old < 0.6
    backend.close()


def test_a_stamp_of_another_clock_is_no_age(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", f"now {STILL}")
    backend = Nvml()
    backend.open()
    row = one_sweep(backend)[0]
    assert row["power_age_us"] is None
    assert row["power_instant_mw"] is not None
    backend.close()


def test_power_of_the_module_is_taken_where_there_is_no_other_and_said(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "gpu 1 module")
    backend = Nvml()
    backend.open()
    assert all(row["power_instant_mw"] for row in one_sweep(backend))
    ((kind, gpu),) = [(h.kind, h.gpu) for h in backend.happened()]
    assert (kind, gpu) == ("module_power", backend.devices()[1].gpu)
    backend.close()


def test_identities(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100")
    backend = Nvml()
    backend.open()
    for index, device in enumerate(backend.devices()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        row = device.row
        assert device.gpu == row["uuid"] == pynvml.nvmlDeviceGetUUID(handle)
        assert row["serial"] == pynvml.nvmlDeviceGetSerial(handle)
        assert row["pci_bus_id"] == pynvml.nvmlDeviceGetPciInfo(handle).busId
        assert row["power_limit_min_mw"], row["power_limit_max_mw"] == (
            pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        )
        assert (row["nvml_index"], row["driver"]) == (index, pynvml.nvmlSystemGetDriverVersion())
        assert None not in (row["model"], row["vbios"], row["memory_total"], row["sm_clock_max_mhz"])
        assert row["temperature_max_operating_c"] < row["temperature_slowdown_c"] < row["temperature_shutdown_c"]
    backend.close()


@pytest.mark.parametrize("slow", [False, True])
def test_narrow_values_of_the_driver_may_have_rubbish_above_them(nvml: NvmlLibrary, slow: bool) -> None:
    nvml.write("gpus 2", "model H100", f"now {STILL}")
    pynvml.nvmlInit()
    reader = Reader(pynvml.nvmlDeviceGetHandleByIndex(0), function)
    raw = np.frombuffer(memoryview(reader._memory), np.dtype(FIELD_VALUE), len(reader._fields))
    rows = [row for row, _, _ in reader._fields]

    def taken() -> tuple[list[int], list[int]]:
        reader._was_read = True
        taken, status = reader.take(round(STILL * 1e9))
        values = dict(zip(range(len(METRICS)) if slow else FAST, taken, strict=True))
        return [values[row] for row in rows if row in values], [status[row] for row in rows if row in values]

    reader.read(slow=slow)
    clean, _ = taken()
    narrow = (raw["type"] == 1) & (raw["ret"] == 0)
    assert narrow.any()
    raw["v"][narrow] |= np.uint64(0xDEAD_BEEF_0000_0000)
    assert taken()[0] == clean
    raw["type"][:3], raw["v"][:3] = (0, 5, 4), (np.float64(1234.4).view(np.uint64), 7, 9)
    assert taken()[0][:3] == [1234, 7, 9]
    raw["type"][:3], raw["v"][:3] = (0, 5, 4), (np.float64(-1234.4).view(np.uint64), 2**32 - 7, 2**64 - 9)
    values, status = taken()
    assert (values[:3], status[:3]) == ([0] * 3, [Status.FAILED] * 3)  # none of them can be below 0
    raw["type"][:2], raw["v"][:2] = 0, np.array([np.nan, np.inf]).view(np.uint64)
    values, status = taken()
    assert (values[:2], status[:2]) == ([0, 0], [Status.FAILED] * 2)
    (at,) = [at for at, (_, field, _) in enumerate(reader._fields) if field == 74]
    raw["v"][at] = 2**64 - 1
    values, status = taken()
    assert (values[at], status[at]) == (0, Status.FAILED)  # no counter has come so far
    if slow:
        (at,) = [at for at, (_, field, _) in enumerate(reader._fields) if field == 94]
        assert raw["type"][at] == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        raw["v"][at] = 2**32 - 1
        values, status = taken()
        assert (values[at], status[at]) == (0, Status.FAILED)  # nor one of 32 bits
        (at,) = [at for at, row in enumerate(rows) if METRICS[row].name == "memory_temperature_c"]
        raw["type"][at], raw["v"][at] = 5, 2**32 - 7
        values, status = taken()
        assert (values[at], status[at]) == (-7, Status.OK)  # a temperature may


def test_a_value_that_is_not_supported_says_so_whatever_stands_in_its_place(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", "model H100")
    pynvml.nvmlInit()
    reader = Reader(pynvml.nvmlDeviceGetHandleByIndex(0), function)
    raw = np.frombuffer(memoryview(reader._memory), np.dtype(FIELD_VALUE), len(reader._fields))
    reader.read(slow=False)
    row = reader._fields[0][0]
    raw["type"][0], raw["ret"][0], raw["v"][0] = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 3, 2**64 - 1
    assert reader.take(time.time_ns())[1][row] == Status.UNSUPPORTED


def test_reading_changes_nothing_and_never_waits_for_pcie(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 8", "gpu 3 mig 3g.40gb")
    slow = ("nvmlDeviceGetPcieThroughput", "nvmlDeviceGetComputeRunningProcesses_v3")
    before, made = [nvml.calls(name) for name in slow], nvml.calls()
    with sampling() as running:
        running.ticks(30)
    assert not nvml.setters()
    assert nvml.calls() > made + 30 * 8
    assert [nvml.calls(name) for name in slow] == before


def test_a_driver_without_a_field_or_a_new_function_is_asked_the_older_way(nvml: NvmlLibrary) -> None:
    replaced = [3, 4, 74, 75, 76, 77, 79, 83, 94]
    nvml.write("gpus 2", "model H100", f"now {STILL}", "load 10 0.7", "ecc 7 2", "limit 250000")
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    by_field = {METRICS_BY_FIELD[field]: [answer(handle, field) for handle in handles] for field in replaced}
    nvml.add(*(f"gpu 0 deny 3 field:{field}" for field in replaced))
    nvml.add("gpu 0 deny 25 nvmlDeviceGetTemperatureV nvmlDeviceGetMemoryInfo_v2")
    backend = Nvml()
    backend.open()
    for slow in (True, False, True):  # GPU 1 still answers for fields
        for index, row in enumerate(one_sweep(backend, slow=slow)):
            for column, expected in by_field.items():
                assert column not in row or row[column] == expected[index], (index, column)
            assert row["temperature_c"] == pynvml.nvmlDeviceGetTemperature(handles[index], 0)
            if slow:
                structure = None if index == 0 else pynvml.nvmlMemory_v2
                memory = pynvml.nvmlDeviceGetMemoryInfo(handles[index], structure)
                assert (row["memory_used"], row["memory_free"]) == (memory.used, memory.free)
    backend.close()


def test_a_driver_that_refuses_a_whole_call_for_one_field_still_gives_the_others(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100", f"now {STILL}", "load 10 0.7", "gpu 0 deny 2 with:186 with:271 with:143")
    nvml.add("gpu 1 deny 3 nvmlDeviceGetFieldValues")
    backend = Nvml()
    backend.open()
    for slow in (True, False, True):
        before = nvml.calls("nvmlDeviceGetFieldValues")
        first, second = one_sweep(backend, slow=slow)
        assert nvml.calls("nvmlDeviceGetFieldValues") - before == 1  # what refuses is not asked again
        empty = {m.name for m in ASKED if m.name in first and first[m.name] is None}
        absent = {"remapped_rows", "remapped_rows_uncorrected", "fan_speed", "vgpu_licensed"}
        missing = {"power_instant_mw", "power_brake_ns"} | (absent if slow else set())
        assert empty == missing
        assert first["power_age_us"] is None
        assert second["power_average_mw"] is None
        assert first["energy_mj"] == answer(pynvml.nvmlDeviceGetHandleByIndex(0), 83)
        assert second["energy_mj"] == answer(pynvml.nvmlDeviceGetHandleByIndex(1), energy_of)
    backend.close()


def test_a_driver_without_events_says_so_once(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "deny 3 nvmlDeviceRegisterEvents")
    backend = Nvml()
    backend.open()
    assert [h.detail for h in backend.happened() if h.gpu is None] == ["the driver does not report XID errors here"]
    assert not backend.happened()
    backend.close()


def test_one_call_gives_all_field_values_of_a_gpu(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 4")
    with sampling(slow_s=1000.0) as running:
        running.ticks(2)
        before, ticks = nvml.calls("nvmlDeviceGetFieldValues"), len(running.kept.batches)
        running.ticks(20)
        made, done = nvml.calls("nvmlDeviceGetFieldValues") - before, len(running.kept.batches) - ticks
        assert 4 * (done - 1) <= made <= 4 * (done + 2)


def test_mig_instances_have_names_and_memory_and_no_power(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100", "gpu 1 mig 3g.40gb 1g.10gb")
    with sampling() as running:
        running.ticks(30)
        (devices,) = running.kept.identities
        whole = [d for d in devices if d.parent is None]
        parts = [d for d in devices if d.parent is not None]
        assert len(whole) == 2
        assert [d.row["mig_profile"] for d in parts] == ["3g.40gb", "1g.10gb"]
        assert {d.row["parent"] for d in parts} == {whole[1].gpu}
        assert all(d.gpu.startswith("MIG-") and d.row["memory_total"] for d in parts)
        rows = running.kept.of(parts[0].gpu)
        assert len(rows) < len(running.kept.of(whole[0].gpu))  # read in the slow tier
        empty = {c for row in rows for c, v in row.items() if v is None}
        assert all(row["memory_used"] is not None for row in rows)
        assert {"power_mw", "energy_mj", "sm_clock_mhz", "temperature_c"} <= empty
        assert all(row["power_mw"] for row in running.kept.of(whole[1].gpu))
        assert not running.kept.kinds(parts[0].gpu)
        # An instance is taken away, another comes.
        nvml.write("gpus 2", "model H100", "gpu 1 mig 2g.20gb")
        running.until(lambda: "mig" in running.kept.kinds(whole[1].gpu))
        assert "2g.20gb" in running.kept.detail("mig")
        running.until(lambda: len(running.kept.identities) == 2)
        new = [d for d in running.kept.identities[-1] if d.row.get("mig_profile") == "2g.20gb"]
        running.until(lambda: running.kept.of(new[0].gpu))
        gone = len(running.kept.of(parts[1].gpu))
        running.ticks(30)
        assert len(running.kept.of(parts[1].gpu)) == gone


def test_texts_of_the_driver_that_are_no_utf8_are_kept(nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.write("gpus 2", "model H100")

    @pynvml.convertStrBytes  # type: ignore[untyped-decorator]
    def name(_: Any) -> bytes:
        return b"NVIDIA \xff H100"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", name)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", pynvml.convertStrBytes(lambda: b"580\xfe"))
    backend = Nvml()
    backend.open()
    assert [(d.row["model"], d.row["driver"]) for d in backend.devices()] == [
        ("NVIDIA \N{REPLACEMENT CHARACTER} H100", "580\N{REPLACEMENT CHARACTER}")
    ] * 2
    backend.close()


def test_of_gpus_with_one_uuid_the_first_is_read_and_that_is_told_once(
    nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.write("gpus 3", "model H100", "gpu 2 ecc 7 0")
    uuid_of = pynvml.nvmlDeviceGetUUID
    first = set[Any]()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: "GPU-1" if index_of(handle) else uuid_of(handle))
    backend = Nvml()
    backend.open()
    for _ in range(3):
        assert [row["ecc_corrected"] for row in one_sweep(backend)] == [0, 0]
        first.add(backend._readers[1])
        told = [event for event in backend.happened() if event.kind == EventKind.FAILED_READING]
        assert not told or [event.gpu for event in told] == ["GPU-1"]
        assert not backend.look_again(frozenset(), nullcontext)
    assert len(first) == 1
    assert [record.message for record in caplog.records] == [
        "the GPUs at index 1 and 2 have the same UUID GPU-1; only the first is read"
    ]
    backend.close()


def test_a_return_code_that_nvml_does_not_have_yet_is_a_failure() -> None:
    assert meaning(0) == Status.OK
    assert meaning(999) == meaning(77) == meaning(5000) == Status.FAILED
    assert {meaning(code) for code in (1, 9, 18)} == {Status.DRIVER}
