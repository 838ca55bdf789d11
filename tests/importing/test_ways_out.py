"""Files of operators as they are, what cannot be read, and that what a message says to type works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.tests.sizes import sample

WORDS = {"UNIT": "ms", "NAME": "n1/0", "TIME": "2026-05-04T10:00:00", "SECONDS": "1"}
GPU = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
CLOCKS = [f"2026/05/04 10:00:{second:02d}.{ms:03d}" for second in range(10) for ms in (0, 3, 6, 9)]
CASES: dict[str, tuple[str, str, str]] = {
    # the header and rows, the options that are there already, the option that the sentence names
    "no unit": (f"exp,uuid,perf\nsgemm,{GPU},2400\nsgemm,{GPU},2401", "", "--unit perf=ms"),
    "no unit, mapped": ("board,took\na,2400\nb,2401", "--map board=gpu --map took=time", "--unit took=ms"),
    "no unit of a metric": (
        f"timestamp,uuid,w\n1748000000,{GPU},61", "--map w=power", "--map w=power:mW"
    ),
    "another unit": (
        f"timestamp,uuid,power.draw [W]\n1748000000,{GPU},61 mW", "", "--unit 'power.draw [W]=UNIT'"
    ),
    "an impossible unit": (
        f"timestamp,uuid,power.draw\n1748000000,{GPU},61000", "", "--unit power.draw=UNIT"
    ),
    "other names": ("timestamp,uuid,power.draw [W]\n1748000000,GPU-v00-0,61", "", "--map uuid=gpu"),
    "numbers on nodes": (
        "host,gpu,s\nn1,0,2\nn2,0,3", "--map gpu=gpu --map s=time:s", "--map gpu=index"
    ),
    "numbers on a node": ("gpu,s,host\n0,2,n1\n1,3,n1", "--map gpu=gpu --map s=time:s", "--map gpu=index"),
    "how many GPUs": (
        "job_id,node,gpus,began,ended\n7,n1,2,1748000000,1748000100", "", "--map gpus=gpu"
    ),
    "no GPU": ("exp,perf_ms\nsgemm,2400", "", "--gpu NAME"),
    "no times": ("power.draw [W],index\n60,0\n61,0", "", "--at TIME --every SECONDS"),
    "in turn": (
        "\n".join(["timestamp,power.draw [W]", *(f"{clock},6{n % 4}.1" for n, clock in enumerate(CLOCKS))]), "",
        "--gpu NAME",
    ),
    "no header": (
        "\n".join(f"{clock},{GPU},61" for clock in CLOCKS[::4]),
        "",
        "--set header=timestamp,uuid,power.draw",
    ),
}  # fmt: skip


@pytest.mark.long(short=1)
@pytest.mark.parametrize("case", sample(list(CASES), short=5))
def test_what_the_sentence_says_to_type_works(case: str, tmp_path: Path) -> None:
    content, options, way_out = CASES[case]
    path = tmp_path / "file.csv"
    path.write_text(content)
    command = ["import", "--store", str(tmp_path / "store")]
    refused = CliRunner().invoke(cli, [*command, *shlex.split(options), str(path)])
    assert refused.exit_code == 2, refused.output
    assert way_out in " ".join(refused.stderr.split())
    assert len(refused.stderr) <= 400 + len(str(path))
    typed = re.sub("|".join(WORDS), lambda word: WORDS[word[0]], way_out.replace("=UNIT", "=mW"))
    words = shlex.split(typed)
    column = words[1].partition("=")[0] if words[0] == "--map" else None
    kept = re.sub(rf"--map {column}=\S+", "", options) if column else options
    done = CliRunner().invoke(cli, [*command, *shlex.split(kept), *words, str(path)])
    assert done.exit_code == 0, done.output


PMON = "# gpu         pid   type     sm\n# Idx           #    C/G      %\n    0   12   C   95\n"
OTHERS = {
    PMON: "a log of nvidia-smi pmon, which is about processes; of GPUs, log nvidia-smi dmon -o DT",
    "#Date       Time        gpu         pid  type\n 20261120  10:00:00   0   12   C\n": "nvidia-smi pmon",
    "Fri Nov 20 10:00:00 2026\n+----+\n| NVIDIA-SMI 535.104.05  |\n": "save nvidia-smi -q instead",
    f"GPU 0: NVIDIA A100 (UUID: {GPU})\n": "which has no measurements; save nvidia-smi -q",
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\t0-23\t0\n": "nvidia-smi topo prints",
    "# nThread 1 nGpus 8\n#    size   count   type   redop    root\n": "of single ones, run nvbandwidth --json",
    "T/V                N    NB     P     Q               Time                 Gflops\n": "which is of several GPUs",
    "[CUDA Bandwidth Test] - Starting...\nRunning on...\n\n Device 0: NVIDIA A100\n": "run nvbandwidth --json",
    "PSU1 Input Power | 340.000    | Watts      | ok    | na\n": "save ipmitool dcmi power reading",
    '{"DCGM Diagnostic": {"test_categories": []}}\n': "--map test=workload --map result=status",
    "JobIDRaw|JobID|State\n7|7|COMPLETED\n": "sacct prints of jobs; read it with whorl jobs import --log",
    '{"meta": {},\n "jobs": [{"derived_exit_code": {}}]}\n': "read it with whorl jobs import --log",
    "JobID     JobName  Partition \n------------ ---------- ---------- \n7   train  gpu\n": "save it with sacct -P",
    "05/01/2026 10:00:00;S;1234.pbs01;user=ann exec_vnode=(n01:ngpus=4)\n": "as a CSV with job_id, node, gpu, began",
    '"JOB_FINISH" "10.108" 1777603700 101 33816578 64 1777600000\n': "as a CSV with job_id, node, gpu, began, ended",
}


@pytest.mark.parametrize("content", OTHERS)
def test_what_holds_no_measurement_says_what_to_save_instead(
    content: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    (tmp_path / "log").write_text(content)
    assert OTHERS[content] in refusal(tmp_path / "log")


GPUS = [f"GPU-aaaaaaaa-0000-0000-0000-00000000000{n}" for n in range(3)]


@dataclass
class Case:
    """A file and what the store has after its import: readings of power by GPU, and events."""

    content: str | bytes
    power: dict[str, int]
    events: tuple[tuple[str, str | None, int], ...] = ()  # kind, GPU, second
    refused: int = 0
    node: str | None = "n1"
    name: str = "log.csv"


def stream(header: str, *rows: str, end: str = "\n") -> str:
    """A log of nvidia-smi: each row that is no message is read at the second of its number."""
    lines = [row if row[0].isupper() else f"2026/05/04 10:00:{second:02d}.123, {row}" for second, row in
             enumerate(rows)]  # fmt: skip
    return "\n".join([f"timestamp, {header}", *lines]) + end


POWER = stream("index, uuid, power.draw [W]", *(f"{n % 2}, {GPUS[n % 2]}, 9{n}.5 W" for n in range(6)))
LOST = "[GPU is lost]"
BOTH = {GPUS[0]: 3, GPUS[1]: 3}
OPERATOR_CASES = {
    "zero bytes behind it, as after a crash": Case(POWER + "\0" * 4096, BOTH, refused=1),
    "zero bytes in front of it": Case("\0" * 512 + POWER, BOTH),
    "spellings of a PCI address": Case(
        stream("pci.bus_id, power.draw [W]", *(f"{bus}, 90.5 W" for bus in (
            "00000000:0A:00.0", "0000:0a:00.0", "0a:00.0", "0000:0A:00"))), {"n1:00000000:0A:00.0": 4}),
    "a serial number of 0": Case(
        stream("serial, pci.bus_id, power.draw [W]", *["0, 00000000:0A:00.0, 90.5 W"] * 3), {"n1:00000000:0A:00.0": 3}),
    "a lost GPU without its number": Case(
        stream("index, power.draw [W]", "0, 90.5 W", "1, 90.5 W", f"{LOST}, {LOST}", "0, 90.5 W"),
        {"n1:0": 2, "n1:1": 1}, (("lost", None, 2),), refused=1),
    "the only GPU of a file, lost": Case(
        stream("power.draw [W], uuid", *[f"90.5 W, {GPUS[0]}"] * 2, *[f"{LOST}, {LOST}"] * 3)
        + f"2026/05/04 10:30:00.123, {LOST}, {LOST}\n", {GPUS[0]: 2}, (("lost", GPUS[0], 2),)),
    "another GPU than the only one that answers, lost": Case(
        stream("power.draw [W], uuid", *[f"90.5 W, {GPUS[0]}"] * 3) + "".join(
            f"2026/05/04 10:00:0{second}.124, {LOST}, {LOST}\n" for second in range(3)),
        {GPUS[0]: 3}, (("lost", None, 0),), refused=3),
    "words in place of a number": Case(
        stream("index, power.draw [W], fan.speed [%]", "0, 90.5 W, 30 %", "0, [Deprecated], [In use by another client]",
               "0, [GPU access blocked by the operating system], 30 %"), {"n1:0": 1}),
    "a number that is cut off at the end": Case(POWER[:-5], {GPUS[0]: 3, GPUS[1]: 2}, refused=1),
    "two tools in one file": Case(
        POWER + "<nvidia_smi_log>\n<timestamp>Mon Sep 14 01:09:15 2026</timestamp>\n<gpu id='00000000:01:00.0'>\n"
        f"<uuid>{GPUS[0]}</uuid>\n<gpu_power_readings><power_draw>61.5 W</power_draw></gpu_power_readings>\n</gpu>\n"
        "</nvidia_smi_log>\n", {GPUS[0]: 1}, refused=6),
    "nvidia-smi dmon, which says that a GPU is lost": Case(
        "#Date       Time        gpu    pwr  gtemp\n#YYYYMMDD   HH:MM:SS    Idx      W      C\n"
        " 20260504   10:00:00      0     62     35\n 20260504   10:00:00      1     63     35\n"
        "Unable to determine the device handle for GPU0000:0A:00.0: GPU is lost.  Reboot the system to recover it\n"
        " 20260504   10:00:01      0     62     35\n", {"n1:0": 2, "n1:1": 1}, (("lost", None, 0),), refused=1),
}  # fmt: skip


@pytest.mark.long(short=2)
@pytest.mark.parametrize("case", OPERATOR_CASES)
def test_a_file_of_an_operator_is_read_as_it_should(case: str, store: Store, tmp_path: Path) -> None:
    given = OPERATOR_CASES[case]
    path = tmp_path / given.name
    path.write_bytes(given.content.encode() if isinstance(given.content, str) else given.content)
    report = import_file(store, path, Options(node=given.node))
    counts = store.sql("select gpu, count(power_mw) n from telemetry group by 1").to_pylist()
    assert {row["gpu"]: row["n"] for row in counts} == given.power
    assert report.total.refused == given.refused
    events: list[dict[str, Any]] = store.sql("select kind, gpu, second(ts) s from events order by ts").to_pylist()
    assert tuple(tuple(row.values()) for row in events) == given.events
    assert import_file(store, path, Options(node=given.node)).already


def test_files_of_two_nodes_may_be_equal(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(stream("pci.bus_id, power.draw [W]", "00000000:0A:00.0, 90.5 W"))
    for node in ("n1", "n2", "n1", "n2"):
        import_file(store, path, Options(node=node))
    assert store.sql("select gpu from telemetry order by gpu").to_pylist() == [
        {"gpu": f"{node}:00000000:0A:00.0"} for node in ("n1", "n2")
    ]


def test_a_table_of_two_hosts_needs_no_node(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "gpu.csv"
    others = POWER.partition("\n")[2].replace("-0000-0000-", "-0000-0001-")
    for text in (POWER + others.replace("2026/05/", "2026/06/"), POWER + others):
        path.write_text(text)
        with pytest.raises(InputError, match=r"can name one: the GPU at 0 is GPU-a.* in line 2 and GPU-a.* in line 8"):
            import_file(store, path, Options(node="n1"))
    assert import_file(store, path, Options()).gpus == 4
