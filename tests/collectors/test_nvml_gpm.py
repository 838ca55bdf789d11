"""The profiling metrics of NVML: means between two looks, against what the C library knows to be true."""

from __future__ import annotations

import time
from typing import Any

import pytest

from whorl.collectors.backend import Device, Reading
from whorl.collectors.nvml import Nvml
from whorl.store.events import Event
from whorl.store.metrics import METRICS, Gpm
from whorl.store.vocabulary import EventKind
from whorl.tests.collectors.test_nvml import opened, sweep, told, values_of
from whorl.tests.nvml_library import NvmlLibrary

T0 = 1_790_000_004.03
APART_S = 0.11  # of two looks
COLUMNS = [m.name for m in METRICS if isinstance(m.nvml, Gpm)]
LINKS = 18
# Of a GPU that is busy all the time, as tests/native/nvml_gpm.c has it.
BUSY = {
    "gr_engine_active_ppm": 1e6,
    "sm_active_ppm": 0.96e6,
    "sm_occupancy_ppm": 0.48e6,
    "tensor_active_ppm": 0.62e6,
    "dram_active_ppm": 0.55e6,
    "fp64_active_ppm": 0.03e6,
    "fp32_active_ppm": 0.21e6,
    "fp16_active_ppm": 0.08e6,
    "pcie_tx_bytes_per_s": 9e9,
    "pcie_rx_bytes_per_s": 25e9,
    "nvlink_tx_bytes_per_s": 6e9 * 1.06 * LINKS,
    "nvlink_rx_bytes_per_s": 6e9 * 0.98 * 1.06 * LINKS,
}


def swept(nvml: NvmlLibrary, source: tuple[Nvml, list[Device]], at: float, before: float) -> list[dict[str, Any]]:
    """A slow sweep when the library's clock has gone on from one time to another, long after the look before."""
    nvml.remove(f"now {before}")
    nvml.add(f"now {at}")
    time.sleep(APART_S)
    return sweep(*source)


def test_every_look_gives_the_means_since_the_look_before(nvml: NvmlLibrary) -> None:
    assert set(COLUMNS) == set(BUSY)
    nvml.write("gpus 2", "model H100", "load 10 0.7", f"from {T0 + 9} load 1 0.25", f"now {T0}")
    source = opened()
    known = set()
    for before, at in ((0.0, 3.1), (3.1, 8.25), (8.25, 20.5)):  # the first look is at the opening
        for gpu, row in enumerate(swept(nvml, source, T0 + at, T0 + before)):
            busy = (nvml.busy_s(gpu, T0 + at) - nvml.busy_s(gpu, T0 + before)) / (at - before)
            for column, whole in BUSY.items():
                assert row[column] == pytest.approx(busy * whole, rel=1e-6, abs=2), (gpu, at, column)
            known.add(round(busy, 3))
    assert len(known) >= 5
    assert COLUMNS[0] not in sweep(*source, slow=False)[0]
    source[0].close()


def test_two_looks_are_at_least_100_ms_apart_and_no_time_is_left_out(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", "model H100", "load 10 0.7", f"now {T0}")
    source = opened()
    looks, asked = (nvml.calls(f"nvmlGpm{name}") for name in ("SampleGet", "MetricsGet"))
    (row,) = sweep(*source)  # at once after the look at the opening
    assert {row[column] for column in COLUMNS} == {None}
    assert row["power_mw"] is not None
    assert [nvml.calls(f"nvmlGpm{name}") for name in ("SampleGet", "MetricsGet")] == [looks, asked]
    (row,) = swept(nvml, source, T0 + 5, T0)
    busy = (nvml.busy_s(0, T0 + 5) - nvml.busy_s(0, T0)) / 5
    assert row["sm_active_ppm"] == pytest.approx(busy * 0.96e6, abs=2)
    assert 0.2 < busy < 0.9
    source[0].close()


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("model A100", EventKind.NOT_SUPPORTED, "NVML has them from Hopper on"),
        ("deny 4 nvmlGpmSampleGet", EventKind.NOT_PERMITTED, "this user may not read them"),
        ("deny 13 nvmlGpmQueryDeviceSupport", EventKind.NOT_SUPPORTED, "NVML has them from Hopper on"),
    ],
)
def test_a_gpu_without_them_is_told_of_once(nvml: NvmlLibrary, said: str, kind: EventKind, words: str) -> None:
    nvml.write("gpus 2", said)
    backend, devices = opened()
    found = list[Reading | Event]()
    for _ in range(3):
        found += backend.read([device.gpu for device in devices], slow=True)
        backend.devices()
    events = [event for event in told(found, kind) if "profiling" in event.detail]
    assert [event.gpu for event in events] == [device.gpu for device in devices]
    assert all(words in event.detail for event in events)
    row = values_of(found[0])
    assert {row[column] for column in COLUMNS} == {None}
    assert row["power_mw"]
    backend.close()


def test_a_failing_look_costs_only_the_profiling_metrics_and_the_next_ones_begin_anew(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", "model H100", "load 10 1", f"now {T0}")
    source = opened()
    nvml.add("deny 999 nvmlGpmSampleGet")
    (row,) = swept(nvml, source, T0 + 1, T0)
    assert {row[column] for column in COLUMNS} == {None}
    assert row["power_mw"] is not None
    nvml.remove("deny 999 nvmlGpmSampleGet")
    (row,) = swept(nvml, source, T0 + 2, T0 + 1)
    assert row["sm_active_ppm"] is None  # a first look
    (row,) = swept(nvml, source, T0 + 3, T0 + 2)
    assert row["sm_active_ppm"] == 960_000
    source[0].close()


def test_mig_instances_have_their_own(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 1", "model H100", "load 10 1", "mig 3g.40gb 1g.10gb", f"now {T0}")
    source = opened()
    whole, *parts = swept(nvml, source, T0 + 2, T0)
    for part, slices in zip(parts, (3, 1), strict=True):
        assert part["sm_active_ppm"] == 960_000
        assert part["pcie_tx_bytes_per_s"] == pytest.approx(9e9 * slices / 7, abs=2)
        assert part["nvlink_tx_bytes_per_s"] is None
        assert part["power_mw"] is None
    assert whole["sm_active_ppm"] == 960_000
    source[0].close()
