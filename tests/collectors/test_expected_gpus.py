"""GPUs that should be on a node: a /sys that the test writes, and what a store knows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from whorl.collectors.backend import Device
from whorl.collectors.node_memory import ExpectedGpus, NodeHistory, remember_as_child
from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.system import children
from whorl.store.vocabulary import EventKind

GPUS = [Device(f"GPU-{n:08x}-0000-0000-0000-000000000000", {"pci_bus_id": f"00000000:{n:02X}:00.0"}) for n in range(4)]


def board(
    root: Path,
    number: int,
    *,
    driver: str | None = "nvidia",
    device_file: bool = True,
    vendor: str = "0x10de",
    kind: str = "0x030200",
) -> None:
    """A GPU on the bus of a node, at 0000:NN:00.0."""
    name = f"0000:{number:02x}:00.0"
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver is not None:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        about = root / "proc/driver/nvidia/gpus" / name / "information"
        about.parent.mkdir(parents=True)
        about.write_text(f"Model: \t H100\nGPU UUID: \t {GPUS[number].gpu}\nDevice Minor: \t {number}\n")
        (root / "dev").mkdir(exist_ok=True)
        if device_file:
            (root / f"dev/nvidia{number}").touch()


def look(aside: ExpectedGpus, *devices: Device) -> list[tuple[str | None, str | None]]:
    events = aside.look(devices)
    assert {event.kind for event in events} <= {EventKind.ABSENT}
    return [(event.gpu, event.pci_bus_id) for event in events]


def place(number: int) -> tuple[str, str]:
    return GPUS[number].gpu, GPUS[number].row["pci_bus_id"]


def test_boards_that_the_driver_does_not_show_are_absent_once(tmp_path: Path) -> None:
    for number in range(3):
        board(tmp_path, number)
    board(tmp_path, 3, driver=None)  # the driver fell over it
    aside = ExpectedGpus(NodeHistory(dict), root=str(tmp_path))
    assert look(aside, GPUS[0]) == [place(1), place(2), (None, GPUS[3].row["pci_bus_id"])]
    assert look(aside, GPUS[0]) == []
    assert look(aside, *GPUS[:2]) == []
    assert look(aside, GPUS[0]) == [place(1)]


def test_boards_that_are_nobodys_or_not_ours_are_not_missed(tmp_path: Path) -> None:
    board(tmp_path, 0, driver="vfio-pci")
    board(tmp_path, 1, device_file=False)  # a container, or a job with other GPUs
    board(tmp_path, 2, vendor="0x8086")
    board(tmp_path, 3, kind="0x040300")  # its sound
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0").mkdir()
    assert look(ExpectedGpus(NodeHistory(dict), root=str(tmp_path))) == []
    assert look(ExpectedGpus(NodeHistory(dict), root=str(tmp_path / "none"))) == []


def test_gpus_that_the_store_knows_here_are_missed_by_name(tmp_path: Path, store: Store) -> None:
    """Of four GPUs that a collector saw one is there, one is off the bus, one was exchanged, one was retired."""
    stamp_ns = time.time_ns() - 10**9
    rows = {
        "cluster": ["c"] * 4,
        "gpu": [gpu.gpu for gpu in GPUS],
        "uuid": [gpu.gpu for gpu in GPUS],
        "node": ["n1"] * 4,
        "pci_bus_id": [gpu.row["pci_bus_id"] for gpu in GPUS],
        "first_seen": [stamp_ns] * 4,
    }
    retired = {"ts": [stamp_ns + 1000], "cluster": ["c"], "gpu": [GPUS[3].gpu], "kind": ["retired"]}
    store.append({"gpus": arrow_rows("gpus", rows), "events": arrow_rows("events", retired)}, "gpus")
    board(tmp_path, 0)
    board(tmp_path, 2)
    history = NodeHistory(
        lambda: children.run(
            "whorl.collectors.node_memory:remember_as_child",
            {"root": str(store.root), "cluster": "c", "node": "n1", "until_ns": time.time_ns()},
        )
    )
    exchanged = Device("GPU-other", {"pci_bus_id": GPUS[2].row["pci_bus_id"]})
    assert look(ExpectedGpus(history, root=str(tmp_path)), GPUS[0], exchanged) == [place(1), place(2)]
    assert remember_as_child(str(store.root), "c", "n2", until_ns=time.time_ns())["expected"] == {}


def test_a_store_that_does_not_answer_costs_its_memory_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, Any]:
        raise StoreError("no such store")

    board(tmp_path, 1)
    assert look(ExpectedGpus(NodeHistory(fail), root=str(tmp_path))) == [place(1)]
    assert "no such store" in caplog.text
