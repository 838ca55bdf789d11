"""A metric is one row of `METRICS` and nothing anywhere else; the folder agrees with the table of backends."""

from __future__ import annotations

import inspect
from pathlib import Path

import pynvml
import pytest

from whorl import collectors
from whorl.collectors.backend import BACKENDS, Backend, find_backend
from whorl.store import metrics
from whorl.store.metrics import BOARD_POWER, METRICS, Call, Gpm
from whorl.store.schema import MINUTES, TELEMETRY

# Two rows more, of fields that the C library of tests/native answers and whorl does not read.
# Each Python that begins with this has these rows at the end of the table in store/metrics.py, and no other change.


# Collects for a second from each backend, and keeps of one store the minutes only; prints what was asked in between.


def test_every_metric_is_a_column_and_has_a_minute() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    kinds = {column.name: column.kind for column in TELEMETRY.columns}
    assert {name: kinds[name] for name in names} == {metric.name: metric.kind for metric in METRICS}
    assert set(kinds) - set(names) == {"ts", "cluster", "gpu", "read_us", "quality", "import_id"}
    parts = {"gauge": ("_min", "_mean", "_max"), "counter": ("_first", "_last"), "mask": ("",)}
    for metric in METRICS:
        found = {name for name in MINUTES.names if name.startswith(metric.name)}
        assert {metric.name + part for part in parts[metric.kind]} <= found


def test_numbers_are_those_of_the_real_bindings() -> None:
    """pydcgm of DCGM 3.1 knows the older names; nvidia-ml-py knows GPM."""
    known = vars(pytest.importorskip("model_analyzer.monitor.dcgm.dcgm_fields"))
    of_dcgm = {name: m.dcgm.id for m in METRICS if m.dcgm for name in m.prometheus}
    assert {name: number for name, number in of_dcgm.items() if known.get(name, number) != number} == {}
    assert len({number for name, number in of_dcgm.items() if name in known}) >= 40
    words = {
        "gr_engine_active_ppm": "GRAPHICS_UTIL", "sm_active_ppm": "SM_UTIL", "sm_occupancy_ppm": "SM_OCCUPANCY",
        "tensor_active_ppm": "ANY_TENSOR_UTIL", "dram_active_ppm": "DRAM_BW_UTIL", "fp64_active_ppm": "FP64_UTIL",
        "fp32_active_ppm": "FP32_UTIL", "fp16_active_ppm": "FP16_UTIL", "pcie_tx_bytes_per_s": "PCIE_TX_PER_SEC",
        "pcie_rx_bytes_per_s": "PCIE_RX_PER_SEC", "nvlink_tx_bytes_per_s": "NVLINK_TOTAL_TX_PER_SEC",
        "nvlink_rx_bytes_per_s": "NVLINK_TOTAL_RX_PER_SEC",
    }  # fmt: skip
    numbers = {m.name: m.nvml.id for m in METRICS if isinstance(m.nvml, Gpm)}
    assert numbers == {name: getattr(pynvml, f"NVML_GPM_METRIC_{one}") for name, one in words.items()}


def test_no_other_module_names_what_a_row_spells() -> None:
    """But for what a GPU is, which is asked once."""
    folder = Path(inspect.getfile(collectors)).parent
    text = "".join(p.read_text() for p in folder.glob("*.py") if p.name not in ("nvml_driver.py", "nvml_settings.py"))
    for metric in METRICS:
        if isinstance(metric.nvml, Call) and metric.nvml.function != "nvmlDeviceGetMemoryInfo_v2":
            assert metric.nvml.function not in text


def test_board_power_is_decided_in_one_place() -> None:
    """No other module names both readings of power in one line or next to each other."""
    root = Path(metrics.__file__).parents[1]
    instant, reported = BOARD_POWER
    rooms = ("analysis", "cli", "collectors", "dashboards", "jobs", "probes")
    for path in (path for room in rooms for path in (root / room).rglob("*.py")):
        for line in path.read_text().splitlines():
            assert not (instant in line and f'"{reported}"' in line), (path, line)


def test_every_backend_is_in_the_table() -> None:
    for name in BACKENDS:
        kind = find_backend(name)
        assert isinstance(kind, type)
        assert issubclass(kind, Backend)
        assert kind.name == name
