"""The inputs of the contract suite, made by commands and from files; no stored store is kept anywhere."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whorl import Store
from whorl.tests.contract.harness import Output, done, run

LONGHORN = Path(__file__).parents[2].parent / "shared" / "data" / "longhorn"
SITTING_S = 1_767_571_200
"""2026-01-05 00:00 UTC: where the first campaign of a simulated fleet begins."""
DAY_S = 86_400
PROBES = ("idle", "gemm-fp32", "stream-triad", "chase-dram", "copy-h2d", "pagerank")
FAULTS = ("hot", "slow_memory=4%", "pinned=5%", "wrong_results", "lost", "brake")


@dataclass(frozen=True)
class Input:
    """A store and the files beside it, with the names that commands about it need."""

    name: str
    build: Callable[[Path], None]
    cluster: str
    gpu: str
    workload: str


def build_longhorn(folder: Path) -> None:
    """The four files of a public cluster."""
    files = sorted(LONGHORN.glob("*.csv.gz"))
    _keep(folder, "import", done("import", "--store", folder / "store", "--cluster", "longhorn", "--json", *files))
    _judge(folder / "store")


def build_fleet(folder: Path) -> None:
    """64 simulated GPUs on 16 nodes, six of them faulty, measured on two days, with jobs, telemetry and settings."""
    store = folder / "store"
    faults = ",".join(f"fault={kind}" for kind in FAULTS)
    for campaign in ("first", "second"):
        answer = run(
            "probe", "run", *PROBES, "--suite", "quick", "--backend", f"simulated:gpus=64,{faults}",
            "--neighbours", "busy", "--campaign", campaign, "--store", store, "--json",
        )  # fmt: skip
        assert answer.status == 6, answer.stderr  # one GPU falls off the bus
        _keep(folder, f"probe-run-{campaign}", answer)
    _book(folder, "simulated-V100-1", accounting())
    write_slurm(folder / "slurm")
    _judge(store)


def build_mixed(folder: Path) -> None:
    """16 V100s and 16 A100s in one cluster: the first simulated, the others imported from a file."""
    store, boards = folder / "store", folder / "boards.csv"
    simulated = (
        "demo", "sim", "--store", store, "--gpus", 16, "--model", "V100", "--set", "cluster=mixed", "--fault", "brake",
    )  # fmt: skip
    done(*simulated, "--set", "hours=0.2", "--set", "began=2026-01-05")
    done(*simulated, "--set", "runs=3", "--set", "began=2026-01-06")
    boards.write_text(measured_boards())
    meanings = ("run=run", "board=gpu", "host=node", "slot=slot", "app=workload", "elapsed=time:ms", "when=began")
    mapped = [word for meaning in meanings for word in ("--map", meaning)]
    imported = done(
        "import", "--store", store, "--cluster", "mixed", "--model", "A100-SXM4-80GB", *mapped, "--json", boards
    )  # fmt: skip
    _keep(folder, "import", imported)
    jobs = [
        job(2001 + place, f"c001-{place + 1}", SITTING_S + 60 + 30 * place, seconds=400, gpus=gpus)
        for place, gpus in enumerate((4, 4, 4, 2))
    ]
    _book(folder, "mixed", "\n".join([ACCOUNTED, *jobs, ""]))
    _judge(store)


def build_one(folder: Path) -> None:
    """One simulated GPU, measured once."""
    done(
        "probe", "run", "--suite", "quick", "--backend", "simulated:gpus=1", "--campaign", "only",
        "--store", folder / "store",
    )  # fmt: skip
    (folder / "jobs.csv").write_text(trace())
    _judge(folder / "store")


def build_none(folder: Path) -> None:
    """A store without rows."""
    Store.create(folder / "store")
    (folder / "jobs.csv").write_text(trace())


INPUTS = {
    entry.name: entry
    for entry in (
        Input("longhorn", build_longhorn, "longhorn", "c002-5/0", "sgemm"),
        Input("fleet", build_fleet, "simulated-V100-1", "c002-6/2", "gemm-fp32"),
        Input("mixed", build_mixed, "mixed", "a02/1", "sgemm"),
        Input("one", build_one, "simulated-V100-1", "c001-1/0", "gemm-fp32"),
        Input("none", build_none, "fleet", "c001-1/0", "gemm-fp32"),
    )
}


def _book(folder: Path, cluster: str, accounts: str) -> None:
    """Import what sacct said of the jobs, state what a kWh costs, and lay a trace for the replay beside the store."""
    (folder / "sacct.txt").write_text(accounts)
    (folder / "jobs.csv").write_text(trace())
    (folder / "store" / "energy.toml").write_text(SETTINGS)
    imported = done(
        "jobs", "import", "--store", folder / "store", "--log", folder / "sacct.txt", "--cluster", cluster,
        "--set", "gpus-per-node=4", "--json",
    )  # fmt: skip
    _keep(folder, "jobs-import", imported)


def _keep(folder: Path, name: str, answer: Output) -> None:
    """Keep what a command printed that made the input: its document is compared too."""
    (folder / "made").mkdir(exist_ok=True)
    (folder / "made" / f"{name}.json").write_text(answer.stdout)


def _judge(store: Path) -> None:
    """Store findings and fingerprints, so that later questions change nothing."""
    done("verdicts", "--store", store)
    done("verdicts", "fingerprint", "--store", store)


SETTINGS = """zone = "DE"
pue = 1.25
price = 0.21
currency = "EUR"
host_w = 400
"""


NODES = [f"c{cabinet:03d}-{host}" for cabinet in (1, 2) for host in range(1, 9)]
"""Of the fleet."""
DRAINED = "c001-2"


def write_slurm(folder: Path) -> None:
    """Programs that answer as Slurm's do where it knows the fleet's nodes, one of them drained, and one more node."""
    folder.mkdir()
    lines = [
        f"NodeName={node} Gres=gpu:v100:4 NodeHostName={node} State={'IDLE+DRAIN' if node == DRAINED else 'IDLE'} "
        "Partitions=batch Weight=1"
        for node in [*NODES, "c009-1"]
    ]
    (folder / "nodes").write_text("\n".join([*lines, ""]))
    (folder / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=8 -t 1-00:00:00 -p batch\nsrun train\n")
    scontrol = f"""case "$*" in
  *ping*) echo "Slurmctld(primary) at login is UP" ;;
  *config*) echo "ClusterName = simulated-V100-1" ;;
  *partitions*) echo "PartitionName=batch Default=YES MaxTime=1:00:00 State=UP" ;;
  *) cat {shlex.quote(str(folder / "nodes"))} ;;
esac
"""
    for name, script in {"scontrol": scontrol, "squeue": "exit 0\n"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)


ACCOUNTED = (
    "JobID|JobIDRaw|Cluster|User|Account|Partition|QOS|State|ExitCode|NodeList|NNodes|Submit|Eligible|Start|End|"
    "ElapsedRaw|TimelimitRaw|ReqTRES|AllocTRES|ConsumedEnergyRaw|Restarts"
)
USERS = (("alice", "physics"), ("bob", "chemistry"), ("carol", "physics"))


def job(number: int, node: str, began: int, *, seconds: int = 40, gpus: int = 4, state: str = "COMPLETED") -> str:
    """A line of `sacct -P` in the columns of `ACCOUNTED`."""
    name, account = USERS[(number - 1) % 100 % len(USERS)]
    values = (
        number, number, "slurm", name, account, "batch", "normal", state, "0:0", node, 1, began - 60, began - 60, began,
        began + seconds, seconds, 60, f"cpu=1,gres/gpu={gpus},node=1", f"cpu=8,gres/gpu={gpus},mem=4000M,node=1", 0, 0,
    )  # fmt: skip
    return "|".join(str(value) for value in values)


def accounting() -> str:
    """Saved output of sacct: whole nodes by three users on both days, a part of a node, a requeued and an early job."""
    nodes = NODES
    second_day = SITTING_S + DAY_S
    lines = [
        job(1001 + 100 * day + place, node, SITTING_S + day * DAY_S + 3, seconds=6 + place)
        for day in (0, 1)
        for place, node in enumerate(nodes[:-2])
    ]
    lines += [
        job(1201, nodes[-2], second_day + 3, seconds=15, gpus=2),
        job(1202, nodes[-1], second_day + 3, seconds=5, state="REQUEUED"),
        job(1202, nodes[-1], second_day + 12, seconds=6, state="FAILED"),
        job(1203, nodes[0], SITTING_S - 3600),
    ]
    return "\n".join([ACCOUNTED, *lines, ""])


def trace() -> str:
    """A trace of 24 jobs for the replay."""
    lines = ["job_id,submit_time,num_gpus,duration,model"]
    models = ("gemm", "graph")
    for number in range(24):
        gpus = (1, 2, 4, 8)[number % 4]
        lines.append(f"{number},{number * 200},{gpus},{600 + 137 * (number % 7)},{models[number % 2]}")
    return "\n".join(lines) + "\n"


def measured_boards() -> str:
    """Runs of 16 A100s on four nodes and three days: one is 15 % slower; the noise is a fixed series."""
    lines = ["run,board,host,slot,app,elapsed,when"]
    number = 0
    for day in range(3):
        for board in range(16):
            host, slot = board // 4 + 1, board % 4
            level = 1000.0 * (1 + 0.004 * math.sin(7.1 * board)) * (1.15 if (host, slot) == (2, 1) else 1.0)
            for repeat in range(2):
                number += 1
                elapsed = level * (1 + 0.002 * math.sin(12.9898 * number))
                began = f"2026-01-{5 + day:02d}T0{repeat + 1}:{board:02d}:00"
                uuid = f"GPU-a100{board:04x}-0000-4000-8000-{board:012x}"
                lines.append(f"{number},{uuid},a{host:02d},{slot},sgemm,{elapsed:.4f},{began}")
    return "\n".join(lines) + "\n"
