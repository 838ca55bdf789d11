"""The small inputs of ../shared/cases that were once read wrong, with the answers that their EXPECTED states."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
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
COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
DMON = "#Date Time gpu pwr gtemp mtemp\n#YYYYMMDD HH:MM:SS Idx W C C\n"
JOBSTATS = 'minor_number="4",name="NVIDIA A100",ordinal="6",uuid="' + UUID.format(1) + '"'


def stream(columns: str, *rows: str, day: int = 20) -> str:
    """A log of nvidia-smi, a second for each row."""
    lines = [f"2026/11/{day} 10:00:{second:02d}.0, {row}" for second, row in enumerate(rows)]
    return "\n".join([f"timestamp, {columns}", *lines, ""])


MIG, BUS = "MIG-0a1b2c3d-0000-1111-2222-333344445599", "00000000:"
BEHIND = stream("index, pci.bus_id, power.draw [W]",
                *(f"{n}, {BUS}{place}:00.0, 6{n} W" for n, place in enumerate(("07", "0A", "47"))))  # fmt: skip
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
    "a GPU that nvidia-smi dmon says is lost": (
        f"{DMON}  20261120 10:00:00 0 71 40 -\n  20261120 10:00:00 1 72 40 -\n  20261120 10:00:05 1 GPU is lost\n",
        "select kind, gpu, strftime(ts, '%S') from events",
        [("lost", "n1:1", "05")],
    ),
    "a GPU whose readings all fail but those that it does not have": (
        f"{DMON}  20261120 10:00:00 0 ERR! 40 -\n  20261120 10:00:00 1 ERR! ERR! -\n",
        "select kind, gpu from events",
        [("lost", "n1:1")],
    ),
    "a board that falls off the bus between two logs": (
        f"{XML.format(UUID.format(1))}Unable to determine the device handle for GPU 0000:07:00.0: GPU is lost.\n"
        + XML.replace("10:00:00", "10:00:09").replace(":07:", ":0A:").format(UUID.format(2)),
        "select kind, gpu, strftime(ts, '%S') from events",
        [("lost", UUID.format(1), "09")],
    ),
    "a table with a time of kubectl logs in front of each line": (
        "".join(f"2026-11-20T10:00:01.5Z {line}\n" for line in stream("index, power.draw [W]", "0, 61 W").splitlines()),
        "select gpu, power_mw, strftime(ts, '%S') from telemetry",
        [("n1:0", 61_000, "00")],
    ),
    "a card that was exchanged beside another that stayed": (
        stream("index, uuid, power.draw [W]",
               *(f"{i}, {UUID.format(n)}, 6{n} W" for i, n in ((0, 1), (1, 2), (0, 3), (1, 2)))),
        "select gpu from telemetry group by 1 order by 1",
        [(UUID.format(n),) for n in (1, 2, 3)],
    ),
    "an address in two spellings": (
        stream("uuid, pci.bus_id, power.draw [W]", f"{UUID.format(1)}, 0000:0b:00.0, 61 W"),
        "select pci_bus_id from gpus",
        [("00000000:0B:00.0",)],
    ),
    "what the GPU may do at most": (
        stream("uuid, power.draw [W], memory.total [MiB], power.max_limit [W]",
               f"{UUID.format(1)}, 61 W, 2 MiB, 400 W"),
        "select memory_total, power_limit_max_mw from gpus",
        [(2 << 20, 400_000)],
    ),
    "the last XID on one page": (
        "".join(f'DCGM_FI_DEV_XID_ERRORS{{UUID="{UUID.format(n)}"}} {code}\n' for n, code in ((1, 79), (2, 0))),
        "select kind, gpu, node, code from events",
        [("xid", UUID.format(1), "n1", 79)],
    ),
    "a count of XIDs on one page": (
        "".join(f'{COUNT}{{UUID="{UUID.format(1)}",xid="{code}"}} {count}\n' for code, count in ((31, 2), (43, 0))),
        "select kind, gpu, node, code from events",
        [("xid", UUID.format(1), "n1", 31)],
    ),
    "a lost GPU moves the numbers of those behind it": (
        BEHIND + stream("index, pci.bus_id, power.draw [W]", f"0, {BUS}07:00.0, 60 W", f"1, {BUS}47:00.0, 62 W",
                        day=21).partition("\n")[2],
        "select gpu, count(*), max(power_mw) from telemetry group by 1 order by 1",
        [("n1:0", 2, 60_000), ("n1:1", 1, 61_000), ("n1:2", 2, 62_000)],
    ),
    "numbers that have begun behind a lost GPU": (
        stream("index, pci.bus_id, power.draw [W]", f"0, {BUS}47:00.0, 62 W", day=19) + BEHIND.partition("\n")[2],
        "select gpu, count(*) from telemetry group by 1 order by 1",
        [(f"n1:{BUS}{place}:00.0", 2 if place == "47" else 1) for place in ("07", "0A", "47")],
    ),
    "even the time says that the GPU is lost": (
        stream("uuid, power.draw [W]", f"{UUID.format(1)}, 61 W") + "[GPU is lost], [GPU is lost], [GPU is lost]\n",
        "select kind, gpu, node, strftime(ts, '%S') from events",
        [("lost", None, "n1", "00")],
    ),
    "an instance is not the GPU whose number its row has": (
        stream("index, uuid, memory.used [MiB]", f"0, {UUID.format(1)}, 12 MiB", f"0, {MIG}, 5 MiB"),
        "select name, parent from gpus_now order by name",
        [(MIG, UUID.format(1)), ("n1/0", None)],
    ),
    "an instance as drivers until 465 call it": (
        stream("uuid, memory.used [MiB]", f"MIG-{UUID.format(1)}/1/0, 5 MiB"),
        "select gpu, parent from gpus_now",
        [(f"MIG-{UUID.format(1)}/1/0", UUID.format(1))],
    ),
    "Yes and No": (
        stream("uuid, remapped_rows.failure", f"{UUID.format(1)}, Yes", f"{UUID.format(1)}, No"),
        "select row_remap_failed from telemetry order by ts",
        [(1,), (0,)],
    ),
    "two outputs of nvbandwidth of one node": (
        ON_TWO_HOSTS.format(50) + ON_TWO_HOSTS.format(51),
        "select gpu, round(value, 2) from results where figure = 'time' order by value",
        [("n1:0", 19.61), ("n1:0", 20.0)],
    ),
    "dates with points, and a delimiter behind each line": (
        f"timestamp;uuid;power.draw [W];\n20.11.2026 10:00:00;{UUID.format(1)};61;\n",
        "select power_mw, strftime(ts, '%m-%d %H') from telemetry",
        [(61_000, "11-20 10")],
    ),
    "readings of dcgmi dmon below what date prints": (
        "".join(f"Fr 20. Nov 10:00:{second}0 UTC 2026\n#Entity   POWER\nID        W\nGPU 0     6{second}.5\n"
                f"GPU 0     7{second}.5\n" for second in range(2)),
        "select gpu, power_mw, strftime(ts, '%S') from telemetry order by ts",
        [("n1:0", 60_500, "00"), ("n1:0", 70_500, "01"), ("n1:0", 61_500, "10"), ("n1:0", 71_500, "11")],
    ),
    "readings of nvidia-smi dmon below what date prints": (
        "".join(f"2026-11-20T10:00:{second}0+01:00\n# gpu pwr gtemp\n# Idx W C\n 0 6{second} 40\n 1 7{second} 40\n"
                for second in range(2)),
        "select gpu, power_mw, strftime(ts, '%H:%S') from telemetry order by ts, gpu",
        [("n1:0", 60_000, "09:00"), ("n1:1", 70_000, "09:00"), ("n1:0", 61_000, "09:10"), ("n1:1", 71_000, "09:10")],
    ),
    "what FreeIPMI prints": (
        "Fri Nov 20 10:00:00 UTC 2026\nCurrent Power                        : 812 Watts\n"
        "Minimum Power over sampling duration : 20 watts\nPower Measurement                    : Active\n",
        "select node, power_mw, strftime(ts, '%H') from node_power",
        [("n1", 812_000, "10")],
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
    done = CliRunner().invoke(cli, ["import", "--store", str(store.root), "--node", "n1", str(tmp_path / "log")])
    assert done.exit_code == 0, done.output
    assert rows(store, query) == answer


def test_the_last_xid_that_an_exporter_goes_on_to_show_is_one_event(tmp_path: Path, store: Store) -> None:
    for minute, xid in enumerate((79, 79, 43)):
        (tmp_path / "page").write_text(f'DCGM_FI_DEV_XID_ERRORS{{UUID="{UUID.format(1)}",number="{minute}"}} {xid}\n')
        import_file(store, tmp_path / "page", Options(at=f"2026-11-20 10:0{minute}:00"))
    assert rows(store, "select code, minute(ts) from events order by ts") == [(79, 0), (43, 2)]


SAID: dict[str, tuple[str | bytes, str, str]] = {
    "outputs of nvbandwidth that name no host": (
        ON_TWO_HOSTS.format(50) + ON_TWO_HOSTS.format(51), "",
        "2 outputs of nvbandwidth that name no host (from line 1 and from line 8 on): if they are of one node, give",
    ),
    "outputs of nvbandwidth of other hosts": (
        ON_TWO_HOSTS.format(50) + ON_TWO_HOSTS.format(51).replace(":07:", ":0a:"), "--node n1",
        "device 0 is 00000000:07:00 in the output of nvbandwidth from line 1 on and 00000000:0a:00 in that from line 8",
    ),
    "a file packed twice": (
        gzip.compress(gzip.compress(b"timestamp,uuid,power.draw [W]\n")), "", "is a gzip file in another; unpack it"
    ),
    "a stream of zlib": (zlib.compress(b"timestamp,uuid,power.draw [W]\n"), "", "is a zlib stream; unpack it first"),
    "logs of two hosts, of the same time": (
        "".join(stream("index, power.draw [W]", *["0, 61 W"] * 6).replace(".0,", f".{n},") for n in (1, 5)), "",
        "the logs from line 2 and from line 9 on are of the same time, and both have a GPU log:0: they are of several",
    ),
    "a log of processes": (
        f"timestamp, pid, gpu_uuid, used_gpu_memory [MiB]\n1, 2, {UUID.format(1)}, 4 MiB\n", "", "about processes; of"
    ),
    "a benchmark that was aborted": (
        '{"node": "n7", "gpu-burn/abort": 1, "gpu-burn/time": 30}\n', "",
        "has no result of a GPU: gpu-burn was aborted on n7 (line 1)",
    ),
    "a log of two tools": (
        f"{DMON}  20261120 10:00:00 0 71 40 -\ntimestamp, index, power.draw [W]\n2026/11/20 10:00:00.000, 0, 61 W\n",
        "--node n1",
        "refused: 1 where it is of nvidia-smi --query-gpu, and the file is of nvidia-smi dmon: split it (line 5)",
    ),
    "a date that is not read": (
        "100.0%  proc'd: 18 (6311 Gflop/s)   errors: 0   temps: 51 C\n\tSummary at:   mar. 17 nov. 14:52:36 CET 2026\n"
        "Tested 1 GPUs:\n\tGPU 0: OK\n", "--node n1",
        "note: gpu-burn's time 'mar. 17 nov. 14:52:36 CET 2026' cannot be read: --at says when it ran",
    ),
    "verdicts that are none": (
        "node,index,test,result\nn1,0,r3,Pass\nn1,1,r3,Skip\nn1,2,r3,Warn\n",
        "--map test=workload --map result=status --map index=index",
        "refused: 1 where result is 'Warn', which is no verdict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAID)
def test_what_is_said_of_a_file(kind: str, tmp_path: Path) -> None:
    content, options, sentence = SAID[kind]
    (tmp_path / "log").write_bytes(content if isinstance(content, bytes) else content.encode())
    command = ["import", "--store", str(tmp_path / "store"), *options.split(), str(tmp_path / "log")]
    done = CliRunner().invoke(cli, command, env={"COLUMNS": "400"})
    assert sentence in " ".join(done.output.split())


def test_gpus_that_were_known_by_their_serial_are_told_where_a_file_has_uuids(tmp_path: Path, store: Store) -> None:
    (tmp_path / "a.csv").write_text(stream("serial, power.draw [W]", "132, 61 W"))
    import_file(store, tmp_path / "a.csv", Options(node="n1"))
    (tmp_path / "b.csv").write_text(stream("serial, uuid, power.draw [W]", f"132, {UUID.format(1)}, 61 W", day=21))
    report = import_file(store, tmp_path / "b.csv", Options(node="n1"))
    assert any(note.startswith("the store knows 132 without a UUID") for note in report.notes)


def test_the_address_that_the_store_knows_is_the_gpu_of_a_later_file(tmp_path: Path, store: Store) -> None:
    for text in (BEHIND, stream("index, pci.bus_id, power.draw [W]", f"1, {BUS}47:00.0, 62 W", day=21)):
        (tmp_path / "log.csv").write_text(text)
        import_file(store, tmp_path / "log.csv", Options(node="n1"))
    assert rows(store, "select gpu, count(*) from telemetry group by 1 order by 1") == [
        ("n1:0", 1), ("n1:1", 1), ("n1:2", 2),
    ]  # fmt: skip


def test_a_number_that_another_address_had_is_no_name_of_a_gpu(tmp_path: Path, store: Store) -> None:
    """As where the driver did not find the first GPU when the node began."""
    columns = "index, pci.bus_id, power.draw [W]"
    both = stream(columns, f"0, {BUS}07:00.0, 60 W", f"1, {BUS}47:00.0, 62 W", day=21)
    for text in (stream(columns, f"0, {BUS}47:00.0, 62 W"), both):
        (tmp_path / "log.csv").write_text(text)
        import_file(store, tmp_path / "log.csv", Options(node="n1"))
    assert rows(store, "select gpu, count(*), max(power_mw) from telemetry group by 1 order by 1") == [
        ("n1:0", 2, 62_000), (f"n1:{BUS}07:00.0", 1, 60_000),
    ]  # fmt: skip


def test_another_board_at_an_address_is_another_gpu(tmp_path: Path, store: Store) -> None:
    for serial, day in (("0321021000011", 20), ("0321021000022", 21)):
        row = f"0, {serial}, {BUS}07:00.0, 60 W"
        (tmp_path / "log.csv").write_text(stream("index, serial, pci.bus_id, power.draw [W]", row, day=day))
        import_file(store, tmp_path / "log.csv", Options(node="n1"))
    assert rows(store, "select gpu, count(*) from telemetry group by 1 order by 1") == [
        ("0321021000011", 1), ("0321021000022", 1),
    ]  # fmt: skip


def test_hours_of_a_night_in_which_summer_time_ends_are_one_log(tmp_path: Path, store: Store) -> None:
    """Each hour has its header, and the first of them comes twice."""
    lines = [
        line
        for watts in (60, 70)
        for line in (
            "timestamp, index, power.draw [W]",
            *(f"2026/10/25 02:{n}0:00, 0, {watts + n} W" for n in range(6)),
        )
    ]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    report = import_file(store, tmp_path / "log.csv", Options(node="n1", time_zone="Europe/Berlin"))
    assert (report.total.kept, report.refusals) == (12, {"it is the header line again": [8]})


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
    with pytest.raises(InputError, match="has rows of several hosts, and --node n1 can name one"):
        read_file(tmp_path / "log", Options(node="n1"))
