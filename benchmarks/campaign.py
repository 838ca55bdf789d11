"""What a campaign over a large cluster costs: the time of `plan` and `status`, and how often the driver asks Slurm.

    python benchmarks/campaign.py > benchmarks/results/campaign.json
    python benchmarks/campaign.py --nodes 64 --runs 3000 --driven 24        # a short try

Slurm is a folder of small programs that print what a cluster of 4,608 nodes with 6 GPUs would; the store is real, and
has 100,000 runs, in the files that the jobs of a campaign leave (`as_written`: one of `runs` and `gpus` for each node),
and then after `whorl store compact` (`compacted`).

`plan` and `status` are whole commands, with the start of Python; `cpu_s` is their CPU time, which other work on the
machine changes less. `assess` is the work within: Slurm's answers read, the
store read, both brought together. `alternative` answers the same question about the store (which GPUs of which node
have all probes of the campaign) in the usual way: all runs read with pyarrow, and grouped in Python. `same` says that
both found the same GPUs; `coverage` is what to compare its time with.

`driven` runs the driver over `--driven` nodes whose jobs last some seconds, and counts its calls of Slurm's commands.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say, wall_times
from whorl.jobs.campaign import (
    CampaignChoice,
    CampaignRequest,
    SubmitOptions,
    choose_campaign,
    declare_campaign,
    find_campaign,
)
from whorl.jobs.campaign_driver import DriverLimits, run_campaign
from whorl.jobs.campaign_status import CampaignStatus, GpuState, Inventory, assess, coverage
from whorl.jobs.slurm import Slurm
from whorl.store import Store
from whorl.store.compaction import compact
from whorl.store.events import Event, event_rows
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EventKind

GPUS = 6
REPEATS = 5
CAMPAIGN = "summit"
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=22 CPUAlloc=0 CPUEfctv=176 CPUTot=176 CPULoad=0.11 "
    "AvailableFeatures=v100,cab{cabinet} ActiveFeatures=v100,cab{cabinet} Gres=gpu:v100:{gpus}(S:0-1) "
    "NodeAddr={name} NodeHostName={name} Version=23.11.4 OS=Linux 4.18.0 #1 SMP RealMemory=580000 AllocMem=0 "
    "FreeMem=560000 Sockets=2 Boards=1 State={state} ThreadsPerCore=4 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=batch BootTime=2026-11-01T08:00:00 SlurmdStartTime=2026-11-01T08:05:00 "
    "LastBusyTime=2026-11-20T08:00:00 CfgTRES=cpu=176,mem=580000M,billing=176,gres/gpu={gpus} AllocTRES= "
    "CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"
)
PARTITION = "PartitionName=batch AllowGroups=ALL AllowAccounts=ALL Default=YES MaxTime=1-00:00:00 RootOnly=NO State=UP"
PROGRAM = """#!/bin/sh
echo {name} >> {folder}/calls
"""
SCONTROL = """case "$*" in
  *ping*) echo "Slurmctld(primary) at login is UP" ;;
  *config*) echo "ClusterName             = summit" ;;
  *partitions*) cat {folder}/partitions ;;
  *) cat {folder}/nodes ;;
esac
"""
SQUEUE = """cat {folder}/queue/* 2>/dev/null |
    awk -F'|' -v OFS='\\037' '{{ print $1, $2, $3, $4, 0, 0, "", $5, $6, "." }}'
"""
SBATCH = """id=$(($(cat {folder}/last) + 1)); echo $id > {folder}/last
name=$(sed -n "s/^#SBATCH --job-name=//p" | tr -d "'")
echo "$id|RUNNING|None|$(id -u)|$name|" > {folder}/queue/$id.new
mv {folder}/queue/$id.new {folder}/queue/$id
echo $id
"""


def fake_slurm(folder: Path, names: list[str]) -> Slurm:
    """Slurm's commands over a cluster of these nodes; every 50th is drained, every third busy."""
    (folder / "queue").mkdir(parents=True)
    (folder / "last").write_text("100\n")
    (folder / "calls").touch()
    states = ["IDLE+DRAIN" if i % 50 == 7 else "ALLOCATED" if i % 3 == 1 else "IDLE" for i in range(len(names))]
    lines = (
        NODE.format(name=name, cabinet=i // 18, gpus=GPUS, state=state)
        for i, (name, state) in enumerate(zip(names, states, strict=True))
    )
    (folder / "nodes").write_text("\n".join(lines) + "\n")
    (folder / "partitions").write_text(PARTITION + "\n")
    for name, does in {"scontrol": SCONTROL, "squeue": SQUEUE, "sbatch": SBATCH}.items():
        (folder / name).write_text((PROGRAM + does).format(name=name, folder=folder))
        (folder / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    return Slurm(environment=environment | {"PATH": f"{folder}:{os.environ['PATH']}"})


def store_node(store: Store, request: CampaignRequest, node: str, job: str) -> int:
    """Store what the job on a node would: identities and a run of each probe on each GPU. Returns how many runs."""
    gpus = [f"GPU-{node}-{slot}" for slot in range(GPUS)]
    began = time.time_ns() - 60_000_000_000
    rows = [(gpu, probe, began + i * 4_000_000_000) for gpu in gpus for i, probe in enumerate(request.probes)]
    n = len(rows)
    runs = {
        "run_id": [f"{request.campaign}-{gpu}-{probe}" for gpu, probe, _ in rows],
        "cluster": [request.cluster] * n,
        "campaign": [request.campaign] * n,
        "gpu": [gpu for gpu, _, _ in rows],
        "workload": [probe for _, probe, _ in rows],
        "job_id": [job] * n,
        "began": [at for _, _, at in rows],
        "ended": [at + 3_500_000_000 for _, _, at in rows],
        "sm_clock_mhz": [1530.0] * n,
        "power_w": [250.0] * n,
        "conditions": [{"suite": "quick", "neighbours": "busy", "repeats": 20, "steady": True}] * n,
        "ended_by": ["precise"] * n,
        "status": ["ok"] * n,
    }
    identities = {
        "cluster": [request.cluster] * GPUS,
        "gpu": gpus,
        "node": [node] * GPUS,
        "slot": list(range(GPUS)),
        "model": ["V100"] * GPUS,
        "first_seen": [began] * GPUS,
    }
    store.append({"gpus": arrow_rows("gpus", identities), "runs": arrow_rows("runs", runs)}, f"probe-{node}")
    return n


def filled(folder: Path, names: list[str], wanted: int) -> tuple[Store, CampaignRequest, int]:
    """A store with about so many runs of a campaign, from the jobs of as many nodes as that takes."""
    store = Store.create(folder / "store")
    request = declare_campaign(store, choose_campaign(store, CampaignChoice(CAMPAIGN, "quick", cluster="summit")))
    runs, covered = 0, 0
    while runs < wanted and covered < len(names):
        runs += store_node(store, request, names[covered], str(1000 + covered))
        covered += 1
    for begin in range(0, covered, 8):  # the driver stores a round of submissions in one file
        events = [
            Event(EventKind.JOB_SUBMITTED, None, "submitted", 1, name, n=1, campaign=CAMPAIGN, job_id=str(1000 + i))
            for i, name in enumerate(names[begin : begin + 8], begin)
        ]
        rows = pa.Table.from_batches([event_rows(events, cluster="summit")])
        store.append({"events": rows}, f"campaign-{begin}")
    return store, request, runs


def assessed(store: Store, slurm: Slurm, options: SubmitOptions) -> CampaignStatus:
    request = find_campaign(store, CAMPAIGN)
    return assess(request, Inventory.of(slurm, request, options), slurm.queue(), store)


def alternative(store: Store, request: CampaignRequest) -> set[str]:
    """The GPUs that have every probe, by pyarrow and Python."""
    runs = store.arrow("runs", columns=["campaign", "cluster", "gpu", "workload", "ended_by"])
    place = store.arrow("gpus", columns=["gpu", "node"])
    node_of = dict(zip(place["gpu"].to_pylist(), place["node"].to_pylist(), strict=True))
    done: dict[str, set[str]] = {}
    for row in runs.to_pylist():
        if row["campaign"] == request.campaign and row["cluster"] == request.cluster and row["ended_by"] != "failed":
            done.setdefault(row["gpu"], set()).add(row["workload"])
    return {gpu for gpu, probes in done.items() if probes >= set(request.probes) and node_of.get(gpu)}


def timed(call: Any, repeats: int = REPEATS) -> tuple[dict[str, Any], Any]:
    seconds, cpu, answer = [], [], None
    for _ in range(repeats):
        began, used = time.perf_counter(), cpu_s()
        answer = call()
        seconds.append(time.perf_counter() - began)
        cpu.append(cpu_s() - used)
    return wall_times(seconds, "times") | {"cpu_s": round(statistics.median(cpu), 4)}, answer


def cpu_s() -> float:
    """CPU time of this process and of those that it started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def command(slurm: Slurm, store: Store, verb: str, *options: str) -> str:
    words = [sys.executable, "-m", "whorl", "campaign", verb, "--store", str(store.root), *options, "--json"]
    environment = slurm.environment
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


def driven(folder: Path, nodes: int, job_s: float) -> dict[str, Any]:
    """How often a driver calls Slurm's commands while it covers so many nodes."""
    names = [f"n{i:04d}" for i in range(nodes)]
    slurm = fake_slurm(folder / "driven-slurm", names)
    (folder / "driven-slurm" / "nodes").write_text(
        "\n".join(NODE.format(name=name, cabinet=0, gpus=GPUS, state="IDLE") for name in names) + "\n"
    )
    store = Store.create(folder / "driven")
    ended = threading.Event()

    def machines() -> None:
        """Let each job end after its time, with its runs in the store."""
        since: dict[Path, float] = {}
        while not ended.wait(0.2):
            for path in (folder / "driven-slurm" / "queue").glob("*[0-9]"):
                text = path.read_text()
                if "RUNNING" in text and time.monotonic() - since.setdefault(path, time.monotonic()) > job_s:
                    store_node(store, find_campaign(store, CAMPAIGN), text.split("|")[4].split(":")[2], path.name)
                    path.write_text(text.replace("RUNNING", "COMPLETED"))

    thread = threading.Thread(target=machines)
    thread.start()
    began = time.perf_counter()
    try:
        found = run_campaign(store, CampaignChoice(CAMPAIGN, "quick"), scheduler=slurm, limits=DriverLimits(settle_s=0))
    finally:
        ended.set()
        thread.join()
    calls = Counter((folder / "driven-slurm" / "calls").read_text().split())
    covered = len(found.nodes) - sum(one.state != "covered" for one in found.nodes)
    return {
        "nodes": nodes,
        "covered": covered,
        "job_s": job_s,
        "wall_s": round(time.perf_counter() - began, 1),
        "calls": dict(calls),
        "calls_per_covered_node": round(sum(calls.values()) / covered, 3),
    }


def measured(slurm: Slurm, store: Store, request: CampaignRequest) -> dict[str, Any]:
    plan, planned = timed(lambda: command(slurm, store, "plan", "--campaign", CAMPAIGN))
    status, _ = timed(lambda: command(slurm, store, "status", "--campaign", CAMPAIGN))
    within, found = timed(lambda: assessed(store, slurm, SubmitOptions()))
    counted, _ = timed(lambda: coverage(store, request))
    usual, other = timed(lambda: alternative(store, request))
    covered = {gpu.gpu for one in found.nodes for gpu in one.covered.gpus if gpu.state is GpuState.COVERED}
    return {
        "files": {name: len(store.files(name)) for name in ("runs", "gpus", "events")},
        "to_do": json.loads(planned)["jobs"],
        "plan": plan,
        "status": status,
        "assess": within,
        "coverage": counted,
        "alternative": usual | {"same": covered == other},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=4608)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--driven", type=int, default=64)
    parser.add_argument("--job-seconds", type=float, default=5.0)
    given = parser.parse_args()
    names = [f"c{i // 18:03d}n{i % 18:02d}" for i in range(given.nodes)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        say(f"a store with {given.runs:,} runs")
        slurm = fake_slurm(folder / "slurm", names)
        store, request, runs = filled(folder, names, given.runs)
        layouts = {}
        for layout in ("as_written", "compacted"):
            say(f"plan and status, {layout}")
            if layout == "compacted":
                compact(store.root)
                store = Store.open(store.root)
            layouts[layout] = measured(slurm, store, request)
        say(f"a driver over {given.driven} nodes")
        calls = driven(folder, given.driven, given.job_seconds)
    result = {
        "schema": "whorl.benchmark.campaign/1",
        "machine": machine(),
        "nodes": given.nodes,
        "gpus": given.nodes * GPUS,
        "runs": runs,
        **layouts,
        "driven": calls,
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
