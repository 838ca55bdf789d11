"""A Slurm of small shell programs, for what a real one does not do when it is asked to: refuse, hang, lose an answer.

Its queue is a folder of files, each with a line NUMBER|STATE|REASON|UID|NAME|COMMENT, and where these are known, when
the job reaches its limit, its node, and when it starts: |END|NODE|START. `end_jobs` lets the jobs that run end, with
their runs in a store.
"""

from __future__ import annotations

import os
from pathlib import Path

from whorl.jobs.campaign import CampaignRequest, find_campaign
from whorl.jobs.slurm import Slurm
from whorl.store import Store
from whorl.store.schema import arrow_rows

_SCONTROL = """case "$*" in
  *ping*) echo "Slurmctld(primary) at login is UP" ;;
  *config*) echo "ClusterName = fake" ;;
  *partitions*) cat {folder}/partitions ;;
  *) cat {folder}/nodes ;;
esac
"""
_SBATCH = """id=$(($(cat {folder}/last) + 1)); echo $id > {folder}/last
cat > {folder}/script-$id
name=$(sed -n "s/^#SBATCH --job-name=//p" {folder}/script-$id | tr -d "'")
comment=$(sed -n "s/^#SBATCH --comment=//p" {folder}/script-$id | tr -d "'")
echo "$id|RUNNING|None|$(id -u)|$name|$comment" > {folder}/queue/$id
echo $id
"""


_SQUEUE = """cat {folder}/queue/* 2>/dev/null | sed '{edits}' |
    awk -F'|' -v OFS='\\037' '{ print $1, $2, $3, $4, $9, $7, $8, $5, $6, "." }'
"""


class FakeSlurm(Slurm):
    """Nodes n01, n02, ... of four GPUs in the partition `batch`, unless the lines say otherwise."""

    def __init__(self, folder: Path, nodes: int = 3, timeout_s: float = 10.0) -> None:
        self.folder = folder
        (folder / "queue").mkdir(parents=True)
        (folder / "last").write_text("100\n")
        (folder / "nodes").write_text("".join(map(node_line, (f"n{i:02d}" for i in range(1, nodes + 1)))))
        (folder / "partitions").write_text("PartitionName=batch Default=YES MaxTime=1:00:00 State=UP\n")
        self.does("scontrol", _SCONTROL)
        self.squeue()
        self.does("sbatch", _SBATCH)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        super().__init__(timeout_s, environment | {"PATH": f"{folder}:/usr/bin:/bin"})

    def does(self, name: str, script: str, *, before: str = "") -> None:
        """What a command does from now on; `before` that, this."""
        path = self.folder / name
        path.unlink(missing_ok=True)  # one that runs keeps what it read
        path.write_text("#!/bin/sh\n" + (before + script).replace("{folder}", str(self.folder)))
        path.chmod(0o755)

    def squeue(self, edits: str = "", *, before: str = "") -> None:
        """Let squeue change the lines of the queue in passing, as sed does."""
        self.does("squeue", _SQUEUE.replace("{edits}", edits), before=before)

    def sbatch(self, *, before: str = "", after: str = "") -> None:
        """Let sbatch do something before or after its work."""
        self.does("sbatch", _SBATCH.replace("echo $id\n", "") + (after or "echo $id\n"), before=before)

    def submitted(self) -> dict[str, str]:
        """Number -> name of every job that was submitted."""
        lines = (path.read_text().split("|") for path in sorted((self.folder / "queue").iterdir()))
        return {line[0]: line[4] for line in lines}

    def end_jobs(self, store: Path, campaign: str, state: str = "COMPLETED", *, measured: bool = True) -> None:
        """End the jobs that run; those that `measured` leave their runs."""
        for path in (self.folder / "queue").iterdir():
            text = path.read_text()
            if "RUNNING" in text and f"|whorl:{campaign}:" in text:
                if measured:
                    opened = Store.open(store)
                    store_runs(opened, find_campaign(opened, campaign), text.split("|")[4].split(":")[2], path.name)
                path.write_text(text.replace("RUNNING", state))


def node_line(
    name: str, state: str = "IDLE", gres: str = "gpu:v100:4", partitions: str = "batch", more: str = ""
) -> str:
    return f"NodeName={name} Gres={gres} NodeHostName={name} State={state} Partitions={partitions} {more}\n"


def store_runs(
    store: Store,
    request: CampaignRequest,
    node: str,
    job: str,
    *,
    gpus: int = 4,
    failed: int | None = None,
    began_ns: int | None = None,
) -> None:
    """Store the runs of a job on a node; the GPU in slot `failed` is lost in its first probe."""
    names = [f"GPU-{node}-{slot}" for slot in range(gpus)]
    began = (request.began_ns or 0) if began_ns is None else began_ns
    rows = [
        (gpu, probe, slot == failed)
        for slot, gpu in enumerate(names)
        for probe in (request.probes[:1] if slot == failed else request.probes)
    ]
    runs = {
        "run_id": [f"{job}-{gpu}-{probe}" for gpu, probe, _ in rows],
        "cluster": [request.cluster] * len(rows),
        "campaign": [request.campaign] * len(rows),
        "gpu": [gpu for gpu, _, _ in rows],
        "workload": [probe for _, probe, _ in rows],
        "job_id": [job] * len(rows),
        "began": [began] * len(rows),
        "ended": [began + 10**9] * len(rows),
        "ended_by": ["failed" if bad else "precise" for _, _, bad in rows],
        "status": ["lost" if bad else "ok" for _, _, bad in rows],
        "status_detail": ["it fell off the bus" if bad else None for _, _, bad in rows],
    }
    identities = {
        "cluster": [request.cluster] * gpus,
        "gpu": names,
        "node": [node] * gpus,
        "slot": list(range(gpus)),
        "first_seen": [began] * gpus,
    }
    store.append({"gpus": arrow_rows("gpus", identities), "runs": arrow_rows("runs", runs)}, f"{job}-{node}")
