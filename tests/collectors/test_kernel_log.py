"""XIDs and losses from the kernel's log: a file that the test writes as the kernel would, and /dev/kmsg itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl import collect
from whorl.cli import cli
from whorl.collectors import kernel_log
from whorl.collectors.backend import Device
from whorl.collectors.collect import Collecting
from whorl.collectors.kernel_log import KernelLog, lost_boards, name_lost_boards
from whorl.collectors.noticing import Events
from whorl.store.events import Event
from whorl.store.vocabulary import EventKind
from whorl.tests.checks import not_none
from whorl.tests.collectors.sampling import Turned
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.stores import ask, new_store

ADDRESS = "00000000:3B:00.0"
GPU = Device("GPU-00000000-0000-0000-0000-000000000001", {"pci_bus_id": ADDRESS})
OTHER_UUID = "GPU-5bb19eaf-3e17-4c2a-9d21-000000000002"
Write = Callable[..., None]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_bytes(record("NVRM: Xid (PCI:0000:3b:00): 13, from before the collector"))
    return path


def record(text: str, stamp_us: int | None = None) -> bytes:
    """A record of /dev/kmsg: priority, number, stamp, flags and text, and a dictionary below."""
    stamp_us = time.monotonic_ns() // 1000 if stamp_us is None else stamp_us
    return f"4,1,{stamp_us},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n".encode()


def write(path: Path, *lines: str | bytes) -> None:
    with path.open("ab") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else record(line))


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", EventKind.XID, 79),
        ("NVRM: Xid (0000:3b:00): 31, Ch 00000008, engmask 00000101", EventKind.XID, 31),
        ("NVRM: Xid (PCI:0000:3B:00.0): 48, pid='<unknown>', DBE", EventKind.XID, 48),
        ("NVRM: Xid (3b:00): 13, Graphics Exception", EventKind.XID, 13),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", EventKind.LOST, None),
        ("NVRM: GPU at 0000:3b:00.0 has fallen off the bus.", EventKind.LOST, None),
        (r"NVRM: The NVIDIA GPU 0000:3b:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has fallen"
         r"\x0aoff the bus and is not responding to commands.", EventKind.LOST, None),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:894)", EventKind.LOST, None),
    ],
)  # fmt: skip
def test_every_spelling_names_the_gpu(log: Path, text: str, kind: EventKind, code: int | None) -> None:
    reader = KernelLog(str(log))
    began = time.time_ns()
    write(log, "usb 1-1: new device", text)
    (event,) = reader.look([GPU])
    assert (event.kind, event.code, event.gpu, event.pci_bus_id) == (kind, code, GPU.gpu, ADDRESS)
    assert began - 10**9 < not_none(event.ts_ns) <= time.time_ns()
    assert reader.look([GPU]) == []
    reader.close()


def test_a_board_that_nvml_never_showed_has_its_address_and_the_uuid_that_the_log_names(log: Path) -> None:
    reader = KernelLog(str(log))
    write(log, f"NVRM: GPU at PCI:0000:5e:00: {OTHER_UUID}", "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off")
    write(log, "NVRM: Xid (PCI:0000:86:00): 62, pid=1")
    with_uuid, bare = reader.look([GPU])
    assert (with_uuid.gpu, with_uuid.pci_bus_id, with_uuid.code) == (OTHER_UUID, "00000000:5E:00.0", 79)
    assert (bare.gpu, bare.pci_bus_id, bare.code) == (None, "00000000:86:00.0", 62)


def test_a_gpu_off_the_bus_is_lost_once(log: Path) -> None:
    """Whoever opens it makes another line; with an XID 79 the loss is told already."""
    reader = KernelLog(str(log))
    write(log, "NVRM: Xid (PCI:0000:3b:00): 79, x", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    write(log, *["NVRM: GPU 0000:5e:00.0: RmInitAdapter failed! (0x22:0x56:894)"] * 5)
    write(log, "NVRM: GPU 0000:5e:00.0: rm_init_adapter failed, device minor number 0")
    assert [(event.kind, event.pci_bus_id) for event in reader.look([GPU])] == [
        (EventKind.XID, ADDRESS),
        (EventKind.LOST, "00000000:5E:00.0"),
    ]


def test_a_flood_is_a_few_events_and_a_count(log: Path) -> None:
    reader = KernelLog(str(log))
    write(log, *["NVRM: Xid (PCI:0000:3b:00): 31, pid=1"] * 300, "NVRM: Xid (PCI:0000:3b:00): 13, pid=1")
    events = [event for _ in range(3) for event in reader.look([GPU])]
    assert {event.code for event in events} == {13, 31}
    of_31 = [event for event in events if event.code == 31]
    assert sum(event.n or 1 for event in of_31) == 300
    assert len(of_31) < 40


def test_lines_that_were_cut_or_forged_are_no_events(log: Path) -> None:
    reader = KernelLog(str(log))
    hostile = [b"NVRM: Xid (PCI:0000:3b:00): 79\n", b"4;NVRM: Xid (PCI:0000:3b:00): 79\n", b'{"MESSAGE": NVRM: \n']
    hostile += [b"4,1,x,-;NVRM: Xid (PCI:0000:3b:00): 79\n", b"\xff\xfe\0,,,;NVRM: \n", b'{"MESSAGE": ["NVRM: "]}\n']
    write(
        log, *hostile, "traps: NVRM: Xid (PCI:0000:3b:00): 79", "NVRM: Xid (PCI:zz:00): 79", "NVRM: Xid (3b:00): 9" * 3
    )
    write(log, record("NVRM: Xid (PCI:0000:3b:00): 79").replace(b"4,1", b"12,1"))  # a process wrote it
    write(log, "NVRM: Xid (PCI:0000:3b:00): 999999999", b"x" * 200_000, "\nNVRM: ", "NVRM: Xid (PCI:0000:3b:00): 7")
    assert [event.code for event in reader.look([GPU])] == [7]
    write(log, record("NVRM: Xid (PCI:0000:3b:00): 8")[:30])
    assert reader.look([GPU]) == []


def test_stamps_of_another_clock_stay_between_two_looks(log: Path) -> None:
    reader = KernelLog(str(log))
    began = time.time_ns()
    write(log, record("NVRM: Xid (PCI:0000:3b:00): 8", 1), record("NVRM: Xid (PCI:0000:3b:00): 79", 2**70))
    for event in [*reader.look([GPU]), *lost_boards(str(log))]:
        assert began - 10**9 < not_none(event.ts_ns) <= time.time_ns()


def test_where_the_log_cannot_be_read_journald_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = '{"__REALTIME_TIMESTAMP":"%s","MESSAGE":"NVRM: Xid (PCI:0000:3b:00): 79, gone"}'
    program = tmp_path / "journalctl"
    program.write_text(f"#!/bin/sh\necho '{entry % 1_790_000_000_000_000}'\n[ \"$7\" != -n ] || sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    missing = str(tmp_path / "none")
    reader, events = KernelLog(missing), list[Event]()
    assert reader.readable
    while not events:
        events = reader.look([GPU])
        time.sleep(0.01)
    assert [(event.gpu, event.code) for event in events] == [(GPU.gpu, 79)]
    reader.close()
    assert reader.look([GPU]) == []
    assert [(event.pci_bus_id, event.ts_ns) for event in lost_boards(missing)] == [(ADDRESS, 1_790_000_000 * 10**9)]


def test_where_nothing_can_be_read_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reader = KernelLog(str(tmp_path / "none"))
    assert not reader.readable
    assert reader.look([GPU]) == []
    assert name_lost_boards(str(tmp_path / "none")) == ""


def test_the_boards_that_this_boot_lost(log: Path) -> None:
    write(log, "NVRM: Xid (PCI:0000:86:00): 31, x", f"NVRM: GPU at PCI:0000:5e:00: {OTHER_UUID}")
    write(log, "NVRM: Xid (PCI:0000:5e:00): 79, x", "NVRM: GPU 0000:af:00.0: RmInitAdapter failed! (0x22)")
    boards = [(event.pci_bus_id, event.gpu) for event in lost_boards(str(log))]
    assert boards == [("00000000:5E:00.0", OTHER_UUID), ("00000000:AF:00.0", None)]
    sentence = name_lost_boards(str(log))
    assert "00000000:5E:00.0" in sentence
    assert OTHER_UUID in sentence
    assert "00000000:86:00.0" not in sentence


def test_one_xid_of_two_sources_is_one_event() -> None:
    clock = Turned()
    events = Events(clock, cluster="c", node="n")
    log = object()

    def told(source: object, at_s: float, kind: EventKind = EventKind.XID, code: int | None = 79, **more: str) -> bool:
        before = events.count
        events.tell(
            Event(kind, more.get("gpu"), "", clock.wall() + round(at_s * 1e9), None, ADDRESS, code=code), source
        )
        return events.count > before

    assert told(log, 0.0, gpu="GPU-1")
    assert not told(None, 0.7, gpu="GPU-1")
    assert told(None, 0.8, gpu="GPU-1")  # the second one of the driver
    assert not told(log, 0.6, gpu="GPU-1")
    assert told(log, 1.0, gpu="GPU-2")
    assert told(None, 1.0, code=31, gpu="GPU-2")
    assert told(None, 40.0, gpu="GPU-2")
    assert told(log, 50.0, EventKind.LOST, None)
    assert not told(None, 50.2, EventKind.LOST, None)
    assert told(None, 50.3, EventKind.RETURNED, None)


def test_a_node_whose_driver_is_dead_says_which_board(
    log: Path, nvml: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "KMSG", str(log))
    write(log, "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.")
    nvml.write("gpus 4", "from 1 reload 4000000000")
    store = str(new_store(tmp_path / "S").root)
    for command, status in (["collect"], 2), (["check"], 3), (["check", "--quick"], 3), (["doctor"], 0):
        done = CliRunner().invoke(cli, [*command, "--store", store])
        assert done.exit_code == status
        assert "00000000:5E:00.0" in done.output.replace("\n", "")


def test_a_collector_names_what_the_kernel_tells_of_and_stores_it_once(
    log: Path, nvml: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "KMSG", str(log))
    nvml.write("gpus 2", "model H100")
    store = new_store(tmp_path / "S")

    def fall(collecting: Collecting) -> None:
        address = collecting.devices[1].row["pci_bus_id"].lower().removeprefix("0000").removesuffix(".0")
        write(log, f"NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus.")
        nvml.add(f"from {time.time()} gpu 1 xid 79", "gpu 1 lost")

    ended = collect(store, interval=0.1, duration=2.5, cluster="c", node="n1", begun=fall)
    assert ended.counts.ticks > 0
    query = "select kind, cluster, node, pci_bus_id, gpu from events where kind in ('xid', 'lost') order by kind"
    lost, xid = ask(store.root, query)
    (gpu,) = ask(store.root, "select cluster, node, pci_bus_id, gpu from gpus_now order by pci_bus_id desc limit 1")
    assert lost == {"kind": "lost"} | gpu
    assert xid == {"kind": "xid"} | gpu
