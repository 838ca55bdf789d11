"""Logs of `nvidia-smi -q` as text: the values are those of the same titles, once or many times, whole or in part."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.tests.importing.logs import UUIDS

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Parse = Callable[..., Parsed]

HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Fri Nov 20 {} 2026
Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 2
"""
GPU = """GPU 00000000:17:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    Serial Number                         : 1650522003821
    GPU UUID                              : {uuid}
    VBIOS Version                         : 92.00.36.00.02
    Fan Speed                             : N/A
    PCI
        Bus                               : 0x17
        Bus Id                            : 00000000:17:00.0
        Replays Since Reset               : 3
    Performance State                     : P0
    Clocks {reasons} Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
        Display Clock Setting             : Not Active
    FB Memory Usage
        Total                             : 81920 MiB
        Used                              : 4 MiB
        Free                              : 81327 MiB
    BAR1 Memory Usage
        Used                              : 1 MiB
    Utilization
        Gpu                               : 98 %
        Memory                            : 41 %
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 6
            DRAM Uncorrectable            : 1
        Aggregate
            SRAM Correctable              : 99
    Remapped Rows
        Correctable Error                 : 2
        Uncorrectable Error               : 1
        Remapping Failure Occurred        : Yes
    Temperature
        GPU Current Temp                  : 61 C
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        GPU Max Operating Temp            : 85 C
        Memory Current Temp               : 71 C
    {power}Power Readings
        Power Draw                        : 251.25 W
        {limit}Power Limit               : 275.00 W
        Default Power Limit               : 300.00 W
    Clocks
        Graphics                          : 1260 MHz
        SM                                : 1275 MHz
        Memory                            : 1593 MHz
    Applications Clocks
        SM                                : 1410 MHz
    Max Clocks
        SM                                : 1410 MHz
        Memory                            : 1593 MHz
    Processes
        Process ID                        : 4242
            Name                          : python
"""
NEW = {"reasons": "Event", "power": "GPU ", "limit": "Current "}
OLD = {"reasons": "Throttle", "power": "", "limit": "Enforced "}
PART = """GPU 00000000:{0}:00.0
    Power Readings
        Power Management                  : Supported
        Power Draw                        : {1} W
    Power Samples
        Max                               : 99.31 W

"""


@pytest.mark.long(short=1)
@pytest.mark.parametrize("driver", [NEW, OLD])
def test_the_whole_state_of_a_gpu(driver: dict[str, str], tmp_path: Path, store: Store) -> None:
    path = tmp_path / "q.txt"
    path.write_text(HEAD.format("10:00:00") + GPU.format(uuid=UUIDS[0], **driver))
    report = import_file(store, path, Options(node="n1"))
    assert (report.format, report.total.kept, report.refusals) == ("nvidia-smi -q", 1, {})
    (row,) = store.sql("select * from telemetry").to_pylist()
    said = {
        "ts": at(2026, 11, 20, 10), "gpu": UUIDS[0], "power_mw": 251_250, "power_limit_mw": 275_000,
        "sm_clock_mhz": 1275, "mem_clock_mhz": 1593, "temperature_c": 61, "memory_temperature_c": 71,
        "utilization": 98, "memory_utilization": 41, "memory_used": 4 << 20, "memory_free": 81327 << 20, "pstate": 0,
        "clock_event_reasons": 0x44, "pcie_replays": 3, "ecc_corrected": 7, "ecc_uncorrected": 1, "remapped_rows": 3,
        "row_remap_failed": 1, "fan_speed": None, "power_window_ms": 25,
    }  # fmt: skip
    assert {name: row[name] for name in said} == said
    (board,) = store.sql("select * from gpus").to_pylist()
    known = {
        "uuid": UUIDS[0], "node": "n1", "model": "NVIDIA A100-SXM4-80GB", "serial": "1650522003821",
        "vbios": "92.00.36.00.02", "driver": "535.104.05", "pci_bus_id": "00000000:17:00.0",
        "memory_total": 81920 << 20, "power_limit_default_mw": 300_000, "sm_clock_max_mhz": 1410,
        "temperature_shutdown_c": 92, "temperature_slowdown_c": 89, "temperature_max_operating_c": 85,
    }  # fmt: skip
    assert {name: board[name] for name in known} == known


def test_a_part_again_and_again_has_no_uuids_and_its_end_may_be_cut(tmp_path: Path, parse: Parse) -> None:
    logs = [HEAD.format(f"10:00:0{n}") + PART.format(17, f"61.2{n}") + PART.format(31, f"71.2{n}") for n in range(2)]
    path = tmp_path / "q.txt"
    path.write_text("".join(logs))
    found = parse(path, node="n1").frame
    assert found["gpu"].to_list() == ["n1:0", "n1:1", "n1:0", "n1:1"]
    assert found["power_mw"].to_list() == [61_200, 71_200, 61_210, 71_210]
    path.write_text(
        "".join(logs)[: -len("1 W\n    Power Samples\n        Max                               : 99.31 W\n\n")]
    )
    assert parse(path, node="n1").frame["power_mw"].to_list() == [61_200, 71_200, 61_210, None]


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    "lost",
    [
        "GPU 00000000:18:00.0\n    GPU UUID    : GPU is lost\n    PCI\n        Bus Id     : GPU is lost\n",
        "Unable to determine the device handle for GPU0000:18:00.0: Unknown Error\n",
    ],
)
def test_a_gpu_that_is_lost(lost: str, tmp_path: Path, store: Store) -> None:
    path = tmp_path / "q.txt"
    path.write_text(HEAD.format("10:00:00") + GPU.format(uuid=UUIDS[0], **NEW) + lost)
    import_file(store, path, Options(node="n1"))
    assert store.sql("select gpu from gpus").to_pylist() == [{"gpu": UUIDS[0]}]
    events = store.sql("select ts, gpu, node, pci_bus_id, kind from events").to_pylist()
    assert [tuple(event.values()) for event in events] == [
        (at(2026, 11, 20, 10), None, "n1", "00000000:18:00.0", "lost")
    ]


def test_mig_instances_have_their_memory(tmp_path: Path, parse: Parse) -> None:
    instance = """    MIG Device
        Index                             : 0
        GPU Instance ID                   : 3
        Compute Instance ID               : 0
        FB Memory Usage
            Total                         : 19968 MiB
            Used                          : 12 MiB
"""
    text = GPU.format(uuid=UUIDS[0], **NEW).replace("    Fan Speed", instance + "    Fan Speed")
    path = tmp_path / "q.txt"
    path.write_text(HEAD.format("10:00:00") + text)
    rows = parse(path).frame.select("gpu", "parent", "memory_used", "power_mw").rows()
    assert rows == [(UUIDS[0], None, 4 << 20, 251_250), (f"{UUIDS[0]}:GI3", UUIDS[0], 12 << 20, None)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# gpu         pid   type     sm\n# Idx           #    C/G      %\n    0   12   C   95\n", "dmon -o DT"),
        ("#Date       Time        gpu         pid  type\n 20261120  10:00:00   0   12   C\n", "nvidia-smi pmon"),
        ("Fri Nov 20 10:00:00 2026\n+----+\n| NVIDIA-SMI 535.104.05  |\n", "save nvidia-smi -q instead"),
        (f"GPU 0: NVIDIA A100 (UUID: {UUIDS[0]})\n", "which has no measurements; save nvidia-smi -q"),
    ],
)
def test_other_outputs_of_nvidia_smi_are_told(
    text: str, sentence: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    path = tmp_path / "out.txt"
    path.write_text(text)
    assert sentence in refusal(path)
