"""The small inputs of ../shared/cases that were once read wrong, with the answers that their EXPECTED states."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Report, import_file, read_file

CASES = Path(__file__).parents[3] / "shared" / "cases"
EVENTS = "select kind, gpu, node, cluster, strftime(ts, '%Y-%m-%d %H:%M:%S.%g') as at from events order by ts, gpu"
GPUS = "select name, node from gpus_now where name is not null order by name"


def read(store: Store, place: str, **options: object) -> Report:
    path = CASES / place
    if not path.exists():
        pytest.skip(f"{path} is not there: the cases are not part of the project")
    return import_file(store, path, Options(**options))  # type: ignore[arg-type]


def rows(store: Store, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in store.sql(query).to_pylist()]


def test_gpus_of_two_nodes_at_the_same_addresses(store: Store) -> None:
    for node in ("n1", "n2", "n3"):
        read(store, f"csv-busid-two-nodes/{node}/gpu.csv", node=node)
    assert rows(store, "select node, count(distinct gpu) from gpus group by 1 order by 1") == [
        ("n1", 2), ("n2", 2), ("n3", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "kept", "lost"),
    [
        ("csv-driver-mismatch-overnight", 60, []),
        ("csv-lost-majority", None, ["10:00:02.123"]),
        ("csv-lost-midstream", None, ["10:00:01.125"]),
        ("csv-lost-then-index", None, ["10:00:01.125"]),
        ("csv-uuid-na", 2, []),
    ],
)
def test_streams_of_gpus_that_are_lost(case: str, kept: int | None, lost: list[str], store: Store) -> None:
    report = read(store, f"{case}/in.csv", node="n1")
    assert [str(row[-1])[11:] for row in rows(store, EVENTS) if row[0] == "lost"] == lost
    assert kept in (None, rows(store, "select count(power_mw) from telemetry")[0][0])
    expected = ("it is no row but a message", "it is the header line again")
    assert [reason for reason in report.refusals if not reason.startswith(expected)] == []
    assert not [row for row in rows(store, "select distinct gpu from gpus") if "lost" in str(row[0]).lower()]


def test_a_board_that_is_lost_in_xml(store: Store) -> None:
    read(store, "xml-gpu-lost/in.xml", node="n1")
    assert rows(store, "select count(*) from gpus_now") == [(1,)]
    assert rows(store, "select kind, node, pci_bus_id from events") == [("lost", "n1", "00000000:02:00.0")]


@pytest.mark.parametrize(
    ("place", "gpus"),
    [
        ("nvbandwidth-multinode/in.txt", ["nvb-worker-0/0", "nvb-worker-0/1", "nvb-worker-1/0", "nvb-worker-1/1"]),
        ("nvbandwidth-text-host-line/in.txt", ["gpu-n017/0", "gpu-n017/1"]),
    ],
)
def test_the_hosts_of_nvbandwidth(place: str, gpus: list[str], store: Store) -> None:
    read(store, place, node="n1")
    assert [row[0] for row in rows(store, GPUS)] == gpus


@pytest.mark.parametrize(
    "case", ["gpuburn-faulty-of-8/in.log", "gpuburn-negative-errors/in.log", "gpuburn-faulty-of-16/a.log"]
)
def test_wrong_results_of_gpu_burn_are_judged(case: str, store: Store) -> None:
    read(store, case, node="n1")
    ((kind, gpu, node, cluster, stamp),) = rows(store, EVENTS)
    assert (kind, node, cluster, str(stamp)[:10]) == ("wrong_result", "n1", "fleet", "2025-02-19")
    assert str(gpu).endswith("02" if "negative" in case else "05")


# -- further kinds, after public bug reports ------------------------------------------------------------------

UUID = "GPU-0000000{}-618a-cbf3-08b6-f9e02acdd48c"
ON_TWO_HOSTS = (
    "nvbandwidth Version: v0.8\nDevice 0: NVIDIA H100 (00000000:07:00)\n\nRunning host_to_device_memcpy_ce.\n"
    + ("memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0\n 0     {}\n")
)
XML = """<nvidia_smi_log>
<timestamp>Fri Nov 20 10:00:00 2026</timestamp> <attached_gpus>1</attached_gpus>
<gpu id="00000000:07:00.0"> <uuid>{}</uuid> <power_readings> <power_draw>61 W</power_draw> </power_readings> </gpu>
</nvidia_smi_log>
"""
JOBSTATS = 'minor_number="4",name="NVIDIA A100",ordinal="6",uuid="' + UUID.format(1) + '"'


def stream(columns: str, *rows: str, day: int = 20) -> str:
    """A log of nvidia-smi, a second for each row."""
    lines = [f"2026/11/{day} 10:00:{second:02d}.0, {row}" for second, row in enumerate(rows)]
    return "\n".join([f"timestamp, {columns}", *lines, ""])


KINDS = {
    "a GPU whose readings all fail": (
        stream("uuid, pci.bus_id, power.draw [W], utilization.gpu [%]",
               f"{UUID.format(1)}, 00000000:0B:00.0, 61 W, 5 %",
               "[Unknown Error], 00000000:0B:00.0, [Unknown Error], [Unknown Error]"),
        "select kind, gpu, pci_bus_id from events",
        [("lost", UUID.format(1), "00000000:0B:00.0")],
    ),
    "reasons for the clock, a column each": (
        stream("uuid, power.draw [W], clocks_event_reasons.sw_power_cap, clocks_throttle_reasons.hw_slowdown",
               f"{UUID.format(1)}, 300 W, Active, Active", f"{UUID.format(1)}, 300 W, Not Active, Not Active",
               f"{UUID.format(1)}, 300 W, [N/A], [N/A]"),
        "select clock_event_reasons from telemetry order by ts",
        [(4 | 8,), (0,), (None,)],
    ),
    "boards with two GPUs have one serial number each": (
        stream("index, serial, power.draw [W]", *(f"{n % 4}, 03210210000{n % 4 // 2}, 6{n % 4} W" for n in range(12))),
        "select name, serial from gpus_now order by name",
        [(f"n1/{n}", f"03210210000{n // 2}") for n in range(4)],
    ),
    "outputs of two hosts under lines of dashes": (
        "".join(f"-----\nn0{n}\n-----\n{ON_TWO_HOSTS.format(50 + n)}" for n in (2, 3)),
        "select gpu, round(value, 2) from results where figure = 'time' order by gpu",
        [("n02:0", 19.23), ("n03:0", 18.87)],
    ),
    "tables of two hosts by Ansible": (
        "".join(f"n0{n} | CHANGED | rc=0 >>\n{stream('index, power.draw [W]', f'0, 6{n} W')}" for n in (2, 3)),
        "select gpu, power_mw from telemetry order by gpu",
        [("n02:0", 62_000), ("n03:0", 63_000)],
    ),
    "a table of two hosts with their names in front of each line": (
        "n02: timestamp, index, power.draw [W]\nn03: timestamp, index, power.draw [W]\n"
        + "".join(f"n0{n}: 2026/11/20 10:00:0{second}.0, 0, 6{n} W\n" for second in range(2) for n in (2, 3)),
        "select gpu, max(power_mw), count(*) from telemetry group by 1 order by gpu",
        [("n02:0", 62_000, 2), ("n03:0", 63_000, 2)],
    ),
    "logs of XML of two hosts with their names in front of each line": (
        "".join(f"n0{n}: {line}\n" for n in (2, 3) for line in XML.format(UUID.format(n)).splitlines()),
        "select name, gpu from gpus_now order by name",
        [(f"n0{n}/0", UUID.format(n)) for n in (2, 3)],
    ),
    "the driver's number in jobstats": (
        f"nvidia_gpu_power_usage_milliwatts{{{JOBSTATS}}} 250000\nnvidia_gpu_jobId{{{JOBSTATS}}} 77\n",
        "select name, model, job_id from gpus_now join jobs using (gpu)",
        [("n1/6", "NVIDIA A100", "77")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_report(kind: str, tmp_path: Path, store: Store) -> None:
    text, query, answer = KINDS[kind]
    (tmp_path / "log").write_text(text)
    import_file(store, tmp_path / "log", Options(node="n1"))
    assert rows(store, query) == answer


def test_one_serial_number_is_one_gpu_whatever_its_place(tmp_path: Path, store: Store) -> None:
    log = tmp_path / "log.csv"
    for day, columns, cells in (
        (20, "index, serial", "0, 132"),
        (21, "index, serial", "1, 132"),
        (22, "serial", "132"),
    ):
        log.write_text(stream(f"{columns}, power.draw [W]", f"{cells}, 61 W", f"{cells}, 62 W", day=day))
        import_file(store, log, Options(node="n1"))
    assert rows(store, "select gpu, count(*) from telemetry group by 1") == [("132", 6)]


def test_files_of_one_name_that_name_no_gpu_are_told_apart_by_their_node(tmp_path: Path, store: Store) -> None:
    for node in ("n1", "n2"):
        (tmp_path / "gpu.csv").write_text(stream("power.draw [W]", f"6{node[1]} W", f"7{node[1]} W"))
        assert import_file(store, tmp_path / "gpu.csv", Options(node=node)).total.kept == 2
    assert rows(store, "select distinct gpu from telemetry order by 1") == [("n1:gpu",), ("n2:gpu",)]


def test_logs_of_two_hosts_are_refused_where_nothing_names_these(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(XML.format(UUID.format(n)) for n in (2, 3)))
    with pytest.raises(InputError, match="has logs of several hosts, and --node n1 can name one"):
        read_file(tmp_path / "log", Options(node="n1"))
