"""`nvidia-smi -q` as XML and as text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.tests.importing.logs import MIDDLE, MIG, NEW, OLD, UUIDS, gpu, smi

# ruff: noqa: DTZ001, E501 - the store's times are UTC without a zone; elements are as long as the tool writes them


Parse = Callable[..., Parsed]
Refusal = Callable[..., str]


def log(tmp_path: Path, text: str, name: str = "smi.xml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_what_all_drivers_write(tmp_path: Path, store: Store) -> None:
    path = log(tmp_path, smi(gpu(0, OLD), gpu(1, OLD, fan="30 %", memory_temp="71 C")))
    report = import_file(store, path, Options(node="n1", time_zone="Europe/Berlin"))
    assert (report.format, report.total.kept, report.refusals) == ("nvidia-smi -q -x", 2, {})
    row = store.sql("select * from telemetry order by gpu").to_pylist()[1]
    said = {
        "temperature_c": 61, "memory_temperature_c": 71, "fan_speed": 30, "pstate": 0, "utilization": 98,
        "memory_utilization": 41, "encoder_utilization": 1, "decoder_utilization": 2, "sm_clock_mhz": 1275,
        "mem_clock_mhz": 1593, "memory_used": 50 * 2**20, "memory_free": 80999 * 2**20, "pcie_replays": 3,
        "power_window_ms": 25, "gpu": UUIDS[1],
    }  # fmt: skip
    assert {name: row[name] for name in said} == said
    assert row["ts"] == at(2023, 8, 4, 9, 44, 30)
    board = store.sql("select * from gpus order by gpu").to_pylist()[1]
    known = {
        "uuid": UUIDS[1], "node": "n1", "slot": 1, "model": "NVIDIA A100-SXM4-80GB", "serial": "1650522003821",
        "vbios": "92.00.36.00.02", "driver": "535.54.03", "pci_bus_id": "00000000:01:00.0", "memory_total": 81920 * 2**20,
        "power_limit_default_mw": 300_000, "power_limit_min_mw": 100_000, "power_limit_max_mw": 310_000,
        "sm_clock_max_mhz": 1410, "mem_clock_max_mhz": 1593, "temperature_shutdown_c": 92, "temperature_slowdown_c": 89,
        "temperature_max_operating_c": 85,
    }  # fmt: skip
    assert {name: board[name] for name in known} == known
    assert store.sql("select fan_speed, memory_temperature_c from telemetry order by gpu").to_pylist()[0] == {
        "fan_speed": None,
        "memory_temperature_c": None,
    }


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (OLD, {"power_mw": 251_250, "power_instant_mw": None, "power_limit_mw": 275_000, "clock_event_reasons": 0x44,
               "ecc_corrected": 7, "ecc_uncorrected": 1, "remapped_rows": None, "row_remap_failed": None}),
        (MIDDLE, {"power_mw": 251_250, "power_limit_mw": 275_000, "clock_event_reasons": 1, "ecc_corrected": 7,
                  "ecc_uncorrected": 1, "remapped_rows": 3, "remapped_rows_corrected": 2, "row_remap_failed": 1}),
        (NEW, {"power_mw": None, "power_average_mw": 250_000, "power_instant_mw": 251_250, "power_limit_mw": 275_000,
               "clock_event_reasons": 4, "power_violation_ns": 2_548_000, "power_brake_ns": 5_000, "ecc_corrected": 7,
               "ecc_uncorrected": None, "vgpu_licensed": 1}),
        ("", {"power_mw": None, "clock_event_reasons": None, "ecc_corrected": None, "power_limit_mw": None}),
    ],
)  # fmt: skip
def test_what_drivers_write_in_their_own_way(
    driver: str, said: dict[str, int | None], tmp_path: Path, parse: Parse
) -> None:
    row = parse(log(tmp_path, smi(gpu(0, driver)))).frame.row(0, named=True)
    assert {name: row[name] for name in said} == said


def test_many_logs_in_one_file_with_other_text_between(tmp_path: Path, parse: Parse) -> None:
    logs = [smi(gpu(0, NEW), gpu(1, NEW), when=f"Fri Aug  4 11:44:{s:02d} 2023") for s in range(5)]
    found = parse(log(tmp_path, "\n--- next ---\n".join(logs)))
    assert found.report.total.rows == found.frame.height == 10
    assert found.frame["ts"].n_unique() == 5
    assert found.sheet.line(1) == 6
    assert found.sheet.line(3) == 6 + logs[0].count("\n") + 2


def test_mig_instances(tmp_path: Path, store: Store) -> None:
    import_file(store, log(tmp_path, smi(gpu(0, MIG, MIDDLE))), Options(node="n1"))
    rows = store.sql("select gpu, memory_used, power_mw from telemetry order by gpu").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (UUIDS[0], 50 * 2**20, 251_250),
        (f"{UUIDS[0]}:GI3", 12 * 2**20, None),
        (f"{UUIDS[0]}:GI4-CI1", 13 * 2**20, None),
    ]
    gpus = store.sql("select gpu, uuid, slot, parent, memory_total from gpus order by gpu").to_pylist()
    assert tuple(gpus[0].values())[1:4] == (UUIDS[0], 0, None)
    assert tuple(gpus[1].values())[1:] == (None, None, UUIDS[0], 19968 * 2**20)


def test_a_torn_log_costs_only_itself(tmp_path: Path, parse: Parse) -> None:
    first, last = smi(gpu(0), gpu(1)), smi(gpu(0), gpu(1), when="Fri Aug  4 11:44:32 2023")
    torn = smi(gpu(0), gpu(1), when="Fri Aug  4 11:44:31 2023")[:-700]
    found = parse(log(tmp_path, first + torn + "\n" + last))
    assert [time.second for time in found.frame["ts"]] == [30, 30, 31, 32, 32]
    assert found.frame["slot"].to_list() == [0, 1, None, 0, 1]
    (reason,) = found.report.refusals
    assert reason.startswith("the log is cut short or damaged (")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (smi(), "the log has no GPU"),
        (smi(gpu(0), when="yesterday"), "its log has no readable time"),
        (smi(gpu(0))[:600], "the log is cut short or damaged"),
        (smi(gpu(0, "<a>&boom;</a>")), "undefined entity"),
    ],
)
def test_a_file_that_cannot_be_used(text: str, why: str, tmp_path: Path, refusal: Refusal) -> None:
    assert why in refusal(log(tmp_path, text))


def test_entities_of_a_document_type_mean_nothing(tmp_path: Path, refusal: Refusal) -> None:
    levels = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    document = f'<!DOCTYPE nvidia_smi_log [<!ENTITY a0 "ha"><!ENTITY file SYSTEM "/etc/passwd">{levels}]>\n'
    for entity in ("&a11;", "&file;"):
        text = document + smi(gpu(0, f"<a>{entity}</a>")).partition('.dtd">\n')[2]
        assert "undefined entity" in refusal(log(tmp_path, text))


def test_a_gpu_that_is_lost(tmp_path: Path, parse: Parse) -> None:
    lost = '<gpu id="00000000:01:00.0"><product_name>GPU is lost</product_name><uuid>GPU is lost</uuid></gpu>\n'
    logs = smi(gpu(0, NEW), gpu(1, NEW)) + smi(gpu(0, NEW), lost, when="Fri Aug  4 11:44:32 2023")
    found = parse(log(tmp_path, logs))
    assert (found.report.gpus, found.report.total.refused) == (2, 0)
    assert found.events.select("kind", "gpu", "pci_bus_id").rows() == [
        ("lost", found.frame["gpu"][1], "00000000:01:00.0")
    ]


@pytest.mark.parametrize("sentence", ["{}: GPU is lost.  Reboot the system to recover this GPU", "{}: Unknown Error"])
def test_a_line_of_the_tool_names_the_gpu_that_is_lost(sentence: str, tmp_path: Path, parse: Parse) -> None:
    line = sentence.format("Unable to determine the device handle for GPU 0000:01:00.0") + "\n"
    found = parse(log(tmp_path, smi(gpu(0, NEW), gpu(1, NEW)) + line))
    assert found.events.select("kind", "gpu", "ts").rows() == [("lost", UUIDS[1], at(2023, 8, 4, 11, 44, 30))]


def test_logs_of_several_hosts_in_one_file(tmp_path: Path, parse: Parse, refusal: Refusal) -> None:
    first, later = smi(gpu(0), gpu(1)), smi(gpu(0), gpu(1), when="Fri Aug  4 11:44:32 2023")
    other = later.replace(UUIDS[0], UUIDS[2]).replace(UUIDS[1], UUIDS[3])
    path = log(tmp_path, first + other)
    assert parse(path).frame["gpu"].n_unique() == 4
    assert "has rows of several hosts" in refusal(path, node="n1")
    exchanged = log(tmp_path, first + later.replace(UUIDS[0], UUIDS[2]), "b.xml")
    assert parse(exchanged, node="n1").frame.filter(node="n1").height == 4


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
TEXT_NEW = {"reasons": "Event", "power": "GPU ", "limit": "Current "}
TEXT_OLD = {"reasons": "Throttle", "power": "", "limit": "Enforced "}
PART = """GPU 00000000:{0}:00.0
    Power Readings
        Power Management                  : Supported
        Power Draw                        : {1} W
    Power Samples
        Max                               : 99.31 W

"""


@pytest.mark.long(short=1)
@pytest.mark.parametrize("driver", [TEXT_NEW, TEXT_OLD])
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
def test_a_gpu_that_is_lost_in_text(lost: str, tmp_path: Path, store: Store) -> None:
    path = tmp_path / "q.txt"
    path.write_text(HEAD.format("10:00:00") + GPU.format(uuid=UUIDS[0], **TEXT_NEW) + lost)
    import_file(store, path, Options(node="n1"))
    assert store.sql("select gpu from gpus").to_pylist() == [{"gpu": UUIDS[0]}]
    events = store.sql("select ts, gpu, node, pci_bus_id, kind from events").to_pylist()
    assert [tuple(event.values()) for event in events] == [
        (at(2026, 11, 20, 10), None, "n1", "00000000:18:00.0", "lost")
    ]
