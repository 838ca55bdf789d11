"""The power of nodes from files: PDUs as tables, ipmitool's text, Redfish's JSON, pages of exporters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime as at
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file
from whorl.store.schema import arrow_rows

# ruff: noqa: DTZ001 - the store's times are UTC without a zone

Parse = Callable[..., Parsed]
Refusal = Callable[..., str]
Write = Callable[..., Path]

NOON = "2026-11-23 12:00:00"
DCMI = """
    Instantaneous power reading:                   {} Watts
    Minimum during sampling period:                 18 Watts
    Maximum during sampling period:                433 Watts
    Average power reading over sample period:      213 Watts
    IPMI timestamp:                           Thu Jan 30 10:21:24 2020
    Sampling period:                          00000010 Seconds.
    Power reading state is:                   {}
"""


def cells(parsed: Parsed, *names: str) -> list[tuple[Any, ...]]:
    return parsed.frame.select(pl.col(name) for name in names).rows()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(text: str, name: str = "saved.txt") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return save


# -- tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "cell", "column", "stored"),
    [
        ("time,node,watts", 412.5, "power_mw", 412_500),
        ("timestamp,host,power [kW]", 1.2, "power_mw", 1_200_000),
        ("Date,Server,Active Power (W)", 412, "power_mw", 412_000),
        ("ts,hostname,power_mw", 412, "power_mw", 412),
        ("time,node,power", "412 W", "power_mw", 412_000),
        ("time,node,kWh", 17.25, "energy_mj", 62_100_000_000),
        ("time,node,energy_j", 3, "energy_mj", 3_000),
    ],
)
def test_a_pdus_table_is_known_by_its_columns(
    write: Write, parse: Parse, header: str, cell: object, column: str, stored: int
) -> None:
    parsed = parse(write(header, [(NOON, "n1", cell), ("2026-11-23 12:00:10", "n2", cell)]))
    assert (parsed.sheet.kind, parsed.report.format, parsed.report.nodes) == ("node_power", "node power", 2)
    assert cells(parsed, "ts", "node", "source", "covers", "part", column) == [
        (at(2026, 11, 23, 12), "n1", "pdu", "node_wall", None, stored),
        (at(2026, 11, 23, 12, 0, 10), "n2", "pdu", "node_wall", None, stored),
    ]


def test_outlets_are_parts_and_bad_rows_are_named(write: Write, parse: Parse) -> None:
    rows = [
        (NOON, "n1", "A3", 400, "", ""),
        (NOON, "n1", "B3", 0, "", ""),  # the other feed carries all
        (NOON, "n1", "A3", 401, "", ""),
        (NOON, "n1+n2", "A4", 900, "", ""),
        (NOON, "n[1-4]", "A5", 900, "", ""),
        (NOON, "", "A6", 900, "", ""),
        (NOON, "n2", "A7", "n/a", "", ""),
        (NOON, "n2", "A7", "much", "", ""),
        ("soon", "n3", "A8", 400, "", ""),
        (NOON, "n4", "", 300, "ipmi", "node"),
        (NOON, "n5", "", 300, "guess", ""),
    ]
    parsed = parse(write("time,node,outlet,watts,source,covers", rows))
    assert cells(parsed, "node", "part", "power_mw", "source", "covers") == [
        ("n1", "A3", 400_000, "pdu", "node_wall"),
        ("n1", "B3", 0, "pdu", "node_wall"),
        ("n4", None, 300_000, "ipmi", "node"),
    ]
    refusals = {reason.partition(":")[0]: lines for reason, lines in parsed.report.refusals.items()}
    assert refusals == {
        "it is a second reading of the same meter at the same time": [4],
        "its node is not the name of one host": [5, 6],
        "it names no node": [7],
        "it has neither power nor energy": [8],
        "watts is not a readable power": [9],
        "time is not a readable time stamp": [10],
        "its source is none of ipmi, redfish, rapl, hwmon, pdu, simulated": [12],
    }


def test_what_a_table_does_not_say_is_asked_for(write: Write, parse: Parse, refusal: Refusal) -> None:
    rows = [(NOON, 400)]
    assert "no known format has the columns time, watts" in refusal(write("time,watts", rows))
    assert cells(parse(write("time,watts", rows), node="n9"), "node") == [("n9",)]
    assert "has no unit" in refusal(write("time,node,power", [(NOON, "n1", 400)]))
    assert cells(parse(write("time,node,power", [(NOON, "n1", 400)]), units={"power": "W"}), "power_mw") == [(400_000,)]
    mapped = {"Wirkleistung": "node_power:W", "Zeit": "timestamp", "Rechner": "node"}
    named = write("Zeit,Rechner,Wirkleistung", [(NOON, "n1", 400)])
    assert cells(parse(named, columns=mapped), "node", "power_mw") == [("n1", 400_000)]
    assert "no column is the node" in refusal(named, columns={"Wirkleistung": "node_power:W", "Zeit": "timestamp"})


def test_readings_of_gpus_are_no_power_of_nodes(write: Write, refusal: Refusal, parse: Parse) -> None:
    for header in ("time,node,gpu,watts", "time,node,watts,temperature"):
        assert "no known format" in refusal(write(header, [(NOON, "n1", 1, 40)]))
    of_gpu = parse(
        write("time,node,watts", [(NOON, "n1", 40)]), columns={"watts": "power:W", "time": "timestamp"}, gpu="g"
    )
    assert of_gpu.sheet.kind == "telemetry"


def test_a_file_that_comes_again_adds_nothing_and_names_follow_the_store(tmp_path: Path, write: Write) -> None:
    store = Store.create(tmp_path / "store")
    gpus = {"cluster": ["c"], "gpu": ["GPU-1"], "uuid": ["GPU-1"], "node": ["n1"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", gpus)}, "gpus")
    first = write("time,node,watts", [(NOON, "n1-bmc", 400), (NOON, "n2-bmc", 500)], "a.csv")
    report = import_file(store, first, Options("c"))
    assert "1 names of nodes are those of the store with more behind them, as n1-bmc" in report.notes
    assert sorted(store.arrow("node_power")["node"].to_pylist()) == ["n1", "n2-bmc"]
    second = write("time,node,watts", [(NOON, "n1", 400), ("2026-11-23 12:00:10", "n1", 410)], "b.csv")
    report = import_file(store, second, Options("c"))
    assert (report.total.kept, report.total.duplicates) == (1, 1)
    (row,) = [row for row in store.arrow("node_power").to_pylist() if row["ts"] == at(2026, 11, 23, 12, 0, 10)]
    assert (row["cluster"], row["power_mw"], row["import_id"] is not None) == ("c", 410_000, True)
    assert import_file(store, first, Options("c")).already


# -- ipmitool -------------------------------------------------------------------------------------------------


def test_ipmitools_text_with_times_in_front(saved: Write, parse: Parse) -> None:
    log = "".join(
        f"Mon Nov 23 12:00:{second:02d} UTC 2026\n{DCMI.format(watts, state)}"
        for second, watts, state in (
            (0, 415, "activated"),
            (10, 0, "activated"),
            (20, 9, "deactivated"),
            (30, 420, "activated"),
        )
    )
    parsed = parse(saved(log), node="n1")
    assert cells(parsed, "ts", "node", "source", "covers", "power_mw") == [
        (at(2026, 11, 23, 12), "n1", "ipmi", "node", 415_000),
        (at(2026, 11, 23, 12, 0, 30), "n1", "ipmi", "node", 420_000),
    ]
    assert parsed.report.total.refused == 2


def test_ipmitools_text_of_many_hosts_as_pdsh_prints_it(saved: Write, parse: Parse) -> None:
    text = "\n".join(
        f"{host}: {line}"
        for host, watts in (("n1", 400), ("n2", 500))
        for line in DCMI.format(watts, "activated").strip().splitlines()
    )
    parsed = parse(saved(text), at=NOON)
    assert cells(parsed, "ts", "node", "power_mw") == [
        (at(2026, 11, 23, 12), "n1", 400_000),
        (at(2026, 11, 23, 12), "n2", 500_000),
    ]


# -- Redfish --------------------------------------------------------------------------------------------------

POWER = {
    "@odata.id": "/redfish/v1/Chassis/1/Power",
    "PowerControl": [
        {"MemberId": "0", "Name": "System Power Control", "PowerConsumedWatts": 590, "PhysicalContext": "Chassis"},
        {"MemberId": "1", "Name": "CPU Power", "PowerConsumedWatts": 200, "PhysicalContext": "CPU"},
    ],
    "PowerSupplies": [
        {"MemberId": "0", "PowerInputWatts": 320},
        {"MemberId": "1", "PowerInputWatts": 300.5},
        {"MemberId": "2", "PowerInputWatts": None, "Status": {"State": "Absent"}},
    ],
}


def test_redfish_says_what_the_node_draws_and_what_each_supply_takes(saved: Write, parse: Parse) -> None:
    one = parse(saved(json.dumps(POWER)), at=NOON, node="n1")
    assert cells(one, "source", "covers", "part", "power_mw") == [
        ("redfish", "node", None, 590_000),
        ("redfish", "node_wall", "0", 320_000),
        ("redfish", "node_wall", "1", 300_500),
    ]
    silent = POWER | {"PowerSupplies": [{"PowerInputWatts": 320}, {"PowerInputWatts": None}]}
    assert cells(parse(saved(json.dumps(silent)), at=NOON, node="n1"), "covers") == [("node",)]


def test_a_log_of_redfish_has_a_resource_a_line_with_its_time_and_node(saved: Write, parse: Parse) -> None:
    metrics = {"@odata.id": "/redfish/v1/Chassis/1/EnvironmentMetrics", "PowerWatts": {"Reading": 374.5}}
    metrics |= {"EnergykWh": {"Reading": 2}}
    of_gpu = metrics | {"@odata.id": "/redfish/v1/Systems/1/Processors/GPU_0/EnvironmentMetrics"}
    resources = [POWER | {"timestamp": 1_700_000_000, "node": "n1"}, metrics | {"timestamp": "2026-11-23T12:00:00Z"}]
    text = "\n".join(json.dumps(resource) for resource in [*resources, of_gpu | {"timestamp": 1_700_000_000}])
    parsed = parse(saved(text), node="n2")
    assert cells(parsed, "node", "covers", "power_mw", "energy_mj")[3:] == [
        ("n2", "node", 374_500, 7_200_000_000),
    ]
    assert parsed.report.refusals == {"it is of a part of the node": [3]}


# -- pages of exporters ---------------------------------------------------------------------------------------

PAGE = """# HELP ipmi_dcmi_power_consumption_watts Current power consumption in Watts.
# TYPE ipmi_dcmi_power_consumption_watts gauge
ipmi_dcmi_power_consumption_watts 415
# HELP node_hwmon_chip_names Annotation metric for human-readable chip names
node_hwmon_chip_names{chip="lnxsybus:00_acpi000d:00",chip_name="power_meter"} 1
node_hwmon_power_average_watt{chip="lnxsybus:00_acpi000d:00",sensor="power1"} 412
node_hwmon_power_average_watt{chip="0000:03:00_0_0000:04:00_0",sensor="power1"} 20
node_load1 0.5
node_rapl_dram_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0:1"} 1000.5
node_rapl_package_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0"} 262143.25
node_rapl_package_joules_total{index="1",path="/sys/class/powercap/intel-rapl:1"} 12
idrac_power_control_consumed_watts{id="0",name="System Power Control"} 166
idrac_power_control_consumed_watts{id="1",name="CPU Power"} 66
idrac_power_supply_input_watts{id="0"} 89
"""


def test_the_series_of_exporters(saved: Write, parse: Parse) -> None:
    parsed = parse(saved(PAGE), at=NOON, node="n1")
    assert cells(parsed, "source", "covers", "part", "power_mw", "energy_mj") == [
        ("ipmi", "node", None, 415_000, None),
        ("hwmon", "node", None, 412_000, None),
        ("rapl", "dram", "intel-rapl:0:1", None, 1_000_500),
        ("rapl", "cpu", "intel-rapl:0", None, 262_143_250),
        ("rapl", "cpu", "intel-rapl:1", None, 12_000),
        ("redfish", "node", None, 166_000, None),
        ("redfish", "node_wall", "0", 89_000, None),
    ]
    assert any("node_hwmon_power_average_watt" in note for note in parsed.report.notes)


def test_an_answer_of_a_prometheus_has_its_nodes_and_times(saved: Write, parse: Parse) -> None:
    series = [
        {
            "metric": {"__name__": "ipmi_dcmi_power_consumption_watts", "instance": f"n{number}:9290"},
            "values": [[1_700_000_000 + second, str(400 + second)] for second in (0, 15)],
        }
        for number in (1, 2)
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    parsed = parse(saved(json.dumps(answer)))
    assert cells(parsed, "node", "power_mw") == [("n1", 400_000), ("n1", 415_000), ("n2", 400_000), ("n2", 415_000)]
    assert parsed.frame["ts"].n_unique() == 2
