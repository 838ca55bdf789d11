"""The power of a node beside its GPUs: over a /sys that the test makes, and a program called ipmitool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from whorl.collectors.backend import Reading
from whorl.collectors.clock import SystemClock
from whorl.collectors.collect import CollectOptions, collect
from whorl.collectors.node_power import NodePower, node_meters
from whorl.collectors.simulated import Simulated, SimulatedMeter
from whorl.store import Store
from whorl.store.metrics import ROW
from whorl.store.node_power import dcmi_watts

ANSWER = """
    Instantaneous power reading:                   {} Watts
    Minimum during sampling period:                 18 Watts
    Maximum during sampling period:                433 Watts
    Average power reading over sample period:      213 Watts
    IPMI timestamp:                           Thu Jan 30 10:21:24 2020
    Sampling period:                          00000010 Seconds.
    Power reading state is:                   {}
"""


class Later(SystemClock):
    """A clock that goes on when it is told to."""

    now_ns = 1_700_000_000_000_000_000

    def steady(self) -> int:
        return self.now_ns

    wall = steady


class Made:
    """A node in a folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock, self.rows = root, Later(), list[dict[str, Any]]()

    def write(self, path: str, content: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def zone(self, number: str, name: str, energy_uj: int, range_uj: int = 262_143_328_850) -> None:
        folder = f"sys/class/powercap/intel-rapl:{number}"
        for file, content in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", range_uj)):
            self.write(f"{folder}/{file}", content)

    def ipmitool(self, path: pytest.MonkeyPatch, body: str) -> None:
        self.write("dev/ipmi0", "")
        self.write("bin/ipmitool", f"#!/bin/sh\n{body}")
        (self.root / "bin/ipmitool").chmod(0o755)
        path.setenv("PATH", str(self.root / "bin"), prepend=":")

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        assert table == "node_power"
        self.rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def meters(self) -> list[NodePower]:
        meters = node_meters(str(self.root), self.clock).values()
        return [NodePower(self, meter, cluster="c", node="n1") for meter in meters if meter.reason is None]

    def after(self, power: Sequence[NodePower]) -> list[dict[str, Any]]:
        """The rows that a reading of meters adds."""
        before = len(self.rows)
        for meter in power:
            assert meter.look([]) == []
        return self.rows[before:]


@pytest.fixture
def node(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_every_meter_of_a_node_is_read_and_its_counters_do_not_wrap(
    node: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.zone("0", "package-0", 262_143_000_000)
    node.zone("1", "package-1", 5_000_000)
    node.zone("0:0", "core", 1_000_000)  # a part of package 0
    node.zone("0:1", "dram", 7_000_000)
    node.zone("2", "psys", 9_000_000)
    node.write("sys/class/hwmon/hwmon0/name", "nvme")
    node.write("sys/class/hwmon/hwmon3/device/name", "power_meter")
    node.write("sys/class/hwmon/hwmon3/device/power1_average", 412_000_000)
    node.write("sys/class/hwmon/hwmon3/device/power1_average_interval", 1000)
    node.ipmitool(monkeypatch, f'test "$*" = "dcmi power reading" && cat <<E\n{ANSWER.format(415, "activated")}\nE')
    power = node.meters()
    rows = node.after(power)
    keys = ("source", "covers", "part", "power_mw", "window_ms", "energy_mj")
    assert sorted(tuple(row[key] for key in keys) for row in rows) == [
        ("hwmon", "node", None, 412_000, 1000, None),
        ("ipmi", "node", None, 415_000, None, None),
        ("rapl", "cpu", "0", None, None, 262_143_000),
        ("rapl", "cpu", "1", None, None, 5_000),
        ("rapl", "dram", "0", None, None, 7_000),
        ("rapl", "platform", None, None, None, 9_000),
    ]
    assert {(row["cluster"], row["node"], row["ts"]) for row in rows} == {("c", "n1", Later.now_ns)}
    node.zone("0", "package-0", 10_000_000)  # it went on from 0 at its range
    node.clock.now_ns += 10_000_000_000
    (package,) = [row for row in node.after(power) if row["part"] == "0" and row["covers"] == "cpu"]
    assert package["energy_mj"] == 262_143_000 + 328 + 10_000


def test_a_bmc_that_hangs_is_left_alone_after_three_failures(node: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    node.ipmitool(monkeypatch, f"echo x >> {node.root}/asked\nexec sleep 60")
    monkeypatch.setattr("whorl.collectors.node_power._PATIENCE_S", 0.2)
    power, asked = node.meters(), node.root / "asked"
    for turn in range(5):
        assert node.after(power) == []
        assert len(asked.read_text().split()) == min(turn + 1, 3)
        node.clock.now_ns += 10_000_000_000
    node.clock.now_ns += 600_000_000_000
    node.after(power)
    assert len(asked.read_text().split()) == 4


def test_what_cannot_be_read_has_a_reason(node: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node.root))
    reasons = [str(meter.reason) for meter in node_meters(str(node.root)).values()]
    assert [reason.partition(" (")[0] for reason in reasons] == [
        "the kernel has none",
        "the kernel has none",
        "this node shows no BMC",
    ]
    node.write("dev/ipmi0", "")
    node.zone("0", "package-0", 1)
    (node.root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    node.write("sys/class/hwmon/hwmon3/name", "power_meter")
    reasons = [str(meter.reason) for meter in node_meters(str(node.root)).values()]
    for reason, words in zip(reasons, ("only root may read", "gives no number", "ipmitool is not"), strict=True):
        assert words in reason
    assert node.meters() == []


@pytest.mark.parametrize(("watts", "state", "told"), [(0, "activated", None), (9, "deactivated", None)])
def test_no_power_is_no_reading(watts: int, state: str, told: int | None) -> None:
    assert dcmi_watts(ANSWER.format(watts, state)) is told


def test_a_simulated_node_has_a_meter(node: Made) -> None:
    backend = Simulated(gpus=8)
    gpus = [device.gpu for device in backend.devices()]
    power = NodePower(node, SimulatedMeter(backend), cluster="c", node="n7")
    power.look([])
    node.clock.now_ns += 10_000_000_000
    shown = [reading for reading in backend.read(gpus, slow=True) if isinstance(reading, Reading)]
    wall, cpu = node.after([power])
    assert (wall["node"], wall["source"], wall["covers"], wall["window_ms"]) == ("n7", "simulated", "node_wall", 1000)
    assert (cpu["source"], cpu["covers"], cpu["energy_mj"] >= 0) == ("rapl", "cpu", True)
    assert wall["power_mw"] > 1.2 * sum(reading.values[ROW["power_mw"]] for reading in shown) > 0
    assert wall["power_mw"] % 1000 == 0


@pytest.mark.long
@pytest.mark.parametrize("wanted", [True, False])
def test_the_power_of_a_node_is_collected_unless_nobody_wants_it(tmp_path: Path, *, wanted: bool) -> None:
    collect(tmp_path, CollectOptions(backend="simulated", gpus=4, duration=4, node="n7", node_power=wanted))
    rows = Store.open(tmp_path).arrow("node_power").to_pylist()
    told = {("n7", "simulated", "node_wall"), ("n7", "rapl", "cpu")} if wanted else set()
    assert {(row["node"], row["source"], row["covers"]) for row in rows} == told


def test_a_collector_reads_meters_without_arrow_or_polars() -> None:
    code = "import sys, whorl.collectors.node_power; print(sorted({'pyarrow', 'polars', 'numpy'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
