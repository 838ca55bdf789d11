"""Files of nvbandwidth: the matrices of its tests, over its versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whorl.analysis.runs.probing import stresses
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file, read_file

Parse = Callable[..., Parsed]

H2D = {
    "name": "host_to_device_memcpy_ce",
    "status": "Passed",
    "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
    "bandwidth_matrix": [["50", "40.0"]],
    "sum": 90.0,
}
PEERS = {
    "name": "device_to_device_memcpy_read_ce",
    "status": "Passed",
    "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    "bandwidth_matrix": [["N/A", "250", "200"], ["240", "N/A", "N/A"], ["0", "100", "N/A"]],
}
BOTH_WAYS = {
    "name": "device_to_device_bidirectional_memcpy_write_sm",
    "status": "Passed",
    "bandwidth_description": "memcpy SM GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
    "bandwidth_matrix": [["N/A", "10"], ["11", "N/A"], ["N/A", "12"], ["13", "N/A"], ["N/A", "22"], ["24", "N/A"]],
}
LATENCY = {
    "name": "host_device_latency_sm",
    "status": "Passed",
    "bandwidth_description": "memory latency SM CPU(row) <-> GPU(column) (ns)",
    "bandwidth_matrix": [["800", "900"]],
}


def _document(*tests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nvbandwidth": {"version": "v0.8", "Driver Version": "550.54.15", **more, "testcases": list(tests)}}


def _write(path: Path, *documents: dict[str, Any], before: str = "") -> Path:
    """As the tool writes it: with a space before the colon, and an empty line at the end."""
    texts = [json.dumps(one, indent="\t", separators=(",", " : ")) + "\n\n" for one in documents]
    path.write_text(before + "".join(texts))
    return path


def _figures(store: Store, figure: str) -> list[tuple[Any, ...]]:
    rows = store.sql(
        f"select workload, gpu, repeat, value from results where figure = '{figure}' order by workload, gpu, repeat"
    )
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_values_of_host_and_gpu_are_of_the_column_and_lower_is_better(tmp_path: Path, store: Store) -> None:
    path = _write(tmp_path / "a.json", _document(H2D, LATENCY))
    report = import_file(store, path, Options(node="n1"))
    assert (report.format, report.total.kept, report.total.refused, report.placeholders) == ("nvbandwidth", 4, 0, {})
    h2d, latency = "nvbandwidth host_to_device_memcpy_ce", "nvbandwidth host_device_latency_sm"
    assert _figures(store, "bandwidth") == [(h2d, "n1:0", 0, 50.0), (h2d, "n1:1", 0, 40.0)]
    assert _figures(store, "latency") == [(latency, "n1:0", 0, 800.0), (latency, "n1:1", 0, 900.0)]
    assert _figures(store, "time") == [
        (latency, "n1:0", 0, 8e-4),
        (latency, "n1:1", 0, 9e-4),
        (h2d, "n1:0", 0, 20.0),
        (h2d, "n1:1", 0, 25.0),
    ]
    assert set(store.scan("runs").select(stresses()).collect().to_series()) == {"link"}
    assert {row["driver"] for row in store.sql("select driver from gpus").to_pylist()} == {"550.54.15"}


def test_peers_are_repeats_of_one_run(tmp_path: Path, store: Store) -> None:
    path = _write(tmp_path / "a.json", _document(PEERS))
    report = import_file(store, path, Options(node="n1"))
    assert (report.total.rows, report.total.kept, report.total.refused) == (5, 4, 1)
    assert list(report.refusals) == ["device_to_device_memcpy_read_ce has a bandwidth that is no number above 0 (0)"]
    name = "nvbandwidth device_to_device_memcpy_read_ce"
    assert _figures(store, "bandwidth") == [
        (name, "n1:0", 1, 250.0),
        (name, "n1:0", 2, 200.0),
        (name, "n1:1", 0, 240.0),
        (name, "n1:2", 1, 100.0),
    ]
    assert store.sql("select count(*) n from runs").to_pylist() == [{"n": 3}]


def test_both_directions_stand_below_each_other(tmp_path: Path, store: Store) -> None:
    import_file(store, _write(tmp_path / "a.json", _document(BOTH_WAYS)), Options(node="n1"))
    name = "nvbandwidth device_to_device_bidirectional_memcpy_write_sm"
    assert _figures(store, "bandwidth") == [
        (f"{name}_total", "n1:0", 1, 22.0),
        (f"{name}_total", "n1:1", 0, 24.0),
        (f"{name}_write1", "n1:0", 1, 10.0),
        (f"{name}_write1", "n1:1", 0, 11.0),
        (f"{name}_write2", "n1:0", 1, 12.0),
        (f"{name}_write2", "n1:1", 0, 13.0),
    ]


def test_the_list_of_devices_says_host_model_and_address(tmp_path: Path, store: Store) -> None:
    devices = [
        "0: NVIDIA H100 80GB HBM3 (00000000:0a:00): (n1)",
        "1: NVIDIA H100 80GB HBM3 (00000000:0b:00): (n2)",
    ]
    path = _write(tmp_path / "a.json", _document(H2D, **{"GPU Device list": devices}))
    import_file(store, path, Options())
    rows = store.sql("select gpu, node, slot, model, pci_bus_id from gpus order by gpu").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("n1:0", "n1", 0, "NVIDIA H100 80GB HBM3", "00000000:0A:00.0"),
        ("n2:0", "n2", 0, "NVIDIA H100 80GB HBM3", "00000000:0B:00.0"),
    ]


def test_a_gpu_is_known_by_its_address_and_not_by_the_number_that_cuda_gives_it(tmp_path: Path, store: Store) -> None:
    uuids = [f"GPU-0a1b2c3d-0000-1111-2222-33334444555{n}" for n in range(2)]
    smi = tmp_path / "smi.csv"
    rows = (f"2026-11-20 10:00:00, {n}, {uuid}, 00000000:0{n + 1}:00.0, 50" for n, uuid in enumerate(uuids))
    smi.write_text("timestamp, index, uuid, pci.bus_id, temperature.gpu\n" + "\n".join(rows))
    import_file(store, smi, Options(node="n1"))
    devices = ["0: H100 (00000000:02:00): (n1)", "1: H100 (00000000:01:00): (n1)"]
    import_file(store, _write(tmp_path / "a.json", _document(H2D, **{"GPU Device list": devices})), Options())
    assert [row[1::2] for row in _figures(store, "bandwidth")] == [(uuids[0], 40.0), (uuids[1], 50.0)]
    names = store.sql("select gpu, name from gpus_now order by name").to_pylist()
    assert [tuple(row.values()) for row in names] == [(uuids[0], "n1/0"), (uuids[1], "n1/1")]


TEXT = """nvbandwidth Version: v0.6
Built from Git version:

CUDA Runtime Version: 12040
Driver Version: 550.54.15

Device 0: NVIDIA A100-SXM4-40GB (00000000:0a:00)
Device 1: NVIDIA A100-SXM4-40GB (00000000:0b:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     50.00     40.00

SUM host_to_device_memcpy_ce 90.00
COEFFICIENT_OF_VARIATION host_to_device_memcpy_ce 0.11

Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
           0         1
 0       N/A     20.00
 1     25.00       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_read1 45.00

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A     40.00
 1     50.00       N/A

Running multinode_device_to_device_memcpy_read_ce.
WAIVED.

Running host_device_latency_sm.
ERROR: CUDA_ERROR_OUT_OF_MEMORY in cuMemAlloc

Running device_to_host_memcpy_ce.
memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0     50.00
"""


def test_text_is_read_as_json_is(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "a.log"
    path.write_text("module load cuda\n" + TEXT)
    report = import_file(store, path, Options(node="n1"))
    peers = "nvbandwidth device_to_device_bidirectional_memcpy_read_ce"
    assert _figures(store, "bandwidth") == [
        (f"{peers}_1", "n1:0", 1, 20.0),
        (f"{peers}_1", "n1:1", 0, 25.0),
        (f"{peers}_2", "n1:0", 1, 40.0),
        (f"{peers}_2", "n1:1", 0, 50.0),
        ("nvbandwidth host_to_device_memcpy_ce", "n1:0", 0, 50.0),
        ("nvbandwidth host_to_device_memcpy_ce", "n1:1", 0, 40.0),
    ]
    assert report.refusals == {
        "device_to_host_memcpy_ce: a line of the matrix has 1 of 2 values": [41],
        "host_device_latency_sm has no result (Error: CUDA_ERROR_OUT_OF_MEMORY in cuMemAlloc)": [35],
        "device_to_host_memcpy_ce has no result (it was cut short)": [38],
    }
    assert any("did not run multinode_device_to_device_memcpy_read_ce" in note for note in report.notes)
    models = store.sql("select distinct model, pci_bus_id, driver from gpus order by pci_bus_id").to_pylist()
    assert models[0] == {"model": "NVIDIA A100-SXM4-40GB", "pci_bus_id": "00000000:0A:00.0", "driver": "550.54.15"}


PROCESSES = """[worker-1:00025] MCW rank 6 bound to socket 0[core 2[hwt 0]]: [././B/./.][./././.]
nvbandwidth Version: v0.7
Driver Version: 570.124.06

Process 0 (worker-0): device 0: HGX GB200 (00000008:01:00)
Process 1 (worker-0): device {1}: HGX GB200 (00000009:01:00)
Process 2 (worker-1): device 0: HGX GB200 (00000008:01:00)
Process 3 (worker-1): device {1}: HGX GB200 (00000009:01:00)

Running multinode_device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2         3
 0       N/A    798.02    798.25    798.02
 1    798.02       N/A    797.80    798.02
 2    797.73    798.02       N/A    797.80
 3    718.03    717.78    718.02       N/A
"""


@pytest.mark.parametrize("device", ["1", "0"])  # 0: each process sees its own GPU only
def test_processes_on_several_hosts(device: str, tmp_path: Path, parse: Parse) -> None:
    path = tmp_path / "a.log"
    path.write_text(PROCESSES.replace("{1}", device))
    found = parse(path, node="n1")
    slow = found.frame.filter(found.frame["figure bandwidth"] < 720)
    assert slow.select("node", "slot", "gpu").unique().rows() == [("worker-1", 1, "worker-1:1")]
    assert found.frame["gpu"].unique().sort().to_list() == [f"worker-{n}:{slot}" for n in (0, 1) for slot in (0, 1)]
    assert any("--node is not used" in note for note in found.report.notes)


def test_the_host_stands_above_the_first_device_or_in_front_of_each_line(tmp_path: Path, parse: Parse) -> None:
    for name, text in (
        ("above", TEXT.replace("Device 0", "n017\nDevice 0")),
        ("front", "".join(f"n017: {line}\n" for line in TEXT.splitlines())),
    ):
        path = tmp_path / name
        path.write_text(text)
        assert parse(path, node="n1").frame["gpu"].unique().sort().to_list() == ["n017:0", "n017:1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(_document(H2D))[:-20], "cut short at line 1"),
        (json.dumps({"nvbandwidth": {"error": "no CUDA device"}}), "measured nothing: no CUDA device"),
        (json.dumps({"nvbandwidth": 3}), "not an object"),
        (json.dumps(_document()), "holds no measurement"),
        (json.dumps(_document({**H2D, "bandwidth_matrix": [["nan"]]})), "none of its 1 rows can be used"),
        (json.dumps(_document({**H2D, "bandwidth_matrix": 5})), "none of its 1 rows can be used"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_file(path, Options(node="n1"))
